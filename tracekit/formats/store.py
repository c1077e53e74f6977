"""Our own run directory: columnar shards, one per process, beside a manifest.

    run/manifest.json            what it is, sources, notes
    run/shards/shared/*.parquet  tables that belong to no one process
    run/shards/<id>/*.parquet    what one process did

Parquet opens anywhere and is scanned lazily: a report reads the columns it needs, and an analysis
of one process touches one shard.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl

from tracekit.errors import OutputExists, TracekitError, UnreadableTrace
from tracekit.formats import Format, Progress
from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import NOTES, Note
from tracekit.trace import Trace

LAYOUT_VERSION = 1
_SHARED = "shared"
_BY_PROCESS = ("ops", "calls", "copies", "waits", "ranges")


class RunManifest(msgspec.Struct, forbid_unknown_fields=True):
    """`manifest.json` of a run directory."""

    tracekit_run: int
    recorded_as: str
    sources: list[str]
    shards: list[str]
    notes: list[Note]


def write_run(trace: Trace, directory: Path, *, force: bool) -> None:
    """Write a trace as a run directory, whole or not at all.

    Everything goes to a hidden sibling that takes the final name at the end, so a reader never
    sees half a run and an interrupted conversion leaves the old one as it was.

    Raises:
        OutputExists: `directory` exists and `force` is not given.
        TracekitError: It exists and is something else than a run directory (never replaced), or
            cannot be written.
    """
    if directory.exists() or directory.is_symlink():
        if not force:
            raise OutputExists(directory)
        if not _is_run(directory):
            raise TracekitError(
                directory,
                "exists and is not a tracekit run",
                "Remove it yourself, or choose another",
            )
    try:
        with _beside(directory) as partial:
            _write_shards(trace, partial)
            _take_place(partial, directory)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TracekitError(
            directory, f"cannot be written: {reason}", "Check the folder, its space and permissions"
        ) from error


@contextmanager
def _beside(directory: Path) -> Iterator[Path]:
    partial = directory.absolute().parent / f".{directory.name}.partial-{os.getpid()}"
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _take_place(partial: Path, directory: Path) -> None:
    if directory.exists():
        old = partial.with_name(f"{partial.name}-old")
        directory.rename(old)
        try:
            partial.rename(directory)
        except BaseException:
            old.rename(directory)
            raise
        shutil.rmtree(old)
    else:
        partial.rename(directory)


def _write_shards(trace: Trace, root: Path) -> None:
    processes = trace.table("processes")["process_id"].to_list()
    shards = [_SHARED, *(str(process_id) for process_id in processes)]
    for shard in shards:
        (root / "shards" / shard).mkdir(parents=True)
    for name in TABLES:
        if name == NOTES.name:
            continue
        for shard in shards:
            rows = _rows_of(trace, name, shard, processes)
            if rows is not None:
                # lz4 costs a third more space than zstd and reads faster, which is what counts.
                rows.sink_parquet(root / "shards" / shard / f"{name}.parquet", compression="lz4")
    manifest = RunManifest(
        LAYOUT_VERSION, trace.format_name, list(trace.sources), shards, list(trace.notes)
    )
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (root / "manifest.json").write_bytes(encoded)


def _rows_of(trace: Trace, name: str, shard: str, processes: list[int]) -> pl.LazyFrame | None:
    rows = trace.scan(name)
    if name not in _BY_PROCESS:
        return rows if shard == _SHARED else None
    if shard == _SHARED:
        return rows.filter(~pl.col("process_id").is_in(processes).fill_null(value=False))
    return rows.filter(pl.col("process_id") == int(shard))


def _is_run(path: Path) -> bool:
    manifest = path / "manifest.json"
    return manifest.is_file() and b'"tracekit_run"' in manifest.read_bytes()[:200]


def _sniff(path: Path, _head: bytes) -> bool:
    return path.is_dir() and _is_run(path)


def _read(path: Path, _progress: Progress) -> Trace:
    manifest = _manifest(path)
    frames: dict[str, pl.DataFrame | pl.LazyFrame] = {}
    for name in TABLES:
        files = [path / "shards" / shard / f"{name}.parquet" for shard in manifest.shards]
        present = [file for file in files if file.is_file()]
        if name != NOTES.name and present:
            frames[name] = _scan(path, name, present)
    return Trace(frames, manifest.notes, [str(path)], manifest.recorded_as)


def _manifest(path: Path) -> RunManifest:
    try:
        manifest = msgspec.json.decode((path / "manifest.json").read_bytes(), type=RunManifest)
    except (msgspec.DecodeError, OSError) as error:
        raise UnreadableTrace(
            path, f"its manifest.json is damaged ({error})", "Convert the original trace again"
        ) from error
    if not all(shard.isalnum() for shard in manifest.shards):
        raise UnreadableTrace(
            path, "its manifest.json names a shard outside it", "Convert the original trace again"
        )
    if manifest.tracekit_run != LAYOUT_VERSION:
        raise UnreadableTrace(
            path,
            f"is a run of layout {manifest.tracekit_run}, this tracekit reads {LAYOUT_VERSION}",
            "Use the tracekit that wrote it, or convert the original trace again",
        )
    return manifest


def _scan(path: Path, name: str, files: list[Path]) -> pl.LazyFrame:
    try:
        lazy = pl.scan_parquet(files)
        schema = lazy.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UnreadableTrace(
            path, f"its table {name} is damaged ({error})", "Convert the original trace again"
        ) from error
    if schema != TABLES[name].schema:
        raise UnreadableTrace(
            path,
            f"its table {name} has other columns than this tracekit's",
            "Convert the original trace again",
        )
    return lazy


FORMAT = Format(
    name="store",
    summary="run directory of tracekit convert: Parquet shards and a manifest",
    sniff=_sniff,
    read=_read,
)
