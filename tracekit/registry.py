"""A plug-in room is a package whose every module defines one typed constant; this finds them."""

import importlib
import pkgutil
from typing import Protocol, TypeVar


class Named(Protocol):
    """What every plug-in constant has."""

    @property
    def name(self) -> str:
        """The user's name of the plug-in, kebab-case."""


P = TypeVar("P", bound=Named)


def load_room(package: str, constant: str, kind: type[P]) -> dict[str, P]:
    """Return the plug-ins of a room by name, in alphabetical order.

    Args:
        package: Dotted name of the room, for example `tracekit.formats`.
        constant: Name of the constant that each module of the room must define.
        kind: Type that the constant must have.

    Raises:
        RuntimeError: A module lacks the constant, or two plug-ins claim one name. This is a defect
            of the plug-in, so it is raised at once and is not a `TracekitError`.
    """
    room = importlib.import_module(package)
    found: dict[str, P] = {}
    for entry in sorted(pkgutil.iter_modules(room.__path__), key=lambda module: module.name):
        module = importlib.import_module(f"{package}.{entry.name}")
        plugin = getattr(module, constant, None)
        if not isinstance(plugin, kind):
            raise RuntimeError(  # noqa: TRY004  one exception for every defect of a plug-in
                f"{module.__name__} must define {constant}: {kind.__name__}"
            )
        if plugin.name in found:
            raise RuntimeError(f"{module.__name__}: the name {plugin.name!r} is taken")
        found[plugin.name] = plugin
    return found
