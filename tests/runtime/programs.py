"""Small programs for a device, as data: what the host calls, in order, and what each call touches.

A program says nothing about when work runs. Bytes identify who wrote them: a kernel writes a hash of
its own number, its replay's number and what it read; memory nobody wrote is 0. A read is one look of
one instruction, in one replay, at one buffer; after the last instruction every buffer is read once more,
with everything done (the instruction of these last reads is the length of the program).

What a program may not do is what HIP leaves open or refuses:

- Kernels touch device memory only, the host touches host memory only.
- A blocking copy has one side on the host: from device to device, hipMemcpy does not make the host wait.
- A capture holds kernels, copies of device and pinned memory, and events of its own, on its stream and
  those that wait for its events; it ends with all of them joined to its stream, which is not the null
  stream.
- A graph is replayed on one stream only: on two, its replays could run into each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from instrumented_runtime.devices import Place, StreamFlags

MAX_STREAMS, MAX_EVENTS, MAX_BUFFERS, MAX_INSTRUCTIONS = 4, 4, 6, 25
NULL = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel; `cost_ns` matters to a model of time only."""

    stream: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    cost_ns: int = 10_000


@dataclass(frozen=True, slots=True)
class Record:
    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Wait:
    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class EventSync:
    event: int


@dataclass(frozen=True, slots=True)
class StreamSync:
    stream: int


@dataclass(frozen=True, slots=True)
class DeviceSync:
    pass


@dataclass(frozen=True, slots=True)
class Copy:
    """hipMemcpy."""

    destination: int
    source: int


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """hipMemcpyAsync."""

    destination: int
    source: int
    stream: int


@dataclass(frozen=True, slots=True)
class HostWrite:
    buffer: int


@dataclass(frozen=True, slots=True)
class HostRead:
    buffer: int


@dataclass(frozen=True, slots=True)
class Capture:
    """What follows, up to `EndCapture`, does not run: it becomes the graph."""

    graph: int
    stream: int


@dataclass(frozen=True, slots=True)
class EndCapture:
    pass


@dataclass(frozen=True, slots=True)
class Replay:
    graph: int
    stream: int


Captured = Launch | CopyAsync | Record | Wait
Instruction = (
    Captured
    | EventSync
    | StreamSync
    | DeviceSync
    | Copy
    | HostWrite
    | HostRead
    | Capture
    | EndCapture
    | Replay
)


