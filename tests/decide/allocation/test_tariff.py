"""Electricity by the hour, by hand."""

import pytest

from equipoise.decide.allocation.problem import Tariff
from equipoise.units import DAY_S, HOUR_S

NIGHT = Tariff(usd_per_kwh=(0.1, *[0.3] * 23))


def test_a_kilowatt_over_half_a_cheap_and_half_a_dear_hour():
    # 0.5 kWh at 0.1 and 0.5 kWh at 0.3.
    assert 1000 * NIGHT.usd_per_w(0.5 * HOUR_S, 1.5 * HOUR_S) == pytest.approx(0.2)


def test_prices_repeat_every_day():
    # A day: 1 h at 0.1 and 23 h at 0.3.
    assert 1000 * NIGHT.usd_per_w(5 * HOUR_S, 5 * HOUR_S + DAY_S) == pytest.approx(7.0)
    assert 1000 * NIGHT.usd_per_w(3 * DAY_S, 3 * DAY_S + HOUR_S) == pytest.approx(0.1)


def test_the_plan_may_begin_at_another_hour():
    evening = Tariff(usd_per_kwh=NIGHT.usd_per_kwh, begin_s=23 * HOUR_S)
    assert 1000 * evening.usd_per_w(HOUR_S, 2 * HOUR_S) == pytest.approx(0.1)
    assert evening.changes_s(0.0, DAY_S) == (HOUR_S, 2 * HOUR_S)
