"""Prefill attention does what the maps say: right with its own plan, wrong or a fault with others.

Plans here are written by hand or cut at arbitrary places, so that the kernels are held to the maps'
meaning and to no planner's habits.
"""

import importlib.util
import math
import os
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Triton reads it once, when its own library is first imported.
    os.environ["TRITON_INTERPRET"] = "1"

from instrumented_runtime.devices import Kernel, MemoryFault, RowOutOfBoundsError  # noqa: E402
from instrumented_runtime.devices.virtual import Config, VirtualDevice  # noqa: E402
from instrumented_runtime.prefill import attention  # noqa: E402
from instrumented_runtime.prefill.attention import (  # noqa: E402
    Batch,
    ReduceMaps,
    Scratch,
    WorkMaps,
)
from instrumented_runtime.prefill.planner import PlanShape, plan  # noqa: E402

TRITON = pytest.param(
    "triton",
    marks=pytest.mark.skipif(
        HAS_GPU or importlib.util.find_spec("triton") is None,
        reason="there is a GPU: Triton compiles" if HAS_GPU else "triton is not installed",
    ),
)
GPU = pytest.param(
    "gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="torch sees no GPU")]
)
TILE_ROWS, HEADS, QK_WIDTH, V_WIDTH = 32, 2, 40, 20


class Kernels(NamedTuple):
    """The module under test, where its tensors are, and whether Triton's interpreter runs it."""

    module: Any
    place: str
    is_interpreted: bool = False


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from threads, which wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["torch", TRITON, GPU])
def kernels(request):
    if request.param == "triton":
        from instrumented_runtime.prefill import attention_triton

        return Kernels(attention_triton, "cpu", is_interpreted=True)
    return Kernels(attention, "cuda" if request.param == "gpu" else "cpu")


class Plan(NamedTuple):
    """Maps on the host, and the rows of scratch that they need."""

    work: WorkMaps
    reduce: ReduceMaps
    scratch_rows: int


def packed(first_head, last_head):
    return last_head << 16 | first_head


def numbers(rows, *shape):
    return torch.tensor(rows, dtype=torch.int32).reshape(shape)


