"""Attention of the decoder in two kernels that do what a prefill's plan says, and nothing else.

`attend_by_plan` walks the work items: some query rows of one head against some keys. What one item
does alone it adds to `hidden`; of what several share, each leaves its sum in the scratch, which
`reduce_by_plan` adds up. A head is one column of `hidden`, and keys are tokens of the same step, so
that a plan covers prompts from their beginning only. Sums are whole numbers: cut anywhere they are
those of `model_kernels.attend`. With another step's plan tokens are left out or counted twice, or
a store leaves the scratch.

`touch_by_plan` and `touch_reduce` do the same to the scratch and compute nothing. All are torch
operations, and shapes depend on the plan: on a GPU the host would wait for the device, and so for
the plan that it overwrites. `prefill.attention` has kernels for that.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from instrumented_runtime.devices import refuse_rows, store_rows
from instrumented_runtime.model import MODULUS, WIDTH
from instrumented_runtime.model_kernels import attend, cache_slots
from instrumented_runtime.prefill.attention import WorkMaps, items_by_end, spread

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[..., None]


@cache
def attend_by_plan(layer: int, page_size: int, first_decoded: int) -> Function:
    """Return the kernel of a layer that attends prompts by the plan.

    Tokens from `first_decoded` on belong to requests that decode beside the prefill; no plan holds
    them, and they are attended as `model_kernels.attend` does.
    """

    def function(  # noqa: PLR0913
        rows: "Tensor",
        positions: "Tensor",
        table: "Tensor",
        cache: "Tensor",
        attention: "Tensor",
        back: "Tensor",
        work_indptr: "Tensor",
        work_info: "Tensor",
        hidden: "Tensor",
        lse: "Tensor",
        output: "Tensor",
    ) -> None:
        values, share = cache[:, layer], attention[layer]
        beside = slice(first_decoded, None)
        attend(layer, page_size)(
            rows[beside], positions[beside], table, cache, attention, back, hidden[beside]
        )

        items = _items(work_indptr, work_info)
        item, place = spread(items[:, 3] - items[:, 2])
        row, head = items[item, 2] + place, items[item, 7] & 0xFFFF
        # A load beyond the tokens gives 0, as a buffer load of a GPU does.
        here = row.clamp(0, len(rows) - 1)
        keys = row[:, None] - back
        is_seen = (keys >= items[item, 4, None]) & (keys < items[item, 5, None])
        seen = positions[here, None] - back
        is_seen &= (seen >= 0) & (row == here)[:, None]
        at = cache_slots(table, rows[here, None].expand_as(seen), seen.clamp(min=0), page_size)
        context = (share * is_seen * values[at, head[:, None]]).sum(1)

        is_part = items[item, 1] >= 0
        kept = ((items[item, 1] + place) * WIDTH + head)[is_part]
        # As `prefill.attention`: what stands for log-sum-exps first.
        store_rows(lse.flatten(), kept, is_seen.sum(1)[is_part].to(lse.dtype))
        store_rows(output.flatten(), kept, context[is_part])
        before = hidden[here, head]
        after = (3 * before + context).remainder(MODULUS)
        whole = ~is_part
        store_rows(hidden.flatten(), (row * WIDTH + head)[whole], after[whole])

    return function


def reduce_by_plan(
    reduce_indptr: "Tensor",
    reduce_final_map: "Tensor",
    reduce_partial_map: "Tensor",
    lse: "Tensor",
    output: "Tensor",
    hidden: "Tensor",
) -> None:
    """Add up the parts of each shared tile, and add them to `hidden [tokens, WIDTH]`."""
    import torch

    tile, part = spread(reduce_indptr.diff())
    parts = reduce_indptr.long()[tile] + part
    bounds = reduce_final_map.long()[tile]
    place, offset = spread(bounds[:, 1] - bounds[:, 0])
    rows = bounds[place, 0] + offset
    kept = reduce_partial_map.long()[parts[place]] + offset
    refuse_rows(lse, kept)
    refuse_rows(hidden, rows)
    sums = torch.zeros_like(hidden).index_add_(0, rows, output[kept])
    changed = rows.unique()
    after = (3 * hidden[changed] + sums[changed]).remainder(MODULUS)
    store_rows(hidden, changed, after)


def touch_by_plan(
    work_indptr: "Tensor", work_info: "Tensor", lse: "Tensor", _output: "Tensor"
) -> None:
    """Store to the first and the last scratch row of each part, of log-sum-exps only."""
    import torch

    items = work_info[: int(work_indptr[-1])]
    parts = items[items[:, 1] >= 0]
    if len(parts) and int(parts[:, 1].max()) >= len(lse):
        # The fault that is seen is that of the part which ends first.
        items = items_by_end(WorkMaps(work_indptr, work_info))
        parts = items[items[:, 1] >= 0]
    first = parts[:, 1]
    rows = torch.cat([first, first + parts[:, 3] - parts[:, 2] - 1])
    store_rows(lse, rows, lse.new_zeros(len(rows), WIDTH))


def touch_reduce(
    reduce_indptr: "Tensor",
    _final_map: "Tensor",
    reduce_partial_map: "Tensor",
    lse: "Tensor",
    _output: "Tensor",
) -> None:
    """Read the first scratch row of each part."""
    refuse_rows(lse, reduce_partial_map[: int(reduce_indptr[-1])])


def _items(work_indptr: "Tensor", work_info: "Tensor") -> "Tensor":
    return work_info[: int(work_indptr[-1])].long()
