"""`stage-ps-metadata` in SGLang as installed and in a vLLM as before its fix.

AITER exists on AMD GPUs only: its planner here writes a known plan into whatever tensors it gets.
Device memory is host memory under another device's name; a copy to it happens when the stream gets
there, which a test decides.
"""

import sys
import types

import patches_here
import pytest
import torch
from sources import changed_sglang

SGLANG = "sglang.srt.layers.attention.aiter_backend"
VLLM = "vllm.v1.attention.backends.mla.rocm_aiter_mla"
NAME = "stage-ps-metadata"

DEVICE = '''
import sys
import types
import torch


class Device(torch.Tensor):
    """Memory of a device: what is copied to it without blocking arrives with `arrive()`."""

    device = property(lambda self: torch.device("cuda", 0))

    def copy_(self, source, non_blocking=False):
        log.append("copy" if non_blocking else "blocking copy")
        queue.append((self.as_subclass(torch.Tensor), source))
        return self


class Event:
    def record(self):
        log.append("record")
        self.behind = len(queue)

    def synchronize(self):
        log.append("synchronize")
        arrive()


def arrive():
    while queue:
        target, source = queue.pop(0)
        target.copy_(source)


log, queue = [], []
empty, zeros = torch.empty, torch.zeros


def on_device(make):
    def made(*shape, device=None, pin_memory=False, **given):
        tensor = make(*shape, **given)
        if pin_memory:
            log.append("pinned")
        return tensor.as_subclass(Device) if str(device) == "cuda" else tensor

    return made


torch.empty, torch.zeros = on_device(empty), on_device(zeros)
torch.cuda.Event = Event


def planner(qo, kv, lens, gqa, heads, *outputs, need_lse=False, **options):
    """The plan of a number n: each output holds n, 2n …; reduce_indptr ends with n tiles."""
    n = int(lens[0])
    for i, output in enumerate(outputs[1:], 1):
        kind = type(output).__name__
        log.append(f"plan {kind}")
        output.as_subclass(torch.Tensor).fill_(n * i)
    outputs[3].as_subclass(torch.Tensor)[-1] = n
    outputs[5].as_subclass(torch.Tensor)[:n] = torch.arange(n, dtype=torch.int32) * 256


aiter = types.ModuleType("aiter")
aiter.get_ps_metadata_v1 = planner
'''

BACKEND = """
import stand_ins
for name in ("aiter.mla", "aiter.ops.triton.attention.unified_attention"):
    sys.modules[name] = stand_ins._AnyModule(name)
import sglang.srt.layers.attention.aiter_backend as module
module.get_ps_metadata_v1 = planner
module.get_ps_metadata_info_v1 = lambda **_: [
    ((2,), torch.uint64), ((4,), torch.int32), ((3, 8), torch.int32),
    ((5,), torch.int32), ((4, 2), torch.int32), ((9,), torch.int32),
]
import patches_here


def backend():
    made = object.__new__(module.AiterAttnBackend)
    made.device = "cuda"
    made.fp8_prefill_num_head = made.fp8_prefill_num_kv_head = 16
    made._get_arange = lambda n: n
    return made


def build(n, **given):
    lengths = torch.tensor([n], dtype=torch.int32)
    indptr = torch.tensor([0, n], dtype=torch.int32)
    return backend()._build_prefill_ps_metadata(
        qo_indptr=indptr, kv_indptr=indptr, kv_lens_cpu=lengths, num_kv_tokens=n,
        max_q_len=n, **{"is_causal": True, "need_lse": False, **given},
    )


def plan(of):
    names = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
    return [getattr(of, name).as_subclass(torch.Tensor).tolist() for name in names]
"""


def expected_plan(n, partial=9):
    """What the planner says of n, worked out from its words."""
    return [
        [n] * 4,
        [[2 * n] * 8] * 3,
        [3 * n] * 4 + [n],
        [[4 * n] * 2] * 4,
        [i * 256 for i in range(n)] + [5 * n] * (partial - n),
    ]


