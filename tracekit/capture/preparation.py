"""Everything before the launch: profiler, hooks, and the environment of the server.

What can be refused is refused here, before a model is loaded for half an hour.
"""

import difflib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.capture.hooks.injection import default_hooks, environment_of
from tracekit.capture.hooks.window import Window
from tracekit.capture.load.request_plan import planned
from tracekit.capture.profilers import Asked, Profiler, Session, profilers
from tracekit.capture.run_directory import RunDirectory
from tracekit.capture.server_kinds import OTHER, VLLM, kind_of
from tracekit.capture.stages import Observer
from tracekit.capture.wanted import Wanted
from tracekit.errors import BadInput, TracekitError

_WRITES_MARKERS = re.compile(r"instrumented_runtime(\.\w+)*")  # behind `python -m`


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is launched, and with what.

    Attributes:
        profiler: The chosen one.
        session: Its session.
        environment: The whole environment of the server.
        hooks: Names of hooks in it.
        window: Where hooks and capture meet; None without any.
    """

    profiler: Profiler
    session: Session
    environment: dict[str, str]
    hooks: tuple[str, ...]
    window: Window | None


def prepare(wanted: Wanted, run: RunDirectory, observer: Observer) -> Prepared:
    """Choose the profiler and compose the environment.

    Raises:
        TracekitError: The command is not there, the load cannot be made, a name is not known, or
            the profiler cannot run.
    """
    _refuse_absent(wanted)
    if wanted.load is not None:
        planned(wanted.load, "traced")  # raises if its prompts cannot all differ
    environment = _quiet(dict(wanted.environment))
    # A start script may start any server; what only vLLM reads does no harm to others.
    if kind_of(wanted.command) in (VLLM, OTHER):
        environment = {**VLLM.environment, **environment}
    asked = Asked(
        command=wanted.command,
        environment=environment,
        raw=run.raw,
        has_window=wanted.has_window,
        options=wanted.profiler_options,
        headers=wanted.load.headers if wanted.load else {},
    )
    profiler = _chosen(wanted.profiler, asked)
    hooks = _hooks(wanted, profiler, observer)
    window = None if hooks is None else Window(run.hooks, is_open=not wanted.has_window)
    session = profiler.start(replace(asked, window=window))
    environment |= session.environment
    names = tuple(dict.fromkeys((*(hooks or ()), *session.hooks)))
    if window is not None and (names or wanted.patches):
        environment |= environment_of(
            window,
            hooks=names,
            patches=wanted.patches,
            markers=profiler.markers,
            copies=wanted.has_copies,
            environment=environment,
        )
    elif profiler.markers != "off" and _writes_markers(wanted):
        environment.setdefault("TRACEKIT_MARKERS", profiler.markers)
    return Prepared(profiler, session, environment, names, window)


def _refuse_absent(wanted: Wanted) -> None:
    program = wanted.command[0]
    if shutil.which(program, path=wanted.environment.get("PATH")) is None:
        problem = "is not an executable" if Path(program).exists() else "is not found"
        raise BadInput(program, problem, "Check the command after --")


def _quiet(environment: dict[str, str]) -> dict[str, str]:
    """Let Python servers print as they go: else the lines before a crash die in a buffer."""
    environment.setdefault("PYTHONUNBUFFERED", "1")
    return environment


def _chosen(name: str, asked: Asked) -> Profiler:
    known = profilers()
    if name == "auto":
        best = max(known.values(), key=lambda profiler: profiler.fits(asked))
        if best.fits(asked) > 0:
            return best
        raise BadInput("auto", "no profiler fits this command", f"Choose one of {', '.join(known)}")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}"
        raise BadInput(name, "is not a profiler", hint)
    return known[name]


def _hooks(wanted: Wanted, profiler: Profiler, observer: Observer) -> tuple[str, ...] | None:
    """Return the hooks to run, perhaps none but the profiler's own; None if no hook can run.

    Default hooks are a convenience: where `instrumented_runtime` is absent there are none. Of a
    profiler that records no markers they would cost and say nothing. What writes markers itself
    would say all twice, and a record said twice has one call only: the other looks lost.
    """
    if wanted.hooks is not None:
        return wanted.hooks if wanted.hooks or wanted.patches else None
    if profiler.markers == "off":
        return () if wanted.patches else None
    if _writes_markers(wanted):
        return ()
    try:
        return default_hooks()
    except TracekitError as error:
        if wanted.patches:
            raise
        observer.note(f"No hooks: {error}")
        return None


def _writes_markers(wanted: Wanted) -> bool:
    return any(_WRITES_MARKERS.fullmatch(word) for word in wanted.command)
