"""What an engine may be told, what it refuses, and the sizes that follow."""

import pytest
from engine_runs import SMALL, engine_of

from instrumented_runtime.config import EngineConfig


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"speculative_tokens": -1},
            "speculative_tokens: -1 is not allowed; give a whole number ≥ 0",
        ),
        ({"speculative_tokens": 1.0}, "speculative_tokens: 1.0 is not allowed"),
        ({"max_running": 0}, "max_running: 0 is not allowed; give a whole number ≥ 1"),
        ({"max_running": True}, "max_running: True is not allowed"),
        ({"chunk_tokens": 0}, "chunk_tokens: 0 is not allowed; give a whole number ≥ 1"),
        ({"max_tokens": 1}, "max_tokens: 1 is not allowed; give a whole number ≥ 2"),
        ({"seed": -1}, "seed: -1 is not allowed; give a whole number ≥ 0"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size: 0 is not allowed"),
        # A verify of one request has to fit a page: the padding page.
        ({"page_size": 5}, "page_size: 5 is not allowed; give a whole number ≥ 6"),
        ({"page_size": 3, "speculative_tokens": 3}, "give a whole number ≥ 4"),
        ({"page_size": 0, "speculative_tokens": 0}, "give a whole number ≥ 1"),
        ({"num_pages": 0}, "num_pages: 0 is not allowed; give a whole number ≥ 1"),
        ({"min_free_slots": -1}, "min_free_slots: -1 is not allowed; give a whole number ≥ 0"),
        (
            {"policy": "host_sync"},
            "policy: 'host_sync' is not allowed; give one of host-sync, event-wait, forward-stream",
        ),
        ({"delay_rule": "slots"}, "delay_rule: 'slots' is not allowed; give one of free-slots, "),
        ({"draft_miss_share": 1.1}, "draft_miss_share: 1.1 is not allowed; give a share"),
        ({"draft_miss_share": float("nan")}, "draft_miss_share: nan is not allowed"),
        ({"draft_miss_spread": "0.1"}, "draft_miss_spread: '0.1' is not allowed"),
        ({"draft_miss_share": True}, "draft_miss_share: True is not allowed"),
        ({"mix_decode": 1}, "mix_decode: 1 is not allowed; give true or false"),
        ({"needs_cpu_seq_lens": None}, "needs_cpu_seq_lens: None is not allowed"),
        ({"is_checked": 0}, "is_checked: 0 is not allowed"),
        ({"has_tensors": "no"}, "has_tensors: 'no' is not allowed"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(options, said):
    with pytest.raises(ValueError) as raised:
        EngineConfig.from_options(options)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "speculative_token",
            "speculative_token: no such option; did you mean speculative_tokens?",
        ),
        ("zzz", "zzz: no such option; known: policy, speculative_tokens, max_running, "),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_what_does(name, hint):
    with pytest.raises(ValueError) as raised:
        EngineConfig.from_options({name: 1})
    assert str(raised.value).startswith(hint)


def test_options_are_taken_by_name():
    options = {"policy": "event-wait", "seed": 3}
    assert EngineConfig.from_options(options) == EngineConfig(policy="event-wait", seed=3)


@pytest.mark.parametrize(
    ("options", "reserved", "pages_each", "pages"),
    [
        # A step too many after a step whose last tokens are too many: twice k + 1.
        ({"speculative_tokens": 5, "max_tokens": 128}, 12, 18, 1 + 4 * 18),
        ({"speculative_tokens": 0, "max_tokens": 128}, 2, 17, 1 + 4 * 17),
        ({"speculative_tokens": 3, "max_tokens": 128}, 8, 17, 1 + 4 * 17),
        ({"speculative_tokens": 5, "max_tokens": 128, "num_pages": 20}, 12, 18, 21),
        ({"speculative_tokens": 5, "max_tokens": 128, "page_size": 140}, 12, 1, 1 + 4),
        ({"speculative_tokens": 5, "max_tokens": 128, "page_size": 139}, 12, 2, 1 + 8),
    ],
)
def test_sizes_follow_from_what_is_told(options, reserved, pages_each, pages):
    config = EngineConfig(**(SMALL | options))
    assert config.reserve_tokens == reserved
    assert config.pages_per_request == pages_each
    assert config.pages == pages


@pytest.mark.parametrize(
    "options",
    [
        {"num_pages": 1},
        {"max_running": 1, "chunk_tokens": 1, "max_tokens": 2},
        {"speculative_tokens": 0, "page_size": 1},
        {"speculative_tokens": 7, "page_size": 8},
        {"draft_miss_share": 0, "draft_miss_spread": 1},
        {"min_free_slots": 0, "delay_rule": "free-slots"},
    ],
)
def test_of_the_least_that_is_allowed_an_engine_can_be_made(options):
    assert not engine_of(has_tensors=False, **options).has_work
