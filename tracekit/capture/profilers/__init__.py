"""The room of profilers: one module per profiler, each defining `PROFILER`.

A profiler says how to launch the command, opens and closes the profiled window, and knows when what
a process writes is complete. The life cycle around it is `capture.lifecycle`'s.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from tracekit.capture.hooks.window import Window
from tracekit.registry import load_room

MarkerBackend = Literal["roctx", "nvtx", "record_function", "off"]


class Server(Protocol):
    """What a profiler may know of the server that runs."""

    @property
    def pid(self) -> int:
        """Of the process that was launched."""

    @property
    def base_url(self) -> str | None:
        """Where it answers, `http://127.0.0.1:30000`; None if it is no HTTP server."""

    def pids(self) -> Set[int]:
        """Return its living processes: the launched one and all it started, however indirectly."""

    def gpu_pids(self) -> Set[int]:
        """Return those of them that hold a GPU device."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a capture asks of a profiler.

    Attributes:
        command: What the user wants to run, as argument vector.
        environment: What it will run in, before the profiler's own.
        raw: Folder for trace files; exists and is empty.
        has_window: Whether the window opens after warm-up; else the whole run is profiled.
        options: Of the user, by name, for this profiler (`--profiler-option NAME=VALUE`).
        window: Of the hooks that run in every process; the session opens and closes it. None if no
            hook can run.
        headers: Of every request to the server, as the load sends them; they may hold keys.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    raw: Path
    has_window: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    window: Window | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Session(Protocol):
    """One use of a profiler, from before the launch to complete files."""

    @property
    def command(self) -> tuple[str, ...]:
        """What to launch in place of the user's command."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables to add to the environment of the server."""

    @property
    def hooks(self) -> tuple[str, ...]:
        """Hooks of `instrumented_runtime` that it needs in every process."""

    @property
    def records_instead(self) -> str | None:
        """What it records whenever the window is open, in words; None if it keeps to the window."""

    @property
    def needs_http(self) -> bool:
        """Whether it opens its window over HTTP, so that even a whole run waits for the server."""

    def open_window(self, server: Server) -> None:
        """Begin to profile; returns when every process that will write has begun.

        Raises:
            TracekitError: It cannot; says why and what to do.
        """

    def close_window(self, server: Server) -> None:
        """End the window; where files are written now, return when they are complete.

        Raises:
            TracekitError: They do not come; says where to look.
        """

    def written(self) -> Mapping[int, tuple[Path, ...]]:
        """Return complete trace files by the process that wrote them."""

    def has_begun(self) -> Set[int]:
        """Return the processes that have written anything, complete or not."""

    def rescue(self) -> list[str]:
        """Make readable what processes that died left behind; return what was done, in words."""


@dataclass(frozen=True, slots=True)
class Profiler:
    """One profiler.

    Attributes:
        name: The user's name of it.
        summary: One line for `tracekit list profilers`.
        fits: Whether `auto` should take it for a command, and how gladly: the highest wins, 0 is
            never taken.
        markers: Where hooks write markers so that this profiler records them.
        start: Checks that it can be used here and returns its session.
            Raises `TracekitError` with what to install or change.
    """

    name: str
    summary: str
    fits: Callable[[Asked], int]
    markers: MarkerBackend
    start: Callable[[Asked], Session]


@cache
def profilers() -> dict[str, Profiler]:
    """Return all profilers by name."""
    return load_room(__name__, "PROFILER", Profiler)
