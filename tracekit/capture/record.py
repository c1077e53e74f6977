"""Keeps `capture.json` up to date: what ran, from before the launch to the end."""

import time
from collections.abc import Callable

from tracekit.capture.load.phases import Loading
from tracekit.capture.patch_notes import unapplied
from tracekit.capture.preparation import Prepared
from tracekit.capture.redaction import Redactor
from tracekit.capture.run_directory import RunDirectory
from tracekit.capture.stages import Observer
from tracekit.capture.wanted import Wanted
from tracekit.capture.what_ran import (
    clean_reports,
    take_reports,
    take_server,
    what_ran,
    write_what_ran,
)
from tracekit.errors import TracekitError
from tracekit.manifest.what_ran import ProfiledWindow, WhatRan


class Record:
    """The record of one capture; a disk that takes no more of it is no reason to stop a server.

    Attributes:
        what: The record.
        problem: Why it could not be written last; None if it was.
    """

    def __init__(
        self, wanted: Wanted, prepared: Prepared, run: RunDirectory, redactor: Redactor
    ) -> None:
        """Write what is known before the launch.

        Raises:
            BadInput: The probe's result cannot be read.
        """
        self.problem: OSError | None = None
        self._run, self._redactor = run, redactor
        self._headers = wanted.load.headers if wanted.load else {}
        load = wanted.load if wanted.load_command is None else [wanted.load_command]
        self.what: WhatRan = what_ran(
            wanted.command, wanted.environment, load=load, probe=wanted.probe
        )
        self.what.profiler = prepared.profiler.name
        self.what.profiler_options = dict(wanted.profiler_options)
        self.what.hooks, self.what.patches = list(prepared.hooks), list(wanted.patches)
        self._recorded = prepared.session.records_instead
        self._how = self._recorded or ("around the load" if wanted.has_window else "whole run")
        self._write()

    def stage(self, name: str) -> None:
        """Say that a stage begins."""
        self.what.stage = name
        self._write()

    def note(self, text: str) -> None:
        """Keep what the user is told besides."""
        self.what.notes.append(text)

    def is_ready(self, base_url: str | None) -> None:
        """Ask the server what it is."""
        if base_url is not None:
            take_server(self.what, base_url, self._headers)

    def takes(self, loading: Loading | None) -> None:
        """Keep which load was chosen, if none was asked for by name."""
        if loading is not None:
            self.what.load = self.what.load or loading.described()

    def window_opened(self) -> None:
        """Keep when, if the profiler keeps to it."""
        opened_ns = None if self._recorded else time.time_ns()
        self.what.window = ProfiledWindow(opened_ns=opened_ns, how=self._how)

    def window_closes(self) -> None:
        """Keep when, likewise."""
        if self.what.window is not None and self._recorded is None:
            self.what.window.closed_ns = time.time_ns()

    def phase_ended(self, phase: str, loading: Loading) -> None:
        """Keep how long a cycle took, where the load can tell."""
        if phase == "traced":
            self.what.traced_cycle_ns = loading.cycle_ns(phase)
        elif phase == "untraced":
            self.what.untraced_cycle_ns = loading.cycle_ns(phase)

    def unapplied(self) -> list[str]:
        """Return what became of patches that no process applied."""
        if self._run.hooks.is_dir():
            take_reports(self.what, self._run.hooks)
        return unapplied(self.what.patches, self.what.reports)

    def ended(self, outcome: str, problem: TracekitError | None) -> None:
        """Write the whole record: nothing of the server runs any more."""
        what = self.what
        what.outcome, what.end_ns = outcome, time.time_ns()
        what.problem = None if problem is None else str(problem)
        if self._run.hooks.is_dir():
            take_reports(what, self._run.hooks)
            self._clean_reports()
        self._write()

    def _clean_reports(self) -> None:
        try:
            clean_reports(self._run.hooks, self._redactor)
        except OSError as error:
            self.problem = error

    def _write(self) -> None:
        try:
            write_what_ran(self.what, self._run.capture, self._redactor)
        except OSError as error:
            self.problem = error
        else:
            self.problem = None


class Kept:
    """Tells the observer of a capture, and keeps in the record what should be there later."""

    def __init__(
        self, observer: Observer, record: Record, check: Callable[[], None] = lambda: None
    ) -> None:
        """Take whom to tell.

        Args:
            observer: Is told everything.
            record: Keeps stages and notes.
            check: Called at each stage and step, where a capture can be left.
        """
        self._observer, self._record, self._check = observer, record, check

    def stage(self, name: str, /) -> None:
        """Say that a stage begins."""
        self._observer.stage(name)
        self._record.stage(name)
        self._check()

    def at(self, what: str, /) -> None:
        """Say how far the stage is."""
        self._observer.at(what)
        self._check()

    def note(self, text: str, /) -> None:
        """Say what went otherwise than planned."""
        self._observer.note(text)
        self._record.note(text)
