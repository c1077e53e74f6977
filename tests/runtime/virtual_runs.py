"""Runs host code on a recorded virtual device and reads the recording with tracekit."""

import polars as pl

from instrumented_runtime.devices.virtual import Config, Timing, VirtualDevice
from instrumented_runtime.recorder import Recorder
from tracekit.formats import read_trace, silent

# Every constant a round number, so that a test can say what comes out.
ROUND = {
    "launch_latency_ns": 1_000,
    "dispatch_ns": 100,
    "graph_dispatch_ns": 10,
    "pending_wait_dispatch_ns": 50,
    "wait_release_ns": 200,
    "wake_up_ns": 500,
    "copy_ns": 2_000,
    "copy_bytes_per_ns": 1.0,
    "staging_bytes_per_ns": 1.0,
    "call_ns": 10,
    "calls_ns": {},
}
START_NS = 1_000_000_000


def device_of(recorder=None, *, timing=None, **options):
    """Return a device whose constants are `ROUND`, but for those given."""
    config = Config(timing=Timing(**{**ROUND, **(timing or {})}), **options)
    return VirtualDevice(config, recorder)


def recorded(tmp_path, host_code, **options):
    """Run `host_code(device)` and a device synchronize; return the trace and the device."""
    with Recorder(tmp_path, environment={"ROCPROF_KERNEL_TRACE": "1"}) as recorder:
        device = device_of(recorder, **options)
        host_code(device)
        device.synchronize()
        path = recorder.close()
    return read_trace([path], silent), device


def times_of(trace):
    """Return name, queue, and start and end from the host's first nanosecond, by start and name."""
    ops = trace.table("ops").select(
        pl.col("name").cast(pl.String),
        "queue_id",
        start=pl.col("start_ns") - START_NS,
        end=pl.col("end_ns") - START_NS,
    )
    return ops.sort("start", "name")
