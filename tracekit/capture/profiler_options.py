"""The options of a profiler, `--profiler-option NAME=VALUE`."""

import difflib
from collections.abc import Iterable, Mapping

from tracekit.errors import BadInput


def refuse_unknown(options: Mapping[str, str], known: Iterable[str], profiler: str) -> None:
    """Refuse a name that a profiler does not know.

    Raises:
        BadInput: Says which names it does know.
    """
    names = sorted(known)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It knows {', '.join(names)}"
            raise BadInput(name, f"is not an option of {profiler}", hint)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return an option's length of time.

    Raises:
        BadInput: It is no number above 0.
    """
    given = options.get(name)
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{name}={given}", "is no length of time", f"Write seconds: {name}=30")
    return value


def choice(options: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return an option that has a few values.

    Raises:
        BadInput: It has another value.
    """
    value = options.get(name, default)
    if value not in allowed:
        raise BadInput(f"{name}={value}", "is not known", f"Write one of {', '.join(allowed)}")
    return value
