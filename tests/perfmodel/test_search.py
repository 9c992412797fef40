"""The search finds what the exhaustive one finds, what it assumes of options is so, and the exhaustive one is right."""

from functools import cache

import numpy as np
import pytest
from exhaustive import legal_strategies, search, strategy_at
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from legal import fault
from msgspec.structs import replace

from equipoise.perfmodel.estimate import Seconds, estimate, layer_seconds, least_step_s
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import transformer_load, workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.memory import RankMemory, memory
from equipoise.perfmodel.parameters import PRIORS, Parameters, stacked
from equipoise.perfmodel.search import SearchJob, faster, fastest, fits
from equipoise.perfmodel.space import Space, limits
from equipoise.spec.cluster import cluster
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import workload

SPARING = {
    "optimizer": ("adam", "adam_8bit"),
    "offload": ("none", "optimizer", "optimizer_and_params"),
    "recompute": ("selective", "full"),
}
HOSTED = {"activation_offload": (False, True), "schedule": ("1f1b", "dualpipe_v")}
ALL_HOSTED = {"activation_offload": (True,)}
UNFUSED = {
    "fused_attention": (False, True),
    "implementation": ("eager", "compiled"),
    "zero_stage": (0, 2, 3),
}
ADAPTED = {"trained": ("full", "lora", "qlora"), "lora_rank": (0, 16)}
WIDELY_ADAPTED = {"trained": ("lora",), "lora_rank": (64, 16), "lora_targets": ("all_linear",)}
RARER = {"compression": ("none", "fp16", "powersgd"), "compression_rank": (0, 4), "sync_period": (1, 8)}
# One accelerator has gradients as wide as these make them next to a part of its activations alone.
ALONE = {"master_weights": (True, False), "optimizer": ("adam", "adam_8bit")}
# Where code runs as it was written, states that are whole are stepped by copies of gradients.
AS_WRITTEN = {
    "implementation": ("eager", "compiled"),
    "optimizer": ("adam", "adam_8bit"),
    "trained": ("full",),
}
CASES = {
    "pipelines": ("gpt3", "dgx-h100", (16, 32), (24, 32), {}),
    "tight": ("llama2_13b", "a100-sxm4-40gb", (4, 8), (8, 12), SPARING),
    "on the host": ("llama2_13b", "a100-sxm4-40gb", (4, 8), (8, 12), HOSTED),
    "all on the host": ("llama2_13b", "a100-sxm4-40gb", (4, 8), (8, 12), ALL_HOSTED),
    "experts": ("mixtral_8x7b", "dgx-h100", (16,), (32,), {}),
    "both ends": ("mixtral_8x7b", "dgx-h100", (16,), (32,), {"schedule": ("1f1b", "dualpipe", "dualpipe_v")}),
    "overlapped": (
        "mixtral_8x7b",
        "dgx-h100",
        (16,),
        (32,),
        {"schedule": ("1f1b", "1f1b_overlap", "dualpipe_v")},
    ),
    "cards": ("gpt2_large", "pair-rtx-4090", (1, 2, 4), (4, 6), UNFUSED),
    "alone": ("gpt2_large", "pair-rtx-4090", (1,), (1, 2, 4, 8), ALONE),
    "adapters": ("llama2_70b_lora", "a100-sxm4-80gb", (8,), (8, 16), ADAPTED),
    "adapters on all layers": ("llama2_13b", "a100-sxm4-40gb", (4, 8), (8,), WIDELY_ADAPTED),
    "as written": ("llama31_8b", "a100-sxm4-80gb", (2, 4), (8,), AS_WRITTEN),
    "widths": ("llama2_13b", "a100-sxm4-80gb", (4, 8), (8,), {"precision": ("bf16", "tf32", "fp16")}),
    "pictures": ("resnet50", "a100-sxm4-80gb", (4, 6), (48,), RARER),
}


@cache
def subject(model, nodes, size):
    return workload_load(workload(model)), machine(cluster(nodes, num_accelerators=size))


def num_steps(batch):
    """Steps of a training that needs more samples at larger batches."""
    return (1e6 + 2e3 * batch) / batch


def training_s(mesh, estimates):
    return estimates.step_s * num_steps(mesh.global_batch_samples)


