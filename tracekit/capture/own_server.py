"""Recognises the server that is shipped beside tracekit by its command line."""

import re
from collections.abc import Sequence

_SERVER = re.compile(r"\binstrumented_runtime\.server\b")
_ON_TORCH = re.compile(r"--device[ =]torch\b")


def is_own(command: Sequence[str]) -> bool:
    """Return whether a command starts it, also inside `bash -c`."""
    return _SERVER.search(" ".join(command)) is not None


def is_virtual(command: Sequence[str]) -> bool:
    """Return whether a command starts it on its virtual device, which computes nothing."""
    return is_own(command) and not _ON_TORCH.search(" ".join(command))
