"""The record of one capture, `capture.json`: what ran, where, and how it was observed.

Each field has a class, by which two runs are compared: what names a run's program, what a second
run of the same program differs in, and what must be equal lest the comparison be of two machines.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from tracekit.errors import BadInput, os_problem

Word = str | int | float | bool | None


class FieldClass(StrEnum):
    """What a difference of a field between two runs means.

    `identity`: which program ran; what an experiment changes. `differs`: every run has its own.
    `must-match`: a difference spoils the comparison.
    """

    IDENTITY = "identity"
    DIFFERS = "differs"
    MUST_MATCH = "must-match"


class GitState(msgspec.Struct, forbid_unknown_fields=True):
    """The working folder's repository."""

    commit: str | None
    branch: str | None
    is_dirty: bool


class Gpu(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One GPU of the machine, or the device that a server says it models."""

    name: str
    arch: str | None = None
    source: str = ""


class Host(msgspec.Struct, forbid_unknown_fields=True):
    """The machine."""

    node: str
    system: str
    num_cpus: int | None
    gpu_driver: str | None = None
    rocm: str | None = None


class ProfiledWindow(msgspec.Struct, forbid_unknown_fields=True):
    """When the profiler recorded, by the machine's clock, and how that was arranged."""

    opened_ns: int | None = None
    closed_ns: int | None = None
    how: str = "whole run"


class WhatRan(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What ran; every text in it has gone through a `Redactor`.

    Attributes:
        run_id: Unique.
        tracekit: Version that captured.
        stage: The last stage of the capture that began.
        outcome: `running`, `complete`, `interrupted`, `server-died` or another word for its end.
        problem: Why it ended early, in a sentence; None if it did not.
        start_ns: When the capture began, in nanoseconds since 1970.
        end_ns: When it had ended.
        folder: Where the command ran.
        command: Argument vector as the user gave it.
        environment: Variables on the allow-list.
        versions: Of the server's interpreter and packages, by name.
        versions_from: Who said so: its interpreter, or reports from inside its processes.
        git: State of `folder`.
        host: The machine.
        gpus: Its GPUs.
        clock: Whose time the client's figures are in: wall or virtual.
        server: What the server says of itself, what no load changes.
        load: The load as given, or the command that drove it.
        probe: Result of `python -m instrumented_runtime.probe`, as given.
        profiler: Its name.
        profiler_options: Its options.
        window: When it recorded.
        hooks: Hooks that were asked for.
        patches: Patches that were asked for.
        reports: What hooks and patches found in each process, by pid.
        traced_cycle_ns: Cycle while the profiler recorded.
        untraced_cycle_ns: Cycle of the same load while it did not.
        notes: What went otherwise than planned.
    """

    run_id: str
    tracekit: str
    stage: str = ""
    outcome: str = "running"
    problem: str | None = None
    start_ns: int
    end_ns: int | None = None
    folder: str
    command: list[str]
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    versions_from: str = "unknown"
    git: GitState | None = None
    host: Host | None = None
    gpus: list[Gpu] = []
    clock: str | None = None
    server: dict[str, Word] = {}
    load: dict[str, object] = {}
    probe: dict[str, object] | None = None
    profiler: str | None = None
    profiler_options: dict[str, str] = {}
    window: ProfiledWindow | None = None
    hooks: list[str] = []
    patches: list[str] = []
    reports: dict[str, dict[str, object]] = {}
    traced_cycle_ns: float | None = None
    untraced_cycle_ns: float | None = None
    notes: list[str] = []


_I, _D, _M = FieldClass.IDENTITY, FieldClass.DIFFERS, FieldClass.MUST_MATCH
CLASSES = {
    "run_id": _D,
    "tracekit": _M,
    "stage": _D,
    "outcome": _M,
    "problem": _D,
    "start_ns": _D,
    "end_ns": _D,
    "folder": _D,
    "command": _I,
    "environment": _I,
    "versions": _I,
    "versions_from": _D,
    "git": _I,
    "host": _M,
    "gpus": _M,
    "clock": _M,
    "server": _I,
    "load": _M,
    "probe": _D,
    "profiler": _M,
    "profiler_options": _M,
    "window": _D,
    "hooks": _M,
    "patches": _I,
    "reports": _D,
    "traced_cycle_ns": _D,
    "untraced_cycle_ns": _D,
    "notes": _D,
}


def differences(base: WhatRan, head: WhatRan) -> dict[FieldClass, list[str]]:
    """Return the names of fields in which two runs differ, by class.

    In virtual time the machine does not matter: it may differ.
    """
    found: dict[FieldClass, list[str]] = {kind: [] for kind in FieldClass}
    is_virtual = base.clock == head.clock == "virtual"
    for name, kind in CLASSES.items():
        if getattr(base, name) != getattr(head, name):
            found[FieldClass.DIFFERS if is_virtual and name == "host" else kind].append(name)
    return found


def read_what_ran(path: Path) -> WhatRan:
    """Return the record in a file.

    Raises:
        BadInput: It cannot be read or is none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=WhatRan)
    except OSError as error:
        problem = os_problem(error)
        raise BadInput(path, f"cannot be read: {problem}", "Name a run of tracekit capture") from (
            error
        )
    except msgspec.DecodeError as error:
        remedy = "Use the tracekit that wrote it"
        raise BadInput(path, f"is no record of a capture ({error})", remedy) from error
