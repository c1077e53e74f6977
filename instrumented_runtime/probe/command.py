"""Probe the device of this machine: see `--help`."""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from instrumented_runtime.console import print_lines, say, what_keeps_from_writing, write_new
from instrumented_runtime.devices import Device
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.probe import (
    blocking_copies,
    concurrency,
    copy_rates,
    forks,
    launches,
    pending_waits,
)
from instrumented_runtime.probe.medians import LEVEL, METHOD
from instrumented_runtime.probe.report import SCHEMA, as_json, table

PROBES = (
    pending_waits.PROBE,
    forks.PROBE,
    concurrency.PROBE,
    blocking_copies.PROBE,
    copy_rates.PROBE,
    launches.PROBE,
)
REPETITIONS = 25
# What changes queues, waits and copies; nothing else of the environment is written anywhere.
_VARIABLES = (
    "AMD_DIRECT_DISPATCH",
    "AMD_SERIALIZE_COPY",
    "AMD_SERIALIZE_KERNEL",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "DEBUG_CLR_DISABLE_ORDERING_EDGE",
    "DEBUG_HIP_DYNAMIC_QUEUES",
    "DEBUG_HIP_FORCE_GRAPH_QUEUES",
    "GPU_MAX_HW_QUEUES",
    "HIP_GRAPH_DEVICE_SIGNALS",
    "HIP_LAUNCH_BLOCKING",
    "ROC_ACTIVE_WAIT_TIMEOUT",
    "ROC_CPU_WAIT_FOR_SIGNAL",
)
_DRIVERS = (Path("/sys/module/amdgpu/version"), Path("/sys/module/nvidia/version"))


@dataclass(frozen=True, slots=True)
class Machine:
    """The device, and what is known of it."""

    device: Device
    is_model: bool
    versions: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {
            "name": self.device.name,
            "platform": self.device.platform,
            "is_model": self.is_model,
            "versions": dict(self.versions),
            "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        }

    def lines(self) -> list[str]:
        """Return it as text."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        known = self.as_json()["environment"]
        lines = [f"{self.device.name} ({self.device.platform})" + (versions and f", {versions}")]
        if self.is_model:
            lines.append("A model of a device: no figure here is a measurement of one.")
        if isinstance(known, dict) and known:
            lines.append(" ".join(f"{name}={value}" for name, value in known.items()))
        return [*lines, ""]


def main() -> int:
    """Measure everything; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m instrumented_runtime.probe",
        description="Measure what the device of this machine costs and orders, without a profiler.",
    )
    parser.add_argument("--device", choices=["virtual", "torch"], default="virtual")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all of it to a file that is not there"
    )
    arguments = parser.parse_args()
    if arguments.json and (problem := what_keeps_from_writing(arguments.json)):
        parser.error(problem)
    try:
        machine = _virtual() if arguments.device == "virtual" else _torch()
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    return _measure(machine, arguments.json)


def _measure(machine: Machine, file: Path | None) -> int:
    is_read = print_lines(machine.lines())
    results = []
    for probe in PROBES:
        say(f"{probe.name}: {REPETITIONS} repetitions")
        findings = probe.run(machine.device, REPETITIONS)
        results.append(as_json(probe, findings))
        is_read = is_read and print_lines(table(probe, findings))
        if not (is_read or file):
            return 141
    if file:
        content = {
            "schema": SCHEMA,
            "device": machine.as_json(),
            "interval": {"level": LEVEL, "method": METHOD},
            "probes": results,
        }
        if not write_new(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n"):
            return 2
    is_read = is_read and print_lines([f"Intervals: {METHOD}."])
    return 0 if is_read else 141


def _virtual() -> Machine:
    """Return the virtual device as HIP's environment variables ask for it."""
    config = Config.from_environment(os.environ, tensors=False)
    return Machine(VirtualDevice(config), is_model=True, versions={"ROCm modelled": config.rocm})


def _torch() -> Machine:
    device = TorchDevice()
    versions = {"torch": device.torch.__version__}
    runtime = device.torch.version.hip or device.torch.version.cuda
    versions["HIP" if device.platform == "hip" else "CUDA"] = str(runtime)
    for path in _DRIVERS:
        if path.is_file():
            versions[f"{path.parent.name} driver"] = path.read_text().strip()
    return Machine(device, is_model=False, versions=versions)
