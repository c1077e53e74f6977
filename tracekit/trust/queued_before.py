"""Ops that were queued before recording began: what the host did for them is not in the trace."""

import polars as pl

from tracekit.api_calls import queued_before_recording
from tracekit.trust import Check, Found, Touches, both, notes_of_uncalled, parts_of_work


def queued_before(
    work: pl.DataFrame, calls: pl.DataFrame, windows: pl.DataFrame, busy: pl.DataFrame
) -> list[Found]:
    """Find, for each device, the share of its ops and of its busy time queued before recording."""
    uncalled = work.filter(pl.col("call_id").is_null())
    early = uncalled.filter(queued_before_recording(uncalled, calls).fill_null(value=False))
    notes = notes_of_uncalled(CHECK.notes, early, uncalled)
    return [
        Found(
            f"{part.words} were queued before recording began: their calls are not in the trace, "
            "nor is what the host did then",
            part.numbers,
            part.device_id,
            notes=notes,
        )
        for part in parts_of_work(early, work, windows, busy)
    ]


CHECK = Check(
    code="trust-window.ops-queued-before",
    label="ops queued before recording",
    touches=Touches(reads=both("ops", "calls"), parts=frozenset({"edge"})),
    find=queued_before,
    notes=("kineto.op-queued-before-window",),
)
