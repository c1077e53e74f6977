"""A device that is a model: no time of it was measured."""

import polars as pl

from tracekit.trust import EVERY_PART, Check, Found, Touches
from tracekit.units import Unit

# What the recorder of the model calls its devices, by instruction set.
_VIRTUAL = "virtual-"


def modelled(devices: pl.DataFrame, windows: pl.DataFrame) -> list[Found]:
    """Find the devices that are a model; one mark if all are."""
    seen = devices.filter(pl.col("device_id").is_in(windows["device_id"].drop_nulls().implode()))
    virtual = seen.filter(pl.col("arch").str.starts_with(_VIRTUAL))
    if virtual.is_empty():
        return []
    text = "a model of a GPU in virtual time, not a measurement: no time in it was measured"
    if virtual.height == seen.height:
        return [Found(text, {"devices": virtual.height})]
    return [Found(text, {"devices": 1}, device) for device in virtual["device_id"].sort()]


CHECK = Check(
    code="trust-device.modelled",
    label="a model, not a measurement",
    touches=Touches(
        units=frozenset({Unit.TIME, Unit.DURATION, Unit.SHARE, Unit.RATIO, Unit.RATE}),
        parts=EVERY_PART,
    ),
    find=modelled,
    notes=("rocpd.model",),
)
