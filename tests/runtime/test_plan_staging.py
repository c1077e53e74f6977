"""Three ways of bringing a plan to the device: the bytes they bring, to whom, and what they cost."""

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from instrumented_runtime.config import PLAN_WRITER_NAMES  # noqa: E402
from instrumented_runtime.devices import Kernel  # noqa: E402
from instrumented_runtime.devices.virtual import Config, VirtualDevice  # noqa: E402
from instrumented_runtime.marks import Marks  # noqa: E402
from instrumented_runtime.marks.marked_device import MarkedDevice  # noqa: E402
from instrumented_runtime.prefill import staging  # noqa: E402
from instrumented_runtime.prefill.planner import PlanShape, plan  # noqa: E402
from instrumented_runtime.prefill.staging import plan_writer  # noqa: E402
from instrumented_runtime.recorder import Recorder  # noqa: E402
from tracekit.findings import FindingSeverity  # noqa: E402
from tracekit.formats import read_trace, silent  # noqa: E402
from tracekit.pipeline import analyse  # noqa: E402

SHAPE = PlanShape(max_batch=4, kv_heads=2, compute_units=16, max_query_tokens=8192)
# Query rows and keys of each sequence; the larger before the smaller, whose plan must not keep any.
FIVE = [
    ([3000, 1000, 4000], [3000, 1000, 4000]),
    ([8175], [8175]),
    ([300, 700], [900, 700]),
    ([0, 2048, 0, 5], [7, 2048, 0, 99]),
    ([1], [1]),
]
PLAN_NS, PREFILL_NS = 100_000, 1_000_000


def device_of(recorder=None, **options):
    return VirtualDevice(Config(host_costs_ns={"plan": PLAN_NS}, rocm="10", **options), recorder)


def bytes_of(device, buffers):
    """Return what is in buffers of the device, once all is done."""
    device.synchronize()
    found = []
    for buffer in buffers:
        here = device.host_buffer([buffer.size_bytes], "uint8")
        device.copy(here, buffer)
        found.append(here.on_host().numpy().tobytes())
    return found


def planned_bytes(lengths, keys):
    return [array.tobytes() for array in plan(SHAPE, lengths, keys).arrays]


@pytest.mark.parametrize("name", PLAN_WRITER_NAMES)
def test_what_the_device_holds_is_the_hosts_plan_byte_for_byte(name):
    device = device_of()
    marked = MarkedDevice(device, Marks())
    writer, stream = plan_writer(name, marked, SHAPE), marked.stream("forward")
    metadata = device.host_buffer([2], "int64")
    metadata.on_host().fill_(0x1234567890ABCDEF)
    device.copy(writer.work_metadata, metadata)
    for lengths, keys in FIVE:
        num_partial_tiles = writer.write(lengths, keys, stream)
        assert bytes_of(device, writer.buffers) == planned_bytes(lengths, keys)
        assert num_partial_tiles == plan(SHAPE, lengths, keys).num_partial_tiles
    assert bytes_of(device, [writer.work_metadata]) == [np.full(2, 0x1234567890ABCDEF).tobytes()]


class Prefills:
    """One prefill after the other, planned while the one before runs; each keeps what it ran with."""

    def __init__(self, marked, name, *, has_tensors=True):
        self.device, self.marked = marked.device, marked
        self.forward, *others = [marked.stream(name) for name in ("forward", "a", "b", "c")]
        self.writer = plan_writer(name, marked, SHAPE, has_tensors=has_tensors)
        self.seen = [
            [marked.allocate([b.size_bytes], "uint8", f"seen{n}") for b in self.writer.buffers]
            for n in range(len(FIVE))
        ]
        self.prefill = Kernel("prefill", PREFILL_NS, keep)
        self.done = [marked.event() for _ in FIVE]
        # A server has as many streams as there are hardware queues.
        for stream in (self.forward, *others):
            marked.launch(Kernel("warm_up", 100), stream)
        self.device.synchronize()

    def run(self, *, waits_for_results=True):
        for number, (lengths, keys) in enumerate(FIVE):
            with self.marked.marks.step(number, kind="prefill"):
                self.writer.write(lengths, keys, self.forward)
                buffers, seen = self.writer.buffers, self.seen[number]
                self.marked.launch(self.prefill, self.forward, buffers, seen)
                self.marked.record(self.done[number], self.forward)
                if number and waits_for_results:
                    with self.marked.range("process"):
                        self.marked.sync(self.done[number - 1])
        self.device.synchronize()

    def ran_with(self):
        """Return the number of the plan that each prefill ran with; None if with none as a whole."""
        plans = [planned_bytes(*lengths) for lengths in FIVE]
        seen = [bytes_of(self.device, kept) for kept in self.seen]
        return [plans.index(one) if one in plans else None for one in seen]


