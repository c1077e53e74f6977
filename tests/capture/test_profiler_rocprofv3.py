"""rocprofv3 against a stand-in for it: no AMD GPU is here, so nothing shows the real one at work.

The stand-in has the real one's options and life: a tool in every process, one real-schema file per
process from what it really did, slow finalising on exit and on signals, nothing after KILL.
"""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from rocm_stand_in import (
    HERE,
    asked,
    environment_with,
    install,
    running,
    started,
    steps_done,
    toy,
)
from watching import soon

from tracekit.capture.hooks.window import Window
from tracekit.errors import BadInput, TracekitError
from tracekit.formats import read_trace

KERNELS_PER_STEP = 40


@pytest.fixture(scope="module")
def rocm(tmp_path_factory):
    """A ROCm whose profiler is the stand-in."""
    return install(tmp_path_factory.mktemp("rocm"))


def kernels_of(trace):
    """Count the kernels of each process of a trace, by its number on this machine."""
    pids = dict(trace.table("processes").select("process_id", "pid").iter_rows())
    ops = trace.table("ops")
    kernels = ops.filter(ops["kind"] == "kernel")["process_id"]
    return Counter(pids[process] for process in kernels)


def test_each_worker_writes_all_it_did_and_the_launcher_nothing(rocm, tmp_path):
    folder = tmp_path / "toy"
    what = asked(rocm, tmp_path, toy(folder, steps=12), has_window=False)
    session = started(what)
    with running(session, what, folder) as tree:
        soon(lambda: len(session.written()) == 2)
        assert tree.pids() == set()
    assert steps_done(folder).keys() == session.written().keys() == session.has_begun()
    trace = read_trace([what.raw])
    assert kernels_of(trace) == dict.fromkeys(steps_done(folder), 12 * KERNELS_PER_STEP)
    assert session.rescue() == []
    assert not list((what.raw / ".rocprofv3").iterdir())


def test_a_file_that_still_grows_is_not_written(rocm, tmp_path):
    folder = tmp_path / "toy"
    command = toy(folder, steps=12, workers=1)
    what = asked(rocm, tmp_path, command, more={"FAKE_ROCPROFV3_FINALIZE_S": "2"})
    session = started(what)
    with running(session, what, folder):
        file = soon(lambda: list(what.raw.rglob("*_results.db")))[0]
        pid = int(file.name.split("_")[0])
        # It has its tables by then, but no row: it lies there like this for a second.
        soon(lambda: file.stat().st_size > 50_000)
        assert (session.has_begun(), session.written()) == ({pid}, {})
        soon(session.written)
        assert session.written() == {pid: (file,)}
    assert kernels_of(read_trace([file])) == {pid: 12 * KERNELS_PER_STEP}


def test_what_a_killed_process_recorded_is_lost_and_said(rocm, tmp_path):
    folder = tmp_path / "toy"
    what = asked(rocm, tmp_path, toy(folder))
    session = started(what)
    with running(session, what, folder) as tree:
        soon(lambda: len(steps_done(folder)) == 2 and min(steps_done(folder).values()) > 12)
        killed, asked_to_end = sorted(tree.gpu_pids())
        tree.send(signal.SIGKILL, {killed})
        tree.send(signal.SIGTERM, {asked_to_end})
        soon(session.written)
        assert session.written().keys() == {asked_to_end}
        assert session.has_begun() == {killed, asked_to_end}
    [said] = session.rescue()
    assert said.startswith(f"process {killed} ended before rocprofv3 had written its file; ")


ENDS = {
    "sys.exit(0)": True,
    "os.kill(os.getpid(), signal.SIGINT)": True,
    "os.kill(os.getpid(), signal.SIGTERM)": True,
    "os.kill(os.getpid(), signal.SIGQUIT)": True,
    "os.abort_softly()": True,
    "os._exit(0)": False,
    "os.kill(os.getpid(), signal.SIGKILL)": False,
}


def test_the_stand_in_writes_after_the_ends_that_the_real_one_survives(rocm, tmp_path):
    body = (
        "import fake_hip, os, signal, sys, time\n"
        "os.abort_softly = lambda: os.kill(os.getpid(), signal.SIGABRT)\n"
        "for _ in range(500): fake_hip.launch('k')\n"
    )
    what = asked(rocm, tmp_path, ["true"], has_window=False)
    arguments = started(what).command[:-1]
    processes = {
        end: subprocess.Popen(
            [*arguments, sys.executable, "-c", body + end + "\ntime.sleep(9)"],
            env=what.environment,
            stderr=subprocess.DEVNULL,
        )
        for end in ENDS
    }
    for process in processes.values():
        process.wait(20)
    written = {int(path.name.split("_")[0]) for path in what.raw.rglob("*.db")}
    assert {end: process.pid in written for end, process in processes.items()} == ENDS