def both(model, nodes, sizes, batches, choices, *, parameters=None, memory_share=1.0):
    """What both searches find at each size."""
    load, rates = subject(model, nodes, max(sizes))
    rates = replace(rates, memory_bytes=rates.memory_bytes * memory_share)
    parameters = parameters or Parameters()
    spaces = [Space(num_accelerators=size, global_batches=batches, choices=choices) for size in sizes]
    job = SearchJob(load=load, machine=rates, parameters=parameters, num_steps=num_steps)
    quick = fastest(job, spaces, num_best=5)
    whole = [search(load, rates, space, parameters, objective=training_s, num_best=5) for space in spaces]
    return list(zip(quick, whole, strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_finds_what_the_exhaustive_search_finds(case):
    found = both(*case)
    assert found
    for quick, whole in found:
        agree(quick, whole)
        assert [each.strategy for each in quick.best] == [each.strategy for each in whole.best]
        assert quick.faults == whole.faults
        assert whole.num_legal > 10


def agree(quick, whole):
    """Counts, times and the least that does not fit agree."""
    assert (quick.num_legal, quick.num_fitting) == (whole.num_legal, whole.num_fitting)
    assert [each.training_s for each in quick.best] == pytest.approx([each.training_s for each in whole.best])
    nearest = [each.nearest_bytes or 0.0 for each in (quick, whole)]
    assert nearest[0] == pytest.approx(nearest[1], rel=1e-12)


@pytest.mark.parametrize("memory_share", [0.35, 0.41, 0.45, 0.5, 0.53, 0.59])
def test_it_does_so_where_options_make_gradients_of_other_widths(memory_share):
    ((quick, whole),) = both(*CASES["alone"], memory_share=memory_share)
    agree(quick, whole)
    assert [each.strategy for each in quick.best] == [each.strategy for each in whole.best]


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


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("deviate", [-1.0, -3.0])
def test_it_does_so_where_full_recomputation_is_faster_than_selective(case, deviate):
    model, nodes, sizes, batches, choices = case
    cheap = Parameters().changed({"recompute_share": np.exp(deviate)})
    given = choices | {"recompute": ("selective", "full")}
    found = both(model, nodes, sizes, batches, given, parameters=cheap, memory_share=1.5)
    assert any(whole.num_fitting for _, whole in found)
    for quick, whole in found:
        agree(quick, whole)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_something_fits_from_the_least_bytes_of_the_exhaustive_search_on(case):
    model, nodes, sizes, batches, choices = case
    load, rates = subject(model, nodes, sizes[-1])
    space = Space(num_accelerators=sizes[-1], global_batches=batches, choices=choices)
    nothing = replace(rates, memory_bytes=0.0)
    whole = search(load, nothing, space, Parameters(), objective=training_s, num_best=1)
    for share, expected in ((0.999, False), (1.001, True)):
        held = replace(rates, memory_bytes=share * whole.nearest_bytes)
        job = SearchJob(load=load, machine=held, parameters=Parameters(), num_steps=num_steps)
        assert fits(job, space) == expected


def test_a_space_without_legal_strategies_has_no_answer():
    ((quick, whole),) = both("gpt3", "dgx-h100", (7,), (16,), {"pp": (1,)})
    assert quick == whole
    assert (quick.best, quick.nearest_bytes, quick.num_legal) == ((), None, 0)
    assert quick.faults


def test_where_nothing_fits_the_least_bytes_are_reported():
    ((quick, whole),) = both("gpt3", "dgx-h100", (8,), (16,), {})
    agree(quick, whole)
    assert (quick.best, quick.faults) == ((), whole.faults)
    assert quick.num_fitting == 0
    assert quick.nearest_bytes > 80e9


@pytest.mark.parametrize(
    ("num_accelerators", "expected"),
    [(32, {1, 2, 4, 8, 16}), (12, {1, 3, 6}), (6, {1, 2, 3})],  # nodes have eight
)
def test_groups_that_share_weights_are_whole_nodes_or_lie_in_one(num_accelerators, expected):
    """As in Zhang et al. 2022 (MiCS) and torch's HSDP: weights are gathered inside a node where they fit."""
    load, rates = subject("mixtral_8x7b", "dgx-h100", num_accelerators)
    choices = {"tp": (1,), "pp": (1,), "cp": (1,)}
    space = Space(num_accelerators=num_accelerators, global_batches=(num_accelerators,), choices=choices)
    meshes = legal_strategies(space, limits(load, rates), most_elements=100_000).meshes
    found = {
        strategy_at(mesh, each).dp_replicate for mesh in meshes for each in range(int(np.prod(mesh.shape)))
    }
    assert found == expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("memory_share", [1.5, 4.0])
def test_what_is_faster_with_another_value_is_what_the_exhaustive_search_of_that_value_finds(
    case, memory_share
):
    model, nodes, sizes, batches, choices = case
    load, rates = subject(model, nodes, max(sizes))
    held = replace(rates, memory_bytes=rates.memory_bytes * memory_share)
    job = SearchJob(load=load, machine=held, parameters=Parameters(), num_steps=num_steps)
    spaces = [Space(num_accelerators=size, global_batches=batches, choices=choices) for size in sizes]
    fastest(job, spaces)
    moved = {"activation_offload": (True,), "recompute": ("none", "selective")}
    fewer = [replace(each, choices={**choices, **moved}) for each in spaces]
    whole = [search(load, held, each, Parameters(), objective=training_s, num_best=1) for each in fewer]
    best = {number: each.best[0] for number, each in enumerate(whole) if each.best}
    assert best

    def found(share):
        to_beat_s = {number: each.training_s * share for number, each in best.items()}
        kept = {"recompute": moved["recompute"]}
        return faster(job, spaces, to_beat_s, name="activation_offload", value=True, allowed=kept)

    assert {number: each[0].strategy for number, each in found(1.001).items()} == {
        number: each.strategy for number, each in best.items()
    }
    assert not any(found(0.999).values())


@st.composite
def pairs(draw):
    """A load, a machine, and two legal strategies equal but for one option, the slower value first."""
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
    mesh = draw(st.sampled_from(legal_strategies(space, bounds, most_elements=3000).meshes))
    picked = strategy_at(mesh, draw(st.integers(0, int(np.prod(mesh.shape)) - 1)))
    option, slow, fast = draw(
        st.sampled_from(
            (
                ("recompute", "full", "none"),
                ("recompute", "selective", "none"),
                ("activation_offload", True, False),
                ("offload", "optimizer", "none"),
                ("offload", "optimizer_and_params", "optimizer"),
                ("tp_overlap", False, True),
                ("zero_stage", 0, 1),
                ("zero_stage", 2, 1),
            )
        )
    )
    assume(slow != 0 or option != "zero_stage" or picked.dp_replicate == 1)  # groups share states
    slower, faster = replace(picked, **{option: slow}), replace(picked, **{option: fast})
    assume(fault(slower, bounds) is None and fault(faster, bounds) is None)
    return load, rates, option, slower, faster


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_what_is_taken_for_faster_is_never_slower(pair):
    load, rates, option, slower, faster = pair
    found = estimate(load, rates, grid([slower, faster]), Parameters())
    slow_s, fast_s = np.broadcast_to(found.step_s, (2,))
    assert fast_s <= slow_s * (1 + 1e-12)
    slow_bytes, fast_bytes = np.broadcast_to(found.memory.needed, (2,))
    if option == "tp_overlap" or (option, slower.zero_stage) == ("zero_stage", 0):
        assert fast_bytes <= slow_bytes
    else:  # recomputed, or gradients sharded: slower or as fast, and never heavier
        assert slow_bytes <= fast_bytes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_step_is_faster_than_its_bound(case):
    model, nodes, sizes, batches, choices = case
    load, rates = subject(model, nodes, max(sizes))
    space = Space(num_accelerators=max(sizes), global_batches=batches, choices=choices)
    meshes = legal_strategies(space, limits(load, rates), most_elements=20_000).meshes
    assert meshes
    for mesh in meshes:
        layer_s = layer_seconds(load, rates, mesh, PARAMETERS).total
        assert (
            least_step_s(load, mesh, layer_s, PARAMETERS) <= estimate(load, rates, mesh, PARAMETERS).step_s
        ).all()


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(("gpt3", "mixtral_8x7b")), st.sampled_from((2, 4)), st.data())
def test_interleaving_less_takes_the_more_memory_but_none_the_least(model, pp, data):
    load, rates = subject(model, "dgx-h100", 16)
    space = Space(
        num_accelerators=16, global_batches=(32,), choices={"pp": (pp,), "microbatch_samples": (1,)}
    )
    mesh = data.draw(st.sampled_from(legal_strategies(space, limits(load, rates), most_elements=3000).meshes))
    picked = strategy_at(mesh, data.draw(st.integers(0, int(np.prod(mesh.shape)) - 1)))
    assume(picked.interleave > 2)
    needed = memory(
        load, grid([replace(picked, interleave=each) for each in (1, 2, picked.interleave)]), PARAMETERS
    )
    none, least, most = needed.needed
    assert none <= most <= least


def test_many_calibrations_at_once_are_each_alone():
    load, rates = subject("gpt3", "dgx-h100", 64)
    space = Space(num_accelerators=64, global_batches=(64,), choices={"pp": (4,), "interleave": (2,)})
    mesh = legal_strategies(space, limits(load, rates), most_elements=500).meshes[0]
    rows = grid([strategy_at(mesh, index) for index in range(5)])
    draws = [
        Parameters().changed({each.name: each.median * scale for each in PRIORS}) for scale in (0.7, 1.0)
    ]
    together = estimate(load, rates, rows, stacked(draws)).step_s
    assert together.shape == (2, 5)
    for row, drawn in zip(together, draws, strict=True):
        assert row == pytest.approx(np.broadcast_to(estimate(load, rates, rows, drawn).step_s, 5), rel=1e-12)


PARAMETERS = Parameters()
DENSE = Transformer(
    layers=8, hidden=1024, heads=16, kv_heads=4, head_size=64, ffn_hidden=4096, vocabulary=32000
)
EXPERTS = replace(DENSE, experts=8, top_k=2, expert_ffn_hidden=2048)
MODELS = pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
SPACE = Space(
    num_accelerators=4,
    global_batches=(4, 8),
    choices={"recompute": ("none", "full"), "zero_stage": (0, 1, 3), "interleave": (1, 2)},
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
    meshes = legal_strategies(space, limits(load, nodes), most_elements=5000).meshes
    found = [strategy_at(mesh, index) for mesh in meshes for index in range(np.prod(mesh.shape))]
    return found, estimate(load, nodes, grid(found), PARAMETERS)


@MODELS
def test_a_mesh_gives_each_strategy_what_it_has_alone(model):
    load, nodes = setting(model)
    meshes = legal_strategies(SPACE, limits(load, nodes), most_elements=5000).meshes
    assert len(meshes) > 1
    for mesh in meshes:
        together = estimate(load, nodes, mesh, PARAMETERS)
        index = int(np.prod(mesh.shape)) * 2 // 3
        alone = estimate(load, nodes, grid([strategy_at(mesh, index)]), PARAMETERS)
        for part, kind in ((together.seconds, Seconds), (together.memory, RankMemory)):
            assert kind.__struct_fields__
            for name in kind.__struct_fields__:
                whole = np.broadcast_to(getattr(part, name), mesh.shape).flat[index]
                own = getattr(alone.seconds if kind is Seconds else alone.memory, name)
                assert whole == pytest.approx(float(np.ravel(own)[0]), rel=1e-12, abs=1e-30), name


@MODELS
def test_the_best_is_the_best_of_all_that_fit(model):
    load, nodes = setting(model)
    found, estimates = rows(load, nodes)
    worth = time_s(grid(found), estimates)
    held = float(np.quantile(estimates.memory.needed, 0.3))
    nodes, fits = replace(nodes, memory_bytes=held), estimates.memory.needed <= held
    result = search(load, nodes, SPACE, PARAMETERS, objective=time_s, num_best=7)
    assert (result.num_legal, result.num_fitting) == (len(found), fits.sum())
    assert result.best[0].training_s == pytest.approx(worth[fits].min(), rel=1e-12)
    by_layout = {}
    for one, value in zip(np.array(found)[fits], worth[fits], strict=True):
        layout = (one.dp, one.tp, one.pp, one.cp, one.ep)
        by_layout[layout] = min(value, by_layout.get(layout, np.inf))
    assert [each.training_s for each in result.best] == pytest.approx(
        sorted(by_layout.values())[:7], rel=1e-12
    )


def test_the_least_that_does_not_fit_is_reported():
    load, nodes = setting(DENSE, memory_bytes=2e9)
    _, estimates = rows(load, nodes)
    result = search(load, nodes, SPACE, PARAMETERS, objective=time_s)
    needed = estimates.memory.needed
    assert result.nearest_bytes == pytest.approx(needed[needed > 2e9].min())


def test_the_exhaustive_search_of_an_empty_space_has_no_answer():
    load, nodes = setting(DENSE)
    space = Space(num_accelerators=7, global_batches=(16,), choices={"pp": (1,)})
    result = search(load, nodes, space, PARAMETERS, objective=time_s)
    assert (result.best, result.nearest_bytes, result.num_legal) == ((), None, 0)
    assert result.faults


def test_the_objective_decides():
    load, nodes = setting(DENSE)
    by_time = search(load, nodes, SPACE, PARAMETERS, objective=time_s).best[0]
    by_memory = search(load, nodes, SPACE, PARAMETERS, objective=held_bytes).best[0]
    assert by_memory.training_s < 10e9  # bytes: of the objective
    leanest = grid([by_memory.strategy])
    assert time_s(leanest, estimate(load, nodes, leanest, PARAMETERS)) > by_time.training_s
