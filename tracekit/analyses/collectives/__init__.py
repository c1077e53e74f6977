"""collectives: how long ranks waited for each other in collectives, and who came last."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.analyses.collectives.kernels import SORTS
from tracekit.analyses.collectives.matches import KEY, MATCHED_BY, MIN_RANKS, matched_ops
from tracekit.tables import Column, Table, enum_column, id_column, text_column
from tracekit.tables.notes import Note, Severity
from tracekit.tables.rows import starting_inside
from tracekit.units import Unit

# Fewer collectives than this say nothing about who comes last, or by how much.
MIN_MATCHED = 5
CLOCKS = ("one-clock", "durations")
# Whoever sends in these need not wait for the others, and may be done before they come.
ROOTED = ("broadcast", "reduce")
# Taken for exchanges in which all wait for all, which they need not be.
UNSURE = ("send-recv", "other")
_CLAIM = f"null below {MIN_MATCHED} matched and for {' and '.join(ROOTED)}"

COLLECTIVES = Table(
    "collectives",
    "one sort of collective of one group of ranks, in one class of size",
    (
        enum_column("collective", SORTS, "What it does; other where only NCCL or RCCL is known."),
        text_column("name", "Kernel; null where recorded messages tell collectives apart."),
        text_column("group", "Process group and its ranks; null without messages."),
        Column(
            "size_class_bytes",
            pl.Int64(),
            "Messages up to this, and more than half of it; null where not recorded.",
            Unit.BYTES,
        ),
        enum_column(
            "matched_by",
            MATCHED_BY,
            "How the kernels of a collective were found to be one: by number, or by order.",
        ),
        Column("ops", pl.Int64(), "Kernels of all ranks.", Unit.COUNT),
        Column("ops_unmatched", pl.Int64(), "Of them, in no matched collective.", Unit.COUNT),
        Column("matched", pl.Int64(), "Collectives found on all ranks.", Unit.COUNT),
        Column("ranks", pl.Int64(), "Ranks in the trace that take part.", Unit.COUNT),
        Column("group_size", pl.Int64(), "Ranks of the group, where recorded.", Unit.COUNT),
        Column("duration_median_ns", pl.Float64(), "Median kernel length.", Unit.DURATION),
        enum_column(
            "measured_by",
            CLOCKS,
            "Who waited how long: by starts on one clock, or by lengths, all ending at once.",
        ),
        Column(
            "skew_median_ns",
            pl.Float64(),
            f"Median of the longest wait in a collective; {_CLAIM}.",
            Unit.DURATION,
        ),
        Column("skew_p90_ns", pl.Float64(), "90th percentile of it.", Unit.DURATION),
        Column("waiting_ns", pl.Int64(), "Waits of all ranks, summed.", Unit.DURATION),
        Column("waiting_share", pl.Float64(), "Of the matched kernels' time.", Unit.SHARE),
        Column("straggler_rank", pl.Int64(), f"Rank most often last; {_CLAIM}, or if equal."),
        id_column("straggler_process_id", "process", "Its process.", narrow=True),
        id_column("straggler_device_id", "device", "Its device.", narrow=True),
        Column("straggler_last", pl.Int64(), "In how many of matched it was last.", Unit.COUNT),
    ),
    answers=("matched", "skew_median_ns", "waiting_share", "straggler_rank", "straggler_last"),
)
_ROW = ["collective", "name", "group", "size_class_bytes", "matched_by"]
_ONE = [*KEY, "turn"]
_LENGTH = pl.col("end_ns") - pl.col("start_ns")
_CLAIMED = [
    "skew_median_ns",
    "skew_p90_ns",
    "waiting_ns",
    "waiting_share",
    "straggler_rank",
    "straggler_process_id",
    "straggler_device_id",
    "straggler_last",
]


def collectives(
    ops: pl.DataFrame,
    processes: pl.DataFrame,
    streams: pl.DataFrame,
    messages: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return how long ranks waited for each other, by sort of collective and size of message.

    A collective ends on all ranks at nearly the same moment, since none can finish before the last
    has come (15 all-reduces of four MI300X with one clock: starts up to 11.7 ms apart, ends at most
    24 µs). Of a broadcast or a reduce that is not true, and nothing is claimed of them. Clocks of
    several files or machines are not comparable, so by `durations` the rank with the shortest
    kernel came last, and each other waited for as long as its own kernel lasted longer. On
    `one-clock` (all ranks of one file or one machine, and every collective overlaps on all its
    ranks) the rank that started last came last, and each other waited from its own start until
    then. Where two came last at once, nobody did.

    Args:
        ops: The `ops` table.
        processes: `process_id, rank, node, source`.
        streams: `stream_id, handle`.
        messages: The `messages` table.
        windows: One row per device; collectives of which every kernel starts inside count.

    Returns:
        `COLLECTIVES`, by time waited, then by sort, group, size and name. How kernels are matched:
        `matches.matched_ops`.

    Cannot tell skew among ranks that are not in the trace: a wait for one of those is in every
    length, and the wait shown is a lower bound. Without messages all ranks that run a kernel count
    as one group. A rank that was slow within the collective, or a slow link, looks like one that
    came early.
    """
    found = _sized(matched_ops(ops, streams, messages))
    inside = starting_inside(found, windows, "start_ns")["op_id"]
    found = found.with_columns(is_inside=pl.col("op_id").is_in(inside.implode()))
    is_whole = pl.col("is_inside").all().over(_ONE) & pl.col("is_matched")
    found = found.with_columns(is_whole=is_whole).filter("is_inside")
    if found.is_empty():
        return COLLECTIVES.empty()
    rows = _rows(found, processes).sort(
        -pl.col("waiting_ns"),
        "collective",
        "group",
        "size_class_bytes",
        "name",
        "matched_by",
        nulls_last=True,
    )
    return COLLECTIVES.conform(rows)


