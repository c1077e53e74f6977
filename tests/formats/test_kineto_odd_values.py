"""Odd values anywhere in a Kineto file: the op is there, or a note says what is missing."""

import json

import msgspec
import pytest
from kineto_events import CUDA, call, codes, event, kernel, read_events, rows

from tracekit.errors import UnreadableTrace
from tracekit.formats import silent
from tracekit.formats.kineto import FORMAT
from tracekit.formats.kineto.columns import Arguments, Event, columns_of
from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import Severity

BASE = 10**18
NAN = float("nan")
ODD = (None, "x", "", "12.5", [1], {"a": [1]}, -1, 2**63 - 1, 2**63, 10**40, 1e300, NAN, True)
ODD = (*ODD, "\ud800")
EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENT_KEYS = [
    Arguments.__struct_encode_fields__[n] for n in range(len(Arguments.__struct_fields__))
]
FILE_KEYS = (
    "baseTimeNanoseconds",
    "deviceProperties",
    "deviceProperties.0",
    "deviceProperties.0.id",
    "deviceProperties.0.name",
    "deviceProperties.0.computeMajor",
    "distributedInfo",
    "distributedInfo.rank",
    "schemaVersion",
)


def content():
    return {
        **CUDA,
        "deviceProperties": [
            {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0},
            {"id": 1, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0},
        ],
        "distributedInfo": {"rank": 3},
        "traceEvents": [
            call("cudaLaunchKernel", 1, 2.5, 1),
            kernel("k", 5, 2.5, 1, category="gpu_memcpy", kind="x", bytes=4),
            kernel("other", 9, 2, 2),
        ],
    }


def with_value(path, value):
    """Return the file with a value at a path of keys and positions."""
    file = place = content()
    *way, last = path
    for key in way:
        place = place[key]
    place[last] = value
    return json.dumps(file)


def swept(folder, path, made_of=lambda value: value):
    for value in ODD:
        file = folder / "trace.json"
        file.write_text(with_value(path, made_of(value)))
        trace = FORMAT.read(file, silent)
        for name, frame in trace.frames.items():
            assert frame.schema == TABLES[name].schema, (value, name)
        yield value, trace


def is_whole(trace):
    ops = rows(trace, "ops", "name", "start_ns", "end_ns")
    return len(ops) == 2 and all(end > start for _, start, end in ops)


def has_data_loss(trace):
    return any(note.severity is Severity.DATA_LOSS and note.count for note in trace.notes)


@pytest.mark.parametrize("key", EVENT_KEYS)
def test_an_odd_value_in_an_event_costs_nothing_or_is_noted(tmp_path, key):
    for value, trace in swept(tmp_path, ("traceEvents", 1, key)):
        told = has_data_loss(trace) or (
            key in ("ph", "cat") and codes(trace).get("kineto.events-not-used") == 1
        )
        assert is_whole(trace) or told, value


def test_one_odd_value_in_all_arguments_costs_nothing_or_is_noted(tmp_path):
    for value, trace in swept(
        tmp_path, ("traceEvents", 1, "args"), lambda value: dict.fromkeys(ARGUMENT_KEYS, value)
    ):
        assert is_whole(trace) or has_data_loss(trace), value


@pytest.mark.parametrize("key", ARGUMENT_KEYS)
def test_all_odd_values_in_one_argument_cost_nothing_or_are_noted(tmp_path, key):
    events = [kernel("k", 5 * n, 2, n + 1) for n in range(len(ODD))]
    for one, value in zip(events, ODD, strict=True):
        one["args"][key] = value
    trace = read_events(tmp_path, *events, **CUDA)
    assert trace.table("ops").height == len(ODD) or has_data_loss(trace)


@pytest.mark.parametrize("key", FILE_KEYS)
def test_an_odd_value_around_the_events_costs_no_op_without_a_note(tmp_path, key):
    path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    for value, trace in swept(tmp_path, path):
        assert is_whole(trace) or has_data_loss(trace), value


@pytest.mark.parametrize(
    "dur", [None, "x", "", [], {}, True, NAN, float("inf"), 1e300, 10**30, 9 * 10**15, 2**63]
)
@pytest.mark.parametrize("other", [2, 2.5])
def test_an_op_without_a_usable_duration_is_kept_without_length_and_counted(tmp_path, dur, other):
    trace = read_events(tmp_path, kernel("a", 5, dur, 1), kernel("b", 9, other, 2), **CUDA)
    assert rows(trace, "ops", "name", "start_ns", "end_ns") == [
        ("a", BASE + 5000, BASE + 5000),
        ("b", BASE + 9000, BASE + 9000 + int(other * 1000)),
    ]
    assert codes(trace)["kineto.durations-unusable"] == 1


