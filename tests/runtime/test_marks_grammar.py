"""The text of markers: written within the grammar, read back as it was meant, refused otherwise."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from instrumented_runtime.devices.virtual import VirtualDevice
from instrumented_runtime.marks import Marks, Statement, clean, parse, write
from instrumented_runtime.marks.grammar import (
    DECLARES,
    FLAGS,
    HANDLE,
    MODE,
    NAME,
    NUMBER,
    PLACE,
    VERBS,
)

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "markers.md").read_text()
ROWS = re.findall(r"^\| `(.+?)`.* \| `(tk1 .+?)` \|", DOCUMENT, re.MULTILINE)

HANDLES = st.integers(0, 2**64 - 1)
VALUES = {
    NUMBER: st.integers(0, 10**18 - 1),
    HANDLE: HANDLES,
    NAME: st.text().map(clean).filter(bool),
    FLAGS: st.sampled_from(["blocking", "nonblocking", "null"]),
    PLACE: st.sampled_from(["device", "pinned", "pageable"]),
    MODE: st.sampled_from("rw"),
    DECLARES: st.lists(st.tuples(st.sampled_from("rw"), HANDLES), max_size=7).map(tuple),
}


@st.composite
def statements(draw):
    name = draw(st.sampled_from(sorted(VERBS)))
    verb = VERBS[name]
    optional = draw(st.sets(st.sampled_from(sorted(verb.optional)))) if verb.optional else set()
    present = [key for key in verb.keys if key not in verb.optional or key in optional]
    values = {key: draw(VALUES[verb.keys[key]]) for key in present}
    return Statement(name, draw(VALUES[verb.subject]), values)


class Recorder:
    """A backend that keeps the texts, as the device's recorder does."""

    def __init__(self):
        self.texts = []

    def mark(self, text):
        self.texts.append(text)

    def push(self, text):
        self.texts.append("push " + text)

    def pop(self):
        self.texts.append("pop")


class Thing:
    """A stream, event or buffer, as far as a marker needs one."""

    def __init__(self, handle, name="", flags="nonblocking", size_bytes=0, place="device"):
        self.handle = self.address = handle
        self.place = place
        self.name, self.flags, self.size_bytes = name, flags, size_bytes


def test_every_method_writes_its_statement():
    recorder = Recorder()
    marks = Marks(recorder)
    forward, null = Thing(0x55D0, "forward"), Thing(0, flags="null")
    table, event = Thing(0x7F00, "page table;1", size_bytes=4096), Thing(0x66A0)
    marks.stream(forward)
    marks.stream(null, device=1)
    marks.buffer(table)
    marks.buffer(Thing(0x8F00, place="pinned"))
    with marks.step(12, kind="verify", batch_size=8, tokens=26, waiting=3, free=0):
        marks.use(table, "r")
        marks.use(table, "w", forward)
    with marks.step(13):
        marks.replay(3)
        marks.replay(3, null)
    marks.graph(3, reads=[table, Thing(0x8F00)], writes=[Thing(0x9F00)])
    marks.graph(4)
    marks.record(event, forward)
    marks.wait(event, null)
    marks.sync(event)
    assert recorder.texts == [
        "tk1 stream 0x55d0 flags=nonblocking device=0 name=forward",
        "tk1 stream 0x0 flags=null device=1",
        "tk1 buffer 0x7f00 addr=0x7f00 size=4096 name=page_table_1 place=device",
        "tk1 buffer 0x8f00 addr=0x8f00 size=0 place=pinned",
        "push tk1 step 12 kind=verify bs=8 tokens=26 waiting=3 free=0",
        "tk1 use 0x7f00 r",
        "tk1 use 0x7f00 w stream=0x55d0",
        "pop",
        "push tk1 step 13",
        "tk1 replay 0x3",
        "tk1 replay 0x3 stream=0x0",
        "pop",
        "tk1 graph 0x3 declares r:0x7f00 r:0x8f00 w:0x9f00",
        "tk1 graph 0x4 declares",
        "tk1 record 0x66a0 stream=0x55d0",
        "tk1 wait 0x66a0 stream=0x0",
        "tk1 sync 0x66a0",
    ]


def test_a_device_is_a_backend_and_what_it_makes_can_be_marked():
    device, recorder = VirtualDevice(), Recorder()
    stream, event = device.stream(flags="blocking", name="side"), device.event()
    buffer = device.allocate([4, 8], "int32", name="page table")
    for marks in (Marks(device), Marks(recorder)):
        marks.stream(stream)
        marks.stream(device.null_stream)
        marks.buffer(buffer)
        with marks.step(1):
            marks.use(buffer, "w")
            marks.record(event, stream)
    at = buffer.address
    assert [parse(text) for text in recorder.texts if text.startswith("tk1")] == [
        Statement("stream", stream.handle, {"flags": "blocking", "device": 0, "name": "side"}),
        Statement("stream", 0, {"flags": "null", "device": 0, "name": "null"}),
        Statement("buffer", at, {"addr": at, "size": 128, "name": "page_table", "place": "device"}),
        Statement("use", at, {"mode": "w"}),
        Statement("record", event.handle, {"stream": stream.handle}),
    ]


