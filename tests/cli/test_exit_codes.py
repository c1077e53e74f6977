"""The program as scripts meet it: a process with two streams and an exit code."""

import contextlib
import os
import pty
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.cli import main
from tracekit.formats.store import write_run
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace


def one_line(text):
    """The text if it is one line; a traceback or a second message is not."""
    assert text.count("\n") == 1, text
    return text


def interrupted(child):
    """Press Ctrl-C until the child ends: a signal between opening and reading waits for the next."""
    try:
        for _ in range(10):
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = child.communicate(timeout=3)
                return child.returncode, out, err
    finally:
        child.kill()
    raise AssertionError("Ctrl-C is ignored")


def test_a_report_is_data_on_stdout_and_nothing_on_stderr(program, run_directory):
    done = subprocess.run(
        [*program, "report", str(run_directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "busy 62.5 %" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_closed_pipe_ends_quietly_with_141(program, run_directory):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*program, "table", str(run_directory), "ops"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_stdout_closed_by_the_shell_is_no_crash(program, run_directory):
    words = shlex.join([*program, "info", str(run_directory)])
    result = subprocess.run(["bash", "-c", f"{words} >&-"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_full_disk_under_stdout_is_said_in_one_line(program, run_directory):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*program, "table", str(run_directory), "ops"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert "no space left on device" in one_line(done.stderr)


def test_ctrl_c_ends_quietly_with_130_and_writes_nothing(program, tmp_path):
    fifo = tmp_path / "slow.json"
    os.mkfifo(fifo)
    output = tmp_path / "report.html"
    child = subprocess.Popen(
        [*program, "report", str(fifo), "-o", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # Opening a pipe for writing returns when the program has opened it for reading: it now waits.
    with fifo.open("wb"):
        assert interrupted(child) == (130, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["slow.json"]


def test_progress_is_drawn_on_a_terminal_and_wiped(program, run_directory):
    # A pseudo-terminal, as a person has; its other end collects what was drawn.
    ours, theirs = pty.openpty()
    child = subprocess.run(
        [*program, "report", str(run_directory)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        timeout=60,
        check=False,
    )
    os.close(theirs)
    drawn = os.read(ours, 65536).decode()
    os.close(ours)
    assert child.returncode == 0
    assert "\x1b[2K" in drawn
    assert "\x1b" not in child.stdout.decode()


def test_help_answers_without_loading_what_reads_traces():
    program = (
        "import sys; from tracekit.cli import main; main(['--help']);"
        "sys.exit(bool({'polars', 'rich', 'jinja2', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reprot"], "Did you mean 'report'?"),
        (["report"], "Missing argument 'PATH…'"),
        (["report", "RUN", "--as", "jsn"], "jsn: no such kind of report. Did you mean json?"),
        (["report", "RUN", "--only", "idle-gap"], "no such analysis. Did you mean idle-gaps?"),
        (["report", "RUN", "--window", "5ms:6ms"], "no device did anything in it"),
        (["report", "RUN", "--window", "6us:5us"], "is empty (0.006 ms to 0.005 ms)"),
        (["report", "RUN", "--window", "step 9"], "no marker of this trace holds this text"),
        (["report", "RUN", "RUN"], "given twice"),
        (["report", "RUN", "-o", "a.pdf"], "its suffix names no kind of report"),
        (["table", "RUN", "opps"], "no such table or analysis. Did you mean ops?"),
        (["table", "RUN", "analysis:idle-gap"], "no such analysis. Did you mean idle-gaps?"),
        (["table", "RUN", "ops", "--as", "parquet"], "does not go to a terminal"),
        (["table", "RUN", "ops", "-o", "a.xlsx"], "its suffix names no kind of table"),
        (["list", "rules"], "'rules' is not one of 'formats', 'analyses'"),
        (["convert", "RUN"], "Missing option '-o'"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_to_do(capsys, run_directory, arguments, said):
    words = [str(run_directory) if word == "RUN" else word for word in arguments]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def _empty(path):
    path.write_bytes(b"")


def _text(path):
    path.write_text("not a trace\n")


def _lfs_pointer(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def _truncated_header(path):
    path.write_bytes(b"\x1f\x8b\x08")


def _foreign_sqlite(path):
    with sqlite3.connect(path) as database:
        database.execute("create table bookmarks (url text)")
    database.close()


def _corrupt_sqlite(path):
    _foreign_sqlite(path)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 400)


def _symlink_loop(path):
    path.symlink_to(path)


def _missing(path):
    assert not path.exists()


def _empty_directory(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_empty, "is empty"),
        (_text, "is in no format tracekit reads"),
        (_lfs_pointer, "git lfs pull"),
        (_truncated_header, "is in no format tracekit reads"),
        (_foreign_sqlite, "is in no format tracekit reads"),
        (_corrupt_sqlite, ""),
        (_symlink_loop, "too many levels of symbolic links"),
        (_missing, "does not exist"),
        (_empty_directory, "holds no trace file"),
    ],
)
@pytest.mark.parametrize("name", ["info", "report"])
def test_a_bad_file_exits_2_with_one_line_that_names_it(tmp_path, capsys, name, make, said):
    path = tmp_path / "trace.json"
    make(path)
    output = tmp_path / "a.html"
    assert main([name, str(path), *(["-o", str(output)] if name == "report" else [])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert one_line(err).startswith(f"tracekit: {path}: ")
    assert said in err
    assert not output.exists()


def test_a_directory_of_two_formats_is_refused_naming_both(tmp_path, capsys, real_traces):
    for name in ("kineto/mi210_gpu_only.json.gz", "rocpd/mi300x_rocm7.1_hip_args_redacted.db"):
        (tmp_path / Path(name).name).symlink_to(real_traces / name)
    assert main(["report", str(tmp_path)]) == 2
    assert "mixed formats: kineto, rocpd" in one_line(capsys.readouterr().err)


def test_a_corrupt_database_page_is_refused_and_nothing_is_written(tmp_path, capsys, real_traces):
    data = bytearray((real_traces / "rocpd/mi300x_rocm7.1_hip_args_redacted.db").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 60_000] = b"\xa5" * 60_000
    (tmp_path / "bad.db").write_bytes(data)
    assert main(["report", str(tmp_path / "bad.db"), "-o", str(tmp_path / "a.json")]) == 2
    assert "malformed" in one_line(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.db"]


@pytest.fixture
def truncated(tmp_path, real_traces):
    """A real trace whose writer died half-way."""
    data = (real_traces / "kineto/mi210_gpu_only.json.gz").read_bytes()
    path = tmp_path / "half.json.gz"
    path.write_bytes(data[: len(data) * 4 // 5])
    return path


def test_what_a_truncated_trace_still_holds_is_reported_with_its_loss(truncated, capsys):
    assert main(["report", str(truncated)]) == 0
    out, err = capsys.readouterr()
    assert "!1 records lost or changed" in out
    assert "!1 kineto.truncated" in out
    assert "busy ≥" in out
    assert err == ""


def test_a_table_of_a_truncated_trace_says_so_on_stderr(truncated, capsys):
    assert main(["table", str(truncated), "ops"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("op_id,")
    assert err.startswith("data-loss: kineto.truncated")


def test_a_trace_without_gpu_work_has_an_info_but_no_report(tmp_path, capsys, trace):
    calls = {"calls": trace.table("calls"), "processes": trace.table("processes")}
    idle = Trace.from_frames(calls, notes=[], sources=["t"], format_name="kineto")
    write_run(idle, tmp_path / "run", force=False)
    assert main(["info", str(tmp_path / "run")]) == 0
    assert "none: no device op was recorded" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "holds no GPU work" in one_line(capsys.readouterr().err)


def test_a_trace_that_lost_all_its_gpu_work_says_that_it_was_lost(tmp_path, capsys, trace):
    note = Note("test-rows.lost", Severity.DATA_LOSS, "The writer died; record again.", 9)
    frames = {"processes": trace.table("processes")}
    lost = Trace.from_frames(frames, notes=[note], sources=["t"], format_name="kineto")
    write_run(lost, tmp_path / "run", force=False)
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "rows were lost. The writer died; record again." in one_line(capsys.readouterr().err)
