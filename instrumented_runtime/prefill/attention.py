"""Prefill attention in two kernels that do what a plan's maps say, and nothing else.

`mla_prefill_ps_fwd` walks the work items of each group: one tile of query rows against one range
of keys. A tile that one item covers goes to the output; of a tile that several items share, each
writes its own result and log-sum-exp to the scratch, and `mla_reduce` combines them. Layout of the
maps and meaning of the numbers are those of AITER's kernels of these names, with one token to a
page.

On a GPU the kernels are Triton's (`attention_triton`); on CPU tensors they are the torch operations
below, which are the reference. Either way the maps are read when the kernel runs, and whatever they
say is done: with another batch's maps the result is wrong, or a store leaves the scratch. A *load*
beyond the tokens, the pages or a map gives 0, as a buffer load of the GPU does.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from instrumented_runtime.devices import refuse_rows, store_rows

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    """What is attended, device.

    Attributes:
        q: `[tokens, heads, qk_width]`, bfloat16 or float32.
        k: `[slots, kv_heads, qk_width]`, dtype of `q`; `heads` is a multiple of `kv_heads`.
        v: `[slots, kv_heads, v_width]`, dtype of `q`.
        qo_indptr: `[sequences + 1] int32`, where each sequence's rows of `q` begin.
        kv_indptr: `[sequences + 1] int32`, where each sequence's pages begin.
        kv_page_indices: `[pages] int32`, the slot of each page.
    """

    q: "Tensor"
    k: "Tensor"
    v: "Tensor"
    qo_indptr: "Tensor"
    kv_indptr: "Tensor"
    kv_page_indices: "Tensor"


class WorkMaps(NamedTuple):
    """Who works on what, device.

    Attributes:
        indptr: `[groups + 1] int32`, where each group's items begin.
        info: `[items, 8] int32`: sequence, first scratch row or −1 for the output, query rows from
            and to, pages from and to, tokens after the last page (not read: with one token to a
            page `kv_indptr` says it), heads from (low half) and to (high half).
    """

    indptr: "Tensor"
    info: "Tensor"


class ReduceMaps(NamedTuple):
    """Which parts make up which tile, device.

    Attributes:
        indptr: `[tiles + 1] int32`, where each split tile's parts begin.
        final_map: `[tiles, 2] int32`, its output rows, from and to.
        partial_map: `[parts] int32`, the first scratch row of each part.
    """

    indptr: "Tensor"
    final_map: "Tensor"
    partial_map: "Tensor"


class Scratch(NamedTuple):
    """Results of the parts of split tiles, device.

    With no row, both have the address 0, and what a foreign plan stores goes near it.

    Attributes:
        output: `[rows, heads, v_width] float32`, normalised: the weights of a part sum to one.
        lse: `[rows, heads] float32`, natural logarithm of the sum of exponentials; −inf where no
            key was in reach.
    """

    output: "Tensor"
    lse: "Tensor"


def mla_prefill_ps_fwd(
    batch: Batch,
    work: WorkMaps,
    scratch: Scratch,
    output: "Tensor",
    *,
    softmax_scale: float,
    is_causal: bool = True,
) -> None:
    """Do all work items.

    Sums are float32 whatever the dtype of `q`. With `is_causal` the last row of a sequence sees its
    last page, the row before it one page less, and so on. A row without a key in reach becomes 0.

    Args:
        batch: What is attended.
        work: The items of the plan.
        scratch: Where the parts of split tiles go; rows that no item names are left as they are.
        output: `[tokens, heads, v_width]` bfloat16 or float32, device; likewise.
        softmax_scale: What scores are multiplied by.
        is_causal: Whether a row sees only what is not after it.

    Raises:
        RowOutOfBoundsError: On CPU tensors, an item stores beyond the output or the scratch.
    """
    if batch.q.is_cuda:
        from instrumented_runtime.prefill import attention_triton

        attention_triton.mla_prefill_ps_fwd(
            batch, work, scratch, output, softmax_scale=softmax_scale, is_causal=is_causal
        )
        return
    for item in _in_order_of_end(work):
        if item.last_row > item.first_row:
            rows, heads, lse, values = _attend(batch, item, softmax_scale, is_causal)
            if item.scratch_row < 0:
                store_rows(output[:, heads], rows, values.to(output.dtype))
            else:
                kept = rows - item.first_row + item.scratch_row
                # The published fault fits a store of log-sum-exps: 0x6c000 is where those of the
                # 28th part begin, with 16 heads. So they go first.
                store_rows(scratch.lse[:, heads], kept, lse)
                store_rows(scratch.output[:, heads], kept, values)


def mla_reduce(
    scratch: Scratch, maps: ReduceMaps, output: "Tensor", final_lse: "Tensor | None" = None
) -> None:
    """Combine the parts of each split tile.

    Each part weighs exp(lse − largest lse), and the weights are divided by their sum. A tile of
    fewer than two parts is left as it is.

    Args:
        scratch: What the parts left.
        maps: Which they are.
        output: `[tokens, heads, v_width] bfloat16 or float32, device`; rows of split tiles are
            written, 0 where no part had a key in reach.
        final_lse: `[tokens, heads] float32, device`; if given, the log-sum-exp of the same rows,
            +inf where the sum is 0 or NaN.

    Raises:
        RowOutOfBoundsError: On CPU tensors, a part lies beyond the scratch, or a tile beyond the
            output.
    """
    if output.is_cuda:
        from instrumented_runtime.prefill import attention_triton

        attention_triton.mla_reduce(scratch, maps, output, final_lse)
        return
    import torch

    for (first, last), parts in _split_tiles(maps):
        rows = torch.arange(first, last)
        taken = parts[:, None] + torch.arange(last - first)
        # As in the forward kernel: log-sum-exps first.
        lse = _scratch_rows(scratch.lse, taken)
        largest = lse.amax(0)
        weights = (lse - largest.masked_fill(largest == -inf, 0.0)).exp()
        total = weights.sum(0)
        values = (weights[..., None] * _scratch_rows(scratch.output, taken)).sum(0)
        values /= total.masked_fill(total == 0, 1.0)[..., None]
        if final_lse is not None:
            is_void = (total == 0) | total.isnan()
            store_rows(final_lse, rows, (largest + total.log()).masked_fill(is_void, inf))
        store_rows(output, rows, values.to(output.dtype))


class _Item(NamedTuple):
    sequence: int
    scratch_row: int
    first_row: int
    last_row: int
    first_page: int
    last_page: int
    tokens_after: int
    packed_heads: int


def _in_order_of_end(work: WorkMaps) -> Iterator[_Item]:
    return (_Item(*row) for row in items_by_end(work).tolist())


def items_by_end(work: WorkMaps) -> "Tensor":
    """Return the items, `[items, 8] int64`, as they end when all groups run side by side.

    Time is counted in pages. The order matters for a fault alone: the first one is the one seen.
    For CPU tensors.
    """
    import torch

    starts = work.indptr[:-1].long()
    counts = (work.indptr[1:] - starts).clamp(min=0)
    group, place = spread(counts)
    info = _rows_or_zero(work.info, starts[group] + place).long()
    elapsed = (info[:, 5] - info[:, 4]).clamp(min=0).cumsum(0)
    before_group = torch.cat([elapsed.new_zeros(1), elapsed])[counts.cumsum(0) - counts]
    return info[(elapsed - before_group[group]).argsort(stable=True)]


def spread(counts: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return for each thing that is counted whose it is, and which of those; for CPU tensors."""
    import torch

    counts = counts.clamp(min=0).long()
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    return owner, torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]


