"""An engine that plans the attention of its prefills on the host: tokens, order, faults.

Prompts here are long enough for tiles to be shared: 256 query rows are a tile, and 128 tokens of
keys a unit that one of 16 groups gets.
"""

import polars as pl
import pytest
from engine_runs import (
    INSTANT_HOST,
    device_of,
    engine_of,
    expected_outputs,
    outputs,
    prompt_of,
    recorded,
)

from instrumented_runtime.config import PLAN_WRITER_NAMES, EngineConfig
from instrumented_runtime.costs import FORWARD, FORWARD_BY_PLAN, Costs
from instrumented_runtime.devices import MemoryFault
from instrumented_runtime.model import WIDTH
from instrumented_runtime.planned_prefill import COMPUTE_UNITS
from instrumented_runtime.prefill.plan_layout import PlanShape
from instrumented_runtime.prefill.planner import plan
from instrumented_runtime.request import Request
from tracekit.pipeline import analyse

LONG = {"chunk_tokens": 640, "max_tokens": 768, "mix_decode": True}
LENGTHS = (600, 100, 550, 300, 40)
LATE_NEWS = (5, 9, 4, 6, 8)


def requests_of(lengths=LENGTHS, news=LATE_NEWS):
    """Prompts of different texts; two that do not fit one step follow each other."""
    return [
        Request(number, prompt_of(length, number), new)
        for number, (length, new) in enumerate(zip(lengths, news, strict=True))
    ]


def served(lengths=LENGTHS, news=LATE_NEWS, *, engine, overlapped=True):
    """Return what was said, and what ought to be."""
    requests = requests_of(lengths, news)
    engine.run(requests, overlapped=overlapped)
    return outputs(requests), expected_outputs(requests_of(lengths, news))


def planning_engine(writer, *, host=None, **device):
    return engine_of(device_of(**(host or {}), **device), plan_writer=writer, **LONG)


def num_partial_tiles(lengths):
    shape = PlanShape(
        max_batch=4, kv_heads=WIDTH, compute_units=COMPUTE_UNITS, max_query_tokens=640
    )
    return plan(shape, lengths, lengths).num_partial_tiles


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("writer", PLAN_WRITER_NAMES)
def test_a_right_plan_leaves_every_token_as_it_is(writer, overlapped):
    # The null stream in the forward's queue orders by accident what `direct` does not.
    engine = planning_engine(writer, max_hw_queues=1)
    engine.launcher.plans.watch()
    said, expected = served(engine=engine, overlapped=overlapped)
    assert said == expected
    # 600 fill a step, with 40 of the next prompt, which therefore goes on in a step without plan.
    assert len(engine.launcher.plans.updates) >= 1
    assert num_partial_tiles([600, 40]) > 0


@pytest.mark.parametrize("writer", [None, *PLAN_WRITER_NAMES])
def test_tiles_are_shared_and_put_together_again(writer):
    engine = planning_engine(writer)
    if writer:
        engine.launcher.plans.watch()
    # One prompt a step: none has room beside another.
    said, expected = served((630, 600, 520), (4, 4, 4), engine=engine, overlapped=False)
    assert said == expected
    assert all(num_partial_tiles([length]) > 0 for length in (630, 600, 520))


@pytest.mark.parametrize("writer", ["synced", "staged"])
@pytest.mark.parametrize("rocm", ["7.2", "10"])
def test_plans_in_order_are_right_however_early_the_next_is_made(writer, rocm):
    for lengths in ((640, 320), (100, 600)):
        engine = planning_engine(writer, host=INSTANT_HOST, rocm=rocm)
        said, expected = one_at_a_time(engine, lengths)
        assert said == expected


def one_at_a_time(engine, lengths):
    """Serve two prompts of which the second comes in when the first one's prefill is launched."""
    first, second = requests_of(lengths, (3, 3))
    engine.add(first)
    engine.overlapped_step()
    engine.add(second)
    while engine.has_work:
        engine.overlapped_step()
    return outputs([first, second]), expected_outputs(requests_of(lengths, (3, 3)))


def test_a_plan_out_of_order_corrupts_the_prefill_that_runs_and_no_other():
    # The first one's scratch is the larger, so that the second one's plan stays within it.
    lengths = (640, 320)
    assert num_partial_tiles([640]) > num_partial_tiles([320]) > 0
    engine = planning_engine("direct", host=INSTANT_HOST, rocm="10")
    said, expected = one_at_a_time(engine, lengths)
    assert said[0] != expected[0]
    assert said[1] == expected[1]