def _rows(found: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """Return the result in no order, from collectives of which `is_whole` says which count."""
    whole = found.filter("is_whole").join(
        processes.select("process_id", "rank", "node", "source"), on="process_id", how="left"
    )
    waited = _waited(whole)
    may_claim = (pl.col("matched") >= MIN_MATCHED) & ~pl.col("collective").is_in(ROOTED)
    return (
        found.group_by(_ROW)
        .agg(
            ops=pl.len(),
            ops_unmatched=(~pl.col("is_whole")).sum(),
            ranks=pl.struct("process_id", "device_id").n_unique(),
            group_size=pl.col("group_size").max(),
            duration_median_ns=_LENGTH.median(),
        )
        .join(_skews(waited), on=_ROW, how="left", nulls_equal=True)
        .join(_stragglers(waited), on=_ROW, how="left", nulls_equal=True)
        .with_columns(pl.col("matched").fill_null(0))
        .with_columns(pl.when(may_claim).then(pl.col(_CLAIMED)))
    )


def _sized(found: pl.DataFrame) -> pl.DataFrame:
    """Add the class of each collective's largest message: the power of two at or above it."""
    size = pl.col("message_bytes").max().over(_ONE)
    # Whole numbers all the way: the logarithm of a float would misplace powers of two.
    below = (size - 1).clip(lower_bound=0).cast(pl.UInt64)
    shift = 64 - below.bitwise_leading_zeros().cast(pl.Int64)
    power = pl.lit(2, pl.Int64).pow(shift).cast(pl.Int64)
    return found.with_columns(size_class_bytes=pl.when(size > 0).then(power).otherwise(size))


def _waited(whole: pl.DataFrame) -> pl.DataFrame:
    """Return the matched kernels with `wait_ns`, `measured_by` and `is_last` within each."""
    one_node = (pl.col("node").n_unique() == 1) & pl.col("node").is_not_null().all()
    has_one_clock = (pl.col("source").n_unique() == 1) & pl.col("source").is_not_null().all()
    last_start = pl.col("start_ns").max().over(_ONE)
    overlaps = last_start <= pl.col("end_ns").min().over(_ONE)
    by_clock = (has_one_clock | one_node).over(_ROW) & overlaps.all().over(_ROW)
    by_start = last_start - pl.col("start_ns")
    by_length = _LENGTH - _LENGTH.min().over(_ONE)
    clocks = pl.Enum(CLOCKS)
    return (
        whole.with_columns(last_start=last_start, overlaps=overlaps)
        .with_columns(by_clock=by_clock)
        .with_columns(
            measured_by=pl.when("by_clock")
            .then(pl.lit(CLOCKS[0], clocks))
            .otherwise(pl.lit(CLOCKS[1], clocks)),
            wait_ns=pl.when("by_clock").then(by_start).otherwise(by_length),
        )
        .with_columns(is_last=pl.col("wait_ns") == 0)
        .with_columns(is_last=pl.col("is_last") & (pl.col("is_last").sum().over(_ONE) == 1))
    )


def _skews(waited: pl.DataFrame) -> pl.DataFrame:
    each = waited.group_by(_ROW + [name for name in _ONE if name not in _ROW]).agg(
        pl.col("measured_by").first(),
        skew_ns=pl.col("wait_ns").max(),
        wait_ns=pl.col("wait_ns").sum(),
        length_ns=_LENGTH.sum(),
    )
    return each.group_by(_ROW).agg(
        pl.col("measured_by").first(),
        matched=pl.len(),
        skew_median_ns=pl.col("skew_ns").median(),
        skew_p90_ns=pl.col("skew_ns").quantile(0.9, "linear"),
        waiting_ns=pl.col("wait_ns").sum(),
        waiting_share=pl.when(pl.col("length_ns").sum() > 0).then(
            pl.col("wait_ns").sum() / pl.col("length_ns").sum()
        ),
    )


def _stragglers(waited: pl.DataFrame) -> pl.DataFrame:
    """Return the rank that was last most often, where one was."""
    times = (
        waited.filter("is_last")
        .group_by(*_ROW, "process_id", "device_id")
        .agg(pl.len().cast(pl.Int64).alias("straggler_last"), pl.col("rank").first())
    )
    most = pl.col("straggler_last") == pl.col("straggler_last").max().over(_ROW)
    top = times.filter(most)
    return top.filter(pl.len().over(_ROW) == 1).select(
        *_ROW,
        "straggler_last",
        straggler_rank="rank",
        straggler_process_id="process_id",
        straggler_device_id="device_id",
    )


def caveats(
    ops: pl.DataFrame, streams: pl.DataFrame, messages: pl.DataFrame, processes: pl.DataFrame
) -> list[Note]:
    """Say what was not matched, what was matched by order only, and that clocks differ."""
    found = matched_ops(ops, streams, messages)
    if found.is_empty():
        return []
    rank = pl.struct("process_id", "device_id")
    if found.select(rank.n_unique()).item() < MIN_RANKS:
        return [_note("one-rank", 1)]
    matched = found.filter("is_matched")
    is_alone = rank.n_unique().over("group") < pl.col("group_size")
    counts = {
        "unmatched": found.height - matched.height,
        "by-order": matched.filter(pl.col("matched_by") != "sequence").height,
        "unsure": matched.filter(pl.col("collective").is_in(UNSURE)).height,
        "clocks": int(matched.height > 0 and processes["source"].n_unique() > 1),
        "ranks-missing": matched.filter(pl.col("group").is_not_null() & is_alone).height,
    }
    return [_note(problem, count) for problem, count in counts.items() if count]


_NOTES = {
    "one-rank": (
        Severity.INFO,
        "Collectives of one rank show no skew: name the traces of several ranks together "
        "(tracekit report RANK0 RANK1 …).",
    ),
    "unmatched": (
        Severity.NOTICE,
        "Kernels of collectives could not be matched between ranks: the ranks have different "
        "numbers of them, or only one rank has any.",
    ),
    "by-order": (
        Severity.INFO,
        "Kernels were matched between ranks by their order, since no sequence number is recorded; "
        "if recording began at another collective on each rank, skew is wrong.",
    ),
    "unsure": (
        Severity.INFO,
        f"Kernels of sort {' or '.join(UNSURE)} count as exchanges in which all ranks wait for "
        "all; broadcasts, or sends along a pipeline, would be misread.",
    ),
    "clocks": (
        Severity.INFO,
        "Clocks of several files cannot be compared, unless of one machine: waits are worked out "
        "from lengths, since a collective ends on all ranks at about the same moment.",
    ),
    "ranks-missing": (
        Severity.NOTICE,
        "Not all ranks of a group are in the trace: the straggler is the last of those that are, "
        "and all may have waited for another.",
    ),
}


def _note(problem: str, count: int) -> Note:
    severity, message = _NOTES[problem]
    return Note(f"collectives.{problem}", severity, message, count)


ANALYSIS = Analysis(
    name="collectives",
    question="How long do ranks wait for each other in collectives, and which rank comes last?",
    table=COLLECTIVES,
    compute=collectives,
    caveats=caveats,
)
