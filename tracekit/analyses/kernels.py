"""kernels: which kernels, copies and fills the device's time goes to."""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.tables import Column, Table, enum_column, id_column, name_column
from tracekit.tables.activity import OP_KINDS
from tracekit.units import Unit

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
    bounds = windows.select("device_id", window_start="start_ns", window_end="end_ns")
    start_ns = pl.max_horizontal("start_ns", "window_start")
    end_ns = pl.min_horizontal("end_ns", "window_end")
    whole = pl.col("length_ns")
    named = (
        ops.lazy()
        .filter((pl.col("kind") != "barrier") & (pl.col("start_ns") < pl.col("end_ns")))
        .join(bounds.lazy(), on="device_id", nulls_equal=True)
        .select(
            "device_id",
            "kind",
            "name",
            length_ns=pl.col("end_ns") - pl.col("start_ns"),
            inside_ns=end_ns - start_ns,
        )
        .filter(pl.col("inside_ns") > 0)
        .group_by("device_id", "kind", "name")
        .agg(
            ops=pl.len(),
            total_ns=pl.col("inside_ns").sum(),
            mean_ns=whole.sum() / pl.len(),
            median_ns=whole.median(),
            p99_ns=whole.quantile(0.99, "linear"),
            min_ns=whole.min(),
            max_ns=whole.max(),
        )
        .collect()
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


ANALYSIS = Analysis(
    name="kernels",
    question="Which kernels and copies does the device's time go to?",
    table=KERNELS,
    compute=kernels,
)
