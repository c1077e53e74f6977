"""Busy and idle time as the device itself counts them, from beginnings and ends as they happen."""


class Tally:
    """Counts how long anything ran, without looking at what is recorded."""

    def __init__(self) -> None:
        """Start with a device that has done nothing."""
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.busy_ns = 0
        self._running = 0
        self._since_ns = 0

    @property
    def span_ns(self) -> int:
        """From the first beginning to the last end; 0 if nothing ran."""
        if self.first_ns is None or self.last_ns is None:
            return 0
        return self.last_ns - self.first_ns

    @property
    def idle_ns(self) -> int:
        """The time of the span in which nothing ran."""
        return self.span_ns - self.busy_ns

    def begin(self, now_ns: int) -> None:
        """Something begins to run."""
        if self.first_ns is None:
            self.first_ns = now_ns
        if not self._running:
            self._since_ns = now_ns
        self._running += 1

    def end(self, now_ns: int) -> None:
        """Something that ran is done."""
        self._running -= 1
        self.last_ns = now_ns
        if not self._running:
            self.busy_ns += now_ns - self._since_ns

    def alone(self, begin_ns: int, end_ns: int, busy_ns: int) -> None:
        """Things ran one after the other, with nothing beside them, for `busy_ns` in all."""
        if self.first_ns is None:
            self.first_ns = begin_ns
        self.last_ns = end_ns
        self.busy_ns += busy_ns
