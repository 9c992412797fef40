"""The page of an answer: its numbers are the recommended candidate's, in a terminal, in HTML and in a notebook."""

import datetime as dt
import re

import parsed_page
import pytest
from made_answer import SIZES, candidate, made_answer, time_s
from msgspec.structs import replace
from rich.cells import cell_len

from equipoise.decide.answer import CONSTRAINTS, Constraint, Flip, UnfitSize, beside_balance_words
from equipoise.decide.decision import answer
from equipoise.decide.evidence import Shortfall
from equipoise.decide.question.field import Sizes
from equipoise.decide.question.query import query
from equipoise.economics import Offer
from equipoise.intervals import Interval, exact
from equipoise.library.decisions import candidate_rows
from equipoise.notes import Note
from equipoise.report import format as amounts
from equipoise.report import html
from equipoise.report.blocks import Facts, PairMatrix, Table, Tiles
from equipoise.report.figures import charts, figure_json
from equipoise.report.pages.answer import ANSWER
from equipoise.report.pages.answer.candidates import flip_words, limit_words, limits_broken, title_of
from equipoise.report.pages.answer.compare import money_chart
from equipoise.report.pages.answer.costs import power_price
from equipoise.report.pages.answer.head import around_choice
from equipoise.report.pages.answer.refusal import refusal_blocks, relaxed
from equipoise.report.terminal import SCREEN_LINES
from equipoise.runs import embedded
from equipoise.runs.readers.measurements import read_measurements
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import TERM_WORDS

# 32 H100: 600 s + 64 h / 32 = 7,800 s; 69.33 accelerator-hours at 2.50 USD; 800 W each.
TIME, MONEY, ENERGY = "2.2 h", "173 USD", "55.5 kWh"


def printed(answer, *, full=False, width=80):
    return parsed_page.printed(ANSWER, answer, full=full, width=width)


def facts(answer):
    found = next(each for each in ANSWER.brief(answer, 5) if isinstance(each, Facts))
    return {
        label: "".join(span if isinstance(span, str) else span.text for span in spans)
        for label, spans in found.items
    }


def tables(answer, kind=Table):
    return {
        block.name: block
        for _, blocks in ANSWER.content(answer)
        for each in blocks
        for group in (*getattr(each, "groups", ()), getattr(each, "blocks", ()))
        for block in (each, *group)
        if isinstance(block, kind)
    }


def rows(table):
    """The rows as texts by the titles of the columns."""
    return [dict(zip([each.title for each in table.columns], row, strict=True)) for row in table.rows]


def test_the_headline_is_the_recommended_candidates_own():
    headline = ANSWER.headline(made_answer())
    assert "32 \N{MULTIPLICATION SIGN} H100 SXM5 80 GB" in headline
    assert "4 nodes" in headline
    assert TIME in headline
    assert MONEY in headline


def test_the_same_numbers_stand_in_the_facts_and_in_the_row():
    answer = made_answer()
    found = facts(answer)
    assert found["Time"].startswith(TIME)
    assert found["Money"].startswith(MONEY)
    assert found["Energy"].startswith(ENERGY)
    (row,) = [each for each in rows(tables(answer)["answer-sizes"]) if each["Status"].badge is not None]
    assert (row["N"].text, row["Time"].text, row["USD"].text) == ("32", TIME, "173")
    assert row["Energy"].text == ENERGY


def test_the_first_lines_say_probability_batch_memory_choice_and_grade():
    found = facts(made_answer())
    assert "97 %" in found["Time"]
    assert "3 h" in found["Time"]
    assert "64 samples" in found["Batch"]
    assert "60 GB of 80 GB" in found["Batch"]
    assert "compiled" in found["Strategy"]
    assert "bf16" in found["Strategy"]
    assert "published" in found["Evidence"].lower()


def test_the_factor_on_measured_steps_stands_beside_steps_and_not_beside_whole_trainings(mine):
    path = mine("gpus,time_to_train_h\n32,2.2\n")
    made = made_answer(recommended=replace(candidate(32), grade="measured"))
    own = replace(made.systems[0], time_per_step_time=1.13)
    of_trainings = replace(own, trainings=read_measurements(path))
    of_both = (replace(made, systems=(each, *made.systems[1:])) for each in (own, of_trainings))
    assert ["1.13" in facts(each)["Evidence"] for each in of_both] == [True, False]


def test_what_was_chosen_is_said_once_and_without_its_option():
    answer = made_answer(
        chosen_for_you=("precision bf16 (--precision for others)", "rented on demand (--terms)")
    )
    found = facts(answer)
    assert "demand" in found["Chosen"]
    assert "--terms" not in found["Chosen"]
    assert "Chosen" not in facts(made_answer())
    assert "precision bf16 (--precision for others)" in " ".join(printed(answer, full=True).split()).lower()


def test_a_step_that_pays_and_one_that_does_not_are_told_apart():
    # 16 -> 32: 15,000 s over 7,800 s is 1.92 times; 32 -> 64: 7,800 over 4,200 is 1.86, and it would pay.
    text = facts(made_answer())["Larger?"]
    assert text.startswith("Yes, 32 over 16: 1.92x")
    assert "64 over 32: 1.86x" in text
    slow = replace(candidate(64), time_s=replace(candidate(64).time_s, value=7000.0, low=6000.0, high=8000.0))
    answer = made_answer()
    answer = replace(answer, candidates=(*answer.candidates[:3], slow, *answer.candidates[4:]))
    text = facts(answer)["Larger?"]
    assert "No, 64 over 32: 1.11x" in text
    assert "1.5x" in text


@pytest.mark.parametrize("deadline", ["25.002s", "26s"])
def test_the_fewest_that_keeps_the_limits_is_the_smallest_feasible_size(deadline):
    # Beyond the balance a larger size is taken where it is faster at about the same cost.
    asked = {"workload": "bert", "accelerator": ["h100"], "max_accelerators": 512, "deadline": deadline}
    found = answer(query(asked), scores=embedded.scores())
    fewest = min(each.num_accelerators for each in found.candidates if each.feasible)
    assert found.recommended.num_accelerators > fewest > found.system.balance_size
    words = facts(found)["Larger?"].rpartition("pays, but ")[2]
    assert [int(each) for each in re.findall(r"\d+", words)] == [fewest, found.recommended.num_accelerators]


def larger(answer, recommended=None, candidates=None, **changed):
    """The words of the step to the recommended candidate, by its place, and of the step beyond it."""
    candidates = candidates or answer.candidates
    best = answer.recommended if recommended is None else candidates[recommended]
    found = replace(answer, candidates=candidates, recommended=best, **changed)
    return facts(found)["Larger?"].rstrip(".").split(". ")


def keeping(candidates):
    """The candidates without limits."""
    return tuple(replace(each, constraints=()) for each in candidates)


