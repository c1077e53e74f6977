"""What a pending wait costs kernels launched one by one, on devices that were told what it costs."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_queue_waits_truth import (
    DROPS,
    dropped,
    recorded,
    report_of,
)

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Timing
from tracekit.formats import read_trace

CODE = "queue-wait.pending-during-kernels"
TIMING = Timing()
KERNEL_NS, KERNELS = 4_000, 512
ALONE_NS = KERNEL_NS + TIMING.dispatch_ns
ADDED_NS = TIMING.pending_wait_dispatch_ns


def launching(has_wait):
    """Launch 512 kernels one by one 24 times; beside some a side stream waits for a long one."""

    def run(device):
        main_stream, other, side = device.stream(), device.stream(), device.stream()
        event = device.event()
        node, long, after = (
            Kernel("node", KERNEL_NS),
            Kernel("long", 5_000_000),
            Kernel("after", 1_000),
        )
        for turn in range(24):
            if has_wait(turn):
                device.launch(long, other)
                event.record(other)
                event.wait(side)
                device.launch(after, side)
            for _ in range(KERNELS):
                device.launch(node, main_stream)
            device.synchronize()

    return run


def alternately(turn):
    return turn % 2 == 1


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    slow = Timing(calls_ns=dict(TIMING.calls_ns) | {"hipLaunchKernel": 12_000})
    runs = {
        "alternating": (alternately, {}),
        "always": (lambda _: True, {}),
        "never": (lambda _: False, {}),
        "ordering-edges": (alternately, {"ordering_edges": True}),
        "slow-host": (alternately, {"timing": slow}),
    }
    read = {
        name: read_trace([recorded(tmp_path_factory.mktemp(name), launching(has_wait), **options)])
        for name, (has_wait, options) in runs.items()
    }
    return lambda name: read.get(name)


def kernels_of(trace, against=None):
    report, _ = report_of(trace, against)
    frame = report.sections[0].frame
    return report, frame.filter(pl.col("scope") == "kernels", pl.col("dispatches_with") >= 50)


def note_codes(report):
    return {note.code for note in report.notes if note.code.startswith("queue-waits.")}


@pytest.mark.parametrize(
    ("name", "other"), [("alternating", None), ("always", "never")], ids=["alone", "against"]
)
def test_a_pending_wait_costs_each_kernel_what_the_device_was_told(traces, name, other):
    report, rows = kernels_of(traces(name), traces(other))
    (row,) = rows.iter_rows(named=True)
    assert (row["status"], row["cycles_with"]) == ("compared", 12 if other is None else 24)
    assert row["ratio"] == pytest.approx((ALONE_NS + ADDED_NS) / ALONE_NS, rel=1e-3)
    assert row["added_per_dispatch_ns"] == pytest.approx(ADDED_NS, rel=1e-3)
    assert row["with_median_ns"] == ALONE_NS + ADDED_NS
    assert row["without_median_ns"] == ALONE_NS
    # The first of a turn are submitted late: the lead of the host grows by 2.4 µs each.
    assert 505 * ADDED_NS < row["added_per_cycle_ns"] < 512 * ADDED_NS
    (finding,) = report.findings
    assert (finding.code, finding.severity) == (CODE, "warning")


def test_with_ordering_edges_it_costs_kernels_nothing_and_nothing_is_found(traces):
    report, rows = kernels_of(traces("ordering-edges"))
    (row,) = rows.iter_rows(named=True)
    assert row["status"] == "compared"
    assert [row[name] for name in ("ratio", "ratio_low", "ratio_high")] == [1, 1, 1]
    assert row["added_per_dispatch_ns"] == 0
    assert report.findings == []
    assert note_codes(report) == {"queue-waits.compared", "queue-waits.inferred"}


def test_kernels_of_a_slow_host_are_not_compared_and_it_is_said(traces):
    report, rows = kernels_of(traces("slow-host"))
    (row,) = rows.iter_rows(named=True)
    assert (row["status"], row["reason"], row["ratio"]) == (
        "not identifiable",
        "host-limited",
        None,
    )
    assert report.findings == []
    assert note_codes(report) == {"queue-waits.host-limited", "queue-waits.inferred"}


def test_kernels_that_always_have_a_wait_pending_are_not_identifiable_alone(traces):
    report, rows = kernels_of(traces("always"))
    assert rows["reason"].to_list() == ["one-sided"]
    assert report.findings == []
    (note,) = [n for n in report.notes if n.code == "queue-waits.not-identifiable"]
    assert "kernels launched one by one in queue" in note.message


TRUTHS = {
    ("alternating", None): ADDED_NS,
    ("ordering-edges", None): 0,
    ("slow-host", None): None,
    ("always", None): None,
    ("always", "never"): ADDED_NS,
}


@settings(max_examples=20, deadline=None)
@given(
    names=st.sampled_from(sorted(TRUTHS, key=str)),
    drops=st.lists(st.sampled_from(DROPS), min_size=1, max_size=3, unique=True),
    of_other=st.lists(st.sampled_from(DROPS), max_size=2, unique=True),
    seed=st.integers(0, 1_000),
)
def test_lost_evidence_never_turns_an_answer_round(traces, names, drops, of_other, seed):
    added_ns = TRUTHS[names]
    trace, other = dropped(traces(names[0]), drops, seed), traces(names[1])
    other = None if other is None else dropped(other, of_other, seed)
    if any(t is not None and t.table("ops").is_empty() for t in (trace, other)):
        return
    report, _ = report_of(trace, other)
    rows = report.sections[0].frame.filter(pl.col("scope") == "kernels")
    for row in rows.filter(status="compared").iter_rows(named=True):
        assert added_ns is not None
        # A kernel that is lost makes the next one slow: one of a thousand, of 512 in a cycle.
        lost_ns = 0.005 * ALONE_NS
        assert row["added_per_dispatch_ns"] == pytest.approx(added_ns, rel=0.03, abs=lost_ns)
    left = rows.filter(status="not identifiable")
    assert left["ratio"].null_count() == left.height
    assert left["reason"].null_count() == 0
    assert {finding.code for finding in report.findings} <= ({CODE} if added_ns else set())
