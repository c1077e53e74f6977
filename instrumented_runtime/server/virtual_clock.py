"""When virtual time may go on: held until enough requests are there, paced by the wall clock."""

import time
from collections.abc import Callable

EXPIRES_S = 30.0
# A lag of less is caught up with; more is forgiven, else a slow machine would never rest.
_FORGIVEN_S = 0.05
# Who waits looks again after so long; threads cannot be told to wait for ever so long.
_WAIT_AT_MOST_S = 3_600.0


class Hold:
    """Lets virtual time stand while too few requests are unfinished or to come.

    So the wires of a closed loop of N clients cost no virtual time: when one is answered, the
    clock stands until the next of that client is there.

    Attributes:
        below: Of how many; 0 holds nothing.
        expires_s: After so long without news it gives up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Hold nothing."""
        self.below, self.expires_s = 0, EXPIRES_S
        self._clock = clock
        self._last_news = clock()

    def set(self, below: int, expires_s: float) -> None:
        """Hold from now on."""
        self.below, self.expires_s = below, expires_s
        self.news()

    def news(self) -> None:
        """Note that something came in, or that the clock has just begun to stand."""
        self._last_news = self._clock()

    def stands(self, requests: int) -> bool:
        """Whether the clock stands with so many requests."""
        return requests < self.below

    @property
    def left_s(self) -> float:
        """Until it expires; 0 if it has."""
        return max(self._last_news + self.expires_s - self._clock(), 0.0)


class Pace:
    """Ties virtual to wall time: virtual time never goes faster, and idle time passes too."""

    def __init__(
        self, rate: float | None, now_ns: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start at a virtual moment; virtual per wall nanosecond, or as fast as it goes if None."""
        self._rate, self._clock = rate, clock
        self._wall_s, self._virtual_ns = clock(), now_ns

    def wait_s(self, now_ns: int) -> float:
        """Return how long to wait until it is that moment by the wall, an hour at most.

        It is 0 without a pace.
        """
        if self._rate is None:
            return 0.0
        due_s = self._wall_s + (now_ns - self._virtual_ns) / self._rate / 1e9
        return min(max(due_s - self._clock(), 0.0), _WAIT_AT_MOST_S)

    def idle_ns(self, now_ns: int) -> int:
        """Return what time it is by the wall, for a server that has had nothing to do."""
        if self._rate is None:
            return now_ns
        passed_ns = round((self._clock() - self._wall_s) * 1e9 * self._rate)
        return max(self._virtual_ns + passed_ns, now_ns)

    def forgive(self, now_ns: int) -> None:
        """Begin anew from a virtual moment if the wall is far ahead of it."""
        if self._rate is None:
            return
        if (self.idle_ns(now_ns) - now_ns) / self._rate / 1e9 > _FORGIVEN_S:
            self._wall_s, self._virtual_ns = self._clock(), now_ns
