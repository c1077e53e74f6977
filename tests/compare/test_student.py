"""Student's t against closed forms and published tables; mixtures against plain numbers."""

import math

import numpy as np
import pytest

from tracekit.compare.student import Mixture, t_cdf, t_quantile


def test_one_and_two_degrees_of_freedom_have_closed_forms():
    t = np.linspace(-30, 30, 241)
    assert t_cdf(t, 1) == pytest.approx(0.5 + np.arctan(t) / math.pi, abs=1e-14)
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * np.sqrt(2 + t**2)), abs=1e-14)


@pytest.mark.parametrize(
    ("probability", "df", "published"),
    [(0.95, 2, 2.920), (0.975, 3, 3.182), (0.95, 7, 1.895), (0.975, 10, 2.228), (0.995, 1, 63.657),
     (0.995, 9, 3.250), (0.95, 30, 1.697), (0.975, 120, 1.980), (0.05, 7, -1.895)],
)  # fmt: skip
def test_quantiles_are_those_of_published_tables(probability, df, published):
    assert t_quantile(probability, df) == pytest.approx(published, abs=0.0006)


def test_a_mixture_of_one_part_is_that_part_moved_and_scaled():
    one = Mixture(np.array([[1.0]]), np.array([[5.0]]), np.array([[2.0]]), 10)
    assert one.quantile(0.975) == pytest.approx([5 + 2 * 2.228139], abs=1e-5)
    assert one.cdf(np.array([5.0])) == pytest.approx([0.5])


def test_each_row_of_a_mixture_has_weights_of_its_own():
    far = np.array([[0.0, 1000.0], [0.0, 1000.0]])
    both = Mixture(np.array([[0.8, 0.2], [0.05, 0.95]]), far, np.ones((2, 2)), 3)
    # Parts so far apart that between them lie exactly the weights.
    assert both.cdf(np.array([500.0, 500.0])) == pytest.approx([0.8, 0.05], abs=1e-6)
    # 0.4 of the first row is 0.5 of its first part; 0.525 of the second 0.5 of its second.
    assert both.quantile(0.4)[0] == pytest.approx(0, abs=1e-6)
    assert both.quantile(0.525)[1] == pytest.approx(1000, abs=1e-6)
