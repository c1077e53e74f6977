"""Damage inside rocpd files: no value, column or table may end in a traceback or quote a secret."""

import shutil
import sqlite3

import pytest
from rocpd_files import RocpdFile, small_file
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
    for part in (dict.fromkeys([*USED, *GRAPH_LAUNCH, *HIP_EVENT], "id"), USED, NEWER)
    for table, names in part.items()
    for column in names.split()
]
VALUES = [None, "x", "", b"\xff\x00", 1.5, -1, 2**63 - 1, -(2**63), b"{}"]


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
    file.connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    return file.save(), file.suffix


def damaged(whole, tmp_path, statement, *values):
    """Return a copy of the file after one statement; None if SQLite itself refuses it."""
    path = tmp_path / "damaged.db"
    shutil.copy(whole[0], path)
    connection = sqlite3.connect(path)
    try:
        # Views would keep a column from being dropped.
        views = "SELECT name FROM sqlite_master WHERE type = 'view'"
        for (name,) in connection.execute(views).fetchall():
            connection.execute(f'DROP VIEW "{name}"')
        connection.execute(statement, values)
        connection.commit()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return path


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

    lacking = {"buffer_accesses", "notes"}
    empty = {name for name in TABLES if trace.table(name).is_empty()}
    assert empty <= lacking
    assert not {note.code for note in trace.notes if note.severity >= Severity.DATA_LOSS}


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_no_value_of_any_column_ends_in_a_traceback(whole, tmp_path, table, column):
    name = f'"{table}{whole[1]}"'
    change = f'UPDATE {name} SET "{column}" = ? WHERE id = (SELECT min(id) FROM {name})'
    paths = [damaged(whole, tmp_path, change, value) for value in VALUES]
    assert any(paths)
    for value in VALUES:
        if path := damaged(whole, tmp_path, change, value):
            assert_read_or_refused(path)


@pytest.mark.parametrize(("table", "column"), [pair for pair in COLUMNS if pair[1] != "id"])
def test_no_column_that_is_missing_ends_in_a_traceback(whole, tmp_path, table, column):
    path = damaged(whole, tmp_path, f'ALTER TABLE "{table}{whole[1]}" DROP COLUMN "{column}"')
    unique = {("rocpd_string", "string"), ("rocpd_info_node", "machine_id")}
    assert path or (table, column) in unique
    if path:
        assert_read_or_refused(path)


@pytest.mark.parametrize("table", [*USED, *GRAPH_LAUNCH, *HIP_EVENT])
def test_no_table_that_is_missing_or_empty_ends_in_a_traceback(whole, tmp_path, table):
    for change in ("DROP TABLE", "DELETE FROM"):
        assert_read_or_refused(damaged(whole, tmp_path, f'{change} "{table}{whole[1]}"'))
