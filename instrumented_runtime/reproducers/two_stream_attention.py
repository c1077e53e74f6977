"""Two streams that attend at once, with scratch of their own or with the same.

Both kernels of the first stream are far enough apart that the second stream writes its partial
outputs in between. If those go to the same scratch, the first stream combines the second's.
"""

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.compressor.split_k_buffer_pool import (
    SplitKBufferPool,
    SplitKScratch,
    SplitKShape,
    attend_splits,
    combine_splits,
)
from instrumented_runtime.devices import Buffer, Event, Kernel, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

SHAPE = SplitKShape(splits=4, tokens=8, heads=4, value_dim=16)
_KEY_DIM, _KEYS, _SLOTS = 32, 50, 64

_ATTEND = Kernel("split_k_attend", 8_000, attend_splits)
_COMBINE = Kernel("split_k_combine", 2_000, combine_splits)
# Longer than it takes a host to launch all that torch makes of the other stream's kernels.
_BETWEEN = Kernel("between", 5_000_000)


def by_shape(shape: SplitKShape, _stream: Stream) -> Hashable:
    """Return a pool's key that is the fault: streams share scratch."""
    return shape


class TwoStreamAttention:
    """Inputs and outputs of attention on two side streams of a main one.

    Needs a device with tensors.
    """

    def __init__(self, device: MarkedDevice, pool: SplitKBufferPool) -> None:
        """Load different queries for each stream, of the same keys and shape."""
        self._device, self._pool = device, pool
        self.main = device.stream("main")
        self._sides = [device.stream(f"side {number}") for number in range(2)]
        self._events = [device.event() for _ in range(6)]
        draw = np.random.default_rng(0)
        self._keys = draw.standard_normal((_SLOTS, _KEY_DIM))
        self._slots = draw.integers(-1, _SLOTS, (SHAPE.tokens, _KEYS))
        self._queries = draw.standard_normal((2, SHAPE.tokens, SHAPE.heads, _KEY_DIM))
        keys = self._loaded(self._keys, "float32", "cache")
        slots = self._loaded(self._slots, "int64", "slots")
        self._reads = [
            (self._loaded(queries, "float32", "queries"), keys, slots) for queries in self._queries
        ]
        output = SHAPE[1:]
        self._outputs = [device.allocate(output, "float32", "output") for _ in self._sides]
        self._results = [device.pinned(output, "float32", "result") for _ in self._sides]
        device.synchronize()

    def warm_up(self) -> None:
        """Run each stream alone: a first launch may hold back what runs beside it."""
        for number, side in enumerate(self._sides):
            scratch = self._attend(number)
            self._device.launch(_BETWEEN, side)
            self._combine(number, scratch)
            self._device.synchronize()

    def queue(self, *, is_ordered: bool) -> None:
        """Fork, attend on both streams, join; it can be captured from the main stream.

        Args:
            is_ordered: Whether events make sure that the kernels run in turn: the first of each
                stream, then the second of each. Without them how long the streams take decides.
        """
        fork, attended, other_attended, combined, *joined = self._events
        first, second = self._sides
        self._order(fork, self.main, *self._sides)
        scratch = self._attend(0)
        if is_ordered:
            self._order(attended, first, second)
        self._device.launch(_BETWEEN, first)
        other_scratch = self._attend(1)
        if is_ordered:
            self._order(other_attended, second, first)
        self._device.launch(_BETWEEN, second)
        self._combine(0, scratch)
        if is_ordered:
            self._order(combined, first, second)
        self._combine(1, other_scratch)
        for event, side in zip(joined, self._sides, strict=True):
            self._order(event, side, self.main)

    def errors(self) -> list[float]:
        """Return the largest deviation of each stream's last output from attention in float64."""
        for result, output in zip(self._results, self._outputs, strict=True):
            self._device.copy_async(result, output, self.main)
        self._device.synchronize()
        return [
            float(np.abs(result.on_host().numpy() - self._expected(queries)).max())
            for result, queries in zip(self._results, self._queries, strict=True)
        ]

    def _attend(self, number: int) -> SplitKScratch:
        side = self._sides[number]
        scratch = self._pool.scratch(SHAPE, side)
        self._device.launch(_ATTEND, side, self._reads[number], scratch)
        return scratch

    def _combine(self, number: int, scratch: SplitKScratch) -> None:
        self._device.launch(_COMBINE, self._sides[number], scratch, [self._outputs[number]])

    def _order(self, event: Event, before: Stream, *after: Stream) -> None:
        self._device.record(event, before)
        for stream in after:
            self._device.wait(event, stream)

    def _loaded(self, values: NDArray[np.generic], dtype: str, name: str) -> Buffer:
        source = self._device.pinned(values.shape, dtype, f"{name}_host")
        source.on_host().copy_(source.on_host().new_tensor(values))
        buffer = self._device.allocate(values.shape, dtype, name)
        self._device.synchronize()  # new memory is cleared on another stream
        self._device.copy_async(buffer, source, self.main)
        return buffer

    def _expected(self, queries: NDArray[np.float64]) -> NDArray[np.float64]:
        keys = self._keys[self._slots]
        scores = np.einsum("thd,tnd->thn", queries, keys) / np.sqrt(_KEY_DIM)
        shares = np.exp(scores) * (self._slots >= 0)[:, None]
        total = shares.sum(2, keepdims=True)
        values = keys[..., : SHAPE.value_dim]
        expected: NDArray[np.float64] = np.einsum("thn,tnd->thd", shares / total, values)
        return expected
