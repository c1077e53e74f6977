"""Damage inside rocpd files: no value, column or table may end in a traceback or quote a secret."""

import shutil
import sqlite3

import pytest
from rocpd_files import small_file
from rocpd_tables import GRAPH_LAUNCH, HIP_EVENT

from tracekit.errors import UnreadableTrace
from tracekit.formats import read_trace, silent
from tracekit.formats.rocpd import FORMAT
from tracekit.formats.rocpd.values import USED
from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import Severity

NEWER = {
    "rocpd_kernel_dispatch": "graph_exec_id graph_node_id",
    "rocpd_memory_copy": "graph_exec_id graph_node_id",
    "rocpd_graph_launch": "event_id graph_exec_id",
    "rocpd_hip_event": "pid event_id name_id start end queue_id source_queue_id stream_id "
    "hip_event_handle",
}
COLUMNS = [
    (table, column)
    for part in (USED, NEWER)
    for table, names in part.items()
    for column in names.split()
]
BAD = (Severity.DATA_LOSS, Severity.ERROR)
VALUES = [None, "x", b"\xff\x00", 1.5, -1, 2**63 - 1, -(2**63)]


def read(path):
    return FORMAT.read(path, silent)


def counts(trace):
    return {note.code: note.count for note in trace.notes}


def said(trace):
    """Everything a trace says, as one text."""
    frames = [str(trace.table(name).to_dicts()) for name in TABLES]
    return "\n".join([*frames, *map(str, trace.notes)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file with rows in every table that the reader uses, without constraints."""
    file = small_file(
        tmp_path_factory.mktemp("whole") / "a.db",
        environment={"RANK": "1", "ROCPROF_KERNEL_TRACE": "1"},
        newest=True,
    )
    file.stream(5, "Stream 4")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0xa", out=["0xb"])
    file.dispatch("gemm", 1, 30, 40, stream=5, graph_exec_id=7, graph_node_id=1)
    file.call("hipMemcpyAsync", 2, 50, 60, stream="0xa", dst="0x1", src="0x2", sizeBytes="8")
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 2, 70, 80, 8, dst_address=1, src_address=2)
    file.call("hsa_queue_create", 3, 51, 52, category="HSA_CORE_API", parent=2)
    file.call("hipMalloc", 4, 90, 90)
    file.call("hipEventRecord", 5, 100, 110, event="0xe", stream="0xa")
    file.call("hipStreamWaitEvent", 6, 120, 130, event="0xe", stream="0x0")
    file.hip_event("HIP_EVENT_RECORD", 5, 105, 106, handle=14, queue=16, stream=5)
    file.hip_event("HIP_EVENT_WAIT", 6, 125, 126, handle=14, queue=16, stream=0, source_queue=16)
    file.marker("step", 7, 5, 140)
    event = file.dispatch("counted", 8, 150, 160)
    file.insert("rocpd_info_pmc", id=1, nid=1, pid=28, agent_id=2, name="BUSY", symbol="BUSY")
    file.insert("rocpd_pmc_event", event_id=event, pmc_id=1, value=2.5)
    file.insert("rocpd_graph_launch", event_id=event, graph_exec_id=9, start=1, end=2)
    file.connection.commit()
    file.connection.execute("PRAGMA writable_schema = on")
    for constraint in ("NOT NULL", "UNIQUE ON CONFLICT ABORT", "UNIQUE"):
        file.connection.execute("UPDATE sqlite_master SET sql = replace(sql, ?, '')", (constraint,))
    file.connection.execute("DELETE FROM sqlite_master WHERE type = 'index'")
    return file.save(), file.suffix


def damaged(whole, tmp_path, *statements):
    """Return a copy of the file after some statements, each with its values."""
    path = tmp_path / "damaged.db"
    shutil.copy(whole[0], path)
    connection = sqlite3.connect(path)
    # Views would keep a column from being dropped.
    views = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
    for (name,) in views:
        connection.execute(f'DROP VIEW "{name}"')
    for statement, *values in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()
    return path


def quoted(name):
    return f'"{name}"'


def columns_of(whole, table):
    """Every column that must be given: not the id, nor what is unique and not looked at."""
    connection = sqlite3.connect(whole[0])
    info = connection.execute(f'PRAGMA table_info("{table}{whole[1]}")').fetchall()
    connection.close()
    return [column[1] for column in info if column[1] not in {"id", "hash"}]


def assert_read_or_refused(path):
    try:
        trace = read(path)
    except UnreadableTrace as error:
        assert str(error).startswith(f"{path}: ")
        return
    for name, table in TABLES.items():
        assert trace.table(name).schema == table.schema
    for name in ("ops", "calls", "ranges"):
        assert (trace.table(name)["end_ns"] >= trace.table(name)["start_ns"]).all()


def test_the_undamaged_file_has_rows_of_every_table(whole):
    trace = read(whole[0])

    lacking = {"accesses", "notes"}
    empty = {name for name in TABLES if trace.table(name).is_empty()}
    assert empty <= lacking
    assert not {note.code for note in trace.notes if note.severity in BAD}


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_no_value_of_any_column_ends_in_a_traceback(whole, tmp_path, table, column):
    name, copied = f'"{table}{whole[1]}"', columns_of(whole, table)
    copy = ", ".join("?" if other == column else f'"{other}"' for other in copied)
    # A row more for each value, all else as in the first row, in one file: reading takes time.
    add = (
        f"INSERT INTO {name} ({', '.join(map(quoted, copied))}) "
        f"SELECT {copy} FROM {name} ORDER BY id LIMIT 1"
    )
    assert_read_or_refused(damaged(whole, tmp_path, *([add, value] for value in VALUES)))


@pytest.mark.parametrize("number", [-1, 2**63 - 1, -(2**63)])
def test_no_row_id_ends_in_a_traceback(whole, tmp_path, number):
    change = f'UPDATE "rocpd_kernel_dispatch{whole[1]}" SET id = ? WHERE id = 1'
    assert_read_or_refused(damaged(whole, tmp_path, [change, number]))


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_no_column_that_is_missing_ends_in_a_traceback(whole, tmp_path, table, column):
    # SQLite drops no column that is unique; the reader asks for it by name.
    change = f'ALTER TABLE "{table}{whole[1]}" RENAME COLUMN "{column}" TO gone'
    assert_read_or_refused(damaged(whole, tmp_path, [change]))


@pytest.mark.parametrize("table", [*USED, *GRAPH_LAUNCH, *HIP_EVENT])
def test_no_table_that_is_missing_or_empty_ends_in_a_traceback(whole, tmp_path, table):
    for change in ("DROP TABLE", "DELETE FROM"):
        assert_read_or_refused(damaged(whole, tmp_path, [f'{change} "{table}{whole[1]}"']))
