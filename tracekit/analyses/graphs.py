"""graphs: what each executable graph costs per launch, on the host and on the device."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.intervals import overlapping_host, union
from tracekit.tables import Column, Table, enum_column, id_column, name_column, time_column
from tracekit.tables.notes import Note, Severity
from tracekit.tables.rows import starting_inside
from tracekit.units import Unit

IDENTITIES = ("exec-key", "exec-id", "sequence", "none")

GRAPHS = Table(
    "graphs",
    "one executable graph of one process, or its launches of unknown graphs without ops",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        enum_column(
            "found_by",
            IDENTITIES,
            "How launches were told to be of one graph: the handle in the call, the number on the "
            "ops, equal kernels in equal number; none for launches without any of these.",
        ),
        Column("graph_key", pl.Int64(), "The handle or number; null otherwise.", Unit.ID),
        name_column("first_name", "Name of the op that starts its first launch."),
        Column("launches", pl.Int64(), "Launches.", Unit.COUNT),
        Column(
            "launches_without_ops",
            pl.Int64(),
            "Of them without a recorded op: not recorded, or after the end of recording.",
            Unit.COUNT,
        ),
        Column("ops", pl.Int64(), "Ops of all launches, barriers not counted.", Unit.COUNT),
        Column(
            "ops_per_launch", pl.Float64(), "Median over the launches that have ops.", Unit.COUNT
        ),
        Column(
            "span_median_ns", pl.Float64(), "Median of last op's end − first start.", Unit.DURATION
        ),
        Column("busy_median_ns", pl.Float64(), "Median of the union of its ops.", Unit.DURATION),
        Column("gap_share", pl.Float64(), "1 − Σ busy ÷ Σ span.", Unit.SHARE),
        Column("call_median_ns", pl.Float64(), "Median length of the launch call.", Unit.DURATION),
        time_column("first_start_ns", "Start of its first op."),
    ),
)
_GROUP = ("process_id", "found_by", "graph_key", "sequence")


def graphs(ops: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the cost of each graph per launch.

    Launches are of one graph when their calls name one handle, else when their ops carry one
    number, else when they consist of the same kernels in the same number, in any order (branches of
    a graph may start in another order each time). A launch belongs to the window in which its first
    op starts, or without ops in which its call does, and counts whole.

    Args:
        ops: `kind`, `name`, `process_id`, `device_id`, `start_ns`, `end_ns`, `graph_launch_id`,
            `graph_exec_id`.
        calls: `call_id`, `process_id`, `kind`, `start_ns`, `end_ns`, `graph_exec_key`.
        windows: One row per device and one for the host.

    Returns:
        `GRAPHS`, by process, largest summed busy time first, then most launches, then first start.
        A launch on several devices has the union over all of them.

    Cannot tell graphs apart that share a handle one after the other (handles are recycled) or that
    hold the same kernels, nor why ops of a launch are missing.
    """
    launched = _launched(ops, calls, windows)
    has_ops = pl.col("ops") > 0
    found = (
        launched.sort("first_ns", nulls_last=True)
        .group_by(_GROUP)
        .agg(
            pl.col("first_name").first(),
            launches=pl.len().cast(pl.Int64),
            launches_without_ops=(~has_ops).sum(),
            ops=pl.col("ops").sum(),
            ops_per_launch=pl.col("ops").filter(has_ops).median(),
            span_median_ns=pl.col("span_ns").median(),
            busy_median_ns=pl.col("busy_ns").median(),
            gap_share=1 - pl.col("busy_ns").sum() / _positive(pl.col("span_ns").sum()),
            call_median_ns=pl.col("call_ns").median(),
            first_start_ns=pl.col("first_ns").first(),
            total_ns=pl.col("busy_ns").sum(),
        )
        .sort(
            "process_id",
            -pl.col("total_ns"),
            -pl.col("launches"),
            "first_start_ns",
            "graph_key",
            nulls_last=True,
        )
    )
    return GRAPHS.conform(found.drop("sequence", "total_ns"))


