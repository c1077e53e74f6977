"""queue-waits on small tables: which dispatch is on which side, and what the figures are."""

import random
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from tracekit.analyses import call_with_tables
from tracekit.analyses.queue_waits import ANALYSIS
from tracekit.analyses.queue_waits.dispatches import OPEN, WITH, WITHOUT, measured
from tracekit.analyses.queue_waits.pending import EDGE_NS, lanes_of, spells
from tracekit.analyses.queue_waits.resampling import MAX_BLOCKS, cost, ends_of
from tracekit.formats import read_trace
from tracekit.pipeline import analyse
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

US = 1_000
KERNEL_NS, GAP_NS, PENDING_GAP_NS = 10 * US, 2 * US, 5 * US


def tables(**rows):
    found = {name: table.empty() for name, table in TABLES.items()}
    for name, given in rows.items():
        found[name] = TABLES[name].conform(
            pl.DataFrame(given, schema_overrides=TABLES[name].schema)
        )
    work = found["ops"].filter(pl.col("kind") != "barrier")
    spans = work.group_by("device_id").agg(pl.min("start_ns"), pl.max("end_ns")).rows()
    found["windows"] = pl.DataFrame([*spans, (None, None, None)], WINDOWS.schema, orient="row")
    return found


def program(
    launches=16,
    nodes=8,
    *,
    gap_ns=PENDING_GAP_NS,
    kernel_ns=(KERNEL_NS, KERNEL_NS),
    late_ns=None,
    key=1,
):
    """Rows of a graph on queue 0, replayed every 500 µs; stream 5 on queue 1 waits beside odd ones.

    `kernel_ns` is the length of kernels without and with a wait, `late_ns` a stall by launch.
    """
    ops, calls, waits = [], [], []
    for launch in range(launches):
        base = 1_000 * US + launch * 500 * US
        is_pending = launch % 2 == 1
        at = base
        for node in range(nodes):
            end = at + kernel_ns[is_pending]
            ops.append(op(len(ops), 0, at, end, launch, name=f"k{node}"))
            at = end + (gap_ns if is_pending else GAP_NS)
            at += (late_ns or {}).get((launch, node), 0)
        calls.append(call(launch, "hipGraphLaunch", "graph_launch", base - 20 * US, key=key))
        if is_pending:
            waits.append(wait(len(waits), 1, base - 10 * US, at + 100 * US))
    return {"ops": ops, "calls": calls, "waits": waits, **PLACES}


