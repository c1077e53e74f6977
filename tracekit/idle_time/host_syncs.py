"""The host-sync ledger: how long each blocking call held the host, and what idle time it owns."""

import polars as pl

from tracekit.idle_time.blocking import blocking_calls, gap_owners
from tracekit.idle_time.gaps import submitted_ops
from tracekit.idle_time.pieces import blocked_pieces
from tracekit.idle_time.unseen import unseen
from tracekit.intervals import clip, overlapping_host
from tracekit.intervals.matching import nearest
from tracekit.remembered import remembered

OWNED_PARTS = ("blocked", "wake-up", "exposed", "launch")
PART_COLUMNS = {f"{part.replace('-', '_')}_ns": part for part in OWNED_PARTS}

SYNCS = pl.Schema(
    {
        "device_id": pl.Int32(),
        "call_id": pl.Int64(),
        "process_id": pl.Int32(),
        "thread_id": pl.Int64(),
        "start_ns": pl.Int64(),
        "until_ns": pl.Int64(),
        "held_ns": pl.Int64(),
        "owned_ns": pl.Int64(),
        **dict.fromkeys(PART_COLUMNS, pl.Int64()),
    }
)
_THREAD = ["process_id", "thread_id"]


@remembered
def host_syncs(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    marks: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return each call that device work released, once for each device its process uses.

    Args:
        ops: The `ops` table.
        calls: The `calls` table.
        copies: The `copies` table.
        marks: The `marks` table.
        ranges: The `ranges` table.
        windows: One row per device, and the host's.

    Returns:
        `SYNCS`, by start and device: `held_ns`, how much of the call lies in the host window;
        `owned_ns`, the idle time of the device that is `host-blocked` and owned by it, wherever in
        the device's window it lies; `until_ns`, where the last of that ends (null without); and the
        same by part. Only calls that meet the host window or own idle time. The sum of `owned_ns`
        is the whole of `host-blocked` of the idle ledger.
    """
    submitted = submitted_ops(ops, calls)
    blockers = blocking_calls(ops, calls, copies)
    missing = unseen(ops, calls, marks, ranges)
    owners = gap_owners(submitted, calls, blockers, missing).filter(pl.col("owner_call_id") >= 0)
    owned = _owned(blocked_pieces(submitted, calls, ranges, owners, windows, missing))
    devices = submitted.select("process_id", "device_id").unique()
    syncs = (
        _held(blockers, windows)
        .join(devices, on="process_id", nulls_equal=True)
        .join(owned, on=["call_id", "device_id"], how="left", nulls_equal=True)
        .with_columns(pl.col("owned_ns", *PART_COLUMNS).fill_null(0))
        .filter(pl.col("is_inside") | (pl.col("owned_ns") > 0))
        .sort("start_ns", "call_id", "device_id")
    )
    return syncs.select(pl.col(name).cast(dtype) for name, dtype in SYNCS.items())


def _owned(pieces: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end_ns") - pl.col("start_ns")
    return pieces.group_by("device_id", call_id="owner_call_id").agg(
        length.sum().alias("owned_ns"),
        pl.col("end_ns").max().alias("until_ns"),
        *(
            length.filter(pl.col("part") == part).sum().alias(column)
            for column, part in PART_COLUMNS.items()
        ),
    )


def _held(blockers: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with the length inside the host window, and whether any of it is."""
    times = blockers.select("call_id", *_THREAD, "start_ns", "end_ns")
    inside = overlapping_host(times, windows)["call_id"]
    # The host's window is the one without a device.
    on_host = times.with_columns(device_id=pl.lit(None, pl.Int32))
    held = clip(on_host, windows, ["device_id"]).select(
        "call_id", held_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    return times.join(held, on="call_id", how="left").with_columns(
        pl.col("held_ns").fill_null(0), is_inside=pl.col("call_id").is_in(inside.implode())
    )


def by_cycle(syncs: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with the cycle that each begins in, and what would remain of its idle time.

    What would remain if the waits were in-queue, so that a stream waits and the host goes on. Host
    and device are two stages that work side by side; a cycle takes as long as the slower one:

        host    = wall − Σ held    what the host does itself; it only waits for the rest
        device  = wall − Σ owned   busy, and idle for reasons that stay
        cycle   = max(host, device) = wall − min(Σ held, Σ owned)

    so that of the idle time the calls own, `max(0, Σ owned − Σ held)` remains: without the waits
    the host is Σ held further ahead, and a device that is still idle then waits for the host's own
    work. The sums are over the calls of one cycle that own idle time of the device; each call by
    itself would remain too long, since the lead that one gives also covers what the next exposes.

    It assumes a steady state, in which neighbouring cycles are alike; that the host may run ahead
    by a whole cycle; that what is prepared needs nothing that the device only computes (a value
    read back does, unless it is used a step later); and that all the waits of the cycle go. With
    only one of them gone, the host is held by the next for longer. That a wait which is pending in
    one queue may slow the work of others (`queue-waits`) is not in it.

    Args:
        syncs: `host_syncs`.
        cycles: `CYCLES`; not overlapping on one thread.

    Returns:
        `syncs` with `cycle`, the row of `cycles`, null where no cycle of the call's own thread is
        open when it begins; and `remaining_ns`. Of what remains in a cycle, the later calls have as
        much as they own: a lead covers what comes first. Outside cycles each call stands alone.
    """
    opened = (
        cycles.with_row_index("cycle")
        .select(
            *_THREAD,
            pl.col("cycle").cast(pl.Int64),
            opens_ns="start_ns",
            closes_ns="end_ns",
        )
        .sort("opens_ns")
    )
    found = nearest(syncs, opened, left_on="start_ns", right_on="opens_ns", by=_THREAD)
    is_open = pl.col("start_ns") < pl.col("closes_ns")
    found = found.with_columns(cycle=pl.when(is_open).then("cycle")).drop("opens_ns", "closes_ns")
    group = ["device_id", "cycle", pl.when(pl.col("cycle").is_null()).then("call_id")]
    owns = pl.col("owned_ns") > 0
    lead = pl.when(owns).then("held_ns").otherwise(0).sum().over(group)
    reach = pl.col("owned_ns").cum_sum().over(group)
    beyond = (reach - lead).clip(lower_bound=0)
    before = (reach - pl.col("owned_ns") - lead).clip(lower_bound=0)
    return found.with_columns(remaining_ns=beyond - before)
