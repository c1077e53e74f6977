"""PyTorch's profiler: through the server's own endpoints, or injected by a hook where it has none.

Through the endpoints the server decides what is recorded; the hook also switches on synchronisation
events where this PyTorch and GPU have them.
"""

import re
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tracekit.capture.own_server import is_own, is_virtual
from tracekit.capture.profiler_options import choice, refuse_unknown, seconds
from tracekit.capture.profilers import Asked, Profiler, Server
from tracekit.capture.profiling_endpoints import NoEndpoint, post
from tracekit.capture.trace_files import Looks, read_kineto
from tracekit.errors import BadInput, TracekitError

_OPTIONS = ("through", "num_steps", "with_stack", "answer_timeout", "write_timeout")
_LOOK_EVERY_S = 0.1
# For the last file of a server that has ended to be seen as complete: two looks at it.
_SETTLE_S = 2.0
_SGLANG = re.compile(r"\bsglang(\.launch_server|\s+serve)\b")
_VLLM = re.compile(r"\bvllm(\s+serve|\.entrypoints\.)")
_NOBODY = "no process of the server began to profile"
_REMEDY = (
    "Python started with -I, -E or -S ignores PYTHONPATH; a server that never imports torch has "
    "nothing to profile"
)


class _Files:
    """The Kineto files of a folder, and which process each is of."""

    def __init__(self, raw: Path, *, settle_s: float) -> None:
        self._raw, self._looks = raw, Looks(read_kineto, settle_s)

    def found(self) -> list[Path]:
        """Return all, complete or not."""
        return sorted(
            path
            for pattern in ("*.json", "*.json.gz")
            for path in self._raw.rglob(pattern)
            if path.is_file()
        )

    def complete(self, launched: int | None) -> dict[int, tuple[Path, ...]]:
        """Return complete files by process; one that does not say goes to the launched process."""
        files: dict[int, tuple[Path, ...]] = {}
        for path in self.found():
            pid = self._looks.complete(path)
            if pid is not None:
                owner = pid or launched or 0
                files[owner] = (*files.get(owner, ()), path)
        return files


class ServerSession:
    """Through `/start_profile` and `/stop_profile`."""

    hooks: tuple[str, ...] = ()
    records_instead: str | None = None
    needs_http = True

    def __init__(self, asked: Asked) -> None:
        """Check the options; vLLM gets the flags without which it has no endpoints."""
        self._asked = asked
        self._write_s = seconds(asked.options, "write_timeout", 900.0)
        self._post = partial(post, timeout_s=self._write_s, headers=asked.headers)
        self._has_stack = choice(asked.options, "with_stack", ("0", "1"), "0") == "1"
        self._num_steps = _num_steps(asked)
        self._launched: int | None = None
        self._files = _Files(asked.raw, settle_s=0.5)
        self.command = (*asked.command, *_vllm_flags(asked, has_stack=self._has_stack))
        self.environment: Mapping[str, str] = {}

    def open_window(self, server: Server) -> None:
        """Ask the server to begin."""
        self._launched = server.pid
        try:
            self._post(server.base_url, "/start_profile", self._body())
        except NoEndpoint as error:
            raise TracekitError(
                error.where,
                error.problem,
                "Inject the profiler instead: --profiler-option through=hook",
            ) from None
        if self._asked.window:
            self._asked.window.open()

    def close_window(self, server: Server) -> None:
        """Ask it to end, and wait for its files."""
        if self._asked.window:
            self._asked.window.close()
        try:
            self._post(server.base_url, "/stop_profile", {})
        except TracekitError:
            # With num_steps it has ended by itself and may say that nothing runs.
            if self._num_steps is None or not self._files.found():
                raise
        start = time.monotonic()
        waits_s = self._write_s
        while not self._is_done():
            waited_s = time.monotonic() - start
            if not server.pids():
                waits_s = min(waits_s, waited_s + _SETTLE_S)  # nobody writes any more
            if waited_s > waits_s:
                raise TracekitError(
                    self._asked.raw,
                    f"holds no complete trace {waits_s:.3g} s after the window closed",
                    "See server.log, or record less with num_steps=N",
                )
            time.sleep(_LOOK_EVERY_S)

    def written(self) -> Mapping[int, tuple[Path, ...]]:
        """Return the complete files."""
        return self._files.complete(self._launched)

    def has_begun(self) -> Set[int]:
        """Return the processes of complete files, the launched one for those under way."""
        complete = self.written()
        under_way = len(self._files.found()) > sum(map(len, complete.values()))
        launched = {self._launched} if under_way and self._launched else set()
        return complete.keys() | launched

    def rescue(self) -> list[str]:
        """Say which files stop in the middle."""
        return _cut_short(self._files, self.written())

    def _is_done(self) -> bool:
        found = self._files.found()
        return bool(found) and len(found) == sum(map(len, self.written().values()))

    def _body(self) -> dict[str, Any]:
        if _VLLM.search(" ".join(self._asked.command)):
            return {}  # its folder is a flag
        body: dict[str, Any] = {
            "output_dir": str(self._asked.raw.absolute()),
            "activities": ["CPU", "GPU"],
            "with_stack": self._has_stack,
            "record_shapes": False,
        }
        return body | ({} if self._num_steps is None else {"num_steps": self._num_steps})


