"""Graph launches of which no op was recorded: a busy device then looks idle."""

import polars as pl

from tracekit.intervals import clip, covered_ns, total_ns, union
from tracekit.intervals.matching import nearest
from tracekit.tables.rows import rows_of
from tracekit.trust import EVERY_PART, Check, Found, Touches, any_of
from tracekit.units import Unit, format_number

_PROCESS, _STREAM = ["process_id"], ["process_id", "stream_id"]


def launches_without_ops(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    streams: pl.DataFrame,
    process_devices: pl.DataFrame,
    busy: pl.DataFrame,
    windows: pl.DataFrame,
) -> list[Found]:
    """Find, for each device, the graph launches without an op, and how busy it may be in truth.

    The missing ops ran at some time from the start of the launch call until something that comes
    after them had begun or returned: see `_done`. The device's idle time therein may be busy time.
    Where a launch does not say on which device it was, it is counted for each device of its
    process.
    """
    launches = calls.filter(pl.col("kind") == "graph_launch")
    launched = launches["call_id"].implode()
    recorded = pl.concat(
        ops.filter(pl.col(name).is_in(launched)).select(call_id=name).unique()
        for name in ("graph_launch_id", "call_id")
    )
    lost = launches.join(recorded, on="call_id", how="anti")
    if lost.is_empty():
        return []
    placed = _on_devices(launches, streams, process_devices, ops)
    places = lost.select("call_id", "process_id").join(placed, on="call_id")
    spans = placed.join(_done(lost, ops, calls, places), on="call_id")
    is_streamless = lost["stream_id"].is_null().any()
    by_device = {
        device: (start, end)
        for device, start, end in windows.drop_nulls("device_id").sort("device_id").iter_rows()
    }
    found = []
    for device, (start_ns, end_ns) in by_device.items():
        here = spans.filter(pl.col("device_id") == device).with_columns(
            end_ns=pl.col("done_ns").fill_null(end_ns).clip(upper_bound=end_ns)
        )
        here = clip(here, windows, ["device_id"])
        if here.is_empty():
            continue
        inside = placed.filter(
            (pl.col("device_id") == device)
            & pl.col("start_ns").is_between(start_ns, end_ns, closed="left")
        )
        of_all = pl.concat([inside["call_id"], here["call_id"]]).n_unique()
        found.append(
            _found(device, here, of_all, busy, end_ns - start_ns, is_streamless=is_streamless)
        )
    return found


def _on_devices(
    launches: pl.DataFrame,
    streams: pl.DataFrame,
    process_devices: pl.DataFrame,
    ops: pl.DataFrame,
) -> pl.DataFrame:
    """Return `call_id, start_ns, device_id`: the stream's device, else each of the process."""
    own = launches.join(
        streams.select("stream_id", "device_id").drop_nulls(), on="stream_id", how="inner"
    )
    used = pl.concat(
        frame.select("process_id", "device_id").drop_nulls().unique()
        for frame in (process_devices, ops)
    ).unique()
    # A process may see more devices than it uses: those on which it ran something come first.
    working = used.join(ops, on=["process_id", "device_id"], how="semi")
    idle = used.join(working, on="process_id", how="anti")
    other = launches.join(own, on="call_id", how="anti").join(
        pl.concat([working, idle]), on="process_id", how="inner"
    )
    return pl.concat(frame.select("call_id", "start_ns", "device_id") for frame in (own, other))


