"""What surrounds the events of a Kineto file."""

import gzip
import json
from functools import partial

import pytest
from kineto_events import CUDA, codes, kernel, read_events, rows

from tracekit.formats import identify, silent
from tracekit.formats.kineto import FORMAT


@pytest.fixture
def read(tmp_path):
    return partial(read_events, tmp_path)


def test_times_are_the_base_plus_exact_nanoseconds(read):
    trace = read(
        kernel("a", 3520313156560.137, 2.825, 1),
        kernel("b", 3520313156570, 1, 2),
        **{**CUDA, "baseTimeNanoseconds": 1767189312000000000},
    )
    assert rows(trace, "ops", "start_ns", "end_ns") == [
        (1770709625156560137, 1770709625156562962),
        (1770709625156570000, 1770709625156571000),
    ]


def test_times_without_a_base_that_are_no_epoch_times_are_noted(read):
    assert "kineto.base-time-missing" in codes(read(kernel("k", 5.5, 1, 1)))
    assert "kineto.base-time-missing" not in codes(read(kernel("k", 1695835542514261, 1, 1)))


def test_metadata_may_stand_before_or_after_the_events_or_be_absent(tmp_path):
    events = json.dumps([kernel("k", 1.5, 1, 1)])
    for name, text in (
        ("before", f'{{"baseTimeNanoseconds": 5000, "traceEvents": {events}}}'),
        ("after", f'{{"traceEvents": {events}, "baseTimeNanoseconds": 5000}}'),
        ("bare", events),
        (
            "pretty",
            json.dumps(
                json.loads(f'{{"baseTimeNanoseconds": 5000, "traceEvents": {events}}}'), indent=4
            ),
        ),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        assert identify(path).name == "kineto"
        base = 0 if name == "bare" else 5000
        assert rows(FORMAT.read(path, silent), "ops", "start_ns") == [(base + 1500,)]


def test_gzip_is_read_in_all_its_members(tmp_path):
    text = json.dumps({"traceEvents": [kernel("k", 1, 1, 1)], **CUDA}).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:90]) + gzip.compress(text[90:]))
    trace = FORMAT.read(path, silent)
    assert trace.table("ops").height == 1
    assert "kineto.truncated" not in codes(trace)


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel("k", 1, 1, 1)], **CUDA}))
    seen = []
    FORMAT.read(path, lambda done, total, what: seen.append((done, total, what)))
    size = path.stat().st_size
    assert seen[-1] == (size, size, "bytes")


def test_secrets_in_metadata_reach_no_table_and_no_note(read):
    trace = read(kernel("k", 1, 1, 1), env={"API_KEY": "hf_sekret"}, command="run --token sekret")
    text = str([trace.table(name).rows() for name in trace.frames]) + str(trace.notes)
    assert "sekret" not in text
