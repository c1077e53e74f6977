"""Every canonical table by name: the contract between formats and analyses."""

from tracekit.tables.activity import (
    ACCESSES,
    CALLS,
    COPIES,
    COUNTERS,
    MARKS,
    MESSAGES,
    OPS,
    RANGES,
    WAITS,
)
from tracekit.tables.identity import (
    DEVICES,
    PROCESS_DEVICES,
    PROCESSES,
    QUEUES,
    STREAM_QUEUES,
    STREAMS,
)
from tracekit.tables.notes import NOTES

TABLES = {
    table.name: table
    for table in (
        PROCESSES,
        DEVICES,
        PROCESS_DEVICES,
        QUEUES,
        STREAMS,
        STREAM_QUEUES,
        OPS,
        CALLS,
        COPIES,
        WAITS,
        RANGES,
        MESSAGES,
        ACCESSES,
        MARKS,
        COUNTERS,
        NOTES,
    )
}
