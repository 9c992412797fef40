import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.stats import bootstrap, median_absolute_deviation, percentile_interval

FINITE = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def test_mad_ignores_one_wild_value():
    assert median_absolute_deviation([1.0, 1.1, 0.9, 1.0, 1e9]) == pytest.approx(0.1)


@pytest.mark.law
@given(FINITE, st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_mad_ignores_shift_and_follows_scale(values, shift, scale):
    moved = [scale * value + shift for value in values]
    expected = scale * median_absolute_deviation(values)
    assert median_absolute_deviation(moved) == pytest.approx(expected, rel=1e-6, abs=1e-4)


def test_interval_between_quantiles_by_hand():
    interval = percentile_interval(range(101), value=50.0, level=0.9)
    assert (interval.low, interval.high) == pytest.approx((5.0, 95.0))


def test_bootstrap_is_repeatable_with_the_same_generator():
    values = np.arange(12.0)
    first = bootstrap(values, np.median, rng=np.random.default_rng(7))
    second = bootstrap(values, np.median, rng=np.random.default_rng(7))
    assert first == second
    assert first.low <= first.value <= first.high


def test_bootstrap_interval_covers_the_median_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        interval = bootstrap(rng.normal(3.0, 1.0, 40), np.median, rng=rng, num_resamples=200, level=0.9)
        covered += interval.low <= 3.0 <= interval.high
    assert 0.84 <= covered / 200 <= 0.96
