"""What a user can cause, as exceptions that carry one clear sentence and what to do.

- `TracekitError`: base; the command line turns it into its message and `exit_code`
  - `BadInput`: a file or argument cannot be used; the answer would be wrong or missing
  - `UnreadableTrace`: a trace file is damaged, foreign or not supported
  - `OutputExists`: the output path is taken and `--force` was not given
"""

from pathlib import Path


class TracekitError(Exception):
    """A problem the user can act on: `where: problem`, then what to do."""

    exit_code = 2

    def __init__(self, where: str | Path, problem: str, remedy: str) -> None:
        self.where = str(where)
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{where}: {problem}. {remedy}")


class BadInput(TracekitError):
    """An argument is wrong: unknown name, malformed window, nothing to do."""


class UnreadableTrace(TracekitError):
    """A path holds no trace that can be read without giving a wrong answer."""


class OutputExists(TracekitError):
    """Nothing is overwritten unless the user says so."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(
            path, "exists already", "Choose another path, or add --force to replace it"
        )


def os_problem(error: OSError) -> str:
    """Return what the system says of an error, as the middle of a sentence."""
    return (error.strerror or str(error)).lower()
