"""overlap: how long lanes ran together, and how long the same kernels took then."""

from typing import Any

import polars as pl

from tracekit.analyses import Analysis
from tracekit.findings import Finding, FindingSeverity
from tracekit.intervals import clip, covered_ns, crowded, union
from tracekit.tables import Column, Table, enum_column, id_column, name_column
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit, format_number

# Fewer kernels than this on either side give no ratio: a median of less is one outlier away.
MIN_KERNELS = 5
# A kernel counts as overlapped when another lane was busy for half of it. With "at all", a kernel
# that lasts longer would be overlapped more often just for lasting longer.
MIN_OVERLAPPED_SHARE = 0.5
SCOPES = ("device", "kernel")
# Overlap is worth a look where slower kernels take half of what it hides, and that is a hundredth
# of the busy time: with less, kernels that differ in shape may make the difference.
MIN_LOST_SHARE = 0.5
MIN_ADDED_SHARE = 0.01
_KERNELS_NAMED = 3

OVERLAP = Table(
    "overlap",
    "one device, or one kernel name of which a part ran while another lane was busy",
    (
        id_column("device_id", "device", "The device.", narrow=True),
        enum_column("scope", SCOPES, "A whole device, or one kernel name on it."),
        name_column("name", "Kernel name; null for a device."),
        Column(
            "ops",
            pl.Int64(),
            "Ops of the device (no barriers), or kernels of the name.",
            Unit.COUNT,
        ),
        Column(
            "busy_ns", pl.Int64(), "Device: its busy time. Kernel: summed length.", Unit.DURATION
        ),
        Column(
            "overlapped_ns",
            pl.Int64(),
            "Device: time with two lanes or more busy. Kernel: the part of busy_ns with another.",
            Unit.DURATION,
        ),
        Column("overlapped_share", pl.Float64(), "overlapped_ns ÷ busy_ns.", Unit.SHARE),
        Column(
            "hidden_ns",
            pl.Int64(),
            "Device: Σ busy over lanes − busy_ns, the time that lanes in turn would take more.",
            Unit.DURATION,
        ),
        Column("kernels_alone", pl.Int64(), "Whole kernels never overlapped.", Unit.COUNT),
        Column(
            "kernels_overlapped",
            pl.Int64(),
            "Whole kernels overlapped for at least half.",
            Unit.COUNT,
        ),
        Column("alone_median_ns", pl.Float64(), "Median length alone.", Unit.DURATION),
        Column("overlapped_median_ns", pl.Float64(), "Median length overlapped.", Unit.DURATION),
        Column(
            "slowdown",
            pl.Float64(),
            f"overlapped_median_ns ÷ alone_median_ns; null below {MIN_KERNELS} kernels on a side.",
            Unit.RATIO,
        ),
    ),
    answers=("slowdown",),
)

_LENGTH = pl.col("end_ns") - pl.col("start_ns")


