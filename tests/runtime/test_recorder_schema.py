"""The recorder's file has the tables and views of rocprofv3's, and every one of them works."""

import sqlite3
from contextlib import closing

import pytest
from recorder_rows import query, small_recording

from instrumented_runtime.recorder.schema import TABLES
from instrumented_runtime.recorder.views import STANDARD_VIEWS

REAL = "rocpd/mi300x_rocm7.1_hip_args_redacted.db"


def shape(path):
    """Per table and view, without the guid, its columns; a table's with type, NOT NULL and key."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        suffix = connection.execute("SELECT value FROM rocpd_metadata WHERE tag = 'uuid'")
        guid = suffix.fetchone()[0]
        names = connection.execute("SELECT type, name FROM sqlite_master WHERE sql IS NOT NULL")
        columns = {}
        for kind, name in names.fetchall():
            rows = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
            if kind == "view":
                columns[kind, name] = [row[1] for row in rows]
            else:
                columns[kind, name.replace(guid, "")] = [(*row[1:4], row[5]) for row in rows]
    return columns


def foreign_keys(path):
    """Per table, without the guid, (column, table it refers to)."""
    guid = query(path, "SELECT value FROM rocpd_metadata WHERE tag = 'uuid'")[0][0]
    keys = {}
    for table in TABLES:
        rows = query(path, f'PRAGMA foreign_key_list("{table}{guid}")')
        keys[table] = {(row[3], row[2].replace(guid, ""), row[5]) for row in rows}
    return keys


def test_tables_views_and_columns_are_those_of_a_real_file(tmp_path, real_traces):
    if not (real_traces / REAL).exists():
        pytest.skip(f"no {REAL} among the real traces")
    mine, real = small_recording(tmp_path).close(), real_traces / REAL

    assert shape(mine) == shape(real)
    assert foreign_keys(mine) == foreign_keys(real)


def test_every_view_can_be_selected_from_and_no_reference_dangles(tmp_path):
    path = small_recording(tmp_path).close()

    counts = {
        view: query(path, f"SELECT count(*) FROM {view}")[0][0]
        for view in (*TABLES, *STANDARD_VIEWS)
    }

    empty = {view for view, count in counts.items() if not count}
    assert empty == {
        # The model has no counters and no scratch memory, and rocprofv3 leaves `stream_args` empty.
        "rocpd_info_pmc",
        "rocpd_pmc_event",
        "pmc_info",
        "pmc_events",
        "counters_collection",
        "scratch_memory",
        "stream_args",
    }
    assert query(path, "PRAGMA foreign_key_check") == []
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_views_of_several_processes_in_one_file_do_not_mix_guids(tmp_path):
    # In two containers, say: both have the same pid.
    first = small_recording(tmp_path / "a", seed=1).close()
    second = small_recording(tmp_path / "b", seed=2).close()
    merged = tmp_path / "merged.db"
    with closing(sqlite3.connect(merged)) as connection:
        for part, path in enumerate((first, second)):
            connection.execute(f"ATTACH '{path}' AS part{part}")
        for table in TABLES:
            connection.execute(
                f"CREATE TABLE {table} AS SELECT * FROM part0.{table}"
                f" UNION ALL SELECT * FROM part1.{table}"
            )
        for view, sql in STANDARD_VIEWS.items():
            connection.execute(f"CREATE VIEW {view} AS{sql}")
        connection.commit()

    for view in ("kernels", "regions_and_samples", "memory_copies", "memory_allocations"):
        alone = query(first, f"SELECT count(*) FROM {view}")[0][0]
        assert query(merged, f"SELECT count(*) FROM {view}") == [(2 * alone,)]
    assert query(merged, "SELECT pid, tid FROM threads ORDER BY 1") == [(1, 1), (1, 1)]


def test_counter_views_sum_instances_of_one_counter(tmp_path):
    path = small_recording(tmp_path).close()
    with closing(sqlite3.connect(path)) as connection:
        guid = connection.execute("SELECT value FROM rocpd_metadata WHERE tag = 'uuid'")
        suffix = guid.fetchone()[0]
        node = connection.execute("SELECT id FROM rocpd_info_node").fetchone()[0]
        connection.execute(
            f'INSERT INTO "rocpd_info_pmc{suffix}" (id, nid, pid, agent_id, name, symbol)'
            f" VALUES (3, {node}, 1, 1, 'SQ_WAVES', 'SQ_WAVES')"
        )
        event = connection.execute("SELECT event_id FROM rocpd_kernel_dispatch").fetchone()[0]
        for value in (3.0, 4.0):
            connection.execute(
                f'INSERT INTO "rocpd_pmc_event{suffix}" (event_id, pmc_id, value)'
                f" VALUES ({event}, 3, {value})"
            )
        connection.commit()

    columns = "dispatch_id, kernel_name, counter_name, value, grid_size, workgroup_size"
    assert query(path, f"SELECT {columns} FROM counters_collection") == [
        (1, "gemm<4,float>", "SQ_WAVES", 7.0, 1024, 256)
    ]
    assert query(path, "SELECT name, counter_value FROM pmc_events") == [
        ("gemm<4,float>", 3.0),
        ("gemm<4,float>", 4.0),
    ]
    assert query(path, "SELECT name, agent_abs_index FROM pmc_info") == [("SQ_WAVES", 1)]
