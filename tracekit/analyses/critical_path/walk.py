"""The critical paths of all steps: from each step's last op back along the links."""

from array import array

import numpy as np
import polars as pl

from tracekit.analyses.critical_path.behind import Released, released_calls
from tracekit.analyses.critical_path.links import SEGMENT, TO_HOST, explained, links_back
from tracekit.intervals.matching import nearest

# Ops that are placed in steps at a time: rows are wide until each step has its last one.
_OPS_AT_ONCE = 500_000
_THREAD = ["process_id", "thread_id"]
_EXPLAINED = [
    *_THREAD,
    "device_id",
    "kind",
    "name",
    "call_id",
    "start_ns",
    "end_ns",
    "call_start_ns",
    "call_end_ns",
    "order_ns",
    "wait_ns",
    "is_within",
    "is_queued_before",
]
SEGMENTS = pl.Schema(
    {
        "path": pl.Int64(),
        "kind": SEGMENT,
        "name": pl.String(),
        "process_id": pl.Int32(),
        "thread_id": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)


def last_ops(steps: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the op that ends last, of those each step submitted, on each device.

    An op is of the step in which its call began: the step of the call's own thread if that thread
    has steps, else any of the process. Where no op of a process has a recorded call, an op is of
    the step in which it started.

    Args:
        steps: `step_row, process_id, thread_id, start_ns, end_ns`, and whatever is to be kept; the
            thread is null for a step of the whole process.
        nodes: `links.linked`.

    Returns:
        `steps`' columns without `thread_id` and `end_ns`, then `device_id, at` (row of `nodes`) and
        `path_end_ns`, by the latter; steps without ops are not there.
    """
    called = pl.col("call_start_ns").is_not_null()
    callers = nodes.select(pl.col("process_id").filter(called).unique()).to_series().implode()
    moments = nodes.select(
        *_THREAD,
        "device_id",
        at=pl.int_range(pl.len(), dtype=pl.get_index_type()),
        moment=pl.coalesce("call_start_ns", "start_ns"),
        path_end_ns="end_ns",
        counts=called | ~pl.col("process_id").is_in(callers, nulls_equal=True),
    )
    begun = steps.select("step_row", *_THREAD, begin_ns="start_ns", until_ns="end_ns")
    begun = begun.sort("begin_ns")
    last = [_last_of_steps(some, begun) for some in moments.iter_slices(_OPS_AT_ONCE)]
    none = _last_of_steps(moments.clear(), begun)
    found = _latest(pl.concat([none, *last]))
    return steps.drop("thread_id", "end_ns").join(found, on="step_row").sort("path_end_ns", "at")


def _last_of_steps(moments: pl.DataFrame, begun: pl.DataFrame) -> pl.DataFrame:
    """Return `step_row, device_id, at, path_end_ns`: the last of some ops in each step."""
    counted = moments.filter("counts").drop("counts").sort("moment")
    threads = begun.select(_THREAD).drop_nulls().unique()
    own = counted.join(threads, on=_THREAD, how="semi", maintain_order="left")
    others = counted.join(threads, on=_THREAD, how="anti", maintain_order="left")
    found = [
        _last_begun(own, begun, _THREAD),
        _last_begun(others.drop("thread_id"), begun.drop("thread_id"), ["process_id"]),
    ]
    return _latest(pl.concat(found).filter(pl.col("path_end_ns") > pl.col("begin_ns")))


def _latest(inside: pl.DataFrame) -> pl.DataFrame:
    """Return the op that ends last per step and device; of equal ones the last."""
    end = pl.col("path_end_ns")
    return inside.group_by("step_row", "device_id").agg(
        pl.col("at").filter(end == end.max()).max(), end.max()
    )


def _last_begun(moments: pl.DataFrame, begun: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return the moments that lie in a step, with its row and begin; of several the last begun."""
    found = nearest(moments, begun, left_on="moment", right_on="begin_ns", by=by)
    return found.filter(pl.col("moment") < pl.col("until_ns")).select(
        "at", "device_id", "path_end_ns", "step_row", "begin_ns"
    )


def segments(
    paths: pl.DataFrame,
    nodes: pl.DataFrame,
    calls: pl.DataFrame,
    waits: pl.DataFrame,
    blockers: pl.DataFrame,
) -> pl.DataFrame:
    """Return what each path consists of, every nanosecond from its start to its end once.

    Args:
        paths: `start_ns, path_end_ns, at`; a path's number is its row.
        nodes: `links.linked`.
        calls: The `calls` table.
        waits: The `waits` table.
        blockers: `idle_time.blocking.with_unknown`.

    Returns:
        `SEGMENTS`, in no order. Host time is one segment of kind `host-other` per submission, with
        its process and thread.

    Cost: a step per op on the paths, and rows for these; what stands behind the others is not
    looked at.
    """
    released = released_calls(nodes, blockers)
    on_path = _visited(paths, nodes, released)
    rows = nodes.select(pl.col(_EXPLAINED).gather(on_path["at"])).hstack(on_path.drop("at"))
    path = pl.col("path")
    rows = explained(rows, nodes, calls, waits, released).with_columns(
        op_until_ns=pl.when(path == path.shift(1))
        .then(pl.col("until_ns").shift(1))
        .otherwise(paths["path_end_ns"].gather(on_path["path"])),
        from_ns=paths["start_ns"].gather(on_path["path"]),
    )
    text = pl.col("name").cast(pl.String)
    launch = pl.when(pl.col("gap_kind") == "launch-latency").then(
        pl.col("launch_name").cast(pl.String)
    )
    blocked = rows.drop_nulls("blocking_call_id").join(
        calls.select(blocking_call_id="call_id", call=pl.col("name").cast(pl.String)),
        on="blocking_call_id",
        how="left",
    )
    on_host = rows.drop_nulls("host_ns")
    # Where the evidence ends. What an op before the path's start had waited for is cut off anyway.
    last = rows.filter((path != path.shift(-1)).fill_null(value=True)).drop_nulls("until_ns")
    return pl.concat(
        [
            _part(
                rows, pl.col("kind").cast(pl.String).cast(SEGMENT), "start_ns", "op_until_ns", text
            ),
            _part(rows, pl.col("gap_kind"), "gap_ns", "start_ns", launch),
            _part(on_host, _segment("host-other"), "blocked_ns", "host_ns"),
            _part(blocked, _segment("blocking-call"), "until_ns", "blocked_ns", pl.col("call")),
            _part(last, _segment("unknown"), None, "until_ns"),
        ]
    )


def _segment(kind: str) -> pl.Expr:
    return pl.lit(kind, SEGMENT)


def _part(
    rows: pl.DataFrame,
    kind: pl.Expr,
    start: str | None,
    end: str,
    name: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return segments from one column to another; an unknown start is the path's."""
    began = pl.col("from_ns") if start is None else pl.max_horizontal("from_ns", start)
    return (
        rows.select(
            "path",
            "process_id",
            "thread_id",
            kind=kind,
            name=pl.lit(None, pl.String) if name is None else name,
            start_ns=began,
            end_ns=pl.col(end),
        )
        .select(*SEGMENTS)
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )


def _visited(paths: pl.DataFrame, nodes: pl.DataFrame, released: Released) -> pl.DataFrame:
    """Return `path, at, blocker`: the ops on each path, last first, and the call behind each.

    `blocker` is a row of `released.calls`, null where the link does not lead over one.
    """
    link = links_back(nodes).to_numpy().data
    asked = nodes.select("process_id", "thread_id", "call_start_ns", "start_ns")
    # A path ends with its first op that had started when the step began: they are in that order.
    stops = nodes["start_ns"].search_sorted(paths["start_ns"], side="right")
    rows, ends, blockers = array("q"), array("q", [0]), {}
    for last, stop in zip(paths["at"], stops, strict=True):
        at = last
        while at >= 0:
            rows.append(at)
            before = link[at] if at >= stop else -1
            if before == TO_HOST:
                blocker, before = released.behind(*asked.row(at))
                blockers[len(rows) - 1] = blocker
            at = before
        ends.append(len(rows))
    unknown = pl.repeat(None, len(rows), dtype=pl.get_index_type(), eager=True)
    return pl.DataFrame(
        {
            "path": np.repeat(np.arange(paths.height), np.diff(ends)),
            "at": np.array(rows, dtype=np.int64),
            "blocker": unknown.scatter(list(blockers), list(blockers.values())),
        }
    )
