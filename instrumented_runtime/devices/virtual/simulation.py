"""The device in virtual time: hardware queues, barriers, pending waits and contention.

The host hands packets over ahead of time, each with the moment it arrives; `advance` then runs the
device up to a moment before which nothing more can arrive, so what it decides is final. At one
moment the lowest queue number comes first, and what waits behind a packet is dispatched as it ends.
"""

from math import ceil

import numpy as np

from instrumented_runtime.devices.virtual.config import Config
from instrumented_runtime.devices.virtual.packets import (
    ARRIVES_NS,
    BARRIER,
    BLOCKED,
    COPY,
    EMPTY,
    KERNEL,
    KIND,
    READY,
    RUN,
    RUNNING,
    STARTING,
    WHAT,
    Action,
    Packet,
    Queue,
    Signal,
)
from instrumented_runtime.devices.virtual.recording import COPIED, DISPATCH, THREADS, Recording
from instrumented_runtime.devices.virtual.tally import Tally

FOREVER = 1 << 62
_SIMPLE = (KERNEL, COPY)


class Simulation:
    """All hardware queues of a device, and what they did so far.

    Attributes:
        queues: In order of their first use; streams add them.
        tally: Busy and idle time as the device itself counts them.
    """

    def __init__(self, config: Config, record: Recording) -> None:
        """Start with no queues."""
        timing = config.timing
        self.queues: list[Queue] = []
        self.tally = Tally()
        self._dispatch_ns, self._graph_dispatch_ns = timing.dispatch_ns, timing.graph_dispatch_ns
        self._pending_ns = 0 if config.ordering_edges else timing.pending_wait_dispatch_ns
        self._release_ns = timing.wait_release_ns
        self._pending = self._kernels_running = self._sensitive_running = 0
        self._record = record

    def advance(self, until_ns: int, signal: Signal | None = None) -> None:
        """Run the device up to and including a moment, or until a signal is done.

        Args:
            until_ns: Nothing arrives before it any more.
            signal: Stop when it is done; the host waits for it, so nothing arrives meanwhile.
        """
        queues = self.queues
        while signal is None or signal.done_ns is None:
            first = None
            live = 0
            first_ns = until_ns + 1
            for queue in queues:
                state = queue.state
                if state == BLOCKED:
                    continue
                if state == EMPTY:
                    if not queue.packets:
                        continue
                    self._settle(queue)
                live += 1
                if queue.next_ns < first_ns:
                    first, first_ns = queue, queue.next_ns
            if first is None:
                return
            alone = live == 1 and first.state == READY
            if not (alone and self._run_alone(first, until_ns)):
                _STEPS[first.state](self, first)

    def finish(self, signal: Signal) -> int:
        """Run the device until a signal is done, while the host waits; return when it was."""
        self.advance(FOREVER, signal)
        assert signal.done_ns is not None, "the device stands still with work in its queues"
        return signal.done_ns

    def _settle(self, queue: Queue) -> None:
        """Look at the first packet: it begins when it has arrived and the one before is done."""
        if queue.packets:
            free, arrive = queue.free_ns, queue.packets[0][ARRIVES_NS]
            queue.state, queue.next_ns = READY, max(arrive, free)
        else:
            queue.state = EMPTY

    def _gap_ns(self, packet: Packet, place: int) -> int:
        gap = self._dispatch_ns if packet[KIND] != RUN or not place else self._graph_dispatch_ns
        return gap + self._pending_ns if self._pending else gap

    def _run_alone(self, queue: Queue, until_ns: int) -> bool:
        """Run whole packets of the one queue that can run; whether there was any.

        Nothing contends, and whether a wait is pending elsewhere cannot change before a signal is
        done, so each packet is an addition. Stops at barriers, signals, and what ends too late.
        """
        if queue.packets[0][KIND] == RUN:
            return self._run_graph_alone(queue, until_ns)
        packets = queue.packets
        gap = self._dispatch_ns + (self._pending_ns if self._pending else 0)
        free = queue.free_ns
        number = queue.number
        began = busy = 0
        record = self._record.dispatch
        try:
            while packets and packets[0][KIND] in _SIMPLE:
                kind, arrive, cost, call, stream, what, action, _, signal = packets[0]
                start = (arrive if arrive > free else free) + gap  # noqa: FURB136  in the hot loop
                end = start + cost
                if end > until_ns:
                    break
                packets.popleft()
                began = began if busy else start
                busy += cost
                free = end
                if kind == KERNEL:
                    record(DISPATCH(call, what, number, stream, start, end, 1, THREADS))
                else:
                    self._record.copy(COPIED(call, *what, stream, start, end))
                if action is not None:
                    action()
                if signal is not None:
                    self._complete(signal, end)
                    break
        finally:
            # Also where an action raised: what ran until then counts.
            if busy:
                queue.free_ns = free
                queue.busy_ns += busy
                self.tally.alone(began, free, busy)
                self._settle(queue)
        return busy > 0

    def _run_graph_alone(self, queue: Queue, until_ns: int) -> bool:
        """Run as many kernels of a graph's branch as end in time, all at once."""
        packet = queue.packets[0]
        run = packet[WHAT]
        place = queue.place
        costs = run.costs_ns[place:]
        gaps = np.full(len(costs), self._gap_ns(packet, 1), np.int64)
        if not place:
            gaps[0] = self._gap_ns(packet, 0)
        ends = queue.next_ns + np.cumsum(gaps + costs)
        count = int(np.searchsorted(ends, until_ns, "right"))
        if not count:
            return False
        done = 0 if run.actions else count
        try:
            for action in run.actions[place : place + count]:
                done += 1
                if action is not None:
                    action()
        finally:
            # Also where an action raised: what ran until then counts.
            starts = ends[:done] - costs[:done]
            self._record.run(packet, queue.number, place, starts, ends[:done])
            busy, end = int(costs[:done].sum()), int(ends[done - 1])
            queue.busy_ns += busy
            self.tally.alone(int(starts[0]), end, busy)
            self._move_on(queue, packet, place + done, end)
        return True

    def _move_on(self, queue: Queue, packet: Packet, place: int, end_ns: int) -> None:
        """Go to the next kernel of a run, or to the next packet."""
        queue.free_ns, queue.place = end_ns, place
        if packet[KIND] == RUN and place < len(packet[WHAT].costs_ns):
            queue.state, queue.next_ns = READY, end_ns
            return
        queue.place = 0
        packets = queue.packets
        packets.popleft()
        signal = packet[-1]
        if signal is not None:
            self._complete(signal, end_ns)
        if packets and packets[0][ARRIVES_NS] <= end_ns and packets[0][KIND] in _SIMPLE:
            # What comes next is there: it is dispatched at once.
            queue.state = STARTING
            queue.next_ns = end_ns + self._dispatch_ns
            if self._pending:
                queue.next_ns += self._pending_ns
        else:
            self._settle(queue)

    def _begin(self, queue: Queue) -> None:
        packet = queue.packets[0]
        if packet[KIND] != BARRIER:
            queue.state = STARTING
            queue.next_ns += self._gap_ns(packet, queue.place)
            return
        waits = [signal for signal in packet[WHAT] if signal.done_ns is None]
        if not waits:
            self._move_on(queue, packet, 0, queue.next_ns)
            return
        queue.state, queue.begun_ns, queue.waits_for = BLOCKED, queue.next_ns, len(waits)
        self._pending += 1
        for signal in waits:
            signal.waiters.append(queue)

    def _start(self, queue: Queue) -> None:
        kind, _, cost, _, _, what, _, sensitivity, _ = queue.packets[0]
        is_kernel = kind == KERNEL
        if kind == RUN:
            cost, sensitivity, is_kernel = what.at(queue.place)
        now = queue.begun_ns = queue.next_ns
        queue.state = RUNNING
        queue.next_ns = now + cost
        self.tally.begin(now)
        if is_kernel:
            queue.sensitivity = sensitivity
            self._kernels_running += 1
            if sensitivity > 0:
                queue.updated_ns, queue.remaining_ns, queue.slowdown = now, cost, 1.0
                self._sensitive_running += 1
            if self._sensitive_running and self._kernels_running > 1:
                self._contend(now)

    def _finish(self, queue: Queue) -> None:
        packet, place, end = queue.packets[0], queue.place, queue.next_ns
        if packet[KIND] == BARRIER:
            # A wait that was pending is released.
            self._pending -= 1
            self._move_on(queue, packet, 0, end)
            return
        action = self._stop(queue, end)
        self._move_on(queue, packet, place + 1, end)
        if action is None:
            return
        try:
            action()
        except Exception:
            # The device is lost: whatever runs beside it ends here too.
            for other in self.queues:
                if other.state == RUNNING and other.packets[0][KIND] != BARRIER:
                    self._stop(other, end)
            raise

    def _stop(self, queue: Queue, end: int) -> Action | None:
        """Account for and record what runs in a queue; return what it does to tensors."""
        packet = queue.packets[0]
        kind, _, _, call, stream, what, action, _, _ = packet
        record, begun = self._record, queue.begun_ns
        self.tally.end(end)
        queue.busy_ns += end - begun
        if kind == KERNEL:
            record.dispatch(DISPATCH(call, what, queue.number, stream, begun, end, 1, THREADS))
        elif kind == COPY:
            record.copy(COPIED(call, *what, stream, begun, end))
        else:
            bounds = np.array([[begun], [end]], np.int64)
            record.run(packet, queue.number, queue.place, bounds[0], bounds[1])
            action = what.actions[queue.place] if what.actions else None
        if queue.sensitivity >= 0:
            self._kernels_running -= 1
            if queue.sensitivity > 0:
                self._sensitive_running -= 1
            queue.sensitivity = -1.0
            if self._sensitive_running:
                self._contend(end)
        return action

    def _contend(self, now_ns: int) -> None:
        """Change the speed of kernels that mind how many run beside them."""
        beside = self._kernels_running - 1
        for queue in self.queues:
            if queue.sensitivity <= 0:
                continue
            slowdown = 1 + queue.sensitivity * beside
            if slowdown != queue.slowdown:
                # Rounding may leave less than nothing of one that ends now.
                remaining = queue.remaining_ns - (now_ns - queue.updated_ns) / queue.slowdown
                queue.remaining_ns = remaining if remaining > 0 else 0.0
                queue.updated_ns, queue.slowdown = now_ns, slowdown
                queue.next_ns = now_ns + ceil(queue.remaining_ns * slowdown)

    def _complete(self, signal: Signal, now_ns: int) -> None:
        signal.done_ns = now_ns
        for queue in signal.waiters:
            queue.waits_for -= 1
            if not queue.waits_for:
                # Until it is released the wait is still polled, and costs the others; one that was
                # pending for no time was not pending.
                queue.state = RUNNING
                queue.next_ns = now_ns + (self._release_ns if queue.begun_ns < now_ns else 0)
        signal.waiters.clear()


_STEPS = {READY: Simulation._begin, STARTING: Simulation._start, RUNNING: Simulation._finish}
