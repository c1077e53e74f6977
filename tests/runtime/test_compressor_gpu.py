"""Compressors and the scratch of split-K attention on a real GPU."""

import numpy as np
import pytest
from real_gpu import gpu
from runtime.compressor_steps import (
    FOUR,
    LONG,
    SHAPES,
    Piece,
    Run,
    assert_close,
    hidden_states,
    reference,
)

from instrumented_runtime.compressor.split_k_buffer_pool import (
    SplitKBufferPool,
    SplitKShape,
    by_shape_and_stream,
)
from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.reproducers.two_stream_attention import TwoStreamAttention, by_shape


def run(shape, **sizes):
    return Run(TorchDevice(), shape, **({"rows": 3, "max_tokens": 1024} | sizes))


@gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_gpu_gives_the_entries_of_the_formulas_in_steps_of_any_size(shape):
    tokens = 4 * shape.ratio
    hidden = hidden_states(tokens, shape)
    one = run(shape, max_positions=tokens, drafted=2)
    wrong = {row: np.full_like(hidden, 50.0) for row in (0, 1, 2)}
    right = dict.fromkeys((0, 1, 2), hidden)
    first = shape.ratio + 1
    one.step([Piece(2, 0, first), Piece(1, 0, tokens)], right)
    one.step([Piece(0, 0, 2), Piece(2, first, 2)], wrong)  # both are taken back
    for position in range(first, tokens):
        one.step([Piece(2, position, 1), Piece(0, 0, 1)], right)
    expected = reference(hidden, one.parameters, shape)
    assert_close(one.entries(1, tokens), expected, 1e-5)
    assert_close(one.entries(2, tokens), expected, 1e-5)


@gpu
@pytest.mark.parametrize("shape", [FOUR, LONG])
def test_a_gpu_can_capture_a_step_and_the_graph_follows_its_inputs(shape):
    tokens = 2 * shape.ratio
    hidden = hidden_states(tokens, shape)
    one = run(shape, max_positions=tokens, max_tokens=2)
    all_hidden, step = one.upload(hidden), one.upload(np.array([0]))
    rows, positions = one.upload(np.array([1, 0])), one.upload(np.zeros(2, np.int64))
    states = one.upload(np.zeros((2, shape.hidden_dim), np.float32))

    def load(every, step, positions, states):
        positions[:1] = step
        states[:1] = every[step]
        step += 1

    take, inputs = Kernel("take", 1, load), {"hidden": states, "rows": rows, "positions": positions}

    def launch():
        one.marked.launch(take, one.stream, [all_hidden], [step, positions, states])
        one.compressor.launch(one.kernels(2, 2), one.stream, **inputs)

    launch()  # a library's first call may allocate what a capture cannot hold
    one.marked.synchronize()
    with one.marked.capture(one.stream, "decode") as captured:
        launch()
    for _ in range(1, tokens):
        one.marked.replay(captured[0], one.stream)
    assert_close(one.entries(1, tokens), reference(hidden, one.parameters, shape), 1e-5)


@gpu
@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize(("key", "is_clobbered"), [(by_shape_and_stream, False), (by_shape, True)])
def test_a_gpu_gives_wrong_numbers_when_two_streams_share_split_k_scratch(
    key, is_clobbered, is_ordered, is_captured
):
    # In order, events make it certain; out of order, only what lies between makes it likely.
    device = MarkedDevice(TorchDevice(), Marks())
    attention = TwoStreamAttention(device, SplitKBufferPool(device, key))
    attention.warm_up()
    assert max(attention.errors()) < 1e-5
    if is_captured:
        with device.capture(attention.main, "attend") as captured:
            attention.queue(is_ordered=is_ordered)
        device.replay(captured[0], attention.main)
    else:
        attention.queue(is_ordered=is_ordered)
    first, second = attention.errors()
    assert (first > 0.1) == is_clobbered
    assert first > 0.1 or first < 1e-5
    assert second < 1e-5


@gpu
def test_a_gpu_keeps_the_scratch_of_a_graph_when_larger_is_asked_for():
    device = MarkedDevice(TorchDevice(), Marks())
    pool, stream = SplitKBufferPool(device), device.stream("one")
    write = Kernel("write", 1, lambda partials, log_sum_exps: partials.fill_(1))
    read = Kernel(
        "read", 1, lambda partials, log_sum_exps, seen: seen.copy_(partials.flatten()[:1])
    )
    spoil = Kernel("spoil", 1, lambda partials, log_sum_exps: partials.fill_(2))
    seen = device.allocate((1,), "float32", "seen")
    device.synchronize()
    with device.capture(stream, "write, then read") as captured:
        scratch = pool.scratch(SplitKShape(1, 1, 1, 64), stream)
        device.launch(write, stream, [], scratch)
        device.launch(read, stream, scratch, [seen])
    others = [pool.scratch(SplitKShape(1, tokens, 1, 64), stream) for tokens in (2, 4, 3)]
    assert scratch.partials.address not in [other.partials.address for other in others]
    device.launch(spoil, stream, [], others[-1])
    device.replay(captured[0], stream)
    host = device.pinned((1,), "float32", "host")
    device.copy_async(host, seen, stream)
    device.synchronize()
    assert host.on_host().tolist() == [1.0]
