"""Laws of whole plans: better machines and weaker demands never make the answer worse; parts are the whole."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.modelled import prior_model
from equipoise.advice.plans.plan import plan
from equipoise.advice.plans.planned import Question
from equipoise.spec.cluster import cluster

pytestmark = pytest.mark.law

MODEL = replace(prior_model(), draws=prior_model().draws[:2])
TERMS = Terms(usd_per_accelerator_hour=2.0)
CHIPS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "mi300x-oam-192gb", "rtx-4090-pcie-24gb", "v100-sxm2-16gb")
# The same chip with more memory, as fast or faster.
SMALLER_A100 = ("a100-sxm4-40gb", "a100-sxm4-80gb")
SMALLER_V100 = ("v100-sxm2-16gb", "v100-sxm2-32gb")
ASKED = st.fixed_dictionaries(
    {
        "workload": st.sampled_from(["gpt2", "llama2_7b", "mixtral_8x7b", "bert", "resnet50"]),
        "accelerator": st.sampled_from(CHIPS),
        "size": st.sampled_from([1, 3, 7, 8, 48]),
        "global_batch_samples": st.sampled_from([1, 7, 64, 1021, 1536]),
    }
)


def best(size, fewest=None, **stated):
    """The plan for one size, or up to it, for the least time unless stated."""
    question = Question(
        fewest=fewest or size,
        most=size,
        training_samples=1e6,
        objective=stated.pop("objective", "time"),
        num_best=3,
        **stated,
    )
    return plan(question, model=MODEL, terms=TERMS)


@settings(max_examples=15, deadline=None)
@given(asked=ASKED)
def test_what_is_recommended_fits_is_the_best_and_sums_up(asked):
    found = best(**asked)
    if found.recommended is None:
        assert found.rejected
        return
    for each in (found.recommended, *found.alternatives, *found.by_size):
        chosen = each.strategy
        assert sum(each.seconds.values()) == pytest.approx(each.step_s, rel=1e-9)
        assert min(*each.seconds.values(), *each.memory.values()) >= 0
        assert each.memory["reserved"] + each.memory["fixed"] == pytest.approx(each.memory_bytes, rel=1e-9)
        assert each.memory_bytes <= found.cluster.accelerator.memory_bytes
        assert chosen.dp * chosen.tp * chosen.pp * chosen.cp == each.num_accelerators
        assert chosen.global_batch_samples == asked["global_batch_samples"]
    assert all(each.time.value >= found.recommended.time.value for each in found.alternatives)


@settings(max_examples=8, deadline=None)
@given(asked=ASKED)
def test_faster_links_are_never_slower(asked):
    nodes = cluster(asked["accelerator"])
    rates = {
        "intra_byte_per_s": 2.0 * nodes.intra.byte_per_s,
        "inter_byte_per_s": 2.0 * nodes.inter.byte_per_s,
    }
    plain, faster = best(**asked).recommended, best(**asked, node=rates).recommended
    assert (plain is None) == (faster is None)
    if plain is not None and faster is not None:
        assert faster.step_s <= plain.step_s * (1 + 1e-9)


@settings(max_examples=8, deadline=None)
@given(asked=ASKED, chips=st.sampled_from([SMALLER_A100, SMALLER_V100]))
def test_more_memory_is_never_slower(asked, chips):
    smaller, larger = (best(**asked | {"accelerator": chip}).recommended for chip in chips)
    if smaller is not None:
        assert larger.step_s <= smaller.step_s * (1 + 1e-9)


@settings(max_examples=6, deadline=None)
@given(asked=ASKED, factors=st.lists(st.floats(1.0, 100.0), min_size=2, max_size=3))
def test_more_time_never_costs_more(asked, factors):
    fastest = best(**asked, fewest=1).recommended
    if fastest is None:
        return
    costs = []
    for factor in [*sorted(factors), math.inf]:
        chosen = best(**asked, fewest=1, objective="cost", deadline_s=fastest.time.value * factor * 1.000001)
        costs.append(chosen.recommended.bill.usd)
    assert costs == sorted(costs, reverse=True)
