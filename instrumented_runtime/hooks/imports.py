"""Run a function once a module has been imported, before whoever imported it goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every process pays for an import here
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

Callback = Callable[[ModuleType], object]


class WhenImported:
    """Called with a module's name and a function, runs the function when that module is there.

    At once if it is imported already. Otherwise right after its code has run: names that the
    importing module then takes out of it are those the function left there. After a reload the
    function runs again.
    """

    def __init__(self, problem: Callable[[str], None]) -> None:
        """Report what goes wrong to `problem`; nothing of it reaches the importing module."""
        self._problem = problem
        self._callbacks: dict[str, list[Callback]] = {}
        self._finding: set[tuple[int, str]] = set()

    def __call__(self, name: str, callback: Callback) -> None:
        self._callbacks.setdefault(name, []).append(callback)
        module = sys.modules.get(name)
        if module is not None and not _is_initializing(module):
            self._run(callback, module)

    def install(self) -> None:
        """Come before all other finders, which still do the finding."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the next finder finds, its loader extended, for modules waited for."""
        # Threads look for one module at once: only one of them imports it.
        here = (threading.get_ident(), fullname)
        if fullname not in self._callbacks or here in self._finding:
            return None
        self._finding.add(here)
        try:
            spec = self._found(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._extend(spec.loader)
            return spec
        finally:
            self._finding.discard(here)

    def _found(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _extend(self, loader: Loader) -> None:
        # On the instance, so that the loader stays what it is to those who ask it for source or
        # data. Some loaders are shared by modules, hence the look at the module's name.
        original: Callable[[ModuleType], Any] = loader.exec_module
        if getattr(original, "_tracekit", False):
            return

        def exec_module(module: ModuleType) -> None:
            original(module)
            for callback in self._callbacks.get(module.__name__, ()):
                self._run(callback, module)

        exec_module._tracekit = True  # type: ignore[attr-defined]
        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError as problem:
            self._problem(f"modules of {type(loader).__name__} cannot be waited for: {problem}")

    def _run(self, callback: Callback, module: ModuleType) -> None:
        try:
            callback(module)
        except Exception as problem:
            self._problem(f"after the import of {module.__name__}: {problem!r}")


def _is_initializing(module: ModuleType) -> bool:
    # What a program has put in a module's place need not have a spec.
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
