"""Rocpd files as files: what is claimed, packages, secrets, versions, damage, read-only reading."""

import shutil
import sqlite3

import pytest
from rocpd_files import GUID, small_file

from tracekit.errors import UnreadableTrace
from tracekit.formats import identify, read_trace, silent
from tracekit.formats.rocpd import FORMAT
from tracekit.tables.catalog import TABLES


def read(path):
    return FORMAT.read(path, silent)


def counts(trace):
    return {note.code: note.count for note in trace.notes}


def texts(trace):
    """Everything a trace says, as one text."""
    frames = [str(trace.table(name).to_dicts()) for name in TABLES]
    return "\n".join([*frames, *map(str, trace.notes)])


def head(path):
    return path.read_bytes()[:4096]


def with_dispatch(path, guid=GUID):
    file = small_file(path, guid)
    file.dispatch("gemm", 1, 10, 20)
    return file.save()


def test_a_rocpd_file_is_claimed_and_another_programs_database_is_not(tmp_path):
    ours = with_dispatch(tmp_path / "a.db")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT)")
        connection.execute("CREATE TABLE rocpd_metadata (id INTEGER PRIMARY KEY, tag TEXT)")
        connection.execute("CREATE TABLE rocpd_info_process_notes (id INTEGER)")
    text = tmp_path / "text.db"
    text.write_text("rocpd_info_node is the name of a table")

    assert FORMAT.sniff(ours, head(ours))
    assert not FORMAT.sniff(other, head(other))
    assert not FORMAT.sniff(text, head(text))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"hello", "is in no format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        (b"SQLite format 3\0" + b"\0" * 100, "is in no format"),
    ],
)
def test_what_is_no_database_is_refused_in_one_sentence(tmp_path, content, problem):
    path = tmp_path / "x.db"
    path.write_bytes(content)

    with pytest.raises(UnreadableTrace, match=problem):
        identify(path)


def test_a_damaged_page_is_one_clear_error(tmp_path):
    file = small_file(tmp_path / "a.db")
    for number in range(1, 2000):
        file.dispatch("gemm", number, number, number + 1)
    path = file.save()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)

    with pytest.raises(
        UnreadableTrace, match=r"a\.db: cannot be read .* malformed at table rocpd_\w+\. Copy or"
    ):
        read_trace([path])


def test_a_file_cut_short_is_one_clear_error(tmp_path):
    file = small_file(tmp_path / "a.db")
    for number in range(1, 2000):
        file.dispatch("gemm", number, number, number + 1)
    path = file.save()
    path.write_bytes(path.read_bytes()[: 40 * 4096])

    with pytest.raises(UnreadableTrace, match=r"a\.db: cannot be read"):
        read_trace([path])


@pytest.mark.parametrize(("version", "is_read"), [("3", True), ("3.0.5", True), ("4.1.0", False)])
def test_another_major_schema_is_refused(tmp_path, version, is_read):
    path = small_file(tmp_path / "a.db", version=version).save()

    if is_read:
        read(path)
    else:
        with pytest.raises(UnreadableTrace, match=r"has rocpd schema 4\.1\.0"):
            read(path)


def test_a_file_whose_writer_was_killed_is_refused(tmp_path):
    path = with_dispatch(tmp_path / "a.db")
    (tmp_path / "a.db-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + b"\0" * 504)

    with pytest.raises(UnreadableTrace, match="still being written"):
        read(path)


def test_reading_leaves_the_file_and_its_folder_as_they_were(tmp_path):
    path = with_dispatch(tmp_path / "a b%20?#.db")
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)

    assert read(path).table("ops").height == 1

    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_file_in_log_mode_without_a_log_is_read_without_making_one(tmp_path):
    path = with_dispatch(tmp_path / "a.db")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()

    assert read(path).table("ops").height == 1

    assert [entry.name for entry in tmp_path.iterdir()] == ["a.db"]


