"""`tracekit list`: the formats and analyses there are."""

import click

from tracekit.cli import Command, emit


@click.command("list")
@click.argument("what", type=click.Choice(["formats", "analyses"]))
def _list(what: str) -> None:
    """List the trace formats that can be read, or the analyses a report is made of."""
    if what == "formats":
        from tracekit.formats import formats

        lines = {name: format_.summary for name, format_ in formats().items()}
    else:
        from tracekit.analyses import analyses

        lines = {name: analysis.question for name, analysis in analyses().items()}
    width = max(map(len, lines), default=0)
    emit("".join(f"{name:<{width}}  {line}\n" for name, line in lines.items()))


COMMAND = Command("list", _list)
