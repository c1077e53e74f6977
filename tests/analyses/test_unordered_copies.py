"""unordered-copies by hand: what orders a copy with its readers, and what is said where nothing does."""

import polars as pl
import pytest

from tracekit.analyses import call_with_tables
from tracekit.analyses.unordered_copies import ANALYSIS, UNORDERED_COPIES
from tracekit.findings import FindingSeverity
from tracekit.ordering.conflicts import USES, conflicts
from tracekit.tables.catalog import TABLES

# A kernel on stream 1 reads the plan in 100–500. While it runs, in 200–260, a blocking copy on the
# null stream writes the plan; stream 1 does not block with it.
STREAMS = """
    stream_id process_id flags
    0         0          null
    1         0          nonblocking
    2         0          nonblocking
"""
LAUNCH = """
    call_id process_id thread_id name            kind   start_ns end_ns stream_id event_key
    0       0          7         hipLaunchKernel launch 10       20     1         -"""
CALLS = f"""{LAUNCH}
    9       0          7         hipMemcpy       copy   30       270    0         -
"""
OPS = """
    op_id kind   name    process_id device_id stream_id start_ns end_ns call_id
    0     kernel prefill 0          0         1         100      500    0
    9     copy   -       0          0         0         200      260    9
"""
COPIES = """
    call_id op_id process_id dst_address src_address copied_bytes direction      is_blocking
    9       9     0          4096        77777       64           host-to-device true
"""
READ = """
    call_id buffer address size_bytes mode
    0       plan   4096    64         read
"""
TRACE = {"streams": STREAMS, "calls": CALLS, "ops": OPS, "copies": COPIES, "accesses": READ}
LATER = OPS.replace("200      260", "600      660")
# After the launch, on stream 2: wait for the event that stream 1 recorded; then the copy.
BY_EVENT = {
    "calls": f"""{LAUNCH}
    1       0          7         hipEventRecord     event_record 21 22 1 55
    2       0          7         hipStreamWaitEvent event_wait   23 24 2 55
    9       0          7         hipMemcpyAsync     copy         30 40 2 -
    """,
    "ops": LATER.replace("-       0          0         0 ", "-       0          0         2 "),
    "copies": COPIES.replace("true", "false"),
}
PAIRED = """
    wait_id process_id wait_call_id record_call_id evidence
    0       0          2            1              recorded
"""


def order_of(run, **changed):
    """Return `order, certainty, evidence, conflict` of the one row."""
    result = run(ANALYSIS.compute, **{**TRACE, **changed})
    assert result["copies"].to_list() == [1]
    return result.select("order", "certainty", "evidence", "conflict").row(0)


def found(run, **changed):
    return ANALYSIS.findings(run(ANALYSIS.compute, **{**TRACE, **changed}))


def test_a_copy_that_nothing_orders_with_a_reader_in_flight_is_unordered(run, check):
    check(
        run(ANALYSIS.compute, **TRACE),
        UNORDERED_COPIES,
        """
        process_id name      direction      is_blocking buffer order     certainty evidence conflict        other   copies together destinations steps steps_alike overlap_max_ns worst_start_ns
        0          hipMemcpy host-to-device true        plan   unordered certain   -        overwrites-read prefill 1      1        1            0     0           60             200
        """,
    )


def test_one_that_began_after_the_reader_had_ended_is_so_by_accident(run):
    accident = ("accident", "certain", None, "overwrites-read")
    assert order_of(run, ops=LATER) == accident
    just = OPS.replace("200      260", "500      560")
    assert order_of(run, ops=just) == accident
    assert order_of(run, ops=just.replace("500      560", "499      560"))[0] == "unordered"


def test_one_that_ran_before_the_reader_it_was_asked_for_after_is_unordered(run):
    ops = OPS.replace("100      500", "300      500")
    result = run(ANALYSIS.compute, **{**TRACE, "ops": ops})
    assert result.select("order", "together", "overlap_max_ns").row(0) == ("unordered", 0, 0)


@pytest.mark.parametrize(
    "sync",
    [
        "1 0 7 hipStreamSynchronize stream_sync 21 29 1 -",
        "1 0 7 hipDeviceSynchronize device_sync 21 29 - -",
        "1 0 7 hipEventRecord event_record 21 22 1 55\n2 0 7 hipEventSynchronize event_sync 23 29 - 55",
    ],
)
def test_a_host_that_has_waited_for_the_reader_orders_the_copy(run, sync):
    calls = CALLS.replace(LAUNCH, f"{LAUNCH}\n{sync}")
    assert order_of(run, calls=calls, ops=LATER) == ("host-sync", None, None, "overwrites-read")


def test_a_host_that_has_waited_for_another_stream_orders_nothing(run):
    calls = CALLS.replace(LAUNCH, f"{LAUNCH}\n1 0 7 hipStreamSynchronize stream_sync 21 29 2 -")
    assert order_of(run, calls=calls, ops=LATER)[0] == "accident"


