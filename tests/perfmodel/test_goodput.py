"""What failures leave of a run: the published case, the limits, and what must hold for any machine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.perfmodel.goodput import TYPICAL_FAILURES, Failures, checkpoint_interval_s, goodput_fraction


@pytest.mark.truth
def test_the_largest_published_run_kept_nine_tenths_of_its_time():
    # Llama team 2024, section 3.3.4: "higher than 90 % effective training time" on 16,384 accelerators,
    # interrupted unexpectedly every 54 x 24 h / 419 = 3.09 h.
    assert goodput_fraction(16_384) > 0.9
    interrupted_s = TYPICAL_FAILURES.mean_time_between_s / 16_384
    assert interrupted_s / 3600 == pytest.approx(3.09, rel=0.02)


def test_checkpoints_of_five_minutes_and_a_failure_a_day():
    # By hand: sqrt(2 x 5 min x 1440 min) = 120 min.
    daily = Failures(mean_time_between_s=86_400.0, checkpoint_s=300.0, restart_s=0.0)
    assert checkpoint_interval_s(1, daily) / 60 == pytest.approx(120.0)


@pytest.mark.law
@given(
    count=st.integers(1, 10**6),
    between_s=st.floats(1e6, 1e10),
    checkpoint_s=st.floats(0.1, 3600),
    restart_s=st.floats(0, 3600),
)
def test_more_accelerators_never_lose_less(count, between_s, checkpoint_s, restart_s):
    failures = Failures(mean_time_between_s=between_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    few, many = goodput_fraction(np.array([count, 2 * count]), failures)
    assert 0 < many < few <= 1


@pytest.mark.law
def test_nothing_fails_nothing_lost():
    never = Failures(mean_time_between_s=1e30, checkpoint_s=30.0, restart_s=600.0)
    assert goodput_fraction(1000, never) == pytest.approx(1.0, abs=1e-9)
