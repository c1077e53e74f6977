"""Servers are ended so that every expected writer finishes, and none that does not is spared."""

import contextlib
import os
import signal
import sys
import threading
import time

import pytest
from toy_session import TOY, RawOnly, ToySession
from watching import Told, is_gone, soon

from tracekit.capture.processes import Tree
from tracekit.capture.server_kinds import OTHER, SGLANG, VLLM, Grace, kind_of, launcher_of
from tracekit.capture.stopping import Stop

GRACE = Grace(outputs_s=5.0, exit_s=0.4)


@contextlib.contextmanager
def toy(raw, *options, workers=2, words=(), gpu_devices=()):
    """A tree of the toy with its workers up, and the session that sees their traces."""
    command = [*TOY, "--workers", str(workers), "--traces", str(raw), "--no-port", *options, *words]
    tree = Tree(command, dict(os.environ), gpu_devices=gpu_devices)
    session = ToySession(RawOnly(raw))
    try:
        soon(lambda: len([*raw.glob("*.begun"), *raw.glob("*.up")]) == workers)
        yield tree, session
    finally:
        tree.kill()
        tree.output.close()


def test_traces_that_take_longer_than_the_grace_of_exit_are_waited_for(tmp_path):
    with toy(tmp_path, "--write-s", "0.5") as (tree, session):
        begun = session.has_begun()
        observer = Told()
        Stop(tree, session, observer, GRACE).orderly()
        assert session.written().keys() == begun
        assert not tree.pids()
    assert observer.notes == []
    assert any("waiting for the trace of process" in words for words in observer.words)


def test_a_writer_that_does_not_come_to_an_end_is_killed_after_the_grace_and_named(tmp_path):
    with toy(tmp_path, "--write-s", "60", workers=1) as (tree, session):
        (worker,) = session.has_begun()
        observer = Told()
        start = time.monotonic()
        stop = Stop(tree, session, observer, Grace(0.5, 0.3))
        stop._settle = lambda: None  # nothing comes any more: the wait for it is the next test's
        stop.orderly()
        assert time.monotonic() - start < 3
        assert stop.lost() == {worker}
        assert is_gone(worker)
    assert observer.notes == [
        f"process {worker} had not written a trace after 0.5 s and was killed: "
        "give it longer with --grace"
    ]


def test_a_server_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    with toy(tmp_path, "--ignore-term", workers=0) as (tree, session):
        soon(lambda: tree.output.readline() == b"toy server\n")
        time.sleep(0.1)  # it ignores SIGTERM from here on
        Stop(tree, session, Told(), Grace(0.3, 0.3)).orderly()
        assert tree.exit_code() == -signal.SIGKILL


# The launcher of SGLang kills its workers when it is asked to end, and when one of them ends.
SGLANG_WORDS = ("sglang.launch_server",)


def test_sglang_workers_write_though_their_launcher_would_kill_them(tmp_path):
    options = ("--launcher-kills-workers", "--watchdog", "--write-s", "0.3", "--fragile")
    with toy(tmp_path, *options, words=SGLANG_WORDS) as (tree, session):
        begun = session.has_begun()
        stop = Stop(tree, session, Told(), GRACE)
        assert stop.kind is SGLANG
        stop.orderly()
        assert session.written().keys() == begun
        assert tree.exit_code() == -signal.SIGKILL


def test_the_same_workers_are_lost_when_the_launcher_is_asked(tmp_path):
    """What the way for SGLang is for; as any other server the toy kills its workers."""
    options = ("--launcher-kills-workers", "--write-s", "0.3")
    with toy(tmp_path, *options) as (tree, session):
        stop = Stop(tree, session, Told(), GRACE)
        stop._settle = lambda: None
        stop.orderly()
        assert stop.lost() == session.has_begun()


def test_vllm_gets_one_interrupt_at_its_root(tmp_path):
    options = ("--ignore-term", "--write-s", "0.4", "--fragile")
    with toy(tmp_path, *options, words=("vllm", "serve")) as (tree, session):
        stop = Stop(tree, session, Told(), GRACE)
        assert stop.kind is VLLM
        stop.orderly()
        # The root ignores SIGTERM: it ended by SIGINT, and asked its workers itself.
        assert tree.exit_code() == 0
        assert session.written().keys() == session.has_begun()


def test_vllm_workers_whose_launcher_tells_them_nothing_are_asked_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.capture.stopping._SILENT_S", 0.3)
    device = tmp_path / "kfd"
    device.touch()
    options = ("--ignore-int", "--launcher-kills-workers", "--begin-late", "--write-s", "0.4")
    options += ("--hold", str(device))
    with toy(tmp_path, *options, words=("vllm", "serve"), gpu_devices=[str(device)]) as (
        tree,
        session,
    ):
        workers = tree.pids() - {tree.pid}
        observer = Told()
        start = time.monotonic()
        Stop(tree, session, observer, Grace(30.0, 0.4), tmp_path).orderly()
        assert time.monotonic() - start < 10
        assert session.written().keys() == workers
    named = ", ".join(map(str, sorted(workers)))
    assert observer.notes == [
        f"process {named} showed no sign of ending 0.3 s after vLLM was asked, and was sent "
        "SIGTERM itself"
    ]


