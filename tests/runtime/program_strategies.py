"""Hypothesis strategies for programs: pieces that people write, ordered or not.

A program is a row of pieces: a kernel, a copy, a hand-over from one stream to another, a staging slot
filled and sent, a graph. What orders a piece after the one before is drawn as often as the program is
*careful*: always (then nothing is racy), never, or in between; so about half of the programs are racy.
"""

from itertools import permutations

from hypothesis import strategies as st
from programs import (
    MAX_BUFFERS,
    MAX_INSTRUCTIONS,
    MAX_STREAMS,
    NULL,
    Capture,
    Copy,
    CopyAsync,
    DeviceSync,
    EndCapture,
    EventSync,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Record,
    Replay,
    StreamSync,
    Wait,
)

COSTS_NS = (1_000, 10_000, 200_000)
# Outside of captures, and of the one graph that has a second branch.
EVENTS, FORK, JOIN = (0, 1), 2, 3
MOST_GRAPHS = 2
# How often what orders a piece after the one before is there, in quarters.
CARE = (0, 0, 1, 1, 2, 3, 4)
ALWAYS_CAREFUL = 4
FEWEST_PIECES = 8


@st.composite
def program_strategy(draw, most_instructions: int = MAX_INSTRUCTIONS) -> Program:
    """Valid programs of up to so many instructions, every kind of instruction among them."""
    return _Writer(draw, most_instructions).program()


