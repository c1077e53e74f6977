"""Ctrl-C, SIGTERM and a closed terminal, as an exception where it is wanted.

Once means "stop in good order and keep what there is", twice "now". An exception out of a signal
handler can come between any two steps of code, so it is raised only where a call may block for
long; loops ask.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user, or who runs tracekit, wants it to end."""


class Interrupts:
    """Counts requests to end, and raises from the one on that the present stage ends at.

    Attributes:
        count: How many have come.
        number: The signal that came first; None before.
    """

    def __init__(self) -> None:
        self.count = 0
        self.number: int | None = None
        self._limit: int | None = None
        self._is_blocking = False
        self._ignored: set[int] = set()

    @contextmanager
    def handled(self) -> Iterator["Interrupts"]:
        """Take the signals for as long as the context lasts; only on the main thread.

        What was ignored when tracekit started, as under `nohup`, stays so; but the handler is set
        all the same, because a server started meanwhile must not inherit that it ignores SIGINT.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._asked) for number in _ASKING}
        self._ignored = {number for number in before if before[number] is signal.SIG_IGN}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def ending_at(self, count: int) -> Iterator[None]:
        """Let `check` raise inside the context from the request of this number on."""
        outer, self._limit = self._limit, count
        try:
            self.check()
            yield
        finally:
            self._limit = outer

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Raise out of whatever runs inside the context."""
        self.check()
        self._is_blocking = True
        try:
            self.check()  # one that came in between
            yield
        finally:
            self._is_blocking = False
        self.check()

    def check(self) -> None:
        """Raise if the stage is to end.

        Raises:
            Interrupted: The requests that the present stage ends at have come.
        """
        if self._limit is not None and self.count >= self._limit:
            self._is_blocking = False  # once: what cleans up is not interrupted again
            raise Interrupted

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if number in self._ignored:
            return
        self.count += 1
        self.number = self.number or number
        if self._is_blocking:
            self.check()