def test_the_step_judged_is_that_from_the_next_smaller_size():
    # 7,800 s on 32 and 11,000 s on 16: 1.41 times, where 1.5 would pay; over 8, 20,000 / 7,800 = 2.56 >= 2.5.
    answer = made_answer()
    candidates = keeping(taking(answer, {0: 20_000.0, 1: 11_000.0}))
    first, second = larger(answer, 2, candidates)
    assert first.startswith("Yes, 32 over 8: 2.56x as fast")
    assert "over 16 1.41x" in first
    assert "1.5x" in first
    assert second.startswith("No, 64 over 32: 1.86x")


def test_a_step_that_fails_by_the_time_to_start_has_its_speed_with_it():
    # 512 and 256 s on 16 and 32, with 300 s to start: 812 / 556 = 1.46; 8: 1,500 / 556 = 2.7 >= 2.5. Times as
    # shown: 1,200 / 256 = 4.69.
    answer = made_answer()
    candidates = keeping(taking(answer, {0: 1_200.0, 1: 512.0, 2: 256.0, 3: 255.0}))
    question = replace(answer.question, training_tokens=1e6)
    first, second = larger(answer, 2, candidates, question=question)
    assert first.startswith("Yes, 32 over 8: 4.69x as fast")
    assert "over 16 1.46x with 5 min" in first
    assert "1.5x" in first
    assert second.startswith("No, 64 over 32: 1x")
    assert "pays" not in second  # from when on is said once


def test_what_would_cost_less_without_its_start_stands_beside_the_money_with_it():
    """0.693 USD on 32 in 78 s, 1.333 on 8 in 600 s: with 300 s to start 0.693 x 378 / 78 = 3.36, and 2."""
    answer = made_answer()
    candidates = keeping(taking(answer, {0: 600.0, 2: 78.0}))[:3:2]
    few, many = (
        replace(each, usd=replace(each.usd, value=usd, low=usd, high=usd), charges=None)
        for each, usd in zip(candidates, (1.333, 0.693), strict=True)
    )
    asked = replace(answer.question, objective="cost", training_tokens=1e6)
    unnamed = {"time_values": (), "offers": (), "alternatives": (), "flips": (), "frontier": ()}
    found = replace(answer, question=asked, candidates=(few, many), recommended=few, **unnamed)
    assert re.search(r"\b2\b.*\b32: 3\.36 USD", facts(found)["Money"])


def test_the_speed_of_a_step_beyond_is_that_of_the_times_shown():
    # 512, 256 and 194 s: 256 / 194 = 1.32 as shown, 556 / 494 = 1.13 with 300 s to start.
    answer = made_answer()
    candidates = keeping(taking(answer, {0: 1_200.0, 1: 512.0, 2: 256.0, 3: 194.0}))
    _, second = larger(answer, 2, candidates, question=replace(answer.question, training_tokens=1e6))
    assert second.startswith("No, 64 over 32: 1.32x")


def test_a_speed_that_rounds_to_what_would_pay_has_more_digits():
    # 20,000 / 7,800 = 2.56 pays over 8; 11,690 / 7,800 = 1.4987 does not over 16.
    answer = made_answer()
    first, _ = larger(answer, 2, keeping(taking(answer, {0: 20_000.0, 1: 11_690.0})))
    assert "over 16 1.499x" in first


def test_the_speed_from_which_a_step_pays_is_written_apart_from_one_that_falls_short():
    # From 32 to 40 it pays from 1 + 0.25 / 2 = 1.125 times on: 7,800 / 6,964 = 1.12005 falls short.
    answer = made_answer()
    candidates = keeping(taking(answer, {3: 6_964.0}))
    fourth = replace(candidates[3], num_accelerators=40)
    unnamed = {"time_values": (), "offers": (), "alternatives": (), "flips": (), "frontier": ()}
    _, second = larger(answer, 2, (*candidates[:3], fourth), **unnamed)
    assert second.startswith("No, 40 over 32: 1.12x")
    assert "1.125x" in second
    # 7,800 / 5,204 = 1.4988 of 64, which pays from 1.5 on.
    _, second = larger(answer, 2, keeping(taking(answer, {3: 5_204.0})))
    assert second.startswith("No, 64 over 32: 1.499x")


def test_a_step_that_is_slower_names_the_further_nodes_it_takes():
    # 64 in two nodes take 10,000 s where 32 in one take 7,800: 0.78 times as fast.
    answer = made_answer()
    inside = [replace(each, num_nodes=1) for each in answer.candidates]
    for slow_s, is_named in ((10_000.0, True), (5_204.0, False)):
        slower = keeping(taking(replace(answer, candidates=(*inside,)), {3: slow_s}))
        _, second = larger(answer, 2, (*slower[:3], replace(slower[3], num_nodes=2), *slower[4:]))
        assert second.startswith("No, 64 over 32")
        assert ("2 nodes" in second) == is_named


def test_a_stated_deadline_is_shown_as_it_was_stated():
    # 100 h are 4 days and 4 hours, and no number of days in few digits.
    answer = made_answer()
    question = replace(answer.question, deadline_s=360_000.0, queue_s=180_000.0)
    stated = replace(answer.candidates[1].constraints[0], name="deadline_s", limit=360_000.0)
    words = limit_words(replace(answer, question=question), stated)
    assert re.findall(r"[0-9.,]+ [a-z]+", words) == ["100 h", "50 h"]


def test_a_start_that_is_a_good_part_of_the_time_is_in_money_and_named():
    # 32 for 600 s and 300 s of starting: half as much again.
    answer = made_answer()
    question = replace(answer.question, training_tokens=1e6)
    best = replace(answer.recommended, time_s=replace(answer.recommended.time_s, value=600.0))
    found = facts(replace(answer, question=question, recommended=best))
    assert "start-up" in found["Time"]
    assert "5 min" in found["Time"]
    assert f"with start-up {amounts.money(1.5 * best.usd.value)}" in found["Money"]
    assert "with start-up" in found["If time"]
    long = facts(replace(answer, question=question))  # 7,800 s
    assert not any("start-up" in each for each in long.values())


def test_what_decided_for_a_size_to_which_no_step_pays_is_said():
    answer = made_answer()
    slow = taking(answer, {2: 14_000.0})  # 15,000 / 14,000 = 1.07
    (first, _) = larger(answer, 2, slow)  # 16 miss the deadline of three hours in these answers
    assert re.search(r"No, 32 over 16: 1.07x .*; 16 .*\b3 h", first)
    question = replace(answer.question, objective="time", deadline_s=None)
    first, _ = larger(answer, 2, keeping(slow), question=question)
    assert re.search(r"No, 32 over 16: 1.07x .*; .*\btime\b", first)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("floor", "efficiency .* half"),
        ("balance", "efficiency .* speedup .*highest at 32"),
        ("marginal", "diminish beyond 32"),
    ],
)
def test_why_a_step_that_pays_is_not_taken_is_said(kind, words):
    answer = made_answer()
    point = replace(answer.equilibria[1], kind=kind)
    _, second = larger(answer, equilibria=(point,))
    assert re.match(f"No, 64 over 32: 1.86x for 1.08x,.* pays, but .*{words}", second)


