"""The process tree of a server: found however its processes were started, and ended whole.

A server's workers are children of children, daemons with a session of their own, and orphans whose
parent died first. Linux gives orphans to the nearest ancestor that asks for them (subreaper), which
tracekit does; elsewhere, and where an orphan came to us unseen, a variable in its environment tells
whose it is.
"""

import contextlib
import ctypes
import fnmatch
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import IO
from uuid import uuid4

import psutil

from tracekit.errors import BadInput, os_problem

# Who holds one of these runs work on a GPU: the compute driver of AMD, and that of NVIDIA.
GPU_DEVICES = ("/dev/kfd", "/dev/nvidia[0-9]*")
MARK = "TRACEKIT_CAPTURE"

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.01
_KILL_WITHIN_S = 10.0


class Tree:
    """A launched command and every process that comes of it.

    Attributes:
        pid: Of the launched process.
        output: What all of them print, standard output and errors as one stream of bytes.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        gpu_devices: Sequence[str] = GPU_DEVICES,
    ) -> None:
        """Launch a command in a session of its own, without standard input.

        Args:
            command: Argument vector.
            environment: The whole environment.
            gpu_devices: Globs of device files.

        Raises:
            BadInput: It cannot be started.
        """
        self._gpu_devices = gpu_devices
        self._mark = uuid4().hex
        self._seen: set[tuple[int, float]] = set()
        self._before = {process.pid for process in psutil.Process().children()}
        self._adopts = _adopt_orphans(adopts=True)
        try:
            self._root = subprocess.Popen(
                command,
                env={**environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            _adopt_orphans(adopts=False)
            problem = os_problem(error)
            raise BadInput(
                command[0], f"cannot be started: {problem}", "Check the command after --"
            ) from error
        self.pid = self._root.pid
        assert self._root.stdout is not None
        self.output: IO[bytes] = self._root.stdout

    def exit_code(self) -> int | None:
        """Return how the launched process ended, negative for a signal; None while it runs."""
        return self._root.poll()

    def has_failed(self) -> bool:
        """Return whether the launched process has ended, and not as one that leaves a daemon.

        A start script may put the server into the background and return 0: then the server is what
        is left of the tree. Takes no lock and reaps nothing, so that a signal handler may ask.
        """
        code = self._root.returncode
        if code is None:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return not self.pids()  # it was reaped this moment
            if ended is None:
                return False
            code = ended.si_status
        return code != 0 or not self.pids()

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of the tree, each parent before its children."""
        found = [p for top in self._tops() for p in (top, *_children(top))]
        living = [process for process in found if _is_alive(process)]
        self._seen |= {(process.pid, process.create_time()) for process in living}
        return living

    def pids(self) -> Set[int]:
        """Return the numbers of the living processes of the tree."""
        return {process.pid for process in self.processes()}

    def gpu_pids(self) -> Set[int]:
        """Return those of them that hold a GPU device."""
        return {pid for pid in self.pids() if self._holds_gpu(pid)}

    def listening(self) -> list[tuple[str, int]]:
        """Return addresses and TCP ports on which processes of the tree listen, lowest port first.

        An address that stands for all of a machine's is given as that of the machine itself.
        """
        found = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections(kind="tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        host, port = connection.laddr
                        found.add((_reachable(host), port))
        return sorted(found, key=lambda place: place[1])

    def send(self, number: int, pids: Iterable[int]) -> None:
        """Send a signal to processes of the tree; one that is gone or another's gets none."""
        wanted = set(pids)
        for process in self.processes():
            if process.pid in wanted:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def kill(self) -> Set[int]:
        """End every process at once, without mercy; return those that even that did not end.

        All that came of tracekit since the launch goes: the tree, orphans that cannot be told from
        it, and what a profiler started beside it.
        """
        deadline = time.monotonic() + _KILL_WITHIN_S
        while (left := self._everything()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            self._reap(left)
            time.sleep(_LOOK_EVERY_S)
        # A killed process of many threads is a zombie before it can be told how it ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._root.wait(_LOOK_EVERY_S if left else _KILL_WITHIN_S)
        _adopt_orphans(adopts=False)
        return {process.pid for process in left}

    def _tops(self) -> list[psutil.Process]:
        children = psutil.Process().children()
        self._reap(children)
        tops = [child for child in children if self._is_ours(child)]
        known = {child.pid for child in children}
        # Without a subreaper an orphan is init's: those we have seen are looked up again.
        lost = () if self._adopts else self._marked()
        return [*tops, *(process for process in lost if process.pid not in known)]

    def _is_ours(self, child: psutil.Process) -> bool:
        """Return whether a child of tracekit is the launched process, or came to us as an orphan.

        Others are of tracekit itself, such as a tool of the profiler that attaches to the server.
        """
        if child.pid == self.pid:
            return True
        if child.pid in self._before:
            return False
        try:
            return (
                (child.pid, child.create_time()) in self._seen
                or os.getsid(child.pid) == self.pid
                or child.environ().get(MARK) == self._mark
            )
        except (psutil.Error, OSError):
            return False

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def _everything(self) -> list[psutil.Process]:
        children = [c for c in psutil.Process().children() if c.pid not in self._before]
        found = [p for top in children for p in (top, *_children(top))]
        return [process for process in {*found, *self._marked()} if _is_alive(process)]

    def _reap(self, children: Iterable[psutil.Process]) -> None:
        """Collect orphans that ended: no one else does, and a zombie keeps its number."""
        for child in children:
            if child.pid == self.pid or not self._is_ours(child):
                continue  # whoever started it waits for it
            with contextlib.suppress(OSError):
                os.waitpid(child.pid, os.WNOHANG)

    def _holds_gpu(self, pid: int) -> bool:
        try:
            files = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return False
        for file in files:
            with contextlib.suppress(OSError):
                target = str(file.readlink())
                if any(fnmatch.fnmatch(target, device) for device in self._gpu_devices):
                    return True
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _reachable(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _adopt_orphans(*, adopts: bool) -> bool:
    """Ask Linux to give the orphans of our descendants to us, or no longer; False where it cannot.

    With a command under way twice in one process the first to end would switch it off for both;
    a capture is one per process.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0) == 0)
