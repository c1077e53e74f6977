"""rocpd: the SQLite files of rocprofv3 (ROCm 7.0 and later) and rocprof-sys, schema 3.

Times are nanoseconds of the machine's boot clock, comparable within one machine and boot only.
Every join is within one guid (one process's recording), on the base tables.
"""

from pathlib import Path

from tracekit.errors import UnreadableTrace
from tracekit.formats import Format, Progress
from tracekit.formats.rocpd.capture import LARGE_TABLES, read_capture
from tracekit.formats.rocpd.database import holds_rocpd, open_captures
from tracekit.formats.rocpd.packages import is_package, package_members
from tracekit.trace import Trace, join_traces

_SQLITE = b"SQLite format 3\0"


def _sniff(path: Path, head: bytes) -> bool:
    if not head:
        return is_package(path)
    return head.startswith(_SQLITE) and holds_rocpd(path)


def _read(path: Path, progress: Progress) -> Trace:
    with open_captures(path) as captures:
        total = sum(capture.last_row_id(table) for capture in captures for table in LARGE_TABLES)
        done = 0

        def step(rows: int, _table: str) -> None:
            nonlocal done
            done += rows
            progress(min(done, total), total, f"rows of {path.name}")

        if not captures:
            raise UnreadableTrace(path, "has no table of rocpd", "Name a file that rocprofv3 wrote")
        trace = join_traces([read_capture(capture, FORMAT.name, step) for capture in captures])
    progress(total, total, f"rows of {path.name}")
    trace.sources = [str(path)]
    return trace


FORMAT = Format(
    name="rocpd",
    summary="rocprofv3 and rocprof-sys SQLite database, schema 3 (ROCm 7.0 and later)",
    sniff=_sniff,
    read=_read,
    members=package_members,
)
