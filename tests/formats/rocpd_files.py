"""Writes small rocpd files for tests and large ones for benches: real tables, columns and views.

Base tables carry a suffix made of the guid, and an un-suffixed view stands over each, as
rocprofv3 and rocprof-sys write them (`rocpd_tables`).
"""

import json
import sqlite3

from rocpd_tables import GRAPH_COLUMNS, GRAPH_LAUNCH, HIP_EVENT, TABLES

GUID = "00003fdc-92cb-72cb-9169-c7e541b1fcdf"


def create_tables(connection, guid=GUID, *, suffix=None, newest=False):
    """Create the base tables of one guid; returns their suffix."""
    suffix = "_" + guid.replace("-", "_") if suffix is None else suffix
    tables = TABLES | (GRAPH_LAUNCH | HIP_EVENT if newest else {})
    for name, columns in tables.items():
        key = f"id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, guid TEXT DEFAULT '{guid}' NOT NULL"
        key = key.split(", guid")[0] if name == "rocpd_metadata" else key
        if newest and name in {"rocpd_kernel_dispatch", "rocpd_memory_copy"}:
            columns += f", {GRAPH_COLUMNS}"
        connection.execute(f'CREATE TABLE "{name}{suffix}" ({key}, {columns})')
    return suffix


def create_views(connection, suffixes, *, newest=False):
    """Create the un-suffixed view over each table of all guids."""
    for name in TABLES | (GRAPH_LAUNCH | HIP_EVENT if newest else {}):
        parts = [f'SELECT * FROM "{name}{suffix}"' for suffix in suffixes]
        connection.execute(f"DROP VIEW IF EXISTS {name}")
        connection.execute(f"CREATE VIEW {name} AS {' UNION ALL '.join(parts)}")


