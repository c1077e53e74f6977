"""A program in the middle of running, one atomic action at a time, as HIP promises and nothing more.

An action is the host's next call, or one step of one stream. Which of them comes next is the only
freedom, and it is the caller's: streams run arbitrarily late, and hardware queues do not exist (sharing
one only ever adds order).

- Work in a stream runs in the order it was queued. A wait lets its stream past when the record that was
  the event's last one *at the host's call* has been passed; if there was none, the call does nothing.
- Null stream: its head starts once everything queued before it in blocking streams is done, and the head
  of a blocking stream once everything queued before it in the null stream is done. Records and waits
  count as queued work. Nonblocking streams take no part.
- Host: a blocking copy is queued in the null stream and the host waits for it. An asynchronous copy reads
  and writes device and pinned memory when it runs; from pageable memory it takes the bytes at the call,
  and to pageable memory the host waits until it is done. Synchronising a stream waits for what is queued
  in it at the call (the null stream: in blocking streams as well). Host reads and writes happen at the
  call.
- A replay is one piece of work in its stream. While it runs, each captured stream is a stream of its own,
  with the events as they were in the capture; it is done when they are empty.

A kernel or a copy takes two actions, its start and its end, so that two can overlap. It writes at its
end. Each buffer it reads is sampled at the start or at the end, at random in each schedule. Ordered work
ends before the later one starts, so neither choice shows bytes that order forbids; and a writer whose end
falls between a reader's start and end is seen by one choice and not by the other, so no overlap is
always innocent. Early, torn writes are not modelled: they add values to reads that are racy anyway.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass

from programs import (
    NULL,
    Capture,
    Captured,
    Copy,
    CopyAsync,
    DeviceSync,
    EndCapture,
    EventSync,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Read,
    Record,
    Replay,
    StreamSync,
    Wait,
    host_value,
    written_value,
)

HOST = -1  # an actor beside the lanes, which are numbered from 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of queued work.

    Attributes:
        number: Counts what the host has queued, so a smaller one was queued before.
        awaited: Of a wait: the number of the record.
        replay_entry: Of a graph's node: the number of the replay it belongs to.
    """

    number: int
    work: Launch | Copy | CopyAsync | Record | Wait | Replay
    instruction: int
    replay: int = 0
    awaited: int | None = None
    replay_entry: int | None = None


