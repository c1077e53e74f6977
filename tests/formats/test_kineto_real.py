"""The Kineto reader on traces recorded by others, against their index and an independent reader."""

import gzip
import json
from decimal import Decimal

import polars as pl
import pytest

from tracekit.formats import identify, silent
from tracekit.formats.kineto import FORMAT
from tracekit.tables.catalog import TABLES

# Kernels, memory copies, memory sets, runtime rows, as traces/INDEX.md counts them.
INDEX = {
    "mi300x_sglang_qwen3-8b_decode_graph.json.gz": (555, 3, 0, 29),
    "mi3xx_vllm_decode_full_graph_execution.json.gz": (425, 9, 0, 20),
    "mi3xx_vllm_piecewise_graph_capture_rank0.json.gz": (99, 1, 0, 3184),
    "mi300x_xdit_flux1_capture_rank0.json.gz": (2540, 15, 0, 9039),
    "mi210_gpu_only.json.gz": (562, 0, 0, 631),
    "mi300x_qwen1.5-0.5b.json.gz": (1516, 1, 0, 1707),
    "h100_qwen1.5-0.5b.json.gz": (1465, 1, 241, 1922),
    "mi300x_resnet_fsdp_rank0of8.json.gz": (2995, 550, 108, 3100),
    "mi300x_torch_compile_triton.json.gz": (12, 0, 0, 59),
    "a100_alexnet_cuda_sync.json.gz": (79, 16, 3, 361),
    "a100_event_sync_multi_stream.json.gz": (3, 0, 3, 39),
    "a100_nccl_rank0of2.json.gz": (2700, 960, 114, 8740),
    "a100_multistream_graphs_rank0of16.json.gz": (6080, 1390, 277, 33924),
    "sampled_rank0of128.json.gz": (1154, 40, 10, 1204),
    "sampled_rank1of128.json.gz": (1104, 40, 10, 1154),
    "mi350x_rocprofiler-sdk_backend_200691.pt.trace.json": (20, 0, 0, 73),
    "mi300x_4ranks_fused_nccl_only.json.gz": (84, 0, 0, 0),
}


@pytest.fixture(scope="module")
def kineto(real_traces):
    """Read a real file once per module."""
    read = {}

    def trace(name):
        if name not in read:
            read[name] = FORMAT.read(real_traces / "kineto" / name, silent)
        return read[name]

    return trace


def codes(trace):
    return {note.code: note.count for note in trace.notes}


def independent(path):
    """Return `(category, start_ns, duration_ns)` of device rows, by the standard library alone."""
    text = (
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    ).decode()
    file = json.loads(text, strict=False, parse_float=Decimal)
    base = file.get("baseTimeNanoseconds", 0)
    return [
        (event["cat"], base + int(event["ts"] * 1000), int(event["dur"] * 1000))
        for event in file["traceEvents"]
        if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}
    ]


@pytest.mark.parametrize("name", INDEX)
def test_counts_are_those_of_the_index(kineto, real_traces, name):
    trace = kineto(name)
    assert identify(real_traces / "kineto" / name).name == "kineto"
    kernels, copies, fills, calls = INDEX[name]
    kinds = dict(trace.table("ops").group_by("kind").len().iter_rows())
    blits = trace.table("ops").filter(
        pl.col("name").cast(pl.String).str.starts_with("__amd_rocclr_")
    )
    assert kinds.get("kernel", 0) + blits.height == kernels
    assert trace.table("ops").height == kernels + copies + fills
    assert trace.table("calls").height == calls


@pytest.mark.parametrize("name", INDEX)
def test_times_agree_to_the_nanosecond_with_decimal_arithmetic(kineto, real_traces, name):
    rows = independent(real_traces / "kineto" / name)
    ops = kineto(name).table("ops").sort("start_ns", "end_ns")
    expected = sorted((start, start + duration) for _, start, duration in rows)
    assert ops.select("start_ns", "end_ns").rows() == expected


