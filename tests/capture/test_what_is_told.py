"""What a capture tells on the terminal: printable, without secrets, and nothing left unsaid."""

import os
import sys

import pytest
from watching import Told, soon

from instrumented_runtime.patches import patch_names
from tracekit.capture import told
from tracekit.capture.captured import Captured
from tracekit.capture.lifecycle import capture
from tracekit.capture.patch_notes import unapplied
from tracekit.capture.profilers import Asked, profilers
from tracekit.capture.run_directory import RunDirectory, claimed
from tracekit.capture.wanted import Wanted
from tracekit.cli import main
from tracekit.cli.capture import _conclude
from tracekit.errors import BadInput, TracekitError
from tracekit.manifest.what_ran import read_what_ran

SERVER = (sys.executable, "-m", "instrumented_runtime.server", "--port", "0")
WHOLE = ("--window", "run", "--no-load")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def test_a_second_capture_into_the_same_run_is_refused_until_the_first_has_read_it(run, capsys):
    again = ["capture", "-o", str(run), "--force", "--profiler", "builtin", "--", "true"]
    with claimed(run, force=False) as held:
        pass
    for text in ("", '{"run_id": "a"}'):  # before and after the first has written its record
        (run / "capture.json").write_text(text)
        assert main(again) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"tracekit: {run}: another tracekit capture is writing it. Wait")
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    held.close()
    assert main(again) == 2  # of the profiler now
    assert "builtin: records the virtual device" in capsys.readouterr().err
    assert (run / "capture.json").exists()


@pytest.mark.parametrize(
    "url", ["htp://u:PW@127.0.0.1/?token=T0", "http://u:PW@127.0.0.1:99999/?token=T0"]
)
def test_a_refused_url_is_told_without_its_login_and_query(run, url, capsys):
    assert main(["capture", "-o", str(run), "--ready-url", url, "--", "true"]) == 2
    err = capsys.readouterr().err
    assert "is no URL" in err
    assert "PW" not in err
    assert "T0" not in err


def test_a_problem_is_told_without_the_secrets_that_were_given():
    environment = {"HF_TOKEN": "of-environment"}
    with (
        pytest.raises(TracekitError) as told_of,
        told.without_secrets(("serve", "--api-key", "of-command", None), environment),
    ):
        raise TracekitError("x", "got of-command", "or of-environment")
    assert str(told_of.value) == "x: got <redacted>. or <redacted>"


def test_lines_of_others_are_shown_short_and_a_terminal_obeys_none(run, capsys):
    lines = ["é\x1b[2J\a\t\x9b", "x" * 400, "x" * 300]
    captured = Captured(RunDirectory(run), problem=TracekitError("a", "b", "c"), last_lines=lines)
    _conclude(captured, run, is_read=True, has_traces=True)
    shown = capsys.readouterr().err.split("server.log:\n")[1].splitlines()
    assert shown[:3] == [r"  é\x1b[2J\x07\t\x9b", f"  {'x' * 300}…", f"  {'x' * 300}"]


def test_what_to_type_next_is_quoted_for_the_shell(tmp_path, capsys):
    run = tmp_path / "my run; rm"
    _conclude(Captured(RunDirectory(run)), run, is_read=True, has_traces=True)
    assert capsys.readouterr().err.endswith(f"Next: tracekit report '{run}'\n")


@pytest.mark.usefixtures("sessions", "nothing_left")
def test_a_program_that_left_no_trace_is_an_error_that_is_told(run, capsys):
    words = ("--profiler", "toy", "--no-hooks", *WHOLE, "--", "true")
    assert main(["capture", "-o", str(run), *words]) == 2
    assert f"\ntracekit: {run}: no trace was written. See" in capsys.readouterr().err


def test_waiting_for_a_profiler_says_how_much_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(told, "_TOLD_EVERY_S", 0.01)
    (tmp_path / "a").write_bytes(bytes(2_500_000))
    words = []
    with told.telling(words.append, tmp_path):
        soon(lambda: words)
    assert words[0] == "waiting for the profiler: 1 files, 2.5 MB"


def test_patches_that_were_applied_nowhere_are_named_with_the_reason():
    reports = {
        "1": {"patches": {"a": {"state": "waiting", "reason": "no sglang"}, "b": {"state": "x"}}},
        "2": {"patches": {"a": {"state": "refused", "reason": "other source"}}},
        "3": {"patches": {"b": {"state": "applied", "reason": ""}}},
    }
    assert unapplied(("a", "b", "c"), reports) == [
        "patch a was applied in no process (refused: other source; waiting: no sglang)",
        "patch c was applied in no process (none reported on it)",
    ]


@pytest.mark.usefixtures("sessions", "nothing_left")
def test_a_patch_that_does_not_apply_is_a_note_and_is_kept(run):
    name = patch_names()[0]
    observer = Told()
    wanted = Wanted(
        command=(sys.executable, "-c", "print(1)"),
        directory=run,
        environment=dict(os.environ),
        profiler="toy",
        hooks=(),
        patches=(name,),
        has_window=False,
        has_load=False,
    )
    capture(wanted, observer)
    (note,) = observer.notes
    assert note.startswith(f"patch {name} was applied in no process (")
    assert "none reported" not in note
    assert read_what_ran(run / "capture.json").notes == [note]


@pytest.mark.usefixtures("nothing_left")
def test_a_whole_run_of_a_server_that_profiles_over_http_waits_until_it_answers(run, capsys):
    assert main(["capture", "-o", str(run), *WHOLE, "--duration", "0.2", "--", *SERVER]) == 0
    assert f"Wrote {run}\n" in capsys.readouterr().err


def test_pytorchs_profiler_is_refused_on_a_device_that_it_cannot_see(tmp_path):
    start = profilers()["torch-profiler"].start
    with pytest.raises(BadInput, match=r"no kernels that PyTorch sees\. Choose --profiler builtin"):
        start(Asked(SERVER, {}, tmp_path))
    start(Asked((*SERVER, "--device", "torch"), {}, tmp_path))
