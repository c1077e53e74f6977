"""The prefill plan that is rewritten while the prefill before it still runs, on the virtual device.

Before step N the host plans, and the plan goes into the one device buffer that all prefills read.
The host waits for the prefill of two steps before, so that one is in flight while it plans. Each
prefill copies the plan as it ends, which shows whose plan it ran with.
"""

import polars as pl
import pytest
from virtual_runs import ROUND

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, Timing, VirtualDevice
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.recorder import Recorder
from tracekit.findings import FindingSeverity
from tracekit.formats import read_trace
from tracekit.pipeline import analyse

STEPS, AHEAD = 4, 2
PREFILL = Kernel("prefill", 100_000, function=lambda plan, seen: seen.copy_(plan))
# A copy of the plan's 8 bytes takes 2,000 ns and one a byte.
COPY_NS = 2_008


class Prefills:
    """The engine's part: streams, buffers, and its loop around a way of bringing the plan."""

    def __init__(self, device):
        self.device, self.marked = device, MarkedDevice(device, Marks(device))
        # A server has as many streams as there are hardware queues; the null stream comes late.
        self.forward, *others = [self.marked.stream(name) for name in ("forward", "a", "b", "c")]
        scratch = self.marked.allocate([1], "int64", "scratch")
        for stream in (self.forward, *others):
            self.marked.launch(Kernel("warm_up", 100), stream, writes=[scratch])
        device.synchronize()
        self.marked.marks.stream(device.null_stream)
        self.plan = self.marked.allocate([1], "int64", "plan")
        self.seen = [self.marked.allocate([1], "int64", f"seen{step}") for step in range(STEPS)]
        self.here = device.host_buffer([1], "int64", name="here")
        self.slots = [self.marked.pinned([1], "int64", f"slot{n}") for n in range(2)]
        self.copied = [device.event() for _ in self.slots]
        self.done = [device.event() for _ in range(STEPS)]

    def run(self, bring_plan):
        for step in range(STEPS):
            with self.marked.marks.step(step, kind="prefill"):
                if step >= AHEAD:
                    self.marked.sync(self.done[step - AHEAD])
                bring_plan(self, step)
                self.marked.launch(PREFILL, self.forward, [self.plan], [self.seen[step]])
                self.marked.record(self.done[step], self.forward)
        self.device.synchronize()

    def seen_plans(self):
        result = self.device.host_buffer([1], "int64")
        plans = []
        for seen in self.seen:
            self.device.copy(result, seen)
            plans.append(int(result.on_host()[0]))
        return plans


def blocking(prefills, step):
    prefills.here.on_host().fill_(step)
    for buffer, mode in ((prefills.here, "r"), (prefills.plan, "w")):
        prefills.marked.marks.use(buffer, mode, prefills.device.null_stream)
    prefills.device.copy(prefills.plan, prefills.here)


def synced(prefills, step):
    prefills.forward.synchronize()
    blocking(prefills, step)


def staged(prefills, step):
    slot, copied = prefills.slots[step % 2], prefills.copied[step % 2]
    if step >= 2:
        prefills.marked.sync(copied)
    slot.on_host().fill_(step)
    prefills.marked.copy_async(prefills.plan, slot, prefills.forward)
    prefills.marked.record(copied, prefills.forward)


def recorded(folder, bring_plan, environment=None, **options):
    """Return how plans were copied, what was found, and whose plan each prefill ran with."""
    timing = Timing(**ROUND)
    config = Config.from_environment(environment or {}, timing=timing, **options)
    with Recorder(folder, environment=config.environment()) as recorder:
        prefills = Prefills(VirtualDevice(config, recorder))
        prefills.run(bring_plan)
        seen = prefills.seen_plans()
        path = recorder.close()
    report = analyse(read_trace([path]), only=["unordered-copies"])
    (section,) = report.sections
    # The plans that the test itself reads back at the end go the other way.
    is_plan = pl.col("direction").cast(pl.String) == "host-to-device"
    return section.frame.filter(is_plan), codes(report.findings), seen


NAMED = {"conflict": "overwrites-read", "other": "prefill", "steps_alike": STEPS}


def orders(frame):
    by_order = frame.group_by(pl.col("order").cast(pl.String))
    return dict(by_order.agg(pl.col("copies").sum()).iter_rows())


def codes(findings):
    return [(finding.code, finding.severity) for finding in findings]


def test_on_rocm_10_the_plan_changes_under_the_prefill_that_reads_it(tmp_path):
    frame, found, seen = recorded(tmp_path, blocking, rocm="10")
    # Each but the last, which nothing comes after, ran with the plan of the step after it.
    assert seen == [1, 2, 3, 3]
    # The first copy meets only the prefill that is launched once it has returned.
    rows = frame.to_dicts()
    assert [
        (r["order"], r["certainty"], r["copies"], r["together"], r["steps"], r["overlap_max_ns"])
        for r in rows
    ] == [("unordered", "certain", 3, 3, 3, COPY_NS), ("host-sync", None, 1, 0, 1, None)]
    assert all({key: row[key] for key in NAMED} == NAMED for row in rows)
    assert found == [("unordered-copy.in-flight-reader", FindingSeverity.CRITICAL)]


MASKS = [
    ({}, {"rocm": "7.2"}),
    ({"GPU_MAX_HW_QUEUES": "1"}, {"rocm": "7.2"}),
    ({"AMD_SERIALIZE_COPY": "1"}, {"rocm": "7.2"}),
    ({"AMD_SERIALIZE_COPY": "1"}, {"rocm": "10"}),
]


@pytest.mark.parametrize(("environment", "options"), MASKS)
def test_a_copy_that_only_comes_late_is_an_accident(tmp_path, environment, options):
    frame, found, seen = recorded(tmp_path, blocking, environment, **options)
    assert seen == [0, 1, 2, 3]
    assert orders(frame) == {"accident": 3, "host-sync": 1}
    assert frame["together"].sum() == 0
    assert found == [("unordered-copy.in-flight-reader", FindingSeverity.WARNING)]


@pytest.mark.parametrize(("environment", "options"), [*MASKS, ({}, {"rocm": "10"})])
@pytest.mark.parametrize(("bring_plan", "order"), [(synced, "host-sync"), (staged, "stream")])
def test_a_synced_and_a_staged_copy_are_ordered_whatever_the_times(
    tmp_path, bring_plan, order, environment, options
):
    frame, found, seen = recorded(tmp_path, bring_plan, environment, **options)
    assert seen == [0, 1, 2, 3]
    assert orders(frame) == {order: STEPS}
    assert found == []


def test_the_null_streams_own_queue_is_not_masked_by_one_queue_for_all_others(tmp_path):
    frame, found, seen = recorded(tmp_path, blocking, {"GPU_MAX_HW_QUEUES": "1"}, rocm="10")
    assert found == [("unordered-copy.in-flight-reader", FindingSeverity.CRITICAL)]
    assert seen == [1, 2, 3, 3]
    assert orders(frame) == {"unordered": 3, "host-sync": 1}