def keep(*tensors):
    for source, target in zip(tensors[:5], tensors[5:], strict=True):
        target.copy_(source.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("name", "expected"),
    # Each but the last, which no plan comes after, ran with the plan of the step after it.
    [("direct", [1, 2, 3, 4, 4]), ("synced", [0, 1, 2, 3, 4]), ("staged", [0, 1, 2, 3, 4])],
)
def test_a_prefill_that_is_queued_runs_with_its_own_plan_unless_copies_are_direct(name, expected):
    prefills = Prefills(MarkedDevice(device_of(), Marks()), name)
    prefills.run()
    assert prefills.ran_with() == expected


class HastyDevice(MarkedDevice):
    """A device whose host never waits for an event."""

    def sync(self, event):
        pass


@pytest.mark.parametrize(
    ("device", "slots", "expected"),
    [
        (MarkedDevice, 2, [0, 1, 2, 3, 4]),
        (MarkedDevice, 1, [0, 1, 2, 3, 4]),
        # While the first prefill runs all others are planned, and their copies stand behind it: a
        # slot then holds the last plan that was made in it. The first copies are quicker than the
        # host, which plans for 100 µs.
        (HastyDevice, 2, [0, 3, 4, 3, 4]),
        (HastyDevice, 1, [0, 4, 4, 4, 4]),
    ],
)
def test_a_slot_that_is_planned_into_before_its_copies_are_done_brings_a_later_plan(
    monkeypatch, device, slots, expected
):
    monkeypatch.setattr(staging, "STAGING_SLOTS", slots)
    prefills = Prefills(device(device_of(), Marks()), "staged")
    # Nothing else holds the host back.
    prefills.run(waits_for_results=False)
    assert prefills.ran_with() == expected


def recorded(folder, name):
    """Return the trace of five prefills on a device that computes nothing."""
    with Recorder(folder, environment={"ROCPROF_KERNEL_TRACE": "1"}) as recorder:
        device = device_of(recorder, tensors=False)
        marked = MarkedDevice(device, Marks(device))
        Prefills(marked, name, has_tensors=False).run()
        path = recorder.close()
    return read_trace([path], silent)


def waits_of(trace):
    """Return how many calls held the host within steps: by what was around them, and what kind."""
    (section,) = analyse(trace, only=["host-syncs"]).sections
    rows = section.frame.filter(pl.col("found_by").cast(pl.String) == "tk1-step").rows(named=True)
    return {(row["marker"], row["wait"]): row["calls"] for row in rows}


# Before the first prefill there is none to wait for.
COPIES = {("PlanWriter.write", "copy"): 5 * len(FIVE)}
WAITS = {
    # The value is read before the prefill is launched: its result then needs no wait any more.
    "direct": {**COPIES, ("PlanWriter.write", "item"): 4},
    # Nothing is left to wait for when the value is read.
    "synced": {**COPIES, ("PlanWriter.write", "stream-sync"): 4},
    "staged": {("process", "publish-event"): 4},
}


def test_only_a_staged_plan_never_holds_the_host_while_it_is_written(tmp_path):
    idle = {}
    for name in PLAN_WRITER_NAMES:
        trace = recorded(tmp_path / name, name)
        assert waits_of(trace) == WAITS[name]
        # One read of the device less in each step.
        read_back = trace.table("copies").filter(pl.col("direction") == "device-to-host")
        assert len(read_back) == (0 if name == "staged" else len(FIVE))
        (section,) = analyse(trace, only=["steps"]).sections
        idle[name] = section.frame.filter(pl.col("step") > 0)["owned_idle_ns"].to_list()
    # What the host does between the wait and the launch is idle time of the device: with `synced`
    # the plan itself; with `direct` no more than the launch, by then the plan is made.
    assert idle["staged"] == [0, 0, 0, 0]
    assert all(0 < each < PLAN_NS for each in idle["direct"])
    assert all(each > PLAN_NS for each in idle["synced"])


