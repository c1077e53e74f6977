"""Two runs side by side, one a side: what changed, without a verdict.

What differs between two server starts of the very same program is not known from one start a side:
an interval, and with it a verdict, needs several (`tracekit experiment`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from tracekit.compare.trace_figures import Figure, trace_figures
from tracekit.manifest.what_ran import FieldClass, WhatRan, differences
from tracekit.tables import Column, Table, enum_column, text_column
from tracekit.tables.client import METRICS
from tracekit.units import Unit

ONE_A_SIDE = (
    "One run a side: n = 1 against n = 1 gives no interval and no verdict. Two starts of the same "
    "server differ, too."
)
_PHASES = ("untraced", "traced")
# Shares differ by points and have no ratio worth reading.
_BY_DIFFERENCE = {Unit.SHARE}

COMPARISON = Table(
    "comparison",
    "one figure of two runs",
    (
        enum_column("source", ("client", "trace"), "Who measured it."),
        text_column("metric", "Its name."),
        text_column("place", "Device or kind of step it is of, or phase of the load."),
        text_column("unit", "Its unit."),
        Column("base", pl.Float64(), "Of the base run; null if it is not known."),
        Column("head", pl.Float64(), "Of the head run, likewise."),
        Column("change", pl.Float64(), "head ÷ base − 1; of shares head − base."),
        enum_column("is_better", ("lower", "higher"), "Which way it would improve, if either."),
    ),
    answers=("metric", "base", "head", "change"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One run, as far as it is known.

    Attributes:
        name: As the user gave it.
        frames: Results of analyses by name.
        client: Client metrics by phase; empty if no load was driven.
        what_ran: Its record; None if it was not captured but converted.
    """

    name: str
    frames: Mapping[str, pl.DataFrame]
    client: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    what_ran: WhatRan | None = None


def phase_of(base: Side, head: Side) -> str | None:
    """Return the phase whose client metrics both have: without the profiler if possible."""
    return next((p for p in _PHASES if p in base.client and p in head.client), None)


def compared(base: Side, head: Side) -> pl.DataFrame:
    """Return the comparison table: client metrics first, then figures of the traces.

    A figure that only one side has is there with a null; one that neither has is not.
    """
    rows = [*_of_clients(base, head), *_of_traces(base, head)]
    return COMPARISON.conform(pl.DataFrame(rows, schema=COMPARISON.schema))


def _of_clients(base: Side, head: Side) -> Iterator[dict[str, object]]:
    phase = phase_of(base, head)
    if phase is None:
        return
    for name, metric in METRICS.items():
        values = [_number(side.client[phase].get(name)) for side in (base, head)]
        if metric.unit is not Unit.NONE and values != [None, None]:
            figure = Figure(name, phase, metric.unit, None, metric.is_better)
            yield _row("client", figure, *values)


def _of_traces(base: Side, head: Side) -> Iterator[dict[str, object]]:
    sides = [{(f.name, f.place): f for f in trace_figures(s.frames)} for s in (base, head)]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        found = [side.get(key) for side in sides]
        figure = next(f for f in found if f is not None)
        if figure.name.startswith("idle, ") and not any(f and f.value for f in found):
            continue
        yield _row("trace", figure, *(None if f is None else f.value for f in found))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _row(source: str, figure: Figure, base: float | None, head: float | None) -> dict[str, object]:
    change = None
    if base is not None and head is not None:
        if figure.unit in _BY_DIFFERENCE:
            change = head - base
        elif base != 0:
            change = head / base - 1
    return {
        "source": source,
        "metric": figure.name,
        "place": figure.place,
        "unit": str(figure.unit),
        "base": base,
        "head": head,
        "change": change,
        "is_better": figure.is_better,
    }


def warnings(base: Side, head: Side) -> list[str]:
    """Return what spoils the comparison, or is not known about it, in sentences."""
    if base.what_ran is None or head.what_ran is None:
        return ["What ran is not recorded on both sides, so nothing says that they are comparable."]
    found = []
    for name in differences(base.what_ran, head.what_ran)[FieldClass.MUST_MATCH]:
        sides = (_short(getattr(side.what_ran, name)) for side in (base, head))
        found.append(f"{name} must match and does not: {' against '.join(sides)}.")
    phase = phase_of(base, head)
    for side in (base, head) if phase else ():
        client = side.client[phase or ""]
        if failed := _number(client.get("failed")):
            found.append(f"{side.name}: {failed:.0f} requests failed ({client.get('failures')}).")
        if (stopped := client.get("stopped")) is not None:
            found.append(f"{side.name}: the load was stopped before its end ({stopped}).")
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"


def changes(base: Side, head: Side) -> list[str]:
    """Return what is different in what ran: what the comparison is about.

    Fields by name; of a field that has names in it, those names.
    """
    if base.what_ran is None or head.what_ran is None:
        return []
    found = []
    for name in differences(base.what_ran, head.what_ran)[FieldClass.IDENTITY]:
        one, other = getattr(base.what_ran, name), getattr(head.what_ran, name)
        if isinstance(one, dict) and isinstance(other, dict):
            keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
            found.append(f"{name} ({', '.join(keys)})")
        else:
            found.append(name)
    return found
