"""What a Kineto file cannot say, as counted notes."""

from collections.abc import Iterator

import polars as pl

from tracekit.formats.kineto.columns import SHORTEST_FRAME_US
from tracekit.formats.kineto.identity import Platform
from tracekit.formats.kineto.metadata import unusable
from tracekit.formats.kineto.recording import Recording
from tracekit.tables.notes import Note, Severity

_WINDOW_END = "Record Window End"
_EPOCH_NS = 10**18  # 2001: an earlier time is no time since 1970
_NAMES_SHOWN = 6


def file_notes(recording: Recording) -> Iterator[Note]:
    """Yield what is wrong with the file itself."""
    source, counts = str(recording.path), recording.counts
    if recording.is_damaged:
        yield Note(
            "kineto.gzip-damaged",
            Severity.DATA_LOSS,
            "The compressed data is damaged: what came before the damage was read, events behind "
            "it, if any, are missing, and some before it may be altered; copy the file again",
            max(counts["partial"], 1),
            source,
        )
    elif not recording.has_end:
        yield Note(
            "kineto.truncated",
            Severity.DATA_LOSS,
            "The file stops before its JSON ends: the writer died or the copy is incomplete. Whole "
            "events up to there were read, later ones are missing; record again if they matter",
            max(counts["partial"], 1),
            source,
        )
    if counts["lost"] + counts["untimed"]:
        yield Note(
            "kineto.events-unreadable",
            Severity.DATA_LOSS,
            "Events were left out: they are not valid JSON (before 2026 PyTorch did not escape "
            "quotes in names), are no objects, or have no usable time (`ts`)",
            counts["lost"] + counts["untimed"],
            source,
        )
    if counts["lengthless"]:
        yield Note(
            "kineto.durations-unusable",
            Severity.DATA_LOSS,
            "Events whose duration (`dur`) is missing or no usable number were given no length: "
            "busy times and totals lack theirs",
            counts["lengthless"],
            source,
        )
    if counts["negative"]:
        yield Note(
            "kineto.negative-durations",
            Severity.DATA_LOSS,
            "Events that end before they start were given no length",
            counts["negative"],
            source,
        )
    yield from _metadata_notes(recording)
    yield from _unread_notes(recording)


def _metadata_notes(recording: Recording) -> Iterator[Note]:
    if names := unusable(recording.metadata):
        yield Note(
            "kineto.metadata-unusable",
            Severity.NOTICE,
            f"The file's metadata holds something other than whole numbers in {', '.join(names)}: "
            "ignored, so that the base of its times, its rank or device names are unknown",
            len(names),
            str(recording.path),
        )
    times = pl.concat([recording.ranges["start_ns"], recording.details["start_ns"]])
    earliest = times.min()
    if recording.base_ns is None and isinstance(earliest, int) and earliest < _EPOCH_NS:
        yield Note(
            "kineto.base-time-missing",
            Severity.NOTICE,
            "The file does not say what its times count from (baseTimeNanoseconds): they can be "
            "compared with each other, not with other files",
            source=str(recording.path),
        )


def _unread_notes(recording: Recording) -> Iterator[Note]:
    source = str(recording.path)
    unread = recording.unread.copy()
    if ends := unread.pop(_WINDOW_END, 0):
        yield Note(
            "kineto.record-window-end",
            Severity.INFO,
            "The profiler marked the end of its window; work still queued then was not recorded",
            ends,
            source,
        )
    if unread:
        shown = ", ".join(f"{name[:40]} ({n})" for name, n in unread.most_common(_NAMES_SHOWN))
        more = f" and {len(unread) - _NAMES_SHOWN} more" if len(unread) > _NAMES_SHOWN else ""
        yield Note(
            "kineto.events-not-used",
            Severity.INFO,
            f"No table holds these events: {shown}{more}",
            unread.total(),
            source,
        )


