"""Verdicts on distributions with known bounds: Student's quantiles come from published tables."""

import math

import numpy as np
import pytest

from tracekit.compare.estimate import Estimate, NoEstimate, estimate
from tracekit.compare.student import Mixture
from tracekit.compare.verdict import Limit, Verdict, decide, decide_exact
from tracekit.errors import BadInput

PASS, FAIL, UNDECIDED = Verdict
TWO_PERCENT = Limit(0.02, "lower")


def known(effect, scale=0.01, df=10, objections=(), *, is_log=True):
    """One Student distribution: with 10 degrees of freedom ± 1.8125 scales hold 90 %."""
    part = Mixture(np.ones((1, 1)), np.full((1, 1), effect), np.full((1, 1), scale), df)
    return Estimate(effect, df + 4, df, 7, 7, 0.5, objections, is_log, part)


def verdict(found, limit=TWO_PERCENT, **more):
    return decide(found, limit, **more).verdict


# log 1.02 = 0.019803, and the half-width 0.018125.
@pytest.mark.parametrize(
    ("effect", "expected"),
    [(-0.5, PASS), (0, PASS), (0.0016, PASS), (0.0018, UNDECIDED), (0.0378, UNDECIDED),
     (0.0380, FAIL), (0.5, FAIL)],
)  # fmt: skip
def test_the_whole_interval_decides_of_a_time(effect, expected):
    assert verdict(known(effect)) is expected


# log 0.98 = -0.020203.
@pytest.mark.parametrize(
    ("effect", "expected"),
    [(0.5, PASS), (-0.0020, PASS), (-0.0022, UNDECIDED), (-0.0382, UNDECIDED), (-0.0384, FAIL)],
)
def test_the_whole_interval_decides_of_a_rate(effect, expected):
    assert verdict(known(effect), Limit(0.02, "higher")) is expected


@pytest.mark.parametrize(
    ("effect", "expected"),
    # Either way: beyond it by the one-sided 2.5 % quantile, 2.2281.
    [(0, PASS), (0.0018, UNDECIDED), (-0.0022, UNDECIDED), (0.0420, UNDECIDED), (0.0422, FAIL),
     (-0.0424, UNDECIDED), (-0.0426, FAIL)],
)  # fmt: skip
def test_a_change_either_way_may_be_for_the_worse(effect, expected):
    assert verdict(known(effect), Limit(0.02, None)) is expected


def test_many_metrics_share_the_error_of_fail_and_not_of_pass():
    # With ten of them 0.5 % each: 3.1693 scales.
    assert verdict(known(0.0380), num_metrics=10) is UNDECIDED
    assert verdict(known(0.0514), num_metrics=10) is UNDECIDED
    assert verdict(known(0.0516), num_metrics=10) is FAIL
    assert verdict(known(0.0016), num_metrics=10) is PASS


def test_an_improvement_can_be_demanded():
    at_least_3_percent = Limit(-0.03, "lower")
    assert verdict(known(-0.05), at_least_3_percent) is PASS
    assert verdict(known(-0.03), at_least_3_percent) is UNDECIDED
    assert verdict(known(-0.01), at_least_3_percent) is FAIL


def test_differences_have_limits_in_their_own_unit():
    found = known(0.0, scale=1.0, is_log=False)
    assert verdict(found, Limit(1.8, "lower")) is UNDECIDED
    assert verdict(found, Limit(1.82, "lower")) is PASS
    assert verdict(found, Limit(1.82, "higher")) is PASS


@pytest.mark.parametrize("effect", [0.0, 0.9])
def test_an_objection_leaves_it_undecided_whatever_the_interval(effect):
    decision = decide(known(effect, objections=("AAAABBBB", "no noise")), TWO_PERCENT)
    assert decision.verdict is UNDECIDED
    assert decision.reason == "AAAABBBB; no noise"


def test_no_estimate_is_undecided_with_its_reason():
    assert decide(NoEstimate("n = 1"), TWO_PERCENT).reason == "n = 1"
    assert verdict(NoEstimate("n = 1")) is UNDECIDED


