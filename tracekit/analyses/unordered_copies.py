"""unordered-copies: which copies are not ordered with the work that uses their memory.

A blocking `hipMemcpy` runs on the null stream, and a non-blocking stream does not wait for that: a
kernel in flight may read one half of the old bytes and one half of the new. It shows rarely, as a
fault or as silent corruption, since the call often returns only after the kernel has ended. So what
is told here is what the program orders (`ordering`), and only then what the times happened to be.

It cannot see memory that the host itself reads or writes, nor what a graph orders inside.
"""

import shlex

import polars as pl

from tracekit.analyses import Analysis
from tracekit.cycles import cycles
from tracekit.findings import Finding, FindingSeverity
from tracekit.intervals.matching import nearest
from tracekit.ordering import host_calls
from tracekit.ordering.copy_orders import CERTAINTIES, CONFLICTS, ORDERS, copy_orders
from tracekit.tables import (
    Column,
    Table,
    enum_column,
    id_column,
    name_column,
    text_column,
    time_column,
)
from tracekit.tables.activity import COPY_DIRECTIONS
from tracekit.tables.notes import Note, Severity
from tracekit.tables.rows import rows_of
from tracekit.units import Unit, format_number

UNORDERED_COPIES = Table(
    "unordered-copies",
    "copies of one way of copying that meet the same work, ordered with it in one way",
    (
        id_column("process_id", "process", "The process.", narrow=True),
        name_column("name", "API that asked for them."),
        enum_column("direction", COPY_DIRECTIONS, "From where to where."),
        Column("is_blocking", pl.Boolean(), "The call returns only when the copy is done."),
        text_column("buffer", "Memory both use, by its declared name."),
        enum_column(
            "order",
            ORDERS,
            "What orders them with the worst-ordered other work: nothing, and they ran together or "
            "might have (unordered); nothing, but one had ended (accident); not known; the host; "
            "an event; the stream; or nothing else uses their memory (no-conflict).",
        ),
        enum_column(
            "certainty",
            CERTAINTIES,
            "certain: both are known to use the memory. possible: a kernel ran whose memory is not "
            "known. Null where they are ordered, or it is unknown whether.",
        ),
        enum_column(
            "evidence",
            ("recorded", "inferred"),
            "Of an event: the trace or a marker names its record, or handle and time tell it.",
        ),
        enum_column("conflict", CONFLICTS, "What the copy does to the other work."),
        text_column("other", "The other work's kernel; of a graph launch its first."),
        Column("copies", pl.Int64(), "Copies.", Unit.COUNT),
        Column("together", pl.Int64(), "Of them ran while the other work did.", Unit.COUNT),
        Column("destinations", pl.Int64(), "Distinct addresses written, where known.", Unit.COUNT),
        Column("steps", pl.Int64(), "Steps with such a copy.", Unit.COUNT),
        Column("steps_alike", pl.Int64(), "All steps of the same kinds.", Unit.COUNT),
        Column("overlap_max_ns", pl.Int64(), "Longest time both ran.", Unit.DURATION),
        time_column("worst_start_ns", "Start of the copy that ran longest with other work."),
    ),
    answers=("order", "certainty", "copies", "together"),
)
_WAY = ["process_id", "name", "direction", "is_blocking"]
_ADDRESSES = pl.col("dst_address").drop_nulls()
_DESTINATIONS = pl.when(_ADDRESSES.len() > 0).then(_ADDRESSES.n_unique().cast(pl.Int64))
_GROUP = [*_WAY, "buffer", "order", "certainty", "evidence", "conflict", "other"]
# A blocking copy that may meet kernels is worth a word where the same memory is written again and
# again, as plans and tables are.
MIN_REWRITES = 3


