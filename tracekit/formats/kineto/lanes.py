"""Decoding on several cores: worker processes and this one share the chunks of a large file.

Plain subprocesses rather than `multiprocessing`, which imports the caller's `__main__` again: that
runs an unguarded script twice and reloads a whole command line.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from tracekit.formats.kineto.chunk import Chunk, Span, decode
from tracekit.formats.kineto.columns import Decoded

_SERVE = "from tracekit.formats.kineto.worker import serve; serve()"
_MOST_WORKERS = 8
_PIPE_BYTES = 1 << 20


def workers_for(size_bytes: int, worth_bytes: int, *, is_stream: bool) -> int:
    """Return how many worker processes to decode a file with, 0 for none.

    Args:
        size_bytes: Decompressed size.
        worth_bytes: Size from which it is worth starting a process.
        is_stream: This process is busy decompressing, so that every core gets a worker.
    """
    cores = os.cpu_count() or 1
    if size_bytes < worth_bytes or cores < 2:
        return 0
    return min(cores if is_stream else cores - 1, _MOST_WORKERS)


def decoded(chunks: Iterable[Chunk], workers: int) -> Iterator[tuple[Chunk, Decoded]]:
    """Yield each chunk and its columns, in order.

    Chunks that are read from the file by whoever decodes them (`Span`) are decoded here too while
    all workers are busy, and while they still start; chunks that hold their text wait for a worker.

    Args:
        chunks: Events of one file, cut at event boundaries.
        workers: Worker processes; 0 decodes here alone.
    """
    started: list[_Worker] = []
    try:
        with contextlib.suppress(OSError):  # a machine out of processes: fewer, or none
            while len(started) < workers:
                started.append(_Worker())
        yield from _in_order(chunks, started)
    finally:
        for worker in started:
            worker.end()


def _in_order(chunks: Iterable[Chunk], workers: list["_Worker"]) -> Iterator[tuple[Chunk, Decoded]]:
    flying: deque[tuple[Chunk, _Worker | Decoded]] = deque()
    for chunk in chunks:
        free = min(workers, key=_Worker.load, default=None)
        while free and not free.can_take(chunk) and isinstance(chunk, bytes):
            yield _landed(flying)
            free = min(workers, key=_Worker.load)
        if free and free.can_take(chunk):
            free.send(chunk)
            flying.append((chunk, free))
        else:
            flying.append((chunk, decode(chunk)))
        while flying and _has_landed(flying[0][1]):
            yield _landed(flying)
    while flying:
        yield _landed(flying)


def _has_landed(answer: "_Worker | Decoded") -> bool:
    return isinstance(answer, Decoded) or answer.has_answer()


def _landed(flying: "deque[tuple[Chunk, _Worker | Decoded]]") -> tuple[Chunk, Decoded]:
    chunk, answer = flying.popleft()
    return chunk, answer if isinstance(answer, Decoded) else answer.answer(chunk)


class _Worker:
    """A process that decodes in the order it is sent; one that dies costs speed, not the result."""

    def __init__(self) -> None:
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "POLARS_MAX_THREADS": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._chunks = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        self._answers = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        self._process.stdin.close()
        self._process.stdout.close()
        self._unanswered = 0
        # An answer that fits the pipe lets the worker go on while this process decodes.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._answers.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def load(self) -> int:
        return self._unanswered

    def can_take(self, chunk: Chunk) -> bool:
        """A span fits the pipe ahead of time; a text sent early would block against an answer."""
        return self._unanswered < (2 if isinstance(chunk, Span) else 1)

    def send(self, chunk: Chunk) -> None:
        self._unanswered += 1
        with contextlib.suppress(OSError):
            self._chunks.send(chunk)

    def has_answer(self) -> bool:
        with contextlib.suppress(OSError):
            return self._answers.poll()
        return True

    def answer(self, chunk: Chunk) -> Decoded:
        self._unanswered -= 1
        try:
            answer: Decoded = self._answers.recv()
        except (EOFError, OSError):
            return decode(chunk)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._chunks.close()
        self._answers.close()
