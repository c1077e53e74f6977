"""Ops that start before the call that launched them began: host and device clocks differ."""

import polars as pl

from tracekit.api_calls import leads_over_calls
from tracekit.trust import Check, Found, Touches, both
from tracekit.units import Unit, format_number


def early_ops(work: pl.DataFrame, calls: pl.DataFrame) -> list[Found]:
    """Find, for each device, the ops before their calls, and by how much at most.

    The largest lead is the least by which the clocks must differ; they may differ by more.
    """
    by_device = (
        work.select("device_id", lead_ns=leads_over_calls(work, calls))
        .filter(pl.col("lead_ns") > 0)
        .group_by("device_id")
        .agg(ops=pl.len(), largest_ns=pl.col("lead_ns").max())
        .sort("device_id")
    )
    return [_found(*row) for row in by_device.iter_rows()]


def _found(device_id: int, ops: int, largest_ns: int) -> Found:
    return Found(
        f"{ops:,} ops start before the call that launched them began, by up to "
        f"{format_number(largest_ns, Unit.DURATION)}: host and device clocks differ by that much, "
        "and times shorter than that between host and device mean nothing",
        {"ops": ops, "largest_lead_ns": largest_ns},
        device_id,
    )


CHECK = Check(
    code="trust-clock.op-before-call",
    label="host and device clocks differ",
    touches=Touches(
        reads=both("ops", "calls"),
        parts=frozenset({"host-blocked", "host-late", "starved", "launch-latency", "queue-wait"}),
    ),
    find=early_ops,
    notes=("idle-gaps.clock-skew", "kineto.op-before-call", "rocpd.ops-before-call"),
)
