"""vLLM's and AITER's targets, in small packages with their names: neither runs without their GPU.

The names are those of vLLM 0.33.0 and of AITER at e4048607; the bodies are ours.
"""

import pytest
from hooked import run_hooked

from instrumented_runtime.hooks.aiter import HOOK as AITER
from instrumented_runtime.hooks.vllm import HOOK as VLLM
from tracekit.formats import read_trace

MODULES = sorted({target.module for target in VLLM.targets})
PROGRAM = """
import importlib, torch
from types import SimpleNamespace as Namespace
from in_server import turn_window
for module in MODULES:
    importlib.import_module(module)
from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

class Engine(EngineCore):
    def __init__(self):
        self.runner = GPUModelRunner()
    def step(self, *arguments):
        super().step()
        return self.runner.execute_model(*arguments)

engine = Engine()
turn_window()
for scheduled, drafts in (({"a": 7, "b": 1}, {}), ({"a": 1, "b": 1}, {}), ({"a": 3}, {"a": [1, 2]})):
    engine.step(Namespace(num_scheduled_tokens=scheduled, scheduled_spec_decode_tokens=drafts))

import user
plan = {name: torch.zeros(2 + i, dtype=torch.int32) for i, name in enumerate(user.PLAN)}
user.prefill(plan)
print({hex(tensor.data_ptr()): name for name, tensor in plan.items()})
turn_window()
"""
# Imports the names from the package, as servers do.
USER = """
from aiter import get_ps_metadata_v1, mla_prefill_ps_asm_fwd, mla_reduce_v1
PLAN = ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")

def prefill(plan):
    get_ps_metadata_v1(1, 2, 3, 4, 5, None, *plan.values(), is_causal=True)
    q = k = v = qo = kv = pages = None
    mla_prefill_ps_asm_fwd(q, k, v, qo, kv, pages, plan["work_indptr"], plan["work_info"], 256, 1.0,
                           True, None, None, None, None, None, None)
    mla_reduce_v1(None, None, plan["reduce_indptr"], reduce_final_map=plan["reduce_final_map"],
                  reduce_partial_map=plan["reduce_partial_map"], max_seqlen_q=256, num_kv_splits=0,
                  final_output=None)
"""


def vllm_source(module):
    """Return a module with the functions that the hook wraps there."""
    methods = {}
    for target in VLLM.targets:
        if target.module == module:
            owner, name = target.attribute.split(".")
            methods.setdefault(owner, []).append(
                f"    def {name}(self, *arguments): return {name!r}"
            )
    return "\n".join(f"class {owner}:\n" + "\n".join(lines) for owner, lines in methods.items())


def aiter_source():
    return "".join(
        f"def {target.attribute}({', '.join(f'{name}=None' for name in target.parameters.split())}):\n"
        "    pass\n"
        for target in AITER.targets
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    sources = {module: vllm_source(module) for module in MODULES} | {
        "aiter": "from aiter.ops.attention import *",
        "aiter.ops": "",
        "aiter.ops.attention": aiter_source(),
        "user": USER,
    }
    for module in list(sources):
        parts = module.split(".")
        for depth in range(1, len(parts)):
            sources.setdefault(".".join(parts[:depth]), "")
    for module, source in sources.items():
        path = folder.joinpath(*module.split("."))
        path.mkdir(parents=True, exist_ok=True)
        (path / "__init__.py").write_text(source)
    ran = run_hooked(
        PROGRAM.replace("MODULES", repr(MODULES)),
        tmp_path_factory.mktemp("ran"),
        hooks="vllm,aiter,torch_profiler",
        paths=[folder],
        TRACEKIT_MARKERS="record_function",
        TRACEKIT_PROFILE_CPU="1",
    )
    assert ran.status == 0, ran.log
    return ran


@pytest.fixture(scope="module")
def texts(ran):
    ranges = (
        read_trace(ran.traces).table("ranges").sort("start_ns", "end_ns", descending=[False, True])
    )
    return ranges["text"].to_list()


def test_every_target_is_found(ran):
    for name, hook in (("vllm", VLLM), ("aiter", AITER)):
        report = ran.report["hooks"][name]
        assert len(report["found"]) == len(hook.targets)
        assert (report["missing"], report["changed"], report["waiting"]) == ([], [], [])
    assert ran.report["problems"] == []


def test_a_worker_s_model_calls_are_steps_within_its_engine_s(texts):
    assert [text for text in texts if "step" in text or "execute" in text] == [
        "EngineCore.step",
        "tk1 step 1 bs=2",
        "GPUModelRunner.execute_model",
        "EngineCore.step",
        "tk1 step 2 kind=decode bs=2",
        "GPUModelRunner.execute_model",
        "EngineCore.step",
        "tk1 step 3 kind=verify bs=1",
        "GPUModelRunner.execute_model",
    ]


def test_a_plan_s_buffers_are_declared_once_and_used_by_those_who_read_them(ran, texts):
    names = eval(ran.output)
    said = []
    for text in texts[texts.index("get_ps_metadata_v1") :]:
        words = text.split()
        if words[1:2] == ["use"]:
            said.append(f"use {names[words[2]]} {words[3]}")
        elif words[1:2] == ["buffer"]:
            assert words[5] == f"name={names[words[2]]}"
            said.append(" ".join([*words[4:6], words[6]]))
        elif not text.startswith("aten"):
            said.append(text)
    assert said == [
        "get_ps_metadata_v1",
        "size=8 name=work_indptr place=pageable",
        "size=12 name=work_info place=pageable",
        "size=16 name=reduce_indptr place=pageable",
        "size=20 name=reduce_final_map place=pageable",
        "size=24 name=reduce_partial_map place=pageable",
        "mla_prefill_ps_asm_fwd",
        "use work_indptr r",
        "use work_info r",
        "mla_reduce_v1",
        "use reduce_indptr r",
        "use reduce_final_map r",
        "use reduce_partial_map r",
    ]
