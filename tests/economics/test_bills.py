"""Bills are checked by hand; the tables against their own rules."""

import datetime as dt
import tomllib
from pathlib import Path

import pytest

from equipoise import economics
from equipoise.errors import SpecError, UsageError
from equipoise.spec.hardware import accelerator

SOURCE = Path(economics.__file__).parent


def test_a_bill_by_hand():
    # 8 accelerators for half an hour at 3 USD: 4 accelerator-hours, 12 USD.
    # 8 x 700 W x 1.18 x 1800 s = 11.8944 MJ = 3.304 kWh; in France 3.304 x 0.056 kg.
    rates = economics.rates(accelerator("h100-sxm5-80gb"), own_price=3.0, region="france")
    bill = economics.bill(8, 1800, rates)
    assert bill.accelerator_hours == pytest.approx(4.0)
    assert bill.usd == pytest.approx(12.0)
    assert bill.energy_j == pytest.approx(11.8944e6)
    assert bill.energy_basis == "modelled"
    assert bill.carbon_kg == pytest.approx(0.185024)


def test_measured_energy_is_taken_as_it_is():
    rates = economics.rates(accelerator("h100-sxm5-80gb"), region="world")
    bill = economics.bill(8, 1800, rates, measured_energy_j=7.2e6)
    assert (bill.energy_j, bill.energy_basis) == (7.2e6, "measured")
    assert bill.carbon_kg == pytest.approx(2 * 0.481)


def test_what_is_not_known_is_none_and_not_zero():
    rates = economics.rates(accelerator("tpu-v2"))
    bill = economics.bill(4, 3600, rates)
    assert rates.price is None
    assert bill.usd is None
    assert bill.accelerator_hours == pytest.approx(4.0)


def test_several_offers_give_their_median_and_range():
    offers = tomllib.loads((SOURCE / "prices.toml").read_text())["price"]
    asked = sorted(
        row["usd_per_accelerator_hour"] for row in offers if row["accelerator"] == "h100-sxm5-80gb"
    )
    found = economics.price("h100-sxm5-80gb")
    assert len(asked) == 3
    assert found is not None
    assert (found.low, found.usd_per_accelerator_hour, found.high) == tuple(asked)


def test_every_price_names_a_known_accelerator_a_date_and_a_source():
    for row in tomllib.loads((SOURCE / "prices.toml").read_text())["price"]:
        assert accelerator(row["accelerator"]).slug == row["accelerator"]
        assert isinstance(row["read"], dt.date)
        assert row["source"].startswith("https://")
        assert 0.05 < row["usd_per_accelerator_hour"] < 50


def test_an_unknown_region_names_the_file_to_edit():
    with pytest.raises(SpecError, match=r"region 'atlantis' is not known.*grids\.toml"):
        economics.grid("atlantis")


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), 1e9])
def test_a_price_that_is_none_is_refused(price):
    with pytest.raises(UsageError, match="expected US dollars per accelerator and hour"):
        economics.price("h100-sxm5-80gb", usd_per_accelerator_hour=price)
