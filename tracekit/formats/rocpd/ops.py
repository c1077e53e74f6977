"""Device side: kernel dispatches and memory copies become ops."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.events import Events, Step, Texts
from tracekit.formats.rocpd.identity import Identity
from tracekit.formats.rocpd.row_index import RowIndex
from tracekit.formats.rocpd.stacking import stacked
from tracekit.tables.activity import COPY_DIRECTIONS, OP_KINDS

_KINDS = pl.Enum(OP_KINDS)
DIRECTIONS = pl.Enum(COPY_DIRECTIONS)
# The runtime runs small copies and fills as kernels of its own, and then records no copy.
_BLIT_COPY = r"^__amd_rocclr_copyBuffer"
_BLIT_FILL = r"^__amd_rocclr_fillBuffer"

_OP = {
    "process_id": pl.Int32(),
    "device_id": pl.Int32(),
    "queue_id": pl.Int32(),
    "stream_id": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "correlation_id": pl.Int64(),
    "graph_exec_id": pl.Int64(),
    "graph_node": pl.Int64(),
    "event_id": pl.Int64(),
    "clamped": pl.Boolean(),
    "name": pl.Categorical(),
    "kind": _KINDS,
}
_COPY = {
    "dst_address": pl.UInt64(),
    "src_address": pl.UInt64(),
    "copied_bytes": pl.Int64(),
    "direction": DIRECTIONS,
}
_REFERENCES = ("queue_id", "stream_id", "start", "end", "event_id")
_GRAPH = ("graph_exec_id", "graph_node_id")


@dataclass(frozen=True)
class DeviceRows:
    """What the devices did.

    Attributes:
        ops: The `ops` table without its calls, plus `event_id`; `op_id` is the row number.
        memory_copies: The ops of `rocpd_memory_copy` with addresses, size and direction.
        clamped: Rows whose end was before their start.
        duplicates: Dispatches that were in the file twice, kept once.
        untimed: Rows without a usable start or end, left out.
        deviceless: Dispatches whose agent is no known GPU; in `ops` without a device.
    """

    ops: pl.DataFrame
    memory_copies: pl.DataFrame
    clamped: int
    duplicates: int
    untimed: int
    deviceless: int


def read_device_rows(
    capture: Capture, identity: Identity, texts: Texts, events: Events, step: Step
) -> DeviceRows:
    """Read `rocpd_kernel_dispatch` and `rocpd_memory_copy`."""
    numbered = {**_OP, "dispatch_id": pl.Int64()}
    found = stacked(_dispatches(capture, identity, events, step), numbered)
    dispatches = _without_duplicates(found)
    copies = stacked(_copies(capture, identity, texts, events, step), {**_OP, **_COPY})
    rows = found.height + copies.height
    duplicates = found.height - dispatches.height
    parts = [dispatches.select(*_OP), copies.select(*_OP)]
    ops = _timed(stacked(parts, _OP) if copies.height else parts[0]).with_row_index("op_id")
    ops = ops.with_columns(pl.col("op_id").cast(pl.Int64))
    copies = _timed(copies)
    copies = copies.with_columns(op_id=ops["op_id"].tail(copies.height))
    clamped = int(ops["clamped"].sum())
    return DeviceRows(
        ops.drop("clamped"),
        copies,
        clamped,
        duplicates,
        rows - duplicates - ops.height,
        ops["device_id"].head(ops.height - copies.height).null_count(),
    )


def _dispatches(
    capture: Capture, identity: Identity, events: Events, step: Step
) -> Iterator[pl.DataFrame]:
    symbols, names, kinds = _kernel_symbols(capture)
    own = ["agent_id", "kernel_id", "dispatch_id"]
    for part in _parts(capture, identity, "rocpd_kernel_dispatch", own):
        step(part.height, "rocpd_kernel_dispatch")
        kernels = symbols.rows(part["kernel_id"])
        device = identity.device_of(part["agent_id"])
        yield _op(part, identity, events, device).with_columns(
            names.gather(kernels).alias("name"),
            kinds.gather(kernels).fill_null("kernel").alias("kind"),
            part["dispatch_id"],
        )


def _copies(
    capture: Capture, identity: Identity, texts: Texts, events: Events, step: Step
) -> Iterator[pl.DataFrame]:
    ends = ["dst_agent_id", "src_agent_id", "dst_address", "src_address"]
    for part in _parts(capture, identity, "rocpd_memory_copy", ["name_id", "size", *ends]):
        step(part.height, "rocpd_memory_copy")
        to, source = (identity.device_of(part[name]) for name in ends[:2])
        # Queue 0 is the writer's "no queue": a copy engine is not a hardware queue of kernels.
        no_queue = part.with_columns(pl.when(pl.col("queue_id") != 0).then("queue_id"))
        names = texts.index.rows(part["name_id"])
        sides = pl.DataFrame({"to": to, "from": source, "name": texts.texts.gather(names)})
        yield _op(no_queue, identity, events, to.fill_null(source)).with_columns(
            texts.names.gather(names).alias("name"),
            pl.lit("copy", _KINDS).alias("kind"),
            part["dst_address"].cast(pl.UInt64, strict=False),
            part["src_address"].cast(pl.UInt64, strict=False),
            pl.select(pl.when(part["size"] >= 0).then(part["size"]))
            .to_series()
            .alias("copied_bytes"),
            sides.select(_direction()).to_series().alias("direction"),
        )


def _direction() -> pl.Expr:
    """The copy's name says host or device; two devices are told apart by their agents."""
    parts = pl.col("name").str.extract_groups(r"(?i)(host|device)_?to_?(host|device)")
    named = pl.format(
        "{}-to-{}",
        parts.struct.field("1").str.to_lowercase(),
        parts.struct.field("2").str.to_lowercase(),
    )
    peers = pl.col("to") != pl.col("from")
    return pl.when(peers).then(pl.lit("peer-to-peer")).otherwise(named).cast(DIRECTIONS)


