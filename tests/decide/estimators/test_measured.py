"""The user's own steps, at the sizes they ran on and beyond."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.decide.estimators.measured import distance_log_sd, measured_estimates
from equipoise.decide.evidence import UserRun
from equipoise.decide.question.training import TrainingBudget, fixed_budget
from equipoise.decide.user_evidence.runs import Recast
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload


def _budget(samples):
    return fixed_budget(workload("resnet50"), samples)


def _run(size, rate, strategy="ddp"):
    return UserRun(
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
    found = measured_estimates([_run(1, 1000.0)], _budget(3.6e6), [1], cluster=None, workload=None)
    assert found.by_size[1].time_s.value == pytest.approx(3600.0)
    assert found.estimator == "measured"


def test_a_larger_size_is_slower_than_perfect_and_less_sure():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=8)
    found = measured_estimates(
        [_run(1, 1000.0)], _budget(3.6e6), [1, 8], cluster=nodes, workload=workload("resnet50")
    )
    assert 450.0 < found.by_size[8].time_s.value < 600.0
    assert found.by_size[8].log_sd > found.by_size[1].log_sd


def test_the_nearest_size_that_ran_counts():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=8)
    runs = [_run(1, 1000.0), _run(4, 2000.0)]
    found = measured_estimates(runs, _budget(3.6e6), [1, 4, 8], cluster=nodes, workload=workload("resnet50"))
    assert found.by_size[8].time_s.value > 3.6e6 / 4000.0 * 0.97
    assert "4" in found.by_size[8].why


def test_what_measured_sizes_clearly_lose_to_each_other_larger_ones_go_on_to_lose():
    # Four times as many were 1.24 times as fast: a doubling 1.24 ** 0.5 times, not twice as the law says.
    nodes = cluster("a100-sxm4-80gb", num_accelerators=64)
    runs = [_run(8, 1000.0), _run(16, 1180.0), _run(32, 1240.0)]
    options = {"cluster": nodes, "workload": workload("resnet50")}
    found = measured_estimates(runs, _budget(3.6e6), [8, 32, 64], **options)
    assert found.by_size[32].time_s.value / found.by_size[64].time_s.value == pytest.approx(
        1.24**0.5, rel=0.05
    )
    assert (
        found.by_size[64].log_sd
        > measured_estimates(runs[2:], _budget(3.6e6), [64], **options).by_size[64].log_sd
    )


def test_sizes_that_scale_as_the_law_says_change_nothing():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=64)
    options = {"cluster": nodes, "workload": workload("resnet50")}
    one = measured_estimates([_run(8, 1000.0)], _budget(3.6e6), [8, 16], **options).by_size
    rate = 1000.0 * one[8].time_s.value / one[16].time_s.value
    alone, both = (
        measured_estimates(runs, _budget(3.6e6), [32], **options).by_size[32]
        for runs in ([_run(16, rate)], [_run(8, 1000.0), _run(16, rate)])
    )
    assert (both.time_s.value, both.log_sd) == (alone.time_s.value, alone.log_sd)


def test_without_a_cluster_only_sizes_that_ran_are_estimated():
    found = measured_estimates([_run(2, 1000.0)], _budget(1e6), [1, 2, 4], cluster=None, workload=None)
    assert set(found.by_size) == {2}
    assert math.isclose(found.sources[0].num_accelerators, 2)


def test_of_several_set_ups_of_a_size_the_fastest_counts():
    runs = [_run(2, 1000.0), _run(2, 1500.0, strategy="fsdp")]
    found = measured_estimates(runs, _budget(3e6), [2], cluster=None, workload=None)
    assert found.by_size[2].time_s.value == pytest.approx(2000.0)
    assert "fsdp" in found.by_size[2].why


def test_a_set_up_counts_as_if_it_had_trained_as_advised():
    run = _run(2, 1000.0)
    recasts = {run.run_ids[0]: Recast(factor=0.5, log_sd=0.2)}
    plain, recast = (
        measured_estimates([run], _budget(3e6), [2], cluster=None, workload=None, recasts=each).by_size[2]
        for each in (None, recasts)
    )
    assert recast.time_s.value == pytest.approx(0.5 * plain.time_s.value)
    assert recast.log_sd == pytest.approx(math.hypot(plain.log_sd, 0.2))


def test_ways_to_train_that_no_law_carries_on_are_of_their_own_size_alone():
    nodes = cluster("a100-sxm4-80gb", num_accelerators=8)
    runs = [_run(2, 1000.0, strategy="powersgd:2")]
    found = measured_estimates(runs, _budget(3e6), [2, 8], cluster=nodes, workload=workload("resnet50"))
    assert set(found.by_size) == {2}


def test_a_training_of_unknown_samples_has_no_time_by_its_steps():
    unknown = TrainingBudget(work="to reach the target", samples=None, batches=None, is_to_target=True)
    assert measured_estimates([_run(1, 10.0)], unknown, [1], cluster=None, workload=None) is None
