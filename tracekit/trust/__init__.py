"""The room of trust marks: what makes a figure of a report less sure than it looks.

One module per mark, each defining `CHECK`. A check finds its evidence in the tables that its
parameters name, and declares what it touches: parts of a device's summary, and analyses by the
tables they read or the units they give. So neither side knows the other by name. A mark never
changes a figure; where the true one can only be larger, the mark says so and the figure is printed
as a bound.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import polars as pl

from tracekit.intervals import clip, union
from tracekit.registry import load_room
from tracekit.tables.catalog import TABLES
from tracekit.trace import Trace
from tracekit.units import Unit, format_number

Numbers = Mapping[str, int | float | str]
EVERY_PART = frozenset({"busy", "idle"})

# The columns that checks may read: a stored run need not be loaded whole for them.
_COLUMNS = {
    "ops": "kind process_id device_id stream_id start_ns end_ns call_id correlation_id "
    "graph_launch_id graph_exec_id",
    "calls": "call_id process_id thread_id name kind start_ns end_ns correlation_id stream_id "
    "event_key graph_exec_key",
    "copies": "call_id op_id process_id direction",
    "waits": "wait_call_id record_call_id pending_end_ns",
    "ranges": "kind process_id start_ns end_ns",
}


@dataclass(frozen=True, slots=True)
class Touches:
    """What a mark makes less sure.

    Attributes:
        reads: Sets of tables; an analysis that reads all of any one set is touched.
        units: An analysis is touched, too, if its result has a column in one of these units.
        parts: Parts of a device's summary: `busy`, a cause of idle time, or `idle` for all causes.
    """

    reads: tuple[frozenset[str], ...] = ()
    units: frozenset[Unit] = frozenset()
    parts: frozenset[str] = frozenset()

    def analysis(self, tables: Collection[str], units: Collection[Unit]) -> bool:
        """Return whether an analysis of these tables, with results in these units, is touched."""
        return any(some.issubset(tables) for some in self.reads) or bool(
            self.units.intersection(units)
        )

    def part(self, name: str) -> bool:
        """Return whether a part of a device's summary (`busy`, or a cause) is touched."""
        return name in self.parts or (name != "busy" and "idle" in self.parts)


