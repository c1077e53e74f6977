"""The whole life of a capture against a toy server: every end keeps what there is, leaves nothing."""

import json
import os
import resource
import signal
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from toy_session import TOY, ToySession
from watching import Told, is_gone, read, soon

from tracekit.capture.captured import exit_code
from tracekit.capture.lifecycle import capture
from tracekit.capture.load.file import Load
from tracekit.capture.readiness import Readiness
from tracekit.capture.wanted import Wanted
from tracekit.errors import BadInput, OutputExists, TracekitError
from tracekit.formats import read_trace

pytestmark = pytest.mark.usefixtures("sessions", "nothing_left")


@pytest.fixture(autouse=True)
def _heeds_ctrl_c():
    """A shell that starts tests in the background makes them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


OPENAI = ("--paths", "/health,/v1/models,/v1/completions")
SMALL = Load(requests=2, bursts=1, warm_up=1, prompt_tokens=3, output_tokens=2)
NO_HOOKS = ()


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def wanted(run, *options, workers=2, **more):
    """A capture of the toy: two workers that write their traces when they end."""
    traces = ("--workers", str(workers), "--traces", str(run / "raw"))
    return Wanted(
        **{
            "command": (*TOY, *traces, *options),
            "directory": run,
            "environment": dict(os.environ),
            "profiler": "toy",
            "hooks": NO_HOOKS,
            **more,
        }
    )


def after(seconds, number, times=1, every_s=0.2):
    """Send this process a signal once it has had time to get where the test wants it."""

    def send():
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(every_s)

    timer = threading.Timer(seconds, send)
    timer.start()
    return timer


def when(condition, number):
    """Send this process a signal as soon as a condition holds."""

    def send():
        soon(condition, 20)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_server_is_launched_loaded_profiled_stopped_and_its_traces_read(run, sessions):
    observer = Told()
    captured = capture(wanted(run, *OPENAI, load=SMALL), observer)
    assert (captured.outcome, captured.problem, exit_code(captured)) == ("complete", None, 0)
    assert observer.stages == [
        *("prepare", "launch", "ready", "warm_up", "untraced"),
        *("open window", "traced", "close window", "stop"),
    ]
    (session,) = sessions
    assert [what for what, _ in session.said] == ["open", "close"]
    assert {url.rpartition(":")[0] for _, url in session.said} == {"http://127.0.0.1"}
    requests = pl.read_parquet(run / "requests.parquet")
    assert dict(requests["phase"].value_counts().iter_rows()) == {
        "warm_up": 1,
        "untraced": 2,
        "traced": 2,
    }
    assert list(json.loads(read(run / "client.json"))) == ["warm_up", "untraced", "traced"]
    told = json.loads(read(run / "capture.json"))
    assert (told["outcome"], told["stage"], told["profiler"]) == ("complete", "stop", "toy")
    assert told["start_ns"] < told["window"]["opened_ns"] < told["window"]["closed_ns"]
    assert read(run / "server.log").startswith("toy server\n")
    assert read_trace([run]).table("ops").height == 2


def test_an_openai_server_without_a_word_gets_the_default_load_and_others_none(run):
    observer = Told()
    captured = capture(wanted(run, *OPENAI, has_untraced=False), observer)
    assert captured.outcome == "complete"
    requests = pl.read_parquet(run / "requests.parquet")
    assert requests.filter(pl.col("phase") == "traced").height == Load().requests * Load().bursts
    assert "untraced" not in observer.stages


def test_without_a_load_the_window_stays_open_for_the_duration(run):
    start = time.monotonic()
    captured = capture(wanted(run, *OPENAI, duration_s=0.5), Told())
    assert captured.outcome == "complete"
    assert time.monotonic() - start > 0.5
    window = json.loads(read(run / "capture.json"))["window"]
    assert 0.5 <= (window["closed_ns"] - window["opened_ns"]) / 1e9 < 1.5
    assert not (run / "requests.parquet").exists()


def test_a_program_that_ends_by_itself_is_captured_whole(run):
    script = "import os; print('done', os.environ['TOY_PROFILED'])"
    command = (*TOY[:3], "-c", script)
    captured = capture(wanted(run, command=command, has_window=False), Told())
    assert (captured.outcome, exit_code(captured)) == ("complete", 0)
    assert read(run / "server.log") == "done 1\n"


def test_a_program_that_fails_is_told_with_its_last_lines(run):
    options = {"has_window": False, "has_load": False}
    captured = capture(wanted(run, "--exit", "5", "--say", "no such model", **options), Told())
    assert (captured.outcome, exit_code(captured)) == ("server-died", 2)
    assert "ended with exit code 5" in str(captured.problem)
    assert captured.last_lines == ["no such model"]


def test_a_server_that_ends_before_it_is_ready_is_told_with_its_last_lines_redacted(run):
    options = ("--exit", "1", "--say", "HF_TOKEN=hf_abcdefghij was refused")
    captured = capture(wanted(run, *options), Told())
    assert (captured.outcome, exit_code(captured)) == ("not-ready", 2)
    assert captured.last_lines == ["HF_TOKEN=<redacted> was refused"]
    assert b"hf_abcdefghij" not in b"".join(p.read_bytes() for p in run.rglob("*") if p.is_file())


def test_a_port_that_never_opens_is_given_up_and_nothing_is_left_running(run):
    readiness = Readiness(timeout_s=0.5)
    captured = capture(wanted(run, "--no-port", readiness=readiness), Told())
    assert captured.outcome == "not-ready"
    assert "after 0.5 s: no process of it listens on a TCP port" in str(captured.problem)


@pytest.mark.parametrize("load", [SMALL, None])
def test_a_server_that_dies_under_load_leaves_the_traces_of_its_workers(run, load):
    command = None if load else "curl -s $TRACEKIT_URL/die; sleep 60"
    path = "/v1/completions" if load else "/die"
    options = {"load": load, "load_command": command, "has_untraced": False}
    captured = capture(wanted(run, *OPENAI, "--die-at", path, **options), Told())
    assert (captured.outcome, exit_code(captured)) == ("server-died", 2)
    assert "ended with exit code 7" in str(captured.problem)
    assert captured.last_lines[-1] == "toy: out of memory on device 0"
    assert read_trace([run]).table("ops").height == 2


def test_ctrl_c_once_stops_in_good_order_and_keeps_everything(run, sessions):
    thread = when(lambda: sessions and sessions[0].said, signal.SIGINT)
    captured = capture(wanted(run, *OPENAI, "--write-s", "0.5", duration_s=60), Told())
    thread.join()
    assert (captured.outcome, captured.is_cut, exit_code(captured)) == ("interrupted", False, 130)
    assert [what for what, _ in sessions[0].said] == ["open", "close"]
    assert read_trace([run]).table("ops").height == 2
    assert json.loads(read(run / "capture.json"))["outcome"] == "interrupted"


def test_ctrl_c_under_the_built_in_load_keeps_the_requests_that_were_sent(run):
    observer = Told()
    load = Load(requests=3000, bursts=1, concurrency=2, warm_up=0, prompt_tokens=3)
    thread = when(lambda: "10 of 3000 requests" in observer.words, signal.SIGINT)
    captured = capture(wanted(run, *OPENAI, load=load, has_untraced=False), observer)
    thread.join()
    assert (captured.outcome, exit_code(captured)) == ("interrupted", 130)
    traced = json.loads(read(run / "client.json"))["traced"]
    assert traced["stopped"] == "interrupted"
    assert 10 <= traced["completed"] <= traced["sent"] < 3000
    assert read_trace([run]).table("ops").height == 2


def test_ctrl_c_twice_kills_now_and_keeps_what_is_written(run, sessions):
    first = when(lambda: sessions and sessions[0].said, signal.SIGINT)
    again = when(lambda: len(list((run / "raw").glob("*.partial"))) == 2, signal.SIGINT)
    start = time.monotonic()
    captured = capture(wanted(run, *OPENAI, "--write-s", "30", duration_s=60), Told())
    first.join(), again.join()
    assert time.monotonic() - start < 10
    assert (captured.outcome, captured.is_cut, exit_code(captured)) == ("interrupted", True, 130)
    assert "did not finish it" in json.loads(read(run / "capture.json"))["notes"][-1]


def test_under_nohup_a_closed_terminal_does_not_end_the_capture(run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        thread = when(lambda: '"opened_ns"' in read(run / "capture.json"), signal.SIGHUP)
        captured = capture(wanted(run, duration_s=0.5), Told())
        thread.join()
        assert captured.outcome == "complete"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_server_heeds_ctrl_c_though_tracekit_was_told_to_ignore_it(run):
    """In a shell's background job SIGINT is ignored, and children inherit that."""
    script = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        command = (*TOY[:3], "-c", script)
        capture(wanted(run, command=command, has_window=False, has_load=False), Told())
    finally:
        signal.signal(signal.SIGINT, before)
    assert read(run / "server.log") == "True\n"


