"""What belongs to a choice: when alternatives win, what to measure, records; against the candidates' own numbers."""

import math
import re

import pytest
from asking import A100, B200, H100, H200, KINDS, LORA, PRETRAINING, RTX, SMALL, ask, by_size, paid_usd
from made import alternatives_to_first, row
from msgspec.structs import replace

from equipoise.units import HOUR_S


def test_a_faster_dearer_size_wins_where_an_hour_is_worth_the_difference():
    priced = [
        (each, found)
        for found in map(ask, KINDS.values())
        for each in found.alternatives
        if each.case == "hour" and each.is_priced and each.high is None
        if each.candidate.time_s.value < found.recommended.time_s.value
    ]
    assert priced
    for each, found in priced:
        saved_h = (found.recommended.time_s.value - each.candidate.time_s.value) / HOUR_S
        dearer = paid_usd(found, each.candidate) - paid_usd(found, found.recommended)
        assert each.low == pytest.approx(dearer / saved_h, rel=0.01)


def test_of_one_size_asked_about_no_larger_ones_are_said_to_be_tried_with_an_option():
    one = ask(workload="bert", accelerator=[H100], accelerators="3")
    point = max(each.num_accelerators for each in one.equilibria)
    assert one.limited_by is not None
    words = one.reasons[0].words
    assert {"3", str(point)} <= set(re.findall(r"\d+", words))
    assert "--accelerators" not in words


def test_a_size_taken_beyond_the_smallest_that_keeps_the_limits_is_not_called_that():
    def smallest(found):
        return min(each.num_accelerators for each in found.candidates if each.feasible)

    asked = {"workload": "gemma2_9b", "tokens": 1e9, "accelerator": ["a10g"], "max_accelerators": 1000}
    # Which deadlines leave a faster size for as much money depends on the times.
    answers = (ask(**asked, global_batch=8, deadline=f"{hours}h") for hours in (15, 12, 13, 14, 16, 17))
    found = next(each for each in answers if smallest(each) < each.recommended.num_accelerators)
    least = smallest(found)
    said = {int(each) for each in re.findall(r"\d+", found.reasons[0].words)}
    assert {least, found.recommended.num_accelerators} <= said


# Four cards are never the cheapest: two are where an hour is worth little, and eight above.
NEVER_FOUR = {"workload": "qwen3_14b", "train": "qlora", "examples": 10_000, "epochs": 3, "sequence": 4096,
              "accelerator": RTX, "max_accelerators": 8, "node_size": 2,
              "software": "torchtitan", "fix": ["activation_offload=false"]}  # fmt: skip


def named_values(found):
    """The alternatives that keep the limits and win at some values of an hour, with the others that do."""
    able = [each for each in found.candidates if not each.broken and each.usd is not None]
    return [
        (each, able, found)
        for each in found.alternatives
        if each.candidate in able and each.case == "hour" and each.is_priced
    ]


def test_an_alternative_costs_least_of_all_at_the_values_of_an_hour_it_names():
    named = [pair for question in KINDS.values() for pair in named_values(ask(question))]
    assert named
    for each, able, found in named:
        low, high = each.low or 0.98 * (each.high or 0.0), each.high or 1.02 * (each.low or 0.0)
        inside = math.sqrt(low * high)
        cheapest = min(able, key=lambda one: paid_usd(found, one, inside))
        assert cheapest.id == each.candidate.id, each


def test_a_size_between_two_that_cost_less_wins_at_no_value_of_an_hour():
    found = ask(NEVER_FOUR)
    sizes = {each.num_accelerators for each in found.candidates}
    assert {2, 4, 8} <= sizes
    assert not named_values(found)


def of_one_system(*sizes):
    """The alternatives to the first of some sizes: number, hours, US dollars."""
    return alternatives_to_first(
        [{**row("red", size, hours * HOUR_S), "usd": float(usd)} for size, hours, usd in sizes]
    )


def test_a_size_that_wins_at_no_value_of_an_hour_is_no_alternative():
    # 1 is slower and dearer than 2; 4 saves 1 h for 30 USD where 8 saves 3 h for 24.
    assert of_one_system((2, 5, 10), (1, 11, 11), (4, 4, 40), (8, 2, 34)) == {}
    # From (13 - 10) / 1 = 3 USD an hour on 4, from (34 - 13) / 2 = 10.5 on 8.
    found = of_one_system((2, 5, 10), (1, 11, 11), (4, 4, 13), (8, 2, 34))
    assert [*found] == [4]
    assert (found[4].low, found[4].high, found[4].is_priced) == (pytest.approx(3), pytest.approx(10.5), True)