def _positive(value: pl.Expr) -> pl.Expr:
    return pl.when(value > 0).then(value)


def _launched(ops: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per graph launch of the window with its identity and its lengths."""
    called = calls.filter(pl.col("kind") == "graph_launch").select(
        pl.col("call_id").alias("graph_launch_id"),
        pl.col("process_id").alias("calling_process"),
        "graph_exec_key",
        "start_ns",
        "end_ns",
        call_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    recorded = _recorded(ops)
    without = called.join(recorded, on="graph_launch_id", how="anti")
    with_ops = recorded.join(called, on="graph_launch_id", how="left")
    launched = pl.concat(
        [starting_inside(with_ops, windows, "first_ns"), overlapping_host(without, windows)],
        how="diagonal",
    )
    by_key, by_id = pl.col("graph_exec_key").is_not_null(), pl.col("graph_exec_id").is_not_null()
    by_sequence = pl.col("ops").is_not_null() & ~by_key & ~by_id
    return launched.with_columns(
        pl.coalesce("process_id", "calling_process").alias("process_id"),
        pl.col("ops").fill_null(0),
        found_by=pl.when(by_key)
        .then(pl.lit("exec-key"))
        .when(by_id)
        .then(pl.lit("exec-id"))
        .when(by_sequence)
        .then(pl.lit("sequence"))
        .otherwise(pl.lit("none")),
        graph_key=pl.coalesce("graph_exec_key", "graph_exec_id"),
        sequence=pl.when(by_sequence).then(pl.struct("ops", "names")),
    )


def _recorded(ops: pl.DataFrame) -> pl.DataFrame:
    """Return a row per launch that has ops: identity of its graph, first op, lengths."""
    work = ops.filter(pl.col("graph_launch_id").is_not_null() & (pl.col("kind") != "barrier"))
    by = "graph_launch_id"
    islands = union(work.select(by, "start_ns", "end_ns"), [by]).lazy()
    busy = islands.group_by(by).agg(busy_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    return (
        work.lazy()
        .select(
            by,
            "process_id",
            "device_id",
            "name",
            "graph_exec_id",
            "start_ns",
            "end_ns",
            # Categories have one number each within a frame; a sum of hashes knows no order.
            names=pl.col("name").to_physical().hash(),
        )
        .sort("start_ns")
        .group_by(by)
        .agg(
            pl.col("process_id", "device_id", "graph_exec_id").first(),
            pl.col("names").sum(),
            first_name=pl.col("name").first(),
            ops=pl.len(),
            first_ns=pl.col("start_ns").first(),
            span_ns=pl.col("end_ns").max() - pl.col("start_ns").first(),
        )
        .join(busy, on=by, how="left")
        .with_columns(pl.col("busy_ns").fill_null(0))
        .collect()
    )


def caveats(ops: pl.DataFrame, calls: pl.DataFrame) -> list[Note]:
    """Say when graph launches lack their ops, which makes a busy device look idle."""
    called = calls.filter(pl.col("kind") == "graph_launch").select(graph_launch_id="call_id")
    recorded = ops.select("graph_launch_id").drop_nulls().unique()
    without = called.join(recorded, on="graph_launch_id", how="anti").height
    if not without:
        return []
    return [
        Note(
            "graphs.launches-without-ops",
            Severity.DATA_LOSS,
            f"Of {called.height} graph launches these have no recorded op: the profiler lost them "
            "or did not trace them, or recording ended before they ran. A busy device then looks "
            "idle; compare step times with and without the profiler before believing it.",
            without,
        )
    ]


ANALYSIS = Analysis(
    name="graphs",
    question="What does each graph cost per launch, and are all its ops there?",
    table=GRAPHS,
    compute=graphs,
    caveats=caveats,
)