class Read(NamedTuple):
    """Who looks (number of the instruction), in which replay of its graph, at which buffer."""

    instruction: int
    replay: int
    buffer: int


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions on numbered streams (0 is the null stream), buffers, events and graphs.

    Raises:
        ValueError: It does what the head of this module says a program may not.
    """

    streams: tuple[StreamFlags, ...]
    buffers: tuple[Place, ...]
    instructions: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        _Check(self).run()

    @property
    def events(self) -> list[int]:
        return sorted({each.event for each in self.instructions if hasattr(each, "event")})

    def replays(self) -> list[int]:
        """How often each instruction runs: 1, or as often as the graph that holds it is replayed."""
        times: list[int] = []
        graph = None
        for each in self.instructions:
            if isinstance(each, EndCapture):
                graph = None
            times.append(1 if graph is None else self._replays_of(graph))
            if isinstance(each, Capture):
                graph = each.graph
        return times

    def last_reads(self) -> Iterator[Read]:
        for buffer in range(len(self.buffers)):
            yield Read(len(self.instructions), 0, buffer)

    def _replays_of(self, graph: int) -> int:
        return sum(isinstance(each, Replay) and each.graph == graph for each in self.instructions)


# Odd, so that mixing in two different values never gives the same one.
_FACTOR, _SUMMAND = 0x2545F4914F6CDD1D, 0x1234567


def mix(state, value):
    """Hash two numbers into one of 64 bits, signed; elementwise on int64 tensors."""
    mixed = (state ^ value) * _FACTOR + _SUMMAND
    return (mixed + 2**63) % 2**64 - 2**63 if isinstance(mixed, int) else mixed


def written_value(instruction, replay, seen, position):
    """What a kernel writes to the buffer at a position of its writes, having seen those values."""
    state = mix(mix(1, instruction), replay)
    for value in seen:
        state = mix(state, value)
    return mix(state, position)


def host_value(instruction: int) -> int:
    """What the host writes."""
    return mix(mix(2, instruction), 0)


@dataclass
class _Check:
    """Walks a program and refuses what it may not do."""

    program: Program
    capture: Capture | None = None
    # Of the capture in progress: the streams in it; by stream, how much work it has; by event, the
    # stream it was recorded in and that stream's work then; by stream, the work its own one waits for.
    joined: set[int] = field(default_factory=set)
    work: dict[int, int] = field(default_factory=dict)
    records: dict[int, tuple[int, int]] = field(default_factory=dict)
    merged: dict[int, int] = field(default_factory=dict)
    graphs: dict[int, int | None] = field(default_factory=dict)
    event_users: dict[int, int | None] = field(default_factory=dict)

    def run(self) -> None:
        self._check_sizes()
        for number, each in enumerate(self.program.instructions):
            problem = self._problem(each)
            if problem:
                raise ValueError(f"instruction {number}, {each}: {problem}")
        if self.capture:
            raise ValueError("the program ends inside a capture")

    def _check_sizes(self) -> None:
        program = self.program
        if program.streams[:1] != ("null",) or "null" in program.streams[1:]:
            raise ValueError("stream 0, and no other, is the null stream")
        sizes = (
            (len(program.streams), MAX_STREAMS, "streams"),
            (len(program.events), MAX_EVENTS, "events"),
            (len(program.buffers), MAX_BUFFERS, "buffers"),
            (len(program.instructions), MAX_INSTRUCTIONS, "instructions"),
        )
        for size, most, what in sizes:
            if size > most:
                raise ValueError(f"{size} {what}, at most {most}")

    def _problem(self, each: Instruction) -> str | None:
        return self._memory_problem(each) or self._event_problem(each) or self._graph_problem(each)

    def _memory_problem(self, each: Instruction) -> str | None:
        places = self.program.buffers
        match each:
            case Launch(reads=reads, writes=writes):
                if {places[i] for i in reads + writes} != {"device"}:
                    return "a kernel touches device memory, and some"
                if len({*reads}) < len(reads) or len({*writes}) < len(writes):
                    return "a buffer is named twice"
            case Copy(to, source) | CopyAsync(to, source):
                on_device = [places[to], places[source]].count("device")
                if on_device == 0 or (on_device == 2 and isinstance(each, Copy)):
                    return "one side is on the device, and of a blocking copy one on the host"
                if to == source:
                    return "it copies a buffer onto itself"
            case HostRead(buffer) | HostWrite(buffer) if places[buffer] == "device":
                return "the host touches host memory"
        return None

    def _event_problem(self, each: Instruction) -> str | None:
        if not isinstance(each, Record | Wait | EventSync):
            return None
        user = self.capture.graph if self.capture else None
        if self.event_users.setdefault(each.event, user) != user:
            return "an event belongs to one capture, or to none"
        return None

    def _graph_problem(self, each: Instruction) -> str | None:
        if self.capture:
            return self._capture_problem(each)
        match each:
            case Capture(graph, stream):
                if stream == NULL or graph in self.graphs:
                    return "a capture is of a new graph, and not on the null stream"
                self.capture, self.graphs[graph] = each, None
                self.joined, self.work, self.records, self.merged = {stream}, {}, {}, {}
            case EndCapture():
                return "no capture to end"
            case Replay(graph, stream):
                if self.graphs.get(graph, stream) not in (None, stream) or graph not in self.graphs:
                    return "a graph is replayed after its capture, and on one stream"
                self.graphs[graph] = stream
        return None

    def _capture_problem(self, each: Instruction) -> str | None:
        if isinstance(each, EndCapture):
            own = self.capture.stream
            loose = [s for s in self.joined - {own} if self.merged.get(s) != self.work.get(s, 0)]
            self.capture = None
            return f"streams {loose} are not joined" if loose else None
        if not isinstance(each, Captured):
            return "a capture cannot hold it"
        if isinstance(each, CopyAsync):
            places = {self.program.buffers[each.destination], self.program.buffers[each.source]}
            if "pageable" in places:
                return "a capture cannot hold a copy of pageable memory"
        if isinstance(each, Wait):
            return self._captured_wait_problem(each)
        if each.stream not in self.joined:
            return "the stream is not part of the capture"
        if isinstance(each, Record):
            self.records[each.event] = (each.stream, self.work.get(each.stream, 0))
        else:
            self.work[each.stream] = self.work.get(each.stream, 0) + 1
        return None

    def _captured_wait_problem(self, each: Wait) -> str | None:
        if each.event not in self.records or each.stream == NULL:
            return "a capture waits for events recorded in it, and not on the null stream"
        recorder, work = self.records[each.event]
        self.joined.add(each.stream)
        if each.stream == self.capture.stream:
            self.merged[recorder] = work
        else:
            self.work[each.stream] = self.work.get(each.stream, 0) + 1
        return None
