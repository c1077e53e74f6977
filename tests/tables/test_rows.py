"""Rows by id, as a dictionary would give them."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracekit.tables.rows import rows_of


@given(
    st.lists(st.integers(-5, 20), unique=True).map(sorted),
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
