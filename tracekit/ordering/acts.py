"""From what the host did to the steps of the pass: what each call makes come after what."""

from collections.abc import Sequence

import polars as pl

from tracekit.ordering.calls import SUBMITS
from tracekit.ordering.null_stream import fences, null_syncs
from tracekit.ordering.sweep import ACTS, Act, Tie

_LAUNCHES = ("launch", "graph_launch")
# Of several steps at one place, in this order: what a thread may know of others, what the null
# stream's rules order, the question, then what the call itself does and what its return tells.
_KNOWN, _FENCED, _ASKED, _CALLED, _RECORDED, _RETURNED, _TOLD, _FOLDED = range(8)


def acts_of(
    host: pl.DataFrame,
    asks: pl.DataFrame,
    streams: pl.DataFrame,
    *,
    anyone: int,
    num_devices: int,
) -> pl.DataFrame:
    """Return the steps of one process as `sweep.ACTS`.

    Args:
        host: `host_calls` of one process, with `stream` and `thread`, the numbers of actors (null
            for a stream that is not known), `has_record` (its record and the record's stream are
            known) and `is_paired` (it is the record of some wait).
        asks: `place, stream, thread, count`: what is asked, at which place.
        streams: `stream, flags` of its streams.
        anyone: A further actor: what is assumed of all threads and streams.
        num_devices: How many devices its work ran on.
    """
    # Most calls launch, and a launch that nobody asks about only follows its stream.
    others = host.filter(~pl.col("kind").is_in(_LAUNCHES))
    parts = [
        _null_stream(host, streams),
        _events(others),
        _host_waits(others, num_devices=num_devices),
        _copies(others),
        _unknowns(others, anyone),
        asks.select(
            "place",
            actor="stream",
            source="thread",
            until="count",
            rank=pl.lit(_ASKED),
            act=pl.lit(Act.ASK),
        ),
        _folds(host),
    ]
    acts = pl.concat([_conformed(part) for part in parts])
    return pl.concat([acts, _assumptions(acts, host, anyone)])


