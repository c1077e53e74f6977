"""The ledger on the engine under three policies: who is blamed, and for how much.

What is planted is worked out from the file with SQLite and plain loops: after a wait for the lengths
the host launches one small kernel and prepares. All that the device runs meanwhile was launched
before the wait, but for that kernel; what it does not cover is idle time that the wait has cost.
"""

import sqlite3

import polars as pl
import pytest

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request
from tracekit.formats import read_trace
from tracekit.pipeline import analyse

PREPARE_NS = Costs().host_ns["prepare"]
MARKER = "FutureMap.resolve_seq_lens_cpu"


def recorded(folder, policy):
    config = Config(tensors=False, host_costs_ns=Costs().host_ns)
    with Recorder(folder, environment=config.environment()) as recorder:
        device = VirtualDevice(config, recorder)
        options = EngineConfig(policy=policy, max_running=2, has_tensors=False)
        engine = Engine(device, options, marks=Marks(device))
        engine.run([Request(1, (3, 1, 4, 1, 5), 100), Request(2, (2, 7, 1, 8), 100)])
    return folder / "virtual_1.db"


def blamed_on_the_resolve(report):
    (section,) = report.sections
    return section.frame.filter(
        (pl.col("cause") == "host-blocked")
        & (pl.col("owner") == "hipEventSynchronize")
        & (pl.col("owner_marker") == MARKER)
    )


def exposed_by_hand(path):
    """Return, for each wait in the marker, how long the device then idled until the next launch."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    regions = database.execute(
        "SELECT coalesce(extdata ->> 'message', name), start, end FROM regions ORDER BY start"
    ).fetchall()
    ops = database.execute(
        "SELECT start, end FROM kernels UNION ALL SELECT start, end FROM memory_copies"
    ).fetchall()
    database.close()
    markers = [(start, end) for name, start, end in regions if name == MARKER]
    waits = [
        (start, end)
        for name, start, end in regions
        if name == "hipEventSynchronize" and any(a <= start and end <= b for a, b in markers)
    ]
    found = []
    for start, returned in waits:
        gather, prepared = [
            (a, b) for name, a, b in regions if name == "hipLaunchKernel" and a >= returned
        ][:2]
        assert (gather[0], prepared[0]) == (returned, gather[1] + PREPARE_NS)
        last_end = max(end for start, end in ops if start < prepared[0])
        found.append((returned - start, prepared[0] - last_end))
    return found


def test_a_wait_of_the_host_costs_what_it_prepares_but_for_what_the_tail_covers(tmp_path):
    path = recorded(tmp_path, "host-sync")
    # A wait that finds its work done, as one for a prefill may, returns at once and costs nothing.
    steady = [idle_ns for wait_ns, idle_ns in exposed_by_hand(path) if wait_ns > PREPARE_NS]
    planted_ns = sum(steady)
    assert len(steady) > 20
    assert 0.9 * PREPARE_NS < planted_ns / len(steady) < PREPARE_NS
    report = analyse(read_trace([path]), only=["idle-gaps"])
    exposed = blamed_on_the_resolve(report).filter(part="exposed")
    assert exposed["idle_ns"].sum() == pytest.approx(planted_ns, rel=0.02)
    assert exposed["range"].unique().to_list() == ["prepare"]
    assert exposed["gaps"].to_list() == [len(steady)]
    (finding,) = report.findings
    assert finding.code == "host-blocked.event-sync"
    assert finding.evidence["call"] == "hipEventSynchronize"
    assert finding.evidence["marker"] == MARKER
    assert finding.evidence["exposed_ns"] == exposed["idle_ns"].sum()


@pytest.mark.parametrize("policy", ["event-wait", "forward-stream"])
def test_a_wait_in_a_stream_costs_the_host_nothing_and_nobody_is_blamed(tmp_path, policy):
    report = analyse(read_trace([recorded(tmp_path, policy)]), only=["idle-gaps"])
    assert blamed_on_the_resolve(report).is_empty()
    assert report.findings == []
