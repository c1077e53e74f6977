"""One capture, read whole: the parts in the order in which they need each other."""

import polars as pl

from tracekit.formats.rocpd.arguments import read_arguments
from tracekit.formats.rocpd.copies import copies_frame
from tracekit.formats.rocpd.counters import counters_frame
from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.events import Events, Step, Texts, read_events
from tracekit.formats.rocpd.identity import read_identity
from tracekit.formats.rocpd.joins import hsa_parents, with_calls, with_streams
from tracekit.formats.rocpd.losses import Losses, losses_notes
from tracekit.formats.rocpd.ops import read_device_rows
from tracekit.formats.rocpd.places import queues_frame, streams_frame
from tracekit.formats.rocpd.recorded_waits import recorded_waits
from tracekit.formats.rocpd.regions import ranges_frame, read_host_rows
from tracekit.formats.rocpd.row_index import RowIndex, looked_up
from tracekit.formats.rocpd.structure import refuse_foreign_schema
from tracekit.formats.rocpd.waits import inferred_waits, with_event_keys
from tracekit.tables.lanes import stream_queues
from tracekit.trace import Trace

# Tables with a row per event, which take the time.
LARGE_TABLES = (
    "rocpd_event",
    "rocpd_region",
    "rocpd_kernel_dispatch",
    "rocpd_memory_copy",
    "rocpd_arg",
)


def read_capture(capture: Capture, format_name: str, step: Step) -> Trace:
    """Read one capture as a trace.

    Raises:
        UnreadableTrace: Its schema is of another major version or lacks what no answer can do
            without, or a table is damaged.
    """
    refuse_foreign_schema(capture)
    identity = read_identity(capture)
    texts = Texts.read(capture)
    events = read_events(capture, step)
    host = read_host_rows(capture, identity, texts, events, step)
    device = read_device_rows(capture, identity, texts, events, step)

    ops = with_calls(device.ops, host.calls, hsa_parents(capture, texts, host.calls))
    ops = _with_graph_launches(capture, events, ops)
    arguments = read_arguments(capture, host.calls, step)
    calls = with_streams(host.calls, ops, arguments, identity.streams)
    calls = with_event_keys(calls, arguments)
    waits = recorded_waits(capture, identity, texts, events, calls) or inferred_waits(calls, ops)
    counters, unplaced = counters_frame(capture, identity, ops)

    frames = {
        "devices": identity.devices,
        "process_devices": identity.process_devices,
        "queues": queues_frame(identity, ops),
        "streams": streams_frame(identity, ops),
        "stream_queues": stream_queues(ops),
        "ops": ops.drop("event_id"),
        "calls": calls.drop("event_id", "origin"),
        "copies": copies_frame(calls, ops, device.memory_copies, arguments),
        "waits": waits.frame,
        "ranges": ranges_frame(capture, texts, host.ranges),
        "counters": counters,
    }
    frames["processes"] = _with_evident(identity.processes, frames)
    losses = Losses(
        clamped=host.clamped + device.clamped,
        duplicates=device.duplicates,
        untimed=host.untimed + device.untimed,
        deviceless=device.deviceless,
        unnamed=host.unnamed,
        skipped=host.skipped,
        unpaired=waits.unpaired,
        captured=waits.captured,
        unplaced_counters=unplaced,
    )
    return Trace.from_frames(
        frames,
        notes=losses_notes(capture, frames, losses),
        sources=[str(capture.path)],
        format_name=format_name,
    )


def _with_graph_launches(capture: Capture, events: Events, ops: pl.DataFrame) -> pl.DataFrame:
    """Fill in which executable graph an op is from, where only the launch was recorded with it."""
    parts = list(capture.slices("rocpd_graph_launch", ["event_id", "graph_exec_id"]))
    if not parts:
        return ops
    launches = pl.concat(parts).filter(pl.col("graph_exec_id") != 0)
    stacks = events.stack_of(launches["event_id"])
    launched = looked_up(RowIndex(stacks), ops["correlation_id"], launches["graph_exec_id"])
    return ops.with_columns(pl.coalesce("graph_exec_id", launched.alias("launched")))


def _with_evident(processes: pl.DataFrame, frames: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Add to the kinds switched on those of which there are rows: counters bring dispatches too."""
    rows = {name: frames[name].height for name in ("ops", "calls", "ranges")}
    # Blit kernels have a queue: only rows of a copy engine show that copies were traced.
    engine_copies = frames["ops"].filter(pl.col("queue_id").is_null(), pl.col("kind") == "copy")
    rows["copies"] = engine_copies.height
    rows["waits"] = int((frames["waits"]["evidence"] == "recorded").sum())
    rows["graphs"] = frames["ops"]["graph_exec_id"].count()
    evident = [kind for kind, count in rows.items() if count]
    switched_on = processes["collected"].to_list()
    both = [kinds and list(dict.fromkeys([*kinds, *evident])) for kinds in switched_on]
    return processes.with_columns(collected=pl.Series(both, dtype=pl.List(pl.String)))
