"""Weights by hand, and laws of the joint estimate."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.advice.answer.weighed import LEAST_LOG_SD, chance_within, log_sd, shares, weighed
from equipoise.stats import Interval

DEVIATE = 1.6448536269514722


def _around(value, spread):
    half = math.exp(DEVIATE * spread)
    return Interval(value=value, low=value / half, high=value * half, level=0.9)


estimates = st.lists(
    st.tuples(st.floats(1.0, 1e6), st.floats(LEAST_LOG_SD, 1.0)), min_size=1, max_size=4
).map(lambda pairs: [(_around(value, spread), spread) for value, spread in pairs])


def test_half_the_error_weighs_four_times():
    # 1/0.1^2 : 1/0.2^2 = 4 : 1
    assert shares(np.array([0.1, 0.2])).tolist() == pytest.approx([0.8, 0.2])


def test_two_that_agree_are_joined_by_hand():
    # weights 0.8 and 0.2; variance (0.8 0.1)^2 + (0.2 0.2)^2 + 2 0.2 (0.8 0.1)(0.2 0.2) = 0.00928
    found = weighed([_around(100.0, 0.1), _around(100.0, 0.2)], [0.1, 0.2])
    assert found.time.value == pytest.approx(100.0)
    assert log_sd(found.time) == pytest.approx(math.sqrt(0.00928), rel=1e-6)
    assert found.disagreement == 1.0


def test_two_that_differ_by_three_deviations_widen_the_range():
    # logs 0 and ln 2, both 0.1: mean ln 2 / 2, chi^2 = 2 (3.466)^2 = 24.02, factor sqrt(24.02) = 4.901
    found = weighed([_around(1.0, 0.1), _around(2.0, 0.1)], [0.1, 0.1])
    assert found.time.value == pytest.approx(math.sqrt(2.0))
    assert found.disagreement == pytest.approx(4.901, abs=0.001)


def test_a_single_witness_is_told_as_it_is():
    one = _around(50.0, 0.3)
    assert weighed([one], [0.01]).time == one


@given(estimates)
def test_the_joint_range_lies_within_the_widest_ends(told):
    times, spreads = zip(*told, strict=True)
    found = weighed(times, spreads)
    margin = 1 + 1e-9
    assert min(each.low for each in times) <= found.time.low * margin
    assert found.time.high <= max(each.high for each in times) * margin
    assert found.time.low <= found.time.value * margin <= found.time.high * margin**2
    assert sum(found.weights) == pytest.approx(1.0)


@given(estimates, st.integers(0, 3))
def test_the_order_of_witnesses_does_not_matter(told, turn):
    turned = told[turn % len(told) :] + told[: turn % len(told)]
    first, second = (weighed(*zip(*each, strict=True)).time.value for each in (told, turned))
    assert first == pytest.approx(second)


def test_a_limit_at_the_expected_time_is_kept_in_half_of_the_cases():
    assert chance_within(_around(10.0, 0.2), 10.0) == pytest.approx(0.5)
    assert chance_within(_around(10.0, 0.2), math.inf) == 1.0
    # one standard deviation above: 84.13 %
    assert chance_within(_around(10.0, 0.2), 10.0 * math.exp(0.2)) == pytest.approx(0.8413, abs=1e-4)
