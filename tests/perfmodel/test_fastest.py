"""The pruned search finds what the exhaustive one finds, and what it takes for granted of knobs is so."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.fastest import fastest
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.job import Job
from equipoise.perfmodel.laid import laid
from equipoise.perfmodel.legality import fault, limits
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import PRIORS, Parameters, stacked
from equipoise.perfmodel.search import search
from equipoise.perfmodel.space import Space
from equipoise.spec.cluster import cluster
from equipoise.spec.workload import workload

SPARING = {
    "optimizer": ("adam", "adam_8bit"),
    "offload": ("none", "optimizer", "optimizer_and_params"),
    "recompute": ("selective", "full"),
}
UNFUSED = {
    "fused_attention": (False, True),
    "implementation": ("eager", "compiled"),
    "shard_state": (0, 2, 3),
}
ADAPTED = {"trained": ("full", "lora", "qlora"), "lora_rank": (0, 16)}
RARER = {"compression": ("none", "fp16", "powersgd"), "compression_rank": (0, 4), "sync_period": (1, 8)}
CASES = {
    "pipelines": ("gpt3", "dgx-h100", (16, 32), (24, 32), {}),
    "tight": ("llama2_13b", "a100-sxm4-40gb", (4, 8), (8, 12), SPARING),
    "experts": ("mixtral_8x7b", "dgx-h100", (16,), (32,), {}),
    "cards": ("gpt2_large", "pair-rtx-4090", (1, 2, 4), (4, 6), UNFUSED),
    "adapters": ("llama2_70b_lora", "a100-sxm4-80gb", (8,), (8, 16), ADAPTED),
    "pictures": ("resnet50", "a100-sxm4-80gb", (4, 6), (48,), RARER),
}


@cache
def subject(model, nodes, size):
    return workload_load(workload(model)), machine(cluster(nodes, num_accelerators=size))


def num_steps(batch):
    """Steps of a training that needs more samples at larger batches."""
    return (1e6 + 2e3 * batch) / batch


def time_s(mesh, estimates):
    return estimates.step_s * num_steps(mesh.global_batch_samples)


def both(model, nodes, sizes, batches, choices, *, parameters=None, memory_share=1.0):
    """What both searches find at each size."""
    load, rates = subject(model, nodes, max(sizes))
    rates = replace(rates, memory_bytes=rates.memory_bytes * memory_share)
    parameters = parameters or Parameters()
    spaces = [Space(num_accelerators=size, global_batches=batches, choices=choices) for size in sizes]
    job = Job(load=load, machine=rates, parameters=parameters, num_steps=num_steps)
    quick = fastest(job, spaces, num_best=5)
    whole = [search(load, rates, space, parameters, objectives=(time_s,), num_best=5) for space in spaces]
    return list(zip(quick, whole, strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_finds_what_the_exhaustive_search_finds(case):
    for quick, whole in both(*case):
        agree(quick, whole)
        assert [each.strategy for each in quick.best] == [each.strategy for each in whole.best]
        assert quick.faults == whole.faults
        assert whole.num_legal > 10


def agree(quick, whole):
    """Counts and times are alike; memory is told of all where nothing fits, else of what does not."""
    assert (quick.num_legal, quick.num_fitting) == (whole.num_legal, whole.num_fitting)
    assert [each.worth[0] for each in quick.best] == pytest.approx([each.worth[0] for each in whole.best])
    if not whole.num_fitting:
        assert quick.memories == whole.memories
    elif whole.num_fitting < whole.num_legal:
        assert quick.memories.nearest_bytes == whole.memories.nearest_bytes
    else:
        assert quick.memories is None


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.floats(0.05, 1.5),
    st.lists(st.floats(-2.0, 2.0), min_size=len(PRIORS), max_size=len(PRIORS)),
)
def test_it_does_so_whatever_the_calibration_and_the_memory(name, memory_share, deviates):
    model, nodes, sizes, batches, choices = CASES[name]
    drawn = {
        each.name: min(each.largest, each.median * np.exp(each.log_sd * deviate))
        for each, deviate in zip(PRIORS, deviates, strict=True)
    }
    parameters = Parameters().changed(drawn)
    for quick, whole in both(
        model, nodes, sizes[:1], batches[:1], choices, parameters=parameters, memory_share=memory_share
    ):
        agree(quick, whole)


def test_a_space_without_legal_strategies_has_no_answer():
    ((quick, whole),) = both("gpt3", "dgx-h100", (7,), (16,), {"pp": (1,)})
    assert quick == whole
    assert (quick.best, quick.front, quick.memories, quick.num_legal) == ((), (), None, 0)
    assert quick.faults


def test_where_nothing_fits_the_leanest_is_told():
    ((quick, whole),) = both("gpt3", "dgx-h100", (8,), (16,), {})
    assert quick == whole
    assert quick.num_fitting == 0
    assert quick.memories.least_bytes > 80e9


@st.composite
def pairs(draw):
    """A load, a machine, and two legal strategies alike but for one knob, the slower value first."""
    model, nodes = (
        draw(st.sampled_from(("gpt3", "mixtral_8x7b", "bert"))),
        draw(st.sampled_from(("dgx-h100", "a100-sxm4-80gb", "pair-rtx-4090"))),
    )
    load, rates = subject(model, nodes, 8)
    space = Space(
        num_accelerators=8,
        global_batches=(48,),
        choices={"fused_attention": (False, True), "implementation": ("eager", "compiled")},
    )
    bounds = limits(load, rates)
    mesh = draw(st.sampled_from(laid(space, bounds, most_elements=3000).meshes))
    picked = mesh.strategy(draw(st.integers(0, int(np.prod(mesh.shape)) - 1)))
    knob, slow, fast = draw(
        st.sampled_from(
            (
                ("recompute", "full", "none"),
                ("recompute", "selective", "none"),
                ("tp_overlap", False, True),
                ("shard_state", 0, 1),
                ("shard_state", 2, 1),
            )
        )
    )
    slower, faster = replace(picked, **{knob: slow}), replace(picked, **{knob: fast})
    assume(fault(slower, bounds) is None and fault(faster, bounds) is None)
    return load, rates, knob, slower, faster


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_what_is_taken_for_faster_is_never_slower(pair):
    load, rates, knob, slower, faster = pair
    found = estimate(load, rates, grid([slower, faster]), Parameters())
    slow_s, fast_s = np.broadcast_to(found.step_s, (2,))
    assert fast_s <= slow_s * (1 + 1e-12)
    slow_bytes, fast_bytes = np.broadcast_to(found.memory.needed, (2,))
    if knob == "tp_overlap" or (knob, slower.shard_state) == ("shard_state", 0):
        assert fast_bytes <= slow_bytes
    else:  # recomputed, or gradients sharded: slower or as fast, and never heavier
        assert slow_bytes <= fast_bytes


def test_many_calibrations_at_once_are_each_alone():
    load, rates = subject("gpt3", "dgx-h100", 64)
    space = Space(num_accelerators=64, global_batches=(64,), choices={"pp": (4,), "interleave": (2,)})
    mesh = laid(space, limits(load, rates), most_elements=500).meshes[0]
    rows = grid([mesh.strategy(index) for index in range(5)])
    draws = [
        Parameters().changed({each.name: each.median * scale for each in PRIORS}) for scale in (0.7, 1.0)
    ]
    together = estimate(load, rates, rows, stacked(draws)).step_s
    assert together.shape == (2, 5)
    for row, drawn in zip(together, draws, strict=True):
        assert row == pytest.approx(np.broadcast_to(estimate(load, rates, rows, drawn).step_s, 5), rel=1e-12)
