"""Call arguments: only the few that say which stream, event, graph or memory a call uses."""

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.events import Step
from tracekit.formats.rocpd.row_index import RowIndex

# HIP's own parameter names, over its variants.
_ROLES = {
    "stream": "stream",
    "hStream": "stream",
    "event": "event",
    "hEvent": "event",
    "graphExec": "graph",
    "dst": "dst",
    "src": "src",
    "sizeBytes": "size",
    "count": "size",
    "kind": "kind",
    "width": "width",
    "height": "height",
}
# Calls of no kind of their own whose argument still matters: handles are recycled after these.
_ENDING = ("hipStreamDestroy", "hipEventDestroy")
NULL_HANDLES = ("0", "0x0", "(null)", "(nil)", "nullptr", "NULL")


def read_arguments(capture: Capture, calls: pl.DataFrame, step: Step) -> pl.DataFrame:
    """Read the arguments that matter from `rocpd_arg`, which may hold many rows per call.

    An argument of type `T**` is where a handle will be put, not the handle.

    Returns:
        `[call_id, role, text]`, one row per call and role, in order of `call_id`.
    """
    schema = {"call_id": pl.Int64, "role": pl.String, "text": pl.String}
    names = ", ".join(f"'{name}'" for name in _ROLES)
    where = f"name IN ({names})"
    if not capture.has("rocpd_arg", "name"):
        return pl.DataFrame(schema=schema)
    if capture.has("rocpd_arg", "type"):
        where += " AND substr(type, -2) IS NOT '**'"
    index: RowIndex | None = None
    parts = []
    wanted = (calls["kind"] != "other") | calls["name"].is_in(_ENDING)
    for part in capture.slices("rocpd_arg", ["event_id", "name", "value"], where):
        step(part.height, "rocpd_arg")
        index = index or RowIndex(calls["event_id"])
        rows = index.rows(part["event_id"])
        role = pl.col("name").replace_strict(_ROLES, return_dtype=pl.String)
        parts.append(
            part.select(
                rows.cast(pl.Int64).alias("call_id"), role.alias("role"), text="value"
            ).filter(wanted.gather(rows).fill_null(value=False))
        )
    whole = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
    return whole.sort("call_id", maintain_order=True).unique(
        ["call_id", "role"], keep="first", maintain_order=True
    )


def argument(arguments: pl.DataFrame, role: str) -> pl.DataFrame:
    """Return `[call_id, text]` of one role."""
    return arguments.filter(pl.col("role") == role).select("call_id", "text")


def handles(texts: pl.Expr) -> pl.Expr:
    """Return printed numbers and pointers as UInt64; what is neither is null."""
    hexadecimal = texts.str.strip_prefix("0x").str.to_integer(
        base=16, dtype=pl.UInt64, strict=False
    )
    decimal = texts.str.to_integer(base=10, dtype=pl.UInt64, strict=False)
    return (
        pl.when(texts.is_in(NULL_HANDLES))
        .then(pl.lit(0, pl.UInt64))
        .when(texts.str.starts_with("0x"))
        .then(hexadecimal)
        .otherwise(decimal)
    )
