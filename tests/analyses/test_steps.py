"""steps by hand: the four rules in their order, and what is measured in a step."""

import pytest

from tracekit.analyses.steps import ANALYSIS, STEPS

OPS = "op_id kind process_id device_id start_ns end_ns call_id graph_launch_id"
CALLS = "call_id process_id thread_id name kind start_ns end_ns graph_exec_key"
RANGES = "range_id kind process_id thread_id text start_ns end_ns"


def test_a_step_has_its_busy_time_its_launches_and_the_time_its_thread_was_blocked(run, check):
    # In 0–100 the device is busy 10–40 and 90–100 (the op goes on to 120). The thread is blocked
    # 20–50 (the copy lies within the sync) and 95–100; thread 8 waits too and holds nobody up. Only
    # the copy is known to have waited: for the first kernel, which ended at 30, while it lasted 20.
    # Of the idle time from 40 it owns what passes until the graph launch returns at 64: 4 more.
    result = run(
        ANALYSIS.compute,
        ranges=f"""{RANGES}
        0 marker 0 7 tk1~step~12~kind=verify~bs=8~tokens=26~waiting=3~free=2 0 100
        1 marker 0 7 tk1~step~13~kind=draft                 100 130
        2 marker 0 7 tk1~stream~0~flags=nonblocking         0   0
        """,
        ops=f"""{OPS}
        0 kernel  0 0 10  30  0 -
        1 kernel  1 0 20  40  - -
        2 kernel  0 0 90  120 1 -
        3 barrier 0 0 50  80  - -
        """,
        calls=f"""{CALLS}
        0 0 7 hipLaunchKernel      launch       5  8   -
        1 0 7 hipGraphLaunch       graph_launch 60 64  -
        2 0 7 hipStreamSynchronize stream_sync  20 50  -
        3 0 7 hipMemcpy            copy         25 45  -
        4 0 7 hipEventSynchronize  event_sync   95 104 -
        5 0 8 hipEventSynchronize  event_sync   0  100 -
        6 0 7 hipMemcpyAsync       copy         70 80  -
        """,
        copies="""
        call_id is_blocking
        3       true
        6       false
        """,
    )
    check(
        result,
        STEPS,
        """
        process_id device_id found_by step label                                               kind   batch_size tokens waiting free start_ns end_ns wall_ns busy_ns idle_ns ops launches blocked_ns held_ns owned_idle_ns remaining_idle_ns
        0          0         tk1-step 12   step~12~kind=verify~bs=8~tokens=26~waiting=3~free=2 verify 8          26     3       2    0        100    100     40      60      3   2        35         20      24            4
        0          0         tk1-step 13   step~13~kind=draft                                  draft  -          -      -       -    100      130    30      20      10      0   0        4          0       0             0
        """,
    )


def test_instants_open_steps_that_the_next_instant_of_the_thread_ends(run, check):
    result = run(
        ANALYSIS.compute,
        ranges=f"""{RANGES}
        0 marker 0 7 tk1~step~1~kind=decode 10 10
        1 marker 0 8 tk1~step~5             15 15
        2 marker 0 7 tk1~step~2~kind=decode 30 30
        3 marker 0 7 tk1~step~3~kind=decode 70 70
        """,
        ops=f"{OPS}\n0 kernel 0 0 20 35 - -",
    )
    check(
        result,
        STEPS,
        """
        found_by step kind   start_ns end_ns wall_ns busy_ns ops launches blocked_ns
        tk1-step 1    decode 10       30     20      10      1   -        -
        tk1-step 2    decode 30       70     40      5       0   -        -
        """,
    )


@pytest.mark.parametrize("digits", ["1" + 18 * "0", 30 * "9", "\u0663"])
@pytest.mark.parametrize("text", ["tk1~step~{}", "ProfilerStep#{}"])
def test_a_number_beyond_the_grammar_makes_no_step(run, text, digits):
    ranges = f"{RANGES}\n0 marker 0 7 {text.format(digits)} 0 100"
    result = run(ANALYSIS.compute, ranges=ranges, ops=f"{OPS}\n0 kernel 0 0 5 9 - -")
    assert result.is_empty()


