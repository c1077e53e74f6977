"""How a capture ends when it is told to while it stops, when nobody hears it, and what is said."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_lifecycle_cli import OPENAI, PROGRAM, words
from watching import read, soon

from tracekit.cli import main
from tracekit.unheard import stderr_may_break

pytestmark = pytest.mark.usefixtures("sessions", "nothing_left")

PROGRAM_ARGS = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def outcome(run):
    return json.loads(read(run / "capture.json"))["outcome"]


def pressed(run, times):
    """Press Ctrl-C when the stage is `stop` and the worker is writing."""

    def press():
        soon(lambda: list((run / "raw").glob("*.partial")))
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("times", "write_s", "code", "word"), [(1, "0.4", 0, "complete"), (2, "30", 130, "interrupted")]
)
def test_ctrl_c_while_it_stops_changes_nothing_once_and_interrupts_twice(
    run, capsys, times, write_s, code, word
):
    thread = pressed(run, times)
    options = ("--duration", "0.1")
    toy = (*OPENAI, "--write-s", write_s)
    assert main(words(run, *options, toy=toy, workers=1)) == code
    thread.join()
    assert outcome(run) == word
    # After the second there are files, and none of them reads.
    assert ("Next:" in capsys.readouterr().err) == (times == 1)


def test_a_capture_whose_stderr_breaks_ends_in_order_with_141(run):
    child = subprocess.Popen(
        [*PROGRAM_ARGS, *words(run, "--duration", "0.3", workers=1)], stderr=subprocess.PIPE
    )
    child.stderr.readline()
    child.stderr.close()
    assert child.wait(20) == 141
    assert outcome(run) == "complete"
    assert (run / "manifest.json").exists()


def test_ctrl_c_that_ends_the_reader_of_stderr_too_ends_with_130(run):
    child = subprocess.Popen(
        [*PROGRAM_ARGS, *words(run, "--duration", "60", workers=1)], stderr=subprocess.PIPE
    )
    soon(lambda: '"opened_ns"' in read(run / "capture.json"))
    child.stderr.close()
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert outcome(run) == "interrupted"
    assert (run / "manifest.json").exists()


def test_a_full_disk_under_stderr_is_2_and_not_a_failed_gate(tmp_path, monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main(["report", str(tmp_path)]) == 2
        with stderr_may_break() as heard:
            sys.stderr.write("lost\n")
        assert heard.exit_code() == 2


@pytest.mark.parametrize("command", ["report", "info", "table", "compare"])
def test_a_run_without_a_trace_says_what_became_of_its_capture(run, capsys, command):
    assert main(words(run, toy=("--exit", "4"), workers=0)) == 2
    assert "Next:" not in capsys.readouterr().err
    more = {"table": [str(run), "ops"], "compare": ["--base", str(run), "--head", str(run)]}
    assert main([command, *more.get(command, [str(run)])]) == 2
    err = capsys.readouterr().err
    assert f"{run}: holds no trace file: its capture ended as 'not-ready' before its window" in err
    assert "ended before it was ready, with exit code 4" in err