def plan_of(q_lens, kv_lens, parts, *, is_causal=True, groups=3, heads=(1, 2), tile_rows=TILE_ROWS):
    """Cut the reachable keys of each tile into `parts` ranges, and deal the items out in turn.

    Of each range there is an item for the heads up to each of `heads`.
    """
    items, tiles, bases = [], [], []
    row = page = part = 0
    for sequence, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        for start in range(0, q_len, tile_rows):
            end = min(start + tile_rows, q_len)
            reach = min(kv_len - q_len + end, kv_len) if is_causal else kv_len
            count = min(parts, reach)
            cuts = [page + reach * n // count for n in range(count + 1)]
            if count > 1:
                tiles.append((row + start, row + end))
                bases.append([(part + n) * tile_rows for n in range(count)])
            for n, (first, last) in enumerate(pairwise(cuts)):
                base = -1 if count == 1 else (part + n) * tile_rows
                rows_and_pages = (row + start, row + end, first, last, page + kv_len - last)
                items += [
                    (sequence, base, *rows_and_pages, packed(*pair))
                    for pair in pairwise((0, *heads))
                ]
            part += count if count > 1 else 0
        row, page = row + q_len, page + kv_len
    dealt = [items[group::groups] for group in range(groups)]
    ends = [sum(map(len, bases[:n])) for n in range(len(bases) + 1)]
    return Plan(
        WorkMaps(
            numbers([sum(map(len, dealt[:n])) for n in range(groups + 1)], -1),
            numbers([item for group in dealt for item in group], -1, 8),
        ),
        # Unused entries at the end repeat the count.
        ReduceMaps(
            numbers([*ends, ends[-1], ends[-1]], -1),
            numbers([*tiles, (0, 0), (0, 0)], -1, 2),
            numbers([base for tile in bases for base in tile], -1),
        ),
        part * tile_rows,
    )


def batch_of(q_lens, kv_lens, dtype, heads=HEADS, kv_heads=None, widths=(QK_WIDTH, V_WIDTH)):
    """Random tokens, whose pages lie in random slots."""
    draw = torch.Generator().manual_seed(1)
    pages, slots = sum(kv_lens), sum(kv_lens) + 7

    def normal(*shape):
        return torch.randn(shape, generator=draw).to(dtype)

    return Batch(
        normal(sum(q_lens), heads, widths[0]),
        normal(slots, kv_heads or heads, widths[0]),
        normal(slots, kv_heads or heads, widths[1]),
        numbers([sum(q_lens[:n]) for n in range(len(q_lens) + 1)], -1),
        numbers([sum(kv_lens[:n]) for n in range(len(kv_lens) + 1)], -1),
        torch.randperm(slots, generator=draw)[:pages].int(),
    )


def scale_of(batch):
    return batch.q.shape[-1] ** -0.5


def plain(batch, *, is_causal):
    """Plain attention in float64: results, and log-sum-exps."""
    results, lses = [], []
    ratio = batch.q.shape[1] // batch.k.shape[1]
    for (q0, q1), (k0, k1) in zip(
        pairwise(batch.qo_indptr.tolist()), pairwise(batch.kv_indptr.tolist()), strict=True
    ):
        slots = batch.kv_page_indices[k0:k1].long()
        k, v = (side[slots].double().repeat_interleave(ratio, 1) for side in (batch.k, batch.v))
        scores = torch.einsum("qhd,khd->hqk", batch.q[q0:q1].double(), k) * scale_of(batch)
        if is_causal:
            seen = torch.ones(q1 - q0, k1 - k0).tril(k1 - k0 - (q1 - q0)).bool()
            scores = scores.masked_fill(~seen, -math.inf)
        results.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        lses.append(scores.logsumexp(-1).T)
    return torch.cat(results), torch.cat(lses)


def attended(kernels, batch, plan, *, scratch_rows=None, is_causal=True):
    """Run both kernels; return output and log-sum-exps, NaN where nothing was stored."""
    tokens, heads, width = *batch.q.shape[:2], batch.v.shape[-1]
    rows = plan.scratch_rows if scratch_rows is None else scratch_rows

    def nans(*shape, dtype=torch.float32):
        return torch.full(shape, math.nan, dtype=dtype, device=kernels.place)

    def there(tensors):
        return type(tensors)(*(tensor.to(kernels.place) for tensor in tensors))

    scratch = Scratch(nans(rows, heads, width), nans(rows, heads))
    # Triton's interpreter cuts a float32 off where a GPU rounds it to bfloat16.
    dtype = torch.float32 if kernels.is_interpreted else batch.q.dtype
    output, lse = nans(tokens, heads, width, dtype=dtype), nans(tokens, heads)
    kernels.module.mla_prefill_ps_fwd(
        there(batch),
        there(plan.work),
        scratch,
        output,
        softmax_scale=scale_of(batch),
        is_causal=is_causal,
    )
    kernels.module.mla_reduce(scratch, there(plan.reduce), output, lse)
    return output.cpu().to(batch.q.dtype), lse.cpu()


def is_close(output, expected):
    """Whether results are as near as their dtype lets them be."""
    error = (output.double() - expected).abs()
    if output.dtype == torch.float32:
        return bool((error <= 1e-5).all())
    return bool((error <= 2**-8 * expected.abs().clamp(min=1)).all())


DTYPES = pytest.mark.parametrize(
    ("dtype", "is_causal"),
    [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)],
    ids=["f32", "f32 not causal", "bf16"],
)


