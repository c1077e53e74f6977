"""Our own run directory: columnar shards, one per process, beside a manifest.

    run/manifest.json            what it is, sources, notes
    run/shards/shared/*.parquet  tables that belong to no one process
    run/shards/<id>/*.parquet    what one process did
    run/results/*.parquet        the analyses of the whole run, and in the manifest whose they are

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
from tracekit.trace import DAMAGE, CycleTimes, StoredResult, StoredResults, Trace

LAYOUT_VERSION = 1
_SHARED = "shared"
_BY_PROCESS = ("ops", "calls", "copies", "waits", "ranges")


class ResultEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What the manifest says of one stored result."""

    caveats: list[Note]
    skipped: str | None


class RunManifest(msgspec.Struct, forbid_unknown_fields=True):
    """`manifest.json` of a run directory."""

    tracekit_run: int
    recorded_as: str
    sources: list[str]
    shards: list[str]
    notes: list[Note]
    results_made_by: str = ""
    results: dict[str, ResultEntry] = {}
    traced_cycle_ns: float | None = None
    untraced_cycle_ns: float | None = None


def write_run(trace: Trace, directory: Path, *, force: bool) -> None:
    """Write a trace, with the results it carries, as a run directory: whole or not at all.

    Everything goes to a hidden sibling that takes the final name at the end, so a reader never
    sees half a run and an interrupted conversion leaves the old one as it was.

    Raises:
        OutputExists: `directory` exists and `force` is not given.
        TracekitError: It exists and is something else than a run directory (never replaced), or
            cannot be written.
    """
    check_target(directory, force=force)
    try:
        with _beside(directory) as partial:
            _write_shards(trace, partial)
            _take_place(partial, directory)
    except (OSError, pl.exceptions.ComputeError) as error:
        raise _unwritable(directory, error) from error


def add_run(trace: Trace, directory: Path) -> None:
    """Add a trace, with the results it carries, to a directory that has other files already.

    `manifest.json` comes last: until then the directory is what it was, and what an interrupted
    addition left is replaced by the next.

    Raises:
        OutputExists: `directory` holds a run.
        TracekitError: It cannot be written.
    """
    if (directory / "manifest.json").exists():
        raise OutputExists(directory / "manifest.json")
    try:
        with _beside(directory / "run") as partial:
            _write_shards(trace, partial)
            for part in sorted(partial.iterdir(), key=lambda part: part.name == "manifest.json"):
                target = directory / part.name
                if target.is_dir():
                    shutil.rmtree(target)
                part.rename(target)
    except (OSError, pl.exceptions.ComputeError) as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError | pl.exceptions.ComputeError) -> TracekitError:
    """Say why; of a full disk polars says "transport error" of its own, without a number."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    remedy = "Check the folder, its space and permissions"
    return TracekitError(directory, f"cannot be written: {reason}", remedy)


def check_target(directory: Path, *, force: bool) -> None:
    """Refuse a target before the long work, not after it; see `write_run`.

    Raises:
        OutputExists: `directory` exists and `force` is not given.
        TracekitError: It exists and is something else than a run, or its folder does not exist.
    """
    if not directory.absolute().parent.is_dir():
        remedy = f"Make it: mkdir -p {directory.parent}"
        raise TracekitError(directory, "its folder does not exist", remedy)
    if directory.exists() or directory.is_symlink():
        if not force:
            raise OutputExists(directory)
        if not _is_run(directory):
            remedy = "Remove it yourself, or choose another"
            raise TracekitError(directory, "exists and is not a tracekit run", remedy)


@contextmanager
def _beside(directory: Path) -> Iterator[Path]:
    partial = directory.absolute().parent / f".{directory.name}.partial-{os.getpid()}"
    _sweep(partial)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(partial: Path) -> None:
    """Remove what conversions to the same target left behind when they were killed."""
    stem, _, _ = partial.name.rpartition("-")
    for left in partial.parent.glob(f"{stem}-*"):
        pid = left.name.removeprefix(f"{stem}-")
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _take_place(partial: Path, directory: Path) -> None:
    if directory.exists():
        old = partial.with_name(f"{partial.name}-old")
        directory.rename(old)
        try:
            partial.rename(directory)
        except BaseException:
            old.rename(directory)
            raise
        shutil.rmtree(old, ignore_errors=True)
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
    if trace.cycle_times is not None:
        manifest.traced_cycle_ns = trace.cycle_times.traced_cycle_ns
        manifest.untraced_cycle_ns = trace.cycle_times.untraced_cycle_ns
    if trace.results is not None:
        manifest.results_made_by = trace.results.made_by
        (root / "results").mkdir()
        for name, result in trace.results.by_name.items():
            manifest.results[name] = ResultEntry(list(result.caveats), result.skipped)
            result.frame.lazy().sink_parquet(root / "results" / f"{name}.parquet")
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
        files = [
            path / "shards" / shard / f"{name}.parquet"
            for shard in manifest.shards
            if shard == _SHARED or name in _BY_PROCESS
        ]
        if name != NOTES.name:
            frames[name] = _scan(path, name, files)
    return Trace(
        frames,
        manifest.notes,
        [str(path)],
        manifest.recorded_as,
        _results(path, manifest),
        _cycle_times(manifest),
    )


def _cycle_times(manifest: RunManifest) -> CycleTimes | None:
    traced, untraced = manifest.traced_cycle_ns, manifest.untraced_cycle_ns
    # Both are needed to compare, and a length that is none compares with nothing.
    if traced is None or untraced is None or min(traced, untraced) <= 0:
        return None
    return CycleTimes(traced, untraced)


def _results(path: Path, manifest: RunManifest) -> StoredResults | None:
    files = {name: path / "results" / f"{name}.parquet" for name in manifest.results}
    # Results are a convenience: where one is gone, all are made again from the tables.
    if not files or not all(file.is_file() for file in files.values()):
        return None
    return StoredResults(
        manifest.results_made_by,
        {
            name: StoredResult(pl.scan_parquet(file), entry.caveats, entry.skipped)
            for (name, file), entry in zip(files.items(), manifest.results.values(), strict=True)
        },
    )


def _manifest(path: Path) -> RunManifest:
    try:
        manifest = msgspec.json.decode((path / "manifest.json").read_bytes(), type=RunManifest)
    except (msgspec.DecodeError, OSError) as error:
        raise UnreadableTrace(
            path, f"its manifest.json is damaged ({error})", "Convert the original trace again"
        ) from error
    if not all(name.replace("-", "").isalnum() for name in [*manifest.shards, *manifest.results]):
        raise UnreadableTrace(
            path, "its manifest.json names a file outside it", "Convert the original trace again"
        )
    if manifest.tracekit_run != LAYOUT_VERSION:
        raise UnreadableTrace(
            path,
            f"is a run of layout {manifest.tracekit_run}, this tracekit reads {LAYOUT_VERSION}",
            "Use the tracekit that wrote it, or convert the original trace again",
        )
    return manifest


def _scan(path: Path, name: str, files: list[Path]) -> pl.LazyFrame:
    for file in files:
        if not file.is_file():
            lost = file.relative_to(path)
            raise UnreadableTrace(
                path, f"is incomplete: {lost} is gone", "Convert the original trace again"
            )
    try:
        lazy = pl.scan_parquet(files)
        schemas = [pl.read_parquet_schema(file) for file in files]
    except DAMAGE as error:
        raise UnreadableTrace(
            path, f"its table {name} is damaged", "Convert the original trace again"
        ) from error
    if any(schema != TABLES[name].schema for schema in schemas):
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
