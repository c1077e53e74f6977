"""Fixes for an installed SGLang or vLLM that lacks them, applied inside its processes.

The folder is loaded by file location, as package `_tracekit_patches`, by the hooks that run at the
start of every Python process of a server. It needs the standard library and torch only, and torch
only once the server has imported it. One module is one patch: it defines `PATCH`; `parts` holds
what patches are made of. A patch is for versions that read as the one it was made for: its check
reads the source of all that it will change before it changes anything, and any doubt is a refusal.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from .parts.source import Unfit
from .parts.work import WhenImported, Work

Report = Callable[[str, str, str], object]


@dataclass(frozen=True)
class Verdict:
    """What a check or an application found.

    Attributes:
        state: Of a check `needed`, `not-needed` or `refused`; of an application `applied`, or
            `waiting` where the rest is decided later, by `Work.say`.
        reason: One sentence.
    """

    state: Literal["needed", "not-needed", "refused", "applied", "waiting"]
    reason: str


@dataclass(frozen=True)
class Site:
    """One program, or part of it, that a patch changes as a whole.

    Attributes:
        modules: What has to be imported.
        check: Called at the first of them; reads source, changes nothing. May raise `Unfit`.
        apply: Called for each of them with its name and module; what it returns is reported,
            unless it is None, for it has said so itself. If it fails all is taken back.
        retreat: Called when it failed halfway, for what is not a replaced attribute.
    """

    modules: tuple[str, ...]
    check: Callable[[], Verdict]
    apply: Callable[[str, ModuleType, Work], Verdict | None]
    retreat: Callable[[], object] = bool


@dataclass(frozen=True)
class Patch:
    """One patch.

    Attributes:
        name: The user's name of it.
        package: What it changes.
        sites: Where; of different programs, each is on its own.
    """

    name: str
    package: str
    sites: tuple[Site, ...]


def install(names: Iterable[str], when_imported: WhenImported, report: Report) -> None:
    """Apply patches as soon as what they change is imported.

    Args:
        names: Of patches; one that does not exist is reported as refused.
        when_imported: Called with a module's name and a function, runs the function with the
            module when that is imported, before whoever imports it goes on.
        report: Called with name, state and reason, again when a state changes.
    """
    known = patch_names()
    for name in names:
        if name not in known:
            report(name, "refused", f"there is no such patch; there are {', '.join(known)}")
            continue
        try:
            patch = _patch(name)
        except Exception as problem:  # the other patches can do without it
            report(name, "refused", f"it cannot be loaded: {problem!r}")
            continue
        report(name, "waiting", f"{patch.package} is not imported in this process")
        for site in patch.sites:
            _Installation(patch.name, site, when_imported, report).begin()


def patch_names() -> list[str]:
    """Return the names of all patches: of the modules of this folder."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(f.stem.replace("_", "-") for f in files if f.stem != "__init__")


def _patch(name: str) -> Patch:
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    patch: Patch = module.PATCH
    return patch


class _Installation:
    """A site of a patch in this process."""

    def __init__(self, name: str, site: Site, when_imported: WhenImported, report: Report) -> None:
        self._name, self._site = name, site
        self._report = report
        self._when_imported = when_imported
        self._work = Work(when_imported, lambda state, reason: report(name, state, reason))
        self._verdict: Verdict | None = None
        self._arrived: list[str] = []

    def begin(self) -> None:
        for module in self._site.modules:
            self._when_imported(module, self._arrival(module))

    def _arrival(self, name: str) -> Callable[[ModuleType], None]:
        def arrived(module: ModuleType) -> None:
            # A module that is loaded anew has lost what was changed in it.
            if name not in self._arrived:
                self._arrived.append(name)
            # A patch may fail in ways nobody thought of; the server must not.
            try:
                self._go_on(name, module)
            except Unfit as unfit:
                self._give_up(str(unfit))
            except Exception as problem:
                self._give_up(f"it failed: {problem!r}")

        return arrived

    def _go_on(self, name: str, module: ModuleType) -> None:
        if self._verdict is None:
            self._verdict = self._site.check()
            if self._verdict.state != "needed":
                self._report(self._name, self._verdict.state, self._verdict.reason)
        if self._verdict.state != "needed":
            return
        done = self._site.apply(name, module, self._work)
        if done is None:
            return
        missing = [other for other in self._site.modules if other not in self._arrived]
        if missing and done.state == "applied":
            done = Verdict(
                "waiting", f"applied to {', '.join(self._arrived)}; waits for {', '.join(missing)}"
            )
        self._report(self._name, done.state, done.reason)

    def _give_up(self, reason: str) -> None:
        has_begun = self._verdict is not None and self._verdict.state == "needed"
        self._verdict = Verdict("refused", reason)
        self._work.undo()
        if has_begun:
            self._site.retreat()
        self._report(self._name, "refused", reason)
