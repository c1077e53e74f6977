"""The table that queue-waits returns."""

import polars as pl

from tracekit.analyses.queue_waits.comparison import MIN_CYCLES, MIN_DISPATCHES, REASONS
from tracekit.analyses.queue_waits.resampling import ends_of
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.units import Unit


def _interval_ends(name: str, unit: Unit) -> tuple[Column, Column]:
    low, high = ends_of(name)
    return (
        Column(low, pl.Float64(), "Lower end of its 95 % interval.", unit),
        Column(high, pl.Float64(), "Upper end of its 95 % interval.", unit),
    )


SCOPES = ("device", "lane", "graph", "kernels")

# The columns are in the order in which they are read; a narrow terminal shows the first ones.
QUEUE_WAITS = Table(
    "queue-waits",
    "one device, one pair of lanes of which one waits for the other, or, beside waits, one graph "
    "or the kernels launched one by one in one lane",
    (
        id_column("device_id", "device", "The device.", narrow=True),
        enum_column(
            "scope",
            SCOPES,
            "All waits of a device, one pair of lanes, or what ran while waits of other lanes were "
            "pending: one graph, or the kernels that the host launched one by one in one lane.",
        ),
        text_column("who", "Who waits for whom, the op that starts the graph, or the lane."),
        Column("waits", pl.Int64(), "Waits that were pending for some time.", Unit.COUNT),
        Column("pending_ns", pl.Int64(), "Time with such a wait pending.", Unit.DURATION),
        Column("ratio", pl.Float64(), "Cadence with ÷ without, by position.", Unit.RATIO),
        *_interval_ends("ratio", Unit.RATIO),
        Column("added_per_dispatch_ns", pl.Float64(), "Cadence with − without.", Unit.DURATION),
        Column(
            "added_per_cycle_ns", pl.Float64(), "The same of a cycle's dispatches.", Unit.DURATION
        ),
        Column(
            "dispatches_with",
            pl.Int64(),
            "Dispatches that began with a wait pending in another lane; where compared, those at "
            "positions also seen without. Of kernels launched one by one only those that the host "
            "had submitted before the kernel before ended, unless it had few (host-limited).",
            Unit.COUNT,
        ),
        Column(
            "dispatches_without",
            pl.Int64(),
            "Dispatches at the same positions in whose cadence none can have been.",
            Unit.COUNT,
        ),
        Column(
            "cycles_with",
            pl.Int64(),
            "Steps of the former, else launches; of kernels launched one by one, else waits.",
            Unit.COUNT,
        ),
        Column(
            "cycles_without",
            pl.Int64(),
            "Steps of the latter, else launches; of kernels launched one by one, else stretches "
            "between waits or host synchronisations.",
            Unit.COUNT,
        ),
        enum_column(
            "status",
            ("compared", "not identifiable"),
            f"Not identifiable: under {MIN_DISPATCHES} dispatches or {MIN_CYCLES} cycles on a "
            "side, or another reason.",
        ),
        enum_column(
            "reason",
            REASONS,
            "Why not: a wait is pending (nearly) every time (one-sided), too few, kernels of the "
            "two sides differ themselves, waits of unknown time, no such graph or kernels in the "
            "other trace, most kernels submitted too late to tell (host-limited).",
        ),
        Column("added_ns", pl.Float64(), "Per dispatch × dispatches with.", Unit.DURATION),
        Column("added_share", pl.Float64(), "Its share of the window; none below 0.", Unit.SHARE),
        enum_column(
            "without_from",
            ("this trace", "other trace"),
            "Where the dispatches without a pending wait are from; other: the one of --against.",
        ),
        *_interval_ends("added_per_dispatch_ns", Unit.DURATION),
        *_interval_ends("added_per_cycle_ns", Unit.DURATION),
        Column("with_median_ns", pl.Float64(), "Median cadence with.", Unit.DURATION),
        Column("without_median_ns", pl.Float64(), "Median cadence without.", Unit.DURATION),
        Column(
            "kernel_ratio",
            pl.Float64(),
            "The same kernels' own length with ÷ without: near 1 if only dispatch differs.",
            Unit.RATIO,
        ),
        Column("nodes", pl.Int64(), "Ops of one launch of the graph.", Unit.COUNT),
        Column("graph_key", pl.Int64(), "The graph's handle or number, where known.", Unit.ID),
        enum_column("evidence", ("recorded", "inferred"), "Recorded, or inferred from arguments."),
        Column("waits_unknown", pl.Int64(), "Further waits of unknown time.", Unit.COUNT),
        text_column("streams", "Stream that waits, and the one that recorded the event."),
        Column("longest_ns", pl.Int64(), "Longest wait of the device.", Unit.DURATION),
        time_column("longest_start_ns", "Where the longest wait starts."),
    ),
    answers=("pending_ns", "ratio", "added_per_dispatch_ns", "added_per_cycle_ns", "reason"),
)
