"""steps: the cycles of the engine, how busy the device was in each, and how long the host waited.

A step is a stretch of host time. What the device did in that time is not always the work that the
step submitted: with overlap scheduling the device runs step N while the host is in step N+1. Over
many steps the sums are right; for one step they are what happened meanwhile.
"""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.analyses.steps.cycles import RULES, cycles
from tracekit.api_calls import BLOCKING_KINDS, LAUNCH_KINDS
from tracekit.intervals import covered_ns, starts_inside, union
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit

STEPS = Table(
    "steps",
    "one step of one process on one of its devices",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        id_column("device_id", "device", "A device it uses; null if it uses none.", narrow=True),
        enum_column("found_by", RULES, "The rule that found it: markers, or recurring launches."),
        Column("step", pl.Int64(), "Its number, where the marker has one.", Unit.ID),
        text_column("label", "Its marker's text, or its graph."),
        text_column("kind", "Kind in the marker (verify, prefill), or its text without digits."),
        Column("batch_size", pl.Int64(), "Requests in it, if the marker says so.", Unit.COUNT),
        Column("tokens", pl.Int64(), "Tokens it yields, if the marker says so.", Unit.COUNT),
        time_column("start_ns", "First instant, on the host."),
        time_column("end_ns", "First instant after it, on the host."),
        Column("wall_ns", pl.Int64(), "Its length.", Unit.DURATION),
        Column("busy_ns", pl.Int64(), "Of it, the device ran something.", Unit.DURATION),
        Column("idle_ns", pl.Int64(), "Of it, the device ran nothing.", Unit.DURATION),
        Column("ops", pl.Int64(), "Ops that the device started in it.", Unit.COUNT),
        Column("launches", pl.Int64(), "Launch calls the process began in it.", Unit.COUNT),
        Column(
            "blocked_ns",
            pl.Int64(),
            "Of it, the step's thread was in calls that wait for the device.",
            Unit.DURATION,
        ),
    ),
)


def steps(
    ranges: pl.DataFrame,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the steps that lie wholly inside the host window, and what happened in each.

    Busy time is the union of all ops of the device, whichever process they are of, cut to the step.
    Blocked time is the union of the synchronize calls and blocking copies of the step's own thread:
    a helper thread that waits does not hold the engine up. Barriers neither count nor keep busy.

    Args:
        ranges: `kind`, `process_id`, `thread_id`, `text`, `start_ns`, `end_ns`.
        ops: `kind`, `process_id`, `device_id`, `start_ns`, `end_ns`, `call_id`, `graph_launch_id`,
            `graph_exec_id`.
        calls: `call_id`, `process_id`, `thread_id`, `kind`, `start_ns`, `end_ns`, `graph_exec_key`.
        copies: `call_id`, `is_blocking`.
        windows: The row without a device is the host's.

    Returns:
        `STEPS`, by process, start, thread and device. `launches` and `blocked_ns` are null in a
        process without recorded calls. How steps are found: `cycles`.

    Cannot tell which step an op belongs to, only in which it ran.
    """
    found = _inside(cycles(ranges, ops, calls), windows)
    if found.is_empty():
        return STEPS.empty()
    work = ops.select("kind", "process_id", "device_id", "start_ns", "end_ns").filter(
        pl.col("kind") != "barrier"
    )
    devices = work.select("process_id", "device_id").unique()
    found = found.join(devices, on="process_id", how="left", nulls_equal=True)
    launching = calls.select("process_id", "kind", "start_ns").filter(
        pl.col("kind").is_in(LAUNCH_KINDS)
    )
    thread = ["process_id", "thread_id"]
    waiting = union(_blocking(calls, copies), thread)
    uses_device = pl.col("device_id").is_not_null()
    with_calls = calls.select("process_id").unique()["process_id"].implode()
    has_calls = pl.col("process_id").is_in(with_calls, nulls_equal=True)
    measured = found.with_columns(
        covered_ns(found, union(work, ["device_id"]), ["device_id"]).alias("busy_ns"),
        starts_inside(found, work, ["device_id"]).alias("ops"),
        starts_inside(found, launching, ["process_id"]).alias("launches"),
        covered_ns(found, waiting, thread).alias("blocked_ns"),
        wall_ns=pl.col("end_ns") - pl.col("start_ns"),
    ).with_columns(
        pl.when(uses_device).then(pl.col("busy_ns", "ops")),
        pl.when(has_calls).then(pl.col("launches", "blocked_ns")),
    )
    ordered = measured.sort("process_id", "start_ns", "thread_id", "device_id", nulls_last=True)
    ordered = ordered.with_columns(idle_ns=pl.col("wall_ns") - pl.col("busy_ns"))
    return STEPS.conform(ordered.drop("thread_id"))


def _inside(found: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    host = windows.filter(pl.col("device_id").is_null())
    start_ns, end_ns = host.select("start_ns", "end_ns").row(0) if host.height else (None, None)
    if start_ns is not None:
        found = found.filter(pl.col("start_ns") >= start_ns)
    return found if end_ns is None else found.filter(pl.col("end_ns") <= end_ns)


def _blocking(calls: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    blocking_copies = copies.filter("is_blocking")["call_id"].unique().implode()
    waits = pl.col("kind").is_in(BLOCKING_KINDS) | pl.col("call_id").is_in(blocking_copies)
    return (
        calls.lazy().filter(waits).select("process_id", "thread_id", "start_ns", "end_ns").collect()
    )


def caveats(ranges: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame) -> list[Note]:
    """Say when no steps were found and what to add, or that they were inferred."""
    rules = set(cycles(ranges, ops, calls)["found_by"].unique())
    if not rules:
        return [
            Note(
                "steps.not-found",
                Severity.NOTICE,
                "No steps: nothing on the host recurs as an engine's cycle does. Mark each with a "
                "roctx, nvtx or record_function range `tk1 step N kind=decode bs=8`.",
            )
        ]
    if inferred := rules & {"marker", "graph"}:
        names = " and ".join(sorted(inferred))
        return [
            Note(
                "steps.inferred",
                Severity.INFO,
                f"Steps were inferred (by {names}). To be sure what a step is, mark each with a "
                "range `tk1 step N kind=decode bs=8`.",
            )
        ]
    return []


ANALYSIS = Analysis(
    name="steps",
    question="How long are the engine's steps, and how much of each is busy, idle or blocked?",
    table=STEPS,
    compute=steps,
    caveats=caveats,
)
