"""The law from few accelerators to many: limits, order and scale by hand; a fit that finds what made the data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import FitError
from equipoise.perfmodel.machine import Wire, Wires
from equipoise.perfmodel.scale_up import (
    SCALE_UP_PRIORS,
    MeasuredSteps,
    ScaleUpParameters,
    fit_scale_up,
    slowdown,
)

WIRES = Wires(intra=Wire(byte_per_s=300e9, latency_s=3e-6), inter=Wire(byte_per_s=25e9, latency_s=14e-6))
# A law without anything that ranks add.
NOTHING = ScaleUpParameters(
    rank_jitter=0.0,
    length_jitter=0.0,
    exchange_s=0.0,
    exchange_share=0.0,
    decode_core_s=0.0,
    batch_floor=0.0,
)


def _only(*names):
    """The usual law with these causes alone."""
    return replace(NOTHING, **{name: getattr(ScaleUpParameters(), name) for name in names})


WAITING, INPUT = _only("rank_jitter", "length_jitter"), _only("decode_core_s")
EXCHANGE = _only("exchange_s", "exchange_share")

steps = st.builds(
    MeasuredSteps,
    microbatch_s=st.floats(0.01, 10) | st.just(float("nan")),
    num_accelerators=st.sampled_from([1, 2, 8]),
    gradient_bytes=st.floats(1e5, 1e10) | st.just(float("nan")),
    node_size=st.just(8),
    wires=st.just(WIRES),
    num_accumulated=st.integers(1, 64),
    decoded_per_s=st.floats(0, 3000),
    is_ragged=st.sampled_from([0.0, 1.0]),
)


def _measured(**stated):
    usual = {
        "microbatch_s": 0.2,
        "num_accelerators": 1,
        "gradient_bytes": 1e8,
        "node_size": 8,
        "wires": WIRES,
    }
    return MeasuredSteps(**(usual | stated))


@given(steps)
def test_where_it_was_measured_nothing_changes(measured):
    found = slowdown(measured, measured.num_accelerators, ScaleUpParameters())
    # Up to a quarter: where what ranks add would leave less than 0.3 of a step, the step is not believed.
    assert found >= 1 - 1e-12
    mild = replace(measured, microbatch_s=10.0, decoded_per_s=0.0, gradient_bytes=1e5)
    assert slowdown(mild, mild.num_accelerators, ScaleUpParameters()) == pytest.approx(1)


@given(steps)
def test_more_accelerators_never_make_a_micro_batch_faster(measured):
    sizes = np.array([8, 16, 64, 1024])
    found = slowdown(measured, sizes, ScaleUpParameters())
    assert (np.diff(found) >= -1e-12).all()
    assert found[0] >= 1 - 1e-12


@given(steps, st.integers(1, 512))
def test_without_what_ranks_add_scaling_is_perfect(measured, num_accelerators):
    assert slowdown(measured, num_accelerators, NOTHING) == pytest.approx(1)


@given(steps, st.floats(1.5, 100))
def test_more_bandwidth_never_hurts(measured, factor):
    measured = replace(measured, num_accelerators=1)
    faster = Wires(
        intra=replace(WIRES.intra, byte_per_s=factor * 300e9),
        inter=replace(WIRES.inter, byte_per_s=factor * 25e9),
    )
    before = slowdown(measured, 16, ScaleUpParameters())
    assert slowdown(replace(measured, wires=faster), 16, ScaleUpParameters()) <= before + 1e-12


def test_accumulated_micro_batches_share_one_exchange():
    once = slowdown(_measured(), 8, EXCHANGE)
    rarely = slowdown(_measured(num_accumulated=10), 8, EXCHANGE)
    assert rarely - 1 == pytest.approx((once - 1) / 10)


def test_waiting_is_the_slowest_of_eight():
    # sqrt(2 ln 8) = 2.039: 1 % of jitter costs 2.04 %.
    found = slowdown(_measured(), 8, replace(NOTHING, rank_jitter=0.01))
    assert found == pytest.approx(1.02039, rel=1e-4)


def test_images_wait_for_the_seven_others_of_the_host():
    # 2000 images/s that each wait for 1 ms of one of 100 cores for each of 7 others: 14 %; in two hosts no more.
    law = replace(NOTHING, decode_core_s=1e-3)
    found = slowdown(_measured(decoded_per_s=2000.0, num_cores=100), np.array([8, 16]), law)
    assert found == pytest.approx(1.14)


def test_more_cores_feed_more_images():
    few, many = (
        slowdown(_measured(decoded_per_s=2000.0, num_cores=cores), 8, INPUT) - 1 for cores in (40, 128)
    )
    assert few == pytest.approx(many * 128 / 40)


def test_half_a_micro_batch_takes_more_than_half_the_time():
    # A tenth of the time does not shrink: 0.1 + 0.9 / 2.
    found = slowdown(_measured(), 2, replace(NOTHING, batch_floor=0.1), microbatch_ratio=0.5)
    assert found == pytest.approx(0.55)


def test_causes_add_up_to_the_slowdown():
    measured = _measured(decoded_per_s=500.0, is_ragged=1.0)
    parts = [slowdown(measured, 8, each) - 1 for each in (WAITING, EXCHANGE, INPUT)]
    assert min(parts) > 0
    assert slowdown(measured, 8, ScaleUpParameters()) == pytest.approx(1 + sum(parts))


def test_unknown_sizes_take_the_usual_ones():
    law = ScaleUpParameters(usual_step_s=0.4, usual_gradient_bytes=3e8)
    unknown = slowdown(_measured(microbatch_s=np.nan, gradient_bytes=np.nan), 8, law)
    known = slowdown(_measured(microbatch_s=0.4, gradient_bytes=3e8), 8, law)
    assert unknown == known


def test_a_fit_finds_the_law_that_made_the_data():
    rng = np.random.default_rng(7)
    num = 1500
    measured = _measured(
        microbatch_s=rng.uniform(0.03, 0.6, num),
        gradient_bytes=10 ** rng.uniform(6.5, 9.3, num),
        is_ragged=rng.integers(0, 2, num).astype(float),
        decoded_per_s=rng.uniform(0, 2000, num),
    )
    ratio = rng.choice([1.0, 0.25, 0.125], num)
    truth = ScaleUpParameters(
        rank_jitter=0.02,
        length_jitter=0.05,
        exchange_s=3e-3,
        exchange_share=1.8,
        decode_core_s=2e-3,
        batch_floor=0.15,
    )

    def predict(law):
        return slowdown(measured, 8, law, microbatch_ratio=ratio)

    noisy = predict(truth) * np.exp(rng.laplace(0, 0.02, num))
    # One row in twenty is a misprint: ten times what it should be.
    noisy[::20] *= 10
    found = fit_scale_up(predict, noisy, weights=np.ones(num))
    for name in (
        "rank_jitter",
        "length_jitter",
        "exchange_s",
        "exchange_share",
        "decode_core_s",
        "batch_floor",
    ):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.3), name


def test_without_rows_there_is_nothing_to_fit():
    with pytest.raises(FitError, match="no pair"):
        fit_scale_up(lambda _: np.ones(0), np.ones(0), weights=np.ones(0))
    with pytest.raises(FitError, match="positive"):
        fit_scale_up(lambda _: np.full(1, np.nan), np.ones(1), weights=np.ones(1))


def test_every_parameter_has_a_prior_with_its_source():
    assert SCALE_UP_PRIORS
    for prior in SCALE_UP_PRIORS:
        assert prior.median > 0
        assert prior.log_sd > 0
        assert prior.meaning
        assert prior.source
