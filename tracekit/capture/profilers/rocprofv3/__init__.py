"""rocprofv3 around the whole server, one rocpd file per process.

It writes a process's file only when the process ends in an orderly way, and that takes seconds to
minutes. What kills the process before loses its file.
"""

import re
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path

from tracekit.capture.profiler_options import choice, refuse_unknown, seconds
from tracekit.capture.profilers import Asked, Profiler, Server
from tracekit.capture.profilers.rocprofv3.attach import Attachments
from tracekit.capture.profilers.rocprofv3.tool import (
    Rocprofv3,
    installed_rocprofv3,
    path_of_rocprofv3,
)
from tracekit.capture.server_kinds import VLLM
from tracekit.capture.trace_files import Looks, is_held, read_database, roll_back
from tracekit.errors import BadInput, TracekitError

MODES = ("whole-run", "regions", "period", "attach")
_HOOK = "roctx_window"
_LOOK_EVERY_S = 0.05
# After detaching, a process that has written nothing for so long will not.
_BEGIN_S = 10.0
_OPTIONS = ("mode", "period", "path", "arguments", "answer_timeout", "write_timeout")
_PERIOD = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
_DATABASE = re.compile(r"(\d+)_results\.db")
_SPILLED = re.compile(r"\d+-(\d+)-.*\.dat")
_ATTACHABLE = {"ROCP_TOOL_ATTACH": "1"}


