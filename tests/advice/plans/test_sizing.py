"""Options side by side: parts sum to their wholes, and perfect scaling is what it says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.advice.plans.modelled import prior_model
from equipoise.advice.plans.plan import plan
from equipoise.advice.plans.planned import Question
from equipoise.advice.plans.sizing import by_size, held, layouts, spent


@pytest.fixture(scope="module")
def found():
    question = Question(
        workload="gpt2_xl",
        accelerator="a100-sxm4-80gb",
        fewest=2,
        most=8,
        global_batch_samples=512,
        training_tokens=1e9,
    )
    return plan(question, model=prior_model())


def test_the_smallest_size_scales_perfectly_and_sizes_beyond_are_told_apart(found):
    sizes = by_size(found)
    assert sizes[0].efficiency == 1.0
    assert [each.is_asked for each in sizes] == [True, True, True, False]
    assert sizes[-1].ideal_s == pytest.approx(sizes[0].option.time.value / 8)


def test_layouts_are_compared_with_the_recommended(found):
    first, *others = layouts(found)
    assert first.option is found.recommended
    assert all(each.efficiency <= 1.0 for each in others)


def test_seconds_and_bytes_by_part_sum_to_step_and_memory(found):
    for each, row in zip(found.by_size, spent(found.by_size).amounts, strict=True):
        assert sum(row) == pytest.approx(each.step_s * each.num_accelerators / 512)
    for each, row in zip(found.by_size, held(found.by_size).amounts, strict=True):
        assert sum(row) == pytest.approx(each.memory_bytes)


@pytest.mark.law
@given(st.lists(st.lists(st.floats(0.0, 1e12), min_size=12, max_size=12), min_size=1, max_size=4))
def test_whatever_is_too_small_to_see_is_summed_not_lost(found, rows):
    wholes = [
        replace(
            found.recommended,
            memory={f"kind{place}": size for place, size in enumerate(row)},
            memory_bytes=1.05 * sum(row),
        )
        for row in rows
        if sum(row) > 1.0
    ]
    parts = held(wholes)
    assert len(parts.names) <= 8
    for whole, row in zip(wholes, parts.amounts, strict=True):
        assert sum(row) == pytest.approx(whole.memory_bytes)
        assert len(row) == len(parts.names)


def test_no_options_have_no_parts():
    assert held(()).names == ()
