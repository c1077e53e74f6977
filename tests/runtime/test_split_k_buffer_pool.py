"""Scratch of split-K attention: right numbers alone, and beside another stream if it is keyed."""

import math

import numpy as np
import pytest
import torch

from instrumented_runtime.compressor.split_k_buffer_pool import (
    SplitKBufferPool,
    SplitKShape,
    attend_splits,
    by_shape_and_stream,
    combine_splits,
)
from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.reproducers.two_stream_attention import TwoStreamAttention, by_shape

SHAPE = SplitKShape(splits=2, tokens=1, heads=1, value_dim=3)
LARGER = SHAPE._replace(tokens=2)
WRITE = Kernel("write", 1_000, lambda partials, log_sum_exps: partials.fill_(1))
READ = Kernel("read", 1_000, lambda partials, log_sum_exps, seen: seen.copy_(partials[0, 0, 0, :1]))


def plain_attention(queries, cache, slots, value_dim):
    """Float64, one number at a time."""
    tokens, heads, d = queries.shape
    output = np.zeros((tokens, heads, value_dim))
    for token in range(tokens):
        keys = [cache[slot] for slot in slots[token] if slot >= 0]
        for head in range(heads):
            weights = [math.exp(queries[token, head] @ key / math.sqrt(d)) for key in keys]
            for weight, key in zip(weights, keys, strict=True):
                output[token, head] += weight / sum(weights) * key[:value_dim]
    return output


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_splits_combine_to_attention_to_all_keys(splits, dtype):
    draw = torch.Generator().manual_seed(1)
    queries = (3 * torch.randn(4, 3, 8, generator=draw)).to(dtype)
    cache = torch.randn(20, 8, generator=draw).to(dtype)
    slots = torch.randint(0, 20, (4, 13), generator=draw)
    slots[1, 3:] = -1  # later splits have no keys
    slots[2, :9] = -1  # earlier ones
    slots[3] = -1
    partials, log_sum_exps = torch.full((splits, 4, 3, 5), 9.0), torch.full((splits, 4, 3), 9.0)
    output = torch.full((4, 3, 5), 9.0)
    attend_splits(queries, cache, slots, partials, log_sum_exps)
    combine_splits(partials, log_sum_exps, output)
    exact = (tensor.double().numpy() for tensor in (queries, cache))
    assert np.abs(output.numpy() - plain_attention(*exact, slots.tolist(), 5)).max() < 1e-5
    assert not output[3].any()


def test_scores_beyond_the_range_of_exp_are_combined():
    queries, cache = torch.tensor([[[300.0]]]), torch.tensor([[-1.0], [1.0], [0.0]])
    partials, log_sum_exps, output = torch.empty(3, 1, 1, 1), torch.empty(3, 1, 1), torch.empty(1)
    attend_splits(queries, cache, torch.tensor([[0, 1, 2]]), partials, log_sum_exps)
    combine_splits(partials, log_sum_exps, output.view(1, 1, 1))
    assert log_sum_exps.flatten().tolist() == [-300.0, 300.0, 0.0]
    assert output.tolist() == [1.0]


def virtual(**config):
    return MarkedDevice(VirtualDevice(Config(**config)), Marks())


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(("key", "is_clobbered"), [(by_shape_and_stream, False), (by_shape, True)])
def test_streams_that_attend_at_once_need_scratch_of_their_own(key, is_clobbered, is_ordered):
    device = virtual()
    attention = TwoStreamAttention(device, SplitKBufferPool(device, key))
    attention.warm_up()
    assert max(attention.errors()) < 1e-5  # one at a time they may share it
    attention.queue(is_ordered=is_ordered)
    first, second = attention.errors()
    assert (first > 0.1) == is_clobbered
    assert first > 0.1 or first < 1e-5
    assert second < 1e-5  # its own were the last that were written


