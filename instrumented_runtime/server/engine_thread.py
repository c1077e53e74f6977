"""The thread that owns the engine: takes jobs in, steps, and hands out what each step yielded."""

import heapq
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import TypeVar
from zlib import crc32

from instrumented_runtime.console import say
from instrumented_runtime.devices import Device
from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.server.jobs import Event, Failed, Job
from instrumented_runtime.server.profiling import Finish, Windows
from instrumented_runtime.server.virtual_clock import Hold, Pace

_T = TypeVar("_T")

Delivery = Sequence[tuple[Job, Event]]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the thread drives.

    Attributes:
        engine: Serves.
        device: On this.
        windows: Records it.
        has_overlap: Whether a step is launched before the one before is taken in.
        pace: Virtual per wall nanosecond; None: as fast as it goes.
    """

    engine: Engine
    device: Device
    windows: Windows
    has_overlap: bool = True
    pace: float | None = None


class EngineThread:
    """Runs an engine; every method may be called from any thread.

    Attributes:
        ready: Done when the engine can serve, or failed with what keeps it from that.
        failure: What a step raised, if one did; then nothing is served any more.
    """

    def __init__(
        self,
        build: Callable[[], Machine],
        deliver: Callable[[Delivery], None],
        on_failure: Callable[[], None],
    ) -> None:
        """Start.

        Args:
            build: Makes what is driven, on the thread itself: a device knows one thread only.
            deliver: Takes what a step yielded; must not block.
            on_failure: Called once a step has failed and all jobs know.
        """
        self.ready: Future[Machine] = Future()
        self.failure: Exception | None = None
        self._build, self._deliver, self._on_failure = build, deliver, on_failure
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._hold = Hold()
        self._to_come: list[tuple[tuple[int, str, int], Job]] = []
        self._live: dict[Job, None] = {}
        self._numbers, self._request_ids = count(1), count(1)
        self._is_stopping = False
        self._machine: Machine
        self._pace: Pace
        # Not waited for at exit: a device that hangs would hang the process with it.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def machine(self) -> Machine:
        """What it drives; only what is safe to read from elsewhere may be read."""
        return self._machine

    @property
    def num_to_come(self) -> int:
        """Requests that arrive later."""
        return len(self._to_come)

    @property
    def num_unfinished(self) -> int:
        """Requests that have arrived and are not answered to their ends."""
        return len(self._live)

    def submit(self, job: Job) -> None:
        """Let a job arrive now, or when it asked to."""
        self._inbox.put(lambda: self._take_in(job))

    def abort(self, job: Job) -> None:
        """End a job that nobody waits for any more; nothing if it is over."""
        self._inbox.put(lambda: self._drop(job))

    def end_all(self, reason: Failed) -> None:
        """End all jobs for a reason."""
        self._inbox.put(lambda: self._fail_all(reason))

    def hold(self, below: int, expires_s: float) -> None:
        """Let virtual time stand while fewer requests are unfinished or to come."""

        def hold() -> None:
            self._settle()
            self._hold.set(below, expires_s)

        self._inbox.put(hold)

    def call(self, function: Callable[[Machine], _T]) -> "Future[_T]":
        """Call a function between two steps, on the thread."""
        future: Future[_T] = Future()

        def run() -> None:
            try:
                self._settle()
                future.set_result(function(self._machine))
            except Exception as error:  # noqa: BLE001  it is the caller's
                future.set_exception(error)

        self._inbox.put(run)
        return future

    def stop(self, timeout_s: float) -> "tuple[bool, Finish | None]":
        """End the thread; return whether it ended, and what completes an open recording."""
        finish: list[Finish] = []

        def end() -> None:
            self._is_stopping = True
            if self._machine.windows.is_open:
                finish.append(self._machine.windows.stop())

        self._inbox.put(end)
        self._thread.join(timeout_s)
        return not self._thread.is_alive(), finish[0] if finish else None

    def _run(self) -> None:
        try:
            self._machine = self._build()
        except Exception as error:  # noqa: BLE001  who waits for `ready` says it
            self.ready.set_exception(error)
            return
        self._pace = Pace(self._machine.pace, self._machine.device.now_ns)
        self.ready.set_result(self._machine)
        while not self._is_stopping:
            # A thread that died of what nobody thought of would leave every client waiting.
            try:
                self._receive(self._wait_s())
                if self._wait_s() == 0 and not self._is_stopping:
                    self._advance()
            except Exception as error:  # noqa: BLE001  the server says it and ends
                self._fail(error)

    def _receive(self, wait_s: float | None) -> None:
        """Do all that is in the inbox; wait for something if there is nothing."""
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait()
            while True:
                self._hold.news()
                item()
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _wait_s(self) -> float | None:
        """Return how long nothing is to be done unless something comes in; None for ever."""
        machine = self._machine
        if self.failure is not None:
            return None
        requests = len(self._live) + len(self._to_come)
        if self._hold.stands(requests):
            if (left_s := self._hold.left_s) > 0:
                return left_s
            say(
                f"virtual clock: held for {requests} of {self._hold.below} requests, and nothing "
                f"came for {self._hold.expires_s:g} s; it goes on"
            )
            self._hold.set(0, self._hold.expires_s)
        now_ns = machine.device.now_ns
        if machine.engine.has_work or (self._to_come and self._next_ns <= now_ns):
            return self._pace.wait_s(now_ns)
        return self._pace.wait_s(self._next_ns) if self._to_come else None

    @property
    def _next_ns(self) -> int:
        return self._to_come[0][0][0]

    def _advance(self) -> None:
        """Let what is due arrive, and take a step; with nothing to do, go to the next arrival."""
        machine = self._machine
        device, engine = machine.device, machine.engine
        if not engine.has_work and self._to_come and isinstance(device, VirtualDevice):
            device.idle_until(self._next_ns)
        self._pace.forgive(device.now_ns)
        while self._to_come and self._next_ns <= device.now_ns:
            self._admit(heapq.heappop(self._to_come)[1])
        self._step()
        self._hold.news()

    def _settle(self) -> None:
        """Take in the step that is still under way when all requests are answered.

        Else it would hang on the wires whether that step is over when a hold or a window begins or
        ends, and two runs of one load would differ.
        """
        engine = self._machine.engine
        while not self._live and not self._to_come and self.failure is None and engine.has_work:
            self._step()

    def _step(self) -> None:
        engine = self._machine.engine
        try:
            (engine.overlapped_step if self._machine.has_overlap else engine.step)()
        except Exception as error:  # noqa: BLE001  the server says it and ends
            self._fail(error)
            return
        self._report()

    def _report(self) -> None:
        """Hand out what the last step yielded."""
        now_ns = self._machine.device.now_ns
        news = [(job, chunk) for job in self._live if (chunk := job.news(now_ns)) is not None]
        for job, chunk in news:
            if chunk.end is not None:
                del self._live[job]
                if not job.request.is_finished:  # a stop string, which the engine does not know
                    self._machine.engine.abort(job.request)
        if news:
            self._deliver(news)

    def _take_in(self, job: Job) -> None:
        if self.failure is not None:
            self._deliver([(job, Failed(500, _words(self.failure)))])
            return
        device = self._machine.device
        now_ns = device.now_ns
        is_idle = not self._live and not self._machine.engine.has_work
        if is_idle and isinstance(device, VirtualDevice) and not self._hold.below:
            # Paced, an idle server's time has passed meanwhile.
            device.idle_until(self._pace.idle_ns(now_ns))
            now_ns = device.now_ns
        job.number = next(self._numbers)
        job.request.arrival_ns = max(job.asked_ns or 0, now_ns)
        heapq.heappush(self._to_come, (job.order, job))

    def _admit(self, job: Job) -> None:
        """Give a job to the engine; which positions its draft misses hangs on its number."""
        # JSON can hold halves of characters, UTF-8 cannot.
        rid, number = job.rid.encode(errors="replace"), next(self._request_ids)
        job.request.request_id = (1 << 32) + crc32(rid) if rid else number
        try:
            self._machine.engine.add(job.request)
        except ValueError as problem:
            self._deliver([(job, Failed(400, str(problem)))])
            return
        self._live[job] = None

    def _drop(self, job: Job) -> None:
        if job.is_over:
            return
        job.is_over = True
        if job in self._live:
            del self._live[job]
            if self.failure is None and not job.request.is_finished:
                self._machine.engine.abort(job.request)
        else:
            self._to_come = [entry for entry in self._to_come if entry[1] is not job]
            heapq.heapify(self._to_come)

    def _fail_all(self, reason: Failed) -> None:
        jobs = [*self._live, *(job for _, job in self._to_come)]
        for job in jobs:
            self._drop(job)
        self._deliver([(job, reason) for job in jobs])

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self._fail_all(Failed(500, _words(error)))
        self._on_failure()


def _words(error: Exception) -> str:
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"a step failed ({what}); the server ends"
