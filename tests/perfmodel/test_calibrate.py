"""Calibration: it finds what made the numbers, keeps to priors where data are silent, and separates campaigns."""

import numpy as np
import pytest

from equipoise.errors import FitError
from equipoise.perfmodel.calibrate import calibrate, log_times
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import stacked, transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import PRIORS, Parameters, Prior
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

LOAD = transformer_load(workload("llama31_8b").transformer, sequence=8192)
NODE = machine(cluster("dgx-a100", num_accelerators=8))
STRATEGIES = [
    Strategy(
        global_batch_samples=64,
        microbatch_samples=size,
        dp=8 // tp,
        tp=tp,
        sequence_parallel=tp > 1,
        recompute=recompute,
    )
    for size in (1, 2, 4)
    for tp in (1, 2, 4, 8)
    for recompute in ("none", "selective", "full")
]
GRID = grid(STRATEGIES)
LOADS = stacked([LOAD] * len(STRATEGIES))
NUM = len(STRATEGIES)
EQUAL = np.ones(NUM)
MOVED = ("product_fraction", "layer_traffic", "step_s")


def predict(parameters):
    return estimate(LOADS, NODE, GRID, parameters).step_s


def fitted(measured_s, **kwargs):
    return calibrate(predict, measured_s, names=MOVED, weights=EQUAL, **kwargs)


def test_the_parameters_that_made_the_times_are_found_again():
    truth = Parameters().changed({"product_fraction": 0.8, "layer_traffic": 1.2})
    noise = np.exp(np.random.default_rng(7).normal(0, 0.01, NUM))
    found = fitted(predict(truth) * noise, noise_log_sd=0.01)
    for name in ("product_fraction", "layer_traffic"):
        off = np.log(found.parameters.value(name) / truth.value(name))
        assert abs(off) < 3 * found.log_sd[MOVED.index(name)] + 0.01, name
    assert np.std(found.residuals) == pytest.approx(0.01, rel=0.4)


def test_one_broken_row_moves_nothing():
    truth = predict(Parameters())
    broken = truth.copy()
    broken[5] *= 3
    off = np.log(predict(fitted(broken).parameters) / truth)
    assert np.abs(np.delete(off, 5)).max() < 0.02


def test_what_no_row_is_sensitive_to_stays_where_its_prior_has_it():
    found = calibrate(predict, predict(Parameters()) * 1.1, names=(*MOVED, "fp8_fraction"), weights=EQUAL)
    assert found.parameters.fp8_fraction == pytest.approx(Parameters().fp8_fraction)
    prior = next(each for each in PRIORS if each.name == "fp8_fraction")
    assert found.log_sd[-1] == pytest.approx(prior.log_sd)


def test_no_fit_exceeds_what_is_physically_possible():
    found = fitted(predict(Parameters()) / 5)
    assert found.parameters.product_fraction <= 1.0


def test_campaigns_have_their_own_software_and_share_their_machine():
    campaigns = np.arange(NUM) % 2
    names = ("product_fraction", "recompute_share", "step_s")
    truth = [
        Parameters().changed({"product_fraction": 0.8, "recompute_share": share}) for share in (0.2, 1.0)
    ]
    measured_s = np.where(campaigns == 0, predict(truth[0]), predict(truth[1]))
    found = calibrate(predict, measured_s, names=names, weights=EQUAL, campaigns=campaigns, noise_log_sd=0.01)
    first, second = found.by_campaign
    assert first.product_fraction == second.product_fraction == pytest.approx(0.8, rel=0.02)
    assert first.recompute_share == pytest.approx(0.2, abs=0.05)
    assert second.recompute_share == pytest.approx(1.0, abs=0.05)
    # Another campaign learns nothing from the software of these two.
    assert found.parameters.recompute_share == Parameters().recompute_share
    assert found.parameters.product_fraction == first.product_fraction


def test_without_rows_there_is_nothing_to_calibrate_on():
    with pytest.raises(FitError, match="measured step"):
        calibrate(lambda _: np.empty(0), np.empty(0), names=MOVED, weights=np.empty(0))


def test_a_row_without_a_prediction_is_refused():
    with pytest.raises(FitError, match="positive"):
        calibrate(lambda _: np.full(NUM, np.nan), EQUAL, names=MOVED, weights=EQUAL)


def test_slopes_are_those_of_a_power_law():
    def power_law(parameters):
        return parameters.step_s**2.0 * parameters.launch_s ** np.array([0.5, -1.0])

    values = {"step_s": np.array([1.0, 3.0]), "launch_s": 0.1}
    log_s, slopes = log_times(power_law, Parameters(), values)
    # log of step_s^2 launch_s^(1/2) and of step_s^2 / launch_s
    assert log_s == pytest.approx([0.5 * np.log(0.1), 2 * np.log(3.0) - np.log(0.1)])
    assert slopes == pytest.approx(np.array([[2.0, 2.0], [0.5, -1.0]]))


def test_a_local_parameter_moves_only_its_own_campaign():
    campaigns = np.arange(NUM) % 2
    measured_s = np.where(campaigns == 0, 1.0, 2.0) * predict(Parameters())
    found = calibrate(
        predict, measured_s, names=("recompute_share", "product_fraction"), weights=EQUAL, campaigns=campaigns
    )
    assert len(found.by_campaign) == 2
    assert found.by_campaign[0].product_fraction == found.by_campaign[1].product_fraction
    assert found.by_campaign[0].recompute_share <= found.by_campaign[1].recompute_share


def test_given_priors_take_the_place_of_the_usual_ones():
    believed = [
        Prior(name=name, median=1.2 * Parameters().value(name), log_sd=1e-4, meaning="", source="")
        for name in ("layer_traffic",)
    ]
    found = calibrate(
        predict, predict(Parameters()), names=("layer_traffic",), weights=EQUAL, priors=believed
    )
    assert found.parameters.layer_traffic == pytest.approx(1.2 * Parameters().layer_traffic, rel=0.01)


def test_what_the_given_priors_call_local_is_as_uncertain_elsewhere_as_before():
    at = Parameters().layer_traffic
    local = Prior(name="layer_traffic", median=at, log_sd=0.5, local=True, meaning="", source="")
    found = calibrate(predict, predict(Parameters()), names=("layer_traffic",), weights=EQUAL, priors=[local])
    assert found.log_sd.tolist() == [0.5]