def _done(
    lost: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame, places: pl.DataFrame
) -> pl.DataFrame:
    """Return `call_id, done_ns`: by when the work of each launch was over, null if never shown.

    Over when an op that its stream was given after it began, or when a later synchronisation of its
    stream, of an event recorded there after it, or of the device returned. A device's sync does not
    say which, so it shows nothing of a process that uses several. Where the launch's stream is not
    known, work of the process is taken to run in the order of its calls.
    """
    has_stream = pl.col("stream_id").is_not_null()
    syncs = calls.filter(pl.col("kind").is_in(["stream_sync", "device_sync"])).select(
        "kind", *_STREAM, after_ns="start_ns", done_ns="end_ns"
    )
    of_device = syncs.filter(pl.col("kind") == "device_sync")
    of_stream = syncs.filter(pl.col("kind") == "stream_sync").drop("kind")
    ends = [
        _first_after(lost.filter(mine), later.select(*by, "after_ns", "done_ns"), by)
        for mine, by in ((has_stream, _STREAM), (~has_stream, _PROCESS))
        if lost.select(mine.any()).item()
        for later in (_started(ops, calls), of_stream, _event_syncs(calls))
    ]
    used = pl.concat(frame.select("process_id", "device_id") for frame in (ops, places))
    several = used.drop_nulls().unique().group_by(_PROCESS).len().filter(pl.col("len") > 1)
    alone = of_device.join(several, on="process_id", how="anti")
    ends.append(_first_after(lost, alone.select(*_PROCESS, "after_ns", "done_ns"), _PROCESS))
    return pl.concat(ends).group_by("call_id").agg(pl.col("done_ns").min())


def _first_after(launches: pl.DataFrame, later: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return `call_id, done_ns` of the first evidence that is given after each launch."""
    found = nearest(
        launches.select("call_id", *by, "end_ns").sort("end_ns"),
        later.drop_nulls().sort("after_ns"),
        left_on="end_ns",
        right_on="after_ns",
        by=by,
        strategy="forward",
    )
    return found.select("call_id", "done_ns")


def _started(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """An op that starts shows that what its stream was given before is over."""
    times = calls.select("call_id", "stream_id", after_ns="start_ns")
    called = rows_of(ops["call_id"], times, "call_id")
    # A branch of a graph runs on other streams than the one that it was launched on.
    own = pl.when(pl.col("graph_launch_id").is_null() & (pl.col("kind") != "barrier"))
    return ops.select(
        "process_id",
        called["stream_id"].alias("launched_on"),
        own.then("stream_id").alias("own"),
        called["after_ns"],
        done_ns="start_ns",
    ).select(
        "process_id", pl.coalesce("launched_on", "own").alias("stream_id"), "after_ns", "done_ns"
    )


def _event_syncs(calls: pl.DataFrame) -> pl.DataFrame:
    """An event shows that what its stream was given before the event's last record is over."""
    event = ["process_id", "event_key"]
    records = calls.filter(pl.col("kind") == "event_record").select(
        *event, "stream_id", after_ns="start_ns"
    )
    syncs = calls.filter(pl.col("kind") == "event_sync").select(
        *event, "start_ns", done_ns="end_ns"
    )
    paired = nearest(
        syncs.sort("start_ns"),
        records.sort("after_ns"),
        left_on="start_ns",
        right_on="after_ns",
        by=event,
    )
    return paired.select(
        "process_id",
        "stream_id",
        "after_ns",
        "done_ns",
    )


def _found(
    device_id: int,
    spans: pl.DataFrame,
    launches: int,
    busy: pl.DataFrame,
    window_ns: int,
    *,
    is_streamless: bool,
) -> Found:
    possible = union(spans, ["device_id"])
    idle_ns = total_ns(possible) - int(covered_ns(possible, busy, ["device_id"]).sum())
    busy_ns = total_ns(busy.filter(pl.col("device_id") == device_id))
    share = format_number(idle_ns / max(window_ns, 1), Unit.SHARE)
    order = " (if its process ran all work in order: streams are not known)"
    lost = spans["call_id"].n_unique()
    return Found(
        f"{lost:,} of {launches:,} graph launches have no recorded op, so the device was busy for "
        f"longer than it seems: up to {share} more of the window"
        f"{order if is_streamless else ''} seems idle right behind them; compare step times with "
        "and without the profiler",
        {
            "launches_without_ops": lost,
            "graph_launches": launches,
            "busy_at_least_ns": busy_ns,
            "busy_at_most_ns": busy_ns + idle_ns,
            "possible_busy_ns": idle_ns,
        },
        device_id,
    )


CHECK = Check(
    code="trust-graphs.launches-without-ops",
    label="graph launches without their ops",
    touches=Touches(reads=any_of("ops"), parts=EVERY_PART),
    find=launches_without_ops,
    busy_is_at_least=True,
    notes=("graphs.launches-without-ops",),
)
