import polars as pl
import pytest

from tracekit.call_numbers import missing_calls
from tracekit.tables.catalog import TABLES


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [
        ([1, 2, 3], []),
        ([4, 5, 6], [(0, 3, True)]),
        ([1, 2, 5, 6, 9], [(2, 2, False), (4, 2, False)]),
        ([3, 4, 6], [(0, 2, True), (2, 1, False)]),
    ],
)
def test_what_is_missing_is_said_of_the_call_behind_it(numbers, missing):
    calls = TABLES["calls"].conform(
        pl.DataFrame(
            {
                "call_id": range(len(numbers)),
                "process_id": [0] * len(numbers),
                "thread_id": [0] * len(numbers),
                "name": ["hipLaunchKernel"] * len(numbers),
                "start_ns": [10 * place for place in range(len(numbers))],
                "correlation_id": numbers,
            }
        )
    )
    found = missing_calls(calls, TABLES["ranges"].empty())
    rows = found.sort("start_ns").select("start_ns", "missing", "is_first").rows()
    assert rows == [(10 * place, count, is_first) for place, count, is_first in missing]
