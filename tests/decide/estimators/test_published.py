"""Published results: the best of a size, sizes carried from others, and the level of the user's own machine."""

import math

import numpy as np
import polars as pl
import pytest
from asking import A100, H100, H200, published_scores

from equipoise.calibration.curves import CurveQuestion
from equipoise.decide.combine import combined_record
from equipoise.decide.estimators.published import (
    as_new_submitter,
    at_users_level,
    carried_by_model,
    ended_at,
    published_estimates,
    published_evidence,
    published_sizes,
)
from equipoise.decide.evidence import LEAST_LOG_SD, DrawnCurves, Estimate, Estimates
from equipoise.intervals import with_log_sd
from equipoise.runs import embedded
from equipoise.scaling.laws import Domain
from equipoise.scaling.pooled import SubmitterSpread
from equipoise.spec.catalogue import catalogue

SIZES = (8, 16, 32, 64)


def estimates(estimator, times):
    return Estimates(
        estimator=estimator,
        name=estimator,
        by_size={
            size: Estimate(
                estimator=estimator, name="", time_s=with_log_sd(time_s, 0.1), log_sd=0.1, why="known"
            )
            for size, time_s in times.items()
        },
        grade=dict.fromkeys(times, "published"),
    )


PUBLISHED = estimates("published", {size: 64.0 / size for size in SIZES})


def test_runs_at_one_factor_shift_published_times_and_add_their_own_width():
    found = at_users_level(PUBLISHED, estimates("measured", {8: 24.0, 16: 12.0}), (8, 16), grade="carried")
    assert found.by_size[64].time_s.value == pytest.approx(3.0)
    assert found.by_size[64].log_sd == pytest.approx(math.hypot(0.1, 0.1))  # both as wrong as each other
    assert "3.00 times" in found.by_size[64].why


def test_a_machine_that_scales_worse_goes_on_to_and_makes_published_times_unsure_far_away():
    # 2 and 4 times as slow: a slope of log 2 a doubling, a scatter of half that; 64 is two doublings off,
    # 16 times as slow: no faster than 16, which was no faster than 8.
    found = at_users_level(PUBLISHED, estimates("measured", {8: 16.0, 16: 16.0}), (8, 16), grade="carried")
    step = math.log(2.0)
    assert [found.by_size[each].time_s.value for each in (8, 16, 64)] == pytest.approx([16.0, 16.0, 16.0])
    assert found.by_size[64].log_sd == pytest.approx(math.hypot(0.1, 0.1, step / 2, 2 * step))


def test_where_no_size_is_shared_published_results_stay_as_they_are():
    apart = estimates("measured", {4: 16.0})
    assert at_users_level(PUBLISHED, apart, (4,), grade="carried") is PUBLISHED


def evidence(workload, chip, sizes, **stated):
    question = CurveQuestion(
        workload=workload, accelerator=chip, sizes=sizes, catalogue=catalogue(), **stated
    )
    return published_evidence(published_scores(), question)


@pytest.mark.truth
def test_the_results_of_a_size_are_the_closed_ones_best_first():
    found = evidence("llama2_70b_lora", H100, (8, 16))
    rows = embedded.load().scores.filter(
        pl.col("score_s").is_not_null(),
        workload="llama2_70b_lora",
        accelerator=H100,
        num_accelerators=8,
        division="closed",
    )
    scores = sorted(rows["score_s"])
    assert [each.score_s for each in found.at_size[8]] == scores[:8]
    # v4.1 has 27.5 to 28.6 minutes on 8 x H100
    assert found.at_size[8][0].score_s < 28.6 * 60


def test_a_size_with_results_is_as_wrong_as_replicates_differ():
    found = published_estimates(evidence("llama2_70b_lora", H200, (8, 128)))
    assert found.by_size[8].log_sd == LEAST_LOG_SD
    assert found.grade[8] == "published"
    # nobody submitted 128: carried there, less surely
    assert found.grade[128] == "carried"
    assert found.by_size[128].log_sd > LEAST_LOG_SD
    assert "held out" in found.by_size[128].why


@pytest.mark.truth
def test_where_a_round_is_stated_its_own_results_are_comparable():
    found = evidence("llama2_70b_lora", H100, (8, 16), round="4.0").at_size
    assert {each.round for results in found.values() for each in results} == {"v4.0"}
    # NVIDIA's eos of v4.0 took 28.16 minutes on 8, and that of v4.1 27.5.
    assert found[8][0].score_s / 60 == pytest.approx(28.16, abs=0.005)


def test_published_sizes_are_those_of_comparable_results():
    assert 8 in published_sizes(published_scores(), "llama2_70b_lora", H200)
    assert published_sizes(published_scores(), "gpt2", H200) == ()
    assert published_sizes(None, "bert", A100) == ()


def test_sizes_without_results_are_carried_by_the_ratio_of_modelled_times():
    modelled = estimates("model", {32: 30.0, 64: 20.0, 128: 16.0})
    found = carried_by_model(PUBLISHED, modelled)
    # 1 s at 64, times 16 / 20; one doubling away
    assert found.by_size[128].time_s.value == pytest.approx(0.8)
    assert found.by_size[128].log_sd == pytest.approx(math.hypot(0.1, combined_record().carried(1.0)))
    assert found.grade[128] == "carried"
    assert found.by_size[64] == PUBLISHED.by_size[64]


def test_a_curve_ends_where_nothing_larger_is_asked_for():
    def ends(most):
        known = DrawnCurves(time_s=np.ones_like, domain=Domain(smallest=8.0, largest=64.0))
        found = Estimates(estimator="published", name="", by_size={}, grade={}, curves=known)
        ended = ended_at(found, most).curves
        return None if ended is None else (ended.domain.smallest, ended.domain.largest)

    assert ends(512) == (8.0, 64.0)
    assert ends(32) == (8.0, 32.0)
    assert ends(8) is None


def test_a_new_submitter_takes_longer_and_is_less_certain():
    spread = SubmitterSpread(factor=1.02, log_sd=0.24, num_results=100, num_held_out=90, coverage=0.9)
    found = as_new_submitter(PUBLISHED, spread)
    assert found.by_size.keys() == PUBLISHED.by_size.keys()
    # 1 s at 64 with a deviation of 0.1: the hypotenuse of 0.1 and 0.24 is 0.26
    assert found.by_size[64].time_s.value == pytest.approx(1.02)
    assert found.by_size[64].log_sd == pytest.approx(0.26)
    assert found.by_size[64].time_s.high == pytest.approx(1.02 * math.exp(1.6449 * 0.26), rel=1e-4)
    assert found.grade == PUBLISHED.grade