PLACES = {
    "queues": [{"queue_id": queue, "device_id": queue // 4} for queue in range(8)],
    "streams": [{"stream_id": stream, "device_id": 0} for stream in range(8)],
}


def op(op_id, queue, start, end, launch, *, name="k", device=0, stream=None):
    return {
        "op_id": op_id,
        "kind": "kernel",
        "name": name,
        "process_id": 0,
        "device_id": device,
        "queue_id": queue,
        "stream_id": queue if stream is None else stream,
        "start_ns": start,
        "end_ns": end,
        "call_id": launch,
        "graph_launch_id": launch,
    }


def call(call_id, name, kind, start, *, stream=None, key=None):
    return {
        "call_id": call_id,
        "process_id": 0,
        "thread_id": 7,
        "name": name,
        "kind": kind,
        "start_ns": start,
        "end_ns": start + 5 * US,
        "stream_id": stream,
        "graph_exec_key": key,
    }


def wait(wait_id, queue, start, end, *, recording=2, stream=5, evidence="recorded"):
    return {
        "wait_id": wait_id,
        "process_id": 0,
        "waiting_stream_id": stream,
        "waiting_queue_id": queue,
        "recording_stream_id": 6,
        "recording_queue_id": recording,
        "pending_start_ns": start,
        "pending_end_ns": end,
        "evidence": evidence,
    }


def graph_rows(frames, other=None):
    if other is None:
        result = call_with_tables(ANALYSIS.compute, frames)
    else:
        own, theirs = (call_with_tables(ANALYSIS.against.profile, f) for f in (frames, other))
        result = ANALYSIS.table.conform(ANALYSIS.against.result(own, theirs))
    return result.filter(pl.col("scope") == "graph")


def only_graph(frames, other=None):
    (row,) = graph_rows(frames, other).iter_rows(named=True)
    return row


def codes(frames):
    result = call_with_tables(ANALYSIS.compute, frames)
    notes = call_with_tables(ANALYSIS.caveats, {**frames, "result": result})
    return {note.code.removeprefix("queue-waits."): note.count for note in notes}


def sides(frames):
    """The side of each measured dispatch, by the length of its kernel, which tests make its name."""
    lanes = lanes_of(frames["ops"], frames["queues"], frames["streams"])
    tables = (frames[name] for name in ("waits", "calls", "marks", "ops", "ranges"))
    found = spells(*tables, lanes)
    parts = (frames[name] for name in ("ops", "calls", "ranges"))
    rows = measured(*parts, found, lanes, frames["windows"]).rows
    assert rows["kernel_ns"].is_unique().all()
    return {
        kernel: (side, cadence)
        for kernel, side, cadence in rows.select("kernel_ns", "side", "cadence_ns").rows()
    }


def test_a_dispatch_is_with_where_a_wait_was_pending_elsewhere_as_it_began():
    # Kernels of 10 µs and some ns, one each 20 µs; a wait in queue 1 from 50 to 85 µs.
    ops = [op(i, 0, 20 * US * i, 20 * US * i + 10 * US + i, 0) for i in range(8)]
    calls = [call(0, "hipGraphLaunch", "graph_launch", -50 * US)]
    waits = [wait(0, 1, 50 * US, 85 * US)]
    found = sides(tables(ops=ops, calls=calls, waits=waits, **PLACES))
    assert {kernel - 10 * US: side for kernel, (side, _) in found.items()} == {
        1: WITHOUT,  # began at 10, from 0 to 20
        2: WITHOUT,  # began at 30, from 20 to 40
        3: OPEN,  # began at 50, when the wait may not have reached its queue
        4: WITH,  # began at 70
        5: OPEN,  # began at 90, within 5 µs of the end; from 80, when the wait was pending
        6: WITHOUT,  # from 100
        7: WITHOUT,
    }
    assert {cadence for _, cadence in found.values()} == {20 * US}


@pytest.mark.parametrize(
    ("change", "side"),
    [
        ({"waiting_queue_id": 0}, WITHOUT),
        ({"waiting_queue_id": 2}, WITHOUT),
        ({"waiting_queue_id": 5}, WITHOUT),
        ({"waiting_queue_id": None}, OPEN),
        ({"recording_queue_id": None, "recording_stream_id": None}, OPEN),
        ({"pending_end_ns": None}, OPEN),
        ({"pending_start_ns": None}, OPEN),
        ({"pending_end_ns": 20_000}, WITHOUT),
    ],
    ids=str,
)
def test_a_wait_in_its_own_queue_or_on_another_device_does_not_count_and_an_unknown_one_may(
    change, side
):
    ops = [op(i, 0, 20 * US * i, 20 * US * i + 10 * US + i, 0) for i in range(8)]
    calls = [call(0, "hipGraphLaunch", "graph_launch", -50 * US)]
    waits = [wait(0, 1, 50 * US, 85 * US, recording=2) | change]
    found = sides(tables(ops=ops, calls=calls, waits=waits, **PLACES))
    assert found[10 * US + 4][0] == side


@pytest.mark.parametrize(
    ("names", "side"),
    [
        (["hipStreamWaitEvent"], OPEN),
        (["hipStreamBeginCapture", "hipStreamWaitEvent", "hipStreamEndCapture"], WITHOUT),
        (["hipStreamBeginCapture", "hipStreamEndCapture", "hipStreamWaitEvent"], OPEN),
    ],
)
def test_a_wait_call_that_is_not_followed_may_be_pending_unless_it_was_captured(names, side):
    ops = [op(i, 0, 20 * US * i, 20 * US * i + 10 * US + i, 0) for i in range(8)]
    kinds = {"hipStreamWaitEvent": "event_wait"}
    calls = [call(0, "hipGraphLaunch", "graph_launch", -50 * US)]
    calls += [call(i, n, kinds.get(n, "other"), 10 * i, stream=5) for i, n in enumerate(names, 1)]
    found = sides(tables(ops=ops, calls=calls, **PLACES))
    assert found[10 * US + 4][0] == side


def test_a_wait_of_unknown_end_may_be_pending_until_its_stream_goes_on_with_what_it_got_later():
    ops = [op(i, 0, 20 * US * i, 20 * US * i + 10 * US + i, 0) for i in range(8)]
    # What stream 5 was given before the wait was called, at 50 µs, and after it.
    ops += [op(8, 1, 55 * US, 57 * US, 1, stream=5), op(9, 1, 90 * US, 93 * US, 2, stream=5)]
    calls = [call(0, "hipGraphLaunch", "graph_launch", -50 * US)]
    calls += [call(i, "hipLaunchKernel", "launch", at * US) for i, at in ((1, 40), (2, 60))]
    mark = {"range_id": 0, "process_id": 0, "thread_id": 7, "time_ns": 50 * US, "statement": "wait"}
    ops.sort(key=lambda row: row["start_ns"])
    expected = [WITHOUT, WITHOUT, OPEN, OPEN, OPEN, WITHOUT, WITHOUT]
    marked = tables(ops=ops, calls=calls, marks=[mark | {"stream_id": 5}], **PLACES)
    called = [*calls, call(3, "hipStreamWaitEvent", "event_wait", 45 * US, stream=5)]
    unpaired = [wait(0, 1, 50 * US, None) | {"wait_call_id": 3}]
    for frames in (
        marked,
        tables(ops=ops, calls=called, **PLACES),
        tables(ops=ops, calls=called, waits=unpaired, **PLACES),
    ):
        found = sides(frames)
        assert [found[10 * US + i][0] for i in range(1, 8)] == expected


def random_tables(seed):
    """Up to three launches at once on five queues of two devices, and waits of every kind."""
    draw = random.Random(seed)
    ops, calls, waits = [], [], []
    lengths = draw.sample(range(1 * US, 30 * US), 400)
    for launch in range(12):
        at = draw.randrange(0, 900 * US)
        calls.append(call(launch, "hipGraphLaunch", "graph_launch", at - 30 * US))
        for queue in draw.sample(range(6), 2):
            start = at
            for _ in range(draw.randint(1, 6)):
                end = start + lengths.pop()
                place = {"device": queue // 4, "stream": draw.choice((queue, queue, None))}
                ops.append(op(len(ops), queue, start, end, launch, **place))
                start = max(start, end + draw.randint(-3 * US, 20 * US))
    for number in range(10):
        start = draw.randrange(0, 900 * US)
        row = wait(number, draw.choice((*range(6), None)), start, start + draw.randint(0, 80 * US))
        row["waiting_stream_id"] = draw.choice((0, 1, 2, 5, None))
        row["recording_queue_id"] = draw.choice((*range(4), None))
        row["recording_stream_id"] = draw.choice((0, 6, None))
        for name in ("pending_start_ns", "pending_end_ns"):
            if draw.random() < 0.15:
                row[name] = None
        waits.append(row)
    return sorted(ops, key=lambda row: row["start_ns"]), calls, waits


def places_by_hand(row):
    """The devices of a wait: its queue's, else its stream's (all on 0), else both there are."""
    if row["waiting_queue_id"] is not None:
        return [row["waiting_queue_id"] // 4]
    return [0] if row["waiting_stream_id"] is not None else [0, 1]


def times_by_hand(row, ops, waits, called):
    """First and last instant that a wait can be pending, and whether its end is known."""
    stream, start, end = (
        row[n] for n in ("waiting_stream_id", "pending_start_ns", "pending_end_ns")
    )
    mine = [o for o in ops if stream is not None and o["stream_id"] == stream]
    if start is None:
        before = [o["end_ns"] for o in mine if end is not None and o["start_ns"] <= end]
        lower = max(before, default=min(o["start_ns"] for o in ops))
    else:
        lower = start
    if end is not None:
        return lower, end, True
    high = max(o["end_ns"] for o in ops) + 1
    if start is None:
        return lower, high, False
    # In the order in which the stream was given it; of what it was given at once the first.
    given = [(called[o["call_id"]], o["start_ns"]) for o in mine]
    given += [
        (w["pending_start_ns"], w["pending_end_ns"])
        for w in waits
        if w["waiting_stream_id"] == stream and stream is not None
    ]
    later = [one for one in given if None not in one and one[0] >= start]
    return lower, min(later, default=(0, high))[1], False


def sides_by_hand(ops, waits, called):
    """Every dispatch against every wait, as the documentation says it."""
    found = {}
    used = {o["device_id"] for o in ops}
    for chain in {(o["call_id"], o["queue_id"]) for o in ops}:
        mine = [o for o in ops if (o["call_id"], o["queue_id"]) == chain]
        for before, this in pairwise(mine):
            begun = min(before["end_ns"], this["start_ns"])
            low, high = before["start_ns"], max(this["start_ns"], before["start_ns"] + 1)
            is_with = may_be = False
            for row in waits:
                queue, recording = row["waiting_queue_id"], row["recording_queue_id"]
                streams = row["waiting_stream_id"], row["recording_stream_id"]
                in_order = queue is not None and queue == recording
                in_order |= streams[0] is not None and streams[0] == streams[1]
                elsewhere = queue is None or queue != this["queue_id"]
                here = this["device_id"] in set(places_by_hand(row)) & used
                if in_order or not elsewhere or not here:
                    continue
                start, end, has_end = times_by_hand(row, ops, waits, called)
                if start >= end:
                    continue
                is_known = None not in (queue, recording, row["pending_start_ns"]) and has_end
                is_with |= is_known and start + EDGE_NS <= begun < end
                may_be |= start < high and low < end + (EDGE_NS if has_end else 0)
            side = WITH if is_with else OPEN if may_be else WITHOUT
            length = this["end_ns"] - this["start_ns"]
            found[length] = (side, this["start_ns"] - before["start_ns"])
    return found


def test_sides_are_those_of_a_look_at_every_dispatch_and_every_wait():
    seen = set()
    for seed in range(40):
        ops, calls, waits = random_tables(seed)
        found = sides(tables(ops=ops, calls=calls, waits=waits, **PLACES))
        called = {row["call_id"]: row["start_ns"] for row in calls}
        assert found == sides_by_hand(ops, waits, called), seed
        seen |= {side for side, _ in found.values()}
    assert seen == {WITH, OPEN, WITHOUT}


def test_the_figures_of_a_graph_that_waits_slow_by_a_quarter():
    graph = only_graph(tables(**program()))
    assert (graph["who"], graph["status"], graph["nodes"]) == ("k0", "compared", 8)
    assert (graph["dispatches_with"], graph["dispatches_without"]) == (56, 56)
    assert (graph["cycles_with"], graph["cycles_without"]) == (8, 8)
    assert (graph["with_median_ns"], graph["without_median_ns"]) == (15 * US, 12 * US)
    figures = ("ratio", "added_per_dispatch_ns", "added_per_cycle_ns")
    for name, expected in zip(figures, (1.25, 3 * US, 21 * US), strict=True):
        assert [graph[column] for column in (name, *ends_of(name))] == [expected] * 3
    assert graph["added_ns"] == 56 * 3 * US
    # From the first start to the last end: 15 launches further, 8 kernels and 7 gaps long.
    window_ns = 15 * 500 * US + 8 * KERNEL_NS + 7 * PENDING_GAP_NS
    assert graph["added_share"] == pytest.approx(168 * US / window_ns)


def test_who_waits_for_whom_and_for_how_long():
    result = call_with_tables(ANALYSIS.compute, tables(**program(launches=4)))
    device, lane, *_ = result.iter_rows(named=True)
    # 10 µs before the first kernel until 100 µs after the last of eight that take 15 µs each.
    length = 10 * US + 8 * 15 * US + 100 * US
    # The window ends with the last kernel.
    cut = length - 100 * US - PENDING_GAP_NS
    assert (device["scope"], device["who"]) == ("device", "all waits")
    assert (lane["scope"], lane["who"]) == ("lane", "queue 1 waits for queue 2")
    for row in (device, lane):
        assert (row["waits"], row["pending_ns"]) == (2, length + cut)
    assert (device["longest_ns"], device["longest_start_ns"]) == (length, 1_490 * US)
    assert (lane["evidence"], lane["streams"]) == ("recorded", "5 for 6")


def test_several_waits_at_once_are_no_worse_than_one():
    rows = program()
    twice = [
        row | {"wait_id": 100 + row["wait_id"], "waiting_queue_id": 3} for row in rows["waits"]
    ]
    both = rows | {"waits": rows["waits"] + twice}
    one, two = only_graph(tables(**rows)), only_graph(tables(**both))
    assert one == two
    device = call_with_tables(ANALYSIS.compute, tables(**both)).row(0, named=True)
    assert device["waits"] == 16
    assert (
        device["pending_ns"] == call_with_tables(ANALYSIS.compute, tables(**rows))["pending_ns"][0]
    )


def test_it_does_not_matter_which_kernels_ran_while_a_wait_was_pending():
    """Nine launches are slowed at three short kernels, eight at nine long ones, 17 not at all."""
    slow = {}
    ops, calls, waits = [], [], []
    for launch in range(34):
        at = base = 1_000 * US + launch * 1_000 * US
        if launch % 2:
            slow = range(1, 4) if launch < 18 else range(5, 14)
        begun = {}
        for node in range(14):
            end = at + (10 if node < 4 else 40) * US
            ops.append(op(len(ops), 0, at, end, launch, name=f"k{node}"))
            begun[node + 1] = end
            at = end + (5 if launch % 2 and node + 1 in slow else 2) * US
            at += 100 * US if (launch, node) == (4, 1) else 0
        calls.append(call(launch, "hipGraphLaunch", "graph_launch", base - 20 * US))
        if launch % 2:
            waits.append(wait(launch, 1, begun[slow[0]] - 6 * US, begun[slow[-1]] + 1))
    graph = only_graph(tables(ops=ops, calls=calls, waits=waits, **PLACES))
    assert (graph["dispatches_with"], graph["cycles_with"]) == (9 * 3 + 8 * 9, 17)
    assert graph["added_per_dispatch_ns"] == 3 * US
    # The median dispatch with a wait pending is one of the long ones, in a cycle with nine.
    assert graph["ratio"] == pytest.approx(45 / 42)
    assert graph["added_per_cycle_ns"] == 9 * 3 * US


def test_a_stall_in_one_cycle_moves_no_figure():
    stalled = tables(**program(launches=32, late_ns={(3, 2): 200 * US, (4, 5): 100 * US}))
    graph = only_graph(stalled)
    assert (graph["ratio"], graph["added_per_dispatch_ns"]) == (1.25, 3 * US)
    assert (graph["ratio_low"], graph["ratio_high"]) == (1.25, 1.25)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (program(launches=15, nodes=9), "too-few"),
        (program(nodes=7), "too-few"),
        (program(kernel_ns=(10 * US, 12 * US)), "kernels-differ"),
        (program() | {"waits": []}, None),
    ],
    ids=["seven cycles", "48 dispatches", "kernels 20 % longer", "no waits"],
)
def test_below_the_minimum_or_with_other_kernels_nothing_is_claimed(rows, reason):
    found = graph_rows(tables(**rows))
    assert found["reason"].to_list() == ([reason] if reason else [])
    assert found["ratio"].null_count() == found.height
    assert ANALYSIS.findings(found) == []
    assert reason is None or reason in codes(tables(**rows))


def test_graphs_of_other_handles_or_names_are_not_compared_with_each_other():
    rows = program()
    for row in rows["calls"]:
        row["graph_exec_key"] = row["call_id"] % 2
    assert only_graph(tables(**rows))["reason"] == "one-sided"
    rows = program()
    for row in rows["ops"]:
        row["name"] += "x" * (row["call_id"] % 2)
    assert only_graph(tables(**rows))["reason"] == "one-sided"
    rows = program()
    for row in rows["ops"]:
        if row["call_id"] % 2:
            row["name"] = f"k{7 - int(row['name'][1:])}"
    assert only_graph(tables(**rows))["reason"] == "one-sided"


def test_only_what_starts_inside_the_window_counts():
    frames = tables(**program(launches=20))
    # From the third node of the third launch to just before the last launch.
    low, high = 2_000 * US + 24 * US, 1_000 * US + 19 * 500 * US
    frames["windows"] = pl.DataFrame(
        [(0, low, high), (None, None, None)], WINDOWS.schema, orient="row"
    )
    graph = only_graph(frames)
    assert (graph["dispatches_with"], graph["dispatches_without"]) == (8 * 7, 8 * 7 - 1 + 7)
    assert graph["ratio"] == 1.25


def test_launches_in_one_step_are_one_cycle():
    rows = program(launches=32)
    rows["ranges"] = [
        {
            "range_id": step,
            "kind": "marker",
            "process_id": 0,
            "thread_id": 7,
            "text": f"tk1 step {step} kind=verify",
            "start_ns": (900 + 1_000 * step) * US,
            "end_ns": (1_899 + 1_000 * step) * US,
        }
        for step in range(16)
    ]
    graph = only_graph(tables(**rows))
    # Each step holds a launch of either side.
    assert (graph["cycles_with"], graph["cycles_without"]) == (16, 16)
    rows["ranges"] = rows["ranges"][:15]
    rows["ranges"][0]["end_ns"] += 2_000 * US
    rows["ranges"][1:3] = []
    graph = only_graph(tables(**rows))
    # The first step holds three launches of each, and the last two launches are outside of any.
    assert (graph["cycles_with"], graph["cycles_without"]) == (14, 14)


def test_the_other_trace_gives_the_graph_whose_kernels_take_as_long():
    mine = program()
    mine["ops"] = [row for row in mine["ops"] if row["call_id"] % 2]
    theirs = program(key=77) | {"waits": []}
    theirs["ops"] = [row for row in theirs["ops"] if row["call_id"] % 2 == 0]
    slower = program(key=78, kernel_ns=(30 * US, 30 * US))["ops"]
    slower = [row | {"op_id": row["op_id"] + 1_000} for row in slower if row["call_id"] % 2]
    for row in theirs["calls"]:
        row["graph_exec_key"] = 77 + row["call_id"] % 2
    other = tables(**theirs | {"ops": theirs["ops"] + slower})
    alone = only_graph(tables(**mine))
    assert (alone["status"], alone["reason"]) == ("not identifiable", "one-sided")
    graph = only_graph(tables(**mine), other)
    assert (graph["status"], graph["without_from"]) == ("compared", "other trace")
    assert (graph["ratio"], graph["added_per_dispatch_ns"]) == (1.25, 3 * US)
    nothing = tables(**program() | {"ops": slower, "waits": []})
    assert only_graph(tables(**mine), nothing)["reason"] == "kernels-differ"
    renamed = [row | {"name": "other"} for row in theirs["ops"]]
    assert (
        only_graph(tables(**mine), tables(**theirs | {"ops": renamed}))["reason"] == "not-in-other"
    )


def test_what_both_traces_can_say_is_said_twice():
    frames = tables(**program())
    found = graph_rows(frames, frames)
    assert found["without_from"].to_list() == ["this trace", "other trace"]
    assert found["ratio"].to_list() == [1.25, 1.25]
    assert len(ANALYSIS.findings(call_with_tables(ANALYSIS.compute, frames))) == 1


@pytest.mark.parametrize(
    ("gap_ns", "found"),
    # 1 % of the window's 7.6 ms is 76 µs; of 56 dispatches that is 1.36 µs each.
    [(2_000, 0), (2_200, 0), (3_300, 0), (3_600, 1), (5_000, 1), (1_000, 0)],
)
def test_a_finding_needs_a_ratio_above_the_margin_and_one_per_cent_of_the_window(gap_ns, found):
    frames = tables(**program(gap_ns=gap_ns))
    findings = ANALYSIS.findings(call_with_tables(ANALYSIS.compute, frames))
    assert len(findings) == found
    assert ("compared" in codes(frames)) == (not found)


def test_streams_stand_for_queues_where_there_are_none_and_it_is_said():
    rows = program()
    for row in rows["ops"]:
        row["queue_id"] = None
    for row in rows["waits"]:
        row |= {"waiting_queue_id": None, "recording_queue_id": None, "evidence": "inferred"}
    frames = tables(**rows)
    assert only_graph(frames)["ratio"] == 1.25
    assert codes(frames) == {"inferred": 1, "streams-as-queues": 1}


def cycles_frame(ratios, dispatches=1):
    usual = np.full(len(ratios), 1_000.0 * dispatches)
    return pl.DataFrame(
        {
            "cycle": np.arange(len(ratios)),
            "dispatches": np.full(len(ratios), dispatches),
            "spent_ns": usual * ratios,
            "usual_ns": usual,
            "kernel_ns": usual,
            "usual_kernel_ns": usual,
        }
    )


@pytest.mark.parametrize("cycles", [200, 4_000])
def test_an_interval_is_as_wide_as_the_median_of_its_cycles_is_uncertain(cycles):
    random_ratios = np.random.default_rng(3).normal(1.5, 0.1, cycles)
    figures = cost(cycles_frame(random_ratios), cycles_frame(np.ones(cycles)), is_joint=False)
    # Of normal values a median has √(π/2) times the standard error of a mean.
    half = 1.96 * np.sqrt(np.pi / 2) * 0.1 / np.sqrt(cycles)
    assert figures["ratio"] == pytest.approx(1.5, abs=2 * half)
    width = figures["ratio_high"] - figures["ratio_low"]
    if cycles <= MAX_BLOCKS:
        assert width == pytest.approx(2 * half, rel=0.3)
    else:
        # Neighbours are resampled together, and the median of their means is as sure or surer.
        assert 1.2 * half < width < 2.6 * half


def test_more_dispatches_in_a_cycle_make_no_figure_surer():
    ratios = np.random.default_rng(3).normal(1.5, 0.1, 100)
    one, many = (
        cost(cycles_frame(ratios, n), cycles_frame(np.ones(100), n), is_joint=False)
        for n in (1, 1_000)
    )
    for name in ("ratio", "ratio_low", "ratio_high", "added_per_dispatch_low_ns"):
        assert one[name] == pytest.approx(many[name])


def test_rows_in_any_order_give_the_same():
    rows = program(late_ns={(i, 3): 37 * i for i in range(16)})
    frames = tables(**rows)
    mixed = {name: frame.sample(fraction=1, shuffle=True, seed=1) for name, frame in frames.items()}
    mixed |= {"ops": frames["ops"], "calls": frames["calls"]}  # these two are always in order
    assert call_with_tables(ANALYSIS.compute, mixed).equals(
        call_with_tables(ANALYSIS.compute, frames)
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100_alexnet_cuda_sync", {"waits-unknown", "streams-as-queues"}),
        ("a100_event_sync_multi_stream", set()),
        ("a100_multistream_graphs_rank0of16", {"waits-unknown"}),
        ("mi300x_sglang_qwen3-8b_decode_graph", {"waits-unknown"}),
        ("mi3xx_vllm_decode_full_graph_execution", set()),
    ],
)
def test_real_traces_are_read_and_say_what_they_cannot_know(real_traces, name, expected):
    path = real_traces / "kineto" / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    report = analyse(read_trace([path]), only=["queue-waits"])
    graphs = report.sections[0].frame.filter(pl.col("scope") == "graph")
    assert {n.code for n in report.notes if n.code.startswith("queue-waits.")} == {
        f"queue-waits.{code}" for code in expected
    }
    assert graphs.filter(pl.col("status") != "not identifiable").is_empty()
    assert report.findings == []
