"""Loops that upload a page table while a kernel may read it; `record_planted.py` records them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from planted_loops import STEPS, Loop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from instrumented_runtime.devices import Buffer, Device, Kernel, Stream
from instrumented_runtime.marks import Marks

if TYPE_CHECKING:
    from torch import Tensor

# A page table of 125 KiB, and pages of which one kernel gathers nearly 2 GiB: about 0.5 ms on an
# H200. Of 2 GiB torch would make two kernels, and a marker speaks of one.
TABLE_ENTRIES = 16000
PAGE_ELEMENTS = 32768
READER_NS = 500_000
VERSIONS = 4


class Upload(NamedTuple):
    """How a program's copies are ordered with the reader before them, if at all.

    A copy may happen to run after its reader and yet not be ordered with it.
    """

    order: str | None
    runs_beside_reader: bool = False


UPLOADS = {
    "unordered-side-stream": Upload(None, runs_beside_reader=True),
    "unordered-blocking": Upload(None, runs_beside_reader=True),
    "unordered-late": Upload(None),
    "ordered-by-stream-sync": Upload("host-sync"),
    "ordered-by-event-sync": Upload("host-sync"),
    "ordered-by-event": Upload("event"),
    "ordered-by-stream": Upload("stream"),
}


class UploadLoop(Loop):
    """The programs of `UPLOADS`: each step reads the page table, then uploads a new one.

    The steps of an unordered program end with a device synchronise, so that no reader but that of
    the same step is in flight.
    """

    def __init__(self, device: Device, marks: Marks) -> None:
        super().__init__(device, marks)
        self._null = device.null_stream
        marks.stream(self._null)
        self._read, self._uploaded = self.device.event(), self.device.event()
        self._pages = self.device.allocate((VERSIONS, PAGE_ELEMENTS), "float32", "pages")
        self._table = self.device.allocate((TABLE_ENTRIES,), "int64", "table")
        self.gathered = self.device.allocate((TABLE_ENTRIES, PAGE_ELEMENTS), "float32", "gathered")
        self._pinned = self._new_tables(is_pinned=True)
        self._pageable = self._new_tables(is_pinned=False)
        pages = self.device.pinned((VERSIONS, PAGE_ELEMENTS), "float32", "new_pages")
        pages.on_host().copy_(torch.arange(VERSIONS)[:, None])
        self.version = 0
        # New memory is zeroed on the null stream, for which these streams do not wait.
        self.device.synchronize()
        self.device.copy_async(self._pages, pages, self.forward)
        self.device.copy_async(self._table, self._pinned[0], self.forward)
        self.device.synchronize()
        self.programs: dict[str, Callable[[], None]] = {
            "unordered-side-stream": self._unordered_side_stream,
            "unordered-blocking": self._unordered_blocking,
            "unordered-late": self._unordered_late,
            "ordered-by-stream-sync": self._ordered_by_stream_sync,
            "ordered-by-event-sync": self._ordered_by_event_sync,
            "ordered-by-event": self._ordered_by_event,
            "ordered-by-stream": self._ordered_by_stream,
        }

    def run(self) -> None:
        """Run every program."""
        for name, program in self.programs.items():
            with self.device.range(f"phase {name}"):
                for _ in range(STEPS):
                    with self.step(name):
                        program()
                self.device.synchronize()

    def _new_tables(self, *, is_pinned: bool) -> list[Buffer]:
        """Return a table of zeros, one of ones, and so on: nobody writes to them again."""
        shape, tables = (TABLE_ENTRIES,), []
        for version in range(VERSIONS):
            name = f"new_table_{version}"
            table = self.device.device.host_buffer(shape, "int64", pinned=is_pinned, name=name)
            table.on_host().fill_(version)
            self.device.marks.buffer(table)
            tables.append(table)
        return tables

    def _unordered_side_stream(self) -> None:
        self._reader()
        self._copy(self.side)
        self.device.synchronize()

    def _unordered_blocking(self) -> None:
        self._reader()
        # Torch's blocking copy, on the null stream, which waits for no nonblocking stream.
        copy, new = Kernel("copy_", 2000, _copy_and_wait), self._next(self._pageable)
        self.device.launch(copy, self._null, reads=(new,), writes=(self._table,))
        self.device.synchronize()

    def _unordered_late(self) -> None:
        self._reader()
        self.work(4 * READER_NS / 1e9)
        self._copy(self.side)
        self.device.synchronize()

    def _ordered_by_stream_sync(self) -> None:
        self._reader()
        self.forward.synchronize()
        self._copy(self.side)
        self.hand_over(self._uploaded, self.side, self.forward)

    def _ordered_by_event_sync(self) -> None:
        self._reader()
        self.device.record(self._read, self.forward)
        self.device.sync(self._read)
        self._copy(self.side)
        self.hand_over(self._uploaded, self.side, self.forward)

    def _ordered_by_event(self) -> None:
        self._reader()
        self.hand_over(self._read, self.forward, self.side)
        self._copy(self.side)
        self.hand_over(self._uploaded, self.side, self.forward)

    def _ordered_by_stream(self) -> None:
        self._reader()
        self._copy(self.forward)

    def _reader(self) -> None:
        gather, reads = Kernel("gather", READER_NS, _gather), (self._pages, self._table)
        self.device.launch(gather, self.forward, reads=reads, writes=(self.gathered,))

    def _copy(self, stream: Stream) -> None:
        self.device.copy_async(self._table, self._next(self._pinned), stream)

    def _next(self, tables: Sequence[Buffer]) -> Buffer:
        self.version = (self.version + 1) % VERSIONS
        return tables[self.version]


def _gather(pages: "Tensor", table: "Tensor", gathered: "Tensor") -> None:
    torch.index_select(pages, 0, table, out=gathered)


def _copy_and_wait(new: "Tensor", table: "Tensor") -> None:
    table.copy_(new)
