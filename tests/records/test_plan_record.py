"""The record of plans."""

import math
import statistics

import pytest
from plans import Planned, by_workload, planned_published_pretrainings, records

from equipoise.decide.combine import PlanRecord, plan_records, record_of


@pytest.fixture(scope="module")
def pretrainings():
    """The published pretrainings, each planned with the strategy that it states."""
    return [each for each, *_ in planned_published_pretrainings()]


def training(workload, ratio, kind="transformer"):
    planned_s = None if ratio is None else 100.0 * ratio
    return Planned(entry="x", workload=workload, kind=kind, published_s=100.0, planned_s=planned_s)


def test_every_workload_has_equal_weight():
    many = [training("a", 1.1)] * 98 + [training("a", 1.2), training("b", 2.0)]
    (found,) = records(many)
    # Half of the weight is on the one training of b, half on the 99 of a.
    assert (found.num_trainings, found.workloads) == (100, ("a", "b"))
    assert found.p90 == pytest.approx(1.0)
    assert found.log_half_width == pytest.approx(math.log(2.0))
    assert found.bias == pytest.approx((1.2 + 2.0) / 2)  # half-way, as medians of an even number are


def test_too_short_and_too_long_have_equal_weight_in_the_interval():
    assert records([training("a", 0.5)])[0].log_half_width == pytest.approx(math.log(2.0))
    assert records([training("a", 2.0)])[0].log_half_width == pytest.approx(math.log(2.0))


def test_what_has_no_plan_is_counted_apart():
    (found,) = records([training("a", 1.0), training("b", None), training("c", None)])
    assert (found.num_trainings, found.num_unexpressed, found.workloads) == (1, 2, ("a",))
    assert records([training("b", None)]) == ()


def test_the_errors_of_each_workload_by_hand():
    a, b = by_workload(
        [training(*each) for each in (("b", 1.5), ("a", 0.5), ("a", 1.2), ("a", 0.9), ("c", None))]
    )
    assert (a.workload, a.num_trainings, a.bias, a.median) == ("a", 3, pytest.approx(0.9), pytest.approx(0.2))
    assert (b.workload, b.num_trainings, b.bias, b.median) == ("b", 1, pytest.approx(1.5), pytest.approx(0.5))


def test_the_record_that_ships_is_of_this_dataset_and_honest():
    for found in plan_records():
        assert found.num_trainings > {"dense pretraining": 50, "expert pretraining": 5}.get(found.kind, 100)
        assert 0.05 < found.median < 0.4
        assert found.median < found.p90
        assert 0.5 < found.bias < 1.5
    kinds = {"transformer", "other", "dense pretraining", "expert pretraining"}
    assert {each.kind for each in plan_records()} == kinds


def test_pretrainings_are_longer_than_their_steps_by_the_median_of_published_ones(pretrainings):
    by_name = {each.entry: each for each in pretrainings}
    # Llama 3.1 405B: 30.84 million hours on 16,384 accelerators are 1,882.3 hours (model card).
    assert by_name["Llama 3.1 405B"].published_s / 3600 == pytest.approx(1882.3, abs=0.1)
    ratios = {}
    for each in pretrainings:
        if each.kind != "dense pretraining":
            continue
        ratios.setdefault(each.workload, []).append(each.planned_s / each.published_s)
    assert len(ratios["Pythia"]) == 8
    shipped = record_of("dense pretraining")
    assert set(shipped.workloads) == ratios.keys()
    # Each family of models has the same weight: between the extremes of their medians, about the middle one.
    middles = sorted(statistics.median(each) for each in ratios.values())
    assert middles[len(middles) // 3] <= shipped.bias <= middles[-len(middles) // 3]
    inside = [
        statistics.mean(abs(math.log(ratio / shipped.bias)) <= shipped.log_half_width for ratio in each)
        for each in ratios.values()
    ]
    assert 0.8 <= statistics.mean(inside) < 1
    assert isinstance(record_of("transformer"), PlanRecord)


def test_a_pretraining_is_planned_with_the_strategy_that_it_states(pretrainings):
    found = {each.entry: each for each in pretrainings}
    # bigscience-workshop/bigscience, train/tr11-176B-ml/README.md: TP 4, PP 12, DP 8 with activation
    # checkpointing took 105 s for 2,048 x 2,048 tokens. The fastest strategy of today takes 0.6 of that.
    steps_s = 366e9 / (2048 * 2048) * 105
    assert found["BLOOM 176B"].planned_s == pytest.approx(steps_s, rel=0.25)


def test_an_error_of_a_pretraining_is_from_the_other_families_by_hand():
    found = [
        Planned(
            entry=f"{name} {ratio}",
            workload=name,
            kind="dense pretraining",
            published_s=1e8,
            planned_s=1e8 * ratio,
        )
        for name, ratio in (("a", 0.5), ("a", 0.6), ("b", 0.8), ("c", 1.0))
    ]
    (record,) = records(found)
    # Of a with half the weight each, b and c: 0.8. Left out: a by 0.9 (of 0.8 and 1.0), b by 0.8 (of 0.5, 0.6
    # and 1.0: half of the weight is below 0.6), c by 0.7.
    assert record.bias == pytest.approx(0.8)
    # Errors: 4/9 and 1/3 with half the weight, 0, 3/7; half of the weight of 3 is reached at 1/3.
    assert record.median == pytest.approx((1 / 3 + 3 / 7) / 2)
