"""`tracekit report`: where the GPU's time went, as text, json, html or markdown."""

import sys
from dataclasses import dataclass
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
@click.option(
    "--against",
    "other_path",
    metavar="TRACE",
    type=click.Path(path_type=Path),
    help="Another trace of the same program, a file or directory: what PATH shows on one side only "
    "is held against it (queue-waits: the same kernels without a pending wait).",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def _report(
    paths: tuple[Path, ...],
    output: Path | None,
    kind: str | None,
    names: tuple[str, ...],
    window_text: str | None,
    other_path: Path | None,
    force: bool,  # noqa: FBT001  click passes every option by name
) -> None:
    """Say where the GPU's time went and why: busy, and idle by cause, then every analysis.

    PATH is a trace file, a run directory, or a directory of trace files of one format.
    """
    renderer = _renderer(kind, output)
    inputs = paths if other_path is None else (*paths, other_path)
    if output is not None:
        _refuse_input(output, inputs)
        check_output(output, force=force)
    request = _Request(paths, names, window_text, other_path)
    text = _rendered(request, renderer, is_file=output is not None)
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


@dataclass(frozen=True, slots=True)
class _Request:
    """What is to be reported: traces, analyses, a window, and the trace of `--against`."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    window_text: str | None
    other_path: Path | None


def _rendered(request: _Request, renderer: "Renderer", *, is_file: bool) -> str:
    from tracekit.analyses import analyses
    from tracekit.pipeline import analyse, closest
    from tracekit.reports import Screen
    from tracekit.windows import window_named

    known = analyses()
    shown = [known[closest(name, known, "analysis")] for name in request.names or known]
    if request.other_path is not None and not any(analysis.against for analysis in shown):
        needs = ", ".join(name for name in known if known[name].against)
        raise BadInput("--against", "no analysis shown takes another trace", f"Show {needs}")
    with progress_bar() as progress:
        trace = read_paths(request.paths, progress)
        text = request.window_text
        window = None if text is None else window_named(trace, text)
        other_path = request.other_path
        other = None if other_path is None else read_paths((other_path,), progress)
        report = analyse(trace, only=request.names, window=window, against=other, progress=progress)
    if window is not None:
        say(f"Window: {report.window}")
    on_terminal = not is_file and sys.stdout.isatty()
    return renderer.render(report, Screen(width_of_terminal(), colour=on_terminal))


COMMAND = Command("report", _report)
