"""Small Kineto events and files, written by hand."""

import json

from tracekit.formats import silent
from tracekit.formats.kineto import FORMAT

ROCM = {"schemaVersion": 1, "roctracer_version": 4.1, "baseTimeNanoseconds": 10**18}
CUDA = {"schemaVersion": 1, "cupti_version": 18, "baseTimeNanoseconds": 10**18}


def event(category, name, ts, dur, pid=100, tid=100, **arguments):
    row = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {**row, "args": arguments}


def call(name, ts, dur, correlation, category="cuda_runtime", **arguments):
    return event(category, name, ts, dur, correlation=correlation, **arguments)


def kernel(name, ts, dur, correlation, stream=7, device=0, category="kernel", **arguments):
    return event(
        category,
        name,
        ts,
        dur,
        device,
        stream,
        device=device,
        stream=stream,
        correlation=correlation,
        **arguments,
    )


def cuda_sync(kind, ts, dur, correlation, stream, **arguments):
    return event(
        "cuda_sync",
        kind,
        ts,
        dur,
        0,
        stream,
        cuda_sync_kind=kind,
        stream=stream,
        correlation=correlation,
        device=0,
        **arguments,
    )


def read_events(folder, *events, **metadata):
    """Write events as a Kineto file and read it."""
    path = folder / "trace.json"
    path.write_text(json.dumps({**metadata, "traceEvents": events}))
    return FORMAT.read(path, silent)


def codes(trace):
    return {note.code: note.count for note in trace.notes}


def rows(trace, table, *columns):
    return trace.table(table).select(*columns).rows()
