"""Scratch of split-K decode attention, and the two kernels that use it.

Few queries leave most of a GPU idle, so the keys of each are split over many blocks: one kernel
writes a result and its log-sum-exp per split, a second combines them. What lies between the two
is scratch, and two streams that share it read each other's.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from instrumented_runtime.devices import Buffer, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

if TYPE_CHECKING:
    from torch import Tensor


class SplitKShape(NamedTuple):
    """What decides the size of scratch."""

    splits: int
    tokens: int
    heads: int
    value_dim: int


class SplitKScratch(NamedTuple):
    """What lies between the two kernels: the writes of the first, the reads of the second.

    Attributes:
        partials: `[splits, tokens, heads, value_dim] float32`, device: attention to each split.
        log_sum_exps: `[splits, tokens, heads] float32`, device: −inf for a split without keys.
    """

    partials: Buffer
    log_sum_exps: Buffer


def by_shape_and_stream(shape: SplitKShape, stream: Stream) -> Hashable:
    """Return what work must have in common to share scratch."""
    return shape, stream.handle


@dataclass(slots=True)
class _Held:
    scratch: SplitKScratch
    stream: Stream
    is_in_graph: bool = False


class SplitKBufferPool:
    """Scratch by shape and stream, of one device.

    Work of one stream runs in order, so it can share scratch; work of two cannot. A stream that
    takes part in a capture counts as itself, so branches of a graph that run at once have their
    own.

    Whatever is asked for while a capture is under way on the device belongs to a graph, which
    will use it at each replay. It stays as it is as long as the pool does: when the last graph
    that refers to it goes, the pool cannot know. Other scratch of a stream is freed, in the order
    of that stream, when the stream asks for another shape; launch both kernels before.

    It cannot tell where a graph will be replayed. Two graphs captured on one stream share scratch,
    so they must not run at once on two.
    """

    def __init__(
        self,
        device: MarkedDevice,
        key: Callable[[SplitKShape, Stream], Hashable] = by_shape_and_stream,
    ) -> None:
        """Hold nothing yet; only to show the fault does another key make sense."""
        self._device, self._key = device, key
        self._held: dict[Hashable, _Held] = {}

    def scratch(self, shape: SplitKShape, stream: Stream) -> SplitKScratch:
        """Return the scratch for work that is launched into a stream.

        A run of the same shape just before the capture lets the graph do without clearing it.
        """
        key = self._key(shape, stream)
        held = self._held.get(key)
        if held is None:
            if not self._device.is_capturing:
                # Within a capture memory freed now could become a graph's, which may be replayed
                # on a stream that does not wait for its last user.
                self._free_of(stream)
            held = self._held[key] = _Held(self._allocate(shape, stream), stream)
        held.is_in_graph |= self._device.is_capturing
        return held.scratch

    def _allocate(self, shape: SplitKShape, stream: Stream) -> SplitKScratch:
        allocate = self._device.allocate
        return SplitKScratch(
            allocate(shape, "float32", "split_k_partials", stream=stream),
            allocate(shape[:-1], "float32", "split_k_log_sum_exps", stream=stream),
        )

    def _free_of(self, stream: Stream) -> None:
        for key, held in list(self._held.items()):
            if held.stream is stream and not held.is_in_graph:
                del self._held[key]
                for buffer in held.scratch:
                    self._device.free(buffer)


def attend_splits(
    queries: "Tensor",
    cache: "Tensor",
    slots: "Tensor",
    partials: "Tensor",
    log_sum_exps: "Tensor",
) -> None:
    """Attend to each split of the keys alone; the scores are scaled by d^−½.

    Args:
        queries: `[tokens, heads, d]`, device.
        cache: `[num_slots, d]`, device: keys, and values in their first `value_dim` columns.
        slots: `[tokens, n]` integers, device: where the keys of each token are, −1 for none.
        partials: As `SplitKScratch`; written.
        log_sum_exps: As `SplitKScratch`; written.
    """
    import torch

    splits, tokens, _, value_dim = partials.shape
    per_split = -(-slots.shape[1] // splits)
    short = splits * per_split - slots.shape[1]
    slots = torch.nn.functional.pad(slots, (0, short), value=-1).view(tokens, splits, per_split)
    keys = cache[slots.clamp(min=0).long()].float()
    scores = torch.einsum("thd,tsnd->sthn", queries.float(), keys) * queries.shape[-1] ** -0.5
    is_absent = (slots < 0).transpose(0, 1)[:, :, None]
    scores = scores.masked_fill(is_absent, float("-inf"))
    torch.logsumexp(scores, -1, out=log_sum_exps)
    # Of a split without keys the sum is 0, whatever it is divided by.
    shares = (scores - log_sum_exps.nan_to_num(neginf=0.0)[..., None]).exp()
    partials.copy_(torch.einsum("sthn,tsnd->sthd", shares, keys[..., :value_dim]))


def combine_splits(partials: "Tensor", log_sum_exps: "Tensor", output: "Tensor") -> None:
    """Set `output [tokens, heads, value_dim]` to the attention to all keys, 0 where there are none.

    Each split counts by the sum of its exponentials; the log-sum-exps keep those in range.
    """
    largest = log_sum_exps.amax(0).nan_to_num(neginf=0.0)
    weights = (log_sum_exps - largest).exp()
    total = weights.sum(0)
    combined = (weights[..., None] * partials).sum(0) / total.clamp(min=1e-30)[..., None]
    output.copy_(combined)
