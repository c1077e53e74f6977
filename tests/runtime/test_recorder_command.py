"""`python -m instrumented_runtime.recorder finalize DIR`, on processes that were killed."""

import signal
import subprocess
import sys
import time

from recorder_rows import query, small_recording
from test_recorder_spool import leave_behind

MODULE = "instrumented_runtime.recorder"

# Adds a call every half millisecond or so; `stamps` says when each was added.
FILL = """
import sys, time
from pathlib import Path
from instrumented_runtime.recorder import Recorder

folder = Path(sys.argv[1])
recorder = Recorder(folder, environment={})
kernel = recorder.kernel("gemm")
calls, dispatches = recorder.rows["calls"].extend, recorder.rows["dispatches"].extend
with (folder / "stamps").open("w", buffering=1) as stamps:
    for number in range(1, 10**9):
        calls((number, 1, 0, 10 * number, 10 * number + 5, kernel, 1, 64, 0, 0))
        dispatches((number, kernel, 1, 0, 10 * number + 6, 10 * number + 9, 1, 64))
        stamps.write(f"{number} {time.monotonic_ns()}\\n")
        time.sleep(0.0005)
"""


def finalize(directory):
    command = [sys.executable, "-m", MODULE, "finalize", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def start_filling(directory):
    """Start a process that records until it is killed; returns when its rows are on disk."""
    process = subprocess.Popen([sys.executable, "-c", FILL, str(directory)])
    calls = directory / "virtual_1.spool/calls.i64"
    deadline = time.monotonic() + 30
    while not (calls.exists() and calls.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


def test_a_killed_process_loses_at_most_its_last_second(tmp_path):
    process = start_filling(tmp_path)
    time.sleep(1.2)
    process.send_signal(signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    process.wait()
    assert not (tmp_path / "virtual_1.db").exists()

    status, said = finalize(tmp_path)

    assert status == 0
    assert said[0].startswith(f"Wrote {tmp_path / 'virtual_1.db'} from ")
    path = tmp_path / "virtual_1.db"
    stamps = [line.split() for line in (tmp_path / "stamps").read_text().splitlines()]
    due = {int(number) for number, ns in stamps if int(ns) < killed_ns - 10**9}
    assert len(due) > 100
    calls = [number for (number,) in query(path, "SELECT id FROM regions ORDER BY id")]
    assert calls == list(range(1, len(calls) + 1))
    assert due <= set(calls)
    kernels = query(path, "SELECT stack_id, start, end FROM kernels ORDER BY id")
    assert kernels == [(n, 10 * n + 6, 10 * n + 9) for n in range(1, len(kernels) + 1)]
    assert due <= {number for number, _, _ in kernels}
    # Operations are flushed before calls, so none that was finished in memory lacks its call.
    assert len(kernels) <= len(calls)
    assert not (tmp_path / "virtual_1.spool").exists()


def test_the_spool_of_a_living_process_is_refused_and_stays_whole(tmp_path):
    process = start_filling(tmp_path)
    try:
        status, said = finalize(tmp_path)
        spool = tmp_path / "virtual_1.spool"
        size = (spool / "calls.i64").stat().st_size

        assert (status, said) == (
            2,
            [f"{spool}: is in use; wait until the process that records it has ended"],
        )
        assert size
        assert not (tmp_path / "virtual_1.db").exists()
    finally:
        process.kill()
        process.wait()
    assert finalize(tmp_path)[0] == 0


def test_each_process_of_a_folder_gets_its_own_database(tmp_path):
    leave_behind(tmp_path, pid=3)
    leave_behind(tmp_path, pid=12)
    (tmp_path / "virtual_12.db").write_text("mine")

    status, said = finalize(tmp_path)

    assert status == 2
    assert said == [
        f"{tmp_path / 'virtual_12.db'}: exists and is not overwritten; move it first",
        f"Wrote {tmp_path / 'virtual_3.db'} from 19 rows",
    ]
    assert (tmp_path / "virtual_12.db").read_text() == "mine"
    assert query(tmp_path / "virtual_3.db", "SELECT DISTINCT pid FROM kernels") == [(3,)]
    (tmp_path / "virtual_12.db").unlink()
    assert finalize(tmp_path) == (0, [f"Wrote {tmp_path / 'virtual_12.db'} from 19 rows"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["virtual_12.db", "virtual_3.db"]


def test_what_an_interrupted_finalisation_left_is_replaced(tmp_path):
    leave_behind(tmp_path)
    (tmp_path / "virtual_1.db.partial").write_bytes(b"half a file")

    assert finalize(tmp_path)[0] == 0

    assert [path.name for path in tmp_path.iterdir()] == ["virtual_1.db"]
    assert query(tmp_path / "virtual_1.db", "PRAGMA integrity_check") == [("ok",)]


def test_an_empty_absent_or_foreign_folder_is_one_sentence(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    hint = "holds no virtual_*.spool; name the folder of a recording cut short"
    for folder in (tmp_path, tmp_path / "absent"):
        assert finalize(folder) == (2, [f"{folder}: {hint}"])

    foreign = tmp_path / "virtual_1.spool"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    assert finalize(tmp_path) == (2, [f"{foreign}: is not a spool; it has no names.jsonl"])
    assert (foreign / "notes.txt").read_text() == "mine"
    assert small_recording(tmp_path, pid=2).close().exists()
