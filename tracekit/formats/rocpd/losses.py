"""What a capture cannot say, as notes with exact counts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.structure import structure_notes
from tracekit.tables.notes import Note, Severity


@dataclass(frozen=True)
class Losses:
    """Counts that the parts of the reader found on their way."""

    clamped: int
    duplicates: int
    untimed: int
    deviceless: int
    unnamed: int
    skipped: int
    unpaired: int
    captured: int
    unplaced_counters: int


# What a modelled device is called.
_VIRTUAL = "virtual-"

# Per count: code, severity, and what it means.
_COUNTED = {
    "clamped": (
        "rocpd.negative-durations",
        Severity.DATA_LOSS,
        "Row that ends before it starts (a clock went backwards); kept with zero length",
    ),
    "duplicates": (
        "rocpd.duplicate-dispatches",
        Severity.DATA_LOSS,
        "Dispatch that is in the file twice; kept once",
    ),
    "untimed": (
        "rocpd.rows-without-time",
        Severity.DATA_LOSS,
        "Row of device or host work without a usable start or end; left out",
    ),
    "deviceless": (
        "rocpd.dispatches-without-device",
        Severity.DATA_LOSS,
        "Dispatch that names no known GPU agent: which device it ran on is unknown, so it counts "
        "for none",
    ),
    "unnamed": (
        "rocpd.calls-unnamed",
        Severity.INFO,
        "Call that began and ended on one clock tick; the file does not hold the names of those",
    ),
    "skipped": (
        "rocpd.regions-skipped",
        Severity.INFO,
        "Host record that is neither an API call nor a range (page fault, migration, sample)",
    ),
    "unpaired": (
        "rocpd.waits-not-recorded",
        Severity.NOTICE,
        "Wait for an event that was not seen recorded before: when it was over is unknown",
    ),
    "captured": (
        "rocpd.waits-captured",
        Severity.INFO,
        "Event call made while a graph was being captured: it is an edge of the graph, not a wait",
    ),
    "unplaced_counters": (
        "rocpd.counters-unplaced",
        Severity.INFO,
        "Counter value without a dispatch or a time; left out",
    ),
}


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
    found = [
        *_model(frames["devices"]),
        *structure_notes(capture),
        *_host_side(capture, frames),
        *_device_side(frames),
    ]
    return [Note(*note, source) for note in found] + counted


def _model(devices: pl.DataFrame) -> Iterator[tuple[str, Severity, str, int]]:
    if devices["arch"].str.starts_with(_VIRTUAL).any():
        yield (
            "rocpd.model",
            Severity.NOTICE,
            "Recorded by a model of a GPU in virtual time: no time in it was measured",
            1,
        )


def _host_side(
    capture: Capture, frames: Mapping[str, pl.DataFrame]
) -> Iterator[tuple[str, Severity, str, int]]:
    calls, copies = frames["calls"], frames["copies"]
    if calls.is_empty():
        yield (
            "rocpd.calls-not-collected",
            Severity.NOTICE,
            "No HIP calls: record with --hip-runtime-trace to see what the host did",
            1,
        )
        return
    if not capture.last_row_id("rocpd_arg"):
        yield (
            "rocpd.arguments-not-collected",
            Severity.NOTICE,
            "Calls have no arguments: their streams, events and copied bytes are unknown",
            calls.height,
        )
    without_op = copies["op_id"].null_count()
    if without_op:
        yield (
            "rocpd.copies-without-op",
            Severity.NOTICE,
            "Copy requested without a device op: record with --memory-copy-trace to see it run",
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
            "No device work: record with --kernel-trace, and check that the window saw any",
            1,
        )
    unjoined = ops["call_id"].null_count()
    if unjoined and calls.height:
        yield (
            "rocpd.ops-without-call",
            Severity.NOTICE,
            "Device op whose call is not in the trace (made before the window, or not traced)",
            unjoined,
        )
    early = _ops_before_call(ops, calls)
    if early:
        yield (
            "rocpd.ops-before-call",
            Severity.NOTICE,
            "Device op that starts before its call: host and device clocks disagree",
            early,
        )
    flagless = streams["flags"].null_count()
    if flagless:
        yield (
            "rocpd.stream-flags-unknown",
            Severity.NOTICE,
            "Stream whose flags are not in the file: whether it waits for the null stream is "
            "unknown",
            flagless,
        )


def _ops_before_call(ops: pl.DataFrame, calls: pl.DataFrame) -> int:
    called = calls["start_ns"].gather(ops["call_id"])
    return int((ops["start_ns"] < called).sum())