def _op(part: pl.DataFrame, identity: Identity, events: Events, device: pl.Series) -> pl.DataFrame:
    from_graph = pl.col("graph_exec_id") != 0
    return part.select(
        identity.process_of(part["pid"]).alias("process_id"),
        device.alias("device_id"),
        identity.queues.ids(part["queue_id"]).alias("queue_id"),
        identity.streams.ids(part["stream_id"]).alias("stream_id"),
        pl.col("start").alias("start_ns"),
        pl.when(pl.col("end") < pl.col("start")).then("start").otherwise("end").alias("end_ns"),
        events.stack_of(part["event_id"]).alias("correlation_id"),
        # Executable 0 says that the op is not from a graph; node 0 is a node like any other.
        pl.when(from_graph).then("graph_exec_id").alias("graph_exec_id"),
        pl.when(from_graph).then("graph_node_id").alias("graph_node"),
        "event_id",
        (pl.col("end") < pl.col("start")).fill_null(value=False).alias("clamped"),
    )


def _parts(
    capture: Capture, identity: Identity, table: str, columns: list[str]
) -> Iterator[pl.DataFrame]:
    """Yield a table in slices that have every wanted column, those that do not exist as null."""
    wanted = [*columns, *_REFERENCES, *_GRAPH]
    if identity.has_many_processes:
        wanted.append("pid")
    for part in capture.slices(table, wanted):
        absent = [name for name in (*wanted, "pid") if name not in part.columns]
        yield part.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent)


def _kernel_symbols(capture: Capture) -> tuple[RowIndex, pl.Series, pl.Series]:
    table = pl.DataFrame(
        capture.rows("rocpd_info_kernel_symbol", ["id", "display_name", "kernel_name"]),
        schema={"id": pl.Int64, "display_name": pl.String, "kernel_name": pl.String},
        orient="row",
    )
    shown = pl.when(pl.col("display_name") != "").then("display_name").otherwise("kernel_name")
    kind = (
        pl.when(pl.col("name").str.contains(_BLIT_COPY))
        .then(pl.lit("copy"))
        .when(pl.col("name").str.contains(_BLIT_FILL))
        .then(pl.lit("fill"))
        .otherwise(pl.lit("kernel"))
    )
    table = table.select("id", name=shown).with_columns(kind=kind.cast(_KINDS))
    return RowIndex(table["id"]), table["name"].cast(pl.Categorical), table["kind"]


def _without_duplicates(ops: pl.DataFrame) -> pl.DataFrame:
    """Keep the first of the dispatches that agree in number, place and time.

    The writer leaves repetitions out; files joined by other means may hold them.
    """
    numbers = ops["dispatch_id"].drop_nulls()
    if (numbers.diff(null_behavior="drop") > 0).all() or numbers.is_unique().all():
        return ops
    same = ["dispatch_id", "device_id", "queue_id", "start_ns", "end_ns"]
    return ops.filter(pl.col("dispatch_id").is_null() | pl.struct(same).is_first_distinct())


def _timed(ops: pl.DataFrame) -> pl.DataFrame:
    if not (ops["start_ns"].null_count() or ops["end_ns"].null_count()):
        return ops
    return ops.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