def test_an_event_orders_and_its_evidence_is_named(run):
    assert order_of(run, **BY_EVENT) == ("event", None, "inferred", "overwrites-read")
    paired = order_of(run, **BY_EVENT, waits=PAIRED)
    assert paired == ("event", None, "recorded", "overwrites-read")


def test_a_wait_for_an_event_of_no_known_record_lowers_the_answer_to_unknown(run):
    calls = BY_EVENT["calls"].replace("2 55", "2 66")
    unknown = ("unknown", None, None, "overwrites-read")
    assert order_of(run, **{**BY_EVENT, "calls": calls}) == unknown


def test_a_copy_on_the_readers_stream_is_ordered_by_the_stream(run):
    changed = {name: text.replace("2 -", "1 -") for name, text in BY_EVENT.items()}
    changed["ops"] = LATER.replace(
        "-       0          0         0 ", "-       0          0         1 "
    )
    assert order_of(run, **changed) == ("stream", None, None, "overwrites-read")


def test_the_null_stream_is_ordered_with_blocking_streams_and_perhaps_with_unknown_ones(run):
    blocking = STREAMS.replace("nonblocking", "blocking")
    assert order_of(run, streams=blocking, ops=LATER)[0] == "stream"
    unknown = STREAMS.replace("nonblocking", "-")
    assert order_of(run, streams=unknown, ops=LATER)[0] == "unknown"
    # Neither did what was seen at one time make it certain.
    assert order_of(run, streams=unknown)[0] == "unknown"


@pytest.mark.parametrize(
    ("flags", "order"), [("blocking", "host-sync"), ("-", "unknown"), ("nonblocking", "accident")]
)
@pytest.mark.parametrize("earlier_sync", ["", "2 0 7 hipStreamSynchronize stream_sync 1 2 0 -"])
def test_to_wait_for_the_null_stream_is_to_wait_for_blocking_ones_again(
    run, flags, order, earlier_sync
):
    streams = STREAMS.replace("1         0          nonblocking", f"1 0 {flags}")
    syncs = f"{earlier_sync}\n1 0 7 hipStreamSynchronize stream_sync 21 29 0 -"
    calls = f"{LAUNCH}\n{syncs.strip()}\n9 0 7 hipMemcpyAsync copy 30 40 2 -"
    changed = {"streams": streams, "calls": calls, "ops": BY_EVENT["ops"]}
    assert order_of(run, **changed, copies=BY_EVENT["copies"])[0] == order


def test_the_same_address_in_another_process_is_other_memory(run):
    launch = LAUNCH.replace("0       0          7 ", "0       1          7 ")
    elsewhere = {
        "calls": CALLS.replace(LAUNCH, launch),
        "streams": STREAMS.replace("1         0", "1         1"),
    }
    assert order_of(run, **elsewhere) == ("no-conflict", None, None, None)


def test_copies_to_many_places_take_memory_for_the_overlaps_only():
    # Each range of 64 bytes overlaps itself and its two neighbours, 48 bytes apart; all pairs of
    # ranges would be 400 million.
    many = 20_000
    uses = pl.DataFrame(
        {
            "place": range(many),
            "copy_row": range(many),
            "process_id": 0,
            "stream_id": 1,
            "address": [48 * n for n in range(many)],
            "size_bytes": 64,
            "mode": "write",
            "buffer": None,
            "may_be_staged": False,
        }
    ).cast(USES)
    # Of the two neighbours one is before and one after; a copy does not meet itself.
    assert conflicts(uses).height == 2 * many - 2


def test_memory_that_does_not_overlap_is_no_conflict(run):
    beyond = READ.replace("4096", "4160")
    assert order_of(run, accesses=beyond) == ("no-conflict", None, None, None)
    last_byte = READ.replace("4096", "4159")
    assert order_of(run, accesses=last_byte)[0] == "unordered"


@pytest.mark.parametrize(
    ("copies", "accesses", "conflict"),
    [
        (COPIES, READ.replace("read", "write"), "overwrites-write"),
        (
            COPIES.replace("4096", "88888")
            .replace("77777", "4096")
            .replace("host-to-device", "device-to-host"),
            READ.replace("read", "write"),
            "reads-written",
        ),
    ],
)
def test_what_the_copy_does_to_the_other_work_is_named(run, copies, accesses, conflict):
    told = order_of(run, copies=copies, accesses=accesses)
    assert told == ("unordered", "certain", None, conflict)


def test_two_readers_do_not_conflict(run):
    copies = COPIES.replace("4096", "88888").replace("77777", "4096")
    copies = copies.replace("host-to-device", "device-to-host")
    assert order_of(run, copies=copies)[0] == "no-conflict"


