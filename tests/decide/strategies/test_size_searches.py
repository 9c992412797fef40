"""Searches by size: from a cache as anew, of a bounded number of problems; and which sizes are tried."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from asking import ask
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.calibration.profiles import USER_CALIBRATION, model_for
from equipoise.decide.question.query import query
from equipoise.decide.question.systems import RequestedSystem
from equipoise.decide.question.training import training
from equipoise.decide.strategies.size_searches import ExtraSizes, SearchCache, StrategySearches, size_range
from equipoise.decide.strategies.strategy_search import problem
from equipoise.errors import SpecError, UsageError
from equipoise.spec.catalogue import catalogue

CATALOGUE = catalogue()
NODES = CATALOGUE.cluster("h100-sxm5-80gb")


def posed(**stated):
    asked = query({"workload": "gpt2_xl", "tokens": 1e9, "global_batch": 64, **stated})
    about = training(asked, CATALOGUE, None)
    return problem(about, NODES, model_for(NODES.accelerator, about.workload), num_best=3)


def found_in(searches):
    """What was found, by size: strategies and times."""
    return {
        each.num_accelerators: (each.best.strategy, each.best.work_s, each.drawn_s.tolist())
        for each in searches.sizes
        if each.best is not None
    }


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8, 16), (2, 16), (64,)])
def test_a_question_asked_again_is_answered_as_anew(sizes):
    kept = SearchCache()
    kept.searches(posed(), (1, 2, 4, 8, 16))
    again, anew = kept.searches(posed(), sizes), StrategySearches(problem=posed()).with_sizes(sizes)
    assert found_in(again) == found_in(anew)
    assert [each.num_accelerators for each in again.sizes] == list(sizes)
    assert len(kept) == 1


def test_sizes_that_are_known_need_no_search():
    first = StrategySearches(problem=posed()).with_sizes((1, 2, 4))
    assert first.with_sizes((1, 4)) is first
    more = first.with_sizes((1, 8))
    assert more.search_s > first.search_s > 0
    assert [each.num_accelerators for each in more.sizes] == [1, 2, 4, 8]


def test_other_workloads_batches_and_parameters_are_other_problems():
    kept = SearchCache()
    for change in ({}, {"global_batch": 32}, {"fix": ["tp=1"]}, {"workload": "gpt2"}, {"tokens": 2e9}):
        found = kept.searches(posed(**change), (1, 2))
        assert found_in(found) == found_in(StrategySearches(problem=posed(**change)).with_sizes((1, 2)))
    assert len(kept) == 5


def test_what_is_kept_is_bounded():
    kept = SearchCache(most=2)
    for batch in (8, 16, 32, 64):
        kept.searches(posed(global_batch=batch, fix=["tp=1"]), (1,))
    assert len(kept) == 2


def test_threads_get_their_own_answers():
    kept = SearchCache(most=1)
    sizes = [(1,), (2,), (4,), (8,)] * 3
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda each: kept.searches(posed(), each), sizes))
    assert [tuple(each.num_accelerators for each in one.sizes) for one in found] == sizes


def test_a_model_of_the_users_own_measurements_is_not_kept():
    own = posed()
    kept = SearchCache()
    kept.searches(replace(own, model=replace(own.model, calibration=USER_CALIBRATION)), (1,))
    assert len(kept) == 0


def sizes_tried(node_size, limit, *, stock=None, chip="h100-sxm5-80gb"):
    cluster = CATALOGUE.cluster(chip, node_size=node_size)
    system = RequestedSystem(name=chip, title=chip, cluster=cluster, stock=stock)
    asked = query({"workload": "gpt2_xl", "tokens": 1e9, "max_accelerators": limit})
    found = size_range(asked, system, flop=None, known=(), extra=ExtraSizes(between=None))
    return {each for each in found.tried if found.holds(each)}


ALONE = """
[accelerator.x1-96gb]
title = "X1"
vendor = "Example"
kind = "gpu"
memory_bytes = 96e9
memory_byte_per_s = 4e12
peak_bf16_flop_per_s = 1e15
node_size = 8
topology = "switch"
link_byte_per_s = 450e9
intra_latency_s = 3e-6
source = "a datasheet"
confidence = "low"
"""


@pytest.mark.parametrize(("limit", "is_refused"), [(8, False), (16, True), (None, True)])
def test_nodes_that_nothing_joins_are_asked_for_one_at_a_time(mine, limit, is_refused):
    path = mine(ALONE, "chip.toml")
    cluster = catalogue([path]).cluster("x1-96gb")
    system = RequestedSystem(name="x1-96gb", title="X1", cluster=cluster)
    asked = query({"workload": "gpt2_xl", "tokens": 1e9, "max_accelerators": limit})
    refused = pytest.raises(SpecError, match=r"inter_byte_per_s, inter_latency_s.*accelerator\.x1-96gb")
    with refused if is_refused else nullcontext():
        found = size_range(asked, system, flop=None, known=())
        assert found.most == max(found.tried) == 8  # beyond a node there is no rate to estimate with


def test_one_accelerator_alone_needs_no_links(tmp_path):
    path = tmp_path / "chip.toml"
    lines = [line for line in ALONE.splitlines() if not line.startswith(("link", "intra", "topology"))]
    path.write_text("\n".join(lines).replace("node_size = 8", "node_size = 1"))
    alone = {"workload": "gpt2", "tokens": "1e9", "accelerator": ["x1-96gb"], "hardware": [str(path)]}
    found = ask(alone, max_accelerators=1)
    assert {each.num_accelerators for each in found.candidates} == {1}
    with pytest.raises(SpecError, match=r"inter_byte_per_s.*x1-96gb"):
        ask(alone, max_accelerators=2)


@given(
    node_size=st.sampled_from([1, 2, 4, 6, 8, 16, 72]),
    limits=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    chip=st.sampled_from(["h100-sxm5-80gb", "rtx-4090-pcie-24gb"]),
    is_stocked=st.booleans(),
)
@example(node_size=8, limits=(100, 200), chip="h100-sxm5-80gb", is_stocked=False)
@example(node_size=8, limits=(6, 9), chip="rtx-4090-pcie-24gb", is_stocked=False)
def test_a_wider_limit_tries_what_a_lower_one_does_but_for_its_end(node_size, limits, chip, is_stocked):
    low, high = sorted(limits)
    fewer, more = (
        sizes_tried(node_size, each, stock=each if is_stocked else None, chip=chip) for each in (low, high)
    )
    # The most that a limit allows, in whole nodes, is tried though no other limit tries it.
    assert fewer - {max(fewer)} <= more
    assert max(fewer) <= max(more)
    # In its place there are sizes close by: none lies more than a fourth of it away from the next.
    assert any(0.8 * max(fewer) <= each <= max(fewer) for each in more)


def sizes_of(chip, **asked):
    system = RequestedSystem(
        name=chip, title=chip, cluster=CATALOGUE.cluster(chip), stock=asked.pop("stock", None)
    )
    return size_range(query({"workload": "gpt2_xl", "tokens": 1e9, **asked}), system, flop=None, known=())


@pytest.mark.parametrize(
    ("chip", "asked", "sizes"),
    [
        # cloud.google.com/tpu/docs: topologies of v5e and v6e from 1x1 to 16x16, of v4 and v5p cubes from 2x2x1.
        ("tpu-v6e", {"max_accelerators": 31}, {1, 4, 8, 16}),
        ("tpu-v6e", {"stock": 7}, {1, 4}),
        ("tpu-v6e", {"accelerators": "3..9"}, {4, 8}),
        ("tpu-v5p", {"max_accelerators": 200}, {4, 8, 16, 32, 64, 128, 192}),
    ],
)
def test_tpus_are_taken_in_slices_that_are_had(chip, asked, sizes):
    found = sizes_of(chip, **asked)
    assert {each for each in found.tried if found.holds(each)} == sizes


@pytest.mark.parametrize(
    ("chip", "asked"),
    [
        ("tpu-v6e", {"accelerators": "7"}),
        ("tpu-v6e", {"accelerators": "4,5"}),
        ("tpu-v6e", {"accelerators": "5..7"}),
    ],
)
def test_numbers_that_are_no_slices_are_refused(chip, asked):
    with pytest.raises(UsageError, match=f"of {chip}: .*slice.*give"):
        sizes_of(chip, **asked)


def test_a_tpu_without_a_slice_within_the_limit_takes_no_other_system_s_answer():
    asked = {"workload": "bert", "max_accelerators": 3}
    alone = ask(asked, accelerator=["h100"]).recommended
    beside = ask(asked, accelerator=["h100", "tpu-v4"])
    assert beside.recommended.time_s == alone.time_s
    assert [
        each.num_accelerators for each in beside.candidates if each.system == "tpu-v4" and not each.broken
    ] == []
    some = ask({"workload": "bert"}, accelerator=["h100", "tpu-v6e"], accelerators="2,4")
    assert {
        each.num_accelerators for each in some.candidates if each.system == "tpu-v6e" and not each.broken
    } == {4}
    assert ask(asked, accelerator=["tpu-v4"]).refusal is not None


@pytest.mark.parametrize("most", [None, 64])
def test_pods_that_are_described_have_no_slices_of_the_usual_ones(most):
    found = ask({"workload": "bert"}, accelerator=["tpu-v6e"], node_size=3, max_accelerators=most)
    assert found.recommended.num_accelerators % 3 == 0 or found.recommended.num_accelerators < 3
    # Nor has what a refusal names: 6 do in 30 min, and 18 in a third of it.
    refused = ask(
        {"workload": "bert"}, accelerator=["tpu-v6e"], node_size=3, max_accelerators=6, deadline="10min"
    )
    assert max(each.num_accelerators for each in refused.candidates) == 18
