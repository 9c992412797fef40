"""A whole step: its causes sum to it, and the published steps of large models come out of the priors alone."""

from dataclasses import fields

import numpy as np
import pytest

from equipoise.perfmodel.estimate import Seconds, estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.transformer import Transformer

OLD = {"precision": "fp16", "implementation": "eager", "fused_attention": False}


def gpt(layers, hidden, heads):
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn_hidden=4 * hidden,
        vocabulary=51200,
        tied_embeddings=True,
        position_embeddings=2048,
    )


# Narayanan et al. 2021 (arXiv 2104.04473), table 2: 174.6 billion parameters, 1536 samples of 2048 tokens, 8 x 12 x dp
# A100; TFLOP/s an accelerator with recomputation counted, F = 96 B s l h^2 (1 + s / 6h + V / 16lh).
TABLE_2 = ((4, 153.0), (8, 149.0), (16, 141.0))


@pytest.mark.parametrize(("dp", "tflop_per_s"), TABLE_2)
def test_priors_foretell_published_steps_of_175_billion_parameters(dp, tflop_per_s):
    size = 96 * dp
    strategy = Strategy(
        global_batch_samples=1536, microbatch_samples=1, dp=dp, tp=8, pp=12, recompute="full", **OLD
    )
    load = transformer_load(gpt(96, 12288, 96), sequence=2048)
    rates = machine(cluster("selene", num_accelerators=size))
    flop = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    measured_s = flop / (tflop_per_s * 1e12 * size)
    foretold_s = float(estimate(load, rates, grid([strategy]), Parameters()).step_s[0])
    assert foretold_s == pytest.approx(measured_s, rel=0.15)


def test_causes_sum_to_the_step():
    strategies = [
        Strategy(global_batch_samples=64, microbatch_samples=1, dp=dp, tp=tp, pp=pp, **OLD)
        for dp, tp, pp in ((8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2))
    ]
    found = estimate(
        transformer_load(gpt(24, 2048, 16), sequence=1024),
        machine(cluster("dgx-a100", num_accelerators=8)),
        grid(strategies),
        Parameters(),
    )
    total = sum(np.broadcast_to(getattr(found.seconds, each.name), (4,)) for each in fields(Seconds))
    assert found.step_s == pytest.approx(total)


def test_one_accelerator_has_no_traffic():
    alone = grid([Strategy(global_batch_samples=8, microbatch_samples=2, **OLD)])
    load = transformer_load(gpt(24, 1024, 16), sequence=1024)
    seconds = estimate(load, machine(cluster("dgx-a100", num_accelerators=1)), alone, Parameters()).seconds
    for cause in ("tp", "cp", "ep", "pp", "dp", "idle", "waiting"):
        assert not np.any(getattr(seconds, cause)), cause


def test_weights_gathered_one_by_one_cost_more_the_more_ranks_there_are():
    load = transformer_load(gpt(96, 12288, 96), sequence=2048)
    bare = []
    for dp in (384, 768, 1536):
        strategy = Strategy(
            global_batch_samples=1536, microbatch_samples=1, dp=dp, shard_state=3, recompute="full", **OLD
        )
        rates = machine(cluster("selene", num_accelerators=dp))
        found = estimate(load, rates, grid([strategy]), Parameters())
        bare.append(float(found.seconds.dp[0]) / (1536 / dp))
    assert bare[0] < bare[1] < bare[2]
