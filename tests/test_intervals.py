"""The interval algebra against brute force: a set of instants per group, small integers."""

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.intervals import (
    clip,
    covered_ns,
    crowded,
    depth,
    gaps,
    intersect,
    overlapping_host,
    starts_inside,
    subtract,
    total_ns,
    union,
    with_parents,
)
from tracekit.intervals.apart import MOST_GROUPS

GROUPS = (None, 0, 1)
SPAN = 12
SCHEMA = {"device_id": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}

pairs = st.tuples(st.integers(0, SPAN), st.integers(0, 5)).map(lambda p: (p[0], p[0] + p[1]))
rows = st.lists(
    st.tuples(st.sampled_from(GROUPS), pairs).map(lambda row: (row[0], *row[1])), max_size=10
)


def table(found, **extra):
    frame = pl.DataFrame(found, schema=SCHEMA, orient="row")
    return frame.with_columns(pl.Series(name, values) for name, values in extra.items())


def instants(found, group):
    return {t for g, start, end in found if g == group for t in range(start, end)}


def pieces(wanted):
    """The maximal runs of a set of instants, as intervals."""
    starts = sorted(t for t in wanted if t - 1 not in wanted)
    ends = sorted(t + 1 for t in wanted if t + 1 not in wanted)
    return list(zip(starts, ends, strict=True))


def by_group(function):
    return [(group, *piece) for group in GROUPS for piece in function(group)]


@given(rows)
def test_union_covers_the_same_instants_in_the_fewest_pieces(found):
    expected = by_group(lambda group: pieces(instants(found, group)))
    assert union(table(found), ["device_id"]).rows() == expected


@given(rows)
def test_union_without_groups_is_the_union_of_all(found):
    everything = set().union(*(instants(found, group) for group in GROUPS))
    assert union(table(found).drop("device_id"), []).rows() == pieces(everything)


@given(rows, st.sampled_from([-(2**62), 2**62]))
def test_union_holds_for_times_as_far_out_as_64_bits_go(found, shift):
    moved = table(found).with_columns(pl.col("start_ns", "end_ns") + shift)
    back = union(moved, ["device_id"]).with_columns(pl.col("start_ns", "end_ns") - shift)
    assert back.equals(union(table(found), ["device_id"]))


def test_groups_keep_apart_when_64_bits_do_not_hold_group_and_time():
    far = 2**62
    frame = table([(g, t, t + 5) for g in GROUPS for t in (-far, far)])
    assert union(frame, ["device_id"]).rows() == frame.rows()
    assert covered_ns(frame, frame, ["device_id"]).to_list() == [5] * 6
    assert starts_inside(frame, frame, ["device_id"]).to_list() == [1] * 6
    assert intersect(frame, frame, ["device_id"]).rows() == frame.rows()


def test_an_interval_whose_end_is_unknown_vanishes():
    frame = table([(0, 1, None), (0, None, 4), (0, 5, 6)])
    windows = table([(0, 0, 10)])
    assert union(frame, ["device_id"]).rows() == [(0, 5, 6)]
    assert clip(frame, windows, ["device_id"]).rows() == [(0, 5, 6)]
    assert depth(frame, ["device_id"]).rows() == [(0, 5, 6, 1)]
    assert intersect(frame, windows, ["device_id"]).rows() == [(0, 5, 6)]
    assert covered_ns(windows, frame, ["device_id"]).to_list() == [1]
    assert covered_ns(frame, windows, ["device_id"]).to_list() == [None, None, 1]
    assert starts_inside(frame, windows, ["device_id"]).to_list() == [None, None, 0]
    assert starts_inside(windows, frame, ["device_id"]).to_list() == [2]


@given(rows, st.lists(pairs, min_size=3, max_size=3))
def test_clip_keeps_rows_in_order_and_only_the_instants_inside(found, bounds):
    windows = [(group, *bound) for group, bound in zip(GROUPS, bounds, strict=True)]
    inside = dict(zip(GROUPS, bounds, strict=True))
    expected = [
        (g, max(start, inside[g][0]), min(end, inside[g][1]))
        for g, start, end in found
        if max(start, inside[g][0]) < min(end, inside[g][1])
    ]
    assert clip(table(found), table(windows), ["device_id"]).rows() == expected


@given(rows)
def test_clip_to_a_window_without_bounds_drops_empty_rows_and_other_groups_only(found):
    expected = [row for row in found if row[0] is None and row[1] < row[2]]
    assert clip(table(found), table([(None, None, None)]), ["device_id"]).rows() == expected


@given(rows)
def test_gaps_are_what_lies_between_islands(found):
    def between(group):
        covered = instants(found, group)
        if not covered:
            return []
        return pieces(set(range(min(covered), max(covered))) - covered)

    assert gaps(union(table(found), ["device_id"]), ["device_id"]).rows() == by_group(between)


@given(rows)
def test_depth_counts_the_intervals_over_each_instant_in_the_fewest_segments(found):
    def segments(group):
        level = dict.fromkeys(range(-1, 2 * SPAN), 0)
        for t in level:
            level[t] = sum(g == group and start <= t < end for g, start, end in found)
        changes = [t for t in level if level.get(t - 1, 0) != level[t]]
        return [(t, following, level[t]) for t, following in pairwise(changes)]

    assert depth(table(found), ["device_id"]).rows() == by_group(segments)


