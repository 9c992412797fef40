"""What witnesses say once others have spoken."""

import math

import pytest

from equipoise.advice.answer.evidence import Witness
from equipoise.advice.answer.witnesses import at_own_level, with_log_sd

SIZES = (8, 16, 32, 64)


def witness(kind, times):
    return Witness(
        kind=kind,
        name=kind,
        times={size: with_log_sd(time_s, 0.1) for size, time_s in times.items()},
        log_sds=dict.fromkeys(times, 0.1),
        why=dict.fromkeys(times, "known"),
        sources=(),
    )


PUBLISHED = witness("published", {size: 64.0 / size for size in SIZES})


def test_own_runs_at_one_factor_shift_published_times_and_leave_their_width():
    found = at_own_level(PUBLISHED, witness("measured", {8: 24.0, 16: 12.0}), (8, 16))
    assert found.times[64].value == pytest.approx(3.0)
    assert found.log_sds[64] == pytest.approx(0.1)
    assert "your runs take 3.00 times as long" in found.why[64]


def test_a_machine_that_scales_worse_makes_published_times_unsure_far_away():
    # 2 and 4 times as slow: a slope of log 2 a doubling, a scatter of half that; 64 is two doublings off
    found = at_own_level(PUBLISHED, witness("measured", {8: 16.0, 16: 16.0}), (8, 16))
    step = math.log(2.0)
    assert found.times[16].value == pytest.approx(4.0 * math.sqrt(8.0))
    assert found.log_sds[64] == pytest.approx(math.hypot(0.1, step / 2, 2 * step))


def test_where_no_size_is_shared_published_results_stay_as_they_are():
    assert at_own_level(PUBLISHED, witness("measured", {4: 16.0}), (4,)) is PUBLISHED
