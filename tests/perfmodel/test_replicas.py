"""Replicas that exchange gradients in buckets: limits, order and a brute-force schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.perfmodel.collective import Group, all_reduce_s
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.exchange import overlapped
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.replicas import Held, bare_buckets_s, held, replica_seconds
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

MIB = 2**20
PARAMETERS = Parameters()


def plan(ranks, share=8, **knobs):
    stated = {"precision": "fp32", "implementation": "eager"} | knobs
    return grid([Strategy(dp=ranks, microbatch_samples=share, global_batch_samples=share * ranks, **stated)])


def pair(byte_per_s=5e9):
    return machine(
        cluster(
            "rtx-2080-ti-pcie-11gb",
            node_size=2,
            num_accelerators=2,
            intra_byte_per_s=byte_per_s,
            topology="switch",
        )
    )


def seconds(ranks, name="resnet50", byte_per_s=5e9, **knobs):
    return replica_seconds(workload_load(workload(name)), pair(byte_per_s), plan(ranks, **knobs), PARAMETERS)


def test_one_replica_exchanges_nothing():
    found = seconds(1)
    alone = estimate(workload_load(workload("resnet50")), pair(), plan(1), PARAMETERS)
    assert found.step == pytest.approx(alone.step_s)
    for name in ("launching", "copying", "buffers", "exposed", "waiting"):
        assert getattr(found, name) == pytest.approx(0.0)


def test_counts_are_those_of_torchvision():
    # ResNet-50 of torchvision: 161 tensors with gradients, 159 buffers; 53 convolutions and one matrix.
    found = held(workload_load(workload("resnet50")))
    assert found.num_tensors == pytest.approx(161, rel=0.02)
    assert found.num_buffers == pytest.approx(159, rel=0.02)
    assert held(workload_load(workload("bert"))).num_buffers == 0


@given(st.floats(1e8, 1e12), st.floats(1.0, 10.0))
def test_a_faster_link_is_never_slower(byte_per_s, factor):
    assert seconds(2, byte_per_s=byte_per_s * factor).step <= seconds(2, byte_per_s=byte_per_s).step + 1e-12


def test_endless_links_leave_launches_and_copies():
    found = seconds(2, byte_per_s=1e18)
    assert found.exposed < 1e-3
    assert found.launching > 0
    assert found.copying > 0


def test_averaging_now_and_then_exchanges_that_much_less():
    often, seldom = seconds(2), seconds(2, sync_period=8)
    assert seldom.exposed == pytest.approx(often.exposed / 8)
    assert seldom.buffers == pytest.approx(often.buffers)


@pytest.mark.parametrize("params", [2e5, 3.5e6, 26e6, 300e6])
@pytest.mark.parametrize("byte_per_s", [1e9, 2e10])
@pytest.mark.parametrize("half_ready", [0.1, 0.3, 0.5])
def test_exposed_time_is_that_of_the_schedule_of_buckets(params, byte_per_s, half_ready):
    links, wires = PARAMETERS.collective, pair(byte_per_s).wires
    # By hand: 1 MiB first, then alike buckets of at most 25 MiB, ready evenly over the pass.
    first = min(4 * params, MIB)
    count = int(np.ceil((4 * params - first) / (25 * MIB)))
    sizes = [first] + [(4 * params - first) / count] * count if count else [first]
    group = Group(ranks_per_node=2.0, num_nodes=1.0)
    took = [float(np.squeeze(all_reduce_s(size, group, wires, links))) for size in sizes]
    # Half of the bytes exist after so much of the pass: bytes that are ready are a power of the pass.
    ready = (np.cumsum(sizes) / sum(sizes)) ** (np.log(half_ready) / np.log(0.5))
    holds = Held(
        num_tensors=161.0,
        gradient_bytes=4 * params,
        num_buffers=0.0,
        buffer_bytes=0.0,
        half_ready=half_ready,
    )
    for backward_s in (1e-4, 0.02, 0.5):
        schedule = overlapped(backward_s, ready, took)
        found = bare_buckets_s(holds, backward_s, group, wires, links)
        assert float(np.squeeze(found)) == pytest.approx(float(schedule.exposed_s))
