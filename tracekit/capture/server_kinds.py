"""The servers we know: how each must be asked to end so that its workers finish their traces.

A profiler writes when a process ends by itself or by a signal it handles, and takes seconds to
minutes; servers give their workers far less before they kill them.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil


@dataclass(frozen=True, slots=True)
class Grace:
    """How long is waited before force is used.

    Attributes:
        outputs_s: For traces of processes that are expected to write one.
        exit_s: For the end of processes that are not, after each signal.
    """

    outputs_s: float
    exit_s: float


@dataclass(frozen=True, slots=True)
class ServerKind:
    """One kind of server.

    Attributes:
        name: Its name for messages.
        launcher: Found in the command line of the process to which the others belong.
        asks: Whom the first signal goes to: the launcher, or its workers while it is frozen.
        first_signal: What asks for an orderly end.
        tells_workers: Whether a launcher that was asked asks its workers and waits for them.
        grace: Before force is used.
        environment: What it must run in, unless the user says otherwise.
    """

    name: str
    launcher: re.Pattern[str]
    asks: Literal["launcher", "workers"]
    first_signal: signal.Signals
    grace: Grace
    tells_workers: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


# rocprofv3 was reported to finalise for about 9 minutes (rocprofiler-sdk, issue 1072).
_OUTPUTS_S = 900.0

SGLANG = ServerKind(
    name="SGLang",
    launcher=re.compile(r"\bsglang[./]launch_server\b|\bsglang\s+serve\b"),
    # Up to 0.5.10 SIGTERM to the launcher ends in SIGKILL for every worker; in 0.5.23 workers have
    # 15 s (`_SCHEDULER_EXIT_TIMEOUT_SECS`, managers/tokenizer_manager.py). Workers asked one by one
    # fare no better: the launcher's watchdog sees the first one end and kills the others. Frozen it
    # sees nothing, and lives on, which keeps PR_SET_PDEATHSIG from killing them.
    asks="workers",
    first_signal=signal.SIGINT,
    grace=Grace(_OUTPUTS_S, 15.0),
)
VLLM = ServerKind(
    name="vLLM",
    launcher=re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.\S*api_server\b"),
    # Executor and engine core wait VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS (5 s by default, 15 s of
    # the core on ROCm), then send SIGTERM, and SIGKILL 4 s later. A second SIGINT would cut it
    # short. Forked workers leave by os._exit, which writes nothing (vLLM 0.33, v1/executor).
    asks="launcher",
    first_signal=signal.SIGINT,
    grace=Grace(_OUTPUTS_S, 30.0),
    environment={
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": f"{_OUTPUTS_S:.0f}",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    },
)
OTHER = ServerKind(
    name="server",
    launcher=re.compile(r"(?!)"),
    # What `docker stop` and Kubernetes send, and the longer of their two graces (10 s and 30 s).
    asks="launcher",
    first_signal=signal.SIGTERM,
    grace=Grace(_OUTPUTS_S, 30.0),
    tells_workers=False,
)


def kind_of(command: Sequence[str]) -> ServerKind:
    """Return the kind of server that a command line starts, also inside `bash -c`."""
    text = " ".join(command)
    return next((kind for kind in (SGLANG, VLLM) if kind.launcher.search(text)), OTHER)


def launcher_of(
    processes: Sequence[psutil.Process], root_pid: int
) -> tuple[ServerKind, psutil.Process | None]:
    """Return the kind of the server that runs, and its launcher; None if that has ended.

    What runs tells more than the command: a start script says nothing of what it starts. The
    launcher is the outermost process whose command line is one of a known kind.

    Args:
        processes: Of the tree, parents before children.
        root_pid: Of the launched process, the launcher of an unknown kind.
    """
    for process in processes:
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        # A shell or a profiler names the server it starts, and does not pass signals on.
        is_shell = len(words) > 1 and words[1].startswith("-") and "c" in words[1]
        is_profiler = any(Path(word).name == "rocprofv3" for word in words[:2])
        kind = kind_of(words)
        if kind is not OTHER and not is_shell and not is_profiler:
            return kind, process
    return OTHER, next((p for p in processes if p.pid == root_pid), None)
