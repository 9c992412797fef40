"""What failures leave of a run: the published case, the limits, and what must hold for any machine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.perfmodel.goodput import (
    TYPICAL_FAILURES,
    Failures,
    best_interval_s,
    checkpoint_interval_s,
    goodput_fraction,
    stretch,
)


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


@pytest.mark.truth
@pytest.mark.parametrize(("between_h", "best_min"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_the_best_intervals_daly_publishes(between_h, best_min):
    # Daly 2006, figures 3 to 5: dumps of 5 minutes, restarts of 10.
    found = best_interval_s(between_h * 3600, 300.0) / 60
    assert found == pytest.approx(best_min, abs=0.05 if best_min < 10 else 0.5)


@pytest.mark.law
@given(st.floats(600.0, 1e7), st.floats(1.0, 100.0), st.floats(0.0, 600.0))
def test_no_other_interval_loses_much_less_than_the_best(between_s, checkpoint_s, restart_s):
    best = float(best_interval_s(between_s, checkpoint_s))
    others = best * np.geomspace(0.25, 4.0, 41)
    lost = stretch(others, between_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    here = stretch(best, between_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    assert here <= lost.min() * 1.001


def test_what_is_lost_agrees_with_a_run_that_is_played_through():
    # 300 h of work, a failure every 6 h, checkpoints of 5 and restarts of 10 minutes every 57 minutes of work.
    between, interval, checkpoint, restart = 6 * 3600.0, 57 * 60.0, 300.0, 600.0
    rng = np.random.default_rng(3)
    spent = [_played(rng, between, interval, checkpoint=checkpoint, restart=restart) for _ in range(400)]
    foretold = stretch(interval, between, checkpoint_s=checkpoint, restart_s=restart)
    assert np.mean(spent) / (316 * interval) == pytest.approx(float(foretold), rel=0.01)


def _played(rng, between, interval, *, checkpoint, restart, num_intervals=316):
    """Seconds until so many intervals of work are checkpointed; failures may hit restarts too."""
    spent, done = 0.0, 0
    while done < num_intervals:
        until = rng.exponential(between)
        pause = restart if spent else 0.0
        finished = min(num_intervals - done, int(max(0.0, until - pause) // (interval + checkpoint)))
        done += finished
        spent += pause + finished * (interval + checkpoint) if done == num_intervals else until
    return spent
