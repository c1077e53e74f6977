"""Copies whose host side nobody touches at the wrong time, and what happens where somebody does."""

import ast
from pathlib import Path

import pytest
import torch
from engine_runs import (
    INSTANT_HOST,
    POLICIES,
    device_of,
    engine_of,
    expected_outputs,
    outputs,
    prompt_of,
    six_requests,
)

import instrumented_runtime
from instrumented_runtime import engine as engine_module
from instrumented_runtime import launcher, step_inputs
from instrumented_runtime.devices import Kernel
from instrumented_runtime.launcher import Launcher
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.request import Request
from instrumented_runtime.step_inputs import StepInputs
from instrumented_runtime.transfers import HostCopy, Upload

SLOW = Kernel("slow", 50_000, lambda target: target.copy_(torch.arange(4)))
SLOW_NS = 50_000
STARTED_TWICE = "started before the last one was waited for"


def marked_device(**options):
    return MarkedDevice(device_of(**options), Marks())


def test_a_copy_is_given_out_when_it_is_there_and_not_before():
    device = marked_device()
    stream, source = device.stream("stream"), device.allocate([4], "int64", "source")
    copy = HostCopy(device, [2, 3], "copy", has_tensors=True)
    before = device.device.now_ns
    device.launch(SLOW, stream, writes=[source])
    copy.start(source, stream)
    assert device.device.now_ns - before < SLOW_NS
    # The four are smaller than what there is room for, and come first.
    assert copy.wait().tolist() == [[0, 1, 2], [3, 0, 0]]
    assert device.device.now_ns - before > SLOW_NS


def test_of_a_copy_nothing_is_to_be_had_but_by_waiting():
    names = [name for name in vars(HostCopy) if not name.startswith("_")]
    copy = HostCopy(marked_device(), [4], "copy", has_tensors=True)
    assert names == ["start", "wait"]
    assert [name for name in vars(copy) if not name.startswith("_")] == []


def test_a_copy_that_nobody_waited_for_is_not_overwritten():
    device = marked_device()
    stream, source = device.stream("stream"), device.allocate([4], "int64", "source")
    copy = HostCopy(device, [4], "copy", has_tensors=True)
    for _ in range(2):
        copy.start(source, stream)
        copy.wait()
    copy.start(source, stream)
    with pytest.raises(RuntimeError, match=STARTED_TWICE):
        copy.start(source, stream)


def test_without_tensors_a_copy_takes_as_long_and_gives_nothing():
    ends = []
    for has_tensors in (True, False):
        device = marked_device(tensors=has_tensors)
        stream, source = device.stream("stream"), device.allocate([4], "int64", "source")
        copy = HostCopy(device, [4], "copy", has_tensors=has_tensors)
        device.launch(SLOW, stream, writes=[source])
        copy.start(source, stream)
        assert (copy.wait() is not None) == has_tensors
        ends.append(device.device.now_ns)
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("shape", "values", "there"),
    [
        ([4], [7, 8], [7, 8, 0, 0]),
        ([4], [], [0, 0, 0, 0]),
        ([3], [5, 6, 7], [5, 6, 7]),
        ([3, 2], [[1, 2], [3, 4]], [[1, 2], [3, 4], [0, 0]]),
        ([2, 3], [[1], [3]], [[1, 0, 0], [3, 0, 0]]),
    ],
)
def test_an_upload_puts_values_first_and_zeros_behind(shape, values, there):
    device = marked_device()
    stream = device.stream("stream")
    upload = Upload(device, shape, "upload", has_tensors=True)
    back = HostCopy(device, shape, "back", has_tensors=True)
    for each in (torch.full(shape, 9).tolist(), values):
        upload.start(each, stream)
        back.start(upload.target, stream)
        said = back.wait().tolist()
    assert said == there


def test_without_tensors_an_upload_only_takes_its_time():
    ends = []
    for has_tensors in (True, False):
        device = marked_device(tensors=has_tensors)
        stream = device.stream("stream")
        Upload(device, [4], "upload", has_tensors=has_tensors).start([1, 2], stream)
        device.device.synchronize()
        ends.append(device.device.now_ns)
    assert ends[0] == ends[1]


