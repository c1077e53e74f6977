"""From the raw columns of a recording to the canonical tables."""

from collections.abc import Mapping

import polars as pl

from tracekit.formats.kineto import identity, notes
from tracekit.formats.kineto.activity import (
    calls_of,
    copies_of,
    one_call_each,
    ops_of,
    with_streams,
)
from tracekit.formats.kineto.messages import messages_of
from tracekit.formats.kineto.ranges import ranges_of
from tracekit.formats.kineto.recording import Recording
from tracekit.formats.kineto.sections import DEVICE_WORK, HOST_CALLS, SYNCHRONISATION
from tracekit.formats.kineto.waits import stream_handles, waits_of, with_recording_streams
from tracekit.tables.catalog import TABLES
from tracekit.tables.lanes import stream_queues
from tracekit.trace import Trace

_DEVICE = ["process_id", "device_id"]
_CANONICAL = {"tid": "thread_id", "correlation": "correlation_id", "graph_id": "graph_exec_id"}


def trace_of(recording: Recording, format_name: str) -> Trace:
    """Return the canonical tables of a recording, with notes on what it cannot say."""
    source, platform = str(recording.path), identity.platform(recording)
    details, ranges, processes = identity.with_processes(recording)
    details = identity.with_lanes(details, platform)
    devices = identity.devices(details, platform, recording.metadata)
    details = details.join(
        devices.select(*_DEVICE, "index"),
        on=["process_id", "index"],
        how="left",
        nulls_equal=True,
    )
    streams = identity.lanes_of(stream_handles(details, devices), ("handle",), "stream")
    queues = identity.lanes_of(details, ("queue_handle",), "queue")
    details = _with_lane_ids(details, streams, queues)

    calls = calls_of(details)
    behind = one_call_each(calls)
    ops = ops_of(details, behind)
    synced = details.filter(pl.col("section").is_in(SYNCHRONISATION))
    synced = with_recording_streams(synced, details, streams)
    calls = with_streams(calls, ops, synced)
    first = calls.group_by("process_id").agg(first_correlation=pl.col("correlation").min())
    waits = waits_of(synced, behind, ops)
    host_ranges, dropped = ranges_of(ranges, calls)
    local_index = pl.lit(None) if platform.counts_nodes else pl.col("index")
    frames = {
        "processes": processes.with_columns(
            source=pl.lit(source),
            collected=pl.lit(_collected(details, ranges), pl.List(pl.String)),
        ),
        "devices": devices,
        "process_devices": devices.with_columns(local_index=local_index),
        "queues": queues,
        "streams": streams,
        "stream_queues": stream_queues(ops),
        "ops": ops,
        "calls": calls,
        "copies": copies_of(calls, ops),
        "waits": waits,
        "ranges": host_ranges,
        "messages": messages_of(ops),
    }
    return Trace.from_frames(
        _declared(frames),
        notes=[
            *notes.file_notes(recording),
            *notes.platform_notes(
                platform, ops, calls, source, has_synchronisation=len(synced) > 0
            ),
            *notes.op_notes(ops, first, source),
            *notes.alone_notes(calls, source),
            *notes.overlap_notes(ops, source),
            *notes.frame_notes(dropped + recording.counts["short_frames"], source),
        ],
        sources=[source],
        format_name=format_name,
    )


def _with_lane_ids(
    details: pl.DataFrame, streams: pl.DataFrame, queues: pl.DataFrame
) -> pl.DataFrame:
    lanes = (
        (streams, "stream_handle", "stream_id"),
        (queues, "queue_handle", "queue_id"),
    )
    for frame, handle, name in lanes:
        ids = frame.select(*_DEVICE, pl.first().alias(name), pl.col("handle").alias(handle))
        details = details.join(ids, on=[*_DEVICE, handle], how="left", nulls_equal=True)
    return details


def _collected(details: pl.DataFrame, ranges: pl.DataFrame) -> list[str]:
    """Return the kinds of record that this file holds any of."""
    sections = set(details["section"].unique().to_list())
    has = {
        "ops": bool(sections.intersection(DEVICE_WORK)),
        "calls": bool(sections.intersection(HOST_CALLS)),
        "copies": "copy" in sections,
        "waits": bool(sections.intersection(SYNCHRONISATION)),
        "ranges": len(ranges) > 0,
        "graphs": details["graph_node"].is_not_null().any(),
    }
    return [kind for kind, is_there in has.items() if is_there]


def _declared(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return each frame's declared columns only, under their canonical names."""
    renamed = {name: frame.rename(_CANONICAL, strict=False) for name, frame in frames.items()}
    return {
        name: frame.select(column for column in TABLES[name].schema if column in frame.columns)
        for name, frame in renamed.items()
    }
