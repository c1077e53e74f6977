"""The host-sync ledger by hand: who held the host, in which step, and what would remain."""

import polars as pl
import pytest

from tracekit.analyses import call_with_tables
from tracekit.analyses.host_syncs import ANALYSIS, FINDING_SHARE, HOST_SYNCS
from tracekit.analyses.idle_gaps import ANALYSIS as IDLE_GAPS
from tracekit.idle_time.wait_kinds import wait_kinds
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

# Step 1: the sync holds the host in 100–510; the device is done at 500 and idle until 815. wake-up
# 10, exposed 290, launch 10. Step 2: held in 1100–1205; from 1200 wake-up 5, exposed 495, launch
# 10. After the steps a stream sync holds it in 2050–2600; from 2500 wake-up 100, exposed 100,
# launch 10. The kernel of call 7 is queued while that of call 6 runs, so there is no gap before it.
TRACE = {
    "ranges": """
    range_id kind   process_id thread_id text                      start_ns end_ns
    0        marker 0          7         tk1~step~1~kind=verify    0        1000
    1        marker 0          7         tk1~step~2~kind=verify    1000     2000
    2        marker 0          7         resolve~1                 90       600
    3        marker 0          7         resolve~2                 1090     1300
    """,
    "ops": """
    op_id kind   name process_id device_id stream_id start_ns end_ns call_id
    0     kernel a    0          0         1         30       500    0
    1     kernel b    0          0         1         815      1200   3
    2     kernel c    0          0         1         1720     1800   6
    3     kernel d    0          0         1         1800     2500   7
    4     kernel e    0          0         1         2715     2800   9
    """,
    "calls": """
    call_id process_id thread_id name                 kind         start_ns end_ns stream_id event_key
    0       0          7         hipLaunchKernel      launch       10       20     1         -
    1       0          7         hipEventRecord       event_record 20       25     1         99
    2       0          7         hipEventSynchronize  event_sync   100      510    -         99
    3       0          7         hipLaunchKernel      launch       800      810    1         -
    4       0          7         hipEventRecord       event_record 811      812    1         99
    5       0          7         hipEventSynchronize  event_sync   1100     1205   -         99
    6       0          7         hipLaunchKernel      launch       1700     1710   1         -
    7       0          7         hipLaunchKernel      launch       1750     1760   1         -
    8       0          7         hipStreamSynchronize stream_sync  2050     2600   1         -
    9       0          7         hipLaunchKernel      launch       2700     2710   1         -
    """,
}


def test_each_wait_has_what_it_held_and_owns_per_step_and_what_exceeds_the_hold_remains(run, check):
    # Step 1 owns 310 and held 410: nothing remains. Step 2 owns 510 and held 105: 405 remain.
    check(
        run(ANALYSIS.compute, **TRACE),
        HOST_SYNCS,
        f"""
        device_id wait          call                 marker    caller found_by kind   calls steps of_steps held_ns held_median_ns idle_ns idle_share   idle_median_ns exposed_ns exposed_median_ns exposed_low_ns remaining_ns remaining_median_ns worst_start_ns worst_end_ns
        0         publish-event hipEventSynchronize  resolve~* -      tk1-step verify 2     2     2        515     257.5          820     {820 / 2770} 410            785        392.5             -              405          202.5               1100           1710
        0         stream-sync   hipStreamSynchronize -         -      -        -      1     -     -        550     -              210     {210 / 2770} -              100        -                 -              0            -                   2050           2710
        """,
    )


def test_a_step_that_the_window_cuts_is_no_step_and_its_idle_time_still_counts(run, check):
    # The window ends at 1500, within step 2: of its 510 the first 300 are inside.
    result = run(ANALYSIS.compute, window=(30, 1500), host=(0, 1500), **TRACE)
    check(
        result,
        HOST_SYNCS,
        """
        wait          found_by kind   calls steps of_steps held_ns idle_ns exposed_ns remaining_ns worst_end_ns
        publish-event tk1-step verify 1     1     1        410     310     290        0            810
        publish-event -        -      1     -     -        105     300     295        195          1500
        """,
    )
    # A call that the window cuts holds the host for the part inside; what it owns may begin later.
    late = run(ANALYSIS.compute, window=(1150, 1800), host=(1150, 1800), **TRACE)
    assert late.select("held_ns", "idle_ns").rows() == [(55, 510)]
    later = run(ANALYSIS.compute, window=(1210, 1800), host=(1210, 1800), **TRACE)
    assert later.select("held_ns", "idle_ns").rows() == [(0, 500)]


def on_two_devices():
    """The trace, and on device 1 a kernel from 40 to 900 and another from 1730 on."""
    other = """5 kernel f 0 1 2 40 900 10\n    6 kernel g 0 1 2 1730 1800 11"""
    launches = """10 0 7 hipLaunchKernel launch 26 28 2 -
    11 0 7 hipLaunchKernel launch 1720 1725 2 -"""
    return TRACE | {
        "ops": f"{TRACE['ops'].strip()}\n{other}",
        "calls": f"{TRACE['calls'].strip()}\n{launches}",
    }