def test_an_absent_duration_is_counted_in_every_table_but_not_for_instants(tmp_path):
    without = [event(c, c, 5, 1) for c in ("kernel", "cuda_runtime", "cpu_op", "python_function")]
    for one in without:
        del one["dur"]
    instant = {"ph": "i", "cat": "user_annotation", "name": "now", "pid": 1, "tid": 1, "ts": 7.5}
    trace = read_events(tmp_path, *without, instant, **CUDA)
    assert codes(trace)["kineto.durations-unusable"] == 4
    trace = read_events(tmp_path, instant, event("user_annotation", "m", 1, 2), **CUDA)
    assert "kineto.durations-unusable" not in codes(trace)
    assert rows(trace, "ranges", "text", "start_ns", "end_ns") == [
        ("m", BASE + 1000, BASE + 3000),
        ("now", BASE + 7500, BASE + 7500),
    ]


def test_a_start_or_an_end_beyond_2_to_the_62_is_unusable_and_counted(tmp_path):
    late = {**CUDA, "baseTimeNanoseconds": 2**62 - 10**9}
    beyond = kernel("c", 10**7, 1, 3)
    long, short = kernel("a", 5, 10**7, 1), kernel("b", 5, 10**5, 2)
    trace = read_events(tmp_path, long, short, beyond, **late)
    start = 2**62 - 10**9 + 5000
    assert rows(trace, "ops", "start_ns", "end_ns") == [(start, start), (start, start + 10**8)]
    assert codes(trace)["kineto.durations-unusable"] == 1
    assert codes(trace)["kineto.events-unreadable"] == 1


def test_quoted_times_are_read(tmp_path):
    trace = read_events(tmp_path, kernel("a", "5", "12.5", 1), **CUDA)
    assert rows(trace, "ops", "start_ns", "end_ns") == [(BASE + 5000, BASE + 17500)]
    assert not has_data_loss(trace)


@pytest.mark.parametrize("ts", [None, "x", [], True, NAN, 1e300, 10**30, 2**52, -(2**53)])
def test_an_op_without_a_usable_time_is_left_out_and_counted(tmp_path, ts):
    base = {**CUDA, "baseTimeNanoseconds": 2**61}
    trace = read_events(tmp_path, kernel("a", ts, 1, 1), kernel("b", 9, 2, 2), **base)
    assert rows(trace, "ops", "name") == [("b",)]
    assert codes(trace)["kineto.events-unreadable"] == 1


@pytest.mark.parametrize("base", [2**70, 2**63 - 1, -(2**63), "1000", 1.5, True, [1]])
def test_an_unusable_base_time_is_ignored_and_noted(tmp_path, base):
    trace = read_events(tmp_path, kernel("a", 5, 1, 1), **{**CUDA, "baseTimeNanoseconds": base})
    assert rows(trace, "ops", "start_ns", "end_ns") == [(5000, 6000)]
    assert codes(trace)["kineto.metadata-unusable"] == 1
    assert "kineto.base-time-missing" in codes(trace)


def test_a_device_or_rank_beyond_64_bits_is_ignored_and_noted(tmp_path):
    trace = read_events(
        tmp_path,
        kernel("a", 5, 1, 1),
        **CUDA,
        deviceProperties=[{"id": 2**70, "name": "G"}, {"id": 1, "name": "H"}],
        distributedInfo={"rank": 2**70},
    )
    assert rows(trace, "processes", "rank") == [(None,)]
    assert rows(trace, "devices", "index", "name") == [(0, None)]
    assert codes(trace)["kineto.metadata-unusable"] == 2


def test_half_a_surrogate_pair_in_a_device_name_is_no_traceback(tmp_path):
    properties = [{"id": 0, "name": "G\ud800"}]
    trace = read_events(tmp_path, kernel("a", 5, 1, 1), **CUDA, deviceProperties=properties)
    assert rows(trace, "devices", "name") == [("G?",)]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("levels", [60, 500, 990, 2000, 100_000])
