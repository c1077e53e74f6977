"""Ops of which the device is not known: they are in no device's busy time."""

import polars as pl

from tracekit.trust import EVERY_PART, Check, Found, Touches, any_of


def deviceless(ops: pl.DataFrame) -> list[Found]:
    """Find the ops without a device, wherever in the trace they are."""
    count = int(ops.select(pl.col("device_id").null_count()).item())
    if not count:
        return []
    return [
        Found(
            f"{count:,} of {ops.height:,} ops name no device: some device was busy with them, and "
            "none is counted as such",
            {"ops": count, "trace_ops": ops.height},
        )
    ]


CHECK = Check(
    code="trust-ops.no-device",
    label="ops without a device",
    touches=Touches(reads=any_of("ops"), parts=EVERY_PART),
    find=deviceless,
    busy_is_at_least=True,
    notes=("trace-ops.no-device", "kineto.device-unknown", "rocpd.dispatches-without-device"),
)
