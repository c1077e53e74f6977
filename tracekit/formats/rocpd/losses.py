"""What a capture cannot say, as notes with exact counts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.errors import UnreadableTrace
from tracekit.formats.rocpd.database import Capture
from tracekit.tables.notes import Note, Severity

_EXPECTED = ("rocpd_string", "rocpd_info_process", "rocpd_info_agent", "rocpd_event")
_MAJOR = "3"


@dataclass(frozen=True)
class Losses:
    """Counts that the parts of the reader found on their way."""

    clamped: int
    duplicates: int
    untimed: int
    unnamed: int
    skipped: int
    unpaired: int
    captured: int
    unplaced_counters: int


# Per count: code, severity, and what it means.
_COUNTED = {
    "clamped": (
        "rocpd.negative-durations",
        Severity.DATA_LOSS,
        "ends before it starts (a clock went backwards); kept with zero length",
    ),
    "duplicates": (
        "rocpd.duplicate-dispatches",
        Severity.DATA_LOSS,
        "dispatch that is in the file twice; kept once",
    ),
    "untimed": (
        "rocpd.rows-without-time",
        Severity.DATA_LOSS,
        "device op without a time; left out",
    ),
    "unnamed": (
        "rocpd.calls-unnamed",
        Severity.INFO,
        "call that began and ended on one clock tick; the file does not hold the names of those",
    ),
    "skipped": (
        "rocpd.regions-skipped",
        Severity.INFO,
        "host record that is neither an API call nor a range (page fault, migration, sample)",
    ),
    "unpaired": (
        "rocpd.waits-not-recorded",
        Severity.NOTICE,
        "wait for an event that was not seen recorded before: when it was over is unknown",
    ),
    "captured": (
        "rocpd.waits-captured",
        Severity.INFO,
        "event call made while a graph was being captured: it is an edge of the graph, not a wait",
    ),
    "unplaced_counters": (
        "rocpd.counters-unplaced",
        Severity.INFO,
        "counter value without a dispatch or a time; left out",
    ),
}


def refuse_foreign_version(capture: Capture) -> None:
    """Raise `UnreadableTrace` unless the schema's major version is the one we know."""
    version = _version(capture)
    if version is not None and version.split(".")[0] != _MAJOR:
        raise UnreadableTrace(
            capture.path,
            f"has rocpd schema {version}, and tracekit reads schema {_MAJOR}",
            "Update tracekit, or record with a rocprofv3 that writes schema 3",
        )


def losses_notes(
    capture: Capture, frames: Mapping[str, pl.DataFrame], losses: Losses
) -> list[Note]:
    """Return the notes of one capture."""
    source = str(capture.path)
    counted = [
        Note(code, severity, meaning, count, source)
        for name, (code, severity, meaning) in _COUNTED.items()
        if (count := getattr(losses, name))
    ]
    found = [*_structure(capture), *_host_side(capture, frames), *_device_side(frames)]
    return [Note(*note, source) for note in found] + counted


def _version(capture: Capture) -> str | None:
    rows = capture.rows("rocpd_metadata", ["value"], "tag = 'schema_version'")
    return str(rows[0][0]) if rows else None


def _structure(capture: Capture) -> Iterator[tuple[str, Severity, str, int]]:
    if _version(capture) is None:
        yield (
            "rocpd.schema-version-unknown",
            Severity.NOTICE,
            "the file does not state its schema version; read as schema 3",
            1,
        )
    if missing := [name for name in _EXPECTED if name not in capture.columns]:
        yield (
            "rocpd.tables-missing",
            Severity.ERROR,
            f"no table {', '.join(missing)}: what only they hold is unknown",
            len(missing),
        )


def _host_side(
    capture: Capture, frames: Mapping[str, pl.DataFrame]
) -> Iterator[tuple[str, Severity, str, int]]:
    calls, copies = frames["calls"], frames["copies"]
    if calls.is_empty():
        yield (
            "rocpd.calls-not-collected",
            Severity.NOTICE,
            "no HIP calls: record with --hip-runtime-trace to see what the host did",
            1,
        )
        return
    if not capture.last_row_id("rocpd_arg"):
        yield (
            "rocpd.arguments-not-collected",
            Severity.NOTICE,
            "calls have no arguments: their streams, events and copied bytes are unknown",
            calls.height,
        )
    without_op = copies["op_id"].null_count()
    if without_op:
        yield (
            "rocpd.copies-without-op",
            Severity.NOTICE,
            "copy requested without a device op: record with --memory-copy-trace to see it run",
            without_op,
        )


def _device_side(
    frames: Mapping[str, pl.DataFrame],
) -> Iterator[tuple[str, Severity, str, int]]:
    ops, calls, streams = frames["ops"], frames["calls"], frames["streams"]
    if ops.is_empty():
        yield (
            "rocpd.ops-not-collected",
            Severity.NOTICE,
            "no device work: record with --kernel-trace, and check that the window saw any",
            1,
        )
    unjoined = ops["call_id"].null_count()
    if unjoined and calls.height:
        yield (
            "rocpd.ops-without-call",
            Severity.NOTICE,
            "device op whose call is not in the trace (made before the window, or not traced)",
            unjoined,
        )
    early = _ops_before_call(ops, calls)
    if early:
        yield (
            "rocpd.ops-before-call",
            Severity.NOTICE,
            "device op that starts before its call: host and device clocks disagree",
            early,
        )
    flagless = streams["flags"].null_count()
    if flagless:
        yield (
            "rocpd.stream-flags-unknown",
            Severity.NOTICE,
            "stream whose flags are not in the file: whether it waits for the null stream is "
            "unknown",
            flagless,
        )


def _ops_before_call(ops: pl.DataFrame, calls: pl.DataFrame) -> int:
    called = calls["start_ns"].gather(ops["call_id"])
    return int((ops["start_ns"] < called).sum())
