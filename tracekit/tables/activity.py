"""What happened: device ops, host calls, copies, waits, ranges, buffer accesses, counters."""

import polars as pl

from tracekit.tables import (
    Column,
    Table,
    enum_column,
    id_column,
    name_column,
    text_column,
    time_column,
)
from tracekit.units import Unit

OP_KINDS = ("kernel", "copy", "fill", "barrier")
CALL_KINDS = (
    "launch",
    "graph_launch",
    "copy",
    "fill",
    "event_record",
    "event_wait",
    "event_sync",
    "event_query",
    "stream_sync",
    "device_sync",
    "stream_create",
    "malloc",
    "free",
    "callback",
    "other",
)
COPY_DIRECTIONS = (
    "host-to-device",
    "device-to-host",
    "device-to-device",
    "host-to-host",
    "peer-to-peer",
)

_PROCESS = id_column("process_id", "process", "The process it belongs to.", narrow=True)
_DEVICE = id_column("device_id", "device", "The device it ran on.", narrow=True)
_QUEUE = id_column(
    "queue_id", "queue", "The hardware queue, where the format has one.", narrow=True
)
_STREAM = id_column("stream_id", "stream", "The stream, where the format has one.", narrow=True)
_CALL = id_column("call_id", "call", "The host call behind it; null when none was recorded.")
_THREAD = Column("thread_id", pl.Int64(), "Operating-system thread; unique with the process only.")
_START = time_column("start_ns", "First instant.")
_END = time_column("end_ns", "First instant after the end.")

OPS = Table(
    "ops",
    "one thing a device executed",
    (
        id_column("op_id", "op", "The op."),
        enum_column("kind", OP_KINDS, "What it is; barriers do no work and never count as busy."),
        name_column("name", "Kernel name, or what the copy or fill is called."),
        _PROCESS,
        _DEVICE,
        _QUEUE,
        _STREAM,
        _START,
        _END,
        _CALL,
        Column(
            "correlation_id",
            pl.Int64(),
            "The profiler's number that ties it to a call, kept also when that call is not there.",
        ),
        id_column("graph_launch_id", "call", "The graph launch call it belongs to, a call_id."),
        Column("graph_exec_id", pl.Int64(), "The executable graph, where the format names it."),
        Column("graph_node", pl.Int64(), "The node within the graph, where the format names it."),
    ),
    sorted_by="start_ns",
)

CALLS = Table(
    "calls",
    "one host API call",
    (
        id_column("call_id", "call", "The call."),
        _PROCESS,
        _THREAD,
        name_column("name", "API name as recorded (hipEventSynchronize)."),
        enum_column("kind", CALL_KINDS, "What it does, one vocabulary for HIP and CUDA."),
        _START,
        _END,
        Column("correlation_id", pl.Int64(), "The profiler's number that ties ops to it."),
        _STREAM,
        Column("event_key", pl.Int64(), "Handle of the event it names; handles are recycled."),
        Column("graph_exec_key", pl.Int64(), "Handle of the executable graph it launches."),
    ),
    sorted_by="call_id",
)

COPIES = Table(
    "copies",
    "one copy requested, whether or not a device op was recorded for it",
    (
        _CALL,
        id_column(
            "op_id",
            "op",
            "The device op; null when copying was not traced or ran as a blit kernel.",
        ),
        _PROCESS,
        Column("dst_address", pl.UInt64(), "First byte written.", Unit.ADDRESS),
        Column("src_address", pl.UInt64(), "First byte read.", Unit.ADDRESS),
        Column("copied_bytes", pl.Int64(), "Bytes asked for.", Unit.BYTES),
        enum_column("direction", COPY_DIRECTIONS, "From where to where."),
        Column("is_blocking", pl.Boolean(), "The call returns only when the copy is done."),
        Column("is_pinned", pl.Boolean(), "The host side is page-locked."),
        _STREAM,
    ),
)