def test_a_count_beyond_the_grammar_is_unknown(run, check):
    counts = f"bs={10**18}~tokens={10**18 - 1}"
    result = run(
        ANALYSIS.compute,
        ranges=f"{RANGES}\n0 marker 0 7 tk1~step~1~{counts} 0 100",
        ops=f"{OPS}\n0 kernel 0 0 5 9 - -",
    )
    check(result, STEPS, f"step batch_size tokens\n1 - {10**18 - 1}")


def test_only_steps_wholly_inside_the_host_window_count_once_for_each_device(run, check):
    result = run(
        ANALYSIS.compute,
        host=(10, 40),
        ranges=f"""{RANGES}
        0 operator 0 7 ProfilerStep#1 0  10
        1 operator 0 7 ProfilerStep#2 10 30
        2 operator 0 7 ProfilerStep#3 30 41
        3 operator 0 7 ProfilerStepX  12 13
        4 operator 5 7 ProfilerStep#9 12 13
        """,
        ops=f"""{OPS}
        0 kernel 0 0 12 14 - -
        1 kernel 0 3 12 17 - -
        """,
    )
    check(
        result,
        STEPS,
        """
        process_id device_id found_by      step label          start_ns busy_ns idle_ns ops
        0          0         profiler-step 2    ProfilerStep#2 10       2       18      1
        0          3         profiler-step 2    ProfilerStep#2 10       5       15      1
        5          -         profiler-step 9    ProfilerStep#9 12       -       -       -
        """,
    )


MARKERS = f"""{RANGES}
0 marker   0 7 batch~1~of~4 0   90
1 marker   0 7 batch~2~of~4 100 190
2 marker   0 7 batch~3~of~4 200 290
3 marker   0 7 around       10  30
4 marker   0 7 around       110 130
5 marker   0 7 around       210 260
6 marker   0 8 poll         10  20
7 marker   0 8 poll         110 120
8 marker   0 8 poll         210 220
9 operator 0 7 aten::mm     0   300
"""


def test_a_marker_that_recurs_and_holds_most_launches_is_the_step(run, check):
    # `batch` holds all four launching calls and so does `around` inside it; `poll` holds three.
    result = run(
        ANALYSIS.compute,
        ranges=MARKERS,
        ops=f"""{OPS}
        0 kernel 0 0 20  50  0 -
        1 kernel 0 0 120 150 1 -
        2 kernel 0 0 220 250 2 -
        3 kernel 0 0 260 270 3 -
        """,
        calls=f"""{CALLS}
        0 0 7 hipLaunchKernel launch 15  16  -
        1 0 7 hipLaunchKernel launch 115 116 -
        2 0 7 hipLaunchKernel launch 215 216 -
        3 0 7 hipLaunchKernel launch 250 251 -
        4 0 7 hipMalloc       malloc 295 296 -
        """,
    )
    check(
        result,
        STEPS,
        """
        found_by step label        kind         start_ns end_ns busy_ns ops launches blocked_ns
        marker   -    batch~1~of~4 batch~#~of~# 0        90     30      1   1        0
        marker   -    batch~2~of~4 batch~#~of~# 100      190    30      1   1        0
        marker   -    batch~3~of~4 batch~#~of~# 200      290    40      2   2        0
        """,
    )


@pytest.mark.parametrize(
    ("third_text", "launched_at"),
    [("another", (50, 150, 160)), ("batch~3~of~4", (50, 150, 293, 294))],
    ids=["recurs twice only", "holds half of the launches only"],
)
def test_a_marker_that_recurs_or_holds_too_little_is_no_step(run, third_text, launched_at):
    ranges = MARKERS.replace("batch~3~of~4", third_text)
    calls = [f"{i} 0 7 hipLaunchKernel launch {at} {at} -" for i, at in enumerate(launched_at)]
    ops = [f"{i} kernel 0 0 {at} {at + 1} {i} -" for i, at in enumerate(launched_at)]
    result = run(
        ANALYSIS.compute,
        ranges=ranges,
        ops="\n".join([OPS, *ops]),
        calls="\n".join([CALLS, *calls]),
    )
    assert result.is_empty()


