"""`multi-stream-opt-in` in SGLang as installed: its argument hook and its layers' methods run for real.

A layer's weights and kernels need a GPU: they are functions that say when and where they ran.
"""

import pytest
from sources import changed_sglang

HOOK = "sglang.srt.arg_groups.model_hook"
MODEL = "sglang.srt.models.deepseek_v4"
INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
GATE = "sglang.srt.layers.attention.dsv4.unified_kv_gate"
NAME = "multi-stream-opt-in"
FLAG = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"

ARGUMENTS = f"""
import os
from types import SimpleNamespace
from unittest.mock import MagicMock
import torch
import sglang.srt.arg_groups.deepseek_v4_hook as checks
import sglang.srt.arg_groups.model_hook as module
import sglang.srt.models.deepseek_v4
import patches_here

torch.version.hip = "7.2.0"
# The arguments of a DeepSeek-V4 on HIP: none is given, and every check of them passes.
config = MagicMock()
config.hf_config.architectures = ["DeepseekV4ForCausalLM"]
config.decision_config = None
given = MagicMock(
    enable_deterministic_inference=False, enable_dsa_cache_layer_split=False,
    enable_cp_decode_attn_tp=False, kv_cache_dtype="auto", max_running_requests=None,
    dcp_size=1, attn_cp_size=1, model_path="model",
)
module.resolving_view = module.resolved_view = lambda _arguments: given
module.model_config_of = lambda _arguments: config
for name in ("declare_resolution", "run_post_process_pass", "_configure_rocm_fp8_wo_a_gemm",
             "handle_mamba_radix_cache"):
    setattr(module, name, MagicMock())
for name in list(vars(checks)):
    if name.startswith(("validate_", "apply_")):
        setattr(checks, name, MagicMock())
platform = MagicMock(
    is_hip=True, is_npu=False, is_cuda=False, is_sm120=False, is_sm100=False, is_blackwell=False
)
module.get_platform = lambda: platform


def after(value):
    os.environ.pop("{FLAG}", None)
    if value is not None:
        os.environ["{FLAG}"] = value
    module.handle_model_specific_adjustments(given)
    return os.environ.get("{FLAG}")
"""


def test_the_flag_is_kept_if_the_user_set_it_and_is_off_else(run):
    program = f"""
        choices = [None, "1", "true", "0"]
        before = [after(choice) for choice in choices]
        reports = patches_here.install("{NAME}")
        result = [before, [after(choice) for choice in choices], reports["{NAME}"][0]]
    """
    before, after, state = run(ARGUMENTS, program, modules=[HOOK, MODEL])
    assert state == "applied"
    assert before == ["False"] * 4
    assert after == ["False", "1", "true", "0"]


# A layer whose parts say on which stream they run. Key and value go to the unified pool: SGLang
# returns them for the backend to store.
LAYER = f"""
import os
from types import SimpleNamespace
import torch
from torch import nn
import sglang.srt.arg_groups.model_hook
import sglang.srt.models.deepseek_v4 as module
from sglang.srt.layers.attention.dsv4 import unified_kv_gate
from fake_streams import FakeDevice
import patches_here

torch.version.hip = "7.2.0"
os.environ["{FLAG}"] = "1"
module._is_hip, module._is_cuda = True, False
device = FakeDevice()
log, on = device.log, lambda: device.current.name
main, side, other = (device.stream_named(n, i) for i, n in enumerate(["main", "side", "other"], 1))
device.current = main
torch.cuda.current_stream, torch.cuda.stream = device.current_stream, device.stream
captures = [True]
module.get_is_capture_mode = lambda: captures[0]
module.is_in_breakable_cuda_graph = lambda: False
module.is_cp_active = lambda _batch: False
unified_kv_gate.is_unified_kv_triton = lambda: True
unified_kv_gate.is_unified_kv_fp8 = lambda: False


class Part(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.layer_id, self.compressor = name, 7, "indexer's compressor"

    def forward(self, **given):
        log.append((self.name, on(), sorted(given), given.get("skip_compressor", False)))
        if not given.get("skip_compressor"):
            backend.forward_indexer_compressor(
                x=given["x"], forward_batch=given["forward_batch"], layer_id=7,
                compressor="indexer's compressor",
            )


class Backend:
    def forward_core_compressor(self, x, forward_batch, layer_id, compressor):
        log.append(("core compressor", on(), compressor.name))

    def forward_indexer_compressor(self, x, forward_batch, layer_id, compressor):
        log.append(("indexer compressor", on(), compressor))


backend = Backend()
no = lambda: False
batch = SimpleNamespace(
    forward_mode=SimpleNamespace(
        is_decode_or_idle=no, is_target_verify=no, is_decode=no, is_extend=no,
        is_extend_or_draft_extend_or_mixed=no,
    )
)


def as_on_hip(self, config, layer_id, quant_config=None, prefix="", alt_streams=None,
              compress_ratio_override=None):
    # The layer's own __init__ makes weights. Of what it does, this is what matters here.
    nn.Module.__init__(self)
    self.layer_id, self._multi_stream_bs_limit = layer_id, 64
    self.compress_ratio = compress_ratio_override or 4
    # Only V4.1 layers on gfx950 get any.
    self.alt_streams = alt_streams if self.compress_ratio == 2 else None
    self.compressor, self.indexer = Part("core"), Part("indexer")
    self.fuse_wqa_wkv, self.use_fused_qk_norm_rope = False, False
    self.wq_a = lambda x: (log.append(("query", on())) or x, None)
    self._normalize_q_lora = lambda q: (q, q)
    self._compute_kv_bf16 = lambda x, positions, qkv_a: log.append(("key", on())) or "kv"


module._hip = SimpleNamespace(compute_q_b=lambda layer, q, *_more: ("q", q, False))
module.MQALayer.__init__ = as_on_hip


def prepare(layer, tokens=8):
    log.clear()
    returned = layer._forward_prepare(torch.zeros(tokens, 2), None, batch, backend)
    return [list(returned), list(log)]
"""


