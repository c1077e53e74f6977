"""queue-waits of kernels launched one by one: what is compared, and what that comes to."""

import random

import polars as pl
import pytest
from test_queue_waits import PLACES, US, call, call_with_tables, codes, op, tables, wait

from tracekit.analyses.queue_waits import ANALYSIS
from tracekit.analyses.queue_waits.one_by_one import one_by_one
from tracekit.analyses.queue_waits.pending import EDGE_NS, lanes_of, spells
from tracekit.analyses.queue_waits.resampling import ends_of
from tracekit.analyses.queue_waits.sides import LATE, OPEN, WITH, WITHOUT

CODE = "queue-wait.pending-during-kernels"
GAP_NS, PENDING_GAP_NS = 2 * US, 5 * US


def launched(ops, calls, queue, start, end, called, **more):
    """Add a kernel whose launch call returns 5 µs after `called`."""
    number = len(ops)
    calls.append(call(number, "hipLaunchKernel", "launch", called))
    ops.append(op(number, queue, start, end, None, **more) | {"call_id": number})


def program(turns=16, kernels=9, *, late=(), lengths=(10 * US, 10 * US), names=None, gaps=None):
    """Rows of kernels on queue 0 every 500 µs, all submitted first; a wait pends beside odd turns.

    `late` are the turns whose kernels are submitted as the one before ends; `lengths` those of
    kernels without and with a wait; `names` gives a kernel its name by turn and place.
    """
    ops, calls, waits = [], [], []
    gaps = gaps or (GAP_NS, PENDING_GAP_NS)
    for turn in range(turns):
        is_pending = turn % 2
        at = base = 1_000 * US + turn * 500 * US
        for place in range(kernels):
            end = at + lengths[is_pending]
            called = at - 5 * US if turn in late else base - (30 - place) * US
            name = names(turn, place) if names else f"k{place}"
            launched(ops, calls, 0, at, end, called, name=name)
            at = end + gaps[is_pending]
        if is_pending:
            waits.append(wait(len(waits), 1, base - 10 * US, at + 100 * US))
        # As an engine that synchronises between its steps.
        number = 10_000 + turn
        calls.append(call(number, "hipDeviceSynchronize", "device_sync", base + 480 * US))
    calls.sort(key=lambda row: row["call_id"])
    return {"ops": ops, "calls": calls, "waits": waits, **PLACES}


def kernel_rows(frames, other=None):
    if other is None:
        result = call_with_tables(ANALYSIS.compute, frames)
    else:
        own, theirs = (call_with_tables(ANALYSIS.against.profile, f) for f in (frames, other))
        result = ANALYSIS.table.conform(ANALYSIS.against.result(own, theirs))
    return result.filter(pl.col("scope") == "kernels")


def only_row(frames, other=None):
    (row,) = kernel_rows(frames, other).iter_rows(named=True)
    return row


def test_the_figures_of_kernels_that_a_wait_slows_by_a_quarter():
    row = only_row(tables(**program()))
    assert (row["who"], row["status"], row["nodes"]) == ("queue 0", "compared", None)
    # Of nine kernels eight follow another, and of those all were submitted in time.
    assert (row["dispatches_with"], row["dispatches_without"]) == (64, 64)
    assert (row["cycles_with"], row["cycles_without"]) == (8, 8)
    assert (row["with_median_ns"], row["without_median_ns"]) == (15 * US, 12 * US)
    figures = ("ratio", "added_per_dispatch_ns", "added_per_cycle_ns")
    for name, expected in zip(figures, (1.25, 3 * US, 24 * US), strict=True):
        assert [row[column] for column in (name, *ends_of(name))] == [expected] * 3
    assert row["added_ns"] == 64 * 3 * US
    window_ns = 15 * 500 * US + 9 * 10 * US + 8 * PENDING_GAP_NS
    assert row["added_share"] == pytest.approx(192 * US / window_ns)
    (finding,) = ANALYSIS.findings(call_with_tables(ANALYSIS.compute, tables(**program())))
    assert (finding.code, finding.evidence["who"]) == (CODE, "queue 0")
    assert finding.evidence["longest_pending"] == "queue 1 waits for queue 2"


def test_kernels_that_the_host_submits_late_are_not_compared_and_it_is_said():
    frames = tables(**program(late=range(16)))
    row = only_row(frames)
    assert (row["status"], row["reason"], row["ratio"]) == (
        "not identifiable",
        "host-limited",
        None,
    )
    # Those of the pending turns, and the first after each, which its wait outlasts.
    assert row["dispatches_with"] == 64 + 7
    assert codes(frames) == {"host-limited": 1}
    assert ANALYSIS.findings(call_with_tables(ANALYSIS.compute, frames)) == []


