"""`tracekit list`: the formats, analyses, profilers, hooks and patches there are."""

from collections.abc import Callable, Mapping

import click

from tracekit.cli import Command, emit


def _formats() -> Mapping[str, str]:
    from tracekit.formats import formats

    return {name: format_.summary for name, format_ in formats().items()}


def _analyses() -> Mapping[str, str]:
    from tracekit.analyses import analyses

    return {name: analysis.question for name, analysis in analyses().items()}


def _profilers() -> Mapping[str, str]:
    from tracekit.capture.profilers import profilers

    return {name: profiler.summary for name, profiler in profilers().items()}


def _hooks() -> Mapping[str, str]:
    from tracekit.capture.hooks.catalog import hooks_manifest

    hooks = hooks_manifest().hooks.values()
    return {hook.name: hook.summary + ("" if hook.default else " (off)") for hook in hooks}


def _patches() -> Mapping[str, str]:
    from tracekit.capture.hooks.catalog import hooks_manifest

    return {patch.name: patch.summary for patch in hooks_manifest().patches.values()}


_LISTS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "formats": _formats,
    "analyses": _analyses,
    "profilers": _profilers,
    "hooks": _hooks,
    "patches": _patches,
}


@click.command("list")
@click.argument("what", type=click.Choice(list(_LISTS)))
def _list(what: str) -> None:
    """List formats that can be read, analyses of a report, and what a capture can use.

    Hooks marked as off run only if they are asked for; a patch is never applied unasked.
    """
    lines = _LISTS[what]()
    width = max(map(len, lines), default=0)
    emit("".join(f"{name:<{width}}  {line}\n" for name, line in lines.items()))


COMMAND = Command("list", _list)
