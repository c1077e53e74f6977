"""Rows of a spool as rows of a rocpd file, as rocprofv3 writes them.

An operation whose call is not in the spool is kept. Its call may have been cut off by a kill while
the operation was already on disk; the GPU did that work all the same, and rocprofv3 itself has
operations without a call where the call was made before recording began. Such an operation has the
number of its call as stack id, which then joins nothing, and belongs to the main thread. A call
whose operations were cut off is kept likewise.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.recorder.description import (
    CPU,
    GPU,
    NODE,
    Seen,
    describe,
    kernel_address,
)
from instrumented_runtime.recorder.layout import (
    API_NUMBERS,
    APIS,
    DIRECTIONS,
    TABLES,
    ArgumentForm,
)
from instrumented_runtime.recorder.schema import RocpdTables
from instrumented_runtime.recorder.spool import Spool

# Rows turned into Python objects at a time.
SLICE = 100_000

CATEGORIES = {
    "calls": "HIP_RUNTIME_API_EXT",
    "markers": "MARKER_CORE_RANGE_API",
    "dispatches": "KERNEL_DISPATCH",
    "copies": "MEMORY_COPY",
    "allocations": "MEMORY_ALLOCATION",
}
COPY_NAMES = {
    "HostToDevice": "MEMORY_COPY_HOST_TO_DEVICE",
    "DeviceToHost": "MEMORY_COPY_DEVICE_TO_HOST",
    "DeviceToDevice": "MEMORY_COPY_DEVICE_TO_DEVICE",
}
MARK, RANGE = "roctxMarkA", "roctxThreadRangeA"
_ENDS = {"HostToDevice": (GPU, CPU), "DeviceToHost": (CPU, GPU), "DeviceToDevice": (GPU, GPU)}


def _pointer(value: int) -> str:
    return hex(value) if value else "0"


# Arguments as the profiler prints them.
_PRINTED: dict[ArgumentForm, Callable[[int], str]] = {
    "pointer": _pointer,
    "number": str,
    "dimensions": "{{z=1, y=1, x={}}}".format,
    "direction": lambda value: DIRECTIONS[value],
    "function": lambda value: hex(kernel_address(value)),
}
_ARGUMENTS = [[(kind, name, _PRINTED[form]) for name, kind, form in api.arguments] for api in APIS]
_FIRST_ARGUMENT = TABLES["calls"].index("a0")


class RocpdRows:
    """Writes one spool's rows into tables that exist."""

    def __init__(
        self, tables: RocpdTables, spool: Spool, progress: Callable[[int, int], None]
    ) -> None:
        """Take what to write and where to; `progress` is told rows done and rows in all."""
        self._tables, self._spool, self._progress = tables, spool, progress
        self._pid: int = spool.process["pid"]
        texts = ("", *CATEGORIES.values(), *COPY_NAMES.values(), MARK, RANGE)
        texts += tuple(api.name for api in APIS)
        self._strings = {text: number for number, text in enumerate(sorted(texts), 1)}
        self._owner = {"nid": int(NODE["id"]), "pid": self._pid}
        self._seen = Seen({self._pid})
        self._tracks: dict[tuple[int, str], int] = {}
        self._events = self._done = self._without_call = 0
        self._total = sum(len(rows) for rows in spool.rows.values())
        # Per call number, where 0 is no call: its thread, and whether it allocates on the host.
        self._calls_before: int = spool.process.get("first_call", 1) - 1
        last = max(int(spool.rows["calls"][:, 0].max(initial=0)) - self._calls_before, 0)
        self._thread_of_call = np.zeros(last + 1, np.int64)
        self._on_host = np.zeros(last + 1, np.bool_)

    def write(self) -> int:
        """Write everything; returns how many operations have no call.

        Holds one slice of rows, and per call and row about 30 bytes. Rows are taken in order of
        their call, within one call as they were recorded.
        """
        # In the order in which the profiler numbers events.
        for table, write in (
            ("calls", self._calls),
            ("markers", self._markers),
            ("dispatches", self._dispatches),
            ("copies", self._copies),
            ("allocations", self._allocations),
        ):
            first = 1
            for rows in self._slices(table):
                write(rows, first)
                first += len(rows)
        self._write_referred()
        return self._without_call

    def _slices(self, table: str) -> Iterator[NDArray[np.int64]]:
        rows = self._spool.rows[table]
        numbers = rows[:, 0]
        order = None
        if np.any(numbers[1:] < numbers[:-1]):
            order = np.argsort(numbers, kind="stable")
        start, end = (TABLES[table].index(name) for name in ("start", "end"))
        for first in range(0, len(rows), SLICE):
            here: Any = slice(first, first + SLICE)
            part = np.asarray(rows[here if order is None else order[here]])
            self._done += len(part)
            self._progress(self._done, self._total)
            if self._calls_before and not len(part := self._of_window(part)):
                continue
            self._seen.span(int(part[:, start].min()), int(part[:, end].max()))
            yield part

    def _of_window(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what calls of the window did, those numbered from 1; count the rest.

        A profiler takes what it has seen begin: an operation whose call was made before is lost.
        """
        mine = rows[rows[:, 0] > self._calls_before]
        self._seen.rows_before_window += len(rows) - len(mine)
        mine[:, 0] -= self._calls_before
        return mine

    def _add_events(
        self, table: str, calls: NDArray[np.int64], parent: bool, extdata: Iterable[str] = ()
    ) -> range:
        """Add one event per row and return their ids."""
        ids = range(self._events + 1, self._events + 1 + len(calls))
        self._events += len(calls)
        stacks = calls.tolist()
        fixed = {"category_id": self._strings[CATEGORIES[table]], "correlation_id": 0}
        columns: dict[str, Iterable[Any]] = {"id": ids, "stack_id": stacks}
        columns["parent_stack_id"] = stacks if parent else repeat(0)
        if extdata:
            columns["extdata"] = extdata
        self._tables.insert("rocpd_event", fixed, columns)
        return ids

    def _thread_ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        # As on Linux, the main thread's id is that of the process.
        return self._pid - 1 + numbers

    def _calls(self, rows: NDArray[np.int64], _first: int) -> None:
        threads = self._thread_ids(rows[:, 1])
        self._thread_of_call[rows[:, 0]] = threads
        self._on_host[rows[:, 0]] = rows[:, 2] == API_NUMBERS["hipHostMalloc"]
        events = self._add_events("calls", rows[:, 0], parent=False)
        names = np.array([self._strings[api.name] for api in APIS])[rows[:, 2]]
        self._add_host_rows("calls", rows[:, (0, 3, 4)], threads, names, events)
        columns = ("event_id", "position", "type", "name", "value")
        self._tables.insert_tuples("rocpd_arg", columns, _arguments(rows, events))

    def _markers(self, rows: NDArray[np.int64], _first: int) -> None:
        texts = self._spool.names["text"]
        extdata = [
            json.dumps({"message": texts[number]}) if number in texts else "{}"
            for number in rows[:, 2].tolist()
        ]
        events = self._add_events("markers", rows[:, 0], parent=False, extdata=extdata)
        names = np.full(len(rows), self._strings[RANGE])
        threads = self._thread_ids(rows[:, 1])
        self._add_host_rows("markers", rows[:, (0, 3, 4)], threads, names, events)

    def _add_host_rows(
        self,
        table: str,
        rows: NDArray[np.int64],
        threads: NDArray[np.int64],
        names: NDArray[np.int64],
        events: range,
    ) -> None:
        """Add regions, and for what has no length samples on a track named by the category."""
        self._seen.threads.update(np.unique(threads).tolist())
        event_ids = np.array(events)
        long = rows[:, 1] != rows[:, 2]
        number, start, end = (column.tolist() for column in rows[long].T)
        columns = {"id": number, "tid": threads[long].tolist(), "start": start, "end": end}
        columns |= {"name_id": names[long].tolist(), "event_id": event_ids[long].tolist()}
        self._tables.insert("rocpd_region", self._owner, columns)
        category = CATEGORIES[table]
        tracks = [
            self._tracks.setdefault((thread, category), len(self._tracks) + 1)
            for thread in threads[~long].tolist()
        ]
        number, timestamp, _ = (column.tolist() for column in rows[~long].T)
        columns = {"id": number, "track_id": tracks, "timestamp": timestamp}
        self._tables.insert("rocpd_sample", {}, columns | {"event_id": event_ids[~long].tolist()})

    def _threads_of(self, calls: NDArray[np.int64]) -> list[int]:
        known = np.minimum(calls, len(self._thread_of_call) - 1) == calls
        threads = np.where(known, self._thread_of_call[np.where(known, calls, 0)], 0)
        self._without_call += int((threads == 0).sum())
        threads[threads == 0] = self._pid
        return _list(threads)

    def _see(self, kind: str, numbers: NDArray[np.int64]) -> list[int]:
        self._seen.numbers[kind].update(np.unique(numbers).tolist())
        return _list(numbers)

    def _dispatches(self, rows: NDArray[np.int64], first: int) -> None:
        call, kernel, queue, stream, start, end, blocks, threads = rows.T
        events = self._add_events("dispatches", call, parent=True)
        numbers = range(first, first + len(rows))
        once = dict.fromkeys(
            ("workgroup_size_y", "workgroup_size_z", "grid_size_y", "grid_size_z"), 1
        )
        none = {"private_segment_size": 0, "group_segment_size": 0}
        fixed = {**self._owner, "agent_id": GPU, **none, **once}
        columns = {
            "id": numbers,
            "dispatch_id": numbers,
            "tid": self._threads_of(call),
            "kernel_id": self._see("kernel", kernel),
            "queue_id": self._see("queue", queue),
            "stream_id": self._see("stream", stream),
            "start": start.tolist(),
            "end": end.tolist(),
            "workgroup_size_x": threads.tolist(),
            "grid_size_x": (blocks * threads).tolist(),
            "event_id": events,
        }
        fixed["region_name_id"] = self._strings[""]
        self._tables.insert("rocpd_kernel_dispatch", fixed, columns)

    def _copies(self, rows: NDArray[np.int64], _first: int) -> None:
        # The profiler sees no operation where host memory is copied to host memory.
        rows = rows[rows[:, 1] != DIRECTIONS.index("HostToHost")]
        call, direction, dst, src, size, stream, start, end = rows.T
        kinds = [DIRECTIONS[number] for number in direction.tolist()]
        columns = {
            "tid": self._threads_of(call),
            "start": start.tolist(),
            "end": end.tolist(),
            "name_id": [self._strings[COPY_NAMES[kind]] for kind in kinds],
            "dst_agent_id": [_ENDS[kind][0] for kind in kinds],
            "dst_address": dst.tolist(),
            "src_agent_id": [_ENDS[kind][1] for kind in kinds],
            "src_address": src.tolist(),
            "size": size.tolist(),
            "stream_id": self._see("stream", stream),
            "event_id": self._add_events("copies", call, parent=True),
        }
        self._tables.insert("rocpd_memory_copy", self._owner, columns)

    def _allocations(self, rows: NDArray[np.int64], _first: int) -> None:
        call, kind, address, size, stream, start, end = rows.T
        frees = (kind == 1).tolist()
        known = np.where(call < len(self._on_host), call, 0)
        agents = np.where(self._on_host[known], CPU, GPU).tolist()
        columns = {
            "tid": self._threads_of(call),
            "type": ["FREE" if free else "ALLOC" for free in frees],
            "agent_id": [None if free else a for free, a in zip(frees, agents, strict=True)],
            "start": start.tolist(),
            "end": end.tolist(),
            "address": address.tolist(),
            "size": np.where(kind == 1, 0, size).tolist(),
            "stream_id": self._see("stream", stream),
            "event_id": self._add_events("allocations", call, parent=False),
            "level": ["REAL"] * len(rows),
        }
        self._tables.insert("rocpd_memory_allocate", {**self._owner, "queue_id": 0}, columns)

    def _write_referred(self) -> None:
        strings = self._strings
        self._tables.insert("rocpd_string", {}, {"id": strings.values(), "string": strings.keys()})
        describe(self._tables, self._spool, self._seen)
        for (thread, category), number in self._tracks.items():
            track = {"id": number, "tid": thread, "name_id": strings[category]}
            self._tables.insert_row("rocpd_track", {**self._owner, **track})


def _list(numbers: NDArray[np.int64]) -> list[int]:
    values: list[int] = numbers.tolist()
    return values


def _arguments(rows: NDArray[np.int64], events: range) -> Iterator[tuple[int, int, str, str, str]]:
    for event, row in zip(events, rows.tolist(), strict=True):
        for position, (kind, name, printed) in enumerate(_ARGUMENTS[row[2]]):
            yield event, position, kind, name, printed(row[_FIRST_ARGUMENT + position])
