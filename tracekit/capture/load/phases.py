"""Drives the phases of a load at a server, and keeps what clients saw."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import polars as pl

from tracekit.capture.load.client_metrics import MetricValue, client_metrics
from tracekit.capture.load.command import LoadFailed, run_load_command
from tracekit.capture.load.driving import Driven, Load, drive
from tracekit.capture.run_directory import RunDirectory
from tracekit.capture.stages import Observer
from tracekit.capture.what_ran import described
from tracekit.errors import TracekitError, os_problem


class Loading(Protocol):
    """A load that can be run once a phase."""

    @property
    def has_warm_up(self) -> bool:
        """Whether it has a phase before anything is measured."""

    def run(self, phase: str, should_stop: Callable[[], str | None]) -> str | None:
        """Run a phase; return why it was ended before its end, None if it was not.

        Raises:
            LoadFailed: It did not do what it should.
        """

    def described(self) -> dict[str, object]:
        """Return what it is, as it is kept in the record."""

    def cycle_ns(self, phase: str) -> float | None:
        """Return how long a cycle of the server took in a phase, where clients can tell."""


class BuiltinLoading:
    """The built-in load."""

    def __init__(self, load: Load, base_url: str, run: RunDirectory, observer: Observer) -> None:
        self._load, self._base_url, self._run, self._observer = load, base_url, run, observer
        self._driven: dict[str, Driven] = {}
        self.has_warm_up = load.warm_up > 0
        self.metrics: dict[str, dict[str, MetricValue]] = {}

    def run(self, phase: str, should_stop: Callable[[], str | None]) -> str | None:
        """Run a phase and write its requests and metrics beside those of the phases before.

        Raises:
            LoadFailed: Not one request was answered; some that were not are noted.
        """
        driven = drive(
            self._load,
            self._base_url,
            phase=phase,
            progress=lambda done, total, _what: self._observer.at(f"{done} of {total} requests"),
            should_stop=should_stop,
        )
        self._driven[phase] = driven
        self.metrics[phase] = client_metrics(driven)
        self._write()
        if driven.stopped is None:
            self._refuse_failures(driven)
        return driven.stopped

    def described(self) -> dict[str, object]:
        """Return what it is, as it is kept in the record."""
        return described(self._load)

    def cycle_ns(self, phase: str) -> float | None:
        """Return how long a cycle of the server took in a phase, where clients can tell."""
        value = self.metrics.get(phase, {}).get("cycle_ns")
        return value if isinstance(value, float) else None

    def _write(self) -> None:
        frames = [driven.records for driven in self._driven.values()]
        encoded = msgspec.json.format(msgspec.json.encode(self.metrics), indent=2)
        table = io.BytesIO()
        pl.concat(frames).write_parquet(table)
        try:
            self._run.requests.write_bytes(table.getvalue())
            self._run.client.write_bytes(encoded)
        except OSError as error:
            problem = f"cannot be written: {os_problem(error)}"
            raise TracekitError(self._run.path, problem, "Check the disk") from error

    def _refuse_failures(self, driven: Driven) -> None:
        failed = driven.records.filter(pl.col("status") != "ok")
        if failed.is_empty():
            return
        first = failed.row(0, named=True)
        why = f"{first['problem']}: {first['detail']}" if first["detail"] else first["problem"]
        if failed.height == driven.records.height:
            problem = f"none of its {failed.height} requests was answered ({why})"
            raise LoadFailed(f"load, {driven.phase}", problem, "See the server's last lines")
        self._observer.note(
            f"{failed.height} of {driven.records.height} requests of {driven.phase} failed ({why})"
        )


@dataclass(frozen=True, slots=True)
class CommandLoading:
    """A load generator of the user's.

    Attributes:
        command: For the shell.
        environment: Of it; the phase and where the server answers are added.
        base_url: Of the server.
        run: Where its log goes.
        redacted: Removes secrets from a line.
        has_warm_up: Never: what it does is its own affair.
    """

    command: str
    environment: dict[str, str]
    base_url: str | None
    run_directory: RunDirectory
    redacted: Callable[[str], str]
    has_warm_up: bool = False

    def run(self, phase: str, should_stop: Callable[[], str | None]) -> str | None:
        """Run the command once."""
        added = {"TRACEKIT_URL": self.base_url or "", "TRACEKIT_PHASE": phase}
        environment = {**self.environment, **added}
        log = self.run_directory.load_log
        return run_load_command(self.command, environment, log, self.redacted, should_stop)

    def described(self) -> dict[str, object]:
        """Return what it is, as it is kept in the record."""
        return described([self.command])

    def cycle_ns(self, _phase: str) -> float | None:
        """Return nothing: what it measures is its own affair."""
        return None