def test_late_turns_move_no_figure_of_those_in_time():
    # Ten turns of either side in time, and the others late and slower for it.
    row = only_row(tables(**program(turns=32, late=range(12))))
    assert (row["ratio"], row["dispatches_with"], row["cycles_with"]) == (1.25, 80, 10)


def test_a_kernel_counts_when_its_call_returned_before_the_one_before_ended_by_the_edge():
    """Two kernels, the second called ever later: 5 µs for the call, and the edge after it."""
    for spare_ns, expected in ((0, WITH), (-1, LATE)):
        ops, calls = [], []
        launched(ops, calls, 0, 100 * US, 150 * US, 50 * US)
        called = 150 * US - EDGE_NS - 5 * US - spare_ns
        launched(ops, calls, 0, 152 * US, 160 * US, called)
        frames = tables(ops=ops, calls=calls, waits=[wait(0, 1, 90 * US, 170 * US)], **PLACES)
        assert measured(frames)["side"].to_list() == [expected]


def measured(frames):
    lanes = lanes_of(frames["ops"], frames["queues"], frames["streams"])
    tables = (frames[name] for name in ("waits", "calls", "marks", "ops", "ranges"))
    found = spells(*tables, lanes)
    parts = (frames[name] for name in ("ops", "calls", "ranges"))
    return one_by_one(*parts, found, lanes, frames["windows"])


def with_between(kind):
    """The program with something else between the fourth and the fifth kernel of each turn."""
    rows = program()
    ops, calls = rows["ops"], rows["calls"]
    for turn in range(16):
        before = ops[turn * 9 + 3]
        at = before["end_ns"]
        extra = op(1_000 + turn, 0, at, at + 1, None, name="between") | {"call_id": None}
        if kind == "copy":
            extra["kind"] = "copy"
        elif kind == "barrier":
            extra["kind"] = "barrier"
        elif kind == "graph":
            calls.append(call(20_000 + turn, "hipGraphLaunch", "graph_launch", at - 90 * US))
            extra |= {"call_id": 20_000 + turn, "graph_launch_id": 20_000 + turn}
        elif kind == "stream":
            calls.append(call(20_000 + turn, "hipLaunchKernel", "launch", at - 90 * US))
            extra |= {"call_id": 20_000 + turn, "stream_id": 4}
        ops.append(extra)
    ops.sort(key=lambda row: row["start_ns"])
    for number, row in enumerate(ops):
        row["op_id"] = number
    return rows


@pytest.mark.parametrize("kind", ["copy", "barrier", "graph", "stream", "unlaunched"])
def test_only_a_kernel_right_after_another_of_its_stream_is_compared(kind):
    found = measured(tables(**with_between(kind)))
    # Of eight dispatches a turn the one after what is between does not count.
    assert found.filter(pl.col("side") != LATE).height == 16 * 7


def test_a_wait_in_the_own_queue_takes_its_dispatches_out():
    rows = program()
    held = rows["ops"][12]
    own = wait(50, 0, held["start_ns"], held["end_ns"] + 1, recording=3, stream=7)
    found = measured(tables(**rows | {"waits": [*rows["waits"], own]}))
    every = measured(tables(**rows))
    # Kernel 12 is in the cadence of 13; that of 14 begins 5 µs after its end, within the edge.
    assert every.height - found.height == 2
    assert only_row(tables(**rows))["ratio"] == 1.25


def test_kernels_of_one_name_and_another_length_are_kept_apart():
    """Long ones run nearly always without a wait; taken together they would say it is faster."""

    def mixed(long_turns):
        rows = program(turns=40)
        for turn in long_turns:
            at = rows["ops"][turn * 9]["start_ns"]
            for place in range(9):
                row = rows["ops"][turn * 9 + place]
                row |= {"start_ns": at, "end_ns": at + 20 * US, "name": row["name"]}
                at += 20 * US + (PENDING_GAP_NS if turn % 2 else GAP_NS)
        return tables(**rows)

    row = only_row(mixed(range(0, 20, 2)))
    assert (row["status"], row["kernel_ratio"], row["added_per_dispatch_ns"]) == (
        "compared",
        1,
        3 * US,
    )
    assert row["dispatches_without"] == 10 * 8
    # Where all without are long, nothing is left to compare with.
    row = only_row(mixed(range(0, 40, 2)))
    assert (row["status"], row["reason"]) == ("not identifiable", "kernels-differ")
    assert row["ratio"] is None


