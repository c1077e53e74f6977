"""Who did the work: processes, devices, queues, streams."""

import polars as pl

from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.units import Unit

_PROCESS = id_column("process_id", "process", "The process of one file.", narrow=True)
_DEVICE = id_column("device_id", "device", "The physical GPU.", narrow=True)

PROCESSES = Table(
    "processes",
    "one operating-system process of one file",
    (
        _PROCESS,
        text_column("node", "Machine it ran on, as far as the file says."),
        Column("pid", pl.Int64(), "Process number; not unique (containers)."),
        Column("rank", pl.Int64(), "Rank in a distributed job."),
        text_column("command", "Command line with secrets removed."),
        text_column("source", "File it was read from."),
        Column(
            "collected",
            pl.List(pl.String()),
            "Kinds of record this capture had switched on (ops, calls, call_arguments, copies, "
            "waits, ranges, graphs); null where the file does not say.",
        ),
    ),
)

DEVICES = Table(
    "devices",
    "one physical GPU",
    (
        _DEVICE,
        text_column("node", "Machine it sits in."),
        Column("index", pl.Int64(), "Number the file gives it."),
        text_column("name", "Product name (AMD Instinct MI300X)."),
        text_column("arch", "Instruction set (gfx942, sm_90)."),
        text_column(
            "key",
            "Identity by which views of several processes are joined into one device; null when "
            "the file cannot tell two machines apart.",
        ),
    ),
)

PROCESS_DEVICES = Table(
    "process_devices",
    "one process's view of one device",
    (_PROCESS, _DEVICE, Column("local_index", pl.Int64(), "Number the process knows it by.")),
)

QUEUES = Table(
    "queues",
    "one hardware queue",
    (
        id_column("queue_id", "queue", "The queue.", narrow=True),
        _DEVICE,
        _PROCESS,
        Column("handle", pl.Int64(), "Number the file gives it."),
        text_column("name", "Name for reports."),
    ),
)

STREAMS = Table(
    "streams",
    "one HIP or CUDA stream",
    (
        id_column("stream_id", "stream", "The stream.", narrow=True),
        _PROCESS,
        _DEVICE,
        Column("handle", pl.Int64(), "Number the file gives it; 0 is the null stream on HIP."),
        enum_column(
            "flags", ("blocking", "nonblocking", "null"), "How it orders with the null stream."
        ),
        Column("priority", pl.Int64(), "Priority; lower runs first."),
        text_column("name", "Name for reports."),
    ),
)

STREAM_QUEUES = Table(
    "stream_queues",
    "a stream on a hardware queue for a while (streams move; many share one queue)",
    (
        id_column("stream_id", "stream", "The stream.", narrow=True),
        id_column("queue_id", "queue", "The queue.", narrow=True),
        time_column("first_ns", "Start of the first op seen on both."),
        time_column("last_ns", "End of the last op seen on both."),
        Column("ops", pl.Int64(), "Ops seen on both.", Unit.COUNT),
    ),
)

WINDOWS = Table(
    "windows",
    "the time a share refers to, one row per device and one for the host (device_id null)",
    (
        _DEVICE,
        time_column("start_ns", "First instant inside; null means unbounded (host only)."),
        time_column("end_ns", "First instant after; null means unbounded (host only)."),
    ),
)
