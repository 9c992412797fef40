"""The context axis against counts by hand, and laws that hold for any sequence."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.axes import cp
from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.compute import layer_time
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import stacked, transformer_load, workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

MODEL = workload("llama31_8b").transformer
NODE = machine(cluster("dgx-h100", num_accelerators=8))
# Nothing hides, nothing is lost, nothing takes time but bytes.
IDEAL = Parameters(
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


def bare_s(size, *, sequence=65536, rates=NODE, parameters=IDEAL, **knobs):
    load = transformer_load(MODEL, sequence=sequence)
    one = grid([Strategy(dp=8 // size, cp=size, global_batch_samples=8 // size, **knobs)])
    layer = layer_time(load, rates, one, parameters)
    return float(np.broadcast_to(cp.layer_traffic_s(load, rates, one, layer, parameters), (1,))[0])


def test_one_rank_sends_nothing():
    assert bare_s(1) == 0


def test_what_has_no_sequences_sends_nothing_beside_what_has():
    loads = [workload_load(workload("resnet")), transformer_load(MODEL, sequence=65536)]
    both = stacked(loads)
    one = grid([Strategy(dp=8, global_batch_samples=8), Strategy(cp=8, global_batch_samples=1)])
    layer = layer_time(both, NODE, one, IDEAL)
    traffic_s = cp.layer_traffic_s(both, NODE, one, layer, IDEAL)
    assert traffic_s.tolist() == [0.0, pytest.approx(bare_s(8))]


def test_keys_and_values_reach_every_rank_on_each_pass():
    # 65536 tokens, 8 keys and 8 values of 128, 2 bytes; 7/8 of them come from elsewhere; there, again, and back.
    expected_s = 3 * 65536 * 16 * 128 * 2 * 7 / 8 / 450e9
    assert bare_s(8) == pytest.approx(expected_s, rel=1e-6)


def test_recomputing_a_layer_gathers_its_keys_again():
    assert bare_s(8, recompute="full") == pytest.approx(4 / 3 * bare_s(8), rel=1e-6)


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8]), st.floats(1.0, 100.0))
def test_faster_links_never_hurt(size, times):
    faster = replace(NODE, intra_byte_per_s=times * NODE.intra_byte_per_s)
    plain = Parameters()
    assert bare_s(size, rates=faster, parameters=plain) <= bare_s(size, parameters=plain) * (1 + 1e-12)


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from([2, 4, 8]), st.sampled_from([8192, 32768, 131072]))
def test_a_split_sequence_is_never_faster_than_its_share(size, sequence):
    load = transformer_load(MODEL, sequence=sequence)
    alone = Strategy(global_batch_samples=1, shard_state=0)
    split = replace(alone, cp=size)
    times = [
        float(np.broadcast_to(estimate(load, NODE, grid([each]), Parameters()).step_s, (1,))[0])
        for each in (alone, split)
    ]
    assert times[1] >= times[0] / size