class HookSession:
    """Injected into every process, which begins and ends as the window does."""

    hooks = ("torch_profiler",)
    records_instead: str | None = None
    needs_http = False

    def __init__(self, asked: Asked) -> None:
        """Check the options and that hooks can run."""
        if asked.window is None:
            raise BadInput(
                "torch-profiler",
                "needs hooks to get into this server, which has no known /start_profile",
                "Leave out --no-hooks, or say --profiler-option through=server",
            )
        for name in ("num_steps", "with_stack"):
            if name in asked.options:
                raise BadInput(name, "is for through=server only", "Leave it out")
        self._window, self._raw = asked.window, asked.raw
        self._has_window = asked.has_window
        self._answer_s = seconds(asked.options, "answer_timeout", 60.0)
        self._write_s = seconds(asked.options, "write_timeout", 900.0)
        self.command = asked.command
        self.environment: Mapping[str, str] = {"TRACEKIT_TRACE_DIR": str(asked.raw.absolute())}
        # Renamed into place when complete.
        self._files = _Files(asked.raw, settle_s=0.0)
        self._recording: set[int] = set()

    def open_window(self, server: Server) -> None:
        """Open the byte and wait until every process has begun.

        That of a whole run is open before the launch, and its processes have yet to import torch.
        """
        self._window.open()
        late = self._window.wait(server.pids, self._answer_s)
        self._recording = self._in_state("recording")
        if self._has_window and not self._recording:
            who = f"process {min(late)} did not answer" if late else self._why_none()
            self._window.close()
            raise TracekitError("torch-profiler", f"{_NOBODY}: {who}", _REMEDY)

    def close_window(self, server: Server) -> None:
        """Close the byte and wait until every process that began has written, or has ended."""
        self._recording |= self._in_state("recording")
        self._window.close()
        late = self._window.wait(lambda: server.pids() & self._recording, self._write_s)
        reports = self._window.reports()
        for pid in sorted(self._recording & reports.keys()):
            if pid in late:
                raise TracekitError(
                    f"process {pid}",
                    f"has not written its trace {self._write_s:g} s after the window closed",
                    "Allow more with write_timeout=SECONDS",
                )
            if reports[pid].profiler.state == "failed":
                raise TracekitError(
                    f"process {pid}",
                    f"could not write its trace: {reports[pid].profiler.reason}",
                    "See server.log",
                )

    def written(self) -> Mapping[int, tuple[Path, ...]]:
        """Return the complete files."""
        return self._files.complete(None)

    def has_begun(self) -> Set[int]:
        """Return the processes that record or have written."""
        return self._recording | self._in_state("recording") | self._in_state("written")

    def rescue(self) -> list[str]:
        """Say whose records are lost: the profiler keeps them in memory until the window closes."""
        if not (self._has_window or self.has_begun()):
            return [f"{_NOBODY}: {self._why_none()}. {_REMEDY}"]
        written = self.written()
        return [
            f"process {pid} ended while it was profiled; its records are lost"
            for pid in sorted(self.has_begun() - written.keys())
        ]

    def _in_state(self, state: str) -> set[int]:
        return {
            pid for pid, report in self._window.reports().items() if report.profiler.state == state
        }

    def _why_none(self) -> str:
        reports = self._window.reports().values()
        reasons = [report.profiler.reason for report in reports if report.profiler.reason]
        if reasons:
            return reasons[0]
        return "none uses a GPU" if reports else "none has loaded the hooks"


def _cut_short(files: _Files, written: Mapping[int, tuple[Path, ...]]) -> list[str]:
    whole = {path for paths in written.values() for path in paths}
    return [f"{path}: stops in the middle" for path in files.found() if path not in whole]


def _num_steps(asked: Asked) -> int | None:
    given = asked.options.get("num_steps")
    if given is None:
        return None
    with suppress(ValueError):
        if int(given) > 0:
            return int(given)
    raise BadInput(f"num_steps={given}", "is no number of steps", "Write num_steps=20")


def _vllm_flags(asked: Asked, *, has_stack: bool) -> list[str]:
    """Return the flags without which vLLM has no endpoints.

    Raises:
        BadInput: The user has given some of them, so that ours could contradict.
    """
    command = " ".join(asked.command)
    if not _VLLM.search(command):
        return []
    flags = {
        "profiler": "torch",
        "torch_profiler_dir": str(asked.raw.absolute()),
        "torch_profiler_with_stack": str(has_stack).lower(),
        "torch_profiler_use_gzip": "true",
        "ignore_frontend": "true",  # the API server runs nothing on the GPU
    }
    words = [f"--profiler-config.{name}={value}" for name, value in flags.items()]
    if "--profiler-config" in command:
        raise BadInput(
            "--profiler-config",
            "is set in the command, and the traces must go to the run",
            f"Leave it out; this is added: {' '.join(words)}",
        )
    return words


def _start(asked: Asked) -> ServerSession | HookSession:
    refuse_unknown(asked.options, _OPTIONS, "torch-profiler")
    command = " ".join(asked.command)
    if is_virtual(asked.command):
        problem = "a virtual device has no kernels that PyTorch sees"
        raise BadInput("torch-profiler", problem, "Choose --profiler builtin")
    known = is_own(asked.command) or _SGLANG.search(command) or _VLLM.search(command)
    fallback = "server" if known or asked.window is None else "hook"
    through = choice(asked.options, "through", ("server", "hook"), fallback)
    return ServerSession(asked) if through == "server" else HookSession(asked)


PROFILER = Profiler(
    name="torch-profiler",
    summary="PyTorch's profiler, through /start_profile or injected, as Kineto.",
    fits=lambda _asked: 10,
    markers="record_function",
    start=_start,
)