def test_a_forked_worker_loses_its_file_and_a_spawned_one_does_not(rocm, tmp_path):
    for method, expected in (("fork", 0), ("spawn", 1)):
        folder = tmp_path / method
        folder.mkdir()
        what = asked(rocm, folder, toy(folder, steps=12, method=method, workers=1))
        session = started(what)
        with running(session, what, folder) as tree:
            soon(lambda tree=tree: not tree.pids())
        assert len(list(what.raw.rglob("*.db"))) == expected, method


@pytest.mark.slow  # it measures times: on busy cores a period holds next to nothing
def test_a_collection_period_records_that_long_from_each_process_s_start(rocm, tmp_path):
    folder = tmp_path / "toy"
    what = asked(rocm, tmp_path, toy(folder, workers=1), period="0.2:0.2")
    session = started(what)
    with running(session, what, folder) as tree:
        soon(lambda: max(steps_done(folder).values(), default=0) > 200)
        tree.send(signal.SIGTERM, tree.gpu_pids())
        soon(session.written)
    calls = read_trace([what.raw]).table("calls")
    length_ns = calls["end_ns"].max() - calls["start_ns"].min()
    assert 0.05e9 < length_ns < 0.25e9


def test_a_newer_rocprofv3_records_waits_on_the_device(rocm, tmp_path):
    folder = tmp_path / "toy"
    more = {"FAKE_ROCPROFV3_VERSION": "10.1"}
    command = toy(folder, steps=12, workers=1)
    what = asked(rocm, tmp_path, command, more=more, has_window=False)
    session = started(what)
    assert {"--hip-graph-trace", "--hip-event-trace"} <= set(session.command)
    with running(session, what, folder):
        soon(session.written)
    waits = read_trace([what.raw]).table("waits")
    assert waits["evidence"].to_list() == ["recorded"] * 12


def test_attach_records_the_window_in_workers_that_run_on(rocm, tmp_path):
    folder = tmp_path / "toy"
    what = asked(rocm, tmp_path, toy(folder), mode="attach")
    session = started(what)
    assert session.command == what.command
    with running(session, what, folder) as tree:
        soon(lambda: len(steps_done(folder)) == 2)
        workers = tree.gpu_pids()
        before = steps_done(folder)
        session.open_window(tree)
        opened = steps_done(folder)
        soon(lambda: min(steps_done(folder)[pid] - opened[pid] for pid in workers) > 12)
        session.close_window(tree)
        assert session.written().keys() == workers
        closed = steps_done(folder)
        soon(lambda: all(steps_done(folder)[pid] > closed[pid] for pid in workers))
    for pid, count in kernels_of(read_trace([what.raw])).items():
        inside = (closed[pid] - before[pid] + 1) * KERNELS_PER_STEP
        assert 12 * KERNELS_PER_STEP <= count <= inside


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("7.2", "rocprofv3 attached and left, but wrote no file. Look for a library"),
        ("10.1", "could not attach to it: Cannot attach to process .* thread not found. It needs"),
    ],
)
def test_a_server_that_cannot_be_attached_to_is_an_error_not_an_empty_trace(
    rocm, tmp_path, version, said
):
    folder = tmp_path / "toy"
    more = {"FAKE_ROCPROFV3_VERSION": version, "ROCP_TOOL_ATTACH": "0"}
    options = {"mode": "attach", "write_timeout": "0.5"}
    what = asked(rocm, tmp_path, toy(folder, workers=1), more=more, **options)
    session = started(what)
    with running(session, what, folder) as tree:
        soon(lambda: steps_done(folder))
        with pytest.raises(TracekitError, match=said):
            session.open_window(tree)
            session.close_window(tree)


