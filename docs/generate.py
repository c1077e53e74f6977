"""Write docs/tables.md from the declared tables and docs/cli.md from click.

Run `python docs/generate.py` after changing either; a test compares the files with what this makes.
"""  # noqa: INP001  a script beside the documents it writes

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from tracekit.analyses import analyses
from tracekit.cli import program
from tracekit.compare import COMPARISON
from tracekit.reports.md import prose
from tracekit.tables import Table
from tracekit.tables.catalog import TABLES
from tracekit.tables.client import REQUESTS
from tracekit.tables.identity import WINDOWS

HERE = Path(__file__).parent
_TABLES_HEAD = """# Tables

Made by `python docs/generate.py` from the declarations; do not edit.

`tracekit table PATH NAME` prints any of them. Times are integer nanoseconds on the trace's own
clock and intervals half-open, `[start_ns, end_ns)`; a cell without a value is unknown, never zero.
Ids are unique inside one trace.
"""
_CLI_HEAD = """# Command line

Made by `python docs/generate.py` from the commands; do not edit.

Data goes to stdout, everything else to stderr. Nothing is overwritten without `--force`, and a file
is written whole or not at all.
"""


def tables_document() -> str:
    """Return docs/tables.md: canonical tables, then the result of each analysis."""
    lines = [_TABLES_HEAD, "## Tables of a trace", ""]
    for table in TABLES.values():
        lines += _table(table.name, table)
    lines += ["## Given to analyses", ""]
    lines += _table(WINDOWS.name, WINDOWS)
    lines += ["## Results of analyses", ""]
    for analysis in analyses().values():
        lines += _table(analysis.name, analysis.table, f"*{prose(analysis.question)}*")
    lines += ["## Of captures and comparisons", ""]
    lines += _table(REQUESTS.name, REQUESTS, "*`requests.parquet` of a captured run.*")
    lines += _table(COMPARISON.name, COMPARISON, "*`rows` of `tracekit compare --as json`.*")
    return "\n".join(lines)


def _table(name: str, table: Table, question: str = "") -> Iterator[str]:
    yield from (f"### {name}", "")
    if question:
        yield from (question, "")
    yield from (f"A row is {prose(table.row)}.", "")
    yield from ("| column | type | unit | meaning |", "|---|---|---|---|")
    for column in table.columns:
        # An enum's dtype spells out its values, which are worth reading.
        dtype = re.sub(r"^Enum\(categories=\[(.*)\]\)$", r"one of \1", str(column.dtype))
        yield f"| `{column.name}` | {prose(dtype)} | {column.unit} | {prose(column.meaning)} |"
    yield ""


def cli_document() -> str:
    """Return docs/cli.md: what each command does, its arguments and options."""
    group = program()
    lines = [_CLI_HEAD, *_help(group), ""]
    for name, command in sorted(group.commands.items()):
        context = click.Context(command, info_name=f"tracekit {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## tracekit {name}", "", f"    tracekit {name} {usage}", ""]
        lines += [*_help(command), ""]
        options = [_option(o, context) for o in command.params if isinstance(o, click.Option)]
        lines += ["| option | meaning |", "|---|---|", *options, ""] if options else []
    return "\n".join(lines)


def _help(command: click.Command) -> Iterator[str]:
    r"""Yield a command's help; a paragraph that starts with click's `\b` is preformatted."""
    for index, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        lines = paragraph.strip("\n").split("\n")
        is_preformatted = lines[0] == "\b"
        yield from [""] * (index > 0)
        yield from (f"    {line.strip()}" for line in lines[1:]) if is_preformatted else lines


def _option(option: click.Option, context: click.Context) -> str:
    takes = "" if option.is_flag else f" {option.make_metavar(context)}"
    names = f"{', '.join(option.opts)}{takes}".replace("|", "\\|")
    return f"| `{names}` | {prose(option.help or '')} |"


def main() -> None:
    """Write both documents."""
    for name, text in (("tables.md", tables_document()), ("cli.md", cli_document())):
        (HERE / name).write_text(text, "utf-8")
        click.echo(f"Wrote {HERE / name}", err=True)


if __name__ == "__main__":
    main()
