"""What a blocking call is, to people: its name, marker and caller, and what it waited for."""

import polars as pl

from tracekit.idle_time.under import innermost_around, without_counters
from tracekit.intervals.matching import nearest

WAITS = ("publish-event", "item", "stream-sync", "device-sync", "copy", "free")
WAIT = pl.Enum(WAITS)

# Operators, and Python frames, that read a value of the device.
_READS_VALUE = (
    r"^aten::(item|_local_scalar_dense|nonzero|is_nonzero)$"
    r"|\.(item|cpu|tolist)\(\)"
    r"|(: |built-in method )(item|cpu|tolist)( of |$)"
)
# Python's name of a built-in method of an object says where that lies, which differs every time.
_PLACE = r" at 0x[0-9A-Fa-f]+"
_BY_KIND = {
    "event_sync": "publish-event",
    "stream_sync": "stream-sync",
    "device_sync": "device-sync",
    "copy": "copy",
    "free": "free",
}
_THREAD = ["process_id", "thread_id"]


def described(call_ids: pl.Series, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return `call_id, call, marker, caller` of some calls.

    Args:
        call_ids: Which; repeated or not.
        calls: The `calls` table.
        ranges: The `ranges` table.

    Returns:
        `call` is the API's name, `marker` the innermost around it with `*` for counting numbers,
        `caller` the innermost Python frame, else operator, without the address of an object.
    """
    some = _calls_of(call_ids, calls)
    found = some.select("call_id", call=pl.col("name").cast(pl.String))
    for kind in ("marker", "frame", "operator"):
        around = innermost_around(some, ranges, [kind]).select(
            "call_id", pl.col("text").alias(kind)
        )
        found = found.join(around, on="call_id", how="left")
    return found.select(
        "call_id",
        "call",
        marker=without_counters(pl.col("marker")),
        caller=pl.coalesce("frame", "operator").str.replace(_PLACE, ""),
    )


def wait_kinds(
    call_ids: pl.Series, calls: pl.DataFrame, copies: pl.DataFrame, ranges: pl.DataFrame
) -> pl.DataFrame:
    """Return `call_id, wait`: what kind of wait some blocking calls are.

    - `item`: the host reads a value of the device. The call copies from device to host, or waits
      for its stream in the operator that began such a copy, or the innermost operator or Python
      frame around it is one that reads a value (`aten::item`, `.cpu()`, `.tolist()`).
    - `publish-event`: it waits for an event that was recorded behind work of the device.
    - `stream-sync`, `device-sync`, `copy`, `free`: what its API does, for all others.

    Args:
        call_ids: Which; repeated or not.
        calls: The `calls` table.
        copies: The `copies` table, for directions.
        ranges: The `ranges` table.

    Cannot tell a value that is read from another use of the same call where the trace has neither
    operators nor the direction of copies.
    """
    some = _calls_of(call_ids, calls)
    to_host = calls.join(
        copies.filter(pl.col("direction") == "device-to-host").select("call_id"),
        on="call_id",
        how="semi",
    )
    operators = innermost_around(some, ranges, ["operator"]).rename({"text": "operator"})
    frames = innermost_around(some, ranges, ["frame"]).select("call_id", frame="text")
    began = to_host.select(*_THREAD, copied_ns="start_ns").sort("copied_ns")
    known = (
        nearest(some.sort("start_ns"), began, left_on="start_ns", right_on="copied_ns", by=_THREAD)
        .join(operators, on="call_id", how="left")
        .join(frames, on="call_id", how="left")
    )
    reads = (
        pl.col("call_id").is_in(to_host["call_id"].implode())
        | pl.col("operator").str.contains(_READS_VALUE)
        | pl.col("frame").str.contains(_READS_VALUE)
        | ((pl.col("kind") == "stream_sync") & (pl.col("copied_ns") >= pl.col("opened_ns")))
    ).fill_null(value=False)
    by_kind = pl.col("kind").cast(pl.String).replace_strict(_BY_KIND, return_dtype=WAIT)
    return known.select(
        "call_id", wait=pl.when(reads).then(pl.lit("item", WAIT)).otherwise(by_kind)
    )


def _calls_of(call_ids: pl.Series, calls: pl.DataFrame) -> pl.DataFrame:
    wanted = calls.filter(pl.col("call_id").is_in(call_ids.unique().implode()))
    return wanted.select("call_id", *_THREAD, "name", "kind", "start_ns")
