"""What a trace of whole steps shows of its streams, and of its all-reduces."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.bench.published import StreamProfile
from instrumented_runtime.costs import VERIFY

RANKS = 8
_DRAWS = 20
_ALL_REDUCE = "all_reduce"

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Profile:
    """Kernels of whole steps; those on the main queue in order.

    Attributes:
        streams: Per step: busy times of the forward's hardware queue and of all others, wall time.
        gaps_ns: From the end of the kernel before on the main queue to the start of each.
        busy_ns: How long each runs.
        is_all_reduce: Which are one.
    """

    streams: StreamProfile
    gaps_ns: Int64s
    busy_ns: Int64s
    is_all_reduce: Bools

    @property
    def all_reduce_us(self) -> float:
        """Mean time of an all-reduce and of the gap before it."""
        both = (self.gaps_ns + self.busy_ns)[self.is_all_reduce]
        return float(both.mean()) / 1e3


def stream_profile(path: Path, steps: int) -> Profile:
    """Return the profile of the last steps of a trace of decode steps without speculation.

    Args:
        path: A rocpd file of the virtual device.
        steps: How many; the trace holds one more, with which the last of them ends.
    """
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as trace:
        query = 'SELECT name, queue_id, start, "end" FROM kernels ORDER BY start'
        names, *columns = zip(*trace.execute(query), strict=True)
    queues, starts, ends = (np.array(column, np.int64) for column in columns)
    firsts = np.flatnonzero(np.array([name == VERIFY[0].name for name in names]))[-steps - 1 :]
    window = slice(firsts[0], firsts[-1])
    wall_ns, main = int(starts[firsts[-1]] - starts[firsts[0]]), queues[firsts[0]]
    queues, starts, ends = queues[window], starts[window], ends[window]
    is_main = queues == main
    is_all_reduce = np.array([name == _ALL_REDUCE for name in names[window]])[is_main]
    busy = ends - starts
    # What ends later than all that began before it adds what it does not share with them.
    latest = np.maximum.accumulate(ends)
    union = int((latest - np.maximum(starts, np.roll(latest, 1)))[1:].clip(0).sum() + busy[0])
    per_step = 1e6 * (len(firsts) - 1)
    streams = StreamProfile(
        main_busy_ms=int(busy[is_main].sum()) / per_step,
        side_busy_ms=int(busy[~is_main].sum()) / per_step,
        concurrency=int(busy.sum()) / union,
        wall_ms=wall_ns / per_step,
    )
    gaps = starts[is_main][1:] - ends[is_main][:-1]
    return Profile(streams, gaps, busy[is_main][1:], is_all_reduce[1:])


def all_reduce_skew(profile: Profile, delayed: Profile, *, ranks: int = RANKS) -> float:
    """Return by how much of its time an all-reduce waits for the rank that comes last, as a share.

    One device is simulated, but an all-reduce begins on each rank and ends on none before all are
    there. Dispatches that are delayed are assumed to be so by a poll that is under way, of which
    the rest is waited for: on each rank anything from nothing to twice the mean, independently. No
    constant is fitted.

    Args:
        profile: Without the delays.
        delayed: The same kernels with them.
        ranks: That reduce together.
    """
    reduces = np.flatnonzero(profile.is_all_reduce)
    means = (delayed.gaps_ns - profile.gaps_ns).clip(0)[: reduces[-1] + 1]
    draws = np.random.default_rng(0).random((_DRAWS, ranks, len(means)))
    # They leave an all-reduce together, and are apart by what is delayed until the next.
    after = np.concatenate(([0], reduces[:-1] + 1))
    arrivals = np.add.reduceat(2 * means * draws, after, axis=2)
    last = arrivals.max(1)
    waited = (last - arrivals.mean(1)).mean()
    return float(waited / profile.busy_ns[profile.is_all_reduce].mean())
