"""Hooks and patches of `instrumented_runtime` in every process of a server, by its environment."""

import difflib
import os
from collections.abc import Iterable, Mapping

from tracekit.capture.hooks.catalog import hooks_manifest
from tracekit.capture.hooks.window import Window
from tracekit.errors import BadInput

__all__ = ["Window", "default_hooks", "environment_of"]


def default_hooks() -> tuple[str, ...]:
    """Return the hooks that run unless the user says otherwise."""
    return tuple(hook.name for hook in hooks_manifest().hooks.values() if hook.default)


def environment_of(
    window: Window,
    *,
    hooks: Iterable[str],
    patches: Iterable[str],
    markers: str,
    environment: Mapping[str, str],
    copies: bool = False,
) -> dict[str, str]:
    """Return the variables that put hooks and patches into every Python process of a server.

    Args:
        window: Where capture and processes meet.
        hooks: Names of hooks; a name may come twice.
        patches: Names of patches, applied in this order.
        markers: Where markers go: roctx, nvtx, record_function or off.
        environment: What the server would run in; its PYTHONPATH is kept, behind ours.
        copies: Whether tensor copies are recorded with their addresses.

    Raises:
        TracekitError: `instrumented_runtime` is not installed, or does not know a name.
    """
    manifest = hooks_manifest()
    chosen = _known("hook", hooks, manifest.hooks)
    fixes = _known("patch", patches, manifest.patches)
    path = [str(manifest.path_entry), *filter(None, [environment.get("PYTHONPATH")])]
    variables = {
        "PYTHONPATH": os.pathsep.join(path),
        "TRACEKIT_HOOKS": ",".join(chosen),
        "TRACEKIT_PATCHES": ",".join(fixes),
        "TRACEKIT_HOOKS_DIR": str(window.folder.absolute()),
        "TRACEKIT_MARKERS": markers,
    }
    return variables | ({"TRACEKIT_HOOK_COPIES": "1"} if copies else {})


def _known(kind: str, names: Iterable[str], known: Mapping[str, object]) -> list[str]:
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known) or 'none'}"
            kinds = {"hook": "hooks", "patch": "patches"}[kind]
            raise BadInput(name, f"is not a {kind}", f"{hint} See `tracekit list {kinds}`")
    return chosen
