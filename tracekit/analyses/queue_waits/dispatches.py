"""The cadence of dispatches, of graphs and one by one, and whether a wait was pending elsewhere."""

from dataclasses import dataclass

import polars as pl

from tracekit.analyses.queue_waits.one_by_one import one_by_one
from tracekit.analyses.queue_waits.pending import Lanes
from tracekit.analyses.queue_waits.sides import LATE, OPEN, WITH, WITHOUT, sides, step_of
from tracekit.tables.rows import rows_of, starting_inside

__all__ = ["LATE", "OPEN", "WITH", "WITHOUT", "Dispatches", "measured"]
_LANE = ["launch_id", "device_id", "lane_id"]
_HASH_SEED = 1


@dataclass(frozen=True)
class Dispatches:
    """The measured dispatches of a trace.

    Attributes:
        rows: One per dispatch: `graph` (a number of `graphs`), `chain` and `place` (its position),
            `cycle`, `side` (`WITHOUT`, `WITH`, `OPEN`, `LATE`), `cadence_ns`, `kernel_ns`.
            Of a graph those that follow another of their launch in their lane, by the lane's
            sequence of names and their rank in it. Others as `one_by_one` says.
        graphs: One per graph and device, and one per lane of kernels launched one by one: `graph`,
            `scope`, `device_id`, `who` (the first op, or the lane); of graphs only `graph_key`,
            `signature` (equal for equal kernels in equal lanes, in any trace), `nodes`, `kernel_ns`
            (median over launches of their summed lengths).
    """

    rows: pl.DataFrame
    graphs: pl.DataFrame


def measured(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    ranges: pl.DataFrame,
    spells: pl.DataFrame,
    lanes: Lanes,
    windows: pl.DataFrame,
) -> Dispatches:
    """Return the cadence of each dispatch and the side it is on.

    A dispatch takes from the start of the op before it in its lane to its own start: the kernel
    before, and then its own dispatch, which begins as that kernel ends. It is `with` when a wait
    was pending in another lane then, `without` when none can have been in all of its cadence, else
    `open`. Only what has a recorded call is measured, of a graph or of its own: without the call no
    trace tells whether the device or the host was late.

    Args:
        ops: As in the table.
        calls: As in the table.
        ranges: Markers `tk1 step` make the cycles; launches outside are a cycle each.
        spells: `pending.spells`.
        lanes: Of the trace.
        windows: A dispatch counts where it starts inside its device's window.
    """
    of_graphs, graphs = _of_graphs(ops, calls, ranges, spells, lanes, windows)
    single = one_by_one(ops, calls, ranges, spells, lanes, windows)
    lane = ["device_id", "lane_id"]
    name = pl.when(pl.col("device_id").is_in(lanes.with_queues)).then(pl.lit("queue"))
    used = single.select(lane).unique().sort(lane).with_row_index("graph", offset=graphs.height)
    groups = used.select(
        "graph",
        "device_id",
        scope=pl.lit("kernels"),
        who=pl.format("{} {}", name.otherwise(pl.lit("stream")), "lane_id"),
    )
    numbered = single.join(used, on=lane, maintain_order="left").select(of_graphs.columns)
    return Dispatches(pl.concat([of_graphs, numbered]), pl.concat([graphs, groups], how="diagonal"))


