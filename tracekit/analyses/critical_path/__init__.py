"""critical-path: what the chain of waiting that ends with a step's last op consists of."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.analyses.critical_path.links import SEGMENT_KINDS, linked
from tracekit.analyses.critical_path.walk import last_ops, segments
from tracekit.cycles import cycles, cycles_inside
from tracekit.idle_time.blocking import blocking_calls, with_unknown
from tracekit.idle_time.gaps import submitted_ops
from tracekit.idle_time.under import range_steps
from tracekit.idle_time.unseen import unseen
from tracekit.intervals import intersect, subtract
from tracekit.tables import Column, Table, enum_column, id_column, text_column
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit, format_number

# The kind of step of a process without any.
WHOLE = "whole trace"
# Below this share of the steps' length, what paths leave out at their end is not worth a word.
MIN_OFF_SHARE = 0.1
_KINDS_NAMED = 3

CRITICAL_PATH = Table(
    "critical-path",
    "one thing on the critical paths of one kind of step, of one process and device",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        id_column("device_id", "device", "The device of the steps' last ops.", narrow=True),
        text_column(
            "step_kind",
            f"As in steps, else the step's marker or graph; {WHOLE} where there are no steps.",
        ),
        enum_column(
            "segment",
            SEGMENT_KINDS,
            "What it is; unknown where the trace does not show what was waited for.",
        ),
        text_column("name", "Kernel, copy, API call or range; counting numbers become *."),
        Column("steps", pl.Int64(), "Steps of the kind that have a path.", Unit.COUNT),
        Column("steps_with", pl.Int64(), "Of them, with this on the path.", Unit.COUNT),
        Column("total_ns", pl.Int64(), "Its time on the paths of all steps.", Unit.DURATION),
        Column("path_share", pl.Float64(), "Its share of the paths' length.", Unit.SHARE),
        Column(
            "step_median_ns",
            pl.Float64(),
            "Median over the steps, 0 in a step without it.",
            Unit.DURATION,
        ),
    ),
)
_STEP_KIND = ["process_id", "device_id", "step_kind"]
_SEGMENT = [*_STEP_KIND, "segment", "name"]
_LENGTH = pl.col("end_ns") - pl.col("start_ns")


def critical_path(
    ranges: pl.DataFrame,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    marks: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return what the critical paths of the steps consist of, by kind of step.

    A path begins where its step begins on the host and ends with the last op that the step
    submitted to the device, and goes back from there. An op waited for the last to finish of: the
    op before it in its stream (inside a graph launch: in that launch), the work that an event wait
    of its stream waited for, and its launch call. From a launch call the path goes back on the
    host's thread to the last blocking call that device work released, and on from that work, or to
    the beginning of the step. Between what was waited for and the op lie `dispatch` (same stream),
    `hand-over` (event wait) or `launch-latency` (host). Lengths add up to the path's.

    With overlap scheduling a step begins while the device still runs the step before: that part is
    on its path too, so paths of neighbouring steps overlap in time. What the host does in a step
    after that last op is on none.

    Args:
        ranges: The `ranges` table.
        ops: The `ops` table; barriers and ops of no length do not count.
        calls: The `calls` table.
        copies: The `copies` table.
        waits: The `waits` table.
        marks: The `marks` table, for waits whose call is lost.
        windows: The row without a device is the host's; steps wholly inside count.

    Returns:
        `CRITICAL_PATH`, by process and device; the kind of step whose paths are longest in all
        comes first, and within it what takes the most.

    Source: walking back over the latest predecessors, as in Yang and Miller, "Critical path
    analysis for the execution of parallel and distributed programs" (ICDCS 1988).

    Cannot tell dependencies that a trace does not record: waits on ROCm in Kineto files, hand-overs
    between host threads, implicit rules of the null stream. Unknown is what lies behind a call that
    is lost, or whose op is, and may have held the host. Time between an op and what held it
    that is too long to be dispatch (0.1 ms), or in which an event wait of which the trace says
    nothing may have held it, is unknown. Shortening what is on the path need not
    shorten the step by as much: another chain may be almost as long.
    """
    paths, found = step_paths(ranges, ops, calls, copies, waits, marks, windows)
    if paths.is_empty():
        return CRITICAL_PATH.empty()
    return CRITICAL_PATH.conform(_by_kind(paths, found))