def test_the_file_of_an_attached_process_that_died_is_not_waited_for(rocm, tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.capture.profilers.rocprofv3._BEGIN_S", 0.3)
    folder = tmp_path / "toy"
    more = {"FAKE_ROCPROFV3_VERSION": "7.2", "FAKE_ROCPROFV3_FINALIZE_S": "60"}
    what = asked(rocm, tmp_path, toy(folder, workers=1), more=more, mode="attach")
    session = started(what)
    with running(session, what, folder) as tree:
        soon(lambda: steps_done(folder))
        session.open_window(tree)
        soon(session.has_begun)
        timer = threading.Timer(0.6, tree.send, [signal.SIGKILL, tree.gpu_pids()])
        timer.start()
        start = time.monotonic()
        with pytest.raises(TracekitError, match="rocprofv3 attached and left, but wrote no file"):
            session.close_window(tree)
        assert 0.5 < time.monotonic() - start < 10


def test_there_is_nothing_to_attach_to_before_a_process_holds_a_gpu(rocm, tmp_path):
    what = asked(rocm, tmp_path, ["sleep", "9"], mode="attach")
    session = started(what)
    with (
        running(session, what, tmp_path) as tree,
        pytest.raises(TracekitError, match="holds a GPU"),
    ):
        session.open_window(tree)


def test_the_environment_keeps_workers_alive_until_they_have_written(rocm, tmp_path):
    what = asked(rocm, tmp_path, ["true"], more={"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "60"})
    assert started(what).environment == {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "ROCPROF_TMPDIR": str(what.raw),
    }


def test_the_command_line_is_what_rocprofv3_takes(rocm, tmp_path):
    window = Window(tmp_path / "hooks")
    what = asked(rocm, tmp_path, ["serve", "-d"], window=window, arguments="--process-sync true")
    path, *arguments = started(what).command
    assert path == str(rocm / "bin" / "rocprofv3")
    assert arguments == (
        "--hip-runtime-trace --kernel-trace --memory-copy-trace --marker-trace --rccl-trace "
        f"--output-format rocpd -d {what.raw} -o %hostname%/%pid% --minimum-output-data 64 "
        "--process-sync true --selected-regions -- serve -d"
    ).split(" ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "window"}, "mode=window: is not known. Write one of whole-run, regions, period"),
        ({"perod": "1:1"}, "perod: is not an option of rocprofv3. Did you mean period?"),
        ({"period": "10"}, "period=10: is no START:DURATION"),
        ({"period": "10:0"}, "period=10:0: is no START:DURATION"),
        ({"mode": "regions"}, "mode=regions: needs hooks in the server"),
        ({"mode": "period"}, "mode: and period contradict"),
        ({"mode": "attach", "period": "1:1"}, "mode: and period contradict"),
        ({"write_timeout": "soon"}, "write_timeout=soon: is no length of time"),
        ({"path": "/nowhere/rocprofv3"}, "/nowhere/rocprofv3: is not installed, or not on PATH"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(rocm, tmp_path, options, said):
    with pytest.raises(BadInput) as refused:
        started(asked(rocm, tmp_path, ["true"], **options))
    assert str(refused.value).startswith(said)


def test_a_machine_without_rocprofv3_is_told_what_to_do(tmp_path):
    what = asked(tmp_path, tmp_path, ["true"])
    what.environment["PATH"] = str(tmp_path)
    with pytest.raises(BadInput) as refused:
        started(what)
    assert str(refused.value) == (
        "rocprofv3: is not installed, or not on PATH. Install rocprofiler-sdk of ROCm 7.0 or "
        "newer, or say where it is with --profiler-option path=…, or choose --profiler "
        "torch-profiler"
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no libraries >&2; exit 3", "failed with 3: no libraries. Run"),
        ("echo '--kernel-trace --output-format csv'", "cannot write rocpd. Update ROCm: 7.0 was"),
        ("echo 'rocpd --kernel-trace'", "has no --pid. Update ROCm: mode=attach needs it"),
    ],
)
def test_a_rocprofv3_that_cannot_do_it_is_named(tmp_path, script, said):
    program = tmp_path / "bin" / "rocprofv3"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(BadInput) as refused:
        started(asked(tmp_path, tmp_path, ["true"], mode="attach"))
    assert str(refused.value).startswith(f"{program}: {said}")


def test_the_stand_in_refuses_what_the_real_one_refuses(rocm, tmp_path):
    def run(*arguments):
        ran = subprocess.run(
            [shutil.which("rocprofv3", path=str(rocm / "bin")), *arguments],
            env=environment_with(rocm),
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stderr.splitlines()[-1]

    assert run("--kernel-trace") == (1, "[rocprofv3] Fatal error: No application provided")
    assert run("--hip-event-trace", "--", "true")[0] == 2
    code, said = run("--selected-regions", "-P", "1:1:1", "--", "true")
    assert (code, said.endswith("are mutually exclusive")) == (1, True)
    assert HERE.joinpath("fake_rocprofv3.py").exists()
