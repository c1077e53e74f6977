"""Counter values: of dispatches (hardware counters) and of tracks (device monitors)."""

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.identity import Identity
from tracekit.formats.rocpd.row_index import RowIndex, looked_up
from tracekit.tables.activity import COUNTERS


def counters_frame(
    capture: Capture, identity: Identity, ops: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Return the `counters` table, and how many values have neither a dispatch nor a sample.

    A counter has a row per instance (engine, channel) of the same event; they are summed, as
    ROCm's own view `counters_collection` does.

    Args:
        capture: The file's tables.
        identity: Devices by agent.
        ops: Ops with `event_id`.
    """
    parts = list(capture.slices("rocpd_pmc_event", ["event_id", "pmc_id", "value"]))
    if not parts:
        return COUNTERS.empty(), 0
    rows = pl.concat(parts)
    pmc = pl.DataFrame(
        capture.rows("rocpd_info_pmc", ["id", "agent_id", "name", "symbol"]),
        schema={"id": pl.Int64, "agent_id": pl.Int64, "name": pl.String, "symbol": pl.String},
        orient="row",
    )
    info = RowIndex(pmc["id"]).rows(rows["pmc_id"])
    names = pmc.select(pl.coalesce(pl.when(pl.col("name") != "").then("name"), "symbol"))
    of_event = RowIndex(ops["event_id"]).rows(rows["event_id"])
    samples = _samples(capture)
    sampled = looked_up(RowIndex(samples["event_id"]), rows["event_id"], samples["timestamp"])
    agents = identity.device_of(pmc["agent_id"].gather(info))
    placed = rows.select(
        pl.coalesce(ops["device_id"].gather(of_event), agents).alias("device_id"),
        names.to_series().cast(pl.Categorical).gather(info).alias("name"),
        pl.coalesce(ops["end_ns"].gather(of_event), sampled).alias("time_ns"),
        "value",
        ops["op_id"].gather(of_event).alias("op_id"),
        "event_id",
    )
    known = placed.filter(pl.col("time_ns").is_not_null())
    keys = ["event_id", "device_id", "name", "time_ns", "op_id"]
    summed = known.group_by(keys, maintain_order=True).agg(
        pl.when(pl.col("value").count() > 0).then(pl.col("value").sum())
    )
    return summed.drop("event_id"), placed.height - known.height


def _samples(capture: Capture) -> pl.DataFrame:
    parts = list(capture.slices("rocpd_sample", ["event_id", "timestamp"]))
    empty = pl.DataFrame(schema={"event_id": pl.Int64, "timestamp": pl.Int64})
    return pl.concat([empty, *parts])
