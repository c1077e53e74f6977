"""Ends an answer at the first stop string in it, however the text falls into chunks."""

from collections.abc import Sequence


class StopStrings:
    """Watches one answer."""

    def __init__(self, strings: Sequence[str] = ()) -> None:
        """Watch for strings, none of them empty."""
        self._strings = tuple(strings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Return what may be shown now, and whether the answer ends there.

        What could be the beginning of a stop string is held back until it is known.
        """
        if not self._strings:
            return text, False
        text = self._held + text
        whole = [one for one in self._strings if one in text]
        found = [(text.find(one) + len(one), text.find(one)) for one in whole]
        if found:
            self._held = ""
            # Of several the one that is complete first, as if the text came letter by letter.
            return text[: min(found)[1]], True
        shown = len(text) - max(_overlap(text, one) for one in self._strings)
        self._held = text[shown:]
        return text[:shown], False

    def rest(self) -> str:
        """Return what is held back, since no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text begin a stop string."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
