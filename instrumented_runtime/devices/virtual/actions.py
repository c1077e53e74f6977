"""What a kernel does to tensors when it runs, and how the device is lost by it."""

from collections.abc import Callable, Sequence
from typing import cast

from instrumented_runtime.devices import Buffer, Kernel, RowOutOfBoundsError
from instrumented_runtime.devices.virtual.host import Host
from instrumented_runtime.devices.virtual.memory import Memory
from instrumented_runtime.devices.virtual.packets import Action


def kernel_action(kernel: Kernel, buffers: Sequence[Buffer], memory: Memory, host: Host) -> Action:
    """Return what runs a kernel's function on the tensors of buffers.

    Raises:
        ValueError: A buffer is freed or another device's.
    """
    function = cast(Callable[..., None], kernel.function)
    mine = [memory.own(buffer) for buffer in buffers]
    tensors = [buffer.tensor for buffer in mine]

    def action() -> None:
        try:
            function(*tensors)
        except RowOutOfBoundsError as error:
            host.lost = memory.fault(kernel.name, mine, error)
            raise host.lost from error
        except Exception as error:
            error.add_note(f"in kernel {kernel.name}; the virtual device is lost")
            host.lost = error
            raise

    return action
