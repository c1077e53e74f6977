"""Where an engine's steps begin and end on the host: four rules, the surest first."""

from collections.abc import Callable

import polars as pl

from tracekit.intervals import starts_inside, with_parents
from tracekit.remembered import remembered

RULES = ("tk1-step", "profiler-step", "marker", "graph")
MIN_RECURRENCES = 3
# A marker that holds half of the launches or less is not the engine's step.
MIN_COVERAGE = 0.5

CYCLES = pl.Schema(
    {
        "process_id": pl.Int32(),
        "thread_id": pl.Int64(),
        "found_by": pl.Enum(RULES),
        "step": pl.Int64(),
        "label": pl.String(),
        "kind": pl.String(),
        "batch_size": pl.Int64(),
        "tokens": pl.Int64(),
        "waiting": pl.Int64(),
        "free": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)
_THREAD = ("process_id", "thread_id")
# What more digits say fits no 64 bits, and is no number of the grammar (docs/markers.md).
_NUMBER = "([0-9]{1,18})"
# Columns that a step marker gives, and the key of each.
_COUNTS = {"batch_size": "bs", "tokens": "tokens", "waiting": "waiting", "free": "free"}


@remembered
def cycles(ranges: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of each process, `CYCLES`, by the first rule that finds any there.

    1. `tk1-step`: markers `tk1 step N kind=verify bs=8 tokens=26 waiting=0 free=2`. A range is its
       step; an instant opens a step that the thread's next instant ends, so the last has none.
    2. `profiler-step`: ranges `ProfilerStep#N`.
    3. `marker`: ranges of one text (digits aside) that recur on one thread, lie in no other marker
       that recurs, and hold more than half of the calls that launched ops; of several texts the one
       that holds the most, of equals the first by text.
    4. `graph`: from one launch of a graph to the thread's next of the same graph; of several graphs
       the one with the most device time, so the last launch ends a step and opens none.

    Cost: one look at each marker text; rule 4 groups the ops of graph launches.
    """
    rules: tuple[Callable[[pl.DataFrame, pl.DataFrame, pl.DataFrame], pl.DataFrame], ...] = (
        _tk1_steps,
        _profiler_steps,
        _recurring_markers,
        _recurring_graphs,
    )
    found = pl.DataFrame(schema=CYCLES)
    processes = pl.concat([frame["process_id"].unique() for frame in (ranges, calls)]).unique()
    for name, rule in zip(RULES, rules, strict=True):
        if processes.is_in(found["process_id"].unique().implode(), nulls_equal=True).all():
            break
        steps = _conformed(rule(ranges, ops, calls).with_columns(found_by=pl.lit(name)))
        new = steps.join(found, on="process_id", how="anti", nulls_equal=True)
        found = pl.concat([found, new])
    return found


def cycles_inside(found: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the cycles that lie wholly inside the host window, the row without a device."""
    host = windows.filter(pl.col("device_id").is_null())
    start_ns, end_ns = host.select("start_ns", "end_ns").row(0) if host.height else (None, None)
    if start_ns is not None:
        found = found.filter(pl.col("start_ns") >= start_ns)
    return found if end_ns is None else found.filter(pl.col("end_ns") <= end_ns)


def _conformed(steps: pl.DataFrame) -> pl.DataFrame:
    return steps.select(
        (pl.col(name) if name in steps.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in CYCLES.items()
    )


def _tk1_steps(ranges: pl.DataFrame, _ops: pl.DataFrame, _calls: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text")
    marked = ranges.filter(text.str.starts_with("tk1 step ")).select(
        *_THREAD,
        "start_ns",
        "end_ns",
        step=text.str.extract(rf"^tk1 step {_NUMBER}(?: |$)").cast(pl.Int64),
        label=text.str.strip_prefix("tk1 "),
        kind=text.str.extract(r" kind=(\S+)"),
        **{
            name: text.str.extract(rf" {key}={_NUMBER}(?: |$)").cast(pl.Int64)
            for name, key in _COUNTS.items()
        },
    )
    marked = marked.filter(pl.col("step").is_not_null())
    is_instant = pl.col("start_ns") == pl.col("end_ns")
    return pl.concat([marked.filter(~is_instant), _until_next(marked.filter(is_instant), _THREAD)])


def _until_next(points: pl.DataFrame, by: tuple[str, ...]) -> pl.DataFrame:
    """Return each row as the interval to the next row of its group; the last row vanishes."""
    ordered = points.sort(*by, "start_ns", maintain_order=True)
    following = pl.col("start_ns").shift(-1).over(by)
    return ordered.with_columns(end_ns=following).filter(pl.col("end_ns").is_not_null())


def _profiler_steps(ranges: pl.DataFrame, _ops: pl.DataFrame, _calls: pl.DataFrame) -> pl.DataFrame:
    steps = ranges.filter(
        pl.col("text").str.starts_with("ProfilerStep") & (pl.col("start_ns") < pl.col("end_ns"))
    )
    return steps.select(
        *_THREAD,
        "start_ns",
        "end_ns",
        step=pl.col("text").str.extract(rf"^ProfilerStep\s*#{_NUMBER}$").cast(pl.Int64),
        label="text",
    ).filter(pl.col("step").is_not_null())


def _recurring_markers(
    ranges: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    markers = ranges.filter((pl.col("kind") == "marker") & (pl.col("start_ns") < pl.col("end_ns")))
    if markers.is_empty():
        return pl.DataFrame(schema=CYCLES)
    pattern = ["process_id", "thread_id", "kind"]
    top = _outermost_recurring(
        markers.select(
            "range_id",
            *_THREAD,
            "start_ns",
            "end_ns",
            label="text",
            kind=pl.col("text").str.replace_all(r"\d+", "#"),
        ),
        pattern,
    )
    launching = calls.select("call_id", "process_id", "start_ns").join(
        ops.select("call_id"), on="call_id", how="semi"
    )
    total = launching.group_by("process_id").agg(total=pl.len())
    chosen = (
        top.with_columns(held=starts_inside(top, launching, ["process_id"]))
        .group_by(pattern)
        .agg(pl.len(), pl.col("held").sum())
        .join(total, on="process_id", nulls_equal=True)
        .filter(pl.col("len") >= MIN_RECURRENCES, pl.col("held") > MIN_COVERAGE * pl.col("total"))
        .sort("process_id", -pl.col("held"), "kind", "thread_id")
        .unique("process_id", keep="first", maintain_order=True)
    )
    return top.join(chosen, on=pattern, how="semi", nulls_equal=True)


def _outermost_recurring(markers: pl.DataFrame, pattern: list[str]) -> pl.DataFrame:
    """Return the markers that lie in no other, once those around them that do not recur are gone.

    One "serve forever" around all decode steps is no step and hides none. A round per level of
    such markers.
    """
    while True:
        nested = with_parents(markers, _THREAD)
        is_top = pl.col("parent_id").is_null()
        recurs = is_top.sum().over(pattern) >= MIN_RECURRENCES
        markers = nested.filter(~is_top | recurs).drop("parent_id")
        if markers.height == nested.height:
            return nested.filter(is_top)


def _recurring_graphs(
    _ranges: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    launches = calls.filter(pl.col("kind") == "graph_launch")
    if launches.is_empty():
        return pl.DataFrame(schema=CYCLES)
    recorded = (
        ops.lazy()
        .filter(pl.col("graph_launch_id").is_not_null())
        .group_by(call_id="graph_launch_id")
        .agg(
            pl.len().alias("ops"),
            pl.col("graph_exec_id").first(),
            device_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
        .collect()
    )
    graph = ["process_id", "thread_id", "label"]
    launched = (
        launches.join(recorded, on="call_id", how="left")
        .with_columns(
            label=pl.coalesce(
                pl.format("graph {}", pl.coalesce("graph_exec_key", "graph_exec_id")),
                pl.format("graph of {} ops", "ops"),
            )
        )
        .filter(pl.col("label").is_not_null())
    )
    chosen = (
        launched.group_by(graph)
        .agg(pl.len(), pl.col("device_ns").sum())
        .filter(pl.col("len") >= MIN_RECURRENCES)
        .sort("process_id", -pl.col("device_ns"), "label", "thread_id")
        .unique("process_id", keep="first", maintain_order=True)
    )
    mine = launched.join(chosen, on=graph, how="semi", nulls_equal=True)
    return _until_next(mine.select(*graph, "start_ns", "end_ns"), _THREAD)
