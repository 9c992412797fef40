"""The arrays of a search against one strategy at a time in plain Python: every cause of time, every kind of memory."""

import importlib.util
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from equipoise.perfmodel.estimate import Seconds, estimate
from equipoise.perfmodel.laid import laid
from equipoise.perfmodel.legality import fault, limits
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import Memory
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.perfmodel.space import Space
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import COMPRESSIONS, IMPLEMENTATIONS, OFFLOADS, OPTIMIZERS
from equipoise.spec.workload import workload

_spec = importlib.util.spec_from_file_location("scalar", Path(__file__).with_name("scalar.py"))
scalar = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scalar)

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
    """A space that holds a few strategies of any kind: single values of most knobs, free sizes."""
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
# Shrinking takes minutes here, and a drawn strategy says enough.
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
    meshes = laid(drawn_space(data, chosen, limit), limit, most_elements=2000).meshes
    if not meshes:
        return
    mesh = data.draw(st.sampled_from(meshes))
    found = estimate(load, nodes, mesh, parameters)
    for _ in range(5):
        index = data.draw(st.integers(0, int(np.prod(mesh.shape)) - 1))
        one = mesh.strategy(index)
        assert fault(one, limit) is None
        step = scalar.Step(load, nodes, one, parameters)
        seconds, memory = step.seconds(), step.memory()
        scale = sum(seconds.values())

        def at(values, index=index):
            return float(np.broadcast_to(values, mesh.shape).flat[index])

        assert {each.name for each in fields(Seconds)} == seconds.keys()
        assert {each.name for each in fields(Memory)} == memory.keys()
        assert at(found.step_s) == pytest.approx(scale, rel=CLOSE)
        for name, value in seconds.items():
            assert at(getattr(found.seconds, name)) == pytest.approx(value, rel=CLOSE, abs=CLOSE * scale), (
                name,
                one,
            )
        for name, value in memory.items():
            assert at(getattr(found.memory, name)) == pytest.approx(value, rel=CLOSE), (name, one)
