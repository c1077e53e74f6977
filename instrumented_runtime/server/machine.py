"""Makes what the engine's thread drives."""

from typing import TYPE_CHECKING

from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks, backend_named
from instrumented_runtime.server.engine_thread import Machine
from instrumented_runtime.server.options import Options
from instrumented_runtime.server.profiling import TorchWindows, VirtualWindows

if TYPE_CHECKING:
    from instrumented_runtime.devices import Device


def machine_of(options: Options) -> Machine:
    """Make device and engine, on the thread that is to drive them.

    Raises:
        ValueError: They do not fit.
        RuntimeError: There is no GPU that torch can use, or markers cannot be written.
        ImportError: There is no torch.
    """
    if options.virtual is None:
        return _on_gpu(options)
    if options.virtual.tensors:
        import torch

        # Tensors are tiny: threads would only wait for each other.
        torch.set_num_threads(1)
    device, marks = VirtualDevice(options.virtual), Marks()
    engine = _engine(options, device, marks)
    windows = VirtualWindows(device, engine.launcher.device, marks)
    return Machine(engine, device, windows, options.has_overlap, options.pace)


def _on_gpu(options: Options) -> Machine:
    from instrumented_runtime.devices.torch_device import TorchDevice
    from instrumented_runtime.marks import BackendError

    try:
        outside = backend_named(options.markers)
    except BackendError as problem:
        raise RuntimeError(str(problem)) from None
    device, marks = TorchDevice(), Marks(outside)
    engine = _engine(options, device, marks)
    windows = TorchWindows(engine.launcher.device, marks, outside)
    return Machine(engine, device, windows, options.has_overlap)


def _engine(options: Options, device: "Device", marks: Marks) -> Engine:
    return Engine(
        device,
        options.engine,
        costs=options.costs,
        marks=marks,
        has_overlap=options.has_overlap,
    )
