"""The spool: no row is lost, doubled or torn while another thread writes it to disk."""

import json
import struct
import sys
import threading
from array import array
from itertools import count

import numpy as np
import pytest
from recorder_rows import query, small_recording

from instrumented_runtime.recorder import Recorder, RecorderError, finalize
from instrumented_runtime.recorder.finalize import finalize_spool
from instrumented_runtime.recorder.layout import TABLES
from instrumented_runtime.recorder.spool import SpoolWriter, read_spool


@pytest.fixture
def restless():
    """Threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def leave_behind(directory, **more):
    """Stop a recording as a kill would, but with all that it had on disk; returns the spool."""
    recorder = small_recording(directory, **more)
    recorder._stop.set()
    recorder._flusher.join()
    recorder._spool.flush(recorder.rows)
    recorder._spool.close()
    return recorder._spool.path


def test_rows_added_while_others_are_flushed_are_each_written_once(tmp_path, restless):
    writer = SpoolWriter(tmp_path / "virtual_1.spool", {"pid": 1})
    rows = {table: array("q") for table in TABLES}
    done = threading.Event()

    def flush():
        while not done.is_set():
            writer.flush(rows)

    flusher = threading.Thread(target=flush)
    flusher.start()
    extend, frombytes = rows["calls"].extend, rows["dispatches"].frombytes
    for number in range(60_000):
        extend((number,) * 10)
        if number % 3 == 0:
            frombytes(np.repeat(np.arange(number, number + 3), 8).tobytes())
    done.set()
    flusher.join()
    writer.flush(rows)
    writer.close()

    spool = read_spool(writer.path)
    numbers = np.arange(60_000)
    assert np.array_equal(spool.rows["calls"], np.repeat(numbers, 10).reshape(-1, 10))
    assert np.array_equal(spool.rows["dispatches"], np.repeat(numbers, 8).reshape(-1, 8))
    assert spool.torn == {}


def test_a_row_added_during_the_write_waits_for_the_next(tmp_path):
    class Late(array):
        """A row is added right after the flush has copied what is there."""

        def __getitem__(self, place):
            there = super().__getitem__(place)
            self.extend((2,) * 10)
            return there

    writer = SpoolWriter(tmp_path / "virtual_1.spool", {"pid": 1})
    rows = {table: array("q") for table in TABLES} | {"calls": Late("q", (1,) * 10)}
    writer.flush(rows)
    assert read_spool(writer.path).rows["calls"].tolist() == [[1] * 10]
    writer.flush(rows)
    writer.close()

    assert read_spool(writer.path).rows["calls"].tolist() == [[1] * 10, [2] * 10]


def test_an_operation_is_never_on_disk_without_a_call_that_was_in_memory_before_it(tmp_path):
    numbers = count(1)

    class Growing(dict):
        """A call and its kernel are added whenever the flush turns to a table."""

        def __getitem__(self, table):
            number = next(numbers)
            self.get("calls").extend((number,) * 10)
            self.get("dispatches").extend((number,) * 8)
            return self.get(table)

    writer = SpoolWriter(tmp_path / "virtual_1.spool", {"pid": 1})
    writer.flush(Growing({table: array("q") for table in TABLES}))
    writer.close()

    rows = read_spool(writer.path).rows
    assert rows["dispatches"].size
    assert set(rows["dispatches"][:, 0]) <= set(rows["calls"][:, 0])


def test_a_failed_write_is_repeated_in_the_same_place(tmp_path):
    writer = SpoolWriter(tmp_path / "virtual_1.spool", {"pid": 1})
    rows = {table: array("q") for table in TABLES}
    rows["markers"].extend((1, 1, 1, 5, 9))
    file = writer._files["markers"]
    writer._files["markers"] = -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.flush(rows)
    writer._files["markers"] = file
    # What a full disk leaves of a row.
    (writer.path / "markers.i64").write_bytes(b"torn")
    rows["markers"].extend((2, 1, 1, 6, 9))

    writer.flush(rows)
    writer.close()

    assert read_spool(writer.path).rows["markers"].tolist() == [[1, 1, 1, 5, 9], [2, 1, 1, 6, 9]]


def test_a_name_has_one_number_and_is_on_disk_at_once(tmp_path):
    recorder = Recorder(tmp_path, environment={})

    assert [recorder.kernel(name) for name in ("a", "b", "a")] == [1, 2, 1]
    assert [recorder.text(text) for text in ("b", "b\n", "b")] == [1, 2, 1]
    recorder.stream(3, "Stream 2")

    names = read_spool(tmp_path / "virtual_1.spool").names
    assert names["kernel"] == {1: "a", 2: "b"}
    assert names["text"] == {1: "b", 2: "b\n"}
    assert names["stream"] == {3: "Stream 2"}
    recorder.close()


def test_the_same_rows_and_seed_give_the_same_bytes_however_they_were_flushed(tmp_path):
    first = small_recording(tmp_path / "a", seed=5).close()
    second = leave_behind(tmp_path / "b", seed=5)
    finalize_spool(second)
    other = small_recording(tmp_path / "c", seed=6).close()

    assert first.read_bytes() == (tmp_path / "b/virtual_1.db").read_bytes()
    assert first.read_bytes() != other.read_bytes()
    guid = "SELECT value FROM rocpd_metadata WHERE tag = 'guid'"
    assert query(first, guid) != query(other, guid)


def test_closing_removes_the_spool_and_leaves_the_database_alone(tmp_path):
    with small_recording(tmp_path) as recorder:
        assert [path.name for path in tmp_path.iterdir()] == ["virtual_1.spool"]

    assert [path.name for path in tmp_path.iterdir()] == ["virtual_1.db"]
    assert recorder.close() == tmp_path / "virtual_1.db"


def test_a_recording_whose_run_failed_has_its_database(tmp_path):
    with pytest.raises(KeyError), small_recording(tmp_path):
        raise KeyError

    assert query(tmp_path / "virtual_1.db", "SELECT count(*) FROM kernels") == [(3,)]


def test_torn_last_rows_and_a_torn_last_line_are_dropped_and_counted(tmp_path):
    spool = leave_behind(tmp_path)
    for name in ("calls", "copies"):
        with (spool / f"{name}.i64").open("ab") as file:
            file.write(struct.pack("<3q", 1, 2, 3))
    with (spool / "names.jsonl").open("ab") as file:
        file.write(b'{"kind": "kernel", "num')

    done = finalize_spool(spool)

    assert done.torn == {"names": 1, "calls": 1, "copies": 1}
    assert done.sentence() == (
        f"Wrote {tmp_path / 'virtual_1.db'} from 19 rows; dropped 1 unfinished line of names;"
        " dropped 1 unfinished row of calls; dropped 1 unfinished row of copies"
    )
    whole = small_recording(tmp_path / "whole").close()
    assert (tmp_path / "virtual_1.db").read_bytes() == whole.read_bytes()
    assert not spool.exists()


def test_operations_whose_call_was_cut_off_stay_on_the_main_thread(tmp_path):
    spool = leave_behind(tmp_path)
    calls = np.fromfile(spool / "calls.i64", "<i8").reshape(-1, 10)
    calls[calls[:, 0] < 5].tofile(spool / "calls.i64")

    done = finalize_spool(spool)

    # Three kernels, the copy to the host and the free; a copy from host to host is its call only.
    assert done.without_call == 5
    assert "kept 5 operations whose call was not recorded" in done.sentence()
    columns = "name, tid, stack_id, (SELECT count(*) FROM regions r WHERE r.stack_id = k.stack_id)"
    assert query(done.path, f"SELECT {columns} FROM kernels k ORDER BY id") == [
        ("gemm<4,float>", 1, 5, 0),
        ("softmax", 1, 6, 0),
        ("gemm<4,float>", 1, 6, 0),
    ]
    assert query(done.path, "PRAGMA foreign_key_check") == []


def test_rows_that_contradict_each_other_are_refused_and_the_spool_is_kept(tmp_path):
    spool = leave_behind(tmp_path)
    calls = (spool / "calls.i64").read_bytes()
    (spool / "calls.i64").write_bytes(calls * 2)

    with pytest.raises(RecorderError, match="its rows contradict each other"):
        finalize_spool(spool)

    assert [path.name for path in tmp_path.iterdir()] == ["virtual_1.spool"]


@pytest.mark.parametrize("line", [b"{}", b'{"format": 1, "pid"', b"[]", b"\xff"])
def test_names_that_no_recorder_wrote_are_refused(tmp_path, line):
    spool = leave_behind(tmp_path)
    lines = (spool / "names.jsonl").read_bytes().splitlines()
    (spool / "names.jsonl").write_bytes(b"\n".join([line, *lines[1:]]) + b"\n")

    with pytest.raises(RecorderError, match="is not what a recorder wrote, or is damaged"):
        finalize_spool(spool)


def test_a_spool_of_another_format_is_refused(tmp_path):
    spool = leave_behind(tmp_path)
    first, *lines = (spool / "names.jsonl").read_bytes().splitlines()
    newer = json.dumps({**json.loads(first), "format": 2}).encode()
    (spool / "names.jsonl").write_bytes(b"\n".join([newer, *lines]) + b"\n")

    with pytest.raises(RecorderError, match="is of format 2, not 1"):
        finalize_spool(spool)


def test_a_recorder_refuses_what_is_there_and_a_pid_below_1(tmp_path):
    spool = leave_behind(tmp_path)
    with pytest.raises(RecorderError, match="is the spool of another recording"):
        Recorder(tmp_path, environment={})
    finalize_spool(spool)
    before = (tmp_path / "virtual_1.db").read_bytes()
    with pytest.raises(RecorderError, match="exists; move it, or record elsewhere"):
        Recorder(tmp_path, environment={})
    with pytest.raises(ValueError, match="pid must be a whole number from 1 to"):
        Recorder(tmp_path, pid=0, environment={})

    assert (tmp_path / "virtual_1.db").read_bytes() == before
    assert not (tmp_path / "virtual_1.spool").exists()


@pytest.mark.parametrize("during_the_writing", [False, True])
def test_a_database_that_came_to_be_meanwhile_is_not_overwritten(
    tmp_path, monkeypatch, during_the_writing
):
    recorder = small_recording(tmp_path)
    if during_the_writing:
        database = tmp_path / "virtual_1.db"
        appear = lambda *_rows: database.write_text("mine")  # noqa: E731
        monkeypatch.setattr(finalize, "_progress_of", lambda _target: appear)
    else:
        (tmp_path / "virtual_1.db").write_text("mine")

    with pytest.raises(RecorderError, match="exists and is not overwritten"):
        recorder.close()

    assert (tmp_path / "virtual_1.db").read_text() == "mine"
    monkeypatch.undo()
    (tmp_path / "virtual_1.db").unlink()
    path = recorder.close()
    calls = query(path, "SELECT count(*) FROM rocpd_region")
    assert calls[0][0] > 0
