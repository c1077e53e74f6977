"""What is said of idle time on CUDA when evidence is dropped: less sure or unknown, never another.

From real recordings events are dropped at random, and each idle instant of both is compared.
"""

from functools import cache
from pathlib import Path

import polars as pl
import pytest
from lost_kineto_evidence import LOSES_OPS, WAYS, lose

from tracekit.formats import read_trace, silent
from tracekit.idle_time.pieces import idle_pieces
from tracekit.intervals import intersect, union
from tracekit.ordering import host_calls
from tracekit.ordering.copy_orders import copy_orders
from tracekit.trust import trust_marks
from tracekit.windows import device_spans, windows_frame, work_of

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
TABLES = ("ops", "calls", "copies", "waits", "marks", "ranges")
HOST_TABLES = ("ops", "calls", "copies", "marks", "waits", "ranges")
COPY_TABLES = ("ops", "copies", "accesses", "streams")
UNSURE = ("unknown", "edge")


def pieces(trace, windows, name):
    frame = pl.concat(list(idle_pieces(*(trace.table(table) for table in TABLES), windows)))
    return frame.select(
        "device_id", "start_ns", "end_ns", pl.col("cause").cast(pl.String).alias(name)
    )


@cache
def recorded(name):
    trace = read_trace([SAMPLES / name], silent)
    windows = windows_frame(device_spans(trace), None)
    return pieces(trace, windows, "full"), windows


def marks_of(trace):
    windows = windows_frame(device_spans(trace), None)
    busy = union(work_of(trace).sort("start_ns"), ["device_id"])
    return {mark.code: mark for mark in trust_marks(trace, windows, busy)}


def compared(name, less):
    """Return when which cause became which, and how long that was."""
    full, windows = recorded(name)
    both = intersect(full, pieces(less, windows, "left"), ["device_id"])
    return both.with_columns(length=pl.col("end_ns") - pl.col("start_ns"))


def flips(both):
    sure = ~pl.col("full").is_in(UNSURE) & ~pl.col("left").is_in(UNSURE)
    changed = both.filter(sure, pl.col("full") != pl.col("left"))
    return set(changed.select("full", "left").rows())


# The decode loop has no markers, and reads a value; the engine's trace takes longest.
RUNS = [("planted_idle", way, 0) for way in WAYS]
RUNS += [
    ("planted_waits", "half_of_the_events_without_markers", 1),
    ("decode_item", "half_of_the_events", 2),
    ("decode_item", "half_of_the_event_calls_without_rows", 0),
    ("decode_item", "half_of_the_calls_alone", 0),
    ("decode_item", "half_of_the_ops", 0),
    ("engine_host_sync", "half_of_the_events", 0),
    ("engine_host_sync", "few_of_all", 0),
]


@pytest.mark.parametrize(("name", "way", "seed"), RUNS)
def test_less_evidence_flips_no_cause_of_idle_time(tmp_path, name, way, seed):
    less = read_trace(
        [lose(SAMPLES / f"{name}.json.gz", tmp_path / "less.json.gz", way, seed)], silent
    )
    both = compared(f"{name}.json.gz", less)
    # All of the time that was idle still is.
    assert (
        both["length"].sum()
        == recorded(f"{name}.json.gz")[0]
        .select((pl.col("end_ns") - pl.col("start_ns")).sum())
        .item()
    )
    # That a graph's first op is missing nothing shows: the second seems to be the first.
    allowed = {("dispatch", "launch-latency")} if way in LOSES_OPS else set()
    assert flips(both) <= allowed
    if way in LOSES_OPS and name == "planted_idle":
        mark = marks_of(less)["trust-ops.lost"]
        assert mark.busy_is_at_least
        assert mark.touches_device(0, ["host-late"])


def orders(trace):
    """Return what is said of each copy, by when it was asked for."""
    host = host_calls(*(trace.table(name) for name in HOST_TABLES))
    found = copy_orders(host, *(trace.table(name) for name in COPY_TABLES))
    called = trace.table("calls").select("call_id", asked_ns="start_ns")
    return found.join(called, on="call_id").select("asked_ns", pl.col("order").cast(pl.String))


COPY_WAYS = [
    "half_of_the_events",
    "half_of_the_events_without_rows",
    "half_of_the_events_without_markers",
    "half_of_the_event_calls_without_rows",
    "half_of_the_calls_alone",
    "half_of_all",
]


@pytest.mark.parametrize("way", COPY_WAYS)
def test_less_evidence_flips_nothing_that_is_said_of_copies(tmp_path, way):
    whole = SAMPLES / "planted_copies.json.gz"
    full = orders(read_trace([whole], silent))
    assert {"unordered", "accident", "event", "host-sync", "stream"} <= set(full["order"])
    for seed in range(2):
        less = read_trace([lose(whole, tmp_path / f"{seed}.json.gz", way, seed)], silent)
        both = full.join(orders(less), on="asked_ns", suffix="_now")
        known = both.filter(pl.col("order") != "unknown", pl.col("order_now") != "unknown")
        assert known.filter(pl.col("order") != pl.col("order_now")).rows() == []


def share_kept(both):
    return both.filter(pl.col("full") == pl.col("left"))["length"].sum() / both["length"].sum()


@pytest.mark.parametrize("name", ["planted_idle", "decode_item"])
def test_a_row_about_a_wait_stands_for_its_lost_call(tmp_path, name):
    # CUPTI records a wait twice. Without all of its calls nothing is forgotten.
    path = lose(SAMPLES / f"{name}.json.gz", tmp_path / "less.json.gz", "all_waits", 0)
    less = read_trace([path], silent)
    both = compared(f"{name}.json.gz", less)
    assert share_kept(both) > 0.999
    assert "host-blocked" in set(both["left"])
    mark = marks_of(less)["trust-records.lost"]
    assert mark.numbers["note"] == "kineto.sync-calls-lost"
    assert not mark.busy_is_at_least


def test_a_few_lost_ops_leave_most_of_the_ledger(tmp_path):
    path = lose(SAMPLES / "planted_idle.json.gz", tmp_path / "less.json.gz", "few_ops", 0)
    both = compared("planted_idle.json.gz", read_trace([path], silent))
    assert share_kept(both) > 0.6


@pytest.mark.parametrize(
    "name", sorted(path.name for path in SAMPLES.glob("*.json.gz")), ids=lambda name: name[:-8]
)
def test_a_whole_file_shows_no_loss(name):
    codes = set(marks_of(read_trace([SAMPLES / name], silent)))
    assert not {code for code in codes if code.endswith((".lost", "-ops"))}
