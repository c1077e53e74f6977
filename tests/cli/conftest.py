"""A small trace in a run directory, and the program as a process of its own."""

import sys

import pytest

from tracekit.formats.store import write_run
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace

# A shell that starts tests in the background makes children ignore Ctrl-C; people's shells do not.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tracekit.cli import main
sys.exit(main())
"""


@pytest.fixture
def program():
    """The words that start tracekit as a process of its own, arguments to be added."""
    return [sys.executable, "-c", PROGRAM]


@pytest.fixture
def trace(frame):
    """One device, 400 µs from first to last op, busy for 250 µs of them; the barrier is no work."""
    frames = {
        "processes": frame(
            "processes",
            """
            process_id  pid  rank  command    source
            0           42   3     serve.py   t.json
            """,
        ),
        "devices": frame("devices", "device_id  name    arch\n0  MI300X  gfx942"),
        "streams": frame("streams", "stream_id  process_id  device_id  handle\n0  0  0  7"),
        "ops": frame(
            "ops",
            """
            op_id  kind     name     process_id  device_id  stream_id  start_ns  end_ns   call_id
            0      kernel   gemm     0           0          0          1000000   1100000  0
            1      kernel   norm     0           0          0          1150000   1200000  1
            2      barrier  barrier  0           0          0          1200000   1300000  -
            3      copy     copy     0           0          0          1300000   1400000  -
            """,
        ),
        "calls": frame(
            "calls",
            """
            call_id  process_id  thread_id  name             kind    start_ns  end_ns
            0        0           9          hipLaunchKernel  launch  990000    995000
            1        0           9          hipLaunchKernel  launch  1120000   1130000
            """,
        ),
        "ranges": frame(
            "ranges",
            """
            range_id  kind    process_id  thread_id  text   start_ns  end_ns
            0         marker  0           9          step1  980000    1110000
            1         marker  0           9          step2  1110000   1250000
            """,
        ),
    }
    note = Note("test-stream.unknown", Severity.NOTICE, "The stream of some ops is unknown.", 3)
    return Trace.from_frames(frames, notes=[note], sources=["t.json"], format_name="kineto")


@pytest.fixture
def run_directory(trace, tmp_path):
    """The small trace as a run directory, which every command reads."""
    directory = tmp_path / "run"
    write_run(trace, directory, force=False)
    return directory
