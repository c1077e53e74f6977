"""The estimate against hand calculation, a plain second implementation, and what it must not mind."""

import math

import numpy as np
import pytest

from tracekit.compare.estimate import NO_CURVE, RATIOS, Estimate, NoEstimate, TimeModel, estimate

TWO, THREE = "ABBA" * 2, "ABBA" * 3
VALUES = [100, 103, 104.5, 101, 102, 106, 104, 103.5, 104, 107, 108, 105]


def found(values=VALUES, order=THREE, base="A", head="B", **more):
    result = estimate(values, order, base, head, **more)
    assert isinstance(result, Estimate), result
    return result


def test_least_squares_of_two_blocks_as_by_hand():
    # A: 0 0 2 2, B: 1 3 3 1; the line takes 8/42 a slot and 64/42 of the squares 8; 5 degrees left.
    is_head = np.array([[letter == "B"] for letter in TWO], dtype=float)
    model = TimeModel(is_head, np.arange(8))
    values = np.array([[0.0, 1, 3, 0, 2, 3, 1, 2]])
    straight = model.straight(values)
    assert straight.df == 5
    assert straight.centers[0, 0] == pytest.approx(1)
    assert straight.scales[0, 0] == pytest.approx(math.sqrt((8 - 64 / 42) / 5 / 2))
    assert model.noise(values)[0] == pytest.approx(math.sqrt((8 - 64 / 42) / 5))
    line = TimeModel(is_head, np.arange(8), target=2).straight(values)
    assert line.centers[0, 0] == pytest.approx(7 * 8 / 42)
    assert line.scales[0, 0] == pytest.approx(7 * math.sqrt((8 - 64 / 42) / 5 / 42))


def plainly(values, order, positions):
    """Weights, centres and scales by dense formulas: error contrasts and X'V⁻¹X."""
    times = (np.array(positions, dtype=float) - positions[0]) / (positions[-1] - positions[0])
    y, n = np.log(values), len(values)
    steps = (np.arange(20_000) + 0.5) / 20_000
    reach = np.clip(times[:, None] - steps, 0, None)
    curve = reach @ reach.T / 20_000
    ends = np.column_stack([np.ones(n), times])
    beside = np.eye(n) - ends @ np.linalg.inv(ends.T @ ends) @ ends.T
    curve *= (n - 2) / np.trace(beside @ curve)
    x = np.column_stack([[letter == "B" for letter in order], ends]).astype(float)
    contrasts = np.linalg.svd(x)[0][:, 3:]
    weights, centers, scales = [], [], []
    for ratio in (0, *RATIOS):
        v = np.eye(n) + ratio * curve
        inverse = np.linalg.inv(v)
        covariance = np.linalg.inv(x.T @ inverse @ x)
        centers.append((covariance @ x.T @ inverse @ y)[0])
        inner = contrasts.T @ v @ contrasts
        squares = y @ contrasts @ np.linalg.inv(inner) @ contrasts.T @ y
        scales.append(math.sqrt(squares / (n - 3) * covariance[0, 0]))
        prior = (1 - NO_CURVE) / len(RATIOS) if ratio else NO_CURVE
        weights.append(prior * np.linalg.det(inner) ** -0.5 * squares ** (-(n - 3) / 2))
    return np.array(weights) / sum(weights), np.array(centers), np.array(scales)


@pytest.mark.parametrize("positions", [range(12), [0, 1, 2, 3, 5, 6, 8, 9, 10, 12, 13, 20]])
def test_the_distribution_is_that_of_plain_formulas(positions):
    weights, centers, scales = plainly(VALUES, THREE, positions)
    mine = found(positions=positions)
    assert mine.distribution.weights[0] == pytest.approx(weights, rel=1e-5)
    assert mine.distribution.centers[0] == pytest.approx(centers, rel=1e-5)
    assert mine.distribution.scales[0] == pytest.approx(scales, rel=1e-5)
    assert (mine.df, mine.num_slots, mine.num_base, mine.num_head) == (8, 12, 6, 6)
    # The interval holds 90 % of draws from it.
    random = np.random.default_rng(1)
    part = random.choice(len(weights), 400_000, p=weights)
    draws = centers[part] + scales[part] * random.standard_t(8, len(part))
    assert mine.interval(0.9) == pytest.approx(np.quantile(draws, [0.05, 0.95]), abs=2e-4)
    assert mine.effect == pytest.approx(np.quantile(draws, 0.5), abs=2e-4)
    assert mine.p_value == pytest.approx(2 * (draws < 0).mean(), abs=3e-4)


def same(one, other, sign=1):
    low, high = one.interval(0.95)
    expected = (low, high) if sign > 0 else (-high, -low)
    assert other.interval(0.95) == pytest.approx(expected, abs=1e-9)
    assert other.effect == pytest.approx(sign * one.effect, abs=1e-9)
    assert other.p_value == pytest.approx(one.p_value, abs=1e-9)


def test_units_do_not_matter():
    same(found(), found([1e-6 * value for value in VALUES]))


def test_swapped_arms_have_the_opposite_effect():
    same(found(), found(base="B", head="A"), sign=-1)


def test_time_may_run_backwards():
    same(found(), found(VALUES[::-1], THREE[::-1]))