def test_without_a_backend_nothing_is_looked_at():
    marks = Marks()
    nothing = object()
    with marks.step(-1, kind="\0"):
        marks.stream(nothing)
        marks.buffer(nothing)
        marks.use(nothing, "r")
        marks.graph(-1, reads=[nothing])
        marks.replay(-1)
        marks.record(nothing, nothing)
        marks.wait(nothing, nothing)
        marks.sync(nothing)


def test_the_range_of_a_step_ends_when_the_step_fails():
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError), Marks(recorder).step(1):
        _ = 1 // 0
    assert recorder.texts == ["push tk1 step 1", "pop"]


@settings(deadline=None)
@given(statements())
def test_a_statement_is_read_back_from_a_text_within_the_limits(statement):
    text = write(statement)
    assert len(text.encode()) <= 200
    assert re.fullmatch(r'tk1( [^\s;"\\\x00-\x1f\x7f]+)+', text)
    assert parse(text) == statement


@settings(deadline=None)
@given(st.text(), st.text(), HANDLES, st.integers(0, 10**18 - 1))
def test_any_name_is_written_and_read_back_cleaned(name, kind, handle, number):
    recorder = Recorder()
    marks = Marks(recorder)
    marks.buffer(Thing(handle, name, size_bytes=number))
    with marks.step(number, kind=kind, batch_size=number, tokens=number):
        pass
    buffer, step = (parse(text.removeprefix("push ")) for text in recorder.texts[:2])
    named = {"name": clean(name)} if name else {}
    said = {"addr": handle, "size": number, "place": "device"}
    assert buffer == Statement("buffer", handle, said | named)
    kinds = {"kind": clean(kind)} if kind else {}
    assert step == Statement("step", number, kinds | {"bs": number, "tokens": number})


@settings(deadline=None)
@example([2**64 - 1] * 8, [], 2**64 - 1)
@given(st.lists(HANDLES, max_size=40), st.lists(HANDLES, max_size=40), HANDLES)
def test_the_statements_of_a_graph_add_up_to_what_was_declared(reads, writes, graph):
    recorder = Recorder()
    Marks(recorder).graph(graph, reads=map(Thing, reads), writes=map(Thing, writes))
    assert recorder.texts
    assert max(len(text) for text in recorder.texts) <= 200
    read = [parse(text) for text in recorder.texts]
    assert {(statement.verb, statement.subject) for statement in read} == {("graph", graph)}
    declared = [access for statement in read for access in statement.values["declares"]]
    assert declared == [("r", b) for b in reads] + [("w", b) for b in writes]


@settings(deadline=None)
@given(st.text(), st.sampled_from(["tk1", "tk1 ", "tk1 step ", "tk1 use 0x1 ", ""]))
def test_any_text_is_a_statement_or_none_or_refused(text, start):
    try:
        read = parse(start + text)
    except ValueError:
        return
    assert read is None or write(read)


def test_names_are_cleaned_character_by_character():
    assert clean('a b;c"d\\e\tf\x7fg\x85hé漢i') == "a_b_c_d_e_f_g_h__i"
    assert clean("layers.0:q=[1]/{k}") == "layers.0:q=[1]/{k}"
    assert clean("x" * 70) == "x" * 64
    assert clean("") == ""


@pytest.mark.parametrize("text", ["", "step 1", "tk2 step 1", "tk12", "tk1_step 1", " tk1 step 1"])
def test_other_text_is_not_ours(text):
    assert parse(text) is None