@pytest.mark.parametrize("where", ["arguments", "event", "before", "after"])
def test_deep_nesting_costs_nothing(tmp_path, opening, levels, where):
    closing = "]" if opening == "[" else "}"
    deep = opening * levels + ("1" if opening != "[" else "") + closing * levels
    events = json.dumps([kernel("a", 5, 1, 1, deep="D"), {**kernel("b", 9, 1, 2), "deep": "E"}])
    parts = dict.fromkeys(("arguments", "event", "before", "after"), "1")
    parts[where] = deep
    events = events.replace('"D"', parts["arguments"]).replace('"E"', parts["event"])
    path = tmp_path / "trace.json"
    path.write_text(
        f'{{"x": {parts["before"]}, "baseTimeNanoseconds": 1000, "traceEvents": {events}, '
        f'"y": {parts["after"]}, "distributedInfo": {{"rank": 3}}}}'
    )
    trace = FORMAT.read(path, silent)
    assert rows(trace, "ops", "name", "start_ns") == [("a", 6000), ("b", 10000)]
    assert rows(trace, "processes", "rank") == [(3,)]
    assert not has_data_loss(trace)


def test_arguments_that_only_their_own_decoder_finds_too_deep_are_read():
    args = b'{"stream": 7, "deep": %b1%b}' % (b"[" * 2000, b"]" * 2000)
    decoded = columns_of([Event("X", "kernel", "a", ts=1, dur=1, args=msgspec.Raw(args))])
    assert decoded.details["stream"].to_list() == [7]


def test_deep_nesting_that_never_closes_is_a_cut_file(tmp_path):
    path = tmp_path / "trace.json"
    whole = json.dumps({**CUDA, "traceEvents": [kernel("a", 5, 1, 1), kernel("b", 9, 1, 2)]})
    path.write_text(whole.removesuffix("}}]}") + ', "deep": ' + "[" * 2000)
    trace = FORMAT.read(path, silent)
    assert rows(trace, "ops", "name") == [("a",)]
    assert codes(trace)["kineto.truncated"] == 1
    path.write_text('{"x": ' + "[" * 2000 + '"traceEvents": []')
    with pytest.raises(UnreadableTrace):
        FORMAT.read(path, silent)


A, B = (json.dumps(kernel(name, 5, 1, 1)) for name in "ab")


@pytest.mark.parametrize(
    ("array", "names", "skipped"),
    [
        (f"[1, null, {A}, {B}]", ["a", "b"], 2),
        (f"[{A}, 1, null, {B}]", ["a", "b"], 2),
        (f'[{A}, "}}, ]", {B}]', ["a", "b"], 1),
        (f'[{A}, {B}, -1.5e3, "x", [1, 2]]', ["a", "b"], 3),
        (f'[[1], {{}}, "x\\"", {A}, [], {B}, true]', ["a", "b"], 4),
        (f"[{A}, [{B}], {B}]", ["a", "b"], 1),
        ("[1, null]", [], 2),
    ],
)
def test_elements_that_are_no_events_are_skipped_and_counted(tmp_path, array, names, skipped):
    for text in (f'{{"schemaVersion": 1, "traceEvents": {array}, "traceName": "t"}}', array):
        path = tmp_path / "trace.json"
        path.write_text(text)
        if not names and text == array:
            with pytest.raises(UnreadableTrace):
                FORMAT.read(path, silent)
            continue
        trace = FORMAT.read(path, silent)
        assert [name for (name,) in rows(trace, "ops", "name")] == names
        assert codes(trace)["kineto.events-unreadable"] == skipped
        assert "kineto.truncated" not in codes(trace)


def test_ops_that_name_no_device_are_counted(tmp_path):
    homeless = kernel("a", 5, 1, 1)
    homeless["pid"] = "GPU"
    del homeless["args"]["device"]
    trace = read_events(tmp_path, homeless, kernel("b", 9, 1, 2), **CUDA)
    assert rows(trace, "ops", "device_id") == [(None,), (0,)]
    (note,) = [note for note in trace.notes if note.code == "kineto.device-unknown"]
    assert (note.severity, note.count) == (Severity.DATA_LOSS, 1)
    assert note.message.startswith("GPU events name no device")


def test_an_argument_beyond_all_bounds_costs_its_event_s_arguments_only(tmp_path):
    path = tmp_path / "trace.json"
    text = json.dumps({**CUDA, "traceEvents": [kernel("a", 5, 1, 1), kernel("b", 9, 1, 2)]})
    path.write_text(text.replace('"correlation": 1', '"correlation": 1e400'))
    trace = FORMAT.read(path, silent)
    assert rows(trace, "ops", "name", "correlation_id") == [("a", None), ("b", 2)]
