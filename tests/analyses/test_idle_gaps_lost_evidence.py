"""The ledger when evidence is taken from a recorded trace: a cause may become unknown, no other."""

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request
from tracekit.formats import read_trace
from tracekit.idle_time.pieces import idle_pieces
from tracekit.intervals import intersect
from tracekit.windows import device_spans, windows_frame

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
TABLES = ("ops", "calls", "copies", "waits", "marks", "ranges")


@cache
def recorded(name):
    trace = read_trace([SAMPLES / name])
    return {table: trace.table(table) for table in TABLES}, windows_frame(device_spans(trace), None)


def causes(tables, windows, name):
    """Return when each cause held, the cause in a column of this name."""
    pieces = pl.concat(list(idle_pieces(*(tables[table] for table in TABLES), windows)))
    return pieces.select("device_id", "start_ns", "end_ns", pl.col("cause").alias(name))


def without_waits(tables):
    return tables | {"waits": tables["waits"].clear()}


def without_half_of_the_waits(tables):
    return tables | {"waits": tables["waits"].gather_every(2)}


def without_arguments(tables):
    arguments = {"stream_id": pl.Int32, "event_key": pl.Int64, "graph_exec_key": pl.Int64}
    bare = [pl.lit(None, dtype).alias(name) for name, dtype in arguments.items()]
    return without_waits(tables) | {"calls": tables["calls"].with_columns(bare)}


def without_calls(tables):
    uncalled = tables["ops"].with_columns(pl.lit(None, pl.Int64).alias("call_id"))
    return tables | {"calls": tables["calls"].clear(), "ops": uncalled}


@pytest.mark.parametrize(
    "less", [without_waits, without_half_of_the_waits, without_arguments, without_calls]
)
@pytest.mark.parametrize(
    "name",
    [
        "planted_idle.json.gz",
        "planted_waits.json.gz",
        "planted_copies.json.gz",
        "engine_event_wait.json.gz",
    ],
)
def test_less_evidence_turns_a_cause_to_unknown_and_to_no_other(name, less):
    tables, windows = recorded(name)
    full = causes(tables, windows, "full")
    left = causes(less(tables), windows, "left")
    both = intersect(full, left, ["device_id"]).with_columns(
        pl.col("full", "left").cast(pl.String), length=pl.col("end_ns") - pl.col("start_ns")
    )
    # Both tell of every idle nanosecond.
    idle_ns = full.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert both["length"].sum() == idle_ns
    changed = both.filter(pl.col("full") != pl.col("left"))
    assert set(changed["left"]) <= {"unknown"}
    assert "queue-wait" not in set(full["full"].cast(pl.String)) or "queue-wait" in set(
        changed["full"]
    )


@pytest.mark.parametrize("kept", range(3))
def test_a_call_that_is_missing_by_its_number_blames_nobody_else(tmp_path, kept):
    """Of an engine that waits on the host, every second or third call about events is gone."""
    tables, windows = engine(tmp_path)
    events = pl.col("kind").cast(pl.String).str.starts_with("event_")
    number = events.cum_sum()
    lost = events & (number % 3 == 2) if kept == 2 else events & (number % 2 == kept)
    left = causes(tables | {"calls": tables["calls"].filter(~lost)}, windows, "left")
    full = causes(tables, windows, "full")
    both = intersect(full, left, ["device_id"]).with_columns(
        pl.col("full", "left").cast(pl.String), length=pl.col("end_ns") - pl.col("start_ns")
    )
    changed = both.filter(pl.col("full") != pl.col("left"))
    assert changed.height
    assert set(changed["left"]) == {"unknown"}


def engine(folder):
    config = Config(tensors=False, host_costs_ns=Costs().host_ns)
    with Recorder(folder, environment=config.environment()) as recorder:
        device = VirtualDevice(config, recorder)
        options = EngineConfig(policy="host-sync", max_running=2, has_tensors=False)
        Engine(device, options, marks=Marks(device)).run([Request(1, (3, 1, 4), 60)])
    trace = read_trace([folder / "virtual_1.db"])
    return {name: trace.table(name) for name in TABLES}, windows_frame(device_spans(trace), None)
