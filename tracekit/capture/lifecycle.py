"""The life of one capture: launch, ready, warm up, load, window, stop.

Whatever happens after the launch, the tree is ended and what was captured is kept: a problem is
part of the answer, not an exception. `tracekit.cli.capture` reads the traces afterwards.
"""

import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass

from tracekit.capture.captured import Captured, ProgramFailed, ServerDied
from tracekit.capture.interrupts import Interrupted, Interrupts
from tracekit.capture.load.command import LoadFailed
from tracekit.capture.load.driving import Load
from tracekit.capture.load.phases import BuiltinLoading, CommandLoading, Loading
from tracekit.capture.preparation import Prepared, prepare
from tracekit.capture.processes import Tree
from tracekit.capture.readiness import NotReady, exit_words, speaks_openai, wait_until_ready
from tracekit.capture.record import Kept, Record
from tracekit.capture.redaction import Redactor
from tracekit.capture.run_directory import RunDirectory, claimed
from tracekit.capture.server_kinds import Grace
from tracekit.capture.server_log import ServerLog
from tracekit.capture.stages import Observer
from tracekit.capture.stopping import Stop
from tracekit.capture.told import telling
from tracekit.capture.wanted import Wanted
from tracekit.errors import TracekitError

_LOOK_EVERY_S = 0.1
# A connection that breaks is seen before the process that broke it is gone.
_DEATH_WITHIN_S = 0.5


def capture(wanted: Wanted, observer: Observer) -> Captured:
    """Run one capture up to raw traces and client results.

    Takes SIGINT, SIGTERM and SIGHUP for its time, so it belongs on the main thread. The first ends
    the stage that runs and stops the server in good order; the second kills it.

    Raises:
        TracekitError, Interrupted: Before the launch; the run directory is as it was.
    """
    with Interrupts().handled() as interrupts:
        with claimed(wanted.directory, force=wanted.force) as run:
            observer.stage("prepare")
            prepared = prepare(wanted, run, observer)
            headers = wanted.load.headers if wanted.load else None
            redactor = Redactor(wanted.words, prepared.environment, headers)
            record = Record(wanted, prepared, run, redactor)
            with interrupts.ending_at(1):
                observer.stage("launch")
            tree = Tree(
                prepared.session.command, prepared.environment, gpu_devices=wanted.gpu_devices
            )
        try:
            with suppress(OSError):  # a full disk: see `Record`
                run.server_pid.write_text(f"{tree.pid}\n")
            log = ServerLog(tree.output, run.server_log, redactor.text, wanted.readiness.pattern())
            started = _Started(run, prepared, record, tree, log, redactor)
            return _Life(wanted, started, observer, interrupts).live()
        finally:
            tree.kill()  # nothing is left to kill unless tracekit itself is at fault


@dataclass(frozen=True, slots=True)
class _Started:
    """What there is once the command was launched."""

    run: RunDirectory
    prepared: Prepared
    record: Record
    tree: Tree
    log: ServerLog
    redactor: Redactor


