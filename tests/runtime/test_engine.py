"""What requests get is what plain loops say, whatever the engine, its device and its company."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from engine_runs import (
    HOST_NS,
    INSTANT_HOST,
    POLICIES,
    device_of,
    engine_of,
    expected_outputs,
    greedy,
    outputs,
    prompt_of,
    six_requests,
    verified_plainly,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_order_device import InOrderDevice
from virtual_configs import CONFIGS

from instrumented_runtime import forward, launcher
from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.forward import DecodeGraphs, Prefill, padded_size
from instrumented_runtime.model import DraftMisses
from instrumented_runtime.request import Request

# Of this process, tests/runtime among it.
PATHS = os.pathsep.join(path for path in sys.path if path)


def recounted(requests, drafted):
    """Return what each verify of each request yields."""
    return [
        verified_plainly(
            DraftMisses.of(request.request_id, 0.258, 0.0, 0),
            len(request.prompt),
            len(request.output),
            drafted,
        )
        for request in requests
    ]


@pytest.mark.parametrize("mix_decode", [False, True], ids=["apart", "mixed"])
@pytest.mark.parametrize("speculative_tokens", [0, 1, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_way_of_running_gives_the_tokens_that_plain_loops_give(
    policy, speculative_tokens, mix_decode
):
    options = {
        "policy": policy,
        "speculative_tokens": speculative_tokens,
        "mix_decode": mix_decode,
        "is_checked": True,
    }
    for overlapped in (True, False):
        verifies = []
        for host, has_tensors in (({}, True), (INSTANT_HOST, True), ({}, False)):
            device = device_of(tensors=has_tensors, **host)
            engine = engine_of(device, has_tensors=has_tensors, **options)
            requests = six_requests()
            finished = engine.run(requests, overlapped=overlapped)
            assert outputs(requests) == expected_outputs(requests)
            assert sorted(finished, key=lambda one: one.request_id) == requests
            assert [one.finish_reason for one in requests] == ["length"] * 6 + ["stop"]
            verifies.append([one.num_verifies for one in requests])
            assert engine.num_verifies == sum(verifies[-1])
            if not mix_decode:
                # Beside a prefill a request decodes without verifying, so when counts.
                counts = recounted(requests, speculative_tokens)
                assert verifies[-1] == [len(own) for own in counts]
                assert engine.num_verified_tokens == sum(map(sum, counts))
        assert verifies[0] == verifies[1] == verifies[2]


OPTIONS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(POLICIES),
        "speculative_tokens": st.integers(0, 5),
        "max_running": st.integers(1, 11),
        "chunk_tokens": st.integers(3, 80),
        "page_size": st.integers(6, 20),
        "mix_decode": st.booleans(),
        "is_checked": st.booleans(),
        "needs_cpu_seq_lens": st.booleans(),
        "min_free_slots": st.none() | st.integers(0, 4),
        # 70 prompt, 12 new and 12 reserved tokens are 16 pages of the smallest size.
        "num_pages": st.none() | st.integers(16, 40),
        "seed": st.integers(0, 3),
    }
)
# Prompt and new tokens; some prompts begin alike.
ASKED = st.tuples(st.integers(1, 70), st.integers(1, 12), st.integers(0, 4))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    OPTIONS,
    CONFIGS,
    st.booleans(),
    st.lists(ASKED, min_size=1, max_size=12),
    st.booleans(),
)
def test_neither_company_nor_device_changes_a_token(options, config, is_instant, asked, overlapped):
    config = replace(config, host_costs_ns=HOST_NS)
    if is_instant:
        host_ns, timing = INSTANT_HOST["host_ns"], INSTANT_HOST["timing"]
        config = replace(config, host_costs_ns=host_ns, timing=timing)
    engine = engine_of(VirtualDevice(config), **options)
    requests = [
        Request(number, prompt_of(length, seed), new)
        for number, (length, new, seed) in enumerate(asked)
    ]
    engine.run(requests, overlapped=overlapped)
    assert outputs(requests) == expected_outputs(requests, options["seed"])


@pytest.mark.parametrize("max_running", [3, 5, 9])
def test_as_many_as_may_run_do_though_no_graph_is_of_just_that_size(max_running):
    assert padded_size(max_running) > max_running
    engine = engine_of(max_running=max_running)
    requests = [Request(number, prompt_of(5, number), 6) for number in range(max_running)]
    engine.run(requests)
    assert outputs(requests) == expected_outputs(requests)


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("platform", ["hip", "cuda"])
@pytest.mark.parametrize("speculative_tokens", [0, 5])
def test_a_device_that_does_all_at_the_call_gives_the_same_tokens(
    platform, speculative_tokens, overlapped
):
    options = {"speculative_tokens": speculative_tokens, "is_checked": True}
    engine = engine_of(InOrderDevice(platform), mix_decode=True, **options)
    requests = six_requests()
    engine.run(requests, overlapped=overlapped)
    assert outputs(requests) == expected_outputs(requests)


def test_steps_of_both_kinds_can_follow_each_other():
    engine = engine_of()
    requests = six_requests()
    for request in requests:
        engine.add(request)
    finished, number = [], 0
    while engine.has_work:
        finished += engine.step() if number % 3 == 2 else engine.overlapped_step()
        number += 1
    assert outputs(requests) == expected_outputs(requests)
    assert len(finished) == len(requests)


def test_requests_that_come_while_others_run_get_their_tokens_too():
    engine = engine_of(mix_decode=True)
    requests = six_requests()
    waiting = list(requests)
    while waiting or engine.has_work:
        if waiting:
            engine.add(waiting.pop())
        engine.overlapped_step()
        engine.overlapped_step()
    assert outputs(requests) == expected_outputs(requests)


def test_rows_and_pages_all_come_back():
    for overlapped in (True, False):
        engine = engine_of(mix_decode=True)
        scheduler = engine._scheduler
        engine.run(six_requests(), overlapped=overlapped)
        assert not engine.has_work
        assert (engine.num_running, engine.num_waiting) == (0, 0)
        assert scheduler.num_allocatable == 4
        # What is left is kept by the prefix cache alone.
        assert scheduler.pool.num_free + scheduler.cache.num_pages == scheduler.pool.num_pages - 1
        assert scheduler.cache.num_pages > 0
        engine.flush_cache()
        assert scheduler.pool.num_free == scheduler.pool.num_pages - 1
        assert engine.overlapped_step() == engine.step() == []


@pytest.mark.parametrize("has_tensors", [True, False])
def test_a_prefix_that_is_cached_is_not_computed_again_and_changes_no_token(has_tensors):
    engine = engine_of(has_tensors=has_tensors)
    prompt = prompt_of(40)

    def ask(number, prompt):
        """Return the request, and how many steps its prompt took."""
        request = Request(number, prompt, 9)
        engine.add(request)
        steps = 0
        while engine.has_work:
            engine.step()
            steps += not request.output
        assert tuple(request.output) == greedy(0, prompt, 9)
        return request, steps + 1

    request, steps = ask(0, prompt)
    assert (request.cached_tokens, steps) == (0, 2)
    request, steps = ask(1, prompt)
    # Four whole pages of eight, the last token never being among them.
    assert (request.cached_tokens, steps) == (32, 1)
    # The next turn begins with prompt and answer: 40 + 9 − 1 tokens have been through a forward.
    request, steps = ask(2, (*prompt, *request.output, 3, 4, 5))
    assert (request.cached_tokens, steps) == (48, 1)
    engine.flush_cache()
    request, steps = ask(3, prompt)
    assert (request.cached_tokens, steps) == (0, 2)


def test_what_steps_too_many_write_is_not_what_the_cache_keeps():
    engine = engine_of(max_tokens=256, mix_decode=True)
    prompts = [prompt_of(11, number) for number in range(3)]
    cached = 0
    for turn in range(4):
        requests = [Request(number, prompt, 10) for number, prompt in enumerate(prompts)]
        engine.run(requests)
        assert outputs(requests) == expected_outputs(requests)
        prompts = [(*one.prompt, *one.output, turn) for one in requests]
        cached += sum(one.cached_tokens for one in requests)
    # Of 20, 41 − 10 and 52 − 10 tokens that were through a forward: 2, 3 and 5 pages, three times.
    assert cached == 3 * 8 * (2 + 3 + 5)


def test_a_request_that_is_too_long_is_refused_and_the_longest_is_served():
    engine = engine_of()
    with pytest.raises(ValueError, match="request 7: 100 prompt and 29 new tokens are more than"):
        engine.add(Request(7, prompt_of(100), 29))
    assert not engine.has_work
    request = Request(8, prompt_of(100), 28)
    assert engine.run([request]) == [request]
    assert tuple(request.output) == greedy(0, request.prompt, 28)


def test_what_the_model_does_not_know_and_what_was_added_before_is_refused():
    engine = engine_of(has_tensors=False)
    for token in (-1, 512):
        with pytest.raises(ValueError, match="request 3: a prompt's tokens go from 0 to 511"):
            engine.add(Request(3, (7, token), 1))
    waiting, finished = Request(4, (0, 511), 3), Request(5, (1,), 1)
    engine.run([finished])
    engine.add(waiting)
    for request in (waiting, finished):
        with pytest.raises(ValueError, match=f"request {request.request_id}: was added before"):
            engine.add(request)
    engine.step()
    assert engine.num_running == 1
    with pytest.raises(ValueError, match="request 4: was added before"):
        engine.add(waiting)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {
            "policy": st.sampled_from(POLICIES),
            "speculative_tokens": st.sampled_from([0, 5]),
            "mix_decode": st.booleans(),
            "is_checked": st.booleans(),
            "has_tensors": st.booleans(),
        }
    ),
    st.lists(st.tuples(st.sampled_from(["add", "abort", "one", "ahead"]), st.integers(0, 5))),
)
def test_requests_come_and_go_at_any_time_and_change_nobody_elses_tokens(options, events):
    engine = engine_of(**options)
    asked, here = six_requests(), []
    for event, number in events:
        if event == "add" and asked:
            here.append(asked.pop(number % len(asked)))
            engine.add(here[-1])
        elif event == "abort" and any(not one.is_finished for one in here):
            going = [one for one in here if not one.is_finished]
            engine.abort(going[number % len(going)])
        else:
            engine.overlapped_step() if event == "ahead" else engine.step()
    engine.run(asked)
    for request in (*here, *asked):
        expected = expected_outputs([request])[request.request_id]
        if request.finish_reason == "abort":
            expected = expected[: len(request.output)]
        assert request.output == expected
        assert request.is_finished
        with pytest.raises(ValueError, match="is not scheduled here, or no longer"):
            engine.abort(request)
    engine.flush_cache()
    assert engine._scheduler.num_allocatable == 4
    assert engine._scheduler.pool.num_free == engine._scheduler.pool.num_pages - 1


def test_requests_wait_where_pages_are_few():
    # 20 prompt, 12 new and 12 reserved tokens are 6 pages, so that of 13 only two run at once.
    engine = engine_of(num_pages=13)
    requests = [Request(number, prompt_of(20, number), 12) for number in range(5)]
    for request in requests:
        engine.add(request)
    most = 0
    while engine.has_work:
        engine.overlapped_step()
        most = max(most, engine.num_running)
    assert most == 2
    assert outputs(requests) == expected_outputs(requests)
    with pytest.raises(ValueError, match="needs room for 112 tokens"):
        engine.add(Request(9, prompt_of(90), 10))


def test_acceptance_collapses_and_no_token_changes_where_the_draft_does_not_catch_up(monkeypatch):
    class Uncommitted(DecodeGraphs):
        def replay(self, name, stream):
            if name != "draft-extend":
                super().replay(name, stream)

    class Unextended(Prefill):
        def extend_draft(self, stages, inputs, num_tokens, stream):
            pass

    def acceptance():
        engine = engine_of(draft_miss_share=0.0)
        requests = six_requests()
        engine.run(requests)
        assert outputs(requests) == expected_outputs(requests)
        return engine.num_verified_tokens / engine.num_verifies

    # Nothing is missed: a verify yields all five drafted tokens and one.
    assert acceptance() == 6
    monkeypatch.setattr(launcher, "DecodeGraphs", Uncommitted)
    without_commit = acceptance()
    monkeypatch.setattr(launcher, "Prefill", Unextended)
    assert 1 <= acceptance() < 1.5
    assert without_commit < 3


def test_padded_sizes_are_those_that_graphs_are_captured_for():
    sizes = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 24: 24, 25: 32, 33: 48, 64: 64, 65: 80}
    assert {size: forward.padded_size(size) for size in sizes} == sizes


def test_an_engine_without_tensors_needs_no_torch():
    program = (
        "import sys\n"
        "from engine_runs import engine_of, six_requests\n"
        "engine_of(has_tensors=False).run(six_requests())\n"
        "sys.exit('torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": PATHS}
    )
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("overlapped", [False, True])
def test_after_a_step_that_was_left_half_done_nothing_goes_on(monkeypatch, overlapped):
    engine = engine_of(has_tensors=False)
    engine.add(Request(1, (1, 2, 3), 40))
    step = engine.overlapped_step if overlapped else engine.step
    step()
    step()
    device, launch, left = engine._device.device, engine._device.device.launch, [3]

    def interrupted(*arguments):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        launch(*arguments)

    monkeypatch.setattr(device, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        step()
    monkeypatch.setattr(device, "launch", launch)
    said = r"a step failed \(KeyboardInterrupt\); make a new engine"
    for again in (engine.step, engine.overlapped_step, lambda: engine.add(Request(2, (1,), 1))):
        with pytest.raises(RuntimeError, match=said):
            again()


def test_a_request_belongs_to_one_engine():
    one, other = engine_of(has_tensors=False), engine_of(has_tensors=False)
    request = Request(1, (1, 2), 4)
    one.add(request)
    with pytest.raises(ValueError, match="request 1: was added before; make a new one"):
        other.add(request)


def test_run_queues_all_or_none():
    engine = engine_of(has_tensors=False)
    with pytest.raises(ValueError, match="request 2"):
        engine.run([Request(1, (1,), 4), Request(2, (999,), 4)])
    assert not engine.has_work


def test_a_device_that_is_not_for_this_engine_is_refused_with_what_to_give_it():
    config = EngineConfig(max_running=1, has_tensors=False)
    with pytest.raises(ValueError, match="give the device Config\\(host_costs_ns=Costs"):
        Engine(VirtualDevice(Config(tensors=False)), config)
    blind = VirtualDevice(Config(tensors=False, host_costs_ns=Costs().host_ns))
    with pytest.raises(ValueError, match="give EngineConfig\\(has_tensors=False\\)"):
        Engine(blind, EngineConfig(max_running=1))


def test_to_serve_the_same_again_makes_no_new_kernels():
    # A device keeps every kernel that it was ever given.
    engine = engine_of(has_tensors=False)
    seen = engine._device.device._host.record.kernels
    engine.run([Request(1, (1, 2, 3), 10)])
    before = len(seen)
    engine.run([Request(2, (4, 5, 6), 10)])
    assert len(seen) == before
