"""A device of torch.cuda, which is CUDA or ROCm alike.

Streams and the blocking copy come from the runtime library: torch's own streams are never
*blocking* (and the 33rd is the first again), and no call of torch copies on the null stream.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING

from instrumented_runtime.devices import (
    Buffer,
    Device,
    Kernel,
    Markers,
    Platform,
    Stream,
    StreamFlags,
)
from instrumented_runtime.devices.runtime_library import RuntimeLibrary, torch_with_gpu
from instrumented_runtime.devices.torch_memory import (
    TorchBuffer,
    copied_bytes,
    own_buffer,
    torch_dtype,
)

if TYPE_CHECKING:
    import torch

_CALIBRATION_CYCLES = 2_000_000


class TorchStream:
    """A stream, and what torch cannot say of it: its flags and its name.

    Its `priority` is the one granted: the runtime moves one that is out of its range into it.
    """

    def __init__(
        self, device: "TorchDevice", native: "torch.cuda.Stream", flags: StreamFlags, name: str
    ) -> None:
        self._device, self.native = device, native
        self.flags, self.name = flags, name
        self.handle: int = native.cuda_stream
        self.priority: int = native.priority

    def synchronize(self) -> None:
        self._device.refuse_in_capture("a stream synchronise")
        self.native.synchronize()


class TorchEvent:
    """An event without timing; the runtime makes it at its first record, so `handle` is 0 before.

    Recorded inside a capture it is an edge of that graph and no more: record it anew before the
    host, or work outside the graph, waits for it.
    """

    def __init__(self, device: "TorchDevice", native: "torch.cuda.Event") -> None:
        self._device, self._native = device, native

    @property
    def handle(self) -> int:
        handle: int = self._native.cuda_event
        return handle

    def record(self, stream: Stream) -> None:
        self._native.record(_own_stream(stream))

    def wait(self, stream: Stream) -> None:
        self._native.wait(_own_stream(stream))

    def query(self) -> bool:
        self._device.refuse_in_capture("an event query")
        return bool(self._native.query())

    def synchronize(self) -> None:
        self._device.refuse_in_capture("an event synchronise")
        self._native.synchronize()


class TorchGraph:
    """A captured graph; the buffers it uses live as long as it does, unless they are freed."""

    def __init__(self, device: "TorchDevice", native: "torch.cuda.CUDAGraph") -> None:
        self._device, self._native = device, native
        self.buffers: set[Buffer] = set()

    def replay(self, stream: Stream) -> None:
        with self._device.torch.cuda.stream(_own_stream(stream)):
            self._native.replay()


class TorchDevice:
    """One GPU that torch sees.

    A kernel's `function` gets tensors and runs under its stream, so any torch operation or Triton
    kernel will do. A kernel without one spins on a single thread for about `cost_ns`; the first
    such launch, or the first capture, calibrates that and holds the host for some milliseconds.
    """

    def __init__(self, index: int = 0, marker: Markers | None = None) -> None:
        """Take a GPU.

        Args:
            index: Which of those that torch sees.
            marker: Where `mark`, `push` and `pop` go; nowhere if None.

        Raises:
            RuntimeError: There is no torch or no such GPU, or torch's build hides its runtime.
        """
        self.torch = torch_with_gpu(index)
        self._index, self._marker = index, marker
        self._runtime = RuntimeLibrary(self.torch)
        self._capturing: TorchGraph | None = None
        self._handed_out: dict[int, int] = {}  # the most bytes ever handed out at an address
        self.name: str = self.torch.cuda.get_device_name(index)
        self.platform: Platform = "hip" if self.torch.version.hip else "cuda"
        self.null_stream = TorchStream(
            self, self.torch.cuda.default_stream(index), "null", "null stream"
        )

    @property
    def now_ns(self) -> int:
        return perf_counter_ns()

    def stream(
        self, *, flags: StreamFlags = "nonblocking", priority: int = 0, name: str = ""
    ) -> TorchStream:
        """Make a stream, which lives until the process ends: torch's allocator remembers it."""
        if flags == "null":
            return self.null_stream
        with self.torch.cuda.device(self._index):
            handle = self._runtime.new_stream(priority, is_blocking=flags == "blocking")
        native = self.torch.cuda.ExternalStream(handle, device=self._index)
        return TorchStream(self, native, flags, name)

    def event(self) -> TorchEvent:
        return TorchEvent(self, self.torch.cuda.Event())

    def allocate(
        self, shape: Sequence[int], dtype: str, *, stream: Stream | None = None, name: str = ""
    ) -> TorchBuffer:
        """Return memory of torch's caching allocator, as `Device.allocate` says.

        It counts as reused if as much was handed out at its address before. Inside a capture the
        zeroing becomes a node of the graph.
        """
        with self.torch.cuda.stream(_own_stream(stream or self.null_stream)):
            where, kind = f"cuda:{self._index}", torch_dtype(self.torch, dtype)
            tensor = self.torch.empty(tuple(shape), dtype=kind, device=where)
            buffer = TorchBuffer(tensor, "device", name)
            if buffer.size_bytes > self._handed_out.get(buffer.address, 0):
                tensor.zero_()
                self._handed_out[buffer.address] = buffer.size_bytes
        return buffer

    def free(self, buffer: Buffer) -> None:
        own_buffer(buffer).drop()

    def host_buffer(
        self, shape: Sequence[int], dtype: str, *, pinned: bool = False, name: str = ""
    ) -> TorchBuffer:
        kind = torch_dtype(self.torch, dtype)
        tensor = self.torch.zeros(tuple(shape), dtype=kind, pin_memory=pinned)
        return TorchBuffer(tensor, "pinned" if pinned else "pageable", name)

    def launch(
        self,
        kernel: Kernel,
        stream: Stream,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
    ) -> None:
        tensors = [own_buffer(buffer).tensor for buffer in (*reads, *writes)]
        self._keep_for_replay(*reads, *writes)
        if kernel.function is None:
            cycles = round(kernel.cost_ns * self._cycles_per_ns)
            with self.torch.cuda.stream(_own_stream(stream)):
                self.torch.cuda._sleep(cycles)
        else:
            with self.torch.cuda.stream(_own_stream(stream)):
                kernel.function(*tensors)

    def copy(self, destination: Buffer, source: Buffer, *, size_bytes: int | None = None) -> None:
        """Copy by `cudaMemcpy` or `hipMemcpy`, on the null stream; the runtime holds the host.

        CUDA's does not hold it for a copy inside device memory; from pageable memory, it may return
        when it has read the source.
        """
        self.refuse_in_capture("a blocking copy")
        to, of = copied_bytes(self.torch, destination, source, size_bytes)
        with self.torch.cuda.device(self._index):
            self._runtime.copy(to.data_ptr(), of.data_ptr(), to.nbytes)

    def copy_async(
        self,
        destination: Buffer,
        source: Buffer,
        stream: Stream,
        *,
        size_bytes: int | None = None,
    ) -> None:
        if "pageable" in (destination.place, source.place):
            self.refuse_in_capture("a copy of pageable memory")
        to, of = copied_bytes(self.torch, destination, source, size_bytes)
        self._keep_for_replay(destination, source)
        with self.torch.cuda.stream(_own_stream(stream)):
            # Not the runtime's call: torch also keeps pinned memory from reuse until it is done.
            to.copy_(of, non_blocking=True)

    @contextmanager
    def capture(self, stream: Stream, *, name: str = "") -> Iterator[TorchGraph]:
        """Capture as `Device.capture` says; memory allocated inside is the graph's own.

        Raises:
            RuntimeError: Inside, as `Device.capture` says. On entry: it is the null stream, or a
                capture is under way. On exit: a stream joined the capture and was not waited for.
        """
        self.refuse_in_capture(f"another capture ({name or 'unnamed'})")
        if stream.handle == 0:
            raise RuntimeError("the null stream cannot be captured: use one that stream() made")
        _ = self._cycles_per_ns  # cannot be measured inside
        native = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.stream(_own_stream(stream)):
            native.capture_begin(capture_error_mode="thread_local")
            self._capturing = TorchGraph(self, native)
            try:
                yield self._capturing
            except BaseException:
                with suppress(RuntimeError):  # a void capture; the first error says why
                    native.capture_end()
                raise
            else:
                native.capture_end()
            finally:
                self._capturing = None

    def elapse(self, kind: str, count: int = 1) -> None:
        """Do nothing: here the host's work takes its own time."""

    def synchronize(self) -> None:
        self.refuse_in_capture("a device synchronise")
        self.torch.cuda.synchronize(self._index)

    def mark(self, text: str) -> None:
        if self._marker is not None:
            self._marker.mark(text)

    def push(self, text: str) -> None:
        if self._marker is not None:
            self._marker.push(text)

    def pop(self) -> None:
        if self._marker is not None:
            self._marker.pop()

    def refuse_in_capture(self, what: str) -> None:
        """Refuse before the runtime does, whose refusal voids the capture."""
        if self._capturing is not None:
            raise RuntimeError(f"a capture cannot hold {what}: do it before or after")

    def _keep_for_replay(self, *buffers: Buffer) -> None:
        if self._capturing is not None:
            self._capturing.buffers.update(buffers)

    @cached_property
    def _cycles_per_ns(self) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(self.stream(name="calibration").native):
            cuda._sleep(10 * _CALIBRATION_CYCLES)  # an idle clock is slow
            start.record()
            cuda._sleep(_CALIBRATION_CYCLES)
            end.record()
        end.synchronize()
        return _CALIBRATION_CYCLES / (float(start.elapsed_time(end)) * 1e6)


def _own_stream(stream: Stream) -> "torch.cuda.Stream":
    if not isinstance(stream, TorchStream):
        raise TypeError(f"stream {stream.name!r} belongs to a {type(stream).__name__}'s device")
    return stream.native


if TYPE_CHECKING:
    _DEVICE: type[Device] = TorchDevice
