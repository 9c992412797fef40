"""Prices on terms: the table's own rules, medians and inferred terms by hand."""

import datetime as dt
import math
import tomllib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from equipoise import economics
from equipoise.economics import Offer, _offered_price, offer_log_sd, offers, price, terms_ratios
from equipoise.spec.hardware import TERMS, accelerator

ROWS = tomllib.loads((Path(economics.__file__).parent / "prices.toml").read_text())["price"]


def test_every_price_names_a_known_accelerator_its_terms_a_date_and_a_source():
    assert ROWS
    for row in ROWS:
        assert accelerator(row["accelerator"]).slug == row["accelerator"]
        assert row["terms"] in TERMS
        assert isinstance(row["read"], dt.date)
        assert row["source"].startswith("https://")
        assert 0.05 < row["usd_per_accelerator_hour"] < 50


def test_no_offer_stands_twice():
    keys = [(row["accelerator"], row["terms"], row["provider"], row["read"]) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_the_commitment_is_the_least_of_those_that_are_stated():
    known = tuple(
        Offer(
            usd_per_accelerator_hour=2.0,
            terms="reserved",
            provider="any",
            read=dt.date(2026, 1, 1),
            source="https://example.org",
            minimum_months=months,
        )
        for months in (None, 12, 36)
    )
    # A year of 365.25 days.
    assert _offered_price("any", "reserved", known).minimum_s == pytest.approx(365.25 * 86_400)


def test_three_offers_give_their_median_and_range():
    # a100-pcie-80gb on demand: 2.10 and 1.19; two offers have their geometric mean in the middle.
    found = price("a100-pcie-80gb")
    assert found is not None
    assert (found.low, found.high) == (1.19, 2.10)
    assert found.usd_per_accelerator_hour == pytest.approx(math.sqrt(1.19 * 2.10))
    assert found.interval.low < 1.19
    assert found.interval.high > 2.10


@pytest.mark.law
def test_every_offer_lies_within_the_interval():
    num_offers = 0
    for slug in {row["accelerator"] for row in ROWS}:
        for terms in TERMS:
            found = price(slug, terms=terms)
            for each in found.offers if found else ():  # a price estimated by a ratio has none
                assert found.interval.low <= each.usd_per_accelerator_hour <= found.interval.high
                num_offers += 1
    assert num_offers == len(ROWS)


def test_about_nine_of_ten_offers_lie_within_the_interval_of_the_others():
    # Leave one offer out where any is left: the interval has to hold it at its rate.
    held = tried = 0
    for slug in {row["accelerator"] for row in ROWS}:
        for terms in TERMS:
            amounts = [each.usd_per_accelerator_hour for each in offers(slug) if each.terms == terms]
            for left_out in range(len(amounts)):
                others = sorted(amounts[:left_out] + amounts[left_out + 1 :])
                if not others:
                    continue
                middle = math.sqrt(others[(len(others) - 1) // 2] * others[len(others) // 2])
                wider = math.sqrt(1 + math.pi / (2 * len(others) + math.pi - 2))
                factor = math.exp(1.645 * wider * offer_log_sd())
                low, high = min(others[0], middle / factor), max(others[-1], middle * factor)
                held += low <= amounts[left_out] <= high
                tried += 1
    assert tried > 40
    assert 0.8 < held / tried < 0.99


@pytest.mark.law
@pytest.mark.parametrize(
    ("slug", "terms"),
    [
        ("a100-sxm4-80gb", "reserved"),
        ("a10-pcie-24gb", "on_demand"),
        ("h100-pcie-80gb", "on_demand"),
        ("v100-sxm2-16gb", "on_demand"),
        ("a100-sxm4-80gb", "on_demand"),
    ],
)
def test_the_interval_holds_one_more_of_so_many_offers_at_its_level(slug, terms):
    found = price(slug, terms=terms)
    assert found is not None
    draws = np.random.default_rng(1).normal(scale=offer_log_sd(), size=(40_000, len(found.offers) + 1))
    middle = np.median(draws[:, 1:], axis=1)
    held = np.mean(np.abs(draws[:, 0] - middle) <= found.log_half_width)
    assert 0.89 < held < 0.92


def test_terms_nobody_offers_are_inferred_from_other_accelerators():
    demand, spot = price("a10-pcie-24gb"), price("a10-pcie-24gb", terms="spot")
    assert demand is not None
    assert spot is not None
    ratios = sorted(terms_ratios("spot"))
    assert spot.usd_per_accelerator_hour == pytest.approx(
        demand.usd_per_accelerator_hour * ratios[len(ratios) // 2], rel=0.01
    )
    assert "spot offer" in spot.basis
    assert spot.offers == ()
    assert spot.log_half_width > demand.log_half_width


@pytest.mark.law
def test_a_commitment_costs_less_than_no_commitment():
    for terms in ("reserved", "spot"):
        assert max(terms_ratios(terms)) < 1.0


def test_the_own_price_is_exact():
    found = price("h100-sxm5-80gb", usd_per_accelerator_hour=2.0, terms="spot")
    assert found is not None
    assert (found.interval.low, found.interval.high) == (2.0, 2.0)
    assert found.terms == "spot"


def test_the_spread_of_offers_is_that_of_their_pairs():
    apart = sorted(
        abs(math.log(one.usd_per_accelerator_hour / other.usd_per_accelerator_hour))
        for slug in {row["accelerator"] for row in ROWS}
        for one, other in combinations(offers(slug), 2)
        if one.terms == other.terms
    )
    # The median of |x - y| of normal values is 0.9539 sd: Rousseeuw and Croux 1993 give 1 / 0.9539 = 1.0483.
    assert offer_log_sd() == pytest.approx(1.0483 * apart[len(apart) // 2], rel=0.02)
