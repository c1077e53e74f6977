"""The thin device interface: streams, events, graphs, copies, memory and host time.

Two implementations: `torch_device` (torch.cuda, so CUDA and ROCm alike) and `virtual` (a model of a
HIP device in virtual time, for machines without one and for known truths). Host code runs for real
and in order on both. One host thread drives a device.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

StreamFlags = Literal["blocking", "nonblocking", "null"]
Place = Literal["device", "pinned", "pageable"]
Platform = Literal["hip", "cuda"]

DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel that can be launched on either device.

    Attributes:
        name: Name in traces.
        cost_ns: How long it runs alone on the virtual device; a real device ignores it.
        function: Does the work on tensors: first those it reads, then those it writes, in the order
            of the launch. None where only time counts.
        sensitivity: How much longer it runs per kernel that runs beside it, as a share: 0.4 runs
            1.4 × as long beside one other. A real device ignores it.
    """

    name: str
    cost_ns: int
    function: Callable[..., None] | None = None
    sensitivity: float = 0.0


class Buffer(Protocol):
    """Memory of a device or of the host."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> Place: ...
    @property
    def address(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...

    def on_host(self) -> "Tensor":
        """Return the tensor, for the host to read or write now; not for device memory.

        Raises:
            ValueError: It is device memory, or the device runs without tensors.
        """


class Stream(Protocol):
    """An in-order queue of work."""

    @property
    def handle(self) -> int:
        """The `hipStream_t` or `cudaStream_t`; 0 is the null stream."""

    @property
    def flags(self) -> StreamFlags: ...
    @property
    def priority(self) -> int: ...
    @property
    def name(self) -> str: ...

    def synchronize(self) -> None:
        """Block the host until everything queued so far is done."""


class Event(Protocol):
    """A mark in one stream that the host, or another stream, can wait for.

    A record made inside a capture counts for that graph only.
    """

    @property
    def handle(self) -> int:
        """The `hipEvent_t` or `cudaEvent_t`; on a real device 0 before the first record."""

    def record(self, stream: Stream) -> None: ...

    def wait(self, stream: Stream) -> None:
        """Make a stream wait for the last record; nothing if there was none."""

    def query(self) -> bool:
        """Whether the last record is done; true if there was none."""

    def synchronize(self) -> None:
        """Block the host until the last record is done."""


class Graph(Protocol):
    """Captured work, replayed by one call."""

    def replay(self, stream: Stream) -> None:
        """Launch all of it, in stream order; it may be replayed while it still runs."""


class Markers(Protocol):
    """Where markers go: whatever the trace of this process records."""

    def mark(self, text: str) -> None:
        """Write an instant."""

    def push(self, text: str) -> None:
        """Open a range on this thread."""

    def pop(self) -> None:
        """Close the innermost range of this thread."""


class Device(Markers, Protocol):
    """What the engine runs on."""

    @property
    def name(self) -> str: ...
    @property
    def platform(self) -> Platform: ...
    @property
    def null_stream(self) -> Stream: ...
    @property
    def now_ns(self) -> int:
        """The host's clock, monotonic: virtual, or the machine's own."""

    def stream(
        self, *, flags: StreamFlags = "nonblocking", priority: int = 0, name: str = ""
    ) -> Stream:
        """Return a new stream, or the null stream for `null`; lower priorities come first."""

    def event(self) -> Event: ...

    def allocate(
        self, shape: Sequence[int], dtype: str, *, stream: Stream | None = None, name: str = ""
    ) -> Buffer:
        """Return device memory; new memory is zero, reused memory is as it was left.

        Args:
            shape: Elements per dimension.
            dtype: One of `DTYPE_BYTES`.
            stream: Stream that owns it: freed memory goes back to the same stream at once, to
                others never. The null stream if None.
            name: Name in markers and faults.
        """

    def free(self, buffer: Buffer) -> None:
        """Give device memory back to the stream that owns it.

        Raises:
            ValueError: It is host memory.
        """

    def host_buffer(
        self, shape: Sequence[int], dtype: str, *, pinned: bool = False, name: str = ""
    ) -> Buffer:
        """Return host memory, zero; `pinned` is what the device can copy while the host runs on."""

    def launch(
        self,
        kernel: Kernel,
        stream: Stream,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
    ) -> None:
        """Queue a kernel; its function gets the tensors of `reads`, then of `writes`.

        Raises:
            ValueError: A buffer is freed or another device's.
        """

    def copy(self, destination: Buffer, source: Buffer, *, size_bytes: int | None = None) -> None:
        """Copy as `hipMemcpy` does: on the null stream, and the host waits for it.

        The null stream is ordered with *blocking* streams only. For a copy from device to device
        the host does not wait.

        Args:
            destination: Where to.
            source: Where from.
            size_bytes: From the start of both; all of the smaller one if None.

        Raises:
            ValueError: Both sides are host memory, or one is smaller than `size_bytes`.
        """

    def copy_async(
        self,
        destination: Buffer,
        source: Buffer,
        stream: Stream,
        *,
        size_bytes: int | None = None,
    ) -> None:
        """Copy as `hipMemcpyAsync` does: in stream order.

        From pageable memory the bytes are taken before it returns; to pageable memory it returns
        when they are there.

        Raises:
            ValueError: As `copy`.
        """

    def capture(self, stream: Stream, *, name: str = "") -> AbstractContextManager[Graph]:
        """Capture what is queued on a stream, and on streams that wait for its events.

        Raises:
            RuntimeError: Inside, on what a capture cannot hold: a synchronise, a query, a blocking
                copy.
        """

    def elapse(self, kind: str, count: int = 1) -> None:
        """Let the host work: `count` times what `kind` costs. A real device ignores it."""

    def synchronize(self) -> None:
        """Block the host until every stream is done."""


class MemoryFault(RuntimeError):
    """A kernel touched memory that is not its own; the device is lost.

    Attributes:
        kernel: Name of the kernel.
        address: The address it touched.
        nearest: Name of the buffer nearest to it, and where that lies.
    """

    def __init__(self, kernel: str, address: int, nearest: str) -> None:
        """Say what touched which address, and what is near."""
        super().__init__(
            f"Memory access fault: {kernel} touched address {address:#x}; nearest is {nearest}"
        )
        self.kernel, self.address, self.nearest = kernel, address, nearest


class RowOutOfBoundsError(IndexError):
    """A kernel stored to a row that its tensor does not have."""

    def __init__(self, target: "Tensor", row: int) -> None:
        """Keep the tensor and the row, from which the device finds the address."""
        super().__init__(f"row {row} of {tuple(target.shape)}")
        self.target, self.row = target, row


def store_rows(target: "Tensor", rows: "Tensor", values: "Tensor") -> None:
    """Write `target[rows] = values`, for kernels whose rows come from device memory.

    On a device of torch a row out of bounds is the device's own fault; on CPU tensors it is found
    here, negative ones too, which indexing would take from the end.

    Args:
        target: `[num_rows, …]`, device.
        rows: `[n]` integers, device.
        values: `[n, …]`, device.

    Raises:
        RowOutOfBoundsError: A row is out of bounds; the virtual device makes a `MemoryFault` of it.
    """
    if not target.is_cuda:
        refuse_rows(target, rows)
    target[rows.long()] = values


def refuse_rows(tensor: "Tensor", rows: "Tensor") -> None:
    """Refuse rows that a CPU tensor does not have.

    Raises:
        RowOutOfBoundsError: Of the first of them.
    """
    outside = rows[(rows < 0) | (rows >= tensor.shape[0])]
    if len(outside):
        raise RowOutOfBoundsError(tensor, int(outside[0]))
