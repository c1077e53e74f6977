"""A device that does everything at the call: one legal order of any program, and the simplest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import torch

# Of streams and events, and where buffers lie.
_NUMBERS = count(0x1000, 0x1000)


@dataclass(eq=False)
class InOrderBuffer:
    name: str
    place: str
    tensor: torch.Tensor
    address: int = field(default_factory=lambda: next(_NUMBERS))

    @property
    def size_bytes(self) -> int:
        return self.tensor.nbytes

    def on_host(self) -> torch.Tensor:
        if self.place == "device":
            raise ValueError(f"{self.name}: device memory")
        return self.tensor


@dataclass(eq=False)
class InOrderStream:
    flags: str
    name: str = ""
    handle: int = field(default_factory=lambda: next(_NUMBERS))

    def synchronize(self) -> None:
        pass


class InOrderEvent:
    def __init__(self) -> None:
        self.handle = next(_NUMBERS)

    def record(self, stream: InOrderStream) -> None:
        pass

    def wait(self, stream: InOrderStream) -> None:
        pass

    def synchronize(self) -> None:
        pass


@dataclass(eq=False)
class InOrderGraph:
    work: list[Callable[[], None]] = field(default_factory=list)

    def replay(self, stream: InOrderStream) -> None:
        for each in self.work:
            each()


class InOrderDevice:
    now_ns = 0

    def __init__(self, platform: str = "hip") -> None:
        self.platform = platform
        self.null_stream = InOrderStream("null", handle=0)
        self.graph: InOrderGraph | None = None

    def stream(self, *, flags="nonblocking", priority=0, name="") -> InOrderStream:
        return InOrderStream(flags, name)

    def event(self) -> InOrderEvent:
        return InOrderEvent()

    def allocate(self, shape, dtype, *, stream=None, name="") -> InOrderBuffer:
        return InOrderBuffer(name, "device", torch.zeros(*shape, dtype=getattr(torch, dtype)))

    def host_buffer(self, shape, dtype, *, pinned=False, name="") -> InOrderBuffer:
        place = "pinned" if pinned else "pageable"
        return InOrderBuffer(name, place, torch.zeros(*shape, dtype=getattr(torch, dtype)))

    def launch(self, kernel, stream, reads=(), writes=()) -> None:
        if kernel.function is not None:
            self._do(lambda: kernel.function(*[buffer.tensor for buffer in (*reads, *writes)]))

    def copy(self, destination, source) -> None:
        def work() -> None:
            to, of = destination.tensor.flatten(), source.tensor.flatten()
            length = min(len(to), len(of))
            to[:length] = of[:length]

        self._do(work)

    def copy_async(self, destination, source, stream) -> None:
        self.copy(destination, source)

    @contextmanager
    def capture(self, stream, *, name="") -> Iterator[InOrderGraph]:
        self.graph = InOrderGraph()
        yield self.graph
        self.graph = None

    def elapse(self, kind, count=1) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def _do(self, work: Callable[[], object]) -> None:
        if self.graph is None:
            work()
        else:
            self.graph.work.append(work)
