"""The tables of rocpd schema 3, as rocprofv3 of ROCm 7 creates them for one process.

Each table carries the process's guid in its name; a view of the plain name stands over it. Types
and meanings are those of the profiler; ids of the `info` tables are what other tables refer to.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from instrumented_runtime.recorder.views import STANDARD_VIEWS

VERSION = "3"

# Twice as fast as one; old versions of SQLite take no more than 999 values in a statement.
_ROWS_PER_STATEMENT = 50

# `!` is NOT NULL; JSONB holds '{}' unless said otherwise.
TABLES = {
    "rocpd_metadata": "tag TEXT!, value TEXT!",
    "rocpd_string": "string TEXT!",
    "rocpd_info_node": "hash BIGINT!, machine_id TEXT!, system_name TEXT, hostname TEXT, "
    "release TEXT, version TEXT, hardware_name TEXT, domain_name TEXT",
    "rocpd_info_process": "nid INTEGER!, ppid INTEGER, pid INTEGER!, init BIGINT, fini BIGINT, "
    "start BIGINT, end BIGINT, command TEXT, environment JSONB!, extdata JSONB!",
    "rocpd_info_thread": "nid INTEGER!, ppid INTEGER, pid INTEGER!, tid INTEGER!, name TEXT, "
    "start BIGINT, end BIGINT, extdata JSONB!",
    "rocpd_info_agent": "nid INTEGER!, pid INTEGER!, type TEXT, absolute_index INTEGER, "
    "logical_index INTEGER, type_index INTEGER, uuid INTEGER, name TEXT, model_name TEXT, "
    "vendor_name TEXT, product_name TEXT, user_name TEXT, extdata JSONB!",
    "rocpd_info_queue": "nid INTEGER!, pid INTEGER!, name TEXT, extdata JSONB!",
    "rocpd_info_stream": "nid INTEGER!, pid INTEGER!, name TEXT, extdata JSONB!",
    "rocpd_info_pmc": "nid INTEGER!, pid INTEGER!, agent_id INTEGER, target_arch TEXT, "
    "event_code INT, instance_id INTEGER, name TEXT!, symbol TEXT!, description TEXT, "
    "long_description TEXT, component TEXT, units TEXT, value_type TEXT, block TEXT, "
    "expression TEXT, is_constant INTEGER, is_derived INTEGER, extdata JSONB!",
    "rocpd_info_code_object": "nid INTEGER!, pid INTEGER!, agent_id INTEGER, uri TEXT, "
    "load_base BIGINT, load_size BIGINT, load_delta BIGINT, storage_type TEXT, extdata JSONB!",
    "rocpd_info_kernel_symbol": "nid INTEGER!, pid INTEGER!, code_object_id INTEGER!, "
    "kernel_name TEXT, display_name TEXT, kernel_object INTEGER, kernarg_segment_size INTEGER, "
    "kernarg_segment_alignment INTEGER, group_segment_size INTEGER, "
    "private_segment_size INTEGER, sgpr_count INTEGER, arch_vgpr_count INTEGER, "
    "accum_vgpr_count INTEGER, extdata JSONB!",
    "rocpd_track": "nid INTEGER!, pid INTEGER, tid INTEGER, name_id INTEGER, extdata JSONB!",
    "rocpd_event": "category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, "
    "correlation_id INTEGER, call_stack JSONB!, line_info JSONB!, extdata JSONB!",
    "rocpd_arg": "event_id INTEGER!, position INTEGER!, type TEXT!, name TEXT!, value TEXT, "
    "extdata JSONB!",
    "rocpd_pmc_event": "event_id INTEGER, pmc_id INTEGER!, value REAL, extdata JSONB",
    "rocpd_region": "nid INTEGER!, pid INTEGER!, tid INTEGER!, start BIGINT!, end BIGINT!, "
    "name_id INTEGER!, event_id INTEGER, extdata JSONB!",
    "rocpd_sample": "track_id INTEGER!, timestamp BIGINT!, event_id INTEGER, extdata JSONB!",
    "rocpd_kernel_dispatch": "nid INTEGER!, pid INTEGER!, tid INTEGER, agent_id INTEGER!, "
    "kernel_id INTEGER!, dispatch_id INTEGER!, queue_id INTEGER!, stream_id INTEGER!, "
    "start BIGINT!, end BIGINT!, private_segment_size INTEGER, group_segment_size INTEGER, "
    "workgroup_size_x INTEGER!, workgroup_size_y INTEGER!, workgroup_size_z INTEGER!, "
    "grid_size_x INTEGER!, grid_size_y INTEGER!, grid_size_z INTEGER!, region_name_id INTEGER, "
    "event_id INTEGER, extdata JSONB!",
    "rocpd_memory_copy": "nid INTEGER!, pid INTEGER!, tid INTEGER, start BIGINT!, end BIGINT!, "
    "name_id INTEGER!, dst_agent_id INTEGER, dst_address INTEGER, src_agent_id INTEGER, "
    "src_address INTEGER, size INTEGER!, queue_id INTEGER, stream_id INTEGER, "
    "region_name_id INTEGER, event_id INTEGER, extdata JSONB!",
    "rocpd_memory_allocate": "nid INTEGER!, pid INTEGER!, tid INTEGER, agent_id INTEGER, "
    "type TEXT, level TEXT, start BIGINT!, end BIGINT!, address INTEGER, size INTEGER!, "
    "queue_id INTEGER, stream_id INTEGER, event_id INTEGER, extdata JSONB!",
}

# What a column of this name refers to, wherever it is not the table's own description.
_REFERS_TO = {
    "nid": "rocpd_info_node",
    "pid": "rocpd_info_process",
    "tid": "rocpd_info_thread",
    "agent_id": "rocpd_info_agent",
    "dst_agent_id": "rocpd_info_agent",
    "src_agent_id": "rocpd_info_agent",
    "queue_id": "rocpd_info_queue",
    "stream_id": "rocpd_info_stream",
    "pmc_id": "rocpd_info_pmc",
    "code_object_id": "rocpd_info_code_object",
    "kernel_id": "rocpd_info_kernel_symbol",
    "track_id": "rocpd_track",
    "event_id": "rocpd_event",
    "name_id": "rocpd_string",
    "category_id": "rocpd_string",
    "region_name_id": "rocpd_string",
}
_OWN = {("rocpd_info_process", "pid"), ("rocpd_info_thread", "tid")}
_UNIQUE = {
    ("rocpd_string", "string"),
    ("rocpd_info_node", "hash"),
    ("rocpd_info_node", "machine_id"),
}
_ALLOWED = {
    ("rocpd_info_agent", "type"): "'CPU', 'GPU'",
    ("rocpd_info_pmc", "target_arch"): "'CPU', 'GPU'",
    ("rocpd_info_pmc", "value_type"): "'ABS', 'ACCUM', 'RELATIVE'",
    ("rocpd_info_code_object", "storage_type"): "'FILE', 'MEMORY'",
    ("rocpd_memory_allocate", "type"): "'ALLOC', 'FREE', 'REALLOC', 'RECLAIM'",
    ("rocpd_memory_allocate", "level"): "'REAL', 'VIRTUAL', 'SCRATCH'",
}
_DEFAULTS = {
    ("rocpd_info_pmc", "long_description"): "''",
    ("rocpd_info_pmc", "units"): "''",
    ("rocpd_pmc_event", "value"): "0.0",
}


def suffix_of(guid: str) -> str:
    """Return what a table's name ends with."""
    return "_" + guid.replace("-", "_")


