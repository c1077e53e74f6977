"""What a marker costs: off, as text alone, and per backend that is there.

    python bench/marks.py [--rounds 15]

Each figure is the median over rounds of one call's time, arguments and loop included, the names
local. `step` is its whole `with` block, which is three calls. `new` says what was never said before
and so writes its text; `use` repeats itself and finds the text made. Off is timed beside a call of
an empty method with the same arguments, alternating. No profiler listens. Exits 1 when a median is
beyond its limit.
"""

import argparse
import os
import platform
import statistics
import sys
import timeit
from itertools import count
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limits import Limit, exit_status

from instrumented_runtime.marks import BackendError, Marks, backend_named

OFF_LIMIT_US = 0.3
BUFFER = SimpleNamespace(
    name="page_table", address=0x7F00_1234_5678, size_bytes=4096, place="device"
)
STREAM = SimpleNamespace(name="forward", handle=0x55D0_1234_5678, flags="nonblocking")
EVENT = SimpleNamespace(handle=0x66A0_1234_5678)
CALLS = {
    "use": "marks.use(buffer, 'r')",
    "record": "marks.record(event, stream)",
    "new": "marks.replay(next(numbers))",
    "step": "with marks.step(next(numbers), kind='verify', batch_size=8, tokens=26): pass",
}
SETUP = "marks, buffer, stream, event, numbers = made"


class Empty:
    """The reference: a method that does nothing."""

    def use(self, buffer: object, mode: str) -> None:
        """Do nothing."""


class Nowhere:
    """A backend that drops the text, so that what is left is the cost of writing it."""

    def mark(self, text: str) -> None:
        """Drop it."""

    def push(self, text: str) -> None:
        """Drop it."""

    def pop(self) -> None:
        """Drop it."""


def timer(marks: object, call: str) -> timeit.Timer:
    """Return a timer of one call."""
    made = (marks, BUFFER, STREAM, EVENT, count())
    return timeit.Timer(call, SETUP, globals={"made": made})


def measured(timers: dict[str, timeit.Timer], number: int, rounds: int) -> dict[str, list[float]]:
    """Return µs per call by name, one per round, the timers alternating."""
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, one in timers.items():
            times[name].append(one.timeit(number) / number * 1e6)
    return times


def show(title: str, times: dict[str, list[float]]) -> dict[str, float]:
    """Print medians with their range; return the medians."""
    for name, values in times.items():
        median, least, most = statistics.median(values), min(values), max(values)
        print(f"{title:>16} {name:>6}: {median:.3f} µs ({least:.3f} to {most:.3f})")
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print, and exit."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=15)
    rounds = arguments.parse_args().rounds
    if rounds < 3:
        arguments.error("a median needs at least 3 rounds")
    timers = {name: timer(Marks(), call) for name, call in CALLS.items()}
    timers |= {"empty": timer(Empty(), CALLS["use"])}
    off = show("off", measured(timers, 200_000, rounds))
    backends = {"text alone": Nowhere()}
    for name in ("roctx", "nvtx", "record_function"):
        try:
            backends[name] = backend_named(name)
        except BackendError as error:
            print(f"{name:>16}: {error}")
    for name, backend in backends.items():
        marks = Marks(backend)
        show(name, measured({n: timer(marks, call) for n, call in CALLS.items()}, 5_000, rounds))
    print(
        f"n={rounds}; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    sys.exit(
        exit_status(
            [
                Limit("off, a call", off["use"], OFF_LIMIT_US, " µs"),
                Limit("off, a call of the three of a step", off["step"] / 3, OFF_LIMIT_US, " µs"),
                Limit("off, a call / an empty method", off["use"] / off["empty"], 3, " ×"),
            ]
        )
    )


if __name__ == "__main__":
    main()
