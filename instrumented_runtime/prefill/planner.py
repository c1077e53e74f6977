"""Plans a prefill on the host: which group of the device attends which query rows to which keys.

Query rows of a sequence are cut into tiles, and the keys that a tile reaches into units. All groups
of a cluster get the same number of units, or one more, in one walk over the tiles, so that a tile
may be shared by several groups. A tile that one group does alone is written to the output; the
parts of a shared one go to a scratch and are reduced afterwards.

Bytes and their order are those of AITER's host planner (`get_ps_metadata_v1`,
csrc/kernels/mla/metadata/v1_2_host.cuh), whole buffers and zeros in what is unused. The walk is not
followed item by item: an item begins where a tile or a group begins, so that sorting both kinds of
cut gives all of them at once. The cost is that of writing the arrays and O(n log n) in the tiles.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from instrumented_runtime.options import require
from instrumented_runtime.prefill.plan_layout import (
    MOST,
    BufferSpec,
    Int32s,
    PlanArrays,
    PlanShape,
)

__all__ = ["BufferSpec", "Lengths", "Plan", "PlanArrays", "PlanShape", "plan", "plan_into"]

Int64s = npt.NDArray[np.int64]
Lengths = Sequence[int] | npt.NDArray[np.integer]


class Plan(NamedTuple):
    """A plan in memory of its own.

    Attributes:
        arrays: What the kernels are driven by.
        num_partial_tiles: Parts of shared tiles; the scratch needs `query_tile` rows for each.
    """

    arrays: PlanArrays
    num_partial_tiles: int


def plan(shape: PlanShape, query_lengths: Lengths, kv_lengths: Lengths) -> Plan:
    """Return the plan of one prefill; see `plan_into`."""
    specs = shape.buffers[1:]
    arrays = PlanArrays(*(np.empty(spec.shape, np.int32) for spec in specs))
    return Plan(arrays, plan_into(arrays, shape, query_lengths, kv_lengths))


def plan_into(
    arrays: PlanArrays, shape: PlanShape, query_lengths: Lengths, kv_lengths: Lengths
) -> int:
    """Write the plan of one prefill into arrays, all of each; return `num_partial_tiles`.

    Sequences lie one after the other, both their query rows and their pages, from 0.

    Args:
        arrays: Where to; each is C-contiguous. If an input is refused they are left as they are.
        shape: What they are sized for.
        query_lengths: `[sequences]`: query rows of each, 0 to `max_query_tokens`.
        kv_lengths: `[sequences]`: tokens of each that have keys, those of its query rows included;
            if a sequence has query rows, at least 1, and with `is_causal` at least as many.

    Raises:
        ValueError: Names the input and what is allowed.
    """
    _refuse_arrays(arrays, shape)
    queries, keys = _refused_lengths(shape, query_lengths, kv_lengths)
    items = _work_items(shape, _query_tiles(shape, queries, keys), keys)
    _write_work(arrays, shape, items)
    return _write_reduce(arrays, items)


def _refuse_arrays(arrays: PlanArrays, shape: PlanShape) -> None:
    for array, (name, expected, _) in zip(arrays, shape.buffers[1:], strict=True):
        is_right = array.dtype == np.int32 and array.shape == expected
        is_right = is_right and array.flags.c_contiguous and array.flags.writeable
        found = f"{array.dtype} {array.shape}"
        require(is_right, name, found, f"int32 {expected}, contiguous and writeable")


def _refused_lengths(
    shape: PlanShape, query_lengths: Lengths, kv_lengths: Lengths
) -> tuple[Int64s, Int64s]:
    """Return both as they were given, if a plan can be made for them."""
    queries = _whole_numbers("query_lengths", query_lengths)
    keys = _whole_numbers("kv_lengths", kv_lengths)
    count = len(queries)
    require(len(keys) == count, "kv_lengths", len(keys), f"one per sequence: {count}")
    require(count <= shape.max_batch, "query_lengths", count, f"at most {shape.max_batch}")
    most = shape.max_query_tokens
    _refuse_where((queries < 0) | (queries > most), "query_lengths", queries, f"0 to {most} tokens")
    _refuse_where((keys < 0) | (keys > MOST), "kv_lengths", keys, f"0 to {MOST} tokens")
    least = queries if shape.is_causal else np.minimum(queries, 1)
    what = "at least as many as query rows" if shape.is_causal else "at least 1 to query rows"
    _refuse_where((queries > 0) & (keys < least), "kv_lengths", keys, what)
    for name, lengths in (("query_lengths", queries), ("kv_lengths", keys)):
        total = int(lengths.sum())
        require(total <= MOST, name, total, f"at most {MOST} tokens in all")
    return queries, keys


def _whole_numbers(name: str, lengths: Lengths) -> Int64s:
    array = np.asarray(lengths)
    is_list = array.ndim == 1 and (array.dtype.kind in "iu" or not array.size)
    require(is_list, name, lengths, "a list of whole numbers")
    return array.astype(np.int64)


def _refuse_where(is_wrong: npt.NDArray[np.bool_], name: str, values: Int64s, what: str) -> None:
    if is_wrong.any():
        place = int(is_wrong.argmax())
        require(False, f"{name}[{place}]", int(values[place]), what)


class _Tiles(NamedTuple):
    """Query tiles in the order of the walk: rows over all sequences, units of keys in reach."""

    sequence: Int64s
    first_row: Int64s
    last_row: Int64s
    units: Int64s


def _query_tiles(shape: PlanShape, queries: Int64s, keys: Int64s) -> _Tiles:
    counts = -(-queries // shape.query_tile)
    sequence = np.repeat(np.arange(len(queries)), counts)
    place = np.arange(len(sequence)) - (np.cumsum(counts) - counts)[sequence]
    # First, last, second, last but one: with a causal mask, few keys and many take turns.
    tile = np.where(place % 2 == 0, place // 2, counts[sequence] - 1 - place // 2)
    start = tile * shape.query_tile
    end = np.minimum(start + shape.query_tile, queries[sequence])
    reach = keys[sequence]
    if shape.is_causal:
        reach = reach - queries[sequence] + end
    before = (np.cumsum(queries) - queries)[sequence]
    return _Tiles(sequence, before + start, before + end, -(-reach // shape.kv_tile))


class _Items(NamedTuple):
    """Work of one head: `info [items, 8] int32` without heads, and the group of each item."""

    info: Int32s
    group: Int64s


def _work_items(shape: PlanShape, tiles: _Tiles, keys: Int64s) -> _Items:
    """Cut the units of all tiles, laid end to end, where a tile or a group's share ends."""
    tile_ends = np.cumsum(tiles.units)
    least, more = divmod(int(tiles.units.sum()), shape.groups)
    group = np.arange(1, shape.groups + 1)
    group_ends = group * least + np.minimum(group, more)
    # A group without a share ends where the one before it does.
    ends = np.union1d(tile_ends, group_ends)
    ends = ends[ends > 0]
    starts = ends - np.diff(ends, prepend=0)
    tile = np.searchsorted(tile_ends, starts, side="right")
    sequence, first_unit = tiles.sequence[tile], tile_ends[tile] - tiles.units[tile]
    is_last = ends == tile_ends[tile]
    is_part = ~is_last | (starts != first_unit)

    unit_pages = shape.kv_tile // shape.block_size
    pages = -(-keys // shape.block_size)
    # The last unit may end beyond the sequence.
    last_page = np.minimum((ends - first_unit) * unit_pages, pages[sequence])
    before = (np.cumsum(pages) - pages)[sequence]
    info = np.zeros((len(ends), 8), np.int32)
    info[:, 0] = sequence
    info[:, 1] = np.where(is_part, (np.cumsum(is_part) - 1) * shape.query_tile, -1)
    info[:, 2] = tiles.first_row[tile]
    info[:, 3] = tiles.last_row[tile]
    info[:, 4] = before + (starts - first_unit) * unit_pages
    info[:, 5] = before + last_page
    info[:, 6] = np.where(is_last, 0, keys[sequence] - last_page * shape.block_size)
    return _Items(info, np.searchsorted(group_ends, starts, side="right"))


def _write_work(arrays: PlanArrays, shape: PlanShape, items: _Items) -> None:
    """Write every cluster's items: group by group, and within a group head by head."""
    heads, clusters = shape.heads, shape.clusters
    counts = np.bincount(items.group, minlength=shape.groups)
    # Of each run of items of one group and head: its length, and where it ends.
    runs = np.repeat(counts, heads)
    run_ends = np.cumsum(runs)
    run = np.repeat(np.arange(len(runs)), runs)
    place = np.arange(len(run)) - (run_ends - runs)[run]
    info = items.info[(np.cumsum(counts) - counts)[run // heads] + place]

    used = clusters * len(info)
    work = arrays.work_info[:used].reshape(clusters, len(info), 8)
    work[:] = info
    head = np.arange(clusters)[:, None] * heads + run % heads
    work[:, :, 7] = (head + 1) * shape.head_tile << 16 | head * shape.head_tile
    arrays.work_info[used:] = 0

    before = np.arange(clusters)[:, None] * len(info)
    arrays.work_indptr[0] = 0
    arrays.work_indptr[1:] = (before + run_ends[heads - 1 :: heads]).ravel()


def _write_reduce(arrays: PlanArrays, items: _Items) -> int:
    """Write which parts make up which tile; return how many there are."""
    parts = items.info[items.info[:, 1] >= 0]
    # Parts of a tile follow each other in the walk, and its first row is no other tile's.
    parts = parts[np.argsort(parts[:, 2], kind="stable")]
    is_first = np.diff(parts[:, 2], prepend=-1) != 0
    starts = np.flatnonzero(is_first)
    arrays.reduce_indptr[: len(starts)] = starts
    arrays.reduce_indptr[len(starts) :] = len(parts)
    arrays.reduce_final_map[: len(starts)] = parts[starts, 2:4]
    arrays.reduce_final_map[len(starts) :] = 0
    arrays.reduce_partial_map[: len(parts)] = parts[:, 1]
    arrays.reduce_partial_map[len(parts) :] = 0
    return len(parts)
