"""A load generator of the user's, as a shell command beside the server."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tracekit.capture.readiness import exit_words
from tracekit.capture.server_log import ServerLog
from tracekit.errors import TracekitError

_LOOK_EVERY_S = 0.05
# For a generator to write its own results when its time is over.
_GRACE_S = 10.0


class LoadFailed(TracekitError):
    """The load did not do what it should; the trace shows whatever it did.

    Attributes:
        last_lines: What the load command said last, redacted.
    """

    last_lines: tuple[str, ...] = ()


def run_load_command(
    command: str,
    environment: Mapping[str, str],
    log_path: Path,
    redacted: Callable[[str], str],
    should_stop: Callable[[], str | None],
) -> str | None:
    """Run a load command to its end; return why it was ended before, None if it was not.

    Whatever happens it and its process group are gone afterwards.

    Args:
        command: For the shell.
        environment: The whole environment it runs in.
        log_path: Where what it prints goes, redacted, behind what is there.
        redacted: Removes secrets from a line.
        should_stop: Asked many times a second; a reason ends it by SIGTERM, and 10 s later SIGKILL.

    Raises:
        LoadFailed: It returned something else than 0; not when it was stopped.
    """
    process = subprocess.Popen(
        command,
        shell=True,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    log = ServerLog(process.stdout, log_path, redacted)
    reason = None
    try:
        while process.poll() is None and (reason := should_stop()) is None:
            time.sleep(_LOOK_EVERY_S)
    finally:
        _end(process)
        log.close()
    if reason is None and process.returncode != 0:
        error = LoadFailed(
            re.sub(r"\s.*", "", redacted(command), flags=re.DOTALL),
            f"the load command ended {exit_words(process.returncode)}",
            f"See {log_path}",
        )
        error.last_lines = tuple(log.last_lines())
        raise error
    return reason


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and its group: asked first if it still runs, what it left behind at once."""
    if process.poll() is None:
        _send(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _send(process.pid, signal.SIGKILL)
    process.wait()


def _send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
