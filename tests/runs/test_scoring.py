"""Scores from times, by hand after the MLPerf Training rules, and laws that any scoring must obey."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs.scoring import CORRUPT_LINE, SLOW_INIT, SUCCESS, RunOutcome, olympic_runs, score
from equipoise.spec.workload import MlperfRules

FIVE = MlperfRules(num_runs_required=5)
FORTY = MlperfRules(num_runs_required=40, num_dropped_each_end=4, max_failed=4)
NCF = MlperfRules(num_runs_required=100, num_counted=50)


def good(*times_s: float) -> list[RunOutcome]:
    return [RunOutcome(time_s=time_s, status=SUCCESS) for time_s in times_s]


FAILED = RunOutcome(time_s=None, status="no_run_stop")


def test_the_fastest_and_the_slowest_are_dropped():
    found = score(good(10, 30, 20, 50, 40), FIVE)
    assert (found.score_s, found.min_s, found.max_s) == (30, 10, 50)
    assert sorted(found.counted) == [1, 2, 4]


def test_a_failed_run_is_the_slowest():
    found = score([*good(10, 30, 20, 50), FAILED], FIVE)
    assert found.score_s == pytest.approx((20 + 30 + 50) / 3)
    assert (found.num_failed, found.reason) == (1, None)


def test_an_aborted_run_has_a_time_and_fails_all_the_same():
    found = score([*good(10, 30, 20, 50), RunOutcome(time_s=15, status="status=aborted")], FIVE)
    assert found.score_s == pytest.approx((20 + 30 + 50) / 3)
    assert found.lenient_s == found.score_s


def test_two_failed_runs_are_too_many():
    found = score([*good(10, 30, 20), FAILED, FAILED], FIVE)
    assert (found.score_s, found.counted) == (None, ())
    assert found.reason == "2 of 5 runs failed (no_run_stop); at most 1 may"


def test_four_of_forty_may_fail():
    assert score([*good(*range(1, 37)), *[FAILED] * 4], FORTY).score_s == sum(range(5, 37)) / 32
    assert score([*good(*range(1, 36)), *[FAILED] * 5], FORTY).score_s is None


def test_convergence_scaling_multiplies_the_mean_only():
    found = score(good(10, 30, 20, 50, 40), FIVE, convergence_scaling=1.1)
    assert (found.score_s, found.unscaled_s, found.max_s) == (pytest.approx(33), 30, 50)
    assert found.lenient_s == pytest.approx(33)


def test_an_unreadable_factor_leaves_no_score():
    found = score(good(10, 30, 20, 50, 40), FIVE, convergence_scaling=None)
    assert found.score_s is None
    assert "scaling.json" in found.reason


@pytest.mark.parametrize("status", [CORRUPT_LINE, SLOW_INIT])
def test_a_lenient_score_forgives_formal_faults(status):
    found = score([*good(10, 30, 20, 50), RunOutcome(time_s=15, status=status)], FIVE)
    assert found.score_s == pytest.approx((20 + 30 + 50) / 3)
    assert found.lenient_s == pytest.approx((15 + 20 + 30) / 3)


def test_lost_logs_leave_no_score():
    found = score(good(10, 30, 20, 50), FIVE, gaps=True)
    assert (found.score_s, found.num_missing, found.reason) == (None, 1, "1 of 5 logs missing")


def test_a_short_submission_is_scored_as_the_official_code_does():
    found = score(good(10, 30, 20, 50), FIVE)
    assert (found.score_s, found.num_missing) == (25, 1)


def test_nothing_found_is_all_missing():
    found = score([], FIVE)
    assert (found.score_s, found.num_missing, found.reason) == (None, 5, "5 of 5 logs missing")


def test_too_few_to_drop_both_ends_is_no_score():
    assert score(good(10), FIVE).reason == "4 of 5 logs missing"
    assert score(good(10, 20), FIVE).score_s is None


def test_of_an_unknown_workload_nothing_is_called_missing():
    unknown = MlperfRules(num_runs_required=10, known=False)
    found = score(good(10, 30, 20), unknown, gaps=True)
    assert (found.score_s, found.num_missing, found.reason) == (20, 0, None)
    empty = score([], unknown)
    assert (empty.score_s, empty.num_missing) == (None, 0)
    assert "missing" not in empty.reason


def test_more_logs_than_required_all_count():
    assert score(good(10, 20, 30, 40, 50, 60, 70), FIVE).score_s == 40


def test_ncf_counts_its_first_fifty_successes():
    outcomes = [outcome for time_s in range(1, 51) for outcome in (FAILED, *good(time_s))]
    outcomes += good(*[1] * 10)
    found = score(outcomes, NCF)
    assert found.score_s == sum(range(2, 50)) / 48
    assert (found.num_failed, found.reason) == (50, None)
    assert score(outcomes[:90], NCF, gaps=False).score_s is None


TIMES = st.lists(st.floats(1, 1e6), min_size=3, max_size=12)


@pytest.mark.law
@given(TIMES, st.randoms())
def test_the_order_of_runs_does_not_matter(times_s, random):
    shuffled = times_s.copy()
    random.shuffle(shuffled)
    assert score(good(*shuffled), FIVE).score_s == pytest.approx(score(good(*times_s), FIVE).score_s)


@pytest.mark.law
@given(TIMES)
def test_a_score_lies_between_the_fastest_and_the_slowest(times_s):
    found = score(good(*times_s), FIVE)
    assert found.min_s * (1 - 1e-12) <= found.score_s <= found.max_s * (1 + 1e-12)


@pytest.mark.law
@given(TIMES)
def test_that_the_slowest_run_fails_changes_nothing(times_s):
    failed = score([*good(*sorted(times_s)[:-1]), FAILED], FIVE)
    assert failed.score_s == pytest.approx(score(good(*times_s), FIVE).score_s)


@pytest.mark.law
@given(TIMES)
def test_that_the_fastest_run_fails_never_helps(times_s):
    failed = score([*good(*sorted(times_s)[1:]), FAILED], FIVE)
    assert failed.score_s >= score(good(*times_s), FIVE).score_s * (1 - 1e-12)


@pytest.mark.law
@given(TIMES, st.integers(0, 2), st.integers(0, 3))
def test_olympic_runs_are_distinct_and_as_many_as_the_rules_say(times_s, num_failed, num_dropped):
    kept = olympic_runs(times_s, num_failed=num_failed, num_dropped_each_end=num_dropped)
    expected = max(len(times_s) - 2 * num_dropped + num_failed, 0) if num_failed <= num_dropped else 0
    assert len(set(kept)) == len(kept) == expected
