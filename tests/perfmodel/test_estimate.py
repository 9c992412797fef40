"""A step: its causes sum to it, published steps are predicted from priors alone, and plain formulas give the same."""

from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import scalar
from exhaustive import legal_strategies, strategy_at
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from legal import fault

from equipoise.perfmodel.estimate import Seconds, estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import transformer_load, workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import RankMemory
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.perfmodel.space import Space, limits
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import COMPRESSIONS, IMPLEMENTATIONS, OFFLOADS, OPTIMIZERS, Strategy
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import workload

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
def test_priors_predict_published_steps_of_175_billion_parameters(dp, tflop_per_s):
    size = 96 * dp
    strategy = Strategy(
        global_batch_samples=1536, microbatch_samples=1, dp=dp, tp=8, pp=12, recompute="full", **OLD
    )
    load = transformer_load(gpt(96, 12288, 96), sequence=2048)
    rates = machine(cluster("selene", num_accelerators=size))
    flop = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    measured_s = flop / (tflop_per_s * 1e12 * size)
    predicted_s = float(estimate(load, rates, grid([strategy]), Parameters()).step_s[0])
    assert predicted_s == pytest.approx(measured_s, rel=0.15)


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
    exposed = []
    for dp in (384, 768, 1536):
        strategy = Strategy(
            global_batch_samples=1536, microbatch_samples=1, dp=dp, zero_stage=3, recompute="full", **OLD
        )
        rates = machine(cluster("selene", num_accelerators=dp))
        found = estimate(load, rates, grid([strategy]), Parameters())
        exposed.append(float(found.seconds.dp[0]) / (1536 / dp))
    assert exposed[0] < exposed[1] < exposed[2]


CLOSE = 1e-9
SETTINGS = (
    ("gpt3", "a100-sxm4-80gb", 64, 1536),
    ("llama31_8b", "dgx-h100", 24, 96),
    ("mixtral_8x7b", "gb200-nvl72", 32, 64),
    ("qwen3_30b_a3b", "aws-p5", 16, 64),
    ("resnet50", "pair-rtx-4090", 6, 96),
    ("bert", "v100-sxm2-16gb", 12, 48),
)
WIDE = {
    "recompute": ("none", "selective", "full"),
    "fused_attention": (True, False),
    "fused_loss": (True, False),
    "implementation": IMPLEMENTATIONS,
    "optimizer": OPTIMIZERS,
    "offload": OFFLOADS,
    "compression": COMPRESSIONS,
    "compression_rank": (0, 4, 100),
    "sync_period": (1, 16),
    "trained": ("full", "lora", "qlora"),
    "lora_rank": (0, 8),
}


@cache
def subject(name, nodes, size):
    return workload_load(workload(name)), machine(cluster(nodes, num_accelerators=size))


def drawn_space(data, chosen, limit):
    """A space that holds a few strategies of any kind: single values of most options, free sizes."""
    _, _, size, batch = chosen
    choices = {name: (data.draw(st.sampled_from(values)),) for name, values in WIDE.items()}
    choices["precision"] = (data.draw(st.sampled_from(limit.precisions)),)
    plain = {"compression": ("none",), "compression_rank": (0,), "sync_period": (1,)}
    if data.draw(st.booleans()):
        choices |= plain
    elif choices["compression"] == ("none",):
        choices["compression_rank"] = (0,)
    if data.draw(st.booleans()) or choices["trained"] == ("full",):
        choices |= {"trained": ("full",), "lora_rank": (0,)}
    else:
        choices["lora_rank"] = (8,)
    return Space(num_accelerators=size, global_batches=(batch,), choices=choices)


@pytest.mark.law
# Shrinking takes minutes here, and a drawn strategy is enough.
@settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_arrays_give_what_plain_formulas_give(data):
    chosen = data.draw(st.sampled_from(SETTINGS))
    load, nodes = subject(*chosen[:3])
    limit = limits(load, nodes)
    moved = {
        each.name: min(each.largest, each.median * np.exp(each.log_sd * data.draw(st.floats(-2, 2))))
        for each in data.draw(
            st.lists(st.sampled_from(PRIORS), max_size=4, unique_by=lambda prior: prior.name)
        )
    }
    parameters = Parameters().changed(moved)
    meshes = legal_strategies(drawn_space(data, chosen, limit), limit, most_elements=2000).meshes
    if not meshes:
        return
    mesh = data.draw(st.sampled_from(meshes))
    found = estimate(load, nodes, mesh, parameters)
    for _ in range(5):
        index = data.draw(st.integers(0, int(np.prod(mesh.shape)) - 1))
        one = strategy_at(mesh, index)
        assert fault(one, limit) is None
        step = scalar.Step(load, nodes, one, parameters)
        seconds, memory = step.seconds(), step.memory()
        scale = sum(seconds.values())

        def at(values, index=index):
            return float(np.broadcast_to(values, mesh.shape).flat[index])

        assert {each.name for each in fields(Seconds)} == seconds.keys()
        assert {each.name for each in fields(RankMemory)} == memory.keys()
        assert at(found.step_s) == pytest.approx(scale, rel=CLOSE)
        for name, value in seconds.items():
            assert at(getattr(found.seconds, name)) == pytest.approx(value, rel=CLOSE, abs=CLOSE * scale), (
                name,
                one,
            )
        for name, value in memory.items():
            assert at(getattr(found.memory, name)) == pytest.approx(value, rel=CLOSE), (name, one)
