"""Ways in which a rocpd file can lose evidence, each done to a copy of the file itself."""

import random
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

_SPAN = 'SELECT min("start"), max("end") FROM {rocpd_region}'
_HOST_ROWS = (("rocpd_region", "start"), ("rocpd_sample", "timestamp"))
_DEVICE_ROWS = (("rocpd_kernel_dispatch", "start"), ("rocpd_memory_copy", "start"))
_EVENT_CALLS = ("hipEventRecord", "hipStreamWaitEvent", "hipEventSynchronize")
_WORK = ("hipLaunchKernel", "hipMemcpyAsync", "hipGraphLaunch")
_ABOUT_EVENTS = ("record", "wait", "sync")
_ABOUT_MEMORY = ("use", "buffer", "graph", "replay")


class _File:
    """A file whose rows are deleted; its tables have names that end in the guid."""

    def __init__(self, connection: sqlite3.Connection, seed: int) -> None:
        self.connection, self.random = connection, random.Random(seed)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        full = [name for (name,) in names]
        self.tables = {re.sub(r"_[0-9a-f]{8}_.*", "", name): f'"{name}"' for name in full}

    def rows(self, sql: str) -> list[tuple]:
        return self.connection.execute(sql.format_map(self.tables)).fetchall()

    def calls(self, names: tuple[str, ...] = ()) -> list[int]:
        """Return the event ids of API calls, all or those of these names."""
        found = self.rows(
            "SELECT r.event_id, n.string FROM {rocpd_region} r "
            "JOIN {rocpd_event} e ON e.id = r.event_id "
            "JOIN {rocpd_string} c ON c.id = e.category_id "
            "JOIN {rocpd_string} n ON n.id = r.name_id WHERE c.string LIKE 'HIP%'"
        )
        return [event for event, name in found if not names or name in names]

    def markers(self, verbs: tuple[str, ...] = ()) -> list[int]:
        """Return the event ids of markers, all or those of the grammar with these verbs."""
        found = self.rows(
            "SELECT e.id, e.extdata ->> 'message' FROM {rocpd_event} e "
            "JOIN {rocpd_string} c ON c.id = e.category_id WHERE c.string LIKE 'MARKER%'"
        )
        starts = tuple(f"tk1 {verb} " for verb in verbs)
        return [event for event, text in found if not verbs or text.startswith(starts)]

    def ops(self) -> list[int]:
        events = [f"SELECT event_id FROM {{{table}}}" for table, _ in _DEVICE_ROWS]
        return [event for (event,) in self.rows(" UNION ".join(events))]

    def half(self, events: list[int]) -> list[int]:
        return [event for event in sorted(events) if self.random.random() < 0.5]

    def drop(self, events: list[int]) -> None:
        """Delete the rows of these events wherever they are."""
        tables = ("rocpd_arg", *(name for name, _ in (*_HOST_ROWS, *_DEVICE_ROWS)))
        for table in tables:
            self.delete(table, "event_id", events)
        self.delete("rocpd_event", "id", events)

    def delete(self, table: str, column: str, numbers: list[int]) -> None:
        # One pass over the table: nothing in it is indexed by event.
        self.connection.execute("CREATE TEMP TABLE gone (number INTEGER PRIMARY KEY)")
        self.connection.executemany("INSERT INTO gone VALUES (?)", [(one,) for one in numbers])
        self.connection.execute(
            f"DELETE FROM {self.tables[table]} WHERE {column} IN (SELECT number FROM gone)"
        )
        self.connection.execute("DROP TABLE gone")

    def drop_span(self, first: float, last: float) -> None:
        """Delete all that begins between two shares of the recording's time."""
        ((begin, end),) = self.rows(_SPAN)
        low, high = (begin + int(share * (end - begin)) for share in (first, last))
        inside = [
            event
            for table, column in (*_HOST_ROWS, *_DEVICE_ROWS)
            for (event,) in self.rows(
                f'SELECT event_id FROM {{{table}}} WHERE "{column}" >= {low} AND "{column}" < {high}'
            )
        ]
        self.drop(inside)

    def number_anew(self) -> None:
        """Number calls and markers without holes: as if what was dropped had never been said."""
        self.connection.execute("CREATE TEMP TABLE numbers (old INTEGER PRIMARY KEY, new INTEGER)")
        self.connection.execute(
            "INSERT INTO numbers SELECT stack_id, row_number() OVER (ORDER BY stack_id) FROM "
            "(SELECT DISTINCT stack_id FROM {rocpd_event} WHERE stack_id > 0)".format_map(
                self.tables
            )
        )
        for column in ("stack_id", "parent_stack_id"):
            self.connection.execute(
                f"UPDATE {{rocpd_event}} SET {column} = (SELECT new FROM numbers WHERE old = {column}) "
                f"WHERE {column} > 0".format_map(self.tables)
            )


