"""`tracekit info`: what a trace holds, before anything is concluded from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli import Command, emit, progress_bar, read_paths

if TYPE_CHECKING:
    from tracekit.trace import Trace


@click.command("info")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(path_type=Path))
def _info(paths: tuple[Path, ...]) -> None:
    """Show format, processes, devices, time span, rows per table and what was not recorded.

    PATH is a trace file, a run directory, or a directory of trace files of one format.
    """
    with progress_bar() as progress:
        trace = read_paths(paths, progress)
        lines = list(_lines(trace))
    emit("\n".join(lines) + "\n")


def _lines(trace: "Trace") -> Iterator[str]:
    from tracekit.reports.text import plain

    yield f"Format     {trace.format_name}"
    yield f"Files      {len(trace.sources)}"
    yield from (f"           {plain(source)}" for source in trace.sources)
    yield _span(trace)
    yield from ("", "Processes")
    yield from (f"  {plain(line)}" for line in _processes(trace))
    yield from ("", "Devices")
    yield from (f"  {plain(line)}" for line in _devices(trace))
    yield from ("", "Rows")
    yield from (f"  {line}" for line in _rows(trace))
    yield from ("", "Notes")
    notes = [f"  {n.severity}: {n.code} ({n.count:,}×): {n.message}" for n in trace.notes]
    yield from map(plain, notes or ["  none: nothing is known to be missing"])


def _span(trace: "Trace") -> str:
    import polars as pl

    from tracekit.units import Unit, format_number

    ends = pl.col("start_ns").min(), pl.col("end_ns").max()
    start_ns, end_ns = trace.collect("ops", trace.scan("ops").select(*ends)).row(0)
    if start_ns is None:
        return "GPU time   none: no device op was recorded"
    return f"GPU time   {format_number(end_ns - start_ns, Unit.DURATION)}, first to last op"


def _processes(trace: "Trace") -> Iterator[str]:
    for row in trace.table("processes").iter_rows(named=True):
        rank = "" if row["rank"] is None else f" rank {row['rank']}"
        node = f" on {row['node']}" if row["node"] else ""
        yield f"{row['process_id']}: pid {row['pid'] or 'unknown'}{rank}{node}"
        if row["command"]:
            yield f"   command    {row['command']}"
        collected = row["collected"]
        known = "the file does not say" if collected is None else ", ".join(collected) or "nothing"
        yield f"   collected  {known}"


def _devices(trace: "Trace") -> Iterator[str]:
    for row in trace.table("devices").iter_rows(named=True):
        told = [row["name"], row["arch"], f"on {row['node']}" if row["node"] else None]
        yield f"{row['device_id']}: " + (", ".join(filter(None, told)) or "unnamed")


def _rows(trace: "Trace") -> Iterator[str]:
    import polars as pl

    from tracekit.tables.catalog import TABLES

    for name in TABLES:
        rows = trace.collect(name, trace.scan(name).select(pl.len())).item()
        yield f"{name:<16}{rows:>14,}"


COMMAND = Command("info", _info)
