"""The laws against their papers' own statements, limits and identities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.scaling.laws import (
    ALPHA_BETA,
    AMDAHL,
    CANDIDATES,
    CONSTANT,
    GUSTAFSON,
    LAWS,
    OVERLAP,
    PERFECT,
    USL,
    Domain,
    Law,
    law_named,
)

SIZES = np.array([1.0, 2.0, 8.0, 64.0, 1024.0])


def test_amdahl_speedup_of_his_paper():
    # 40 % serial work limits any number of processors to a speedup of 2.5.
    assert AMDAHL.predict_s(1e12, 40.0, 60.0) == pytest.approx(100.0 / 2.5)


def test_gustafson_scaled_speedup_of_his_paper():
    # Gustafson 1988: 1024 processors and a serial fraction of 0.004 give a scaled speedup of 1020.
    assert 1.0 / GUSTAFSON.predict_s(1024.0, 1.0, 0.004) == pytest.approx(1020.0, abs=0.2)


def test_usl_is_fastest_where_gunther_says():
    contention, coherency = 0.05, 2e-4
    sizes = np.arange(1.0, 400.0)
    fastest = sizes[np.argmin(USL.predict_s(sizes, 1.0, contention, coherency))]
    assert fastest == pytest.approx(np.sqrt((1.0 - contention) / coherency), abs=1.0)


def test_usl_without_coherency_is_amdahl():
    usl = USL.predict_s(SIZES, 100.0, 0.1, 0.0)
    assert usl == pytest.approx(AMDAHL.predict_s(SIZES, 10.0, 90.0))


def test_ring_all_reduce_after_fixed_work_is_a_usl():
    ring = ALPHA_BETA.predict_s(SIZES, 100.0, 3.0, 0.02)
    assert ring == pytest.approx(USL.predict_s(SIZES, 100.0, 2 * 3.0 / 100.0, 2 * 0.02 / 100.0))


def test_one_accelerator_has_no_communication():
    assert ALPHA_BETA.predict_s(1.0, 100.0, 3.0, 0.02) == 100.0
    assert OVERLAP.predict_s(1.0, 100.0, 3.0, 2.0) == pytest.approx(100.0)


def test_overlap_goes_from_the_sum_to_the_larger_part():
    computing, communicating = 100.0 / 8.0, 2.0 * 7.0 / 8.0 * 5.0
    assert OVERLAP.predict_s(8.0, 100.0, 5.0, 1.0) == pytest.approx(computing + communicating)
    assert OVERLAP.predict_s(8.0, 100.0, 5.0, 200.0) == pytest.approx(max(computing, communicating), rel=1e-3)


@pytest.mark.law
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(1e-3, 1e6))
def test_time_is_positive_and_proportional_to_the_work(law: Law, first: float, second: float, scale: float):
    unit = np.array([[first, second]])[:, : law.num_shapes]
    values = law.at(unit, Domain(smallest=1.0, largest=1024.0))
    times_s = law.times_s(values, SIZES)
    assert (times_s > 0.0).all()
    assert law.times_s(law.scaled(values, np.array([scale])), SIZES) == pytest.approx(scale * times_s)


@pytest.mark.law
@pytest.mark.parametrize(
    "law", [law for law in CANDIDATES if law.name not in {"power", "gustafson"}], ids=lambda law: law.name
)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_no_law_of_overheads_beats_perfect_scaling(law: Law, first: float, second: float):
    values = law.at(np.array([[first, second]])[:, : law.num_shapes], Domain(smallest=1.0, largest=1024.0))
    times_s = law.times_s(values, SIZES)[0]
    assert (times_s >= PERFECT.predict_s(SIZES, times_s[0]) * (1 - 1e-12)).all()


def test_every_law_can_be_named():
    assert [law_named(law.name) for law in LAWS] == list(LAWS)
    assert CONSTANT not in CANDIDATES


def test_unknown_law_lists_the_laws():
    with pytest.raises(SpecError, match=r"law='moore' .*constant, perfect, amdahl"):
        law_named("moore")
    with pytest.raises(SpecError, match=r"\boverlap, pooled\b"):
        law_named("moore", also=("pooled",))
