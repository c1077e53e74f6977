"""What a pending wait costs: dispatches at the same position with one and without."""

from collections.abc import Iterator

import polars as pl

from tracekit.analyses.queue_waits.dispatches import Dispatches
from tracekit.analyses.queue_waits.resampling import cost, ends_of
from tracekit.analyses.queue_waits.sides import LATE, OPEN, WITH, WITHOUT
from tracekit.bootstrap import MIN_VALUES

# Fewer on either side give no figure.
MIN_DISPATCHES = 50
MIN_CYCLES = MIN_VALUES
# What is compared has to be most of what had a wait pending: the first positions of a graph, at
# which its wait is not there yet, say nothing about the others.
MIN_COMPARED_SHARE = 0.5
# A pending wait delays dispatches and leaves kernels as they are. Where the kernels themselves
# differ by more than this share, something else differs too (shapes, clocks, contention).
MAX_KERNEL_DIFFERENCE = 0.05
# Of kernels launched one by one a position with fewer on either side is left out. Their positions
# come and go, where those of a graph are all in each of its launches.
MIN_AT_POSITION = 5
REASONS = (
    "one-sided",
    "too-few",
    "kernels-differ",
    "waits-unknown",
    "not-in-other",
    "host-limited",
)
_POSITION = ["graph", "chain", "place"]
_COUNTS = (
    "dispatches_with",
    "dispatches_without",
    "dispatches_open",
    "dispatches_late",
    "cycles_with",
    "cycles_without",
    "dispatches_paired",
    "dispatches_differing",
    "dispatches_compared",
    "cycles_compared",
)


def compared(own: Dispatches, other: Dispatches | None = None) -> pl.DataFrame:
    """Return, per graph or lane of single kernels that had a wait pending, what the wait cost.

    Each dispatch is held against the usual cadence of its position, the median without a pending
    wait, so that it does not matter which kernels happened to run while one was pending. Per cycle
    and side the sums give a ratio and a difference per dispatch; what `resampling.cost` makes of
    them is the figure. There is none, but a `reason`, where one side is missing or below the stated
    minimum, or where the kernels themselves differ.

    Args:
        own: Of the trace.
        other: Where the side without comes from; None for the trace itself. Its graph is the one
            with equal kernels in equal lanes; of several the one whose kernels take the most
            nearly equal time, since exec ids differ and batch sizes may share all names. Its lane
            of single kernels is the one with the most dispatches at the same positions.

    Returns:
        One row per graph or lane with dispatches `with` or `late`, or with half or more of them
        open.
    """
    here = _counts(own.rows).filter(
        (pl.col("dispatches_with") + pl.col("dispatches_late") > 0)
        | (2 * pl.col("dispatches_open") >= pl.col("dispatches"))
    )
    rows = own.rows.filter(pl.col("graph").is_in(here["graph"].implode()))
    base = (rows if other is None else _matched(own, other, here)).filter(pl.col("side") == WITHOUT)
    pending = rows.filter(pl.col("side") == WITH)
    singles = own.graphs.filter(pl.col("scope") == "kernels")["graph"].implode()
    is_single = pl.col("graph").is_in(singles)
    paired = _paired(pending.filter(is_single), base.filter(is_single))
    pending = pending.join(_usual(base, pending, is_single), on=_POSITION)
    # The side without counts at the same positions only.
    usual = pending.unique(_POSITION).select(*_POSITION, "usual_ns", "usual_kernel_ns")
    base = base.join(usual, on=_POSITION)
    counts = _sided(here, base, pending, paired)
    figures = list(_figures(counts, pending, base, is_joint=other is None))
    return counts.join(
        pl.DataFrame(figures, schema=FIGURES), on="graph", how="left", maintain_order="left"
    )


