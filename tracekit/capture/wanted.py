"""What a user wants captured."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.capture.load.file import Load
from tracekit.capture.processes import GPU_DEVICES
from tracekit.capture.readiness import Readiness
from tracekit.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One capture.

    Attributes:
        command: Argument vector of the server.
        directory: Run directory to make.
        environment: The whole environment of the server, before what profiler and hooks add.
        profiler: Its name, or `auto`.
        profiler_options: By name, for the profiler.
        readiness: How to tell that the server is ready.
        load: The built-in load; None is the small default one, where the server takes it.
        load_command: A shell command in its place.
        has_load: Whether there is a load at all.
        duration_s: End of the window without a load, and of a load command.
        has_window: Whether the window opens after warm-up; else the whole run is profiled.
        has_untraced: Whether the load runs once before the window opens, to tell what profiling
            costs.
        hooks: Names; None is the default ones where they can run.
        patches: Names, in the order of applying.
        has_copies: Whether hooks record tensor copies with their addresses.
        probe: What `python -m instrumented_runtime.probe --json` wrote.
        grace_s: In place of the graces of the server's kind.
        force: Whether to replace an earlier run.
        gpu_devices: Globs of the device files that a process with GPU work holds.
    """

    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    profiler: str = "auto"
    profiler_options: Mapping[str, str] = field(default_factory=dict)
    readiness: Readiness = field(default_factory=Readiness)
    load: Load | None = None
    load_command: str | None = None
    has_load: bool = True
    duration_s: float | None = None
    has_window: bool = True
    has_untraced: bool = True
    hooks: tuple[str, ...] | None = None
    patches: tuple[str, ...] = ()
    has_copies: bool = False
    probe: Path | None = None
    grace_s: float | None = None
    force: bool = False
    gpu_devices: tuple[str, ...] = GPU_DEVICES

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if not self.command:
            raise BadInput("tracekit capture", "no command given", "Put it behind --: -- CMD…")
        if self.load is not None and self.load_command is not None:
            raise BadInput("--load-cmd", "and --load were both given", "Choose one load")
        if not self.has_load and (self.load is not None or self.load_command is not None):
            raise BadInput("--no-load", "was given beside a load", "Leave one of them out")
        if self.load_command is not None and not self.load_command.strip():
            raise BadInput("--load-cmd", "is empty", "Use --no-load to drive none")
        self._check_times()
        if self.load is not None and self.duration_s is not None:
            remedy = "Set requests and bursts in the load file, or leave --load out"
            raise BadInput("--duration", "is not for the built-in load", remedy)

    def _check_times(self) -> None:
        times = {
            "--duration": self.duration_s,
            "--grace": self.grace_s,
            "--ready-timeout": self.readiness.timeout_s,
        }
        for option, value in times.items():
            if value is not None and math.isnan(value):
                raise BadInput(option, "is no number", "Give seconds")

    @property
    def words(self) -> list[str]:
        """The words of every command that was given: each may hold a secret."""
        shells = (self.load_command or "", self.readiness.command or "")
        return [*self.command, *(word for line in shells for word in _split(line))]

    @property
    def is_program(self) -> bool:
        """Whether the command may be a program that ends by itself rather than a server.

        Its whole run is profiled, and nothing is asked for that needs a server.
        """
        has_own_load = self.load is not None or self.load_command is not None
        return not self.has_window and not has_own_load and not self.readiness.is_given


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that nothing closes: the shell will say so
        return line.split()