def overlap(ops: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the time lanes ran together, and each kernel's length alone and overlapped.

    Lanes are streams where the device has any, else hardware queues; ops without one are a lane.
    A kernel is overlapped where a lane other than its own is busy, with whatever: that is where two
    lanes or more are busy. Kernels overlapped for less than half of their time are in `ops` and in
    neither median, and so are kernels that the window cuts: their length says nothing, and what ran
    beside the rest is outside. All else counts the part inside; barriers do not count.

    Args:
        ops: `kind`, `name`, `device_id`, `stream_id`, `queue_id`, `start_ns`, `end_ns`.
        windows: One row per device.

    Returns:
        `OVERLAP`, by device: the device, then its kernels by overlapped time, equal ones by name.

    Descriptive, not causal: kernels of one name may differ in shape, and what runs overlapped may
    differ from what runs alone for other reasons. A slowdown near 1 does not show that overlap was
    free either, since other kernels may pay.
    """
    work = clip(_work(ops).collect(), windows, ["device_id"])
    devices, together = _devices(work)
    result = OVERLAP.conform(pl.concat([devices, _kernels(work, together)], how="diagonal"))
    return result.sort(
        "device_id",
        "scope",
        -pl.col("overlapped_ns"),
        pl.col("name").cast(pl.String),
        nulls_last=True,
    )


def _work(ops: pl.DataFrame) -> pl.LazyFrame:
    """Return the ops that do work with `lane_id`, the stream or else the queue."""
    in_streams = ops.select("device_id", "stream_id").filter(pl.col("stream_id").is_not_null())
    with_streams = in_streams["device_id"].unique()
    named = pl.col("device_id").is_in(with_streams.implode(), nulls_equal=True)
    return (
        ops.lazy()
        .filter(pl.col("kind") != "barrier")
        .select(
            "device_id",
            "kind",
            "name",
            "start_ns",
            "end_ns",
            whole_ns=_LENGTH,
            lane_id=pl.when(named).then("stream_id").otherwise("queue_id"),
        )
    )


def _devices(work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of devices, and when two lanes or more of each were busy."""
    by = "device_id"
    # Ordered by start across lanes, once for both uses; the islands may be as many as the ops.
    lanes = union(work, [by, "lane_id"]).drop("lane_id").sort("start_ns")
    together = crowded(lanes, [by])
    busy = union(lanes, [by]).group_by(by).agg(busy_ns=_LENGTH.sum())
    lane_busy = lanes.group_by(by).agg(lane_busy_ns=_LENGTH.sum())
    overlapped = together.group_by(by).agg(overlapped_ns=_LENGTH.sum())
    devices = (
        work.group_by(by)
        .agg(ops=pl.len())
        .join(busy, on=by, nulls_equal=True)
        .join(lane_busy, on=by, nulls_equal=True)
        .join(overlapped, on=by, how="left", nulls_equal=True)
        .with_columns(pl.col("overlapped_ns").fill_null(0))
        .select(
            by,
            "ops",
            "busy_ns",
            "overlapped_ns",
            scope=pl.lit("device", pl.Enum(SCOPES)),
            overlapped_share=pl.col("overlapped_ns") / pl.col("busy_ns"),
            hidden_ns=pl.col("lane_busy_ns") - pl.col("busy_ns"),
        )
    )
    return devices, together


def _kernels(work: pl.DataFrame, together: pl.DataFrame) -> pl.DataFrame:
    kernels = work.filter(pl.col("kind") == "kernel") if together.height else work.clear()
    kernels = kernels.select("device_id", "name", "start_ns", "end_ns", "whole_ns")
    overlapped = covered_ns(kernels, together, ["device_id"]).alias("overlapped_ns")
    is_whole = pl.col("length_ns") == pl.col("whole_ns")
    alone = is_whole & (pl.col("overlapped_ns") == 0)
    mostly = is_whole & (pl.col("overlapped_ns") >= MIN_OVERLAPPED_SHARE * pl.col("length_ns"))
    enough = pl.min_horizontal("kernels_alone", "kernels_overlapped") >= MIN_KERNELS
    return (
        kernels.with_columns(overlapped, length_ns=_LENGTH)
        .group_by("device_id", "name")
        .agg(
            ops=pl.len(),
            busy_ns=pl.col("length_ns").sum(),
            overlapped_ns=pl.col("overlapped_ns").sum(),
            kernels_alone=alone.sum(),
            kernels_overlapped=mostly.sum(),
            alone_median_ns=pl.col("length_ns").filter(alone).median(),
            overlapped_median_ns=pl.col("length_ns").filter(mostly).median(),
        )
        .filter(pl.col("overlapped_ns") > 0)
        .with_columns(
            scope=pl.lit("kernel", pl.Enum(SCOPES)),
            overlapped_share=pl.col("overlapped_ns") / pl.col("busy_ns"),
            slowdown=pl.when(enough).then(
                pl.col("overlapped_median_ns") / pl.col("alone_median_ns")
            ),
        )
    )


def caveats(ops: pl.DataFrame) -> list[Note]:
    """Say that the ratio is no cause, where there can be one, and when lanes are unknown."""
    if ops.is_empty():
        return []
    if not ops["stream_id"].count() and not ops["queue_id"].count():
        return [
            Note(
                "overlap.no-lanes",
                Severity.NOTICE,
                "The trace names neither streams nor queues, so no overlap can be seen.",
            )
        ]
    lanes = _work(ops).group_by("device_id", "lane_id").agg().collect()
    if not lanes["device_id"].is_duplicated().any():
        return []
    return [
        Note(
            "overlap.descriptive",
            Severity.INFO,
            "A slowdown compares kernels of one name that ran overlapped with others that ran "
            "alone; it is no proof that the overlap caused it (shapes may differ).",
        )
    ]


def findings(result: pl.DataFrame) -> list[Finding]:
    """Return one finding per device on which overlapped kernels took so long that little is won.

    One lane after the other, each kernel as long as alone, the work would take
    `busy + hidden − added`, where `added` is the sum over kernel names of `kernels_overlapped ·
    (overlapped_median − alone_median)`. So overlap wins `hidden − added`. A finding where `added`
    is `MIN_LOST_SHARE` of `hidden` or more, and `MIN_ADDED_SHARE` of the device's busy time. Names
    without enough kernels on both sides add nothing, and neither do kernels that were overlapped
    for less than half: what is lost is at least so much, if kernels of a name are alike.
    """
    added_ns = pl.col("kernels_overlapped") * (
        pl.col("overlapped_median_ns") - pl.col("alone_median_ns")
    )
    named = result.filter((pl.col("scope") == "kernel") & pl.col("slowdown").is_not_null())
    named = named.with_columns(added_ns=added_ns).sort("added_ns", descending=True)
    summed = named.group_by("device_id").agg(pl.col("added_ns").sum())
    devices = (
        result.filter(pl.col("scope") == "device")
        .select("device_id", "busy_ns", "hidden_ns")
        .join(summed, on="device_id", nulls_equal=True, maintain_order="left")
        .filter(
            pl.col("added_ns") >= MIN_LOST_SHARE * pl.col("hidden_ns"),
            pl.col("added_ns") >= MIN_ADDED_SHARE * pl.col("busy_ns"),
        )
    )
    return [
        _contention(row, named.filter(pl.col("device_id").eq_missing(row["device_id"])))
        for row in devices.iter_rows(named=True)
    ]


def _contention(device: dict[str, Any], kernels: pl.DataFrame) -> Finding:
    worst = kernels.filter(pl.col("added_ns") > 0).head(_KERNELS_NAMED)
    names = [
        f"{kernel['name']} took {format_number(kernel['slowdown'], Unit.RATIO)} as long "
        f"({kernel['kernels_overlapped']:,} overlapped, {kernel['kernels_alone']:,} alone)"
        for kernel in worst.iter_rows(named=True)
    ]
    hidden, added = (
        format_number(device[name], Unit.DURATION) for name in ("hidden_ns", "added_ns")
    )
    return Finding(
        code="overlap.contention",
        severity=FindingSeverity.WARNING,
        message=(
            f"On device {device['device_id']} overlap hid {hidden}, while kernels that ran "
            f"overlapped took {added} longer than those of their names that ran alone; "
            f"most: {names[0]}"
        ),
        evidence={
            "device_id": device["device_id"],
            "hidden_ns": device["hidden_ns"],
            "added_ns": round(device["added_ns"]),
            "gain_ns": round(device["hidden_ns"] - device["added_ns"]),
            "busy_ns": device["busy_ns"],
            **{f"kernel_{place}": text for place, text in enumerate(names, 1)},
        },
        advice=(
            "Run these kernels on one stream, or overlap them only where the batch leaves the "
            "device room; record with the side streams off and compare busy time and steps: "
            "tracekit report TRACE --only overlap --only steps"
        ),
    )


ANALYSIS = Analysis(
    name="overlap",
    question="How long did streams run together, and how long did the same kernels take then?",
    table=OVERLAP,
    compute=overlap,
    findings=findings,
    caveats=caveats,
)
