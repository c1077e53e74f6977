"""What a capture tells on the terminal: printable, short, without secrets, and still coming."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tracekit.capture.redaction import Redactor
from tracekit.errors import TracekitError

_LONGEST = 300
_TOLD_EVERY_S = 1.0


def printable(line: str) -> str:
    """Return a foreign line as it may be shown: a terminal obeys control characters."""
    cut = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode()
        for one in cut
    )


@contextmanager
def without_secrets(
    words: Iterable[str | None], environment: Mapping[str, str]
) -> Iterator[Redactor]:
    """Take the secrets that were given out of any problem that leaves the context.

    Args:
        words: Of the command, and the other texts given that may hold a secret.
        environment: Of the server.
    """
    redactor = Redactor([word for word in words if word], environment)
    try:
        yield redactor
    except TracekitError as error:
        error.args = (redactor.known(str(error)),)
        raise


@contextmanager
def telling(at: Callable[[str], None], folder: Path) -> Iterator[None]:
    """Say every second how much lies in a folder, while something else waits for it to be written.

    Args:
        at: Is told; called on another thread.
        folder: Where the profiler writes.
    """
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(_TOLD_EVERY_S):
            # A file may be renamed between two looks; who is told may be gone.
            with suppress(OSError):
                files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
                at(f"waiting for the profiler: {len(files)} files, {sum(files) / 1e6:.1f} MB")

    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
