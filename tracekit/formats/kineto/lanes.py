"""Decoding on several cores: chunks go to worker processes, columns come back in file order.

Plain subprocesses rather than `multiprocessing`, which imports the caller's `__main__` again: that
runs an unguarded script twice and reloads a whole command line.
"""

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from tracekit.formats.kineto.chunk import Chunk, decode
from tracekit.formats.kineto.columns import Decoded

_SERVE = "from tracekit.formats.kineto.worker import serve; serve()"
_MOST_LANES = 8


def lanes_for(size_bytes: int, worth_bytes: int) -> int:
    """Return how many worker processes to decode a file of this size with, 0 for none."""
    cores = os.cpu_count() or 1
    return 0 if size_bytes < worth_bytes or cores < 2 else min(cores, _MOST_LANES)


def decoded(chunks: Iterable[Chunk], lanes: int) -> Iterator[tuple[Chunk, Decoded]]:
    """Yield each chunk and its columns, in order; at most two chunks per lane are in flight.

    Args:
        chunks: Events of one file, cut at event boundaries.
        lanes: Worker processes; 0 decodes here.
    """
    workers: list[_Worker] = []
    pool = ThreadPoolExecutor(max(lanes, 1))
    try:
        with contextlib.suppress(OSError):  # a machine out of processes: fewer lanes, or none
            while len(workers) < lanes:
                workers.append(_Worker())
        if workers:
            yield from _in_order(chunks, pool, workers)
        else:
            yield from ((chunk, decode(chunk)) for chunk in chunks)
    finally:
        # Workers first: the pool's threads wait for their answers.
        for worker in workers:
            worker.end()
        pool.shutdown(cancel_futures=True)


def _in_order(
    chunks: Iterable[Chunk], pool: ThreadPoolExecutor, workers: list["_Worker"]
) -> Iterator[tuple[Chunk, Decoded]]:
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)
    has_answer = Event()

    def decoded_by_next(chunk: Chunk) -> Decoded:
        worker = idle.get()
        try:
            return worker.decode(chunk)
        finally:
            idle.put(worker)
            has_answer.set()

    flying: deque[tuple[Chunk, Future[Decoded]]] = deque()
    for chunk in chunks:
        if has_answer.is_set() or len(flying) < len(workers):
            flying.append((chunk, pool.submit(decoded_by_next, chunk)))
        else:  # the workers still import: time enough to decode here
            flying.append((chunk, Future()))
            flying[-1][1].set_result(decode(chunk))
        while has_answer.is_set() and len(flying) >= 2 * len(workers):
            yield _landed(flying)
    while flying:
        yield _landed(flying)


def _landed(flying: deque[tuple[Chunk, Future[Decoded]]]) -> tuple[Chunk, Decoded]:
    chunk, future = flying.popleft()
    return chunk, future.result()


class _Worker:
    """A process that decodes; one that dies costs speed, not the result."""

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

    def decode(self, chunk: Chunk) -> Decoded:
        try:
            self._chunks.send(chunk)
            answer: Decoded = self._answers.recv()
        except (EOFError, OSError):
            return decode(chunk)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._chunks.close()
        self._answers.close()
