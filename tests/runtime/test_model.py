"""The decoder on the host says what plain loops over whole numbers say, and its sums are exact."""

import numpy as np
import pytest
import torch
from engine_runs import PlainDecoder, greedy, is_missed_plainly, verified_plainly, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st

from instrumented_runtime.model import DraftMisses, HostModel, Weights, is_missed

PROMPTS = st.lists(st.integers(0, 511), min_size=1, max_size=40).map(tuple)
COUNTS = st.lists(st.integers(0, 4), min_size=4, max_size=4)
INT64S = st.integers(0, 2**31 - 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.lists(PROMPTS, min_size=1, max_size=4), st.data())
def test_the_host_says_what_plain_loops_over_the_whole_history_say(seed, prompts, data):
    model = HostModel(weights_of(seed), len(prompts) + 1)
    # A row is taken over from a longer sequence; nothing of that may be seen.
    model.start(1, tuple(range(100, 130)))
    model.next_tokens(np.array([1]), np.array([5]))
    rows = np.arange(1, len(prompts) + 1)
    for row, prompt in zip(rows, prompts, strict=True):
        model.start(row, prompt)
    said = [[] for _ in prompts]
    for counts in data.draw(st.lists(COUNTS, max_size=4)):
        counts = np.array(counts[: len(prompts)])
        tokens = model.next_tokens(rows, counts)
        assert tokens.shape == (len(prompts), counts.max())
        for own, row, count in zip(said, tokens.tolist(), counts, strict=True):
            own += row[:count]
            assert row[count:] == [0] * (counts.max() - count)
    for own, prompt in zip(said, prompts, strict=True):
        assert tuple(own) == greedy(seed, prompt, len(own))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 200])
def test_of_a_prompt_of_any_length_the_host_sees_as_much_as_counts(length):
    prompt = tuple((37 * place + 5) % 512 for place in range(length))
    model = HostModel(weights_of(0), 2)
    model.start(1, prompt)
    said = model.next_tokens(np.array([1]), np.array([12]))
    assert tuple(said[0].tolist()) == greedy(0, prompt, 12)


def test_no_rows_say_nothing():
    none = np.zeros(0, np.int64)
    assert HostModel(weights_of(0), 2).next_tokens(none, none).shape == (0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_no_sum_can_leave_the_whole_numbers_that_float32_holds(seed):
    """Of the parameters themselves: sums of absolute values, so that every order is within."""
    weights = Weights.of(seed)
    value = 60 * np.abs(weights.values).sum(1).max()
    hidden = 3 * 60 + 60 * weights.attention.sum(1).max()
    logit = 30 * np.abs(weights.head).sum(0).max() + weights.tie.max()
    # By hand, of the largest that parameters may be: 16 · 60 · 4, 3 · 60 + 8 · 8 · 60 and
    # 16 · 30 · 8 · 512 + 511.
    assert value <= 3_840
    assert hidden <= 4_020
    assert logit <= 1_966_591 < 2**24
    assert weights.embedding.min() >= 0
    assert weights.embedding.max() <= 60
    for array in (weights.embedding, weights.values, weights.attention, weights.head):
        assert array.dtype == np.float32
        assert len(np.unique(array)) > 4


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 3), PROMPTS)
def test_no_two_logits_of_a_token_are_equal(seed, prompt):
    decoder = PlainDecoder(weights_of(seed))
    for token in prompt:
        hidden = decoder.take(token)
        assert len(set(decoder.logits(hidden))) == 512


def test_other_seeds_are_other_models():
    prompt = (1, 2, 3)
    assert len({greedy(seed, prompt, 8) for seed in range(6)}) == 6


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(INT64S, st.integers(0, 65_536), INT64S), min_size=1, max_size=20),
)
def test_numpy_and_torch_and_python_agree_where_a_draft_is_wrong(cases):
    columns = [[case[column] for case in cases] for column in range(3)]
    by_numpy = is_missed(*(np.array(column) for column in columns))
    by_torch = is_missed(*(torch.tensor(column) for column in columns))
    expected = [is_missed_plainly(*case) for case in cases]
    assert by_numpy.tolist() == expected
    assert by_torch.tolist() == expected


def test_a_share_of_misses_gives_the_acceptance_that_chance_would():
    """With misses at a share q of positions a verify of 5 drafted tokens yields (1 − (1 − q)^6)/q."""
    counts = []
    for request in range(300):
        misses = DraftMisses.of(request, 0.258, 0.0, seed=0)
        counts += verified_plainly(misses, 10 + request, 400, 5)
    expected = (1 - (1 - 0.258) ** 6) / 0.258
    assert expected == pytest.approx(3.23, abs=0.005)
    assert sum(counts) / len(counts) == pytest.approx(expected, abs=0.05)
    assert set(counts) == {1, 2, 3, 4, 5, 6}


def test_no_share_misses_nothing_and_a_whole_one_everything():
    positions = np.arange(1000)
    for share in (0.0, 1.0):
        misses = DraftMisses.of(3, share, 0.0, seed=1)
        assert (is_missed(misses.seed, misses.threshold, positions) == bool(share)).all()


def test_requests_differ_in_their_share_as_much_as_is_asked_and_are_the_same_next_time():
    drawn = [DraftMisses.of(request, 0.4, 0.05, seed=2) for request in range(2_000)]
    shares = np.array([misses.threshold for misses in drawn]) / 65_536
    assert shares.mean() == pytest.approx(0.4, abs=0.005)
    assert shares.std() == pytest.approx(0.05, abs=0.005)
    assert len({misses.seed for misses in drawn}) == 2_000
    assert all(0 <= misses.seed < 2**31 for misses in drawn)
    assert DraftMisses.of(7, 0.4, 0.05, seed=2) == drawn[7]
    assert DraftMisses.of(7, 0.4, 0.05, seed=3) != drawn[7]
    extremes = [DraftMisses.of(request, 0.5, 1.0, seed=2).threshold for request in range(100)]
    assert (min(extremes), max(extremes)) == (0, 65_536)
