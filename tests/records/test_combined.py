"""The record of combined estimates: its arithmetic by hand, and what ships."""

import math

import pytest
from combined import HeldOutTime, carried_log_sds, record_of
from plans import Planned

from equipoise.decide.combine import combined_record
from equipoise.intervals import with_log_sd

DEVIATE = 1.6448536


def held_out(jump, published, modelled, kind="transformer"):
    """A result of one second; published states a log standard deviation of 0.1."""
    return HeldOutTime(
        kind=kind,
        jump=jump,
        actual_s=1.0,
        published=with_log_sd(math.exp(published), 0.1),
        modelled=with_log_sd(math.exp(modelled), 0.5),
        alone_s=math.exp(2 * modelled),
    )


# Of each bin of jumps two results; errors of the logarithm.
RESULTS = [
    held_out(1.5, 0.1, 0.3),
    held_out(2.0, -0.1, -0.4),
    held_out(4.0, 0.2, 0.5, kind="other"),
    held_out(3.0, 0.2, -0.5),
    held_out(16.0, 0.3, 0.6),
    held_out(8.0, -0.4, 0.8, kind="other"),
]


def test_errors_by_jump_are_root_mean_squares():
    found = record_of(RESULTS, (0.0, 0.1), 5)
    assert (found.num_held_out, found.num_carried, found.carried_log_sd) == (6, 5, (0.0, 0.1))
    assert [(each.most, each.num_held_out) for each in found.by_jump] == [(2.0, 2), (4.0, 2), (None, 2)]
    # published errors over 0.1: 1 and 1; 2 and 2; 3 and 4
    assert [each.published_scale for each in found.by_jump] == pytest.approx([1.0, 2.0, math.sqrt(12.5)])
    assert [each.modelled_log_sd for each in found.by_jump] == pytest.approx(
        [math.sqrt(0.125), 0.5, math.sqrt(0.5)]
    )


def test_errors_of_the_model_by_kind():
    found = record_of(RESULTS, (), 0).modelled_log_sd
    # Of the model alone: twice as wrong as at the level of known results.
    assert found["transformer"] == pytest.approx(2 * math.sqrt((0.09 + 0.16 + 0.25 + 0.36) / 4))
    assert found["other"] == pytest.approx(2 * math.sqrt((0.25 + 0.64) / 2))


def test_the_combined_error_is_of_the_weighted_mean():
    # Errors -0.1 and 0.1 of equal size, published twice as sure: log_sds 0.1 and 0.2, weights 0.8 and 0.2.
    pair = [held_out(1.5, 0.1, -0.2), held_out(1.5, -0.1, 0.2)]
    others = [held_out(3.0, 0.1, 0.1), held_out(8.0, 0.1, 0.1)]
    found = record_of([*pair, *others], (), 0)
    combined = 0.8 * 0.1 - 0.2 * 0.2
    errors = sorted([math.expm1(combined), -math.expm1(-combined), math.expm1(0.1), math.expm1(0.1)])
    assert found.median == pytest.approx((errors[1] + errors[2]) / 2)
    alone = sorted([math.expm1(0.1)] * 3 + [-math.expm1(-0.1)])
    assert found.published_median == pytest.approx((alone[1] + alone[2]) / 2)
    assert found.coverage == 1.0


def planned(size, ratio, group=("v5.0", "bert", "h100")):
    planned_s = None if ratio is None else 100.0 / ratio
    return Planned(
        entry="x",
        workload="bert",
        kind="transformer",
        published_s=100.0,
        planned_s=planned_s,
        group=group,
        num_accelerators=size,
    )


def test_times_are_carried_within_a_group_alone():
    spread, count = carried_log_sds([planned(8, 1.0), planned(16, 2.0), planned(16, 9.0, group=("other",))])
    assert count == 1
    # one doubling: off by a factor of two, which is the 90 % point; from there on never less
    assert spread == pytest.approx((0.0, *[math.log(2.0) / DEVIATE] * 6))


def test_far_pairs_share_the_last_place_and_missing_plans_are_left_out():
    spread, count = carried_log_sds([planned(1, 1.0), planned(1024, 3.0), planned(2, None)])
    assert count == 1
    assert spread == pytest.approx((*[0.0] * 6, math.log(3.0) / DEVIATE))


def test_what_ships_is_better_than_the_model_and_covers_what_it_states():
    found = combined_record()
    assert found.num_held_out == sum(each.num_held_out for each in found.by_jump) > 100
    assert found.median < found.alone_median / 2
    assert found.modelled_median < found.alone_median
    assert found.p90 < found.published_p90
    # Shares of 126 intervals at 0.9: two standard deviations of such a share on either side.
    assert 0.85 <= found.coverage <= 0.95
    assert list(found.carried_log_sd) == sorted(found.carried_log_sd)
