"""Launches the kernels of a stage, those of compressors perhaps on side streams."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby

from instrumented_runtime.compressor.overlap import SideStreams
from instrumented_runtime.costs import BY_PLAN, KernelTime, Part
from instrumented_runtime.devices import Buffer, Kernel, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

# What a kernel does: its function, what it reads, what it writes.
Work = tuple[Callable[..., None] | None, Sequence[Buffer], Sequence[Buffer]]
_TIME_ONLY: Work = (None, (), ())
_PLANNED = {kernel.role for kernel in BY_PLAN}


class Stages:
    """Launches the kernels of a stage, each with its time and with what it does."""

    def __init__(self, device: MarkedDevice, *, computes: bool = True) -> None:
        """Launch on a device; if nothing is computed, kernels only do what plans make them do."""
        self._device, self._computes = device, computes
        self._kernels: dict[tuple[object, ...], Kernel] = {}

    def launch(
        self,
        kernels: Sequence[KernelTime],
        cost: Callable[[KernelTime], int],
        does: dict[str, list[Work]],
        stream: Stream,
        *,
        sides: SideStreams | None = None,
        sensitivity: Callable[[KernelTime], float] | None = None,
    ) -> None:
        """Launch a stage.

        Args:
            kernels: Of the stage, in order.
            cost: Time of one in nanoseconds.
            does: By role, what the first kernels of that role do; the others only take time.
            stream: Where.
            sides: Where compressors run beside the rest; None keeps all in order on one stream.
            sensitivity: Of one kernel, as `Kernel.sensitivity`; none if None.
        """
        left = {role: iter(items) for role, items in does.items()}

        def launch(some: Iterable[KernelTime], on: Stream) -> None:
            for kernel in some:
                function, reads, writes = next(left.get(kernel.role, iter(())), _TIME_ONLY)
                if not self._computes and kernel.role not in _PLANNED:
                    function = None
                share = sensitivity(kernel) if sensitivity else 0.0
                one = self.kernel(kernel.name, cost(kernel), function, share)
                self._device.launch(one, on, reads, writes)

        if sides is None:
            launch(kernels, stream)
            return
        for is_before_attention, some in groupby(kernels, lambda kernel: bool(kernel.part)):
            if is_before_attention:
                _launch_beside(list(some), launch, stream, sides)
            else:
                launch(some, stream)

    def kernel(
        self,
        name: str,
        cost_ns: int,
        function: Callable[..., None] | None = None,
        sensitivity: float = 0.0,
    ) -> Kernel:
        """Return the kernel of all these; one each, since a device keeps all."""
        key = (name, cost_ns, function, sensitivity)
        if key not in self._kernels:
            self._kernels[key] = Kernel(*key)
        return self._kernels[key]


def _launch_beside(
    kernels: Sequence[KernelTime],
    launch: Callable[[Iterable[KernelTime], Stream], None],
    stream: Stream,
    sides: SideStreams,
) -> None:
    """Launch what one layer computes before attention, its compressors on side streams."""

    def of(part: Part) -> list[KernelTime]:
        return [kernel for kernel in kernels if kernel.part == part]

    jobs = [partial(launch, of(part)) for part in ("core", "indexer") if of(part)]
    sides.beside(stream, jobs, lambda: launch(of("qkv"), stream))
    launch(of("select"), stream)
