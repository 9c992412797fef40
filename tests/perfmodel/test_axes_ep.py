"""The expert axis against counts by hand, and laws that hold for any mixture."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.axes import ep
from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.compute import layer_time
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

MODEL = workload("qwen3_30b_a3b").transformer
LOAD = transformer_load(MODEL, sequence=4096)
NODE = machine(cluster("dgx-h100", num_accelerators=64))
# Nothing hides, nothing is lost, nothing takes time but bytes.
IDEAL = Parameters(
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


def bare_s(size, load=LOAD, rates=NODE, parameters=IDEAL, **knobs):
    one = grid([Strategy(dp=64, ep=size, global_batch_samples=64, **knobs)])
    layer = layer_time(load, rates, one, parameters)
    return float(np.broadcast_to(ep.layer_traffic_s(load, rates, one, layer, parameters), (1,))[0])


def test_one_rank_sends_nothing():
    assert bare_s(1) == 0


def test_tokens_travel_there_and_back_on_both_passes():
    # 4096 tokens of 2048 values of 2 bytes, 8 copies, 7/8 of them to other ranks, 4 trips at 450 GB/s.
    expected_s = 4 * 4096 * 2048 * 2 * 8 * 7 / 8 / 450e9
    assert bare_s(8) == pytest.approx(expected_s, rel=1e-6)


def test_recomputing_a_layer_sends_its_tokens_again():
    assert bare_s(8, recompute="full") == pytest.approx(1.5 * bare_s(8), rel=1e-6)


def test_a_token_travels_once_to_a_rank_with_several_of_its_experts():
    more = replace(LOAD, top_k=LOAD.top_k * 3)
    assert bare_s(8, load=more) == pytest.approx(bare_s(8))


def test_a_token_crosses_once_to_a_node_where_it_meets_several_experts():
    # 8 copies over 8 nodes, 7/8 of them to others, 4 trips at 50 GB/s: more experts add nothing between nodes.
    expected_s = 4 * 4096 * 2048 * 2 * 8 * 7 / 8 / 50e9
    assert bare_s(64) == pytest.approx(expected_s, rel=1e-6)
    assert bare_s(64, load=replace(LOAD, top_k=LOAD.top_k * 3)) == pytest.approx(expected_s, rel=1e-6)


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8, 16, 32, 64]), st.floats(1.0, 100.0))
def test_faster_links_never_hurt(size, times):
    faster = replace(
        NODE,
        intra_byte_per_s=times * NODE.intra_byte_per_s,
        inter_byte_per_s=times * NODE.inter_byte_per_s,
    )
    plain = Parameters()
    assert bare_s(size, rates=faster, parameters=plain) <= bare_s(size, parameters=plain) * (1 + 1e-12)


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8, 16, 32, 64]), st.floats(0.01, 1.0))
def test_overlap_hides_at_most_what_there_is(size, share):
    hidden = replace(IDEAL, ep_overlap=share)
    assert 0 <= bare_s(size, parameters=hidden) <= bare_s(size) * (1 + 1e-12)