@given(rows)
def test_crowded_is_where_two_intervals_of_a_group_or_more_overlap(found):
    def twice(group):
        covers = [set(range(start, end)) for g, start, end in found if g == group]
        return pieces({t for t in range(2 * SPAN) if sum(t in cover for cover in covers) >= 2})

    assert crowded(table(found), ["device_id"]).rows() == by_group(twice)


@pytest.mark.parametrize("function", [union, crowded])
def test_many_groups_give_what_few_give_one_by_one(function):
    found = [(None, 0, 4), (None, 2, 6), (0, 5, 5), (0, 3, None), (1, 8, 9), (1, 0, 7), (1, 1, 2)]
    # Enough further groups to be many, each with one island and one crowded stretch.
    others = [(10 + n, start, 9) for n in range(MOST_GROUPS) for start in (1, 3)]
    few = function(table(found), ["device_id"]).rows()
    first = 1 if function is union else 3
    expected = [*few, *((10 + n, first, 9) for n in range(MOST_GROUPS))]
    assert function(table([*found, *others]), ["device_id"]).rows() == expected


def disjoint(found):
    return union(table(found), ["device_id"])


@given(rows, rows)
def test_intersect_finds_every_overlap_in_left_order(found, others):
    right = disjoint(others).with_row_index("island")
    left = table(found, row=range(len(found)))
    expected = [
        (g, max(start, s), min(end, e), row, island)
        for row, (g, start, end) in enumerate(found)
        for island, group, s, e in right.rows()
        if g == group and max(start, s) < min(end, e)
    ]
    assert intersect(left, right, ["device_id"]).rows() == expected


@given(rows, rows)
def test_intersect_without_groups_looks_at_times_only(found, others):
    right = union(table(others).drop("device_id"), [])
    left = table(found).drop("device_id")
    expected = [
        (max(start, s), min(end, e))
        for _, start, end in found
        for s, e in right.rows()
        if max(start, s) < min(end, e)
    ]
    assert intersect(left, right, []).rows() == expected


def test_intersect_refuses_a_column_that_both_frames_have():
    frame = table([(0, 1, 2)], name=["a"])
    with pytest.raises(ValueError, match="columns in both frames: \\['name'\\]"):
        intersect(frame, frame, ["device_id"])


@given(rows, rows)
def test_covered_ns_is_the_length_of_the_overlap_with_the_islands(found, others):
    expected = [
        len(set(range(start, end)) & instants(others, group)) for group, start, end in found
    ]
    assert covered_ns(table(found), disjoint(others), ["device_id"]).to_list() == expected


@given(rows, rows)
def test_starts_inside_counts_rows_by_where_they_begin(found, others):
    expected = [
        sum(g == group and start <= s < end for g, s, _ in others) for group, start, end in found
    ]
    assert starts_inside(table(found), table(others), ["device_id"]).to_list() == expected


@given(rows, rows)
def test_subtract_leaves_what_no_right_interval_covers(found, others):
    left = table(found, row=range(len(found)))
    expected = [
        (group, *piece, row)
        for row, (group, start, end) in enumerate(found)
        for piece in pieces(set(range(start, end)) - instants(others, group))
    ]
    parts = subtract(left, table(others), ["device_id"]).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    assert parts.sort("row", "start_ns").rows() == expected


def innermost(found, row):
    """The last range that opened before this one and is still open when it begins."""
    group, start, end = found[row]
    before = [
        other
        for other, (g, s, e) in enumerate(found)
        if g == group and e > start and (s, -e, other) < (start, -end, row)
    ]
    return max(before, key=lambda other: (found[other][1], -found[other][2], other), default=None)


@settings(max_examples=400)
@given(rows)
def test_with_parents_finds_the_range_that_is_open_when_each_begins(found):
    frame = table(found, range_id=range(len(found)))
    parents = with_parents(frame, ["device_id"])
    assert parents.columns == [*frame.columns, "parent_id"]
    assert parents.drop("parent_id").equals(frame)
    assert parents["parent_id"].to_list() == [innermost(found, row) for row in range(len(found))]


def test_with_parents_settles_a_deep_nest_after_a_row_of_many_siblings():
    siblings = [(0, t, t + 1) for t in range(1, 4001)]
    nest = [(0, 5000 + level, 9000 - level) for level in range(500)]
    frame = table([(0, 0, 10_000), *siblings, *nest], range_id=range(4501))
    parents = with_parents(frame, ["device_id"])["parent_id"].to_list()
    assert parents == [None, *[0] * 4001, *range(4001, 4500)]


@given(rows, st.none() | st.integers(0, SPAN), st.none() | st.integers(0, SPAN))
def test_overlapping_host_keeps_whole_rows_that_meet_the_window(found, start_ns, end_ns):
    low = -1 if start_ns is None else start_ns
    high = SPAN + 99 if end_ns is None else end_ns
    expected = [(g, s, e) for g, s, e in found if s < high and (e > low or (s == e and s >= low))]
    windows = table([(0, 0, 1), (None, start_ns, end_ns)])
    assert overlapping_host(table(found), windows).rows() == expected


def test_overlapping_host_keeps_all_rows_when_there_is_no_host_window():
    frame = table([(0, 1, 2)])
    assert overlapping_host(frame, table([(0, 5, 6)])).equals(frame)


@given(rows)
def test_total_ns_adds_lengths_without_joining_them(found):
    assert total_ns(table(found)) == sum(end - start for _, start, end in found)
