"""Evidence that is dropped on purpose lowers certainty or makes an answer unknown; it flips none.

Random programs, and the engine, are recorded on the virtual device. From copies of the files rows
are deleted, and what is said of both is compared.
"""

import sqlite3
from contextlib import closing

import polars as pl
import pytest
from engine_runs import recorded
from lost_evidence import WAYS, lose
from marked_programs import record_programs
from test_unordered_copies_oracle import CONFIGS, programs_of

from instrumented_runtime.request import Request
from tracekit.formats import read_trace, silent
from tracekit.ordering import host_calls
from tracekit.ordering.copy_orders import copy_orders
from tracekit.pipeline import analyse

# Of a recording: more have more streams than kernels of unknown memory are looked for on.
PROGRAMS = 10
# Seed of the programs, and the first of them.
RECORDINGS = ((100, 20), (1, 50), (101, 50), (100, 50))
CLASSES = {
    "unordered": "bad",
    "accident": "bad",
    "host-sync": "ordered",
    "event": "ordered",
    "stream": "ordered",
    "unknown": "unknown",
    "no-conflict": "none",
}
# Rows that nobody misses: numbers have no hole, and what is left says the same.
BARELY_MISSED = ("no_arguments", "half_of_the_arguments", "events_never_said")
KEY = ["call_start_ns", "op_start_ns"]


def verdicts(path):
    """Return each copy by the start of its call and, in a graph, of its op: what is said of it."""
    table = read_trace([path], silent).table
    host = host_calls(*(table(n) for n in ("ops", "calls", "copies", "marks", "waits", "ranges")))
    found = copy_orders(host, table("ops"), table("copies"), table("accesses"), table("streams"))
    kind = pl.col("order").cast(pl.String).replace_strict(CLASSES, return_dtype=pl.String)
    last_sync = host.filter(kind="device_sync")["start_ns"].max() or 0
    # One copy of a call is told by it; of several in a graph each by its op.
    alone = pl.col("kind") == "copy"
    is_possible = (pl.col("certainty") == "possible").fill_null(value=False)
    return found.select(
        "call_start_ns",
        op_start_ns=pl.when(~alone).then("start_ns"),
        said=pl.when(is_possible).then(pl.lit("maybe bad")).otherwise(kind),
        # What the host has not waited for may race with what comes after the trace.
        is_over=pl.col("call_start_ns") < last_sync,
    )


ALLOWED = {
    ("bad", "bad"),
    ("bad", "maybe bad"),
    ("maybe bad", "maybe bad"),
    ("ordered", "ordered"),
    ("ordered", "maybe bad"),
    ("none", "none"),
    ("none", "ordered"),
    ("none", "maybe bad"),
}


def compared(full, less):
    """Return the copies of both, with what is said of each in the first and in the second."""
    both = full.join(less, on=KEY, nulls_equal=True, suffix="_now")
    assert both.height == both.select(KEY).unique().height
    return both.filter("is_over_now")


def flips(both):
    """Return the copies of which less evidence says what it may not."""
    pairs = zip(both["said"], both["said_now"], strict=True)
    is_flip = [now != "unknown" and (before, now) not in ALLOWED for before, now in pairs]
    return both.filter(pl.Series(is_flip, dtype=pl.Boolean))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Return recordings of programs, with what is said of their copies."""
    folder = tmp_path_factory.mktemp("whole")
    found = []
    for number, (seed, first) in enumerate(RECORDINGS):
        programs = programs_of(seed)[first : first + PROGRAMS]
        config = CONFIGS[number // 2 % len(CONFIGS)]
        path = record_programs(folder / str(number), programs, config)
        found.append((path, verdicts(path)))
    return found


def test_the_whole_files_say_something_of_every_kind(recordings):
    said = pl.concat(frame for _, frame in recordings)["said"].value_counts()
    counts = dict(said.iter_rows())
    assert counts["bad"] >= 20
    assert counts["ordered"] >= 50
    assert "unknown" not in counts


@pytest.mark.parametrize("way", WAYS)
def test_less_evidence_flips_nothing_that_is_said_of_copies(recordings, tmp_path, way):
    kept = []
    for seed, (path, full) in enumerate(recordings[list(WAYS).index(way) % 2 :: 2]):
        both = compared(full, verdicts(lose(path, tmp_path / f"{seed}.db", way, seed)))
        assert flips(both).rows() == []
        kept.append(both)
    both = pl.concat(kept)
    assert both.height >= 10 or way == "no_calls"
    if way in BARELY_MISSED:
        known = both.filter(pl.col("said_now") != "unknown")
        assert known.height > 0.7 * both.height


# Of each way of losing one; more are tried by hand.
ENGINE_WAYS = (
    "no_calls",
    "half_of_the_arguments",
    "markers_never_said",
    "half_of_the_events",
    "half_of_the_calls",
    "half_of_the_ops",
    "a_window_in_the_middle",
    "the_beginning",
)


def serve_two(engine):
    engine.run([Request(1, (3, 1, 4, 1, 5), 40), Request(2, (2, 7, 1, 8), 40)])


def ledgers(path):
    """Return the tables of what is said of idle time, waits and copies, and the findings."""
    names = ["idle-gaps", "host-syncs", "queue-waits", "unordered-copies"]
    report = analyse(read_trace([path], silent), only=names)
    return {section.name: section.frame for section in report.sections}, report.findings


@pytest.fixture(scope="module", params=["host-sync", "event-wait"])
def engine_recording(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    recorded(folder, serve_two, policy=request.param)
    (path,) = folder.glob("*.db")
    return request.param, path, *ledgers(path)


def blamed(findings):
    """Return the calls that findings say the host was blocked in."""
    return {one.evidence["call"] for one in findings if one.code.startswith("host-blocked")}


def idle_by_hand(path):
    """Return how long the device did nothing from its first op to its last, by SQLite and a loop."""
    ops = "SELECT start, end FROM rocpd_kernel_dispatch UNION ALL SELECT start, end FROM {}"
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(ops.format("rocpd_memory_copy")).fetchall()
    idle_ns, last = 0, min(rows)[0]
    for start, end in sorted(rows):
        idle_ns += max(0, start - last)
        last = max(last, end)
    return idle_ns


@pytest.mark.parametrize("way", ENGINE_WAYS)
def test_less_evidence_blames_nobody_else_on_the_engine(engine_recording, tmp_path, way):
    policy, path, _, before = engine_recording
    assert blamed(before) == ({"hipEventSynchronize"} if policy == "host-sync" else set())
    less = lose(path, tmp_path / "less.db", way, 0)
    tables, after = ledgers(less)
    assert blamed(after) <= blamed(before)
    # No wait slows kernels on this device, and every copy of the engine is in order.
    codes = {one.code for one in after}
    assert not {code for code in codes if code.startswith(("queue-wait", "unordered-copy"))}
    gaps = tables["idle-gaps"]
    assert gaps["idle_ns"].sum() == idle_by_hand(less)
    if tables["host-syncs"] is not None:
        held = gaps.filter(cause="host-blocked")["idle_ns"].sum()
        assert tables["host-syncs"]["idle_ns"].sum() == held
