"""Decoding on several cores gives the same result as on one, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.formats import silent
from tracekit.formats.kineto import FORMAT, container, lanes, recording
from tracekit.formats.kineto.container import Container, chunks


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file that counts as large: many chunks, worth several lanes."""
    monkeypatch.setattr(container, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(recording, "PARALLEL_BYTES", 1000)
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"kernel_{n % 7}",
            "pid": 0,
            "tid": 1,
            "ts": n + 0.125,
            "dur": 0.5,
            "args": {"device": 0, "stream": n % 3, "correlation": n + 1, "context": 1},
        }
        for n in range(5000)
    ]
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 7}))
    return path


def children():
    text = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return text.split()


def test_two_processes_read_what_one_reads(large, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    on_two = FORMAT.read(large, silent)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    on_one = FORMAT.read(large, silent)
    assert on_two.table("ops").height == 5000
    for table in on_one.frames:
        assert on_two.table(table).equals(on_one.table(table))
    assert on_two.notes == on_one.notes


def test_chunks_come_back_in_file_order(large):
    pieces = list(chunks(large, Container(), lambda _: None))
    assert len(pieces) > 20
    assert [chunk for chunk, _ in lanes.decoded(pieces, 2)] == pieces


def test_workers_end_with_the_reading_even_when_it_is_interrupted(large):
    before = children()
    reading = lanes.decoded(chunks(large, Container(), lambda _: None), 2)
    next(reading)
    assert len(children()) == len(before) + 2
    with pytest.raises(KeyboardInterrupt):
        reading.throw(KeyboardInterrupt)
    assert children() == before


def test_a_worker_that_dies_costs_no_event(large, monkeypatch):
    monkeypatch.setattr(lanes, "_SERVE", "raise SystemExit(3)")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert FORMAT.read(large, silent).table("ops").height == 5000


def test_an_unguarded_script_is_not_run_again_by_the_workers(large, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "import sys\n"
        "from tracekit.formats import silent\n"
        "from tracekit.formats.kineto import FORMAT, container, recording\n"
        "container.CHUNK_BYTES, recording.PARALLEL_BYTES = 20_000, 1000\n"
        "print('ops', FORMAT.read(Path(sys.argv[1]), silent).table('ops').height)\n"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, script, large],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert (run.stdout, run.stderr) == ("ops 5000\n", "")
