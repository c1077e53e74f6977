"""The engine on a real GPU says what the host model says, whatever the policy."""

import random
import subprocess
import sys

import pytest
from real_gpu import gpu

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.request import Request

POLICIES = ("host-sync", "event-wait", "forward-stream")
SIZES = {"max_running": 3, "chunk_tokens": 32, "page_size": 8, "max_tokens": 128}
# Kernels without work of their own spin; here they need not for long.
SHORT = Costs(device_scale=0.01, prefill_token_ns=1_000)


def tokens(device, *, overlapped, **options):
    """What each of seven requests is told, more than run at once and longer than a chunk."""
    draw = random.Random(1)
    requests = [
        Request(i, tuple(draw.randrange(512) for _ in range(37 + i % 5)), 24 + i % 3)
        for i in range(7)
    ]
    config = EngineConfig(**(SIZES | options))
    Engine(device, config, costs=SHORT).run(requests, overlapped=overlapped)
    return [request.output for request in requests]


def tokens_of_the_host_model(**options):
    device = VirtualDevice(Config(tensors=False, host_costs_ns=SHORT.host_ns))
    return tokens(device, overlapped=False, has_tensors=False, **options)


@gpu
@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("speculative_tokens", [0, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_gpu_says_the_tokens_of_the_host_model(policy, speculative_tokens, overlapped):
    options = {"policy": policy, "speculative_tokens": speculative_tokens}
    assert tokens(TorchDevice(), overlapped=overlapped, **options) == tokens_of_the_host_model(
        **options
    )


@gpu
@pytest.mark.parametrize("option", ["is_checked", "mix_decode", "needs_cpu_seq_lens"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_gpu_says_the_same_checked_mixed_and_with_lengths_on_the_host(policy, option):
    said = tokens(TorchDevice(), overlapped=True, policy=policy, **{option: True})
    assert said == tokens_of_the_host_model(policy=policy)


READ_TWICE = """
from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.model_kernels import gather_lengths

device = TorchDevice()
rows, lengths, taken = (device.allocate((2,), "int64") for _ in range(3))
gather = Kernel("gather", 1_000, gather_lengths(is_checked=True))
for _ in range(TIMES):
    device.launch(Kernel("row 1", 1_000, lambda rows: rows.fill_(1)), device.null_stream, [], [rows])
    device.launch(gather, device.null_stream, [rows, lengths], [taken, lengths])
device.synchronize()
"""


@gpu
@pytest.mark.parametrize(("times", "is_found"), [(1, False), (2, True)])
def test_checked_a_gpu_fails_when_a_row_is_taken_twice(times, is_found):
    # In a process of its own, since the GPU is lost to one whose assertion failed on it.
    program = READ_TWICE.replace("TIMES", str(times))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode != 0) == is_found
    assert ("a row was read again before anything was published" in done.stderr) == is_found
    assert ("device-side assert" in done.stderr) == is_found