def _conformed(part: pl.DataFrame) -> pl.DataFrame:
    return part.select(
        (pl.col(name) if name in part.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in ACTS.items()
    ).with_columns(pl.col("is_last").fill_null(value=False), pl.col("tie").fill_null(0))


def _step(act: Act, rank: int, tie: Tie | pl.Expr) -> dict[str, pl.Expr]:
    tie = tie if isinstance(tie, pl.Expr) else pl.lit(int(tie))
    return {"act": pl.lit(int(act)), "rank": pl.lit(rank), "tie": tie}


def _null_stream(host: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    if not (streams["flags"] == "null").any():
        return pl.DataFrame(schema=ACTS)
    submits = pl.col("kind").is_in(SUBMITS) & pl.col("stream").is_not_null()
    placed = host.select(pl.col("place").cast(pl.Int32), "kind", "stream", "thread")
    queued = placed.filter(submits).select("place", "stream")
    waited = placed.filter(pl.col("kind") == "stream_sync").join(
        streams.filter(flags="null"), on="stream", how="semi", maintain_order="left"
    )
    fenced = fences(queued, streams).with_columns(**_step(Act.JOIN, _FENCED, pl.col("tie")))
    synced = null_syncs(waited.select("place", "thread", "stream"), queued, streams)
    returned = synced.with_columns(**_step(Act.JOIN, _RETURNED, pl.col("tie")))
    return pl.concat([_conformed(fenced), _conformed(returned)])


def _events(host: pl.DataFrame) -> pl.DataFrame:
    """Records keep what their stream has come to; waits and syncs take it over."""
    waiting = host.filter(pl.col("record_place").is_not_null())
    records = host.filter(
        pl.col("place").is_in(waiting["record_place"].unique().implode()),
        pl.col("stream").is_not_null(),
    )
    waiting = waiting.filter(pl.col("record_place").is_in(records["place"].implode()))
    in_stream = pl.col("kind") == "event_wait"
    told = (
        pl.when("is_recorded")
        .then(pl.lit(int(Tie.RECORDED_EVENT)))
        .otherwise(pl.lit(int(Tie.INFERRED_EVENT)))
    )
    tie = (
        pl.when(in_stream)
        .then(told)
        .when(pl.col("kind") == "event_sync")
        .then(pl.lit(int(Tie.HOST)))
        .otherwise(pl.lit(int(Tie.ASSUMED)))
    )
    loads = waiting.filter(~in_stream | pl.col("stream").is_not_null()).select(
        "place",
        source="record_place",
        actor=pl.when(in_stream).then("stream").otherwise("thread"),
        is_last=pl.col("record_place").is_last_distinct(),
        **_step(Act.LOAD, _CALLED, tie),
    )
    kept = records.filter(pl.col("place").is_in(loads["source"].implode()))
    of_thread = kept.select(
        "place",
        actor="stream",
        source="thread",
        until=pl.lit(-1),
        **_step(Act.JOIN, _CALLED, Tie.STREAM),
    )
    saves = kept.select("place", actor="stream", **_step(Act.SAVE, _RECORDED, Tie.STREAM))
    return pl.concat(
        [_conformed(part) for part in (loads, of_thread, saves, _handed(waiting, records))]
    )


def _handed(waiting: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return what a thread knows by an event of another, where markers name it on both sides.

    Whoever waits for an event that another thread has recorded has been told that it has, so what
    the other thread had waited for before is done.
    """
    others = records.select(record_place="place", other="stream", other_thread="thread")
    handed = waiting.filter(pl.col("is_recorded"), pl.col("kind") == "event_wait").join(
        others, on="record_place", how="inner"
    )
    handed = handed.filter(pl.col("thread") != pl.col("other_thread"))
    return handed.select(
        "place",
        actor="thread",
        source="other_thread",
        until=pl.lit(-1),
        **_step(Act.JOIN, _CALLED, Tie.HOST),
    )


def _host_waits(host: pl.DataFrame, *, num_devices: int) -> pl.DataFrame:
    """A stream or device that the host has waited for is done when the call returns.

    Of several devices the trace does not say which one a device sync is for.
    """
    asked = pl.col("kind") == "stream_sync"
    own = host.filter(asked, pl.col("stream").is_not_null()).select(
        "place",
        actor="thread",
        source="stream",
        until="place",
        **_step(Act.JOIN, _RETURNED, Tie.HOST),
    )
    whole = host.filter(pl.col("kind") == "device_sync").select(
        "place",
        actor="thread",
        until="place",
        **_step(Act.ALL, _RETURNED, Tie.HOST if num_devices <= 1 else Tie.ASSUMED),
    )
    return pl.concat([_conformed(part) for part in (own, whole)])


def _copies(host: pl.DataFrame) -> pl.DataFrame:
    """A blocking copy is done when its call returns, and so is one to pageable memory.

    Where the trace does not say whether the host's side is pageable, or a plain copy stays within
    a device, it is assumed. An asynchronous copy to a device is never done by then.
    Source: HIP and CUDA runtime API, "API synchronization behavior".
    """
    direction = pl.col("direction").cast(pl.String)
    within = direction.is_in(["host-to-device", "device-to-device"]).fill_null(value=False)
    may_hold = ~pl.col("is_async") | (~within & ~pl.col("is_pinned").fill_null(value=False))
    to_pageable = (direction == "device-to-host") & ~pl.col("is_pinned")
    holds = (pl.col("is_blocking") | to_pageable).fill_null(value=False)
    copied = host.filter(pl.col("kind") == "copy", pl.col("stream").is_not_null(), holds | may_hold)
    tie = pl.when(holds).then(pl.lit(int(Tie.HOST))).otherwise(pl.lit(int(Tie.ASSUMED)))
    return copied.select(
        "place",
        actor="thread",
        source="stream",
        until="place",
        **_step(Act.JOIN, _RETURNED, tie),
    )


def _unknowns(host: pl.DataFrame, anyone: int) -> pl.DataFrame:
    """What may have ordered everything before it with everything after it.

    An event that was recorded before recording began orders only what was submitted before, too.
    """
    kind = pl.col("kind")
    waits = kind.is_in(["event_wait", "event_sync", "event_query"]) & ~pl.col("has_record")
    nameless = (kind == "event_record") & pl.col("event_key").is_null() & ~pl.col("is_paired")
    nowhere = pl.col("stream").is_null() & kind.is_in(
        ["event_wait", "event_record", "stream_sync", "copy"]
    )
    others = kind.is_in(["free", "callback", "lost", "stream_value"])
    until = pl.when(waits & pl.col("is_early")).then(-1).otherwise("place")
    return host.filter(waits | nameless | nowhere | others).select(
        "place",
        actor=pl.lit(anyone),
        until=pl.when(others | nameless | nowhere).then("place").otherwise(until),
        **_step(Act.ALL, _RETURNED, Tie.ASSUMED),
    )


def _folds(host: pl.DataFrame) -> pl.DataFrame:
    """Where another thread takes a stream over, what the first one had waited for goes with it."""
    if host["thread"].n_unique() <= 1:
        return pl.DataFrame(schema=ACTS)
    touched = host.filter(pl.col("stream").is_not_null())
    following = pl.col("thread").shift(-1).over("stream")
    return touched.filter(following != pl.col("thread"), pl.col("kind").is_in(SUBMITS)).select(
        "place",
        actor="stream",
        source="thread",
        until=pl.lit(-1),
        **_step(Act.JOIN, _FOLDED, Tie.STREAM),
    )


def _assumptions(acts: pl.DataFrame, host: pl.DataFrame, anyone: int) -> pl.DataFrame:
    """What one thread has waited for, all may know: assumed, in the order in which it was.

    Needed only where there is more than one thread, or something unknown.
    """
    threads = host["thread"].unique()
    if threads.len() == 1 and not (acts["actor"] == anyone).any():
        return acts.clear()
    of_others = acts.filter(pl.col("actor") != anyone)
    returned = of_others.filter(rank=_RETURNED).select("place", thread="actor", tells=True)
    needing: Sequence[int] = (Act.ASK, Act.JOIN, Act.SAVE)
    needed = of_others.filter(pl.col("act").is_in(needing)).select("place").unique()
    asking = needed.join(host.select("place", "thread"), on="place").with_columns(tells=False)
    # What a thread tells while no other does anything is told at once, and learnt once.
    turns = pl.concat([asking, returned.unique()]).sort("place", "tells")
    turns = turns.with_columns(turn=pl.col("thread").rle_id())
    told = turns.filter("tells", threads.len() > 1).unique("turn", keep="last", maintain_order=True)
    tells = told.select(
        "place",
        source="thread",
        actor=pl.lit(anyone),
        until=pl.lit(-1),
        **_step(Act.JOIN, _TOLD, Tie.ASSUMED),
    )
    changes = pl.concat([told["place"], acts.filter(actor=anyone)["place"]]).unique().sort()
    news = changes.search_sorted(turns["place"])
    first = turns.with_columns(news=news).filter(~pl.col("tells"), pl.col("news") > 0)
    learns = first.unique(["thread", "news"], keep="first").select(
        "place",
        actor="thread",
        source=pl.lit(anyone),
        until=pl.lit(-1),
        **_step(Act.JOIN, _KNOWN, Tie.ASSUMED),
    )
    return pl.concat([_conformed(tells), _conformed(learns)])
