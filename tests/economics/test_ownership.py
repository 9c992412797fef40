"""Buying against renting: a case by hand, laws, and the table's own rules."""

import math
import re
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from equipoise import economics
from equipoise.economics import SYSTEM_POWER, Electricity, Price, Rates
from equipoise.economics.ownership import MONTH_H, Purchase, ownership, purchase
from equipoise.errors import EvidenceError
from equipoise.intervals import Interval, exact
from equipoise.spec.hardware import accelerator


def _rates(usd=2.0, usd_per_kwh=0.2):
    return Rates(
        price=Price(accelerator="x", usd_per_accelerator_hour=usd, low=usd, high=usd, basis="by hand"),
        grid=economics.grid(),
        accelerator_power_w=1000.0,
        system_power=SYSTEM_POWER,
        electricity=Electricity(usd_per_kwh=exact(usd_per_kwh), pue=exact(1.0), basis="by hand"),
    )


def _purchase(usd=12_000.0, hosting=50.0):
    return Purchase(
        accelerator="x",
        usd=exact(usd),
        upkeep_per_year=exact(0.05),
        hosting_usd_per_month=exact(hosting),
        idle_power_fraction=exact(0.25),
        residual_fraction=exact(0.25),
        lifetime_months=exact(48.0),
        basis=(),
    )


def _owned(bought, rates, *, utilisation, horizon_months=36.0, speed_error=None):
    return ownership(
        bought,
        rates,
        utilisation=utilisation,
        horizon_months=horizon_months,
        speed_error=speed_error or exact(1.0),
    )


def test_break_even_and_return_by_hand():
    # Half of 730.5 hours at 2 USD: 730.50 USD a month of rent.
    # Electricity: 1 kW x 1.18 x (0.5 + 0.5 x 0.25) x 730.5 h x 0.2 USD = 107.75; room 50; upkeep 12,000 x 5 % / 12
    # = 50. 207.75 a month: saves 522.75. 12,000 / 522.75 = 22.96 months.
    # After 36 months: 36 x 522.75 + 3,000 - 12,000 = 9,819.06.
    found = _owned(_purchase(), _rates(), utilisation=exact(0.5))
    assert pytest.approx(730.5) == MONTH_H
    assert found.rent_usd_per_month.value == pytest.approx(730.5)
    assert found.running_usd_per_month.value == pytest.approx(207.74875)
    assert found.months_to_break_even.value == pytest.approx(12_000 / (730.5 - 207.74875))
    assert found.return_usd.value == pytest.approx(36 * (730.5 - 207.74875) - 9_000)


def test_rented_bought_and_owned_hours_by_hand():
    # Rented 2 USD. Owned: 1 kW x 1.18 x 0.2 USD = 0.236. Bought: of 12,000 USD a quarter is left after 36
    # months, 9,000 / 36 = 250 a month, with 207.75 to run it, over 365.25 hours of use: 1.2533 USD.
    found = _owned(_purchase(), _rates(), utilisation=exact(0.5))
    hours = {each.way: each.usd.value for each in found.hourly}
    assert list(hours) == ["rent", "buy", "own"]
    assert hours["rent"] == 2.0
    assert hours["own"] == pytest.approx(0.236)
    assert hours["buy"] == pytest.approx((250 + 207.74875) / 365.25)


def test_the_use_from_which_owning_returns_by_hand():
    # 36 (u 730.5 (2 - 0.2 x 1.18 x 0.75) - 730.5 x 0.2 x 1.18 x 0.25 - 100) = 9,000 gives u = 0.2951.
    found = _owned(_purchase(), _rates(), utilisation=exact(0.5))
    by_hand = (250 + 100 + 730.5 * 0.2 * 1.18 * 0.25) / (730.5 * (2 - 0.2 * 1.18 * 0.75))
    assert by_hand == pytest.approx(0.2951, abs=1e-4)
    assert found.break_even_utilisation == pytest.approx(by_hand, abs=1e-3)


def test_where_renting_stays_cheaper_it_never_pays():
    found = _owned(_purchase(), _rates(usd=0.2), utilisation=exact(0.5))
    assert math.isinf(found.months_to_break_even.value)
    assert found.break_even_utilisation is None
    assert found.break_even_probability == 0.0


