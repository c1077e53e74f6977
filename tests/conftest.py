"""Fixtures shared by all tests: frames as aligned text, and the folder of real traces."""

import polars as pl
import pytest
from real_traces import REAL_TRACES

from tracekit.tables.catalog import TABLES


@pytest.fixture(scope="session")
def real_traces():
    """The folder of traces recorded by others on real GPUs; tests skip where it is absent."""
    if not REAL_TRACES.is_dir():
        pytest.skip(f"no folder of real traces at {REAL_TRACES}; set TRACEKIT_REAL_TRACES")
    return REAL_TRACES


@pytest.fixture
def frame():
    """Build a declared table from aligned text: a header line, then rows; `-` is null."""

    def build(table: str, text: str) -> pl.DataFrame:
        lines = [line.split() for line in text.strip().splitlines()]
        header, rows = lines[0], lines[1:]
        columns = {
            name: [None if row[i] == "-" else row[i] for row in rows]
            for i, name in enumerate(header)
        }
        texts = pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))
        truths = [name for name in header if TABLES[table].schema[name] == pl.Boolean]
        return TABLES[table].conform(texts.with_columns(pl.col(truths) == "true"))

    return build