def test_sigterm_is_obeyed_while_the_server_loads_its_model(run):
    after(0.6, signal.SIGTERM)
    captured = capture(wanted(run, "--ready-after", "60"), Told())
    assert (captured.outcome, exit_code(captured)) == ("interrupted", 128 + signal.SIGTERM)


def test_a_load_command_runs_once_a_phase_and_learns_where_the_server_is(run):
    command = 'echo "$TRACEKIT_PHASE $TRACEKIT_URL"'
    captured = capture(wanted(run, load_command=command), Told())
    assert captured.outcome == "complete"
    lines = read(run / "load.log").splitlines()
    assert [line.split(":")[0] for line in lines] == ["untraced http", "traced http"]


def test_a_load_command_that_fails_is_told_with_its_exit_code_and_last_lines(run):
    options = {"load_command": "echo no such dataset; exit 9", "has_untraced": False}
    captured = capture(wanted(run, **options), Told())
    assert (captured.outcome, exit_code(captured)) == ("load-failed", 2)
    assert "the load command ended with exit code 9" in str(captured.problem)
    assert captured.problem.last_lines == ("no such dataset",)
    assert read_trace([run]).table("ops").height == 2


def test_a_load_command_is_ended_after_the_duration_with_what_it_started(run, tmp_path):
    """The second phase fails if a process of the first one still sleeps."""
    file = tmp_path / "pid"
    left = f'test "$(cut -d " " -f 3 /proc/$(cat {file})/stat)" = S && exit 3'
    command = f"test -e {file} && {left}; (trap '' TERM; exec sleep 60) & echo $! > {file}; wait"
    captured = capture(wanted(run, load_command=command, duration_s=0.3), Told())
    assert (captured.outcome, captured.problem) == ("complete", None)
    assert is_gone(int(read(file)))


