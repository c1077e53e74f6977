"""Profilers that hooks open and close: the hooks are real, in real processes with spawned workers.

The rocprofv3 here is the stand-in of `fake_rocprofv3.py`; PyTorch and its profiler are real.
"""

import os
import signal
import sys

import pytest
from rocm_stand_in import Launched, asked, install, running, started, steps_done, toy
from watching import soon

from tracekit.capture.hooks.injection import environment_of
from tracekit.capture.hooks.window import Window
from tracekit.capture.profilers import Asked, profilers
from tracekit.errors import TracekitError
from tracekit.formats import read_trace

KERNELS_PER_STEP = 40

# Two processes that compute, and say their number at every step, and one that waits for them.
TORCH_SERVER = """
import multiprocessing, os, time

def work(barrier):
    import torch
    barrier.wait()
    while True:
        with torch.profiler.record_function("tk1 step 1 kind=decode bs=1"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(0.01)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    children = [context.Process(target=work, args=(barrier,)) for _ in range(2)]
    [child.start() for child in children]
    [child.join() for child in children]
"""


@pytest.fixture(scope="module")
def rocm(tmp_path_factory):
    """A ROCm whose profiler is the stand-in, with its marker library."""
    root = install(tmp_path_factory.mktemp("rocm"))
    if not list((root / "lib").iterdir()):
        pytest.skip("gcc is not there to compile the library that stands in for roctx")
    return root


def injected(session, what, window, markers="off", **more):
    """Return the variables that put the session's hooks into a server."""
    environment = dict(what.environment) | dict(session.environment)
    return more | environment_of(
        window, hooks=session.hooks, patches=(), markers=markers, environment=environment
    )


@pytest.mark.slow
def test_selected_regions_records_the_window_and_nothing_else(rocm, tmp_path):
    folder, window = tmp_path / "toy", Window(tmp_path / "hooks")
    what = asked(rocm, tmp_path, toy(folder), window=window)
    session = started(what)
    with running(session, what, folder, **injected(session, what, window)) as tree:
        soon(lambda: len(steps_done(folder)) == 2 and min(steps_done(folder).values()) > 12)
        workers = tree.gpu_pids()
        before = steps_done(folder)
        session.open_window(tree)
        opened = steps_done(folder)
        soon(lambda: min(steps_done(folder)[pid] - opened[pid] for pid in workers) > 12)
        closing = steps_done(folder)
        session.close_window(tree)
        closed = steps_done(folder)
        soon(lambda: min(steps_done(folder)[pid] - closed[pid] for pid in workers) > 12)
        tree.send(signal.SIGTERM, workers)
        soon(lambda: session.written().keys() == workers)
    trace = read_trace([what.raw])
    markers = trace.table("ranges")
    ops = trace.table("ops")
    for process, pid in trace.table("processes").select("process_id", "pid").iter_rows():
        count = len(ops.filter(ops["kind"] == "kernel", ops["process_id"] == process))
        at_least, at_most = closing[pid] - opened[pid] - 1, closed[pid] - before[pid] + 2
        assert at_least * KERNELS_PER_STEP <= count <= at_most * KERNELS_PER_STEP
        texts = markers.filter(markers["process_id"] == process)["text"].to_list()
        assert texts
        assert all(before[pid] <= int(text.split()[2]) <= closed[pid] + 1 for text in texts)


def test_a_server_without_the_marker_library_is_told_so(rocm, tmp_path):
    folder, window = tmp_path / "toy", Window(tmp_path / "hooks")
    more = {"FAKE_ROCM_LIB": str(tmp_path), "ROCM_PATH": str(tmp_path)}
    what = asked(rocm, tmp_path, toy(folder, workers=1), window=window, more=more)
    session = started(what)
    with running(session, what, folder, **injected(session, what, window)) as tree:
        soon(lambda: steps_done(folder))
        with pytest.raises(
            TracekitError, match=r"could not resume rocprofv3 \(roctx_window: no lib"
        ):
            session.open_window(tree)


@pytest.mark.parametrize("name", ["rocprofv3", "torch-profiler"])
def test_a_server_that_hooks_do_not_reach_is_an_error_not_an_empty_window(rocm, tmp_path, name):
    window = Window(tmp_path / "hooks")
    command = [sys.executable, "-I", "-c", "import time; print(1, flush=True); time.sleep(60)"]
    what = asked(rocm, tmp_path, command, window=window)
    session = profilers()[name].start(what)
    with running(session, what, tmp_path, **injected(session, what, window)) as tree:
        tree.output.readline()
        with pytest.raises(
            TracekitError, match="Python started with -I, -E or -S ignores PYTHONPA"
        ):
            session.open_window(tree)


@pytest.mark.slow
def test_pytorch_s_profiler_is_injected_into_every_process_that_computes(tmp_path):
    script, raw, window = tmp_path / "server.py", tmp_path / "raw", Window(tmp_path / "hooks")
    script.write_text(TORCH_SERVER)
    raw.mkdir()
    what = Asked((sys.executable, str(script)), {"PATH": os.environ["PATH"]}, raw, window=window)
    session = profilers()["torch-profiler"].start(what)
    variables = injected(session, what, window, TRACEKIT_PROFILE_CPU="1")
    tree = Launched(session.command, what.environment | session.environment | variables)
    try:
        workers = set()
        while len(workers) < 2:
            workers.add(int(tree.output.readline()))
        session.open_window(tree)
        # The launcher has no torch, so it does not profile.
        assert session.has_begun() == workers
        assert session.written() == {}
        killed, lives = workers
        soon(lambda: [int(tree.output.readline()) for _ in range(9)].count(lives))
        tree.send(signal.SIGKILL, {killed})
        soon(lambda: killed not in tree.pids())
        session.close_window(tree)
        assert session.written() == {lives: (raw / f"{lives}.trace.json.gz",)}
        assert lives in tree.pids()
    finally:
        tree.end()
    assert session.rescue() == [
        f"process {killed} ended while it was profiled; its records are lost"
    ]
    trace = read_trace([raw])
    assert trace.table("processes")["pid"].to_list() == [lives]
    assert "tk1 step 1 kind=decode bs=1" in set(trace.table("ranges")["text"])
