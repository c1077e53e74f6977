"""Where one event ends and the next begins, in bytes that have not been decoded."""

import re

# What an array of events may hold besides objects: a number, a word, a string, a flat array.
NO_OBJECT = rb'(?>[-+\w.]+|"(?:[^"\\]|\\.)*"|\[[^][{}"]*\])'
_FIRST_KEY = re.compile(
    rb"\[\s*(?:(?:\{\s*\}|" + NO_OBJECT + rb')\s*,\s*)*\{\s*"((?:[^"\\]|\\.)*)"\s*:'
)


def first_key(array: bytes) -> bytes | None:
    """Return the key that the first event of a JSON array begins with, None if there is none."""
    match = _FIRST_KEY.match(array)
    return match[1] if match else None


def separator_before(key: bytes) -> re.Pattern[bytes]:
    """Return what separates an event from a next one that begins with `key`.

    In valid JSON it never matches inside a string: the key's own quote would end the string.
    It may match between two objects nested in an event; then neither side decodes.
    """
    return re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"' + re.escape(key) + rb'"\s*:)')