@pytest.mark.parametrize(
    ("name", "order", "certainty"),
    [
        ("direct", "unordered", "certain"),
        ("synced", "host-sync", None),
        ("staged", "stream", None),
    ],
)
def test_a_trace_says_of_each_buffer_how_its_copies_are_ordered_with_the_prefill_before(
    tmp_path, name, order, certainty
):
    report = analyse(recorded(tmp_path, name), only=["unordered-copies"])
    (section,) = report.sections
    rows = section.frame.filter(pl.col("other") == "prefill").select(
        "buffer", "conflict", "order", "certainty", "copies"
    )
    names = sorted(f"plan_{spec.name}" for spec in SHAPE.buffers[1:])
    expected = [(buffer, "overwrites-read", order, certainty, 4) for buffer in names]
    assert rows.sort("buffer").rows() == expected
    found = [(finding.code, finding.severity) for finding in report.findings]
    unordered = ("unordered-copy.in-flight-reader", FindingSeverity.CRITICAL)
    assert found == [unordered] * (5 if name == "direct" else 0)


@pytest.mark.parametrize("name", PLAN_WRITER_NAMES)
def test_every_copy_of_a_plan_says_what_it_reads_and_writes(tmp_path, name):
    trace = recorded(tmp_path, name)
    copies = trace.table("copies").filter(pl.col("direction") == "host-to-device")
    uses = trace.table("accesses").filter(pl.col("call_id").is_in(copies["call_id"].implode()))
    modes = uses.group_by("call_id").agg(pl.col("mode").cast(pl.String).sort())
    assert modes["mode"].to_list() == [["read", "write"]] * 5 * len(FIVE)
    written = uses.filter(pl.col("mode") == "write")
    assert set(written["buffer"]) == {f"plan_{spec.name}" for spec in SHAPE.buffers[1:]}


def test_a_plan_is_a_range_within_its_write_as_long_as_the_host_plans(tmp_path):
    trace = recorded(tmp_path, "staged")
    ranges = trace.table("ranges").filter(pl.col("text").is_in(["plan", "PlanWriter.write"]))
    plans = ranges.filter(text="plan")
    assert (plans["end_ns"] - plans["start_ns"]).to_list() == [PLAN_NS] * 5
    within = plans.join(ranges, left_on="parent_id", right_on="range_id")
    assert within["text_right"].to_list() == ["PlanWriter.write"] * 5


def test_a_shape_that_never_splits_has_a_buffer_without_bytes_which_is_not_copied():
    # One group: no tile is shared.
    shape = PlanShape(max_batch=2, kv_heads=4, compute_units=4, max_query_tokens=512)
    for name in PLAN_WRITER_NAMES:
        marked = MarkedDevice(device_of(), Marks())
        writer, stream = plan_writer(name, marked, shape), marked.stream("forward")
        assert writer.buffers.reduce_partial_map.size_bytes == 0
        assert writer.write([300, 512], [300, 512], stream) == 0


def test_lengths_that_are_refused_leave_the_device_as_it_is():
    for name in PLAN_WRITER_NAMES:
        device = device_of()
        marked = MarkedDevice(device, Marks())
        writer, stream = plan_writer(name, marked, SHAPE), marked.stream("forward")
        writer.write(*FIVE[0], stream)
        with pytest.raises(ValueError, match=r"query_lengths\[0\]: 9000 is not allowed"):
            writer.write([9000], [9000], stream)
        assert bytes_of(device, writer.buffers) == planned_bytes(*FIVE[0])


def test_a_writer_of_another_name_is_refused():
    with pytest.raises(ValueError, match=r"plan_writer: 'stage' .* one of direct, synced, staged"):
        plan_writer("stage", MarkedDevice(device_of(), Marks()), SHAPE)


@pytest.mark.parametrize("name", PLAN_WRITER_NAMES)
def test_no_plan_is_written_into_a_graph(name):
    device = device_of()
    marked = MarkedDevice(device, Marks())
    writer, stream = plan_writer(name, marked, SHAPE), marked.stream("forward")
    with (
        pytest.raises(RuntimeError, match="while a stream is being captured"),
        marked.capture(stream, "forward"),
    ):
        writer.write([700], [700], stream)
    writer.write([300], [300], stream)
    assert bytes_of(device, writer.buffers) == planned_bytes([300], [300])