def test_that_streams_share_a_hardware_queue_does_not_let_them_share_scratch():
    device = virtual(max_hw_queues=1)
    attention = TwoStreamAttention(device, SplitKBufferPool(device, by_shape))
    attention.queue(is_ordered=False)
    # The queue runs in the order of the calls, and those of the two streams alternate.
    first, second = attention.errors()
    assert first > 0.1
    assert second < 1e-5


@pytest.mark.parametrize(("key", "is_clobbered"), [(by_shape_and_stream, False), (by_shape, True)])
def test_branches_of_a_captured_graph_need_scratch_of_their_own(key, is_clobbered):
    device = virtual()
    attention = TwoStreamAttention(device, SplitKBufferPool(device, key))
    with device.capture(attention.main, "attend") as captured:
        attention.queue(is_ordered=False)
    for _ in range(2):
        device.replay(captured[0], attention.main)
    first, second = attention.errors()
    assert (first > 0.1) == is_clobbered
    assert first > 0.1 or first < 1e-5
    assert second < 1e-5


def addresses(scratch):
    return [buffer.address for buffer in scratch]


def test_scratch_is_the_same_for_one_shape_and_stream_and_no_others():
    device = virtual()
    pool, one, two = SplitKBufferPool(device), device.stream("one"), device.stream("two")
    scratch = pool.scratch(SHAPE, one)
    assert pool.scratch(SHAPE, one) is scratch
    assert not {*addresses(pool.scratch(SHAPE, two))} & {*addresses(scratch)}
    sizes = [buffer.size_bytes for buffer in pool.scratch(LARGER, two)]
    assert sizes == [2 * 2 * 1 * 3 * 4, 2 * 2 * 1 * 4]


def test_another_shape_frees_what_no_graph_refers_to_for_its_own_stream():
    device = virtual()
    pool, one, two = SplitKBufferPool(device), device.stream("one"), device.stream("two")
    old, others = pool.scratch(SHAPE, one), pool.scratch(SHAPE, two)
    new = pool.scratch(SHAPE._replace(heads=2), one)
    assert addresses(new) == addresses(old)
    assert len(device.buffers) == 4
    with pytest.raises(ValueError, match="freed"):
        device.launch(WRITE, one, [], old)
    device.launch(WRITE, two, [], others)


@pytest.mark.parametrize("is_known_before", [False, True])
def test_what_a_graph_refers_to_is_neither_freed_nor_given_to_others(is_known_before):
    device = virtual()
    pool, stream = SplitKBufferPool(device), device.stream("one")
    seen = device.allocate((1,), "float32", "seen")
    if is_known_before:
        pool.scratch(SHAPE, stream)
    with device.capture(stream, "write, then read") as captured:
        scratch = pool.scratch(SHAPE, stream)
        device.launch(WRITE, stream, [], scratch)
        device.launch(READ, stream, scratch, [seen])
    held = {*addresses(scratch)}
    for tokens in (8, 1, 4, 2):  # more and less
        shape = SHAPE._replace(tokens=tokens)
        again = pool.scratch(shape, stream)
        assert (again is scratch) == (shape == SHAPE)
        if shape != SHAPE:
            assert not held & {*addresses(again)}
    device.replay(captured[0], stream)
    host = device.pinned((1,), "float32", "host")
    device.copy_async(host, seen, stream)
    device.synchronize()
    assert host.on_host().tolist() == [1.0]
    device.launch(WRITE, stream, [], scratch)


def test_a_capture_frees_nothing():
    device = virtual()
    pool, stream = SplitKBufferPool(device), device.stream("one")
    old = pool.scratch(SHAPE, stream)
    with device.capture(stream, "larger"):
        new = pool.scratch(LARGER, stream)
        device.launch(WRITE, stream, [], new)
    assert not {*addresses(old)} & {*addresses(new)}
    device.launch(WRITE, stream, [], old)
    pool.scratch(LARGER._replace(tokens=3), stream)
    with pytest.raises(ValueError, match="freed"):
        device.launch(WRITE, stream, [], old)
    device.launch(WRITE, stream, [], new)
