"""AITER's persistent-scheduling prefill: its plan as buffers, who reads it as uses.

The planner gets no `use`: the next copies of its thread are those of its inputs, and the copies of
the plan come after them from inside one call. Their addresses are in a trace of rocprofv3, and
`buffer` says what lies there.
"""

import sys
from typing import Any

from .process import Process
from .targets import Function, Hook, Maker, Target, parameter_names

_PLANNER = (
    "seqlens_qo_indptr pages_kv_indptr context_lens gqa_ratio num_heads_k work_metadata_ptrs "
    "work_indptr work_info reduce_indptr reduce_final_map reduce_partial_map qhead_granularity "
    "qlen_granularity kvlen_granularity block_size is_causal"
)
_PREFILL = (
    "Q K V qo_indptr kv_indptr kv_page_indices work_indptr work_info_set max_seqlen_q "
    "softmax_scale is_causal splitData splitLse output q_scale k_scale v_scale"
)
_REDUCE = (
    "partial_output partial_lse reduce_indptr reduce_final_map reduce_partial_map max_seqlen_q "
    "num_kv_splits final_output final_lse"
)
_PLAN = ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
# The prefill calls the planner's `work_info` by another name.
_NAMES = {"work_info_set": "work_info"}


def _plan(mode: str, parameters: str) -> Maker:
    """Return what declares the plan among a call's arguments; with a mode, as used by its launch.

    Args:
        mode: `r`, `w`, or "" to say only where the buffers lie.
        parameters: Names of the parameters, where the function itself does not tell them.
    """

    def make(process: Process, function: Function, text: str) -> Function:
        gate, push, pop = process.gate, process.markers.push, process.markers.pop
        is_compiling = sys.modules["torch"].compiler.is_compiling  # aiter itself imports it
        places = _places(parameter_names(function) or parameters.split())
        if not places:
            raise TypeError("none of its parameters is part of a plan")

        def say(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for index, parameter, name in places:
                tensor = args[index] if index < len(args) else kwargs.get(parameter)
                if tensor is None:
                    continue
                if mode:
                    process.buffers.use(tensor, mode, name)
                else:
                    process.buffers.declare(tensor, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not gate[0]:
                return function(*args, **kwargs)
            pushed = push(text)
            try:
                process.guarded(say, args, kwargs)
                return function(*args, **kwargs)
            finally:
                if pushed:
                    pop()

        return call

    return make


def _places(parameters: list[str]) -> list[tuple[int, str, str]]:
    """Return position, parameter and buffer name of what belongs to a plan."""
    named = [(index, name, _NAMES.get(name, name)) for index, name in enumerate(parameters)]
    return [place for place in named if place[2] in _PLAN]


def _targets(module: str) -> tuple[Target, ...]:
    return (
        Target(module, "get_ps_metadata_v1", _PLANNER, _plan("", _PLANNER)),
        Target(module, "mla_prefill_ps_asm_fwd", _PREFILL, _plan("r", _PREFILL)),
        Target(module, "mla_reduce_v1", _REDUCE, _plan("r", _REDUCE)),
    )


HOOK = Hook("aiter", _targets("aiter.ops.attention"))
