"""`tracekit convert`: a trace as a run directory of Parquet files, which opens without reading."""

from pathlib import Path

import click

from tracekit.cli import Command, progress_bar, read_paths, say, say_losses


@click.command("convert")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "output",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory to write; every other command reads it.",
)
@click.option("--force", is_flag=True, help="Replace DIR if it exists.")
def _convert(
    paths: tuple[Path, ...],
    output: Path,
    force: bool,  # noqa: FBT001  click passes every option by name
) -> None:
    """Write traces of any format as one run directory of Parquet files, with their analyses."""
    from tracekit.formats.store import check_target, write_run
    from tracekit.pipeline import with_results

    check_target(output, force=force)
    with progress_bar() as progress:
        trace = read_paths(paths, progress)
        write_run(with_results(trace, progress), output, force=force)
    say_losses(trace)
    say(f"Wrote {output}")


COMMAND = Command("convert", _convert)