@DTYPES
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("q_lens", "kv_lens"), [([50, 1, 33], [50, 1, 33]), ([20, 40], [75, 40])], ids=["", "kv longer"]
)
def test_tiles_of_any_number_of_parts_equal_plain_attention(
    kernels, dtype, is_causal, parts, q_lens, kv_lens
):
    batch = batch_of(q_lens, kv_lens, dtype)
    plan = plan_of(q_lens, kv_lens, parts, is_causal=is_causal)
    expected, expected_lse = plain(batch, is_causal=is_causal)
    output, lse = attended(kernels, batch, plan, is_causal=is_causal)
    assert is_close(output, expected)
    split = ~lse.isnan()
    assert split.any() == (parts > 1)
    assert is_close(lse[split], expected_lse[split])


@pytest.mark.parametrize("kernels", ["torch", GPU], indirect=True)
def test_a_published_plan_gives_what_it_plans(kernels):
    # Two prefills, 300 and 700 tokens, 4 heads on 8 compute units: 2 groups per head.
    first = [
        (0, -1, 0, 256, 0, 256, 0),
        (0, -1, 256, 300, 0, 300, 0),
        (1, -1, 300, 556, 300, 556, 0),
        (1, 0, 812, 1000, 300, 556, 444),
    ]
    second = [(1, 256, 812, 1000, 556, 1000, 0), (1, -1, 556, 812, 300, 812, 0)]
    items = [(*item, packed(h, h + 1)) for h in range(4) for item in first + second]
    plan = Plan(
        WorkMaps(numbers([0, 4, 6, 10, 12, 16, 18, 22, 24], -1), numbers(items, -1, 8)),
        ReduceMaps(numbers([0, 2, 2], -1), numbers([(812, 1000)], 1, 2), numbers([0, 256], -1)),
        512,
    )
    batch = batch_of([300, 700], [300, 700], torch.float32, heads=4)
    expected, expected_lse = plain(batch, is_causal=True)
    output, lse = attended(kernels, batch, plan)
    assert is_close(output, expected)
    assert is_close(lse[812:], expected_lse[812:])
    assert bool(lse[:812].isnan().all())


def planned(shape, q_lens, kv_lens):
    """The runtime's own plan."""
    arrays, parts = plan(shape, q_lens, kv_lens)
    maps = [torch.from_numpy(array) for array in arrays]
    return Plan(WorkMaps(*maps[:2]), ReduceMaps(*maps[2:]), parts * shape.query_tile)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_planner_and_the_kernels_mean_the_same(kernels, is_causal):
    # Two clusters of three groups, two heads each; tiles of one part and of several.
    q_lens, kv_lens = [37, 1, 20], [37, 50, 25]
    shape = PlanShape(3, 4, 6, 40, query_tile=16, kv_tile=8, is_causal=is_causal)
    own = planned(shape, q_lens, kv_lens)
    assert own.scratch_rows > 0
    batch = batch_of(q_lens, kv_lens, torch.float32, heads=4)
    output, _ = attended(kernels, batch, own, is_causal=is_causal)
    assert is_close(output, plain(batch, is_causal=is_causal)[0])


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_one_item_may_hold_several_heads_that_share_a_head_of_keys(kernels, kv_heads):
    batch = batch_of([40], [40], torch.float32, heads=4, kv_heads=kv_heads)
    plan = plan_of([40], [40], 2, heads=[1, 4], tile_rows=40)
    assert is_close(attended(kernels, batch, plan)[0], plain(batch, is_causal=True)[0])


@pytest.mark.parametrize("parts", [1, 3])
def test_a_row_without_a_key_in_reach_becomes_zero(kernels, parts):
    batch = batch_of([40], [30], torch.float32)
    pages = {1: [0, 30], 3: [0, 10, 20, 30]}[parts]
    items = [
        (0, -1 if parts == 1 else 64 * n, 0, 40, *pages[n : n + 2], 0, packed(0, HEADS))
        for n in range(parts)
    ]
    plan = Plan(
        WorkMaps(numbers([0, parts], -1), numbers(items, -1, 8)),
        ReduceMaps(
            numbers([0, parts], -1), numbers([0, 40], 1, 2), numbers([0, 64, 128][:parts], -1)
        ),
        192,
    )
    output, lse = attended(kernels, batch, plan)
    # The last of 40 rows sees all of 30 keys, and the 11th the first.
    assert bool((output[:10] == 0).all())
    assert is_close(output[10:], plain(batch, is_causal=True)[0][10:])
    if parts > 1:
        assert bool((lse[:10] == math.inf).all())


