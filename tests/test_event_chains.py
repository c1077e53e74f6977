"""Waits that hang on waits: by hand, and against plain loops over random programs."""

from itertools import chain, pairwise

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.event_chains import chained_ends

SCHEMA = {
    "waiting_stream_id": pl.Int32,
    "asked_at": pl.Int64,
    "recording_stream_id": pl.Int32,
    "recorded_at": pl.Int64,
    "recorded_end_ns": pl.Int64,
    "pending_start_ns": pl.Int64,
}


def ends(*rows):
    return chained_ends(pl.DataFrame(rows, schema=SCHEMA, orient="row")).to_list()


def test_a_chain_is_followed_to_its_end_in_any_order_of_rows():
    # Stream 0 works until 900; 1 waits for 0, 2 for 1, 3 for 2, and nothing runs in between.
    hops = [
        (3, 60, 2, 50, None, 65),
        (1, 20, 0, 10, 900, 25),
        (2, 40, 1, 30, None, 45),
    ]
    assert ends(*hops) == [900, 900, 900]


def test_an_end_is_unknown_where_nothing_is_known_of_the_record():
    unseen = (1, 20, None, None, None, 25)
    behind_it = (2, 40, 1, 30, None, 45)
    assert ends(unseen, behind_it) == [None, None]


def test_an_earlier_wait_without_a_known_end_hides_none_that_has_one():
    known = (1, 20, 0, 10, 900, 25)
    unseen = (1, 21, None, None, None, 25)
    assert ends(known, unseen, (2, 40, 1, 30, None, 45)) == [900, None, 900]


def test_calls_at_one_place_are_not_before_each_other():
    assert ends((1, 30, 0, 10, 900, 25), (2, 40, 1, 30, 100, 45)) == [900, 100]


def test_no_waits_have_no_ends():
    assert ends() == []


STREAMS, EVENTS = st.integers(0, 3), st.integers(0, 2)


def relayed(streams, event):
    """Return the steps that pass one event on from stream to stream."""
    hops = pairwise(streams)
    return [
        step for giver, taker in hops for step in (("record", giver, event), ("wait", taker, event))
    ]


# Single steps make chains by chance only, so an event passed on is a step too; ops are long beside
# calls, else all is over when it is asked for.
STEPS = st.one_of(
    st.builds(lambda stream, ns: [("op", stream, ns)], STREAMS, st.integers(1, 900)),
    st.builds(lambda stream, event: [("record", stream, event)], STREAMS, EVENTS),
    st.builds(lambda stream, event: [("wait", stream, event)], STREAMS, EVENTS),
    st.builds(relayed, st.lists(STREAMS, min_size=2, max_size=5), EVENTS),
)
PROGRAMS = st.lists(STEPS, min_size=3, max_size=20).map(lambda parts: list(chain(*parts)))


def run(program):
    """Run a program call by call; returns what is known of its waits, and when each is over.

    Calls are made 10 ns apart; one that asks for a wait returns after 5 ns.
    """
    released = [None] * 4  # when a stream has done all it was given and waited for
    worked = [None] * 4  # when the ops it was given have ended
    records, rows, over = {}, [], []
    for place, (step, stream, number) in enumerate(program):
        now = 10 * place
        if step == "op":
            begun = max(now, released[stream] or 0)
            released[stream] = worked[stream] = begun + number
        elif step == "record":
            records[number] = (stream, place, worked[stream], released[stream])
        else:
            recorder, at, ops_end, done = records.get(number, (None, None, None, None))
            start = max(now + 5, worked[stream] or 0)
            end = None if done is None else max(done, start)
            rows.append((stream, place, recorder, at, ops_end, start))
            over.append(end)
            if end is not None:
                released[stream] = max(end, released[stream] or 0)
    return rows, over


@given(PROGRAMS, st.randoms())
@settings(max_examples=200, deadline=None)
def test_waits_end_as_they_do_when_the_program_is_run_call_by_call(program, random):
    rows, over = run(program)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert ends(*(rows[at] for at in order)) == [over[at] for at in order]