@dataclass(frozen=True, slots=True)
class TrustMark:
    """One reason to trust figures less.

    Attributes:
        code: Stable, `trust-noun.problem`.
        label: What is wrong, in a few words, the same for all marks of the code.
        text: One sentence with the numbers.
        touches: Which figures.
        numbers: The numbers of the text for programs, units in their names.
        device_id: The device it is about; None for all.
        busy_is_at_least: The device was busy for what the report says, or longer.
        notes: Codes of notes that say the same, and need no line of their own.
    """

    code: str
    label: str
    text: str
    touches: Touches
    numbers: Numbers = field(default_factory=dict, hash=False)
    device_id: int | None = None
    busy_is_at_least: bool = False
    notes: tuple[str, ...] = ()

    def said_among(self, devices: int) -> str:
        """Return the text, with the device that it is about where there are several."""
        is_told = self.device_id is None or devices == 1
        return self.text if is_told else f"device {self.device_id}: {self.text}"

    def touches_device(self, device_id: int, parts: Iterable[str]) -> bool:
        """Return whether the summary of a device, which has these parts, is touched."""
        return self.device_id in (None, device_id) and any(map(self.touches.part, parts))


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found: the part of a `TrustMark` that differs from trace to trace.

    `touches` and `notes` are the check's own unless given.
    """

    text: str
    numbers: Numbers
    device_id: int | None = None
    touches: Touches | None = None
    busy_is_at_least: bool | None = None
    notes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of mark.

    Attributes:
        code: Stable, `trust-noun.problem`.
        label: What is wrong, in a few words.
        touches: Which figures.
        find: What it finds, nothing where nothing is wrong. Its parameters name what it needs: a
            canonical table, `windows`, `busy` (when each device ran something inside its window,
            disjoint), `work` (the ops behind it) or `cycle_times`.
        busy_is_at_least: Device work is missing, so that busy time is a lower bound.
        notes: Codes of notes that say the same.
    """

    code: str
    label: str
    touches: Touches
    find: Callable[..., list[Found]]
    busy_is_at_least: bool = False
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The code: what the room knows it by."""
        return self.code

    def mark(self, found: Found) -> TrustMark:
        """Return the mark of what was found."""
        at_least = found.busy_is_at_least
        return TrustMark(
            code=self.code,
            label=self.label,
            text=found.text,
            touches=self.touches if found.touches is None else found.touches,
            numbers=found.numbers,
            device_id=found.device_id,
            busy_is_at_least=self.busy_is_at_least if at_least is None else at_least,
            notes=self.notes if found.notes is None else found.notes,
        )


@cache
def checks() -> dict[str, Check]:
    """Return all checks by code."""
    return load_room(__name__, "CHECK", Check)


def trust_marks(trace: Trace, windows: pl.DataFrame, busy: pl.DataFrame) -> list[TrustMark]:
    """Return every mark of a trace, those first that make a bound of busy time.

    There is none where nothing is wrong.

    Args:
        trace: What was read.
        windows: The `windows` table: what lies outside is not looked at.
        busy: `device_id, start_ns, end_ns`: when each device ran something inside its window,
            disjoint and ordered.
    """
    known: dict[str, object] = {
        "windows": windows,
        "busy": busy,
        "cycle_times": trace.cycle_times,
        "work": work_inside(_columns(trace, "ops"), windows),
    }
    marks = []
    for check in checks().values():
        names = inspect.signature(check.find).parameters
        for name in names:
            if name not in known:
                known[name] = _columns(trace, name)
        found = check.find(**{name: known[name] for name in names})
        marks += [check.mark(one) for one in found]
    return sorted(marks, key=lambda mark: not mark.busy_is_at_least)


def _columns(trace: Trace, name: str) -> pl.DataFrame:
    columns = _COLUMNS[name].split() if name in _COLUMNS else TABLES[name].schema.names()
    frame = trace.collect(name, trace.scan(name).select(columns))
    by = TABLES[name].sorted_by
    if by is None or frame[by].is_sorted():
        return frame
    return frame.sort(by, maintain_order=True)


def signs(marks: Iterable[TrustMark], all_marks: Sequence[TrustMark]) -> str:
    """Return the signs of marks as they stand beside a figure, `!1 !2`: places among all marks."""
    return " ".join(f"!{all_marks.index(mark) + 1}" for mark in marks)


def doubts(marks: Iterable[TrustMark], all_marks: Sequence[TrustMark]) -> str:
    """Return what marks say in a few words each: `!1 !2 host calls lost, !3 …`."""
    by_label: dict[str, list[TrustMark]] = {}
    for mark in marks:
        by_label.setdefault(mark.label, []).append(mark)
    return ", ".join(f"{signs(some, all_marks)} {label}" for label, some in by_label.items())


def any_of(*tables: str) -> tuple[frozenset[str], ...]:
    """Return the `reads` of what touches an analysis of any of these tables."""
    return tuple(frozenset({table}) for table in tables)


def both(*tables: str) -> tuple[frozenset[str], ...]:
    """Return the `reads` of what touches an analysis that brings these tables together."""
    return (frozenset(tables),)


def work_inside(ops: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that do work, on a known device, and reach into its window."""
    known = windows.filter(pl.col("device_id").is_not_null())
    bounds = {
        name: dict(known.select("device_id", name).iter_rows()) for name in ("start_ns", "end_ns")
    }
    start, end = (
        pl.col("device_id").replace_strict(by_device, default=None, return_dtype=pl.Int64)
        for by_device in bounds.values()
    )
    reaches = (pl.col("end_ns") >= start) & (pl.col("start_ns") <= end)
    counts = ops.select(((pl.col("kind") != "barrier") & reaches).fill_null(value=False))
    is_work = counts.to_series()
    return ops if is_work.all() else ops.filter(is_work)


@dataclass(frozen=True, slots=True)
class PartOfWork:
    """How much of a device's work some of its ops are, in words and in numbers."""

    device_id: int
    words: str
    numbers: Numbers


def parts_of_work(
    some: pl.DataFrame, work: pl.DataFrame, windows: pl.DataFrame, busy: pl.DataFrame
) -> list[PartOfWork]:
    """Return, for each device that has any of some ops, their share of its ops and its busy time.

    Args:
        some: Rows of `work`.
        work: `work_inside`.
        windows: The `windows` table.
        busy: When each device ran something inside its window.
    """
    by = ["device_id"]
    all_ops = dict(work.group_by(by).agg(pl.len()).iter_rows())
    all_ns = _lengths(busy)
    some_ns = _lengths(clip(union(some, by), windows, by))
    parts = []
    for device, ops in some.group_by(by).agg(pl.len()).sort(by).iter_rows():
        numbers: dict[str, int | float] = {
            "ops": ops,
            "device_ops": all_ops[device],
            "ops_share": ops / all_ops[device],
            "busy_ns": some_ns.get(device, 0),
            "busy_share": some_ns.get(device, 0) / max(all_ns.get(device, 0), 1),
        }
        share, of_busy = (
            format_number(numbers[name], Unit.SHARE) for name in ("ops_share", "busy_share")
        )
        words = f"{ops:,} of {all_ops[device]:,} ops ({share}), {of_busy} of the busy time,"
        parts.append(PartOfWork(device, words, numbers))
    return parts


def notes_of_uncalled(
    own: tuple[str, ...], some: pl.DataFrame, uncalled: pl.DataFrame
) -> tuple[str, ...]:
    """Return the notes that say the same as a check of some of the ops without a call.

    One reader counts all of these alike, so its note is one only if they are all of this kind.
    """
    return (*own, "rocpd.ops-without-call") if some.height == uncalled.height else own


def _lengths(islands: pl.DataFrame) -> dict[int, int]:
    """Return the summed length of disjoint intervals by device."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    return dict(islands.group_by("device_id").agg(length).iter_rows())
