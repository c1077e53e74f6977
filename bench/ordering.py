"""How long happens-before takes over a large trace, and whether it grows with its size.

    python bench/ordering.py [--ops 10000000] [--rounds 3]

Makes the tables of a program of 3 million calls, a third of which record an event in one stream or
let another wait for it, and asks how its copies are ordered. A fresh process each, alternating:

- streams: 15 non-blocking streams, and a null stream that copies; one launch in seven is of a
  graph of 33 kernels. Half of the launches say what memory they use, of the others the nearest are
  asked about.
- syncs: 2 streams, 2 threads, flags unknown; every wait is the host's and nothing says what memory
  is used, so that every copy is asked about with every stream.
- many: 500 streams with unknown flags beside the null stream.
- quarter: `streams` with a quarter of all.

Seconds are of `host_calls` and `copy_orders`. The peak is the whole process's, with the columns of
the tables that are read; the others are null. Exits 1 when a median is beyond its limit.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limits import Limit, exit_status

from tracekit.ordering import host_calls
from tracekit.ordering.copy_orders import copy_orders
from tracekit.tables.catalog import TABLES

SECONDS, PEAK_MB = 20, 2_000
# CPU of the whole against a quarter of it: 4 is linear, 16 is square.
WHOLE_PER_QUARTER = 6
CALLS_PER_BLOCK, CALL_NS = 6, 1_000
OPS_PER_BLOCK, KERNELS_PER_GRAPH = 20, 33
ADDRESS, BUFFERS, BUFFER_BYTES = 0x7F00_0000, 200, 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """What a program looks like."""

    streams: int
    flags: str | None
    threads: int = 1
    size: float = 1.0
    waits_on_host: bool = False
    declared: bool = True
    has_null: bool = True


SHAPES = {
    "streams": Shape(15, "nonblocking"),
    "syncs": Shape(2, None, threads=2, waits_on_host=True, declared=False, has_null=False),
    "many": Shape(500, None),
    "quarter": Shape(15, "nonblocking", size=0.25),
}


def tables(shape: Shape, ops: int) -> dict[str, pl.DataFrame]:
    """Return the tables of a program of blocks of six calls.

    launch, launch (or copy or synchronise), record | launch, wait, launch: the first three in one
    stream, the others in another.
    """
    blocks = int(ops * shape.size) // OPS_PER_BLOCK
    rng = np.random.default_rng(1)
    call = np.arange(blocks * CALLS_PER_BLOCK)
    block, step = np.divmod(call, CALLS_PER_BLOCK)
    first = rng.integers(1, shape.streams + 1, blocks)
    second = rng.integers(1, shape.streams + 1, blocks)
    waiting = "event_sync" if shape.waits_on_host else "event_wait"
    kind = np.array(["launch", "launch", "event_record", "launch", waiting, "launch"])[step]
    kind[(step == 1) & (block % 5 == 0)] = "copy"
    kind[(step == 1) & (block % 50 == 1)] = "stream_sync"
    kind[(step == 0) & (block % 2 == 0)] = "graph_launch"
    stream = np.where(step < 3, first[block], second[block])
    stream[(kind == "copy") & (block % 10 == 0)] = 0
    calls = pl.DataFrame(
        {
            "call_id": call,
            "process_id": np.ones(len(call), np.int32),
            "thread_id": block // 7 % shape.threads,
            "kind": kind,
            "name": np.where(kind == "copy", "hipMemcpyAsync", "hipOther"),
            "start_ns": call * CALL_NS,
            "end_ns": call * CALL_NS + CALL_NS // 2,
            "stream_id": np.where(kind == "event_sync", -1, stream).astype(np.int32),
            "event_key": np.where(np.isin(step, (2, 4)), block % 64, -1),
        }
    ).with_columns(
        pl.when(pl.col(name) >= 0).then(name).alias(name) for name in ("stream_id", "event_key")
    )
    made = {
        "calls": calls,
        "ops": _ops(calls),
        "streams": _streams(shape),
        "copies": _copies(calls),
        "accesses": _accesses(calls) if shape.declared else pl.DataFrame(),
    }
    return {
        name: _filled(name, frame).select(frame.columns)
        for name, frame in made.items()
        if frame.width
    }


def _ops(calls: pl.DataFrame) -> pl.DataFrame:
    """A kernel for a launch, 33 for a graph's, each of them for half of a call's time."""
    number = {"launch": 1, "copy": 1, "graph_launch": KERNELS_PER_GRAPH}
    launching = calls.filter(pl.col("kind").is_in(list(number)))
    numbers = launching["kind"].replace_strict(number, return_dtype=pl.UInt32).to_numpy()
    row = pl.Series(np.repeat(np.arange(launching.height, dtype=np.uint32), numbers))
    own = launching.select(
        "call_id",
        "process_id",
        "stream_id",
        name=pl.when(kind="copy")
        .then(pl.lit("Memcpy"))
        .otherwise(pl.lit("kernel"))
        .cast(pl.Categorical),
        start_ns=pl.col("start_ns") + CALL_NS,
    )
    return own.select(pl.all().gather(row)).with_columns(
        end_ns=pl.col("start_ns") + 20 * CALL_NS,
        op_id=pl.int_range(pl.len()),
        device_id=pl.lit(0, pl.Int32),
    )


def _streams(shape: Shape) -> pl.DataFrame:
    number = shape.streams + 1
    flags = [None if shape.flags is None and not shape.has_null else "null"]
    return pl.DataFrame(
        {
            "stream_id": range(number),
            "process_id": [1] * number,
            "flags": [*flags, *[shape.flags] * shape.streams],
        }
    )


def _copies(calls: pl.DataFrame) -> pl.DataFrame:
    """Copies to the stream's memory; those on the null stream block, and go to each in turn."""
    own = pl.col("stream_id")
    target = pl.when(own > 0).then(own).otherwise(pl.int_range(pl.len()))
    return calls.filter(kind="copy").select(
        "call_id",
        "process_id",
        "stream_id",
        op_id=None,
        dst_address=ADDRESS + target.cast(pl.Int64) % BUFFERS * BUFFER_BYTES,
        copied_bytes=pl.lit(BUFFER_BYTES),
        direction=pl.lit("host-to-device"),
        is_blocking=pl.col("stream_id") == 0,
    )


