"""`tracekit capture` as people and scripts meet it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from toy_session import TOY
from watching import is_gone, read, soon

from tracekit.cli import ALLOCATOR, main
from tracekit.manifest.what_ran import read_what_ran

pytestmark = pytest.mark.usefixtures("sessions", "nothing_left")

OPENAI = ("--paths", "/health,/v1/models,/v1/completions")
LOAD = "requests = 2\nbursts = 1\nwarm_up = 0\nprompt_tokens = 3\noutput_tokens = 2\n"
# As `tracekit` with one profiler more in its room.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv.pop(1))
from toy_session import PROFILER
from tracekit.capture.profilers import profilers
profilers()["toy"] = PROFILER
from tracekit.cli import main
sys.exit(main())
"""


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "load.toml"
    path.write_text(LOAD)
    return str(path)


def words(run, *options, toy=OPENAI, workers=2):
    """The command line that captures the toy."""
    traces = ("--workers", str(workers), "--traces", str(run / "raw"))
    start = ("capture", "-o", str(run), "--profiler", "toy", "--no-hooks", "--no-untraced")
    return [*start, *options, "--", *TOY, *traces, *toy]


def test_one_command_leaves_a_run_that_every_other_command_reads(run, load, capsys):
    assert main(words(run, "--load", load)) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"Wrote {run}\nNext: tracekit report {run}\n")
    assert not (run / "raw").exists()
    assert not (run / "server.pid").exists()
    assert main(["report", str(run)]) == 0
    assert main(["table", str(run), "ops"]) == 0


def test_the_server_we_ship_is_captured_with_one_command_and_nothing_more(run, load, capsys):
    server = [sys.executable, "-m", "instrumented_runtime.server", "--port", "0"]
    Path(load).write_text("requests = 4\nbursts = 1\nprompt_tokens = 16\noutput_tokens = 64\n")
    assert main(["capture", "-o", str(run), "--load", load, "--", *server]) == 0
    capsys.readouterr()
    told = read_what_ran(run / "capture.json")
    assert (told.outcome, told.profiler, told.clock) == ("complete", "builtin", "virtual")
    manifest = json.loads(read(run / "manifest.json"))
    assert manifest["recorded_as"] == "rocpd"
    # What clients saw against what the trace says: the first is from rates over random acceptance.
    verifies = pl.read_parquet(run / "results" / "steps.parquet").filter(pl.col("kind") == "verify")
    cycle_ns = verifies.sort("start_ns")["start_ns"].diff().median()
    assert manifest["traced_cycle_ns"] == pytest.approx(cycle_ns, rel=0.1)
    assert manifest["untraced_cycle_ns"] == pytest.approx(cycle_ns, rel=0.1)