def reduced(kernels, values, lses, indptr, partial_map, final_map, tokens):
    """Combine one head's rows of scratch; return output and log-sum-exp, −1 where left alone."""
    place = kernels.place
    scratch = Scratch(
        torch.tensor(values, dtype=torch.float32, device=place).reshape(-1, 1, 1),
        torch.tensor(lses, dtype=torch.float32, device=place).reshape(-1, 1),
    )
    maps = ReduceMaps(numbers(indptr, -1), numbers(final_map, -1, 2), numbers(partial_map, -1))
    output = torch.full((tokens, 1, 1), -1.0, device=place)
    lse = torch.full((tokens, 1), -1.0, device=place)
    maps = ReduceMaps(*(one.to(place) for one in maps))
    kernels.module.mla_reduce(scratch, maps, output, lse)
    return output.flatten().tolist(), lse.flatten().tolist()


def test_parts_weigh_as_their_sums_of_exponentials(kernels):
    # Row 1 of tokens 1–3: sums 1 and 3; row 2: sums 2 and 0. Large exponents do not overflow.
    two, three = math.log(2), math.log(3)
    output, lse = reduced(
        kernels,
        [1, 7, 9, 9, 5, 4],
        [200, two, 9, 9, 200 + three, -math.inf],
        [0, 2, 2],
        [0, 4],
        [1, 3, 0, 0],
        4,
    )
    assert output == pytest.approx([-1, 4, 7, -1], rel=1e-5)
    assert lse == pytest.approx([-1, 200 + math.log(4), two, -1])


def test_four_parts_and_more_are_combined_too(kernels):
    output, lse = reduced(kernels, [1, 2, 3, 4, 5], [0] * 5, [0, 5], [0, 1, 2, 3, 4], [0, 1], 1)
    assert output == pytest.approx([3])
    assert lse == pytest.approx([math.log(5)])


def test_a_tile_of_one_part_or_none_is_left_alone(kernels):
    output, lse = reduced(kernels, [1, 2], [0, 0], [0, 1, 1], [0], [0, 1, 1, 2], 2)
    assert (output, lse) == ([-1, -1], [-1, -1])


@pytest.mark.parametrize(
    ("lses", "is_nan"), [([-math.inf, -math.inf], False), ([0, math.nan], True)]
)
def test_the_log_of_no_sum_is_infinite(kernels, lses, is_nan):
    output, lse = reduced(kernels, [1, 2], lses, [0, 2], [0, 1], [0, 1], 1)
    assert lse == [math.inf]
    assert math.isnan(output[0]) if is_nan else output == [0]


@pytest.mark.parametrize("parts", [1, 3])
def test_the_plan_of_other_lengths_gives_a_wrong_result(kernels, parts):
    batch = batch_of([90], [90], torch.float32)
    foreign = plan_of([30, 20, 40], [30, 20, 40], parts)
    output, _ = attended(kernels, batch, foreign)
    expected, _ = plain(batch, is_causal=True)
    assert is_close(output[:30], expected[:30])  # planned alike
    assert not is_close(output[30:], expected[30:])
    assert is_close(attended(kernels, batch, plan_of([90], [90], parts))[0], expected)


def test_work_of_one_plan_and_reduction_of_another_give_a_wrong_result(kernels):
    batch = batch_of([90], [90], torch.float32)
    own, other = plan_of([90], [90], 2), plan_of([40, 50], [40, 50], 2)
    rows = max(own.scratch_rows, other.scratch_rows)
    torn = Plan(own.work, other.reduce, rows)
    assert not is_close(attended(kernels, batch, torn)[0], plain(batch, is_causal=True)[0])


