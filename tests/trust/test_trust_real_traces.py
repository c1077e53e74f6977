"""Marks of traces of real GPUs, against counts by plain Python, and of the engine's own."""

import gzip
import json

import pytest

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request
from tracekit.formats import read_trace
from tracekit.pipeline import analyse

RESNET = "mi300x_resnet_fsdp_rank0of8.json.gz"
A100_GRAPHS = "a100_multistream_graphs_rank0of16.json.gz"
SGLANG = "mi300x_sglang_qwen3-8b_decode_graph.json.gz"
VLLM = "mi3xx_vllm_decode_full_graph_execution.json.gz"
WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
CALLS = {"cuda_runtime", "cuda_driver"}


def read_json(path):
    with gzip.open(path, "rt", errors="replace") as file:
        return json.load(file)


def of(document, categories):
    return [event for event in document["traceEvents"] if event.get("cat") in categories]


def correlation(event):
    return event["args"].get("correlation", event["args"].get("External id"))


def busy_us(work):
    """Length of the union, by one pass over the rows in time order."""
    busy, reached = 0.0, float("-inf")
    for start, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in work):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy


@pytest.mark.parametrize(
    ("name", "counted", "kernels"), [(RESNET, (968, 3653), (757, 2995)), (A100_GRAPHS, None, None)]
)
def test_ops_queued_before_recording_are_those_below_the_first_call(
    real_traces, marks_of, name, counted, kernels
):
    document = read_json(real_traces / "kineto" / name)
    work = of(document, WORK)
    first = min(correlation(call) for call in of(document, CALLS) if "args" in call)
    early = [event for event in work if correlation(event) < first]
    if counted:
        is_kernel = [event for event in work if event["cat"] == "kernel"]
        early_kernels = [event for event in early if event["cat"] == "kernel"]
        assert (len(early), len(work)) == counted
        assert (len(early_kernels), len(is_kernel)) == kernels
    mark = marks_of(read_trace([real_traces / "kineto" / name]))["window.ops-queued-before"]
    assert (mark.numbers["ops"], mark.numbers["device_ops"]) == (len(early), len(work))
    # Times of the file are microseconds with three digits.
    assert mark.numbers["busy_ns"] == pytest.approx(1000 * busy_us(early), rel=1e-6)
    share = busy_us(early) / busy_us(work)
    assert mark.numbers["busy_share"] == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("name", [RESNET, A100_GRAPHS, SGLANG, VLLM])
def test_waits_of_streams_are_unknown_where_the_file_has_no_row_of_them(
    real_traces, marks_of, name
):
    document = read_json(real_traces / "kineto" / name)
    assert of(document, {"cuda_sync"}) == []
    asked = sum("StreamWaitEvent" in call["name"] for call in of(document, CALLS))
    found = marks_of(read_trace([real_traces / "kineto" / name]))
    if not asked:
        assert "waits.unpaired" not in found
    else:
        assert found["waits.unpaired"].numbers == {"unpaired_waits": asked, "asked_waits": asked}


@pytest.mark.parametrize(("name", "launches"), [(A100_GRAPHS, 70), (SGLANG, 1), (VLLM, 1)])
def test_without_the_ops_of_its_graphs_a_trace_says_how_busy_the_device_may_have_been(
    real_traces, marks_of, tmp_path, name, launches
):
    path = real_traces / "kineto" / name
    assert "graphs.launches-without-ops" not in marks_of(read_trace([path]))
    document = read_json(path)
    graphs = {
        correlation(call) for call in of(document, CALLS) if call["name"].endswith("GraphLaunch")
    }
    assert len(graphs) == launches
    work = of(document, WORK)
    kept = [event for event in work if correlation(event) not in graphs]
    lost = {id(event) for event in work if correlation(event) in graphs}
    document["traceEvents"] = [e for e in document["traceEvents"] if id(e) not in lost]
    (tmp_path / "lost.json").write_text(json.dumps(document))
    trace = read_trace([tmp_path / "lost.json"])
    found = marks_of(trace)
    mark = found["graphs.launches-without-ops"]
    assert mark.numbers["launches_without_ops"] == mark.numbers["graph_launches"] == launches
    # Microseconds since 1970 as Python floats are good to a quarter of one.
    assert mark.numbers["busy_at_least_ns"] == pytest.approx(1000 * busy_us(kept), rel=1e-4)
    start, end = min(e["ts"] for e in kept), max(e["ts"] + e["dur"] for e in kept)
    inside = [
        {"ts": max(e["ts"], start), "dur": min(e["ts"] + e["dur"], end) - max(e["ts"], start)}
        for e in work
        if e["ts"] < end and e["ts"] + e["dur"] > start
    ]
    truth_ns = 1000 * busy_us(inside)
    assert mark.numbers["busy_at_least_ns"] < truth_ns
    assert truth_ns <= mark.numbers["busy_at_most_ns"] * (1 + 1e-9)
    assert analyse(trace, only=["kernels"]).devices[0].busy_is_at_least


@pytest.mark.parametrize("policy", ["host-sync", "event-wait", "forward-stream"])
def test_nothing_is_doubtful_in_the_engines_own_trace_but_that_it_is_a_model(
    marks_of, tmp_path, policy
):
    config = Config(tensors=False, host_costs_ns=Costs().host_ns)
    with Recorder(tmp_path, environment=config.environment()) as recorder:
        device = VirtualDevice(config, recorder)
        options = EngineConfig(policy=policy, max_running=2, has_tensors=False)
        engine = Engine(device, options, marks=Marks(device))
        engine.run([Request(1, (3, 1, 4, 1, 5), 30), Request(2, (2, 7, 1, 8), 30)])
    assert set(marks_of(read_trace([tmp_path / "virtual_1.db"]))) == {"device.modelled"}
