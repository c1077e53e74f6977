"""Copies with addresses, where asked for; and hooks that the compiler does not see."""

import polars as pl
import pytest
from hooked import run_hooked
from runtime.real_gpu import gpu

from tracekit.formats import read_trace

ON_GPU = """
import torch
from in_server import turn_window
source = torch.arange(4, device="cuda")
pinned = torch.empty(4, dtype=torch.int64, pin_memory=True)
target = torch.empty_like(source)
graph = torch.cuda.CUDAGraph()
turn_window()
pinned.copy_(source, non_blocking=True)
torch.cuda.synchronize()
source.cpu()
torch.cuda.synchronize()
source[1].item()
torch.cuda.synchronize()
source.to("cpu")
source.to(torch.float32)
torch.cuda.synchronize()
target.copy_(pinned)
with torch.cuda.graph(graph):
    target.copy_(source)
turn_window()
print({source.data_ptr(): "source", pinned.data_ptr(): "pinned", target.data_ptr(): "target",
       source[1].data_ptr(): "second"})
"""


@gpu
def test_on_a_gpu_each_copy_has_its_buffers_and_a_captured_one_has_no_marker(tmp_path):
    ran = run_hooked(
        ON_GPU,
        tmp_path,
        hooks="torch_streams,torch_profiler",
        TRACEKIT_MARKERS="record_function",
        TRACEKIT_HOOK_COPIES="1",
    )
    assert (ran.status, ran.report["problems"]) == (0, []), ran.log
    names = eval(ran.output)
    trace = read_trace(ran.traces)
    kinds = dict(trace.table("calls").select("call_id", "kind").rows())
    accesses = trace.table("accesses").select("call_id", "address", "mode").rows()
    assert [(kinds[call], names[address], mode) for call, address, mode in accesses] == [
        ("copy", "source", "read"),
        ("copy", "pinned", "write"),
        ("copy", "source", "read"),
        ("copy", "second", "read"),
        ("copy", "source", "read"),
        ("copy", "pinned", "read"),
        ("copy", "target", "write"),
    ]
    # Each use names its stream, by which a stream that only copies is known.
    uses = [text for text in trace.table("ranges")["text"] if text.startswith("tk1 use ")]
    assert [text.rpartition(" ")[2] for text in uses] == ["stream=0x0"] * 7
    pinned = trace.table("copies").filter(pl.col("op_id").is_not_null())["is_pinned"].to_list()
    assert (pinned[0], pinned[-1]) == (True, True)


COMPILED = """
import torch
from aiter.ops.attention import mla_reduce_v1
from in_server import turn_window

@torch.compile(backend="eager", fullgraph=True)
def step(a, b):
    b.copy_(a)
    return mla_reduce_v1(b.to("cpu"), a.cpu())   # whose wrapper the compiler looks into

print(torch.Tensor.copy_.__wrapped__ is not None, mla_reduce_v1.__wrapped__ is not None)
print(step(torch.ones(2), torch.zeros(2)).tolist())
turn_window()
torch._dynamo.config.error_on_recompile = True
print(step(torch.ones(2), torch.zeros(2)).tolist())
print(torch.ones(2).cpu().tolist())
"""


# A function of a name that a hook wraps, which the compiler can see through.
REDUCE = "import torch\ndef mla_reduce_v1(a, reduce_indptr): return a + reduce_indptr\n"


@pytest.mark.slow
def test_compiled_code_stays_whole_and_is_not_compiled_again_when_the_window_opens(tmp_path):
    (tmp_path / "aiter" / "ops").mkdir(parents=True)
    (tmp_path / "aiter" / "ops" / "attention.py").write_text(REDUCE)
    ran = run_hooked(
        COMPILED, tmp_path, hooks="torch_streams,aiter", paths=[tmp_path], TRACEKIT_HOOK_COPIES="1"
    )
    assert ran.output == "True True\n[2.0, 2.0]\n[2.0, 2.0]\n[1.0, 1.0]\n", ran.log
    assert ran.report["problems"] == []
