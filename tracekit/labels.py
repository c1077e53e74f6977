"""Names for people of what has an id: devices, queues, streams and processes."""

import polars as pl

from tracekit.trace import Trace


def labels(trace: Trace) -> dict[str, dict[int, str]]:
    """Return names for people by key space and id: devices, queues, streams and processes."""
    names = {
        "device": ("devices", pl.coalesce("name", "arch")),
        "queue": ("queues", pl.coalesce("name", _handle("queue_id"))),
        "stream": ("streams", pl.coalesce("name", _handle("stream_id"))),
        "process": (
            "processes",
            pl.coalesce(pl.format("rank {}", "rank"), pl.format("pid {}", "pid")),
        ),
    }
    return {
        space: {
            row_id: name
            for row_id, name in trace.table(table).select(f"{space}_id", name).iter_rows()
            if row_id is not None and name
        }
        for space, (table, name) in names.items()
    }


def _handle(id_name: str) -> pl.Expr:
    # The profiler's own number; where it repeats ours it would only take width.
    differs = pl.col("handle") != pl.col(id_name)
    return pl.when(differs).then(pl.format("#{}", pl.col("handle")))