def test_markers_that_do_not_recur_hide_no_steps_inside_them(run, check):
    # Two levels around the steps, one of them twice; `around` lies inside markers that recur.
    result = run(
        ANALYSIS.compute,
        ranges=f"""{MARKERS.strip()}
        10 marker 0 7 serve~forever   0   300
        11 marker 0 7 requests~1      0   195
        12 marker 0 7 requests~2      195 300
        """,
        ops=f"""{OPS}
        0 kernel 0 0 20  50  0 -
        1 kernel 0 0 120 150 1 -
        2 kernel 0 0 220 250 2 -
        """,
        calls=f"""{CALLS}
        0 0 7 hipLaunchKernel launch 15  16  -
        1 0 7 hipLaunchKernel launch 115 116 -
        2 0 7 hipLaunchKernel launch 215 216 -
        """,
    )
    check(
        result,
        STEPS,
        """
        found_by label        start_ns end_ns
        marker   batch~1~of~4 0        90
        marker   batch~2~of~4 100      190
        marker   batch~3~of~4 200      290
        """,
    )


def test_the_recurring_graph_with_the_most_device_time_cuts_steps_where_nothing_is_marked(
    run, check
):
    # Graph 1 drafts for 1 ns three times; graph 2 verifies for 50 ns, at 10, 110 and 210.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel 0 0 5   6   0 0
        1 kernel 0 0 20  70  1 1
        2 kernel 0 0 105 106 2 2
        3 kernel 0 0 120 170 3 3
        4 kernel 0 0 205 206 4 4
        5 kernel 0 0 220 270 5 5
        """,
        calls=f"""{CALLS}
        0 0 7 hipGraphLaunch graph_launch 0   2   1
        1 0 7 hipGraphLaunch graph_launch 10  12  2
        2 0 7 hipGraphLaunch graph_launch 100 102 1
        3 0 7 hipGraphLaunch graph_launch 110 112 2
        4 0 7 hipGraphLaunch graph_launch 200 202 1
        5 0 7 hipGraphLaunch graph_launch 210 212 2
        """,
    )
    check(
        result,
        STEPS,
        """
        found_by step label    kind start_ns end_ns wall_ns busy_ns idle_ns ops launches blocked_ns
        graph    -    graph~2  -    10       110    100     51      49      2   2        0
        graph    -    graph~2  -    110      210    100     51      49      2   2        0
        """,
    )


def test_each_process_takes_the_first_rule_that_finds_steps_in_it(run, check):
    result = run(
        ANALYSIS.compute,
        ranges=f"""{RANGES}
        0 marker 0 7 tk1~step~4~kind=decode 0 10
        1 marker 0 7 ProfilerStep#1         0 20
        2 marker 1 7 ProfilerStep#2         0 20
        """,
        ops=f"{OPS}\n0 kernel 0 0 0 5 - -",
    )
    check(
        result,
        STEPS,
        """
        process_id found_by      step start_ns end_ns
        0          tk1-step      4    0        10
        1          profiler-step 2    0        20
        """,
    )


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("batch~{}", ["steps.inferred"]),
        ("tk1~step~{}", []),
        ("tk1~step~{}x", ["steps.inferred"]),
    ],
)
def test_inferred_steps_are_called_inferred(table, text, codes):
    ranges = "\n".join(f"{i} marker 0 7 {text.format(i)} {i} {i + 1}" for i in range(3))
    calls = table("calls", f"{CALLS}\n0 0 7 hipLaunchKernel launch 1 2 -")
    ops = table("ops", f"{OPS}\n0 kernel 0 0 0 5 0 -")
    found = ANALYSIS.caveats(table("ranges", f"{RANGES}\n{ranges}"), ops, calls)
    assert [note.code for note in found] == codes


def test_a_trace_without_steps_says_what_marker_to_add(table):
    ops = table("ops", f"{OPS}\n0 kernel 0 0 0 5 0 -")
    nothing = table("ranges", f"{RANGES}\n0 marker 0 7 a 0 1").clear()
    (note,) = ANALYSIS.caveats(nothing, ops, table("calls", f"{CALLS}\n0 0 7 a launch 1 2 -"))
    assert note.code == "steps.not-found"
    assert "tk1 step N" in note.message


def marked_steps(steps):
    """Ranges of 100 ns each, from (kind, waiting, free) of every step in order; null is not said."""
    rows = [
        f"{n} marker 0 7 tk1~step~{n}~kind={kind}~bs=14"
        + ("" if waiting is None else f"~waiting={waiting}~free={free}")
        + f" {100 * n} {100 * n + 100}"
        for n, (kind, waiting, free) in enumerate(steps)
    ]
    return "\n".join([RANGES, *rows])


def stranded(run, steps):
    result = run(ANALYSIS.compute, ranges=marked_steps(steps), ops=f"{OPS}\n0 kernel 0 0 5 9 - -")
    return ANALYSIS.findings(result)


IN_ORDER = [("prefill", 0, 2)] + [("verify", 0, 2)] * 199


def test_requests_that_wait_for_long_though_all_of_them_would_fit_are_stranded(run):
    stuck = IN_ORDER[:40] + [("verify", 2, 2)] * 50 + [("decode", 1, 2)] * 10 + IN_ORDER[:100]
    (finding,) = stranded(run, stuck)
    assert finding.code == "scheduler.stranded-requests"
    assert finding.evidence == {
        "process_id": 0,
        "steps": 60,
        "stretches": 1,
        "stranded_ns": 6_000,
        "stranded_share": 0.3,
        "waiting": 2,
        "free": 2,
        "batch_size": 14,
    }
    assert finding.span_ns == (4_000, 10_000)
    assert "30.0 %" in finding.message
    assert "waiting requests" in finding.advice
    assert "tracekit table TRACE steps" in finding.advice


@pytest.mark.parametrize(
    "stuck",
    [
        # Fewer than fifty steps in a row; a prefill, a step without the keys or nobody waiting
        # between them ends a stretch.
        [("verify", 2, 2)] * 49,
        [*[("verify", 2, 2)] * 49, ("prefill", 2, 2), *[("verify", 2, 2)] * 49],
        [*[("verify", 2, 2)] * 49, ("mixed", 2, 2), *[("verify", 2, 2)] * 49],
        [*[("verify", 2, 2)] * 49, ("verify", None, None), *[("verify", 2, 2)] * 49],
        [*[("verify", 2, 2)] * 49, ("verify", 0, 2), *[("verify", 2, 2)] * 49],
        # More wait than fit: a delay until more slots are free may be meant. No slot at all.
        [("verify", 3, 2)] * 100,
        [("verify", 3, 0)] * 100,
        [("verify", 0, 0)] * 100,
        # Not decoding, or saying nothing.
        [("extend", 2, 2)] * 100,
        [("verify", None, None)] * 100,
    ],
)
def test_who_waits_shortly_or_for_a_slot_is_not_stranded(run, stuck):
    assert stranded(run, stuck + IN_ORDER) == []


def test_what_is_a_small_part_of_all_steps_is_no_finding(run):
    stuck = [("verify", 2, 2)] * 50
    assert len(stranded(run, stuck + IN_ORDER * 4 + IN_ORDER[:150])) == 1
    assert stranded(run, stuck + IN_ORDER * 4 + IN_ORDER[:151]) == []


def test_a_step_on_two_devices_counts_once(run):
    ops = f"{OPS}\n0 kernel 0 0 5 9 - -\n1 kernel 0 1 5 9 - -"
    steps = [("verify", 2, 2)] * 49 + IN_ORDER
    assert ANALYSIS.findings(run(ANALYSIS.compute, ranges=marked_steps(steps), ops=ops)) == []
    steps = [("verify", 2, 2)] * 50 + IN_ORDER
    (finding,) = ANALYSIS.findings(run(ANALYSIS.compute, ranges=marked_steps(steps), ops=ops))
    assert finding.evidence["steps"] == 50


def test_what_held_a_thread_that_is_not_known_is_unknown(run, check):
    # Of thread 7 nothing held the step; of the other step the thread is unknown. A process without
    # calls says nothing of them at all.
    result = run(
        ANALYSIS.compute,
        ranges=f"""{RANGES}
        0 marker 0 7 tk1~step~1 0 100
        1 marker 0 - tk1~step~2 0 100
        2 marker 1 7 tk1~step~3 0 100
        """,
        ops=f"{OPS}\n0 kernel 0 0 5 9 0 -\n1 kernel 1 0 15 19 - -",
        calls=f"{CALLS}\n0 0 7 hipLaunchKernel launch 1 2 -",
    )
    check(
        result,
        STEPS,
        """
        step launches held_ns owned_idle_ns remaining_idle_ns
        1    1        0       0             0
        2    1        -       -             -
        3    -        -       -             -
        """,
    )