ENDS = {
    "data": "32 is the most that the data support",
    "catalogue": "32 is the largest tried",
    "question": "32 is the most within your limit",
    "strategies": "32 is the largest on which a strategy runs",
}


@pytest.mark.parametrize("limited_by", ENDS)
def test_where_sizes_end_is_said_of_a_step_that_would_pay(limited_by):
    _, second = larger(made_answer(limited_by=limited_by))
    assert second.endswith(f"pays, but {ENDS[limited_by]}")


def test_steps_are_those_between_usual_sizes():
    answer = made_answer()
    before, after = candidate(28, is_between=True), candidate(36, is_between=True)
    crowded = replace(answer, candidates=(*answer.candidates, before, after))
    assert larger(crowded) == larger(answer)
    assert {each.num_accelerators for each in crowded.listed} == {8, 16, 32, 64}
    # Recommended, such a size is listed, and is compared with the usual ones about it.
    taken = replace(crowded, recommended=before)
    assert {each.num_accelerators for each in taken.listed} == {8, 16, 28, 32, 64}
    assert [each[: each.index(":")] for each in larger(taken)] == ["Yes, 28 over 16", "No, 32 over 28"]


def test_a_size_that_is_listed_for_one_system_has_the_word_of_each():
    answer = made_answer()
    b200 = answer.candidates[-1]
    between = (candidate(28, is_between=True), replace(b200, num_accelerators=28, is_between=True))
    crowded = replace(answer, candidates=(*answer.candidates, *between), recommended=between[0])
    (matrix,) = tables(crowded, PairMatrix).values()
    words = {name: badges for name, _, badges in matrix.rows}
    assert all(words["28"])
    assert "28" not in {name for name, _, _ in tables(answer, PairMatrix)["answer-matrix"].rows}


def test_the_steps_to_and_from_a_size_take_two_lines():
    # Up to sizes of four digits, steps that pay; a third line where both fail by the time to start.
    answer = made_answer()
    point = replace(
        answer.equilibria[1],
        kind="floor",
        title="the last size with at least half the efficiency of size 1",
    )
    many = tuple(
        replace(each, num_accelerators=16 * each.num_accelerators, constraints=())
        for each in taking(answer, {0: 1_200.0, 1: 512.0, 2: 256.0, 3: 136.0})[:4]
    )
    point = replace(point, num_accelerators=512)
    for question, most in ((answer.question, 2), (replace(answer.question, training_tokens=1e6), 3)):
        found = replace(
            answer, question=question, candidates=many, recommended=many[2], equilibria=(point,), offers=(),
            alternatives=(), flips=(), time_values=(), frontier=(),
        )  # fmt: skip
        lines = printed(found).splitlines()
        at = next(place for place, line in enumerate(lines) if line.startswith("Larger?"))
        assert lines[at + 1].startswith(" ")
        assert not lines[at + most].startswith(" ")


@pytest.mark.parametrize(("chance", "words"), [(0.82, "82 %"), (0.5, "50 %"), (0.95, ""), (None, "")])
def test_a_plan_that_may_not_fit_says_how_likely_it_does(chance, words):
    answer = made_answer()
    best = answer.recommended
    memory = replace(best.memory, needed_bytes=79.3e9, fits_probability=chance)
    text = facts(replace(answer, recommended=replace(best, memory=memory)))["Batch"]
    assert "79.3 GB of 80 GB" in text
    assert words in text
    assert ("likely" in text) == bool(words)


def test_a_published_step_of_the_very_model_that_contradicts_the_answer_is_named():
    # OpenCLIP trained ViT-L/14 on LAION-400M on 400 A100 of 40 GB at 27,996.5 samples/s (its README): the same
    # samples take 127 hours.
    asked = {"workload": "clip_vit_l14", "samples": 12.8e9, "accelerator": ["a100-sxm4-40gb"]}
    found = answer(query({**asked, "accelerators": 400}), scores=None)
    longer = 12.8e9 / 27_996.5 / found.recommended.work_s.value
    assert longer * found.recommended.time_s.value > found.recommended.time_s.high
    evidence = facts(found)["Evidence"]
    assert all(each in evidence for each in ("400", f"{longer:.2g}x"))
    few = answer(query({**asked, "accelerators": 16}), scores=None)
    assert "400" not in facts(few)["Evidence"]
    larger = answer(query({**asked, "accelerator": "a100-sxm4-80gb", "accelerators": 400}), scores=None)
    assert all(each in facts(larger)["Evidence"] for each in ("400", "40 GB"))


def test_one_screen_has_the_energy_of_each_size_where_the_least_is_asked_for():
    made = made_answer()
    found = replace(made, question=replace(made.question, objective="energy"))
    columns = [
        [column.title for column in each.columns]
        for answer in (found, made)
        for each in ANSWER.brief(answer, 5)
        if isinstance(each, Table)
    ]
    assert ["Energy" in each for each in columns] == [True, False]


def test_larger_sizes_on_which_nothing_fits_are_named_where_the_steps_are():
    made = made_answer()
    unfit = tuple(UnfitSize(num_accelerators=size, needed_bytes=82.5e9) for size in (4, 64, 128))
    best = keeping((made.candidates[0],))
    systems = tuple(replace(each, unfit=unfit) for each in made.systems)
    nothing_else = dict.fromkeys(("flips", "alternatives", "offers", "time_values"), ())
    found = replace(made, candidates=best, recommended=best[0], systems=systems, **nothing_else)
    assert best[0].num_accelerators == 8
    words = facts(found)["Larger?"]
    assert all(each in words for each in ("64 and 128", "82.5 GB", "80 GB"))
    assert "4 " not in words.replace("64 ", "")


# By hand: 30 x 8,000 over 32 x 8,100 hours is 0.926 times the money; 36 x 7,000 over 32 x 8,000 is 0.984.
@pytest.mark.parametrize(
    ("balance_s", "size", "taken_s", "words"),
    [(8100.0, 30, 8000.0, ("30", "32", "0.926x")), (8000.0, 36, 7000.0, ("36", "0.984x"))],
)
def test_a_size_beside_the_balance_that_is_faster_for_less_is_said_to_be(balance_s, size, taken_s, words):
    made = made_answer()
    rows = keeping(
        tuple(
            replace(candidate(number), work_s=exact(time), time_s=exact(time), usd=exact(number * time))
            for number, time in sorted({32: balance_s, size: taken_s}.items())
        )
    )
    best = next(each for each in rows if each.num_accelerators == size)
    found = beside_balance_words(best, made.system.balance_size, rows)
    assert made.system.balance_size == 32
    assert all(word in found for word in words)


def test_buying_that_was_asked_for_and_not_compared_says_so_on_one_screen():
    # Nobody states what a Gaudi 3 costs to rent (`list prices`).
    asked = {"workload": "llama31_8b", "tokens": "100G", "accelerator": ["gaudi3"], "max_accelerators": 8}
    found = answer(query({**asked, "buy": True}), scores=None)
    assert found.ownership is None
    assert "--price" in facts(found)["Buying"]