def test_sequences_may_change_from_turn_to_turn():
    draws = random.Random(4)
    orders = [[draws.choice("ab") for _ in range(9)] for _ in range(80)]
    row = only_row(tables(**program(turns=80, names=lambda turn, place: orders[turn][place])))
    assert (row["status"], row["added_per_dispatch_ns"]) == ("compared", 3 * US)
    assert row["dispatches_with"] == 40 * 8


def test_kernels_of_other_names_are_not_compared_with_each_other():
    row = only_row(tables(**program(names=lambda turn, place: f"{turn % 2} {place}")))
    assert (row["status"], row["reason"]) == ("not identifiable", "one-sided")
    # The same names in the other order: each follows another kernel.
    row = only_row(
        tables(**program(names=lambda turn, place: f"k{place if turn % 2 else 8 - place}"))
    )
    assert row["reason"] == "one-sided"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"turns": 15, "kernels": 12}, "too-few"),
        ({"kernels": 7}, "too-few"),
        ({"lengths": (10 * US, 12 * US)}, "kernels-differ"),
        ({"names": lambda turn, place: f"{turn // 4} {place}"}, "too-few"),
    ],
    ids=["seven cycles", "48 dispatches", "kernels 20 % longer", "two of each position"],
)
def test_below_the_minimum_or_with_other_kernels_nothing_is_claimed(how, reason):
    frames = tables(**program(**how))
    row = only_row(frames)
    assert (row["status"], row["reason"], row["ratio"]) == ("not identifiable", reason, None)
    assert ANALYSIS.findings(call_with_tables(ANALYSIS.compute, frames)) == []


def test_a_wait_without_a_known_end_leaves_its_dispatches_open():
    rows = program()
    for row in rows["waits"]:
        row["pending_end_ns"] = None
    assert only_row(tables(**rows))["reason"] == "waits-unknown"


def test_one_wait_over_many_synchronisations_is_one_cycle():
    rows = program(turns=32)
    first, last = rows["ops"][0]["start_ns"], rows["ops"][-1]["end_ns"]
    half = rows["ops"][16 * 9]["start_ns"] - 50 * US
    long = rows | {"waits": [wait(0, 1, half, last + 100 * US)]}
    row = only_row(tables(**long))
    assert (row["cycles_with"], row["cycles_without"], row["reason"]) == (1, 16, "too-few")
    # Marked steps are cycles, whatever waits there are.
    steps = [
        {
            "range_id": step,
            "kind": "marker",
            "process_id": 0,
            "thread_id": 7,
            "text": f"tk1 step {step} kind=verify",
            "start_ns": first + step * 500 * US - 100 * US,
            "end_ns": first + step * 500 * US + 390 * US,
        }
        for step in range(32)
    ]
    row = only_row(tables(**long | {"ranges": steps}))
    assert (row["cycles_with"], row["cycles_without"], row["status"]) == (16, 16, "compared")


