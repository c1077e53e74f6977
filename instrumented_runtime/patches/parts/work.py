"""Changes what is imported, and takes all of it back if a part of it fails."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

WhenImported = Callable[[str, Callable[[ModuleType], object]], object]
Say = Callable[[str, str], object]


class Work:
    """The changes of one patch in one process.

    Attributes:
        when_imported: Runs a function once a module is imported, at once if it is already.
        say: Reports a state (`applied`, `not-needed`, `refused`, `waiting`) and its reason.
    """

    def __init__(self, when_imported: WhenImported, say: Say) -> None:
        """Begin with nothing changed."""
        self.when_imported = when_imported
        self.say = say
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, attribute: str, make: Callable[[Any], Any]) -> None:
        """Put what `make` makes of an attribute in its place, where it is an attribute of its own.

        A method is taken from the class's dictionary, so that it stays what it is.
        """
        before = vars(owner)[attribute]
        after = make(before)
        self._set(owner, attribute, before, after)
        if isinstance(owner, ModuleType):
            package = owner.__name__.partition(".")[0]
            for other in _modules_of(package):
                # Imported by name from there before we came.
                if vars(other).get(attribute) is before:
                    self._set(other, attribute, before, after)

    def undo(self) -> None:
        """Take everything back, last first."""
        while self._replaced:
            owner, attribute, before = self._replaced.pop()
            setattr(owner, attribute, before)

    def _set(self, owner: Any, attribute: str, before: Any, after: Any) -> None:
        self._replaced.append((owner, attribute, before))
        setattr(owner, attribute, after)


def _modules_of(package: str) -> list[ModuleType]:
    inside = package + "."
    return [
        module
        for name, module in list(sys.modules.items())
        if (name == package or name.startswith(inside)) and isinstance(module, ModuleType)
    ]
