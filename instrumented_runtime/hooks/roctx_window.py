"""`rocprofv3 --selected-regions`: tells it in every process when the window opens and closes."""

from .markers import beside
from .process import Process
from .targets import Hook

_ALL_THREADS = 0


class _Region:
    """Resumes collection with the window and pauses it again."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_open = False

    def __call__(self, is_open: bool) -> bool:
        if is_open == self._is_open:
            return False
        self._is_open = is_open
        name = "roctxProfilerResume" if is_open else "roctxProfilerPause"
        backends = beside("backends")
        try:
            library, _ = backends.loaded_library(backends.ROCTX)
            status = library[name](_ALL_THREADS)
        except (AttributeError, backends.BackendError) as problem:
            self._process.report.problem(f"roctx_window: {problem}")
            return False
        if status:
            self._process.report.problem(f"roctx_window: {name} returned {status}")
        return is_open


def _start(process: Process) -> None:
    process.listeners.append(_Region(process))
    # Which processes use the GPU cannot be told before they do.
    process.watch()


HOOK = Hook("roctx_window", start=_start)
