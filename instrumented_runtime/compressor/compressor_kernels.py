"""What a compressor's two kernels do to tensors, on any device.

Shapes: `n` tokens of a step, `w` columns of the GEMM's result: values, then scores, of each half.
Everything is a torch operation that a graph can capture: no shape depends on data and nothing comes
to the host. Row 0 of the requests is padding's, and so is page 0 of the compressed cache.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from instrumented_runtime.devices import store_rows

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[..., None]

NORM_EPSILON = 1e-6


class Learned(NamedTuple):
    """What the pooling reads of a compressor; `halves` is how many groups a window spans.

    Attributes:
        bias: `[ratio, halves · head_dim] float32`, device.
        norm: `[head_dim] float32`, device.
        angles: `[entries, rope_dim / 2, 2] float32`, device: cosine and sine by group.
        hadamard: `[head_dim, head_dim] float32`, device.
    """

    bias: "Tensor"
    norm: "Tensor"
    angles: "Tensor"
    hadamard: "Tensor"


class Tokens(NamedTuple):
    """The tokens of a step.

    Attributes:
        rows: `[n]` integers, device.
        positions: `[n]` integers, device.
        projected: `[n, w]`, device.
    """

    rows: "Tensor"
    positions: "Tensor"
    projected: "Tensor"

    def holds(self, index: "Tensor", row: "Tensor", position: "Tensor") -> "Tensor":
        """Return whether the token at an index, which may be out of bounds, is the one meant.

        One at the bound is another: a request's positions rise with the index.
        """
        near = index.clamp(0, len(self.rows) - 1)
        return (self.rows[near] == row) & (self.positions[near] == position)


def project(hidden: "Tensor", weight: "Tensor", projected: "Tensor") -> None:
    """Set the first rows of `projected [max_tokens, w]` to `hidden [n, h] @ weight [h, w]`.

    All of one dtype; in bfloat16 values and scores are rounded to it.
    """
    import torch

    torch.mm(hidden, weight, out=projected[: len(hidden)])


@cache
def pool_and_store(page_entries: int, max_entries: int, *, is_indexer: bool) -> Function:
    """Return the kernel that makes entries of projected tokens and keeps those not yet used up.

    More entries than `max_entries` are a store out of bounds.
    """

    def function(
        rows: "Tensor",
        positions: "Tensor",
        table: "Tensor",
        projected: "Tensor",
        *others: "Tensor",
    ) -> None:
        learned, (kept, cache) = Learned(*others[:-2]), others[-2:]
        ratio = len(learned.bias)
        tokens = Tokens(rows.flatten(), positions.flatten(), projected[: rows.numel()])
        last = _last_of_groups(tokens, ratio, max_entries)
        is_entry = last >= 0
        last = last.clamp(min=0)
        entries = _normalised(_pooled(tokens, last, kept, learned), learned.norm)
        # A place of no entry is padding's: row 0, its first entry.
        group = (tokens.positions[last] // ratio) * is_entry
        entries = _rotated(entries, learned.angles[group])
        if is_indexer:
            entries = entries @ learned.hadamard
        pages = table[tokens.rows[last] * is_entry, group // page_entries]
        entries = entries.masked_fill(~is_entry[:, None], 0)
        store_rows(cache, pages * page_entries + group % page_entries, entries.to(cache.dtype))
        _keep(tokens, kept)

    return function


def _last_of_groups(tokens: Tokens, ratio: int, max_entries: int) -> "Tensor":
    """Return `[max_entries]`: where the last tokens of groups are in the step, then −1."""
    import torch

    is_last = (tokens.rows != 0) & (tokens.positions % ratio == ratio - 1)
    places = is_last.cumsum(0) * is_last
    found = places.new_full((max_entries + 1,), -1)
    store_rows(found, places, torch.arange(len(is_last), device=is_last.device))
    return found[1:]


def _pooled(tokens: Tokens, last: "Tensor", kept: "Tensor", learned: Learned) -> "Tensor":
    """Return `[entries, head_dim] float32`: the values of each window, weighted by their scores.

    A window's tokens are in the step if they are that new, and else among those kept.
    """
    import torch

    ratio, width = len(learned.bias), len(learned.norm)
    bias = learned.bias.view(ratio, -1, width)
    halves = bias.shape[1]
    rows, end = tokens.rows[last][:, None], tokens.positions[last][:, None]
    new = tokens.projected.view(-1, 2, halves, width)
    old = kept.view(*kept.shape[:2], 2, halves, width)
    windows = []
    for half in range(halves):
        behind = (halves - half) * ratio - 1
        back = behind - torch.arange(ratio, device=last.device)
        seen = end - back
        index = last[:, None] - back
        is_new = tokens.holds(index, rows, seen)[:, :, None, None]
        window = torch.where(
            is_new,
            new[index.clamp(min=0), :, half].float(),
            old[rows, seen % old.shape[1], :, half],
        )
        is_before = (seen < 0)[:, :, None]
        scores = (window[:, :, 1] + bias[:, half]).masked_fill(is_before, float("-inf"))
        # Its share is 0, but what was never kept may be no number.
        windows.append((window[:, :, 0].masked_fill(is_before, 0), scores))
    values, scores = (torch.cat(part, 1) for part in zip(*windows, strict=True))
    return (scores.softmax(1) * values).sum(1)


def _normalised(entries: "Tensor", norm: "Tensor") -> "Tensor":
    return entries * (entries.square().mean(1, keepdim=True) + NORM_EPSILON).rsqrt() * norm


def _rotated(entries: "Tensor", angles: "Tensor") -> "Tensor":
    """Rotate neighbouring columns of the end as pairs; `angles [entries, rope_dim / 2, 2]`."""
    import torch

    cosine, sine = angles.unbind(-1)
    rest, turned = entries.tensor_split([entries.shape[1] - 2 * cosine.shape[1]], 1)
    a, b = turned.unflatten(1, (-1, 2)).unbind(-1)
    pairs = torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1)
    return torch.cat((rest, pairs.flatten(1)), 1)


def _keep(tokens: Tokens, kept: "Tensor") -> None:
    """Keep the last tokens of each request by position, as many as there are slots."""
    import torch

    slots = kept.shape[1]
    index = torch.arange(len(tokens.rows), device=kept.device) + slots
    # Two tokens for one slot would be stored in any order, so older ones go to padding's.
    is_replaced = tokens.holds(index, tokens.rows, tokens.positions + slots)
    rows = tokens.rows * ~is_replaced
    places = rows * slots + tokens.positions % slots
    store_rows(kept.flatten(0, 1), places, tokens.projected.float())