def taking(answer, times_s):
    """The candidates of an answer, those at some places with other times."""
    return tuple(
        replace(each, time_s=replace(each.time_s, value=times_s[place])) if place in times_s else each
        for place, each in enumerate(answer.candidates)
    )


def test_a_step_over_a_size_that_is_slower_and_dearer_than_the_next_is_not_named():
    # From 8 at 100,000 s, 32 at 11,000 s would pay; from 16, 15,000 / 11,000 = 1.36 does not.
    answer = made_answer()
    candidates = taking(answer, {0: 100_000.0, 2: 11_000.0})
    text = facts(replace(answer, candidates=candidates, recommended=candidates[2]))["Larger?"]
    assert "No, 32 over 16: 1.36x" in text


def test_a_step_from_the_smallest_size_has_the_interval_of_the_speedup():
    answer = made_answer()
    two = replace(answer, recommended=answer.candidates[1])
    # 8 -> 16: 29,400 s over 15,000 s is 1.96 times, within 2 %.
    assert "16 over 8: 1.96x as fast (1.92\N{EN DASH}2x)" in facts(two)["Larger?"]


LIMITS = {
    "data": "data support",
    "catalogue": "largest tried",
    "question": "your limit",
    "strategies": "strategy runs",
}


@pytest.mark.parametrize("limited_by", LIMITS)
def test_whose_limit_ended_the_search_has_a_sentence_each(limited_by):
    found = facts(made_answer(limited_by=limited_by))["Returns"]
    assert [each for each, words in LIMITS.items() if words in found] == [limited_by]


def test_a_point_that_was_found_has_its_range():
    assert re.search(r"32 \(16 to 64", facts(made_answer())["Returns"])


@pytest.mark.parametrize(
    ("sizes", "named"),
    [(Sizes(listed=(16,)), ["16"]), (Sizes(listed=(8, 16)), ["8,16"]), (Sizes(listed=(8, 64), is_range=True), ["8..64"]),
     (None, [])],
)  # fmt: skip
def test_where_returns_diminish_is_among_sizes_that_are_named_where_some_are_stated(sizes, named):
    answer = made_answer()
    one = replace(answer, recommended=answer.candidates[1], question=replace(answer.question, sizes=sizes))
    assert re.findall(r"\bamong\D*([\d.,]*\d)", facts(one)["Returns"]) == named


def test_the_value_of_an_hour_names_the_sizes_and_the_thresholds():
    answer = made_answer()
    eight, sixteen, thirty_two, sixty_four = answer.candidates[:4]
    for best, values in (
        (eight, "less than 40 USD per hour: 8; more: 32"),
        (sixteen, "less than 40 USD per hour: 8; more: 32"),  # costs least at no value
        (thirty_two, "40 to 330 USD per hour: 32; less: 8; more: 64"),
        (sixty_four, "more than 330 USD per hour: 64; less: 32"),
    ):
        assert facts(replace(answer, recommended=best))["If time"] == f"is worth {values}"
    found = rows(tables(answer)["answer-values"])
    assert [(each["An hour is worth"].text, each["Take"].key) for each in found] == [
        ("less than 40 USD", 8),
        ("40 to 330 USD", 32),
        ("more than 330 USD", 64),
    ]


def test_a_range_of_the_value_of_an_hour_whose_ends_are_written_alike_is_not_shown():
    answer = made_answer()
    eight, thirty_two, sixty_four = answer.time_values
    values = (eight, replace(thirty_two, from_usd_per_hour=40.1), replace(sixty_four, from_usd_per_hour=40.4))
    found = rows(
        tables(replace(answer, recommended=answer.candidates[0], time_values=values))["answer-values"]
    )
    assert [(each["An hour is worth"].text, each["Take"].key) for each in found] == [
        ("less than 40 USD", 8),
        ("more than 40 USD", 64),
    ]


def test_a_step_that_pays_but_for_the_time_to_start_is_told_so():
    # 512 s on 16, 256 s on 32: twice as fast; with 300 s to start 812 / 556 = 1.46 times.
    answer = made_answer()
    candidates = taking(answer, {1: 512.0, 2: 256.0})
    changes = {"candidates": candidates, "recommended": candidates[1]}
    text = facts(replace(answer, question=replace(answer.question, training_tokens=1e6), **changes))[
        "Larger?"
    ]
    assert "No, 32 over 16: 2x" in text
    assert "1.46x" in text
    text = facts(replace(answer, question=replace(answer.question, training_tokens=None), **changes))[
        "Larger?"
    ]
    assert "to start" not in text


def test_the_short_form_counts_the_systems_it_has_no_room_for():
    answer = made_answer()
    others = tuple(replace(answer.candidates[0], system=name, title=name) for name in ("red", "blue"))
    text = printed(replace(answer, candidates=(*answer.candidates, *others)))
    assert "2 other systems" in " ".join(text.split())


def test_every_candidate_has_its_row_with_what_it_breaks():
    found = rows(tables(made_answer())["answer-sizes"])
    assert [each["N"].text for each in found] == ["8", "16", "32", "64", "8", "16"]
    assert [each["Status"].text for each in found][:2] == ["misses deadline"] * 2


@pytest.mark.parametrize(("time_s", "status"), [(10_830.0, "misses deadline"), (10_790.0, "")])
def test_a_time_reads_as_on_its_side_of_the_deadline(time_s, status):
    # Of three hours, 10,800 s: both are 3.0 h to a decimal.
    answer = made_answer()
    assert answer.question.deadline_s == 10_800.0
    two = replace(answer.candidates[1], time_s=replace(answer.candidates[1].time_s, value=time_s))
    limits = tuple(
        replace(each, value=time_s) if each.name == "deadline_s" else each for each in two.constraints
    )
    two = replace(two, constraints=limits)
    answer = replace(answer, candidates=(answer.candidates[0], two, *answer.candidates[2:]))
    row = rows(tables(answer)["answer-sizes"])[1]
    assert row["N"].text == "16"
    assert (float(row["Time"].text.removesuffix(" h")) > 3) == (time_s > 10_800.0)
    assert row["Status"].text == status


def test_flips_and_alternatives_are_named():
    (row,) = rows(tables(made_answer())["answer-flips"])
    assert row["Changes at"].key == 4.0
    assert "B200" in row["To"].text
    assert re.search(r"B200.*\bbelow 4 USD", " ".join(printed(made_answer(), full=True).split()))


def test_a_time_below_a_minute_is_said_to_be_short_of_starting():
    # 30 s of steps; the made answer takes many minutes.
    answer = made_answer()
    best = answer.recommended
    quick = replace(best, time_s=replace(best.time_s, value=30.0, low=20.0, high=45.0))
    at_once = replace(answer, recommended=quick)
    assert best.time_s.value > 60
    assert "start-up" not in next(line for line in printed(answer).splitlines() if line.startswith("Time "))
    assert "start-up" in next(line for line in printed(at_once).splitlines() if line.startswith("Time "))


