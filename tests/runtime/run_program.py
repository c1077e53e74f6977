"""Run a program on a device and see what it saw; compare with what the oracle says it can see.

Every kernel writes down what it read, in a log that is device memory too and is fetched after the last
synchronisation: nothing waits for the host in between, and a replayed graph logs by itself, in the row
that its own counter in device memory names. So the same functions run on a GPU and inside a capture.

A copy cannot write down what it read. What it wrote is seen by later readers, and at the latest by the
last reads of all buffers, so a device reports all reads but those of copies.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from oracle import SCHEDULES, Observations, every_observation, observations
from programs import (
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
    Read,
    Record,
    Replay,
    StreamSync,
    Wait,
    host_value,
    written_value,
)

from instrumented_runtime.devices import Buffer, Device, Kernel

ELEMENTS = 8
# With so many times the schedules a value is looked for before a device is said to be wrong.
_DOUBTS = 40

# All elements of a buffer are equal; where they are not, two writers were interleaved: all of them.
Seen = int | tuple[int, ...]


def run_program(program: Program, device: Device) -> dict[Read, Seen]:
    """Return what each read saw, but those of copies; a synchronisation ends the run."""
    run = _Run(program, device)
    run.prepare()
    with ExitStack() as captures:
        for number, each in enumerate(program.instructions):
            run.call(number, each, captures)
    return run.results()


def disagreements(
    program: Program,
    device_factory: Callable[[], Device],
    schedules: int = SCHEDULES,
) -> dict[Read, tuple[Seen, set[int]]]:
    """Return the reads in which a new device saw what no order shows, with that and what orders show.

    Only reads that are not racy are judged. Before one is returned, the oracle looks for the value in all
    orders, or in many more where there are too many to try.
    """
    seen = run_program(program, device_factory())
    wrong = _impossible(seen, observations(program, schedules))
    if not wrong:
        return {}
    try:
        return _impossible(seen, every_observation(program))
    except ValueError:
        return _impossible(seen, observations(program, schedules * _DOUBTS))


def _impossible(
    seen: dict[Read, Seen], possible: Observations
) -> dict[Read, tuple[Seen, set[int]]]:
    return {
        read: (value, possible[read])
        for read, value in seen.items()
        if len(possible[read]) == 1 and value not in possible[read]
    }


class _Run:
    def __init__(self, program: Program, device: Device) -> None:
        self.program = program
        self.device = device
        self.streams = [
            device.null_stream if number == NULL else device.stream(flags=flags, name=f"s{number}")
            for number, flags in enumerate(program.streams)
        ]
        self.buffers = [
            device.allocate([ELEMENTS], "int64", name=f"b{number}")
            if place == "device"
            else device.host_buffer(
                [ELEMENTS], "int64", pinned=place == "pinned", name=f"b{number}"
            )
            for number, place in enumerate(program.buffers)
        ]
        self.events = {number: device.event() for number in program.events}
        self.graphs: dict[int, object] = {}
        self.times = program.replays()
        # By instruction: rows of what each of its runs read, and how often it ran so far.
        self.logs: dict[int, Buffer] = {}
        self.log_shapes: dict[int, list[int]] = {}
        self.counters: dict[int, Buffer] = {}
        self.kernels: dict[int, Kernel] = {}
        self.host_reads: dict[Read, torch.Tensor] = {}

    def prepare(self) -> None:
        """Allocate logs and zero all memory before the first instruction."""
        for number, each in enumerate(self.program.instructions):
            if isinstance(each, Launch):
                shape = [max(1, self.times[number]), max(1, len(each.reads)), ELEMENTS]
                self.log_shapes[number] = shape
                self.logs[number] = self.device.allocate(shape, "int64", name=f"log{number}")
                self.counters[number] = self.device.allocate([1], "int64", name=f"runs{number}")
                function = _hashing(number, len(each.reads))
                self.kernels[number] = Kernel(f"k{number}", each.cost_ns, function)
        zero = Kernel("zero", 1_000, torch.Tensor.zero_)
        for buffer in (*self.buffers, *self.logs.values(), *self.counters.values()):
            if buffer.place == "device":
                self.device.launch(zero, self.device.null_stream, writes=(buffer,))
            else:
                buffer.on_host().zero_()
        self.device.synchronize()

    def call(self, number: int, each, captures: ExitStack) -> None:
        match each:
            case Launch() | CopyAsync() | Copy():
                self._queue(number, each)
            case Record() | Wait() | EventSync():
                self._use_event(each)
            case StreamSync(stream):
                self.streams[stream].synchronize()
            case DeviceSync():
                self.device.synchronize()
            case HostWrite(buffer):
                self.buffers[buffer].on_host().fill_(host_value(number))
            case HostRead(buffer):
                read = self.buffers[buffer].on_host().clone()
                self.host_reads[Read(number, 0, buffer)] = read
            case Capture() | EndCapture() | Replay():
                self._use_graph(each, captures)

    def results(self) -> dict[Read, Seen]:
        self.device.synchronize()
        tensors = self.host_reads | dict(self._logged())
        for read in self.program.last_reads():
            buffer = self.buffers[read.buffer]
            tensors[read] = (
                self._fetched(buffer, [ELEMENTS]) if buffer.place == "device" else buffer.on_host()
            )
        return {read: _value(tensor) for read, tensor in tensors.items()}

    def _queue(self, number: int, each: Launch | CopyAsync | Copy) -> None:
        if isinstance(each, Launch):
            self.device.launch(
                self.kernels[number],
                self.streams[each.stream],
                reads=[self.buffers[buffer] for buffer in each.reads],
                writes=[
                    *[self.buffers[buffer] for buffer in each.writes],
                    self.logs[number],
                    self.counters[number],
                ],
            )
            return
        sides = self.buffers[each.destination], self.buffers[each.source]
        if isinstance(each, Copy):
            self.device.copy(*sides)
        else:
            self.device.copy_async(*sides, self.streams[each.stream])

    def _use_event(self, each: Record | Wait | EventSync) -> None:
        event = self.events[each.event]
        if isinstance(each, EventSync):
            event.synchronize()
        elif isinstance(each, Record):
            event.record(self.streams[each.stream])
        else:
            event.wait(self.streams[each.stream])

    def _use_graph(self, each: Capture | EndCapture | Replay, captures: ExitStack) -> None:
        match each:
            case Capture(graph, stream):
                capture = self.device.capture(self.streams[stream], name=f"g{graph}")
                self.graphs[graph] = captures.enter_context(capture)
            case EndCapture():
                captures.pop_all().close()
            case Replay(graph, stream):
                self.graphs[graph].replay(self.streams[stream])

    def _logged(self) -> Iterator[tuple[Read, torch.Tensor]]:
        for number, log in self.logs.items():
            rows = self._fetched(log, self.log_shapes[number])
            for replay in range(self.times[number]):
                for position, buffer in enumerate(self.program.instructions[number].reads):
                    yield Read(number, replay, buffer), rows[replay, position]

    def _fetched(self, buffer: Buffer, shape: list[int]) -> torch.Tensor:
        fetched = self.device.host_buffer(shape, "int64", name="fetched")
        self.device.copy(fetched, buffer)
        return fetched.on_host()


def _hashing(instruction: int, reads: int) -> Callable[..., None]:
    """Return the function of a kernel: tensors read, tensors written, its log and its counter."""

    def function(*tensors: torch.Tensor) -> None:
        *written, log, runs = tensors[reads:]
        # Each buffer is read once: what is logged is what is hashed.
        seen = [tensor.clone() for tensor in tensors[:reads]]
        if seen:
            log.index_copy_(0, runs, torch.stack(seen).unsqueeze(0))
        for position, tensor in enumerate(written):
            tensor.copy_(written_value(instruction, runs, seen, position))
        runs.add_(1)

    return function


def _value(tensor: torch.Tensor) -> Seen:
    elements = tensor.tolist()
    return elements[0] if len(set(elements)) == 1 else tuple(elements)
