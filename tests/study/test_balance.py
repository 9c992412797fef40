"""Balances of curves that are known: the answers must be those of `predict`, priced and put in words."""

import polars as pl
import pytest

from equipoise.calibration.curves import CurveQuestion
from equipoise.calibration.forecasts import published_curve, results_of
from equipoise.runs import embedded
from equipoise.runs.store import scores_of
from equipoise.scaling.equilibrium import KINDS, default_answer, equilibria
from equipoise.scaling.metrics import curves, with_metrics
from equipoise.spec.catalogue import shipped
from equipoise.study.diminishing_returns import DEADLINE_FACTOR, balances

ROUND, WORKLOAD, ACCELERATOR = "v4.1", "llama2_70b_lora", "h100-sxm5-80gb"


@pytest.fixture(scope="module")
def scores():
    return embedded.load().scores


@pytest.fixture(scope="module")
def best(scores):
    here = (pl.col("campaign") == ROUND) & (pl.col("workload") == WORKLOAD) & (pl.col("division") == "closed")
    return curves(with_metrics(scores.filter(here)))


@pytest.fixture(scope="module")
def found(scores, best):
    return balances(scores_of(scores), {WORKLOAD: best}, round_=ROUND, catalogue=shipped())[WORKLOAD]


def test_report_and_predict_agree(scores, found):
    balance = next(each for each in found.found if each.accelerator == ACCELERATOR)
    question = CurveQuestion(workload=WORKLOAD, accelerator=ACCELERATOR, sizes=(64, 1024), round=ROUND)
    curve = published_curve(results_of(scores_of(scores)), question)
    points = equilibria(curve.curves_s, curve.domain)
    assert balance.equilibria[: len(KINDS)] == points
    assert balance.answer == default_answer(points)
    at_64 = next(each.time for each in balance.curve.predictions if each.num_accelerators == 64)
    time = curve.predictions[0].time
    assert (at_64.value, at_64.low, at_64.high) == pytest.approx((time.value, time.low, time.high))


def test_the_answer_is_one_of_the_equilibria(found):
    assert found.found
    for balance in found.found:
        assert [point for point in balance.equilibria if point is balance.answer] == [balance.answer]


def test_a_round_starts_from_its_own_results_alone(found, best):
    assert found.found
    for balance in found.found:
        own = best.filter(pl.col("accelerator") == balance.accelerator)["entry_id"].to_list()
        assert {each.ref for each in balance.curve.evidence if each.is_same_group} <= set(own)
        assert balance.curve.round == ROUND


def test_an_accelerator_without_results_names_what_is_missing(scores, best):
    absent = best.with_columns(accelerator=pl.lit("tpu-v4"))
    nothing = balances(scores_of(scores), {WORKLOAD: absent}, round_=ROUND, catalogue=shipped())[WORKLOAD]
    assert nothing.found == ()
    assert nothing.unanswered
    assert all(each.missing for each in nothing.unanswered)


def test_each_point_has_its_bill_and_words(found):
    assert found.found
    for balance in found.found:
        assert balance.equilibria
        for point, bill, words in zip(balance.equilibria, balance.bills, balance.words, strict=True):
            assert bill.accelerator_hours.value == pytest.approx(point.num_accelerators * point.time_s / 3600)
            assert f"{point.num_accelerators:,}" in words


def test_cost_keeps_the_deadline(found, best):
    assert found.found
    for balance in found.found:
        fastest_s = best.filter(pl.col("accelerator") == balance.accelerator)["score_s"].min()
        cheapest = [point for point in balance.equilibria if point.kind in {"cost", "energy"}]
        assert [point.kind for point in cheapest] == ["cost", "energy"]
        for point in cheapest:
            # One accelerator less than whole may be a hair slower than the deadline.
            assert point.time_s <= DEADLINE_FACTOR * fastest_s * 1.02


def test_a_curve_goes_one_doubling_beyond_the_data(found):
    assert found.found
    for balance in found.found:
        assert balance.curve.predictions[-1].num_accelerators == 2 * max(balance.sizes)


def test_names_without_a_place_have_a_reason(scores, best):
    unknown = best.with_columns(accelerator=pl.lit("quux-9000"))
    nobody = balances(scores_of(scores), {WORKLOAD: unknown}, round_=ROUND, catalogue=shipped())[WORKLOAD]
    assert nobody.found == ()
    assert "quux-9000" in nobody.unanswered[0].reason
    sweep = balances(scores_of(scores), {WORKLOAD: best}, round_="my sweep", catalogue=shipped())[WORKLOAD]
    assert sweep.found == ()
    assert sweep.unanswered
    assert all("'my sweep'" in each.reason for each in sweep.unanswered)


def test_one_size_is_no_curve(scores, best):
    one = balances(scores_of(scores), {WORKLOAD: best.head(1)}, round_=ROUND, catalogue=shipped())[WORKLOAD]
    assert (one.found, one.unanswered) == ((), ())
