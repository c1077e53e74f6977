"""SGLang 0.5.23 from its wheel, every hooked module loaded and some of them run, under the hooks.

Only third-party packages are stood in for. What a GPU would compute is not run: what is, runs on
the CPU, and a scheduler's step ends in the error of a scheduler that was never set up.
"""

import polars as pl
import pytest
from hooked import FOREIGN, run_hooked

from instrumented_runtime.hooks.sglang import HOOK
from tracekit.cycles import cycles
from tracekit.formats import read_trace

PROGRAM = """
import importlib, sys
sys.path.append(FOREIGN)
import stubs
stubs.stand_in(stubs.OF_SGLANG)
from in_server import turn_window
for module in MODULES:
    importlib.import_module(module)
import torch
from types import SimpleNamespace as Namespace
from sglang.srt.managers.min_free_slots_delayer import MinFreeSlotsDelayer
from sglang.srt.managers.overlap_utils import FutureMap, resolve_forward_inputs
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

assert scheduler_module.resolve_forward_inputs is resolve_forward_inputs
assert SchedulerBatchResultProcessor.process_batch_result_decode.__wrapped__
future_map = FutureMap(
    torch.device("cpu"), SpeculativeAlgorithm.EAGLE,
    Namespace(req_to_token=torch.zeros(8, 4, dtype=torch.int32)),
)
rows = torch.tensor([1, 2])
batch = Namespace(
    spec_info=Namespace(future_indices=rows), reqs=["a", "b"], forward_mode=ForwardMode.DECODE,
    spec_algorithm=SpeculativeAlgorithm.EAGLE,
)
scheduler = object.__new__(Scheduler)
scheduler.waiting_queue, scheduler.last_batch, scheduler.running_batch = ["c"] * 3, batch, batch
scheduler.get_num_allocatable_reqs = lambda running: 256 - running

def cycle():
    future_map.publish(rows, torch.tensor([5, 6]))
    try:
        scheduler.run_batch(batch)
    except AttributeError as problem:
        print("said", problem)
    future_map.resolve_seq_lens_cpu(batch)
    result = GenerationBatchResult(num_correct_drafts=3)
    try:
        scheduler.process_batch_result(batch, result)
    except AttributeError:
        pass

cycle()
turn_window()
cycle(), cycle(), cycle()
print("said", batch.seq_lens.tolist(), batch.seq_lens_cpu.tolist(), batch.seq_lens_sum)
print("said", MinFreeSlotsDelayer(4).should_delay(running_bs=254, num_allocatable_reqs=2))
try:
    scheduler.on_idle()
except AttributeError:
    pass
turn_window()
cycle()
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    if not FOREIGN.is_dir():
        pytest.skip(f"no {FOREIGN}: made by `make`")
    modules = sorted({target.module for target in HOOK.targets})
    ran = run_hooked(
        PROGRAM.replace("FOREIGN", repr(str(FOREIGN))).replace("MODULES", repr(modules)),
        tmp_path_factory.mktemp("sglang"),
        hooks="sglang,torch_streams,torch_profiler",
        flags=("-W", "ignore"),
        TRACEKIT_MARKERS="record_function",
        TRACEKIT_PROFILE_CPU="1",
    )
    assert ran.status == 0, ran.log
    return ran


@pytest.fixture(scope="module")
def trace(ran):
    return read_trace(ran.traces)


def test_every_target_is_found_where_it_was_said_to_be_and_takes_what_it_took(ran):
    report = ran.report["hooks"]["sglang"]
    assert (report["missing"], report["changed"], report["waiting"]) == ([], [], [])
    assert len(report["found"]) == len(HOOK.targets) == len(set(report["found"]))
    assert ran.report["versions"]["sglang"] == "0.5.23"
    assert ran.report["problems"] == []


def test_the_server_s_answers_and_errors_are_its_own(ran):
    lines = [line[5:] for line in ran.output.splitlines() if line.startswith("said ")]
    assert lines[4:6] == ["[5, 6] [5, 6] 11", "True"]
    (error,) = {*lines[:4], *lines[6:]}
    assert error.startswith("'Scheduler' object has no attribute")


def test_ranges_come_out_of_the_profiler_s_trace_in_the_window_alone(trace):
    texts = trace.table("ranges")["text"].value_counts()
    counted = {text: count for text, count in texts.iter_rows() if not text.startswith("tk1")}
    assert {name: counted.get(name, 0) for name in EXPECTED} == EXPECTED


EXPECTED = {
    "FutureMap.publish": 3,
    "FutureMap.resolve_seq_lens_cpu": 3,
    "Scheduler.run_batch": 3,
    "Scheduler.process_batch_result": 3,
    "MinFreeSlotsDelayer.should_delay": 1,
    "Scheduler.on_idle": 0,  # it ends the step and says nothing
}


def test_steps_last_from_launch_to_launch_and_say_what_the_scheduler_knew(trace):
    found = cycles(trace.table("ranges"), trace.table("ops"), trace.table("calls"))
    said = found.select("found_by", "kind", "batch_size", "tokens", "waiting", "free").rows()
    # 3 correct drafts and 2 tokens that are no drafts; at a window's first step nobody knows.
    step = ("tk1-step", "verify", 2, 5, 3, 254)
    assert said == [(*step[:3], None, *step[4:]), step, step]
    assert found["end_ns"][:-1].le(found["start_ns"][1:]).all()
    inside = trace.table("ranges").filter(text="FutureMap.resolve_seq_lens_cpu")
    parents = inside.join(
        trace.table("ranges").select(parent_id="range_id", parent=pl.col("text")), on="parent_id"
    )
    assert parents["parent"].str.starts_with("tk1 step").to_list() == [True] * 3
