"""launches: how long after its call each launch starts on the device."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.api_calls import LAUNCH_KINDS, queued_before_recording
from tracekit.intervals import overlapping_host
from tracekit.tables import Column, Table, enum_column, id_column, name_column
from tracekit.tables.notes import Note, Severity
from tracekit.tables.rows import rows_of, starting_inside
from tracekit.units import Unit

REASONS = ("before-window", "no-call")
_OP_COLUMNS = ("process_id", "device_id", "start_ns", "end_ns", "call_id", "correlation_id")
_LAUNCHES_AT_ONCE = 1_000_000
# By when all had ended that had started before anything did.
_NEVER = pl.Series([-(1 << 63)], dtype=pl.Int64)

LAUNCHES = Table(
    "launches",
    "one API name that launches work in one process, or the ops without a recorded call",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        name_column("name", "API name; null for ops without a recorded call."),
        enum_column(
            "reason",
            REASONS,
            "Why ops have no call: queued before the first recorded call, or not known.",
        ),
        Column("launches", pl.Int64(), "Calls.", Unit.COUNT),
        Column("launches_without_ops", pl.Int64(), "Of them without a recorded op.", Unit.COUNT),
        Column("ops", pl.Int64(), "Ops they put on devices, barriers not counted.", Unit.COUNT),
        Column("call_median_ns", pl.Float64(), "Median length of the calls.", Unit.DURATION),
        Column(
            "queued_median_ns",
            pl.Float64(),
            "Median of the first op's start − the call's end.",
            Unit.DURATION,
        ),
        Column("queued_p90_ns", pl.Float64(), "90th percentile of it.", Unit.DURATION),
        Column("queued_max_ns", pl.Int64(), "Longest.", Unit.DURATION),
        Column(
            "started_early",
            pl.Int64(),
            "Launches whose first op started before the call returned (queued time below 0).",
            Unit.COUNT,
        ),
        Column(
            "device_idle_share",
            pl.Float64(),
            "Share of launches with ops at whose call's start the op's device ran nothing.",
            Unit.SHARE,
        ),
    ),
)


def launches(ops: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return how long launches wait between host and device, by API name.

    A launch is a call that ops name as theirs, or one of a launching kind without any. A graph
    launch has many ops; its wait is to the first. Waits below zero are kept: a device may start
    before the call returns. A launch belongs to the window in which its first op starts, or
    without ops in which its call does. Percentiles are linear between neighbours.

    Args:
        ops: `kind`, `process_id`, `device_id`, `start_ns`, `end_ns`, `call_id`, `correlation_id`.
        calls: `call_id`, `process_id`, `name`, `kind`, `start_ns`, `end_ns`, `correlation_id`.
        windows: One row per device and one for the host.

    Returns:
        `LAUNCHES`, by process; most launches first, equal ones by name, ops without call last.
        `before-window` means that the op's correlation id is below the process's lowest recorded
        one, so that its launch came before recording began.

    Cannot tell what a launch waited for: earlier work of its stream, a dependency, or the path from
    host to device. Only where the device was idle is the wait latency.
    """
    is_work = ops["kind"] != "barrier"
    work = ops.select(_OP_COLUMNS) if is_work.all() else ops.filter(is_work).select(_OP_COLUMNS)
    launched = _launched(work, calls, windows)
    queued = pl.col("queued_ns")
    has_op = pl.col("ops") > 0
    by_name = launched.group_by("process_id", "name").agg(
        launches=pl.len(),
        launches_without_ops=(~has_op).sum(),
        ops=pl.col("ops").sum(),
        call_median_ns=pl.col("call_ns").median(),
        queued_median_ns=queued.median(),
        queued_p90_ns=queued.quantile(0.9, "linear"),
        queued_max_ns=queued.max(),
        started_early=(queued < 0).sum(),
        device_idle_share=pl.when(has_op.any()).then(pl.col("device_idle").filter(has_op).mean()),
    )
    rows = [LAUNCHES.conform(by_name), LAUNCHES.conform(_uncalled(work, calls, windows))]
    return pl.concat(rows).sort(
        "process_id",
        -pl.col("launches"),
        pl.col("name").cast(pl.String),
        "reason",
        nulls_last=True,
    )


