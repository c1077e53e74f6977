"""`tracekit compare`: two runs side by side, one a side."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import Command, emit, progress_bar, read_paths, say, say_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracekit.compare import Side
    from tracekit.formats import Progress

# Of a spread, what the terminal leaves out unless asked.
_LEFT_OUT = ("_n", "_mean_ns", "_p90_ns", "_max_ns")


@click.command("compare")
@click.option(
    "--base",
    metavar="RUN",
    required=True,
    type=click.Path(path_type=Path),
    help="The run to compare with.",
)
@click.option(
    "--head", metavar="RUN", required=True, type=click.Path(path_type=Path), help="The other run."
)
@click.option("--all", "shows_all", is_flag=True, help="Show every statistic of each spread.")
@click.option(
    "--as", "kind", type=click.Choice(["text", "json"]), default="text", help="Kind of output."
)
def _compare(
    base: Path,
    head: Path,
    shows_all: bool,  # noqa: FBT001  click passes every option by name
    kind: str,
) -> None:
    """Put two runs side by side: client metrics, and a few figures of their traces.

    It describes and decides nothing: one run a side gives no interval.
    """
    from tracekit.compare import compared

    with progress_bar() as progress:
        sides = [_side(path, progress) for path in (base, head)]
        rows = compared(*sides)
    if kind == "json":
        emit(_json(rows, *sides))
    else:
        emit("\n".join(_text(rows, *sides, shows_all=shows_all)) + "\n")


def _side(path: Path, progress: "Progress") -> "Side":
    from tracekit.compare.sides import side
    from tracekit.compare.trace_figures import ANALYSES
    from tracekit.pipeline import analyse

    trace = read_paths([path], progress)
    say_losses(trace)
    report = analyse(trace, only=ANALYSES, progress=progress)
    for section in report.sections:
        if section.skipped is not None:
            say(f"{path}: {section.name} {section.skipped}")
    ran = {s.name: s.frame for s in report.sections if s.skipped is None}
    return side(path, ran)


def _json(rows: "pl.DataFrame", base: "Side", head: "Side") -> str:
    import msgspec

    from tracekit.compare import ONE_A_SIDE, changes, warnings

    document = {
        "base": base.name,
        "head": head.name,
        "n_base": 1,
        "n_head": 1,
        "says": ONE_A_SIDE,
        "differs_in": changes(base, head),
        "warnings": warnings(base, head),
        "rows": rows.to_dicts(),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _text(rows: "pl.DataFrame", base: "Side", head: "Side", *, shows_all: bool) -> "Iterator[str]":
    from tracekit.compare import ONE_A_SIDE, changes, phase_of, warnings
    from tracekit.reports.text import plain

    yield plain(f"base  {base.name}")
    yield plain(f"head  {head.name}")
    if fields := changes(base, head):
        yield f"They differ in {', '.join(fields)}."
    for warning in warnings(base, head):
        yield plain(f"! {warning}")
    phase = phase_of(base, head)
    titles = {
        "client": f"Client, {phase} ({_clock(base, phase)} clock)" if phase else "",
        "trace": "Trace",
    }
    cells = [_cells(row) for row in rows.iter_rows(named=True) if shows_all or _is_shown(row)]
    widths = [max(map(len, column)) for column in zip(_HEADING, *cells, strict=True)]
    source = None
    for row in cells:
        if row[0] != source:
            source = row[0]
            yield from ("", titles[source], _line(_HEADING, widths))
        yield plain(_line(row, widths))
    yield from ("", ONE_A_SIDE)


_HEADING = ("", "metric", "of", "base", "head", "change", "better is")


def _clock(side: "Side", phase: str | None) -> str:
    return str(side.client[phase].get("clock")) if phase else "no"


def _is_shown(row: dict[str, object]) -> bool:
    metric = str(row["metric"])
    is_left_out = row["source"] == "client" and metric.endswith(_LEFT_OUT)
    is_nothing = metric.startswith("queued") and not (row["base"] or row["head"])
    return not (is_left_out or is_nothing)


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    from tracekit.units import Unit, format_number

    unit = Unit(str(row["unit"]))
    base, head, change = (
        value if isinstance(value := row[name], float) else None
        for name in ("base", "head", "change")
    )
    figures = []
    for value in (base, head):
        is_whole = unit is Unit.COUNT and value is not None and value.is_integer()
        figures.append(format_number(value if not is_whole or value is None else int(value), unit))
    sign = "points" if unit is Unit.SHARE else "%"
    moved = "–" if change is None else f"{100 * change:+.2f} {sign}"
    place = "" if row["source"] == "client" else str(row["place"])
    better = str(row["is_better"] or "")
    return (str(row["source"]), str(row["metric"]), place, *figures, moved, better)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    _, metric, place, *figures, better = cells
    numbers = "  ".join(f"{text:>{wide}}" for text, wide in zip(figures, widths[3:6], strict=True))
    return f"  {metric:<{widths[1]}}  {place:<{widths[2]}}  {numbers}  {better}".rstrip()


COMMAND = Command("compare", _compare)