def test_a_vllm_worker_that_writes_is_left_alone_however_long_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.capture.stopping._SILENT_S", 0.5)
    # One worker writes for 0.4 s, the other for 0.8 s: each end is a sign.
    options = ("--begin-late", "--write-s", "0.4", "--fragile")
    with toy(tmp_path, *options, words=("vllm", "serve")) as (tree, session):
        observer = Told()
        Stop(tree, session, observer, Grace(30.0, 0.4), tmp_path).orderly()
        assert len(session.written()) == 2
    assert observer.notes == []


def test_a_worker_that_began_to_write_when_its_launcher_was_asked_gets_no_second_signal(tmp_path):
    options = ("--write-s", "0.5", "--begin-late", "--fragile")
    with toy(tmp_path, *options) as (tree, session):
        Stop(tree, session, Told(), GRACE).orderly()
        assert len(session.has_begun()) == 2
        assert session.written().keys() == session.has_begun()


def test_a_worker_that_holds_a_gpu_is_waited_for_though_it_has_written_nothing_yet(tmp_path):
    device = tmp_path / "kfd"
    device.touch()
    options = ("--write-s", "0.5", "--begin-late", "--hold", str(device))
    with toy(tmp_path, *options, gpu_devices=[str(device)]) as (tree, session):
        tree.send(signal.SIGKILL, {tree.pid})
        soon(tree.has_failed)
        Stop(tree, session, Told(), GRACE).orderly()
        assert len(session.written()) == 2


def test_workers_that_lost_their_launcher_are_asked_themselves(tmp_path):
    with toy(tmp_path, "--write-s", "0.2") as (tree, session):
        tree.send(signal.SIGKILL, {tree.pid})
        soon(tree.has_failed)
        Stop(tree, session, Told(), GRACE).orderly()
        assert session.written().keys() == session.has_begun()


def test_a_kill_in_the_middle_keeps_what_is_written(tmp_path):
    with toy(tmp_path, "--write-s", "60") as (tree, session):
        worker = min(session.has_begun())
        stop = Stop(tree, session, Told())
        thread = threading.Thread(target=stop.now)
        (tmp_path / f"{worker}.trace.json").write_text("{}")
        thread.start()
        thread.join(10)
        assert not tree.pids()
        assert stop.lost() == session.has_begun() - {worker}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python3 -m sglang.launch_server --model-path m --tp 8", SGLANG),
        ("/opt/venv/bin/python -m sglang.launch_server", SGLANG),
        ("sglang serve --model-path m", SGLANG),
        ("vllm serve m -tp 8", VLLM),
        ("/usr/bin/python3 /usr/local/bin/vllm serve m", VLLM),
        ("python -m vllm.entrypoints.openai.api_server --model m", VLLM),
        ("bash -c 'exec vllm serve m'", VLLM),
        ("python -m instrumented_runtime.server --port 0", OTHER),
        ("python bench.py --name vllm", OTHER),
    ],
)
def test_the_kind_of_a_server_is_read_from_its_command(command, kind):
    assert kind_of(command.split()) is kind


def test_the_launcher_behind_a_shell_is_found_and_not_the_shell():
    script = "exec 3>&1; " + " ".join([*TOY, "--no-port", "sglang.launch_server"]) + "; true"
    tree = Tree(["sh", "-c", script], dict(os.environ))
    try:
        soon(lambda: len(tree.pids()) == 2)
        time.sleep(0.05)
        kind, launcher = launcher_of(tree.processes(), tree.pid)
        assert kind is SGLANG
        assert {launcher.pid, tree.pid} == tree.pids()
        assert launcher.pid != tree.pid
    finally:
        tree.kill()
        tree.output.close()


def test_the_launcher_is_the_server_and_not_a_profiler_that_waits_for_it(tmp_path):
    profiler = tmp_path / "rocprofv3"
    profiler.write_text("import subprocess, sys\nsubprocess.run(sys.argv[2:])\n")
    wrapped = [sys.executable, str(profiler), "--", *TOY, "--no-port", "sglang.launch_server"]
    tree = Tree(wrapped, dict(os.environ))
    try:
        soon(lambda: len(tree.pids()) == 2)
        time.sleep(0.05)
        kind, launcher = launcher_of(tree.processes(), tree.pid)
        assert kind is SGLANG
        assert launcher.pid != tree.pid
    finally:
        tree.kill()
        tree.output.close()
