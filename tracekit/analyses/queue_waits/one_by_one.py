"""The cadence of kernels that the host launched one by one, where the device set it."""

import math

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.queue_waits.pending import EDGE_NS, Lanes
from tracekit.analyses.queue_waits.sides import LATE, WITH, is_held, sides, step_of
from tracekit.api_calls import BLOCKING_KINDS
from tracekit.intervals import union
from tracekit.tables.rows import rows_of, starting_inside

Int64s = npt.NDArray[np.int64]

# Kernels of one name may do more or less work: those before are kept apart by their length, in
# classes as wide as kernels may differ.
CLASS_WIDTH = 0.05
_HASH_SEED = 1
_LANE = ["device_id", "lane_id"]


def one_by_one(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    ranges: pl.DataFrame,
    spells: pl.DataFrame,
    lanes: Lanes,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the dispatches of kernels that follow another kernel of their stream in their lane.

    Both have a recorded launch call of their own. A dispatch counts where the device was behind:
    the call had returned `EDGE_NS` or more before the kernel before ended, so that the kernel was
    in the queue by then. All others are the host's cadence; of them only those with a pending wait
    are returned, as `LATE`. Left out are dispatches in whose cadence a wait may have been pending
    in their own lane, since that holds the queue up itself.

    The position of a dispatch is the name of the kernel before, its own, and the length of the one
    before, which is in its cadence. So sequences may change from step to step.

    A cycle is a marked step. Outside of any, all that is `with` from the beginning of a wait to
    that of the next one on the device is one cycle; what is `without` ends also where a host
    synchronisation returns.

    Args:
        ops: As in the table, in order of start.
        calls: As in the table.
        ranges: Markers `tk1 step` make the steps.
        spells: `pending.spells`.
        lanes: Of the trace.
        windows: A dispatch counts where it starts inside its device's window.

    Returns:
        `device_id`, `lane_id`, `chain` (of both names), `place` (class of length), `cycle`, `side`,
        `cadence_ns`, `kernel_ns` (of the kernel before).
    """
    rows = starting_inside(_pairs(ops, calls, spells, lanes), windows, "start_ns")
    rows = rows.with_columns(sides(rows, spells))
    rows = rows.filter(~is_held(rows, spells), ~pl.col("is_late") | (pl.col("side") == WITH))
    rows = rows.with_columns(_cycles(rows, calls, ranges, spells, lanes))
    length = pl.col("kernel_ns").clip(1).log() / math.log1p(CLASS_WIDTH)
    return rows.with_columns(kernel_ns=pl.col("before_end_ns") - pl.col("before_ns")).select(
        *_LANE,
        "chain",
        "cycle",
        "kernel_ns",
        place=length.cast(pl.UInt32),
        side=pl.when("is_late").then(pl.lit(LATE, pl.Int8)).otherwise("side"),
        cadence_ns=pl.col("start_ns") - pl.col("before_ns"),
    )


def _pairs(
    ops: pl.DataFrame, calls: pl.DataFrame, spells: pl.DataFrame, lanes: Lanes
) -> pl.DataFrame:
    """Return the kernels launched one by one that follow another such kernel of their stream.

    Of those that the host was late with only what may have had a wait pending: the host may be late
    without a wait too, and of that nothing is said.
    """
    called = rows_of(ops["call_id"], calls.select("call_id", asked="kind"), "call_id")
    is_single = (
        ops.select((pl.col("kind") == "kernel") & pl.col("graph_launch_id").is_null()).to_series()
        & (called["asked"] == "launch").fill_null(value=False)
    ).to_numpy()
    placed = ops.select("device_id", lane_id=lanes.lane())
    if not is_single.any():
        # A trace of nothing but graphs is not put in order.
        ops, placed, is_single = ops.clear(), placed.clear(), is_single[:0]
    stream = ops["stream_id"].fill_null(-1).to_numpy()
    this, before = _neighbours(placed)
    is_pair = is_single[this] & is_single[before] & (stream[this] == stream[before])
    rows = _timed(ops, calls, this[is_pair], before[is_pair])
    rows = rows.filter(~pl.col("is_late") | _may_be_with(rows["begun_ns"], spells))
    names = _name_hashes(ops["name"])
    this, before = rows["this"].to_numpy(), rows["before"].to_numpy()
    return pl.concat(
        [
            rows.drop("this", "before"),
            ops.select(pl.col("process_id").gather(this)),
            placed.select(pl.all().gather(this)),
        ],
        how="horizontal",
    ).with_columns(chain=pl.Series(3 * names[before] + names[this], dtype=pl.UInt64))


def _timed(ops: pl.DataFrame, calls: pl.DataFrame, this: Int64s, before: Int64s) -> pl.DataFrame:
    """Return when the host asked for each op and when its dispatch began, behind the op before."""
    call = rows_of(
        ops["call_id"].gather(this),
        calls.select("call_id", "thread_id", called_ns="start_ns", asked_ns="end_ns"),
        "call_id",
    )
    is_late = (pl.col("asked_ns") + EDGE_NS > pl.col("begun_ns")).fill_null(value=True)
    return (
        call.with_columns(
            ops["start_ns"].gather(this),
            this=this,
            before=before,
            before_ns=ops["start_ns"].gather(before),
            before_end_ns=ops["end_ns"].gather(before),
        )
        .with_columns(begun_ns=pl.min_horizontal("before_end_ns", "start_ns"))
        .with_columns(is_late=is_late)
    )


def _may_be_with(begun_ns: pl.Series, spells: pl.DataFrame) -> pl.Series:
    """Return whether a wait was pending anywhere at each time."""
    some = union(spells.filter("is_known"), [])
    opened, over = (
        some[name].search_sorted(begun_ns, side="right") for name in ("start_ns", "end_ns")
    )
    return opened > over


def _neighbours(placed: pl.DataFrame) -> tuple[Int64s, Int64s]:
    """Return the rows of ops that follow another in their lane, and the rows before them."""
    where = placed.with_row_index("row").drop_nulls()
    width = int(where["lane_id"].max() or 0) + 1  # type: ignore[arg-type]
    lane = where.select(pl.col("device_id").cast(pl.Int64) * width + pl.col("lane_id"))
    codes = lane.to_series().to_numpy()
    if len(codes) and codes.max() < 1 << 16:
        # Of 16 bits numpy sorts by counting.
        codes = codes.astype(np.uint16)
    order = np.argsort(codes, kind="stable")
    is_next = codes[order[1:]] == codes[order[:-1]]
    row = where["row"].cast(pl.Int64).to_numpy()[order]
    return row[1:][is_next], row[:-1][is_next]


def _name_hashes(names: pl.Series) -> npt.NDArray[np.uint64]:
    """Return a hash of each name, equal in any trace, worked out once per distinct name."""
    distinct = names.unique().drop_nulls()
    codes = distinct.to_physical().to_numpy()
    # The last is for ops without a name.
    hashes = np.zeros(int(codes.max(initial=0)) + 2, np.uint64)
    hashes[codes] = distinct.cast(pl.String).hash(_HASH_SEED).to_numpy()
    of_names: npt.NDArray[np.uint64] = hashes[
        names.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    ]
    return of_names


def _cycles(
    rows: pl.DataFrame,
    calls: pl.DataFrame,
    ranges: pl.DataFrame,
    spells: pl.DataFrame,
    lanes: Lanes,
) -> pl.Series:
    """Return the cycle of each row: steps have even numbers, others odd ones."""
    syncs = calls.filter(pl.col("kind").is_in(BLOCKING_KINDS)).select("process_id", "end_ns")
    outside = np.zeros(rows.height, np.int64)
    begun, is_with = rows["begun_ns"].to_numpy(), (rows["side"] == WITH).to_numpy()
    for device in rows["device_id"].unique():
        here = (rows["device_id"] == device).to_numpy()
        mine = lanes.devices_of_process.filter(device_id=device).select("process_id")
        waits = np.sort(spells.filter(device_id=device)["start_ns"].to_numpy())
        returns = syncs.join(mine, on="process_id", how="semi")["end_ns"].drop_nulls().to_numpy()
        edges = np.sort(np.concatenate([waits, returns]))
        last = np.searchsorted(edges, begun[here], "right")
        # The cycle of a wait is that of its beginning, whatever the host does until it is over.
        wait = np.searchsorted(waits, begun[here], "right") - 1
        first = np.searchsorted(edges, waits, "right")[wait] if len(waits) else last
        outside[here] = np.where(is_with[here], first, last)
    step = 2 * step_of(rows, ranges)
    return step.fill_null(pl.Series(2 * outside + 1)).alias("cycle")
