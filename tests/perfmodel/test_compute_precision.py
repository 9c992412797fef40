"""Products in few bits, experts, power limits and frozen weights: by hand, and as laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.compute import (
    layer_time,
    loss_is_fused,
    power_rate,
    product_rate_flop_per_s,
)
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import PRECISIONS, Strategy
from equipoise.spec.workload import workload

PLAIN = Parameters()
NODE = machine(cluster("dgx-b200", num_accelerators=8))
DENSE = transformer_load(workload("llama31_8b").transformer, sequence=8192)
MIXTURE = transformer_load(workload("qwen3_30b_a3b").transformer, sequence=4096)
# Nothing takes time but products and attention, and those run at the peak.
FLOP_ONLY = Parameters(
    product_fraction=1.0,
    product_ramp_s=1e-15,
    product_traffic=1e-12,
    attention_fraction=1.0,
    layer_traffic=1e-12,
    quantise_traffic=1e-12,
)
IDEAL_NODE = replace(NODE, achievable_fraction=1.0)


def step_s(one, load=DENSE, rates=NODE, parameters=PLAIN):
    found = estimate(load, rates, grid([one]), parameters).step_s
    return float(np.broadcast_to(found, (1,))[0])


def single(**knobs):
    return Strategy(global_batch_samples=1, **knobs)


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != "fp32"])
def test_no_product_exceeds_the_peak(precision):
    one = grid([single(precision=precision)])
    peak = NODE.peak_flop_per_s[PRECISIONS.index(precision)]
    assert 0 < float(product_rate_flop_per_s(NODE, one, PLAIN)[0]) <= peak


def test_a_layer_forward_is_its_flop_at_the_peak():
    layer = layer_time(DENSE, IDEAL_NODE, grid([single()]), FLOP_ONLY)
    # 218.1 M weights a layer, 2 FLOP each, and 4 x 4096 x 4096.5 of scores a token; 8192 tokens.
    flop = 8192 * (2 * 218_103_808 + 4 * 4096 * 4096.5)
    assert float(layer.forward_s[0]) == pytest.approx(flop / 2.25e15, rel=1e-3)


def test_frozen_weights_take_two_thirds_and_attention_its_own():
    full, frozen = (
        layer_time(DENSE, IDEAL_NODE, grid([single(**knobs)]), FLOP_ONLY)
        for knobs in ({}, {"trained": "lora", "lora_rank": 16})
    )
    saved_s = float(full.backward_s[0] - frozen.backward_s[0])
    assert saved_s == pytest.approx(8192 * 2 * 218_103_808 / 2.25e15, rel=1e-3)


def test_a_power_limit_slows_products_by_its_root():
    capped = machine(cluster("dgx-h100", num_accelerators=8, power_cap_w=350))
    assert capped.power_share == pytest.approx(0.5)
    cubic = replace(PLAIN, power_exponent=1 / 3)
    assert float(power_rate(capped, cubic)) == pytest.approx(0.5 ** (1 / 3))
    assert float(power_rate(NODE, cubic)) == 1


@settings(deadline=None)  # the first call reads the catalogue
@given(st.floats(100.0, 700.0), st.floats(1.0, 2.0))
def test_more_power_never_hurts(power_w, times):
    lower, higher = (
        machine(cluster("dgx-h100", num_accelerators=8, power_cap_w=each))
        for each in (power_w, power_w * times)
    )
    assert step_s(single(), rates=higher) <= step_s(single(), rates=lower)


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "fp4"])
def test_attention_and_logits_stay_wide(precision):
    """However fast few bits were, what stays in 16 takes its time."""
    peaks = list(NODE.peak_flop_per_s)
    peaks[PRECISIONS.index(precision)] = 1e21
    endless = replace(NODE, peak_flop_per_s=tuple(peaks))
    least_s = 3 * 8192 * 32 * 4 * 4096 * 4096 / 2.25e15
    assert step_s(single(precision=precision), rates=endless) > least_s


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from(["none", "selective", "full"]), st.sampled_from(["bf16", "fp8"]))
def test_recomputing_takes_time(recompute, precision):
    kept = single(precision=precision)
    assert step_s(replace(kept, recompute=recompute)) >= step_s(kept)
    assert step_s(replace(kept, recompute="full")) >= step_s(replace(kept, recompute=recompute))


@settings(deadline=None)  # the first call reads the catalogue
@given(st.integers(0, 3), st.integers(0, 3))
def test_experts_elsewhere_never_add_work_of_their_own(first, second):
    few, many = sorted((2**first, 2**second))
    times = [
        layer_time(MIXTURE, NODE, grid([Strategy(dp=8, ep=each, global_batch_samples=8)]), PLAIN)
        for each in (few, many)
    ]
    assert float(times[1].forward_s[0]) <= float(times[0].forward_s[0])
    assert float(times[1].host_s[0]) <= float(times[0].host_s[0])


def test_only_a_compiler_or_kernel_fuses_the_loss():
    told = [single(), single(fused_loss=False), single(implementation="eager")]
    assert loss_is_fused(grid(told)).tolist() == [True, False, False]
