"""A report made by hand: two devices, one hostile kernel, one finding, one note of each kind."""

import polars as pl
import pytest

from tracekit.findings import Finding, FindingSeverity
from tracekit.reports import DeviceSummary, Report, Section
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.tables.notes import Note, Severity
from tracekit.trust import Touches, TrustMark, any_of
from tracekit.units import Unit

HOSTILE = "</script><script>alert(1)</script><!-- \u2028 | `tick` \x1b[31m"
TEMPLATED = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)"
HOT = Table(
    "hot",
    "one kernel",
    (
        id_column("device_id", "device", "The device.", narrow=True),
        id_column("stream_id", "stream", "The stream.", narrow=True),
        text_column("name", "Kernel name."),
        enum_column("kind", ("kernel", "copy"), "What it is."),
        Column("ops", pl.Int64(), "How many.", Unit.COUNT),
        Column("total_ns", pl.Int64(), "Summed length.", Unit.DURATION),
        Column("busy_share", pl.Float64(), "Share of the window.", Unit.SHARE),
        time_column("first_ns", "Where the first one starts."),
        text_column("marker", "Never known here."),
    ),
)


@pytest.fixture
def hostile():
    """A kernel name made to break out of whatever holds it."""
    return HOSTILE


@pytest.fixture
def templated():
    """A kernel name as PyTorch has thousands of."""
    return TEMPLATED


@pytest.fixture
def report():
    """The report made by hand."""
    rows = [
        (0, 7, HOSTILE, "kernel", 1234, 400_000, 0.4, 1_000_000, None),
        (1, None, TEMPLATED, "kernel", 1, 999_600, 1.0, 1_500_000, None),
        *((0, 7, f"kernel_{i}", "copy", i, 1000 - i, 0.001, 2_000_000, None) for i in range(20)),
    ]
    hot = pl.DataFrame(rows, schema=HOT.schema, orient="row")
    return Report(
        sources=["runs/base.json"],
        format_name="kineto",
        window="each device from its first to its last op",
        notes=[
            Note("kineto.flags-unknown", Severity.INFO, "Stream flags are unknown."),
            Note("kineto-events.unpaired", Severity.DATA_LOSS, "Ops without their call.", 12),
        ],
        devices=[
            DeviceSummary(
                0,
                "MI300X",
                1_000_000,
                1_000_000,
                481_000,
                {"dispatch": 19_000, "host-blocked": 499_600, "unknown": 400},
            ),
            DeviceSummary(1, "MI300X", 1_500_000, 999_600, 999_600, {}),
        ],
        sections=[
            Section("hot", "Which kernels take the time?", HOT, hot),
            Section("calls", "Which calls take the time?", HOT, HOT.empty(), "needs calls"),
            Section("steps", "How long is a step?", HOT, HOT.empty()),
        ],
        findings=[
            Finding(
                "host-blocked.publish-event",
                FindingSeverity.WARNING,
                "hipEventSynchronize held back the next step for 50.0 % of the window.",
                {"idle_ns": 499_600, "owner": "hipEventSynchronize", "caller": None},
                "Queue the next step before waiting.",
                (1_000_000, 1_400_000),
            )
        ],
        origin_ns=1_000_000,
        labels={"device": {0: "MI300X", 1: "MI300X"}, "stream": {7: "side"}},
    )


@pytest.fixture
def calm(report):
    """The report of a trace in which nothing is wrong and nothing is missing."""
    from dataclasses import replace

    return replace(report, notes=[], findings=[])


LOST = TrustMark(
    "trust-graphs.launches-without-ops",
    "graph launches without their ops",
    "3 of 4 graph launches have no recorded op",
    Touches(reads=any_of("ops"), parts=frozenset({"busy", "idle"})),
    {"launches_without_ops": 3, "possible_busy_ns": 400_000},
    device_id=0,
    busy_is_at_least=True,
)
EARLY = TrustMark(
    "trust-window.ops-queued-before",
    "ops queued before recording",
    "12 of 48 ops were queued before recording",
    Touches(any_of("calls"), frozenset({Unit.RATIO}), frozenset({"unknown"})),
    {"ops": 12},
    notes=("kineto-events.unpaired",),
)
BLIND = TrustMark(
    "trust-copies.without-op",
    "copies not recorded on the device",
    "2 copies have no device op",
    Touches(reads=any_of("copies")),
    {"copies": 2},
)


@pytest.fixture
def marked(report):
    """The report with three marks: of device 0, of one cause, and of two sections only."""
    from dataclasses import replace

    first, second = report.devices
    hot, calls, steps = report.sections
    return replace(
        report,
        trust=[LOST, EARLY, BLIND],
        devices=[replace(first, trust=[LOST, EARLY]), second],
        sections=[replace(hot, trust=[LOST, BLIND]), calls, replace(steps, trust=[BLIND])],
    )