def test_the_other_trace_gives_the_queue_with_most_of_the_same_kernels():
    mine = program()
    mine["ops"] = [row for row in mine["ops"] if row["call_id"] // 9 % 2]
    theirs = program(lengths=(10 * US, 10 * US), gaps=(GAP_NS, GAP_NS)) | {"waits": []}
    extra = program(names=lambda _, place: f"k{place}" if place < 3 else "x", gaps=(7 * US,) * 2)
    theirs["ops"] = [row | {"queue_id": 3, "stream_id": 3} for row in theirs["ops"]]
    theirs["ops"] += [
        row | {"op_id": row["op_id"] + 1_000, "call_id": row["call_id"] + 1_000}
        for row in extra["ops"]
    ]
    calls = [row for row in extra["calls"] if row["kind"] == "launch"]
    theirs["calls"] += [row | {"call_id": row["call_id"] + 1_000} for row in calls]
    theirs["calls"].sort(key=lambda row: row["call_id"])
    theirs["ops"].sort(key=lambda row: row["start_ns"])
    alone = only_row(tables(**mine))
    assert (alone["status"], alone["reason"]) == ("not identifiable", "one-sided")
    row = only_row(tables(**mine), tables(**theirs))
    assert (row["status"], row["without_from"], row["ratio"]) == ("compared", "other trace", 1.25)
    renamed = [row | {"name": "other"} for row in theirs["ops"]]
    assert only_row(tables(**mine), tables(**theirs | {"ops": renamed}))["reason"] == "not-in-other"


def test_rows_of_graphs_and_of_single_kernels_stand_side_by_side():
    rows = program()
    ops, calls = [], []
    for turn in range(16):
        calls.append(call(30_000 + turn, "hipGraphLaunch", "graph_launch", turn * 500 * US))
        for row in rows["ops"][turn * 9 : turn * 9 + 9]:
            shifted = row | {"op_id": row["op_id"] + 1_000, "queue_id": 3, "stream_id": 3}
            ops.append(shifted | {"call_id": 30_000 + turn, "graph_launch_id": 30_000 + turn})
    both = rows | {"ops": rows["ops"] + ops, "calls": rows["calls"] + calls}
    both["ops"].sort(key=lambda row: row["start_ns"])
    result = call_with_tables(ANALYSIS.compute, tables(**both))
    compared = result.filter(status="compared")
    assert compared.select("scope", "who", "ratio", "dispatches_with").rows() == [
        ("graph", "k0", 1.25, 64),
        ("kernels", "queue 0", 1.25, 64),
    ]
    assert sorted(found.code for found in ANALYSIS.findings(result)) == [
        "queue-wait.pending-during-graph",
        CODE,
    ]


def random_tables(seed):
    """Kernels, copies and graphs on streams that share queues, called early, late or never."""
    draw = random.Random(seed)
    ops, calls = [], []
    for queue in range(3):
        at = draw.randrange(100 * US)
        for _ in range(30):
            end = at + draw.randrange(1, 30 * US)
            number = len(ops)
            row = op(number, queue, at, end, None, stream=draw.choice((queue, queue, 5, None)))
            kind, has_call = draw.choice(("kernel",) * 6 + ("copy", "barrier")), draw.random() < 0.9
            row |= {"kind": kind, "call_id": number if has_call else None}
            kind = draw.choice(("launch",) * 6 + ("graph_launch",))
            row["graph_launch_id"] = number if has_call and kind == "graph_launch" else None
            calls.append(call(number, kind, kind, at - draw.randrange(60 * US)))
            ops.append(row)
            at = end + draw.choice((1, 1, 3, -1)) * draw.randrange(1 * US)
    waits = []
    for number in range(6):
        start = draw.randrange(0, 500 * US)
        row = wait(number, draw.choice((0, 1, 2, 3)), start, start + draw.randrange(90 * US))
        waits.append(row | {"recording_queue_id": draw.choice((4, 5))})
    queues = [{"queue_id": queue, "device_id": 0} for queue in range(6)]
    ops.sort(key=lambda row: row["start_ns"])
    return ops, calls, waits, queues


def pairs_by_hand(ops, calls, waits):
    """Side, cadence and length of every dispatch that counts, by a look at every op and wait."""
    known = {row["call_id"]: row for row in calls}
    found = []
    for this in ops:
        before = [
            o for o in ops if o["queue_id"] == this["queue_id"] and o["start_ns"] < this["start_ns"]
        ]
        if not before:
            continue
        last = before[-1]
        if any(
            o["kind"] != "kernel"
            or o["call_id"] is None
            or o["graph_launch_id"] is not None
            or known[o["call_id"]]["kind"] != "launch"
            for o in (this, last)
        ):
            continue
        if this["stream_id"] != last["stream_id"]:
            continue
        begun = min(last["end_ns"], this["start_ns"])
        low, high = last["start_ns"], max(this["start_ns"], last["start_ns"] + 1)
        is_with = may_be = is_held = False
        for row in waits:
            start, end = row["pending_start_ns"], row["pending_end_ns"]
            meets = start < end and start < high and low < end + EDGE_NS
            if row["waiting_queue_id"] == this["queue_id"]:
                is_held |= meets
            else:
                may_be |= meets
                is_with |= start + EDGE_NS <= begun < end
        side = WITH if is_with else OPEN if may_be else WITHOUT
        is_late = known[this["call_id"]]["end_ns"] + EDGE_NS > begun
        if is_held or (is_late and side != WITH):
            continue
        length = last["end_ns"] - last["start_ns"]
        found.append((LATE if is_late else side, this["start_ns"] - last["start_ns"], length))
    return sorted(found)


def test_what_counts_is_what_a_look_at_every_op_and_every_wait_finds():
    seen = set()
    for seed in range(40):
        ops, calls, waits, queues = random_tables(seed)
        frames = tables(ops=ops, calls=calls, waits=waits, **PLACES | {"queues": queues})
        found = measured(frames).select("side", "cadence_ns", "kernel_ns").rows()
        assert sorted(found) == pairs_by_hand(ops, calls, waits), seed
        seen |= {side for side, *_ in found}
    assert seen == {WITH, OPEN, WITHOUT, LATE}
