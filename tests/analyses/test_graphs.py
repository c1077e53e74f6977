"""graphs by hand: what makes launches be of one graph, and launches that lack their ops."""

from tracekit.analyses.graphs import ANALYSIS, GRAPHS

OPS = "op_id kind name process_id device_id start_ns end_ns graph_launch_id graph_exec_id"
CALLS = "call_id process_id name kind start_ns end_ns graph_exec_key"


def test_launches_with_one_handle_are_one_graph_with_its_gaps_and_its_losses(run, check):
    # Launch 0 spans 10–50 and is busy 30 of it; launch 1 spans and is busy 10; launch 2 has no ops.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel  b 0 0 30  50  0 -
        1 kernel  a 0 0 10  20  0 -
        2 kernel  a 0 0 100 110 1 -
        3 barrier w 0 0 0   200 0 -
        4 kernel  z 0 0 60  70  - -
        """,
        calls=f"""{CALLS}
        0 0 hipGraphLaunch  graph_launch 0   4   77
        1 0 hipGraphLaunch  graph_launch 90  98  77
        2 0 hipGraphLaunch  graph_launch 120 126 77
        3 0 hipLaunchKernel launch       55  56  -
        """,
    )
    check(
        result,
        GRAPHS,
        """
        process_id found_by graph_key first_name launches launches_without_ops ops ops_per_launch span_median_ns busy_median_ns gap_share call_median_ns first_start_ns
        0          exec-key 77        a          3        1                    3   1.5            25.0           20.0           0.2       6.0            10
        """,
    )


def test_without_a_handle_the_number_on_the_ops_or_their_names_tell_graphs_apart(run, check):
    # Launches 2 and 3 hold the same kernels in another order; launch 4 holds two of a kind.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel a 0 0 0  1  0 5
        1 kernel b 0 0 10 12 1 5
        2 kernel a 0 0 20 23 2 -
        3 kernel b 0 0 23 26 2 -
        4 kernel b 0 0 30 33 3 -
        5 kernel a 0 0 33 36 3 -
        6 kernel a 0 0 40 41 4 -
        7 kernel a 0 0 41 42 4 -
        """,
        calls=f"""{CALLS}
        0 0 hipGraphLaunch graph_launch 0 1 -
        9 0 hipGraphLaunch graph_launch 7 9 -
        """,
    )
    check(
        result,
        GRAPHS,
        """
        process_id found_by graph_key first_name launches launches_without_ops ops ops_per_launch span_median_ns busy_median_ns gap_share call_median_ns first_start_ns
        0          sequence -         a          2        0                    4   2.0            6.0            6.0            0.0       -              20
        0          exec-id  5         a          2        0                    2   1.0            1.5            1.5            0.0       1.0            0
        0          sequence -         a          1        0                    2   2.0            2.0            2.0            0.0       -              40
        0          none     -         -          1        1                    0   -              -              -              -         2.0            -
        """,
    )


def test_a_launch_counts_whole_in_the_window_in_which_its_first_op_starts(run, check):
    result = run(
        ANALYSIS.compute,
        window=(20, 40),
        host=(0, 50),
        ops=f"""{OPS}
        0 kernel a 0 0 19 30 0 5
        1 kernel a 0 0 31 32 0 5
        2 kernel a 0 0 39 60 1 5
        """,
        calls=f"""{CALLS}
        0 0 hipGraphLaunch graph_launch 0  1  -
        1 0 hipGraphLaunch graph_launch 2  3  -
        2 0 hipGraphLaunch graph_launch 49 53 -
        3 0 hipGraphLaunch graph_launch 50 51 -
        """,
    )
    check(
        result,
        GRAPHS,
        """
        found_by launches launches_without_ops ops span_median_ns call_median_ns
        exec-id  1        0                    1   21.0           1.0
        none     1        1                    0   -              4.0
        """,
    )


def test_launches_without_ops_raise_a_note_with_their_count(table):
    calls = table(
        "calls",
        f"""{CALLS}
        0 0 hipGraphLaunch  graph_launch 0 1 -
        1 0 hipGraphLaunch  graph_launch 2 3 -
        2 0 hipLaunchKernel launch       4 5 -
        """,
    )
    ops = table("ops", f"{OPS}\n0 kernel a 0 0 19 30 0 5")
    (note,) = ANALYSIS.caveats(ops, calls)
    assert (note.code, note.count) == ("graphs.launches-without-ops", 1)
    assert "Of 2 graph launches" in note.message
    assert ANALYSIS.caveats(ops, calls.head(1)) == []
