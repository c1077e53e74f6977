"""copies: what was copied where, how it was asked for, and how fast it went."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.intervals import overlapping_host
from tracekit.tables import Column, Table, enum_column, id_column, name_column
from tracekit.tables.activity import COPY_DIRECTIONS
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit

COPIES = Table(
    "copies",
    "one way of copying in one process: direction, API, blocking or not, pinned or not",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        enum_column("direction", COPY_DIRECTIONS, "From where to where."),
        name_column("name", "API that asked for it; null when its call was not recorded."),
        Column("is_blocking", pl.Boolean(), "The call returns only when the copy is done."),
        Column("is_pinned", pl.Boolean(), "The host side is page-locked."),
        Column("requests", pl.Int64(), "Copies asked for.", Unit.COUNT),
        Column("requests_with_op", pl.Int64(), "Of them with a recorded device op.", Unit.COUNT),
        Column("requests_without_op", pl.Int64(), "Of them without one.", Unit.COUNT),
        Column("copied_bytes", pl.Int64(), "Bytes asked for, where known.", Unit.BYTES),
        Column("device_ns", pl.Int64(), "Summed length of the device ops.", Unit.DURATION),
        Column(
            "gigabytes_per_s",
            pl.Float64(),
            "Bytes ÷ device time of the requests with both, 10⁹ bytes to the GB; null without.",
            Unit.RATE,
        ),
        Column("call_total_ns", pl.Int64(), "Summed length of the calls.", Unit.DURATION),
        Column("call_median_ns", pl.Float64(), "Median length of the calls.", Unit.DURATION),
    ),
)
_GROUP = ("process_id", "direction", "name", "is_blocking", "is_pinned")


def copies(
    copies: pl.DataFrame, calls: pl.DataFrame, ops: pl.DataFrame, windows: pl.DataFrame
) -> pl.DataFrame:
    """Return the copies asked for, by direction, API, blocking and pinned.

    A request belongs to the window when its call meets the host window or, without a recorded call,
    when its op meets its device's; it counts whole. One with neither call nor op always counts.

    Args:
        copies: `call_id`, `op_id`, `process_id`, `copied_bytes`, `direction`, `is_blocking`,
            `is_pinned`.
        calls: `call_id`, `name`, `start_ns`, `end_ns`.
        ops: `op_id`, `device_id`, `start_ns`, `end_ns`.
        windows: One row per device and one for the host.

    Returns:
        `COPIES`, by process, most bytes first, then most requests, then by the grouping columns.

    Cannot tell a copy that ran as a kernel (a blit, or a memcpy node of a graph) from one whose op
    was not recorded: both are without an op, and no rate is made up for them. A rate over small
    copies is the rate of their overhead.
    """
    requests = _inside(_described(copies, calls, ops), windows)
    rated = pl.col("device_ns").is_not_null() & pl.col("copied_bytes").is_not_null()
    rated_ns = pl.col("device_ns").filter(rated).sum()
    has_op = pl.col("op_id").is_not_null()
    found = requests.group_by(_GROUP).agg(
        requests=pl.len(),
        requests_with_op=has_op.sum(),
        requests_without_op=(~has_op).sum(),
        copied_bytes=_known_sum("copied_bytes"),
        device_ns=_known_sum("device_ns"),
        gigabytes_per_s=pl.when(rated_ns > 0).then(
            pl.col("copied_bytes").filter(rated).sum() / rated_ns
        ),
        call_total_ns=_known_sum("call_ns"),
        call_median_ns=pl.col("call_ns").median(),
    )
    return COPIES.conform(found).sort(
        "process_id",
        -pl.col("copied_bytes"),
        -pl.col("requests"),
        "direction",
        pl.col("name").cast(pl.String),
        "is_blocking",
        "is_pinned",
        nulls_last=True,
    )


def _known_sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def _described(copies: pl.DataFrame, calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the copies with their call (`name`, times, `call_ns`) and op (times, `device_ns`)."""
    mine = calls.join(copies.select("call_id"), on="call_id", how="semi")
    its_call = mine.select("call_id", "name", call_start="start_ns", call_end="end_ns")
    theirs = ops.join(copies.select("op_id"), on="op_id", how="semi")
    its_op = theirs.select("op_id", "device_id", op_start="start_ns", op_end="end_ns")
    return (
        copies.join(its_call, on="call_id", how="left")
        .join(its_op, on="op_id", how="left")
        .with_columns(
            call_ns=pl.col("call_end") - pl.col("call_start"),
            device_ns=pl.col("op_end") - pl.col("op_start"),
        )
    )


def _inside(requests: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    called = pl.col("call_start").is_not_null()
    by_call = requests.filter(called).with_columns(start_ns="call_start", end_ns="call_end")
    by_call = overlapping_host(by_call, windows).drop("start_ns", "end_ns")
    bounds = windows.select("device_id", _from="start_ns", _until="end_ns")
    outside = (pl.col("op_end") <= pl.col("_from")) | (pl.col("op_start") >= pl.col("_until"))
    by_op = requests.filter(~called).join(bounds, on="device_id", how="left")
    by_op = by_op.filter(~outside.fill_null(value=False)).drop("_from", "_until")
    return pl.concat([by_call, by_op])


def caveats(copies: pl.DataFrame) -> list[Note]:
    """Say how many copies have no device op."""
    without = copies["op_id"].null_count()
    if not without:
        return []
    return [
        Note(
            "copies.without-op",
            Severity.NOTICE,
            "Copies without a device op have no device time and no rate: they ran as kernels, or "
            "copies were not traced.",
            without,
        )
    ]


ANALYSIS = Analysis(
    name="copies",
    question="What was copied where, how was it asked for, and how fast did it go?",
    table=COPIES,
    compute=copies,
    needs=("copies",),
    caveats=caveats,
)
