import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.stats import percentile_interval


def test_interval_between_quantiles_by_hand():
    interval = percentile_interval(range(101), value=50.0, level=0.9)
    assert (interval.low, interval.high) == pytest.approx((5.0, 95.0))
    assert (interval.value, interval.level) == (50.0, 0.9)


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0.05, 0.99))
def test_higher_level_is_never_narrower(draws, level):
    narrow = percentile_interval(draws, value=0.0, level=level * 0.9)
    wide = percentile_interval(draws, value=0.0, level=level)
    assert wide.low <= narrow.low + 1e-9
    assert wide.high >= narrow.high - 1e-9


def test_bootstrap_interval_covers_the_median_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        values = rng.normal(3.0, 1.0, 40)
        draws = np.median(values[rng.integers(0, 40, (300, 40))], axis=1)
        interval = percentile_interval(draws, value=float(np.median(values)), level=0.9)
        covered += interval.low <= 3.0 <= interval.high
    assert 0.84 <= covered / 200 <= 0.96
