"""A user's step on few accelerators, scaled to many: what must hold, and one case by hand."""

import numpy as np
import pytest

from equipoise.decide.estimators.measured import measured_steps
from equipoise.decide.evidence import UserRun
from equipoise.perfmodel.scale_up import ScaleUpParameters, scaled_up
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload

SIZES = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 64.0])
RESNET50 = workload("resnet50")
DGX = cluster("dgx-a100", num_accelerators=64)


def run(*, step_s=0.28, batch=256):
    return UserRun(
        run_ids=("mine",),
        accelerator=None,
        num_accelerators=1,
        global_batch_samples=batch,
        samples_per_s=batch / step_s,
        log_sd=0.0,
        strategy="single",
        precision="bf16",
    )


def _scaled(sizes=SIZES, *, about=RESNET50, parameters=None):
    measured = measured_steps(run(), DGX, about, microbatch_samples=256)
    return scaled_up(measured, sizes, parameters or ScaleUpParameters())


def test_what_was_measured_stays_and_the_rest_lies_below_perfect_scaling():
    found = _scaled()
    assert found.slowdown[0] == pytest.approx(1.0)
    assert (np.diff(found.slowdown) > 0).all()


def test_resnet50_on_eight_a100_by_hand():
    # 0.005 x 2.04 of waiting; 2 ms and 25.6e6 x 4 bytes x 2 x 7/8 over 0.8 x 300 GB/s (0.75 ms) and up to 0.2 ms of
    # latency and copies of 280 ms; 914 images/s x 7 x 1 ms over 128 cores: 1.02 + 1.0 to 1.1 + 5.0 %.
    found = _scaled(8.0)
    assert found.waiting == pytest.approx(0.0102, rel=0.01)
    assert 0.0098 < found.exchange < 0.0107
    assert found.input == pytest.approx(0.05, rel=0.01)


def test_a_slow_host_path_costs_what_its_bytes_take():
    pair = cluster("rtx 4090", num_accelerators=2, intra_byte_per_s=6e9, topology="host")
    measured = measured_steps(run(step_s=0.1, batch=32), pair, workload("vit_large"), microbatch_samples=32)
    # 304e6 x 4 bytes x 2 x 1/2 at 6 GB/s: 0.2 s beside 0.1 s of work, before what the link does not reach.
    assert scaled_up(measured, 2.0, ScaleUpParameters()).exchange > 2.0


def test_a_model_of_ones_own_needs_no_workload():
    found = _scaled(8.0, about=None)
    assert 1.0 < found.slowdown < 1.25
    assert found.input == 0.0


def test_parameters_of_a_fit_replace_the_priors():
    worse = _scaled(8.0, parameters=ScaleUpParameters(rank_jitter=0.1))
    assert worse.slowdown > _scaled(8.0).slowdown + 0.1
