"""The room of analyses: one module (or package) per analysis, each defining `ANALYSIS`.

An analysis is a pure function of frames. Its parameter names are the tables it needs, so its
signature is its dependencies: any canonical table, and `windows` (the time that shares refer to).
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from tracekit.findings import Finding
from tracekit.registry import load_room
from tracekit.tables import Table
from tracekit.tables.notes import Note

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Against:
    """How an analysis takes from a second trace what the first lacks.

    Attributes:
        profile: Frames of one trace by table name → all that is compared of it.
        result: Profile of the trace, profile of the other → the result, of the declared table.
    """

    profile: Callable[..., Any]
    result: Callable[[Any, Any], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis.

    Attributes:
        name: The user's name of it (`idle-gaps`).
        question: The question it answers, one line.
        table: The table it returns.
        compute: Frames by table name → the result. Empty in, empty out.
        needs: Tables that must have rows; without them the analysis is skipped, and says so.
        findings: Result → findings; none when nothing is wrong.
        caveats: Frames by table name, and `result` → what the result cannot tell on this trace.
        against: What to do instead of `compute` when a second trace is given; None if nothing.
    """

    name: str
    question: str
    table: Table
    compute: Callable[..., pl.DataFrame]
    needs: tuple[str, ...] = ("ops",)
    findings: Callable[[pl.DataFrame], list[Finding]] | None = None
    caveats: Callable[..., list[Note]] | None = None
    against: Against | None = None


@cache
def analyses() -> dict[str, Analysis]:
    """Return all analyses by name."""
    return load_room(__name__, "ANALYSIS", Analysis)


def code_of_results() -> list[Path]:
    """Return the files of the code that makes results from tables."""
    root = Path(__file__).parents[1]
    rooms = ("analyses", "idle_time", "intervals", "ordering", "tables")
    files = [file for room in rooms for file in (root / room).rglob("*.py")]
    modules = (
        "api_calls",
        "bootstrap",
        "call_numbers",
        "cycles",
        "lost_calls",
        "remembered",
        "units",
        "windows",
    )
    return sorted([*files, *(root / f"{name}.py" for name in modules)])


@cache
def fingerprint() -> str:
    """Return a hash of the code that makes results; stored results of other code do not count."""
    digest = hashlib.sha256()
    for file in code_of_results():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def tables_of(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the tables a function depends on: its parameters."""
    return tuple(inspect.signature(function).parameters)


def call_with_tables(function: Callable[..., T], frames: Mapping[str, pl.DataFrame]) -> T:
    """Call a function with the tables its parameters name."""
    return function(**{name: frames[name] for name in tables_of(function)})