def test_compressors_fork_off_and_join_around_the_single_stream_code(run):
    program = f"""
        before = prepare(module.MQALayer(None, 3, alt_streams=[side, other]))
        patches_here.install("{NAME}")
        layer = module.MQALayer(None, 3, alt_streams=[side, other])
        after = prepare(layer)
        result = [before, after, type(layer.compressor).__name__, type(layer.indexer).__name__]
    """
    before, after, compressor, indexer = run(LAYER, program, modules=[HOOK, MODEL])
    given = ["attn_backend", "forward_batch", "q_lora", "q_lora_quant", "x"]
    assert before == [
        ["q", "kv"],
        [
            ["query", "main"],
            ["key", "main"],
            ["indexer", "main", given, False],
            ["indexer compressor", "main", "indexer's compressor"],
            ["core compressor", "main", "core"],
        ],
    ]
    # Query and key for the unified pool are returned as before: the backend stores them there.
    assert after == [
        ["q", "kv"],
        [
            ["wait", "side", "main"],
            ["core compressor", "side", "core"],
            ["wait", "other", "main"],
            ["indexer compressor", "other", "indexer's compressor"],
            ["query", "main"],
            ["key", "main"],
            ["wait", "main", "side"],
            ["wait", "main", "other"],
            ["indexer", "main", sorted([*given, "skip_compressor"]), True],
        ],
    ]
    assert (compressor, indexer) == ("Part", "Part")


def test_one_side_stream_is_enough_and_a_layer_without_indexer_joins_at_its_end(run):
    program = f"""
        patches_here.install("{NAME}")
        one = prepare(module.MQALayer(None, 3, alt_streams=[side]))
        layer = module.MQALayer(None, 3, alt_streams=[side, other])
        layer._modules["indexer"] = None
        result = [one, prepare(layer)]
    """
    one, plain = run(LAYER, program, modules=[HOOK, MODEL])
    assert [entry for entry in one[1] if entry[0] == "wait"] == [
        ["wait", "side", "main"],
        ["wait", "side", "main"],
        ["wait", "main", "side"],
    ]
    assert plain[1] == [
        ["wait", "side", "main"],
        ["core compressor", "side", "core"],
        ["query", "main"],
        ["key", "main"],
        ["wait", "main", "side"],
    ]


@pytest.mark.parametrize(
    "change",
    [
        "captures[0] = False",
        "module.is_cp_active = lambda _batch: True",
        "tokens = 65",
        f'os.environ["{FLAG}"] = "0"',
        "streams = None",
    ],
)
def test_where_sglang_would_not_fork_nothing_is_forked(change, run):
    program = f"""
        patches_here.install("{NAME}")
        module.cp_materialize_global_token_order = lambda kv, *_more: kv
        tokens, streams = 8, [side, other]
        {change}
        layer = module.MQALayer(None, 3, alt_streams=streams)
        layer._compute_kv_bf16 = lambda *_args, **_kwargs: torch.zeros(1)
        _, entries = prepare(layer, tokens)
        result = [entry[:2] for entry in entries]
    """
    assert run(LAYER, program, modules=[HOOK, MODEL]) == [
        ["query", "main"],
        ["indexer", "main"],
        ["indexer compressor", "main"],
        ["core compressor", "main"],
    ]


@pytest.mark.parametrize(("is_unified", "keeps"), [(True, False), (False, True)])
def test_layers_with_a_fork_of_their_own_fork_only_if_it_knows_the_pool(is_unified, keeps, run):
    program = f"""
        unified_kv_gate.is_unified_kv_triton = lambda: {is_unified}
        patches_here.install("{NAME}")
        layer = module.MQALayer(None, 3, alt_streams=[side, other], compress_ratio_override=2)
        result = [layer.alt_streams is not None, "_tracekit_side_streams" in layer.__dict__]
    """
    assert run(LAYER, program, modules=[HOOK, MODEL]) == [keeps, False]


