"""A user's step on few accelerators, scaled to many: what must hold, and one case by hand."""

import numpy as np
import pytest

from equipoise.decide.estimators.measured import SmallRun, scaled
from equipoise.errors import UsageError
from equipoise.perfmodel.scale_up import ScaleUpParameters
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload

SIZES = [1, 2, 4, 8, 16, 64]


def _scaled(sizes=SIZES, **stated):
    usual = {"cluster": cluster("dgx-a100", num_accelerators=64), "workload": workload("resnet50")}
    return scaled(SmallRun(step_s=0.28, microbatch_samples=256), sizes, **(usual | stated))


def test_what_was_measured_stays_and_the_rest_lies_below_perfect_scaling():
    found = _scaled()
    assert found.step_s[0] == found.low_s[0] == found.high_s[0] == pytest.approx(0.28)
    assert (np.diff(found.efficiency) < 0).all()
    assert (found.low_s <= found.step_s).all()
    assert (found.step_s <= found.high_s).all()
    assert (found.low_s >= 0.97 * 0.28).all()
    assert found.samples_per_s[3] == pytest.approx(8 * 256 / 0.28 * found.efficiency[3])


def test_resnet50_on_eight_a100_by_hand():
    # 0.005 x 2.04 of waiting; 2 ms and 25.6e6 x 4 bytes x 2 x 7/8 over 0.8 x 300 GB/s (0.75 ms) and up to 0.2 ms of
    # latency and copies of 280 ms; 914 images/s x 7 x 1 ms over 128 cores: 1.02 + 1.0 to 1.1 + 5.0 %.
    found = _scaled([8])
    assert found.waiting == pytest.approx(0.0102, rel=0.01)
    assert 0.0098 < found.exchange < 0.0107
    assert found.input == pytest.approx(0.05, rel=0.01)


def test_a_slow_host_path_costs_what_its_bytes_take():
    pair = cluster("rtx 4090", num_accelerators=2, intra_byte_per_s=6e9, topology="host")
    run = SmallRun(step_s=0.1, microbatch_samples=32)
    found = scaled(run, 2, cluster=pair, workload=workload("vit_large"))
    # 304e6 x 4 bytes x 2 x 1/2 at 6 GB/s: 0.2 s beside 0.1 s of work, before what the link does not reach.
    assert found.exchange > 2.0


def test_a_model_of_ones_own_needs_no_workload():
    found = _scaled([8], workload=None)
    assert 0.8 < found.efficiency[0] < 1.0
    assert found.input == 0.0


def test_parameters_of_a_fit_replace_the_priors():
    worse = _scaled([8], parameters=ScaleUpParameters(rank_jitter=0.1))
    assert worse.efficiency < _scaled([8]).efficiency - 0.1


def test_what_no_run_is_is_refused():
    with pytest.raises(UsageError, match="step_s = 0"):
        SmallRun(step_s=0.0, microbatch_samples=1)
    with pytest.raises(UsageError, match=r"2 accelerators.* 4 "):
        scaled(
            SmallRun(step_s=1.0, microbatch_samples=1, num_accelerators=4), [2], cluster=cluster("dgx-a100")
        )