def test_a_plan_out_of_order_faults_near_null_where_there_is_no_scratch():
    lengths = (100, 600)
    assert num_partial_tiles([100]) == 0
    # Of 600 rows the tiles reach 2, 5 and 4 units, in the order first, last, second: one unit for
    # each of 11 groups. The last unit of the last tile has 88 keys and not 128, so that part 6 of
    # all, from 0, ends first; a row of its log-sum-exps is 16 heads of 4 bytes.
    address = 6 * 256 * 16 * 4
    engine = planning_engine("direct", rocm="10")
    with pytest.raises(MemoryFault) as caught:
        one_at_a_time(engine, lengths)
    assert caught.value.kernel == "mla_prefill_ps_asm_fwd"
    assert caught.value.address == address
    # The device is lost, and so is the engine.
    with pytest.raises(RuntimeError, match="Memory access fault"):
        engine.overlapped_step()


def test_an_engine_that_computes_nothing_faults_alike():
    addresses = []
    for has_tensors in (True, False):
        device = device_of(rocm="10")
        engine = engine_of(device, plan_writer="direct", has_tensors=has_tensors, **LONG)
        with pytest.raises(MemoryFault) as caught:
            one_at_a_time(engine, (100, 600))
        addresses.append((caught.value.kernel, caught.value.address))
    assert addresses[0] == addresses[1]


def test_without_tensors_nothing_faults():
    device = device_of(rocm="10", tensors=False)
    engine = engine_of(device, plan_writer="direct", has_tensors=False, **LONG)
    said, expected = one_at_a_time(engine, (100, 600))
    assert said == expected


def test_a_prompt_that_goes_on_is_not_planned():
    engine = planning_engine("staged")
    engine.launcher.plans.watch()
    requests = [Request(0, prompt_of(700, 0), 2)]
    engine.run(requests)
    # Its first 640 tokens are, the rest has keys of a step before.
    assert len(engine.launcher.plans.updates) == 1
    assert outputs(requests) == expected_outputs([Request(0, prompt_of(700, 0), 2)])
    # 87 pages of it are in the prefix cache.
    again = [Request(1, prompt_of(700, 0), 2)]
    engine.run(again)
    assert again[0].cached_tokens > 0
    assert len(engine.launcher.plans.updates) == 1


def names(trace):
    ops = trace.table("ops")
    prefills = ops.filter(ops["graph_launch_id"].is_null() & (ops["kind"] == "kernel"))
    return prefills["name"].cast(str).to_list()


def test_attention_of_a_planned_step_is_two_kernels_a_layer(tmp_path):
    def serve(engine):
        engine.run(requests_of((600,), (2,)))

    planned, plain = (
        names(recorded(tmp_path / str(writer), serve, plan_writer=writer, **LONG))
        for writer in ("staged", None)
    )
    assert planned.count("mla_prefill_ps_asm_fwd") == planned.count("mla_reduce_v1") == 43
    assert plain.count("attention") - planned.count("attention") == 43
    assert plain.count("mla_reduce_v1") == 0


def test_the_two_kernels_take_as_long_as_the_one():
    costs = Costs()
    one, two = (
        sum(costs.prefill_ns(kernel, 8_192) for kernel in kernels)
        for kernels in (FORWARD, FORWARD_BY_PLAN)
    )
    # But for rounding, half a nanosecond a kernel.
    assert abs(one - two) <= len(FORWARD_BY_PLAN) / 2
    assert len(FORWARD_BY_PLAN) == len(FORWARD) + 43


@pytest.mark.parametrize("writer", PLAN_WRITER_NAMES)
def test_a_staged_plan_holds_the_host_for_nothing(tmp_path, writer):
    def serve(engine):
        engine.run(requests_of((600, 600, 600, 600), (4, 7, 10, 13)))

    report = analyse(
        recorded(tmp_path, serve, plan_writer=writer, **(LONG | {"max_running": 2})),
        only=["host-syncs", "steps"],
    )
    frames = {section.name: section.frame for section in report.sections}
    held = frames["host-syncs"].filter(marker="PlanWriter.write")["held_ns"].sum()
    prefills = frames["steps"].filter(pl.col("kind").is_in(["prefill", "mixed"]))
    if writer == "staged":
        assert held == 0
    else:
        # Of a wait for the prefill or the verify before, a step; 600 tokens take 9 ms.
        assert held > 9_000_000
        assert held <= prefills["held_ns"].sum()


def test_an_engine_refuses_a_writer_that_there_is_not():
    with pytest.raises(ValueError, match="plan_writer: 'pinned' is not allowed; give one of dire"):
        EngineConfig(plan_writer="pinned")
