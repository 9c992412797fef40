"""Laws of the model, for any legal strategy: what no machine can do, and what never slows a step."""

import math
from functools import cache

import numpy as np
import pytest
from exhaustive import legal_strategies, search, strategy_at
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import CODES, grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import shards
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.perfmodel.search import SearchJob, fastest
from equipoise.perfmodel.space import Space, limits
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import PRECISIONS, Strategy
from equipoise.spec.workload import workload

pytestmark = pytest.mark.law
PARAMETERS = Parameters()
MODELS = ("gpt3", "llama31_8b", "mixtral_8x7b", "bert", "resnet50")
CLUSTERS = ("a100-sxm4-80gb", "dgx-h100", "pair-rtx-4090", "gb200-nvl72", "aws-p5")
BANDWIDTHS = ("intra_byte_per_s", "inter_byte_per_s", "memory_byte_per_s", "host_byte_per_s")


@cache
def subject(model, nodes, size):
    return workload_load(workload(model)), machine(cluster(nodes, num_accelerators=size))


@st.composite
def cases(draw, sizes=(1, 2, 8, 12, 64)):
    """A load, a machine, and a few legal strategies as flat rows."""
    model, nodes, size = (
        draw(st.sampled_from(MODELS)),
        draw(st.sampled_from(CLUSTERS)),
        draw(st.sampled_from(sizes)),
    )
    load, rates = subject(model, nodes, size)
    bounds = limits(load, rates)
    choices = {
        "precision": (draw(st.sampled_from(bounds.precisions)),),
        "offload": (draw(st.sampled_from(("none", "optimizer"))),),
        "fused_attention": (draw(st.booleans()),),
        "implementation": (draw(st.sampled_from(("eager", "compiled"))),),
    }
    meshes = legal_strategies(
        Space(num_accelerators=size, global_batches=(96,), choices=choices), bounds, most_elements=3000
    ).meshes
    assume(meshes)
    mesh = draw(st.sampled_from(meshes))
    last = int(np.prod(mesh.shape)) - 1
    picked = [strategy_at(mesh, draw(st.integers(0, last))) for _ in range(4)]
    return load, rates, picked


def step_s(load, rates, picked):
    return np.broadcast_to(estimate(load, rates, grid(picked), PARAMETERS).step_s, (len(picked),))


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(BANDWIDTHS), st.floats(1.0, 10.0))
def test_more_bandwidth_never_hurts(case, rate, factor):
    load, rates, picked = case
    faster = replace(rates, **{rate: getattr(rates, rate) * factor})
    assert np.all(step_s(load, faster, picked) <= step_s(load, rates, picked) * (1 + 1e-12))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_strategy_beats_perfect_scaling_of_its_compute(case):
    """All FLOP of the model, nothing twice, at the full peak of every accelerator at once."""
    load, rates, picked = case
    assert picked
    for each, seconds in zip(picked, step_s(load, rates, picked), strict=True):
        peak = rates.peak_flop_per_s[PRECISIONS.index(each.precision)]
        flop = float(load.train_flop_per_sample) * each.global_batch_samples
        assert seconds >= flop / (peak * each.num_accelerators)


