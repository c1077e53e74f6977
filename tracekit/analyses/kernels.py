"""kernels: which kernels, copies and fills the device's time goes to."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.intervals import clip
from tracekit.tables import Column, Table, enum_column, id_column, name_column
from tracekit.tables.activity import OP_KINDS
from tracekit.units import Unit

WORK_KINDS = tuple(kind for kind in OP_KINDS if kind != "barrier")

KERNELS = Table(
    "kernels",
    "one name of kernel, copy or fill on one device",
    (
        id_column("device_id", "device", "The device.", narrow=True),
        enum_column("kind", OP_KINDS, "Kernel, copy or fill; barriers do no work."),
        name_column("name", "Its name."),
        Column("ops", pl.Int64(), "Ops that run inside the window, if only in part.", Unit.COUNT),
        Column("total_ns", pl.Int64(), "Summed length inside the window.", Unit.DURATION),
        Column(
            "sum_share",
            pl.Float64(),
            "total_ns ÷ the sum over all ops of the device; not a share of busy time or of wall.",
            Unit.SHARE,
        ),
        Column("mean_ns", pl.Float64(), "Mean length of whole ops.", Unit.DURATION),
        Column("median_ns", pl.Float64(), "Median length of whole ops.", Unit.DURATION),
        Column("p99_ns", pl.Float64(), "99th percentile of whole ops.", Unit.DURATION),
        Column("min_ns", pl.Int64(), "Shortest whole op.", Unit.DURATION),
        Column("max_ns", pl.Int64(), "Longest whole op.", Unit.DURATION),
    ),
)


def kernels(ops: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return where the device's op time goes, by name.

    Totals and shares count the part inside the window, so that they add up; mean, median and the
    rest are of whole ops, since the length of an op that the window cuts says nothing of the
    kernel. Shares are of the *sum* of op lengths, which adds to 1 also where ops overlap; the same
    figure over busy time would pass 100 %. Percentiles are linear between neighbours.

    Args:
        ops: `kind`, `name`, `device_id`, `start_ns`, `end_ns`.
        windows: One row per device.

    Returns:
        `KERNELS`, by device, largest total first, equal ones by name and kind. Cost: one pass and
        one selection per percentile.

    Cannot tell time in which a kernel ran from time in which it shared the device (see overlap).
    """
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    work = ops.select("device_id", "kind", "name", "start_ns", "end_ns", length_ns=length_ns)
    work = clip(work, windows, ["device_id"]).select(
        "device_id", "kind", "name", "length_ns", inside_ns=length_ns
    )
    # By device and kind apart: a name alone groups several times faster than the three together.
    one_device = work["device_id"].n_unique() <= 1
    parts = [work] if one_device else work.partition_by("device_id", maintain_order=False)
    named = pl.concat(
        [_named(part.filter(pl.col("kind") == kind)) for part in parts for kind in WORK_KINDS]
    )
    # Not `sum().over()`: polars divides by what it knows to be one value through its reciprocal,
    # and the last digit then depends on how many devices there are.
    sums = named.group_by("device_id").agg(sum_ns=pl.col("total_ns").sum())
    named = named.join(sums, on="device_id", nulls_equal=True).select(
        pl.exclude("sum_ns"), sum_share=pl.col("total_ns") / pl.col("sum_ns")
    )
    return KERNELS.conform(named).sort(
        "device_id",
        -pl.col("total_ns"),
        pl.col("name").cast(pl.String),
        "kind",
        nulls_last=True,
    )


def _named(work: pl.DataFrame) -> pl.DataFrame:
    """Return the sums and percentiles of the ops of one device and kind by name."""
    whole = pl.col("length_ns")
    sums = work.group_by("name").agg(
        pl.col("device_id", "kind").first(),
        ops=pl.len(),
        total_ns=pl.col("inside_ns").sum(),
        whole_ns=whole.sum(),
        median_ns=whole.median(),
        p99_ns=whole.quantile(0.99, "linear"),
        min_ns=whole.min(),
        max_ns=whole.max(),
    )
    return sums.select(pl.exclude("whole_ns"), mean_ns=pl.col("whole_ns") / pl.col("ops"))


ANALYSIS = Analysis(
    name="kernels",
    question="Which kernels and copies does the device's time go to?",
    table=KERNELS,
    compute=kernels,
)
