"""SGLang: its scheduler's cycle as steps, and the parts of the cycle as ranges.

Names and parameters are those of 0.5.23. What runs once per layer is left out: in a captured graph
it runs at capture only, and without graphs its markers would cost more than a fiftieth of a cycle.
"""

from collections.abc import Mapping
from typing import Any

from .process import Process
from .steps import Steps, ending, step
from .targets import Function, Hook, Target, ranged, ranges

_STEPS = Steps()
_SCHEDULER = "sglang.srt.managers.scheduler"
_PREFILLS = ("EXTEND", "SPLIT_PREFILL", "DLLM_EXTEND")
# The last name stays where two are one stream.
_STREAMS = {"schedule_stream": "schedule", "copy_stream": "copy", "forward_stream": "forward"}

_RANGES = """
managers.scheduler Scheduler.update_running_batch self batch
managers.scheduler Scheduler._apply_war_barrier self
managers.scheduler Scheduler._copy_result_to_cpu self batch_result batch
managers.scheduler Scheduler._relay_forward_payload self batch future_indices batch_result
managers.overlap_utils FutureMap.publish self future_indices new_seq_lens confidence
managers.overlap_utils FutureMap.stash self future_indices payload
managers.overlap_utils FutureMap.stash_bonus_tokens self indices bonus_tokens
managers.overlap_utils FutureMap.resolve_seq_lens_cpu self batch stream_ordered
managers.overlap_utils FutureMap.resolve_mixed_spec_tails self batch
managers.overlap_utils FutureMap.resolve_confidence_cpu self batch
managers.overlap_utils FutureMap._resolve_spec_extras self batch
managers.overlap_utils resolve_forward_inputs batch future_map
managers.min_free_slots_delayer MinFreeSlotsDelayer.should_delay self running_bs num_allocatable_reqs
managers.prefill_delayer PrefillDelayerSinglePassExecutor.finalize self actual_prefill_bs
managers.scheduler_components.batch_result_processor SchedulerBatchResultProcessor.process_batch_result_prefill self batch result
managers.scheduler_components.batch_result_processor SchedulerBatchResultProcessor.process_batch_result_decode self batch result
managers.scheduler_components.batch_result_processor SchedulerBatchResultProcessor._resolve_spec_v2_tokens self result batch
managers.tp_worker TpModelWorker.forward_batch_generation self batch forward_batch pp_proxy_tensors is_verify skip_attn_backend_init capture_hidden_mode return_kv_loc_plan
managers.utils GenerationBatchResult.copy_to_cpu self return_logprob return_hidden_states
managers.schedule_batch ScheduleBatch.prepare_for_extend self
managers.schedule_batch ScheduleBatch.prepare_for_decode self
managers.schedule_batch ScheduleBatch.mix_with_running self running_batch
model_executor.model_runner ModelRunner.forward self forward_batch skip_attn_backend_init pp_proxy_tensors reinit_attn_backend split_forward_count
model_executor.model_runner ModelRunner.sample self logits_output forward_batch
model_executor.runner.decode_cuda_graph_runner DecodeCudaGraphRunner.execute self forward_batch pp_proxy_tensors
model_executor.runner.decode_cuda_graph_runner DecodeCudaGraphRunner.load_batch self forward_batch pp_proxy_tensors
model_executor.runner.decode_cuda_graph_runner DecodeCudaGraphRunner.capture self
speculative.eagle_worker_common run_eagle_verify batch target_worker req_to_token_pool token_to_kv_pool_allocator plan_stream plan_stream_ctx topk num_draft_tokens device metadata_ready_pre_pad finalize_tree_path pp_proxy_tensors grammar_barrier uno_target_max_top_k
speculative.eagle_worker_v2 EAGLEWorkerV2.forward_batch_generation self batch on_publish grammar_barrier pp_proxy_tensors
speculative.eagle_worker_v2 EAGLEWorkerV2.verify self batch pp_proxy_tensors grammar_barrier
speculative.eagle_worker_v2 EagleDraftWorker.draft self batch with_topology
speculative.eagle_worker_v2 EagleDraftWorker._draft_extend_for_prefill self batch target_hidden_states next_token_ids mm_input_embeds kv_loc_plan
speculative.eagle_worker_v2 EagleDraftWorker._draft_extend_for_decode self batch batch_result kv_loc_plan
speculative.dspark_components.dspark_worker_v2 DSparkWorkerV2.forward_batch_generation self batch on_publish grammar_barrier pp_proxy_tensors
speculative.dspark_components.dspark_worker_v2 DSparkWorkerV2._forward_prefill self batch on_publish pp_proxy_tensors
speculative.dspark_components.dspark_worker_v2 DSparkWorkerV2._forward_decode self batch on_publish grammar_barrier coordination_plan
layers.attention.aiter_backend AiterAttnBackend.init_forward_metadata self forward_batch
layers.attention.aiter_backend AiterAttnBackend.make_mla_prefill_ps_meta_data self qo_indptr kv_indptr seq_lens work_metadata work_indptr work_info reduce_indptr reduce_final_map reduce_partial_map is_causal need_lse
layers.attention.aiter_backend AiterAttnBackend._build_prefill_ps_metadata self qo_indptr kv_indptr kv_lens_cpu num_kv_tokens max_q_len is_causal need_lse qo_indptr_cpu kv_indptr_cpu exact_partial_count
layers.attention.deepseek_v4_backend_hip_radix DeepseekV4HipRadixBackend.init_forward_metadata self forward_batch
"""  # noqa: E501
# An idle scheduler calls these without pause.
_RANGES_WHEN_BUSY = """
managers.scheduler Scheduler.ingest_requests self stop_at_pause
managers.scheduler Scheduler.get_next_batch_to_run self running_batch last_batch
managers.scheduler Scheduler.get_new_batch_prefill self running_batch
managers.scheduler Scheduler.launch_batch_sample_if_needed self batch_result cur_batch
"""


