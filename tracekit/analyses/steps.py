"""steps: the cycles of the engine, how busy the device was in each, and how long the host waited.

A step is a stretch of host time. What the device did in that time is not always the work that the
step submitted: with overlap scheduling the device runs step N while the host is in step N+1. Over
many steps the sums are right; for one step they are what happened meanwhile.
"""

from typing import Any

import polars as pl

from tracekit.analyses import Analysis
from tracekit.api_calls import BLOCKING_KINDS, LAUNCH_KINDS
from tracekit.cycles import RULES, cycles, cycles_inside
from tracekit.findings import Finding, FindingSeverity
from tracekit.idle_time.host_syncs import by_cycle, host_syncs
from tracekit.intervals import covered_ns, starts_inside, union
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit, format_number

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
        Column("waiting", pl.Int64(), "Requests that wait for a slot, likewise.", Unit.COUNT),
        Column("free", pl.Int64(), "Slots that are free, likewise.", Unit.COUNT),
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
        Column(
            "held_ns",
            pl.Int64(),
            "Length of the calls of the step's thread, begun in it, that device work released.",
            Unit.DURATION,
        ),
        Column(
            "owned_idle_ns",
            pl.Int64(),
            "Idle time of the device that those calls own, also beyond the step (host-syncs).",
            Unit.DURATION,
        ),
        Column(
            "remaining_idle_ns",
            pl.Int64(),
            "Of that, would remain if the waits were in-queue: owned_idle_ns beyond the held time.",
            Unit.DURATION,
        ),
    ),
    answers=("wall_ns", "busy_ns", "held_ns", "owned_idle_ns", "remaining_idle_ns"),
)

_DECODING = ("decode", "verify")
# A slot that frees while a step is under way is taken one or two steps later; a delay that pays
# ends with the next few requests. Fifty steps are a request's whole answer.
MIN_STRANDED_STEPS = 50
MIN_STRANDED_SHARE = 0.05


