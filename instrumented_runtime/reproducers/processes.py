"""Runs that need nothing of each other, as many at once as there are cores."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import TypeVar

Case = TypeVar("Case")
Result = TypeVar("Result")


def in_processes(run: Callable[[Case], Result], cases: Sequence[Case]) -> Iterator[Result]:
    """Run each case in another process; hand out results in the order of cases.

    Args:
        run: A function of a module, for it is sent by its name, as cases and results are by pickle.
        cases: What it gets.

    Raises:
        RuntimeError: A process was killed.
    """
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    try:
        # Ctrl-C goes to all processes of a terminal. Those begun here never see it: the one that
        # does ends them, and none prints a traceback of its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = pool.map(run, cases)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield from results
    except BrokenProcessPool as problem:
        raise RuntimeError(
            "a process of the run was killed, for memory perhaps; there is no result of it"
        ) from problem
    finally:
        # Nothing is left to do, or nobody waits for it.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.terminate()