def test_a_straight_drift_of_any_size_changes_nothing():
    drifting = [value * math.exp(0.07 * i) for i, value in enumerate(VALUES)]
    same(found(), found(drifting))


def test_the_order_in_which_slots_are_listed_does_not_matter():
    listed = [3, 7, 1, 0, 11, 9, 2, 10, 4, 6, 5, 8]
    shuffled = [VALUES[i] for i in listed]
    same(found(), found(shuffled, [THREE[i] for i in listed], positions=listed))


def test_a_known_effect_comes_back_and_is_a_change_of_the_ratio():
    slower = [v * (0.9 if arm == "B" else 1) for v, arm in zip(VALUES, THREE, strict=True)]
    one, other = found(), found(slower)
    assert other.effect - one.effect == pytest.approx(math.log(0.9))
    assert other.change(math.log(0.9)) == pytest.approx(-0.1)


def test_p_is_where_an_interval_would_end_at_no_effect():
    nearer = [v * (0.975 if arm == "B" else 1) for v, arm in zip(VALUES, THREE, strict=True)]
    result = found(nearer)
    assert 0.05 < result.p_value < 0.95
    assert min(map(abs, result.interval(1 - result.p_value))) == pytest.approx(0, abs=1e-9)


def test_a_third_arm_helps_to_tell_time_and_noise():
    random = np.random.default_rng(5)
    order = "ABCCBA" * 2
    values = np.exp(random.normal(0, 0.01, 12))
    alone = [i for i in range(12) if order[i] != "C"]
    both = found(values, order)
    fewer = found(values[alone], [order[i] for i in alone], positions=alone)
    assert (both.df, fewer.df) == (12 - 5, 8 - 4)
    assert (both.num_base, both.num_head) == (4, 4)


def test_shares_are_compared_by_their_difference_and_may_be_zero():
    shares = [0, 0.1, 0.12, 0.01, 0, 0.11, 0.1, 0]
    result = found(shares, TWO, is_log=False)
    assert result.effect == pytest.approx(0.1075 - 0.0025, abs=0.005)
    assert result.change(0.1) == 0.1


@pytest.mark.parametrize(
    ("values", "order", "said"),
    [
        ([1, 2], "AB", "n = 1 and B n = 1"),
        ([1, 2, 3, 2, 1], "AABAA", "B n = 1"),
        ([1, 2, math.nan, 1] * 2, TWO, "not a finite number"),
        ([1, 2, math.inf, 1] * 2, TWO, "not a finite number"),
        ([1, 2, 0, 1] * 2, TWO, "above 0"),
        ([1, 2, -3, 1] * 2, TWO, "above 0"),
        ([1, 2, 3, 4], "ABBA", "straight drift"),
    ],
)
def test_what_gives_no_interval_says_why(values, order, said):
    result = estimate(values, order, "A", "B")
    assert isinstance(result, NoEstimate)
    assert said in result.reason


def test_other_impossible_questions():
    assert "both sides" in estimate(VALUES, THREE, "A", "A").reason
    assert "n = 0" in estimate(VALUES, THREE, "A", "C").reason
    twice = estimate(VALUES, THREE, "A", "B", positions=[0, *range(11)])
    assert "same position" in twice.reason
    with pytest.raises(ValueError, match="differ in length"):
        estimate(VALUES, TWO, "A", "B")


@pytest.mark.parametrize("scale", [1e-6, 1, 1e9])
@pytest.mark.parametrize("is_log", [True, False])
def test_starts_that_never_vary_are_objected_to(scale, is_log):
    values = [scale * (7.3 if arm == "A" else 7.1) for arm in THREE]
    (said,) = found(values, is_log=is_log).objections
    assert said.startswith("every start of A and B gave the same value")
    values[3] *= 1.0001
    (said,) = found(values, is_log=is_log).objections
    assert said.startswith("every start of B gave the same value")
    values[2] *= 1.0001
    assert found(values, is_log=is_log).objections == ()


@pytest.mark.parametrize("is_log", [True, False])
def test_starts_that_only_drift_are_objected_to(is_log):
    line = [5 + 0.01 * i + 0.3 * (arm == "B") for i, arm in enumerate(THREE)]
    values = [math.exp(value) for value in line] if is_log else line
    (said,) = found(values, is_log=is_log).objections
    assert "beside a straight drift" in said


def test_an_order_that_time_could_explain_is_objected_to():
    (said,) = found(VALUES, "AAAAAABBBBBB").objections
    assert "AAAAAABBBBBB" in said
    assert found().objections == ()


def test_coverage_is_near_90_percent_with_and_without_drift():
    trials = 3000
    random = np.random.default_rng(11)
    noise = random.normal(0, 1, (trials, 12))
    step = random.uniform(-10, 10, (trials, 1)) * (
        np.arange(12) >= random.integers(1, 12, (trials, 1))
    )
    walk = random.normal(0, 3, (trials, 12)).cumsum(1)
    model = TimeModel(np.array([[float(arm == "B")] for arm in THREE]), np.arange(12))
    for drift in (0, step, walk):
        below = model.fit(noise + drift).cdf(np.zeros(trials))
        for tail in (below < 0.05, below > 0.95):
            # 4 to 6 % a tail; 3.5 binomial standard errors beyond that.
            error = 3.5 * math.sqrt(0.05 * 0.95 / trials)
            assert 0.04 - error < tail.mean() < 0.06 + error
