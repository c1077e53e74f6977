"""SGLang, older vLLM: AITER's prefill plan reaches the device in stream order.

`get_ps_metadata_v1` plans on the host and writes into the caller's device tensors by blocking
copies, which are ordered with no non-blocking stream. Kernels of the prefill before, still queued,
then read the plan of the one after. Patched, it plans into page-locked memory, which is copied on
the current stream.
"""

import ast
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import Patch, Site, Verdict
from .parts import source
from .parts.staged_plan import OUTPUTS, StagedPlans
from .parts.work import Work

SGLANG = "sglang.srt.layers.attention.aiter_backend"
VLLM = "vllm.v1.attention.backends.mla.rocm_aiter_mla"

_PLANNER = "get_ps_metadata_v1"
_BUFFERS = ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
_SGLANG_PLAN = "AiterAttnBackend.make_mla_prefill_ps_meta_data"
_SGLANG_BUILD = "AiterAttnBackend._build_prefill_ps_metadata"
_VLLM_BUILD = "AiterMLAMetadataBuilder._build_fp8_prefill_ps_metadata"


def _check_sglang() -> Verdict:
    module = source.tree(SGLANG)
    if _PLANNER not in source.names(module):
        return Verdict("not-needed", "this version plans no prefill by AITER")
    plan, build = source.function(module, _SGLANG_PLAN), source.function(module, _SGLANG_BUILD)
    if any("pin_memory=True" in ast.unparse(f) for f in (plan, build)):
        return Verdict("not-needed", f"{_SGLANG_BUILD} plans into page-locked memory already")
    _check_outputs(plan, _SGLANG_PLAN, [*_BUFFERS])
    if "exact_partial_count" not in source.parameters(build):
        raise source.Unfit(f"{_SGLANG_BUILD} has no exact_partial_count")
    if source.assigned(build, "num_partial_tiles") != [
        "int(reduce_indptr[-1].item())",
        "reduce_partial_map.size(0)",
    ]:
        raise source.Unfit(f"{_SGLANG_BUILD} counts partial tiles in another way than the known")
    source.require_names(module, SGLANG, ["_PREFILL_TILE_Q", "MlaPrefillPsMetadata"])
    return Verdict("needed", "the plan is written to the device out of stream order")


def _check_vllm() -> Verdict:
    module = source.tree(VLLM)
    if not source.has(module, _VLLM_BUILD):
        return Verdict("not-needed", "this version plans no prefill by AITER")
    if "_fp8_ps_staging" in ast.unparse(module):
        return Verdict("not-needed", f"{_VLLM_BUILD} stages its plan already")
    build = source.function(module, _VLLM_BUILD)
    if "pin_memory" in ast.unparse(build):
        raise source.Unfit(
            f"{_VLLM_BUILD} handles page-locked memory in a way this patch does not know"
        )
    _check_outputs(build, _VLLM_BUILD, [f"self.fp8_ps_{name}" for name in _BUFFERS])
    imported = [n for n in ast.walk(build) if isinstance(n, ast.ImportFrom) and n.module == "aiter"]
    if not any(alias.name == _PLANNER for node in imported for alias in node.names):
        raise source.Unfit(f"{_VLLM_BUILD} does not take {_PLANNER} from aiter when it runs")
    return Verdict("needed", "the plan is written to the device out of stream order")


def _check_outputs(caller: ast.FunctionDef, name: str, outputs: list[str]) -> None:
    given = source.arguments(source.only_call(caller, _PLANNER, name))[: OUTPUTS.stop]
    if given[OUTPUTS] != outputs:
        raise source.Unfit(f"{name} gives the planner other arguments than the known ones")


def _apply_sglang(_name: str, module: Any, work: Work) -> Verdict:
    if _PLANNER not in vars(module):
        raise source.Unfit("AITER could not be imported")
    plans = StagedPlans()
    work.replace(module, _PLANNER, plans.staging)
    work.replace(
        module.AiterAttnBackend,
        "_build_prefill_ps_metadata",
        lambda build: _counting_on_host(build, plans, module._PREFILL_TILE_Q),
    )
    return Verdict("applied", "plans are staged, partial tiles counted on the host")


def _counting_on_host(
    build: Callable[..., Any], plans: StagedPlans, tile_rows: int
) -> Callable[..., Any]:
    @functools.wraps(build)
    def _build_prefill_ps_metadata(
        self: Any, *, exact_partial_count: bool = True, **given: Any
    ) -> Any:
        metadata = build(self, exact_partial_count=False, **given)
        if not exact_partial_count:
            return metadata
        tiles = plans.partial_tiles(metadata.reduce_indptr)
        if tiles is None:
            # Not staged, so only the device knows.
            tiles = int(metadata.reduce_indptr[-1].item())
            last_rows = metadata.reduce_partial_map[:tiles]
        else:
            last_rows = plans.last_host_plan[-1][:tiles]
        # The two mistakes of a planner that the original looks for, both of which end in kernels
        # that read or write where they must not.
        assert tiles > 0 or not metadata.need_lse, "a plan without partial tiles writes no LSE"
        assert tiles == 0 or int(last_rows.max()) <= (tiles - 1) * tile_rows, (
            f"the plan's partial rows reach beyond its {tiles} partial tiles"
        )
        metadata.num_partial_tiles = tiles
        return metadata

    return _build_prefill_ps_metadata


def _apply_vllm(_name: str, _module: ModuleType, work: Work) -> None:
    plans = StagedPlans()

    def aiter_is_there(aiter: ModuleType) -> None:
        if _PLANNER not in vars(aiter):
            work.say("refused", f"this version of AITER has no {_PLANNER}")
            return
        # By its own name in AITER: it is imported anew in each call, here and by others.
        work.replace(aiter, _PLANNER, plans.staging)
        work.say("applied", "plans are staged; partial tiles are still counted on the device")

    work.say("waiting", "AITER is not imported in this process")
    work.when_imported("aiter", aiter_is_there)


PATCH = Patch(
    "stage-ps-metadata",
    "sglang or vllm",
    (Site((SGLANG,), _check_sglang, _apply_sglang), Site((VLLM,), _check_vllm, _apply_vllm)),
)