def platform_notes(
    platform: Platform,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    source: str,
    *,
    has_synchronisation: bool,
) -> Iterator[Note]:
    """Yield what the profiler behind the file does not record.

    Args:
        platform: The stack that recorded the file.
        ops: Device work.
        calls: Host calls with `kind`.
        source: The file.
        has_synchronisation: The file has rows of the category `cuda_sync` or `cuda_event`.
    """
    if ops.is_empty():
        yield Note(
            "kineto.no-ops",
            Severity.NOTICE,
            "No device work was recorded: profile with ProfilerActivity.CUDA (also on ROCm)",
            source=source,
        )
    if not platform.has_streams and len(ops):
        yield Note(
            "kineto.stream-is-queue",
            Severity.NOTICE,
            "On ROCm before June 2026 `stream` is the hardware queue (HSA): queues are known, "
            "streams are not",
            source=source,
        )
    asked = int((calls["kind"] == "event_wait").sum())
    if not has_synchronisation and platform.is_rocm:
        yield Note(
            "kineto.waits-unknown",
            Severity.NOTICE,
            "Kineto records no wait of one stream for another on ROCm: none listed means unknown, "
            "not none; record with rocprofv3 to see them",
            max(asked, 1),
            source,
        )
    elif not has_synchronisation and len(ops) + asked:
        yield Note(
            "kineto.waits-not-collected",
            Severity.NOTICE,
            "Waits of one stream for another were not recorded: none listed means unknown, not "
            "none; mark records and waits (docs/markers.md), or before CUDA 12.9 profile with "
            "experimental_config enable_cuda_sync_events=True",
            max(asked, 1),
            source,
        )


def alone_notes(calls: pl.DataFrame, source: str) -> Iterator[Note]:
    """Yield the calls that a synchronisation row stands for (`activity.calls_of`)."""
    if count := int((calls["section"] == "sync").sum()):
        yield Note(
            "kineto.sync-calls-lost",
            Severity.DATA_LOSS,
            "Waits were recorded whose host call was not: their own rows stand for them, and other "
            "calls may be lost",
            count,
            source,
        )


def op_notes(ops: pl.DataFrame, first_correlation: pl.DataFrame, source: str) -> Iterator[Note]:
    """Yield ops without a call, split by why, and ops that start before their call."""
    uncalled = ops.filter(pl.col("call_id").is_null()).join(
        first_correlation, on="process_id", how="left", nulls_equal=True
    )
    number, first = uncalled["correlation"], uncalled["first_correlation"]
    unnumbered = int(number.is_null().sum())
    queued = int((number < first).sum())
    for code, count, message in (
        ("kineto.op-queued-before-window", queued, "were launched before the window opened"),
        ("kineto.op-without-correlation", unnumbered, "have no correlation number (0)"),
        (
            "kineto.op-without-call",
            len(uncalled) - queued - unnumbered,
            "have a correlation number that no recorded call has",
        ),
    ):
        if count:
            yield Note(
                code,
                Severity.NOTICE,
                f"Ops {message}: which host call launched them is unknown",
                count,
                source,
            )
    early = ops.filter(pl.col("start_ns") < pl.col("call_start_ns"))
    if len(early):
        largest = early.select((pl.col("call_start_ns") - pl.col("start_ns")).max()).item()
        yield Note(
            "kineto.op-before-call",
            Severity.NOTICE,
            f"Ops start up to {largest} ns before the call that launched them: the clocks of host "
            "and device differ",
            len(early),
            source,
        )
    if deviceless := ops["device_id"].null_count():
        yield Note(
            "kineto.device-unknown",
            Severity.DATA_LOSS,
            "GPU events name no device (neither as `device` nor as a numeric `pid`): they "
            "count for no device's busy time",
            deviceless,
            source,
        )
    if homeless := ops["process_id"].null_count():
        yield Note(
            "kineto.process-unknown",
            Severity.NOTICE,
            "Ops of a merged file that could belong to several of its processes",
            homeless,
            source,
        )


def overlap_notes(ops: pl.DataFrame, source: str) -> Iterator[Note]:
    """Yield how many ops of one lane overlap the ones before them, and by how much at most."""
    lane = ["process_id", "device_id", "stream_id", "queue_id"]
    over = pl.col("end_ns").cum_max().shift(1).over(lane) - pl.col("start_ns")
    overlaps = (
        ops.sort("start_ns", "end_ns")
        .select(over_ns=over.clip(upper_bound=pl.col("end_ns") - pl.col("start_ns")))
        .filter(pl.col("over_ns") > 0)
    )
    if len(overlaps):
        largest = overlaps.select(pl.col("over_ns").max()).item()
        yield Note(
            "kineto.ops-overlap",
            Severity.INFO,
            f"Ops of one {'stream' if ops['queue_id'].is_null().all() else 'queue'} overlap by up "
            f"to {largest} ns; busy time counts overlapping time once",
            len(overlaps),
            source,
        )


def frame_notes(dropped: int, source: str) -> Iterator[Note]:
    """Yield how many Python frames were left out."""
    if dropped:
        yield Note(
            "kineto.frames-dropped",
            Severity.INFO,
            "Python frames were kept only around host calls that can block, and only those of at "
            f"least {SHORTEST_FRAME_US} µs",
            dropped,
            source,
        )
