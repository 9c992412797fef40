"""The user's own steps, at the sizes they ran on and beyond."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.advice.answer.measured_witness import distance_log_sd, measured_witness
from equipoise.advice.answer.own_runs import OwnRun
from equipoise.advice.plans.planned import Length
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload


def _length(samples):
    return Length(
        words="train",
        samples=lambda batch: np.full_like(batch, samples),
        log_sd=lambda _: 0.0,
        batches=None,
        is_whole=True,
    )


def _run(size, rate, strategy="ddp"):
    return OwnRun(
        workload="resnet50",
        accelerator="a100-sxm4-80gb",
        num_accelerators=size,
        strategy=strategy,
        precision="bf16",
        global_batch_samples=64 * size,
        samples_per_s=rate,
        log_sd=0.01,
        run_ids=(f"run-{size}",),
    )


@given(st.floats(0.0, 12.0), st.floats(0.0, 12.0))
def test_nearer_runs_are_never_less_sure(one, other):
    near, far = sorted((one, other))
    assert distance_log_sd(near) <= distance_log_sd(far)


def test_three_doublings_are_as_wrong_as_the_experiment_says():
    # docs/experiments/0009: half of the 90 % interval is 0.38
    assert distance_log_sd(3.0) * 1.6448536 == pytest.approx(0.38)


def test_a_size_that_ran_takes_the_samples_over_the_rate():
    found = measured_witness([_run(1, 1000.0)], _length(3.6e6), [1], cluster=None, workload=None)
    # 3600 s but for what failures take of one accelerator's hour
    assert found.times[1].value == pytest.approx(3600.0, rel=1e-3)
    assert found.kind == "measured"


def test_a_larger_size_is_slower_than_perfect_and_less_sure():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=8)
    found = measured_witness(
        [_run(1, 1000.0)], _length(3.6e6), [1, 8], cluster=nodes, workload=workload("resnet50")
    )
    assert 450.0 < found.times[8].value < 600.0
    assert found.log_sds[8] > found.log_sds[1]


def test_the_nearest_size_speaks():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=8)
    runs = [_run(1, 1000.0), _run(4, 2000.0)]
    found = measured_witness(runs, _length(3.6e6), [1, 4, 8], cluster=nodes, workload=workload("resnet50"))
    assert found.times[8].value > 3.6e6 / 4000.0 * 0.97
    assert "4" in found.why[8]


def test_without_a_cluster_only_what_ran_is_told():
    found = measured_witness([_run(2, 1000.0)], _length(1e6), [1, 2, 4], cluster=None, workload=None)
    assert set(found.times) == {2}
    assert math.isclose(found.sources[0].num_accelerators, 2)