def test_the_plan_arrives_in_stream_order_and_tiles_are_counted_on_the_host(run):
    program = f"""
        reports = patches_here.install("{NAME}")
        first = build(3)
        second = build(4, need_lse=True)
        before = [plan(first), first.num_partial_tiles, second.num_partial_tiles, list(log)]
        arrive()
        result = [before, plan(first), plan(second), reports["{NAME}"][0]]
    """
    before, first, second, state = run(DEVICE, BACKEND, program, modules=[SGLANG])
    assert state == "applied"
    # The host knows the tiles while nothing has arrived yet.
    assert before[0] != expected_plan(3)
    assert before[1:3] == [3, 4]
    once = ["pinned"] * 5 + ["plan Tensor"] * 5 + ["copy"] * 5 + ["record"]
    assert before[3] == once * 2
    assert first == expected_plan(3)
    assert second == expected_plan(4)


def test_a_slot_is_planned_into_again_once_its_copies_are_done(run):
    program = f"""
        patches_here.install("{NAME}")
        build(1)
        build(2)
        log.clear()
        build(3)
        third = list(log)
        log.clear()
        build(4)
        result = [third, list(log)]
    """
    third, fourth = run(DEVICE, BACKEND, program, modules=[SGLANG])
    again = ["synchronize"] + ["plan Tensor"] * 5 + ["copy"] * 5 + ["record"]
    assert third == fourth == again


def test_unpatched_the_planner_writes_to_the_device(run):
    program = """
        metadata = build(3)
        result = [log, metadata.num_partial_tiles]
    """
    assert run(DEVICE, BACKEND, program, modules=[SGLANG]) == [["plan Device"] * 5, 3]


def test_a_plan_for_a_larger_shape_gets_more_memory(run):
    program = f"""
        patches_here.install("{NAME}")
        build(1), build(2)
        small = module.get_ps_metadata_info_v1
        module.get_ps_metadata_info_v1 = lambda **_: [*small()[:5], ((20,), torch.int32)]
        log.clear()
        metadata = build(3)
        pinned = log.count("pinned")
        arrive()
        result = [pinned, plan(metadata)]
    """
    pinned, plan = run(DEVICE, BACKEND, program, modules=[SGLANG])
    assert pinned == 1
    assert plan == expected_plan(3, partial=20)


def test_the_mistakes_of_a_planner_that_sglang_looks_for_are_found_on_the_host(run):
    program = f"""
        patches_here.install("{NAME}")
        problems = []
        def wrong(n, **given):
            try:
                build(n, **given)
            except AssertionError as problem:
                problems.append(str(problem))
        wrong(0, need_lse=True)
        inner = planner
        far = lambda *given, **options: (inner(*given, **options), given[10].fill_(9 * 256))
        for cell in module.get_ps_metadata_v1.__closure__:
            if cell.cell_contents is planner:
                cell.cell_contents = far
        wrong(2)
        result = problems
    """
    no_lse, too_far = run(DEVICE, BACKEND, program, modules=[SGLANG])
    assert "writes no LSE" in no_lse
    assert "beyond its 2 partial tiles" in too_far


def test_who_does_not_ask_for_the_exact_count_gets_the_largest(run):
    program = f"""
        patches_here.install("{NAME}")
        result = build(3, exact_partial_count=False).num_partial_tiles
    """
    assert run(DEVICE, BACKEND, program, modules=[SGLANG]) == 9


@pytest.mark.parametrize(
    ("old", "new", "state", "reason"),
    [
        ("            reduce_indptr,\n            reduce_final_map,\n            reduce_partial_map,\n            qhead", "            reduce_final_map,\n            reduce_indptr,\n            reduce_partial_map,\n            qhead", "refused", "other arguments"),
        ("int(reduce_indptr[-1].item())", "host[-1]", "refused", "another way"),
        ("exact_partial_count: bool", "exact: bool", "refused", "exact_partial_count"),
        ("        get_ps_metadata_v1(\n            qo", "        torch.empty(1, pin_memory=True)\n        get_ps_metadata_v1(\n            qo", "not-needed", "already"),
        ("        get_ps_metadata_v1,\n", "", "not-needed", "plans no prefill"),
    ],
)  # fmt: skip
def test_another_source_is_refused_and_a_fixed_one_needs_nothing(
    old, new, state, reason, tmp_path, monkeypatch
):
    reports, changed = changed_sglang(NAME, (SGLANG,), {SGLANG: (old, new)}, tmp_path, monkeypatch)
    assert (reports[0], changed) == (state, [])
    assert reason in reports[1]


