"""Records programs on the virtual device, with the markers an engine writes, and maps its copies back."""

from contextlib import ExitStack
from itertools import count
from pathlib import Path

import polars as pl
from copy_races import Site
from programs import (
    NULL,
    Capture,
    Copy,
    CopyAsync,
    DeviceSync,
    EndCapture,
    EventSync,
    Launch,
    Program,
    Record,
    Replay,
    StreamSync,
    Wait,
)

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.marks import Marks
from instrumented_runtime.recorder import Recorder

_GRAPH_NUMBERS = count(1)


def record_programs(folder: Path, programs: list[Program], config: Config) -> Path:
    """Record the programs, one after the other, into one trace; return its path."""
    with Recorder(folder, environment=config.environment()) as recorder:
        device = VirtualDevice(config, recorder)
        for number, program in enumerate(programs):
            _Run(device, number, program).run()
            device.synchronize()
        return recorder.close()


class _Run:
    def __init__(self, device: VirtualDevice, number: int, program: Program) -> None:
        self.device, self.number, self.program = device, number, program
        self.marks = Marks(device)
        self.streams = [
            device.null_stream if place == NULL else device.stream(flags=flags, name=f"s{place}")
            for place, flags in enumerate(program.streams)
        ]
        self.buffers = [
            device.allocate([8], "int64", name=f"p{number}_b{index}")
            if place == "device"
            else device.host_buffer(
                [8], "int64", pinned=place == "pinned", name=f"p{number}_b{index}"
            )
            for index, place in enumerate(program.buffers)
        ]
        self.events = {event: device.event() for event in program.events}
        self.graphs: dict[int, tuple[object, int]] = {}
        self.reads: list = []
        self.writes: list = []
        self.capturing: int | None = None

    def run(self) -> None:
        for stream in self.streams:
            self.marks.stream(stream)
        for buffer in self.buffers:
            self.marks.buffer(buffer)
        with ExitStack() as captures:
            for number, each in enumerate(self.program.instructions):
                self.device.mark(f"program {self.number} instruction {number}")
                self._call(each, captures)

    def _call(self, each, captures: ExitStack) -> None:
        match each:
            case Launch() | CopyAsync() | Copy():
                self._submit(each)
            case Record() | Wait() | EventSync():
                self._use_event(each)
            case StreamSync(stream):
                self.streams[stream].synchronize()
            case DeviceSync():
                self.device.synchronize()
            case Capture() | EndCapture() | Replay():
                self._use_graph(each, captures)

    def _submit(self, each: Launch | CopyAsync | Copy) -> None:
        if isinstance(each, Launch):
            self._use(each.reads, each.writes, each.stream)
            self.device.launch(Kernel("kernel", each.cost_ns), self.streams[each.stream])
            return
        to, source = self.buffers[each.destination], self.buffers[each.source]
        stream = each.stream if isinstance(each, CopyAsync) else NULL
        self._use([each.source], [each.destination], stream)
        if isinstance(each, Copy):
            self.device.copy(to, source)
        else:
            self.device.copy_async(to, source, self.streams[stream])

    def _use_event(self, each: Record | Wait | EventSync) -> None:
        event, is_run = self.events[each.event], self.capturing is None
        match each:
            case Record(_, stream):
                event.record(self.streams[stream])
                if is_run:
                    self.marks.record(event, self.streams[stream])
            case Wait(_, stream):
                if is_run:
                    self.marks.wait(event, self.streams[stream])
                event.wait(self.streams[stream])
            case EventSync():
                event.synchronize()
                self.marks.sync(event)

    def _use_graph(self, each: Capture | EndCapture | Replay, captures: ExitStack) -> None:
        match each:
            case Capture(graph, stream):
                self.capturing, self.reads, self.writes = graph, [], []
                captured = captures.enter_context(self.device.capture(self.streams[stream]))
                self.graphs[graph] = (captured, next(_GRAPH_NUMBERS))
            case EndCapture():
                captures.pop_all().close()
                number = self.graphs[self.capturing][1]
                reads = [self.buffers[i] for i in dict.fromkeys(self.reads)]
                writes = [self.buffers[i] for i in dict.fromkeys(self.writes)]
                self.marks.graph(number, reads=reads, writes=writes)
                self.capturing = None
            case Replay(graph, stream):
                captured, number = self.graphs[graph]
                self.marks.replay(number, self.streams[stream])
                captured.replay(self.streams[stream])

    def _use(self, reads, writes, stream) -> None:
        if self.capturing is not None:
            self.reads += reads
            self.writes += writes
            return
        for mode, buffers in (("r", reads), ("w", writes)):
            for buffer in buffers:
                self.marks.use(self.buffers[buffer], mode, self.streams[stream])


def sites_of(trace, copies: pl.DataFrame) -> pl.DataFrame:
    """Add `program` and `site` to rows with `call_id, dst_address, src_address`."""
    said = (
        trace.table("ranges")
        .filter(pl.col("text").str.starts_with("program "))
        .select(
            "start_ns",
            words=pl.col("text").str.extract_groups(r"program (\d+) instruction (\d+)"),
        )
        .sort("start_ns")
    )
    calls = trace.table("calls").select("call_id", "start_ns").sort("start_ns")
    called = calls.join_asof(said, on="start_ns")
    names = trace.table("accesses").select("address", "buffer").drop_nulls().unique("address")
    numbers = {a: int(b.rsplit("_b", 1)[1]) for a, b in names.iter_rows()}
    rows = copies.join(called.select("call_id", "words"), on="call_id", how="left")
    return rows.with_columns(
        program=pl.col("words").struct[0].cast(pl.Int64),
        site=pl.Series(
            [
                Site(int(words["2"]), numbers[to], numbers[of])
                for words, to, of in rows.select("words", "dst_address", "src_address").iter_rows()
            ],
            dtype=pl.Object,
        ),
    ).drop("words")
