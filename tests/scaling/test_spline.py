"""The spline against SciPy's."""

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from equipoise.scaling.posterior import cubic_spline


@pytest.mark.parametrize("num_knots", [4, 5, 30])
def test_it_is_the_spline_that_others_draw(num_knots):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(6, num_knots))
    knots = 2.0 + 0.25 * np.arange(num_knots)
    at = np.linspace(knots[0] - 0.3, knots[-1] + 0.3, 200)
    found = cubic_spline(2.0, 0.25, values)(at)
    assert found == pytest.approx(CubicSpline(knots, values, axis=1)(at), rel=1e-10, abs=1e-10)
    assert cubic_spline(2.0, 0.25, values)(knots) == pytest.approx(values, abs=1e-12)
