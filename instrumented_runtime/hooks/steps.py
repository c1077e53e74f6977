"""Ranges `tk1 step N …`: from one launch of a batch to the thread's next, or around one call."""

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from .markers import statement
from .process import Process
from .targets import Function, Maker

# What is said of a step, from the arguments of the call that launches it.
Describe = Callable[[Process, tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]


class Steps:
    """The steps of one process; one is open at a time on a thread."""

    def __init__(self) -> None:
        """No step is open, and the first is number 1."""
        self._numbers = count(1)
        self._threads = threading.local()

    def begin(self, process: Process, values: Mapping[str, Any]) -> bool:
        """End this thread's step and begin its next; return whether it can outlast the call.

        It cannot inside another range, which would have to end first.
        """
        self.end(process)
        depth = process.markers.depth
        if process.markers.push(self._text(process, values)):
            self._threads.depths = (*self._depths, depth + 1)
        return depth == 0

    def end(self, process: Process) -> None:
        """End this thread's step, if one is open and no range in it still is."""
        depths = self._depths
        if depths and depths[-1] == process.markers.depth:
            self._threads.depths = depths[:-1]
            process.markers.pop()

    @property
    def _depths(self) -> tuple[int, ...]:
        """How deep this thread's open steps lie: more than one where one began within a range."""
        depths: tuple[int, ...] = getattr(self._threads, "depths", ())
        return depths

    def _text(self, process: Process, values: Mapping[str, Any]) -> str:
        number = next(self._numbers)
        try:
            return statement("step", number, **values)
        except Exception as problem:
            process.report.problem(f"step: {problem!r}")
            return statement("step", number)


def step(steps: Steps, describe: Describe, *, lasts: bool) -> Maker:
    """Return what turns the call that launches a batch into a step.

    Args:
        steps: Of the process.
        describe: What to say of a step; what it raises is reported, and less is said.
        lasts: Whether a step goes on until the thread's next or until `ending`, so that it holds
            all that the host does in a cycle; else it is the call.
    """

    def make(process: Process, function: Function, text: str) -> Function:
        gate, push, pop = process.gate, process.markers.push, process.markers.pop

        def call(*args: Any, **kwargs: Any) -> Any:
            if not gate[0]:
                steps.end(process)  # one left open by the last window, which no other may hold
                return function(*args, **kwargs)
            goes_on = False
            try:
                values = describe(process, args, kwargs)
            except Exception as problem:
                process.report.problem(f"{text}: {problem!r}")
                values = {}
            try:
                goes_on = steps.begin(process, values) and lasts
            except Exception as problem:
                process.report.problem(f"{text}: {problem!r}")
            pushed = push(text)
            try:
                return function(*args, **kwargs)
            finally:
                if pushed:
                    pop()
                if not goes_on:
                    steps.end(process)

        return call

    return make


def ending(steps: Steps) -> Maker:
    """Return what makes a function that runs when there is nothing to do end the step."""

    def make(process: Process, function: Function, _text: str) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            steps.end(process)
            return function(*args, **kwargs)

        return call

    return make