def test_without_aiter_it_is_refused(tmp_path, monkeypatch):
    # The shape of the module binds nothing that its source imports, as after a failed import.
    reports, changed = changed_sglang(NAME, (SGLANG,), {}, tmp_path, monkeypatch)
    assert (reports, changed) == (("refused", "AITER could not be imported"), [])


BUILDER = """
class AiterMLAMetadataBuilder:
    def _build_fp8_prefill_ps_metadata(self, metadata):
        from aiter import get_ps_metadata_v1

        get_ps_metadata_v1(
            metadata.qo, metadata.kv, metadata.lens, 1, 16, self.fp8_ps_work_metadata,
            self.fp8_ps_work_indptr, self.fp8_ps_work_info, self.fp8_ps_reduce_indptr,
            self.fp8_ps_reduce_final_map, self.fp8_ps_reduce_partial_map, is_causal=True,
        )
        return int(self.fp8_ps_reduce_indptr[-1].item())
"""


def vllm(tmp_path, monkeypatch, source):
    """Lay out a vLLM with this source of its builder and import it."""
    path = tmp_path / "vllm" / "v1" / "attention" / "backends" / "mla" / "rocm_aiter_mla.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    package = types.ModuleType("vllm")
    package.__path__ = [str(tmp_path / "vllm")]
    monkeypatch.setitem(sys.modules, "vllm", package)
    module = types.ModuleType(VLLM)
    exec(compile(source, str(path), "exec"), vars(module))
    return module


def test_a_vllm_that_lacks_it_plans_through_staging(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "empty", torch.empty)
    monkeypatch.setattr(torch, "zeros", torch.zeros)
    monkeypatch.setattr(torch.cuda, "Event", torch.cuda.Event)
    names = {}
    exec(DEVICE, names)
    monkeypatch.setitem(sys.modules, "aiter", names["aiter"])
    module = vllm(tmp_path, monkeypatch, BUILDER)
    reports = patches_here.install(NAME, modules={VLLM: module, "aiter": names["aiter"]})
    assert reports[NAME][0] == "applied"
    builder = module.AiterMLAMetadataBuilder()
    sizes = {"work_metadata": 2, "work_indptr": 4, "work_info": 3, "reduce_indptr": 5}
    sizes |= {"reduce_final_map": 4, "reduce_partial_map": 9}
    for name, size in sizes.items():
        tensor = torch.empty(size, dtype=torch.int32, device="cuda")
        setattr(builder, f"fp8_ps_{name}", tensor)
    one = torch.tensor([2])
    builder._build_fp8_prefill_ps_metadata(types.SimpleNamespace(qo=one, kv=one, lens=one))
    assert names["log"] == ["pinned"] * 5 + ["plan Tensor"] * 5 + ["copy"] * 5 + ["record"]
    names["arrive"]()
    assert builder.fp8_ps_work_indptr.as_subclass(torch.Tensor).tolist() == [2] * 4
    assert builder.fp8_ps_reduce_indptr.as_subclass(torch.Tensor).tolist() == [6, 6, 6, 6, 2]


@pytest.mark.parametrize(
    ("old", "new", "state", "reason"),
    [
        ("return int", "self._fp8_ps_staging = 1\n        return int", "not-needed", "already"),
        ("_build_fp8_prefill_ps_metadata", "_build", "not-needed", "plans no prefill"),
        ("self.fp8_ps_work_info,", "self.fp8_ps_work,", "refused", "other arguments"),
        ("        from aiter import get_ps_metadata_v1\n", "", "refused", "when it runs"),
        ("metadata.qo,", "metadata.qo.pin_memory(),", "refused", "page-locked"),
    ],
)
def test_another_vllm_is_refused_and_a_fixed_one_needs_nothing(
    old, new, state, reason, tmp_path, monkeypatch
):
    assert old in BUILDER
    module = vllm(tmp_path, monkeypatch, BUILDER.replace(old, new, 1))
    aiter = types.ModuleType("aiter")
    aiter.get_ps_metadata_v1 = planner = object()
    reports = patches_here.install(NAME, modules={VLLM: module, "aiter": aiter})
    assert reports[NAME][0] == state
    assert reason in reports[NAME][1]
    assert aiter.get_ps_metadata_v1 is planner
