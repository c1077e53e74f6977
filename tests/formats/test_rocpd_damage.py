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

    lacking = {"accesses", "marks", "messages", "notes"}
    empty = {name for name in TABLES if trace.table(name).is_empty()}
    assert empty <= lacking
    assert not {note.code for note in trace.notes if note.severity in BAD}


@pytest.mark.parametrize("table", [*USED, *GRAPH_LAUNCH, *HIP_EVENT])
def test_no_value_of_any_column_ends_in_a_traceback(whole, tmp_path, table):
    name, copied = f'"{table}{whole[1]}"', columns_of(whole, table)
    changes = []
    # A row more for each column and value, all else as in the first row: reading takes time.
    for column in [column for owner, column in COLUMNS if owner == table]:
        copy = ", ".join("?" if other == column else quoted(other) for other in copied)
        add = (
            f"INSERT INTO {name} ({', '.join(map(quoted, copied))}) "
            f"SELECT {copy} FROM {name} ORDER BY id LIMIT 1"
        )
        changes += [[add, value] for value in VALUES]
    assert changes
    assert_read_or_refused(damaged(whole, tmp_path, *changes))


@pytest.mark.parametrize("number", [-1, 2**63 - 1])
def test_no_row_id_ends_in_a_traceback(whole, tmp_path, number):
    change = f'UPDATE "rocpd_kernel_dispatch{whole[1]}" SET id = ? WHERE id = 1'
    assert_read_or_refused(damaged(whole, tmp_path, [change, number]))


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_no_column_that_is_missing_ends_in_a_traceback(whole, tmp_path, table, column):
    # SQLite drops no column that is unique; the reader asks for it by name.
    change = f'ALTER TABLE "{table}{whole[1]}" RENAME COLUMN "{column}" TO gone'
    assert_read_or_refused(damaged(whole, tmp_path, [change]))


@pytest.mark.parametrize("table", [*USED, *GRAPH_LAUNCH, *HIP_EVENT])
def test_no_table_that_is_missing_ends_in_a_traceback(whole, tmp_path, table):
    assert_read_or_refused(damaged(whole, tmp_path, [f'DROP TABLE "{table}{whole[1]}"']))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("rocpd_info_process", "environment"),
        ("rocpd_info_process", "command"),
        ("rocpd_info_agent", "extdata"),
        ("rocpd_string", "string"),
        ("rocpd_arg", "value"),
    ],
)
def test_a_secret_beside_a_bad_byte_is_not_shown_and_the_trace_is_read(
    whole, tmp_path, table, column
):
    bad = b'{"API_TOKEN": "planted-secret"} --api-key planted-secret \xff'
    change = f'UPDATE "{table}{whole[1]}" SET "{column}" = CAST(? AS TEXT) WHERE id = '
    change += f'(SELECT max(id) FROM "{table}{whole[1]}")'
    trace = read(damaged(whole, tmp_path, [change, bad]))

    if table.startswith("rocpd_info"):
        assert "planted-secret" not in said(trace)
    assert "planted-secret" not in str(trace.notes)
    assert counts(trace)["rocpd.text-undecodable"] == 1
    assert trace.table("ops").height == 3


def test_text_where_a_time_belongs_is_counted_and_never_quoted(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.dispatch("gemm", 1, "planted-secret", 20)
    file.dispatch("gemm", 2, -(2**63), 20)
    file.dispatch("gemm", 3, 10, 20)
    file.call("hipMalloc", 4, 10, 2**62)

    trace = read(file.save())

    assert trace.table("ops")["start_ns"].to_list() == [10]
    assert trace.table("calls").is_empty()
    assert counts(trace)["rocpd.rows-without-time"] == 3
    assert counts(trace)["rocpd.values-unusable"] == 1
    assert counts(trace)["rocpd.times-impossible"] == 2
    assert "planted-secret" not in said(trace)


def test_a_damaged_table_is_refused_without_a_word_of_what_it_holds(whole, tmp_path):
    version = f"UPDATE \"rocpd_metadata{whole[1]}\" SET value = 'planted-secret' WHERE id = 1"

    with pytest.raises(UnreadableTrace, match="has rocpd schema of no known number") as caught:
        read(damaged(whole, tmp_path, [version]))
    assert "planted-secret" not in str(caught.value)


def test_a_damaged_table_name_neither_stops_sniffing_nor_the_reading_of_its_folder(tmp_path):
    file = small_file(tmp_path / "good.db")
    file.dispatch("gemm", 1, 10, 20)
    good = file.save()
    content = good.read_bytes()
    (tmp_path / "bad.db").write_bytes(content.replace(b"rocpd_info_node_", b"rocpd_info_nod\xe5_"))

    assert FORMAT.sniff(tmp_path / "bad.db", content[:4096])
    assert read_trace([tmp_path]).table("ops").height == 2


def test_a_schema_that_sqlite_cannot_parse_nor_python_decode_is_refused(tmp_path):
    file = small_file(tmp_path / "good.db")
    file.dispatch("gemm", 1, 10, 20)
    good = file.save()
    bad = tmp_path / "bad.db"
    # In the statement too, and that no longer parses: SQLite's message then quotes the name.
    named = good.read_bytes().replace(b"rocpd_info_node_", b"rocpd_info_nod\xe5_")
    bad.write_bytes(
        named.replace(b'CREATE TABLE "rocpd_info_nod\xe5', b'CREATE TABL( "rocpd_info_nod\xe5')
    )

    assert FORMAT.sniff(bad, named[:4096])
    with pytest.raises(UnreadableTrace, match="cannot be read as rocpd: the database is malformed"):
        read(bad)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("rocpd_region", "start"),
        ("rocpd_region", "end"),
        ("rocpd_kernel_dispatch", "end"),
        ("rocpd_memory_copy", "start"),
        ("rocpd_sample", "timestamp"),
    ],
)
def test_a_table_without_its_times_is_refused(whole, tmp_path, table, column):
    change = f'ALTER TABLE "{table}{whole[1]}" RENAME COLUMN "{column}" TO gone'

    with pytest.raises(UnreadableTrace, match=f"lacks the required column {column} of {table}"):
        read(damaged(whole, tmp_path, [change]))


def test_dispatches_of_no_known_gpu_are_counted(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.dispatch("gemm", 1, 10, 20)
    file.dispatch("gemm", 2, 10, 20, agent=99)
    file.dispatch("gemm", 3, 10, 20, agent=0)
    file.memory_copy("MEMORY_COPY_HOST_TO_HOST", 4, 30, 40, 8, dst=0, src=0)

    notes = [n for n in read(file.save()).notes if n.code == "rocpd.dispatches-without-device"]

    assert [(note.count, note.severity) for note in notes] == [(2, Severity.DATA_LOSS)]


def test_notes_start_with_a_capital_and_missing_columns_are_named(whole, tmp_path):
    drop = f'DROP TABLE "rocpd_info_agent{whole[1]}"'
    rename = f'ALTER TABLE "rocpd_event{whole[1]}" RENAME COLUMN stack_id TO gone'
    notes = read(damaged(whole, tmp_path, [drop], [rename])).notes
    messages = {note.code: note.message for note in notes}

    assert all(message[0].isupper() for message in messages.values())
    assert "rocpd_info_agent" in messages["rocpd.tables-missing"]
    assert "rocpd_event.stack_id" in messages["rocpd.columns-missing"]
