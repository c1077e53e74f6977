"""Rows by id, as a dictionary would give them; rows by window, one at a time."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracekit.tables.rows import rows_of, starting_inside


@given(
    st.lists(st.integers(-5, 20), unique=True).map(sorted)
    | st.tuples(st.integers(-5, 20), st.integers(0, 20)).map(lambda at: [*range(at[0], sum(at))]),
    st.lists(st.none() | st.integers(-8, 25)),
)
def test_each_id_gives_its_row_or_nulls(known, ids):
    frame = pl.DataFrame(
        {"id": known, "text": [f"row {i}" for i in known]}, {"id": pl.Int64, "text": pl.String}
    )
    found = rows_of(pl.Series(ids, dtype=pl.Int64), frame, "id")
    expected = {i: f"row {i}" for i in known}
    assert found.columns == ["text"]
    assert found["text"].to_list() == [expected.get(i) for i in ids]


DEVICES = st.none() | st.integers(0, 3)
BOUND = st.none() | st.integers(0, 9)


@given(
    st.lists(st.tuples(DEVICES, st.integers(0, 9))),
    st.dictionaries(DEVICES, st.tuples(BOUND, BOUND)),
)
def test_a_row_is_inside_if_its_device_has_a_window_and_it_starts_there(rows, bounds):
    frame = pl.DataFrame(rows, {"device_id": pl.Int32, "at": pl.Int64}, orient="row")
    windows = pl.DataFrame(
        [(device, *times) for device, times in bounds.items()],
        {"device_id": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )

    def is_inside(device, at):
        if device not in bounds:
            return False
        start, end = bounds[device]
        return (start is None or start <= at) and (end is None or at < end)

    expected = [row for row in rows if is_inside(*row)]
    assert starting_inside(frame, windows, "at").rows() == expected
