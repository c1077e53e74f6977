"""The recorder of our own server's virtual device, opened and closed over HTTP."""

import subprocess
import sys
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path

from tracekit.capture.own_server import is_virtual
from tracekit.capture.profiler_options import refuse_unknown, seconds
from tracekit.capture.profilers import Asked, Profiler, Server
from tracekit.capture.profiling_endpoints import post
from tracekit.capture.trace_files import Looks, read_database
from tracekit.errors import BadInput, TracekitError


class BuiltinSession:
    """One recording; the server writes it, as one process."""

    hooks: tuple[str, ...] = ()
    records_instead: str | None = None
    needs_http = True

    def __init__(self, asked: Asked) -> None:
        """Check the options."""
        refuse_unknown(asked.options, ("write_timeout",), "builtin")
        self.command = asked.command
        self.environment: Mapping[str, str] = {}
        self._asked = asked
        timeout_s = seconds(asked.options, "write_timeout", 600.0)
        self._post = partial(post, timeout_s=timeout_s, headers=asked.headers)
        self._server_pid: int | None = None
        # Renamed into place when complete, so nothing has to come to rest.
        self._looks = Looks(read_database, settle_s=0.0)

    def open_window(self, server: Server) -> None:
        """Let the server begin a recording."""
        self._server_pid = server.pid
        body = {"output_dir": str(self._asked.raw.absolute())}
        self._post(server.base_url, "/start_profile", body)
        if self._asked.window:
            self._asked.window.open()

    def close_window(self, server: Server) -> None:
        """Let it end the recording; the server answers when the database is complete."""
        if self._asked.window:
            self._asked.window.close()
        answer = self._post(server.base_url, "/stop_profile", {})
        files = [Path(file) for file in (answer or {}).get("files", [])]
        missing = [file for file in files if not file.exists()]
        if not files or missing:
            what = f"named {missing[0]}, which is not there" if missing else "named no file"
            raise TracekitError("/stop_profile", what, "See server.log")

    def written(self) -> Mapping[int, tuple[Path, ...]]:
        """Return the databases, as files of the launched process."""
        if self._server_pid is None:
            return {}
        files = tuple(path for path in self._databases() if self._looks.complete(path))
        return {self._server_pid: files} if files else {}

    def has_begun(self) -> Set[int]:
        """Return the launched process once there is a spool or a database."""
        begun = self._server_pid is not None and bool(self._databases() or self._spools())
        return {self._server_pid} if begun and self._server_pid is not None else set()

    def rescue(self) -> list[str]:
        """Make the databases of recordings that a dead server left as spools."""
        done: list[str] = []
        for folder in sorted({spool.parent for spool in self._spools()}):
            command = [
                sys.executable,
                "-m",
                "instrumented_runtime.recorder",
                "finalize",
                str(folder),
            ]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            done += [line for line in ran.stderr.splitlines() if line.strip()]
        return done

    def _databases(self) -> list[Path]:
        return sorted(self._asked.raw.rglob("*.db"))

    def _spools(self) -> list[Path]:
        return sorted(self._asked.raw.rglob("*.spool"))


def _start(asked: Asked) -> BuiltinSession:
    if not is_virtual(asked.command):
        raise BadInput(
            "builtin",
            "records the virtual device of `python -m instrumented_runtime.server` only",
            "Choose rocprofv3 or torch-profiler for another server",
        )
    return BuiltinSession(asked)


PROFILER = Profiler(
    name="builtin",
    summary="The recorder of our own server's virtual device.",
    fits=lambda asked: 100 if is_virtual(asked.command) else 0,
    markers="off",
    start=_start,
)
