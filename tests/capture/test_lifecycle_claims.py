"""A capture claims no more than was seen: of its outcome, its window, its phase without profiler."""

import json
import os

import pytest
from rocm_stand_in import environment_with, install
from rocm_stand_in import toy as gpu_toy
from toy_session import TOY
from watching import Told, read

from tracekit.capture.lifecycle import capture
from tracekit.capture.load.file import Load
from tracekit.capture.readiness import Readiness
from tracekit.capture.wanted import Wanted
from tracekit.errors import BadInput

pytestmark = pytest.mark.usefixtures("sessions", "nothing_left")


def wanted(run, *options, **more):
    """A capture of the toy without workers."""
    given = {"environment": dict(os.environ), "profiler": "toy", "hooks": ()} | more
    return Wanted(command=(*TOY, *options), directory=run, **given)


def test_a_server_that_dies_with_the_last_request_is_no_complete_capture(tmp_path):
    run = tmp_path / "run"
    command = f"kill -9 $(cat {run}/server.pid)"
    captured = capture(wanted(run, load_command=command, has_untraced=False), Told())
    assert captured.outcome == "server-died"
    assert "SIGKILL" in str(captured.problem)


def test_a_load_that_gives_up_is_no_complete_capture(tmp_path):
    """The toy says that it is on virtual time, and has no clock to hold."""
    info = json.dumps({"clock": "virtual", "num_verifies": 0, "now_ns": 0})
    paths = ("--paths", "/health,/v1/models,/v1/completions,/server_info", "--info", info)
    captured = capture(wanted(tmp_path / "run", *paths), Told())
    assert captured.outcome == "load-failed"
    assert "was stopped: the server holds its time no more" in str(captured.problem)


def test_a_load_that_cannot_be_made_is_refused_before_anything_is_launched(tmp_path):
    load = Load(requests=500, prompt_tokens=1)
    observer = Told()
    with pytest.raises(BadInput, match="too short for so many prompts"):
        capture(wanted(tmp_path / "run", load=load), observer)
    assert observer.stages == ["prepare"]
    assert not (tmp_path / "run").exists()


def test_an_end_that_is_asked_for_before_the_launch_leaves_the_earlier_run(tmp_path):
    slow, earlier = tmp_path / "rocprofv3", tmp_path / "run" / "capture.json"
    slow.write_text("#!/bin/sh\nkill -INT $PPID\nsleep 0.2\necho rocpd --kernel-trace\n")
    slow.chmod(0o755)
    earlier.parent.mkdir()
    earlier.write_text('{"run_id": "a"}')
    more = {"profiler": "rocprofv3", "profiler_options": {"path": str(slow)}, "force": True}
    with pytest.raises(KeyboardInterrupt):
        capture(wanted(earlier.parent, **more), Told())
    assert read(earlier) == '{"run_id": "a"}'
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({}, "each process from its start"),
        ({"period": "1:2"}, "period 1:2 from each process's start"),
    ],
)
def test_there_is_no_phase_without_a_profiler_that_records_all_the_time(
    tmp_path, options, recorded
):
    rocm, folder, run = install(tmp_path / "rocm"), tmp_path / "toy", tmp_path / "run"
    observer = Told()
    captured = capture(
        Wanted(
            command=tuple(map(str, gpu_toy(folder, workers=1))),
            directory=run,
            environment=environment_with(rocm),
            profiler="rocprofv3",
            profiler_options=options,
            hooks=(),
            readiness=Readiness(log="worker"),
            load_command="true",
            gpu_devices=(str(folder / "kfd"),),
        ),
        observer,
    )
    assert captured.outcome == "complete"
    assert "untraced" not in observer.stages
    assert f"No untraced phase: the profiler records {recorded}" in observer.notes
    window = json.loads(read(run / "capture.json"))["window"]
    assert window == {"opened_ns": None, "closed_ns": None, "how": recorded}
