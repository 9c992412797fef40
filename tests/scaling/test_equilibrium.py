"""Equilibria against their closed forms, their censoring, and the words for them."""

import math

import numpy as np
import pytest

from equipoise.scaling.equilibrium import (
    BALANCE,
    FLOOR,
    KINDS,
    MARGINAL,
    PEAK,
    Doubling,
    Equilibrium,
    cheapest,
    default_answer,
    equilibria,
    words,
)
from equipoise.scaling.fit import fit, points
from equipoise.scaling.law import Domain, Law
from equipoise.scaling.laws import AMDAHL, PERFECT, POWER, USL


def located(law: Law, values: tuple[float, ...], *kinds, largest: float = 1024.0) -> tuple[Equilibrium, ...]:
    """Equilibria of one known curve over 1..largest."""

    def curves_s(sizes: np.ndarray) -> np.ndarray:
        return law.times_s(np.array([values]), sizes)

    return equilibria(curves_s, Domain(smallest=1.0, largest=largest), kinds=kinds or KINDS)


@pytest.mark.parametrize(("contention", "coherency"), [(0.02, 1e-5), (0.1, 1e-4), (0.3, 1e-3)])
def test_usl_peak_is_gunthers(contention: float, coherency: float):
    (peak,) = located(USL, (1e4, contention, coherency), PEAK)
    assert peak.num_accelerators == pytest.approx(math.sqrt((1 - contention) / coherency), rel=0.02, abs=1.0)


@pytest.mark.parametrize("serial_fraction", [0.005, 0.01, 0.05])
def test_amdahl_equilibria_in_closed_form(serial_fraction: float):
    # T = s + (1 - s) / N. Balance: E S = 1 / (N T^2) is largest at N = (1 - s) / s. Half efficiency: N = 1 + 1 / s.
    # T(N) = 1.5 T(2N): N = (1 - s) / (2 s).
    parallel = 1.0 - serial_fraction
    balance, marginal, floor = located(AMDAHL, (serial_fraction, parallel), BALANCE, MARGINAL, FLOOR)
    assert balance.num_accelerators == pytest.approx(parallel / serial_fraction, rel=0.02, abs=1.0)
    assert marginal.num_accelerators == pytest.approx(parallel / (2 * serial_fraction), rel=0.02, abs=1.0)
    assert floor.num_accelerators == pytest.approx(1 + 1 / serial_fraction, rel=0.02, abs=1.0)


def test_half_efficiency_is_never_overstepped():
    (floor,) = located(POWER, (1e4, 0.45), FLOOR)
    assert floor.num_accelerators == int(2 ** (1 / 0.55))
    assert floor.efficiency >= 0.5


def test_knee_is_the_largest_efficiency_times_speedup():
    # Eager, Zahorjan and Lazowska 1989; found here by trying every size.
    values = (1e4, 0.03, 2e-5)
    sizes = np.arange(1.0, 1025.0)
    speedup = values[0] / USL.predict_s(sizes, *values)
    (balance,) = located(USL, values, BALANCE)
    assert balance.num_accelerators == pytest.approx(sizes[np.argmax(speedup * speedup / sizes)], abs=1.0)


def test_perfect_scaling_is_censored_at_the_end_of_the_data():
    for found in located(PERFECT, (1e4,), largest=256.0):
        assert (found.num_accelerators, found.bound, found.censored, found.high) == (
            256,
            "at_least",
            True,
            None,
        )
        assert found.efficiency == pytest.approx(1.0)
        assert found.next_doubling.accelerator_hours_factor == pytest.approx(1.0)


def test_a_curve_that_never_pays_is_bounded_by_the_start_of_the_data():
    (balance,) = located(POWER, (1e4, 0.3), BALANCE)
    assert (balance.num_accelerators, balance.bound, balance.censored, balance.low) == (
        1,
        "at_most",
        False,
        None,
    )


def test_cost_with_a_price_of_waiting_in_closed_form():
    # T (a N + b) with T = s + p / N is least at N = sqrt(p b / (s a)).
    (cost,) = located(AMDAHL, (10.0, 1000.0), cheapest("cost", per_accelerator=2.0, fixed=50.0))
    assert cost.num_accelerators == pytest.approx(math.sqrt(1000.0 * 50.0 / (10.0 * 2.0)), rel=0.02)


def test_a_deadline_asks_for_the_smallest_size_that_meets_it():
    (cost,) = located(AMDAHL, (10.0, 1000.0), cheapest("cost", per_accelerator=2.0, deadline_s=30.0))
    assert cost.num_accelerators == pytest.approx(50, abs=1)
    assert "within 30 s" in cost.title


def test_a_deadline_out_of_reach_lies_beyond_the_data():
    (cost,) = located(AMDAHL, (10.0, 1000.0), cheapest("cost", per_accelerator=2.0, deadline_s=5.0))
    assert cost.censored


def test_intervals_hold_the_true_points_of_a_noisy_curve():
    rng = np.random.default_rng(1)
    sizes = 2.0 ** np.arange(9)
    held = []
    for _ in range(40):
        times_s = AMDAHL.predict_s(sizes, 20.0, 1000.0) * np.exp(0.03 * rng.standard_normal(len(sizes)))
        found = fit(points(sizes, times_s), (AMDAHL,))
        (balance,) = equilibria(found.curves_s, found.domain, kinds=(BALANCE,))
        held.append(balance.low <= 50.0 <= balance.high)
    assert 0.75 < np.mean(held) <= 1.0  # 0.9 less three standard errors of 40 cases


def test_the_default_is_the_first_reason_to_stop():
    found = located(AMDAHL, (0.01, 0.99))
    assert default_answer(found).kind == "marginal"


def test_the_sentence_of_the_design():
    point = Equilibrium(
        kind="balance",
        title=BALANCE.title,
        num_accelerators=64,
        low=48,
        high=96,
        level=0.9,
        bound="at",
        time_s=406.0,
        efficiency=0.6,
        next_doubling=Doubling(
            gain_s=126.0, gain_fraction=0.31, accelerator_hours_factor=1.38, extrapolated=False
        ),
    )
    assert words(point) == (
        "at 64 you are at the balance point (48-96); going to 128 saves 2.1 min (31 %) and costs 1.4x the "
        "accelerator-hours"
    )
    assert point.accelerator_hours == pytest.approx(64 * 406.0 / 3600.0)


def test_the_words_never_pass_a_censored_point_off_as_found():
    sentence = words(located(PERFECT, (1e4,), BALANCE, largest=256.0)[0])
    assert sentence.startswith(
        "the balance point lies at 256 or beyond, where the data end; going to 512 saves"
    )
    assert sentence.endswith("by extrapolation")


def test_the_words_say_when_more_takes_longer():
    (peak,) = located(USL, (1e4, 0.02, 1e-4), PEAK)
    assert "longer and costs" in words(peak)