def test_rows_still_in_a_write_ahead_log_are_read_and_the_log_is_left_alone(tmp_path):
    file = small_file(tmp_path / "live.db")
    file.save()
    writer = sqlite3.connect(tmp_path / "live.db")
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute(
        f"INSERT INTO rocpd_kernel_dispatch{file.suffix} (nid, pid, agent_id, kernel_id, "
        "dispatch_id, queue_id, stream_id, start, end) VALUES (1, 28, 2, 1, 1, 16, 0, 10, 20)"
    )
    writer.commit()
    folder = tmp_path / "copied"
    folder.mkdir()
    for name in ("live.db", "live.db-wal"):
        shutil.copy(tmp_path / name, folder / name)
    writer.close()
    log = (folder / "live.db-wal").read_bytes()

    assert read(folder / "live.db").table("ops").height == 1

    assert sorted(entry.name for entry in folder.iterdir()) == ["live.db", "live.db-wal"]
    assert (folder / "live.db-wal").read_bytes() == log


def test_missing_tables_are_noted_and_what_is_there_is_read(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipMalloc", 1, 10, 20)
    file.dispatch("gemm", 1, 10, 20)
    path = file.save()
    with sqlite3.connect(path) as connection:
        for name in ("rocpd_event", "rocpd_arg", "rocpd_info_thread", "rocpd_sample"):
            connection.execute(f'DROP TABLE "{name}{file.suffix}"')

    trace = read(path)

    assert trace.table("ops").select("name", "call_id").rows() == [("gemm", None)]
    assert trace.table("calls").select("name", "thread_id").rows() == [("hipMalloc", None)]
    assert counts(trace)["rocpd.tables-missing"] == 1


def test_without_a_process_row_everything_belongs_to_one_process(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.dispatch("gemm", 1, 10, 20)
    path = file.save()
    with sqlite3.connect(path) as connection:
        connection.execute(f'DROP TABLE "rocpd_info_process{file.suffix}"')

    trace = read(path)

    assert trace.table("ops")["process_id"].to_list() == [0]
    assert trace.table("processes").select("process_id", "pid", "source").rows() == [
        (0, None, str(path))
    ]


def test_a_database_without_our_tables_is_refused_when_read_by_name(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id INTEGER)")

    with pytest.raises(UnreadableTrace, match="has no table of rocpd"):
        read(path)


def test_a_path_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UnreadableTrace, match=r"gone\.db"):
        read(tmp_path / "gone.db")


def test_a_capture_without_any_event_is_read_and_says_so(tmp_path):
    trace = read(small_file(tmp_path / "a.db").save())

    assert trace.table("ops").is_empty()
    assert trace.table("counters").is_empty()
    assert {"rocpd.ops-not-collected", "rocpd.calls-not-collected"} <= set(counts(trace))


def test_secrets_of_environment_and_command_reach_no_frame_and_no_note(tmp_path):
    environment = {
        "API_TOKEN": "planted-secret-1",
        "ROCPROF_OUTPUT_PATH": "planted-secret-2",
        "ROCPROF_KERNEL_TRACE": "planted-secret-3?",
        "RANK": "3",
        "ROCPROF_HIP_RUNTIME_API_TRACE": "1",
        "ROCPROF_MARKER_API_TRACE": "0",
    }
    command = "python serve.py --api-key planted-secret-4 --port 30000"
    path = small_file(tmp_path / "a.db", environment=environment, command=command).save()

    trace = read(path)

    assert "planted-secret" not in texts(trace)
    assert trace.table("processes").select("rank", "command", "node", "pid").rows() == [
        (3, "python serve.py --api-key <redacted> --port 30000", "node-a", 28)
    ]
    assert trace.table("processes")["collected"].to_list() == [["calls", "call_arguments"]]


def test_kinds_with_rows_were_collected_whatever_the_switches_say(tmp_path):
    file = small_file(tmp_path / "a.db", environment={"ROCPROF_MARKER_API_TRACE": "1"})
    file.dispatch("gemm", 1, 10, 20)

    assert read(file.save()).table("processes")["collected"].to_list() == [["ranges", "ops"]]


@pytest.mark.parametrize("key", ["RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK"])
def test_the_rank_comes_from_the_environment(tmp_path, key):
    path = small_file(tmp_path / "a.db", environment={key: "5"}).save()

    processes = read(path).table("processes")

    assert processes["rank"].to_list() == [5]
    assert processes["collected"].to_list() == [None]
