"""The ledger on a real decode loop whose truth we know, because we wrote it.

`samples/record_decode_loop.py`: 8 steps, one graph of 512 kernels each, 550 µs of preparation on the
host between steps. Under `host-sync` and `item` the host waits for the device before it prepares, so
seven preparations are exposed; under the waits in the stream none is.
"""

from pathlib import Path

import polars as pl
import pytest

from tracekit.formats import read_trace
from tracekit.pipeline import analyse

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
STEPS, PREPARE_NS = 8, 550_000


def report_on(policy):
    return analyse(
        read_trace([SAMPLES / f"decode_{policy}.json.gz"]), only=["idle-gaps", "host-syncs"]
    )


def idle_ns(report):
    (device,) = report.devices
    return sum(device.idle_ns_by_cause.values())


@pytest.mark.parametrize(
    ("policy", "call", "caller", "code"),
    [
        ("host_sync", "cudaEventSynchronize", None, "host-blocked.publish-event"),
        ("item", "cudaStreamSynchronize", "aten::_local_scalar_dense", "host-blocked.item"),
    ],
)
def test_a_blocked_host_owns_most_of_the_idle_time_and_is_named(policy, call, caller, code):
    report = report_on(policy)
    (device,) = report.devices
    assert device.idle_ns_by_cause["host-blocked"] > 0.7 * idle_ns(report)
    (finding,) = report.findings
    assert finding.code == code
    assert finding.evidence["call"] == call
    assert finding.evidence["marker"] == "resolve_seq_lens"
    assert finding.evidence["caller"] == caller
    section = report.sections[0]
    exposed = section.frame.filter(
        (pl.col("part") == "exposed") & (pl.col("range") == "prepare") & (pl.col("owner") == call)
    )
    assert exposed["gaps"].item() == STEPS - 1
    # The host works for 550 µs by its own clock; the profiler and the marker add a little.
    assert 1.0 <= exposed["idle_ns"].item() / ((STEPS - 1) * PREPARE_NS) <= 1.15


@pytest.mark.parametrize("policy", ["event_wait", "forward_stream"])
def test_waits_in_the_stream_leave_the_host_unblocked_though_it_still_calls_synchronize(policy):
    trace = read_trace([SAMPLES / f"decode_{policy}.json.gz"])
    assert (trace.table("calls")["kind"] == "event_sync").sum() == STEPS - 2
    report = report_on(policy)
    (device,) = report.devices
    assert device.idle_ns_by_cause.get("host-blocked", 0) == 0
    assert report.findings == []
    # Only the first step, which has nothing to hide behind, leaves the device waiting for long.
    section = report.sections[0]
    late = section.frame.filter(pl.col("cause") == "host-late")
    assert late["idle_ns"].sum() < 2 * PREPARE_NS
