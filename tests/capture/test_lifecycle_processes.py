"""The process tree: who belongs to it, and that nothing of it outlives a capture."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from toy_session import TOY
from watching import is_gone, read, soon

from tracekit.capture.processes import Tree
from tracekit.errors import BadInput

SLEEP = "import time; time.sleep(60)"


@contextlib.contextmanager
def launched(*command, **options):
    """A tree that is gone afterwards, whatever the test did."""
    tree = Tree(list(command), dict(os.environ), **options)
    try:
        yield tree
    finally:
        tree.kill()
        tree.output.close()


def test_a_daemon_that_forked_twice_and_ignores_sigterm_is_found_and_ended(tmp_path):
    file = tmp_path / "pid"
    with launched(*TOY, "--daemon", str(file), "--no-port") as tree:
        daemon = int(soon(lambda: read(file)))
        # Its parent is gone, and its session is its own: nothing but adoption tells whose it is.
        assert psutil.Process(daemon).ppid() == os.getpid()
        assert os.getsid(daemon) != tree.pid
        assert daemon in tree.pids()
        tree.send(signal.SIGTERM, tree.pids())
        soon(lambda: tree.pids() == {daemon})
        assert tree.kill() == set()
        assert is_gone(daemon)


def test_without_a_subreaper_an_orphan_is_known_by_its_environment(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.capture.processes._adopt_orphans", lambda *, adopts: False)
    file = tmp_path / "pid"
    with launched(*TOY, "--daemon", str(file), "--no-port") as tree:
        daemon = int(soon(lambda: read(file)))
        assert psutil.Process(daemon).ppid() != os.getpid()
        assert daemon in tree.pids()
    assert is_gone(daemon)


def test_workers_of_a_killed_launcher_still_belong_to_the_tree():
    with launched(*TOY, "--workers", "2", "--no-port") as tree:
        workers = soon(lambda: len(tree.pids()) == 3 and tree.pids() - {tree.pid})
        tree.send(signal.SIGKILL, {tree.pid})
        soon(lambda: tree.pids() == workers)
        assert tree.has_failed()
        assert tree.exit_code() == -signal.SIGKILL
    assert all(is_gone(worker) for worker in workers)


def test_other_children_of_this_process_are_not_in_the_tree():
    """One that was there before outlives it; a profiler's tool that came later does not."""
    sleeper = [sys.executable, "-I", "-S", "-c", SLEEP]
    before = subprocess.Popen(sleeper, start_new_session=True)
    try:
        with launched(*TOY, "--no-port") as tree:
            later = subprocess.Popen(sleeper, start_new_session=True)
            assert {before.pid, later.pid} & tree.pids() == set()
        assert before.poll() is None
        assert later.wait() == -signal.SIGKILL
    finally:
        before.kill()
        before.wait()


def test_a_start_script_that_leaves_its_server_behind_has_not_failed():
    script = f"{sys.executable} -I -S -c '{SLEEP}' & exit 0"
    with launched("sh", "-c", script) as tree:
        soon(lambda: tree.exit_code() == 0)
        assert not tree.has_failed()
        (left,) = tree.pids()
        tree.send(signal.SIGKILL, {left})
        soon(tree.has_failed)


@pytest.mark.parametrize(("code", "has_failed"), [(3, True), (0, True)])
def test_a_command_that_ended_alone_has_failed_whatever_it_returned(code, has_failed):
    with launched(*TOY, "--exit", str(code)) as tree:
        soon(lambda: tree.exit_code() is not None)
        assert (tree.exit_code(), tree.has_failed()) == (code, has_failed)


def test_ports_are_those_of_every_process_of_the_tree():
    listen = (
        "import os,socket,time\n"
        "os.fork()\n"
        "s=socket.socket(); s.bind(('0.0.0.0',0)); s.listen(); print(s.getsockname()[1],flush=True)\n"
        "time.sleep(60)"
    )
    with launched(sys.executable, "-I", "-S", "-c", listen) as tree:
        printed = {int(tree.output.readline()) for _ in range(2)}
        assert soon(lambda: len(tree.listening()) == 2)
        assert tree.listening() == [("127.0.0.1", port) for port in sorted(printed)]


def test_holders_of_a_gpu_are_known_by_the_device_files_they_hold(tmp_path):
    device = tmp_path / "kfd0"
    device.touch()
    options = {"gpu_devices": (f"{tmp_path}/kfd[0-9]*",)}
    with launched(*TOY, "--workers", "2", "--hold", str(device), "--no-port", **options) as tree:
        soon(lambda: len(tree.gpu_pids()) == 2)
        assert tree.pid not in tree.gpu_pids()


def test_the_command_runs_in_a_session_of_its_own_without_input():
    script = "import os; print(os.getsid(0) == os.getpid(), os.readlink('/proc/self/fd/0'))"
    terminal = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    try:
        with launched(sys.executable, "-I", "-S", "-c", script) as tree:
            assert tree.output.readline() == b"True /dev/null\n"
    finally:
        os.dup2(terminal, 0)
        for end in (terminal, read_end, write_end):
            os.close(end)


def test_a_command_that_cannot_run_is_refused_in_a_sentence(tmp_path):
    broken = tmp_path / "server"
    broken.write_text("no program")
    broken.chmod(0o755)
    with pytest.raises(BadInput, match="cannot be started: exec format error"):
        Tree([str(broken)], dict(os.environ))
