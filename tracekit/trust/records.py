"""Records that the reader found lost, changed or unreadable: its notes, as marks."""

from dataclasses import dataclass

import polars as pl

from tracekit.tables.notes import Severity
from tracekit.trust import EVERY_PART, Check, Found, Touches, any_of

_TABLES = ("ops", "calls", "copies", "waits", "ranges")


@dataclass(frozen=True, slots=True)
class _Loss:
    """What a lost record can be a row of, and whether device work may be missing."""

    tables: tuple[str, ...] = _TABLES
    misses_work: bool = True


# Where a note is not listed, anything may be missing.
_LOSSES = {
    "kineto.negative-durations": _Loss(("ops", "calls", "ranges")),
    "kineto.durations-unusable": _Loss(("ops", "calls", "ranges")),
    "rocpd.negative-durations": _Loss(("ops", "calls", "ranges")),
    "rocpd.rows-without-time": _Loss(("ops", "calls", "ranges")),
    "rocpd.text-undecodable": _Loss(misses_work=False),
    "kineto.sync-calls-lost": _Loss(("calls",), misses_work=False),
}
# Ops without a device have a mark of their own; a dispatch that is twice in the file is kept once,
# so that nothing is missing.
_NOT_HERE = (
    "trace-ops.no-device",
    "kineto.device-unknown",
    "rocpd.dispatches-without-device",
    "rocpd.duplicate-dispatches",
)


def lost_records(notes: pl.DataFrame) -> list[Found]:
    """Find the notes that say that records were lost, changed or could not be read."""
    lost = notes.filter(
        pl.col("severity").is_in([str(Severity.DATA_LOSS), str(Severity.ERROR)])
        & ~pl.col("code").is_in(_NOT_HERE)
    )
    # One loss in many files of one run is one mark.
    by_code = lost.group_by("code", maintain_order=True).agg(
        pl.col("message").first(), pl.col("count").sum()
    )
    return [_found(*row) for row in by_code.iter_rows()]


def _found(code: str, message: str, count: int) -> Found:
    loss = _LOSSES.get(code, _Loss())
    times = f" ({count:,}×)" if count != 1 else ""
    return Found(
        f"{code}{times}: {message.rstrip('.')}",
        {"note": code, "records": count},
        touches=Touches(reads=any_of(*loss.tables), parts=EVERY_PART),
        busy_is_at_least=loss.misses_work,
        notes=(code,),
    )


CHECK = Check(
    code="trust-records.lost",
    label="records lost or changed",
    touches=Touches(reads=any_of(*_TABLES), parts=EVERY_PART),
    find=lost_records,
)
