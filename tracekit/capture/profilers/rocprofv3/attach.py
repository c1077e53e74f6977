"""rocprofv3 attached to processes that run already: one rocprofv3 per worker."""

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from tracekit.errors import TracekitError

ATTACH_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.02
# Versions differ in what they say once they are in; some say nothing.
_ATTACHED = re.compile(rb"(?i)success|attached|press enter")
_REMEDY = (
    "It needs ROCP_TOOL_ATTACH=1 in the server's environment from its start (set here unless you "
    "set it), the same user, and leave to ptrace (kernel.yama.ptrace_scope=0, docker --cap-add "
    "SYS_PTRACE)"
)


@dataclass(slots=True)
class Attachment:
    """One rocprofv3 that has attached, or is about to, to one process."""

    pid: int
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def said(self) -> bytes:
        """Return all it has printed so far."""
        self.output.seek(0)
        return self.output.read()

    def last_line(self) -> str:
        """Return the last line it printed."""
        lines = self.said().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"


class Attachments:
    """The attachments of one window."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Take the command line before `--pid`, and what to run it in."""
        self._command = list(command)
        self._environment = dict(environment)
        self._all: list[Attachment] = []

    @property
    def pids(self) -> set[int]:
        """Processes that are, or were, attached to."""
        return {attachment.pid for attachment in self._all}

    def attach(self, pids: Sequence[int]) -> None:
        """Attach to all of them at once and wait until it is done.

        Raises:
            TracekitError: One could not; the others are detached again.
        """
        self._all = [self._start(pid) for pid in pids]
        deadline = time.monotonic() + ATTACH_TIMEOUT_S
        waiting = list(self._all)
        while waiting and time.monotonic() < deadline:
            for attachment in waiting:
                if attachment.process.poll() is not None:
                    said = attachment.last_line()
                    self._leave()
                    raise TracekitError(
                        f"process {attachment.pid}",
                        f"rocprofv3 could not attach to it: {said}",
                        _REMEDY,
                    )
            waiting = [one for one in waiting if not _ATTACHED.search(one.said())]
            time.sleep(_LOOK_EVERY_S)

    def detach(self, timeout_s: float) -> None:
        """Detach from all at once, and wait until each rocprofv3 has ended.

        Raises:
            TracekitError: One did not end.
        """
        if (stuck := self._leave(timeout_s)) is not None:
            raise TracekitError(
                f"process {stuck}",
                f"rocprofv3 did not detach within {timeout_s:g} s",
                "Allow more with write_timeout=SECONDS",
            )

    def _leave(self, timeout_s: float = ATTACH_TIMEOUT_S) -> int | None:
        """Detach from all and end every rocprofv3; return a process that had to be let go."""
        for attachment in self._all:
            _press_enter(attachment)
        deadline = time.monotonic() + timeout_s
        stuck = None
        for attachment in self._all:
            try:
                attachment.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                stuck = attachment.pid
                attachment.process.kill()
                attachment.process.wait()
            attachment.output.close()
        return stuck

    def _start(self, pid: int) -> Attachment:
        output = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as the attachment
        process = subprocess.Popen(
            [*self._command, "--pid", str(pid)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )
        return Attachment(pid, process, output)


def _press_enter(attachment: Attachment) -> None:
    """Let a rocprofv3 detach; it may have ended, if its process did."""
    assert attachment.process.stdin is not None
    with suppress(BrokenPipeError):
        attachment.process.stdin.write(b"\n")
    with suppress(BrokenPipeError):
        attachment.process.stdin.close()
