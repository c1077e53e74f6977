"""The plan of a prefill: the published cases, what kernels rely on, and a slow walk unit by unit."""

import math
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instrumented_runtime.prefill.planner import PlanArrays, PlanShape, plan, plan_into


def items_of(arrays, group):
    """Return the items of one group, without heads, as tuples."""
    first, last = arrays.work_indptr[group : group + 2].tolist()
    return [tuple(item[:7]) for item in arrays.work_info[first:last].tolist()]


# Lengths, heads, compute units; clusters, groups and heads of a cluster; tiles and units; units of
# each group; items of a head, shared tiles, parts.
CASES = [
    ([8175], 16, 256, (16, 16, 1), (32, 1056), [66] * 16, (32, 0, 0)),
    ([3000, 1000, 4000], 16, 256, (16, 16, 1), (32, 448), [28] * 16, (47, 15, 30)),
    ([8192], 16, 304, (16, 19, 1), (32, 1056), [56] * 11 + [55] * 8, (49, 17, 34)),
    ([16384], 128, 256, (128, 2, 1), (64, 4160), [2080] * 2, (64, 0, 0)),
    ([1], 16, 256, (16, 16, 1), (1, 1), [1] + [0] * 15, (1, 0, 0)),
    ([300, 700], 4, 8, (4, 2, 1), (5, 17), [9, 8], (6, 1, 2)),
]


@pytest.mark.parametrize(("lengths", "heads", "units", "cut", "work", "shares", "made"), CASES)
def test_the_published_cases_are_cut_as_published(lengths, heads, units, cut, work, shares, made):
    shape = PlanShape(len(lengths), heads, units, max(lengths))
    assert (shape.clusters, shape.groups, shape.heads) == cut
    arrays, num_partial_tiles = plan(shape, lengths, lengths)
    groups = [items_of(arrays, group) for group in range(shape.groups)]
    items = [item for group in groups for item in group]
    (num_items, split, parts), (num_tiles, num_units) = made, work
    # A page is a token, so an item's keys are its pages; an unfinished unit counts in full.
    dealt = [sum(math.ceil((item[5] - item[4]) / 128) for item in group) for group in groups]
    assert (dealt, sum(dealt)) == (shares, num_units)
    assert (len(items), len({item[2] for item in items})) == (num_items, num_tiles)
    assert np.count_nonzero(np.diff(arrays.reduce_indptr)) == split
    assert (num_partial_tiles, int(arrays.reduce_indptr[-1])) == (parts, parts)
    # Each cluster's are the same, with heads of its own.
    assert arrays.work_indptr[-1] == heads * num_items


def test_the_smallest_split_case_in_full():
    shape = PlanShape(max_batch=2, kv_heads=4, compute_units=8, max_query_tokens=700)
    arrays, num_partial_tiles = plan(shape, [300, 700], [300, 700])
    items = [
        (0, -1, 0, 256, 0, 256, 0),
        (0, -1, 256, 300, 0, 300, 0),
        (1, -1, 300, 556, 300, 556, 0),
        (1, 0, 812, 1000, 300, 556, 444),
        (1, 256, 812, 1000, 556, 1000, 0),
        (1, -1, 556, 812, 300, 812, 0),
    ]
    every_cluster = [(*item, head | head + 1 << 16) for head in range(4) for item in items]
    # (2 + 2 − 1) sequences of ⌈700 / 256⌉ tiles and 4 heads are the most.
    unused = [(0,) * 8] * (3 * 3 * 4 - 24)
    assert arrays.work_info.tolist() == [list(row) for row in every_cluster + unused]
    assert arrays.work_indptr.tolist() == [0, 4, 6, 10, 12, 16, 18, 22, 24]
    assert arrays.reduce_indptr.tolist() == [0, 2, 2, 2, 2, 2, 2]
    assert arrays.reduce_final_map.tolist() == [[812, 1000]] + [[0, 0]] * 5
    assert arrays.reduce_partial_map.tolist() == [0, 256] + [0] * 4
    assert num_partial_tiles == 2


