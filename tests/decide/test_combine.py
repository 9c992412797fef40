"""Several estimates of one time as one: weights by hand, laws, curves by their slopes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.decide.combine import (
    combine,
    combined_curves,
    quick_pretraining,
    ratio_log_sd,
    shares,
    straight_between,
)
from equipoise.decide.evidence import LEAST_LOG_SD, DrawnCurves, Estimate, Estimates
from equipoise.intervals import log_sd, with_log_sd
from equipoise.scaling.laws import Domain
from equipoise.spec.catalogue import shipped

SIZES = (1, 2, 4, 8, 16, 32, 64)
PIECES = st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(LEAST_LOG_SD, 1.0)), min_size=1, max_size=4).map(
    lambda pairs: [(with_log_sd(value, spread), spread) for value, spread in pairs]
)


def test_half_the_error_has_four_times_the_weight():
    # 1 / 0.1^2 : 1 / 0.2^2 = 4 : 1
    assert shares(np.array([0.1, 0.2])).tolist() == pytest.approx([0.8, 0.2])


def test_two_that_agree_by_hand():
    # weights 0.8 and 0.2; variance (0.8 0.1)^2 + (0.2 0.2)^2 + 2 0.3 (0.8 0.1)(0.2 0.2) = 0.00992
    found = combine([with_log_sd(100.0, 0.1), with_log_sd(100.0, 0.2)], [0.1, 0.2])
    assert found.time.value == pytest.approx(100.0)
    assert log_sd(found.time) == pytest.approx(math.sqrt(0.00992), rel=1e-6)
    assert found.disagreement == 1.0


def test_two_that_differ_by_three_deviations_widen_the_interval():
    # logs 0 and ln 2, both 0.1: mean ln 2 / 2, chi^2 = 2 (3.466)^2 = 24.02, factor sqrt(24.02) = 4.901
    found = combine([with_log_sd(1.0, 0.1), with_log_sd(2.0, 0.1)], [0.1, 0.1])
    assert found.time.value == pytest.approx(math.sqrt(2.0))
    assert found.disagreement == pytest.approx(4.901, abs=0.001)


def test_a_single_estimate_stays_as_it_is():
    one = with_log_sd(50.0, 0.3)
    assert combine([one], [0.01]).time == one


@pytest.mark.law
@given(PIECES)
def test_the_combined_interval_lies_within_the_widest_ends(pieces):
    times, spreads = zip(*pieces, strict=True)
    found = combine(times, spreads)
    margin = 1 + 1e-9
    assert min(each.low for each in times) <= found.time.low * margin
    assert found.time.high <= max(each.high for each in times) * margin
    assert found.time.low <= found.time.value * margin <= found.time.high * margin**2
    assert sum(found.weights) == pytest.approx(1.0)


@pytest.mark.law
@given(PIECES, st.integers(0, 3))
def test_the_order_of_estimates_does_not_matter(pieces, turn):
    turned = pieces[turn % len(pieces) :] + pieces[: turn % len(pieces)]
    first, second = (combine(*zip(*each, strict=True)).time.value for each in (pieces, turned))
    assert first == pytest.approx(second)


def estimates(power, level, spread, *, drawn_powers=None, is_reference=False):
    """Time = level x N^-power on 1 to 64; curves of several powers where they are given."""
    curves = [[level * size**-each for size in SIZES] for each in drawn_powers or (power,)]
    return Estimates(
        estimator="model",
        name=f"power {power}",
        by_size={
            size: Estimate(
                estimator="model",
                name="",
                time_s=with_log_sd(level * size**-power, spread),
                log_sd=spread,
                why="",
            )
            for size in SIZES
        },
        grade=dict.fromkeys(SIZES, "priors"),
        curves=DrawnCurves(
            time_s=straight_between(SIZES, np.array(curves)), domain=Domain(smallest=1.0, largest=32.0)
        ),
        references=frozenset(SIZES if is_reference else ()),
    )


def test_unlike_levels_keep_their_common_slope():
    curves_s, _ = combined_curves([estimates(1.0, 100.0, 0.1), estimates(1.0, 50.0, 0.1)])
    at_8, at_16 = curves_s(np.array([8.0, 16.0]))[0]
    assert at_8 / at_16 == pytest.approx(2.0)


def test_slopes_are_weighted_by_hand():
    # slopes -1 and -0.5, weights 0.8 and 0.2: -0.9
    curves_s, domain = combined_curves([estimates(1.0, 100.0, 0.1), estimates(0.5, 100.0, 0.2)])
    assert curves_s(np.array([1.0, 16.0]))[0] == pytest.approx([1.0, 16.0**-0.9])
    assert (domain.smallest, domain.largest) == (1.0, 32.0)


def test_what_is_shown_for_reference_bends_no_curve():
    counted, reference = estimates(1.0, 100.0, 0.1), estimates(0.5, 100.0, 0.1, is_reference=True)
    curves_s, _ = combined_curves([counted, reference])
    assert curves_s(np.array([16.0]))[0] == pytest.approx([1 / 16])
    assert combined_curves([reference]) is not None


def test_a_surer_estimator_that_ends_early_takes_no_size_from_another():
    # Known to 0.05 up to 4, to 0.4 up to 32: sizes up to 32 are left to choose from, as without the surer one.
    sure, wide = estimates(1.0, 100.0, 0.05), estimates(0.5, 100.0, 0.4)
    assert sure.curves is not None
    early = replace(sure, curves=replace(sure.curves, domain=Domain(smallest=1.0, largest=4.0)))
    curves_s, domain = combined_curves([early, wide])
    assert (domain.smallest, domain.largest) == (1.0, 32.0)
    # From twice its end on, where it says nothing, the slope is the other's.
    at_16, at_32 = curves_s(np.array([16.0, 32.0]))[0]
    assert at_16 / at_32 == pytest.approx(2.0**0.5)


def test_sizes_end_where_nobody_knows_how_time_goes_on():
    # The surer goes to twice 4, the other begins with 16: of 8 to 16 no slope is known.
    sure, wide = estimates(1.0, 100.0, 0.05), estimates(0.5, 100.0, 0.4)
    assert sure.curves is not None
    assert wide.curves is not None
    early = replace(sure, curves=replace(sure.curves, domain=Domain(smallest=1.0, largest=4.0)))
    late = replace(wide, curves=replace(wide.curves, domain=Domain(smallest=16.0, largest=32.0)))
    curves_s, domain = combined_curves([early, late])
    assert (domain.smallest, domain.largest) == (1.0, 4.0)
    assert curves_s(np.array([1.0, 4.0, 8.0]))[0] == pytest.approx([1.0, 1 / 4, 1 / 8])


@pytest.mark.parametrize("begins", [12.0, 11.9])
def test_a_curve_that_goes_on_where_another_ends_leaves_no_slope_unknown(begins):
    # Twice 6 lies in no eighth of an octave from 1 on: of the step around it neither knows the whole.
    sure, wide = estimates(1.0, 100.0, 0.05), estimates(0.5, 100.0, 0.4)
    assert sure.curves is not None
    assert wide.curves is not None
    early = replace(sure, curves=replace(sure.curves, domain=Domain(smallest=1.0, largest=6.0)))
    late = replace(wide, curves=replace(wide.curves, domain=Domain(smallest=begins, largest=32.0)))
    curves_s, domain = combined_curves([early, late])
    assert (domain.smallest, domain.largest) == (1.0, 32.0)
    at_8, at_16, at_32 = curves_s(np.array([8.0, 16.0, 32.0]))[0]
    assert at_8 == pytest.approx(1 / 8)
    assert at_16 / at_32 == pytest.approx(2.0**0.5)


def test_no_curve_is_made_of_points_alone():
    points = estimates(1.0, 100.0, 0.1)
    bare = Estimates(estimator="model", name="", by_size=points.by_size, grade=points.grade)
    assert combined_curves([bare]) is None
    assert ratio_log_sd([bare], 1, 8) is None


def test_of_a_ratio_what_both_sizes_share_cancels():
    # the level is known to 30 %, the ratio exactly: one slope
    assert ratio_log_sd([estimates(1.0, 100.0, 0.3)], 1, 8) == pytest.approx(0.0, abs=1e-12)
    # slopes 0.9 and 1.1: the logarithm of the ratio over three doublings is off by 0.1 x 3 ln 2 either way
    drawn = estimates(1.0, 100.0, 0.3, drawn_powers=(0.9, 1.1))
    assert ratio_log_sd([drawn], 1, 8) == pytest.approx(0.3 * math.log(2.0))
    # two alike and independent: half of the weight on each
    assert ratio_log_sd([drawn, drawn], 1, 8) == pytest.approx(0.3 * math.log(2.0) / math.sqrt(2.0))
    assert ratio_log_sd([drawn], 8, 8) == 0.0


@pytest.mark.parametrize("name", ["gpt2", "gpt2_xl", "tinyllama_1b", "llama2_7b", "deepseekv3_671b"])
def test_steps_of_a_shorter_pretraining_are_no_faster_than_those_of_the_published_one(name):
    published, chip = quick_pretraining(shipped().workload(name)), shipped().cluster("dgx-b200").accelerator
    took = 1.0 / published.best_hours_ratio
    assert published.time_per_step_time(published.training_flop, chip) == pytest.approx(took)
    shorter = [
        published.time_per_step_time(published.training_flop * part, chip) for part in (1e-6, 1e-3, 0.1)
    ]
    # What is lost besides steps is less, not their speed: at the least no more than the steps themselves.
    assert min(shorter) >= min(took, 1.0) * (1 - 1e-9)
    assert max(shorter) <= max(took, 1.0) * (1 + 1e-9)


def test_what_other_code_reached_says_nothing_of_slower_chips():
    """GPT-2 by llm.c on A100 took less than the model's steps; that of a GTX 1080 Ti takes no less."""
    published = quick_pretraining(shipped().workload("gpt2"))
    times = {
        name: published.time_per_step_time(published.training_flop, shipped().cluster(name).accelerator)
        for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "gtx-1080-ti-pcie-11gb", "v100-sxm2-32gb")
    }
    assert times["h100-sxm5-80gb"] == times["a100-sxm4-80gb"] < 1.0
    assert times["gtx-1080-ti-pcie-11gb"] == times["v100-sxm2-32gb"] == 1.0


def test_a_model_is_known_by_its_numbers_of_parameters_and_only_quick_pretrainings_of_it_count():
    known = shipped().workload("llama31_405b")
    assert quick_pretraining(known).title == "Llama 3.1 405B"
    assert quick_pretraining(replace(known, slug="mine:model", title="Mine")).title == "Llama 3.1 405B"
    # Llama 3.1 8B: 1.46 M H100-hours for 15 T tokens (its model card), 14 % of the peak; others' reach 25 % and more.
    assert quick_pretraining(shipped().workload("llama31_8b")) is None
    assert quick_pretraining(shipped().workload("resnet")) is None
