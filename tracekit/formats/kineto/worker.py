"""The other end of a lane: a process that decodes the chunks it is sent until its input closes."""

import contextlib
import gc
import os
import signal
from multiprocessing.connection import Connection

from tracekit.formats.kineto.chunk import decode


def serve() -> None:
    """Answer each chunk on standard input with its pickled `Decoded` on standard output."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the parent ends us
    gc.disable()  # decoded events hold no cycles, and a collection walks all of them
    source = Connection(os.dup(0), writable=False)
    sink = Connection(os.dup(1), readable=False)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            sink.send(decode(source.recv()))