class _Life:
    """One capture from the launch on; also the `Server` that profilers see."""

    def __init__(
        self, wanted: Wanted, started: _Started, observer: Observer, interrupts: Interrupts
    ) -> None:
        self.base_url: str | None = None
        self.pid = started.tree.pid
        self._wanted, self._started = wanted, started
        self._tree, self._log, self._record = started.tree, started.log, started.record
        self._session, self._window = started.prepared.session, started.prepared.window
        self._interrupts = interrupts
        self._observer = Kept(observer, started.record, interrupts.check)
        # A load is told to stop in its own way: nothing is raised into it.
        self._quiet = Kept(observer, started.record)
        self._is_open = False
        self._captured = Captured(started.run)

    def pids(self) -> Set[int]:
        """Return the living processes of the server."""
        return self._tree.pids()

    def gpu_pids(self) -> Set[int]:
        """Return those of them that hold a GPU."""
        return self._tree.gpu_pids()

    def live(self) -> Captured:
        """Run all stages and return what came of them."""
        captured = self._captured
        try:
            with self._interrupts.ending_at(1):
                self._get_ready()
                self._measure()
                captured.outcome = "complete"
        except Interrupted:
            captured.outcome = "interrupted"
        except NotReady as problem:
            captured.outcome, captured.problem = "not-ready", problem
        except TracekitError as problem:
            self._fail(problem)
        finally:
            self._stop()
        return captured

    def _fail(self, problem: TracekitError) -> None:
        """Take a problem down; if the server is dead, its death is the problem."""
        captured = self._captured
        captured.problem = problem
        if isinstance(problem, ProgramFailed | ServerDied) or self._dies():
            captured.outcome = "server-died"
            if not isinstance(problem, ProgramFailed | ServerDied):
                captured.problem = self._death()
        elif isinstance(problem, LoadFailed):
            captured.outcome = "load-failed"
        else:
            captured.outcome = "failed"

    def _get_ready(self) -> None:
        wanted = self._wanted
        if wanted.is_program and not (wanted.has_load or self._session.needs_http):
            return
        self._observer.stage("ready")
        try:
            self.base_url = wait_until_ready(
                wanted.readiness, self._tree, self._log, self._observer, self._interrupts.blocking
            )
        except NotReady:
            if not (wanted.is_program and self._tree.exit_code() == 0):
                raise
        self._record.is_ready(self.base_url)

    def _measure(self) -> None:
        """Run warm-up, load and window in the order that was asked for."""
        wanted = self._wanted
        loading = self._load()
        self._record.takes(loading)
        if not wanted.has_window and self._tree.pids():
            self._open()
        if loading is not None and loading.has_warm_up:
            self._phase(loading, "warm_up")
        if loading is not None and wanted.has_window and wanted.has_untraced:
            self._untraced(loading)
        if wanted.has_window:
            self._open()
        if loading is not None:
            self._phase(loading, "traced")
        else:
            self._let_run()
        self._close()

    def _untraced(self, loading: Loading) -> None:
        if recorded := self._session.records_instead:
            self._observer.note(f"No untraced phase: the profiler records {recorded}")
        else:
            self._phase(loading, "untraced")

    def _load(self) -> Loading | None:
        wanted = self._wanted
        if wanted.load_command is not None:
            redacted, environment = self._started.redactor.text, dict(wanted.environment)
            return CommandLoading(
                wanted.load_command, environment, self.base_url, self._started.run, redacted
            )
        if not wanted.has_load or (wanted.load is None and wanted.duration_s is not None):
            return None
        if self.base_url is not None and (wanted.load or speaks_openai(self.base_url)):
            load = wanted.load or Load()
            return BuiltinLoading(load, self.base_url, self._started.run, self._quiet)
        if wanted.load is not None:
            remedy = "Say where it answers with --ready-url, or use --load-cmd"
            raise LoadFailed("load", "the server has no HTTP port", remedy)
        return None

    def _phase(self, loading: Loading, phase: str) -> None:
        self._observer.stage(phase)
        duration_s = self._wanted.duration_s
        end_s = None if duration_s is None else time.monotonic() + duration_s

        def should_stop() -> str | None:
            if self._interrupts.count:
                return "interrupted"
            if self._tree.has_failed():
                return "server died"
            return "duration" if end_s is not None and time.monotonic() > end_s else None

        reason = loading.run(phase, should_stop)
        self._record.phase_ended(phase, loading)
        self._interrupts.check()
        # Requests that fail because it died may all have ended before anyone looked.
        if reason == "server died" or (self._tree.has_failed() and self._tree.exit_code()):
            raise self._death()
        if reason not in (None, "duration"):
            raise LoadFailed(f"load, {phase}", f"was stopped: {reason}", "See server.log")

    def _let_run(self) -> None:
        """Wait until the time is over, the command ends, or the user has seen enough."""
        self._observer.stage("traced")
        start, duration_s = time.monotonic(), self._wanted.duration_s
        what = "until the command ends" if duration_s is None else f"{duration_s:g} s"
        while not self._tree.has_failed():
            if duration_s is not None and time.monotonic() - start >= duration_s:
                return
            self._observer.at(what)
            time.sleep(_LOOK_EVERY_S)
        if code := self._tree.exit_code():
            raise ProgramFailed(self._wanted.command[0], f"ended {exit_words(code)}", "See below")

    def _open(self) -> None:
        self._observer.stage("open window")
        self._is_open = True  # also when it fails half way: then it is closed again
        with self._interrupts.blocking():
            self._session.open_window(self)
        self._record.window_opened()

    def _close(self) -> None:
        """Close the window, once."""
        if not self._is_open:
            return
        self._is_open = False
        if not self._tree.pids():
            return  # whoever would have to be asked is gone, and has written or not
        self._observer.stage("close window")
        self._record.window_closes()
        with self._interrupts.blocking(), telling(self._quiet.at, self._started.run.raw):
            self._session.close_window(self)

    def _stop(self) -> None:
        """End the tree and keep what there is; told a second time, at once."""
        grace_s = self._wanted.grace_s
        grace = None if grace_s is None else Grace(grace_s, grace_s)
        stop = Stop(self._tree, self._session, self._observer, grace, self._started.run.raw)
        try:
            with self._interrupts.ending_at(2):
                self._close_anyhow()
                self._observer.stage("stop")
                stop.orderly()
        except Interrupted:
            self._captured.cut()
            stop.now()
        self._log.close()
        self._keep(stop)

    def _keep(self, stop: Stop) -> None:
        """Make readable what was written, and write down what came of the capture."""
        self._started.run.server_pid.unlink(missing_ok=True)
        for done in (*self._session.rescue(), *self._record.unapplied()):
            self._observer.note(done)
        if lost := stop.lost():
            pids = ", ".join(map(str, sorted(lost)))
            self._observer.note(f"process {pids} began to write a trace and did not finish it")
        if self._log.problem is not None:
            self._observer.note(f"server.log is cut: {self._log.problem.strerror}")
        captured, record = self._captured, self._record
        record.ended(captured.outcome, captured.problem)
        if record.problem is not None:
            self._observer.note(f"capture.json is not up to date: {record.problem.strerror}")
        captured.signal_number = self._interrupts.number
        captured.last_lines = self._log.last_lines()
        captured.traced_cycle_ns = record.what.traced_cycle_ns
        captured.untraced_cycle_ns = record.what.untraced_cycle_ns

    def _close_anyhow(self) -> None:
        try:
            self._close()
        except TracekitError as problem:
            self._observer.note(str(problem))
        finally:
            if self._window is not None:
                self._window.close()

    def _dies(self) -> bool:
        """Return whether the server is dead, or dies in a moment: who talks to it sees it first."""
        end_s = time.monotonic() + _DEATH_WITHIN_S
        while not self._tree.has_failed():
            if time.monotonic() > end_s:
                return False
            time.sleep(_LOOK_EVERY_S / 10)
        return True

    def _death(self) -> ServerDied:
        how = exit_words(self._tree.exit_code())
        return ServerDied("server", f"ended {how} while it was needed", "See its last lines")
