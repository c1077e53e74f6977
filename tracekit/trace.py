"""`Trace`: canonical tables and notes of one or several trace files, in memory or opened lazily."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from tracekit.errors import UnreadableTrace
from tracekit.tables import Table
from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import NOTES, Note

# What polars raises on a Parquet file with flipped bytes: its reader may even panic.
DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True, slots=True)
class StoredResult:
    """One analysis of a whole trace, as a run directory keeps it.

    Attributes:
        frame: The result, eager or lazy.
        caveats: What it cannot tell.
        skipped: Why there is no result; None when it ran.
    """

    frame: pl.DataFrame | pl.LazyFrame
    caveats: Sequence[Note]
    skipped: str | None


@dataclass(frozen=True, slots=True)
class StoredResults:
    """Results by analysis, and which code made them: they hold for that code only."""

    made_by: str
    by_name: Mapping[str, StoredResult]


@dataclass(frozen=True, slots=True)
class CycleTimes:
    """How long a cycle of the traced program takes, under the profiler and without it."""

    traced_cycle_ns: float
    untraced_cycle_ns: float

    @property
    def slowdown(self) -> float:
        """How many times as long a cycle takes under the profiler."""
        return self.traced_cycle_ns / self.untraced_cycle_ns


@dataclass
class Trace:
    """Frames by table name, what the reader could not know, and where it all came from.

    A table that a format does not have is empty, never missing. Frames may be lazy (a run
    directory is opened without loading it); `table` loads one on first use and keeps it.

    Attributes:
        frames: Frame of each table, eager or lazy, with exactly the declared columns.
        notes: What the reader could not know.
        sources: Paths read, as the user gave them.
        format_name: Name of the format they are in.
        results: Analyses of the whole trace that a run directory holds, if any.
        cycle_times: What tracing costs, where the program was timed without the profiler, too.
    """

    frames: Mapping[str, pl.DataFrame | pl.LazyFrame]
    notes: Sequence[Note]
    sources: Sequence[str]
    format_name: str
    results: StoredResults | None = None
    cycle_times: CycleTimes | None = None
    _loaded: dict[str, pl.DataFrame] = field(default_factory=dict, repr=False)

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, pl.DataFrame],
        *,
        notes: Sequence[Note],
        sources: Sequence[str],
        format_name: str,
    ) -> "Trace":
        """Build a trace from reader output: every frame is brought to its declared columns.

        Raises:
            ValueError: A table or column that is not declared.
        """
        if unknown := set(frames) - set(TABLES):
            raise ValueError(f"no such table: {sorted(unknown)}")
        conformed = {name: TABLES[name].conform(frame) for name, frame in frames.items()}
        return cls(conformed, notes, sources, format_name)

    @property
    def source_names(self) -> list[str]:
        """The sources as text: a path may hold bytes that are no UTF-8, and reports are UTF-8."""
        return [source.encode("utf-8", "replace").decode() for source in self.sources]

    def table(self, name: str) -> pl.DataFrame:
        """Return one canonical table (empty if this trace has none of it).

        Raises:
            UnreadableTrace: The table of a run directory is damaged.
        """
        if name not in self._loaded:
            self._loaded[name] = TABLES[name].ordered(self.collect(name, self.scan(name)))
        return self._loaded[name]

    def collect(self, name: str, query: pl.LazyFrame) -> pl.DataFrame:
        """Return the rows of a query on one table.

        Raises:
            UnreadableTrace: The table of a run directory is damaged.
        """
        try:
            return query.collect()
        except DAMAGE as error:
            where = ", ".join(self.source_names)
            raise UnreadableTrace(
                where, f"table {name} is damaged", "Convert the original trace again"
            ) from error

    def scan(self, name: str) -> pl.LazyFrame:
        """Return one canonical table lazily, for a query that needs a few of its columns."""
        if name == NOTES.name:
            return notes_frame(self.notes).lazy()
        frame = self.frames.get(name)
        return (TABLES[name].empty() if frame is None else frame).lazy()


def notes_frame(notes: Iterable[Note]) -> pl.DataFrame:
    """Return notes as the `notes` table."""
    rows = [(note.code, note.severity, note.message, note.count, note.source) for note in notes]
    return pl.DataFrame(rows, schema=NOTES.schema, orient="row")


def join_traces(traces: Sequence[Trace]) -> Trace:
    """Return one trace of several files: ids made unique, devices with one key made one.

    Every id column declares its key space; each trace's ids are shifted past the largest id that
    the traces before it use in that space, so references stay intact.
    """
    if len(traces) == 1:
        return traces[0]
    shifts: dict[str, int] = {}
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES if name != NOTES.name}
    for trace in traces:
        frames = {name: trace.table(name) for name in parts}
        for name, frame in frames.items():
            parts[name].append(frame.with_columns(_shifted(TABLES[name], shifts)))
        for space, largest in _largest_ids(frames).items():
            shifts[space] = shifts.get(space, 0) + largest + 1
    joined = _one_row_per_device({name: pl.concat(frames) for name, frames in parts.items()})
    timed = [trace.cycle_times for trace in traces if trace.cycle_times is not None]
    whole = Trace.from_frames(
        joined,
        notes=[note for trace in traces for note in trace.notes],
        sources=[source for trace in traces for source in trace.sources],
        format_name=traces[0].format_name,
    )
    whole.cycle_times = max(timed, key=lambda times: times.slowdown, default=None)
    return whole


def _shifted(table: Table, shifts: Mapping[str, int]) -> list[pl.Expr]:
    return [
        (pl.col(column.name) + shifts[column.space]).cast(column.dtype)
        for column in table.columns
        if column.space is not None and column.space in shifts
    ]


def _largest_ids(frames: Mapping[str, pl.DataFrame]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for name, frame in frames.items():
        for column in TABLES[name].columns:
            if column.space and isinstance(value := frame[column.name].max(), int):
                largest[column.space] = max(largest.get(column.space, 0), value)
    return largest


def _one_row_per_device(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Map every device with a key to the first device of that key, in every table."""
    devices = frames["devices"]
    first = pl.when(pl.col("key").is_null()).then("device_id")
    same = devices.select(
        "device_id", kept=first.otherwise(pl.col("device_id").first().over("key"))
    )
    mapping = dict(same.iter_rows())
    for name, frame in frames.items():
        if "device_id" in frame.columns:
            frames[name] = frame.with_columns(pl.col("device_id").replace(mapping))
    frames["devices"] = frames["devices"].unique("device_id", keep="first", maintain_order=True)
    return frames
