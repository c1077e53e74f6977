"""Versions of what a command will run, asked of the interpreter that will run it."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# A module may come from distributions of several names.
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "triton": ("triton", "pytorch-triton-rocm"),
    "sglang": ("sglang",),
    "vllm": ("vllm",),
    "aiter": ("aiter", "amd-aiter"),
    "tracekit": ("tracekit-rocm",),
    "instrumented_runtime": ("tracekit-rocm",),
}
_TIMEOUT_S = 20
_ASK = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for module, names in json.loads(sys.argv[1]).items():
    for name in names:
        try:
            found.setdefault(module, version(name))
        except PackageNotFoundError:
            pass
print(json.dumps(found))
"""


def versions(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return versions by module, `python` among them; empty where no interpreter is to be seen.

    Nothing of what is asked about is imported. A command that starts a container or a shell script
    hides its interpreter; then reports from inside the processes tell.
    """
    interpreter = _interpreter(command, environment)
    if interpreter is None:
        return {}
    try:
        done = subprocess.run(
            [*interpreter, "-c", _ASK, json.dumps(_DISTRIBUTIONS)],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
            env=dict(environment),
        )
        told = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {str(name): str(value) for name, value in told.items()}


def _interpreter(command: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """Return how to start the Python that a command starts, through `env` and shebangs."""
    words = list(command)
    while words and (Path(words[0]).name == "env" or "=" in words[0]):
        words.pop(0)
    if not words:
        return None
    path = shutil.which(words[0], path=environment.get("PATH"))
    if path is None:
        return None
    if Path(path).name.startswith("python"):
        return [path]
    try:
        with Path(path).open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    shebang = first[2:].decode(errors="replace").split()
    if shebang and Path(shebang[0]).name == "env":
        shebang = shebang[1:]
        found = shutil.which(shebang[0], path=environment.get("PATH")) if shebang else None
        shebang = [found] if found else []
    is_python = bool(shebang) and Path(shebang[0]).name.startswith("python")
    return shebang[:1] if is_python else None
