"""Kernel launches and copies of which no op was recorded: a busy device then looks idle."""

import polars as pl

from tracekit.api_calls import launches_without_ops
from tracekit.intervals import overlapping_host
from tracekit.trust import EVERY_PART, Check, Found, Touches, any_of
from tracekit.units import Unit, format_number


def lost_ops(ops: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame) -> list[Found]:
    """Find the launches and copies that have no op, though others before and after them have.

    How long the missing ops ran is not known, nor, of a process that uses several devices, where.
    Graph launches have a mark of their own.
    """
    missing = overlapping_host(launches_without_ops(calls, ops), windows)
    if missing.is_empty():
        return []
    alike = calls.join(missing, on=["process_id", "name"], how="semi")
    asked, lost = overlapping_host(alike, windows).height, missing.height
    return [
        Found(
            f"{lost:,} of {asked:,} launches and copies "
            f"({format_number(lost / asked, Unit.SHARE)}) have no op: the device was busy for "
            "longer than it seems, and where one of them may have run, idle time is unknown",
            {"launches_without_ops": lost, "launches": asked, "lost_share": lost / asked},
        )
    ]


CHECK = Check(
    code="trust-ops.lost",
    label="ops lost",
    touches=Touches(reads=any_of("ops"), parts=EVERY_PART),
    find=lost_ops,
    busy_is_at_least=True,
)
