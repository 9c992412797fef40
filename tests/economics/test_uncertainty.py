"""Propagation against exact answers and against two million random draws; tornado by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.intervals import Input, Interval, exact, moved, product, spread
from equipoise.stats import propagated, tornado


def _input(name, value, low, high):
    return Input(name=name, unit="", interval=Interval(value=value, low=low, high=high, level=0.9))


def test_widths_of_a_product_add_up_as_squares():
    # Sides apart: 3-4-5 below, 5-12-13 above, in tenths of a logarithm.
    one = Interval(value=2.0, low=2.0 * math.exp(-0.3), high=2.0 * math.exp(0.5), level=0.9)
    other = Interval(value=5.0, low=5.0 * math.exp(-0.4), high=5.0 * math.exp(1.2), level=0.9)
    found = product(one, other)
    assert found.value == pytest.approx(10.0)
    assert found.low == pytest.approx(10.0 * math.exp(-0.5))
    assert found.high == pytest.approx(10.0 * math.exp(1.3))


def test_a_result_moved_alone_has_the_width_of_a_product():
    # exp(0.3) and exp(0.4) to both sides: exp(0.5); an input that moves only upwards adds nothing below.
    found = moved(
        6.0, [(6.0 * math.exp(0.3), 6.0 * math.exp(-0.3)), (6.0 / math.exp(0.4), 6.0 * math.exp(0.4))]
    )
    assert (found.low, found.high) == pytest.approx((6.0 * math.exp(-0.5), 6.0 * math.exp(0.5)))
    one_sided = moved(6.0, [(6.0, 7.0)])
    assert (one_sided.low, one_sided.high) == pytest.approx((6.0, 7.0))
    assert math.isinf(moved(6.0, [(6.0, math.inf)]).high)


def test_a_product_with_zero_is_zero():
    assert product(exact(0.0), spread(3.0, 0.5)) == exact(0.0)


def test_a_sum_agrees_with_two_million_random_draws():
    widths = (0.2, 0.5, 0.8, 0.3, 1.0)
    inputs = [Input(name=str(i), unit="", interval=spread(1.0, each)) for i, each in enumerate(widths)]
    found = propagated(lambda at: at["0"] * at["1"] + at["2"] - 0.3 * at["3"] + at["4"], inputs)
    # Quantiles of that sum over 2,000,000 independent log-normal draws, numpy's default_rng(0).
    assert found.value == pytest.approx(2.7)
    assert (found.low, found.high) == pytest.approx((1.7218, 5.0180), rel=0.02)


def test_what_never_comes_stays_infinite():
    found = propagated(lambda at: np.where(at["x"] > 0.8, 1.0, math.inf), [_input("x", 1.0, 0.5, 2.0)])
    assert found.value == 1.0
    assert math.isinf(found.high)


@pytest.mark.law
@given(st.floats(0.1, 10.0), st.floats(0.01, 1.0))
def test_one_input_keeps_its_interval(value, width):
    interval = spread(value, width)
    found = propagated(lambda at: 3.0 * at["x"], [Input(name="x", unit="", interval=interval)])
    assert found.low == pytest.approx(3.0 * interval.low, rel=1e-3)
    assert found.high == pytest.approx(3.0 * interval.high, rel=1e-3)


def test_a_tornado_by_hand():
    # y = 10 a - b at (2, 3): 17. a from 1 to 4: 7 to 37. b from 0.5 to 9: 19.5 to 11. c does nothing.
    found = tornado(
        "y",
        "USD",
        lambda at: 10.0 * at["a"] - at["b"] + 0.0 * at["c"],
        [_input("b", 3.0, 0.5, 9.0), _input("a", 2.0, 1.0, 4.0), _input("c", 1.0, 1.0, 1.0)],
    )
    assert found.result.value == pytest.approx(17.0)
    assert [(bar.name, bar.at_low, bar.at_high, bar.effect) for bar in found.bars] == [
        ("a", 7.0, 37.0, 30.0),
        ("b", 19.5, 11.0, 8.5),
    ]