def test_slots_that_would_have_decided_as_by_hand():
    # 14 slots, 4 terms, scale 0.02: at n slots t(n - 4) · 0.02 · √(14 / n) < log 1.02 from
    # t(36) = 1.6883: n = 40: 0.019976 (too wide), n = 41: t(37) = 1.6871: 0.019717.
    found = known(0, scale=0.02)
    assert decide(found, TWO_PERCENT).slots == 41
    assert decide(found, TWO_PERCENT, block=4).slots == 42
    assert decide(found, TWO_PERCENT, block=12).slots == 50


def test_few_slots_gain_by_degrees_of_freedom_too():
    # 6 slots, 4 terms: n = 7: t(3) = 2.353: 0.0218, n = 8: t(4) = 2.132: 0.01846.
    assert decide(known(0, df=2), TWO_PERCENT).slots == 8


def test_on_the_limit_or_far_too_noisy_no_number_of_slots_is_named():
    assert decide(known(math.log(1.02)), TWO_PERCENT).slots is None
    assert decide(known(0.0, scale=0.2), TWO_PERCENT).slots is None
    assert decide(known(0.0), TWO_PERCENT).slots is None


def test_beyond_the_limit_slots_are_those_to_fail_with():
    found = known(0.0298)
    # 0.0099974 beyond it: n = 39: t(35) = 1.6896: 0.010123, n = 40: t(36) = 1.6883: 0.009988.
    assert decide(found, TWO_PERCENT).slots == 40
    assert decide(found, TWO_PERCENT, num_metrics=10).slots > 80


def test_reasons_have_the_bounds_in_per_cent():
    assert decide(known(0), TWO_PERCENT).reason == "changed between -1.80% and +1.83%"
    assert decide(known(0.06), TWO_PERCENT).reason == "changed by +4.28% or more"
    slower = decide(known(-0.06), Limit(0.02, "higher"))
    assert slower.reason == "changed by -4.10% or more"


@pytest.mark.parametrize(
    ("base", "head", "limit", "expected"),
    [
        ([100, 100], [102, 102], TWO_PERCENT, PASS),
        ([100], [103], TWO_PERCENT, FAIL),
        ([100], [103], Limit(0.02, "higher"), PASS),
        ([100], [97], Limit(0.02, None), FAIL),
        ([0], [0], Limit(0, None), PASS),
        ([0], [1], Limit(0.5, "lower"), FAIL),
        ([100, 101], [100], TWO_PERCENT, UNDECIDED),
        ([100], [90, 91], TWO_PERCENT, UNDECIDED),
        ([], [90], TWO_PERCENT, UNDECIDED),
        ([100], [math.nan], TWO_PERCENT, UNDECIDED),
    ],
)
def test_exact_metrics_are_compared_as_numbers(base, head, limit, expected):
    assert decide_exact(base, head, limit).verdict is expected


@pytest.mark.parametrize(
    ("max_change", "is_better", "said"),
    [(0.02, "faster", "no direction"), (math.nan, "lower", "no limit"), (-0.1, None, "either way")],
)
def test_a_limit_that_means_nothing_is_refused(max_change, is_better, said):
    with pytest.raises(BadInput, match=said):
        Limit(max_change, is_better)


def test_equal_servers_do_not_fail_and_slower_ones_do():
    random = np.random.default_rng(4)
    order = "ABBA" * 3
    counts = {PASS: 0, FAIL: 0, UNDECIDED: 0}
    slower = dict(counts)
    for _ in range(40):
        values = np.exp(random.normal(0, 0.01, 12) + np.linspace(0, random.uniform(-0.1, 0.1), 12))
        counts[verdict(estimate(values, order, "A", "B"))] += 1
        worse = values * np.where([arm == "B" for arm in order], 1.05, 1)
        slower[verdict(estimate(worse, order, "A", "B"))] += 1
    # Nine in ten are decided: 36 of 40, less 4 binomial standard errors of 1.9.
    assert counts[FAIL] == 0
    assert counts[PASS] >= 28
    assert slower[PASS] == 0
    assert slower[FAIL] >= 28


def test_blocks_run_one_after_the_other_are_never_decided():
    order = "AAAAAABBBBBB"
    values = [100 + (i % 3) * 0.01 for i in range(12)]
    assert verdict(estimate(values, order, "A", "B")) is UNDECIDED
    halved = [v / 2 if arm == "B" else v for v, arm in zip(values, order, strict=True)]
    assert verdict(estimate(halved, order, "A", "B"), Limit(0.02, "higher")) is UNDECIDED
