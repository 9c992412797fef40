"""Replicas that exchange gradients: limits, order, a brute-force schedule, and messages during a backward pass."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.perfmodel.collectives import all_reduce_s
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import Group, machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.replicas import (
    ExchangedTensors,
    at_batch,
    exchanged_tensors,
    exposed_buckets_s,
    low_rank_bytes,
    overlapped_end_s,
    replica_seconds,
    slowest_of,
    sparse_bytes,
)
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

MIB = 2**20
PARAMETERS = Parameters()


def plan(ranks, share=8, **options):
    stated = {"precision": "fp32", "implementation": "eager"} | options
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


def seconds(ranks, name="resnet50", byte_per_s=5e9, **options):
    return replica_seconds(
        workload_load(workload(name)), pair(byte_per_s), plan(ranks, **options), PARAMETERS
    )


def test_one_replica_exchanges_nothing():
    found = seconds(1)
    alone = estimate(workload_load(workload("resnet50")), pair(), plan(1), PARAMETERS)
    assert found.step == pytest.approx(alone.step_s)
    for name in ("launching", "copying", "buffers", "exposed", "waiting"):
        assert getattr(found, name) == pytest.approx(0.0)


def test_counts_are_those_of_torchvision():
    # ResNet-50 of torchvision: 161 tensors with gradients, 159 buffers; 53 convolutions and one matrix.
    found = exchanged_tensors(workload_load(workload("resnet50")))
    assert found.num_tensors == pytest.approx(161, rel=0.02)
    assert found.num_buffers == pytest.approx(159, rel=0.02)
    assert exchanged_tensors(workload_load(workload("bert"))).num_buffers == 0


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


def test_buffers_of_one_rank_travel_once():
    # 10 GB pass each link of a chain of eight once (torch DDP, `_sync_buffers`: a broadcast); a sum of them would send
    # 2 x 7/8 of them.
    node = machine(cluster("dgx-h100", num_accelerators=8))
    load = workload_load(workload("resnet50"))
    few = exchanged_tensors(load)
    found = [
        float(np.squeeze(replica_seconds(load, node, plan(8), PARAMETERS, tensors=each).buffers))
        for each in (replace(few, buffer_bytes=10e9), replace(few, buffer_bytes=20e9))
    ]
    rate = float(node.intra_byte_per_s) * float(PARAMETERS.collective.intra_fraction)
    assert found[1] - found[0] == pytest.approx(10e9 / rate, rel=0.1)


@pytest.mark.parametrize("params", [2e5, 3.5e6, 26e6, 300e6])
@pytest.mark.parametrize("byte_per_s", [1e9, 2e10])
@pytest.mark.parametrize("half_ready", [0.1, 0.3, 0.5])
def test_exposed_time_is_that_of_the_schedule_of_buckets(params, byte_per_s, half_ready):
    links, wires = PARAMETERS.collective, pair(byte_per_s).wires
    # By hand: 1 MiB first, then equal buckets of at most 25 MiB, ready evenly over the pass.
    first = min(4 * params, MIB)
    count = int(np.ceil((4 * params - first) / (25 * MIB)))
    sizes = [first] + [(4 * params - first) / count] * count if count else [first]
    group = Group(ranks_per_node=2.0, num_nodes=1.0)
    took = [float(np.squeeze(all_reduce_s(size, group, wires, links))) for size in sizes]
    # Half of the bytes exist after so much of the pass: bytes that are ready are a power of the pass.
    ready = (np.cumsum(sizes) / sum(sizes)) ** (np.log(half_ready) / np.log(0.5))
    tensors = ExchangedTensors(
        num_tensors=161.0,
        gradient_bytes=4 * params,
        num_buffers=0.0,
        buffer_bytes=0.0,
        half_ready=half_ready,
    )
    for backward_s in (1e-4, 0.02, 0.5):
        ended_s = overlapped_end_s(backward_s, ready, took, core_share=0.0, overlapped_s=took)
        found = exposed_buckets_s(tensors, backward_s, group, wires, links)
        assert float(np.squeeze(found)) == pytest.approx(float(ended_s - backward_s))


SECONDS = st.floats(1e-6, 10.0)
SHARES = st.floats(0.0, 0.9)
MESSAGES = st.lists(
    st.tuples(st.floats(0.0, 1.0), SECONDS, SHARES, st.floats(1.0, 20.0)), min_size=1, max_size=6
)


def _ended_s(pass_s, messages, *, faster=1.0):
    ready, alone, share, slower = (np.array(each) for each in zip(*sorted(messages), strict=True))
    alone = alone / faster
    return overlapped_end_s(pass_s, ready, alone, core_share=share, overlapped_s=alone * slower)


@pytest.mark.law
@given(SECONDS, MESSAGES)
def test_no_pass_ends_before_it_is_computed_or_its_messages_are_sent(pass_s, messages):
    ended_s = _ended_s(pass_s, messages)
    assert ended_s >= pass_s * (1 - 1e-9)
    assert ended_s >= sum(alone for _, alone, _, _ in messages) * (1 - 1e-9)


@pytest.mark.law
@given(SECONDS, MESSAGES, st.floats(1.0, 100.0))
def test_faster_messages_never_end_a_pass_later(pass_s, messages, faster):
    # Where overlapping takes more from both than it hides, what starts earlier may end later.
    messages = [
        (at, alone, share, min(slower, 1 / max(share, 0.05))) for at, alone, share, slower in messages
    ]
    slow_s, fast_s = _ended_s(pass_s, messages), _ended_s(pass_s, messages, faster=faster)
    assert fast_s <= slow_s * (1 + 1e-9)


@pytest.mark.law
@given(SECONDS, MESSAGES)
def test_messages_of_no_time_leave_a_pass_as_it_is(pass_s, messages):
    assert _ended_s(pass_s, messages, faster=1e15) == pytest.approx(pass_s, rel=1e-6)


@pytest.mark.law
@given(SECONDS, SECONDS)
def test_one_bucket_is_hidden_by_nothing(pass_s, message_s):
    ended_s = overlapped_end_s(pass_s, [1.0], [message_s], core_share=0.7, overlapped_s=[message_s])
    assert ended_s == pytest.approx(pass_s + message_s)


@pytest.mark.law
@given(SECONDS, st.floats(0.0, 0.5), SECONDS)
def test_work_that_messages_take_from_a_core_is_done_later(pass_s, share, message_s):
    # All of the message during computing: what it takes of the core is added to the pass, no more.
    whole_s = pass_s + message_s
    ended_s = overlapped_end_s(whole_s, [0.0], [message_s], core_share=share, overlapped_s=[message_s])
    assert ended_s == pytest.approx(pass_s + message_s + share * message_s)


def test_two_messages_by_hand():
    # Ready at 5 and 10 of 10; the first takes 4 during computing at half speed, which is done at 12; the
    # second starts then, with nothing else running, and takes 3.
    messages_s = [4.0, 3.0]
    assert overlapped_end_s(10.0, [0.5, 1.0], messages_s, core_share=0.5, overlapped_s=messages_s) == 15.0


def test_cases_broadcast():
    passes_s, messages_s = np.array([1.0, 2.0, 4.0]), np.array([[0.5], [0.5], [1.5]])
    ended_s = overlapped_end_s(passes_s, [1.0], messages_s, core_share=0.0, overlapped_s=messages_s)
    assert ended_s.tolist() == [1.5, 2.5, 5.5]


def test_factors_are_sent_where_they_are_less_than_half():
    # 100 x 50 of rank 2: 300 of 5,000 values. 4 x 4 of rank 2: 16 of 16 values, sent whole. A convolution of
    # 8 filters of 3 x 5 x 5 is a matrix of 8 x 75: 166 of 600.
    assert low_rank_bytes([(100, 50), (4, 4), (10,), (8, 3, 5, 5)], 2) == (
        26 * 4,
        (200 + 16) * 4,
        (100 + 150) * 4,
    )


def test_a_sparse_message_has_a_place_for_each_value():
    assert sparse_bytes(1_000_000, 0.001) == 1000 * 8
    assert sparse_bytes(5, 0.001) == 8


def test_the_slowest_of_two_is_a_higher_quantile_of_one():
    steps = np.linspace(1.0, 2.0, 1001)
    assert slowest_of(steps, 1) == pytest.approx(1.0)
    assert slowest_of(steps, 2) == pytest.approx((1 + 0.5**0.5) / 1.5, rel=1e-3)


def test_batches_between_those_measured_have_a_fixed_part():
    assert at_batch([8, 32, 64], [1.0, 2.0, 4.0], 48) == pytest.approx(3.0)
