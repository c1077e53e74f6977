"""The profiler inside a process, and the one outside that is told of the window."""

import ast
import contextlib
import shutil
import subprocess

import pytest
import torch
from hooked import HOOKS, run_hooked

from instrumented_runtime.hooks.process import Process
from instrumented_runtime.hooks.torch_profiler import HOOK
from tracekit.formats import read_trace

THREE_WINDOWS = """
import threading, torch
from in_server import turn_window
go, gone = threading.Event(), threading.Event()

def work():
    go.wait()
    with torch.profiler.record_function("of another thread"):
        torch.ones(2)
    gone.set()

threading.Thread(target=work).start()
turn_window()
go.set(), gone.wait()
turn_window()
for text in ("of the second", "of the third"):
    turn_window()
    with torch.profiler.record_function(text):
        pass
    if text == "of the second":
        turn_window()
"""


def texts(path):
    return set(read_trace([path]).table("ranges")["text"])


def test_each_window_is_a_file_with_all_threads_also_when_the_process_ends_in_it(tmp_path):
    ran = run_hooked(THREE_WINDOWS, tmp_path, hooks="torch_profiler", TRACEKIT_PROFILE_CPU="1")
    pid = ran.report["pid"]
    first, second, third = (
        tmp_path / f"{pid}{number}.trace.json.gz" for number in ("", ".2", ".3")
    )
    assert ran.traces == [second, third, first]
    assert not list(tmp_path.glob("*partial*"))
    assert ran.report["profiler"] == {"state": "written", "path": str(third)}
    said = {"of another thread", "of the second", "of the third"}
    found = [texts(path) & said for path in (first, second, third)]
    assert found == [{"of another thread"}, {"of the second"}, {"of the third"}]


@pytest.fixture
def profiled(tmp_path):
    """Return `profiled(**environment)`: a window of this process with its profiler; its report."""
    (tmp_path / "window").write_bytes(b"\0")

    def window(**environment):
        folders = {"TRACEKIT_HOOKS_DIR": str(tmp_path), "TRACEKIT_TRACE_DIR": str(tmp_path)}
        process = Process(folders | environment)
        HOOK.start(process)
        for value in (1, 2):
            (tmp_path / "window").write_bytes(bytes([value]))
            process.look()
        assert process.report.problems == []
        return process.report.profiler

    return window


def test_a_process_without_a_gpu_is_left_alone_and_says_idle(profiled, tmp_path):
    assert profiled() == {"state": "idle"}
    assert not list(tmp_path.glob("*.gz*"))
    # The same with what the tests of a machine without a GPU ask for.
    assert profiled(TRACEKIT_PROFILE_CPU="1")["state"] == "written"


@pytest.mark.parametrize(
    ("context", "folder", "reason"),
    [
        (contextlib.nullcontext, "", "TRACEKIT_TRACE_DIR is not set"),
        (torch.profiler.profile, None, "another profiler of PyTorch runs"),
        (contextlib.nullcontext, "/nowhere", "No such file or directory"),
    ],
)
def test_without_a_trace_the_reason_is_reported_and_the_server_runs(
    profiled, tmp_path, context, folder, reason
):
    folder = str(tmp_path) if folder is None else folder
    with context():
        said = profiled(TRACEKIT_PROFILE_CPU="1", TRACEKIT_TRACE_DIR=folder)
    assert said["state"] == "failed"
    assert reason in said["reason"]
    assert not list(tmp_path.glob("*.gz*"))


ROCTX = """
#include <stdio.h>
int roctxProfilerResume(unsigned long thread) { printf("resume %lu\\n", thread); fflush(stdout); return 0; }
int roctxProfilerPause(unsigned long thread) { printf("pause %lu\\n", thread); fflush(stdout); return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build a library with")
def test_rocprofv3_is_told_in_every_process_when_the_window_opens_and_closes(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "roctx.c").write_text(ROCTX)
    library = tmp_path / "lib" / "librocprofiler-sdk-roctx.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "roctx.c"], check=True)
    code = """
import time
from in_server import turn_window
turn_window()
time.sleep(0.2)  # some looks, of which none is to be told again
print('between', flush=True)
turn_window()
"""
    ran = run_hooked(code, tmp_path, hooks="roctx_window", ROCM_PATH=str(tmp_path))
    assert ran.output == "resume 0\nbetween\npause 0\n"
    assert ran.report["problems"] == []


def test_without_its_library_that_is_said_and_the_window_followed(tmp_path):
    code = "from in_server import turn_window\nturn_window()"
    ran = run_hooked(code, tmp_path, hooks="roctx_window", ROCM_PATH=str(tmp_path))
    assert ran.report["window"] == 1
    assert "roctx_window: no librocprofiler-sdk-roctx.so" in ran.report["problems"][0]


@pytest.mark.parametrize("folder", ["hooks", "hooks/path", "marks"])
def test_what_runs_in_a_server_reads_in_python_3_10(folder):
    for path in (HOOKS.parent / folder).glob("*.py"):
        ast.parse(path.read_text(), path.name, feature_version=(3, 10))


def test_a_torch_without_the_quick_way_in_records_the_same_ranges(monkeypatch, tmp_path):
    from instrumented_runtime.marks import backend_named

    def written(path):
        backend = backend_named("record_function")
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profiler:
            backend.push("outer")
            backend.mark("inner")
            backend.pop()
        profiler.export_chrome_trace(str(path))
        ranges = read_trace([path]).table("ranges").sort("start_ns")
        ids = dict(ranges.select("range_id", "text").rows())
        return [
            (text, ids.get(parent)) for text, parent in ranges.select("text", "parent_id").rows()
        ]

    expected = [("outer", None), ("inner", "outer")]
    assert written(tmp_path / "quick.json") == expected
    monkeypatch.delattr(torch.autograd, "_record_function_with_args_enter")
    monkeypatch.delattr(torch.autograd, "_record_function_with_args_exit")
    assert written(tmp_path / "slow.json") == expected