class Rocprofv3Session:
    """One capture through rocprofv3."""

    def __init__(self, asked: Asked, tool: Rocprofv3) -> None:
        """Choose the mode and check the options.

        Raises:
            BadInput: An option is wrong, or this rocprofv3 lacks what the mode needs.
        """
        refuse_unknown(asked.options, _OPTIONS, "rocprofv3")
        self._asked, self._window = asked, asked.window
        self.mode = _mode(asked)
        self._answer_s = seconds(asked.options, "answer_timeout", 60.0)
        self._write_s = seconds(asked.options, "write_timeout", 900.0)
        self._looks = Looks(read_database)
        tracing = [tool.path, *tool.tracing(asked.raw, asked.options.get("arguments", ""))]
        window = _window_arguments(self.mode, asked, tool)
        self.hooks = (_HOOK,) if self.mode == "regions" else ()
        self.records_instead = _records_instead(self.mode, asked)
        self.needs_http = False
        self._attachments = Attachments([*tracing, *window], asked.environment)
        wrapped = (*tracing, *window, "--", *asked.command)
        self.command = asked.command if self.mode == "attach" else wrapped

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what it adds; what the user has set stays."""
        more = {**VLLM.environment, "ROCPROF_TMPDIR": str(self._asked.raw.absolute())}
        more |= _ATTACHABLE if self.mode == "attach" else {}
        return {name: more[name] for name in more.keys() - self._asked.environment.keys()}

    def open_window(self, server: Server) -> None:
        """Begin to record, in the modes that can; markers begin in all."""
        if self.mode == "attach":
            self._attach(server)
        if self._window is None:
            return
        self._window.open()
        late = self._window.wait(server.pids, self._answer_s)
        if self.mode == "regions":
            self._check_resumed(server, late)

    def close_window(self, server: Server) -> None:
        """Stop recording; only `attach` writes files now, the others when processes end."""
        if self._window is not None:
            self._window.close()
            self._window.wait(server.pids, self._answer_s)
        if self.mode == "attach":
            self._attachments.detach(self._write_s)
            self._wait_for_attached(server)

    def written(self) -> Mapping[int, tuple[Path, ...]]:
        """Return the databases that are at rest and that nobody holds."""
        files: dict[int, tuple[Path, ...]] = {}
        for pid, path in self._databases():
            if self._looks.complete(path) and not is_held(path, pid):
                files[pid] = (*files.get(pid, ()), path)
        return files

    def has_begun(self) -> Set[int]:
        """Return the processes that have a database or have spilled records."""
        return {pid for pid, _ in self._databases()} | self._spilled().keys()

    def rescue(self) -> list[str]:
        """Undo halves of files, and say what is lost: nothing but rocprofv3 reads its records."""
        halves = [
            f"process {pid} ended while rocprofv3 wrote its file, which holds what it had committed"
            for pid, path in self._databases()
            if roll_back(path)
        ]
        written = self.written()
        return halves + [
            f"process {pid} ended before rocprofv3 had written its file; {size} bytes of records "
            f"are lost"
            for pid, size in sorted(self._spilled().items())
            if pid not in written and size
        ]

    def _attach(self, server: Server) -> None:
        workers = sorted(server.gpu_pids())
        if not workers:
            raise TracekitError(
                "rocprofv3",
                "no process of the server holds a GPU, so there is nothing to attach to",
                "Wait until the model is loaded, or choose mode=regions",
            )
        self._attachments.attach(workers)

    def _wait_for_attached(self, server: Server) -> None:
        start = time.monotonic()
        while missing := self._attachments.pids - self.written().keys():
            # Old versions leave before the files are there, and some leave without writing any.
            writes = bool(missing & self.has_begun() & server.pids())
            waits_s = self._write_s if writes else min(_BEGIN_S, self._write_s)
            if time.monotonic() - start < waits_s:
                time.sleep(_LOOK_EVERY_S)
                continue
            lost = ", ".join(map(str, sorted(missing)))
            raise TracekitError(
                f"process {lost}",
                "rocprofv3 attached and left, but wrote no file",
                "Look for a library in the server that takes the profiler's place, for records "
                "under 64 KiB, and for ROCP_TOOL_ATTACH=1 in its environment",
            )

    def _check_resumed(self, server: Server, late: Set[int]) -> None:
        assert self._window is not None
        reports = self._window.reports()
        living = reports.keys() & server.pids()
        for pid in sorted(living):
            for problem in reports[pid].problems:
                if problem.startswith(_HOOK):
                    raise TracekitError(
                        f"process {pid}",
                        f"could not resume rocprofv3 ({problem})",
                        "Put librocprofiler-sdk-roctx.so on LD_LIBRARY_PATH, or choose "
                        "mode=whole-run",
                    )
        if stuck := late & server.gpu_pids():
            raise TracekitError(
                f"process {min(stuck)}",
                f"did not answer within {self._answer_s:g} s that the window is open",
                "Choose mode=whole-run, or allow more with answer_timeout=SECONDS",
            )
        if not any(reports[pid].window == self._window.value for pid in living):
            raise TracekitError(
                "rocprofv3",
                "no process of the server runs the hook that opens its window",
                "Python started with -I, -E or -S ignores PYTHONPATH; choose mode=whole-run",
            )

    def _databases(self) -> list[tuple[int, Path]]:
        found = [(_DATABASE.fullmatch(path.name), path) for path in self._asked.raw.rglob("*.db")]
        return sorted((int(match[1]), path) for match, path in found if match)

    def _spilled(self) -> dict[int, int]:
        """Return by process how many bytes of records wait to be made a database."""
        given = self._asked.environment.get("ROCPROF_TMPDIR")
        folder = (Path(given) if given else self._asked.raw) / ".rocprofv3"
        sizes: dict[int, int] = {}
        for path in folder.glob("*.dat"):
            if match := _SPILLED.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    sizes[int(match[1])] = sizes.get(int(match[1]), 0) + path.stat().st_size
        return sizes


def _mode(asked: Asked) -> str:
    """Return the mode asked for, else the one that records no more than the window."""
    fallback = "regions" if asked.has_window and asked.window else "whole-run"
    mode = choice(asked.options, "mode", MODES, "period" if "period" in asked.options else fallback)
    if mode == "regions" and asked.window is None:
        raise BadInput("mode=regions", "needs hooks in the server", "Leave out --no-hooks")
    if mode == "regions" and not asked.has_window:
        raise BadInput(
            "mode=regions", "needs a window", "Choose mode=whole-run, or leave out --window run"
        )
    if (mode == "period") != ("period" in asked.options):
        raise BadInput("mode", "and period contradict", "Write period=START:DURATION, in seconds")
    return mode


def _records_instead(mode: str, asked: Asked) -> str | None:
    if mode == "period":
        return f"period {asked.options['period']} from each process's start"
    return "each process from its start" if mode == "whole-run" else None


def _window_arguments(mode: str, asked: Asked, tool: Rocprofv3) -> list[str]:
    if mode == "regions":
        tool.require("--selected-regions", "mode=regions")
        return ["--selected-regions"]
    if mode == "period":
        tool.require("--collection-period", "mode=period")
        match = _PERIOD.fullmatch(asked.options["period"])
        if not match or not float(match[2]):
            raise BadInput(
                f"period={asked.options['period']}",
                "is no START:DURATION",
                "Write seconds from the start of each process: period=120:10",
            )
        return ["--collection-period", f"{match[0]}:1", "--collection-period-unit", "sec"]
    if mode == "attach":
        tool.require("--pid", "mode=attach")
        children = ["--attach-children=false"] if "--attach-children" in tool.options else []
        waits = ["--attach-sync-output"] if "--attach-sync-output" in tool.options else []
        return [*children, *waits]
    return []


PROFILER = Profiler(
    name="rocprofv3",
    summary="ROCm's profiler: every process, streams and queues, as rocpd.",
    fits=lambda asked: 50 if path_of_rocprofv3(asked) else 0,
    markers="roctx",
    start=lambda asked: Rocprofv3Session(asked, installed_rocprofv3(asked)),
)