def test_rows_that_no_item_names_are_left_alone(kernels):
    batch = batch_of([45], [45], torch.float32)
    plan = plan_of([45], [45], 1)
    few = plan._replace(work=WorkMaps(plan.work.indptr.clamp(max=2), plan.work.info))
    output, _ = attended(kernels, batch, few)
    assert sorted({*output.isnan().flatten().tolist()}) == [False, True]
    is_stored = ~output.isnan()
    assert is_close(output[is_stored], plain(batch, is_causal=True)[0][is_stored])


def test_loads_beyond_the_batch_and_the_maps_give_zero(kernels):
    batch = batch_of([40], [40], torch.float32)
    every = packed(0, HEADS)
    # Pages 40 to 45 are slot 0. Sequence 7 has no ends, so that rows and pages are aligned at 0.
    # Beyond the map lies what would be an item, were it read.
    items = numbers([(7, -1, 0, 32, 0, 45, 0, every), (0, -1, 32, 40, 0, 40, 0, every)], -1, 8)
    plan = Plan(
        WorkMaps(numbers([0, 3], -1), items[:1]),
        ReduceMaps(numbers([0, 0], -1), numbers([], -1, 2), numbers([], -1)),
        0,
    )
    output, _ = attended(kernels, batch, plan)
    expected, _ = plain(batch, is_causal=True)
    assert is_close(output[:32], expected[:32])
    assert bool(output[32:].isnan().all())
    free, _ = attended(kernels, batch, plan, is_causal=False)
    slots = torch.cat([batch.kv_page_indices, torch.zeros(5, dtype=torch.int32)])
    longer = batch._replace(kv_indptr=numbers([0, 45], -1), kv_page_indices=slots)
    assert is_close(free[:32], plain(longer, is_causal=False)[0][:32])


@pytest.mark.parametrize("kernels", [TRITON, GPU], indirect=True)
def test_triton_refuses_what_is_not_contiguous(kernels):
    batch = batch_of([8], [8], torch.float32)
    turned = batch.q.transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match=r"shape \(8, 2, 40\) is not contiguous"):
        attended(kernels, batch._replace(q=turned.to(kernels.place)), plan_of([8], [8], 1))


@pytest.mark.parametrize("kernels", [GPU], indirect=True)
@DTYPES
def test_tiles_of_256_rows_at_the_widths_of_a_model_equal_plain_attention(
    kernels, dtype, is_causal
):
    lens = [700, 1000, 300]
    batch = batch_of(lens, lens, dtype, heads=16, widths=(192, 128))
    plan = plan_of(
        lens, lens, 2, is_causal=is_causal, groups=132, heads=range(1, 17), tile_rows=256
    )
    output, _ = attended(kernels, batch, plan, is_causal=is_causal)
    assert is_close(output, plain(batch, is_causal=is_causal)[0])


CPU = Kernels(attention, "cpu")


def test_a_scratch_too_small_for_the_plan_is_a_store_out_of_bounds():
    batch = batch_of([90], [90], torch.float32)
    plan = plan_of([90], [90], 2)
    with pytest.raises(RowOutOfBoundsError):
        attended(CPU, batch, plan, scratch_rows=plan.scratch_rows - TILE_ROWS)


def test_a_reduction_beyond_the_scratch_is_out_of_bounds():
    batch = batch_of([90], [90], torch.float32)
    own, other = plan_of([90], [90], 1), plan_of([40, 50], [40, 50], 2)
    with pytest.raises(RowOutOfBoundsError, match=r"row 0 of \(0, 2\)"):
        attended(CPU, batch, Plan(own.work, other.reduce, own.scratch_rows))


def test_a_plan_without_parts_overtaken_by_one_of_three_prefills_stores_near_null():
    shape = PlanShape(3, 16, 256, 8175)
    batch = batch_of([8175], [8175], torch.float32, heads=16)
    own, other = (
        planned(shape, [8175], [8175]),
        planned(shape, [3000, 1000, 4000], [3000, 1000, 4000]),
    )
    assert (own.scratch_rows, other.scratch_rows) == (0, 30 * 256)
    with pytest.raises(RowOutOfBoundsError) as error:
        attended(CPU, batch, Plan(other.work, own.reduce, 0))
    # The first groups to end a part have done two units of keys; the published address is the
    # last one's, 27 × 256 rows × 64 bytes.
    assert error.value.row in {part * 256 for part in (1, 3, 5, 7, 9, 11, 27)}


