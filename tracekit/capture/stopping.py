"""Ends a server so that no trace is lost: asks, waits for what is being written, then uses force.

The processes waited for are the *expected writers*: those that hold a GPU, and those that have
begun to write. Empty traces are not written at all, so that a file for each process of the tree
would be waited for in vain.
"""

import signal
import time
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path

from tracekit.capture.processes import Tree
from tracekit.capture.profilers import Session
from tracekit.capture.server_kinds import Grace, launcher_of
from tracekit.capture.stages import Observer

_LOOK_EVERY_S = 0.05
# Workers whose launcher is gone end by themselves, or never.
_ORPHANS_S = 2.0
# A launcher that passes a signal on does so at once; what its workers write shows within this time.
_SILENT_S = 60.0
# For files that came to rest with the last process to be seen as complete: two looks at each.
_SETTLE_S = 2.0


class Stop:
    """The end of one tree.

    Attributes:
        kind: Of the server, from its processes.
    """

    def __init__(
        self,
        tree: Tree,
        session: Session,
        observer: Observer,
        grace: Grace | None = None,
        raw: Path | None = None,
    ) -> None:
        """Look at the tree; nothing is sent yet.

        Args:
            tree: What is to end.
            session: Knows who writes.
            observer: Is told what is waited for.
            grace: In place of that of the server's kind.
            raw: Folder of traces: as long as it changes, someone writes.
        """
        self._tree, self._session, self._observer, self._raw = tree, session, observer, raw
        self.kind, launcher = launcher_of(tree.processes(), tree.pid)
        self._launcher = None if launcher is None else launcher.pid
        self._grace = grace or self.kind.grace
        self._expected: set[int] = set()
        self._began_before = session.has_begun()
        self._end_s = 0.0

    def orderly(self) -> None:
        """Ask, wait and at last kill; returns when nothing of the tree is left.

        An exception on the way, such as the user's second Ctrl-C, leaves the tree as it is then:
        whoever takes it calls `now`.
        """
        self._end_s = time.monotonic() + self._grace.outputs_s
        living = self._tree.pids()
        others = living - {self._launcher}
        if self._launcher is not None and self.kind.asks == "workers" and others:
            self._end_workers(self._launcher, others)
        else:
            self._end_launcher()
        if late := self._unwritten(self._tree.pids()):
            self._observer.note(
                f"{_named(late)} had not written a trace after {self._grace.outputs_s:g} s and "
                "was killed: give it longer with --grace"
            )
        self.now()
        self._settle()

    def now(self) -> None:
        """Kill all at once and keep what is written."""
        if left := self._tree.kill():
            self._observer.note(f"{_named(left)} does not end, not even by SIGKILL (a driver?)")

    def lost(self) -> Set[int]:
        """Return the processes that had begun to write and left nothing complete."""
        return self._session.has_begun() - self._session.written().keys()

    def _end_workers(self, launcher: int, others: Set[int]) -> None:
        """Freeze the launcher and ask its workers; at last let it write a trace of its own."""
        self._tree.send(signal.SIGSTOP, {launcher})
        asked = (self._unwritten(others) & others) or others
        # All at once: they wait for each other in collectives.
        self._tree.send(self.kind.first_signal, asked)
        self._wait(lambda living: not (asked & living) - self._session.written().keys(), {launcher})
        if launcher in self.lost():
            self._tree.send(self.kind.first_signal, {launcher})
            self._tree.send(signal.SIGCONT, {launcher})
            self._wait(lambda living: launcher not in living & self.lost())

    def _end_launcher(self) -> None:
        """Ask the launcher, then whoever is left."""
        if self._launcher is not None:
            self._tree.send(self.kind.first_signal, {self._launcher})
            self._wait(self._must_be_told())
        # Whoever began to write since then was told: a second signal could cut the trace short.
        told = self.lost() - self._began_before
        # Nor is a launcher that tells its workers asked again before they are done.
        spared = {self._launcher} - {None} if self.kind.tells_workers else set()
        self._tree.send(signal.SIGTERM, self._tree.pids() - told - spared)
        self._wait(lambda living: bool(spared) and living <= spared)
        if left := self._tree.pids() & spared:
            self._tree.send(signal.SIGTERM, left)
            self._wait(lambda _living: False)

    def _must_be_told(self) -> Callable[[Set[int]], bool]:
        """Return what tells that the launcher's workers will not end unless they are asked.

        A shell or a start script passes no signal on, and nor do many servers. One that does is
        left alone until nothing has ended or been written for a minute.
        """
        late_s = time.monotonic() + self._grace.exit_s
        gone_s: list[float] = []
        is_silent = self._silence()

        def must(living: Set[int]) -> bool:
            now = time.monotonic()
            if self._launcher not in living:
                gone_s.append(now)
                return now - gone_s[0] > _ORPHANS_S
            return is_silent(living) if self.kind.tells_workers else now > late_s

        return must

    def _silence(self) -> Callable[[Set[int]], bool]:
        """Return what tells, once, that the processes show no sign of having been asked to end."""
        last: list[object] = [None]
        since_s = [time.monotonic()]

        def is_silent(living: Set[int]) -> bool:
            now, sign = time.monotonic(), (living, self._session.has_begun(), _sizes(self._raw))
            if sign != last[0]:
                last[0], since_s[0] = sign, now
            if now - since_s[0] <= _SILENT_S:
                return False
            who = _named(living - {self._launcher})
            self._observer.note(
                f"{who} showed no sign of ending {_SILENT_S:g} s after {self.kind.name} was asked, "
                "and was sent SIGTERM itself"
            )
            return True

        return is_silent

    def _wait(self, is_done: Callable[[Set[int]], bool], besides: Set[int] = frozenset()) -> None:
        """Wait until the tree is gone, something is done, or its grace is over.

        Args:
            is_done: Of the living processes.
            besides: Processes whose traces are not waited for here.
        """
        exit_s = time.monotonic() + self._grace.exit_s
        while living := self._tree.pids():
            if is_done(living):
                return
            unwritten = self._unwritten(living) - besides
            now = time.monotonic()
            if now > (self._end_s if unwritten else exit_s):
                return
            what = f"the trace of {_named(unwritten)}" if unwritten else f"{_named(living)} to end"
            self._observer.at(f"waiting for {what}")
            time.sleep(_LOOK_EVERY_S)

    def _unwritten(self, living: Set[int]) -> Set[int]:
        """Return the expected writers that live and have written nothing: not to be killed."""
        self._expected |= self._tree.gpu_pids() | self._session.has_begun()
        return (self._expected & living) - self._session.written().keys()

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while self.lost() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)


def _sizes(folder: Path | None) -> dict[Path, int]:
    sizes = {}
    for path in () if folder is None else folder.rglob("*"):
        with suppress(OSError):
            sizes[path] = path.stat().st_size
    return sizes


def _named(pids: Set[int]) -> str:
    shown = ", ".join(map(str, sorted(pids)[:4])) + (", …" if len(pids) > 4 else "")
    return f"process {shown}"
