"""Kineto: the JSON that the PyTorch profiler writes, plain or gzip, on ROCm and CUDA."""

from pathlib import Path

from tracekit.errors import UnreadableTrace
from tracekit.formats import Format, Progress
from tracekit.formats.kineto.canonical import trace_of
from tracekit.formats.kineto.container import first_bytes
from tracekit.formats.kineto.recording import Recording, recorded
from tracekit.trace import Trace

# Metadata before the events (process groups, a user's own) can be long.
_SNIFFED_BYTES = 1 << 20
_HEAD_KEYS = (b'"schemaVersion"', b'"deviceProperties"')


def _sniff(path: Path, head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"["):
        return b'"ph"' in text
    if not text.startswith(b"{"):
        return False
    if b'"traceEvents"' in text or all(key in text for key in _HEAD_KEYS):
        return True
    return b'"traceEvents"' in first_bytes(path, _SNIFFED_BYTES)


def _read(path: Path, progress: Progress) -> Trace:
    recording = recorded(path, progress)
    if _is_foreign(recording):
        raise UnreadableTrace(
            path,
            "is a Chrome trace without a single event of the PyTorch profiler",
            "Name the .json file that torch.profiler wrote",
        )
    return trace_of(recording, FORMAT.name)


def _is_foreign(recording: Recording) -> bool:
    rows = len(recording.details) + len(recording.ranges)
    return (
        rows == 0
        and recording.has_end
        and not recording.metadata.keys()
        & {
            "schemaVersion",
            "deviceProperties",
            "trace_id",
        }
    )


FORMAT = Format(
    name="kineto",
    summary="PyTorch profiler (Kineto) JSON, plain or gzip, on ROCm and CUDA",
    sniff=_sniff,
    read=_read,
)