def _launched(work: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per launch: process, name, `ops`, `call_ns`, `queued_ns`, `device_idle`."""
    first = _first_ops(work)
    mine = calls.select("call_id", "process_id", "name", "start_ns", "end_ns")
    edges = _starts_and_reach(work)
    # A slice at a time: a row here is far wider than what is left of it.
    parts = [
        _queued(starting_inside(some, windows, "op_start"), mine, edges)
        for some in list(first.iter_slices(_LAUNCHES_AT_ONCE)) or [first]
    ]
    return pl.concat([*parts, _opless(calls, first, windows)], how="diagonal")


def _queued(
    first: pl.DataFrame, mine: pl.DataFrame, edges: dict[int | None, tuple[pl.Series, pl.Series]]
) -> pl.DataFrame:
    own = first.hstack(rows_of(first["call_id"], mine, "call_id")).drop_nulls("start_ns")
    return own.select(
        "process_id",
        "name",
        "ops",
        call_ns=pl.col("end_ns") - pl.col("start_ns"),
        queued_ns=pl.col("op_start") - pl.col("end_ns"),
        device_idle=~_was_busy(own, edges),
    )


def _first_ops(work: pl.DataFrame) -> pl.DataFrame:
    """Return `call_id, device_id, op_start, ops`: each call's first op, and how many it has.

    By call. Ops come by start, so that the first of a call stands before its others.
    """
    named = (
        work.select("call_id", "device_id", op_start="start_ns")
        .drop_nulls("call_id")
        .sort("call_id", maintain_order=True)
    )
    begins = named["call_id"].ne_missing(named["call_id"].shift(1))
    first = named.with_row_index("_row").filter(begins)
    following = first["_row"].shift(-1, fill_value=named.height)
    return first.with_columns(ops=following - first["_row"]).drop("_row")


def _opless(calls: pl.DataFrame, first: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    launching = (
        calls.select("call_id", "kind")
        .with_row_index("_row")
        .filter(pl.col("kind").is_in(LAUNCH_KINDS))
    )
    kinds = rows_of(first["call_id"], calls.select("call_id", "kind"), "call_id")["kind"]
    if kinds.is_in(LAUNCH_KINDS).sum() == launching.height:
        without = calls.clear()  # every launch has its op: none is left to look for
    else:
        has_op = rows_of(launching["call_id"], first.select("call_id", "ops"), "call_id")["ops"]
        without = calls[launching.filter(has_op.is_null())["_row"]]
    return overlapping_host(without, windows).select(
        "process_id",
        "name",
        ops=pl.lit(0, pl.get_index_type()),
        call_ns=pl.col("end_ns") - pl.col("start_ns"),
    )


def _starts_and_reach(work: pl.DataFrame) -> dict[int | None, tuple[pl.Series, pl.Series]]:
    """Return the starts of the ops of each device, in order, and by when all up to one had ended.

    Before the first stands a time at which nothing had started yet.
    """
    ran = work.select("device_id", "start_ns", "end_ns").filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    by_device = ran.partition_by("device_id", as_dict=True, include_key=False)
    ordered = {device_id: ops.sort("start_ns") for (device_id,), ops in by_device.items()}
    return {
        device_id: (ops["start_ns"], pl.concat([_NEVER, ops["end_ns"].cum_max()]))
        for device_id, ops in ordered.items()
    }


def _was_busy(
    launched: pl.DataFrame, edges: dict[int | None, tuple[pl.Series, pl.Series]]
) -> pl.Series:
    """Return whether the device ran anything in the nanosecond in which each call began.

    It did if one of the ops that had started by then ended later: a binary search per launch.
    """
    parts = [pl.DataFrame(schema={"_row": pl.get_index_type(), "busy": pl.Boolean})]
    numbered = launched.select("device_id", "start_ns").with_row_index("_row")
    none = pl.Series([], dtype=pl.Int64)
    for (device_id,), calls in numbered.group_by("device_id"):
        starts, reach = edges.get(device_id, (none, _NEVER))
        started = starts.search_sorted(calls["start_ns"], side="right")
        parts.append(calls.select("_row", busy=reach.gather(started) > calls["start_ns"]))
    return pl.concat(parts).sort("_row")["busy"]


def _uncalled(work: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    uncalled = starting_inside(work.filter(pl.col("call_id").is_null()), windows, "start_ns")
    is_before = pl.when(queued_before_recording(uncalled, calls))
    reason = is_before.then(pl.lit("before-window", pl.Enum(REASONS))).otherwise(pl.lit("no-call"))
    return uncalled.group_by("process_id", reason.alias("reason")).agg(ops=pl.len())


def caveats(ops: pl.DataFrame, calls: pl.DataFrame) -> list[Note]:
    """Say when host calls were not recorded, so that no wait can be measured."""
    if ops.is_empty() or calls.height:
        return []
    return [
        Note(
            "launches.no-calls",
            Severity.NOTICE,
            "No host calls were recorded: when work was submitted is not known.",
        )
    ]


ANALYSIS = Analysis(
    name="launches",
    question="How long after its call does work start on the device?",
    table=LAUNCHES,
    compute=launches,
    caveats=caveats,
)