@pytest.mark.parametrize("name", INDEX)
def test_frames_hold_their_declared_columns_and_references_resolve(kineto, name):
    trace = kineto(name)
    for table in trace.frames:
        assert trace.table(table).schema == TABLES[table].schema
    ids = {"call": "calls", "op": "ops", "stream": "streams", "queue": "queues"}
    ids |= {"process": "processes", "device": "devices", "range": "ranges"}
    for table in trace.frames:
        for column in TABLES[table].columns:
            if column.space in ids:
                known = trace.table(ids[column.space]).to_series(0)
                used = trace.table(table)[column.name].drop_nulls()
                assert used.is_in(known.implode()).all(), (table, column.name)
                assert known.is_unique().all()


def test_most_of_a_sglang_decode_step_is_one_graph_launch(kineto):
    trace = kineto("mi300x_sglang_qwen3-8b_decode_graph.json.gz")
    launched = trace.table("ops").drop_nulls("graph_launch_id")
    assert launched.height == 544
    assert launched["correlation_id"].n_unique() == 1
    assert trace.table("devices").select("index", "name").rows() == [(9, "AMD Instinct MI300X")]


def test_kernels_queued_before_the_window_have_no_call(kineto):
    trace = kineto("mi300x_resnet_fsdp_rank0of8.json.gz")
    uncalled = trace.table("ops").filter(pl.col("call_id").is_null())
    assert uncalled.height == codes(trace)["kineto.op-queued-before-window"] == 968
    assert (uncalled["kind"] == "kernel").sum() == 757
    handles = trace.table("ops").join(trace.table("queues"), on="queue_id")
    assert dict(handles.group_by("handle").len().iter_rows()) == {0: 3636, 4: 17}
    assert trace.table("processes")["rank"].to_list() == [0]


def test_recorded_waits_of_cuda_name_both_streams_and_both_calls(kineto):
    trace = kineto("a100_alexnet_cuda_sync.json.gz")
    waits = trace.table("waits")
    assert waits.height == 20
    for column in ("waiting_stream_id", "recording_stream_id", "wait_call_id", "record_call_id"):
        assert waits[column].null_count() == 0
    kinds = waits.join(trace.table("calls"), left_on="record_call_id", right_on="call_id")["kind"]
    assert set(kinds) == {"event_record"}
    assert (waits["pending_end_ns"] >= waits["pending_start_ns"]).all()


def test_the_documented_wait_is_read_as_documented(kineto):
    trace = kineto("a100_event_sync_multi_stream.json.gz")
    (wait,) = trace.table("waits").rows(named=True)
    handles = dict(trace.table("streams").select("stream_id", "handle").iter_rows())
    assert handles[wait["waiting_stream_id"]] == 24
    assert handles[wait["recording_stream_id"]] == 20
    calls = trace.table("calls").filter(pl.col("event_key") == 19)
    assert calls["correlation_id"].to_list() == [1385, 1389]


def test_rocm_files_say_that_waits_are_unknown_and_streams_are_queues(kineto):
    for name in INDEX:
        if name.startswith("mi"):
            noted = codes(kineto(name))
            assert {"kineto.waits-unknown", "kineto.stream-is-queue"} <= set(noted), name


def test_four_fused_ranks_are_four_processes_on_four_devices(kineto):
    trace = kineto("mi300x_4ranks_fused_nccl_only.json.gz")
    assert trace.table("processes")["rank"].to_list() == [0, 1, 2, 3]
    per_rank = trace.table("ops").group_by("process_id", "device_id").len().sort("process_id")
    assert per_rank["len"].to_list() == [21, 21, 21, 21]


def test_python_frames_around_blocking_calls_are_kept(kineto):
    trace = kineto("mi3xx_vllm_decode_full_graph_execution.json.gz")
    frames = trace.table("ranges").filter(pl.col("kind") == "frame")
    assert frames["text"].str.contains("method synchronize").sum() == 1
    assert frames.height + codes(trace)["kineto.frames-dropped"] == 984