def test_buffers_are_as_large_as_the_most_they_may_hold():
    # P = 16 groups and t = 32 tiles: (3 + 15) · 32 · 16 items; min(3 + 15, 30) · 32 parts.
    specs = PlanShape(3, 16, 256, 8175).buffers
    assert {name: (shape, dtype) for name, shape, dtype in specs} == {
        "work_metadata": ((2,), "uint64"),
        "work_indptr": ((257,), "int32"),
        "work_info": ((9216, 8), "int32"),
        "reduce_indptr": ((97,), "int32"),
        "reduce_final_map": ((96, 2), "int32"),
        "reduce_partial_map": ((576,), "int32"),
    }


@st.composite
def prefills(draw):
    """A shape and lengths that fit it; small, so that units are few and groups many."""
    block = draw(st.sampled_from((1, 2, 3)))
    lengths = draw(st.lists(st.integers(0, 40), max_size=4))
    is_causal = draw(st.booleans())
    shape = PlanShape(
        max_batch=max(len(lengths), 1) + draw(st.integers(0, 2)),
        kv_heads=draw(st.integers(1, 12)),
        compute_units=draw(st.integers(1, 24)),
        max_query_tokens=max([1, *lengths]) + draw(st.sampled_from((0, 0, 30))),
        query_tile=draw(st.sampled_from((1, 4, 7, 16))),
        kv_tile=block * draw(st.integers(1, 5)),
        block_size=block,
        head_tile=draw(st.sampled_from((1, 4))),
        is_causal=is_causal,
    )
    least = [length if is_causal else min(length, 1) for length in lengths]
    keys = [length + draw(st.sampled_from((0, 0, 1, 17, 60))) for length in least]
    return shape, lengths, keys


def tiles_in_order(shape, lengths, keys):
    """Return sequence, rows from and to, and reachable keys of each tile, as they are visited."""
    tiles, row = [], 0
    for sequence, (length, kv) in enumerate(zip(lengths, keys, strict=True)):
        starts = list(range(0, length, shape.query_tile))
        while starts:
            for end in (0, -1):
                if starts:
                    start = starts.pop(end)
                    stop = min(start + shape.query_tile, length)
                    reach = kv - length + stop if shape.is_causal else kv
                    tiles.append((sequence, row + start, row + stop, reach))
        row += length
    return tiles


def dealt_items(shape, lengths, keys, groups):
    """Return each group's items without heads: every unit is dealt out by itself."""
    tiles = tiles_in_order(shape, lengths, keys)
    sizes = [math.ceil(tile[3] / shape.kv_tile) for tile in tiles]
    units = iter([(tile, unit) for tile, size in enumerate(sizes) for unit in range(size)])
    least, more = divmod(sum(sizes), groups)
    pages = [math.ceil(kv / shape.block_size) for kv in keys]
    unit_pages = shape.kv_tile // shape.block_size
    parts, dealt = 0, []
    for group in range(groups):
        share, items = [next(units) for _ in range(least + (group < more))], []
        for tile, some in groupby(share, key=lambda unit: unit[0]):
            numbers = [unit for _, unit in some]
            sequence, first_row, last_row, _ = tiles[tile]
            base = -1
            if len(numbers) < sizes[tile]:
                base, parts = parts * shape.query_tile, parts + 1
            last = min((numbers[-1] + 1) * unit_pages, pages[sequence])
            is_finished = numbers[-1] == sizes[tile] - 1
            after = 0 if is_finished else keys[sequence] - last * shape.block_size
            before = sum(pages[:sequence])
            where = (before + numbers[0] * unit_pages, before + last, after)
            items.append((sequence, base, first_row, last_row, *where))
        dealt.append(items)
    return dealt


