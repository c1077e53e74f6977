"""Laws of the format room: who claims what, and what is said about the rest."""

import gzip
import sqlite3
from pathlib import Path

import pytest
from rocpd_files import small_file

from tracekit.errors import BadInput, UnreadableTrace
from tracekit.formats import HEAD_BYTES, formats, identify, read_trace
from tracekit.tables.catalog import TABLES

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "samples").glob("*.json.gz"))


def head_of(path):
    opener = gzip.open if path.read_bytes()[:2] == b"\x1f\x8b" else open
    with opener(path, "rb") as file:
        return file.read(HEAD_BYTES)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_is_claimed_once_and_every_frame_is_as_declared(path):
    assert sum(format_.sniff(path, head_of(path)) for format_ in formats().values()) == 1
    trace = read_trace([path])
    for name, table in TABLES.items():
        assert trace.table(name).schema == table.schema
    for table in TABLES.values():
        for column in table.columns:
            ids = trace.table(table.name)[column.name]
            assert column.space is None or ids.is_null().all() or ids.min() >= 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"just some text\n", "in no format tracekit reads"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"\x1f\x8bnot really gzip", "in no format tracekit reads"),
        (b"\x00\x01\x02" * 100, "in no format tracekit reads"),
        (b'{"a": 1}', "in no format tracekit reads"),
    ],
)
def test_a_file_of_no_format_is_refused_with_what_to_do(tmp_path, content, problem):
    path = tmp_path / "some.file"
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace, match=problem):
        identify(path)


def test_another_programs_sqlite_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    with pytest.raises(UnreadableTrace, match="in no format tracekit reads"):
        identify(path)


@pytest.mark.parametrize("folder", ["rpd", "nsys"])
def test_databases_of_other_profilers_are_not_mistaken_for_rocpd(real_traces, folder):
    for path in sorted((real_traces / folder).iterdir()):
        assert not formats()["rocpd"].sniff(path, head_of(path))


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(UnreadableTrace, match="does not exist"):
        read_trace([tmp_path / "nothing.json"])
    with pytest.raises(UnreadableTrace, match="holds no trace file"):
        read_trace([tmp_path])


def test_nothing_given_and_one_file_given_twice_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no trace given"):
        read_trace([])
    with pytest.raises(BadInput, match="given twice"):
        read_trace([SAMPLES[0], SAMPLES[0]])


def test_a_folder_of_mixed_formats_is_refused(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(SAMPLES[0].read_bytes())
    small_file(tmp_path / "b.db").save()
    with pytest.raises(UnreadableTrace, match="mixed formats: kineto, rocpd"):
        read_trace([tmp_path])


def test_one_file_under_two_names_is_refused(tmp_path):
    (tmp_path / "link.json.gz").symlink_to(SAMPLES[0])
    with pytest.raises(BadInput, match="given twice"):
        read_trace([SAMPLES[0], tmp_path / "link.json.gz"])


def test_a_folder_of_traces_is_one_run_and_what_it_skips_is_noted(tmp_path):
    for sample in SAMPLES[:2]:
        (tmp_path / sample.stem).mkdir()
        (tmp_path / sample.stem / sample.name).write_bytes(sample.read_bytes())
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "rank7.json").write_text("")
    together = read_trace([tmp_path])
    apart = [read_trace([sample]) for sample in SAMPLES[:2]]
    assert together.table("ops").height == sum(trace.table("ops").height for trace in apart)
    assert together.table("ops")["op_id"].is_unique().all()
    (note,) = [note for note in together.notes if note.code == "formats.files-skipped"]
    assert (note.count, "notes.txt, rank7.json" in note.message) == (2, True)
