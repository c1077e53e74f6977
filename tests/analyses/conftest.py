"""Run one analysis on tables written as aligned text, and compare its result with such a table."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.analyses import call_with_tables, tables_of
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

TRUTH = {"true": True, "false": False, "-": None}


@pytest.fixture
def table(frame):
    """Return `table(name, text)`: as `frame`, with `true` and `false` too, and `~` for a space."""

    def build(name, text):
        header, *rows = (line.split() for line in text.strip().splitlines())
        schema = TABLES[name].schema
        truths = [i for i, column in enumerate(header) if schema[column] == pl.Boolean]
        plain = [[word for i, word in enumerate(row) if i not in truths] for row in (header, *rows)]
        found = frame(name, "\n".join(map(" ".join, plain)))
        spaced = [pl.col(column).str.replace_all("~", " ") for column in {"text"} & set(header)]
        return found.with_columns(
            *(pl.Series(header[i], [TRUTH[row[i]] for row in rows], pl.Boolean) for i in truths),
            *spaced,
        )

    return build


@pytest.fixture
def run(table):
    """Return `run(function, device 0's window, host window, table=text, ...)`.

    Windows left out are each device's from the first op to the last, and an unbounded host.
    """

    def run_one(function, window=None, host=(None, None), **texts):
        frames = {
            name: TABLES[name].empty() if name not in texts else table(name, texts[name])
            for name in tables_of(function)
            if name != "windows"
        }
        spans = [] if window is None else [(0, *window)]
        if window is None and "ops" in frames:
            work = frames["ops"].filter(pl.col("kind") != "barrier")
            ends = work.group_by("device_id").agg(pl.min("start_ns"), pl.max("end_ns"))
            spans = ends.rows()
        frames["windows"] = pl.DataFrame([*spans, (None, *host)], WINDOWS.schema, orient="row")
        return call_with_tables(function, frames)

    return run_one


@pytest.fixture
def check():
    """Return `check(result, declared table, text)`: the columns of the text's header are equal."""

    def compare(result, table, text):
        header, *rows = (line.split() for line in text.strip().splitlines())
        columns = {
            name: [None if row[i] == "-" else row[i].replace("~", " ") for row in rows]
            for i, name in enumerate(header)
        }
        texts = pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))
        texts = texts.with_columns(
            pl.col(name) == "true" for name in header if table.schema[name] == pl.Boolean
        )
        expected = table.conform(texts).select(header)
        assert result.schema == table.schema
        assert_frame_equal(result.select(header), expected, categorical_as_str=True)

    return compare
