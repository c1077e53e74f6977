"""`min-free-slots` in SGLang as installed, and its refusals where the source is another."""

import pytest
from sources import changed_sglang

DELAYER = "sglang.srt.managers.min_free_slots_delayer"
SCHEDULER = "sglang.srt.managers.scheduler"

# A scheduler with 256 slots as far as admitting needs one. What comes after the delayer's answer,
# the policy, says that the requests are admitted.
SERVER = """
from types import SimpleNamespace
import sglang.srt.managers.scheduler as scheduler
from sglang.srt.managers.min_free_slots_delayer import MinFreeSlotsDelayer, resolve_min_free_slots
import patches_here


class Admitted(Exception):
    pass


def admit(*_args, **_kwargs):
    raise Admitted


def is_admitted(running, waiting, ready=0, slots=256):
    queue = list(range(waiting))
    threshold = resolve_min_free_slots(None, slots, is_dflash_family=True)
    server = SimpleNamespace(
        grammar_manager=SimpleNamespace(
            has_waiting_grammars=lambda: ready > 0, get_ready_grammar_requests=lambda: range(ready)
        ),
        _add_request_to_queue=queue.append,
        enable_priority_preemption=False,
        is_hybrid_swa=False,
        waiting_queue=queue,
        chunked_req=None,
        min_free_slots_delayer=MinFreeSlotsDelayer(min_free_slots=threshold),
        get_num_allocatable_reqs=lambda running, running_batch: slots - running,
        policy=SimpleNamespace(calc_priority=admit),
        processed_tokens_counter=0,
    )
    batch = SimpleNamespace(
        batch_is_full=False, reqs=[None] * running, is_empty=lambda: running == 0
    )
    try:
        scheduler.Scheduler._get_new_batch_prefill_raw(server, None, batch)
    except Admitted:
        return True
    return False
"""


def test_the_last_requests_are_admitted_once_they_fit(run):
    program = """
        cases = [(254, 2), (254, 3), (253, 3), (253, 4), (252, 9), (256, 1), (0, 1)]
        before = [is_admitted(*case) for case in cases]
        reports = patches_here.install("min-free-slots")
        result = [before, [is_admitted(*case) for case in cases], reports]
    """
    before, after, reports = run(SERVER, program, modules=[SCHEDULER])
    # The threshold is 4. Unpatched, whoever finds fewer free slots waits, with how many ever.
    assert before == [False, False, False, False, True, False, True]
    # Two free: two are admitted, three wait. Three free: three are, four wait.
    assert after == [True, False, True, False, True, False, True]
    assert reports["min-free-slots"][0] == "applied"


def test_requests_that_a_grammar_held_count_as_waiting(run):
    program = """
        patches_here.install("min-free-slots")
        result = [is_admitted(254, waiting=2, ready=0), is_admitted(254, waiting=2, ready=1)]
    """
    assert run(SERVER, program, modules=[SCHEDULER]) == [True, False]


def test_a_delayer_without_a_scheduler_decides_as_before(run):
    program = """
        patches_here.install("min-free-slots")
        delayer = MinFreeSlotsDelayer(4)
        result = [
            delayer.should_delay(running_bs=253, num_allocatable_reqs=3),
            delayer.should_delay(running_bs=253, num_allocatable_reqs=3, num_waiting_reqs=3),
        ]
    """
    assert run(SERVER, program, modules=[SCHEDULER]) == [True, False]


@pytest.mark.parametrize(
    ("module", "old", "new", "state", "reason"),
    [
        (
            DELAYER,
            "running_bs: int, num_allocatable_reqs: int)",
            "running_bs: int, num_allocatable_reqs: int, waiting_bs: int)",
            "not-needed",
            "takes waiting_bs already",
        ),
        (DELAYER, "running_bs: int, num_alloc", "running: int, num_alloc", "refused", "(running,"),
        (DELAYER, "running_bs > 0 and", "", "refused", "another rule"),
        (DELAYER, "class MinFreeSlotsDelayer", "class Delayer", "refused", "no MinFreeSlots"),
        (SCHEDULER, "running_bs=running_bs,\n", "bs=running_bs,\n", "refused", "another way"),
        (SCHEDULER, "self.min_free_slots_delayer.should_delay(", "f(", "refused", "0 times"),
    ],
)
def test_another_source_is_refused_and_a_fixed_one_needs_nothing(
    module, old, new, state, reason, tmp_path, monkeypatch
):
    reports, changed = changed_sglang(
        "min-free-slots", (DELAYER, SCHEDULER), {module: (old, new)}, tmp_path, monkeypatch
    )
    assert reports[0] == state
    assert reason in reports[1]
    assert changed == []


def test_the_unchanged_source_is_what_the_patch_is_for(tmp_path, monkeypatch):
    reports, changed = changed_sglang(
        "min-free-slots", (DELAYER, SCHEDULER), {}, tmp_path, monkeypatch
    )
    assert reports[0] == "applied"
    assert changed == ["MinFreeSlotsDelayer.should_delay", "Scheduler._get_new_batch_prefill_raw"]
