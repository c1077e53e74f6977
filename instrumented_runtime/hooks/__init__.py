"""Hooks for a server that is not ours: markers in its trace, from outside, in every process.

A standard-library-only package that `path/sitecustomize.py` loads by its file, under the name
`_tracekit_hooks`; so modules in it import each other relatively and nothing else of this project.
One module per hook, each with a list of targets and one constant, `HOOK`. `docs/hooks.md` says what
they do, `hooks_and_patches.toml` lists them.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .imports import WhenImported
from .process import Process
from .targets import Hook, attach

__all__ = ["install"]


def install(environment: Mapping[str, str]) -> Process:
    """Install the hooks and patches that the environment names; what fails is reported."""
    process = Process(environment)
    when_imported = WhenImported(process.report.problem)
    # Patches first: a hook then wraps what a patch has put in place.
    _install_patches(_names(environment, "TRACEKIT_PATCHES"), process, when_imported)
    for name in _names(environment, "TRACEKIT_HOOKS"):
        try:
            module = importlib.import_module(f".{name}", __name__)
            hook: Hook = module.HOOK
            attach(hook, process, when_imported)
        except Exception as problem:
            process.report.problem(f"hook {name}: {problem!r}")
    when_imported.install()
    return process


def _names(environment: Mapping[str, str], variable: str) -> list[str]:
    return [name.strip() for name in environment.get(variable, "").split(",") if name.strip()]


def _install_patches(names: list[str], process: Process, when_imported: WhenImported) -> None:
    if not names:
        return
    try:
        patches = _package_beside("patches", "_tracekit_patches")
        install: Callable[..., None] = patches.install
        install(names, when_imported, process.patch)
    except Exception as problem:
        process.report.problem(f"patches: {problem!r}")


def _package_beside(folder_name: str, name: str) -> ModuleType:
    folder = Path(__file__).resolve().parent.parent / folder_name
    spec = spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} holds no package")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