def test_of_a_kernel_whose_memory_is_unknown_a_copy_is_possibly_unordered_while_it_runs(run):
    possible = ("unordered", "possible", None, "overwrites-read")
    assert order_of(run, accesses="call_id buffer address size_bytes mode") == possible
    ended = order_of(run, accesses="call_id buffer address size_bytes mode", ops=LATER)
    assert ended == ("unknown", None, None, "overwrites-read")


def test_where_streams_are_unknown_so_is_the_order(run):
    # PyTorch's traces on ROCm name no streams in calls; copies then have none either.
    calls = CALLS.replace("20     1 ", "20     - ").replace("270    0 ", "270    - ")
    ops = OPS.replace("1         100", "-         100").replace("0         200", "-         200")
    assert order_of(run, calls=calls, ops=ops)[0] == "unknown"


def test_a_copy_that_no_call_asked_for_is_not_there(run):
    header = LAUNCH.strip().splitlines()[0]
    assert run(ANALYSIS.compute, **{**TRACE, "calls": header}).is_empty()
    assert "calls" in ANALYSIS.needs


def test_the_worst_ordered_of_several_readers_counts(run):
    # Of two readers one has ended when the copy begins; the other, on stream 2, runs.
    calls = CALLS.replace(LAUNCH, f"{LAUNCH}\n1 0 7 hipLaunchKernel launch 21 29 2 -")
    ops = f"{OPS.replace('100      500', '100      150')} 1 kernel decode 0 0 2 100 500 1"
    accesses = f"{READ} 1 plan 4096 64 read"
    result = run(ANALYSIS.compute, **{**TRACE, "calls": calls, "ops": ops, "accesses": accesses})
    assert result.select("order", "other", "copies").rows() == [("unordered", "decode", 1)]


# Three steps plan with a blocking copy while a prefill runs, twice into one buffer; a fourth step,
# of another kind, copies nothing.
STEPS = {
    "streams": STREAMS,
    "ranges": """
    range_id kind   process_id thread_id text                      start_ns end_ns
    0        marker 0          7         tk1~step~1~kind=prefill   0        1000
    1        marker 0          7         tk1~step~2~kind=prefill   1000     2000
    2        marker 0          7         tk1~step~3~kind=prefill   2000     3000
    3        marker 0          7         tk1~step~4~kind=decode    3000     4000
    """,
    "calls": """
    call_id process_id thread_id name            kind   start_ns end_ns stream_id
    0       0          7         hipLaunchKernel launch 10       20     1
    1       0          7         hipMemcpy       copy   30       270    0
    2       0          7         hipLaunchKernel launch 1010     1020   1
    3       0          7         hipMemcpy       copy   1030     1270   0
    4       0          7         hipLaunchKernel launch 2010     2020   1
    5       0          7         hipMemcpy       copy   2030     2970   0
    """,
    "ops": """
    op_id kind   name    process_id device_id stream_id start_ns end_ns call_id
    0     kernel prefill 0          0         1         100      500    0
    1     copy   -       0          0         0         200      260    1
    2     kernel prefill 0          0         1         1100     1500   2
    3     copy   -       0          0         0         1200     1300   3
    4     kernel prefill 0          0         1         2100     2500   4
    5     copy   -       0          0         0         2600     2700   5
    """,
    "copies": """
    call_id op_id process_id dst_address copied_bytes direction      is_blocking
    1       1     0          4096        64           host-to-device true
    3       3     0          8192        64           host-to-device true
    5       5     0          4096        64           host-to-device true
    """,
    "accesses": """
    call_id buffer address size_bytes mode
    0       plan   4096    64         read
    0       plan   8192    64         read
    2       plan   4096    64         read
    2       plan   8192    64         read
    4       plan   4096    64         read
    4       plan   8192    64         read
    """,
}
COUNTS = ("order", "copies", "together", "destinations", "steps", "steps_alike", "overlap_max_ns")


def test_copies_of_one_way_and_order_are_one_row_with_their_steps_and_destinations(run):
    result = run(ANALYSIS.compute, **STEPS)
    assert result.select(*COUNTS, "worst_start_ns").rows() == [
        ("unordered", 2, 2, 2, 2, 3, 100, 1200),
        ("accident", 1, 0, 1, 1, 3, None, 2600),
    ]


def test_a_window_counts_the_copies_that_begin_in_it_and_knows_the_whole_trace(run):
    # The launch that copy 3 meets lies before the window.
    result = run(ANALYSIS.compute, host=(1150, 2600), **STEPS)
    assert result.select("order", "copies").rows() == [("unordered", 1)]
    assert run(ANALYSIS.compute, host=(1201, 2600), **STEPS).is_empty()


