"""The context and the expert axis against counts by hand, and laws that hold for any model."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.perfmodel.collectives import all_reduce_s
from equipoise.perfmodel.compute import layer_time
from equipoise.perfmodel.estimate import (
    axis_group,
    cp_layer_s,
    dp_gradient_s,
    dp_shard_s,
    ep_layer_s,
    estimate,
    token_destinations,
    ulysses_bytes,
)
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import stacked, transformer_load, workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import shards
from equipoise.perfmodel.parameters import CollectiveParameters, Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

LLAMA = workload("llama31_8b").transformer
NODE = machine(cluster("dgx-h100", num_accelerators=8))
# Nothing hides, nothing is lost, nothing takes time but bytes.
CP_IDEAL = Parameters(
    cp_overlap=1.0,
    collective=CollectiveParameters(
        launch_s=0.0,
        intra_fraction=1.0,
        intra_latency_scale=1e-12,
        quick_rate=1e-12,
        local_share=0.0,
        fill_s=1e-30,
    ),
)


def cp_exposed_s(size, *, sequence=65536, rates=NODE, parameters=CP_IDEAL, **options):
    load = transformer_load(LLAMA, sequence=sequence)
    one = grid([Strategy(dp=8 // size, cp=size, global_batch_samples=8 // size, **options)])
    layer = layer_time(load, rates, one, parameters)
    return float(
        np.broadcast_to(cp_layer_s(load, rates, one, layer.forward_s + layer.backward_s, parameters), (1,))[0]
    )


def test_one_context_rank_sends_nothing():
    assert cp_exposed_s(1) == 0


def test_what_has_no_sequences_sends_nothing_beside_what_has():
    loads = [workload_load(workload("resnet")), transformer_load(LLAMA, sequence=65536)]
    both = stacked(loads)
    one = grid([Strategy(dp=8, global_batch_samples=8), Strategy(cp=8, global_batch_samples=1)])
    layer = layer_time(both, NODE, one, CP_IDEAL)
    traffic_s = cp_layer_s(both, NODE, one, layer.forward_s + layer.backward_s, CP_IDEAL)
    assert traffic_s.tolist() == [0.0, pytest.approx(cp_exposed_s(8))]


def test_keys_and_values_reach_every_rank_on_each_pass():
    # 65536 tokens, 8 keys and 8 values of 128, 2 bytes; 7/8 of them come from elsewhere; there, again, and back.
    expected_s = 3 * 65536 * 16 * 128 * 2 * 7 / 8 / 450e9
    assert cp_exposed_s(8) == pytest.approx(expected_s, rel=1e-6)


def test_heads_are_exchanged_for_tokens_before_attention_and_after():
    # 8192 tokens a rank; 32 queries, 8 keys, 8 values and 32 results of 128, 2 bytes; 7/8 of them leave; there
    # and back. Of 16 ranks each of the 8 keys and values has two copies.
    token_bytes = (32 + 8 + 8 + 32) * 128 * 2
    expected_s = 2 * 8192 * token_bytes * 7 / 8 / 450e9
    assert cp_exposed_s(8, ulysses=True) == pytest.approx(expected_s, rel=1e-6)
    assert cp_exposed_s(8, ulysses=True, recompute="full") == pytest.approx(1.5 * expected_s, rel=1e-6)
    sixteen = grid([Strategy(cp=16, ulysses=True, global_batch_samples=1)])
    copied = ulysses_bytes(transformer_load(LLAMA, sequence=65536), sixteen)
    assert copied == pytest.approx((32 + 2 * 8 + 2 * 8 + 32) * 128 * 2)


def test_attention_over_whole_sequences_is_not_split():
    """A rank attends to all of a sequence with some of the heads: nothing is merged piece by piece."""
    load = transformer_load(LLAMA, sequence=65536)
    forward_s = {
        (ulysses, share): float(
            layer_time(
                load,
                NODE,
                grid([Strategy(cp=8, ulysses=ulysses, global_batch_samples=1)]),
                Parameters(split_attention=share),
            ).forward_s[0]
        )
        for ulysses in (False, True)
        for share in (0.5, 1.0)
    }
    assert forward_s[True, 0.5] == forward_s[True, 1.0] < forward_s[False, 0.5]


def test_recomputing_a_layer_gathers_its_keys_again():
    assert cp_exposed_s(8, recompute="full") == pytest.approx(4 / 3 * cp_exposed_s(8), rel=1e-6)


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8]), st.floats(1.0, 100.0))
def test_faster_links_never_hurt_a_context_axis(size, times):
    faster = replace(NODE, intra_byte_per_s=times * NODE.intra_byte_per_s)
    plain = Parameters()
    assert cp_exposed_s(size, rates=faster, parameters=plain) <= cp_exposed_s(size, parameters=plain) * (
        1 + 1e-12
    )


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8]), st.sampled_from([8192, 32768, 131072]))
def test_a_split_sequence_is_never_faster_than_its_share(size, sequence):
    load = transformer_load(LLAMA, sequence=sequence)
    alone = Strategy(global_batch_samples=1, zero_stage=0)
    split = replace(alone, cp=size)
    times = [
        float(np.broadcast_to(estimate(load, NODE, grid([each]), Parameters()).step_s, (1,))[0])
        for each in (alone, split)
    ]
    assert times[1] >= times[0] / size


MIXTURE = workload("qwen3_30b_a3b").transformer
MIXTURE_LOAD = transformer_load(MIXTURE, sequence=4096)
NODES = machine(cluster("dgx-h100", num_accelerators=64))
# Nothing hides, nothing is lost, nothing takes time but bytes.
EP_IDEAL = Parameters(
    ep_overlap=1.0,
    collective=CollectiveParameters(
        launch_s=0.0,
        intra_fraction=1.0,
        inter_fraction=1.0,
        intra_latency_scale=1e-12,
        inter_latency_scale=1e-12,
        quick_rate=1e-12,
        fill_s=1e-30,
        serial_share=0.0,
    ),
)


def ep_exposed_s(size, load=MIXTURE_LOAD, rates=NODES, parameters=EP_IDEAL, **options):
    one = grid([Strategy(dp=64, ep=size, global_batch_samples=64, **options)])
    layer = layer_time(load, rates, one, parameters)
    return float(
        np.broadcast_to(ep_layer_s(load, rates, one, layer.forward_s + layer.backward_s, parameters), (1,))[0]
    )


def test_one_expert_rank_sends_nothing():
    assert ep_exposed_s(1) == 0


# Ways of choosing 8 of 128 experts that leave out one of eight ranks, or nodes, with 16 of them.
REACHED = 8 * (1 - math.comb(112, 8) / math.comb(128, 8))


def test_tokens_travel_there_and_back_on_both_passes():
    # 4096 tokens of 2048 values of 2 bytes, to the ranks reached, 7/8 of them others, 4 trips at 450 GB/s.
    expected_s = 4 * 4096 * 2048 * 2 * REACHED * 7 / 8 / 450e9
    assert ep_exposed_s(8) == pytest.approx(expected_s, rel=1e-6)


def test_recomputing_a_layer_sends_its_tokens_again():
    assert ep_exposed_s(8, recompute="full") == pytest.approx(1.5 * ep_exposed_s(8), rel=1e-6)


def test_a_token_travels_once_to_a_rank_or_node_where_it_meets_several_experts():
    # Between nodes: to the nodes reached, 7/8 of them others, 4 trips at 50 GB/s.
    expected_s = 4 * 4096 * 2048 * 2 * REACHED * 7 / 8 / 50e9
    assert ep_exposed_s(64) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize(("size", "byte_per_s"), [(8, 450e9), (64, 50e9)])
def test_an_all_to_all_sends_a_token_once_for_each_of_its_experts(size, byte_per_s):
    # 8 experts a token, 7/8 of them on other ranks of a node, or on other nodes; 4 trips.
    expected_s = 4 * 4096 * 2048 * 2 * 8 * 7 / 8 / byte_per_s
    assert ep_exposed_s(size, dispatch_copies=True) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize(
    ("experts", "top_k", "groups", "places", "expected"),
    [
        (256, 8, (0, 0), 8, 8 * (1 - math.comb(224, 8) / math.comb(256, 8))),  # 5.29
        # DeepSeek-V3: four of eight nodes, 32 experts each; the choice is among 128.
        (256, 8, (8, 4), 8, 4 * (1 - math.comb(96, 8) / math.comb(128, 8))),
        (256, 8, (8, 4), 2, 2 * (1 - math.comb(128, 8) / math.comb(256, 8))),
        (8, 2, (0, 0), 8, 2.0),
        (8, 2, (0, 0), 1, 1.0),
        (4, 4, (0, 0), 2, 2.0),
    ],
)
def test_destinations_of_a_token_are_counted_once(experts, top_k, groups, places, expected):
    load = replace(
        MIXTURE_LOAD,
        experts=float(experts),
        top_k=float(top_k),
        expert_groups=float(groups[0]),
        top_groups=float(groups[1]),
    )
    assert float(token_destinations(load, np.array(float(places)))) == pytest.approx(expected)


@given(st.integers(1, 8), st.integers(0, 6))
def test_more_experts_a_token_never_reach_fewer_ranks(top_k, power):
    counts = [
        float(token_destinations(replace(MIXTURE_LOAD, top_k=float(k)), np.array(2.0**power)))
        for k in (top_k, top_k + 1)
    ]
    assert 1 <= counts[0] <= counts[1] <= min(top_k + 1, 2**power)


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8, 16, 32, 64]), st.floats(1.0, 100.0))
def test_faster_links_never_hurt_an_expert_axis(size, times):
    faster = replace(
        NODES,
        intra_byte_per_s=times * NODES.intra_byte_per_s,
        inter_byte_per_s=times * NODES.inter_byte_per_s,
    )
    plain = Parameters()
    assert ep_exposed_s(size, rates=faster, parameters=plain) <= ep_exposed_s(size, parameters=plain) * (
        1 + 1e-12
    )


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8, 16, 32, 64]), st.floats(0.01, 1.0))
def test_overlap_hides_at_most_what_there_is(size, share):
    hidden = replace(EP_IDEAL, ep_overlap=share)
    assert 0 <= ep_exposed_s(size, parameters=hidden) <= ep_exposed_s(size) * (1 + 1e-12)


TWO_NODES = machine(cluster("dgx-h100", num_accelerators=16))
DP_IDEAL = replace(
    CP_IDEAL, shard_overlap=1.0, collective=replace(CP_IDEAL.collective, inter_fraction=1.0, serial_share=0.0)
)


def gradient_and_shard_s(groups, stage, rates):
    load = transformer_load(LLAMA, sequence=8192)
    one = grid([Strategy(dp=16, global_batch_samples=16, zero_stage=stage, dp_replicate=groups)])
    found = (
        dp_gradient_s(load, rates, one, shards(load, one), DP_IDEAL),
        dp_shard_s(load, rates, one, np.zeros(()), DP_IDEAL),
    )
    return [float(np.ravel(each)[0]) for each in found]


def test_a_node_sums_its_part_of_the_gradients_with_the_other_s():
    """8.03 billion gradients of 2 bytes, an eighth a rank; of two ranks each sends half of it twice."""
    gradient_s, _ = gradient_and_shard_s(2, 3, TWO_NODES)
    assert gradient_s == pytest.approx(8.03e9 * 2 / 8 / TWO_NODES.inter_byte_per_s, rel=1e-3)


def test_compiled_code_gathers_ahead_whatever_its_attention():
    """All is hidden behind a second of work; code that runs as written, before fused attention, hides nothing."""
    load = transformer_load(LLAMA, sequence=8192)
    shown_s = [
        float(
            np.ravel(
                dp_shard_s(
                    load,
                    TWO_NODES,
                    grid(
                        [
                            Strategy(
                                dp=16,
                                global_batch_samples=16,
                                zero_stage=3,
                                fused_attention=False,
                                implementation=each,
                            )
                        ]
                    ),
                    np.ones(()),
                    replace(DP_IDEAL, shard_overlap=1e-12),
                )
            )[0]
        )
        for each in ("compiled", "eager")
    ]
    # Of 218 million weights of 2 bytes a layer 15/16 come from elsewhere, half of them from the other node.
    assert shown_s[0] == pytest.approx(0.0, abs=1e-9)
    assert shown_s[1] > 3 * 218e6 * 2 * 15 / 16 / 450e9


def test_gathers_of_a_group_in_a_node_send_nothing_between_nodes():
    slow = replace(TWO_NODES, inter_byte_per_s=TWO_NODES.inter_byte_per_s / 100)
    assert gradient_and_shard_s(2, 3, slow)[1] == gradient_and_shard_s(2, 3, TWO_NODES)[1] > 0
    assert gradient_and_shard_s(1, 3, slow)[1] > 10 * gradient_and_shard_s(1, 3, TWO_NODES)[1]


def test_gradients_that_lie_whole_are_scattered_once_a_step():
    """Of four micro-batches each gathers twice; all scatter once, or once each: 9 of 12 trips."""
    load = transformer_load(LLAMA, sequence=8192)
    one = Strategy(dp=16, global_batch_samples=64, zero_stage=3)
    found = [
        float(np.ravel(dp_shard_s(load, TWO_NODES, grid([each]), np.zeros(()), DP_IDEAL))[0])
        for each in (one, replace(one, whole_gradients=True))
    ]
    assert found[1] / found[0] == pytest.approx(9 / 12, rel=1e-3)


def test_states_in_groups_are_summed_between_them_and_gathered_within():
    """Of ZeRO stage 1 also 7/8 of gradients are scattered and of weights gathered inside a node."""
    load = transformer_load(LLAMA, sequence=8192)
    between_s, _ = gradient_and_shard_s(2, 3, TWO_NODES)
    whole_s, shard_s = gradient_and_shard_s(2, 1, TWO_NODES)
    inside_s = 2 * 7 / 8 * float(load.params) * 2 / TWO_NODES.intra_byte_per_s
    assert whole_s == pytest.approx(between_s + inside_s, rel=1e-3)
    assert shard_s == 0


# collectives.toml, a100-pair and a100-across-sockets: github.com/NVIDIA/nccl-tests/issues/178, cards on bridges by
# twos, busbw of 2 and of 3 ranks. Two ranks that are not neighbours have no bridge either.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("ranks", "stride", "published_byte_per_s"), [(2, 1, 208e9), (3, 1, 20e9), (2, 2, 20e9)]
)
def test_a_ring_of_more_cards_than_a_bridge_joins_goes_through_the_host(ranks, stride, published_byte_per_s):
    nodes = machine(cluster("a100-pcie-80gb", node_size=4, num_accelerators=4, topology="bridge"))
    payload_bytes = 2**32
    group = axis_group(np.array(float(ranks)), float(stride), nodes)
    seconds = all_reduce_s(payload_bytes, group, nodes.wires, CollectiveParameters())
    bus_byte_per_s = 2 * (ranks - 1) / ranks * payload_bytes / float(seconds)
    assert bus_byte_per_s == pytest.approx(published_byte_per_s, rel=0.35)


def test_a_bridge_of_four_joins_four():
    nodes = machine(cluster("h200-nvl-141gb", num_accelerators=8, bridged=4))
    fast, slow = (axis_group(np.array(ranks), 1.0, nodes).intra_slowdown for ranks in (4.0, 8.0))
    assert (fast, slow) == (1.0, pytest.approx(450 / 63))


@pytest.mark.parametrize("ranks", [9, 12, 15, 16])
def test_what_crosses_to_a_host_of_which_a_part_is_used_is_no_less(ranks):
    """A sum of 1.73 GB over hosts of eight cards that share 10 Gbit/s: all of it crosses in either direction."""
    nodes = machine(cluster("rtx-4090-pcie-24gb", num_accelerators=16))
    group = axis_group(np.array(float(ranks)), 1.0, nodes)
    seconds = all_reduce_s(1.73e9, group, nodes.wires, CollectiveParameters())
    assert float(seconds) > 1.73e9 / (10e9 / 8)