def is_right(*, host=None, overlapped=True, **options):
    """Whether an engine, which a test may have broken before, says what it has to."""
    engine = engine_of(device_of(**(host or {})), **options)
    requests = six_requests()
    engine.run(requests, overlapped=overlapped)
    return outputs(requests) == expected_outputs(requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_memory_for_one_step_no_step_can_be_launched_ahead(monkeypatch, policy):
    monkeypatch.setattr(launcher, "STEPS_UNDER_WAY", 1)
    assert is_right(policy=policy, overlapped=False)
    with pytest.raises(RuntimeError, match=STARTED_TWICE):
        is_right(policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_unguarded_it_would_give_out_what_the_next_step_said(monkeypatch, policy):
    class Unguarded(HostCopy):
        def start(self, source, stream):
            self._is_under_way = False
            super().start(source, stream)

    monkeypatch.setattr(step_inputs, "HostCopy", Unguarded)
    assert is_right(policy=policy)
    monkeypatch.setattr(launcher, "STEPS_UNDER_WAY", 1)
    assert not is_right(policy=policy)


@pytest.fixture
def one_staging_slot(monkeypatch):
    """Give all steps the same staging memory; only their results stay apart."""
    first = []

    class OneSlot(StepInputs):
        def __init__(self, device, config, number):
            super().__init__(device, config, number)
            if not number:
                first[:] = [vars(self).copy()]
            else:
                vars(self).update({**first[0], "result": self.result})

    return lambda: monkeypatch.setattr(launcher, "StepInputs", OneSlot)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mix_decode", [False, True])
@pytest.mark.parametrize("speculative_tokens", [0, 5])
def test_with_one_staging_slot_a_host_that_is_quick_enough_changes_what_a_step_still_reads(
    one_staging_slot, policy, mix_decode, speculative_tokens
):
    options = {"mix_decode": mix_decode, "speculative_tokens": speculative_tokens}
    options |= {"policy": policy, "host": INSTANT_HOST}
    assert is_right(**options)
    one_staging_slot()
    assert is_right(**options, overlapped=False)
    assert not is_right(**options)


def test_with_one_staging_slot_and_a_usual_host_only_stream_order_protects_it(one_staging_slot):
    one_staging_slot()
    # On a stream of the scheduler's own the uploads of the next step pass the forward that reads.
    assert not is_right(policy="event-wait", mix_decode=True)
    # In the forward's own they queue up behind it.
    assert is_right(policy="forward-stream", mix_decode=True)


class EarlyAdmission(Launcher):
    """Wrong on purpose: writes the table of requests on the scheduler's stream already."""

    def _prepare(self, batch, inputs, misses):
        super()._prepare(batch, inputs, misses)
        if batch.admitted:
            table = [self._memory.table]
            self._device.launch(self._admit, self._schedule, inputs.admitted, table)


@pytest.mark.parametrize("policy", ["host-sync", "event-wait"])
def test_a_row_given_on_too_early_lets_a_step_too_many_write_to_cached_pages(monkeypatch, policy):
    def is_cache_whole():
        engine = engine_of(device_of(**INSTANT_HOST), policy=policy, max_running=1)
        first, last = Request(0, prompt_of(64, 1), 1), Request(2, prompt_of(64, 1), 8)
        # Ends within the seventh page, and what follows in its row has that page from the cache.
        between = Request(1, prompt_of(44, 2), 6)
        engine.run([first])
        engine.run([between, last])
        assert last.cached_tokens == 56
        return outputs([last]) == expected_outputs([last])

    assert is_cache_whole()
    monkeypatch.setattr(engine_module, "Launcher", EarlyAdmission)
    assert not is_cache_whole()


HOST_WAITS = {"item", "cpu", "tolist", "synchronize", "on_host"}
# Programs of their own, which measure or show something, and what runs in servers of others: no
# engine of ours takes a step there.
STANDALONE = {"probe", "reproducers", "patches"}
# Why each is no hazard, by file, function and call.
ALLOWED = {
    ("engine.py", "__init__", "synchronize"): "before the first step: parameters and graphs",
    ("engine.py", "_refuse_device", "on_host"): "before the first step: whether it computes at all",
    ("launcher.py", "__init__", "synchronize"): "before the first step: new memory is zeroed",
    ("marks/marked_device.py", "synchronize", "synchronize"): "of those two alone",
    ("model_memory.py", "load_parameters", "on_host"): "before the first step; nothing reads yet",
    ("marks/marked_device.py", "sync", "synchronize"): "the one wait of the host in a step",
    ("server/profiling.py", "stop", "synchronize"): "a window ends: its work is in it to the end",
    ("transfers.py", "wait", "on_host"): "after the wait for its event",
    ("transfers.py", "start", "on_host"): "written by whoever knows the last upload is done",
    ("bench/simulate.py", "graph_us", "synchronize"): "measures a graph; no engine is there",
    ("bench/serving.py", "serve", "synchronize"): "after the last step: its clock is read then",
    ("bench/serving.py", "write", "synchronize"): "the mask itself: the device waits for nothing",
    ("planned_prefill.py", "_has_tensors", "on_host"): "before the first step, as `_refuse_device`",
    ("outcomes.py", "of_decode", "tolist"): "of what HostCopy.wait gave, or of numpy",
    ("outcomes.py", "of_prefill", "tolist"): "of what HostCopy.wait gave, or of numpy",
    ("compressor/compressor.py", "load", "on_host"): "before the first step; nothing reads yet",
    ("marks/marked_device.py", "sync_stream", "synchronize"): "what plan writer `synced` is",
    (
        "prefill/staging.py",
        "plan",
        "on_host",
    ): "written after the wait for its slot, or by `direct`",
    (
        "prefill/staging.py",
        "write",
        "on_host",
    ): "`direct` and `synced` read back, which `staged` mends",
    ("prefill/attention.py", "_in_order_of_end", "tolist"): "CPU tensors only, as the kernel runs",
    ("prefill/attention.py", "_split_tiles", "tolist"): "CPU tensors only, as the kernel runs",
}


def host_waits(source):
    """Yield function and name of each call that waits for the device or looks at host memory."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in HOST_WAITS:
                yield function.name, called.attr


def test_the_host_waits_and_reads_only_where_it_is_known_why():
    root = Path(instrumented_runtime.__file__).parent
    found = {
        (path.relative_to(root).as_posix(), *wait)
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in {"devices", "recorder", *STANDALONE}
        for wait in host_waits(path.read_text())
    }
    assert found == set(ALLOWED)