class _Writer:
    def __init__(self, draw, most_instructions: int) -> None:
        self.draw = draw
        self.most_instructions = most_instructions
        flags = st.sampled_from(["nonblocking", "blocking"])
        self.streams = ["null", *draw(st.lists(flags, min_size=1, max_size=MAX_STREAMS - 1))]
        device_count = draw(st.integers(1, MAX_BUFFERS // 2))
        places = st.sampled_from(["pinned", "pageable"])
        host = draw(st.lists(places, min_size=1, max_size=MAX_BUFFERS // 2))
        self.buffers = ["device"] * device_count + host
        self.on_device = range(device_count)
        self.on_host = range(device_count, len(self.buffers))
        self.care = draw(st.sampled_from(CARE))
        self.instructions: list = []
        # The stream with the latest piece of work; None when the host has waited for it.
        self.latest: int | None = None
        self.graph_streams: list[int] = []

    def program(self) -> Program:
        pieces = [
            self.nothing,
            *[self.launch] * 4,
            *[self.copy_async] * 2,
            *[self.host_access] * 2,
            self.copy,
            self.stage,
            self.hand_over,
            self.loose_event_call,
            self.host_sync,
            self.graph,
            self.replay,
        ]
        fewest = min(FEWEST_PIECES, self.most_instructions)
        for _ in range(self.draw(st.integers(fewest, self.most_instructions))):
            before = self.instructions.copy()
            self.draw(st.sampled_from(pieces))()
            if len(self.instructions) > self.most_instructions:
                self.instructions = before
                break
        return Program(tuple(self.streams), tuple(self.buffers), tuple(self.instructions))

    # Pieces.

    def nothing(self) -> None:
        """What a failing example shrinks to."""

    def launch(self) -> None:
        stream = self._stream()
        self._order(stream)
        self._add(self._kernel(stream))

    def copy(self) -> None:
        sides = self._one(self.on_host), self._one(self.on_device)
        self._order(NULL)
        self._add(Copy(*(sides if self._coin() else reversed(sides))))
        self.latest = None if self.care == ALWAYS_CAREFUL else NULL

    def copy_async(self) -> None:
        stream = self._stream()
        copied = self._copied(stream, [*self.on_device, *self.on_host])
        if copied:
            # From pageable memory the bytes are taken at the call.
            self._order(stream, is_host_too=self.buffers[copied.source] == "pageable")
            self._add(copied)

    def host_access(self) -> None:
        self._order_host()
        self._add(self._one([HostRead, HostWrite])(self._one(self.on_host)))

    def stage(self) -> None:
        """Fill a slot on the host, send it, read it on the device, and mark when it is free."""
        stream, event = self._stream(), self._one(EVENTS)
        slot, target = self._one(self.on_host), self._one(self.on_device)
        self._order_host()
        if self._coin():
            self._add(EventSync(event))
        self._add(HostWrite(slot))
        self._order(stream)
        self._add(CopyAsync(target, slot, stream))
        self._add(Record(event, stream))
        if self._coin():
            self._add(Launch(stream, reads=(target,), cost_ns=self._one(COSTS_NS)))

    def hand_over(self) -> None:
        """Record in one stream, wait in another; now and then the wrong way round."""
        event = self._one(EVENTS)
        calls = [Record(event, self._stream()), Wait(event, self._stream())]
        for call in calls if self._is_likely(5, of=6) else reversed(calls):
            self._add(call)

    def loose_event_call(self) -> None:
        event, stream = self._one(EVENTS), self._stream()
        self._add(self._one([Record(event, stream), Wait(event, stream), EventSync(event)]))

    def host_sync(self) -> None:
        self._add(self._one([DeviceSync(), StreamSync(self._stream())]))

    def graph(self) -> None:
        """Capture kernels and copies, some in a forked branch, and replay them once or twice."""
        graph, own = len(self.graph_streams), self._one(range(1, len(self.streams)))
        if graph == MOST_GRAPHS:
            return
        self._add(Capture(graph, own))
        self._captured_work(own, least=1)
        others = [stream for stream in range(1, len(self.streams)) if stream != own]
        if others and graph == 0 and self._is_likely(2, of=3):
            self._branch(own, self._one(others))
        self._add(EndCapture())
        self.graph_streams.append(self._stream())
        for _ in range(self.draw(st.integers(1, 2))):
            self._replay(graph)

    def replay(self) -> None:
        if self.graph_streams:
            self._replay(self._one(range(len(self.graph_streams))))

    # What pieces are made of.

    def _replay(self, graph: int) -> None:
        self._order(self.graph_streams[graph])
        self._add(Replay(graph, self.graph_streams[graph]))

    def _branch(self, own: int, other: int) -> None:
        self._add(Record(FORK, own))
        self._add(Wait(FORK, other))
        self._captured_work(other, least=1)
        if not self._is_careful():
            self._captured_work(own, least=1)
        self._add(Record(JOIN, other))
        self._add(Wait(JOIN, own))
        self._captured_work(own)

    def _captured_work(self, stream: int, least: int = 0) -> None:
        pinned = [buffer for buffer in self.on_host if self.buffers[buffer] == "pinned"]
        for _ in range(self.draw(st.integers(least, 2))):
            copied = self._copied(stream, [*self.on_device, *pinned])
            self._add(copied if copied and self._is_likely(1, of=3) else self._kernel(stream))

    def _kernel(self, stream: int) -> Launch:
        one = [(buffer,) for buffer in self.on_device]
        some = [(), *one, *one, *permutations(self.on_device, 2)]
        reads = self._one(some)
        return Launch(stream, reads, self._one(some if reads else some[1:]), self._one(COSTS_NS))

    def _copied(self, stream: int, buffers: list[int]) -> CopyAsync | None:
        target = self._one(buffers)
        sources = [
            buffer
            for buffer in buffers
            if buffer != target and "device" in (self.buffers[buffer], self.buffers[target])
        ]
        return CopyAsync(target, self._one(sources), stream) if sources else None

    def _order(self, stream: int, *, is_host_too: bool = False) -> None:
        """Put the next piece, on this stream, after the latest one; or not."""
        if is_host_too:
            self._order_host()
        if self.latest not in (None, stream) and self._is_careful():
            event = self._one(EVENTS)
            self._add(Record(event, self.latest))
            self._add(Wait(event, stream))
        self.latest = stream

    def _order_host(self) -> None:
        if self.latest is None or not self._is_careful():
            return
        event = self._one(EVENTS)
        ways = [
            [StreamSync(self.latest)],
            [DeviceSync()],
            [Record(event, self.latest), EventSync(event)],
        ]
        for call in self._one(ways):
            self._add(call)
        self.latest = None

    def _add(self, instruction) -> None:
        self.instructions.append(instruction)

    def _stream(self) -> int:
        return self._one(range(len(self.streams)))

    def _one(self, choices):
        return self.draw(st.sampled_from(choices))

    def _coin(self) -> bool:
        return self.draw(st.booleans())

    def _is_likely(self, times: int, *, of: int) -> bool:
        return self.draw(st.integers(1, of)) <= times

    def _is_careful(self) -> bool:
        return self._is_likely(self.care, of=ALWAYS_CAREFUL)