def unordered_copies(  # noqa: PLR0913  one parameter per table
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    accesses: pl.DataFrame,
    marks: pl.DataFrame,
    waits: pl.DataFrame,
    streams: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the copies by how they are ordered, the worst first; each counts in one row.

    What orders what is decided on the whole trace, then the copies that begin inside the host's
    window count. How an order is found, and what is only assumed: `ordering`; which work a copy
    meets: `ordering.copy_orders`.
    """
    host = host_calls(ops, calls, copies, marks, waits, ranges)
    found = copy_orders(host, ops, copies, accesses, streams)
    names = rows_of(found["call_id"], calls.select("call_id", "name"), "call_id")
    found = found.hstack(names).with_columns(began_ns=pl.coalesce("start_ns", "call_start_ns"))
    inside = _inside(found, windows)
    in_steps, alike = _steps(inside, cycles(ranges, ops, calls))
    rows = (
        in_steps.sort("overlap_ns", descending=True, nulls_last=True, maintain_order=True)
        .group_by(_GROUP, maintain_order=True)
        .agg(
            copies=pl.len().cast(pl.Int64),
            together=(pl.col("overlap_ns") > 0).sum().cast(pl.Int64),
            destinations=_DESTINATIONS,
            steps=pl.col("step_row").drop_nulls().n_unique().cast(pl.Int64),
            step_kinds=pl.col("step_kind").drop_nulls().unique(),
            overlap_max_ns=pl.col("overlap_ns").first(),
            worst_start_ns=pl.col("began_ns").first(),
        )
        .with_columns(_alike(alike))
    )
    ordered = rows.sort(
        "order",
        "certainty",
        -pl.col("copies"),
        "process_id",
        *(pl.col(name).cast(pl.String) for name in ("name", "direction", "buffer", "other")),
        nulls_last=True,
        maintain_order=True,
    )
    return UNORDERED_COPIES.conform(ordered.drop("step_kinds"))


def _inside(found: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    bounds = windows.filter(pl.col("device_id").is_null()).select(first="start_ns", last="end_ns")
    first, last = bounds.row(0) if bounds.height else (None, None)
    began = pl.col("began_ns")
    after = pl.lit(value=True) if first is None else began >= first
    return found.filter(after, pl.lit(value=True) if last is None else began < last)


def _steps(copied: pl.DataFrame, found: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Add `step_row` and `step_kind` (process and kind); return how many steps there are of each.

    A copy is in the step of its process, on whichever thread, during which it was asked for.
    """
    kind = pl.format("{} {}", "process_id", pl.col("kind").fill_null(""))
    begun = (
        found.sort("start_ns")
        .with_row_index("step_row")
        .select("process_id", "step_row", step_kind=kind, opened_ns="start_ns", closed_ns="end_ns")
    )
    counts = dict(begun["step_kind"].value_counts().iter_rows())
    placed = nearest(
        copied.sort("call_start_ns", maintain_order=True),
        begun,
        left_on="call_start_ns",
        right_on="opened_ns",
        by=["process_id"],
    )
    is_in = pl.col("call_start_ns") < pl.col("closed_ns")
    return placed.with_columns(pl.when(is_in).then(pl.col("step_row", "step_kind"))), counts


def _alike(counts: dict[str, int]) -> pl.Expr:
    number = pl.element().replace_strict(counts, default=0, return_dtype=pl.Int64)
    return pl.col("step_kinds").list.eval(number).list.sum().cast(pl.Int64).alias("steps_alike")


def findings(result: pl.DataFrame) -> list[Finding]:
    """Return one finding per buffer and way of copying that is not ordered.

    Certain ones; and, for what it is worth, blocking copies that may be, where they write the same
    memory again and again.
    """
    bad = result.filter(pl.col("order").is_in(["unordered", "accident"]))
    rewritten = pl.col("copies") >= MIN_REWRITES * pl.col("destinations")
    maybe = (pl.col("certainty") == "possible") & pl.col("is_blocking") & rewritten
    told = bad.filter((pl.col("certainty") == "certain") | maybe)
    groups = told.group_by(*_WAY, "buffer", "certainty", maintain_order=True)
    return [_finding(rows) for _, rows in groups]


def _finding(rows: pl.DataFrame) -> Finding:
    worst = rows.row(0, named=True)
    copies, together = int(rows["copies"].sum()), int(rows["together"].sum())
    accidents = int(rows.filter(order="accident")["copies"].sum())
    wrong = copies - together - accidents
    is_certain = worst["certainty"] == "certain"
    longest_ns: int | None = rows["overlap_max_ns"].max()  # type: ignore[assignment]
    longest = format_number(longest_ns, Unit.DURATION)
    told = [
        f"{together} ran while it did (up to {longest})" if together else "",
        f"{wrong} ran in the wrong order" if wrong else "",
        f"{accidents} {'were' if accidents > 1 else 'was'} apart from it only by accident"
        if accidents
        else "",
    ]
    severity = FindingSeverity.WARNING if accidents == copies else FindingSeverity.CRITICAL
    is_reader = worst["conflict"] == "overwrites-read"
    return Finding(
        code=f"unordered-copy.in-flight-{'reader' if is_reader else 'writer'}",
        severity=severity if is_certain else FindingSeverity.INFO,
        message=f"{_what(worst, copies)} not ordered with {_whom(rows)}: "
        f"{', '.join(filter(None, told))}",
        evidence={
            "call": worst["name"],
            **{name: worst[name] for name in _TOLD},
            "copies": copies,
            "together": together,
            "in_wrong_order": wrong,
            "by_accident": accidents,
            "steps": int(rows["steps"].max() or 0),  # type: ignore[arg-type]
            "steps_alike": int(rows["steps_alike"].max() or 0),  # type: ignore[arg-type]
            "overlap_max_ns": longest_ns,
        },
        advice=_ADVICE if is_certain else f"{_TO_BE_SURE} {_ADVICE}",
        span_ns=(worst["worst_start_ns"], worst["worst_start_ns"] + (worst["overlap_max_ns"] or 1)),
    )


def _what(row: dict[str, object], copies: int) -> str:
    number, verb = (f"{copies} copies", "are") if copies > 1 else ("1 copy", "is")
    way = "out of" if row["conflict"] == "reads-written" else "into"
    where = f" {way} {shlex.quote(str(row['buffer']))}" if row["buffer"] else ""
    return f"{number} by {row['name']}{where} {verb}"


def _whom(rows: pl.DataFrame) -> str:
    """Name the worst of the other work, what it does, and of how many kernels it is one."""
    worst = rows.row(0, named=True)
    name = _shortened(worst["other"] or "other work")
    if worst["certainty"] != "certain":
        return f"kernels in flight that may use the same memory, such as {name}"
    more = rows["other"].n_unique() - 1
    others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
    verb = "read" if worst["conflict"] == "overwrites-read" else "write"
    memory = "it" if worst["buffer"] else "the same memory"
    return f"{name}{others}, which {verb}{'' if more else 's'} {memory}"


def _shortened(name: str) -> str:
    """Cut a kernel's name in the middle: it tells most at its two ends."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half + 1 :]}"


_LONGEST_NAME = 60
_TOLD = ("direction", "is_blocking", "buffer", "other", "conflict", "certainty")
_TO_BE_SURE = "Say with `tk1 use` (docs/markers.md) which memory kernels use, to be sure."
_ADVICE = (
    "Copy on the stream whose kernels use the memory (from a pinned slot that is used again only "
    "when its event is done), or let that stream wait for the copy's event; a synchronise before "
    "the copy is right too, and slower. Record again and compare: "
    "tracekit report TRACE --only unordered-copies"
)


def caveats(
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    accesses: pl.DataFrame,
    waits: pl.DataFrame,
    streams: pl.DataFrame,
) -> list[Note]:
    """Return what cannot be told on this trace."""
    if copies.is_empty() or calls.is_empty():
        return []
    notes = []
    if accesses.is_empty():
        message = (
            "Nothing says which memory kernels use, so a copy can be possibly unordered, never "
            "certainly; mark launches with `tk1 use` (docs/markers.md)"
        )
        notes.append(Note("unordered-copies.accesses-unknown", Severity.INFO, message))
    flagless = streams["flags"].null_count()
    if flagless:
        message = (
            "Streams whose flags the trace lacks may be ordered with the null stream; copies "
            "there are `unknown` where that decides"
        )
        notes.append(Note("unordered-copies.flags-unknown", Severity.INFO, message, flagless))
    asked = int((calls["kind"] == "event_wait").sum())
    if asked and waits["record_call_id"].count() == 0:
        message = (
            "Streams were made to wait for events, but the trace does not say for which: what is "
            "submitted after such a wait is `unknown`"
        )
        notes.append(Note("unordered-copies.waits-unknown", Severity.NOTICE, message, asked))
    return notes


ANALYSIS = Analysis(
    name="unordered-copies",
    question="Which copies are not ordered with the work that uses their memory?",
    table=UNORDERED_COPIES,
    compute=unordered_copies,
    needs=("calls", "copies"),
    findings=findings,
    caveats=caveats,
)
