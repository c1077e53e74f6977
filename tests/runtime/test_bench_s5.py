"""Streams of requests whose prefills are planned ahead: faults, masks, counts, and a second view.

The streams are short ones of the published kind; the table itself runs whole ones.
"""

from dataclasses import replace

import polars as pl
import pytest

from instrumented_runtime.bench import s5
from instrumented_runtime.bench.published import SERVING
from instrumented_runtime.bench.request_stream import RequestStream
from instrumented_runtime.bench.serving import MASKS, Arm, serve, serving_config
from instrumented_runtime.recorder import Recorder
from tracekit.formats import read_trace, silent
from tracekit.pipeline import analyse

# A prompt of up to 128 tokens shares no tile, so its prefill has no scratch; a longer one does.
SHORT = RequestStream(8, 24, 3, prompt_tokens=200, new_tokens=40, least=0.5)
MANY = RequestStream(16, 160, 1, prompt_tokens=1_200, new_tokens=40)
BLIND = Arm(has_tensors=False)


@pytest.mark.parametrize("rocm", ["7.2", "10"])
def test_plans_by_blocking_copies_fault_and_staged_ones_do_not(rocm):
    faulted = serve(SHORT, Arm(rocm=rocm))
    assert faulted.fault is not None
    assert faulted.fault.kernel == "mla_prefill_ps_asm_fwd"
    # The near-null signature that was published: rows of no buffer, counted from null.
    assert faulted.fault.address < 2**20
    assert faulted.fault.nearest == "prefill_split_lse at 0x0, 0 bytes"
    assert faulted.finished < SHORT.prompts
    for writer in ("staged", "synced"):
        done = serve(SHORT, Arm(writer, rocm=rocm))
        assert (done.fault, done.finished) == (None, SHORT.prompts)
        assert done.under_way > 0


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_hides_the_fault(name):
    done = serve(SHORT, MASKS[name])
    assert (done.fault, done.finished) == (None, SHORT.prompts)


def test_each_mask_does_it_by_what_it_is_named_for():
    by_name = {name: serve(SHORT, replace(arm, has_tensors=False)) for name, arm in MASKS.items()}
    assert by_name["no planned attention"].plans == 0
    assert by_name["no async scheduling"].under_way == 0
    # What a step uploads before it plans waits already.
    assert by_name["AMD_SERIALIZE_COPY=1"].under_way == 0
    for name in ("device sync before planning", "GPU_MAX_HW_QUEUES=1"):
        assert by_name[name].under_way == by_name[name].late > 0, name


def test_on_rocm_7_2_some_updates_are_late_and_the_rest_are_not_ordered():
    served = serve(MANY, BLIND)
    assert served.under_way >= 30
    # Each is late with the probability that is fitted, 55 of 80; four standard deviations.
    spread = (served.under_way * (55 / 80) * (25 / 80)) ** 0.5
    assert abs(served.late - served.under_way * 55 / 80) < 4 * spread
    assert 0 < served.late < served.under_way


def test_on_rocm_10_no_update_waits_for_the_prefill_that_it_overwrites():
    served = serve(MANY, replace(BLIND, rocm="10"))
    assert served.under_way >= 30
    assert served.late == 0
    assert served.copied_ms < 1


def test_the_fix_costs_nothing():
    before, after = serve(MANY, BLIND), serve(MANY, replace(BLIND, writer="staged"))
    assert after.tokens_per_s == pytest.approx(before.tokens_per_s, rel=2e-3)
    assert after.plans == before.plans


def test_plans_meet_prefills_because_requests_end_close_together():
    # One at a time never does; nor would a stream in which all prompts come at once, were it not
    # for those that the first wave leaves waiting.
    alone = serve(RequestStream(1, 8, 1, prompt_tokens=1_200, new_tokens=40), BLIND)
    assert (alone.plans, alone.under_way) == (8, 0)
    few, many = (
        serve(RequestStream(n, 12 * n, 1, prompt_tokens=1_200, new_tokens=160), BLIND)
        for n in (4, 16)
    )
    assert 0 < few.under_way_share < many.under_way_share


def test_requests_are_as_long_as_the_stream_says_and_no_prompt_begins_another():
    stream = RequestStream(2, 300, 7, prompt_tokens=500, new_tokens=50)
    requests = stream.requests()
    assert {400, 500} == {f(len(one.prompt) for one in requests) for f in (min, max)}
    assert {40, 50} == {f(one.max_new_tokens for one in requests) for f in (min, max)}
    assert len({one.prompt[:64] for one in requests}) == 300
    again, other = stream.requests(), replace(stream, seed=8).requests()
    assert [one.prompt for one in again] == [one.prompt for one in requests]
    assert [one.prompt for one in other] != [one.prompt for one in requests]


def orders(frame, buffer):
    """Return how many copies into a buffer there are of each order."""
    ours = frame.filter(pl.col("buffer") == buffer)
    return dict(ours.group_by(pl.col("order").cast(str)).agg(pl.col("copies").sum()).iter_rows())


@pytest.mark.parametrize("rocm", ["7.2", "10"])
@pytest.mark.parametrize("writer", ["direct", "staged"])
def test_the_trace_tells_what_the_device_knows(tmp_path, writer, rocm):
    stream = RequestStream(6, 36, 2, prompt_tokens=600, new_tokens=24)
    arm = Arm(writer, rocm=rocm, has_tensors=False)
    with Recorder(tmp_path, environment={}) as recorder:
        served = serve(stream, arm, recorder=recorder)
        path = recorder.close()
    report = analyse(read_trace([path], silent), only=["unordered-copies"])
    (section,) = report.sections
    known = {"accident": served.late, "unordered": served.under_way - served.late}
    if writer == "direct" and rocm == "7.2":
        assert all(known.values()), "the stream is to have both"
    for buffer in ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map"):
        found = orders(section.frame, f"plan_{buffer}")
        if writer == "direct":
            wrong = {order: found.get(order, 0) for order in known}
            assert wrong == known
        else:
            assert set(found) <= {"stream"}
    buffers = {finding.evidence["buffer"] for finding in report.findings}
    assert len(buffers) == (5 if writer == "direct" else 0)


def test_the_table_holds_what_was_published():
    assert [(one.concurrency, one.prompts, one.seed) for one in SERVING] == [
        (32, 1024, 4),
        (32, 2048, 4),
        (64, 1024, 4),
        (32, 1024, 5),
    ]
    stream = s5.request_stream(SERVING[0])
    assert (stream.prompt_tokens, stream.new_tokens) == (8192, 1024)
    assert serving_config(stream, None).max_running == 32