def test_a_change_too_small_for_the_digits_shown_is_called_that():
    answer = made_answer()
    near = replace(answer.flips[0], flips_at=4.9999)
    text = " ".join(printed(replace(answer, flips=(near,))).split())
    assert "price of B200 SXM 180 GB slightly below 5 USD per accelerator-hour: 16" in text
    assert "price of B200 SXM 180 GB below 4 USD per accelerator-hour (now 5): 16" in " ".join(
        printed(answer).split()
    )


def test_a_refusal_names_the_cheapest_the_fastest_and_what_would_do():
    text = " ".join(printed(made_answer(is_refused=True)).split())
    assert ANSWER.headline(made_answer(is_refused=True)) in text
    assert re.search("Cheapest[^.]*: 8 \N{MULTIPLICATION SIGN} H100", text)
    assert re.search("Fastest[^.]*: 64 \N{MULTIPLICATION SIGN} H100", text)
    assert re.search(r"deadline\b.* 70 min\b.* 30 min", text)


def test_a_refusal_names_the_terms_of_what_it_names():
    answer = made_answer(is_refused=True)
    taken = answer.refusal.relaxations[0].candidate
    reserved = tuple(
        replace(each, terms="reserved") if each.id == taken else each for each in answer.candidates
    )
    moved = next(each for each, was in zip(reserved, answer.candidates, strict=True) if was.id == taken)
    step = replace(answer.refusal.relaxations[0], candidate=moved.id)
    refusal = replace(answer.refusal, cheapest=moved, fastest=moved, relaxations=(step,))
    text = " ".join(printed(replace(answer, candidates=reserved, refusal=refusal)).split())
    title = f"{title_of(moved)}, reserved"
    assert (text.count(f"{title} ("), text.count(f"{title}.")) == (1, 1)


@pytest.mark.parametrize(("stated", "is_limit"), [({}, False), ({"max_accelerators": 512}, True)], ids=str)
def test_a_size_beyond_those_tried_is_above_no_limit_unless_one_is_stated(stated, is_limit):
    asked = {"workload": "llama31_8b", "tokens": "1T", "accelerator": ["h100"]}
    found = answer(query({**asked, **stated}), scores=None)
    (beyond,) = (each for each in found.candidates if each.num_accelerators == 1024)
    assert [one.limit for one in beyond.broken] == [512]
    assert ("512" in limits_broken(found, beyond)) is is_limit


def test_runs_in_another_precision_are_said_to_be_converted(tmp_path):
    path = tmp_path / "mine.csv"
    rows = "8,128,12.0,bf16\n16,128,6.3,bf16\n"
    path.write_text(f"num_accelerators,global_batch_samples,step_s,precision\n{rows}")
    asked = {"workload": "llama31_8b", "tokens": "10G", "accelerator": ["h100"], "accelerators": "16"}
    said = [
        facts(answer(query({**asked, "runs": path, "precision": precision}), scores=None))["Evidence"]
        for precision in ("bf16", "fp8")
    ]
    assert [re.findall("bf16|fp8", words) for words in said] == [[], ["bf16", "fp8"]]


def test_a_refusal_shows_time_and_money_of_every_size_and_is_no_lack_of_data():
    answer = made_answer(is_refused=True)
    timed = [each for each in answer.listed if each.time_s is not None]
    late = replace(timed[0].constraints[0], name="deadline_s", limit=60.0, value=600.0, probability=0.0)
    refused = {each.id: replace(each, constraints=(late,)) for each in answer.candidates}
    answer = replace(answer, candidates=tuple(refused.values()))
    assert answer.candidates
    assert all(each.broken for each in answer.candidates)
    shown = tables(answer, PairMatrix)["answer-matrix"].rows
    assert shown
    assert len(timed) > 2
    assert {name for name, _, _ in shown} == {str(each.num_accelerators) for each in timed}
    for name, _, (badge, *_) in shown:
        size = next(each for each in timed if str(each.num_accelerators) == name)
        assert badge.text == amounts.duration(size.time_s.value)
        assert amounts.short_money(size.usd.value) in badge.detail
    left_out = ANSWER.left_out(answer)
    assert left_out
    words, unknown = ANSWER.left_out_words(answer), ANSWER.left_out_words(replace(answer, refusal=None))
    assert all(title in words for title in left_out)
    assert words != unknown  # nothing is lacking: there is nothing to run
    last = " ".join(printed(answer, full=True).split())
    assert last.endswith(words)
    assert words in html.render(ANSWER, answer).replace("\xa0", " ")


def test_a_deadline_that_would_do_holds_the_queue_as_its_option_does():
    # 70 min of training are needed instead of 30 min; 60 min of waiting come before them.
    answer = made_answer(is_refused=True)
    step = replace(answer.refusal.relaxations[0], limit=5400.0, needed=7800.0)
    queued = replace(
        answer,
        question=replace(answer.question, queue_s=3600.0, deadline_s=5400.0),
        refusal=replace(answer.refusal, relaxations=(step,)),
    )
    text = " ".join(printed(queued).split())
    assert re.search(r"deadline of (2\.2 h|130 min)\b.* (1\.5 h|90 min)\b", text)


@pytest.mark.parametrize(
    ("then_s", "words"), [(210.0, r"3\.5 min \(now 53\.5 s\)"), (58.0, r"58 s \(now 53\.5\)")]
)
def test_a_time_now_keeps_its_unit_where_that_of_the_change_is_another(then_s, words):
    answer = made_answer()
    system = answer.recommended.system
    one = Flip(
        quantity=f"time on {system}",
        system=system,
        unit="s",
        value=53.5,
        flips_at=then_s,
        to=answer.flips[0].to,
    )
    assert re.search(words, flip_words(answer, one))


@pytest.mark.parametrize(("chip", "word"), [("tpu-v5p", "pod"), ("trainium2", "node"), ("gb200", "node")])
def test_accelerators_of_many_hosts_on_one_torus_are_a_pod(chip, word):
    answer = made_answer()
    best = replace(answer.recommended, num_nodes=1)
    systems = [
        replace(each, cluster=cluster(chip)) if each.name == best.system else each for each in answer.systems
    ]
    assert f"(1 {word})" in ANSWER.headline(replace(answer, systems=tuple(systems), recommended=best))


def test_a_refusal_names_what_was_chosen_and_one_candidate_once():
    answer = replace(made_answer(is_refused=True), chosen_for_you=("at most 8 (--max-accelerators)",))
    text = " ".join(printed(answer).split())
    assert "8 (--max-accelerators)" in text
    title = f"{title_of(answer.refusal.cheapest)} ("
    alone = replace(answer, refusal=replace(answer.refusal, fastest=answer.refusal.cheapest, relaxations=()))
    assert " ".join(printed(alone).split()).count(title) == 1


def test_a_mixture_is_no_number_of_its_first_kind():
    mixed = replace(candidate(16), system="a+b", accelerator="a+b", title="NVIDIA A + AMD B")
    assert title_of(mixed) == "16 accelerators of A + B"


