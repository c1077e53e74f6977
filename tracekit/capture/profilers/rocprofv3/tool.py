"""The installed rocprofv3: where it is and which options it has."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture.profilers import Asked
from tracekit.errors import BadInput

HELP_TIMEOUT_S = 60.0
# What a report needs; the last three came with later versions, and a version that has them may
# switch them on by itself.
_TRACES = ("--hip-runtime-trace", "--kernel-trace", "--memory-copy-trace", "--marker-trace")
_LATER_TRACES = ("--rccl-trace", "--hip-graph-trace", "--hip-event-trace")
# Launchers and tokenizers write nothing but their own description; a worker's few hundred
# dispatches are more than this.
_MINIMUM_KIB = "64"


@dataclass(frozen=True, slots=True)
class Rocprofv3:
    """One installation.

    Attributes:
        path: The program.
        options: Long options that its help names.
    """

    path: str
    options: frozenset[str]

    def tracing(self, raw: Path, more: str) -> list[str]:
        """Return the arguments that say what to record and where to.

        Args:
            raw: Folder for one database per process, by host.
            more: Further arguments of the user, as a shell would read them.
        """
        later = [option for option in _LATER_TRACES if option in self.options]
        output = ["--output-format", "rocpd", "-d", str(raw.absolute()), "-o", "%hostname%/%pid%"]
        if "--minimum-output-data" in self.options:
            output += ["--minimum-output-data", _MINIMUM_KIB]
        return [*_TRACES, *later, *output, *shlex.split(more)]

    def require(self, option: str, purpose: str) -> None:
        """Refuse to go on without an option.

        Raises:
            BadInput: This version does not have it.
        """
        if option not in self.options:
            raise BadInput(self.path, f"has no {option}", f"Update ROCm: {purpose} needs it")


def path_of_rocprofv3(asked: Asked) -> str | None:
    """Return where rocprofv3 is: as the user says, on PATH, or in ROCm's own folder."""
    given = asked.options.get("path")
    search = asked.environment.get("PATH", "")
    rocm = Path(asked.environment.get("ROCM_PATH", "/opt/rocm")) / "bin" / "rocprofv3"
    return shutil.which(given or "rocprofv3", path=search) or (
        None if given else shutil.which(str(rocm))
    )


def installed_rocprofv3(asked: Asked) -> Rocprofv3:
    """Find rocprofv3 and ask it once what it can do.

    Raises:
        BadInput: It is not installed, does not run, or is too old to write rocpd.
    """
    path = path_of_rocprofv3(asked)
    if path is None:
        raise BadInput(
            asked.options.get("path", "rocprofv3"),
            "is not installed, or not on PATH",
            "Install rocprofiler-sdk of ROCm 7.0 or newer, or say where it is with "
            "--profiler-option path=…, or choose --profiler torch-profiler",
        )
    shown = _help(path, asked.environment)
    tool = Rocprofv3(path, frozenset(re.findall(r"--[a-z][a-z0-9-]+", shown)))
    if "rocpd" not in shown:
        raise BadInput(path, "cannot write rocpd", "Update ROCm: 7.0 was the first that can")
    return tool


def _help(path: str, environment: Mapping[str, str]) -> str:
    try:
        ran = subprocess.run(
            [path, "--help"],
            capture_output=True,
            text=True,
            env=dict(environment),
            timeout=HELP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(path, f"does not run ({error})", "Run `rocprofv3 --help` yourself") from None
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise BadInput(
            path, f"failed with {ran.returncode}: {said}", "Run `rocprofv3 --help` yourself"
        )
    return ran.stdout