def test_what_a_wait_owns_is_counted_for_each_device_of_the_process(run, check):
    result = run(ANALYSIS.compute, **on_two_devices())
    # Device 1 idles in 900–1730; the host was held until 1205, then prepared until 1720.
    check(
        result.filter(kind="verify"),
        HOST_SYNCS,
        """
        device_id calls held_ns idle_ns exposed_ns
        0         2     515     820     785
        1         2     515     825     515
        """,
    )


@pytest.mark.parametrize("cut_ns", [0, 5, 300, 600, 805, 1100, 1250])
def test_the_rows_of_each_device_add_up_to_its_host_blocked_time_whatever_the_window(table, cut_ns):
    texts = on_two_devices()
    frames = {name: table(name, text) for name, text in texts.items()}
    frames |= {name: TABLES[name].empty() for name in ("copies", "waits", "marks")}
    bounds = [(0, 30 + cut_ns, 2800), (1, 40, 1735 - cut_ns // 2), (None, cut_ns, 2800)]
    frames["windows"] = pl.DataFrame(bounds, WINDOWS.schema, orient="row")
    ledger = call_with_tables(IDLE_GAPS.compute, frames)
    blocked = ledger.filter(cause="host-blocked").group_by("device_id").agg(pl.sum("idle_ns"))
    sums = call_with_tables(ANALYSIS.compute, frames).group_by("device_id").agg(pl.sum("idle_ns"))
    assert blocked.height == 2
    assert dict(sums.rows()) == dict(blocked.rows())


CALLS = "call_id process_id thread_id name kind start_ns end_ns"
RANGES = "range_id kind process_id thread_id text start_ns end_ns"
COPIES = "call_id direction"


@pytest.mark.parametrize(
    ("calls", "ranges", "copies", "expected"),
    [
        ("1 0 7 hipEventSynchronize event_sync 10 20", "", "", "publish-event"),
        ("1 0 7 hipStreamSynchronize stream_sync 10 20", "", "", "stream-sync"),
        ("1 0 7 hipDeviceSynchronize device_sync 10 20", "", "", "device-sync"),
        ("1 0 7 hipFree free 10 20", "", "", "free"),
        ("1 0 7 hipMemcpy copy 10 20", "", "1 host-to-device", "copy"),
        ("1 0 7 hipMemcpy copy 10 20", "", "1 -", "copy"),
        # A copy to the host reads a value, and so does a wait in an operator that reads one.
        ("1 0 7 hipMemcpyWithStream copy 10 20", "", "1 device-to-host", "item"),
        (
            "1 0 7 hipStreamSynchronize stream_sync 10 20",
            "0 operator 0 7 aten::item 0 40\n1 operator 0 7 aten::_local_scalar_dense 5 30",
            "",
            "item",
        ),
        (
            "1 0 7 hipEventSynchronize event_sync 10 20",
            "0 frame 0 7 serve.py(8):~cpu 5 30",
            "",
            "item",
        ),
        (
            "1 0 7 hipEventSynchronize event_sync 10 20",
            "0 frame 0 7 <built-in~method~tolist~of~Tensor~object~at~0x7f> 5 30",
            "",
            "item",
        ),
        # Names that only look like it.
        (
            "1 0 7 hipEventSynchronize event_sync 10 20",
            "0 frame 0 7 serve.py(8):~cpu_loop 5 30\n1 operator 0 7 aten::item_size 6 30",
            "",
            "publish-event",
        ),
        # The operator around the wait began a copy to the host; in the last two it did not.
        (
            "0 0 7 hipMemcpyAsync copy 6 8\n1 0 7 hipStreamSynchronize stream_sync 10 20",
            "0 operator 0 7 aten::copy_ 5 30",
            "0 device-to-host",
            "item",
        ),
        (
            "0 0 7 hipMemcpyAsync copy 6 8\n1 0 7 hipStreamSynchronize stream_sync 10 20",
            "0 operator 0 7 aten::copy_ 5 30",
            "0 host-to-device",
            "stream-sync",
        ),
        (
            "0 0 7 hipMemcpyAsync copy 2 4\n1 0 7 hipStreamSynchronize stream_sync 10 20",
            "0 operator 0 7 aten::copy_ 5 30",
            "0 device-to-host",
            "stream-sync",
        ),
    ],
)
def test_a_wait_is_named_by_what_the_host_waits_for(table, calls, ranges, copies, expected):
    frames = [
        table(name, f"{header}\n{rows}")
        for name, header, rows in (
            ("calls", CALLS, calls),
            ("copies", COPIES, copies),
            ("ranges", RANGES, ranges),
        )
    ]
    asked = pl.Series([1], dtype=pl.Int64)
    assert wait_kinds(asked, *frames).rows() == [(1, expected)]


def test_an_owner_of_a_large_share_becomes_one_finding_with_its_fix(run):
    result = run(ANALYSIS.compute, **TRACE)
    published, synced = ANALYSIS.findings(result)
    assert (published.code, synced.code) == (
        "host-blocked.publish-event",
        "host-blocked.stream-sync",
    )
    evidence = published.evidence
    assert (evidence["idle_ns"], evidence["exposed_ns"], evidence["held_ns"]) == (820, 785, 515)
    assert (evidence["kind"], evidence["steps"], evidence["marker"]) == ("verify", 2, "resolve *")
    assert (evidence["exposed_median_ns"], evidence["remaining_median_ns"]) == (392.5, 202.5)
    assert "forward-stream" in published.advice
    assert "tracekit report TRACE --only host-syncs" in published.advice
    assert published.span_ns == (1100, 1710)
    assert "exposed per" not in synced.message


def test_a_median_is_told_from_five_steps_on(run):
    result = run(ANALYSIS.compute, **TRACE).filter(wait="publish-event")
    told = [
        ANALYSIS.findings(result.with_columns(steps=pl.lit(steps, pl.Int64)))[0].message
        for steps in (4, 5)
    ]
    assert told[0].endswith("the next work was prepared only afterwards")
    assert told[1].endswith(
        ": 392 ns of host work exposed per verify, median of 5; without the wait 202 ns of a "
        "step's idle time would remain"
    )


def test_waits_of_one_place_are_one_finding_whatever_step_they_are_in_and_small_ones_none(run):
    trace = TRACE | {"ranges": TRACE["ranges"].replace("2~kind=verify", "2~kind=decode")}
    result = run(ANALYSIS.compute, **trace)
    assert result["kind"].to_list() == ["decode", "verify", None]
    published, _ = ANALYSIS.findings(result)
    assert (published.evidence["calls"], published.evidence["idle_ns"]) == (2, 820)
    assert published.evidence["kind"] == "decode"
    few = result.with_columns(idle_share=pl.lit(FINDING_SHARE / 3 - 1e-9))
    assert ANALYSIS.findings(few) == []


def test_idle_time_that_would_remain_without_the_wait_is_no_finding(run):
    result = run(ANALYSIS.compute, **TRACE).filter(wait="publish-event")
    nearly_all = result["idle_ns"] - 1
    assert len(ANALYSIS.findings(result)) == 1
    assert ANALYSIS.findings(result.with_columns(nearly_all.alias("remaining_ns"))) == []


def test_a_median_of_eight_steps_or_more_has_an_interval_that_holds_it(run):
    # Eight steps as step 1 of the trace above, each 2000 later; step n prepares 10 · n longer.
    header = {name: text.strip().splitlines()[0] for name, text in TRACE.items()}
    rows = {name: [] for name in TRACE}
    for n in range(9):
        at, event, call, launched = 2000 * n, 100 + n, 4 * n, 700 + 2000 * n + 10 * n
        rows["ranges"].append(f"{n} marker 0 7 tk1~step~{n}~kind=decode {at} {at + 2000}")
        begun = at if n == 0 else launched - 2000 - 10
        end = at + 500
        rows["ops"].append(f"{n} kernel a 0 0 1 {begun + 20} {end} {call}")
        rows["calls"] += [
            f"{call} 0 7 hipLaunchKernel launch {begun} {begun + 5} 1 -",
            f"{call + 1} 0 7 hipEventRecord event_record {begun + 6} {begun + 8} 1 {event}",
            f"{call + 2} 0 7 hipEventSynchronize event_sync {at + 100} {end} - {event}",
        ]
    texts = {name: "\n".join([header[name], *rows[name]]) for name in TRACE}
    result = run(ANALYSIS.compute, **texts)
    row = result.filter(pl.col("idle_ns") > 0).row(0, named=True)
    # Exposed are 200, 210, … 270 ns; the ninth step's wait owns nothing any more.
    assert row["exposed_ns"] == sum(range(200, 280, 10))
    assert (row["steps"], row["exposed_median_ns"]) == (9, 230)
    assert row["exposed_low_ns"] <= 230 <= row["exposed_high_ns"]
    assert 0 <= row["exposed_low_ns"] < row["exposed_high_ns"] <= 270


def test_callers_that_differ_only_in_where_an_object_lies_are_one(run):
    name = "<built-in~method~to~of~Tensor~object~at~0x7f62fc6170>"
    frames = f"""9 frame 0 7 {name} 95 550
    10 frame 0 7 {name.replace("62fc", "5820")} 1095 1290"""
    result = run(ANALYSIS.compute, **TRACE | {"ranges": f"{TRACE['ranges'].strip()}\n{frames}"})
    assert result["caller"].to_list() == ["<built-in method to of Tensor object>", None]
    assert result["calls"].to_list() == [2, 1]