def slow_plan(shape, lengths, keys):
    """Return the five buffers as lists, without what is unused."""
    clusters = math.gcd(shape.kv_heads, shape.compute_units)
    groups, heads = shape.compute_units // clusters, shape.kv_heads // clusters
    dealt = dealt_items(shape, lengths, keys, groups)
    work, indptr, scratch = [], [0], {}
    for cluster in range(clusters):
        for items in dealt:
            for head in range(cluster * heads, (cluster + 1) * heads):
                low, high = head * shape.head_tile, (head + 1) * shape.head_tile
                work += [(*item, low + (high << 16)) for item in items]
            indptr.append(len(work))
    for item in work:
        if item[1] != -1:
            scratch.setdefault(item[2:4], set()).add(item[1])
    final = sorted(scratch)
    partial = [base for rows in final for base in sorted(scratch[rows])]
    ends = [sum(len(scratch[rows]) for rows in final[:n]) for n in range(len(final) + 1)]
    return indptr, work, ends, final, partial


def filled(spec, values, fill=0):
    """Return the values as the first of a buffer, and `fill` after them."""
    array = np.full(spec.shape, fill, np.int32)
    array[: len(values)] = np.array(values, np.int32).reshape(-1, *spec.shape[1:])
    return array


@settings(max_examples=300, deadline=None)
@given(prefills())
def test_every_byte_is_that_of_a_walk_which_deals_out_one_unit_after_the_other(prefill):
    shape, lengths, keys = prefill
    specs = shape.buffers[1:]
    arrays = PlanArrays(*(np.full(spec.shape, -7, np.int32) for spec in specs))
    num_partial_tiles = plan_into(arrays, *prefill)
    indptr, work, ends, final, partial = slow_plan(shape, lengths, keys)
    assert num_partial_tiles == len(partial)
    expected = [
        filled(specs[0], indptr),
        filled(specs[1], work),
        filled(specs[2], ends, fill=len(partial)),
        filled(specs[3], final),
        filled(specs[4], partial),
    ]
    for array, right, spec in zip(arrays, expected, specs, strict=True):
        assert array.tobytes() == right.tobytes(), spec.name


@settings(max_examples=300, deadline=None)
@given(prefills())
def test_what_kernels_rely_on_holds_for_any_prefill(prefill):
    shape, lengths, keys = prefill
    arrays, num_partial_tiles = plan(*prefill)
    indptr, reduce_indptr = arrays.work_indptr.tolist(), arrays.reduce_indptr.tolist()
    # V5: an entry for each group's end, none before the last.
    assert len(indptr) == shape.compute_units + 1
    assert (indptr[0], indptr) == (0, sorted(indptr))
    work = arrays.work_info[: indptr[-1]].tolist()
    of_head = {head: [] for head in range(shape.kv_heads)}
    for *item, packed in work:
        head = (packed & 0xFFFF) // shape.head_tile
        assert packed >> 16 == (head + 1) * shape.head_tile
        of_head[head].append(tuple(item))
    # V2: cuts and scratch rows are the same for all heads.
    items = sorted(of_head[0])
    assert all(sorted(other) == items for other in of_head.values())
    # V4: scratch rows are distinct, and dense from 0.
    bases = sorted(item[1] for item in items if item[1] != -1)
    assert bases == [n * shape.query_tile for n in range(num_partial_tiles)]
    of_tile = {}
    for item in items:
        of_tile.setdefault((item[0], *item[2:4]), []).append(item)
    expected = {tile[:3]: tile[3] for tile in tiles_in_order(shape, lengths, keys)}
    assert set(of_tile) == set(expected)
    pages = [math.ceil(kv / shape.block_size) for kv in keys]
    shared = {}
    for tile, parts in of_tile.items():
        parts.sort(key=lambda item: item[4])
        # V1: without a gap from the sequence's first page to the last one that a unit reaches.
        first = sum(pages[: tile[0]])
        unit_pages = shape.kv_tile // shape.block_size
        reach = math.ceil(expected[tile] / shape.kv_tile) * unit_pages
        edges = [first, *(item[5] for item in parts)]
        assert [item[4] for item in parts] == edges[:-1]
        assert edges[-1] == first + min(reach, pages[tile[0]])
        assert all(item[5] > item[4] for item in parts)
        # V3, V7: one item goes to the output, several to the scratch.
        assert (len(parts) == 1) == (parts[0][1] == -1)
        if len(parts) > 1:
            shared[tile[1:]] = sorted(item[1] for item in parts)
            assert -1 not in shared[tile[1:]]
    # V7: what is reduced are the shared tiles and all their parts. V6: the tail says their number.
    maps = [arrays.reduce_final_map.tolist(), arrays.reduce_partial_map.tolist()]
    spans = pairwise(reduce_indptr)
    reduced = {
        tuple(maps[0][tile]): maps[1][start:end]
        for tile, (start, end) in enumerate(spans)
        if end > start
    }
    assert (reduced, list(reduced)) == (shared, sorted(shared))
    assert set(reduce_indptr[len(shared) :]) == {num_partial_tiles}


