"""What a capture tells of itself while it runs: which stage, how far, and what went less well."""

from typing import Protocol


class Observer(Protocol):
    """Who is told; the command line draws it."""

    def stage(self, name: str, /) -> None:
        """Say that a stage begins."""

    def at(self, what: str, /) -> None:
        """Say how far the stage is, in words; often, so it is cheap."""

    def note(self, text: str, /) -> None:
        """Say what the user should know and the capture goes on in spite of."""
