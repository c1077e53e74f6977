"""Laws that every analysis obeys, whatever it computes; plug-ins are never named here."""

import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analyses import analyses, call_with_tables, tables_of
from tracekit.tables import Table
from tracekit.tables.activity import COPY_DIRECTIONS
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS
from tracekit.units import Unit

DAY_NS = 86_400 * 10**9
CALL_NAMES = {
    "launch": "hipLaunchKernel",
    "graph_launch": "hipGraphLaunch",
    "copy": "hipMemcpyAsync",
    "event_sync": "hipEventSynchronize",
    "event_wait": "hipStreamWaitEvent",
    "stream_sync": "hipStreamSynchronize",
    "malloc": "hipMalloc",
}
MARKERS = (None, "tk1 step {} kind=verify bs=8 tokens=26", "ProfilerStep#{}", "forward batch {}")
every_analysis = pytest.mark.parametrize("analysis", analyses().values(), ids=lambda a: a.name)


def synthetic_trace(
    seed, *, size=40, processes=2, devices=2, lanes=3, marker=None, instants=False, with_calls=True
):
    """A small trace: threads that mark, call, launch, replay graphs, copy and wait, on shared
    devices whose ops overlap, with nulls wherever a column may be null."""
    rng = random.Random(seed)
    rows = {name: [] for name in TABLES}
    clock = [0] * processes
    for step in range(size):
        process = rng.randrange(processes)
        begin = clock[process]
        _calls_and_ops(rng, rows, process, clock, devices, lanes)
        if marker:
            end = begin if instants else clock[process]
            rows["ranges"].append(
                {
                    "range_id": step,
                    "kind": "marker",
                    "process_id": process,
                    "thread_id": 7,
                    "text": marker.format(step),
                    "start_ns": begin,
                    "end_ns": end,
                }
            )
    for name, key, count in (
        ("processes", "process_id", processes),
        ("devices", "device_id", devices),
        ("streams", "stream_id", lanes),
        ("queues", "queue_id", lanes),
    ):
        rows[name] = [{key: i} for i in range(count)]
    # In the declared order, as every reader gives them.
    frames = {
        name: TABLES[name].ordered(_table(TABLES[name], found)) for name, found in rows.items()
    }
    return frames if with_calls else without_calls(frames)


def _calls_and_ops(rng, rows, process, clock, devices, lanes):
    for kind in rng.choices(list(CALL_NAMES), k=rng.randint(1, 4)):
        call_id = len(rows["calls"])
        start_ns = clock[process] + rng.randint(0, 3)
        end_ns = start_ns + rng.choice((0, 1, 5, 20))
        clock[process] = end_ns + rng.randint(0, 30)
        rows["calls"].append(
            {
                "call_id": call_id,
                "process_id": process,
                "thread_id": rng.choice((7, 7, 7, 8, None)),
                "name": CALL_NAMES[kind],
                "kind": kind,
                "start_ns": start_ns,
                "end_ns": end_ns,
                "correlation_id": call_id + 10,
                "graph_exec_key": rng.choice((None, 1, 2)) if kind == "graph_launch" else None,
            }
        )
        count = {"launch": 1, "graph_launch": rng.choice((0, 3, 3)), "copy": rng.randint(0, 1)}
        for _ in range(count.get(kind, 0)):
            _op(rng, rows, process, devices, lanes, kind, call_id, end_ns)
        if kind == "event_wait" and rng.random() < 0.8:
            _wait(rng, rows, process, lanes, call_id, end_ns)
        if kind == "copy":
            ops = rows["ops"]
            mine = ops and ops[-1]["correlation_id"] == call_id + 10
            rows["copies"].append(
                {
                    "call_id": rng.choice((call_id, call_id, None)),
                    "op_id": ops[-1]["op_id"] if mine else None,
                    "process_id": process,
                    "copied_bytes": rng.choice((None, 64, 4096)),
                    "direction": rng.choice((*COPY_DIRECTIONS, None)),
                    "is_blocking": rng.choice((True, False, None)),
                    "is_pinned": rng.choice((True, False, None)),
                }
            )