def test_the_short_form_of_a_refusal_has_the_note_that_says_why():
    why = "H100: it needs 700 GB, 8 x 80 GB hold 640 GB: try 16 accelerators."
    answer = replace(made_answer(is_refused=True), notes=(Note("Another."), Note(why, "nothing_fits")))
    text = " ".join(printed(answer).split())
    assert why in text
    assert "Another" not in text
    assert "1 note" in text
    whole = " ".join(str(each) for each in ANSWER.sections[0].blocks(answer))  # what a page shows at its top
    assert why in whole
    assert "Another" not in whole


def test_a_size_without_an_estimate_says_so():
    answer = made_answer()
    unknown = replace(candidate(64), time_s=None, why_not="overfull", usd=None, energy_j=None)
    answer = replace(answer, candidates=(*answer.candidates[:3], unknown, *answer.candidates[4:]))
    (row,) = [each for each in rows(tables(answer)["answer-sizes"]) if each["N"].text == "64"]
    assert row["Status"].text == "no estimate"
    assert "overfull" in row["Status"].detail


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("width", [60, 80, 132])
@pytest.mark.parametrize("is_refused", [False, True])
def test_no_line_is_longer_than_the_terminal(full, width, is_refused):
    lines = printed(made_answer(is_refused=is_refused), full=full, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("is_refused", [False, True])
def test_long_names_leave_the_status_and_what_changes_the_answer_their_room(full, is_refused):
    answer = made_answer(is_refused=is_refused)
    title = "Google TPU v6e Trillium (chip)"
    # Sums as of a large pretraining: 173 USD as 17,300,000.
    renamed = {
        each.id: replace(
            each,
            title=title,
            usd=Interval(
                value=1e5 * each.usd.value, low=1e5 * each.usd.low, high=1e5 * each.usd.high, level=0.9
            ),
        )
        for each in answer.candidates
    }
    second = replace(next(iter(renamed.values())), system="second", title="NVIDIA Second of its kind")
    answer = replace(
        answer,
        candidates=(*renamed.values(), second),
        recommended=answer.recommended and renamed[answer.recommended.id],
        flips=tuple(
            replace(each, quantity=f"price of {title}", unit="USD per accelerator-hour")
            for each in answer.flips[:1]
        ),
    )
    text = printed(answer, full=full)
    assert "Status" in text
    missing = [line for line in text.splitlines() if "--json" in line]
    assert not [line for line in missing if re.search("Status|USD|Changes|To", line)]


def test_the_short_form_fits_a_screen_and_names_the_long_one():
    lines = printed(made_answer()).splitlines()
    assert len(lines) <= SCREEN_LINES == 25
    assert "--full" in lines[-1]


def test_the_short_form_shows_the_sizes_around_the_choice():
    answer = made_answer()
    many = tuple(candidate(8 * count, strategy=None) for count in range(1, 40))
    best = many[20]
    answer = replace(answer, candidates=many, recommended=best, alternatives=(), flips=(), time_values=())
    table = next(each for each in ANSWER.brief(answer, 5) if isinstance(each, Table))
    assert 2 <= len(table.rows) <= 8
    assert any(cell.badge is not None for row in table.rows for cell in row)


def test_the_sizes_that_the_lines_name_come_first_among_the_rows():
    answer = made_answer()
    best = answer.recommended
    (middle,) = [each for each in answer.time_values if each.candidate == best.id]
    far = answer.candidates[0]
    values = (replace(middle, from_usd_per_hour=0.0, candidate=far.id), middle)
    answer = replace(answer, time_values=values, offers=())
    assert facts(answer)["If time"].endswith(f"less: {far.num_accelerators}")
    shown = around_choice(answer, 4)
    assert {far.id, best.id} <= {each.id for each in shown}


def test_time_and_money_by_size_has_both():
    answer = made_answer()
    size = str(answer.recommended.num_accelerators)
    lines = [each for each in printed(answer, full=True).splitlines() if each.startswith(f"{size} ")]
    assert any(re.search(rf"{TIME}\W+{MONEY}", each) for each in lines)


def test_what_the_short_form_has_no_room_for_is_named():
    # Of three systems energy and returns give their lines to rows.
    answer = made_answer()
    systems = tuple(replace(answer.systems[0], name=name) for name in ("red", "blue"))
    answer = replace(answer, systems=(*answer.systems, *systems))
    assert "Energy" not in facts(answer)
    more = printed(answer).split("--full")[1]
    assert "Energy" in more
    assert "Returns" in more


def test_the_recommended_row_is_marked():
    answer = made_answer()
    rows = parsed_page.Parsed(html.render(ANSWER, answer)).all("tr", class_="marked")
    assert len(rows) == 3  # by value of an hour, of the systems, of every size
    for row in rows:
        assert "recommended" in row.text
        assert f"{answer.recommended.num_accelerators}" in row.text


def test_the_page_escapes_every_name_and_loads_nothing():
    text = html.render(ANSWER, made_answer())
    assert "<img" not in text
    assert "\x1b" not in text
    assert not re.search(r'(?:src|href)="https?:', html.fragment(ANSWER, made_answer()))
    assert "<img" not in html.notebook_html(ANSWER, made_answer())
    assert "\x1b" not in printed(made_answer(), full=True)


def test_what_a_program_cannot_express_is_said():
    chosen = made_answer().recommended
    pipelined = replace(chosen, strategy=replace(chosen.strategy, dp=16, pp=2))
    answer = made_answer(recommended=pipelined)
    unsupported = [each for each in answer.snippets if each.unsupported]
    assert unsupported
    page = html.render(ANSWER, answer)
    assert all(f"{each.target} cannot express: {each.unsupported[0]}" in page for each in unsupported)


def test_the_notebook_shows_the_same_numbers():
    answer = made_answer()
    text = html.notebook_html(ANSWER, answer).replace("\N{NO-BREAK SPACE}", " ")
    assert TIME in text
    assert MONEY in text
    assert "<script" not in text
    rows = candidate_rows(answer)
    assert [row["num_accelerators"] for row in rows] == [*SIZES, 8, 16]
    assert [row["time_s"] for row in rows][:4] == [29_400.0, 15_000.0, 7_800.0, 4_200.0]
    assert [row["id"] for row in rows if row["recommended"]] == ["h100-sxm5-80gb/32/on_demand"]
    figure = figure_json(charts(ANSWER, answer)["answer-times"])
    assert {"data", "layout"} == figure.keys()
    assert "var(" not in str(figure)


def test_an_answer_of_runs_alone_has_a_page():
    bare = candidate(8, strategy=None, model=None, memory=None, mfu=None, step_s=None, usd=None, price=None)
    answer = made_answer()
    answer = replace(
        answer, candidates=(bare,), recommended=bare, equilibria=(), alternatives=(), flips=(), time_values=(),
        frontier=(), renting=(), sensitivity=None,
        offers=(replace(answer.offers[0], candidate=bare.id),),
    )  # fmt: skip
    text = " ".join(printed(answer, full=True).split())
    assert "(--price)" in text
    assert amounts.duration(time_s(8)) in text


def test_a_faster_system_without_a_price_is_named_with_what_it_may_cost():
    answer = made_answer()
    faster = answer.offers[1].candidate
    bare = tuple(
        replace(each, usd=None, price=None) if each.id == faster else each for each in answer.candidates
    )
    # 32 H100 cost 173.33 USD; 16 B200 take (600 s + 4 h) / 2 = 7,500 s, 33.33 accelerator-hours.
    texts = [
        printed(replace(answer, candidates=known, alternatives=(), flips=()), width=132)
        for known in (bare, answer.candidates)
    ]
    assert ["5.20 USD" in each for each in texts] == [True, False]


def test_an_amount_whose_range_is_too_wide_is_no_number():
    answer = made_answer()
    best = answer.recommended
    wide = replace(best, usd=replace(best.usd, low=best.usd.value / 10, high=best.usd.value * 3))
    answer = replace(
        answer, recommended=wide, candidates=(*answer.candidates[:2], wide, *answer.candidates[3:])
    )
    assert MONEY not in ANSWER.headline(answer)
    assert "too wide" in facts(answer)["Money"]


def test_a_refusal_where_nothing_fits_has_neither_cheapest_nor_fastest():
    answer = made_answer(is_refused=True)
    step = replace(
        answer.refusal.relaxations[0], constraint="memory_bytes", limit=80e9, needed=130e9, candidate=None
    )
    nothing = replace(answer.refusal, cheapest=None, fastest=None, relaxations=(step,))
    text = " ".join(printed(replace(answer, refusal=nothing, candidates=(), alternatives=())).split())
    assert re.search(r"Memory\b.* 130 GB\b.* 80 GB", text)


def test_sizes_without_a_strategy_are_not_said_to_lack_memory():
    answer = made_answer()
    sizes = (
        UnfitSize(num_accelerators=7, needed_bytes=None),
        UnfitSize(num_accelerators=1, needed_bytes=9e10),
    )
    systems = (replace(answer.systems[0], title="NVIDIA A", unfit=sizes), *answer.systems[1:])
    question = replace(answer.question, sizes=Sizes(listed=(1, 7, 8)))
    text = " ".join(printed(replace(answer, question=question, systems=systems)).split())
    assert re.search(r"not fit: 1 \S A\.", text)
    assert re.search(r"No strategy: 7 \S A\.", text)


def test_on_several_systems_without_room_each_has_its_line_and_the_headline_names_them():
    answer = made_answer(is_refused=True)
    step = replace(
        answer.refusal.relaxations[0], constraint="memory_bytes", limit=24e9, needed=879e9, candidate=None
    )
    needs = "needs 7 TB, 8 x 24 GB hold 192 GB"
    first = replace(
        answer.systems[0],
        title="NVIDIA A",
        unfit=(UnfitSize(num_accelerators=8, needed_bytes=879e9),),
        shortfall=Shortfall(needs=needs, ways=("112 accelerators",)),
    )
    second = replace(
        first,
        name="b",
        title="NVIDIA B",
        unfit=(replace(first.unfit[0], num_accelerators=4),),
        shortfall=Shortfall(needs=needs, ways=("80 accelerators",)),
    )
    nothing = replace(
        answer,
        refusal=replace(answer.refusal, cheapest=None, fastest=None, relaxations=(step,)),
        candidates=(),
        alternatives=(),
        offers=(),
        systems=(first, second),
        notes=(Note("NVIDIA A: it needs 7 TB.", "nothing_fits"),),
    )
    assert {"8", "4"} <= set(ANSWER.headline(nothing).split())
    found = facts(nothing)
    assert found["A"].startswith("112 accelerators")
    assert found["B"].startswith("80 accelerators")
    assert "879 GB" not in printed(nothing)
    assert "note" not in printed(nothing).splitlines()[-1]


def test_a_machine_of_ones_own_is_rented_on_no_terms():
    found = made_answer()
    owned = replace(found.recommended.price, usd_per_accelerator_hour=0.0)
    answer = replace(found, recommended=replace(found.recommended, price=owned))
    (tiles,) = (each for each in ANSWER.sections[0].blocks(answer) if isinstance(each, Tiles))
    (money,) = (each for each in tiles.items if each.label == "Money")
    assert "0.00" not in money.words
    assert TERM_WORDS["on_demand"] not in money.words


def test_a_price_of_one_provider_is_called_so():
    offers = [
        Offer(
            usd_per_accelerator_hour=2.5,
            terms="on_demand",
            provider=name,
            read=dt.date(2026, 11, 21),
            source="a list",
        )
        for name in ("Cloud One", "Cloud Two")
    ]
    found = made_answer()
    best = found.recommended
    lone, several = (
        facts(replace(found, recommended=replace(best, price=replace(best.price, offers=tuple(each)))))
        for each in (offers[:1], offers)
    )
    assert "Cloud One" in lone["Money"]
    assert "Cloud" not in several["Money"]


def test_a_value_of_an_hour_has_the_same_digits_in_table_and_chart():
    made = made_answer()
    offers = (made.offers[0], replace(made.offers[1], break_even_usd_per_hour=866.4))
    page = html.render(ANSWER, made_answer(offers=offers))
    assert "870 USD/h" in page
    assert "than 870 USD" in page
    assert "866 USD" not in page


def test_the_line_of_equal_cost_joins_the_two_points_whatever_an_hour_is_worth_with_starting():
    # At 1e6 USD an hour, 300 s that 16 B200 are faster by would be more than all 173 USD of 32 H100.
    made = made_answer()
    offer = replace(made.offers[1], break_even_usd_per_hour=1e6)
    chart = money_chart(made_answer(offers=(made.offers[0], offer)))
    line = next(each for each in chart.series if each.name == "break-even")
    ends = [made.recommended, made.candidate(offer.candidate)]
    assert [line.y[0], line.y[-1]] == pytest.approx([each.usd.value for each in ends])
    assert line.x[0] / line.x[-1] == pytest.approx(ends[0].time_s.value / ends[1].time_s.value)
    assert min(line.y) == pytest.approx(min(each.usd.value for each in ends))


def without_price(each):
    return replace(each, price=None, usd=None)


def against_the_choice(*, of=None, best=None, **changed):
    """What the table of systems says of the second one: 16 B200, 7,500 s; 32 H100 take 7,800 s."""
    answer = made_answer()
    own, other = answer.candidates[2], answer.candidates[5]
    own, other = own if best is None else best(own), replace(other if of is None else of(other), **changed)
    candidates = (*answer.candidates[:2], own, *answer.candidates[3:5], other)
    answer = replace(answer, candidates=candidates, recommended=own, flips=())
    found = rows(tables(answer)["answer-systems"])
    return found[1]["Against the choice"].text


def test_a_system_without_a_price_is_compared_by_time_and_by_the_price_at_which_it_costs_less():
    # 32 H100 cost 173.33 USD; 16 x 7,500 s are 33.33 accelerator-hours: 5.20 USD each.
    text = against_the_choice(of=without_price)
    assert text.startswith("Faster;")
    assert "below 5.20 USD" in text
    # 16 x 15,000 s are 66.67 of them: 2.60 USD.
    text = against_the_choice(of=without_price, time_s=replace(candidate(16).time_s, value=15_000.0))
    assert text.startswith("Slower;")
    assert "below 2.60 USD" in text


def test_a_choice_without_a_price_is_compared_by_time_and_by_its_own_price():
    # 16 B200 cost 33.33 x 5 = 166.67 USD; 32 H100 take 69.33 accelerator-hours: 2.40 USD each.
    assert "more than 2.40 USD" in against_the_choice(best=without_price)
    text = against_the_choice(of=without_price, best=without_price)
    assert re.match(r"Faster\b.*\bfewer", text)


def test_systems_with_prices_are_compared_as_they_are():
    slow = replace(candidate(16).time_s, value=8_000.0)
    dear, cheap = (replace(candidate(16).usd, value=value) for value in (200.0, 100.0))
    assert re.match(r"Slower\b.*\bexpensive", against_the_choice(time_s=slow, usd=dear))
    assert re.match(r"Faster\b.*\bcheaper", against_the_choice(usd=cheap))


def test_above_a_bar_stands_the_accelerator_time_of_a_sample():
    # Steps of 29.4, 15, 7.8 and 4.2 s with a global batch of 64: x 8, 16, 32 and 64 over 64.
    chart = charts(ANSWER, made_answer())["answer-seconds"]
    assert chart.labels == ("3.67 s", "3.75 s", "3.9 s", "4.2 s")
    bars = [sum(part.heights[place] for part in chart.series) for place in range(4)]
    assert bars == pytest.approx([3.675, 3.75, 3.9, 4.2])


def test_series_of_a_chart_are_told_apart_without_colours():
    found = charts(ANSWER, made_answer())
    assert found
    for name, chart in found.items():
        points = [each.mark.symbol for each in chart.series if not getattr(each, "is_curve", False)]
        assert len(set(points)) == len(points), name


@pytest.mark.parametrize(("stated", "price"), [({"electricity": 0.3}, "0.30 USD per kWh"), ({}, "per kWh")])
def test_the_money_of_an_own_machine_states_the_price_of_its_power(stated, price):
    asked = {"workload": "gpt2", "tokens": "1G", "accelerator": "h100", "max_accelerators": 8, "price": 0}
    found = answer(query(asked | stated), scores=None)
    assert price in power_price(found, found.recommended)
    assert ("--electricity" in power_price(found, found.recommended)) == (not stated)


@pytest.mark.parametrize(("deadline", "larger"), [("9.7h", ["1,024"]), ("15h", [])])
def test_a_deadline_that_may_be_missed_names_the_size_that_likely_keeps_it(deadline, larger):
    # 512 take 9.3 h, twice as many 5.3: within 9.7 hours as often as not, and nearly always; within 15 both.
    asked = {"workload": "llama31_8b", "tokens": 1e11, "accelerator": "h100", "deadline": deadline}
    found = answer(query(asked), scores=None)
    assert found.recommended.num_accelerators == 512
    (time,) = [line for line in printed(found, width=120).splitlines() if line.startswith("Time ")]
    assert re.findall(r"% on ([\d,]+)", time) == larger


@pytest.mark.parametrize(
    ("stated", "is_limit"), [({"max_accelerators": 8}, True), ({"accelerators": "8"}, False)], ids=str
)
def test_a_number_that_was_asked_for_is_not_called_a_limit(stated, is_limit):
    asked = {"workload": "llama31_8b", "tokens": "1e12", "accelerator": ["h100"], "deadline": "100h"}
    found = answer(query({**asked, **stated}), scores=None)
    needed = next(
        int(each.needed) for each in found.refusal.relaxations if each.constraint == "max_accelerators"
    )
    (line,) = [each for each in relaxed(found) if re.search(rf"\b{needed:,}\b.* instead of 8\b", each)]
    assert (CONSTRAINTS["max_accelerators"].noun in line) is is_limit


def test_sizes_on_which_no_strategy_is_legal_are_in_the_headline():
    asked = {"workload": "llama31_8b", "tokens": "1T", "accelerator": "h100", "accelerators": 3_000_000}
    found = answer(query(asked), scores=None)
    assert not found.candidates
    assert re.findall(r"[\d,]{2,}", ANSWER.headline(found))[0] == "3,000,000"


@pytest.mark.parametrize(
    ("train", "batch", "size", "is_of_room"),
    [
        ("lora", 16, 3, False),  # three cards have room, and 16 samples are no multiple of 3
        ("full", 16, 1, True),  # 8.03e9 weights of 2 bytes and as many gradients are 32 GB
    ],
)
def test_a_size_that_is_asked_for_lacks_memory_or_a_strategy(train, batch, size, is_of_room):
    asked = query(
        {
            "workload": "llama31_8b",
            "train": train,
            "examples": 1000,
            "sequence": 512,
            "accelerator": ["rtx-4090-pcie-24gb"],
            "accelerators": f"{size},4",
            "global_batch": batch,
        }
    )
    found = answer(asked, scores=None)
    assert [each.num_accelerators for each in found.systems[0].unfit] == [size]
    for text in (" ".join(printed(found).split()), " ".join(printed(found, full=True).split())):
        assert (re.search(r"\bnot fit\b", text) is not None) is is_of_room
        assert (re.search(r"\b[Nn]o strategy\b", text) is not None) is not is_of_room


def test_a_batch_that_no_strategy_can_share_out_is_answered_with_the_nearest_that_can_be():
    asked = {"workload": "llama31_8b", "train": "lora", "examples": 1000, "sequence": 2048}
    hardware = {"accelerator": ["rtx-4090-pcie-24gb"], "accelerators": "3"}
    found = answer(query({**asked, **hardware, "global_batch": 16}), scores=None)
    assert found.recommended is None
    (line,) = [each for each in " ".join(printed(found).split()).split(". ") if "--global-batch" in each]
    batches = [int(each) for each in re.findall(r"\b1[5-9]\b", line) if each != "16"]
    assert batches == [15, 18]
    assert all(
        answer(query({**asked, **hardware, "global_batch": each}), scores=None).recommended
        for each in batches
    )


def test_sizes_beyond_a_limit_are_not_named_where_no_time_is_known():
    late = Constraint(name="deadline_s", limit=60.0, value=None, probability=None)
    most = Constraint(name="max_accelerators", limit=16.0, value=None, probability=None)
    without = [
        replace(
            candidate(size),
            time_s=None,
            usd=None,
            why_not="too wide",
            constraints=(late, replace(most, value=float(size))),
        )
        for size in (8, 16, 64)
    ]
    text = str(refusal_blocks(replace(made_answer(), candidates=tuple(without), refusal=None)))
    assert re.search(r"\b8 and 16 x NVIDIA H100\b", text)
    assert not re.search(r"\b64\b", text)
