"""Kinds of record that the capture of a process did not collect."""

import polars as pl

from tracekit.trust import Check, Found, Numbers, Touches, any_of

_CALLS = (
    "no host calls were recorded",
    "why a device idled is not known, nor what the host did; record with the runtime API trace on "
    "(rocprofv3: --hip-runtime-trace)",
    Touches(reads=any_of("calls"), parts=frozenset({"unknown"})),
    ("idle-gaps.no-calls", "launches.no-calls", "rocpd.calls-not-collected"),
)
_RANGES = (
    "no ranges were recorded",
    "idle time behind the host cannot be named, and host-late and host-blocked may hold time in "
    "which there was nothing to do",
    Touches(reads=any_of("ranges"), parts=frozenset({"host-late", "host-blocked"})),
    ("idle-gaps.no-ranges",),
)


def kinds_not_collected(
    processes: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame
) -> list[Found]:
    """Find the processes with ops of which no calls, or no ranges, were collected.

    A kind that was switched on and has no rows did not happen, and is no reason for doubt. A file
    that does not say what was switched on, and has no rows of a kind, did not collect it.
    """
    working, calling, naming = (
        processes.filter(pl.col("process_id").is_in(rows["process_id"].unique().implode()))
        for rows in (ops, calls, ranges)
    )
    # Without calls it is known that the host is unknown: ranges would add nothing.
    silent = working.join(calling, on="process_id", how="anti")
    nameless = working.join(pl.concat([silent, naming]), on="process_id", how="anti")
    found = []
    for kind, some, (what, meaning, touches, notes) in (
        ("calls", silent, _CALLS),
        ("ranges", nameless, _RANGES),
    ):
        off = some.filter(~pl.col("collected").list.contains(kind).fill_null(value=False))
        if off.height:
            where = f" for {off.height:,} of {working.height:,} processes"
            text = f"{what}{where if working.height > 1 else ''}: {meaning}"
            numbers: Numbers = {
                "kind": kind,
                "processes": off.height,
                "trace_processes": working.height,
            }
            found.append(Found(text, numbers, touches=touches, notes=notes))
    return found


CHECK = Check(
    code="trust-evidence.not-collected",
    label="not everything was recorded",
    touches=Touches(),
    find=kinds_not_collected,
)
