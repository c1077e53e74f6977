"""Holds a directory against a second capture into it."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from tracekit.errors import TracekitError

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class Hold:
    """A lock on a directory itself, so that no file tells of it and it ends with its process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def on(cls, path: Path, said: Path) -> Self:
        """Take a directory; it may be renamed meanwhile.

        Args:
            path: The directory.
            said: What the user calls it.

        Raises:
            TracekitError: Another capture has it, or has just put another in its place.
            OSError: It cannot be opened.
        """
        hold = cls(os.open(path, os.O_RDONLY))
        try:
            fcntl.flock(hold._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hold.release()
            raise in_use(said) from None
        except OSError:
            return hold  # a file system without locks: then nobody is kept away
        if not os.path.samestat(path.stat(), os.fstat(hold._descriptor)):
            hold.release()
            raise in_use(said)
        return hold

    def release(self) -> None:
        """Let it go; again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Let go with the capture, where nobody has said so."""
        self.release()


def in_use(path: Path) -> TracekitError:
    """Return the refusal of a directory into which another capture writes."""
    remedy = "Wait until it ends, or choose another place"
    return TracekitError(path, "another tracekit capture is writing it", remedy)


def is_taken(error: OSError) -> bool:
    """Return whether a rename failed since something has come into its place."""
    return error.errno in _TAKEN