# Of 16 heads: three parts, whose groups reach them after 50, 20 and 60 pages.
FOREIGN = WorkMaps(
    numbers([0, 2, 3, 4], -1),
    numbers(
        [
            (0, -1, 0, 32, 0, 32, 0, packed(0, 16)),
            (0, 0, 32, 64, 0, 18, 46, packed(0, 16)),
            (0, 27 * 256, 32, 64, 18, 38, 26, packed(0, 16)),
            (0, 256, 32, 64, 4, 64, 0, packed(0, 16)),
        ],
        -1,
        8,
    ),
)


@pytest.mark.parametrize("scratch_rows", [0, 256])
def test_a_plan_that_overtakes_a_queued_kernel_makes_it_store_beyond_the_scratch(scratch_rows):
    device = VirtualDevice(Config())
    stream = device.stream()
    batch = batch_of([64], [64], torch.float32, heads=16)
    # With fewer items than the foreign plan: the rest of the map is empty.
    own = numbers([(0, -1, 0, 64, 0, 64, 0, packed(0, 16))] + [[0] * 8] * 3, -1, 8)

    def staged(values):
        host = device.host_buffer(values.shape, str(values.dtype).removeprefix("torch."))
        host.on_host().copy_(values)
        return host

    def uploaded(values, name=""):
        host = staged(values)
        buffer = device.allocate(values.shape, str(values.dtype).removeprefix("torch."), name=name)
        device.copy(buffer, host)
        return buffer

    maps = [uploaded(numbers([0, 1, 1, 1], -1)), uploaded(own)]
    lse = device.allocate([scratch_rows, 16], "float32", name="partial_lse")
    values = device.allocate([scratch_rows, 16, V_WIDTH], "float32", name="partial_output")
    output = device.allocate([64, 16, V_WIDTH], "float32", name="output")

    def function(*tensors):
        attention.mla_prefill_ps_fwd(
            Batch(*tensors[:6]),
            WorkMaps(*tensors[6:8]),
            Scratch(*tensors[8:10]),
            tensors[10],
            softmax_scale=scale_of(batch),
        )

    device.launch(Kernel("delay", 10_000_000), stream)
    reads = [*map(uploaded, batch), *maps]
    device.launch(
        Kernel("mla_prefill_ps_fwd", 1_000, function), stream, reads, [values, lse, output]
    )
    for buffer, foreign in zip(maps, FOREIGN, strict=True):
        device.copy(buffer, staged(foreign))
    with pytest.raises(MemoryFault, match="mla_prefill_ps_fwd touched address") as fault:
        device.synchronize()
    # The second group is the first to end a part. A row of log-sum-exps is 16 × 4 bytes.
    assert fault.value.address == lse.address + 27 * 256 * 64
    if scratch_rows == 0:
        assert fault.value.address == 0x6C000
        assert fault.value.nearest == "partial_lse at 0x0, 0 bytes"


def test_parts_are_stored_in_the_order_in_which_groups_side_by_side_end_them():
    scratch = Scratch(torch.zeros(256, 16, V_WIDTH), torch.zeros(256, 16))
    batch = batch_of([64], [64], torch.float32, heads=16)
    output = torch.zeros(64, 16, V_WIDTH)
    with pytest.raises(RowOutOfBoundsError) as error:
        attention.mla_prefill_ps_fwd(batch, FOREIGN, scratch, output, softmax_scale=scale_of(batch))
    assert error.value.row == 27 * 256
    # What ends before, the direct item after 32 pages, comes after the part of 20.
    assert bool((output == 0).all())
    assert bool((scratch.lse == 0).all())