def test_a_load_of_which_no_request_is_answered_has_failed(run):
    options = {"load": SMALL, "has_untraced": False}
    captured = capture(wanted(run, *OPENAI, "--fail-at", "/v1/completions", **options), Told())
    assert (captured.outcome, exit_code(captured)) == ("load-failed", 2)
    assert "none of its 1 requests was answered (HTTP 500: " in str(captured.problem)


def test_an_error_of_the_profiler_ends_the_capture_and_keeps_the_log(run, sessions, monkeypatch):
    def refuse(self, server):
        raise TracekitError("toy", "does not open", "Try again")

    monkeypatch.setattr(ToySession, "open_window", refuse)
    captured = capture(wanted(run, *OPENAI, load=SMALL, has_untraced=False), Told())
    assert (captured.outcome, str(captured.problem)) == ("failed", "toy: does not open. Try again")
    assert [what for what, _ in sessions[0].said] == ["close"]
    assert read(run / "server.log")


def test_what_is_refused_is_refused_before_the_launch_and_leaves_nothing(run, tmp_path):
    flag = tmp_path / "launched"
    ran = ("sh", "-c", f"touch {flag}")
    for options, match in [
        ({"profiler": "toi"}, "Did you mean toy"),
        ({"command": ("no-such-program",)}, "no-such-program: is not found"),
        ({"probe": tmp_path / "no.json"}, "cannot be read"),
    ]:
        with pytest.raises(BadInput, match=match):
            capture(wanted(run, **{"command": ran, **options}), Told())
        assert not run.exists()
    assert not flag.exists()


def test_an_existing_run_is_replaced_only_by_force_and_nothing_else_ever(run, tmp_path):
    quick = {"command": ("true",), "has_window": False, "has_load": False}
    capture(wanted(run, **quick), Told())
    (run / "mark").touch()
    with pytest.raises(OutputExists):
        capture(wanted(run, **quick), Told())
    with pytest.raises(BadInput):
        capture(wanted(run, **{**quick, "command": ("no-such-program",)}, force=True), Told())
    assert (run / "mark").exists()
    capture(wanted(run, **quick, force=True), Told())
    assert not (run / "mark").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(TracekitError, match="exists and is not a tracekit run"):
        capture(wanted(tmp_path / "mine", **quick, force=True), Told())
    assert {path.name for path in tmp_path.iterdir()} == {"run", "mine"}


def test_a_place_that_cannot_be_written_is_told_in_a_sentence():
    with pytest.raises(TracekitError, match=r"cannot be made: .*\. Choose another place"):
        capture(wanted(Path("/proc/run"), command=("true",)), Told())


def test_a_full_disk_is_told_and_the_server_is_stopped_in_good_order(run):
    """A limit on the size of files stands for the disk: it fails the same write calls."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    options = (*OPENAI, "--say", "x" * 5000)
    observer = Told()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, unlimited[1]))
    try:
        captured = capture(wanted(run, *options, load=SMALL, has_untraced=False), observer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert (captured.outcome, exit_code(captured)) == ("failed", 2)
    assert "cannot be written: file too large" in str(captured.problem)
    assert "server.log is cut: File too large" in observer.notes
    assert read_trace([run / "raw"]).table("ops").height == 2
