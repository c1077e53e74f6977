"""Markers as hooks write them: the project's one grammar and its one set of backends.

Both are loaded by their file, when the first marker is written: most processes of a server write
none.
"""

import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

_LOADED: dict[str, ModuleType] = {}


class Markers:
    """Writes markers to a backend; what a backend raises is reported once and ends them all."""

    def __init__(self, backend_name: str, problem: Callable[[str], None]) -> None:
        """Write to the backend of this name, `off` for none."""
        self._name, self._problem = backend_name, problem
        self._is_off = backend_name == "off"
        self._backend: Any = None
        self._started: list[Any] = []
        self._threads = threading.local()

    @property
    def depth(self) -> int:
        """How many ranges this thread has open."""
        return getattr(self._threads, "depth", 0)

    def push(self, text: str) -> bool:
        """Begin a range on this thread; return whether there is one to end."""
        if self._backend is None and not self._start():
            return False
        try:
            self._backend.push(text)
        except Exception as problem:
            self._give_up(problem)
            return False
        self._threads.depth = self.depth + 1
        return True

    def pop(self) -> None:
        """End this thread's last range."""
        self._threads.depth -= 1
        try:
            self._backend.pop()
        except Exception as problem:
            self._give_up(problem)

    def mark(self, text: str) -> None:
        """Write an instant."""
        if self._backend is not None or self._start():
            try:
                self._backend.mark(text)
            except Exception as problem:
                self._give_up(problem)

    def say(self, verb: str, subject: int, **values: object) -> None:
        """Write a statement of the grammar as an instant; a value that is None is left out."""
        if not self._is_off:
            self.mark(statement(verb, subject, **values))

    def _start(self) -> bool:
        # A marker is no reason to import torch, which takes seconds: without it none listens.
        if self._is_off or (self._name == "record_function" and "torch" not in sys.modules):
            return False
        try:
            # Likewise: a range ends in the backend that it began in.
            self._started.append(beside("backends").backend_named(self._name))
            self._backend = self._started[0]
        except Exception as problem:
            self._give_up(problem)
            return False
        self._is_off = self._backend is None
        return not self._is_off

    def _give_up(self, problem: Exception) -> None:
        self._is_off = True
        self._backend = _Nowhere()
        self._problem(f"no more markers: {problem!r}")


class _Nowhere:
    def push(self, text: str) -> None:
        """Drop it."""

    def pop(self) -> None:
        """Drop it."""

    def mark(self, text: str) -> None:
        """Drop it."""


@lru_cache(maxsize=4096)
def statement(verb: str, subject: int, **values: object) -> str:
    """Return the text of a statement; a value that is None or empty is left out."""
    grammar = beside("grammar")
    present = {
        key: grammar.clean(value) if key in ("name", "kind") else value
        for key, value in values.items()
        if value is not None and value != ""
    }
    text: str = grammar.write(grammar.Statement(verb, subject, present))
    return text


def beside(name: str) -> ModuleType:
    """Return a module of the package `marks`, which needs the standard library alone."""
    loaded = _LOADED.get(name)
    if loaded is not None:
        return loaded
    path = Path(__file__).resolve().parent.parent / "marks" / f"{name}.py"
    spec = spec_from_file_location(f"_tracekit_marks_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    # Of threads that come together the first that is done counts: none sees half a module, and
    # there is no lock that a fork could leave locked.
    return _LOADED.setdefault(name, module)
