"""Who did the work: processes, GPUs, queues and streams of one capture."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.row_index import RowIndex, looked_up
from tracekit.manifest import allowed_environment, redacted_command

_RANK_KEYS = ("RANK", "OMPI_COMM_WORLD_RANK", "LOCAL_RANK")
_SWITCHES = {
    "ROCPROF_KERNEL_TRACE": ("ops",),
    "ROCPROF_HIP_RUNTIME_API_TRACE": ("calls", "call_arguments"),
    "ROCPROF_MEMORY_COPY_TRACE": ("copies",),
    "ROCPROF_HIP_EVENT_TRACE": ("waits",),
    "ROCPROF_MARKER_API_TRACE": ("ranges",),
    "ROCPROF_HIP_GRAPH_TRACE": ("graphs",),
}
_OFF = frozenset({"", "0", "false", "off", "no"})


class Handles:
    """Gives each foreign id (queue, stream) one of ours, whether or not an info row names it.

    The views of rocpd join such rows away where the info row is missing; here they stay.
    """

    def __init__(self, known: Iterable[int]) -> None:
        self._ids = {handle: number for number, handle in enumerate(known)}

    def ids(self, handles: pl.Series) -> pl.Series:
        """Return our id of each handle as Int32, null for null."""
        for handle in handles.unique().drop_nulls().sort():
            self._ids.setdefault(handle, len(self._ids))
        known = pl.Series(list(self._ids), dtype=pl.Int64)
        ids = pl.Series(list(self._ids.values()), dtype=pl.Int32)
        return looked_up(RowIndex(known), handles, ids)

    def id_of(self, handle: int) -> int:
        """Return our id of one handle."""
        return self._ids.setdefault(handle, len(self._ids))

    def items(self) -> list[tuple[int, int]]:
        """Return (our id, handle) of all seen."""
        return [(number, handle) for handle, number in self._ids.items()]


@dataclass(frozen=True)
class Identity:
    """Lookups from rocpd's row ids to ours, and the frames behind them."""

    processes: pl.DataFrame
    devices: pl.DataFrame
    process_devices: pl.DataFrame
    queues: Handles
    streams: Handles
    process_index: RowIndex
    agent_index: RowIndex
    agent_devices: pl.Series
    thread_index: RowIndex
    threads: pl.Series
    names: dict[str, dict[int, str | None]] = field(default_factory=dict)

    @property
    def has_many_processes(self) -> bool:
        """Whether rows have to be asked which process they belong to."""
        return self.processes.height > 1

    def process_of(self, pids: pl.Series) -> pl.Series:
        """Return the process id of each `pid` column value (a row of `rocpd_info_process`)."""
        if not self.has_many_processes:
            return pl.repeat(0, pids.len(), dtype=pl.Int32, eager=True)
        return self.process_index.rows(pids).cast(pl.Int32)

    def device_of(self, agents: pl.Series) -> pl.Series:
        """Return the device of each agent; null for a CPU."""
        return looked_up(self.agent_index, agents, self.agent_devices)

    def thread_of(self, tids: pl.Series) -> pl.Series:
        """Return the operating-system thread of each `tid` column value."""
        return looked_up(self.thread_index, tids, self.threads)


def read_identity(capture: Capture) -> Identity:
    """Read the info tables."""
    nodes = {
        row[0]: row[1:] for row in capture.rows("rocpd_info_node", ["id", "hostname", "machine_id"])
    }
    processes = _processes(capture, nodes)
    agents = _agents(capture, nodes)
    devices, agent_devices = _devices(agents)
    process_index = RowIndex(processes["row"])
    views = pl.DataFrame(
        {"pid": agents["pid"], "device_id": agent_devices, "local_index": agents["type_index"]}
    ).filter(pl.col("device_id").is_not_null())
    process_of = process_index.rows(views["pid"]).cast(pl.Int32)
    threads = _frame(capture, "rocpd_info_thread", {"id": pl.Int64(), "tid": pl.Int64()})
    names = {
        table: dict(cast("list[tuple[int, str | None]]", capture.rows(table, ["id", "name"])))
        for table in ("rocpd_info_queue", "rocpd_info_stream")
    }
    return Identity(
        processes.drop("row"),
        devices,
        views.select("device_id", "local_index").insert_column(0, process_of.alias("process_id")),
        Handles(sorted(names["rocpd_info_queue"])),
        Handles(sorted(names["rocpd_info_stream"])),
        process_index,
        RowIndex(agents["id"]),
        agent_devices,
        RowIndex(threads["id"]),
        threads["tid"],
        names,
    )


