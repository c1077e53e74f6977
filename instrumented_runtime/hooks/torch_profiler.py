"""PyTorch's profiler, started in every process that uses the GPU while the window is open.

For servers that have no way of their own to start it. The trace lands in TRACEKIT_TRACE_DIR as
`<pid>.trace.json.gz`, that of a second window as `<pid>.2.trace.json.gz`.
"""

import gzip
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from .process import Process
from .targets import Hook

# Tests, and servers on a CPU: profile there too.
CPU_TOO = "TRACEKIT_PROFILE_CPU"
_QUICK = 3
# In the order in which they may be missing: each is newer than the one before.
_EXPERIMENTAL = {"enable_cuda_sync_events": True, "profile_all_threads": True}


class _Profiler:
    """Follows the window; started and stopped on the one thread that follows it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._folder = process.environment.get("TRACEKIT_TRACE_DIR") or None
        self._cpu_too = process.environment.get(CPU_TOO) == "1"
        self._running: Any = None
        self._pid = os.getpid()
        self._files = 0
        self._may_start = True

    def __call__(self, is_open: bool) -> bool:
        if self._pid != os.getpid():  # forked off: what runs is the parent's
            self._pid, self._running, self._files = os.getpid(), None, 0
        if not is_open:
            self._may_start = True
            if self._running is not None:
                self._stop()
            return False
        if self._running is not None or not self._may_start or not self._is_to_profile():
            return False
        self._may_start = False
        return self._start()

    def _is_to_profile(self) -> bool:
        torch: Any = sys.modules.get("torch")
        if torch is None or getattr(torch.__spec__, "_initializing", False):
            return False
        # Asks torch what it knows; to ask the driver would make it begin to use the GPU.
        uses_gpu = torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
        return uses_gpu or self._cpu_too

    def _start(self) -> bool:
        torch: Any = sys.modules["torch"]
        try:
            if self._folder is None:
                raise RuntimeError("TRACEKIT_TRACE_DIR is not set")
            if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
                # Two at once end the process.
                raise RuntimeError("another profiler of PyTorch runs")
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_initialized():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            profiler, reason = _made(torch, activities)
            profiler.start()
        except Exception as problem:
            self._report("failed", reason=f"cannot start: {problem}")
            return False
        self._running = profiler
        self._report("recording", reason=reason)
        return True

    def _stop(self) -> None:
        profiler, self._running = self._running, None
        self._files += 1
        number = f".{self._files}" if self._files > 1 else ""
        path = Path(self._folder or ".") / f"{os.getpid()}{number}.trace.json.gz"
        plain = path.with_suffix(".plain.partial")
        partial = path.with_suffix(".gz.partial")
        try:
            profiler.stop()
            profiler.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(partial, "wb", _QUICK) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            partial.replace(path)
        except Exception as problem:
            self._report("failed", reason=f"no trace: {problem}")
        else:
            self._report("written", path=str(path))
        finally:
            for rest in (plain, partial):
                rest.unlink(missing_ok=True)

    def _report(self, state: str, **more: str) -> None:
        self._process.report.profiler = {"state": state} | {k: v for k, v in more.items() if v}
        self._process.report.write()


def _made(torch: Any, activities: list[Any]) -> tuple[Any, str]:
    """Return a profiler with as much as this torch knows, and what it lacks in words."""
    wanted, lacks = dict(_EXPERIMENTAL), []
    while True:
        try:
            config = torch._C._profiler._ExperimentalConfig(**wanted)
            break
        except TypeError:
            lacks.append(wanted.popitem()[0])
    # Without acc_events it warns that it keeps those of its last cycle alone.
    profiler = torch.profiler.profile(
        activities=activities, experimental_config=config, acc_events=True
    )
    return profiler, f"this torch lacks {', '.join(lacks)}" if lacks else ""


def _start(process: Process) -> None:
    process.listeners.append(_Profiler(process))


HOOK = Hook("torch_profiler", watches=("torch",), start=_start)
