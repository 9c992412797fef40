"""Bills are checked by hand; the tables against their own rules."""

import math
import tomllib
from pathlib import Path

import pytest

from equipoise import economics
from equipoise.errors import SpecError
from equipoise.intervals import Interval
from equipoise.report.json import bill_fields
from equipoise.spec.hardware import accelerator

SOURCE = Path(economics.__file__).parent


def test_a_bill_by_hand():
    # 8 accelerators for half an hour at 3 USD: 4 accelerator-hours, 12 USD.
    # 8 x 700 W x 1.18 x 1800 s = 11.8944 MJ = 3.304 kWh; in France 3.304 x 0.056 kg.
    rates = economics.rates(accelerator("h100-sxm5-80gb"), user_price=3.0, carbon=economics.grid("france"))
    bill = economics.bill(8, 1800, rates)
    assert bill.accelerator_hours.value == pytest.approx(4.0)
    assert bill.usd.value == pytest.approx(12.0)
    assert bill.energy_j.value == pytest.approx(11.8944e6)
    assert bill.energy_basis == "modelled"
    assert bill.carbon_kg.value == pytest.approx(0.185024)


def test_intervals_of_a_bill_by_hand():
    # Time 1800 s within a factor of e**0.3, power within 1.18 to 1.39 above: sqrt(0.3**2 + ln(1.39/1.18)**2).
    rates = economics.rates(accelerator("h100-sxm5-80gb"), user_price=3.0, carbon=economics.grid("france"))
    time = Interval(value=1800.0, low=1800.0 * math.exp(-0.3), high=1800.0 * math.exp(0.3), level=0.9)
    bill = economics.bill(8, time, rates)
    assert bill.usd is not None
    assert bill.energy_j is not None
    assert bill.carbon_kg is not None
    assert (bill.usd.low, bill.usd.high) == pytest.approx((12 * math.exp(-0.3), 12 * math.exp(0.3)))
    upper = math.exp(math.hypot(0.3, math.log(1.39 / 1.18)))
    assert bill.energy_j.high == pytest.approx(11.8944e6 * upper)
    assert bill.carbon_kg.high == pytest.approx(0.185024 * upper)


def test_own_electricity_and_building_by_hand():
    # 3.304 kWh x 1.5 for the building at 0.2 USD: one energy for money, carbon and joules.
    power = economics.electricity(usd_per_kwh=0.2, pue=1.5)
    rates = economics.rates(
        accelerator("h100-sxm5-80gb"), user_price=3.0, carbon=economics.grid("france"), power=power
    )
    bill = economics.bill(8, 1800, rates)
    assert bill.electricity_usd is not None
    assert bill.electricity_usd.value == pytest.approx(0.9912)
    assert bill.carbon_kg.value == pytest.approx(1.5 * 0.185024)
    assert bill.energy_j.value == pytest.approx(1.5 * 11.8944e6)


def test_a_building_counts_only_where_the_user_gave_it():
    power = economics.electricity(usd_per_kwh=0.2)
    rates = economics.rates(
        accelerator("h100-sxm5-80gb"), user_price=3.0, carbon=economics.grid("france"), power=power
    )
    bill = economics.bill(8, 1800, rates)
    assert bill.energy_j.value == pytest.approx(11.8944e6)
    assert bill.electricity_usd.value == pytest.approx(3.304 * 0.2)
    assert bill.carbon_kg.value == pytest.approx(0.185024)


def test_an_owned_machine_costs_its_electricity():
    # 3.304 kWh at 0.2 USD; without a price of electricity the usual one counts.
    chip = accelerator("h100-sxm5-80gb")
    rates = economics.rates(chip, user_price=0.0, power=economics.electricity(usd_per_kwh=0.2))
    bill = economics.bill(8, 1800, rates)
    assert bill.usd.value == pytest.approx(0.6608)
    assert bill.usd == bill.electricity_usd
    assert "electricity" in rates.price.basis
    # At the usual 0.161 USD where none is given.
    usual = economics.rates(chip, user_price=0.0)
    assert economics.bill(8, 1800, usual).usd.value == pytest.approx(3.304 * 0.161)


def test_measured_energy_is_taken_as_it_is():
    rates = economics.rates(accelerator("h100-sxm5-80gb"), carbon=economics.grid("world"))
    bill = economics.bill(8, 1800, rates, measured_energy_j=7.2e6)
    assert (bill.energy_j.value, bill.energy_basis) == (7.2e6, "measured")
    assert bill.carbon_kg.value == pytest.approx(2 * 0.481)


def test_what_is_not_known_is_none_and_not_zero():
    rates = economics.rates(accelerator("gaudi2-oam-96gb"))
    bill = economics.bill(4, 3600, rates)
    assert rates.price is None
    assert bill.usd is None
    assert bill.accelerator_hours.value == pytest.approx(4.0)
    assert bill_fields(bill)["low_usd"] is None


def test_no_time_costs_nothing():
    rates = economics.rates(accelerator("h100-sxm5-80gb"), user_price=3.0)
    assert economics.bill(8, 0.0, rates).usd.value == 0.0


@pytest.mark.law
def test_a_higher_price_never_costs_less():
    chip = accelerator("h100-sxm5-80gb")
    paid = [
        economics.bill(8, 1800, economics.rates(chip, user_price=usd)).usd.value
        for usd in (0.5, 1.0, 2.0, 9.0)
    ]
    assert paid == sorted(paid)


def test_the_document_has_both_ends_of_every_amount():
    rates = economics.rates(accelerator("h100-sxm5-80gb"))
    fields = bill_fields(economics.bill(8, 1800, rates))
    for name in ("usd", "energy_j", "carbon_kg"):
        assert fields[f"low_{name}"] < fields[name] < fields[f"high_{name}"]
    assert fields["electricity_usd"] is None


def test_electricity_has_sources_and_ordered_ends():
    row = tomllib.loads((SOURCE / "grids.toml").read_text())["electricity"]
    for name in ("usd_per_kwh", "pue"):
        assert row[name] == sorted(row[name])
        assert "https://" in row[f"{name}_source"]


def test_a_region_has_short_names_and_ones_own_carbon_comes_first():
    assert economics.grid("us") == economics.grid("United States")
    assert economics.grid("UK").region == "united_kingdom"
    # ISO 3166-1
    assert [economics.grid(code).region for code in ("DE", "za", "kr")] == [
        "germany",
        "south_africa",
        "south_korea",
    ]
    # 25 g per kWh: 3.304 kWh of the bill above make 82.6 g.
    rates = economics.rates(accelerator("h100-sxm5-80gb"), carbon=economics.grid("here", user_g_per_kwh=25.0))
    assert economics.bill(8, 1800, rates).carbon_kg.value == pytest.approx(3.304 * 0.025)


@pytest.mark.parametrize("place", ["us-east-1", "california", "mars"])
def test_a_place_that_is_no_country_is_sent_to_the_list_of_them(place):
    with pytest.raises(SpecError, match="list regions") as refused:
        economics.grid(place)
    assert len(str(refused.value)) < 200


def test_an_unknown_region_names_the_option_that_states_its_carbon():
    with pytest.raises(SpecError, match=r"region 'atlantis'.*--carbon"):
        economics.grid("atlantis")
