"""Loads the patches as a server's hooks do: by file location, under another name."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "instrumented_runtime" / "patches"
NAME = "_tracekit_patches"


def patches():
    """Return the package of patches."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            NAME, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
        )
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


def install(*names, modules=None):
    """Install patches into what is imported; returns the last report of each, `(state, reason)`.

    Args:
        names: Of patches.
        modules: By name, in place of those that are imported.
    """
    imported = sys.modules if modules is None else modules
    reports = {}

    def when_imported(name, callback):
        if name in imported:
            callback(imported[name])

    def report(name, state, reason):
        reports[name] = (state, reason)

    patches().install(names, when_imported, report)
    return reports
