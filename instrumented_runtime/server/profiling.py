"""Profiled windows of a running server: a recorder on a virtual device, PyTorch's on a GPU."""

import gzip
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.marks import Marks, backend_named
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.recorder import Recorder, RecorderError

if TYPE_CHECKING:
    from instrumented_runtime.devices import Markers

COMMAND = "python -m instrumented_runtime.server"

Finish = Callable[[], list[Path]]


class Windows(Protocol):
    """Opens and closes windows, one at a time; both are called on the engine's thread."""

    def start(self, folder: Path) -> None:
        """Record from now on.

        Raises:
            RecorderError: A window is open, or a file of it is there already.
            OSError: The folder cannot be written to.
        """

    def stop(self) -> Finish:
        """Record no more; return what writes the files and names them, on any thread.

        Raises:
            RecorderError: No window is open.
        """

    @property
    def is_open(self) -> bool: ...


@dataclass(slots=True)
class VirtualWindows:
    """Each window is one rocpd database, `virtual_{number of the window}.db`.

    Attributes:
        device: What is recorded.
        marked: The same, as the engine drives it.
        marks: Go into the recording, and nowhere between windows.
    """

    device: VirtualDevice
    marked: MarkedDevice
    marks: Marks
    _recorder: Recorder | None = None
    _number: int = 0

    @property
    def is_open(self) -> bool:
        return self._recorder is not None

    def start(self, folder: Path) -> None:
        if self._recorder is not None:
            raise RecorderError("a window is open already; POST /stop_profile first")
        config = self.device.config
        recorder = Recorder(
            folder,
            pid=self._number + 1,
            seed=config.seed,
            environment=config.environment(),
            command=COMMAND,
        )
        self._number += 1
        self.device.start_recording(recorder)
        self._recorder = recorder
        self.marks.write_to(self.device)
        self.marked.declare()

    def stop(self) -> Finish:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            raise RecorderError("no window is open; POST /start_profile first")
        # What was launched in the window is in it to its end, unless the device is lost.
        with suppress(Exception):
            self.device.synchronize()
        self.marks.write_to(None)
        self.device.stop_recording()
        return lambda: [recorder.close()]


@dataclass(slots=True)
class TorchWindows:
    """Each window is one Kineto trace, `{pid}_{number of the window}.trace.json.gz`.

    Attributes:
        marked: The device, as the engine drives it.
        marks: Are ranges of PyTorch's profiler within a window.
        outside: Where they go between windows.
    """

    marked: MarkedDevice
    marks: Marks
    outside: "Markers | None" = None
    _profiler: Any = None
    _target: Path = field(default=Path())
    _number: int = 0

    @property
    def is_open(self) -> bool:
        return self._profiler is not None

    def start(self, folder: Path) -> None:
        if self._profiler is not None:
            raise RecorderError("a window is open already; POST /stop_profile first")
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile

        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{os.getpid()}_{self._number + 1}.trace.json.gz"
        if target.exists():
            raise RecorderError(f"{target}: exists; move it, or record elsewhere")
        profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True),
            # One cycle is all there is; without this it warns.
            acc_events=True,
        )
        profiler.start()
        self._profiler, self._target = profiler, target
        self._number += 1
        self.marks.write_to(backend_named("record_function"))
        self.marked.declare()

    def stop(self) -> Finish:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            raise RecorderError("no window is open; POST /start_profile first")
        with suppress(Exception):
            self.marked.synchronize()
        self.marks.write_to(self.outside)
        profiler.stop()
        target = self._target

        def finish() -> list[Path]:
            plain = target.with_suffix(".partial")
            profiler.export_chrome_trace(str(plain))
            packed = target.with_name(f"{target.name}.partial")
            with plain.open("rb") as source, gzip.open(packed, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            plain.unlink()
            packed.rename(target)
            return [target]

        return finish
