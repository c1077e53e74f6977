"""One pass over what a host did, in its order, that says what each piece of work comes after."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt
import polars as pl


class Tie(IntEnum):
    """What an order rests on. Lower ones need no higher one, so the lowest that holds is told."""

    STREAM = 0  # one stream, or the null stream and those that block with it
    RECORDED_EVENT = 1  # the trace says which record a wait is for
    INFERRED_EVENT = 2  # told by the handle in the calls, and by time
    HOST = 3  # the host waited, and submitted the later work afterwards
    ASSUMED = 4  # something that could order them: the trace does not say
    NONE = 5  # nothing does


class Act(IntEnum):
    """One step of the pass; `actor` is a stream or a thread."""

    JOIN = 0  # actor comes after all of `source`, and of it after what is submitted up to `until`
    SAVE = 1  # keep what actor's next work comes after, as the record at this place
    LOAD = 2  # actor comes after the record at the place `source`
    ALL = 3  # actor comes after all that was submitted up to `until`
    ASK = 4  # answer: what does work on `actor`, submitted by the thread `source`, come after?


_Clock = npt.NDArray[np.int32]
# Plain numbers: the pass compares millions of times.
_JOIN, _SAVE, _LOAD, _ASK = (int(act) for act in (Act.JOIN, Act.SAVE, Act.LOAD, Act.ASK))

# Before everything; work submitted before recording began has place -1.
_NOTHING = -2
_ROWS_AT_ONCE = 100_000
ACTS = pl.Schema(
    {
        "place": pl.Int32(),
        "rank": pl.Int8(),
        "act": pl.Int8(),
        "actor": pl.Int32(),
        "source": pl.Int32(),
        "until": pl.Int32(),
        "tie": pl.Int8(),
        "is_last": pl.Boolean(),
    }
)


def answers(
    acts: pl.DataFrame, asked: pl.DataFrame, *, streams: int, actors: int
) -> npt.NDArray[np.int8]:
    """Return the lowest tie on which each earlier work asked about ends before the later starts.

    A vector clock per stream and per thread, with one entry per stream: the place of the last work
    on it that is complete by then. Each is kept once per tie, in which only what rests on this tie
    or a lower one counts, so that one pass answers for all. Work that nothing is asked about and
    that orders nothing takes no step: it follows its stream. Cost: an array operation or two on
    `ties × streams` numbers per act. Memory: the clocks, and those of records still to be loaded.

    Args:
        acts: `ACTS`, by place and rank.
        asked: `earlier_stream, earlier_place`, grouped by later work in the order of the `ASK`
            acts, each of which answers `until` rows.
        streams: How many actors are streams; those come first.
        actors: How many streams and threads there are.
    """
    clocks = np.full((actors, len(Tie) - 1, streams), _NOTHING, np.int32)
    saved: dict[int, _Clock] = {}
    stream_of, place_of = asked["earlier_stream"].to_numpy(), asked["earlier_place"].to_numpy()
    found = np.empty(asked.height, np.int8)
    at = 0
    ordered = acts.sort("place", "rank", maintain_order=True).drop("rank")
    for steps in ordered.iter_slices(_ROWS_AT_ONCE):
        answered = int(steps.filter(pl.col("act") == Act.ASK)["until"].sum())
        some = slice(at, at + answered)
        known = _walked(steps, clocks, saved, stream_of[some])
        # What holds on a tie holds on all higher ones.
        found[some] = (known < place_of[some, np.newaxis]).sum(axis=1)
        at += answered
    return found


def _walked(
    steps: pl.DataFrame, clocks: _Clock, saved: dict[int, _Clock], stream_of: npt.NDArray[np.int32]
) -> _Clock:
    """Take the steps; return per question what is known of the stream it is about, by tie."""
    streams = clocks.shape[2]
    mine_from = [list(clocks[:, tie:]) for tie in range(clocks.shape[1])]
    whole = mine_from[0]
    known = np.empty((len(stream_of), clocks.shape[1]), clocks.dtype)
    at = 0
    asks = stream_of.tolist()
    maximum = np.maximum
    for place, act, actor, source, until, tie, is_last in zip(
        *(column.to_list() for column in steps), strict=True
    ):
        if act == _ASK:
            mine, others = whole[actor], whole[source]
            if until == 1:
                stream = asks[at]
                maximum(mine[:, stream], others[:, stream], out=known[at])
            else:
                some = slice(at, at + until)
                about = stream_of[some]
                known[some] = maximum(mine[:, about], others[:, about]).T
            at += until
        elif act == _JOIN:
            mine = mine_from[tie][actor]
            maximum(mine, mine_from[tie][source], out=mine)
            if source < streams:
                column = mine[:, source]
                if until >= place:  # nothing known is later
                    column[:] = until
                else:
                    maximum(column, until, out=column)
        elif act == _LOAD:
            kept = saved.pop(source) if is_last else saved[source]
            mine = mine_from[tie][actor]
            maximum(mine, kept[tie:], out=mine)
        elif act == _SAVE:
            saved[place] = kept = whole[actor].copy()
            kept[:, actor] = place
        else:
            mine = mine_from[tie][actor]
            maximum(mine, until, out=mine)
    return known
