"""Replays of a graph with fewer ops than its others, by hand."""

import pytest

CODE = "graphs.replays-with-fewer-ops"
CALLS = "call_id process_id thread_id name kind start_ns end_ns correlation_id graph_exec_key"
OPS = (
    "op_id kind process_id device_id start_ns end_ns call_id correlation_id graph_launch_id "
    "graph_exec_id"
)


def replays(*counts, key=5, exec_id="-", kind="kernel", between=None):
    """Return the tables of launches of one graph each 100 ns, with so many ops each."""
    calls, ops = [CALLS], [OPS]
    for call, count in enumerate(counts):
        at, number = 100 * call, 10 + 2 * call
        calls.append(f"{2 * call} 0 7 hipGraphLaunch graph_launch {at} {at + 9} {number} {key}")
        other = between if between and call == 1 else "hipGetDevice"
        calls.append(f"{2 * call + 1} 0 7 {other} other {at + 50} {at + 51} {number + 1} -")
        for op in range(count):
            begin = at + 10 + 5 * op
            row = f"{kind} 0 0 {begin} {begin + 4} {2 * call} {number} {2 * call} {exec_id}"
            ops.append(f"{len(ops) - 1} {row}")
    return {"calls": "\n".join(calls), "ops": "\n".join(ops)}


def test_a_replay_with_fewer_ops_than_those_around_it_has_lost_some(marks):
    mark = marks(**replays(3, 1, 3, 2, 3, 3))[CODE]
    assert mark.numbers == {"launches_with_fewer": 2, "graph_launches": 4, "missing_ops": 3}
    assert mark.busy_is_at_least
    assert "2 of 4 graph launches that can be told (50.0 %) have fewer ops than" in mark.text


def test_a_graph_that_only_the_ops_name_is_known_too(marks):
    tables = replays(3, 1, 3, 3, key="-", exec_id=8)
    assert CODE in marks(**tables)
    # The second launch, number 12, is of another graph.
    assert CODE not in marks(**tables | {"ops": tables["ops"].replace(" 12 2 8", " 12 2 9")})
    assert CODE not in marks(**replays(3, 1, 3, 3, key="-"))


def test_the_first_replay_may_do_more_and_the_last_be_cut_off(marks):
    assert CODE not in marks(**replays(4, 3, 3, 2))
    assert CODE not in marks(**replays(1, 3, 3, 3))


def test_barriers_do_no_work_and_are_not_counted(marks):
    tables = replays(3, 1, 3, 3, kind="barrier")
    tables["ops"] += "\n10 kernel 0 0 500 600 - - - -"
    assert CODE not in marks(**tables)


@pytest.mark.parametrize(
    "name",
    ["hipGraphExecDestroy", "hipGraphInstantiate", "hipGraphExecUpdate", "hipGraphNodeSetEnabled"],
)
def test_a_graph_that_was_changed_may_have_fewer_ops(marks, name):
    assert CODE in marks(**replays(3, 3, 1, 1, 1))
    # The call comes between the second launch and the third.
    assert CODE not in marks(**replays(3, 3, 1, 1, 1, between=name))
    assert CODE in marks(**replays(3, 3, 1, 2, 1, 2, between=name))


def test_a_missing_call_may_have_changed_the_graph(marks):
    tables = replays(3, 3, 1, 1, 1)
    assert CODE in marks(**tables)
    # Numbers 13 and 15 are missing.
    less = [row for row in tables["calls"].splitlines() if row.split()[0] not in ("3", "5")]
    assert CODE not in marks(**tables | {"calls": "\n".join(less)})