def _by_kind(paths: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Return the segments of the paths summed up: most time first, of kinds and within each."""
    numbered = paths.select(*_STEP_KIND, path=pl.int_range(pl.len(), dtype=pl.Int64))
    whole = (
        paths.with_columns(length=pl.col("path_end_ns") - pl.col("start_ns"))
        .group_by(_STEP_KIND)
        .agg(steps=pl.len(), whole_ns=pl.col("length").sum())
    )
    per_step = (
        found.rename({"kind": "segment"})
        .group_by("path", "segment", "name")
        .agg(total_ns=_LENGTH.sum())
        .join(numbered, on="path")
        .join(whole, on=_STEP_KIND, nulls_equal=True)
    )
    rows = per_step.group_by(_SEGMENT).agg(
        pl.col("steps", "whole_ns").first(),
        pl.col("total_ns").sum(),
        steps_with=pl.len(),
        path_share=pl.col("total_ns").sum() / pl.col("whole_ns").first(),
        step_median_ns=_median_with_zeros("total_ns", pl.col("steps").first()),
    )
    ordered = rows.sort(
        "process_id",
        "device_id",
        -pl.col("whole_ns"),
        "step_kind",
        -pl.col("total_ns"),
        "segment",
        "name",
        nulls_last=True,
    )
    return ordered.drop("whole_ns")


def step_paths(
    ranges: pl.DataFrame,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    marks: pl.DataFrame,
    windows: pl.DataFrame,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the paths, one per step and device it gave work, and their segments.

    Args: As `critical_path`.

    Returns:
        `process_id, device_id, step_kind, start_ns, path_end_ns` and what else names the step; and
        `walk.SEGMENTS` whose `path` is the row of the first, tiling each path.
    """
    submitted = submitted_ops(ops, calls)
    steps = _steps(cycles(ranges, ops, calls), submitted, windows)
    missing = unseen(ops, calls, marks, ranges)
    blockers = with_unknown(blocking_calls(ops, calls, copies), calls, missing)
    nodes = linked(submitted, calls, waits)
    del submitted
    paths = last_ops(steps, nodes)
    found = segments(paths, nodes, calls, waits, blockers)
    del nodes
    on_host = found["kind"] == "host-other"
    host = found.filter(on_host)
    named = range_steps(ranges if host.height else ranges.clear())
    thread = ["process_id", "thread_id"]
    under = intersect(host.drop("kind", "name"), named, thread).select(
        pl.lit("host-range", found.schema["kind"]).alias("kind"),
        pl.all().exclude("range"),
        name="range",
    )
    parts = [found.filter(~on_host), under, subtract(host, named, thread)]
    return paths, pl.concat([part.select(found.columns) for part in parts])


def _steps(found: pl.DataFrame, submitted: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps by number with their `step_kind`; a process without any is one step."""
    named = _named(found)
    marked = found["process_id"].unique().implode()
    whole = (
        submitted.filter(~pl.col("process_id").is_in(marked, nulls_equal=True))
        .group_by("process_id", maintain_order=True)
        .agg(
            start_ns=pl.min_horizontal("call_start_ns", "start_ns").min(),
            end_ns=pl.col("end_ns").max(),
        )
        .with_columns(thread_id=pl.lit(None, pl.Int64), step_kind=pl.lit(WHOLE))
    )
    columns = ["process_id", "thread_id", "start_ns", "end_ns", "step_kind"]
    host = windows.filter(pl.col("device_id").is_null()).select("start_ns", "end_ns").head(1)
    first_ns, last_ns = host.row(0) if host.height else (None, None)
    # An unknown bound is no bound, and neither minimum nor maximum minds it.
    cut = whole.with_columns(
        start_ns=pl.max_horizontal("start_ns", pl.lit(first_ns, pl.Int64)),
        end_ns=pl.min_horizontal("end_ns", pl.lit(last_ns, pl.Int64)),
    )
    parts = [part.select(columns) for part in (cycles_inside(named, windows), cut)]
    return pl.concat(parts).with_row_index("step_row")


def _named(found: pl.DataFrame) -> pl.DataFrame:
    """Return the cycles with their `step_kind`."""
    by_profiler = pl.when(pl.col("found_by") == "profiler-step").then(pl.lit("ProfilerStep"))
    return found.with_columns(step_kind=pl.coalesce("kind", by_profiler, "label"))


def _median_with_zeros(name: str, steps: pl.Expr) -> pl.Expr:
    """Return the median of a column over `steps` values of which the missing ones are 0."""
    ordered, zeros = pl.col(name).sort(), steps.cast(pl.Int64) - pl.len().cast(pl.Int64)

    def value(place: pl.Expr) -> pl.Expr:
        there = ordered.get((place - zeros).clip(lower_bound=0))
        return pl.when(place >= zeros).then(there).otherwise(0)

    middle = steps.cast(pl.Int64)
    return (value((middle - 1) // 2) + value(middle // 2)) / 2


def caveats(
    ranges: pl.DataFrame,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    waits: pl.DataFrame,
    windows: pl.DataFrame,
    result: pl.DataFrame,
) -> list[Note]:
    """Say where the evidence ends, no steps, no calls, no waits, and where paths end early."""
    found = cycles(ranges, ops, calls)
    if found.is_empty():
        message = "No steps were found, so the path is of the whole trace (see steps)."
        return [Note("critical-path.no-steps", Severity.NOTICE, message)]
    notes = _off_the_paths(cycles_inside(found, windows), result)
    if calls.is_empty():
        message = (
            "Without host calls a path follows the order of each stream; the time between is "
            "unknown, and whether another chain was longer too."
        )
        notes.append(Note("critical-path.no-calls", Severity.NOTICE, message))
    lanes = ops.select("device_id", "stream_id", "queue_id").unique()
    if waits.is_empty() and lanes["device_id"].is_duplicated().any():
        message = (
            "The trace records no waits between streams: where a path should cross to another "
            "stream it stays in its own, and time without a reason that shows is unknown."
        )
        notes.append(Note("critical-path.no-waits", Severity.NOTICE, message))
    return notes


def _off_the_paths(found: pl.DataFrame, result: pl.DataFrame) -> list[Note]:
    """Say of which kinds of step the paths are much shorter than the steps, and by how much.

    Of several devices the one with the longest paths counts. A path that goes on after its step may
    hide one that ends early, so it is at least so much.
    """
    kind = ["process_id", "step_kind"]
    walls = _named(found).group_by(kind).agg(wall_ns=_LENGTH.sum())
    paths = result.group_by(_STEP_KIND).agg(pl.col("total_ns").sum())
    longest = paths.group_by(kind).agg(pl.col("total_ns").max())
    short = (
        walls.join(longest, on=kind, nulls_equal=True)
        .with_columns(off_ns=pl.col("wall_ns") - pl.col("total_ns"))
        .filter(pl.col("off_ns") >= MIN_OFF_SHARE * pl.col("wall_ns"))
        .sort("off_ns", descending=True)
    )
    if short.is_empty():
        return []
    off, wall = (
        format_number(int(short[name].sum()), Unit.DURATION) for name in ("off_ns", "wall_ns")
    )
    kinds = short["step_kind"].unique(maintain_order=True).to_list()
    named = ", ".join(kinds[:_KINDS_NAMED]) + (", …" if len(kinds) > _KINDS_NAMED else "")
    message = (
        f"Paths end with the last op that a step submitted: of {wall} of steps ({named}) at least "
        f"{off} came after that, on the host, and are on no path (see host-syncs and idle-gaps)."
    )
    return [Note("critical-path.host-after", Severity.NOTICE, message)]


ANALYSIS = Analysis(
    name="critical-path",
    question="What does the chain consist of that decides how long a step takes?",
    table=CRITICAL_PATH,
    compute=critical_path,
    caveats=caveats,
)
