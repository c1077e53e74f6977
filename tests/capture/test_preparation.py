"""Which hooks a command gets, and where the markers of what writes its own go."""

import dataclasses
import os
import sys

import pytest
from watching import Told

from tracekit.capture.preparation import prepare
from tracekit.capture.run_directory import RunDirectory
from tracekit.capture.wanted import Wanted

OURS = (sys.executable, "-m", "instrumented_runtime.server", "--device", "torch")
FOREIGN = (sys.executable, "-m", "server", "--model-path", "/models/instrumented_runtime/m")


def prepared(tmp_path, command, **more):
    run = RunDirectory(tmp_path)
    run.raw.mkdir()
    environment = {"PATH": os.environ["PATH"]}
    wanted = Wanted(
        command=command, directory=tmp_path, environment=environment, profiler="torch-profiler"
    )
    return prepare(dataclasses.replace(wanted, **more), run, Told())


def test_what_writes_markers_itself_gets_no_default_hooks_that_would_say_them_again(tmp_path):
    ours = prepared(tmp_path, OURS)
    assert ours.hooks == ()
    assert "TRACEKIT_HOOKS" not in ours.environment
    assert ours.environment["TRACEKIT_MARKERS"] == "record_function"


@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        (OURS, {"hooks": ("torch_streams",)}, {"torch_streams"}),
        (OURS, {"profiler_options": {"through": "hook"}}, {"torch_profiler"}),
        (FOREIGN, {}, {"sglang", "vllm", "aiter", "torch_streams", "torch_profiler"}),
    ],
)
def test_hooks_that_were_asked_for_and_those_of_others_stay(tmp_path, command, more, expected):
    given = prepared(tmp_path, command, **more)
    assert set(given.hooks) == expected
    assert set(given.environment["TRACEKIT_HOOKS"].split(",")) == expected
    assert given.environment["TRACEKIT_MARKERS"] == "record_function"