def _accesses(calls: pl.DataFrame) -> pl.DataFrame:
    """Every other launch reads a memory of its stream that copies write."""
    launches = calls.filter(pl.col("kind").is_in(["launch", "graph_launch"])).gather_every(2)
    return launches.select(
        "call_id",
        address=ADDRESS + pl.col("stream_id").cast(pl.Int64) % BUFFERS * BUFFER_BYTES,
        size_bytes=pl.lit(BUFFER_BYTES),
        buffer=pl.lit("plan"),
        mode=pl.lit("read"),
    )


def _filled(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the declared table; columns that are not given are null."""
    schema = TABLES[name].schema
    return (
        frame.select(
            (pl.col(column) if column in frame.columns else pl.lit(None)).cast(dtype).alias(column)
            for column, dtype in schema.items()
        )
        if frame.width
        else pl.DataFrame(schema=schema)
    )


def measure(folder: Path) -> dict[str, float]:
    """Return the seconds of both, the peak, and what was counted."""
    made = {name: _filled(name, _read(folder / name)) for name in TABLES}
    tables_mb = _peak_mb()
    began, began_cpu = time.perf_counter(), time.process_time()
    host = host_calls(*(made[n] for n in ("ops", "calls", "copies", "marks", "waits", "ranges")))
    placed = time.perf_counter()
    found = copy_orders(host, *(made[n] for n in ("ops", "copies", "accesses", "streams")))
    ended = time.perf_counter()
    assert found.height == made["copies"].height
    return {
        "host_calls": placed - began,
        "copy_orders": ended - placed,
        "seconds": ended - began,
        "cpu": time.process_time() - began_cpu,
        "peak_mb": _peak_mb(),
        "tables_mb": tables_mb,
        "ops": made["ops"].height,
        "calls": made["calls"].height,
        "edges": host["record_place"].count() * 2,
        "copies": found.height,
    }


def _read(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path) if path.exists() else pl.DataFrame()


def _peak_mb() -> float:
    """Return this program's own peak; `ru_maxrss` begins with that of what started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kilobytes) * 1024 / 1e6


def main() -> None:
    """Measure every shape by turns; print medians and limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    if arguments.rounds < 3:
        parser.error("a median needs at least 3 rounds")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.shapes}
    with tempfile.TemporaryDirectory(prefix="ordering-") as folder:
        for name in runs:
            _write(tables(SHAPES[name], arguments.ops), Path(folder) / name)
        for _ in range(arguments.rounds):
            for name, measured in runs.items():
                command = [sys.executable, __file__, "--one", str(Path(folder) / name)]
                measured.append(json.loads(subprocess.check_output(command)))
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    medians = {name: _medians(name, measured) for name, measured in runs.items()}
    sys.exit(exit_status(_limits(medians)))


def _write(made: dict[str, pl.DataFrame], folder: Path) -> None:
    folder.mkdir()
    for name, frame in made.items():
        frame.write_parquet(folder / name)


def _medians(name: str, runs: list[dict[str, float]]) -> dict[str, float]:
    """Print one line and return the medians."""
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    seconds = sorted(run["seconds"] for run in runs)
    print(
        f"{name:8} {median['seconds']:6.2f} s  (min {seconds[0]:.2f}, max {seconds[-1]:.2f}, "
        f"n={len(runs)}; host_calls {median['host_calls']:.2f}, copy_orders "
        f"{median['copy_orders']:.2f})  cpu {median['cpu']:.2f} s  peak "
        f"{median['peak_mb']:,.0f} MB (tables "
        f"{median['tables_mb']:,.0f})  {median['ops']:,.0f} ops, {median['calls']:,.0f} calls, "
        f"{median['edges']:,.0f} edges, {median['copies']:,.0f} copies"
    )
    return median


def _limits(medians: dict[str, dict[str, float]]) -> list[Limit]:
    limits = []
    for name, median in medians.items():
        limits.append(Limit(f"{name}: time", median["seconds"], SECONDS, " s"))
        limits.append(Limit(f"{name}: peak memory", median["peak_mb"], PEAK_MB, " MB"))
    if {"streams", "quarter"} <= medians.keys():
        growth = medians["streams"]["cpu"] / medians["quarter"]["cpu"]
        limits.append(Limit("CPU, whole / quarter", growth, WHOLE_PER_QUARTER, " ×"))
    return limits


if __name__ == "__main__":
    main()