def _processes(capture: Capture, nodes: dict[object, tuple[object, ...]]) -> pl.DataFrame:
    columns = ["id", "nid", "pid", "command", "environment"]
    rows: list[tuple[object, ...]] = []
    for row_id, nid, pid, command, environment in capture.rows("rocpd_info_process", columns):
        allowed = allowed_environment(_environment(environment))
        rows.append(
            (
                row_id,
                len(rows),
                nodes.get(nid, (None, None))[0],
                pid,
                _rank(allowed),
                None if command is None else redacted_command(str(command)),
                str(capture.path),
                _collected(allowed),
            )
        )
    schema: dict[str, pl.DataType] = {
        "row": pl.Int64(),
        "process_id": pl.Int32(),
        "node": pl.String(),
        "pid": pl.Int64(),
        "rank": pl.Int64(),
        "command": pl.String(),
        "source": pl.String(),
        "collected": pl.List(pl.String),
    }
    # Without its row there is still one process that everything belongs to.
    unknown = (None, 0, None, None, None, None, str(capture.path), None)
    return pl.DataFrame(rows or [unknown], schema=schema, orient="row")


def _rank(allowed: dict[str, str]) -> int | None:
    values = [allowed[key] for key in _RANK_KEYS if key in allowed]
    return next((int(value) for value in values if re.fullmatch(r"[0-9]{1,9}", value)), None)


def _environment(text: object) -> dict[str, str]:
    try:
        parsed = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in parsed.items()} if isinstance(parsed, dict) else {}


def _collected(allowed: dict[str, str]) -> list[str] | None:
    if not any(key in allowed for key in _SWITCHES):
        return None
    on = {key for key, value in allowed.items() if value.lower() not in _OFF}
    return [kind for key, kinds in _SWITCHES.items() if key in on for kind in kinds]


def _agents(capture: Capture, nodes: dict[object, tuple[object, ...]]) -> pl.DataFrame:
    columns = ["id", "nid", "pid", "type", "absolute_index", "type_index", "name", "product_name"]
    rows = [
        (*row[:-1], *nodes.get(row[1], (None, None)), _unique_id(row[-1]))
        for row in capture.rows("rocpd_info_agent", [*columns, "extdata"])
    ]
    texts = ("type", "name", "product_name", "hostname", "machine_id", "unique_id")
    whole = dict.fromkeys(columns, pl.Int64()) | dict.fromkeys(texts, pl.String())
    return pl.DataFrame(rows, schema=whole, orient="row")


def _unique_id(extdata: object) -> str | None:
    """Return the board's own number; the column `uuid` holds the PCI device id of the model."""
    try:
        values = json.loads(str(extdata))["uuid"]["bytes"].values()
        digits = bytes(values).hex().rstrip("0")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return digits or None


def _devices(agents: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return the GPUs, and of each agent the device it is.

    The same board is one device however many captures of a machine show it. The machine's id tells
    machines apart, but copies of one disk image share it, so the board's number is added.
    """
    place = pl.format("{}:{}", "machine_id", "absolute_index")
    exact = pl.format("{}:{}:{}", "machine_id", "absolute_index", "unique_id")
    gpus = agents.filter(pl.col("type") == "GPU").with_columns(key=pl.coalesce(exact, place))
    numbers: dict[str, int] = {}
    device_ids = [
        numbers.setdefault(key or f"agent {agent}", len(numbers))
        for agent, key in gpus.select("id", "key").iter_rows()
    ]
    gpus = gpus.with_columns(device_id=pl.Series(device_ids, dtype=pl.Int32))
    devices = gpus.unique("device_id", keep="first", maintain_order=True).select(
        "device_id",
        node="hostname",
        index="absolute_index",
        name=pl.when(pl.col("product_name") != "").then("product_name").otherwise("name"),
        arch="name",
        key="key",
    )
    return devices, looked_up(RowIndex(gpus["id"]), agents["id"], gpus["device_id"])


def _frame(capture: Capture, table: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(capture.rows(table, list(schema)), schema=schema, orient="row")