def test_a_certain_one_that_ran_with_its_reader_is_critical_and_says_what_happened(run):
    (finding,) = ANALYSIS.findings(run(ANALYSIS.compute, **STEPS))
    assert finding.code == "unordered-copy.in-flight-reader"
    assert finding.severity is FindingSeverity.CRITICAL
    assert finding.message == (
        "3 copies by hipMemcpy into plan are not ordered with prefill, which reads it: "
        "2 ran while it did (up to 100 ns), 1 was apart from it only by accident"
    )
    assert finding.evidence == {
        "call": "hipMemcpy",
        "direction": "host-to-device",
        "is_blocking": True,
        "buffer": "plan",
        "other": "prefill",
        "conflict": "overwrites-read",
        "certainty": "certain",
        "copies": 3,
        "together": 2,
        "in_wrong_order": 0,
        "by_accident": 1,
        "steps": 2,
        "steps_alike": 3,
        "overlap_max_ns": 100,
    }
    assert finding.span_ns == (1200, 1300)
    assert "pinned slot" in finding.advice


def test_one_that_overtook_its_reader_is_critical_too(run):
    (finding,) = found(run, ops=OPS.replace("100      500", "300      500"))
    assert finding.severity is FindingSeverity.CRITICAL
    assert finding.message == (
        "1 copy by hipMemcpy into plan is not ordered with prefill, which reads it: "
        "1 ran in the wrong order"
    )


def test_what_is_in_order_only_by_accident_is_a_warning(run):
    (finding,) = found(run, ops=LATER)
    assert finding.severity is FindingSeverity.WARNING
    assert finding.message.endswith(": 1 was apart from it only by accident")


def test_a_writer_in_flight_has_a_code_of_its_own_and_a_copy_reads_out_of_the_buffer(run):
    copies = COPIES.replace("4096", "88888").replace("77777", "4096")
    copies = copies.replace("host-to-device", "device-to-host")
    (finding,) = found(run, copies=copies, accesses=READ.replace("read", "write"))
    assert finding.code == "unordered-copy.in-flight-writer"
    said = "1 copy by hipMemcpy out of plan is not ordered with prefill, which writes it: 1 ran"
    assert finding.message.startswith(said)


def test_a_long_kernel_name_is_cut_in_the_middle(run):
    name = f"void_{'x' * 200}_end"
    (finding,) = found(run, ops=OPS.replace("prefill", name))
    assert finding.evidence["other"] == name
    assert f"ordered with void_{'x' * 25}…{'x' * 25}_end, which" in finding.message


@pytest.mark.parametrize("changed", [{**BY_EVENT}, {"accesses": READ.replace("4096", "4160")}])
def test_what_is_ordered_or_meets_nothing_is_no_finding(run, changed):
    assert found(run, **changed) == []


def test_possible_ones_are_told_only_of_blocking_copies_that_rewrite_the_same_memory(run):
    undeclared = {name: text for name, text in STEPS.items() if name != "accesses"}
    # Two of them run beside a kernel, into two places: written once each.
    assert ANALYSIS.findings(run(ANALYSIS.compute, **undeclared)) == []
    one_place = undeclared["copies"].replace("8192", "4096")
    beside = undeclared["ops"].replace("2600     2700", "2400     2500")
    again = {**undeclared, "copies": one_place, "ops": beside}
    (finding,) = ANALYSIS.findings(run(ANALYSIS.compute, **again))
    assert finding.severity is FindingSeverity.INFO
    assert finding.message == (
        "3 copies by hipMemcpy are not ordered with kernels in flight that may use the same memory, "
        "such as prefill: 3 ran while it did (up to 100 ns)"
    )
    assert finding.advice.startswith("Say with `tk1 use`")
    asynchronous = {**again, "copies": one_place.replace("true", "false")}
    assert ANALYSIS.findings(run(ANALYSIS.compute, **asynchronous)) == []


def notes(table, **texts):
    frames = {name: TABLES[name].empty() for name in TABLES}
    frames.update({name: table(name, text) for name, text in texts.items()})
    return [(note.code, note.count) for note in call_with_tables(ANALYSIS.caveats, frames)]


def test_what_a_trace_lacks_is_said(table):
    assert notes(table, **TRACE) == []
    assert notes(table, **{**TRACE, "accesses": "call_id buffer"}) == [
        ("unordered-copies.accesses-unknown", 1)
    ]
    flagless = STREAMS.replace("nonblocking", "-")
    assert notes(table, **{**TRACE, "streams": flagless}) == [("unordered-copies.flags-unknown", 2)]
    # One wait for an event, and neither the trace nor an event key says which.
    assert notes(table, **{**TRACE, **BY_EVENT}) == [("unordered-copies.waits-unknown", 1)]
    assert notes(table, **{**TRACE, **BY_EVENT, "waits": PAIRED}) == []
    assert notes(table, calls=CALLS) == []
