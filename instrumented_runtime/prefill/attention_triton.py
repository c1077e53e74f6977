"""The kernels of `attention` in Triton, for CUDA and ROCm; what they mean is said there.

One program does the items of one group, in blocks of rows, and the keys of each in blocks with a
running maximum. All products are float32 ones of IEEE, not of TF32, whatever the dtype of the
inputs. Loads of what belongs to the batch or to a map are masked by its size. Stores go where the
maps say, as do loads of the scratch.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from instrumented_runtime.prefill.attention import Batch, ReduceMaps, Scratch, WorkMaps

# A block: rows, keys, and columns of the scores' sums. Products of float32 without matrix units
# keep all columns of a block in registers: with more of them, or fewer warps, those run out at
# widths of 192 and 128 (read from the compiled kernel for NVIDIA's sm_90).
_ROWS = tl.constexpr(64)
_KEYS = tl.constexpr(32)
_COLUMNS = tl.constexpr(32)
_WARPS = 8
# A multiplication and an addition in one rounding; Triton's default differs by version.
_IS_FUSED = True


def mla_prefill_ps_fwd(
    batch: "Batch",
    work: "WorkMaps",
    scratch: "Scratch",
    output: "Tensor",
    *,
    softmax_scale: float,
    is_causal: bool = True,
) -> None:
    """Do all work items, as `attention.mla_prefill_ps_fwd`.

    Raises:
        ValueError: A tensor is not contiguous.
    """
    _refuse_strides(*batch, *work, *scratch, output)
    num_tokens, heads, qk_width = batch.q.shape
    _forward[(len(work.indptr) - 1,)](
        batch,
        work,
        scratch,
        output,
        softmax_scale,
        num_tokens,
        len(batch.kv_page_indices),
        len(batch.qo_indptr),
        len(work.info),
        HEADS=heads,
        KV_HEADS=batch.k.shape[1],
        QK_WIDTH=qk_width,
        V_WIDTH=batch.v.shape[2],
        V_BLOCK=_block(batch.v.shape[2]),
        IS_CAUSAL=is_causal,
        num_warps=_WARPS,
        enable_fp_fusion=_IS_FUSED,
    )


def mla_reduce(
    scratch: "Scratch", maps: "ReduceMaps", output: "Tensor", final_lse: "Tensor | None" = None
) -> None:
    """Combine the parts of each split tile, as `attention.mla_reduce`.

    Raises:
        ValueError: A tensor is not contiguous.
    """
    lse = scratch.lse if final_lse is None else final_lse
    _refuse_strides(*scratch, *maps, output, lse)
    heads, v_width = output.shape[1:]
    _reduce[(len(maps.indptr) - 1, heads)](
        scratch,
        maps,
        output,
        lse,
        len(maps.final_map),
        len(maps.partial_map),
        HEADS=heads,
        V_WIDTH=v_width,
        V_BLOCK=_block(v_width),
        HAS_LSE=final_lse is not None,
        enable_fp_fusion=_IS_FUSED,
    )


# The sizes change with every batch, which must not compile it anew.
@triton.jit(do_not_specialize=["num_tokens", "num_pages", "num_indptr", "num_items"])  # type: ignore[untyped-decorator]
def _forward(  # noqa: PLR0913
    batch: "Batch",
    work: "WorkMaps",
    scratch: "Scratch",
    output: "tl.tensor",
    softmax_scale: "tl.tensor",
    num_tokens: "tl.tensor",
    num_pages: "tl.tensor",
    num_indptr: "tl.tensor",
    num_items: "tl.tensor",
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    QK_WIDTH: tl.constexpr,
    V_WIDTH: tl.constexpr,
    V_BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
) -> None:
    group = tl.program_id(0)
    columns = tl.arange(0, V_BLOCK)
    for item in range(tl.load(work.indptr + group), tl.load(work.indptr + group + 1)):
        # Sequence, scratch row, rows, pages, tokens after (not read), heads.
        info, is_item = work.info + item * 8, (item >= 0) & (item < num_items)
        sequence, scratch_row = tl.load(info, is_item, 0), tl.load(info + 1, is_item, 0)
        first_row, last_row = tl.load(info + 2, is_item, 0), tl.load(info + 3, is_item, 0)
        first_page, last_page = tl.load(info + 4, is_item, 0), tl.load(info + 5, is_item, 0)
        packed_heads = tl.load(info + 7, is_item, 0)
        # Rows and pages of a sequence are aligned at their ends.
        is_sequence = (sequence >= -1) & (sequence + 1 < num_indptr)
        ahead = tl.load(batch.kv_indptr + sequence + 1, is_sequence, 0)
        ahead -= tl.load(batch.qo_indptr + sequence + 1, is_sequence, 0)
        for head in range(packed_heads & 0xFFFF, packed_heads >> 16):
            kv_head = head // (HEADS // KV_HEADS)
            q, k = batch.q + head * QK_WIDTH, batch.k + kv_head * QK_WIDTH
            v = batch.v + kv_head * V_WIDTH
            for row in range(first_row, last_row, _ROWS):
                rows = row + tl.arange(0, _ROWS)
                is_token = (rows >= 0) & (rows < num_tokens)
                offsets = rows.to(tl.int64)[:, None] * HEADS * QK_WIDTH
                lse, values = _attend(
                    q + offsets, is_token[:, None], k, v, batch.kv_page_indices,
                    first_page, last_page, num_pages, rows + ahead, softmax_scale,
                    KV_HEADS, QK_WIDTH, V_WIDTH, V_BLOCK, IS_CAUSAL,
                )  # fmt: skip
                is_kept = rows < last_row
                is_stored = is_kept[:, None] & (columns < V_WIDTH)[None, :]
                if scratch_row < 0:
                    places = rows.to(tl.int64) * HEADS + head
                    places = places[:, None] * V_WIDTH + columns
                    tl.store(output + places, values.to(output.dtype.element_ty), is_stored)
                else:
                    places = (rows - first_row + scratch_row).to(tl.int64) * HEADS + head
                    tl.store(scratch.lse + places, lse, is_kept)
                    places = places[:, None] * V_WIDTH + columns
                    tl.store(scratch.output + places, values, is_stored)


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # noqa: PLR0913
    q: "tl.tensor",
    is_token: "tl.tensor",
    k: "tl.tensor",
    v: "tl.tensor",
    kv_page_indices: "tl.tensor",
    first_page: "tl.tensor",
    last_page: "tl.tensor",
    num_pages: "tl.tensor",
    last_seen: "tl.tensor",
    softmax_scale: "tl.tensor",
    KV_HEADS: tl.constexpr,
    QK_WIDTH: tl.constexpr,
    V_WIDTH: tl.constexpr,
    V_BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
) -> "tuple[tl.tensor, tl.tensor]":
    """Return log-sum-exps `[_ROWS]` and results `[_ROWS, V_BLOCK]` of a block of rows."""
    columns = tl.arange(0, V_BLOCK)
    largest = tl.full([_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([_ROWS], tl.float32)
    values = tl.zeros([_ROWS, V_BLOCK], tl.float32)
    for first in range(first_page, last_page, _KEYS):
        pages = first + tl.arange(0, _KEYS)
        is_page = (pages >= 0) & (pages < tl.minimum(last_page, num_pages))
        slots = tl.load(kv_page_indices + pages, is_page, 0).to(tl.int64) * KV_HEADS
        scores = tl.zeros([_ROWS, _KEYS], tl.float32)
        for start in tl.range(0, QK_WIDTH, _COLUMNS, num_stages=1):
            wide = start + tl.arange(0, _COLUMNS)
            left = tl.load(q + wide, is_token & (wide < QK_WIDTH)[None, :], 0.0)
            right = tl.load(k + slots * QK_WIDTH + wide[:, None], wide[:, None] < QK_WIDTH, 0.0)
            left, right = left.to(tl.float32), right.to(tl.float32)
            scores = tl.dot(left, right, scores, input_precision="ieee")
        is_seen = (pages < last_page)[None, :]
        if IS_CAUSAL:
            is_seen = is_seen & (pages[None, :] <= last_seen[:, None])
        scores = tl.where(is_seen, scores * softmax_scale, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # Where nothing was seen yet, −inf less −inf would be NaN.
        zero = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(scores - zero[:, None])
        shrink = tl.exp(largest - zero)
        added = tl.load(v + slots[:, None] * V_WIDTH + columns, (columns < V_WIDTH)[None, :], 0.0)
        values *= shrink[:, None]
        values = tl.dot(weights, added.to(tl.float32), values, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        largest = larger
    # Where nothing was seen, the largest is −inf and stays it.
    total = tl.where(total == 0, 1.0, total)
    return largest + tl.log(total), values / total[:, None]


@triton.jit(do_not_specialize=["num_tiles", "num_parts"])  # type: ignore[untyped-decorator]
def _reduce(  # noqa: PLR0913
    scratch: "Scratch",
    maps: "ReduceMaps",
    output: "tl.tensor",
    final_lse: "tl.tensor",
    num_tiles: "tl.tensor",
    num_parts: "tl.tensor",
    HEADS: tl.constexpr,
    V_WIDTH: tl.constexpr,
    V_BLOCK: tl.constexpr,
    HAS_LSE: tl.constexpr,
) -> None:
    tile, head = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(maps.indptr + tile), tl.load(maps.indptr + tile + 1)
    if end - start > 1:
        columns = tl.arange(0, V_BLOCK)
        first_row = tl.load(maps.final_map + 2 * tile, tile < num_tiles, 0)
        last_row = tl.load(maps.final_map + 2 * tile + 1, tile < num_tiles, 0)
        for row in range(first_row, last_row, _ROWS):
            rows = row + tl.arange(0, _ROWS)
            is_kept = rows < last_row
            is_stored = is_kept[:, None] & (columns < V_WIDTH)[None, :]
            largest = tl.full([_ROWS], float("-inf"), tl.float32)
            for part in range(start, end):
                base = tl.load(maps.partial_map + part, (part >= 0) & (part < num_parts), 0)
                places = (base + rows - first_row).to(tl.int64) * HEADS + head
                lse = tl.load(scratch.lse + places, is_kept, float("-inf"))
                largest = tl.maximum(largest, lse)
            zero = tl.where(largest == float("-inf"), 0.0, largest)
            total = tl.zeros([_ROWS], tl.float32)
            values = tl.zeros([_ROWS, V_BLOCK], tl.float32)
            for part in range(start, end):
                base = tl.load(maps.partial_map + part, (part >= 0) & (part < num_parts), 0)
                places = (base + rows - first_row).to(tl.int64) * HEADS + head
                weights = tl.exp(tl.load(scratch.lse + places, is_kept, float("-inf")) - zero)
                places = places[:, None] * V_WIDTH + columns
                values += weights[:, None] * tl.load(scratch.output + places, is_stored, 0.0)
                total += weights
            is_void = (total == 0) | (total != total)
            total = tl.where(total == 0, 1.0, total)
            values /= total[:, None]
            places = rows.to(tl.int64) * HEADS + head
            if HAS_LSE:
                lse = tl.where(is_void, float("inf"), largest + tl.log(total))
                tl.store(final_lse + places, lse, is_kept)
            places = places[:, None] * V_WIDTH + columns
            tl.store(output + places, values.to(output.dtype.element_ty), is_stored)


def _block(width: int) -> int:
    """Return the columns of a block that holds `width`; a matrix unit wants 16 of them."""
    return max(int(triton.next_power_of_2(width)), 16)


def _refuse_strides(*tensors: "Tensor") -> None:
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not contiguous: copy it")
