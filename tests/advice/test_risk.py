"""Risk against a run by hand, limits, and what must hold for any rates."""

import math
from dataclasses import replace

import pytest

from equipoise.advice.risk import Undertaking, risks
from equipoise.economics import price
from equipoise.economics.failures import hazards
from equipoise.economics.uncertain import exact, spread
from equipoise.errors import UsageError


@pytest.fixture(scope="module")
def pretraining():
    return Undertaking(
        accelerator="h100-sxm5-80gb",
        num_accelerators=64,
        node_size=8,
        work=spread(40 * 86_400.0, 0.3),
        trained_params=6.74e9,
        price=None,
    )


@pytest.fixture(scope="module")
def by_terms(pretraining):
    found = risks(pretraining)
    return {each.terms: each for each in found}


def test_a_run_by_hand(pretraining):
    # One failure each 6,400 accelerator-hours is one each 100 h on 64; 14 B x 6.74e9 at 1 GB/s x 8 nodes is
    # 11.8 s a checkpoint; Young: sqrt(2 x 11.8 s x 360,000 s) = 2,915 s, Daly's a little less.
    found = risks(pretraining, usual=hazards(hours_between=6400.0))[0]
    assert found.checkpoint_bytes == pytest.approx(14 * 6.74e9, rel=0.01)
    assert found.checkpoint_s.value == pytest.approx(11.8, rel=0.01)
    assert found.checkpoint_interval_s == pytest.approx(2915, rel=0.01)
    hours = found.elapsed.value / 3600
    assert found.num_interruptions.value == pytest.approx(hours / 100, rel=1e-6)
    # Young's loss: a checkpoint of 11.8 in 2,915 s, half an interval and 660 s of restart each 360,000 s.
    lost = 11.8 / 2915 + (2915 / 2 + 660) / 360_000
    assert found.elapsed.value / found.work.value == pytest.approx(1 + lost, rel=1e-3)
    assert sum(found.lost.values()) == pytest.approx(lost / (1 + lost), rel=0.01)


def test_what_is_lost_and_the_work_are_the_time_paid_for(pretraining):
    # A restart of 660 s with a stop each 6 min and a half: most restarts are cut short themselves.
    found = risks(replace(pretraining, work=exact(3600.0)), usual=hazards(hours_between=7.0))[0]
    assert sum(found.lost.values()) == pytest.approx(1.0 - 3600.0 / found.elapsed.value)
    assert all(share >= 0.0 for share in found.lost.values())


def test_terms_differ_by_price_alone_until_nodes_are_taken_away(by_terms):
    demand, reserved, spot = by_terms["on_demand"], by_terms["reserved"], by_terms["spot"]
    assert demand.elapsed == reserved.elapsed
    assert demand.money.value > reserved.money.value
    assert spot.num_interruptions.value > 100 * demand.num_interruptions.value
    assert spot.elapsed.value > demand.elapsed.value
    assert any("replaced at once" in each for each in spot.assumes)
    assert not any(each.startswith("preemption") for each in demand.assumes)


def test_the_money_is_paid_for_the_time_that_is_lost_too(by_terms):
    found = by_terms["on_demand"]
    paid = 64 * found.elapsed.value / 3600 * found.price.usd_per_accelerator_hour
    assert found.money.value == pytest.approx(paid)
    assert found.money.low < found.money.value < found.money.high
    assert found.tornado.bars[0].name in {"price", "work"}


def test_a_queue_takes_time_and_no_money(pretraining, by_terms):
    waited = risks(pretraining, queue_s=exact(86_400.0))[0]
    assert waited.elapsed.value == pytest.approx(by_terms["on_demand"].elapsed.value + 86_400)
    assert waited.money == by_terms["on_demand"].money
    assert any("--queue" in each for each in by_terms["on_demand"].assumes)


def test_the_chance_of_keeping_a_deadline(pretraining, by_terms):
    middle = by_terms["on_demand"].elapsed
    chances = [
        risks(pretraining, deadline_s=limit)[0].chance_in_time
        for limit in (middle.low, middle.value, middle.high)
    ]
    # By definition of a 90 % interval and of its middle.
    assert chances == pytest.approx([0.05, 0.5, 0.95], abs=0.02)


def test_what_hardly_ever_fails_loses_nothing(pretraining):
    never = risks(pretraining, usual=hazards(hours_between=1e15))[0]
    assert never.chance_of_any < 1e-6
    assert never.elapsed.value == pytest.approx(never.work.value, rel=1e-4)


@pytest.mark.law
def test_more_failures_never_shorten_a_run(pretraining):
    found = [
        risks(pretraining, usual=hazards(hours_between=hours))[0].elapsed.value
        for hours in (1e2, 1e3, 1e4, 1e5)
    ]
    assert found == sorted(found, reverse=True)


def test_a_run_that_cannot_end_is_infinite_and_not_an_error(pretraining):
    # A failure each second on 64 accelerators, restarts of eleven minutes.
    found = risks(pretraining, usual=hazards(hours_between=64 / 3600))[0]
    assert found.elapsed.value > 1e12 or math.isinf(found.elapsed.value)


def test_the_own_price_alone_is_used(pretraining):
    own = price("h100-sxm5-80gb", usd_per_accelerator_hour=2.0, terms="reserved")
    (only,) = risks(replace(pretraining, price=own))
    assert only.terms == "reserved"
    assert only.price.usd_per_accelerator_hour == 2.0


def test_a_queue_or_deadline_that_is_none_is_refused(pretraining):
    with pytest.raises(UsageError, match="--queue"):
        risks(pretraining, queue_s=exact(-1.0))
    with pytest.raises(UsageError, match="--deadline"):
        risks(pretraining, deadline_s=float("nan"))
