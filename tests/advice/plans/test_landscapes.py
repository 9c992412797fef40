"""Landscapes: a question answered from one is answered as anew, and what is kept of them is bounded."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.landscape import surveyed
from equipoise.advice.plans.landscapes import Landscapes
from equipoise.advice.plans.plan import answered, landscape, plan, tried
from equipoise.advice.plans.planned import Question
from equipoise.errors import SpecError, UsageError

ASKED = Question(
    workload="gpt2_xl",
    accelerator="h100-sxm5-80gb",
    fewest=1,
    most=16,
    global_batch_samples=64,
    training_tokens=1e9,
    num_best=3,
)
TERMS = Terms(usd_per_accelerator_hour=2.0)
CHANGES = (
    {"objective": "cost"},
    {"objective": "time", "most": 64},
    {"objective": "energy", "fewest": 4, "most": 4},
    {"deadline_s": 3600.0},
    {"budget_usd": 3.0},
    {"sizes": (2, 16), "fewest": 2},
)


def told(found):
    """All of a plan but how long it took, and the functions of its length, which equal themselves alone."""
    return replace(found, search_s=0.0, length=None)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_changed_question_is_answered_as_anew(change):
    kept = Landscapes()
    kept.plan(ASKED, terms=TERMS)
    question = replace(ASKED, **change)
    again = kept.plan(question, terms=Terms(usd_per_accelerator_hour=5.0, region="france"))
    anew = plan(question, terms=Terms(usd_per_accelerator_hour=5.0, region="france"))
    assert told(again) == told(anew)
    assert len(kept) == 1


def test_a_landscape_with_the_sizes_needs_no_search():
    flat = landscape(ASKED)
    found = surveyed(flat, tried(ASKED, flat.ground))
    assert surveyed(found, tried(replace(ASKED, most=8), flat.ground)) is found
    assert answered(found, ASKED, terms=TERMS).search_s == found.search_s > 0


def test_other_workloads_batches_and_knobs_are_other_landscapes():
    kept = Landscapes()
    for change in ({}, {"global_batch_samples": 32}, {"choices": {"tp": (1,)}}, {"workload": "gpt2"}):
        question = replace(ASKED, most=2, **change)
        assert told(kept.plan(question, terms=TERMS)) == told(plan(question, terms=TERMS))
    assert len(kept) == 4


def test_what_is_kept_is_bounded():
    kept = Landscapes(most=2)
    for batch in (8, 16, 32, 64):
        kept.plan(replace(ASKED, most=1, global_batch_samples=batch, choices={"tp": (1,)}))
    assert len(kept) == 2


def test_threads_get_their_own_answers():
    kept = Landscapes(most=1)
    questions = [replace(ASKED, most=size, objective="time") for size in (1, 2, 4, 8)] * 3
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(kept.plan, questions))
    assert [each.recommended.num_accelerators for each in found] == [each.most for each in questions]


def test_what_cannot_be_answered_is_refused_and_not_kept_from_others():
    kept = Landscapes()
    with pytest.raises(UsageError, match="exceeds the"):
        kept.plan(replace(ASKED, global_batch_samples=10**7))
    with pytest.raises(SpecError, match=r"h100-of-nobody"):
        kept.plan(replace(ASKED, accelerator="h100-of-nobody"))
    assert kept.plan(replace(ASKED, most=1)).recommended is not None
