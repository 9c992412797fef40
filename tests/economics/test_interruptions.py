"""Interrupted runs against a run by hand, published ones, runs played through at random, and limits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.economics.interruptions import (
    best_interval_s,
    hazards,
    interrupted,
    stretch,
    wave_hits_per_hour,
)
from equipoise.intervals import Input, exact, spread
from equipoise.stats import propagated

DAY_S = 86_400.0
NEVER = replace(hazards(), hours_between=exact(math.inf), waves_per_hour=exact(0.0))


def _run(work=None, *, size=64, is_spot=False, rates=None, trained_params=6.74e9):
    return interrupted(
        work or spread(40 * DAY_S, 0.3),
        num_accelerators=size,
        num_nodes=max(1, size // 8),
        trained_params=trained_params,
        is_spot=is_spot,
        rates=rates,
    )


def test_a_run_by_hand():
    # One failure per 6,400 accelerator-hours is one per 100 h on 64; 14 B x 6.74e9 at 1 GB/s x 8 nodes is
    # 11.8 s per checkpoint; Young: sqrt(2 x 11.8 s x 360,000 s) = 2,915 s, Daly's a little less.
    found = _run(rates=replace(hazards(), hours_between=exact(6400.0)))
    assert found.checkpoint_bytes == pytest.approx(14 * 6.74e9)
    assert found.checkpoint_s == pytest.approx(11.8, rel=0.01)
    assert found.checkpoint_interval_s == pytest.approx(2915, rel=0.01)
    assert found.num_interruptions == pytest.approx(found.time_s.value / 360_000, rel=1e-3)
    # Young's loss: a checkpoint of 11.8 in 2,915 s, half an interval and 660 s of restart per 360,000 s.
    lost = 11.8 / 2915 + (2915 / 2 + 660) / 360_000
    assert 1 / found.goodput.value == pytest.approx(1 + lost, rel=1e-3)
    assert sum(found.lost.values()) == pytest.approx(lost / (1 + lost), rel=0.01)


def test_a_pod_writes_as_its_hosts_do():
    # A pod of 4,096 is one node by its links; 14 B x 405e9 at 1 GB/s for every eight of them is 11.1 s.
    pod = interrupted(
        exact(90 * DAY_S), num_accelerators=4096, num_nodes=1, trained_params=405e9, is_spot=False
    )
    assert pod.checkpoint_s == pytest.approx(14 * 405e9 / 512e9, rel=0.01)
    assert pod.goodput.value == pytest.approx(
        _run(exact(90 * DAY_S), size=4096, trained_params=405e9).goodput.value
    )


@pytest.mark.truth
def test_the_largest_published_run_kept_nine_tenths_of_its_time():
    # Llama team 2024, section 3.3.4: 419 unexpected interruptions of 16,384 accelerators in 54 days, "higher
    # than 90 % effective training time".
    found = _run(
        exact(54 * DAY_S * 0.9),
        size=16_384,
        trained_params=405e9,
        rates=replace(hazards(), hours_between=exact(16_384 * 54 * 24 / 419)),
    )
    assert 0.9 < found.goodput.value < 1.0
    assert found.num_interruptions == pytest.approx(419, rel=0.1)


@pytest.mark.truth
@pytest.mark.parametrize(("between_h", "best_min"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_the_best_intervals_daly_publishes(between_h, best_min):
    # Daly 2006, figures 3 to 5: dumps of 5 minutes, restarts of 10.
    found = best_interval_s(1 / (between_h * 3600), 300.0) / 60
    assert found == pytest.approx(best_min, abs=0.05 if best_min < 10 else 0.5)


@pytest.mark.law
@given(st.floats(600.0, 1e7), st.floats(1.0, 100.0), st.floats(0.0, 600.0))
def test_no_other_interval_loses_much_less_than_the_best(between_s, checkpoint_s, restart_s):
    best = best_interval_s(1 / between_s, checkpoint_s)
    lost = [
        stretch(best * factor, 1 / between_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
        for factor in np.geomspace(0.25, 4.0, 41)
    ]
    here = stretch(best, 1 / between_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    assert here <= min(lost) * 1.001


def test_what_is_lost_agrees_with_a_run_that_is_played_through():
    # 300 h of work, an interruption per 6 h, checkpoints of 5 and restarts of 10 minutes per 57 minutes of work.
    rng = np.random.default_rng(3)
    spent = [_played(rng, 6 * 3600.0, 57 * 60.0, checkpoint=300.0, restart=600.0) for _ in range(400)]
    predicted = stretch(57 * 60.0, 1 / (6 * 3600.0), checkpoint_s=300.0, restart_s=600.0)
    assert np.mean(spent) / (316 * 57 * 60.0) == pytest.approx(predicted, rel=0.01)


def _played(rng, between, interval, *, checkpoint, restart, num_intervals=316):
    """Seconds until so many intervals of work are checkpointed; interruptions may hit restarts too."""
    spent, done = 0.0, 0
    while done < num_intervals:
        until = rng.exponential(between)
        pause = restart if spent else 0.0
        finished = min(num_intervals - done, int(max(0.0, until - pause) // (interval + checkpoint)))
        done += finished
        spent += pause + finished * (interval + checkpoint) if done == num_intervals else until
    return spent


def test_the_interval_agrees_with_monte_carlo_over_all_inputs():
    # The outside check: 8,192 draws of all inputs at once through the same run, for a long one, whose number
    # of interruptions hardly varies by itself.
    found = _run(exact(400 * DAY_S), size=512, is_spot=True)
    rates = hazards()
    named = {
        "hours_between": rates.hours_between,
        "restart_s": rates.restart_s,
        "storage_byte_per_s_per_node": rates.storage_byte_per_s_per_node,
        "waves_per_hour": rates.waves_per_hour,
        "wave_share": rates.wave_share,
        "replacement_s": rates.replacement_s,
    }

    def times_s(at):
        rows = zip(*(at[name][::8] for name in named), strict=True)
        drawn = [replace(rates, **dict(zip(named, map(exact, row), strict=True))) for row in rows]
        runs = [_run(exact(400 * DAY_S), size=512, is_spot=True, rates=each) for each in drawn]
        return np.repeat([each.time_s.value if each.time_s else math.inf for each in runs], 8)[
            : len(at["restart_s"])
        ]

    drawn = propagated(times_s, [_input(name, interval) for name, interval in named.items()])
    assert math.log(found.time_s.high / found.time_s.value) == pytest.approx(
        math.log(drawn.high / drawn.value), rel=0.25
    )
    assert drawn.low == pytest.approx(found.time_s.low, rel=0.06)


def _input(name, interval):
    return Input(name=name, unit="", interval=interval)


@pytest.mark.law
@pytest.mark.parametrize("is_spot", [False, True])
@pytest.mark.parametrize("size", [8, 512, 16_384])
@pytest.mark.parametrize("days", [0.001, 1.0, 30.0])
def test_work_is_time_times_goodput_to_the_last_digit(is_spot, size, days):
    work = spread(days * DAY_S, 0.2)
    found = _run(work, size=size, is_spot=is_spot)
    assert found.time_s.value == work.value / found.goodput.value
    for each in (found.time_s, found.goodput):
        assert each.low <= each.value <= each.high
    assert found.goodput.high <= 1.0
    assert sum(found.lost.values()) == pytest.approx(1.0 - found.goodput.value, abs=1e-9)
    assert all(share >= 0.0 for share in found.lost.values())


@pytest.mark.law
@pytest.mark.parametrize("is_spot", [False, True])
def test_without_hazards_all_time_is_work(is_spot):
    work = spread(40 * DAY_S, 0.3)
    found = _run(work, is_spot=is_spot, rates=NEVER)
    assert found.goodput.value == 1.0
    assert found.time_s == work
    assert found.num_interruptions == found.probability_of_any == 0.0
    assert found.checkpoint_interval_s is None


@pytest.mark.law
def test_a_run_too_short_to_be_interrupted_writes_no_checkpoint_and_loses_nothing():
    found = _run(exact(300.0), size=1024)
    assert found.checkpoint_interval_s is None
    assert found.goodput.value == pytest.approx(1.0, abs=1e-4)
    assert found.time_s.high == found.time_s.value or found.probability_of_any > 1e-4


@pytest.mark.law
@given(
    st.integers(0, 10),
    st.floats(0.01, 60.0),
    st.floats(1e3, 1e6),
    st.floats(1e-3, 3.0),
)
def test_more_nodes_never_have_fewer_interruptions(doublings, days, hours_between, waves_per_hour):
    # With checkpoints of one duration: those of more nodes are shorter, which shortens the run.
    rates = replace(hazards(), hours_between=exact(hours_between), waves_per_hour=exact(waves_per_hour))
    few, many = (
        _run(exact(days * DAY_S), size=8 * 2**each, is_spot=True, rates=rates, trained_params=None)
        for each in (doublings, doublings + 1)
    )
    if many.num_interruptions is not None:
        assert few.num_interruptions <= many.num_interruptions
        assert few.time_s.value <= many.time_s.value


@pytest.mark.law
def test_more_failures_never_shorten_a_run():
    found = [
        _run(rates=replace(hazards(), hours_between=exact(hours))).time_s.value
        for hours in (1e5, 1e4, 2e3, 5e2)
    ]
    assert found == sorted(found)


@pytest.mark.parametrize("size", [512, 1024])
@pytest.mark.parametrize("days", [2.0, 7.0, 14.0])
def test_a_large_spot_job_takes_a_plausible_time(size, days):
    # Independent nodes once gave 2.9 d to 14,121 d and 430,000 stops for 2.3 d of work on 512. Waves hit a
    # job at most 2.1 times an hour (24 in 11.4 h, the worst trace), so 50 times a day of the run.
    work = spread(days * DAY_S, 0.3)
    found = _run(work, size=size, is_spot=True, trained_params=8.03e9)
    assert 1.0 <= found.time_s.value / work.value <= 3.0
    assert found.time_s.high / work.high <= 3.0
    assert found.num_interruptions <= 60 * found.time_s.high / DAY_S
    assert found.time_s.value > _run(spread(days * DAY_S, 0.3), size=size, trained_params=8.03e9).time_s.value


def test_waves_hit_a_job_at_most_as_often_as_they_come():
    # 0.5 waves an hour that take a fifth of all nodes: 0.1 an hour for one node, 0.5 x (1 - 0.8^3) for three.
    assert wave_hits_per_hour(1, waves_per_hour=0.5, wave_share=0.2) == pytest.approx(0.1)
    assert wave_hits_per_hour(3, waves_per_hour=0.5, wave_share=0.2) == pytest.approx(0.244)
    assert wave_hits_per_hour(10_000, waves_per_hour=0.5, wave_share=0.2) == pytest.approx(0.5)
    assert wave_hits_per_hour(1, waves_per_hour=0.5, wave_share=1.0) == 0.5


@pytest.mark.parametrize("seconds", [1.0, 60.0, 120.0])
def test_what_cannot_be_estimated_is_reported(seconds):
    found = _run(rates=replace(hazards(), hours_between=exact(64 * seconds / 3600)))
    assert "estimated: " in found.why
    assert found.time_s is found.goodput is found.num_interruptions is None
    assert found.probability_of_any == pytest.approx(1.0)


def test_a_time_known_within_a_factor_of_a_hundred_is_not_shown():
    rates = replace(hazards(), restart_s=replace(exact(60.0), high=3 * DAY_S))
    found = _run(exact(40 * DAY_S), size=2048, rates=rates)
    assert "restart" in found.why
    assert found.time_s is None


def test_a_job_that_shrinks_loses_the_nodes_that_are_gone_by_hand():
    # A wave hits 8 nodes with 1 - 0.5^8 = 0.99609 and then takes 0.5 / 0.99609 = 0.50196 of them. To wait
    # costs 3,600 s a hit; to go on with the rest 0.50196 x 3,600 s and one more restart: 1,807 + 300 s.
    rates = replace(
        hazards(),
        hours_between=exact(math.inf),
        waves_per_hour=exact(0.25),
        wave_share=exact(0.5),
        restart_s=exact(300.0),
        replacement_s=exact(3600.0),
    )
    waits, shrinks = (
        interrupted(
            exact(40 * DAY_S),
            num_accelerators=64,
            num_nodes=8,
            trained_params=6.74e9,
            is_spot=True,
            shrinks=each,
            rates=rates,
        )
        for each in (False, True)
    )
    hits = waits.num_interruptions
    assert hits == shrinks.num_interruptions
    assert waits.time_s.value - shrinks.time_s.value == pytest.approx(hits * (3600 - 1807.06 - 300), rel=1e-3)


@pytest.mark.law
@given(st.floats(0.01, 0.99), st.floats(1.0, 1e4), st.floats(1.0, 1e4), st.integers(1, 512))
def test_a_job_that_may_shrink_never_takes_longer(share, restart_s, replacement_s, num_nodes):
    rates = replace(
        hazards(), wave_share=exact(share), restart_s=exact(restart_s), replacement_s=exact(replacement_s)
    )
    waits, shrinks = (
        interrupted(
            exact(DAY_S),
            num_accelerators=8 * num_nodes,
            num_nodes=num_nodes,
            trained_params=6.74e9,
            is_spot=True,
            shrinks=each,
            rates=rates,
        )
        for each in (False, True)
    )
    if waits.time_s is not None and shrinks.time_s is not None:
        assert shrinks.time_s.value <= waits.time_s.value * (1 + 1e-12)


def test_spot_is_refused_with_its_reason_and_never_with_a_figure():
    # A wave per minute and restarts of eleven: no checkpoint is ever reached.
    often = replace(hazards(), waves_per_hour=exact(60.0))
    found = _run(exact(DAY_S), size=512, is_spot=True, rates=often)
    assert (found.time_s, found.num_interruptions) == (None, None)
    assert "spot" in found.why
    # Failures alone do the same: spot is not the reason.
    failing = replace(hazards(), hours_between=exact(1.0))
    assert "spot" not in _run(exact(DAY_S), size=512, is_spot=True, rates=failing).why


@pytest.mark.law
@pytest.mark.parametrize("size", [8, 4096, 131_072, 1_048_576])
@pytest.mark.parametrize("days", [0.1, 30.0, 3000.0])
@pytest.mark.parametrize("shrinks", [False, True])
def test_a_time_on_spot_is_plausible_or_refused(size, days, shrinks):
    found = interrupted(
        exact(days * DAY_S),
        num_accelerators=size,
        num_nodes=size // 8,
        trained_params=405e9,
        is_spot=True,
        shrinks=shrinks,
    )
    assert (found.time_s is None) == (found.why is not None)
    if found.time_s is not None:
        assert found.time_s.value <= 10 * days * DAY_S
        assert found.time_s.high <= 20 * found.time_s.low