@pytest.mark.law
def test_more_use_breaks_even_earlier():
    months = [
        _owned(_purchase(), _rates(), utilisation=exact(use)).months_to_break_even.value
        for use in (0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    assert months == sorted(months, reverse=True)


@pytest.mark.law
def test_a_dearer_machine_breaks_even_later_and_dearer_rent_earlier():
    by_machine = [
        _owned(_purchase(usd), _rates(), utilisation=exact(0.5)).months_to_break_even.value
        for usd in (5e3, 1e4, 2e4)
    ]
    by_rent = [
        _owned(_purchase(), _rates(usd), utilisation=exact(0.5)).months_to_break_even.value
        for usd in (1.0, 2.0, 4.0)
    ]
    assert by_machine == sorted(by_machine)
    assert by_rent == sorted(by_rent, reverse=True)


def test_the_tornado_evaluates_the_return_anew():
    use = Interval(value=0.5, low=0.25, high=1.0, level=0.9)
    found = _owned(_purchase(), _rates(), utilisation=use)
    bar = next(each for each in found.tornado.bars if each.name == "utilisation")
    alone = [_owned(_purchase(), _rates(), utilisation=exact(end)).return_usd.value for end in (0.25, 1.0)]
    assert [bar.at_low, bar.at_high] == pytest.approx(alone)
    # Of the rest only the power of the system has an interval here.
    assert [each.name for each in found.tornado.bars] == ["utilisation", "system power"]


def test_work_that_takes_longer_keeps_the_machine_busier():
    slow = _owned(_purchase(), _rates(), utilisation=exact(0.5), speed_error=exact(1.4))
    busy = _owned(_purchase(), _rates(), utilisation=exact(0.7))
    assert slow.return_usd.value == pytest.approx(busy.return_usd.value)


def test_every_purchase_has_a_date_a_source_and_ordered_ends():
    table = tomllib.loads((Path(economics.__file__).parent / "purchases.toml").read_text())
    assert table["purchase"]
    for row in table["purchase"]:
        assert accelerator(row["accelerator"]).slug == row["accelerator"]
        assert row["usd"] == sorted(row["usd"])
        assert "https://" in row["source"]
        assert row["read"].year >= 2024
    usual = [value for name, value in table["usual"].items() if not name.endswith("source")]
    assert usual
    assert usual == [sorted(value) for value in usual]


def test_a_bought_h100_costs_more_than_its_chip():
    # Eight with host and network: 300,000 to 400,000 USD (the table's source), 37,500 to 50,000 each.
    found = purchase(accelerator("h100-sxm5-80gb"))
    assert found is not None
    assert 37_500 <= found.usd.value <= 50_000
    assert found.hosting_usd_per_month.value == pytest.approx(0.7 * 190)


def test_own_figures_override_the_table():
    found = purchase(accelerator("tpu-v4"), user_usd=5000.0, hosting_usd_per_month=20.0)
    assert found is not None
    assert (found.usd, found.hosting_usd_per_month) == (exact(5000.0), exact(20.0))
    assert purchase(accelerator("tpu-v4")) is None


def test_a_card_for_desktops_takes_no_rented_room():
    """By hand: 0.45 kW x 1.18 x (0.5 + 0.5 x 0.25) x 730.5 h x 0.161 USD, and 4 % of its price a year."""
    own = purchase(accelerator("rtx-4090-pcie-24gb"), user_usd=2400.0)
    hosted = purchase(accelerator("rtx-4090-pcie-24gb"), user_usd=2400.0, hosting_usd_per_month=30.0)
    rates = economics.rates(accelerator("rtx-4090-pcie-24gb"), user_price=0.5)
    running = _owned(own, rates, utilisation=exact(0.5)).running_usd_per_month
    by_hand = 0.45 * 1.18 * 0.625 * 730.5 * 0.161 + 2400 * 0.04 / 12
    assert own.hosting_usd_per_month == exact(0.0)
    assert running.value == pytest.approx(by_hand)
    assert _owned(hosted, rates, utilisation=exact(0.5)).running_usd_per_month.value == pytest.approx(
        by_hand + 30
    )
    assert running.low < running.value < running.high


def test_a_rent_that_nobody_knows_is_refused():
    with pytest.raises(EvidenceError, match="no price") as caught:
        _owned(_purchase(), replace(_rates(), price=None), utilisation=exact(0.5))
    assert caught.value.missing == ("--price",)


def test_a_power_that_nobody_knows_is_refused_and_names_where_it_is_stated():
    with pytest.raises(EvidenceError, match="no power") as caught:
        _owned(_purchase(), replace(_rates(), accelerator_power_w=None), utilisation=exact(0.5))
    (missing,) = caught.value.missing
    assert re.search(r"power_w.*--hardware", missing)


def test_what_was_paid_for_already_breaks_even_at_once():
    found = _owned(
        _purchase(usd=0.0), _rates(), utilisation=exact(0.5), horizon_months=36, speed_error=exact(1.0)
    )
    assert found.break_even_probability == 1.0