def test_a_failure_leaves_the_layer_whole_and_the_side_joined(run):
    program = f"""
        patches_here.install("{NAME}")
        layer = module.MQALayer(None, 3, alt_streams=[side, other])
        compressor, indexer = layer.compressor, layer.indexer
        layer.wq_a = lambda x: 1 / 0
        try:
            prepare(layer)
        except ZeroDivisionError:
            whole = [layer.compressor is compressor, layer.indexer is indexer]
            result = [whole, log[-2:]]
    """
    whole, ends = run(LAYER, program, modules=[HOOK, MODEL])
    assert whole == [True, True]
    assert ends == [["wait", "main", "side"], ["wait", "main", "other"]]


def test_a_layers_forward_takes_the_single_stream_code(run):
    program = f"""
        class Reached(Exception):
            pass

        def reach(name):
            def reached(*_args, **_kwargs):
                raise Reached(name)
            return reached

        module.get_attn_tp_context = lambda: SimpleNamespace(input_scattered=True)
        module.get_attn_backend = lambda: backend
        module._hip.skip_head_pad = lambda _layer: True

        def path(layer):
            layer.use_mega_attention, layer.is_dsv41, layer.n_local_heads = False, False, 8
            layer._kernel_num_heads = lambda _tokens: 8
            layer._local_attn_sink = lambda _heads: None
            for name in ("_forward_prepare", "_forward_prepare_multi_stream_hip"):
                layer.__dict__[name] = reach(name)
            try:
                layer.forward(torch.zeros(8, 2), None, batch)
            except Reached as reached:
                return str(reached)

        # As a V4.1 layer on gfx950, which SGLang does give side streams.
        given = module.MQALayer(None, 3)
        given.alt_streams = [side, other]
        before = path(given)
        patches_here.install("{NAME}")
        result = [before, path(module.MQALayer(None, 3, alt_streams=[side, other]))]
    """
    before, after = run(LAYER, program, modules=[HOOK, MODEL])
    assert (before, after) == ("_forward_prepare_multi_stream_hip", "_forward_prepare")


def test_a_failure_in_the_layers_turns_the_overlap_off_again(run):
    program = f"""
        # What another process has let through is known to be unsafe here.
        method = module.MQALayer._forward_prepare
        del module.MQALayer._forward_prepare
        reports = patches_here.install("{NAME}")
        flag = os.environ["{FLAG}"]
        hook = sglang.srt.arg_groups.model_hook.handle_model_specific_adjustments
        result = [reports["{NAME}"], flag, hook.__module__, module.MQALayer.__init__ is as_on_hip]
    """
    (state, reason), flag, hook, is_init = run(LAYER, program, modules=[HOOK, MODEL])
    assert (state, flag, hook, is_init) == ("refused", "False", HOOK, True)
    assert "_forward_prepare" in reason


SOURCES = (HOOK, MODEL, INDEXER, GATE)


@pytest.mark.parametrize(
    ("module", "old", "new", "state", "reason"),
    [
        (MODEL, "def _forward_prepare(", "def _forward_prepare_qkv(", "not-needed", "one place"),
        (HOOK, f"envs.{FLAG}.set(False)", "pass", "refused", "0 times"),
        (
            HOOK,
            f"envs.{FLAG}.set(False)",
            f"envs.{FLAG}.is_set() or envs.{FLAG}.set(False)",
            "refused",
            "layers are as before",
        ),
        (MODEL, "        k_nope_out: Optional", "        k_out: Optional", "refused", "takes (x,"),
        (MODEL, "                    x, forward_batch, self.layer_id, self.compressor\n                )\n\n        if self.indexer is not None and stream", "                    x, forward_batch, self.layer_id, self.other\n                )\n\n        if self.indexer is not None and stream", "refused", "forward_core_compressor"),
        (MODEL, "            and self.alt_streams is not None\n            and get_is_capture_mode()", "            and get_is_capture_mode()", "refused", "conditions"),
        (GATE, "def is_unified_kv_triton", "def is_unified", "refused", "is_unified_kv_triton"),
        (MODEL, "        use_stream_pool = (", "        use_pool = (", "refused", "use_stream_pool"),
        (MODEL, "self._multi_stream_bs_limit =", "self._limit =", "refused", "_multi_stream_bs"),
        (INDEXER, "        skip_compressor: bool = False,\n        q_lora_quant=None,\n    ) -> None:\n        backend_kwargs", "        q_lora_quant=None,\n    ) -> None:\n        backend_kwargs", "refused", "without its compressor"),
    ],
)  # fmt: skip
def test_another_source_is_refused_and_a_fixed_one_needs_nothing(
    module, old, new, state, reason, tmp_path, monkeypatch
):
    monkeypatch.delenv(FLAG, raising=False)
    reports, changed = changed_sglang(NAME, SOURCES, {module: (old, new)}, tmp_path, monkeypatch)
    assert (reports[0], changed) == (state, [])
    assert reason in reports[1]


def test_the_unchanged_source_is_what_the_patch_is_for(tmp_path, monkeypatch):
    reports, changed = changed_sglang(NAME, SOURCES, {}, tmp_path, monkeypatch)
    assert reports[0] == "applied"
    assert changed == [
        "MQALayer.__init__",
        "MQALayer._forward_prepare",
        "handle_model_specific_adjustments",
    ]