def test_the_raw_files_are_kept_on_request_and_reads_are_of_the_run(run, load, capsys):
    assert main(words(run, "--load", load, "--keep-raw")) == 0
    assert len(list((run / "raw").glob("*.trace.json"))) == 2
    assert main(["info", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"           {run}\n" in out
    assert "trace.json" not in out


def test_a_run_whose_traces_were_not_read_reads_all_the_same(run, load, capsys, monkeypatch):
    """As after a second Ctrl-C, or tracekit killed: the run is a folder of raw traces."""
    monkeypatch.setattr("tracekit.cli.capture._ingest", lambda captured, keep_raw: False)
    assert main(words(run, "--load", load)) == 2
    assert capsys.readouterr().err.endswith(f"Kept the profiler's files in {run / 'raw'}\n")
    assert main(["table", str(run), "ops"]) == 0
    assert capsys.readouterr().out.count("gemm") == 2


def test_traces_that_cannot_be_read_stay_and_it_is_said_why(run, load, capsys):
    command = f"for f in {run}/raw/*.begun; do echo no trace > $f; done"
    options = ("--load-cmd", command, "--grace", "0.2")
    assert main(words(run, *options, toy=(*OPENAI, "--write-s", "60"))) == 2
    err = capsys.readouterr().err
    assert "The traces are not read into the run: " in err
    assert "had not written a trace after 0.2 s and was killed" in err
    assert "Next:" not in err
    assert (run / "raw").is_dir()


def test_nobody_is_sent_to_a_report_of_what_only_the_profiler_reads(run, capsys):
    command = f"mkdir {run}/raw/.rocprofv3; echo records > {run}/raw/.rocprofv3/1-2-kernel.dat"
    assert main(words(run, "--load-cmd", command, workers=0)) == 2
    err = capsys.readouterr().err
    assert err.endswith(f"Kept logs and records in {run}; no trace was written\n")


def test_a_failing_load_tool_is_told_with_its_lines_and_the_servers(run, capsys):
    assert main(words(run, "--load-cmd", "echo bad dataset; exit 3")) == 2
    err = capsys.readouterr().err
    assert "the load command ended with exit code 3" in err
    assert "Last lines of load.log:\n  bad dataset\n" in err
    assert "Last lines of server.log:\n  toy server\n" in err
    assert err.endswith(f"Next: tracekit report {run}\n")


def test_a_server_that_ends_early_is_told_with_its_lines_and_no_traceback(run, capsys):
    assert main(words(run, toy=("--exit", "4", "--say", "CUDA out of memory"))) == 2
    err = capsys.readouterr().err
    assert "server: ended before it was ready, with exit code 4. See its last lines" in err
    assert "Last lines of server.log:\n  CUDA out of memory\n" in err
    assert "no trace was written" in err
    assert "Traceback" not in err


def test_what_tracekit_sets_for_itself_does_not_reach_the_server(run, monkeypatch):
    name, value = ALLOCATOR
    monkeypatch.delenv(name, raising=False)
    script = f"import os; print(os.environ.get('{name}'), os.environ['ADDED'], flush=True)"
    command = [sys.executable, "-I", "-S", "-c", script]
    options = ("--profiler", "toy", "--no-hooks", "--window", "run", "--no-load")
    main(["capture", "-o", str(run), *options, "--env", "ADDED=a=b", "--", *command])
    assert os.environ[name] == value
    assert read(run / "server.log") == "None a=b\n"
    monkeypatch.setenv(name, "the user's own")
    main(["capture", "-o", str(run), "--force", *options, "--env", "ADDED=", "--", *command])
    assert read(run / "server.log") == "the user's own \n"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--no-load", "--load-cmd", "true"), "--no-load"),
        (("--env", "X"), "--env: wants NAME=VALUE"),
        (("--hook", "sglang"), "was given beside --hook"),
        (("--ready-log", "("), "is no regular expression"),
        (("--probe", "/no/such"), "/no/such: cannot be read"),
        (("--load", "/no/such"), "/no/such: cannot be read"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_before_anything_starts(run, options, match, capsys):
    assert main(words(run, *options)) == 2
    err = capsys.readouterr().err
    assert match in err
    assert "Traceback" not in err
    assert not run.exists()


def test_an_existing_run_is_refused_before_anything_is_launched(run, capsys):
    run.mkdir()
    (run / "mine").touch()
    assert main(words(run)) == 2
    assert f"{run}: exists already. Choose another path, or add --force" in capsys.readouterr().err
    assert main(words(run, "--force")) == 2
    assert "exists and is not a tracekit run" in capsys.readouterr().err
    assert [path.name for path in run.iterdir()] == ["mine"]


def started(run, *options, toy=OPENAI):
    """tracekit as a process of its own, in its window."""
    program = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
    child = subprocess.Popen(
        [*program, *words(run, "--duration", "60", *options, toy=toy)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    soon(lambda: '"opened_ns"' in read(run / "capture.json"), 20)
    return child


def test_ctrl_c_ends_with_130_and_leaves_a_run_that_reads(run):
    child = started(run)
    workers = [int(path.stem) for path in (run / "raw").glob("*.begun")]
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (130, "")
    assert err.endswith(f"Wrote {run}\nNext: tracekit report {run}\n")
    assert len(workers) == 2
    assert all(is_gone(pid) for pid in workers)
    assert main(["report", str(run)]) == 0


def test_tracekit_killed_outright_leaves_a_server_to_stop_by_hand_and_a_run_that_reads(run):
    """What docs/capture.md says of `kill -9`: the server lives on in its own process group."""
    child = started(run)
    group = int(read(run / "server.pid"))
    try:
        child.kill()
        child.communicate(timeout=20)
        os.killpg(group, signal.SIGINT)
        soon(lambda: is_gone(group))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    assert len(list((run / "raw").glob("*.trace.json"))) == 2
    assert main(["report", str(run)]) == 0
