"""`tracekit report`: where the GPU's time went, as text, json, html or markdown."""

import sys
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
    width_of_terminal,
    write_whole,
)
from tracekit.errors import BadInput

if TYPE_CHECKING:
    from tracekit.reports import Renderer


@click.command("report")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "output", metavar="FILE", type=click.Path(path_type=Path), help="Write a file.")
@click.option(
    "--as",
    "kind",
    metavar="text|json|html|md",
    help="Kind of report. Without it the suffix of FILE decides, and text goes to the terminal.",
)
@click.option(
    "--only",
    "names",
    metavar="NAME",
    multiple=True,
    help="Show this analysis only (tracekit list analyses); may be given several times.",
)
@click.option(
    "--window",
    "window_text",
    metavar="START:END",
    help="Look at a part: 10ms:20ms, 1.5s:, :-100us (negative counts from the end; a number "
    "without a unit is in ns; all count from the first op), or the text of a marker.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def _report(
    paths: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    names: tuple[str, ...],
    window_text: str | None,
    force: bool,  # noqa: FBT001  click passes every option by name
) -> None:
    """Say where the GPU's time went and why: busy, and idle by cause, then every analysis.

    PATH is a trace file, a run directory, or a directory of trace files of one format.
    """
    renderer = _renderer(kind, output)
    if output is not None:
        _refuse_input(output, paths)
        check_output(output, force=force)
    text = _rendered(paths, renderer, names, window_text, is_file=output is not None)
    if output is None:
        emit(text)
    else:
        write_whole(output, lambda path: path.write_text(text, "utf-8"), force=force)


def _refuse_input(output: Path, paths: tuple[Path, ...]) -> None:
    """A report never replaces a trace it was made from, nor a file inside a run directory."""
    for path in paths:
        is_input = path.exists() and output.exists() and output.samefile(path)
        is_run = (path / "manifest.json").is_file()
        if is_input or (is_run and any(path.samefile(above) for above in _above(output))):
            raise BadInput(output, "is, or lies in, the trace itself", "Name another file")


def _above(output: Path) -> list[Path]:
    return [folder for folder in output.absolute().parents if folder.exists()]


def _renderer(kind: str | None, output: Path | None) -> "Renderer":
    from tracekit.pipeline import closest
    from tracekit.reports import renderers

    known = renderers()
    if kind is not None:
        return known[closest(kind, known, "kind of report")]
    if output is None:
        return known["text"]
    fitting = [r for r in known.values() if r.suffix == output.suffix.lower()]
    if not fitting:
        suffixes = ", ".join(r.suffix for r in known.values())
        raise BadInput(
            output, "its suffix names no kind of report", f"Use one of {suffixes}, or add --as"
        )
    return fitting[0]


def _rendered(
    paths: tuple[Path, ...],
    renderer: "Renderer",
    names: tuple[str, ...],
    window_text: str | None,
    *,
    is_file: bool,
) -> str:
    from tracekit.analyses import analyses
    from tracekit.pipeline import analyse, closest
    from tracekit.reports import Screen
    from tracekit.windows import window_named

    for name in names:
        closest(name, analyses(), "analysis")
    with progress_bar() as progress:
        trace = read_paths(paths, progress)
        window = None if window_text is None else window_named(trace, window_text)
        report = analyse(trace, only=names, window=window, progress=progress)
    if window is not None:
        say(f"Window: {report.window}")
    on_terminal = not is_file and sys.stdout.isatty()
    return renderer.render(report, Screen(width_of_terminal(), colour=on_terminal))


COMMAND = Command("report", _report)