WAITS = Table(
    "waits",
    "one wait of a stream for an event",
    (
        Column("wait_id", pl.Int64(), "The wait.", Unit.ID, "wait"),
        _PROCESS,
        id_column("waiting_stream_id", "stream", "Stream that waits.", narrow=True),
        id_column("waiting_queue_id", "queue", "Hardware queue that waits.", narrow=True),
        id_column("recording_stream_id", "stream", "Stream that recorded the event.", narrow=True),
        id_column("recording_queue_id", "queue", "Queue that recorded the event.", narrow=True),
        id_column("wait_call_id", "call", "The call that asked for the wait."),
        id_column("record_call_id", "call", "The call that recorded the event."),
        time_column(
            "pending_start_ns",
            "Later of the call's end and the end of the waiting stream's previous op.",
        ),
        time_column(
            "pending_end_ns",
            "When the recorded work completes; not before pending_start_ns.",
        ),
        enum_column(
            "evidence",
            ("recorded", "inferred"),
            "Recorded by the profiler, or inferred from call arguments.",
        ),
    ),
)

RANGES = Table(
    "ranges",
    "one host marker range, operator or Python frame; an instant has start_ns = end_ns",
    (
        id_column("range_id", "range", "The range."),
        enum_column(
            "kind",
            ("marker", "operator", "frame"),
            "Set by the user (roctx, nvtx, record_function), a framework operator, a Python frame.",
        ),
        _PROCESS,
        _THREAD,
        text_column("text", "Its text."),
        _START,
        _END,
        id_column("parent_id", "range", "Innermost range around it on the same thread."),
    ),
)

MESSAGES = Table(
    "messages",
    "what one op of a collective says about its message",
    (
        id_column("op_id", "op", "The op."),
        _PROCESS,
        text_column("collective", "What it does, as recorded (allreduce, _allgather_base)."),
        text_column("dtype", "Type of an element, as recorded (BFloat16)."),
        Column("in_elements", pl.Int64(), "Elements this rank gives.", Unit.COUNT),
        Column("out_elements", pl.Int64(), "Elements this rank gets.", Unit.COUNT),
        Column("group_size", pl.Int64(), "Ranks that take part.", Unit.COUNT),
        text_column("group", "Name of the process group."),
        text_column("group_ranks", "Its ranks, as recorded; long lists are abbreviated."),
        text_column("communicator", "Number of the communicator, where recorded."),
        Column("sequence", pl.Int64(), "Number of the collective within its group.", Unit.ID),
    ),
)

ACCESSES = Table(
    "accesses",
    "one declared use of a buffer by a launch, a copy or a graph launch",
    (
        id_column("call_id", "call", "The call that submitted what uses it."),
        text_column("buffer", "Name of the buffer, or its number where it has none."),
        Column("address", pl.UInt64(), "First byte.", Unit.ADDRESS),
        Column("size_bytes", pl.Int64(), "Length.", Unit.BYTES),
        enum_column("mode", ("read", "write"), "How it is used."),
    ),
)

MARKS = Table(
    "marks",
    "one marker about an event: recorded, waited for by a stream, or by the host",
    (
        id_column("range_id", "range", "The marker."),
        _PROCESS,
        _THREAD,
        time_column("time_ns", "When the host said so."),
        enum_column("statement", ("record", "wait", "sync"), "What was done."),
        Column("event_key", pl.Int64(), "Handle of the event; handles are recycled."),
        id_column("stream_id", "stream", "The stream that records or waits.", narrow=True),
        id_column("call_id", "call", "The API call it speaks of; null when none was recorded."),
    ),
)

COUNTERS = Table(
    "counters",
    "one counter sample",
    (
        _DEVICE,
        name_column("name", "Counter name."),
        time_column("time_ns", "When it was read; for a dispatch's counter, when it ended."),
        Column("value", pl.Float64(), "The value."),
        id_column("op_id", "op", "The dispatch it belongs to, if to one."),
    ),
)