def _no_calls(file: _File) -> None:
    file.drop(file.calls())


def _no_arguments(file: _File) -> None:
    file.connection.execute(f"DELETE FROM {file.tables['rocpd_arg']}")


def _half_of_the_arguments(file: _File) -> None:
    rows = [row for (row,) in file.rows("SELECT id FROM {rocpd_arg}")]
    file.delete("rocpd_arg", "id", file.half(rows))


def _no_arguments_of_work(file: _File) -> None:
    """So that nothing ties the pointers of streams, in other calls, to the streams of ops."""
    file.delete("rocpd_arg", "event_id", file.calls(_WORK))


def _no_markers(file: _File) -> None:
    file.drop(file.markers())


def _no_stream_flags(file: _File) -> None:
    file.drop(file.markers(("stream",)))


def _no_memory_markers(file: _File) -> None:
    file.drop(file.markers(_ABOUT_MEMORY))


def _no_event_markers(file: _File) -> None:
    file.drop(file.markers(_ABOUT_EVENTS))


def _markers_never_said(file: _File) -> None:
    _no_markers(file)
    file.number_anew()


def _stream_flags_never_said(file: _File) -> None:
    _no_stream_flags(file)
    file.number_anew()


def _memory_never_said(file: _File) -> None:
    _no_memory_markers(file)
    file.number_anew()


def _events_never_said(file: _File) -> None:
    _no_event_markers(file)
    file.number_anew()


def _half_of_the_memory_markers(file: _File) -> None:
    file.drop(file.half(file.markers(_ABOUT_MEMORY)))


def _half_of_the_event_markers(file: _File) -> None:
    file.drop(file.half(file.markers(_ABOUT_EVENTS)))


def _half_of_the_event_calls(file: _File) -> None:
    file.drop(file.half(file.calls(_EVENT_CALLS)))


def _half_of_the_events(file: _File) -> None:
    """Calls and the markers about them, each at random."""
    file.drop(file.half(file.calls(_EVENT_CALLS) + file.markers(_ABOUT_EVENTS)))


def _half_of_the_calls(file: _File) -> None:
    file.drop(file.half(file.calls()))


def _few_of_all(file: _File) -> None:
    everything = file.calls() + file.markers() + file.ops()
    file.drop(file.random.sample(sorted(everything), len(everything) // 50))


def _half_of_the_ops(file: _File) -> None:
    file.drop(file.half(file.ops()))


def _half_of_the_graph_ops(file: _File) -> None:
    """Of a replay's ops, that share the number of its launch, some are left."""
    launches = "SELECT event_id FROM {rocpd_region} r JOIN {rocpd_string} n ON n.id = r.name_id"
    of_launches = f"{launches} WHERE n.string = 'hipGraphLaunch'"
    stacks = f"SELECT stack_id FROM {{rocpd_event}} WHERE id IN ({of_launches})"
    found = file.rows(f"SELECT id FROM {{rocpd_event}} WHERE stack_id IN ({stacks})")
    ops = set(file.ops())
    file.drop(file.half([event for (event,) in found if event in ops]))


def _a_window_in_the_middle(file: _File) -> None:
    first = file.random.uniform(0.1, 0.7)
    file.drop_span(first, first + file.random.uniform(0.02, 0.25))


def _the_beginning(file: _File) -> None:
    file.drop_span(-1, file.random.uniform(0.1, 0.6))


def _the_end(file: _File) -> None:
    file.drop_span(file.random.uniform(0.4, 0.9), 2)


WAYS = {
    way.__name__.strip("_"): way
    for way in (
        _no_calls,
        _no_arguments,
        _half_of_the_arguments,
        _no_arguments_of_work,
        _no_markers,
        _markers_never_said,
        _stream_flags_never_said,
        _memory_never_said,
        _events_never_said,
        _no_stream_flags,
        _no_memory_markers,
        _half_of_the_memory_markers,
        _no_event_markers,
        _half_of_the_event_markers,
        _half_of_the_event_calls,
        _half_of_the_events,
        _half_of_the_calls,
        _half_of_the_ops,
        _half_of_the_graph_ops,
        _few_of_all,
        _a_window_in_the_middle,
        _the_beginning,
        _the_end,
    )
}


def lose(path: Path, target: Path, way: str, seed: int) -> Path:
    """Copy a rocpd file to `target` and drop evidence from the copy; return `target`."""
    shutil.copyfile(path, target)
    with closing(sqlite3.connect(target)) as connection, connection:
        # Rows that others refer to go, as they do where a capture is cut.
        connection.execute("PRAGMA foreign_keys = off")
        WAYS[way](_File(connection, seed))
    return target
