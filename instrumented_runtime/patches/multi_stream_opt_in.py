"""SGLang on HIP: who asks for DeepSeek-V4's compressors on side streams gets them.

SGLang takes back SGLANG_OPT_USE_MULTI_STREAM_OVERLAP on HIP whatever the user has set, gives plain
DeepSeek-V4 layers no side streams there, and where it does fork, key and value go to a pool that is
not the one attention reads when that is unified. Patched, overlap is off only if it is not set, and
layers fork around their single-stream code, which knows all pools.
"""

import ast
import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from . import Patch, Site, Verdict
from .parts import source
from .parts.side_streams import forking, keeping_streams
from .parts.work import Work

HOOK = "sglang.srt.arg_groups.model_hook"
MODEL = "sglang.srt.models.deepseek_v4"
INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
GATE = "sglang.srt.layers.attention.dsv4.unified_kv_gate"

FLAG = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"
_ADJUST = "handle_model_specific_adjustments"
_PREPARE = "MQALayer._forward_prepare"
_PREPARE_TAKES = [
    *("x", "positions", "forward_batch", "attn_backend", "q_out", "x_quant"),
    *("q_rope_out", "k_nope_out", "k_rope_out"),
]
_CONDITIONS = ["envs", "get_is_capture_mode", "is_in_breakable_cuda_graph", "is_cp_active"]
_SIDE_CALLS = {
    "attn_backend.forward_core_compressor": [
        "x",
        "forward_batch",
        "self.layer_id",
        "self.compressor",
    ],
    "attn_backend.forward_indexer_compressor": [
        *("x=x", "forward_batch=forward_batch", "layer_id=self.indexer.layer_id"),
        "compressor=self.indexer.compressor",
    ],
}


def _check() -> Verdict:
    torch: Any = sys.modules["torch"]
    if torch.version.hip is None:
        return Verdict("not-needed", "not HIP: elsewhere SGLang leaves the choice to the user")
    model, hook = source.tree(MODEL), source.tree(HOOK)
    if source.has(model, "MQALayer._forward_prepare_qkv"):
        return Verdict("not-needed", "layers prepare query, key and value in one place already")
    adjust = source.function(hook, _ADJUST)
    source.only_call(adjust, f"envs.{FLAG}.set", _ADJUST)
    if source.calls(adjust, f"envs.{FLAG}.is_set"):
        raise source.Unfit(f"{_ADJUST} asks whether {FLAG} is set, but layers are as before")
    _check_layer(model)
    _check_pool(model)
    source.function(source.tree(GATE), "is_unified_kv_triton")
    takes = source.parameters(source.function(source.tree(INDEXER), "C4Indexer.forward"))
    if not {"skip_compressor", "q_lora_quant", "x", "q_lora", "attn_backend"} <= set(takes):
        raise source.Unfit("C4Indexer.forward cannot be called without its compressor")
    return Verdict("needed", f"{FLAG} is taken back on HIP")


def _check_layer(model: ast.Module) -> None:
    source.require_names(model, MODEL, _CONDITIONS)
    init = source.function(model, "MQALayer.__init__")
    if "alt_streams" not in source.parameters(init):
        raise source.Unfit("MQALayer takes no alt_streams")
    if not source.assigned(init, "self._multi_stream_bs_limit"):
        raise source.Unfit("MQALayer has no _multi_stream_bs_limit")
    # The side runs what SGLang's own fork runs there.
    fork = source.function(model, "MQALayer._forward_prepare_multi_stream_hip")
    for name, expected in _SIDE_CALLS.items():
        if source.arguments(source.only_call(fork, name, fork.name)) != expected:
            raise source.Unfit(f"{fork.name} calls {name} in another way than the known one")
    prepare = source.function(model, _PREPARE)
    source.require_parameters(prepare, _PREPARE, _PREPARE_TAKES)
    whole = ast.unparse(prepare)
    called = [call for call in source.calls(prepare, "self.indexer") if not call.args]
    seen = whole.count("self.indexer(")
    if seen == 0 or len(called) != seen or "if self.compressor is not None:" not in whole:
        raise source.Unfit(f"{_PREPARE} runs its compressors in another way than the known one")
    forward = source.function(model, "MQALayer.forward")
    source.only_call(forward, "self._forward_prepare", "MQALayer.forward")
    wants = source.only_assigned(forward, "enable_multi_stream", "MQALayer.forward")
    choice = ast.parse(wants, mode="eval").body
    arms = [choice]
    if isinstance(choice, ast.BoolOp) and isinstance(choice.op, ast.Or):
        arms = choice.values
    has_streams = all("self.alt_streams is not None" in ast.unparse(arm) for arm in arms)
    if f"envs.{FLAG}.get()" not in wants or not has_streams:
        raise source.Unfit("MQALayer.forward forks on other conditions than the known ones")


def _check_pool(model: ast.Module) -> None:
    init = source.function(model, "DeepseekV4Model.__init__")
    pool = source.only_assigned(init, "use_stream_pool", "DeepseekV4Model.__init__")
    if "_is_hip" not in pool or f"envs.{FLAG}.get()" not in pool:
        raise source.Unfit("DeepseekV4Model makes no side streams on HIP")


def _apply(name: str, module: Any, work: Work) -> Verdict:
    if name == HOOK:
        work.replace(module, _ADJUST, _keeping_the_choice)
    else:
        layer = module.MQALayer
        wants = module.envs.SGLANG_OPT_USE_MULTI_STREAM_OVERLAP.get
        work.replace(layer, "__init__", lambda init: keeping_streams(init, wants, _is_unified))
        work.replace(layer, "_forward_prepare", lambda prepare: forking(prepare, module))
    return Verdict("applied", f"compressors overlap if {FLAG} is set to true")


def _is_unified() -> bool:
    # SGLang imports it in the functions that ask.
    gate: Any = importlib.import_module(GATE)
    return bool(gate.is_unified_kv_triton())


def _keeping_the_choice(adjust: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(adjust)
    def handle_model_specific_adjustments(*args: Any, **kwargs: Any) -> Any:
        chosen = os.environ.get(FLAG)
        try:
            return adjust(*args, **kwargs)
        finally:
            if chosen is not None:
                os.environ[FLAG] = chosen

    return handle_model_specific_adjustments


def _retreat() -> None:
    # Another process has kept the user's choice, which without the rest ends in a crash.
    os.environ[FLAG] = "False"


PATCH = Patch("multi-stream-opt-in", "sglang", (Site((HOOK, MODEL), _check, _apply, _retreat),))
