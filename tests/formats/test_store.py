"""A run directory holds the whole trace, or is not there."""

import json
import os
import resource
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from tracekit.errors import OutputExists, TracekitError, UnreadableTrace
from tracekit.formats import read_trace
from tracekit.formats.store import add_run, write_run
from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace


@pytest.fixture
def trace(frame):
    frames = {
        "processes": frame("processes", "process_id pid\n 0 14\n 1 15"),
        "devices": frame("devices", "device_id name\n 0 MI300X"),
        "ops": frame(
            "ops",
            """
            op_id kind   name process_id device_id start_ns end_ns
            0     kernel gemm 0          0         0        10
            1     copy   h2d  1          0         5        12
            2     kernel gemm -          0         20       30
            """,
        ),
        "calls": frame("calls", "call_id process_id name kind\n 0 1 hipLaunchKernel launch"),
    }
    note = Note("test.note", Severity.DATA_LOSS, "Two rows lost.", 2, "a.json")
    return Trace.from_frames(frames, notes=[note], sources=["a.json"], format_name="kineto")


def test_a_trace_comes_back_as_it_was(trace, tmp_path):
    write_run(trace, tmp_path / "run", force=False)
    back = read_trace([tmp_path / "run"])
    for name in TABLES:
        assert_frame_equal(back.table(name), trace.table(name), check_row_order=name != "ops")
    assert (back.notes, back.format_name) == (trace.notes, "kineto")


def test_a_process_has_a_shard_of_its_own_and_nothing_is_read_before_it_is_asked_for(
    trace, tmp_path
):
    write_run(trace, tmp_path / "run", force=False)
    shard = tmp_path / "run" / "shards" / "1" / "ops.parquet"
    content = shard.read_bytes()
    shard.write_bytes(content[:4] + b"\xff" * 60 + content[64:])  # the footer stays whole
    back = read_trace([tmp_path / "run"])
    with pytest.raises(UnreadableTrace, match="ops is damaged"):
        back.table("ops")
    assert back.table("calls").height == 1


def test_an_existing_run_is_replaced_only_by_force_and_nothing_else_ever(trace, tmp_path):
    target = tmp_path / "run"
    write_run(trace, target, force=False)
    with pytest.raises(OutputExists, match="--force"):
        write_run(trace, target, force=False)
    write_run(trace, target, force=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(TracekitError, match="not a tracekit run"):
        write_run(trace, precious, force=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["precious", "run"]


def test_a_run_that_cannot_be_written_leaves_nothing_behind(trace, tmp_path):
    with pytest.raises(TracekitError, match=r"its folder does not exist\. Make it: mkdir -p"):
        write_run(trace, tmp_path / "missing" / "run", force=False)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_conversion_leaves_the_old_run_as_it_was(trace, tmp_path, monkeypatch):
    target = tmp_path / "run"
    write_run(trace, target, force=False)
    before = (target / "manifest.json").read_bytes()
    rename = Path.rename

    def interrupted(self, other):
        if self.name.endswith(f"-{os.getpid()}"):
            raise KeyboardInterrupt
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_run(trace, target, force=True)
    monkeypatch.undo()
    assert (target / "manifest.json").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tracekit_run": 9}, "layout 9, this tracekit reads 1"),
        ({"shards": ["../../etc"]}, "names a file outside it"),
        ({"shards": 3}, "manifest.json is damaged"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(trace, tmp_path, change, message):
    write_run(trace, tmp_path / "run", force=False)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UnreadableTrace, match=message):
        read_trace([tmp_path / "run"])


def test_a_table_with_other_columns_is_refused(trace, tmp_path, frame):
    write_run(trace, tmp_path / "run", force=False)
    frame("devices", "device_id\n 0").rename({"name": "title"}).write_parquet(
        tmp_path / "run" / "shards" / "shared" / "devices.parquet"
    )
    with pytest.raises(UnreadableTrace, match="devices has other columns"):
        read_trace([tmp_path / "run"])


@pytest.mark.parametrize("lost", ["shards/1/ops.parquet", "shards/shared/devices.parquet"])
def test_a_run_with_a_part_gone_is_refused_and_not_read_as_less(trace, tmp_path, lost):
    write_run(trace, tmp_path / "run", force=False)
    (tmp_path / "run" / lost).unlink()
    with pytest.raises(UnreadableTrace, match=f"is incomplete: {lost} is gone"):
        read_trace([tmp_path / "run"])


@pytest.mark.parametrize("keep", [0, 40])
def test_a_cut_table_is_refused_when_the_run_is_opened(trace, tmp_path, keep):
    write_run(trace, tmp_path / "run", force=False)
    shard = tmp_path / "run" / "shards" / "0" / "ops.parquet"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(UnreadableTrace, match="its table ops is damaged"):
        read_trace([tmp_path / "run"])


def test_what_a_killed_conversion_left_is_swept_by_the_next(trace, tmp_path):
    nobody = tmp_path / ".run.partial-999999999"
    somebody = tmp_path / f".run.partial-{os.getppid()}"
    nobody.mkdir()
    somebody.mkdir()
    write_run(trace, tmp_path / "run", force=False)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [somebody.name, "run"]


def test_a_half_written_run_is_never_under_the_final_name(trace, tmp_path, monkeypatch):
    seen = []
    replace = os.rename

    def watch(source, target, **kwargs):
        seen.append((Path(source).name, (Path(source) / "manifest.json").is_file()))
        replace(source, target, **kwargs)

    monkeypatch.setattr("os.rename", watch)
    write_run(trace, tmp_path / "run", force=False)
    ((source, is_complete),) = seen
    assert source.startswith(".run.partial-")
    assert is_complete


def test_a_trace_is_added_to_a_folder_of_other_files_once(trace, tmp_path):
    (tmp_path / "server.log").write_text("ready")
    add_run(trace, tmp_path)
    assert_frame_equal(read_trace([tmp_path]).table("calls"), trace.table("calls"))
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "server.log", "shards"}
    with pytest.raises(OutputExists):
        add_run(trace, tmp_path)


def test_a_folder_is_no_run_before_everything_of_it_is_there(trace, tmp_path):
    (tmp_path / "shards").touch()  # in the way: a folder cannot take its place
    with pytest.raises(TracekitError, match="cannot be written"):
        add_run(trace, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    (tmp_path / "shards").unlink()
    (tmp_path / "shards" / "7").mkdir(parents=True)  # of an addition that was interrupted
    add_run(trace, tmp_path)
    assert not (tmp_path / "shards" / "7").exists()


def test_a_full_disk_is_told_in_a_sentence_and_leaves_nothing(trace, tmp_path):
    """A limit on the size of files stands for the disk: it fails the same write calls."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))
    try:
        for write in (add_run, lambda made, path: write_run(made, path / "run", force=False)):
            with pytest.raises(TracekitError, match="cannot be written"):
                write(trace, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert list(tmp_path.iterdir()) == []
