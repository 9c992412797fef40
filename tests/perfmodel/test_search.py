"""The search: what it calls best is best, what it drops does not fit, and one strategy alone has the same time."""

from dataclasses import fields, replace

import numpy as np
import pytest

from equipoise.perfmodel.estimate import Seconds, estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.laid import laid
from equipoise.perfmodel.legality import limits
from equipoise.perfmodel.load import transformer_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import Memory
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.search import search
from equipoise.perfmodel.space import Space
from equipoise.spec.cluster import cluster
from equipoise.spec.transformer import Transformer

PARAMETERS = Parameters()
DENSE = Transformer(
    layers=8, hidden=1024, heads=16, kv_heads=4, head_size=64, ffn_hidden=4096, vocabulary=32000
)
EXPERTS = replace(DENSE, experts=8, top_k=2, expert_ffn_hidden=2048)
MODELS = pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
SPACE = Space(
    num_accelerators=4,
    global_batches=(4, 8),
    choices={"recompute": ("none", "full"), "shard_state": (0, 1, 3), "interleave": (1, 2)},
)


def setting(model, memory_bytes=80e9):
    load = transformer_load(model, sequence=1024)
    nodes = machine(cluster("dgx-h100", num_accelerators=4))
    return load, replace(nodes, memory_bytes=memory_bytes)


def time_s(mesh, estimates):
    return estimates.step_s / mesh.global_batch_samples


def held_bytes(_, estimates):
    return estimates.memory.needed


def rows(load, nodes, space=SPACE):
    """All strategies of a space as flat rows: the strategies, and their estimates one by one."""
    meshes = laid(space, limits(load, nodes), most_elements=5000).meshes
    found = [mesh.strategy(index) for mesh in meshes for index in range(np.prod(mesh.shape))]
    return found, estimate(load, nodes, grid(found), PARAMETERS)


@MODELS
def test_a_mesh_gives_each_strategy_what_it_has_alone(model):
    load, nodes = setting(model)
    for mesh in laid(SPACE, limits(load, nodes), most_elements=5000).meshes:
        together = estimate(load, nodes, mesh, PARAMETERS)
        index = int(np.prod(mesh.shape)) * 2 // 3
        alone = estimate(load, nodes, grid([mesh.strategy(index)]), PARAMETERS)
        for part, kind in ((together.seconds, Seconds), (together.memory, Memory)):
            for each in fields(kind):
                whole = np.broadcast_to(getattr(part, each.name), mesh.shape).flat[index]
                own = getattr(alone.seconds if kind is Seconds else alone.memory, each.name)
                assert whole == pytest.approx(float(np.ravel(own)[0]), rel=1e-12, abs=1e-30), each.name


@MODELS
def test_the_best_is_the_best_of_all_that_fit(model):
    load, nodes = setting(model)
    found, estimates = rows(load, nodes)
    worth = time_s(grid(found), estimates)
    held = float(np.quantile(estimates.memory.needed, 0.3))
    nodes, fits = replace(nodes, memory_bytes=held), estimates.memory.needed <= held
    result = search(load, nodes, SPACE, PARAMETERS, objectives=(time_s,), num_best=7)
    assert (result.num_legal, result.num_fitting) == (len(found), fits.sum())
    assert result.best[0].worth[0] == pytest.approx(worth[fits].min(), rel=1e-12)
    by_layout = {}
    for one, value in zip(np.array(found)[fits], worth[fits], strict=True):
        layout = (one.dp, one.tp, one.pp, one.cp, one.ep)
        by_layout[layout] = min(value, by_layout.get(layout, np.inf))
    assert [each.worth[0] for each in result.best] == pytest.approx(sorted(by_layout.values())[:7], rel=1e-12)


def test_the_front_is_what_no_other_beats():
    load, nodes = setting(DENSE)
    found, estimates = rows(load, nodes)
    worth = np.stack([time_s(grid(found), estimates), estimates.memory.needed], axis=1)
    beaten = [np.any(np.all(worth <= each, axis=1) & np.any(worth < each, axis=1)) for each in worth]
    expected = np.unique(worth[~np.array(beaten)].round(12), axis=0)
    result = search(load, nodes, SPACE, PARAMETERS, objectives=(time_s, held_bytes), num_best=1)
    ours = np.array([each.worth for each in result.front])
    assert len(ours) > 5
    assert np.unique(ours.round(12), axis=0) == pytest.approx(expected, rel=1e-12)


def test_what_does_not_fit_is_told_with_both_amounts():
    load, nodes = setting(DENSE, memory_bytes=2e9)
    _, estimates = rows(load, nodes)
    result = search(load, nodes, SPACE, PARAMETERS, objectives=(time_s,))
    needed = estimates.memory.needed
    assert result.memories.least_bytes == pytest.approx(needed.min())
    assert result.memories.nearest_bytes == pytest.approx(needed[needed > 2e9].min())
    alone = estimate(load, nodes, grid([result.memories.leanest]), PARAMETERS)
    assert float(alone.memory.needed[0]) == pytest.approx(needed.min())


def test_a_space_without_legal_strategies_has_no_answer():
    load, nodes = setting(DENSE)
    space = Space(num_accelerators=7, global_batches=(16,), choices={"pp": (1,)})
    result = search(load, nodes, space, PARAMETERS, objectives=(time_s,))
    assert (result.best, result.front, result.memories, result.num_legal) == ((), (), None, 0)
    assert result.faults


def test_the_objective_decides():
    load, nodes = setting(DENSE)
    by_time = search(load, nodes, SPACE, PARAMETERS, objectives=(time_s,)).best[0]
    by_memory = search(load, nodes, SPACE, PARAMETERS, objectives=(held_bytes, time_s)).best[0]
    assert by_memory.worth[0] < 10e9
    assert by_memory.worth[1] > by_time.worth[0]
