"""Rows for the recorder, or for nobody: numbers of calls, kernels and texts are given here."""

from collections.abc import Callable, Sequence
from struct import Struct

import numpy as np

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual.config import is_count
from instrumented_runtime.devices.virtual.packets import Int64s, Packet
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.recorder.layout import API_NUMBERS, TABLES

THREAD = 1
# In x, of every kernel: the model knows no shapes.
THREADS = 256
# By number of arguments: what fills a row up to five.
_PADDING = [(0,) * (5 - given) for given in range(6)]

Row = tuple[int, ...]

# A row as bytes. Packing one and appending its bytes takes a third of the time that appending its
# integers does.
CALL, DISPATCH, COPIED = (
    Struct(f"{len(TABLES[table])}q").pack for table in ("calls", "dispatches", "copies")
)


class Recording:
    """What the device writes while it runs.

    Attributes:
        calls: Calls and markers so far; their numbers are the correlation ids of the trace.
        kernels: Number of each kernel launched so far.
        call: Takes rows of `calls`, made by `CALL`.
        dispatch: Takes rows of `dispatches`, made by `DISPATCH`.
        copy: Takes rows of `copies`, made by `COPIED`.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        """Write to a recorder; to nothing if None."""
        self.calls = 0
        self.kernels: dict[Kernel, int] = {}
        self._names: dict[str, int] = {}
        self._streams: list[int] = []
        self._queues: list[int] = []
        self._open: list[tuple[str, int, int]] = []
        self._write_to(recorder)

    def _write_to(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        rows = recorder.rows if recorder else None
        self.call: Callable[[bytes], object] = rows["calls"].frombytes if rows else _nowhere
        self.dispatch: Callable[[bytes], object] = (
            rows["dispatches"].frombytes if rows else _nowhere
        )
        self.copy: Callable[[bytes], object] = rows["copies"].frombytes if rows else _nowhere
        self._allocation = rows["allocations"].extend if rows else _nowhere
        self._marker = rows["markers"].extend if rows else _nowhere

    @property
    def recorder(self) -> Recorder | None:
        """Who takes it now."""
        return self._recorder

    def begin(self, recorder: Recorder) -> None:
        """Write to a recorder from now on, and name to it what has been made so far.

        Packets and graphs keep the numbers of their kernels, so all recorders get the same ones.
        """
        for name in self._names:
            recorder.kernel(name)
        self._write_to(recorder)
        for number in self._streams:
            self._name_stream(number)
        for number in self._queues:
            self._name_queue(number)

    def end(self, now_ns: int) -> None:
        """Write to nobody from now on; ranges that are open end in the recording only."""
        still_open = list(self._open)
        self.close(now_ns)
        self._open = still_open
        self._write_to(None)

    def kernel(self, kernel: Kernel) -> int:
        """Return the number of a kernel launched for the first time."""
        if not is_count(kernel.cost_ns) or not kernel.cost_ns:
            problem = f"{kernel.cost_ns}; give a whole number ≥ 1"
            raise ValueError(f"cost_ns of {kernel.name}: {problem}")
        if not kernel.sensitivity >= 0:
            problem = f"{kernel.sensitivity}; give a share ≥ 0"
            raise ValueError(f"sensitivity of {kernel.name}: {problem}")
        number = self._names.setdefault(kernel.name, len(self._names) + 1)
        if self._recorder:
            self._recorder.kernel(kernel.name)
        self.kernels[kernel] = number
        return number

    def stream(self, number: int) -> None:
        """Name a stream; 0 is the null stream, which every trace has."""
        self._streams.append(number)
        self._name_stream(number)

    def _name_stream(self, number: int) -> None:
        if self._recorder and number:
            self._recorder.stream(number, f"Stream {number - 1}")

    def queue(self, number: int) -> None:
        """Name a hardware queue."""
        self._queues.append(number)
        self._name_queue(number)

    def _name_queue(self, number: int) -> None:
        if self._recorder:
            self._recorder.queue(number, f"Queue {number - 1}")

    def next_call(self) -> int:
        """Return the number of a call that begins now."""
        self.calls += 1
        return self.calls

    def api_call(
        self, api: str, start_ns: int, end_ns: int, arguments: Sequence[int], call: int | None
    ) -> int:
        """Write one HIP call; a number it was given at its begin is kept."""
        if call is None:
            call = self.calls = self.calls + 1
        padding = _PADDING[len(arguments)]
        self.call(CALL(call, THREAD, API_NUMBERS[api], start_ns, end_ns, *arguments, *padding))
        return call

    def run(self, packet: Packet, queue: int, place: int, starts: Int64s, ends: Int64s) -> None:
        """Write kernels and copies of a graph's run, from the one at `place` on."""
        _, _, _, call, stream, run, *_ = packet
        kernels = run.kernels[place : place + len(starts)]
        rows = np.empty((len(starts), 8), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2] = call, kernels, queue
        rows[:, 3], rows[:, 4], rows[:, 5] = stream, starts, ends
        rows[:, 6], rows[:, 7] = 1, THREADS
        is_kernel = kernels >= 0
        self.dispatch(rows[is_kernel].tobytes())
        for index in np.flatnonzero(~is_kernel):
            copy = run.copies[place + int(index)]
            self.copy(COPIED(call, *copy, stream, int(starts[index]), int(ends[index])))

    def allocation(self, place: Row, start_ns: int, end_ns: int) -> None:
        """Write an allocation; `place` is its call, address, bytes and stream."""
        call, address, size_bytes, stream = place
        self._allocation((call, 0, address, size_bytes, stream, start_ns, end_ns))

    def mark(self, text: str, now_ns: int) -> None:
        """Write an instant."""
        if self._recorder:
            number = self._recorder.text(text)
            self._marker((self.next_call(), THREAD, number, now_ns, now_ns))

    def push(self, text: str, now_ns: int) -> None:
        """Open a range."""
        self._open.append((text, self.next_call(), now_ns))

    def pop(self, now_ns: int) -> None:
        """Close the innermost range.

        Raises:
            RuntimeError: None is open.
        """
        if not self._open:
            raise RuntimeError("pop: no range is open")
        text, call, start_ns = self._open.pop()
        if self._recorder:
            self._marker((call, THREAD, self._recorder.text(text), start_ns, now_ns))

    def close(self, now_ns: int) -> None:
        """Close all ranges that are open: the recording ends before they do."""
        while self._open:
            self.pop(now_ns)


def _nowhere(_rows: object) -> None:
    """Take what nobody records."""
