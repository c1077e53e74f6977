"""Whole runs of programs with PyTorch's profiler injected; PyTorch is real, on the CPU."""

import os
import sys

import pytest
from watching import Told

from tracekit.capture.lifecycle import capture
from tracekit.capture.wanted import Wanted
from tracekit.formats import read_trace

# A child of `spawn` ends as a program does: what is to happen at exit happens.
PROGRAM = """
import multiprocessing, os, time
from pathlib import Path

def work():
    import torch
    report = Path(os.environ["TRACEKIT_HOOKS_DIR"], f"{os.getpid()}.json")
    while not report.exists() or '"recording"' not in report.read_text():
        time.sleep(0.01)
    for _ in range(9):
        with torch.profiler.record_function("tk1 step 1"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        time.sleep(0.01)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


def whole_run(tmp_path, program):
    """Capture a program; return what came of it, the notes, and where its traces are."""
    script, run = tmp_path / "program.py", tmp_path / "run"
    script.write_text(program)
    wanted = Wanted(
        command=(sys.executable, str(script)),
        directory=run,
        environment=os.environ | {"TRACEKIT_PROFILE_CPU": "1"},
        profiler="torch-profiler",
        hooks=("torch_streams",),
        has_window=False,
        has_load=False,
    )
    observer = Told()
    return capture(wanted, observer), observer.notes, run / "raw"


@pytest.mark.usefixtures("nothing_left")
def test_processes_that_import_torch_after_the_launch_are_profiled_to_their_ends(tmp_path):
    captured, notes, raw = whole_run(tmp_path, PROGRAM)
    assert (captured.outcome, captured.problem, notes) == ("complete", None, [])
    trace = read_trace([raw])
    processes = dict(trace.table("processes").select("process_id", "pid").iter_rows())
    assert None not in processes.values()
    assert len(processes) == 1
    steps = trace.table("ranges").filter(text="tk1 step 1")
    assert set(steps["process_id"]) == set(processes)


@pytest.mark.usefixtures("nothing_left")
def test_a_program_in_which_nobody_profiled_is_told_why(tmp_path):
    captured, notes, raw = whole_run(tmp_path, "print(1)")
    assert (captured.outcome, captured.problem) == ("complete", None)
    (note,) = notes
    assert note.startswith("no process of the server began to profile: none has loaded the hooks")
    assert list(raw.iterdir()) == []
