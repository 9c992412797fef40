"""Intervals of log-normal amounts, and the probability that a limit is kept."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.decide.answer import probability_within
from equipoise.intervals import Interval, log_sd, scaled, with_log_sd


def test_a_limit_at_the_central_value_is_kept_in_half_of_the_cases():
    assert probability_within(with_log_sd(10.0, 0.2), 10.0) == pytest.approx(0.5)
    assert probability_within(with_log_sd(10.0, 0.2), math.inf) == 1.0
    # one standard deviation above: 84.13 %
    assert probability_within(with_log_sd(10.0, 0.2), 10.0 * math.exp(0.2)) == pytest.approx(0.8413, abs=1e-4)


def test_a_limit_too_small_for_a_ratio_is_never_kept():
    # The smallest number above 0 is 4.94e-324: a ten thousandth of 1e-320 is 0.
    assert probability_within(with_log_sd(1e4, 0.2), 1e-320) == 0.0


def test_an_exact_statement_is_no_more_certain_than_replicates_differ():
    exact = Interval(value=10.0, low=10.0, high=10.0, level=0.9)
    # 3.3 % below: one standard deviation of replicate submissions
    assert probability_within(exact, 10.0 * math.exp(-0.033)) == pytest.approx(0.1587, abs=1e-3)


@given(st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_the_ends_of_a_lopsided_interval_are_exceeded_as_often_as_it_states(below, above):
    # an interval of 90 % leaves out 5 % on each side, however far its ends lie from the value
    amount = Interval(value=2.2, low=2.2 * math.exp(-below), high=2.2 * math.exp(above), level=0.9)
    assert probability_within(amount, amount.low) == pytest.approx(0.05, abs=1e-9)
    assert probability_within(amount, amount.high) == pytest.approx(0.95, abs=1e-9)


def test_nothing_is_spent_within_nothing():
    assert probability_within(with_log_sd(1.0, 0.1), 0.0) == 0.0


@given(st.floats(1e-3, 1e9), st.floats(0.0, 1.5))
def test_width_and_interval_are_one_statement(value, spread):
    assert log_sd(with_log_sd(value, spread)) == pytest.approx(spread, abs=1e-9)


@given(st.floats(1e-3, 1e9), st.floats(0.01, 1.5), st.floats(1e-3, 1e3))
def test_a_multiple_keeps_its_relative_width(value, spread, factor):
    assert log_sd(scaled(with_log_sd(value, spread), factor)) == pytest.approx(spread)