class Machine:
    """A program in the middle of running. Lanes are the streams, then branches of replayed graphs."""

    def __init__(self, program: Program, saw: Callable[[Read, int], None]) -> None:
        self.program = program
        self.saw = saw
        self.memory = [0] * len(program.buffers)
        self.lanes: list[tuple[Entry, ...]] = [()] * len(program.streams)
        self.next_number = 0
        self.unfinished: set[int] = set()
        # Of what has started, and of copies that took their bytes at the call: what was read so far,
        # by buffer.
        self.running: dict[int, dict[int, int]] = {}
        self.taken: dict[int, int] = {}
        self.next_instruction = 0
        self.host_awaits: set[int] = set()
        self.last_record: dict[int, int] = {}
        self.capturing: int | None = None
        self.graphs: dict[int, tuple[tuple[int, Captured], ...]] = {}
        self.replays: dict[int, int] = {}

    def fork(self) -> "Machine":
        twin = copy(self)
        twin.memory, twin.lanes = self.memory.copy(), self.lanes.copy()
        twin.unfinished, twin.taken = self.unfinished.copy(), self.taken.copy()
        twin.running = {number: seen.copy() for number, seen in self.running.items()}
        twin.last_record, twin.replays = self.last_record.copy(), self.replays.copy()
        twin.graphs = self.graphs.copy()
        return twin

    def state(self) -> tuple:
        """Equal for two machines of one program that can only go on alike."""
        running = sorted((n, tuple(sorted(seen.items()))) for n, seen in self.running.items())
        return (
            self.next_instruction,
            frozenset(self.unfinished),
            tuple(running),
            tuple(sorted(self.taken.items())),
            tuple(self.memory),
        )

    def movable(self) -> list[int]:
        """The actors that can move now; none when the program is over."""
        lanes = [lane for lane, queue in enumerate(self.lanes) if queue and self._can_move(lane)]
        is_over = self.next_instruction > len(self.program.instructions)
        return lanes if is_over or self.host_awaits & self.unfinished else [HOST, *lanes]

    def position(self, actor: int) -> tuple[str, int]:
        """Where an actor stands: the host before an instruction, a lane before or inside an entry."""
        if actor == HOST:
            return ("host", self.next_instruction)
        number = self.lanes[actor][0].number
        return ("end" if number in self.running else "start", number)

    def touches(self, actor: int) -> frozenset[int]:
        """The buffers the actor's next move may read or write."""
        if actor == HOST:
            return self._touched_by_host()
        work = self.lanes[actor][0].work
        is_end = self.lanes[actor][0].number in self.running
        return frozenset((*_reads(work), *_writes(work)) if is_end else _reads(work))

    def reads_at(self, actor: int) -> int:
        """How many buffers the actor's next move may sample now or at its end."""
        if actor == HOST:
            return 0
        head = self.lanes[actor][0]
        is_settled = head.number in self.running or head.number in self.taken
        return 0 if is_settled else len(_reads(head.work))

    def move(self, actor: int, at_end: Iterable[bool] = ()) -> None:
        """Let an actor do its next action; `at_end` says which reads of work that starts wait."""
        if actor == HOST:
            self._call()
            return
        entry = self.lanes[actor][0]
        if entry.number in self.running:
            self._end(actor, entry)
        elif isinstance(entry.work, Record | Wait):
            self._leave(actor, entry)
        else:
            self._start(entry, at_end)

    # Streams.

    def _can_move(self, lane: int) -> bool:
        head = self.lanes[lane][0]
        if head.number in self.running:
            return not (isinstance(head.work, Replay) and self._has_nodes(head.number))
        if head.awaited in self.unfinished:
            return False
        if head.replay_entry is not None:
            return head.replay_entry in self.running
        return not any(
            queue and queue[0].number < head.number for queue in self._lanes_awaited_by(lane)
        )

    def _lanes_awaited_by(self, lane: int) -> list[tuple[Entry, ...]]:
        flags = self.program.streams
        if lane == NULL:
            return [self.lanes[i] for i, flag in enumerate(flags) if flag == "blocking"]
        return [self.lanes[NULL]] if flags[lane] == "blocking" else []

    def _has_nodes(self, number: int) -> bool:
        return any(entry.replay_entry == number for queue in self.lanes for entry in queue)

    def _start(self, entry: Entry, at_end: Iterable[bool]) -> None:
        seen = self.running[entry.number] = {}
        if entry.number in self.taken:
            return
        for buffer, waits in zip(_reads(entry.work), at_end, strict=True):
            if not waits:
                seen[buffer] = self._look(entry, buffer)

    def _end(self, lane: int, entry: Entry) -> None:
        seen = self.running.pop(entry.number)
        work = entry.work
        if entry.number in self.taken:
            seen[work.source] = self.taken.pop(entry.number)
        else:
            for buffer in _reads(work):
                if buffer not in seen:
                    seen[buffer] = self._look(entry, buffer)
        if isinstance(work, Launch):
            values = [seen[buffer] for buffer in work.reads]
            for position, buffer in enumerate(work.writes):
                self.memory[buffer] = written_value(
                    entry.instruction, entry.replay, values, position
                )
        elif isinstance(work, Copy | CopyAsync):
            self.memory[work.destination] = seen[work.source]
        self._leave(lane, entry)

    def _leave(self, lane: int, entry: Entry) -> None:
        self.lanes[lane] = self.lanes[lane][1:]
        self.unfinished.remove(entry.number)

    def _look(self, entry: Entry, buffer: int) -> int:
        value = self.memory[buffer]
        self.saw(Read(entry.instruction, entry.replay, buffer), value)
        return value

    # The host.

    def _touched_by_host(self) -> frozenset[int]:
        if self.next_instruction == len(self.program.instructions) or self.capturing is not None:
            return frozenset()
        match self.program.instructions[self.next_instruction]:
            case HostRead(buffer) | HostWrite(buffer):
                return frozenset({buffer})
            case CopyAsync(source=buffer) if self.program.buffers[buffer] == "pageable":
                return frozenset({buffer})
        return frozenset()

    def _call(self) -> None:
        number = self.next_instruction
        self.next_instruction += 1
        if number == len(self.program.instructions):
            self._read_all_at_the_end(number)
            return
        each = self.program.instructions[number]
        self.host_awaits = set()
        if isinstance(each, EndCapture):
            self.capturing = None
        elif self.capturing is not None:
            self.graphs[self.capturing] += ((number, each),)
        else:
            _CALLS[type(each)](self, number, each)
        if number + 1 == len(self.program.instructions):
            self.host_awaits = self.unfinished.copy()

    def _read_all_at_the_end(self, number: int) -> None:
        for buffer, value in enumerate(self.memory):
            self.saw(Read(number, 0, buffer), value)

    def _queue(self, lane: int, **entry: object) -> Entry:
        queued = Entry(number=self.next_number, **entry)
        self.next_number += 1
        self.unfinished.add(queued.number)
        self.lanes[lane] = (*self.lanes[lane], queued)
        return queued

    def _launch(self, number: int, each: Launch) -> None:
        self._queue(each.stream, work=each, instruction=number)

    def _record(self, number: int, each: Record) -> None:
        entry = self._queue(each.stream, work=each, instruction=number)
        self.last_record[each.event] = entry.number

    def _wait(self, number: int, each: Wait) -> None:
        if each.event in self.last_record:
            awaited = self.last_record[each.event]
            self._queue(each.stream, work=each, instruction=number, awaited=awaited)

    def _copy(self, number: int, each: Copy) -> None:
        self.host_awaits = {self._queue(NULL, work=each, instruction=number).number}

    def _copy_async(self, number: int, each: CopyAsync) -> None:
        places = self.program.buffers
        entry = self._queue(each.stream, work=each, instruction=number)
        if places[each.source] == "pageable":
            self.taken[entry.number] = self._look(entry, each.source)
        if places[each.destination] == "pageable":
            self.host_awaits = {entry.number}

    def _event_sync(self, _: int, each: EventSync) -> None:
        self.host_awaits = {self.last_record.get(each.event, HOST)}

    def _stream_sync(self, _: int, each: StreamSync) -> None:
        lanes = [self.lanes[each.stream]]
        if each.stream == NULL:
            lanes += self._lanes_awaited_by(NULL)
        self.host_awaits = {entry.number for lane in lanes for entry in lane}

    def _device_sync(self, _: int, __: DeviceSync) -> None:
        self.host_awaits = self.unfinished.copy()

    def _host_write(self, number: int, each: HostWrite) -> None:
        self.memory[each.buffer] = host_value(number)

    def _host_read(self, number: int, each: HostRead) -> None:
        self.saw(Read(number, 0, each.buffer), self.memory[each.buffer])

    def _capture(self, _: int, each: Capture) -> None:
        self.capturing, self.graphs[each.graph] = each.graph, ()

    def _replay(self, number: int, each: Replay) -> None:
        replay = self.replays.get(each.graph, 0)
        self.replays[each.graph] = replay + 1
        whole = self._queue(each.stream, work=each, instruction=number).number
        branches: dict[int, int] = {}
        records: dict[int, int] = {}
        for instruction, node in self.graphs[each.graph]:
            if node.stream not in branches:
                branches[node.stream] = len(self.lanes)
                self.lanes.append(())
            entry = self._queue(
                branches[node.stream],
                work=node,
                instruction=instruction,
                replay=replay,
                awaited=records[node.event] if isinstance(node, Wait) else None,
                replay_entry=whole,
            )
            if isinstance(node, Record):
                records[node.event] = entry.number


_CALLS = {
    Launch: Machine._launch,
    Record: Machine._record,
    Wait: Machine._wait,
    EventSync: Machine._event_sync,
    StreamSync: Machine._stream_sync,
    DeviceSync: Machine._device_sync,
    Copy: Machine._copy,
    CopyAsync: Machine._copy_async,
    HostWrite: Machine._host_write,
    HostRead: Machine._host_read,
    Capture: Machine._capture,
    Replay: Machine._replay,
}


def _reads(work: object) -> tuple[int, ...]:
    if isinstance(work, Launch):
        return work.reads
    return (work.source,) if isinstance(work, Copy | CopyAsync) else ()


def _writes(work: object) -> tuple[int, ...]:
    if isinstance(work, Launch):
        return work.writes
    return (work.destination,) if isinstance(work, Copy | CopyAsync) else ()
