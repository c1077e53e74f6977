"""What time and order did, told from values in which it was put."""

import math

import numpy as np
import pytest

from tracekit.compare.drift import notes, time_effects
from tracekit.compare.estimate import estimate

ORDER = "ABBA" * 3


def told(logs, order=ORDER):
    values = np.exp(logs)
    found = estimate(values, order, "A", "B")
    effects = time_effects(values, order, range(len(values)), found, "B")
    return effects, list(notes(effects, found))


def noise(seed):
    return np.random.default_rng(seed).normal(0, 0.002, 12)


def test_nothing_is_said_of_nothing():
    effects, said = told(noise(2))
    assert said == []
    assert effects.drift == pytest.approx(0, abs=0.006)


def test_a_drift_is_measured_from_the_first_slot_to_the_last():
    effects, said = told(noise(2) + np.linspace(0, -0.1, 12))
    assert effects.drift == pytest.approx(-0.1, abs=0.006)
    assert effects.drift_p < 1e-6
    assert len(said) == 1
    assert said[0].startswith("drift: -9.")


def test_a_curve_is_told_from_a_line():
    effects, said = told(noise(2) + 0.03 * np.sin(np.linspace(0, math.pi, 12)))
    assert effects.curve_odds > 1000
    assert any("no straight line" in note for note in said)


def test_a_server_that_minds_what_ran_before_is_told():
    after_head = np.array([0, *[arm == "B" for arm in ORDER[:-1]]])
    effects, said = told(noise(2) + 0.02 * after_head)
    assert effects.carry_over == pytest.approx(0.02, abs=0.004)
    assert effects.carry_over_p < 0.001
    assert any(note.startswith("order: +") for note in said)


def test_alternating_arms_cannot_tell_what_ran_before():
    effects, _ = told(noise(2), "AB" * 6)
    assert (effects.carry_over, effects.carry_over_p) == (None, None)


def test_false_notes_are_as_rare_as_they_say():
    random = np.random.default_rng(8)
    all_effects = [told(random.normal(0, 0.01, 12))[0] for _ in range(100)]
    for p_values in ([e.drift_p for e in all_effects], [e.carry_over_p for e in all_effects]):
        # 5 % and four binomial standard errors.
        assert np.mean(np.array(p_values) < 0.05) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 100)
        assert 0.3 < np.mean(np.array(p_values) < 0.5) < 0.7
    assert np.mean([e.curve_odds >= 10 for e in all_effects]) < 0.05