def _usual(base: pl.DataFrame, pending: pl.DataFrame, is_single: pl.Expr) -> pl.DataFrame:
    """Return the usual cadence of each position, and how long its kernel is then."""
    rare = pending.group_by(_POSITION).len().filter(is_single, pl.col("len") < MIN_AT_POSITION)
    return (
        base.group_by(_POSITION)
        .agg(
            usual_ns=pl.col("cadence_ns").median(),
            usual_kernel_ns=pl.col("kernel_ns").median(),
            given=pl.len(),
        )
        .filter(
            pl.col("usual_ns") > 0,
            pl.col("usual_kernel_ns") > 0,
            ~is_single | (pl.col("given") >= MIN_AT_POSITION),
        )
        .drop("given")
        .join(rare, on=_POSITION, how="anti")
    )


FIGURES = pl.Schema(
    {
        "graph": pl.get_index_type(),
        "reason": pl.String(),
        "with_median_ns": pl.Float64(),
        "without_median_ns": pl.Float64(),
        "kernel_ratio": pl.Float64(),
        **{
            name: pl.Float64()
            for figure in ("ratio", "added_per_dispatch_ns", "added_per_cycle_ns")
            for name in (figure, *ends_of(figure))
        },
        "added_ns": pl.Float64(),
    }
)


def _counts(rows: pl.DataFrame) -> pl.DataFrame:
    def dispatches(side: int) -> pl.Expr:
        return (pl.col("side") == side).sum().cast(pl.Int64)

    def cycles(side: int) -> pl.Expr:
        return pl.col("cycle").filter(pl.col("side") == side).n_unique().cast(pl.Int64)

    return rows.group_by("graph", maintain_order=True).agg(
        dispatches=pl.len().cast(pl.Int64),
        dispatches_with=dispatches(WITH),
        dispatches_without=dispatches(WITHOUT),
        dispatches_open=dispatches(OPEN),
        dispatches_late=dispatches(LATE),
        cycles_with=cycles(WITH),
        cycles_without=cycles(WITHOUT),
    )


def _matched(own: Dispatches, other: Dispatches, here: pl.DataFrame) -> pl.DataFrame:
    """Return the other trace's rows, as those of this trace's graphs that they are the same as."""
    mine = own.graphs.join(here.select("graph"), on="graph", how="semi")
    theirs = other.graphs.select("signature", other="graph", other_kernel_ns="kernel_ns")
    apart = (pl.col("other_kernel_ns") - pl.col("kernel_ns")).abs()
    pairs = (
        mine.select("graph", "signature", "kernel_ns")
        .join(theirs, on="signature")
        .sort("graph", apart, "other")
        .unique("graph", keep="first", maintain_order=True)
        .select("graph", "other")
    )
    pairs = pl.concat([pairs, _matched_lanes(own, other)])
    return other.rows.rename({"graph": "other"}).join(pairs, on="other").drop("other")


def _matched_lanes(own: Dispatches, other: Dispatches) -> pl.DataFrame:
    """Return, by lane of single kernels, the other's lane with most dispatches at its positions."""
    mine, theirs = (
        trace.rows.filter(pl.col("side") == side)
        .join(trace.graphs.filter(pl.col("scope") == "kernels"), on="graph", how="semi")
        .group_by(_POSITION)
        .len(name)
        for trace, side, name in ((own, WITH, "mine"), (other, WITHOUT, "theirs"))
    )
    shared = mine.join(theirs.rename({"graph": "other"}), on=["chain", "place"])
    return (
        shared.group_by("graph", "other")
        .agg(pl.min_horizontal("mine", "theirs").sum().alias("shared"))
        .sort("graph", -pl.col("shared").cast(pl.Int64), "other")
        .unique("graph", keep="first", maintain_order=True)
        .select("graph", "other")
    )


def _paired(pending: pl.DataFrame, base: pl.DataFrame) -> pl.DataFrame:
    """Return how many dispatches of a lane are seen without too, after kernels of any length.

    Differing are those of them after kernels whose usual length is another without.
    """
    chain = ["graph", "chain"]
    usual = base.group_by(chain).agg(other_ns=pl.col("kernel_ns").median())
    seen = (
        pending.group_by(chain)
        .agg(dispatches=pl.len().cast(pl.Int64), usual_ns=pl.col("kernel_ns").median())
        .join(usual, on=chain)
    )
    apart = (pl.col("usual_ns") / pl.col("other_ns") - 1).abs()
    differing = pl.col("dispatches").filter(apart > MAX_KERNEL_DIFFERENCE)
    return seen.group_by("graph").agg(
        dispatches_paired=pl.col("dispatches").sum(), dispatches_differing=differing.sum()
    )