@settings(max_examples=40, deadline=None)
@given(cases(sizes=(1,)))
def test_one_accelerator_has_no_communication(case):
    load, rates, picked = case
    found = estimate(load, rates, grid(picked), PARAMETERS).seconds
    for name in ("tp", "cp", "ep", "pp", "dp", "waiting"):
        assert np.all(getattr(found, name) == 0.0), name
    silent = replace(rates, intra_byte_per_s=1.0, inter_byte_per_s=1.0)
    assert step_s(load, silent, picked) == pytest.approx(step_s(load, rates, picked))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_shards_sum_to_the_whole(case):
    """Weights of all ranks, each counted once, are those of the model; tables may lie on two stages.

    Every group of ranks that shares states has all of them.
    """
    load, _, picked = case
    assert picked
    for each in picked:
        held = shards(load, grid([each]))
        dense = float(held.dense[0]) * each.tp * each.pp
        experts = float(np.ravel(held.experts)[0]) * each.ep * each.pp
        tables, layer = float(load.embedding_params), float(load.dense_params)
        whole = float(load.layers) * layer + tables
        of_experts = float(load.layers) * float(load.expert_params)
        if each.pp == 1:
            assert dense == pytest.approx(whole)
            assert experts == pytest.approx(of_experts)
        else:
            # The fullest stage stands for all: it may hold tables that others do not, or a layer more than ends.
            more = (each.pp - 1) * max(tables, layer)
            assert whole * (1 - 1e-9) - tables <= dense <= whole + more + 1e-3
            assert abs(experts - of_experts) <= each.pp * float(load.expert_params) * (1 + 1e-9)
        ranks = float(np.ravel(held.dense_ranks)[0])
        assert ranks * each.dp_replicate * each.tp * each.pp == each.num_accelerators


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from(CLUSTERS), st.sampled_from([2, 8]))
def test_more_memory_never_makes_the_best_worse(model, nodes, size):
    load, rates = subject(model, nodes, size)
    space = Space(
        num_accelerators=size,
        global_batches=(64,),
        choices={"precision": (limits(load, rates).precisions[0],)},
    )
    best = [
        search(
            load,
            replace(rates, memory_bytes=rates.memory_bytes * factor),
            space,
            PARAMETERS,
            objective=lambda _, estimates: estimates.step_s,
            num_best=1,
        ).best
        for factor in (0.25, 1.0, 4.0, 1e6)
    ]
    times = [each[0].training_s if each else math.inf for each in best]
    assert times == sorted(times, reverse=True)


RATES = (
    "memory_byte_per_s",
    "memory_bytes",
    "intra_byte_per_s",
    "inter_byte_per_s",
    "host_byte_per_s",
    "achievable_fraction",
    "achievable_fp32_fraction",
)
LATENCIES = ("intra_latency_s", "inter_latency_s")
PEAKS = tuple(f"peak {name}" for name in PRECISIONS)


@cache
def meshes(model, nodes, size, choices):
    load, rates = subject(model, nodes, size)
    space = Space(num_accelerators=size, global_batches=(96,), choices=dict(choices))
    return legal_strategies(space, limits(load, rates), most_elements=3000).meshes


@st.composite
def calibrations(draw):
    """Parameters within two standard deviations of their priors."""
    deviates = draw(st.lists(st.floats(-2, 2), min_size=len(PRIORS), max_size=len(PRIORS)))
    return Parameters().changed(
        {
            each.name: min(each.largest, each.median * float(np.exp(deviate * each.log_sd)))
            for each, deviate in zip(PRIORS, deviates, strict=True)
        }
    )


@st.composite
def rated_cases(draw):
    """A load, a machine with usual or slow links, and a few legal strategies as flat rows."""
    model, nodes = draw(st.sampled_from(MODELS)), draw(st.sampled_from(CLUSTERS))
    size = draw(st.sampled_from((1, 2, 8, 12, 64)))
    load, rates = subject(model, nodes, size)
    choices = (
        ("precision", (draw(st.sampled_from(limits(load, rates).precisions)),)),
        ("offload", (draw(st.sampled_from(("none", "optimizer"))),)),
        ("fused_attention", (draw(st.booleans()),)),
        ("implementation", (draw(st.sampled_from(("eager", "compiled"))),)),
    )
    slowed = draw(st.sampled_from((1.0, 1e-2, 1e-4)))
    links = ("intra_byte_per_s", "inter_byte_per_s")
    rates = replace(rates, **{name: slowed * getattr(rates, name) for name in links})
    found = meshes(model, nodes, size, choices)
    assume(found)
    mesh = draw(st.sampled_from(found))
    last = int(np.prod(mesh.shape)) - 1
    return load, rates, grid([strategy_at(mesh, draw(st.integers(0, last))) for _ in range(4)])


def improved(rates, fact, factor):
    """The machine with one stated fact better by a factor above 1."""
    if fact in PEAKS:
        peaks = list(rates.peak_flop_per_s)
        peaks[PEAKS.index(fact)] *= factor
        return replace(rates, peak_flop_per_s=tuple(peaks))
    value = getattr(rates, fact)
    better = value / factor if fact in LATENCIES else value * factor
    return replace(rates, **{fact: better})


@settings(max_examples=200, deadline=None)
@given(rated_cases(), calibrations(), st.data(), st.floats(1.0, 10.0))
def test_a_better_fact_never_slows_a_step(case, parameters, data, factor):
    load, rates, picked = case
    # Peaks that these strategies compute at; of the others no step depends, and cases of them are spared.
    used = {CODES["precision"][int(each)] for each in np.ravel(picked.precision)} | {"bf16", "fp32"}
    fact = data.draw(st.sampled_from((*RATES, *LATENCIES, *(f"peak {name}" for name in sorted(used)))))
    before = estimate(load, rates, picked, parameters).step_s
    after = estimate(load, improved(rates, fact, factor), picked, parameters).step_s
    assert np.isfinite(before).all()
    assert np.all(after <= before * (1 + 1e-12))