def _op(rng, rows, process, devices, lanes, kind, call_id, called_ns):
    start_ns = max(0, called_ns + rng.randint(-3, 40))
    recorded = rng.random() < 0.9
    rows["ops"].append(
        {
            "op_id": len(rows["ops"]),
            "kind": "copy"
            if kind == "copy"
            else rng.choice(("kernel", "kernel", "fill", "barrier")),
            "name": rng.choice(("a", "b", "ncclDevKernel_Generic")),
            "process_id": process,
            "device_id": rng.randrange(devices),
            "queue_id": rng.choice((*range(lanes), None)),
            "stream_id": rng.choice((*range(lanes), None)),
            "start_ns": start_ns,
            "end_ns": start_ns + rng.choice((0, 1, 4, 30)),
            "call_id": call_id if recorded else None,
            "correlation_id": call_id + 10 if recorded else rng.choice((3, None)),
            "graph_launch_id": call_id if kind == "graph_launch" and recorded else None,
        }
    )
    if rng.random() < 0.1:
        rows["messages"].append(
            {
                "op_id": rows["ops"][-1]["op_id"],
                "process_id": process,
                "collective": rng.choice(("allreduce", "broadcast", None)),
                "dtype": rng.choice(("Float", None)),
                "in_elements": rng.choice((None, 0, 1, 1000)),
                "group_size": rng.choice((2, None)),
                "group": rng.choice(("0", None)),
                "sequence": rng.choice((1, None)),
            }
        )


def _wait(rng, rows, process, lanes, call_id, called_ns):
    sides = ("waiting_stream", "waiting_queue", "recording_stream", "recording_queue")
    rows["waits"].append(
        {
            "wait_id": len(rows["waits"]),
            "process_id": process,
            **{f"{side}_id": rng.choice((*range(lanes), None)) for side in sides},
            "wait_call_id": rng.choice((call_id, call_id, None)),
            "pending_start_ns": rng.choice((called_ns, called_ns, None)),
            "pending_end_ns": rng.choice((called_ns + rng.randint(0, 60), None)),
            "evidence": rng.choice(("recorded", "inferred")),
        }
    )


def _table(table: Table, rows):
    schema = {column.name: column.dtype for column in table.columns}
    return pl.DataFrame(rows, schema=schema, orient="row")


def without_calls(frames):
    nothing = [pl.lit(None, pl.Int64).alias(name) for name in ("call_id", "graph_launch_id")]
    return frames | {
        "calls": frames["calls"].clear(),
        "ops": frames["ops"].with_columns(nothing),
        "copies": frames["copies"].with_columns(nothing[0]),
    }


