"""Laws of the model, for any legal strategy: what no machine can do, and what never hurts."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.laid import laid
from equipoise.perfmodel.legality import limits
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import shards
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.search import search
from equipoise.perfmodel.space import Space
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import PRECISIONS
from equipoise.spec.workload import workload

pytestmark = pytest.mark.law
PARAMETERS = Parameters()
MODELS = ("gpt3", "llama31_8b", "mixtral_8x7b", "bert", "resnet50")
CLUSTERS = ("a100-sxm4-80gb", "dgx-h100", "pair-rtx-4090", "gb200-nvl72", "aws-p5")
RATES = ("intra_byte_per_s", "inter_byte_per_s", "memory_byte_per_s", "host_byte_per_s")


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
    meshes = laid(
        Space(num_accelerators=size, global_batches=(96,), choices=choices), bounds, most_elements=3000
    ).meshes
    assume(meshes)
    mesh = draw(st.sampled_from(meshes))
    last = int(np.prod(mesh.shape)) - 1
    picked = [mesh.strategy(draw(st.integers(0, last))) for _ in range(4)]
    return load, rates, picked


def step_s(load, rates, picked):
    return np.broadcast_to(estimate(load, rates, grid(picked), PARAMETERS).step_s, (len(picked),))


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(RATES), st.floats(1.0, 10.0))
def test_more_bandwidth_never_hurts(case, rate, factor):
    load, rates, picked = case
    faster = replace(rates, **{rate: getattr(rates, rate) * factor})
    assert np.all(step_s(load, faster, picked) <= step_s(load, rates, picked) * (1 + 1e-12))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_strategy_beats_perfect_scaling_of_its_compute(case):
    """All FLOP of the model, nothing twice, at the full peak of every accelerator at once."""
    load, rates, picked = case
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
    """Weights of all ranks, each counted once, are those of the model; tables may lie on two stages."""
    load, _, picked = case
    for each in picked:
        held = shards(load, grid([each]))
        dense = float(held.dense[0]) * each.tp * each.pp
        experts = float(np.ravel(held.experts)[0]) * each.ep * each.pp
        tables = float(load.embedding_params)
        whole = float(load.layers) * float(load.dense_params) + tables
        assert experts == pytest.approx(float(load.layers) * float(load.expert_params))
        if each.pp == 1:
            assert dense == pytest.approx(whole)
        else:
            # The fullest stage stands for all: it may hold tables that others do not.
            assert whole * (1 - 1e-9) - tables <= dense <= whole + (each.pp - 1) * tables + 1e-3
        ranks = float(np.ravel(held.dense_ranks)[0])
        assert ranks * each.tp * each.pp == each.num_accelerators


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from(CLUSTERS), st.sampled_from([2, 8]))
def test_more_memory_never_makes_the_best_worse(model, nodes, size):
    load, rates = subject(model, nodes, size)
    space = Space(
        num_accelerators=size,
        global_batches=(64,),
        choices={"precision": (limits(load, rates).precisions[0],)},
    )
    objective = (lambda _, estimates: estimates.step_s,)
    best = [
        search(
            load,
            replace(rates, memory_bytes=rates.memory_bytes * factor),
            space,
            PARAMETERS,
            objectives=objective,
            num_best=1,
        ).best
        for factor in (0.25, 1.0, 4.0, 1e6)
    ]
    times = [each[0].worth[0] if each else math.inf for each in best]
    assert times == sorted(times, reverse=True)
