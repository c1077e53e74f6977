"""Copies that were asked for and have no device op, in captures that did not record copying."""

import polars as pl

from tracekit.intervals import overlapping_host
from tracekit.trust import EVERY_PART, Check, Found, Touches, any_of


def blind_copies(
    copies: pl.DataFrame, calls: pl.DataFrame, processes: pl.DataFrame, windows: pl.DataFrame
) -> list[Found]:
    """Find the copies without an op of processes whose capture is not known to record copying.

    Where copying was recorded, a copy without an op ran as a kernel or on the host, and nothing is
    missing.
    """
    recorded = processes.filter(pl.col("collected").list.contains("copies"))
    blind = copies.filter(pl.col("op_id").is_null()).join(recorded, on="process_id", how="anti")
    if blind.is_empty():
        return []
    asked = copies.filter(pl.col("direction").ne_missing("host-to-host")).join(
        overlapping_host(calls, windows), on="call_id", how="semi"
    )
    without = asked.join(blind, on="call_id", how="semi")
    if without.is_empty():
        return []
    count, of_all = without.height, asked.height
    return [
        Found(
            f"{count:,} of {of_all:,} copies have no device op, since copying was not recorded: "
            "the device may have been busy with them; record with --memory-copy-trace",
            {"copies": count, "requested_copies": of_all},
        )
    ]


CHECK = Check(
    code="trust-copies.without-op",
    label="copies not recorded on the device",
    touches=Touches(reads=any_of("ops", "copies"), parts=EVERY_PART),
    find=blind_copies,
    busy_is_at_least=True,
    notes=("rocpd.copies-without-op",),
)
