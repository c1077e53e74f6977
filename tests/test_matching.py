"""The nearest row in time within a group, against a loop over all pairs."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.intervals import matching
from tracekit.intervals.matching import nearest

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(0, 12)), max_size=12)


def frame(rows, time):
    ordered = sorted(rows, key=lambda row: row[1])
    table = pl.DataFrame(ordered, {"group": pl.Int64, time: pl.Int64}, orient="row")
    return table.with_row_index("number").rename({"number": f"{time}_row"})


def expected(left, right, strategy):
    found = []
    for _, group, at in left.iter_rows():
        near = [
            (time, row)
            for row, other, time in right.iter_rows()
            if group is not None
            and other == group
            and (time <= at if strategy == "backward" else time >= at)
        ]
        best = (max if strategy == "backward" else min)((time for time, _ in near), default=None)
        found.append(best)
    return found


@pytest.mark.parametrize("few", [64, 0])
@pytest.mark.parametrize("strategy", ["backward", "forward"])
def test_each_row_finds_the_nearest_of_its_group_by_either_path(few, strategy, monkeypatch):
    monkeypatch.setattr(matching, "_FEW", few)

    @settings(deadline=None)
    @given(ROWS, ROWS)
    def check(lefts, rights):
        left, right = frame(lefts, "at"), frame(rights, "time")
        found = nearest(left, right, left_on="at", right_on="time", by=["group"], strategy=strategy)
        assert found.select(left.columns).equals(left)
        assert found["time"].to_list() == expected(left, right, strategy)

    check()
