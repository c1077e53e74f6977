"""A device that does everything at the call: one legal order of any program, and the simplest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class InOrderBuffer:
    name: str
    place: str
    tensor: torch.Tensor

    def on_host(self) -> torch.Tensor:
        if self.place == "device":
            raise ValueError(f"{self.name}: device memory")
        return self.tensor


@dataclass(eq=False)
class InOrderStream:
    flags: str

    def synchronize(self) -> None:
        pass


class InOrderEvent:
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
    def __init__(self) -> None:
        self.null_stream = InOrderStream("null")
        self.graph: InOrderGraph | None = None

    def stream(self, *, flags="nonblocking", priority=0, name="") -> InOrderStream:
        return InOrderStream(flags)

    def event(self) -> InOrderEvent:
        return InOrderEvent()

    def allocate(self, shape, dtype, *, stream=None, name="") -> InOrderBuffer:
        return InOrderBuffer(name, "device", torch.zeros(*shape, dtype=getattr(torch, dtype)))

    def host_buffer(self, shape, dtype, *, pinned=False, name="") -> InOrderBuffer:
        place = "pinned" if pinned else "pageable"
        return InOrderBuffer(name, place, torch.zeros(*shape, dtype=getattr(torch, dtype)))

    def launch(self, kernel, stream, reads=(), writes=()) -> None:
        self._do(lambda: kernel.function(*[buffer.tensor for buffer in (*reads, *writes)]))

    def copy(self, destination, source) -> None:
        self._do(lambda: destination.tensor.copy_(source.tensor))

    def copy_async(self, destination, source, stream) -> None:
        self._do(lambda: destination.tensor.copy_(source.tensor))

    @contextmanager
    def capture(self, stream, *, name="") -> Iterator[InOrderGraph]:
        self.graph = InOrderGraph()
        yield self.graph
        self.graph = None

    def synchronize(self) -> None:
        pass

    def _do(self, work: Callable[[], object]) -> None:
        if self.graph is None:
            work()
        else:
            self.graph.work.append(work)
