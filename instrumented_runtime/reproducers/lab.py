"""Devices to run modes on: a new one each, recorded if a folder for traces is given."""

import contextlib
import gzip
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from instrumented_runtime.devices import Device
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.marks import Marks, backend_named
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.recorder import Recorder

Kind = Literal["virtual", "torch"]


class Lab:
    """Where the modes of one reproducer run.

    Attributes:
        kind: Of device.
        folder: Where traces go, one folder per mode; None for none.
    """

    def __init__(self, kind: Kind, folder: Path | None = None) -> None:
        """Run on a kind of device.

        Raises:
            RuntimeError: There is no such device here; says what is missing.
            ValueError: HIP's environment variables ask for what no virtual device can be.
        """
        self.kind, self.folder = kind, folder
        if kind == "torch":
            TorchDevice()
        else:
            Config.from_environment(os.environ)

    @property
    def is_model(self) -> bool:
        """Whether no figure is a measurement."""
        return self.kind == "virtual"

    @contextlib.contextmanager
    def mode(
        self, name: str, options: Mapping[str, object] | None = None
    ) -> Iterator[MarkedDevice]:
        """Give a mode its device, and record what it does there.

        Args:
            name: Of the mode.
            options: Of the virtual device, beside what HIP's environment variables ask for, see
                `Config.from_environment`; others are what they are.

        Raises:
            FileExistsError: A trace of that mode is there already.
        """
        if self.kind == "torch":
            with _on_torch(self._new_folder(name)) as (device, marks):
                yield MarkedDevice(device, marks)
            return
        config = Config.from_environment(os.environ, **(options or {}))
        with self.recording(name, config.environment()) as recorder:
            virtual = VirtualDevice(config, recorder)
            yield MarkedDevice(virtual, Marks(virtual if recorder else None))

    @contextlib.contextmanager
    def recording(self, name: str, environment: Mapping[str, str]) -> Iterator[Recorder | None]:
        """Give a mode what records a virtual device; None if no trace is asked for.

        Args:
            name: Of the mode.
            environment: What the trace is to say of the process's environment.

        Raises:
            FileExistsError: A trace of that mode is there already.
        """
        folder = self._new_folder(name)
        if folder is None:
            yield None
            return
        with Recorder(folder, environment=environment) as recorder:
            yield recorder

    def refuse_taken(self, modes: Iterable[str]) -> None:
        """Refuse folders that modes cannot be recorded in, before any of them runs.

        Raises:
            FileExistsError: A trace of one is there already.
            NotADirectoryError: The folder for traces is a file.
        """
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder}: is a file; name a folder")
        for mode in modes:
            self._new_folder(mode)

    def _new_folder(self, name: str) -> Path | None:
        folder = None if self.folder is None else self.folder / name
        if folder and folder.is_dir() and any(folder.iterdir()):
            raise FileExistsError(f"{folder}: holds files and is not overwritten; move it first")
        return folder


def work(device: MarkedDevice, kind: str, time_ns: int) -> None:
    """Keep the host busy: in virtual time by what `kind` costs there, else for so long."""
    with device.range(kind):
        if isinstance(device.device, VirtualDevice):
            device.elapse(kind)
            return
        until_ns = time.perf_counter_ns() + time_ns
        while time.perf_counter_ns() < until_ns:
            pass


@contextlib.contextmanager
def _on_torch(folder: Path | None) -> Iterator[tuple[Device, Marks]]:
    if folder is None:
        yield TorchDevice(), Marks()
        return
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    config = _ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(activities=activities, experimental_config=config) as profiler:
        device = TorchDevice()
        yield device, Marks(backend_named("record_function"))
        device.synchronize()
    plain = folder / "trace.json"
    profiler.export_chrome_trace(str(plain))
    (folder / "trace.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
