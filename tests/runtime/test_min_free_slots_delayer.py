"""From how many free slots on prefills are admitted, and whom the two rules hold back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_runtime.scheduling.min_free_slots_delayer import (
    MinFreeSlotsDelayer,
    resolve_min_free_slots,
)


@pytest.mark.parametrize(
    ("max_running", "threshold"),
    [
        (1, 0),
        (7, 0),
        (8, 2),
        (12, 2),
        (13, 3),
        (16, 3),
        (18, 3),
        (19, 4),
        (24, 4),
        (256, 4),
        (512, 4),
    ],
)
def test_the_dflash_family_delays_by_itself_from_eight_slots_on(max_running, threshold):
    assert resolve_min_free_slots(None, max_running, is_dflash_family=True) == threshold
    assert resolve_min_free_slots(None, max_running, is_dflash_family=False) == 0


@pytest.mark.parametrize("is_dflash_family", [True, False])
@pytest.mark.parametrize(
    ("user_value", "max_running", "threshold"),
    [
        (2, 256, 2),
        (6, 256, 6),
        (6, 4, 4),
        (4, 4, 4),
        (300, 256, 256),
        (3, 7, 3),
        # One free slot is what an admission takes anyway.
        (1, 256, 0),
        (0, 256, 0),
        (-1, 256, 0),
        (8, 1, 0),
    ],
)
def test_what_the_user_says_counts_up_to_the_slots_there_are(
    user_value, max_running, threshold, is_dflash_family
):
    resolved = resolve_min_free_slots(user_value, max_running, is_dflash_family=is_dflash_family)
    assert resolved == threshold


@pytest.mark.parametrize(
    ("running", "free", "waiting", "old_delays", "new_delays"),
    [
        # 256 slots, threshold 4.
        (254, 2, 2, True, False),
        (254, 2, 3, True, True),
        (254, 2, None, True, True),
        (253, 3, 3, True, False),
        (253, 3, 1, True, False),
        (253, 3, 4, True, True),
        (252, 4, 2, False, False),
        (252, 4, 100, False, False),
        (251, 5, 100, False, False),
        (256, 0, 1, True, True),
        # Where nothing runs, nobody ends.
        (0, 1, 9, False, False),
        (0, 0, None, False, False),
    ],
)
def test_few_free_slots_delay_and_by_the_new_rule_only_if_more_are_waiting(
    running, free, waiting, old_delays, new_delays
):
    state = {
        "running_bs": running,
        "num_allocatable_reqs": free,
        "num_waiting_reqs": waiting,
    }
    assert MinFreeSlotsDelayer(4, rule="free-slots").should_delay(**state) == old_delays
    assert MinFreeSlotsDelayer(4).should_delay(**state) == new_delays


def test_a_caller_may_say_less_or_more_than_is_known_of():
    delayer = MinFreeSlotsDelayer(4)
    assert delayer.should_delay(running_bs=254, num_allocatable_reqs=2)
    assert delayer.should_delay(running_bs=254, num_allocatable_reqs=2, microbatch_capacity=128)
    with pytest.raises(TypeError):
        delayer.should_delay(254, 2)


# Around the thresholds, where something can differ.
COUNTS = st.integers(0, 12)


@given(st.integers(0, 8), COUNTS, COUNTS, COUNTS)
def test_the_rules_differ_only_below_the_threshold_and_then_the_new_one_admits(
    threshold, running, free, waiting
):
    state = {
        "running_bs": running,
        "num_allocatable_reqs": free,
        "num_waiting_reqs": waiting,
    }
    old = MinFreeSlotsDelayer(threshold, rule="free-slots").should_delay(**state)
    new = MinFreeSlotsDelayer(threshold).should_delay(**state)
    if waiting >= threshold or free >= threshold:
        assert old == new
    assert new == (running > 0 and free < min(threshold, waiting))
    assert old or not new


@given(running=COUNTS, free=COUNTS, waiting=COUNTS)
def test_a_threshold_of_zero_never_delays(running, free, waiting):
    for delayer in (MinFreeSlotsDelayer(0), MinFreeSlotsDelayer(0, rule="free-slots")):
        assert not delayer.should_delay(
            running_bs=running, num_allocatable_reqs=free, num_waiting_reqs=waiting
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_free_slots": -1}, "min_free_slots: -1 is not allowed; give a number ≥ 0"),
        (
            {"min_free_slots": 4, "rule": "waiting"},
            "rule: 'waiting' is not allowed; give one of free-slots, free-slots-and-waiting",
        ),
    ],
)
def test_what_is_no_threshold_and_no_rule_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        MinFreeSlotsDelayer(**options)