SHAPE = PlanShape(max_batch=2, kv_heads=2, compute_units=4, max_query_tokens=512)
REFUSED_LENGTHS = [
    ([1, 1, 1], [1, 1, 1], "query_lengths: 3 is not allowed; give at most 2"),
    ([1], [1, 1], "kv_lengths: 2 is not allowed; give one per sequence: 1"),
    ([5, 513], [5, 513], r"query_lengths\[1\]: 513 is not allowed; give 0 to 512"),
    ([-1], [4], r"query_lengths\[0\]: -1 is not allowed"),
    ([0], [-4], r"kv_lengths\[0\]: -4 is not allowed"),
    ([9, 8], [9, 7], r"kv_lengths\[1\]: 7 is not allowed; give at least as many as query rows"),
    ([1, 1], [2**31 - 1, 1], "kv_lengths: 2147483648 is not allowed"),
    ([1.5], [2], "query_lengths: .* whole numbers"),
    ([True], [2], "query_lengths: .* whole numbers"),
    ([[1]], [[2]], "query_lengths: .* whole numbers"),
    (["1"], [2], "query_lengths: .* whole numbers"),
]


@pytest.mark.parametrize(("lengths", "keys", "message"), REFUSED_LENGTHS)
def test_lengths_that_cannot_be_planned_are_refused_and_nothing_is_written(lengths, keys, message):
    arrays = PlanArrays(*(np.full(spec.shape, 5, np.int32) for spec in SHAPE.buffers[1:]))
    with pytest.raises(ValueError, match=message):
        plan_into(arrays, SHAPE, lengths, keys)
    assert all((array == 5).all() for array in arrays)


def test_without_a_causal_mask_a_row_needs_one_key_and_no_more():
    shape = PlanShape(1, 1, 1, 512, is_causal=False)
    assert plan(shape, [300], [1]).arrays.work_info[:2, 4:6].tolist() == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match=r"kv_lengths\[0\]: 0 is not allowed; give at least 1"):
        plan(shape, [300], [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda array: array.astype(np.int64), r"work_info: 'int64 \(12, 8\)' is not allowed"),
        (lambda array: array[1:], r"work_info: .* give int32 \(12, 8\), contiguous"),
        (lambda array: np.asfortranarray(array), "contiguous"),
        (lambda array: np.broadcast_to(array, array.shape), "writeable"),
    ],
)
def test_an_array_of_another_kind_is_refused(change, message):
    arrays = plan(SHAPE, [3], [3]).arrays
    with pytest.raises(ValueError, match=message):
        plan_into(arrays._replace(work_info=change(arrays.work_info)), SHAPE, [3], [3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 0}, "kv_heads: 0 is not allowed; give a whole number from 1"),
        ({"compute_units": 2.0}, "compute_units: 2.0 is not allowed"),
        ({"block_size": 3}, "kv_tile: 128 is not allowed; give a multiple of 3"),
        ({"kv_heads": 2**15}, "kv_heads: 32768 is not allowed; give at most 32767"),
        ({"kv_heads": 5000, "head_tile": 8}, "kv_heads: 5000 is not allowed; give at most 4095"),
        ({"max_query_tokens": 2**30}, "max_query_tokens: 1073741824 is not allowed; give fewer"),
        ({"is_causal": 1}, "is_causal: 1 is not allowed; give true or false"),
    ],
)
def test_a_shape_that_no_plan_has_is_refused(options, message):
    given = {"max_batch": 2, "kv_heads": 2, "compute_units": 4, "max_query_tokens": 512}
    with pytest.raises(ValueError, match=message):
        PlanShape(**{**given, **options})
