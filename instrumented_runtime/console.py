"""What the commands of this package print: data to stdout, the rest to stderr."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def say(text: str) -> None:
    """Write a line to stderr, if it can be: a server whose reader is gone still ends in order."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_lines(lines: Sequence[str]) -> bool:
    """Print lines; return whether anybody reads them.

    Raises:
        SystemExit: They cannot be written for another reason, such as a full disk; it is said.
    """
    try:
        sys.stdout.write("\n".join([*lines, ""]))
        sys.stdout.flush()
    except OSError as problem:
        # Else Python says so again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):
            return False
        say(f"the output cannot be written ({problem.strerror})")
        sys.exit(2)
    return True


def what_keeps_from_writing(file: Path) -> str:
    """Return why a new file cannot be written, before anything is done for it; empty if it can."""
    if file.exists() or file.is_symlink():
        return f"{file}: exists and is not overwritten; move it first"
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return f"{file.parent}: no folder that can be written to; make it first"
    return ""


def write_new(file: Path, text: str) -> bool:
    """Write a file that is not there yet, whole or not at all; return whether it is there."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            try:
                opened.write(text)
                opened.flush()
            except BaseException:
                file.unlink()
                raise
    except OSError as problem:
        say(f"{file}: cannot be written ({problem.strerror})")
        return False
    say(f"Wrote {file}")
    return True
