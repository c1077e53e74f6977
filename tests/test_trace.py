"""Traces of several files become one without mixing up their ids."""

import polars as pl
import pytest

from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace, join_traces


@pytest.fixture
def trace(frame):
    def build(source, **texts):
        frames = {name: frame(name, text) for name, text in texts.items()}
        note = Note("test.note", Severity.INFO, "Something.", source=source)
        return Trace.from_frames(frames, notes=[note], sources=[source], format_name="test")

    return build


def test_a_table_the_format_lacks_is_empty_and_declared(trace):
    assert trace("a").table("waits").equals(TABLES["waits"].empty())


def test_a_table_or_column_nobody_declared_is_a_defect_of_the_reader():
    frames = {"kernels": pl.DataFrame()}
    with pytest.raises(ValueError, match="no such table"):
        Trace.from_frames(frames, notes=[], sources=[], format_name="test")
    with pytest.raises(ValueError, match="declares no column"):
        Trace.from_frames(
            {"ops": pl.DataFrame({"duration": [1]})}, notes=[], sources=[], format_name="test"
        )


def test_joined_traces_keep_their_references(trace):
    texts = {
        "processes": "process_id pid\n 0 14",
        "devices": "device_id index\n 2 0",
        "streams": "stream_id process_id\n 5 0",
        "calls": "call_id process_id name\n 7 0 hipGraphLaunch",
        "ops": "op_id process_id device_id stream_id call_id graph_launch_id\n 3 0 2 5 7 7",
        "copies": "call_id op_id\n 7 3",
    }
    joined = join_traces([trace("a", **texts), trace("b", **texts)])
    # Largest ids of the first: process 0, device 2, stream 5, call 7, op 3.
    assert joined.table("ops").select(
        "op_id", "process_id", "device_id", "stream_id", "call_id", "graph_launch_id"
    ).rows() == [(3, 0, 2, 5, 7, 7), (7, 1, 5, 11, 15, 15)]
    assert joined.table("copies").select("call_id", "op_id").rows() == [(7, 3), (15, 7)]
    assert joined.table("calls").select("call_id", "process_id").rows() == [(7, 0), (15, 1)]
    assert joined.sources == ["a", "b"]
    assert [note.source for note in joined.notes] == ["a", "b"]


def test_devices_with_one_key_are_one_device_and_those_without_stay_apart(trace):
    first = trace("a", devices="device_id key\n 0 node|0\n 1 -", ops="op_id device_id\n 0 0\n 1 1")
    other = trace("b", devices="device_id key\n 0 node|0\n 1 -", ops="op_id device_id\n 0 0\n 1 1")
    joined = join_traces([first, other])
    assert joined.table("devices")["device_id"].to_list() == [0, 1, 3]
    assert joined.table("ops")["device_id"].to_list() == [0, 1, 0, 3]
