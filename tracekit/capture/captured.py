"""What came of a capture: its outcome, what went wrong, and the exit code that says so."""

import signal
from dataclasses import dataclass, field

from tracekit.capture.run_directory import RunDirectory
from tracekit.errors import TracekitError


class ServerDied(TracekitError):
    """The server ended while it was needed."""


class ProgramFailed(TracekitError):
    """A command that was to run to its end returned something else than 0."""


@dataclass(slots=True)
class Captured:
    """What came of a capture.

    Attributes:
        run: Where it lies.
        outcome: `complete`, `interrupted`, `not-ready`, `server-died`, `load-failed` or `failed`.
        problem: What went wrong; None for `complete` and `interrupted`.
        signal_number: What interrupted it.
        is_cut: Whether it was told twice to end: nothing more is to be done.
        last_lines: Of the server, redacted.
        traced_cycle_ns: From the clients' metrics.
        untraced_cycle_ns: Likewise, without the profiler.
    """

    run: RunDirectory
    # Until it is known: an error of tracekit itself must not look like a success.
    outcome: str = "failed"
    problem: TracekitError | None = None
    signal_number: int | None = None
    is_cut: bool = False
    last_lines: list[str] = field(default_factory=list)
    traced_cycle_ns: float | None = None
    untraced_cycle_ns: float | None = None

    def cut(self) -> None:
        """Take down that it was told twice to end: what was complete until then is not."""
        self.is_cut = True
        if self.outcome == "complete":
            self.outcome = "interrupted"


def exit_code(captured: Captured) -> int:
    """Return the exit code of a capture: 0, 2 for a problem, 128 + the signal that ended it."""
    if captured.outcome == "interrupted":
        return 128 + (captured.signal_number or signal.SIGINT)
    return 0 if captured.problem is None else captured.problem.exit_code
