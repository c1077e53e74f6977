"""The few figures of a trace that are worth putting side by side, from results of analyses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.units import Unit

ANALYSES = ("queue-busy", "idle-gaps", "steps", "queue-waits", "unordered-copies")
_UNORDERED = ("unordered", "accident")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one run.

    Attributes:
        name: What it is, with its unit where it has one.
        place: Device or kind of step.
        unit: What the number means.
        value: None if it is not known.
        is_better: `lower`, `higher`, or None.
    """

    name: str
    place: str
    unit: Unit
    value: float | None
    is_better: str | None = None


def trace_figures(frames: Mapping[str, pl.DataFrame]) -> list[Figure]:
    """Return the figures of a trace.

    Args:
        frames: Results of the analyses `ANALYSES`; one that did not run is absent, and an empty one
            found nothing, which is zero.
    """
    makers = (_busy, _idle, _host_blocked, _walls, _wait_costs, _unordered)
    return [figure for make in makers for figure in make(frames)]


def _devices(frames: Mapping[str, pl.DataFrame]) -> list[int]:
    busy = frames.get("queue-busy")
    return [] if busy is None else busy["device_id"].unique(maintain_order=True).to_list()


def _device(device_id: int | None) -> str:
    return "no device" if device_id is None else f"device {device_id}"


def _busy(frames: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    if "queue-busy" not in frames:
        return
    devices = frames["queue-busy"].filter(pl.col("lane_kind") == "device")
    for device, share in devices.select("device_id", "busy_share").iter_rows():
        yield Figure("busy_share", _device(device), Unit.SHARE, share)


def _idle(frames: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    """Yield each cause of each device, those without time too: the causes are all there are."""
    gaps = frames.get("idle-gaps")
    if gaps is None:
        return
    sums = gaps.group_by("device_id", pl.col("cause").cast(pl.String)).agg(
        pl.col("idle_share").sum()
    )
    shares = {(device, cause): share for device, cause, share in sums.iter_rows()}
    for device in _devices(frames):
        for cause in gaps.schema["cause"].categories:  # type: ignore[attr-defined]
            share = shares.get((device, cause), 0.0)
            yield Figure(f"idle, {cause}", _device(device), Unit.SHARE, share, "lower")


def _steps(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """Return the steps by markers of the engine, else by whatever rule found any."""
    steps = frames.get("steps")
    if steps is None:
        return None
    best = steps["found_by"].cast(pl.String).unique().to_list()
    return steps.filter(pl.col("found_by") == "tk1-step") if "tk1-step" in best else steps


def _host_blocked(frames: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    steps = _steps(frames)
    if steps is None or "idle-gaps" not in frames:
        return
    blocked = frames["idle-gaps"].filter(pl.col("cause") == "host-blocked")
    for device, count in steps.group_by("device_id", maintain_order=True).len().iter_rows():
        idle_ns = blocked.filter(pl.col("device_id") == device)["idle_ns"].sum()
        name = "host_blocked_per_step_ns"
        yield Figure(name, _device(device), Unit.DURATION, idle_ns / count, "lower")


def _walls(frames: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    steps = _steps(frames)
    if steps is None:
        return
    # A step has a row for each device its process uses.
    once = steps.unique(["process_id", "start_ns", "kind"], maintain_order=True)
    kinds = once.group_by("kind", maintain_order=True).agg(
        pl.len(), pl.col("wall_ns").median().alias("median")
    )
    for kind, count, median in kinds.iter_rows():
        place = f"{kind or 'any'} steps"
        yield Figure("steps", place, Unit.COUNT, count)
        yield Figure("step_wall_median_ns", place, Unit.DURATION, median, "lower")


def _wait_costs(frames: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    """Yield, by device, the time that waits in another queue were pending, and what they cost."""
    waits = frames.get("queue-waits")
    if waits is None:
        return
    for device in _devices(frames):
        of_device = waits.filter(pl.col("device_id") == device)
        place = _device(device)
        pending = float(of_device.filter(pl.col("scope") == "device")["pending_ns"].sum())
        yield Figure("waits_pending_ns", place, Unit.DURATION, pending)
        costs = of_device.filter(
            pl.col("scope").is_in(["graph", "kernels"]) & (pl.col("status") == "compared")
        )
        added = None if costs.is_empty() else float(costs["added_ns"].sum())
        yield Figure("waits_added_ns", place, Unit.DURATION, added, "lower")


def _unordered(frames: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    copies = frames.get("unordered-copies")
    if copies is None:
        return
    for certainty in ("certain", "possible"):
        bad = copies.filter(pl.col("order").is_in(_UNORDERED) & (pl.col("certainty") == certainty))
        yield Figure("unordered_copies", certainty, Unit.COUNT, float(bad["copies"].sum()), "lower")
