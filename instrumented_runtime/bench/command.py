"""Print published tables beside what the virtual device gives: see `--help`."""

import argparse
import importlib.util
import json
from pathlib import Path
from textwrap import wrap

from instrumented_runtime.bench import Row, Table, s1, s2, s3, s5
from instrumented_runtime.console import print_lines, say, what_keeps_from_writing, write_new

TABLES = {table.name: table for table in (s1.TABLE, s2.TABLE, s3.TABLE, s5.TABLE)}


def main() -> int:
    """Run what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m instrumented_runtime.bench",
        description="Print published figures beside those of the virtual device, a model whose "
        "constants are fitted to some of them and predict the others.",
    )
    parser.add_argument("--device", choices=["virtual"], default="virtual")
    parser.add_argument(
        "--table", choices=[*TABLES], action="append", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the rows to a file that is not there"
    )
    arguments = parser.parse_args()
    if arguments.json and (problem := what_keeps_from_writing(arguments.json)):
        parser.error(problem)
    names = dict.fromkeys(arguments.table or TABLES)
    if s5.TABLE.name in names and importlib.util.find_spec("torch") is None:
        parser.error("s5 needs torch, which is not installed; name other tables with --table")
    rows: list[Row] = []
    is_closed = False
    for name in names:
        table = TABLES[name]
        mine = table.rows(say)
        rows += mine
        is_closed = is_closed or not _print(table, mine)
        if is_closed and not arguments.json:
            break
    if arguments.json:
        text = json.dumps([row.as_json() for row in rows], indent=2, ensure_ascii=False)
        if not write_new(arguments.json, text + "\n"):
            return 2
    return 141 if is_closed else 0


def _print(table: Table, rows: list[Row]) -> bool:
    """Print a table; return whether anybody reads it."""
    lines = [
        f"{table.name}  {table.title}",
        "A model of the device, not a measurement of one.",
        "",
        f"{'':<26}{'':<34}{'published':>10}{'ours':>10}{'apart':>9}  {'interval':<22}how",
    ]
    before = ""
    for row in rows:
        name = "" if row.row == before else row.row
        before = row.row
        published = "–" if row.published is None else _figure(row.published)
        apart = ""
        # How far a percentage is from another in per cent says nothing.
        if row.published and not row.metric.endswith("%"):
            apart = f"{(row.ours / row.published - 1) * 100:+.1f} %"
        interval = ""
        if row.interval is not None:
            low, high = row.interval
            interval = f"{_figure(low)} to {_figure(high)}, {'in' if row.is_inside else 'OUT'}"
        lines.append(
            f"{name:<26}{row.metric:<34}{published:>10}{_figure(row.ours):>10}{apart:>9}  "
            f"{interval:<22}{row.kind}"
        )
    return print_lines([*lines, "", *wrap(table.freedom, 100), ""])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"