def test_keys_come_in_any_order_and_unknown_ones_are_ignored():
    read = parse("tk1 step 3 tokens=26 colour=red kind=a=b bs=8")
    assert read == Statement("step", 3, {"kind": "a=b", "bs": 8, "tokens": 26})
    assert parse("tk1 use 0x1 w why=so") == Statement("use", 1, {"mode": "w"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tk1", "a statement begins with a verb and what it is about"),
        ("tk1 sync", "a statement begins with a verb and what it is about"),
        ("tk1 sync 0x1 ", "words are separated by one space, and none ends the text"),
        ("tk1 step  1", "words are separated by one space, and none ends the text"),
        ("tk1 step 1;", "character ';' is not allowed"),
        ("tk1 step 1\n", r"character '\n' is not allowed"),
        ("tk1 step 1 kind=é", "character 'é' is not allowed"),
        ('tk1 step 1 kind="a"', "character '\"' is not allowed"),
        ("tk1 step 1 kind=" + "k" * 200, "216 bytes are more than 200"),
        ("tk1 setp 1", "no statement is called 'setp'; there are stream, step, buffer"),
        ("tk1 step one", "step 'one' is not a decimal number below 10^18"),
        ("tk1 step -1", "step '-1' is not a decimal number below 10^18"),
        ("tk1 step 01", "step '01' is not a decimal number below 10^18"),
        ("tk1 step 1 bs=0x8", "bs '0x8' is not a decimal number below 10^18"),
        ("tk1 step 1 bs=1000000000000000000", "is not a decimal number below 10^18"),
        ("tk1 step 1 kind=", "kind '' is not a name of 1 to 64 characters"),
        ("tk1 step 1 bs=8 bs=8", "bs is there twice"),
        ("tk1 step 1 verify", "'verify' is not key=value"),
        ("tk1 step 1 =8", "'=8' is not key=value"),
        ("tk1 sync 66a0", "sync '66a0' is not a lower-case hexadecimal number of 64 bits, 0x…"),
        ("tk1 sync 0x66A0", "sync '0x66A0' is not a lower-case hexadecimal number"),
        ("tk1 sync 0x00", "sync '0x00' is not a lower-case hexadecimal number"),
        ("tk1 sync 0x10000000000000000", "is not a lower-case hexadecimal number of 64 bits"),
        ("tk1 stream 0x1 flags=null", "device is missing"),
        ("tk1 stream 0x1 flags=fast device=0", "flags 'fast' is not blocking, nonblocking or null"),
        ("tk1 buffer 0x1", "addr, size is missing"),
        ("tk1 record 0x1", "stream is missing"),
        ("tk1 use 0x1", "mode '' is not r or w"),
        ("tk1 use 0x1 rw", "mode 'rw' is not r or w"),
        ("tk1 use 0x1 mode=r", "'mode=r' is not key=value"),
        ("tk1 use 0x1 why=so r", "'r' is not key=value"),
        ("tk1 use 0x1 r stream=7", "stream '7' is not a lower-case hexadecimal number"),
        ("tk1 buffer 0x1 addr=0x1 size=1 place=host", "is not device, pinned or pageable"),
        ("tk1 graph 0x1 r:0x2", "declares 'r:0x2' is not declares r:0x… w:0x…"),
        ("tk1 graph 0x1 declares x:0x2", "declares 'declares x:0x2' is not"),
    ],
)
def test_malformed_text_is_refused_by_name(text, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as refused:
        parse(text)
    assert str(refused.value).startswith(repr(text[:200]))


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (Statement("stop", 1), "no statement is called 'stop'"),
        (Statement("step", -1), "step -1 is not a decimal number below 10^18"),
        (Statement("sync", 2**64), "is not a lower-case hexadecimal number of 64 bits"),
        (Statement("step", 1, {"kind": "a b"}), "kind 'a b' is not a name of 1 to 64"),
        (Statement("step", 1, {"kind": "é"}), "kind 'é' is not a name of 1 to 64"),
        (Statement("step", 1, {"kind": "k;"}), "kind 'k;' is not a name of 1 to 64"),
        (Statement("record", 1), "record 1: stream is missing"),
        (Statement("sync", 1, {"stream": 2}), "sync 1: no value is called stream"),
        (Statement("graph", 1, {"declares": (("r", 1),) * 50}), "bytes are more than 200"),
    ],
)
def test_a_statement_outside_the_grammar_is_not_written(statement, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        write(statement)


def test_the_document_has_one_row_and_one_true_example_for_every_statement():
    assert [text.split()[1] for _, text in ROWS] == list(VERBS)
    for syntax, text in ROWS:
        statement = parse(text)
        assert write(statement) == text
        assert statement.verb == syntax.split()[0]
        verb = VERBS[statement.verb]
        assert set(statement.values) == set(verb.keys), "an example shows every key"
        keys = re.findall(r"(\[?)([a-z]+)=", syntax)
        assert [key for _, key in keys] == [key for key in verb.keys if key != verb.bare]
        assert {key for bracket, key in keys if bracket} == verb.optional


def test_every_marker_text_in_the_document_is_true():
    texts = re.findall(r'[`"](tk1 [^`"]+)[`"]', DOCUMENT)
    assert len(texts) > len(VERBS)
    assert all(write(parse(text)) == text for text in texts)


def test_text_that_only_begins_like_ours_is_left_alone():
    for text in ("tk1-model loaded", "tk1.", "tk12 step 1"):
        assert parse(text) is None
