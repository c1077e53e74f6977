"""The host thread: its clock, the calls it makes, and how it waits for the device."""

import random
from collections.abc import Sequence

import numpy as np

from instrumented_runtime.devices.virtual.config import Config, is_count
from instrumented_runtime.devices.virtual.packets import BARRIER, EMPTY, Queue, Signal
from instrumented_runtime.devices.virtual.recording import Recording
from instrumented_runtime.devices.virtual.simulation import FOREVER, Simulation
from instrumented_runtime.recorder import Recorder, RecorderError
from instrumented_runtime.recorder.layout import APIS

# The device runs at the latest after so many packets, so that what is done is not kept.
_PACKETS_AT_MOST = 4_000


class Host:
    """The host thread that drives the device.

    Attributes:
        now_ns: Its clock, virtual.
        lost: What a kernel raised, if any; then every call raises it.
        costs_ns: What each call takes that waits for nothing.
        latency_ns: From the end of that until its packet is in a hardware queue.
        until_catch_up: How many packets may be queued until the device is let run.
    """

    def __init__(self, config: Config, record: Recording) -> None:
        """Start at one second."""
        self.config = config
        self.record = record
        self.now_ns = 1_000_000_000
        self.simulation = Simulation(config, record)
        self.lost: Exception | None = None
        timing = config.timing
        self.costs_ns = {api.name: timing.call_ns for api in APIS} | dict(timing.calls_ns)
        self._submitted_ns = 0
        self.latency_ns = timing.launch_latency_ns
        self.random = random.Random(config.seed)
        self.generator = np.random.default_rng(config.seed)
        self._handles = 0x5581_0000_0000
        self.until_catch_up = _PACKETS_AT_MOST

    def new_handle(self) -> int:
        """Return a handle no other object has."""
        self._handles += 0x40
        return self._handles

    @property
    def arrival_ns(self) -> int:
        """When a packet of the call that is being made is in its hardware queue."""
        submitted, now = self._submitted_ns, self.now_ns
        return (submitted if submitted > now else now) + self.latency_ns  # noqa: FURB136  hot

    def begin(self, api: str = "") -> int:
        """Begin a call; return its start.

        Raises:
            Exception: What a kernel raised: the device is lost.
        """
        if self.lost is not None:
            raise self.lost
        self._submitted_ns = self.now_ns + self.costs_ns.get(api, 0)
        return self.now_ns

    def end(self, api: str, start: int, *arguments: int, call: int | None = None) -> int:
        """End a call, which takes at least its cost; return its number."""
        cost = self.costs_ns[api]
        self.now_ns = max(self.now_ns, start + cost)
        return self.record.api_call(api, start, self.now_ns, arguments, call)

    def elapse(self, kind: str, count: int) -> None:
        """Work `count` times what `kind` costs.

        Raises:
            ValueError: The kind has no cost, or the count is below 0.
        """
        costs = self.config.host_costs_ns
        if kind not in costs:
            raise ValueError(f"kind: {kind!r} has no cost; known: {', '.join(costs) or 'none'}")
        if not is_count(count):
            raise ValueError(f"count: {count} is not allowed; give a whole number ≥ 0")
        self.now_ns += costs[kind] * count

    def submitted(self, packets: int) -> None:
        """Note that packets were queued, and let the device run when many are."""
        self.until_catch_up -= packets
        if self.until_catch_up <= 0:
            self.catch_up()

    def catch_up_soon(self) -> None:
        """Ask for it from another thread; the next packet does it."""
        self.until_catch_up = 0

    def finish(self) -> None:
        """Let the device do all that is queued, and close the ranges that are open."""
        if self.lost is None:
            self.simulation.advance(FOREVER)
        self.record.close(self.now_ns)
        self.lost = self.lost or RuntimeError("the recording of this device has ended")

    def start_recording(self, recorder: Recorder) -> None:
        """Record from now on what is called from now on.

        Raises:
            RecorderError: It is recorded already, or the recorder has a device.
        """
        if self.record.recorder is not None:
            raise RecorderError("the device is recorded already; end that recording first")
        self.catch_up()
        recorder.attach(
            self.config.as_options(),
            first_call=self.record.calls + 1,
            on_flush=self.catch_up_soon,
            before_close=lambda: self.stop_recording(recorder),
        )
        self.record.begin(recorder)

    def stop_recording(self, recorder: Recorder | None = None) -> None:
        """Record no more, unless it is another recorder by now; what still runs is not in it."""
        current = self.record.recorder
        if current is None or (recorder is not None and recorder is not current):
            return
        if self.lost is None:
            self.simulation.advance(self.now_ns)
        self.record.end(self.now_ns)

    def idle_until(self, time_ns: int) -> None:
        """Do nothing until a moment, unless it has passed."""
        self.now_ns = max(self.now_ns, time_ns)

    def barrier(self, queue: Queue, signal: Signal | None, waits: Sequence[Signal] = ()) -> None:
        """Queue a barrier packet."""
        arrive = self.arrival_ns
        self.until_catch_up -= 1
        queue.packets.append((BARRIER, arrive, 0, 0, 0, waits, None, 0.0, signal))

    def marker(self, queue: Queue) -> Signal:
        """Queue a barrier and return the signal it completes."""
        signal = Signal()
        self.barrier(queue, signal)
        return signal

    def catch_up(self) -> None:
        """Let the device do all that it does by now."""
        self.until_catch_up = _PACKETS_AT_MOST
        if self.lost is not None:
            raise self.lost
        self.simulation.advance(self.now_ns)

    def wait_for(self, signal: Signal) -> None:
        """Block until a signal is done; no time passes if it is."""
        self.catch_up()
        if signal.done_ns is None:
            done_ns = self.simulation.finish(signal)
            self.now_ns = max(self.now_ns, done_ns + self.config.timing.wake_up_ns)

    def wait_for_queues(self, queues: Sequence[Queue]) -> None:
        """Block until all that is queued is done."""
        self.catch_up()
        # An idle queue has nothing to wait for.
        busy = [queue for queue in queues if queue.packets or queue.state != EMPTY]
        for signal in [self.marker(queue) for queue in busy]:
            self.wait_for(signal)
