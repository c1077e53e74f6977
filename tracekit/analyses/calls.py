"""calls: which host API calls the host's time goes to, and how long they blocked."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.api_calls import BLOCKING_KINDS
from tracekit.intervals import overlapping_host
from tracekit.tables import Column, Table, enum_column, id_column, name_column
from tracekit.tables.activity import CALL_KINDS
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit

CALLS = Table(
    "calls",
    "one API name in one process",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        enum_column("kind", CALL_KINDS, "What the call does."),
        name_column("name", "API name."),
        Column("calls", pl.Int64(), "Calls inside the window, if only in part.", Unit.COUNT),
        Column("total_ns", pl.Int64(), "Summed length inside the window.", Unit.DURATION),
        Column("mean_ns", pl.Float64(), "Mean length of whole calls.", Unit.DURATION),
        Column("median_ns", pl.Float64(), "Median length of whole calls.", Unit.DURATION),
        Column("max_ns", pl.Int64(), "Longest whole call.", Unit.DURATION),
        Column("blocking_calls", pl.Int64(), "Calls that wait for the device.", Unit.COUNT),
        Column(
            "blocked_ns",
            pl.Int64(),
            "Their part of total_ns; null when no call of the name waits.",
            Unit.DURATION,
        ),
    ),
)


def calls(calls: pl.DataFrame, copies: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the host time spent in API calls, by process, kind and name.

    A call waits for the device when it is an event, stream or device synchronize, or a copy that
    `copies` says is blocking. Totals count the part inside the host window; the other figures are
    of whole calls. Calls that contain calls count in both names, and calls of several threads add
    up, so totals may pass the wall time.

    Args:
        calls: `call_id`, `process_id`, `name`, `kind`, `start_ns`, `end_ns`.
        copies: `call_id`, `is_blocking`.
        windows: The row without a device is the host's.

    Returns:
        `CALLS`, by process, largest total first, equal ones by name and kind.

    Cannot tell calls that wait for reasons their name does not show (hipFree, hipMalloc, a launch
    into a full queue, an asynchronous copy of pageable memory): their time is in total_ns only. Nor
    whether a call that waits found the device done already.
    """
    blocking_copies = copies.filter("is_blocking").select("call_id").unique()
    bounds = windows.filter(pl.col("device_id").is_null())
    start_ns, end_ns = bounds.select("start_ns", "end_ns").row(0) if bounds.height else (None, None)
    whole = pl.col("length_ns")
    inside = pl.min_horizontal("end_ns", pl.lit(end_ns, pl.Int64)) - pl.max_horizontal(
        "start_ns", pl.lit(start_ns, pl.Int64)
    )
    waits = pl.col("kind").is_in(BLOCKING_KINDS) | pl.col("copies").is_not_null()
    named = (
        overlapping_host(calls, windows)
        .lazy()
        .join(blocking_copies.lazy().with_columns(copies=1), on="call_id", how="left")
        .select(
            "process_id",
            "kind",
            "name",
            waits=waits,
            length_ns=pl.col("end_ns") - pl.col("start_ns"),
            inside_ns=inside,
        )
        .group_by("process_id", "kind", "name")
        .agg(
            calls=pl.len(),
            total_ns=pl.col("inside_ns").sum(),
            mean_ns=whole.sum() / pl.len(),
            median_ns=whole.median(),
            max_ns=whole.max(),
            blocking_calls=pl.col("waits").sum(),
            blocked_ns=pl.col("inside_ns").filter("waits").sum(),
        )
        .with_columns(blocked_ns=pl.when(pl.col("blocking_calls") > 0).then("blocked_ns"))
        .collect()
    )
    return CALLS.conform(named).sort(
        "process_id", -pl.col("total_ns"), pl.col("name").cast(pl.String), "kind", nulls_last=True
    )


def caveats(calls: pl.DataFrame, copies: pl.DataFrame) -> list[Note]:
    """Say when copies are called but not described, so that it is not known whether they block."""
    copy_calls = calls.filter(pl.col("kind") == "copy")
    unknown = copy_calls.join(copies.filter(pl.col("is_blocking").is_not_null()), "call_id", "anti")
    if unknown.is_empty():
        return []
    return [
        Note(
            "calls.copies-may-block",
            Severity.NOTICE,
            "Copy calls of which the trace does not say whether they block are not in blocked_ns.",
            unknown.height,
        )
    ]


ANALYSIS = Analysis(
    name="calls",
    question="Which API calls does the host's time go to, and how long did they block?",
    table=CALLS,
    compute=calls,
    needs=("calls",),
    caveats=caveats,
)