def test_a_size_that_wins_at_one_value_of_an_hour_alone_is_no_alternative():
    # From 3 USD on 4, from (19.002 - 13) / 2 = 3.001 on 8.
    assert of_one_system((2, 5, 10), (4, 4, 13), (8, 2, 19.002)) == {}


def test_a_price_below_which_another_system_wins_makes_it_win():
    asked = {**PRETRAINING, "accelerator": [H100, B200], "objective": "cost", "accelerators": "64"}
    asked.pop("max_accelerators")
    found = ask(asked)
    (other,) = [each for each in found.alternatives if each.candidate.system != found.recommended.system]
    price = other.high
    system = other.candidate.system
    assert ask(asked, price={system: 0.98 * price}).recommended.system == system
    assert ask(asked, price={system: 1.02 * price}).recommended.system == found.recommended.system


def test_no_price_is_named_where_only_time_counts():
    found = ask(LORA, accelerator=[H200, A100], max_accelerators=16, objective="time")
    assert found.alternatives
    assert not any(each.case == "price" for each in found.alternatives)


@pytest.mark.parametrize("question", KINDS.values(), ids=KINDS)
def test_measurements_that_are_named_would_narrow_the_interval(question):
    found = ask(question)
    assert found.to_measure
    for each in found.to_measure:
        assert (
            each.expected_time_s.high / each.expected_time_s.low
            < found.recommended.time_s.high / found.recommended.time_s.low
        )
        assert each.expected_time_s.value == found.recommended.time_s.value
        assert "50 steps on" in each.words


def test_steps_of_a_small_machine_are_worth_measuring():
    found = ask(SMALL)
    assert found.to_measure
    assert found.to_measure[0].command


@pytest.mark.parametrize("question", KINDS.values(), ids=KINDS)
def test_every_record_states_how_many_were_held_out_or_that_none_were(question):
    found = ask(question)
    assert found.records
    for each in found.records:
        assert each.words.endswith(".")
        if each.median_abs_error is not None and each.kind != "number":
            assert "held out" in each.words
            assert each.num_held_out > 0
    kinds = {each.kind for each in found.records}
    assert {"plans", "steps"} <= kinds


def test_strategies_of_the_recommended_size_are_candidates_of_their_own():
    found = ask(SMALL, top=3)
    shown = found.system.best_strategies
    assert shown[0].strategy == found.recommended.strategy
    assert shown[0].work_s.value == pytest.approx(found.recommended.work_s.value)
    assert {each.num_accelerators for each in shown} == {found.recommended.num_accelerators}
    times = [each.work_s.value for each in shown[:3]]
    assert times == sorted(times)
    sizes = by_size(found)
    assert sizes[found.recommended.num_accelerators] == found.recommended


def test_the_cost_of_the_recommended_is_sensitive_to_time_and_price():
    sensitivity = ask(SMALL).sensitivity
    names = {each.name for each in sensitivity.bars}
    assert {name.partition(" ")[0] for name in names} == {"time", "price"}
    free = ask(SMALL, accelerator=["mi100-pcie-32gb"])
    assert free.recommended.usd is None
    assert any(re.search("price .*mi100-pcie-32gb", note) for note in map(str, free.notes))


def test_renting_lists_the_terms_that_have_a_price():
    found = ask(PRETRAINING)
    terms = [each.candidate.terms for each in found.renting]
    assert "on_demand" in terms
    assert len(set(terms)) == len(terms) == len(found.renting)
    for each in found.renting:
        assert each.candidate.work_s == found.recommended.work_s
        if each.candidate.terms == found.recommended.terms:
            assert each.candidate == found.recommended
    own = ask(SMALL, price=f"{RTX}=0.3")
    assert [each.candidate for each in own.renting] == [own.recommended]


def test_buying_is_compared_where_it_is_asked_for():
    found = ask(PRETRAINING, buy=True)
    assert found.ownership is not None
    unknown = ask(SMALL, accelerator=["mi100-pcie-32gb"], buy=True)
    assert unknown.ownership is None
    assert any("--purchase USD" in note for note in map(str, unknown.notes))
    assert ask(PRETRAINING).ownership is None


def test_a_flag_changes_no_number():
    plain, bought = ask(PRETRAINING), ask(PRETRAINING, buy=True)
    assert plain.candidates == bought.candidates
    assert replace(plain.recommended) == bought.recommended
