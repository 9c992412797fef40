"""A user's step on few accelerators, scaled to many: what must hold, and one case by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from equipoise.decide.estimators.measured import measured_steps
from equipoise.decide.evidence import UserRun
from equipoise.perfmodel.scale_up import ScaleUpParameters, slowdown
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
    return slowdown(measured, sizes, parameters or ScaleUpParameters())


def _only(*names):
    """The usual law with these causes alone, of all that ranks add."""
    added = ("rank_jitter", "length_jitter", "exchange_s", "exchange_share", "decode_core_s")
    return replace(ScaleUpParameters(), **{name: 0.0 for name in added if name not in names})


def test_what_was_measured_stays_and_the_rest_lies_below_perfect_scaling():
    found = _scaled()
    assert found[0] == pytest.approx(1.0)
    assert (np.diff(found) > 0).all()


def test_resnet50_on_eight_a100_by_hand():
    # 0.005 x 2.04 of waiting; 2 ms and 25.6e6 x 4 bytes x 2 x 7/8 over 0.8 x 300 GB/s (0.75 ms) and up to 0.2 ms of
    # latency and copies of 280 ms; 914 images/s x 7 x 1 ms over 128 cores: 1.02 + 1.0 to 1.1 + 5.0 %.
    waiting, exchange, images = (
        float(_scaled(8.0, parameters=_only(*each))) - 1
        for each in (("rank_jitter",), ("exchange_s", "exchange_share"), ("decode_core_s",))
    )
    assert waiting == pytest.approx(0.0102, rel=0.01)
    assert 0.0098 < exchange < 0.0107
    assert images == pytest.approx(0.05, rel=0.01)


def test_a_slow_host_path_costs_what_its_bytes_take():
    pair = cluster("rtx 4090", num_accelerators=2, intra_byte_per_s=6e9, topology="host")
    measured = measured_steps(run(step_s=0.1, batch=32), pair, workload("vit_large"), microbatch_samples=32)
    # 304e6 x 4 bytes x 2 x 1/2 at 6 GB/s: 0.2 s beside 0.1 s of work, before what the link does not reach.
    assert slowdown(measured, 2.0, _only("exchange_s", "exchange_share")) > 3.0


def test_a_model_of_ones_own_needs_no_workload():
    found = _scaled(8.0, about=None)
    assert 1.0 < found < 1.25
    assert _scaled(8.0, about=None, parameters=_only("decode_core_s")) == 1.0


def test_parameters_of_a_fit_replace_the_priors():
    worse = _scaled(8.0, parameters=ScaleUpParameters(rank_jitter=0.1))
    assert worse > _scaled(8.0) + 0.1
