"""The room of trace formats: one module (or package) per format, each defining `FORMAT`.

Sniffing and reading are separate, so that every sample can be tested to be claimed exactly once
and a wrong file is refused before anything is read.
"""

import ctypes
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

from tracekit.errors import BadInput, UnreadableTrace
from tracekit.manifest.what_ran import read_what_ran
from tracekit.markers import with_markers
from tracekit.registry import load_room
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace, join_traces

HEAD_BYTES = 4096
_LFS_POINTER = b"version https://git-lfs"


class Progress(Protocol):
    """How a reader says how far it is; the command line draws it."""

    def __call__(self, done: int, total: int, what: str, /) -> None:
        """Report `done` of `total` bytes or rows of `what`."""


def silent(_done: int, _total: int, _what: str, /) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True, slots=True)
class Format:
    """One trace format.

    Attributes:
        name: The user's name of it.
        summary: One line for `tracekit list formats`.
        sniff: True if the path holds this format. Looks at content: `head` is the first
            `HEAD_BYTES` bytes of a file, decompressed if gzip, and empty for a directory.
        read: Reads one path. Raises `UnreadableTrace`; everything less is a note.
        members: For a directory that is a package of this format, its files, each read with `read`;
            None where a path is always read whole.
    """

    name: str
    summary: str
    sniff: Callable[[Path, bytes], bool]
    read: Callable[[Path, Progress], Trace]
    members: Callable[[Path], Sequence[Path]] | None = None


@cache
def formats() -> dict[str, Format]:
    """Return all formats by name."""
    return load_room(__name__, "FORMAT", Format)


def identify(path: Path) -> Format:
    """Return the format of a file or directory.

    Raises:
        UnreadableTrace: Nothing claims the path, it cannot be read, or two formats claim it.
    """
    head = _head(path)
    claimed = _claimed(path, head)
    if claimed is None:
        raise UnreadableTrace(path, *_why_unclaimed(path, head))
    return claimed


def _claimed(path: Path, head: bytes) -> Format | None:
    """Return the format that claims a path, if one does.

    Raises:
        UnreadableTrace: Two formats claim it.
    """
    claims = [format_ for format_ in formats().values() if format_.sniff(path, head)]
    if len(claims) > 1:
        names = " and ".join(format_.name for format_ in claims)
        raise UnreadableTrace(path, f"claimed by {names}", "Report this: formats must not overlap")
    return claims[0] if claims else None


def read_trace(paths: Sequence[Path], progress: Progress = silent) -> Trace:
    """Read one or several paths of one format as one run.

    A directory that is itself a trace (a run directory, a `.rpdb` package) is read as such; any
    other directory stands for the trace files in it and its folders, as rocprofv3 lays them out.
    What lies beside them and is no trace is skipped and noted.

    Raises:
        BadInput: No path was given, or one file was given twice.
        UnreadableTrace: A path cannot be read, or the paths mix formats.
    """
    if not paths:
        raise BadInput("tracekit", "no trace given", "Name at least one file or run directory")
    members: list[tuple[Path, Format]] = []
    skipped: list[Path] = []
    for path in paths:
        inside, others = _expanded(path)
        members += inside
        skipped += others
    _refuse_repeated([path for path, _ in members])
    names = sorted({format_.name for _, format_ in members})
    if len(names) > 1:
        where = paths[0] if len(paths) == 1 else members[0][0]
        raise UnreadableTrace(
            where, f"mixed formats: {', '.join(names)}", "Read files of one format at a time"
        )
    trace = join_traces([format_.read(path, progress) for path, format_ in members])
    # A run directory keeps what was read out of markers when it was made.
    if names != ["store"]:
        trace = with_markers(trace)
    _give_back_memory()
    return replace(trace, notes=[*trace.notes, *_skipped_note(skipped)])


def _give_back_memory() -> None:
    """Give what reading took and freed back to the system, where the C library can (glibc).

    By itself it keeps the small pieces of a database or file: a sixth of all at 5 million ops.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _refuse_repeated(paths: Sequence[Path]) -> None:
    counts = Counter(path.resolve() for path in paths)
    for path in paths:
        if counts[path.resolve()] > 1:
            raise BadInput(path, "given twice", "Name each trace once")


def _skipped_note(skipped: Sequence[Path]) -> list[Note]:
    if not skipped:
        return []
    names = ", ".join(path.name for path in skipped[:3]) + (", …" if len(skipped) > 3 else "")
    message = f"Files in the folder that are in no known format were skipped: {names}"
    return [Note("formats.files-skipped", Severity.NOTICE, message, len(skipped))]


def _expanded(path: Path) -> tuple[list[tuple[Path, Format]], list[Path]]:
    """Return the trace files behind one path, each with its format, and the files that are none."""
    if not path.is_dir():
        return [(path, identify(path))], []
    package = _claimed(path, b"")
    if package is not None:
        inside = package.members(path) if package.members else [path]
        return [(member, package) for member in inside], []
    try:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    except OSError as error:
        raise _unreadable(path, error) from error
    members, skipped = [], []
    for file in files:
        format_ = _claimed(file, _head(file))
        if format_ is None:
            skipped.append(file)
        else:
            members.append((file, format_))
    if not members:
        raise _nothing_in(path)
    return members, skipped


def _nothing_in(path: Path) -> UnreadableTrace:
    """Say why a folder holds no trace; of a capture that left none, what became of it."""
    problem, remedy = "holds no trace file", "Name a trace file or a run directory"
    record = path / "capture.json"
    if record.is_file():
        with suppress(BadInput):
            what = read_what_ran(record)
            is_over = what.outcome != "running"
            # The last stage of each that is over is the stop.
            where = "" if what.window else " before its window opened"
            how = f"ended as {what.outcome!r}{where}"
            how = how if is_over else f"was killed or runs still, in stage {what.stage!r}"
            why = f" ({' '.join(what.problem.split()).rstrip('.')})" if what.problem else ""
            problem += f": its capture {how}{why}"
            remedy = "See its server.log, and capture again"
    return UnreadableTrace(path, problem, remedy)


def _head(path: Path) -> bytes:
    if path.is_dir():
        return b""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError as error:
        raise UnreadableTrace(path, "does not exist", "Check the path") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if head.startswith(b"\x1f\x8b"):
        try:
            return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error:
            return b""
    return head


def _unreadable(path: Path, error: OSError) -> UnreadableTrace:
    return UnreadableTrace(
        path, (error.strerror or "cannot be read").lower(), "Check its permissions"
    )


def _why_unclaimed(path: Path, head: bytes) -> tuple[str, str]:
    if path.is_dir():
        return "holds no trace", "Name a trace file or a run directory"
    if path.stat().st_size == 0:
        return "is empty", "Record it again: the profiler did not finish writing"
    if head.startswith(_LFS_POINTER):
        return "is a Git LFS pointer, not the file itself", "Fetch the content with: git lfs pull"
    known = ", ".join(formats())
    return "is in no format tracekit reads", f"It reads: {known} (tracekit list formats)"