def _of_graphs(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    ranges: pl.DataFrame,
    spells: pl.DataFrame,
    lanes: Lanes,
    windows: pl.DataFrame,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    chains = _chains(ops, lanes)
    launches = _launches(chains, calls, ranges)
    graphs, launches = _graphs(launches)
    chains = chains.join(launches, on=["launch_id", "device_id"], maintain_order="left")
    rows = _rows(chains.select("graph", "cycle", "chain", *_LANE, "starts", "ends"))
    rows = starting_inside(rows, windows, "start_ns")
    measured_rows = rows.select(
        "graph",
        "chain",
        "place",
        "cycle",
        sides(rows, spells),
        cadence_ns=pl.col("start_ns") - pl.col("before_ns"),
        kernel_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    return measured_rows, graphs


def _chains(ops: pl.DataFrame, lanes: Lanes) -> pl.DataFrame:
    """Return a row per launch and lane: its ops in order as lists, and `chain`, of their names."""
    work = ops.lazy().filter(
        pl.col("graph_launch_id").is_not_null()
        & (pl.col("kind") != "barrier")
        & pl.col("device_id").is_not_null()
    )
    rank = pl.int_range(pl.len(), dtype=pl.UInt64)
    # Odd factors keep the order of names in the sum, which wraps around.
    mixed = (pl.col("name_hash") * (2 * rank + 1)).sum()
    return (
        work.select(
            "device_id",
            "name",
            "process_id",
            "start_ns",
            "end_ns",
            "graph_exec_id",
            launch_id="graph_launch_id",
            lane_id=lanes.lane(),
            name_hash=pl.col("name").cast(pl.String).hash(_HASH_SEED),
        )
        .filter(pl.col("lane_id").is_not_null())
        .group_by(_LANE, maintain_order=True)
        .agg(
            pl.col("process_id", "name", "graph_exec_id").first(),
            chain=mixed,
            starts=pl.col("start_ns"),
            ends=pl.col("end_ns"),
            nodes=pl.len(),
            kernel_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
        .collect()
    )


def _launches(chains: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return a row per launch and device: identity of its graph, its cycle and its size."""
    launches = chains.group_by("launch_id", "device_id", maintain_order=True).agg(
        pl.col("process_id", "name", "graph_exec_id")
        .sort_by(pl.col("starts").list.first())
        .first(),
        signature=pl.col("chain").hash(_HASH_SEED).sum(),
        nodes=pl.col("nodes").sum(),
        kernel_ns=pl.col("kernel_ns").sum(),
    )
    called = rows_of(
        launches["launch_id"],
        calls.select("call_id", "thread_id", "graph_exec_key", called_ns="start_ns"),
        "call_id",
    )
    launches = launches.with_columns(called)
    return launches.with_columns(
        _cycle(launches, ranges),
        graph_key=pl.coalesce("graph_exec_key", "graph_exec_id"),
    )


def _cycle(launches: pl.DataFrame, ranges: pl.DataFrame) -> pl.Expr:
    """Return the number of the step in which each launch was called; one of its own outside."""
    # Steps have even numbers and launches odd ones.
    step = 2 * step_of(launches, ranges)
    return pl.lit(step).fill_null(2 * pl.col("launch_id") + 1).alias("cycle")


def _graphs(launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the graphs, numbered, and the launches with the number of theirs."""
    identity = ["device_id", "graph_key", "signature"]
    graphs = (
        launches.group_by(identity, maintain_order=True)
        .agg(
            pl.col("name").first().cast(pl.String).alias("who"),
            pl.col("nodes").first(),
            pl.col("kernel_ns").median(),
            pl.lit("graph").alias("scope"),
        )
        .with_row_index("graph")
    )
    numbered = launches.join(
        graphs.select("graph", *identity), on=identity, nulls_equal=True, maintain_order="left"
    )
    return graphs, numbered.select("graph", "cycle", "launch_id", "device_id")


def _rows(chains: pl.DataFrame) -> pl.DataFrame:
    """Return a row per op but the first of each chain, with what came before it."""
    place = pl.int_ranges(0, pl.col("starts").list.len(), dtype=pl.UInt32)
    return (
        chains.lazy()
        .select(
            "graph",
            "cycle",
            "chain",
            "device_id",
            "lane_id",
            place=place,
            start_ns="starts",
            end_ns="ends",
        )
        .explode("place", "start_ns", "end_ns")
        .with_columns(before_ns=pl.col("start_ns").shift(), begun_ns=pl.col("end_ns").shift())
        .filter(pl.col("place") > 0)
        .with_columns(begun_ns=pl.min_horizontal("begun_ns", "start_ns"))
        .collect()
    )
