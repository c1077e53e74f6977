"""The environment that brings hooks into a server, and the byte they follow."""

import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tracekit.capture.hooks.injection import default_hooks, environment_of
from tracekit.capture.hooks.window import ProcessReport, Window
from tracekit.errors import BadInput


def test_the_environment_is_what_hooks_read(tmp_path):
    variables = environment_of(
        Window(tmp_path),
        hooks=["torch_streams", "sglang", "torch_streams"],
        patches=[],
        markers="roctx",
        environment={"PYTHONPATH": "/mine:/other"},
        copies=True,
    )
    first, *rest = variables.pop("PYTHONPATH").split(os.pathsep)
    # Nothing else may lie there: it would be importable in every process of the server.
    assert {file.name for file in Path(first).iterdir()} - {"__pycache__"} == {"sitecustomize.py"}
    assert rest == ["/mine", "/other"]
    assert variables == {
        "TRACEKIT_HOOKS": "torch_streams,sglang",
        "TRACEKIT_PATCHES": "",
        "TRACEKIT_HOOKS_DIR": str(tmp_path),
        "TRACEKIT_MARKERS": "roctx",
        "TRACEKIT_HOOK_COPIES": "1",
    }
    bare = environment_of(Window(tmp_path), hooks=[], patches=[], markers="off", environment={})
    assert bare["PYTHONPATH"] == first
    assert "TRACEKIT_HOOK_COPIES" not in bare


def test_hooks_that_only_a_profiler_asks_for_do_not_run_by_default():
    assert {"sglang", "vllm", "aiter", "torch_streams"} <= set(default_hooks())
    assert not {"torch_profiler", "roctx_window"} & set(default_hooks())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"hooks": ["sglan"]}, "sglan: is not a hook. Did you mean sglang? See `tracekit list ho"),
        ({"patches": ["qqq"]}, "qqq: is not a patch. Known: "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(tmp_path, names, said):
    asked = {"hooks": [], "patches": []} | names
    with pytest.raises(BadInput) as refused:
        environment_of(Window(tmp_path), **asked, markers="off", environment={})
    assert str(refused.value).startswith(said)


def test_without_instrumented_runtime_it_says_how_to_get_it():
    program = (
        "from tracekit.capture.hooks.injection import default_hooks\n"
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda n: None if n == 'instrumented_runtime' else find(n)\n"
        "default_hooks()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (
        "instrumented_runtime: is not installed, and hooks and patches are part of it" in ran.stderr
    )


def test_the_byte_is_changed_in_place_so_that_a_mapping_sees_it(tmp_path):
    window = Window(tmp_path)
    with (tmp_path / "window").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    seen = [mapped[0]]
    for change in (window.open, window.open, window.close, window.close, window.open):
        change()
        seen.append(mapped[0])
    assert seen == [0, 1, 1, 2, 2, 3]
    assert Window(tmp_path / "other", is_open=True).is_open


def test_two_hundred_and_fifty_six_changes_keep_open_apart_from_closed(tmp_path):
    window = Window(tmp_path)
    for _ in range(128):
        window.open()
        assert window.is_open
        window.close()
        assert not window.is_open
    window.open()
    assert (window.value, window.is_open) == (1, True)


def report(folder, pid, value, **more):
    """Write what a process says of itself, as it does."""
    partial = folder / f".{pid}.partial"
    partial.write_text(json.dumps({"pid": pid, "window": value, "argv": ["x"]} | more))
    partial.replace(folder / f"{pid}.json")


def test_waiting_ends_when_every_living_process_that_reports_follows(tmp_path):
    window = Window(tmp_path)
    me, parent, dead = os.getpid(), os.getppid(), 1 << 29
    with (tmp_path / "window").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    for pid in (me, parent, dead):
        report(tmp_path, pid, 0)
    (tmp_path / "broken.json").write_text("{")
    window.open()
    assert mapped[0] == 1
    # The dead one is not waited for, nor the one that does not map the byte.
    assert window.laggards({me, parent}) == {me}
    start = time.monotonic()
    assert window.wait(lambda: {me, parent}, 0.2) == {me}
    assert time.monotonic() - start >= 0.2
    follows = threading.Timer(0.1, report, [tmp_path, me, 1])
    follows.start()
    assert window.wait(lambda: {me, parent}, 10) == set()
    follows.join()


def test_a_report_is_read_with_what_is_new_to_this_version(tmp_path):
    targets = {"sglang": {"found": ["Scheduler.run_batch"], "missing": [], "changed": []}}
    patch = {"min-free-slots": {"state": "refused", "reason": "its signature is another"}}
    state = {"state": "written", "path": "/t/7.trace.json.gz", "size": 9}
    report(tmp_path, 7, 2, hooks=targets, patches=patch, profiler=state, news={"a": 1})
    [found] = Window(tmp_path).reports().values()
    assert isinstance(found, ProcessReport)
    assert found.hooks["sglang"].found == ["Scheduler.run_batch"]
    assert (found.patches["min-free-slots"].state, found.profiler.state) == ("refused", "written")