def steps(
    ranges: pl.DataFrame,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    marks: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the steps that lie wholly inside the host window, and what happened in each.

    Busy time is the union of all ops of the device, whichever process they are of, cut to the step.
    Blocked time is the union of the synchronize calls and blocking copies of the step's own thread:
    another thread that waits does not hold the engine up. Barriers neither count nor keep busy.
    Held are the calls that really waited; what they own and what would remain of it is the ledger
    of `host-syncs`, per step (formula and assumptions: `idle_time.host_syncs.by_cycle`).

    Args:
        ranges: `kind`, `process_id`, `thread_id`, `text`, `start_ns`, `end_ns`.
        ops: `kind`, `process_id`, `device_id`, `start_ns`, `end_ns`, `call_id`, `graph_launch_id`,
            `graph_exec_id`.
        calls: `call_id`, `process_id`, `thread_id`, `kind`, `start_ns`, `end_ns`, `graph_exec_key`.
        copies: `call_id`, `is_blocking`.
        marks: Waits of which no call was recorded.
        windows: The row without a device is the host's.

    Returns:
        `STEPS`, by process, start, thread and device. What comes from calls is null in a process
        without recorded calls; what comes from held calls also where the step's thread is unknown.
        How steps are found: `cycles`.

    Cannot tell which step an op belongs to, only in which it ran.
    """
    found = cycles_inside(cycles(ranges, ops, calls), windows)
    if found.is_empty():
        return STEPS.empty()
    work = ops.select("kind", "process_id", "device_id", "start_ns", "end_ns").filter(
        pl.col("kind") != "barrier"
    )
    devices = work.select("process_id", "device_id").unique()
    found = found.with_row_index("cycle").with_columns(pl.col("cycle").cast(pl.Int64))
    syncs = by_cycle(host_syncs(ops, calls, copies, marks, ranges, windows), found.drop("cycle"))
    found = found.join(devices, on="process_id", how="left", nulls_equal=True)
    launching = calls.select("process_id", "kind", "start_ns").filter(
        pl.col("kind").is_in(LAUNCH_KINDS)
    )
    thread = ["process_id", "thread_id"]
    waiting = union(_blocking(calls, copies), thread)
    measured = _with_syncs(found, syncs).with_columns(
        covered_ns(found, union(work, ["device_id"]), ["device_id"]).alias("busy_ns"),
        starts_inside(found, work, ["device_id"]).alias("ops"),
        starts_inside(found, launching, ["process_id"]).alias("launches"),
        covered_ns(found, waiting, thread).alias("blocked_ns"),
        wall_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    ordered = _known(measured, calls).sort(
        "process_id", "start_ns", "thread_id", "device_id", nulls_last=True
    )
    ordered = ordered.with_columns(idle_ns=pl.col("wall_ns") - pl.col("busy_ns"))
    return STEPS.conform(ordered.drop("thread_id", "cycle"))


def _known(measured: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with null for what is not known without device, calls or thread."""
    uses_device = pl.col("device_id").is_not_null()
    with_calls = calls.select("process_id").unique()["process_id"].implode()
    has_calls = pl.col("process_id").is_in(with_calls, nulls_equal=True)
    has_held = has_calls & pl.col("thread_id").is_not_null()
    return measured.with_columns(
        pl.when(uses_device).then(pl.col("busy_ns", "ops")),
        pl.when(has_calls).then(pl.col("launches", "blocked_ns")),
        pl.when(has_held).then(pl.col("held_ns")),
        pl.when(has_held & uses_device).then(pl.col("owned_idle_ns", "remaining_idle_ns")),
    )


def _with_syncs(found: pl.DataFrame, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with what the calls of each held the host for, and own on its device."""
    per_step = (
        syncs.drop_nulls("cycle")
        .group_by("cycle", "device_id")
        .agg(
            pl.col("held_ns").sum(),
            owned_idle_ns=pl.col("owned_ns").sum(),
            remaining_idle_ns=pl.col("remaining_ns").sum(),
        )
    )
    joined = found.join(per_step, on=["cycle", "device_id"], how="left", nulls_equal=True)
    return joined.with_columns(pl.col("held_ns", "owned_idle_ns", "remaining_idle_ns").fill_null(0))


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


def findings(result: pl.DataFrame) -> list[Finding]:
    """Return one finding per process whose requests waited for long though all of them would fit.

    A step strands requests if it decodes and leaves some waiting, and no more than there are free
    slots: all could be admitted, and none was. It counts in stretches of `MIN_STRANDED_STEPS` such
    steps in a row or more, any other step ends one; together they must last `MIN_STRANDED_SHARE` of
    the time from the process's first step to the end of its last. While more wait than fit, holding
    a prefill back until more slots are free may be meant, and is not reported.

    Cannot tell why they wait: slots are not all that a request needs, pages of the cache may lack.
    """
    once = result.unique(["process_id", "start_ns"], keep="first", maintain_order=True)
    waits = (pl.col("waiting") > 0) & (pl.col("waiting") <= pl.col("free"))
    is_stranding = (pl.col("kind").is_in(_DECODING) & waits).fill_null(value=False)
    stretches = (
        once.with_columns(
            is_stranding=is_stranding,
            span_ns=(pl.col("end_ns").max() - pl.col("start_ns").min()).over("process_id"),
        )
        .with_columns(stretch=pl.struct("process_id", "is_stranding").rle_id())
        .filter("is_stranding")
        .group_by("process_id", "stretch", maintain_order=True)
        .agg(
            pl.col("span_ns").first(),
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("waiting", "free", "batch_size").max(),
            steps=pl.len(),
        )
        .filter(pl.col("steps") >= MIN_STRANDED_STEPS)
        .with_columns(stranded_ns=pl.col("end_ns") - pl.col("start_ns"))
        .sort("stranded_ns", descending=True, maintain_order=True)
    )
    processes = (
        stretches.group_by("process_id", maintain_order=True)
        .agg(
            pl.col("start_ns", "end_ns", "waiting", "free", "batch_size", "span_ns").first(),
            pl.len().alias("stretches"),
            pl.col("steps", "stranded_ns").sum(),
        )
        .with_columns(share=pl.col("stranded_ns") / pl.col("span_ns"))
        .filter(pl.col("share") >= MIN_STRANDED_SHARE)
    )
    return [_stranded(row) for row in processes.iter_rows(named=True)]


def _stranded(row: dict[str, Any]) -> Finding:
    return Finding(
        code="scheduler.stranded-requests",
        severity=FindingSeverity.WARNING,
        message=(
            f"In process {row['process_id']} up to {row['waiting']} requests waited for "
            f"{format_number(row['stranded_ns'], Unit.DURATION)} "
            f"({format_number(row['share'], Unit.SHARE)} of its steps' time) though {row['free']} "
            f"slots were free: {row['steps']:,} decode steps in which no prefill ran"
        ),
        evidence={
            "process_id": row["process_id"],
            "steps": row["steps"],
            "stretches": row["stretches"],
            "stranded_ns": row["stranded_ns"],
            "stranded_share": row["share"],
            "waiting": row["waiting"],
            "free": row["free"],
            "batch_size": row["batch_size"],
        },
        advice=(
            "If prefills are held back until a number of slots is free (min free slots), let them "
            "be delayed only while free slots are fewer than both that number and the waiting "
            "requests; else look whether the cache has pages left. Record again: of the rows of "
            "tracekit table TRACE steps, no long run has waiting > 0 and free ≥ waiting"
        ),
        span_ns=(row["start_ns"], row["end_ns"]),
    )


ANALYSIS = Analysis(
    name="steps",
    question="How long are the engine's steps, and how much of each is busy, idle or blocked?",
    table=STEPS,
    compute=steps,
    findings=findings,
    caveats=caveats,
)
