"""The machine a capture runs on: its GPUs, and the repository of the working folder."""

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tracekit.manifest.what_ran import GitState, Gpu, Host

_KFD_NODES = "sys/class/kfd/kfd/topology/nodes"
_NVIDIA = "proc/driver/nvidia"
_GIT_TIMEOUT_S = 20


def host(root: Path = Path("/")) -> Host:
    """Return the machine; its node name, as traces hold it too."""
    return Host(
        node=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        num_cpus=os.cpu_count(),
        gpu_driver=_driver(root),
        rocm=_first_line(root / "opt/rocm/.info/version"),
    )


def gpus(root: Path = Path("/")) -> list[Gpu]:
    """Return the GPUs that the drivers of this machine list, AMD's first; no GPU is touched."""
    return [*_amd(root), *_nvidia(root)]


def _amd(root: Path) -> Iterator[Gpu]:
    nodes = root / _KFD_NODES
    for node in sorted(nodes.glob("*"), key=lambda path: path.name.zfill(4)):
        properties = dict(
            line.split(maxsplit=1) for line in _lines(node / "properties") if " " in line
        )
        # Nodes without SIMDs are CPUs.
        if int(properties.get("simd_count", 0)) == 0:
            continue
        # 90402 is gfx942: two digits of stepping, two of minor version.
        version = int(properties.get("gfx_target_version", 0))
        major, minor, step = version // 10_000, version // 100 % 100, version % 100
        arch = f"gfx{major}{minor:x}{step:x}" if version else None
        device = int(properties.get("device_id", 0))
        name = _first_line(node / "name") or f"AMD device {device:#06x}"
        yield Gpu(name, arch, "kfd topology")


def _nvidia(root: Path) -> Iterator[Gpu]:
    for card in sorted((root / _NVIDIA / "gpus").glob("*/information")):
        for line in _lines(card):
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                yield Gpu(value.strip(), None, "nvidia driver")


def _driver(root: Path) -> str | None:
    amd = _first_line(root / "sys/module/amdgpu/version")
    if amd is not None:
        return f"amdgpu {amd}"
    nvidia = _first_line(root / _NVIDIA / "version")
    found = re.search(r"\d+\.\d[\d.]*", nvidia) if nvidia else None
    return f"nvidia {found[0]}" if found else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _first_line(path: Path) -> str | None:
    lines = _lines(path)
    return (lines[0].strip() or None) if lines else None


def git_state(folder: Path) -> GitState | None:
    """Return the repository's state; None outside of one, or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain")
    if changes is None:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    return GitState(commit or None, branch or None, is_dirty=bool(changes))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=False,
            # Else `status` takes the repository's lock, under the feet of whoever works in it.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
