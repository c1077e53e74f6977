"""The critical paths of all steps at once: from each step's last op back along the links."""

import polars as pl

from tracekit.analyses.critical_path.links import SEGMENT
from tracekit.intervals.places import group_base

_THREAD = ["process_id", "thread_id"]
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


def last_ops(steps: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """Return the op that ends last, of those each step submitted, on each device.

    An op is of the step in which its call began: the step of the call's own thread if that thread
    has steps, else any of the process. Where no op of a process has a recorded call, an op is of
    the step in which it started.

    Args:
        steps: `step_row, process_id, thread_id, start_ns, end_ns`, and whatever is to be kept; the
            thread is null for a step of the whole process.
        links: `linked`.

    Returns:
        `steps`' columns without `end_ns`, then `device_id, at` (row of `links`) and `path_end_ns`;
        steps without ops are not there.
    """
    called = pl.col("call_start_ns").is_not_null()
    moments = (
        links.with_row_index("at")
        .filter(called | ~called.any().over("process_id"))
        .select(
            *_THREAD,
            pl.col("at").cast(pl.Int64),
            "device_id",
            "rank",
            moment=pl.coalesce("call_start_ns", "start_ns"),
            path_end_ns="end_ns",
        )
        .sort("moment")
    )
    ordered = steps.sort("start_ns")
    threads = steps.select(_THREAD).drop_nulls().unique()
    own = moments.join(threads, on=_THREAD, how="semi", maintain_order="left")
    others = moments.join(threads, on=_THREAD, how="anti", maintain_order="left")
    found = [
        _last_begun(own, ordered, _THREAD).drop("thread_id"),
        _last_begun(others.drop("thread_id"), ordered.drop("thread_id"), ["process_id"]),
    ]
    return (
        pl.concat(found, how="diagonal")
        .filter(pl.col("moment") < pl.col("end_ns"), pl.col("path_end_ns") > pl.col("start_ns"))
        .sort("path_end_ns", "rank")
        .unique(["step_row", "device_id"], keep="last", maintain_order=True)
        .drop("moment", "rank", "end_ns")
    )


def _last_begun(moments: pl.DataFrame, steps: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    return moments.join_asof(
        steps,
        left_on="moment",
        right_on="start_ns",
        by=by,
        coalesce=False,
        check_sortedness=False,
    )


def segments(paths: pl.DataFrame, links: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return what each path consists of, every nanosecond from its start to its end once.

    Args:
        paths: `start_ns, path_end_ns, at`; a path's number is its row.
        links: `linked`.
        calls: `call_id, name`.

    Returns:
        `SEGMENTS`, in no order. Host time is one segment of kind `host-other` per submission, with
        its process and thread.

    Cost: a round over all paths together for each time that a path changes chains, which is about
    as often as an op was not the only one to wait for another; then rows for the ops on the paths.
    """
    on_path = _visited(paths, links)
    rows = links.select(pl.all().gather(on_path["at"])).with_columns(
        path=on_path["path"],
        op_until_ns=on_path["until_ns"],
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
    last = rows.filter(pl.col("pred").is_null() & pl.col("until_ns").is_not_null())
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


def _visited(paths: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """Return `path, at, until_ns`: the ops on each path and until when each is on it."""
    start = pl.col("start_ns")
    low, high = links.select(low=start.min().fill_null(0), high=start.max().fill_null(0)).row(0)
    base = group_base(links["chain"], low - 1, high)
    places = base + links["start_ns"]
    rows = pl.int_range(links.height, dtype=pl.Int64, eager=True)
    is_head = links["chain"].ne_missing(links["chain"].shift(1))
    heads = pl.select(pl.when(is_head).then(rows).forward_fill()).to_series()
    active = paths.select(
        "at",
        path=pl.int_range(pl.len(), dtype=pl.Int64),
        until_ns="path_end_ns",
        from_ns="start_ns",
    )
    runs = [active.clear().with_columns(low="at")]
    while active.height:
        at = active["at"]
        begin = active["from_ns"].clip(low - 1, high)
        # The last op of the chain that had started when the step began ends the run.
        begun = places.search_sorted(base.gather(at) + begin, side="right").cast(pl.Int64) - 1
        lowest = active.select(
            pl.min_horizontal("at", pl.max_horizontal(heads.gather(at), begun)).alias("low")
        ).to_series()
        runs.append(active.with_columns(lowest))
        active = (
            active.with_columns(
                at=links["pred"].gather(lowest),
                until_ns=links["until_ns"].gather(lowest),
                began=links["start_ns"].gather(lowest),
            )
            .filter(
                pl.col("at").is_not_null(),
                pl.col("began") > pl.col("from_ns"),
            )
            .drop("began")
        )
    return _expanded(pl.concat(runs), links)


def _expanded(runs: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    """Return one row per op of each run; an op is on the path until its successor's link says."""
    ops = runs.with_columns(op=pl.int_ranges("low", pl.col("at") + 1)).explode("op")
    beyond = links["until_ns"].shift(-1).gather(ops["op"])
    return ops.with_columns(beyond=beyond).select(
        "path",
        at="op",
        until_ns=pl.when(pl.col("op") == pl.col("at")).then("until_ns").otherwise("beyond"),
    )