# On links so slow that their traffic exceeds the work it overlaps with, several axes must not count on one piece of
# work, and nothing on work that the host makes longer.
_SLOW = {"intra_byte_per_s": 1e6, "inter_byte_per_s": 1e6}
_CROWDED = (
    Strategy(dp=2, tp=2, cp=2, ep=4, tp_overlap=True, sequence_parallel=True, global_batch_samples=2),
    Strategy(dp=8, global_batch_samples=8),
    Strategy(dp=1, tp=8, tp_overlap=True, sequence_parallel=True, global_batch_samples=1),
    Strategy(dp=8, ep=8, zero_stage=3, global_batch_samples=8),
)


@pytest.mark.parametrize("picked", _CROWDED, ids=("four axes", "data", "tensor", "sharded"))
@pytest.mark.parametrize("host_s", [1e-9, 1e-3], ids=["quick host", "slow host"])
@pytest.mark.parametrize("fact", ["memory_byte_per_s", "achievable_fraction", "peak bf16"])
def test_traffic_hides_once(picked, host_s, fact):
    load, rates = subject("mixtral_8x7b", "dgx-h100", 8)
    slow = replace(rates, **_SLOW, achievable_fraction=0.1)
    parameters = Parameters().changed({"launch_s": host_s})
    before, after = (
        float(np.ravel(estimate(load, on, grid([picked]), parameters).step_s)[0])
        for on in (slow, improved(slow, fact, 3.0))
    )
    assert after <= before * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(rated_cases(), calibrations(), st.sampled_from(("switch_reduces", "keeps_order")))
def test_a_better_network_never_slows_a_step(case, parameters, fact):
    load, rates, picked = case
    without, having = (
        estimate(load, replace(rates, **{fact: value}), picked, parameters).step_s for value in (0.0, 1.0)
    )
    assert np.all(having <= without * (1 + 1e-12))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(("llama31_8b", "bert", "mixtral_8x7b")),
    st.sampled_from(CLUSTERS),
    st.sampled_from((*RATES, *LATENCIES, *PEAKS)),
    st.floats(1.0, 4.0),
)
def test_a_better_fact_never_slows_the_best_plan(model, nodes, fact, factor):
    load, rates = subject(model, nodes, 8)
    space = Space(num_accelerators=8, global_batches=(64,), choices={"precision": ("bf16",)})

    def best_s(on):
        job = SearchJob(load=load, machine=on, parameters=Parameters(), num_steps=np.ones_like)
        found = fastest(job, [space], num_best=1)[0].best
        return found[0].training_s if found else np.inf

    assert best_s(improved(rates, fact, factor)) <= best_s(rates) * (1 + 1e-12)


@pytest.mark.parametrize("precision", ["fp8", "fp8_rowwise", "mxfp8", "fp4"])
@pytest.mark.parametrize("nodes", ["dgx-h100", "h200-sxm5-141gb", "b200-sxm6-180gb"])
@pytest.mark.parametrize("model", ["gpt3", "llama31_8b"])
def test_fewer_bits_that_run_faster_are_faster(model, nodes, precision):
    """Products dominate such models: PyTorch and NVIDIA publish gains of 1.1 to 1.9 for all four."""
    load, rates = subject(model, nodes, 64)
    if (
        not rates.peak_flop_per_s[PRECISIONS.index(precision)]
        > rates.peak_flop_per_s[PRECISIONS.index("bf16")]
    ):
        pytest.skip(f"{nodes} states no faster {precision}")
    wide, narrow = (
        meshes(model, nodes, 64, (("precision", (name,)), ("tp", (8,)), ("microbatch_samples", (1,))))
        for name in ("bf16", precision)
    )
    assert wide
    picked = [strategy_at(mesh, 0) for mesh in wide]
    wide_s = estimate(load, rates, grid(picked), Parameters()).step_s
    few_s = estimate(
        load, rates, grid([replace(each, precision=precision) for each in picked]), Parameters()
    ).step_s
    assert narrow
    assert np.all(few_s <= wide_s)