def _attend(
    batch: Batch, item: _Item, softmax_scale: float, is_causal: bool
) -> "tuple[Tensor, slice, Tensor, Tensor]":
    """Return rows, heads, log-sum-exps `[rows, heads]` and results `[rows, heads, v_width]`."""
    import torch

    rows = torch.arange(item.first_row, item.last_row)
    pages = torch.arange(item.first_page, item.last_page)
    heads = slice(item.packed_heads & 0xFFFF, item.packed_heads >> 16)
    kv_heads = torch.arange(batch.q.shape[1])[heads] // (batch.q.shape[1] // batch.k.shape[1])
    slots = _rows_or_zero(batch.kv_page_indices, pages).long()
    q = _rows_or_zero(batch.q[:, heads], rows).float()
    k, v = (side[slots[:, None], kv_heads].float() for side in (batch.k, batch.v))
    scores = torch.einsum("qhd,khd->qhk", q, k) * softmax_scale
    if is_causal:
        # Rows and pages of a sequence are aligned at their ends.
        end = torch.tensor([item.sequence + 1])
        ahead = _rows_or_zero(batch.kv_indptr, end) - _rows_or_zero(batch.qo_indptr, end)
        scores.masked_fill_((pages > rows[:, None] + ahead)[:, None], -inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -inf, 0.0)[..., None]).exp()
    return rows, heads, lse, torch.einsum("qhk,khd->qhd", weights, v)


def _split_tiles(maps: ReduceMaps) -> "Iterator[tuple[list[int], Tensor]]":
    """Return the output rows, from and to, and the first scratch rows of each tile to combine."""
    import torch

    starts = maps.indptr.tolist()
    for tile, (start, end) in enumerate(pairwise(starts)):
        if end - start > 1:
            rows = _rows_or_zero(maps.final_map, torch.tensor([tile]))[0].tolist()
            if rows[1] > rows[0]:
                yield rows, _rows_or_zero(maps.partial_map, torch.arange(start, end)).long()


def _rows_or_zero(source: "Tensor", rows: "Tensor") -> "Tensor":
    """Return `source[rows]`, 0 for rows that it does not have."""
    is_inside = (rows >= 0) & (rows < len(source))
    if bool(is_inside.all()):
        return source[rows]
    taken = source.new_zeros((*rows.shape, *source.shape[1:]))
    taken[is_inside] = source[rows[is_inside]]
    return taken


def _scratch_rows(source: "Tensor", rows: "Tensor") -> "Tensor":
    """Return `source[rows]`; the scratch is as large as the plan it belongs to."""
    refuse_rows(source, rows)
    return source[rows]
