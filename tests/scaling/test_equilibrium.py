"""Equilibria against their closed forms, whose limit ends a search, and the words for them."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import UsageError
from equipoise.scaling.equilibrium import (
    BALANCE,
    FLOOR,
    KINDS,
    MARGINAL,
    PEAK,
    Equilibrium,
    NextStep,
    cheapest,
    default_answer,
    discrete_equilibria,
    equilibria,
    paying_step,
    reached_by_paying_steps,
    words,
)
from equipoise.scaling.fit import fit, measured_times
from equipoise.scaling.laws import AMDAHL, PERFECT, POWER, USL, Domain, Law


def located(
    law: Law, values: tuple[float, ...], *kinds, largest: float = 1024.0, smallest: float = 1.0, **options
) -> tuple[Equilibrium, ...]:
    """Equilibria of one known curve over smallest..largest."""

    def curves_s(sizes: np.ndarray) -> np.ndarray:
        return law.times_s(np.array([values]), sizes)

    return equilibria(curves_s, Domain(smallest=smallest, largest=largest), kinds=kinds or KINDS, **options)


@pytest.mark.parametrize(("contention", "coherency"), [(0.02, 1e-5), (0.1, 1e-4), (0.3, 1e-3)])
def test_usl_peak_is_gunthers(contention: float, coherency: float):
    (peak,) = located(USL, (1e4, contention, coherency), PEAK)
    assert peak.num_accelerators == pytest.approx(math.sqrt((1 - contention) / coherency), rel=0.02, abs=1.0)


@pytest.mark.parametrize("serial_fraction", [0.005, 0.01, 0.05])
def test_amdahl_equilibria_in_closed_form(serial_fraction: float):
    # T = s + (1 - s) / N. Balance: E S = 1 / (N T^2) is largest at N = (1 - s) / s. Half efficiency: N = 1 + 1 / s.
    # T(N) = 1.5 T(2N): N* = (1 - s) / (2 s), and that doubling is taken: 2 N* = (1 - s) / s.
    parallel = 1.0 - serial_fraction
    balance, marginal, floor = located(AMDAHL, (serial_fraction, parallel), BALANCE, MARGINAL, FLOOR)
    assert balance.num_accelerators == pytest.approx(parallel / serial_fraction, rel=0.02, abs=1.0)
    assert marginal.num_accelerators == pytest.approx(parallel / serial_fraction, rel=0.02, abs=1.0)
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
    places = located(PERFECT, (1e4,), largest=256.0)
    assert len(places) == 4
    for found in places:
        assert (found.num_accelerators, found.limited_by, found.is_found, found.high) == (
            256,
            "data",
            False,
            None,
        )
        assert found.efficiency == pytest.approx(1.0)
        assert found.next_step.accelerator_hours_factor == pytest.approx(1.0)
        assert (found.next_step.num_accelerators, found.next_step.is_extrapolated) == (512, True)


def test_a_curve_that_never_pays_is_bounded_by_the_start_of_the_data():
    places = located(POWER, (1e4, 0.3), BALANCE, MARGINAL, smallest=8.0)
    assert len(places) == 2
    for found in places:
        assert (found.num_accelerators, found.is_smallest, found.limited_by, found.low) == (
            8,
            True,
            None,
            None,
        )
        assert re.search(r"\bsmallest\b.* 8\b", words(found))


def test_nothing_lies_below_one_accelerator():
    places = located(POWER, (1e4, 0.3), BALANCE, MARGINAL)
    assert [(found.num_accelerators, found.is_found, found.low) for found in places] == [(1, True, 1)] * 2


def test_a_deadline_asks_for_the_smallest_size_that_meets_it():
    (cost,) = located(AMDAHL, (10.0, 1000.0), cheapest("cost", per_accelerator=2.0, deadline_s=30.0))
    assert cost.num_accelerators == pytest.approx(50, abs=1)
    assert "within 30 s" in cost.title


def test_a_deadline_out_of_reach_lies_beyond_the_data():
    (cost,) = located(AMDAHL, (10.0, 1000.0), cheapest("cost", per_accelerator=2.0, deadline_s=5.0))
    assert cost.limited_by == "data"


def test_intervals_hold_the_true_points_of_a_noisy_curve():
    rng = np.random.default_rng(1)
    sizes = 2.0 ** np.arange(9)
    held = []
    for _ in range(40):
        times_s = AMDAHL.predict_s(sizes, 20.0, 1000.0) * np.exp(0.03 * rng.standard_normal(len(sizes)))
        found = fit(measured_times(sizes, times_s), (AMDAHL,))
        (balance,) = equilibria(found.curves_s, found.domain, kinds=(BALANCE,))
        held.append(balance.low <= 50.0 <= balance.high)
    assert 0.75 < np.mean(held) <= 1.0  # 0.9 less three standard errors of 40 cases


def test_the_default_is_the_first_reason_to_stop():
    # Gunther's law with coherency alone, T = 1 / N + k (N - 1), k = 1e-4. Balance: T = -2 N T', N^2 = 1 / (3 k), 57.
    # T(N) = 1.5 T(2N): 1 / (4 N) = 2 k N, N* = 35, 2 N* = 70. E = 1 / (1 + k N (N - 1)) = 1 / 2: N = 100.
    balance, marginal, floor, peak = located(USL, (1.0, 0.0, 1e-4))
    assert balance.num_accelerators == pytest.approx(57.7, abs=1.5)
    assert marginal.num_accelerators == pytest.approx(70.5, abs=1.5)
    assert floor.num_accelerators == pytest.approx(100.5, abs=1.5)
    assert default_answer((balance, marginal, floor, peak)) is balance
    beyond = replace(balance, kind="marginal", limited_by="question")
    assert default_answer((beyond, balance)) is balance


def test_the_sentence_of_the_design():
    point = Equilibrium(
        kind="balance",
        title=BALANCE.title,
        num_accelerators=64,
        low=48,
        high=96,
        level=0.9,
        limited_by=None,
        time_s=406.0,
        efficiency=0.6,
        next_step=NextStep(
            num_accelerators=128, gain_s=126.0, gain_fraction=0.31, accelerator_hours_factor=1.38
        ),
    )
    assert re.search(
        rf"\b64 \(48 to 96, 90 %.*{BALANCE.title}; .*\b128 .*2\.1 min \(31 %\) .*1\.4x", words(point)
    )


@pytest.mark.parametrize(
    ("limit", "place"),
    [
        ("data", "data"),
        ("catalogue", "tried"),
        ("question", "limit"),
    ],
)
def test_the_words_say_whose_limit_ended_the_search(limit, place):
    sentence = words(located(PERFECT, (1e4,), BALANCE, largest=256.0, limited_by=limit)[0])
    assert re.search(rf" 256, .*\b{place}\b[^;]*; .*\b512 .*extrapolation$", sentence)


def test_the_words_say_when_more_takes_longer():
    (peak,) = located(USL, (1e4, 0.02, 1e-4), PEAK)
    assert re.search(r"\blonger\b", words(peak))
    assert "saves" not in words(peak)


def test_the_doubling_that_still_pays_is_taken():
    # T = s + p / N with p = 12 s: from N* = 6 on a doubling gives less than 1.5 times the speed, so 12 are taken.
    (marginal,) = located(AMDAHL, (1.0, 12.0), MARGINAL, largest=64.0)
    assert marginal.num_accelerators == 12
    assert marginal.is_found
    # Where the doubling leads beyond the sizes, they end first.
    (marginal,) = located(AMDAHL, (1.0, 12.0), MARGINAL, largest=10.0)
    assert (marginal.num_accelerators, marginal.limited_by) == (10, "data")


def discrete(sizes, times_s, *, draws=None, **options):
    central_s = np.asarray(times_s, dtype=float)
    found = discrete_equilibria(
        sizes, central_s[None, :] if draws is None else draws, central_s=central_s, **options
    )
    return {each.kind: each for each in found}


def test_of_two_accelerators_1_95_times_as_fast_as_one_two_are_taken():
    # E S = S^2 / N: 1 at one, 1.95^2 / 2 = 1.90 at two; 1.95 >= 1.5; E = 0.975.
    found = discrete((1, 2), (1.95, 1.0))
    for kind in ("balance", "marginal", "floor", "peak"):
        assert (found[kind].num_accelerators, found[kind].limited_by, found[kind].next_step) == (
            2,
            "question",
            None,
        )
    assert found["marginal"].efficiency == pytest.approx(0.975)
    assert re.search(r" 2, .*\blimit$", words(found["marginal"]))
    assert default_answer(tuple(found.values())).num_accelerators == 2


def test_a_second_accelerator_that_does_not_pay_is_left():
    # 1.3 < 1.5, and E S = 1.69 / 2 < 1; but E = 0.65 >= 0.5, and two are faster.
    found = discrete((1, 2), (1.3, 1.0))
    assert [found[kind].num_accelerators for kind in ("balance", "marginal", "floor", "peak")] == [1, 1, 2, 2]
    one = found["marginal"]
    assert one.is_found
    assert one.next_step == NextStep(
        num_accelerators=2,
        gain_s=pytest.approx(0.3),
        gain_fraction=pytest.approx(0.3 / 1.3),
        accelerator_hours_factor=pytest.approx(2.0 / 1.3),
    )


def test_a_size_is_reached_over_one_that_does_not_pay():
    # Two are slower than one (another host's link); eight are 5 times as fast as one: 5 >= 1 + 7 / 2.
    found = discrete((1, 2, 8, 16), (8.0, 9.0, 1.6, 1.5))
    assert found["marginal"].num_accelerators == 8
    assert found["marginal"].next_step.num_accelerators == 16


@pytest.mark.parametrize(
    ("least_h", "balance", "marginal"),
    [
        (0.0, 8, 8),
        # 8 are paid for 2 h and used for 1: twice the money for twice the speed. Efficiency falls with it: no
        # size beyond 4 has more of it times speedup.
        (2.0, 4, 4),
        # From the first on as many times the money as it is faster.
        (9.0, 1, 1),
    ],
)
def test_a_step_that_pays_for_hours_that_nobody_uses_does_not_pay(least_h, balance, marginal):
    sizes, times_h = (1, 2, 4, 8), np.array([8.0, 4.0, 2.0, 1.0])
    found = discrete_equilibria(sizes, times_h[None, :], central_s=times_h, least_s=least_h)
    by_kind = {each.kind: each.num_accelerators for each in found}
    assert (by_kind["balance"], by_kind["marginal"]) == (balance, marginal)
    assert reached_by_paying_steps(sizes, times_h, least_s=[least_h] * 4) == marginal


def test_steps_from_a_size_that_is_slower_and_dearer_than_the_next_do_not_count():
    # Four are short of memory: 114 accelerator-hours, eight take 62. From eight, 7.7 / 5.4 = 1.43 < 1.5 and
    # 7.7 / 4.2 = 1.83 < 2.5; from four 28.6 / 4.2 = 6.8 >= 4.5 would pay.
    found = discrete((4, 8, 16, 32), (28.6, 7.7, 5.4, 4.2))
    assert found["marginal"].num_accelerators == 8
    assert default_answer(tuple(found.values())).num_accelerators == 8


def test_a_step_that_pays_begins_at_the_nearest_size_that_is_not_dearer():
    # To 32: from 16 11,690 / 7,800 = 1.4987 < 1.5, from 8 20,000 / 7,800 = 2.56 >= 2.5.
    assert paying_step((8, 16, 32), (20_000.0, 11_690.0, 7_800.0)) == 0
    assert paying_step((8, 16, 32), (20_000.0, 11_700.0, 7_800.0)) == 1
    # From 8 it would pay, 100,000 / 11,000 = 9.1, but 16 take fewer accelerator-hours; from 16 1.36 < 1.5.
    assert paying_step((8, 16, 32), (100_000.0, 15_000.0, 11_000.0)) is None


def test_a_curve_that_has_turned_at_the_largest_size_was_not_cut():
    # From one, four are 4 / 1.6 = 2.5 times as fast: just enough. From two, 2 / 1.6 = 1.25 < 1.5: it has turned.
    found = discrete((1, 2, 4), (4.0, 2.0, 1.6))["marginal"]
    assert (found.num_accelerators, found.limited_by) == (4, None)
    found = discrete((1, 2, 4), (4.0, 2.1, 1.1))["marginal"]
    assert (found.num_accelerators, found.limited_by) == (4, "question")


@given(
    sizes=st.lists(st.integers(1, 4096), min_size=2, max_size=9, unique=True).map(sorted),
    ratio=st.floats(0.3, 8192.0),
)
def test_amdahl_marginal_and_balance_on_given_sizes(sizes, ratio):
    # T = 1 + c / N. A step from N to M = r N pays: (1 + a) / (1 + a / r) >= (1 + r) / 2 with a = c / N is
    # (r - 1) (a - r) >= 0, so r <= a: every step to a size of at most c pays, and no step to a larger one.
    ends = [size for size in sizes[1:] if size <= ratio * (1 + 1e-6)]
    certain = [size for size in sizes[1:] if size <= ratio * (1 - 1e-6)]
    found = discrete(sizes, [1.0 + ratio / size for size in sizes])["marginal"]
    assert found.num_accelerators in {(ends or sizes[:1])[-1], (certain or sizes[:1])[-1]}
    assert (found.limited_by is not None) == (found.num_accelerators == sizes[-1])


curves = st.integers(2, 8).flatmap(
    lambda num: st.tuples(
        st.lists(st.integers(1, 512), min_size=num, max_size=num, unique=True).map(sorted),
        st.lists(st.lists(st.floats(0.1, 100.0), min_size=num, max_size=num), min_size=2, max_size=6).map(
            np.array
        ),
    )
)


@given(curves, st.floats(1e-3, 1e6))
def test_discrete_points_are_sizes_within_their_interval_whatever_the_unit(curve, unit_s):
    sizes, draws = curve
    found = discrete_equilibria(sizes, draws, central_s=draws[0])
    scaled = discrete_equilibria(sizes, unit_s * draws, central_s=unit_s * draws[0])
    assert found
    for one, other in zip(found, scaled, strict=True):
        at = sizes.index(one.num_accelerators)
        assert one.time_s == draws[0][at]
        assert one.efficiency == pytest.approx(draws[0][0] * sizes[0] / (draws[0][at] * sizes[at]))
        assert (one.low or 0) <= one.num_accelerators <= (one.high or math.inf)
        assert {one.low, one.high} <= {None, *sizes}
        assert one.limited_by is None or (at == len(sizes) - 1 and one.high is None)
        assert (one.next_step is None) == (at == len(sizes) - 1)
        assert (one.kind, one.num_accelerators) == (other.kind, other.num_accelerators)


@given(curves)
def test_no_larger_size_pays_from_the_marginal_one(curve):
    sizes, draws = curve
    found = discrete(sizes, draws[0])["marginal"]
    at = sizes.index(found.num_accelerators)
    pays = [
        draws[0][at] / draws[0][larger] >= 1.0 + (sizes[larger] / sizes[at] - 1.0) / 2.0
        for larger in range(at + 1, len(sizes))
    ]
    assert not any(pays)


def test_the_interval_of_a_discrete_point_comes_from_the_draws():
    # Half of the draws stop at 4, half go on to 8; the central curve stops at 4.
    short, long = [8.0, 4.0, 2.0, 1.9], [8.0, 4.0, 2.0, 1.0]
    found = discrete((1, 2, 4, 8), short, draws=np.array([short, long] * 10), limited_by="catalogue")
    marginal = found["marginal"]
    assert (marginal.num_accelerators, marginal.low, marginal.high, marginal.limited_by) == (4, 4, 8, None)


@pytest.mark.parametrize("sizes", [(), (2, 1), (1, 1)])
def test_sizes_out_of_order_are_refused(sizes):
    with pytest.raises(UsageError, match="ascending order"):
        discrete_equilibria(sizes, np.ones((1, len(sizes))), central_s=np.ones(len(sizes)))