def with_windows(frames, cut=0):
    """The default windows, or those without `cut` ns on either side."""
    work = frames["ops"].filter(pl.col("kind") != "barrier")
    spans = work.group_by("device_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    spans = spans.with_columns(pl.col("start_ns") + cut, pl.col("end_ns") - cut)
    spans = spans.filter(pl.col("start_ns") < pl.col("end_ns"))
    bounds = (cut, spans["end_ns"].max()) if cut else (None, None)
    host = pl.DataFrame([(None, *bounds)], schema=WINDOWS.schema, orient="row")
    return frames | {"windows": pl.concat([spans, host])}


traces = st.builds(
    lambda cut, **how: with_windows(synthetic_trace(**how), cut),
    cut=st.sampled_from((0, 0, 25)),
    seed=st.integers(0, 10_000),
    size=st.integers(0, 40),
    processes=st.integers(1, 3),
    devices=st.integers(1, 2),
    lanes=st.integers(0, 3),
    marker=st.sampled_from(MARKERS),
    instants=st.booleans(),
    with_calls=st.sampled_from((True, True, False)),
)


def shifted(frame, table, by_ns):
    times = [column.name for column in table.columns if column.unit is Unit.TIME]
    return frame.with_columns(pl.col(times) + by_ns) if times else frame


@every_analysis
def test_nothing_in_nothing_out_with_the_declared_columns(analysis):
    frames = with_windows({name: table.empty() for name, table in TABLES.items()})
    result = call_with_tables(analysis.compute, frames)
    assert result.schema == analysis.table.schema
    assert result.is_empty()


@every_analysis
@settings(max_examples=24, deadline=None)
@given(frames=traces)
def test_the_result_has_exactly_the_declared_columns(analysis, frames):
    result = call_with_tables(analysis.compute, frames)
    assert result.schema == analysis.table.schema
    assert result.equals(analysis.table.conform(result))


@every_analysis
@settings(max_examples=24, deadline=None)
@given(frames=traces)
def test_a_trace_recorded_a_day_later_gives_the_result_a_day_later(analysis, frames):
    later = {
        name: shifted(frame, WINDOWS if name == "windows" else TABLES[name], DAY_NS)
        for name, frame in frames.items()
    }
    result = call_with_tables(analysis.compute, frames)
    assert call_with_tables(analysis.compute, later).equals(shifted(result, analysis.table, DAY_NS))


@every_analysis
@settings(max_examples=20, deadline=None)
@given(frames=traces)
def test_an_analysis_changes_none_of_its_inputs_and_repeats_itself(analysis, frames):
    before = {name: frame.clone() for name, frame in frames.items()}
    first = call_with_tables(analysis.compute, frames)
    again = call_with_tables(analysis.compute, frames)
    assert first.equals(again)
    assert all(frames[name].equals(frame) for name, frame in before.items())


@every_analysis
@settings(max_examples=16, deadline=None)
@given(frames=traces)
def test_shares_lie_between_none_and_all_and_lengths_are_not_negative(analysis, frames):
    result = call_with_tables(analysis.compute, frames)
    for column in analysis.table.columns:
        values = result[column.name].drop_nulls()
        if column.unit is Unit.SHARE:
            assert values.is_between(0, 1).all(), column.name
        if column.unit is Unit.DURATION and not column.name.startswith("queued_"):
            assert (values >= 0).all(), column.name
        if values.dtype.is_float():
            assert values.is_finite().all(), column.name


@every_analysis
@settings(max_examples=16, deadline=None)
@given(frames=traces)
def test_caveats_carry_the_name_of_their_analysis(analysis, frames):
    if analysis.caveats is None:
        return
    nothing = with_windows({name: table.empty() for name, table in TABLES.items()})
    for tables in (frames, nothing):
        made = {}
        if "result" in tables_of(analysis.caveats):
            made["result"] = call_with_tables(analysis.compute, tables)
        for note in call_with_tables(analysis.caveats, tables | made):
            assert note.code.startswith(f"{analysis.name}.")
            assert note.count > 0
            assert note.message


@every_analysis
def test_every_column_is_documented_and_its_unit_agrees_with_its_name(analysis):
    assert analysis.table.name == analysis.name
    assert analysis.question.endswith("?")
    assert set(tables_of(analysis.compute)) <= {*TABLES, "windows"}
    units = {
        "_ns": {Unit.DURATION, Unit.TIME},
        "_share": {Unit.SHARE},
        "_bytes": {Unit.BYTES},
        "_id": {Unit.ID},
    }
    for column in analysis.table.columns:
        assert column.meaning.endswith("."), column.name
        for suffix, allowed in units.items():
            assert not column.name.endswith(suffix) or column.unit in allowed, column.name
        assert column.unit is not Unit.TIME or column.name.endswith("_ns"), column.name


def test_the_synthetic_traces_reach_every_analysis():
    frames = [
        with_windows(synthetic_trace(seed, marker=marker))
        for seed in range(4)
        for marker in MARKERS
    ]
    for analysis in analyses().values():
        assert any(call_with_tables(analysis.compute, found).height for found in frames), (
            analysis.name
        )


@every_analysis
def test_what_a_narrow_terminal_keeps_are_columns_of_the_table(analysis):
    assert set(analysis.table.answers) <= set(analysis.table.schema)