class RocpdFile:
    """One capture in a file, filled row by row; `save` writes it.

    Ids are given by SQLite in order of the calls, except where a test names them.
    """

    def __init__(self, path, guid=GUID, *, suffix=None, newest=False, version="3", pid=28):
        self.path, self.guid, self.newest, self.pid = path, guid, newest, pid
        self.connection = sqlite3.connect(path)
        # Each table and view is a transaction of its own; none has to reach the disk.
        self.connection.execute("PRAGMA synchronous = OFF")
        self.suffix = create_tables(self.connection, guid, suffix=suffix, newest=newest)
        self._strings, self._kernels = {}, {}
        self.insert("rocpd_metadata", tag="schema_version", value=version)
        self.insert("rocpd_metadata", tag="guid", value=guid)
        # As the writer does: both are always there, used or not.
        self.insert("rocpd_info_queue", id=0, nid=1, pid=pid, name="Default Queue")
        self.insert("rocpd_info_stream", id=0, nid=1, pid=pid, name="Default Stream")

    def insert(self, table, **values):
        """Insert one row and return its id."""
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" for _ in values)
        sql = f'INSERT INTO "{table}{self.suffix}" ({names}) VALUES ({marks})'
        return self.connection.execute(sql, tuple(values.values())).lastrowid

    def string(self, text):
        """Return the id of a string."""
        if text not in self._strings:
            self._strings[text] = self.insert("rocpd_string", string=text)
        return self._strings[text]

    def process(
        self, *, hostname="node-a", machine_id="machine-a", command="app", environment=None
    ):
        """Describe machine, process and one thread."""
        self.insert("rocpd_info_node", id=1, hash=1, machine_id=machine_id, hostname=hostname)
        self.insert(
            "rocpd_info_process",
            id=self.pid,
            nid=1,
            pid=self.pid,
            command=command,
            environment=json.dumps(environment or {}),
        )
        self.thread(self.pid)

    def thread(self, tid):
        """Add a thread."""
        self.insert("rocpd_info_thread", id=tid, nid=1, pid=self.pid, tid=tid)

    def agent(self, agent_id, kind="GPU", *, type_index=0, board=None, **more):
        """Add an agent; `board` is the unique number in the JSON."""
        values = {f"value{i}": byte for i, byte in enumerate(bytes.fromhex(board or "00"))}
        row = {"absolute_index": agent_id, "uuid": 29857, "name": "gfx942", "type": kind}
        row |= {"product_name": "AMD Instinct MI300X", "type_index": type_index}
        row["extdata"] = json.dumps({"uuid": {"bytes": values}})
        self.insert("rocpd_info_agent", id=agent_id, nid=1, pid=self.pid, **(row | more))

    def queue(self, queue_id, name):
        """Add a hardware queue."""
        self.insert("rocpd_info_queue", id=queue_id, nid=1, pid=self.pid, name=name)

    def stream(self, stream_id, name):
        """Add a stream."""
        self.insert("rocpd_info_stream", id=stream_id, nid=1, pid=self.pid, name=name)

    def event(self, category, stack, parent=0, extdata="{}"):
        """Add an event and return its id."""
        return self.insert(
            "rocpd_event",
            category_id=self.string(category),
            stack_id=stack,
            parent_stack_id=parent,
            correlation_id=0,
            extdata=extdata,
        )

    def call(self, name, stack, start, end, *, category="HIP_RUNTIME_API_EXT", **more):
        """Add an API call; remaining keywords are its arguments, `tid` and `parent` are not."""
        tid, parent = more.pop("tid", self.pid), more.pop("parent", 0)
        event = self.event(category, stack, parent)
        for position, (argument, value) in enumerate(more.items()):
            kind = "void**" if isinstance(value, list) else "void*"
            value = value[0] if isinstance(value, list) else value
            self.insert(
                "rocpd_arg",
                event_id=event,
                position=position,
                type=kind,
                name=argument,
                value=value,
            )
        self._host_row(name, category, stack, start, end, tid, event)

    def marker(self, text, stack, start, end, *, tid=None, name="roctxThreadRangeA"):
        """Add a roctx range, or a mark if it has no length."""
        category = "MARKER_CORE_RANGE_API"
        event = self.event(category, stack, extdata=json.dumps({"message": text}))
        self._host_row(name, category, stack, start, end, tid or self.pid, event)

    def _host_row(self, name, category, stack, start, end, tid, event):
        if start != end:
            self.insert(
                "rocpd_region",
                id=stack,
                nid=1,
                pid=self.pid,
                tid=tid,
                start=start,
                end=end,
                name_id=self.string(name),
                event_id=event,
            )
            return
        # The writer names the track by the category, so the call's own name is lost.
        track = self.insert(
            "rocpd_track", nid=1, pid=self.pid, tid=tid, name_id=self.string(category)
        )
        self.insert("rocpd_sample", id=stack, track_id=track, timestamp=start, event_id=event)

    def kernel(self, name):
        """Return the id of a kernel symbol."""
        if name not in self._kernels:
            self._kernels[name] = self.insert(
                "rocpd_info_kernel_symbol",
                nid=1,
                pid=self.pid,
                code_object_id=1,
                kernel_name=f"{name}.kd",
                display_name=name,
            )
        return self._kernels[name]

    def dispatch(self, name, stack, start, end, *, queue=16, stream=0, agent=2, **more):
        """Add a kernel dispatch and return its event id."""
        event = self.event(more.pop("category", "KERNEL_DISPATCH"), stack, stack)
        row = {"dispatch_id": more.pop("dispatch_id", stack), "kernel_id": self.kernel(name)}
        self.insert(
            "rocpd_kernel_dispatch",
            nid=1,
            pid=self.pid,
            tid=self.pid,
            agent_id=agent,
            queue_id=queue,
            stream_id=stream,
            start=start,
            end=end,
            event_id=event,
            **(row | more),
        )
        return event

    def memory_copy(self, name, stack, start, end, size, *, dst=2, src=0, stream=0, **more):
        """Add a row of a copy engine; `dst` and `src` are agents."""
        self.insert(
            "rocpd_memory_copy",
            nid=1,
            pid=self.pid,
            tid=self.pid,
            start=start,
            end=end,
            name_id=self.string(name),
            dst_agent_id=dst,
            src_agent_id=src,
            size=size,
            stream_id=stream,
            event_id=self.event("MEMORY_COPY", stack, stack),
            **more,
        )

    def hip_event(self, name, stack, start, end, *, handle, queue, stream, source_queue=None):
        """Add a row of schema 3.0.4: what an event did on the device."""
        self.insert(
            "rocpd_hip_event",
            nid=1,
            pid=self.pid,
            start=start,
            end=end,
            name_id=self.string(name),
            agent_id=2,
            queue_id=queue,
            stream_id=stream,
            hip_event_handle=handle,
            source_queue_id=source_queue,
            event_id=self.event("HIP_EVENT", stack, stack),
        )

    def save(self):
        """Add the views and close the file; returns its path."""
        create_views(self.connection, [self.suffix], newest=self.newest)
        self.connection.commit()
        self.connection.close()
        return self.path


def small_file(path, guid=GUID, *, environment=None, command="app", **more):
    """Start a file with machine, process and GPU 2 of a machine with two CPUs."""
    machine = {key: more.pop(key) for key in ("hostname", "machine_id") if key in more}
    file = RocpdFile(path, guid, **more)
    file.process(environment=environment, command=command, **machine)
    file.agent(0, "CPU", name="Intel Xeon", product_name="Intel Xeon")
    file.agent(2)
    file.queue(16, "Queue 0")
    return file


def merge(path, sources):
    """Copy the base tables of several files into one, as `rocpd merge` does."""
    connection = sqlite3.connect(path)
    suffixes = []
    for number, source in enumerate(sources):
        connection.execute(f"ATTACH '{source}' AS s{number}")
        tables = connection.execute(
            f"SELECT name, sql FROM s{number}.sqlite_master WHERE type = 'table' "
            "AND name LIKE 'rocpd_%'"
        ).fetchall()
        for name, sql in tables:
            connection.execute(sql)
            connection.execute(f'INSERT INTO main."{name}" SELECT * FROM s{number}."{name}"')
        suffixes += [
            name[len("rocpd_event") :] for name, _ in tables if name[:12] == "rocpd_event_"
        ]
    create_views(connection, suffixes)
    connection.commit()
    connection.close()
    return path
