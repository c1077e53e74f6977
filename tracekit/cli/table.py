"""`tracekit table`: one table of a trace, or the result of one analysis, for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import (
    Command,
    check_output,
    emit,
    progress_bar,
    read_paths,
    say,
    say_losses,
    write_whole,
)
from tracekit.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracekit.formats import Progress

_ROWS_AT_ONCE = 65_536


@click.command("table")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.argument("name", metavar="NAME")
@click.option(
    "--as",
    "kind",
    type=click.Choice(["csv", "json", "parquet"]),
    help="Kind of output. Without it the suffix of FILE decides, else csv.",
)
@click.option("-o", "output", metavar="FILE", type=click.Path(path_type=Path), help="Write a file.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def _table(
    path: Path,
    name: str,
    kind: str | None,
    output: Path | None,
    force: bool,  # noqa: FBT001  click passes every option by name
) -> None:
    """Print one canonical table (docs/tables.md) or the result of one analysis.

    Where a table and an analysis share a NAME it is the table; analysis:NAME is the analysis.
    """
    kind = kind or (output.suffix.lower().removeprefix(".") if output else "csv")
    if kind not in _WRITERS:
        raise BadInput(str(output), "its suffix names no kind of table", "Add --as csv")
    if kind == "parquet" and output is None:
        raise BadInput("--as parquet", "does not go to a terminal", "Name a file: -o FILE")
    if output is not None:
        check_output(output, force=force)
    with progress_bar() as progress:
        frame = _frame(path, name, progress)
    if output is not None:
        write_whole(output, lambda file: _WRITERS[kind](frame, file), force=force)
        return
    for text in _csv(frame) if kind == "csv" else _json(frame):
        emit(text)


def _frame(path: Path, name: str, progress: "Progress") -> "pl.DataFrame":
    from tracekit.analyses import analyses
    from tracekit.pipeline import analyse, closest
    from tracekit.tables.catalog import TABLES

    analysis = name.removeprefix("analysis:")
    if name == analysis:
        closest(name, {*TABLES, *analyses()}, "table or analysis")
    else:
        closest(analysis, analyses(), "analysis")
    trace = read_paths([path], progress)
    say_losses(trace)
    if name in TABLES:
        if name in analyses():
            say(f"{name} is a table of the trace; the analysis is analysis:{name}")
        return trace.table(name)
    section = analyse(trace, only=[analysis], progress=progress).sections[0]
    if section.skipped is not None:
        raise BadInput(path, f"{analysis} {section.skipped}", "See what is there: tracekit info")
    return section.frame


def _csv(frame: "pl.DataFrame") -> "Iterator[str]":
    import polars as pl

    lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    flat = frame.with_columns(pl.col(name).list.join(" ") for name in lists)
    yield ",".join(flat.columns) + "\n"
    for part in flat.iter_slices(_ROWS_AT_ONCE):
        yield part.write_csv(include_header=False)


def _json(frame: "pl.DataFrame") -> "Iterator[str]":
    import msgspec

    separator = "["
    for part in frame.iter_slices(_ROWS_AT_ONCE):
        rows = (msgspec.json.encode(row).decode() for row in part.iter_rows(named=True))
        yield f"{separator}\n" + ",\n".join(rows)
        separator = ","
    yield "[]\n" if separator == "[" else "\n]\n"


def _write_text(parts: "Iterator[str]", file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(parts)


def _write_csv(frame: "pl.DataFrame", file: Path) -> None:
    _write_text(_csv(frame), file)


def _write_json(frame: "pl.DataFrame", file: Path) -> None:
    _write_text(_json(frame), file)


def _write_parquet(frame: "pl.DataFrame", file: Path) -> None:
    frame.write_parquet(file)


_WRITERS = {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet}
COMMAND = Command("table", _table)