def _when_busy(process: Process, function: Function, text: str) -> Function:
    gate, in_range = process.gate, ranged(process, function, text)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not gate[0] or not _is_busy(args[0] if args else None):
            return function(*args, **kwargs)
        return in_range(*args, **kwargs)

    return call


def _is_busy(scheduler: Any) -> bool:
    """Whether there is a batch or somebody waits; also when this cannot be told."""
    waiting = getattr(scheduler, "waiting_queue", True)
    return bool(waiting) or getattr(scheduler, "last_batch", True) is not None


class _Tokens:
    """Tokens handed out since the last step of this window began."""

    count = window = 0

    @classmethod
    def taken(cls, window: int) -> int | None:
        """Return them and begin anew; nobody knows them at the first step of a window."""
        count, is_first = cls.count, window != cls.window
        cls.count, cls.window = 0, window
        return None if is_first else count


def _results(process: Process, function: Function, text: str) -> Function:
    """Return a range that also counts the tokens of the results it processes."""
    gate, in_range = process.gate, ranged(process, function, text)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not gate[0]:
            return function(*args, **kwargs)
        try:
            return in_range(*args, **kwargs)
        finally:
            try:
                batch, result = (*args[1:], *kwargs.values())[:2]
                _Tokens.count += result.get_num_generated_tokens(len(batch.reqs))
            except (AttributeError, TypeError, ValueError):
                pass  # results of another kind yield no tokens

    return call


def _described(
    process: Process, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    scheduler = args[0]
    batch = args[1] if len(args) > 1 else kwargs["batch"]
    for attribute, name in _STREAMS.items():
        process.streams.name(getattr(scheduler, attribute, None), name)
    return {
        "kind": _kind(batch),
        "bs": len(batch.reqs),
        "tokens": _Tokens.taken(process.gate[0]),
        "waiting": len(scheduler.waiting_queue),
        "free": _free_slots(scheduler, batch),
    }


def _kind(batch: Any) -> str:
    mode: str = batch.forward_mode.name
    if mode in _PREFILLS:
        return "prefill"
    speculates = mode == "DECODE" and not batch.spec_algorithm.is_none()
    return "verify" if speculates else mode.lower()


def _free_slots(scheduler: Any, batch: Any) -> int | None:
    """Return how many requests more could run, as the scheduler itself counts them."""
    try:
        running = scheduler.running_batch
        count = len(running.reqs)
        if batch is not running and batch.forward_mode.name in _PREFILLS:
            count += len(batch.reqs)  # these join the running ones after this step
        return max(int(scheduler.get_num_allocatable_reqs(count)), 0)
    except Exception:
        return None


HOOK = Hook(
    "sglang",
    (
        Target(
            _SCHEDULER,
            "Scheduler.run_batch",
            "self batch pp_proxy_tensors",
            step(_STEPS, _described, lasts=True),
        ),
        Target(_SCHEDULER, "Scheduler.on_idle", "self", ending(_STEPS)),
        Target(_SCHEDULER, "Scheduler.process_batch_result", "self batch result", _results),
        *ranges("sglang.srt", _RANGES),
        *(target._replace(make=_when_busy) for target in ranges("sglang.srt", _RANGES_WHEN_BUSY)),
    ),
)
