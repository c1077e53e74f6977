"""What every configuration says of a value or an option that it does not take."""

import difflib
from collections.abc import Iterable, Sequence


def require(is_allowed: bool, name: str, value: object, allowed: str) -> None:
    """Refuse a value that is not allowed.

    Raises:
        ValueError: Names the field, its value and what is allowed.
    """
    if not is_allowed:
        raise ValueError(f"{name}: {value!r} is not allowed; give {allowed}")


def refuse_unknown(given: Iterable[object], known: Sequence[str], what: str) -> None:
    """Refuse names that are not known; `what` they are names of.

    Raises:
        ValueError: Names the first, and the one that may have been meant.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"{name}: no such {what}; {hint}")
