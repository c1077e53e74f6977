"""The kernels of a decoder's stages, and how long each takes on the virtual device.

43 layers are the default of DeepSeek-V4's configuration in SGLang 0.5.23. Taken for its structure:
the first two attend to a window only, the others alternate between compressors of ratio 4, with an
indexer, and of ratio 128; each has a mixture of experts. That and the kernels of each part are
assumed and give a verify of 887 kernels. How long each takes relative to the others is assumed too;
what all of them together take is fitted, see `Costs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from instrumented_runtime.model import LAYERS

NUM_LAYERS = 43
NUM_WINDOW_LAYERS = 2
# A block of five drafted tokens and the one before it.
TOKENS_PER_VERIFY = 6
# Assumed; not fewer than those of the tiny decoder, whose work they do.
DRAFT_LAYERS = LAYERS

# Of what a layer computes before its attention: the path to queries, keys and values; the
# compressors, which need the layer's normalised input only; what needs all of these.
Part = Literal["", "qkv", "core", "indexer", "select"]


class KernelTime(NamedTuple):
    """One kernel of a stage.

    Attributes:
        name: As traces show it.
        weight_ns: Its time at batch 1, before `Costs.device_scale`.
        role: What it does to tensors, a key of the work that the stage is given; empty for most.
        part: Of what is computed before attention, the part that it is of; else empty.
    """

    name: str
    weight_ns: int
    role: str = ""
    part: Part = ""


_ATTENTION = (
    KernelTime("attn_norm", 3_000),
    KernelTime("wqkv_a", 7_000, part="qkv"),
    KernelTime("q_norm", 3_000, part="qkv"),
    KernelTime("wq_b", 6_000, part="qkv"),
    KernelTime("norm_rope_store", 4_000, "write_values", "qkv"),
    KernelTime("attention", 12_000, "attend"),
    KernelTime("wo_a", 6_000),
    KernelTime("wo_b", 6_000),
    KernelTime("all_reduce", 12_000),
)
_COMPRESSOR = (
    KernelTime("compressor_gemm", 6_000, part="core"),
    KernelTime("compressor_pool_store", 4_000, part="core"),
)
_INDEXER = (
    KernelTime("indexer_compressor", 5_000, part="indexer"),
    KernelTime("indexer_logits", 6_000, part="select"),
    KernelTime("indexer_topk", 4_000, part="select"),
)
_EXPERTS = (
    KernelTime("ffn_norm", 3_000),
    KernelTime("router", 4_000),
    KernelTime("topk_align", 4_000),
    KernelTime("experts_gate_up", 16_000),
    KernelTime("silu_mul_quant", 3_000),
    KernelTime("experts_down", 12_000),
    KernelTime("shared_expert", 7_000),
    KernelTime("all_reduce", 12_000),
)
_BEFORE_LAYERS = (
    KernelTime("embed_tokens", 3_000, "embed"),
    KernelTime("attention_metadata", 3_000),
    KernelTime("compressor_metadata", 3_000),
    KernelTime("indexer_metadata", 3_000),
)
_AFTER_LAYERS = (
    KernelTime("final_norm", 3_000),
    KernelTime("lm_head", 20_000),
    KernelTime("all_gather_logits", 8_000),
    KernelTime("argmax", 4_000, "project"),
)


def _forward() -> tuple[KernelTime, ...]:
    kernels = [*_BEFORE_LAYERS]
    for layer in range(NUM_LAYERS):
        kernels += _ATTENTION[:4]
        if layer >= NUM_WINDOW_LAYERS:
            kernels += _COMPRESSOR
            if layer % 2 == 0:
                kernels += _INDEXER
        kernels += [*_ATTENTION[4:], *_EXPERTS]
    return (*kernels, *_AFTER_LAYERS)


# One forward of the target model.
FORWARD = _forward()
# The same of a prefill whose attention goes by a plan of the host: AITER's two kernels a layer
# instead of one, which together take as long. How they share the time is assumed.
BY_PLAN = (
    KernelTime("mla_prefill_ps_asm_fwd", 11_000, "attend_by_plan"),
    KernelTime("mla_reduce_v1", 1_000, "reduce_by_plan"),
)
FORWARD_BY_PLAN = tuple(
    one for kernel in FORWARD for one in (BY_PLAN if kernel.role == "attend" else (kernel,))
)
VERIFY = (
    KernelTime("verify_inputs", 3_000, "verify_inputs"),
    *FORWARD,
    KernelTime("accept_tokens", 4_000, "accept"),
    KernelTime("gather_hidden", 3_000),
)
# One step of the draft, a small decoder without experts.
_DRAFT_LAYER = (
    KernelTime("draft_qkv", 4_000, "write_values"),
    KernelTime("draft_attention", 5_000, "attend"),
    KernelTime("draft_out", 4_000),
    KernelTime("draft_mlp", 6_000),
)
DRAFT_STEP = (
    KernelTime("draft_inputs", 3_000, "draft_inputs"),
    KernelTime("draft_embed", 3_000, "embed"),
    *(_DRAFT_LAYER * DRAFT_LAYERS),
    KernelTime("draft_lm_head", 8_000, "project"),
    KernelTime("draft_token", 3_000, "draft_token"),
)
# The draft takes over what was verified: its layers' values of the accepted tokens.
DRAFT_EXTEND = (
    KernelTime("extend_embed", 3_000, "embed"),
    *(
        KernelTime("extend_qkv", 3_000, "write_values"),
        KernelTime("extend_attention", 3_000, "attend"),
    )
    * DRAFT_LAYERS,
)

_FORWARD_WEIGHT_NS = sum(kernel.weight_ns for kernel in FORWARD)

# What the scheduler computes of a batch before the forward begins: name, and time per request
# beyond that of a small kernel.
PREPARE = (
    ("prepare_positions", 0),
    ("prepare_cache_locations", 0),
    ("prepare_page_indices", 30),
    ("prepare_page_offsets", 0),
    ("prepare_attention", 0),
    ("prepare_sampling", 0),
)

# Small kernels of the scheduler; they move a few kilobytes, whatever the batch.
SMALL_KERNEL_NS = 2_300


@dataclass(frozen=True, slots=True)
class Costs:
    """How long stages take on the virtual device, in nanoseconds.

    A kernel of a draft or verify takes `weight · device_scale · growth_of(requests)`, attention
    longer by `long_context_ns · requests`, where `requests` is what the padded batch has in tokens
    over those of a verify of one request, and `growth_of(r) = 1 + growth · (r^exponent − 1)`. Of a
    prefill it takes its share of `prefill_token_ns`, and at least what it takes for one request:
    the weights are read in any case. A draft-extend is assumed to take what it takes at batch 1.

    Fitted to published figures, which `python -m instrumented_runtime.bench` prints beside what
    comes out:

    Attributes:
        device_scale: To 8.60 ms per verify at batch 1 with the scheduler on the forward stream.
        growth: With `exponent` to 69.57 and 31.14 verify cycles/s at batch 8 and 64, likewise.
        exponent: See `growth`.
        prefill_token_ns: Of a whole prefill forward per token: to the median TTFT of 8.06 s of a
            burst of 256 prompts of 4096 tokens, one a step.
        long_context_ns: Of each attention kernel per request of the batch, for contexts longer than
            those of the figures above; in the burst, to its median TPOT of 26.4 ms. Else 0.
        host_ns: What the host does, by kind. `prepare` to 9.19 ms per verify at batch 1 with the
            host blocked; `plan` is what `prefill.planner` takes at best for 8175 prompt tokens;
            the others are assumed.
    """

    device_scale: float = 1.3025
    growth: float = 0.34407
    exponent: float = 0.53976
    prefill_token_ns: float = 15_070.0
    long_context_ns: float = 0.0
    host_ns: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType(
            {
                "schedule": 60_000,
                "prepare": 605_740,
                "process": 40_000,
                "process_request": 1_000,
                "plan": 200_000,
            }
        )
    )

    def decode_ns(self, kernel: KernelTime, requests: float) -> int:
        """Return what a kernel of a draft or verify takes."""
        grown = 1 + self.growth * (float(requests**self.exponent) - 1)
        longer = self.long_context_ns * requests if kernel.role == "attend" else 0
        return max(round(kernel.weight_ns * self.device_scale * grown + longer), 1)

    def sensitivity(self, kernel: KernelTime, requests: float) -> float:
        """Return how much longer it takes per kernel beside it; here kernels do not contend."""
        del kernel, requests
        return 0.0

    def prefill_ns(self, kernel: KernelTime, tokens: int) -> int:
        """Return what a kernel takes in a prefill of so many tokens."""
        share = kernel.weight_ns / _FORWARD_WEIGHT_NS
        return max(round(share * self.prefill_token_ns * tokens), self.decode_ns(kernel, 1))
