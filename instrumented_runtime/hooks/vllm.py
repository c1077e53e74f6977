"""vLLM: the workers' calls of the model as steps, the engine's and the runner's parts as ranges.

Names are those of 0.33.0. A worker does not know when its engine is idle, so a step is the call.
What is compiled or captured, and what waits for requests, is left out.
"""

from collections.abc import Mapping
from typing import Any

from .process import Process
from .steps import Steps, step
from .targets import Hook, Target, ranges

_STEPS = Steps()
_RUNNERS = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")

_RANGES = """
v1.engine.core EngineCore.step
v1.engine.core EngineCore.step_with_batch_queue
v1.core.sched.scheduler Scheduler.schedule
v1.core.sched.scheduler Scheduler.update_from_output
v1.worker.gpu_worker Worker.execute_model
v1.worker.gpu_worker Worker.sample_tokens
v1.worker.gpu_model_runner GPUModelRunner.sample_tokens
v1.worker.gpu_model_runner GPUModelRunner._update_states
v1.worker.gpu_model_runner GPUModelRunner._prepare_inputs
v1.worker.gpu_model_runner GPUModelRunner._build_attention_metadata
v1.worker.gpu_model_runner GPUModelRunner._model_forward
v1.worker.gpu_model_runner GPUModelRunner._sample
v1.worker.gpu_model_runner GPUModelRunner._bookkeeping_sync
v1.worker.gpu_model_runner GPUModelRunner.propose_draft_token_ids
v1.worker.gpu_model_runner AsyncGPUModelRunnerOutput.get_output
v1.worker.gpu.model_runner GPUModelRunner.sample_tokens
v1.attention.backends.mla.rocm_aiter_mla AiterMLAMetadataBuilder.build
v1.attention.backends.mla.rocm_aiter_mla AiterMLAMetadataBuilder._build_fp8_prefill_ps_metadata
"""


def _described(
    _process: Process, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    output = args[1] if len(args) > 1 else kwargs["scheduler_output"]
    scheduled = output.num_scheduled_tokens
    drafts = getattr(output, "scheduled_spec_decode_tokens", None)
    kind = ""
    if scheduled and max(scheduled.values()) == 1:
        kind = "decode"
    elif drafts and drafts.keys() == scheduled.keys():
        kind = "verify"
    return {"kind": kind, "bs": len(scheduled)}


HOOK = Hook(
    "vllm",
    (
        *(
            Target(
                runner,
                "GPUModelRunner.execute_model",
                make=step(_STEPS, _described, lasts=False),
            )
            for runner in _RUNNERS
        ),
        *ranges("vllm", _RANGES),
    ),
)
