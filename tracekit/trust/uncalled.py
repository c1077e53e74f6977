"""Ops whose call is not in the trace, although calls were recorded and it was no early one."""

import polars as pl

from tracekit.api_calls import queued_before_recording
from tracekit.trust import Check, Found, Touches, both, notes_of_uncalled, parts_of_work


def uncalled(
    work: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame, busy: pl.DataFrame
) -> list[Found]:
    """Find, for each device, the ops without a call of processes of which calls were recorded.

    An op that was queued before recording began is not among them; one without a correlation number
    is, since it cannot be told when it was queued.
    """
    if calls.is_empty():
        return []
    all_uncalled = work.filter(pl.col("call_id").is_null())
    callers = calls["process_id"].drop_nulls().unique()
    without = all_uncalled.filter(
        (pl.col("process_id").is_in(callers.implode()) | pl.col("process_id").is_null())
        & ~queued_before_recording(all_uncalled, calls).fill_null(value=False)
    )
    notes = notes_of_uncalled(CHECK.notes, without, all_uncalled)
    return [
        Found(
            f"{part.words} have no call although calls were recorded: it was lost or not traced, "
            "and why the device idled before them is not known",
            part.numbers,
            part.device_id,
            notes=notes,
        )
        for part in parts_of_work(without, work, windows, busy)
    ]


CHECK = Check(
    code="trust-ops.without-call",
    label="ops without their call",
    touches=Touches(reads=both("ops", "calls"), parts=frozenset({"unknown"})),
    find=uncalled,
    notes=("kineto.op-without-call", "kineto.op-without-correlation"),
)
