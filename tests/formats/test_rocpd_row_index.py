"""Row numbers by id, against a dictionary."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.formats.rocpd.row_index import RowIndex, looked_up

IDS = st.one_of(
    st.lists(st.integers(-5, 30)),
    st.lists(st.integers(-(1 << 60), 1 << 60)),
    st.builds(
        lambda first, count: list(range(first, first + count)),
        st.integers(0, 99),
        st.integers(0, 20),
    ),
)


@given(ids=IDS, keys=st.lists(st.one_of(st.none(), st.integers(-6, 31))))
def test_rows_are_those_of_a_dictionary(ids, keys):
    asked = [*keys, *ids]
    dictionary = {key: row for row, key in enumerate(ids)}

    rows = RowIndex(pl.Series(ids, dtype=pl.Int64)).rows(pl.Series(asked, dtype=pl.Int64))

    assert rows.to_list() == [dictionary.get(key) for key in asked]


@pytest.mark.parametrize("ids", [[3, None, 5], [None, None], [1 << 50, None, 1]])
def test_null_ids_are_never_found(ids):
    rows = RowIndex(pl.Series(ids, dtype=pl.Int64)).rows(pl.Series([None, *ids], dtype=pl.Int64))

    assert rows.to_list() == [None, *(None if key is None else ids.index(key) for key in ids)]


def test_values_of_keys_without_a_row_are_null():
    values = looked_up(RowIndex(pl.Series([4, 9])), pl.Series([9, 5, 4]), pl.Series(["a", "b"]))

    assert values.to_list() == ["b", None, "a"]