class RocpdTables:
    """Inserts into the tables of one guid."""

    def __init__(self, connection: sqlite3.Connection, guid: str) -> None:
        """Take a connection whose schema is created."""
        self._connection, self._suffix = connection, suffix_of(guid)

    def insert(
        self, table: str, fixed: Mapping[str, int], columns: Mapping[str, Iterable[Any]]
    ) -> None:
        """Insert one row per place of the columns; `fixed` is the same in all of them."""
        names = (*fixed, *columns)
        values = [*map(str, fixed.values()), *("?" for _ in columns)]
        self._insert(table, names, values, zip(*columns.values(), strict=False))

    def insert_tuples(
        self, table: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]]
    ) -> None:
        """Insert rows that come as tuples."""
        self._insert(table, names, ["?" for _ in names], iter(rows))

    def _insert(
        self,
        table: str,
        names: Sequence[str],
        values: Sequence[str],
        rows: Iterator[tuple[Any, ...]],
    ) -> None:
        columns = ", ".join(f'"{name}"' for name in names)
        into = f'INSERT INTO "{table}{self._suffix}" ({columns}) VALUES '
        row = f"({', '.join(values)})"
        many = into + ", ".join([row] * _ROWS_PER_STATEMENT)
        rest: list[tuple[Any, ...]] = []

        def groups() -> Iterator[tuple[Any, ...]]:
            while len(group := list(islice(rows, _ROWS_PER_STATEMENT))) == _ROWS_PER_STATEMENT:
                yield tuple(chain.from_iterable(group))
            rest.extend(group)

        self._connection.executemany(many, groups())
        self._connection.executemany(into + row, rest)

    def insert_row(self, table: str, row: Mapping[str, Any]) -> None:
        """Insert one row."""
        self.insert(table, {}, {name: (value,) for name, value in row.items()})


def create_schema(connection: sqlite3.Connection, guid: str) -> None:
    """Create all tables and views, and the rows that name schema and guid."""
    suffix = suffix_of(guid)
    for table in TABLES:
        connection.execute(_table_sql(table, guid))
    for table in TABLES:
        connection.execute(f'CREATE VIEW {table} AS SELECT * FROM "{table}{suffix}"')
    for view, query in STANDARD_VIEWS.items():
        connection.execute(f"CREATE VIEW {view} AS{query}")
    connection.executemany(
        f'INSERT INTO "rocpd_metadata{suffix}" (tag, value) VALUES (?, ?)',
        [("schema_version", VERSION), ("uuid", suffix), ("guid", guid)],
    )


def _table_sql(table: str, guid: str) -> str:
    suffix = suffix_of(guid)
    lines = ['"id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT']
    if table != "rocpd_metadata":
        lines.append(f"\"guid\" TEXT DEFAULT '{guid}' NOT NULL")
    references = []
    for column in TABLES[table].split(", "):
        name, kind = column.split()
        lines.append(_column_sql(table, name, kind))
        if name in _REFERS_TO and (table, name) not in _OWN:
            target = f'"{_REFERS_TO[name]}{suffix}"'
            references.append(f'FOREIGN KEY ("{name}") REFERENCES {target} (id) ON UPDATE CASCADE')
    body = ",\n    ".join([*lines, *references])
    return f'CREATE TABLE "{table}{suffix}" (\n    {body}\n)'


def _column_sql(table: str, name: str, kind: str) -> str:
    parts = [f'"{name}" {kind.rstrip("!")}']
    default = _DEFAULTS.get((table, name), "'{}'" if kind.startswith("JSONB") else "")
    if default:
        parts.append(f"DEFAULT {default}")
    if kind.endswith("!"):
        parts.append("NOT NULL")
    if (table, name) in _UNIQUE:
        parts.append("UNIQUE")
    if (table, name) in _ALLOWED:
        parts.append(f'CHECK ("{name}" IN ({_ALLOWED[table, name]}))')
    return " ".join(parts)
