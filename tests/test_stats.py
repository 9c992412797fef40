import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import EvidenceError
from equipoise.intervals import covered_s
from equipoise.stats import (
    conformal_half_width,
    covariance_root,
    located_quantiles,
    log_t_interval,
    median_interval,
    medians,
    percentile_interval,
    proportion_interval,
    quantiles,
    ratio_interval,
    series_mean_interval,
)


def test_interval_between_quantiles_by_hand():
    interval = percentile_interval(range(101), value=50.0, level=0.9)
    assert (interval.low, interval.high) == pytest.approx((5.0, 95.0))
    assert (interval.value, interval.level) == (50.0, 0.9)


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_quantiles_are_those_of_numpy(rows, share):
    values = np.array(rows)
    assert np.array_equal(quantiles(values, (share, 0.5)), np.quantile(values, [share, 0.5], axis=0))
    assert np.array_equal(medians(values), np.median(values, axis=0))
    located = np.quantile(values[:, 0], [share, 0.5], method="inverted_cdf")
    assert np.array_equal(located_quantiles(values[:, 0], (share, 0.5)), located)


def test_the_mean_of_a_series_and_its_batches_by_hand():
    """Means of pairs 2 and 4: mean 3, standard error 1; Student's t of one degree at 90 % is 6.3138."""
    found = series_mean_interval([1.0, 3.0, 4.0, 4.0], level=0.9)
    assert (found.value, found.low, found.high) == pytest.approx(
        (3.0, 3.0 / np.exp(6.3138 / 3.0), 3.0 * np.exp(6.3138 / 3.0)), rel=1e-4
    )
    with pytest.raises(EvidenceError):
        series_mean_interval([1.0, 2.0, 3.0], level=0.9)


def test_the_interval_of_a_mean_holds_for_neighbours_that_depend_on_each_other():
    """An autoregressive series of correlation 0.5 about 10; values taken as independent hold about 65 %."""
    rng = np.random.default_rng(7)
    held, num_series, num_values = 0, 400, 300
    for _ in range(num_series):
        noise, series, level = rng.standard_normal(num_values), [], 0.0
        for each in noise.tolist():
            level = 0.5 * level + each
            series.append(10.0 + level)
        found = series_mean_interval(series, level=0.9)
        held += found.low <= 10.0 <= found.high
    assert 0.85 <= held / num_series <= 0.95


def test_root_of_covariances_by_hand():
    # Singular: all draws on the line y = 2 x, of which no signs or order of eigenvectors change a thing.
    assert covariance_root(np.array([[1.0, 2.0], [2.0, 4.0]])) == pytest.approx(
        np.array([[1.0, 2.0], [2.0, 4.0]]) / np.sqrt(5.0)
    )
    assert covariance_root(np.eye(3)) == pytest.approx(np.eye(3))
    assert covariance_root(np.array([[-1e-18]])) == pytest.approx(0.0)


@given(st.lists(st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3), min_size=3, max_size=3))
def test_root_of_covariances_is_that_of_scipy(rows):
    covariance = np.array(rows) @ np.array(rows).T + np.eye(3)
    assert covariance_root(covariance) == pytest.approx(np.real(scipy.linalg.sqrtm(covariance)), abs=1e-9)


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


def test_conformal_half_width_is_the_next_larger_order_statistic():
    # With n equal clusters the half width is the ceil(level * (n + 1))-th smallest error (Vovk et al. 2005).
    errors = np.arange(1, 20) / 100.0
    assert conformal_half_width(-errors, np.arange(19), level=0.9) == pytest.approx(0.18)
    assert conformal_half_width(errors, np.arange(19), level=0.5) == pytest.approx(0.10)


def test_conformal_half_width_counts_a_cluster_once():
    # Ten points of one cluster weigh as much as the one point of each other cluster.
    errors = np.concatenate([np.full(10, 5.0), np.arange(1, 10) / 10.0])
    clusters = np.concatenate([np.zeros(10), np.arange(1, 10)])
    assert conformal_half_width(errors, clusters, level=0.8) == pytest.approx(0.9)


def test_too_few_clusters_for_a_level_say_how_many_are_missing():
    with pytest.raises(EvidenceError, match=r"\b7 clusters .*\b9\b") as caught:
        conformal_half_width(np.ones(70), np.repeat(np.arange(7), 10), level=0.9)
    (missing,) = caught.value.missing
    assert missing.startswith("2 more groups")
    assert conformal_half_width(np.ones(9), np.arange(9), level=0.9) == pytest.approx(1.0)


def test_conformal_intervals_cover_a_new_cluster_at_their_level():
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(400):
        scales = np.exp(rng.normal(0.0, 0.5, 21))
        errors = rng.normal(0.0, 1.0, (21, 4)) * scales[:, None]
        width = conformal_half_width(errors[:20].ravel(), np.repeat(np.arange(20), 4), level=0.9)
        covered.append(np.mean(np.abs(errors[20]) <= width))
    assert 0.88 <= np.mean(covered) <= 0.96


@pytest.mark.law
@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=12, max_size=40), st.floats(0.05, 0.9))
def test_higher_level_is_never_a_narrower_conformal_interval(errors, level):
    clusters = np.arange(len(errors))
    assert conformal_half_width(errors, clusters, level=level * 0.9) <= conformal_half_width(
        errors, clusters, level=level
    )


def test_order_statistics_hold_the_median_as_tables_say():
    # Hahn and Meeker, table A.15a: 95 % for the median of 10 is the 2nd to the 9th, of 20 the 6th to the 15th.
    for num, low, high in ((6, 1, 6), (10, 2, 9), (20, 6, 15)):
        found = median_interval(range(1, num + 1), level=0.95)
        assert (found.low, found.high) == (low, high)
    with pytest.raises(EvidenceError, match=r"5 values; .* needs 6"):
        median_interval([1, 2, 3, 4, 5], level=0.95)


def test_the_interval_of_a_few_times_is_students_on_logarithms():
    values = [1.0, 1.3, 1.1, 0.9]
    logs = np.log(values)
    expected = scipy.stats.t.interval(0.95, 3, loc=logs.mean(), scale=scipy.stats.sem(logs))
    found = log_t_interval(values, level=0.95)
    assert np.log([found.low, found.high]) == pytest.approx(expected)
    assert found.value == pytest.approx(np.exp(np.median(logs)))


def test_the_interval_of_a_ratio_is_welchs_on_logarithms():
    ours, theirs = [1.0, 1.3, 1.1, 0.9], [2.0, 2.1, 2.4]
    expected = scipy.stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval(0.95)
    found = ratio_interval(ours, theirs, level=0.95)
    assert np.log([found.low, found.high]) == pytest.approx([expected.low, expected.high])


@pytest.mark.parametrize(("hits", "trials"), [(0, 4), (3, 40), (40, 40)])
def test_the_interval_of_a_share_is_clopper_and_pearsons(hits, trials):
    expected = scipy.stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
    found = proportion_interval(hits, trials, level=0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.law
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(-3, 10)), max_size=8),
    st.integers(0, 15),
    st.integers(15, 30),
)
def test_every_second_that_spans_cover_counts_once(spans, first, last):
    moments = {begun + part for begun, length in spans for part in range(length)}
    ends = [(begun, begun + length) for begun, length in spans]
    assert covered_s(ends) == len(moments)
    assert covered_s(ends, within=(first, last)) == len(moments & set(range(first, last)))
