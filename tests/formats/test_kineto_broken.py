"""Broken Kineto files: one clear message, or everything that is whole and a count of the rest."""

import gzip
import json
import re

import pytest

from tracekit.errors import UnreadableTrace
from tracekit.formats import identify, read_trace, silent
from tracekit.formats.kineto import FORMAT, container

KERNEL = (
    '{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7, "ts": %d, "dur": 1,'
    ' "args": {"device": 0, "stream": 7, "correlation": %d, "context": 1}}'
)
HEAD = '{"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": ['


def kernels(*names):
    return ",\n".join(KERNEL % (name, 10 * n, n + 1) for n, name in enumerate(names))


def names(trace):
    return trace.table("ops")["name"].to_list()


def codes(trace):
    return {note.code: note.count for note in trace.notes}


@pytest.fixture
def read(tmp_path):
    def written_and_read(text):
        path = tmp_path / "trace.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return FORMAT.read(path, silent)

    return written_and_read


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is empty"),
        (b"hello world\n", "is not JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is not JSON"),
        (b'{"schemaVersion": 1, "deviceProp', "ends before its events begin"),
        (b'{"schemaVersion": 1}', "holds no traceEvents"),
        (b'{"traceEvents": {}}', "holds no traceEvents"),
        (b'{"traceEvents": []}', "without a single event of the PyTorch profiler"),
        (b'[{"ph": "X", "cat": "renderer", "name": "a", "ts": 1, "dur": 1}]', "without a single"),
    ],
)
def test_a_file_without_a_trace_is_refused_with_what_to_do(read, text, problem):
    with pytest.raises(UnreadableTrace, match=problem) as raised:
        read(text)
    assert raised.value.remedy


@pytest.mark.parametrize(
    "text", [b"", b"text", b"version https://git-lfs.github.com/spec/v1\n", b"{}", b"[1, 2]"]
)
def test_a_foreign_file_is_not_claimed(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(UnreadableTrace):
        identify(path)


def test_long_metadata_before_the_events_does_not_hide_the_format(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"metadata": ["x" * 100] * 900, "traceEvents": []}))
    assert identify(path).name == "kineto"


@pytest.mark.parametrize("packed", [False, True])
def test_every_truncation_gives_the_whole_events_before_it(tmp_path, packed):
    whole = HEAD + kernels("a", "b", "c") + '], "traceName": "t"}'
    ends = [match.end() for match in re.finditer("}}", whole)]
    path = tmp_path / "trace.json"
    for cut in [*range(len(HEAD), len(whole), 9), *ends, *(end - 1 for end in ends)]:
        text = whole[:cut].encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        trace = FORMAT.read(path, silent)
        complete = sum(end <= cut for end in ends)
        assert names(trace) == ["a", "b", "c"][:complete], cut
        assert codes(trace)["kineto.truncated"] == 1, cut


def test_a_gzip_file_cut_anywhere_is_read_or_refused_but_never_a_traceback(tmp_path):
    whole = gzip.compress((HEAD + kernels(*"abcdefgh") + "]}").encode(), compresslevel=1)
    path = tmp_path / "trace.json.gz"
    for cut in range(1, len(whole), 5):
        path.write_bytes(whole[:cut])
        try:
            trace = FORMAT.read(path, silent)
        except UnreadableTrace:
            continue
        assert codes(trace)["kineto.truncated"] == 1
        assert names(trace) == list("abcdefgh")[: trace.table("ops").height]


def test_a_damaged_gzip_stream_gives_what_came_before_the_damage(tmp_path):
    text = HEAD + kernels(*(f"kernel_{n}" for n in range(20_000))) + "]}"
    packed = bytearray(gzip.compress(text.encode()))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    trace = FORMAT.read(path, silent)
    assert 0 < trace.table("ops").height < 20_000
    assert "kineto.gzip-damaged" in codes(trace)
    assert "kineto.truncated" not in codes(trace)


def test_a_gzip_file_with_a_wrong_checksum_is_called_damaged_and_read_whole(tmp_path):
    packed = bytearray(gzip.compress((HEAD + kernels(*"abc") + "]}").encode()))
    packed[-8] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    trace = FORMAT.read(path, silent)
    assert names(trace) == ["a", "b", "c"]
    assert "kineto.gzip-damaged" in codes(trace)
    assert "kineto.truncated" not in codes(trace)