def _sided(
    here: pl.DataFrame, base: pl.DataFrame, pending: pl.DataFrame, paired: pl.DataFrame
) -> pl.DataFrame:
    """Return the counts with those of what is compared, from wherever the side without comes."""
    both = pending.group_by("graph").agg(
        dispatches_compared=pl.len().cast(pl.Int64),
        cycles_compared=pl.col("cycle").n_unique().cast(pl.Int64),
    )
    given = _counts(base).select("graph", "dispatches_without", "cycles_without")
    counts = here.drop("dispatches_without", "cycles_without")
    for found in (given, both, paired):
        counts = counts.join(found, on="graph", how="left", maintain_order="left")
    return counts.select("graph", pl.col(_COUNTS).fill_null(0))


def _figures(
    counts: pl.DataFrame, pending: pl.DataFrame, base: pl.DataFrame, *, is_joint: bool
) -> Iterator[dict[str, object]]:
    """Yield the figures of each graph, or why there are none."""
    sums = {WITH: _by_cycle(pending), WITHOUT: _by_cycle(base)}
    medians = {
        side: dict(rows.group_by("graph").agg(pl.col("cadence_ns").median()).iter_rows())
        for side, rows in ((WITH, pending), (WITHOUT, base))
    }
    for row in counts.iter_rows(named=True):
        graph = row["graph"]
        found: dict[str, object] = {"graph": graph, "reason": _reason(row, is_joint=is_joint)}
        if found["reason"] is None:
            with_cycles, without_cycles = (
                sums[side].filter(pl.col("graph") == graph) for side in (WITH, WITHOUT)
            )
            figures = cost(with_cycles, without_cycles, is_joint=is_joint)
            found["kernel_ratio"] = figures["kernel_ratio"]
            found["with_median_ns"] = medians[WITH][graph]
            found["without_median_ns"] = medians[WITHOUT][graph]
            if abs(figures["kernel_ratio"] - 1) > MAX_KERNEL_DIFFERENCE:
                found["reason"] = "kernels-differ"
            else:
                added_ns = figures["added_per_dispatch_ns"] * row["dispatches_compared"]
                found |= {**figures, "added_ns": added_ns}
        yield found


def _by_cycle(rows: pl.DataFrame) -> pl.DataFrame:
    return (
        rows.group_by("graph", "cycle")
        .agg(
            dispatches=pl.len(),
            spent_ns=pl.col("cadence_ns").sum(),
            usual_ns=pl.col("usual_ns").sum(),
            kernel_ns=pl.col("kernel_ns").sum(),
            usual_kernel_ns=pl.col("usual_kernel_ns").sum(),
        )
        .sort("graph", "cycle")
    )


def _reason(row: dict[str, int], *, is_joint: bool) -> str | None:
    """Return why there is no figure: too much host, or else what the counts lack."""
    reason = _lack(row, is_joint=is_joint)
    is_late = row["dispatches_late"] > max(row["dispatches_with"], row["dispatches_open"])
    return "host-limited" if reason is not None and is_late else reason


def _lack(row: dict[str, int], *, is_joint: bool) -> str | None:
    pending, without = row["dispatches_with"], row["dispatches_without"]
    most = MIN_COMPARED_SHARE * pending
    if row["dispatches_open"] > pending:
        return "waits-unknown"
    if pending < MIN_DISPATCHES:
        return "too-few"
    if row["dispatches_compared"] < most and row["dispatches_paired"] >= most:
        return "kernels-differ" if row["dispatches_differing"] >= most else "too-few"
    if not without and not is_joint:
        return "not-in-other"
    if row["dispatches_compared"] < most:
        return "one-sided"
    enough = (
        min(row["dispatches_compared"], without) >= MIN_DISPATCHES
        and min(row["cycles_compared"], row["cycles_without"]) >= MIN_CYCLES
    )
    return None if enough else "too-few"