def test_gzip_damaged_before_the_events_is_refused_as_damaged(tmp_path):
    packed = bytearray(gzip.compress((HEAD + kernels(*"abc") + "]}").encode()))
    packed[12:20] = b"\xff" * 8
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    with pytest.raises(UnreadableTrace, match="does not decompress"):
        FORMAT.read(path, silent)


def test_raw_control_characters_in_strings_cost_nothing(read):
    trace = read(HEAD + kernels("a\tb", "c\x01d", "e\nf") + "]}")
    assert names(trace) == ["a b", "c d", "e f"]
    assert "kineto.events-unreadable" not in codes(trace)


def test_invalid_utf8_in_a_name_costs_nothing(read):
    trace = read((HEAD + kernels("a@b", "c") + "]}").encode().replace(b"@", b"\xff"))
    assert names(trace) == ["a\N{REPLACEMENT CHARACTER}b", "c"]


def test_bare_nan_and_infinity_cost_nothing(read):
    text = kernels("a", "b", "c").replace('"context": 1', '"occupancy": -nan, "list": [inf]')
    trace = read(HEAD + text + "]}")
    assert names(trace) == ["a", "b", "c"]
    assert "kineto.events-unreadable" not in codes(trace)


def test_unescaped_quotes_lose_their_event_only_and_are_counted(read):
    trace = read(HEAD + kernels("a", 'b"c', "d", "e", 'f"') + "]}")
    assert names(trace) == ["a", "d", "e"]
    assert codes(trace)["kineto.events-unreadable"] == 2


def test_unescaped_quotes_in_the_last_event_do_not_hide_the_metadata_after_it(read):
    text = '{"traceEvents": [' + kernels("a", 'b"c') + '], "baseTimeNanoseconds": 5000}'
    trace = read(text)
    assert trace.table("ops")["start_ns"].to_list() == [5000]
    assert codes(trace)["kineto.events-unreadable"] == 1


def test_events_without_a_time_are_left_out_and_counted(read):
    text = kernels("a", "b").replace('"ts": 10', '"ts": "N/A"')
    trace = read(HEAD + text + "]}")
    assert names(trace) == ["a"]
    assert codes(trace)["kineto.events-unreadable"] == 1


def test_absurd_times_are_left_out_and_counted(read):
    text = (
        kernels("a", "b", "c")
        .replace('"ts": 10', '"ts": 9e300')
        .replace('"ts": 20', '"ts": 9000000000000000')
    )
    trace = read(HEAD.replace('Nanoseconds": 0', f'Nanoseconds": {10**18}') + text + "]}")
    assert names(trace) == ["a"]
    assert codes(trace)["kineto.events-unreadable"] == 2


def test_odd_types_in_arguments_become_unknown_not_a_failure(read):
    text = kernels("a").replace('"stream": 7', '"stream": [7], "bytes": "N/A", "kind": 3')
    trace = read(
        HEAD + text + ', {"ph": "X", "cat": "cpu_op", "name": "o", "ts": 1, "dur": 1, "args": 5}]}'
    )
    assert trace.table("ops")["stream_id"].null_count() == 0  # the lane says it too
    assert trace.table("ranges")["text"].to_list() == ["o"]


@pytest.mark.parametrize("chunk_bytes", [150, 400, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_where_a_file_is_cut_into_chunks_changes_nothing(
    tmp_path, monkeypatch, chunk_bytes, packed
):
    nested = '"context": 1, "list": [{"ph": 1}, {"ph": 2}, {"ph": "}, {"}]'
    events = kernels(*(f"kernel_{n}" for n in range(30))).replace('"context": 1', nested)
    text = (HEAD + events + '], "deviceProperties": [{"id": 0, "name": "G"}, {"id": 1}]}').encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    monkeypatch.setattr(container, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(container, "_CUT_WINDOW_BYTES", 64)
    trace = read_trace([path])
    assert names(trace) == [f"kernel_{n}" for n in range(30)]
    assert "kineto.events-unreadable" not in codes(trace)
    assert trace.table("devices")["name"].to_list() == ["G"]
