"""Whole answers on the embedded data: what is recommended, why, and what is refused, against facts from outside."""

import json
import math
import re

import laws
import polars as pl
import pytest
from asking import (
    A100,
    B200,
    H100,
    H200,
    KINDS,
    LORA,
    MI300X,
    PRETRAINING,
    RTX,
    SMALL,
    ask,
    by_size,
    paid_usd,
    published_scores,
)
from msgspec.structs import replace

from equipoise.decide.evidence import LEAST_LOG_SD
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.report.json import answer_fields, document, encode
from equipoise.runs.embedded import load
from equipoise.runs.store import scores_of
from equipoise.spec.hardware import accelerator, at_least_as_good
from equipoise.spec.mlperf import Scores
from equipoise.spec.strategy import SOFTWARE_NAMES, read_option
from equipoise.units import HOUR_S

GAUDI = "gaudi3-oam-128gb"
MODERATE = pytest.mark.parametrize("question", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def lora():
    return ask(LORA, max_accelerators=64)


# One row, everywhere.


@MODERATE
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"terms": "spot,on_demand"},
        {"region": "france", "price": "{}=2.5"},
        {"deadline": "300d", "budget": "900k", "price": "{}=2.5"},
    ],
    ids=str,
)
def test_an_answer_obeys_the_laws_of_one_document(question, more):
    system = question["accelerator"][0]
    found = ask(question, **{name: value.format(system) for name, value in more.items()})
    assert laws.breaches(json.loads(encode(document("advise", answer_fields(found))))) == []
    assert found.recommended == found.candidate(found.recommended.id)
    assert found.system.name == found.recommended.system


@MODERATE
def test_steps_and_tokens_of_a_candidate_follow_from_its_batch(question):
    found = ask(question)
    timed = [each for each in found.candidates if each.time_s is not None]
    assert timed
    for each in timed:
        assert each.step_s.value * each.num_steps == pytest.approx(each.work_s.value)
        assert each.num_steps == pytest.approx(each.num_samples / each.global_batch_samples)
        if each.tokens_per_s_per_accelerator is not None:
            tokens = found.workload.sequence_tokens * each.global_batch_samples
            rate = tokens / each.step_s.value / each.num_accelerators
            assert each.tokens_per_s_per_accelerator == pytest.approx(rate)


def test_the_power_of_a_candidate_is_the_datasheets_and_the_rest_of_the_system():
    # 400 W each (A100 datasheet) and 1.18 for the rest of the system (docs/experiments/0003)
    found = ask(SMALL, accelerator=[A100], max_accelerators=4)
    assert found.recommended.power_w == pytest.approx(400 * 1.18)


# The choice.


@pytest.mark.parametrize(
    "limit", [{}, {"max_accelerators": 1}, {"accelerators": "1"}, {"accelerators": "1,2"}]
)
def test_what_more_gain_is_not_said_where_fewer_are_too_uncertain(limit):
    pytest.importorskip("torch")
    found = ask(workload="seen_models:small_mlp", samples="1e7", accelerator=[A100], **limit)
    sizes = by_size(found)
    assert sizes[1].time_s is None
    assert {each.time_s for each in found.candidates} == {None}
    assert found.recommended is None
    assert found.refusal is None or not found.refusal.relaxations


@pytest.mark.parametrize("objective", ["time", "cost", "energy", "balance"])
@pytest.mark.parametrize(
    "sizes", [{"accelerators": "64"}, {"accelerators": "16,64"}, {"accelerators": "32..64"}]
)
def test_no_size_but_those_asked_about_is_recommended(sizes, objective):
    found = ask(LORA, **sizes, objective=objective)
    # Of nodes of eight: a range has those between too where one size is the best.
    allowed = {"64": {64}, "16,64": {16, 64}, "32..64": {32, 40, 48, 56, 64}}[sizes["accelerators"]]
    assert found.recommended.num_accelerators in allowed
    assert {each.num_accelerators for each in found.candidates if each.feasible} <= allowed


def test_about_one_size_it_shows_where_more_would_stop_to_pay():
    alone, free = ask(LORA, accelerators="64"), ask(LORA)
    kinds = [{each.kind: each.num_accelerators for each in one.equilibria} for one in (alone, free)]
    assert kinds[0]["marginal"] == kinds[1]["marginal"] > 64


def test_points_about_one_size_are_against_that_size():
    found = ask(workload="bert", accelerator=[A100], nodes=3)
    times = {size: each.time_s.value for size, each in by_size(found).items()}
    assert min(times) == 24
    assert found.equilibria
    assert [each.efficiency for each in found.equilibria] == pytest.approx(
        [
            24 * times[24] / (size * times[size])
            for size in (each.num_accelerators for each in found.equilibria)
        ]
    )


def test_the_objective_decides():
    by_time, by_cost, by_energy = (
        ask(SMALL, objective=name).recommended for name in ("time", "cost", "energy")
    )
    sizes = by_size(ask(SMALL))
    offered = [each for each in sizes.values() if each.feasible]
    assert by_time.time_s.value == min(each.time_s.value for each in offered)
    assert by_cost.usd.value == min(each.usd.value for each in offered)
    assert by_energy.energy_j.value == min(each.energy_j.value for each in offered)


def test_least_money_is_the_least_of_what_keeps_the_deadline():
    found = ask(LORA, max_accelerators=64, objective="cost", deadline="10min")
    in_time = [each for each in found.candidates if each.time_s.value <= 600 and each.num_accelerators <= 64]
    assert found.recommended.usd.value == min(each.usd.value for each in in_time)


def test_of_two_systems_the_cheaper_training_is_taken():
    found = ask(LORA, accelerator=[H200, A100], max_accelerators=16, objective="cost")
    others = [each for each in found.candidates if each.feasible]
    assert {each.system for each in others} == {H200, A100}
    assert found.recommended.usd.value == min(each.usd.value for each in others)


def test_one_bigger_card_may_beat_two():
    found = ask(
        workload="llama32_1b", tokens="1e9", global_batch=64, accelerator=["2x rtx4090", "1x h100-sxm5-80gb"],
        objective="time",
    )  # fmt: skip
    sizes = {each.system: each.num_accelerators for each in found.candidates if each.feasible}
    assert sizes == {RTX: 2, H100: 1}
    assert found.recommended == min(
        (each for each in found.candidates if each.feasible), key=lambda each: each.time_s.value
    )


@pytest.mark.parametrize("usd_per_hour", [0.5, 20.0, 100.0, 1000.0])
def test_values_of_an_hour_agree_with_trying_them_all(usd_per_hour):
    found = ask(LORA, accelerator=[H200, B200], value_of_time=usd_per_hour)

    def total(each):
        return each.usd.value + usd_per_hour * each.time_s.value / HOUR_S

    least = min((each for each in found.candidates if each.feasible), key=total)
    assert found.recommended.id == least.id
    named = [each for each in found.time_values if each.from_usd_per_hour <= usd_per_hour][-1]
    assert total(found.candidate(named.candidate)) == pytest.approx(total(least))


# 6.1 M tokens are minutes on two H100 and seconds on 16: starting, of which every accelerator is paid, is more.
SHORT = {
    "workload": "llama31_8b",
    "train": "full",
    "examples": 3000,
    "sequence": 2048,
    "accelerator": [H100],
}


@pytest.mark.parametrize("usd_per_hour", [0.0, 5.0, 20.0, 100.0, 1000.0])
def test_money_that_decides_counts_starting(usd_per_hour):
    objective = {"value_of_time": usd_per_hour} if usd_per_hour else {"objective": "cost"}
    found = ask(SHORT, accelerator=[H100, B200], **objective)
    least = min(
        (each for each in found.candidates if each.feasible),
        key=lambda each: paid_usd(found, each, usd_per_hour),
    )
    assert found.recommended.id == least.id
    named = [each for each in found.time_values if each.from_usd_per_hour <= usd_per_hour][-1]
    assert named.candidate == least.id


def test_the_least_money_counts_starting_where_another_system_is_cheaper_without():
    """5 min of an H200 cost more than 5 min of an L4 and its 2 min of training."""
    asked = {"workload": "llama31_8b", "train": "lora", "examples": 200, "sequence": 512}
    found = ask(asked, accelerator=["l4-pcie-24gb", H200], objective="cost")
    feasible = [each for each in found.candidates if each.feasible]
    assert min(feasible, key=lambda each: each.usd.value).system == H200
    assert found.recommended.id == min(feasible, key=lambda each: paid_usd(found, each)).id
    assert found.recommended.system == "l4-pcie-24gb"


@pytest.mark.parametrize(("batch", "shared_by"), [(1000, 400), (480, 480), (96, 384)])
def test_a_stated_batch_is_taken_on_a_number_that_shares_it_out(batch, shared_by):
    """1,000 samples are 5 on each of 200 ranks, of which 400 H100 are two each; of 512 most ranks would idle."""
    asked = {"workload": "llama31_8b", "tokens": 1e11, "global_batch": batch, "accelerator": [H100]}
    free, other = ask(asked).recommended, ask(asked, accelerators=shared_by).recommended
    assert other.num_accelerators == shared_by
    assert free.usd.value * free.time_s.value <= 1.001 * other.usd.value * other.time_s.value


def test_nothing_beats_the_choice_in_time_and_money_with_starting():
    found = ask(SHORT, max_accelerators=8)
    best, others = found.recommended, [each for each in found.candidates if each.feasible]
    assert len(others) > 1
    assert not any(
        each.time_s.value < best.time_s.value and paid_usd(found, each) < paid_usd(found, best)
        for each in others
    )
    assert best.id in {each.candidate for each in found.time_values}


# Published is published.


@pytest.mark.truth
@pytest.mark.parametrize(
    ("workload", "chip"),
    [("llama2_70b_lora", H200), ("llama2_70b_lora", H100), ("bert", A100), ("gpt3", H100)],
)
def test_at_a_size_with_results_the_time_is_that_of_the_best_of_them(workload, chip):
    rows = load().scores.filter(
        pl.col("score_s").is_not_null(), workload=workload, accelerator=chip, division="closed"
    )
    best = dict(rows.group_by("num_accelerators").agg(pl.col("score_s").min()).iter_rows())
    found = by_size(ask(workload=workload, accelerator=[chip]))
    compared = [(each, best[size]) for size, each in found.items() if each.grade == "published"]
    assert compared
    for each, score_s in compared:
        assert abs(math.log(each.work_s.value / score_s)) < 3 * LEAST_LOG_SD
        assert each.published[0].score_s == pytest.approx(score_s)


def test_published_results_outweigh_the_model(lora):
    weights = {each.estimator: each.weight for each in lora.recommended.estimates}
    assert weights["published"] > 0.8
    assert weights["published"] + weights["model"] == pytest.approx(1.0)


def test_the_combined_time_lies_between_the_estimates(lora):
    assert lora.candidates
    for each in lora.candidates:
        times = [one.time_s.value for one in each.estimates]
        assert min(times) <= each.work_s.value <= max(times)


def test_sizes_that_only_an_earlier_round_has_are_published_too():
    # bert on H100: v5.0 has 64 alone, v4.1 has 4 and 8 (official: 5.4 minutes on 8)
    found = by_size(ask(workload="bert", accelerator=[H100], max_accelerators=8))
    assert found[8].grade == "published"
    assert found[8].work_s.value == pytest.approx(5.4 * 60, rel=0.05)


def test_a_chip_without_results_has_those_of_its_sibling():
    found = ask(KINDS["sibling"])
    (carried,) = [each for each in found.recommended.estimates if each.estimator == "published"]
    assert "NVIDIA H200 SXM5 141 GB" in carried.name
    assert found.system.transferred_from == "NVIDIA H200 SXM5 141 GB"
    # the model carried them: its own time is shown, and counts no second time
    assert [each.weight for each in found.recommended.estimates if each.estimator == "model"] == [0.0]
    assert found.recommended.work_s == carried.time_s
    assert found.recommended.grade == "carried"
    kinds = {each.kind for each in found.records}
    assert "transfer" in kinds
    assert "combined" not in kinds


def test_results_of_campaigns_that_are_no_rounds_change_no_sibling():
    entries = published_scores().entries
    mine = tuple(replace(each, campaign="mine") for each in entries if each.accelerator == H200)
    found = ask(KINDS["sibling"], scores=Scores((*entries, *mine)))
    assert found.system.transferred_from == "NVIDIA H200 SXM5 141 GB"


def test_a_stated_batch_is_kept_and_no_result_of_another_is_shown_as_published():
    found = ask(workload="bert", accelerator=[H100], max_accelerators=8, global_batch=1024)
    assert {each.global_batch_samples for each in found.candidates} == {1024}
    assert not any(each.published or each.grade == "published" for each in found.candidates)


def test_a_batch_that_nobody_published_is_left_to_the_model():
    # published: 66 to 16,384; with 2 samples a step eight accelerators are no faster than one
    found = ask(workload="bert", accelerator=[H100], max_accelerators=8, global_batch=2)
    assert {each.estimator for one in found.candidates for each in one.estimates} == {"model"}
    assert found.recommended.num_accelerators == 1


def test_a_size_that_a_stated_batch_cannot_be_shared_out_to_is_no_candidate():
    found = ask(workload="bert", accelerator=[H100], accelerators="64,67", global_batch=1024)
    assert 64 in by_size(found)
    assert 67 not in by_size(found)


def test_where_samples_to_the_target_are_not_known_only_published_times_count():
    one_batch = tuple(
        each
        for each in published_scores().of("llama2_70b_lora")
        if (each.accelerator, each.global_batch_samples) == (H200, 8)
    )
    found = ask(LORA, max_accelerators=16, global_batch=8, scores=Scores(one_batch))
    assert {each.estimator for each in found.recommended.estimates} == {"published"}
    assert "MLPerf target" in found.work
    assert found.recommended.strategy is not None


@pytest.mark.parametrize("limit", [None, 64])
def test_a_benchmark_with_too_few_results_lacks_their_samples_not_memory(limit):
    first = next(each for each in published_scores().of("llama31_8b") if each.accelerator == B200)
    few = Scores((replace(first, accelerator=MI300X),))
    with pytest.raises(EvidenceError) as raised:
        ask(workload="llama31_8b", accelerator=[H100], max_accelerators=limit, scores=few)
    assert any("--samples" in each for each in raised.value.missing)


def test_reasons_cite_results_with_their_logs(lora):
    cited = [source for reason in lora.reasons for source in reason.sources]
    assert any(source.source_uri and source.ref.startswith("v") for source in cited)


def test_open_entries_are_no_evidence():
    rows = load().scores.filter(workload="bert", accelerator=H100)
    opened = rows.with_columns(division=pl.lit("open"))
    with pytest.raises(UsageError, match="target"):
        ask(workload="bert", accelerator=[H100], scores=scores_of(opened))


# Prices, terms, stock.


def test_a_price_of_no_system_that_is_asked_about_is_refused():
    systems = {"accelerator": [H100, B200], "max_accelerators": 64}
    with pytest.raises(UsageError, match=rf"--price 2\.5 .*--price {H100}=2\.5"):
        ask(PRETRAINING, **systems, price="2.5")
    with pytest.raises(UsageError, match=rf"--price {H200}=2\.5: .*{H100}"):
        ask(PRETRAINING, **systems, price=f"{H200}=2.5")


def test_a_price_of_nothing_is_the_users_own_machine():
    found = ask(SMALL, price="0")
    assert found.candidates
    for each in found.candidates:  # electricity alone, at the usual 0.161 USD per kWh
        assert each.usd.value == pytest.approx(each.energy_j.value / 3.6e6 * 0.161)
    assert found.recommended.price.usd_per_accelerator_hour == 0.0


def test_a_stock_is_a_limit_of_its_system_alone():
    found = ask(PRETRAINING, accelerator=[H100, MI300X], stock=f"{H100}=24")
    assert (
        max(each.num_accelerators for each in found.candidates if each.feasible and each.system == H100) <= 24
    )
    assert max(each.num_accelerators for each in found.candidates if each.feasible) == 512
    counted = ask(PRETRAINING, accelerator=[f"24x {H100}", MI300X])
    assert [each.id for each in counted.candidates] == [each.id for each in found.candidates]


@pytest.mark.parametrize("option", ["budget", "value-of-time"])
def test_what_counts_money_needs_a_price(option):
    with pytest.raises(UsageError, match=rf"--{option} .*mi100.*--price mi100-pcie-32gb=USD"):
        ask(SMALL, accelerator=["mi100-pcie-32gb"], **{option.replace("-", "_"): 5})


def test_the_least_money_at_an_unknown_price_is_that_of_the_fewest_accelerator_hours():
    # any price above zero gives the same order
    cards = {"accelerator": ["titan-rtx-pcie-24gb"], "objective": "cost", "max_accelerators": 8}
    found, priced = ask({"workload": "bert"}, **cards), ask({"workload": "bert"}, **cards, price="0.7")
    assert found.recommended.usd is None
    assert found.recommended.id == priced.recommended.id
    assert found.recommended.num_accelerators == 1


def test_a_system_without_a_price_keeps_no_budget_and_stands_in_nobodys_way():
    found = ask(SMALL, accelerator=[RTX, "mi100-pcie-32gb"], budget=50)
    assert found.recommended.system == RTX
    assert not any(each.feasible for each in found.candidates if each.system == "mi100-pcie-32gb")
    assert any(re.search("price .*mi100-pcie-32gb", note) for note in map(str, found.notes))


@pytest.mark.parametrize("size", [8, 512, 4096])
def test_money_and_time_on_spot_are_finite(size):
    found = ask(PRETRAINING, terms="spot", accelerators=str(size), max_accelerators=None)
    (each,) = [one for one in found.candidates if one.feasible]
    for amount in (each.time_s, each.usd, each.energy_j):
        assert math.isfinite(amount.high)
        assert amount.high <= 20 * amount.low
    assert 0.0 < each.goodput.value <= 1.0


def test_spot_is_cheaper_by_the_hour_and_never_faster():
    found = ask(PRETRAINING, terms="spot,on_demand")
    spot, usual = ({each.num_accelerators: each for each in found.candidates if each.terms == terms}
                   for terms in ("spot", "on_demand"))  # fmt: skip
    assert set(spot) == set(usual)
    for size, each in spot.items():
        assert each.price.usd_per_accelerator_hour < usual[size].price.usd_per_accelerator_hour
        assert each.time_s.value >= usual[size].time_s.value
        assert each.work_s == usual[size].work_s


# Nodes.


def test_a_node_size_is_the_users():
    usual, one = ask(SMALL, accelerator=[H100]), ask(SMALL, accelerator=[H100], node_size=1)
    assert (usual.systems[0].node_size, one.systems[0].node_size) == (8, 1)
    assert by_size(one)[8].num_nodes == 8
    assert by_size(one)[8].work_s.value > by_size(usual)[8].work_s.value


def test_a_topology_file_states_the_node(tmp_path):
    (tmp_path / "two.txt").write_text("\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\n")
    found = ask(SMALL, topology=tmp_path / "two.txt")
    assert found.systems[0].node_size == 2
    assert any(
        "2 x NVIDIA GeForce RTX 4090" in note and "SYS (1 pair)" in note for note in map(str, found.notes)
    )


def test_a_batch_that_does_not_divide_by_the_cards_is_named_with_batches_that_would():
    found = ask(SMALL, accelerator=["3x rtx4090"], global_batch=32)
    (note,) = (note for note in map(str, found.notes) if "divide" in note)
    assert {"32", "3", "30", "33"} <= set(re.findall(r"\d+", note))
    assert re.search(r"\bbatches of 30 or 33\b", note)
    assert not any("divide" in note for note in map(str, ask(SMALL).notes))


@pytest.mark.parametrize(("owned", "more"), [(2, 4), (3, 4), (6, 8)])
def test_a_card_more_than_the_owned_ones_goes_into_their_host(owned, more):
    # As the refusal of a stock has it: nobody buys a second host and its network for the next card of eight.
    found, there = (by_size(ask(SMALL, accelerator=[f"{count}x rtx4090"]))[more] for count in (owned, more))
    assert found.num_nodes == there.num_nodes == 1
    assert found.time_s.value == pytest.approx(there.time_s.value, rel=1e-9)
    assert found.usd.value == pytest.approx(there.usd.value, rel=1e-9)


# Refusals and notes.

# No number of accelerators is stated: as many are tried as keep the deadline.
OPEN = {**PRETRAINING, "max_accelerators": None}


def test_the_least_time_needs_no_price():
    question = {"workload": "llama31_8b", "tokens": "1e12", "objective": "time"}
    alone = ask(question, accelerator=[H100]).recommended
    beside = ask(question, accelerator=[H100, GAUDI]).recommended
    assert beside.price is None
    assert beside.time_s.value <= alone.time_s.value
    priced = ask(question, accelerator=[GAUDI], price=3.0).recommended
    assert (priced.num_accelerators, priced.time_s.value) == (beside.num_accelerators, beside.time_s.value)


def test_a_limit_that_one_system_cannot_keep_changes_no_other():
    question = {"workload": "gemma2_2b", "tokens": "97e9", "deadline": "212h"}
    alone, beside = (ask(question, accelerator=each) for each in ([B200], [B200, "rtx-3090-pcie-24gb"]))
    assert any(each.system != B200 and not each.feasible for each in beside.candidates)
    assert beside.recommended.num_accelerators == alone.recommended.num_accelerators
    assert by_size(beside, B200).keys() == by_size(alone).keys()


def test_each_stock_that_would_do_is_named():
    found = ask(
        workload="sdxl",
        samples=2e8,
        accelerator=["8x gb300-nvl72", "20x mi300x-oam-192gb"],
        deadline="110h",
    )
    stocks = [each for each in found.refusal.relaxations if each.constraint == "max_accelerators"]
    assert {each.limit for each in stocks} == {8, 20}
    assert all(each.needed > each.limit for each in stocks)


def test_no_fewer_than_a_refusal_names_would_do():
    # A usual size beyond the limit misses the deadline, and a smaller one that shares out a batch keeps it.
    asked = {
        "workload": "mixtral_8x7b",
        "tokens": "6T",
        "accelerator": "b200",
        "price": 1.9,
        "terms": "spot",
        "deadline": "12d",
    }
    refused = ask(asked, max_accelerators=2048)
    (needed,) = (
        int(each.needed) for each in refused.refusal.relaxations if each.constraint == "max_accelerators"
    )
    assert ask(asked, max_accelerators=needed).recommended is not None
    assert ask(asked, max_accelerators=needed - 8).recommended is None


@pytest.mark.parametrize(
    ("workload", "machine", "size"), [("bert", "6x rtx3090", 5), ("stable_diffusion", "8x titan-rtx", 8)]
)
def test_stating_the_batch_that_a_described_machine_takes_changes_nothing(workload, machine, size):
    free = by_size(ask(workload=workload, accelerator=[machine]))[size]
    stated = ask(workload=workload, accelerator=[machine], global_batch=free.global_batch_samples)
    assert by_size(stated)[size].time_s.value == pytest.approx(free.time_s.value)


def test_no_batch_is_faster_than_the_free_choice_on_other_nodes():
    question = {"workload": "llama31_8b", "accelerator": [H100], "node_size": 4, "accelerators": "100"}
    assert ask(question, global_batch=50).recommended.time_s.value >= ask(question).recommended.time_s.value


def test_batches_of_an_odd_number_of_accelerators_come_in_steps_of_a_half():
    question = {"workload": "flux1", "accelerator": ["mi250x-oam-128gb"], "accelerators": "14"}
    free = ask(question).recommended
    for batch in (896, 672):
        stated = ask(question, global_batch=batch).recommended
        assert stated.time_s.value >= free.time_s.value * (1 - 1e-9)


@pytest.mark.parametrize(
    ("question", "limits"),
    [
        (LORA, {"max_accelerators": 16, "deadline": 1 / 12}),
        (LORA, {"max_accelerators": 16, "budget": 0.5}),
        (LORA, {"accelerator": [H200, B200], "max_accelerators": 64, "deadline": "1min"}),
        (PRETRAINING, {"deadline": "1d"}),
        (PRETRAINING, {"deadline": "3d", "queue": "1d"}),
        (OPEN, {"deadline": "2d", "budget": "180k"}),
        (OPEN, {"deadline": "3d", "budget": "160k"}),
        (OPEN, {"deadline": "2d", "budget": "100k", "accelerator": [H100, B200]}),
        (OPEN, {"deadline": "2h"}),
    ],
    ids=str,
)
def test_a_relaxation_that_is_named_suffices(question, limits):
    asked = {**question, **limits}
    found = ask(asked)
    assert found.recommended is None
    assert found.refusal.relaxations
    options = {"deadline_s": "deadline", "budget_usd": "budget", "max_accelerators": "max_accelerators"}
    for each in found.refusal.relaxations:
        unit = HOUR_S if each.constraint == "deadline_s" else 1.0
        # a hair more: hours, as options take them, are a rounding away from seconds
        enough = math.nextafter(each.needed / unit, math.inf) if unit > 1 else each.needed
        again = ask({**asked, options[each.constraint]: enough})
        assert again.recommended is not None, each
        assert again.candidate(each.candidate).feasible


@pytest.mark.parametrize(
    ("chip", "deadline", "budget"), [(H100, "2d", "180k"), (H100, "3d", "160k"), (A100, "8d", "320k")]
)
def test_a_refusal_knows_the_sizes_that_its_question_without_a_budget_takes(chip, deadline, budget):
    asked = {**OPEN, "accelerator": [chip], "deadline": deadline}
    taken = ask(asked).recommended
    refused = ask(asked, budget=budget)
    assert refused.recommended is None
    assert refused.candidate(taken.id).time_s == taken.time_s
    needed = {each.constraint: each.needed for each in refused.refusal.relaxations}
    assert needed["budget_usd"] <= taken.usd.value
    stated = ask(asked, budget=budget, max_accelerators=taken.num_accelerators).refusal
    assert needed == {each.constraint: each.needed for each in stated.relaxations}
    assert (refused.refusal.on_spot is None) == (stated.on_spot is None)


def test_a_deadline_that_no_size_keeps_is_relaxed_to_the_least_of_all_sizes():
    kept = ask(OPEN, deadline="1d").recommended
    refused = ask(OPEN, deadline="2h")
    assert refused.recommended is None
    (change,) = refused.refusal.relaxations
    assert change.constraint == "deadline_s"
    assert change.needed == refused.refusal.fastest.time_s.value <= kept.time_s.value


@pytest.mark.parametrize(
    "asked",
    [
        {**PRETRAINING, "tokens": "1e11", "budget": 5000},
        {**PRETRAINING, "tokens": "1e11", "budget": 5000, "deadline": "1d", "accelerator": [H100, B200]},
        {**PRETRAINING, "tokens": "1e11", "budget": 5000, "objective": "cost", "max_accelerators": 64},
    ],
    ids=str,
)
def test_a_budget_too_small_on_demand_names_what_spot_capacity_would_do(asked):
    found = ask(asked)
    assert found.recommended is None
    spot = ask(asked, terms="spot")
    offered, taken = found.refusal.on_spot, spot.recommended
    assert (offered.id, offered.usd, offered.time_s) == (taken.id, taken.usd, taken.time_s)
    assert offered.usd.value < 5000
    own = [f"{each}=4" for each in asked["accelerator"]]
    assert ask(asked, price=own).refusal.on_spot is None
    assert ask(asked, budget=10).refusal.on_spot is None  # too little there too


def test_what_fits_nowhere_says_what_would():
    found = ask(workload="gpt3", tokens="1e9", global_batch=64, accelerator=[A100], max_accelerators=8)
    assert found.recommended is None
    # 175e9 weights of 16 bytes are 2.8 TB; 8 x 80 GB are 640 GB
    (words,) = [note for note in map(str, found.notes) if "640 GB" in note]
    assert re.search(r"\b[23]\.\d+ TB", words)


def test_what_nobody_knows_enough_of_says_what_is_missing():
    with pytest.raises(EvidenceError) as caught:
        ask(workload="vae_cf", samples=1e6, accelerator=[A100])
    assert "--global-batch" in caught.value.missing[0]


def test_a_question_without_a_budget_of_work_is_refused():
    with pytest.raises(UsageError, match=r"--tokens 1e12.*--samples 1e6"):
        ask(workload="llama31_8b", accelerator=[H100], scores=False)
    with pytest.raises(UsageError, match="97 samples"):
        ask(SMALL, tokens=1e5, global_batch=512)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"workload": "gpt2_x"}, SpecError, "gpt2_xl"),
        ({"accelerator": ["h100-sxm5-81gb"]}, SpecError, "h100-sxm5-80gb"),
        ({"accelerator": ["rtx4090", "rtx-4090-pcie-24gb"]}, UsageError, "twice"),
        ({"accelerator": None}, UsageError, "--accelerator NAME"),
        ({"fix": ["shards=3"]}, SpecError, "shards"),
        ({"fix": ["tp=2", "tp=4"]}, UsageError, "given twice"),
        ({"fix": "precision=bf16", "precision": "fp8"}, UsageError, "--precision and --fix precision"),
        ({"fix": ["global_batch=2"]}, UsageError, r"--global-batch 2$"),
        ({"fix": ["global_batch=2..8"]}, UsageError, r"--global-batch 2$"),
        ({"fix": ["global_batch=16,32"]}, UsageError, r"--global-batch 16$"),
    ],
)
def test_what_names_nothing_is_refused(changed, error, words):
    with pytest.raises(error, match=words):
        ask(SMALL, **changed)


@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_that_least_money_has_no_deadline_is_named_first(objective):
    free, kept = (ask(SMALL, objective=objective, deadline=each) for each in (None, "90d"))
    assert any("--deadline" in words for words in free.chosen_for_you)
    assert not any("--deadline" in words for words in kept.chosen_for_you)


def test_the_hosts_of_desktop_cards_are_named_where_more_than_one_is_offered():
    # An RTX 3090 is taken to be one of two in a host with 10 Gbit/s Ethernet, an RTX 4090 one of eight.
    def hosts(**more):
        found = ask(SMALL, **{"accelerator": ["rtx3090"], **more}).chosen_for_you
        return [words for words in found if "--node-size" in words]

    (words,) = hosts()
    assert "10 Gbit/s" in words
    assert hosts(node_size=8) == hosts(max_accelerators=2) == hosts(accelerator=["rtx4090"]) == []
    (counted,) = hosts(accelerator=["8x rtx3090"])
    assert "Gbit/s" not in counted


def test_a_faster_card_is_no_slower_for_the_host_that_we_suppose():
    # By its datasheet an RTX 5090 has 1.27 times the FLOP/s, 1.8 times the bandwidth and more memory.
    asked = {**SMALL, "accelerators": "8"}
    chips = ("rtx4090", "rtx5090", "8x rtx5090")
    older, newer, counted = (ask(asked, accelerator=[chip]).recommended.time_s.value for chip in chips)
    assert counted == newer < older


def test_what_was_chosen_for_the_user_is_named():
    found = ask(PRETRAINING)
    words = " ".join(found.chosen_for_you)
    assert "4 Mi tokens" in words
    assert "precision bf16" in words
    assert "on demand" in words
    stated = " ".join(ask(PRETRAINING, global_batch=512, precision="bf16", terms="spot").chosen_for_you)
    assert not any(each in stated for each in ("4 Mi", "precision", "rented"))


def test_each_system_is_offered_as_if_asked_about_alone():
    systems = ("h100", "b200", "mi300x")
    limits = {"deadline": "7d", "max_accelerators": 512}
    found = ask(workload="llama31_8b", tokens="1T", accelerator=list(systems), **limits)
    assert found.offers[0].candidate == found.recommended.id
    assert len(found.offers) == len(systems)
    alone = {
        one.recommended.system: one.recommended.num_accelerators
        for one in (ask(workload="llama31_8b", tokens="1T", accelerator=[name], **limits) for name in systems)
    }
    taken = [found.candidate(each.candidate) for each in found.offers]
    assert {each.system: each.num_accelerators for each in taken} == alone
    products = [each.usd.value * each.time_s.value for each in taken]
    assert products == sorted(products)
    assert [each.grade for each in found.offers] == [each.grade for each in taken]


def test_at_the_break_even_value_of_an_hour_both_cost_the_same():
    found = ask(workload="llama31_8b", tokens="1T", accelerator=["h100", "b200", "mi300x"], deadline="7d")
    best = found.recommended
    known = [each for each in found.offers if each.break_even_usd_per_hour is not None]
    assert known
    for each in known:
        other, value = found.candidate(each.candidate), each.break_even_usd_per_hour
        ours, theirs = (paid_usd(found, one, value) for one in (best, other))
        assert theirs == pytest.approx(ours)


def test_what_breaks_a_limit_breaks_even_at_no_value_of_an_hour():
    found = ask(
        workload="llama31_8b",
        tokens="1T",
        accelerator=["h100", "mi300x"],
        deadline="6d",
        budget="120k",
        max_accelerators=512,
    )
    [offer] = [each for each in found.offers if not each.is_feasible]
    # Dearer than the choice, and over the budget.
    assert found.candidate(offer.candidate).usd.value > 120_000
    assert offer.break_even_usd_per_hour is None


def test_a_system_that_keeps_no_limit_is_offered_last():
    found = ask(
        workload="llama31_8b", tokens="1T", accelerator=["h100", "b200"], deadline="20h", max_accelerators=512
    )
    # 1 T tokens of 8 B: 4.8e22 FLOP; 512 H100 at their whole peak of 989 TFLOP/s take 26 hours.
    assert [each.is_feasible for each in found.offers] in ([True, False], [False, False])
    assert found.offers[-1].system == "h100-sxm5-80gb"


def test_sizes_at_which_nothing_fits_are_named_with_what_they_need():
    (system,) = ask(workload="llama3_70b", tokens="1T", accelerator="h100").systems
    # 70.6 G parameters with AdamW in mixed precision: 16 bytes each and more, 1.13 TB before activations. Of
    # these 12, 0.85 TB, are on the hosts where those have twice the memory of their accelerators: from 8 on.
    one = next(each for each in system.unfit if each.num_accelerators == 1)
    assert one.needed_bytes > 1.13e12
    assert {each.num_accelerators for each in system.unfit} == {1, 2, 4}


def test_every_limit_is_kept_as_often_as_the_least_likely_one():
    found = ask(workload="llama31_8b", tokens="1T", accelerator="b200", deadline="7d", budget=90_000)
    known = [each for each in found.candidates if each.probability is not None]
    assert known
    for each in known:
        chances = {one.name: one.probability for one in each.constraints if one.probability is not None}
        assert {"deadline_s", "budget_usd"} <= chances.keys()
        assert each.probability == min(chances.values())


def test_an_interval_wider_than_a_factor_of_twenty_is_no_number(monkeypatch):
    with monkeypatch.context() as narrow:
        narrow.setattr("equipoise.decide.candidates.WIDEST", 1.2)
        found = ask(SMALL, scores=False)
    wide = [each for each in found.candidates if each.time_s is None]
    assert wide
    for each in wide:
        assert each.why_not
        assert (each.usd, each.energy_j, each.feasible) == (None, None, False)
    shown = [each for each in ask(KINDS["pretraining"], terms="spot").candidates if each.time_s is not None]
    assert shown
    assert all(each.time_s.high <= 20 * each.time_s.low for each in shown)


def test_whose_limit_it_was():
    asked = ask(PRETRAINING, accelerator=["h100-sxm5-80gb"], max_accelerators=64)
    assert asked.limited_by == "question"
    free = ask(PRETRAINING, max_accelerators=None)
    assert free.limited_by in {None, "catalogue"}
    assert ask(LORA).limited_by is None


def test_unequal_accelerators_go_at_the_pace_of_the_slower():
    pair = "rtx-3090-pcie-24gb+rtx-4090-pcie-24gb"
    found = {
        name: by_size(ask(SMALL, accelerator=[name], accelerators="2"))[2]
        for name in (pair, "rtx-3090-pcie-24gb", RTX)
    }
    assert found[RTX].work_s.value < found[pair].work_s.value
    assert found[pair].work_s.value >= 0.999 * found["rtx-3090-pcie-24gb"].work_s.value
    prices = {name: each.price.usd_per_accelerator_hour for name, each in found.items()}
    assert prices[pair] == pytest.approx((prices[RTX] + prices["rtx-3090-pcie-24gb"]) / 2)


def test_unequal_accelerators_are_taken_as_many_of_each():
    pair = "rtx-3090-pcie-24gb+rtx-4090-pcie-24gb"
    found = ask(SMALL, accelerator=[pair], max_accelerators=7)
    sizes = {each.num_accelerators for each in found.candidates}
    assert {2, 4} <= sizes
    assert not [each for each in sizes if each % 2]
    refused = (
        ({"accelerator": [f"3x {pair}"]}, r"\b2\b.*\b3\b"),
        ({"accelerators": "2,3"}, r"\b2\b.*\b3\b"),
        ({"max_accelerators": 1}, r"\b1\b.*\b2\b"),
    )
    for stated, words in refused:
        with pytest.raises(UsageError, match=words):
            ask(SMALL, **{"accelerator": [pair], **stated})


def test_a_power_cap_above_what_a_chip_takes_is_named():
    # An A100 SXM4 takes 400 W.
    noted = {
        watt: sum("400 W" in note for note in map(str, ask(SMALL, accelerator=[A100], power_cap=watt).notes))
        for watt in (399, 500)
    }
    assert noted == {399: 0, 500: 1}


def test_a_power_cap_costs_time_and_saves_energy():
    free, capped = (by_size(ask(SMALL, accelerator=[A100], **more))[8] for more in ({}, {"power_cap": 200}))
    assert capped.work_s.value > free.work_s.value
    assert capped.energy_j.value < free.energy_j.value


def test_the_rest_of_a_system_draws_the_same_under_a_power_cap():
    # Eight chips of 400 W in a system of 1.18 times that: what is not theirs is 0.18 x 3,200 W = 576 W.
    free, capped = (by_size(ask(SMALL, accelerator=[A100], **more))[8] for more in ({}, {"power_cap": 200}))
    assert 8 * free.power_w == pytest.approx(8 * 400 + 576)
    assert 8 * capped.power_w == pytest.approx(8 * 200 + 576)
    assert capped.energy_j.value == pytest.approx((8 * 200 + 576) * capped.time_s.value, rel=0.01)


def test_what_limits_no_chip_of_less_power_changes_no_energy():
    # An H100 with 96 GB of HBM2e takes 500 W of the 700 W at which its peaks hold (the table of accelerators).
    chip = "h100-sxm5-hbm2e-96gb"
    watts = {
        cap: by_size(ask(SMALL, accelerator=[chip], **({"power_cap": cap} if cap else {})))[8].power_w
        for cap in (None, 600, 500, 400)
    }
    assert watts[None] == watts[600] == watts[500] == pytest.approx(500 * 1.18)
    assert watts[400] == pytest.approx(400 + 500 * 0.18)


def test_energy_in_a_region_makes_its_carbon():
    # 56 g CO2 per kWh in France (the grid table)
    found = ask(SMALL, region="france").recommended
    assert found.carbon_kg.value == pytest.approx(found.energy_j.value / 3.6e6 * 0.056, rel=1e-3)


def test_a_calibration_is_named_or_found_by_the_chip():
    usual, priors = ask(PRETRAINING), ask(PRETRAINING, software="priors")
    assert priors.systems[0].calibration == "priors"
    assert by_size(priors)[8].grade == "priors"
    assert usual.systems[0].calibration != "priors"
    assert by_size(usual)[8].grade == "calibrated"


@pytest.mark.parametrize(("peers", "path"), [("GNS", "via SHM"), ("OK", "via P2P")])
def test_settings_follow_the_links_that_were_read(tmp_path, peers, path):
    table = f"$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\nGPU0\tX\t{peers}\nGPU1\t{peers}\tX\n"
    (tmp_path / "links.txt").write_text(f"\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n{table}")
    found = ask(SMALL, topology=tmp_path / "links.txt", at="2", max_accelerators=None)
    assert found.recommended.num_accelerators == 2
    (check,) = (each.how_to_check for each in found.settings if each.name == "NCCL_DEBUG")
    assert path in check


@pytest.mark.parametrize("limit", [{"max_accelerators": 32}, {"stock": f"{H100}=32"}])
def test_one_size_beyond_a_limit_is_refused_with_the_limit_that_would_do(limit):
    question = {**SMALL, "accelerator": [H100], "max_accelerators": None}
    found = ask(question, accelerators="48", **limit)
    assert found.recommended is None
    (change,) = found.refusal.relaxations
    assert (change.constraint, change.limit, change.needed) == ("max_accelerators", 32, 48)
    assert ask(question, accelerators="48").recommended.num_accelerators == 48
    (nodes,) = ask(question, nodes=6, **limit).refusal.relaxations
    assert (nodes.limit, nodes.needed) == (32, 48)


def test_a_refusal_names_the_cheapest_also_where_only_sizes_beyond_the_usual_have_a_price():
    # 30 G parameters and their gradients fit on no eight cards of 24 GB, and no offer of H20 is known.
    asked = {"workload": "mpt_30b", "train": "full", "examples": "1k", "accelerator": ["h20", "rtx3090"]}
    found = ask(asked, budget="100k", deadline="1d")
    assert {each.usd is None for each in found.candidates if each.system.startswith("h20")} == {True}
    priced = {each.id: each.usd.value for each in found.candidates if each.usd is not None}
    assert found.refusal.cheapest.id == min(priced, key=priced.get)
    assert found.refusal.cheapest.system.startswith("rtx-3090")


def test_sizes_that_a_usual_batch_does_not_divide_by_are_no_slower_for_it():
    # five are five eighths as fast as eight: data parallelism alone, which nothing but the batch stood in the way of
    found = by_size(ask(workload="gpt2_xl", tokens="1e9", accelerator=[H100], at="5,8"))
    assert found[5].strategy.dp == 5
    assert found[5].time_s.value == pytest.approx(8 / 5 * found[8].time_s.value, rel=0.03)


@pytest.mark.parametrize(("chip", "most", "node_size"), [(H100, 100, 8), ("gb300", 300, 72)])
def test_what_is_had_by_the_node_is_taken_in_whole_nodes(chip, most, node_size):
    # 100 H100 are twelve nodes of eight and a half; 72 GPUs are a rack of GB300.
    found = ask(workload="llama31_8b", tokens="1e11", accelerator=[chip], max_accelerators=most)
    nodes = {
        each.num_accelerators / node_size for each in found.candidates if each.num_accelerators > node_size
    }
    assert nodes
    assert all(each.is_integer() for each in nodes)
    assert most // node_size in nodes


def test_of_owned_machines_parts_of_a_node_count():
    own = ask(workload="llama31_8b", tokens="1e11", accelerator=["100xh100"])
    assert 100 in {each.num_accelerators for each in own.candidates}


def test_a_deadline_needs_as_many_as_keep_it_where_no_number_is_stated():
    asked = {"workload": "llama3_70b", "tokens": "1.5e12", "accelerator": [H100], "deadline": "10d"}
    found = ask(asked)
    # A week is what sizes end with otherwise: 6.3e23 FLOP at 400 TFLOP/s take 2,600 accelerators so long.
    assert found.recommended.num_accelerators == 4096
    assert found.recommended.time_s.value < 10 * 86400
    assert ask(asked, max_accelerators=2048).recommended is None
    assert ask(asked, accelerator=["2048xh100"]).recommended is None


def test_where_nothing_is_legal_the_error_says_why():
    with pytest.raises(EvidenceError, match=r"\btp\b.*heads"):
        ask(SMALL, fix=["tp=3"])


def test_a_pretraining_on_measured_steps_of_no_stated_strategy_takes_more_than_its_steps(tmp_path):
    # 15 samples/s of 8,192 tokens; pretrainings take 1.11 times their own steps (docs/experiments/0035).
    (tmp_path / "mine.csv").write_text(
        "num_accelerators,samples_per_s,global_batch_samples,accelerator\n16,15,64,h100-sxm5-80gb\n"
    )
    asked = {"workload": "llama31_8b", "accelerator": [H100], "runs": tmp_path / "mine.csv", "at": "16"}
    found = ask(asked, tokens="1e12", max_accelerators=None)
    assert found.recommended.grade == "measured"
    assert found.recommended.work_s.value == pytest.approx(1.11 * 1e12 / 8192 / 15, rel=0.02)
    assert found.system.time_per_step_time == 1.11


def test_sizes_below_ones_own_slow_runs_are_at_their_level(tmp_path):
    # Steps of 24.2 and 12.6 s: on half as many accelerators they take about twice as long, never less.
    (tmp_path / "mine.csv").write_text(
        "num_accelerators,step_s,global_batch_samples,accelerator\n"
        "8,24.2,64,h100-sxm5-80gb\n16,12.6,64,h100-sxm5-80gb\n"
    )
    found = ask(workload="llama31_8b", accelerator=[H100], runs=tmp_path / "mine.csv", tokens="1e11")
    times = {size: each.time_s.value for size, each in by_size(found).items()}
    assert 1.8 < times[4] / times[8] < 2.6


def test_a_batch_that_a_size_hardly_divides_is_named_with_one_that_it_would():
    # 500 = 4 x 125: of 512 accelerators data parallelism takes 4.
    asked = {"workload": "llama31_8b", "accelerator": [H100], "tokens": "1e11", "accelerators": "512"}
    chosen = ask(asked, global_batch=500).chosen_for_you
    words = [each for each in chosen if "500" in each]
    assert words
    assert not [each for each in chosen if each[:1].isupper()]  # they are parts of one sentence
    # 500 samples, 512 accelerators, a batch of 512: the last number is not one of accelerators.
    assert re.search(r"\b512 accelerators\b.*\bbatch of 512\b", words[0])
    assert not [each for each in ask(asked, global_batch=512).chosen_for_you if "divide" in each]


def test_no_other_batch_is_proposed_where_the_model_is_split_whatever_the_batch():
    # Narayanan et al. 2021, table 1: 175 G parameters on 1,024 A100 in 8 x 16 parts, a batch of 1,536 on 12 replicas.
    asked = {"workload": "gpt3", "accelerator": ["selene"], "tokens": "300G", "accelerators": "1024"}
    found = ask(asked, global_batch=1536)
    assert found.recommended.strategy.tp * found.recommended.strategy.pp > 1
    assert not [each for each in (*found.chosen_for_you, *map(str, found.notes)) if "divide" in each]


def test_weights_on_the_host_are_named():
    # 70 G weights of 4 bits, 35 GB, on two cards of 24 GB.
    asked = {"workload": "llama3_70b", "train": "qlora", "examples": 1000, "sequence": 512}
    found = ask(asked, accelerator="rtx3090", accelerators="2", fix=["pp=1", "tp=1"])
    assert found.recommended.strategy.offload == "optimizer_and_params"
    assert any("weights" in each and "host" in each for each in found.chosen_for_you)


@pytest.mark.parametrize(
    ("workload", "params", "cards"),
    [
        # DeepSpeed's ZeRO-3 keeps parameters on the host of one card too (offload_param; ZeRO-Infinity).
        ("llama3_70b", 70e9, 1),
        ("llama31_405b", 405e9, 1),
        ("llama3_70b", 70e9, 2),
        ("llama31_405b", 405e9, 2),
        ("llama31_405b", 405e9, 8),
        ("kimi_k2_1t", 1e12, 2),
    ],
)
def test_weights_go_to_hosts_that_have_room_for_them(workload, params, cards):
    # Weights of 4 bits in hosts of twice the 24 GB of each card: 35 GB on one, 203 GB on eight, not 500 GB on two.
    asked = {"workload": workload, "train": "qlora", "examples": 1000, "accelerator": ["rtx4090"]}
    found = ask(asked, sequence=2048, accelerators=cards)
    have_room = params / 2 <= 2 * 24e9 * cards
    assert (found.recommended is not None) == have_room
    if have_room:
        taken = found.recommended.strategy
        assert taken.offload == "optimizer_and_params"
        # Replicas each have a copy: two cards a node hold 96 GB.
        assert params / 2 <= 2 * 24e9 * cards / taken.dp_replicate


def test_one_card_takes_the_faster_of_what_it_may_move_to_its_host():
    # 70 G weights of 4 bits lie on a card of 48 GB where activations leave it, which is faster than moving them all;
    # weights and activations together are more than the 96 GB that its host is taken to have.
    asked = {"workload": "llama2_70b", "train": "qlora", "examples": "10k", "sequence": 512}
    asked |= {"accelerator": ["rtx-a6000"], "at": "1"}
    stated = ask(asked, fix=["offload=optimizer", "activation_offload=true"]).recommended
    assert ask(asked).recommended.work_s.value <= stated.work_s.value


def test_what_has_no_price_is_not_said_to_be_rented():
    asked = {
        "workload": "llama31_8b",
        "train": "qlora",
        "examples": 1000,
        "sequence": 512,
        "accelerators": "1",
    }
    unpriced, priced = (ask(asked, accelerator=chip) for chip in ("rtx-3060-pcie-12gb", "rtx-4090-pcie-24gb"))
    assert unpriced.recommended.price is None
    assert [any("--terms" in each for each in found.chosen_for_you) for found in (unpriced, priced)] == [
        False,
        True,
    ]


def test_a_pipeline_that_no_software_of_the_chip_runs_is_not_offered():
    # torch.distributed.pipelining has DualPipeV; MaxText and XLA on TPU have no pipeline that hides experts' traffic.
    asked = {"workload": "deepseekv3_671b", "tokens": "1T", "accelerators": 1024}
    for chip in ("tpu-v5p", "h200"):
        chosen = ask(asked, accelerator=chip, fix=["pp=8"]).recommended.strategy
        assert (chosen.schedule == "1f1b") == (chip == "tpu-v5p")
    stated = ask(asked, accelerator="tpu-v5p", fix=["pp=8", "schedule=dualpipe_v"])
    assert stated.recommended.strategy.schedule == "dualpipe_v"


@pytest.mark.parametrize(
    ("software", "lacks"),
    [
        # transformers 5.23: no pipeline, gradient_checkpointing of whole layers, tensor parallelism without overlap.
        ("hf", ["pp=2", "recompute=selective", "tp_overlap=true", "schedule=dualpipe_v"]),
        # DistributedDataParallel and FSDP shard data alone.
        ("ngc", ["tp=2", "pp=2", "cp=2"]),
        ("fsdp", ["tp=2", "pp=2", "cp=2"]),
        # DeepSpeed's pipelines refuse ZeRO-3.
        ("deepspeed", ["pp=2"]),
        ("megatron_core", ["schedule=dualpipe_v", "offload=optimizer_and_params"]),
        ("torchtitan", []),
    ],
)
def test_a_stated_software_is_planned_with_what_it_has(software, lacks):
    asked = {"workload": "llama3_70b", "tokens": "1B", "accelerator": "h100", "accelerators": 64}
    chosen = ask(asked, software=software).recommended.strategy
    for each in lacks:
        name, value = read_option(each, where="test")
        assert getattr(chosen, name) != value
        with pytest.raises(EvidenceError) as refused:
            ask(asked, software=software, fix=[each])
        assert re.search(rf"{software} supports only {name}.*--software", " ".join(refused.value.missing))
    assert ask(asked, software="torchtitan", fix=["pp=2"]).recommended.strategy.pp == 2


def test_stating_the_pipeline_gains_nothing_where_fsdp_shards_states_in_it():
    # torchtitan has no ZeRO stage that shards optimizer states alone; its pipelines keep weights gathered.
    asked = {"workload": "llama3_70b", "tokens": "100B", "accelerator": "h100", "accelerators": 2048}
    times_s = {
        ranks: ask(
            asked, software="torchtitan", fix=[f"pp={ranks}"] if ranks else []
        ).recommended.time_s.value
        for ranks in (0, 4, 8)
    }
    assert times_s[0] == min(times_s.values())


def test_software_that_ran_without_a_compiler_is_planned_so_unless_asked_otherwise():
    asked = {
        "workload": "llama31_8b",
        "examples": 1000,
        "train": "qlora",
        "accelerator": "h100",
        "accelerators": 1,
    }
    assert ask(asked).recommended.strategy.implementation == "eager"
    compiled = ask(asked, fix=["implementation=compiled"]).recommended
    assert compiled.strategy.implementation == "compiled"
    assert ask(asked, train="lora").recommended.strategy.implementation == "eager"
    assert (
        ask(asked, train="lora", software="megatron_core").recommended.strategy.implementation == "compiled"
    )


def test_adapters_are_not_trained_by_a_pipeline_that_nothing_has_for_them():
    # What trains adapters (Megatron Bridge, torchtune, Hugging Face) has no DualPipe.
    asked = {"workload": "qwen3_30b_a3b", "train": "lora", "examples": "50k", "accelerator": "rtx-4090"}
    chosen = ask(asked, accelerators=8, node_size=2, software="megatron_core").recommended.strategy
    assert (chosen.pp > 1, chosen.schedule) == (True, "1f1b")


def test_a_batch_that_moved_is_told_from_the_published_one():
    # 15,360 sequences (DeepSeek-AI 2024, arXiv:2412.19437, section 4.2); 2,048 accelerators share out 16,384.
    asked = {"workload": "deepseekv3_671b", "tokens": "14.8T", "accelerator": ["h800"], "at": "2048"}
    (words,) = (each for each in ask(asked).chosen_for_you if each.startswith("global batch"))
    assert re.findall(r"16,384|15,360|DeepSeek-AI", words) == ["16,384", "15,360", "DeepSeek-AI"]


def test_the_pipeline_that_hides_experts_traffic_is_one_that_the_software_runs():
    # megatron-core 0.16.1: overlap_moe_expert_parallel_comm; torchtitan: DualPipeV.
    asked = {"workload": "deepseekv3_671b", "tokens": "1T", "accelerator": "h200", "accelerators": 1024}

    def schedule(**more):
        return ask(asked, **more).recommended.strategy.schedule

    assert schedule() == "1f1b_overlap"
    assert schedule(software="torchtitan") in {"1f1b", "dualpipe_v"}
    assert schedule(software="torchtitan", fix=["schedule=dualpipe_v"]) == "dualpipe_v"


def _software_times(found):
    """The listed ratios by software, and the names before the list: the usual one, then a much faster one."""
    (words,) = (each for each in found.chosen_for_you if each.startswith("software "))
    first, _, listed = words.partition("(--software")
    names = [each for each in re.findall(r"\w+", first) if each in SOFTWARE_NAMES]
    return {name: float(ratio) for name, ratio in re.findall(r"(\w+) ([\d.]+)x", listed)}, names


@pytest.mark.parametrize(
    ("about", "fastest"),
    [
        # Pipelines, which Hugging Face's Trainer has not: adapters' gradients and no weights travel on PCIe.
        ({"examples": "50k", "sequence": "2k", "accelerator": ["4xrtx4090"]}, "megatron_core"),
        # Activations of inputs of modules in the host's memory beside less recomputation.
        ({"examples": "1k", "sequence": "128k", "accelerator": [H100], "accelerators": 8}, "megatron_core"),
        # Of code as written, that of others is at most an eighth faster.
        ({"examples": "10k", "sequence": "2k", "accelerator": [A100], "fix": ["implementation=eager"]}, None),
    ],
)
def test_other_software_is_named_with_what_stating_it_gives(about, fastest):
    asked = {"workload": "llama31_8b", "train": "lora", **about}
    usual = ask(asked)
    named, first = _software_times(usual)
    assert first == ["hf", *([fastest] if fastest else [])]
    assert named
    size = usual.recommended.num_accelerators
    for name, ratio in named.items():
        stated = by_size(ask(asked, software=name))[size]
        assert ratio == pytest.approx(stated.time_s.value / usual.recommended.time_s.value, rel=0.02)


def test_no_software_is_said_to_be_faster_than_published_results():
    # Whoever reached the best result had all software to choose from, and recorded graphs, which not all have.
    asked = {"workload": "bert", "accelerator": [H100], "accelerators": 64}
    usual = ask(asked)
    named, first = _software_times(usual)
    assert first == ["megatron_core"]
    assert named
    assert min(named.values()) >= 1.0
    for name, ratio in named.items():
        stated = ask(asked, software=name).recommended
        assert stated.time_s.value == pytest.approx(ratio * usual.recommended.time_s.value, rel=0.02)
    stated = ask(asked, software="torchtitan").recommended
    assert stated.time_s.value >= usual.recommended.time_s.value * (1 - 1e-9)


@pytest.mark.parametrize("workload", ["mixtral_8x7b", "llama31_8b"])
def test_steps_by_the_priors_can_be_asked_for_of_any_model(workload):
    asked = {"workload": workload, "tokens": "1e9", "accelerator": H200, "accelerators": 64}
    assert ask(asked, software="priors").recommended.time_s.value > 0.0


@pytest.mark.parametrize("asked", [3000, 3001, 8_388_608, 10_000_000])
def test_the_sizes_offered_in_place_of_one_without_a_time_have_one(asked):
    question = {**PRETRAINING, "tokens": "100B", "max_accelerators": None}
    found = ask(question, accelerators=asked)
    assert found.recommended is None
    steps = () if found.refusal is None else found.refusal.relaxations
    named = re.search(r"([\d,]+) \(--accelerators\)", " ".join(map(str, found.notes)))
    sizes = [int(each.needed) for each in steps] or [int(named[1].replace(",", ""))]
    assert sizes
    assert [ask(question, accelerators=size).recommended.num_accelerators for size in sizes] == sizes


@pytest.mark.parametrize(("workload", "is_slower"), [("resnet50", True), ("llama31_8b", False)])
def test_a_narrow_precision_that_is_slower_than_the_usual_one_is_said_to_be(workload, is_slower):
    # Convolutions and norms are bound by memory: casts to 8 bits cost them more than products gain.
    amount = {"tokens": "1T"} if workload == "llama31_8b" else {"samples": "100M"}
    question = {"workload": workload, "accelerator": [H100], "accelerators": 64, **amount}
    found = ask(question, precision="fp8")
    said = [ratio for each in found.chosen_for_you if (ratio := re.search(r"bf16 takes ([0-9.]+)x", each))]
    assert len(said) == is_slower
    taken = found.recommended.strategy
    parts = [each for each in taken.text().split() if not each.startswith(("global_batch", "precision"))]
    usual = ask(question, fix=parts, precision="bf16", global_batch=taken.global_batch_samples)
    ratio = usual.recommended.step_s.value / found.recommended.step_s.value
    assert (ratio < 1.0) == is_slower
    assert [float(each[1]) for each in said] == pytest.approx([ratio] * is_slower, abs=0.01)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"fix": "tp=3", "accelerators": 64}, {"--fix", "--accelerators"}),
        ({"precision": "fp4"}, {"--precision"}),
        # No batch and no number of a chip gives it a precision that it lacks.
        ({"precision": "fp4", "global_batch": 64, "max_accelerators": 8}, {"--precision"}),
        ({"fix": "precision=fp4", "max_accelerators": 8}, {"--fix"}),
    ],
)
def test_a_refusal_of_every_strategy_names_the_options_of_the_question_to_change(asked, options):
    with pytest.raises(EvidenceError) as refused:
        ask(workload="llama31_8b", tokens="1e9", accelerator="h100", **asked)
    (missing,) = refused.value.missing
    assert set(re.findall(r"--[a-z-]+", missing)) == options


def test_what_is_stated_to_lie_on_the_host_is_not_called_chosen():
    asked = PRETRAINING | {"accelerators": "8", "max_accelerators": None}
    stated = ask(asked, fix=["offload=optimizer"])
    assert stated.recommended.strategy.offload == "optimizer"
    assert not any("host" in words for words in stated.chosen_for_you)
    # 8.03e9 parameters with 12 bytes of states each, on 8 accelerators.
    (words,) = (each for each in map(str, stated.notes) if "host" in each)
    assert float(re.search(r"([\d.]+) GB", words)[1]) == pytest.approx(12 * 8.03 / 8, rel=0.01)


def numbers_of(words):
    return set(re.findall(r"[\d.]+\d|\d", words))


def test_a_result_that_more_accelerators_results_beat_at_as_much_work_is_called_slow():
    # ResNet-50 on A100 SXM4 80 GB: one result of 32, 774 s; the best of 64 takes 270 s: 32 need 540 s at most.
    found = ask(workload="resnet50", accelerator=[A100], max_accelerators=32)
    assert any({"32", "64", "12.9", "9.0"} <= numbers_of(each) for each in map(str, found.notes))
    # Of 405B parameters, memory may be why 256 GB200 take more than twice as long as 512.
    large = ask(workload="llama31_405b", accelerator=["gb200"], accelerators="256..512")
    assert not any({"256", "512"} <= numbers_of(each) for each in map(str, large.notes))


@pytest.mark.parametrize(
    ("factor", "others", "is_said"), [(1.0, RTX, False), (3.0, RTX, True), (3.0, H100, False)]
)
def test_results_much_slower_than_modelled_are_said_beside_a_system_without_any(factor, others, is_said):
    slowed = Scores(
        tuple(
            replace(each, score_s=factor * each.score_s) if each.accelerator == H200 else each
            for each in published_scores().of("llama2_70b_lora")
        )
    )
    found = ask(LORA, scores=slowed, accelerator=[H200, others])
    assert bool(found.notes_of("check")) == is_said


# 8 G parameters are 128 GB with gradients and optimizer states, 16 bytes each.
TUNED = {"workload": "llama31_8b", "train": "full", "examples": 10_000, "sequence": 2048}


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ({"accelerator": ["2xrtx4090"]}, lambda size: {"accelerator": [f"{size}xrtx4090"]}),
        ({"accelerator": [A100], "at": "1", "fix": ["offload=none"]}, lambda size: {"at": str(size)}),
    ],
    ids=["stock", "number"],
)
def test_what_fits_nowhere_names_the_fewest_on_which_it_does_with_the_numbers_of_that_question(asked, change):
    found = ask(TUNED, **asked)
    assert found.recommended is None
    (step,) = found.refusal.relaxations
    size, limit = int(step.needed), int(step.limit)
    offered = found.candidate(step.candidate)
    taken = by_size(ask(TUNED, **{**asked, **change(size)}))[size]
    assert (offered.time_s, offered.usd) == (taken.time_s, taken.usd)
    fewer = [ask(TUNED, **{**asked, **change(each)}).recommended for each in range(limit + 1, size)]
    assert fewer == [None] * (size - limit - 1)
    assert any(f"try {size} accelerators" in note for note in map(str, found.notes))


@pytest.mark.parametrize(
    "asked", [{"max_accelerators": 300}, {"at": "300"}, {"accelerator": ["300xh100"]}], ids=str
)
def test_the_least_limit_of_size_that_keeps_a_deadline_is_named_however_it_is_asked(asked):
    question = {"workload": "llama31_8b", "tokens": "1e12", "accelerator": [H100], "deadline": "100h"}
    (needed,) = (
        int(each.needed)
        for each in ask(question, **asked).refusal.relaxations
        if each.constraint == "max_accelerators"
    )
    assert ask(question, at=str(needed)).recommended is not None
    assert ask(question, at=str(needed - 8)).recommended is None  # a node less


def test_few_cards_of_which_more_are_needed_are_offered_in_one_host():
    # 8 x 24 GB hold what 4 do not, and one host takes eight of them.
    asked = {"workload": "llama31_8b", "tokens": "1e9", "fix": ["offload=none"], "sequence": 2048}
    found = ask(asked, accelerator=["4xrtx4090"])
    assert found.recommended is None
    (step,) = found.refusal.relaxations
    offered = found.candidate(step.candidate)
    taken = ask(asked, accelerator=[f"{int(step.needed)}xrtx4090"]).recommended
    assert (offered.num_nodes, offered.time_s, offered.usd) == (1, taken.time_s, taken.usd)


MOVED = "offload=optimizer_and_params"


@pytest.mark.parametrize(("num_cards", "are_held"), [(4, False), (8, True)])
def test_weights_of_adapters_are_moved_to_hosts_only_where_they_hold_them(num_cards, are_held):
    # 405 G weights of 2 bytes are 810 GB: hosts of 4 x 80 GB have twice that, 640 GB, of 8 they have 1.28 TB.
    # LoRA moves them by itself, as QLoRA does, so an answer no longer names the option.
    asked = {"workload": "llama31_405b", "train": "lora", "tokens": "1e7", "sequence": 2048}
    asked |= {"accelerator": [f"{num_cards}xh100"]}
    found = ask(asked)
    assert (found.recommended is not None) == are_held
    assert found.recommended is None or found.recommended.strategy.offload == "optimizer_and_params"
    assert not any(MOVED in note for note in map(str, found.notes))
    fixed = ask(asked, fix=[MOVED])
    warned = [note for note in fixed.notes_of("check") if "640 GB" in note.words]
    assert bool(warned) != are_held


@pytest.mark.parametrize("fix", [[], [MOVED]])
def test_weights_moved_to_hosts_have_as_many_copies_as_hosts_hold(fix):
    # 80 G weights of 2 bytes are 160 GB; a host of 8 x 24 GB is assumed to have 384 GB: two copies, and not four.
    asked = {"workload": "qwen3_next_80b_a3b", "train": "lora", "examples": 3000, "sequence": 2048}
    found = ask(asked, accelerator=[RTX], at="8", fix=fix)
    assert found.recommended.strategy.offload == "optimizer_and_params"
    assert found.recommended.strategy.dp_replicate <= 2
    assert not [note for note in found.notes_of("check") if "384 GB" in note.words]


def test_weights_are_moved_to_hosts_that_share_them_over_a_slow_network():
    # 160 GB of weights over 10 Gbit/s take two minutes a pass; over PCIe from each host's memory, seconds.
    asked = {"workload": "qwen3_next_80b_a3b", "train": "lora", "examples": 3000, "sequence": 2048}
    asked |= {"accelerator": ["16xrtx4090"]}
    found, kept = ask(asked), ask(asked, fix=["offload=none"])
    assert found.recommended.strategy.offload == "optimizer_and_params"
    assert by_size(kept)[16].time_s.value > 3 * by_size(found)[16].time_s.value
    assert not any(MOVED in note.words for note in found.notes_of("check"))


def test_software_that_cannot_move_weights_is_offered_none():
    # Megatron-Core offloads optimizer states alone: megatron-core 0.16.1, OptimizerConfig.optimizer_cpu_offload.
    asked = {"workload": "llama31_405b", "train": "lora", "tokens": "1e7", "sequence": 2048}
    found = ask(asked, accelerator=["8xh100"], software="megatron_core")
    assert found.recommended is None
    assert not any(MOVED in note or "weights and" in note for note in map(str, found.notes))


def test_a_price_of_electricity_that_no_money_has_is_said_to_change_nothing():
    rented, owned, bought = (
        ask(SMALL, electricity=0.5, **each) for each in ({}, {"price": [f"{RTX}=0"]}, {"buy": True})
    )
    assert any("--electricity" in note and "--buy" in note for note in map(str, rented.notes))
    assert not any("--electricity" in note for note in map(str, (*owned.notes, *bought.notes)))


def test_strategies_are_listed_by_their_time():
    found = ask(workload="llama31_8b", tokens="1e10", accelerator=[H100], at="32", top=9)
    times = [each.work_s.value for each in found.system.best_strategies]
    assert len(times) >= 9
    assert times == sorted(times)
    assert found.system.best_strategies[0].strategy == found.recommended.strategy


def test_a_way_to_fit_that_is_named_is_answered_and_every_such_way_of_adapters_is_named():
    asked = {"workload": "llama31_405b", "tokens": "1e12", "accelerator": [RTX], "max_accelerators": 8}
    assert "--train qlora" in ask(asked).systems[0].shortfall.ways
    assert ask(asked, train="qlora").recommended is not None


def _with_way(question, way):
    """The question with a change that would make it fit."""
    option, value, *rest = way.split()
    if option.replace(",", "").isdecimal():
        return {**question, "at": option}
    if option == "--train":
        assert rest == (["instead", "of", question["train"]] if "train" in question else [])
        return {**question, "train": value}
    if option == "--precision":
        assert rest == (["instead", "of", question["precision"]] if "precision" in question else [])
        return {**question, "precision": value}
    name = value.partition("=")[0]
    old = [each for each in question.get("fix", ()) if each.startswith(f"{name}=")]
    assert rest == ["instead", "of", *old] * len(old)
    return {**question, "fix": [*(each for each in question.get("fix", ()) if each not in old), value]}


@pytest.mark.parametrize(
    "asked",
    [
        # 12 x 180 GB; adapters of Hugging Face's code as written would need three times as much.
        {
            "workload": "llama31_8b",
            "train": "full",
            "examples": "1k",
            "sequence": "1M",
            "accelerator": [B200],
        },
        {"workload": "llama3_70b", "train": "full", "examples": "1k", "accelerator": [RTX], "at": "8"},
        {"workload": "llama3_70b", "tokens": "1G", "accelerator": [RTX], "at": "8", "fix": ["zero_stage=0"]},
        # 141 GB of weights: hosts of 4 x 24 GB hold them, hosts of 2 do not.
        {"workload": "llama3_70b", "train": "lora", "examples": "1k", "accelerator": [RTX], "at": "2"},
        # A target is published for all weights alone.
        {"workload": "gpt3", "accelerator": [H100], "at": "4"},
        {"workload": "llama31_8b", "tokens": "10G", "accelerator": ["rtx-3070-ti"], "at": "8"},
    ],
)
def test_what_would_make_it_fit_does_when_followed(asked):
    asked = {"at": "3,5,7,12", **asked}
    ways = ask(asked).systems[0].shortfall.ways
    assert ways
    for way in ways:
        assert ask(_with_way(asked, way)).recommended is not None, way


@pytest.mark.law
@pytest.mark.parametrize("stated", [{}, {"precision": "bf16"}])
def test_where_a_lesser_chip_trains_in_fp16_a_better_one_that_is_too_small_in_bf16_names_it(stated):
    asked = {"workload": "llama31_8b", "tokens": "10G", "at": "8"}
    lesser, better = (accelerator(f"rtx-{each}-pcie-8gb") for each in ("2080", "3070-ti"))
    assert at_least_as_good(better, lesser)
    assert ask({**asked, "accelerator": [lesser.slug]}).recommended is not None
    ways = ask({**asked, **stated, "accelerator": [better.slug]}).systems[0].shortfall.ways
    assert [way.split()[1] for way in ways if way.startswith("--precision")] == ["fp16"]


@pytest.mark.parametrize(
    ("asked", "changed", "named"),
    [
        (
            {"workload": "mixtral_8x7b", "software": "deepspeed", "accelerators": 16},
            {"accelerators": 32},
            "32 accelerators",
        ),
        (
            {"workload": "qwen3_30b_a3b", "precision": "fp32", "accelerators": 16},
            {"precision": "fp16"},
            "--precision fp16",
        ),
    ],
    ids=["size", "precision"],
)
def test_a_size_or_precision_that_is_far_faster_than_what_was_asked_for_is_named(asked, changed, named):
    asked = {"tokens": "1e11", "accelerator": [RTX], **asked}
    found, other = ask(asked), ask(asked, **changed)
    assert found.recommended.time_s.value > 3 * other.recommended.time_s.value
    (words,) = (each.words for each in found.notes_of("check"))
    assert named in words
    assert not other.notes_of("check")


@pytest.mark.parametrize(("microbatch", "batch"), [(3, 384), (7, 448)])
def test_micro_batches_that_share_out_no_usual_batch_are_refused_with_one_that_they_do(microbatch, batch):
    # The usual batch is 512 samples: 3 x 128 and 7 x 64 lie next to it, and powers of two share them out.
    asked = {**PRETRAINING, "fix": {"microbatch": microbatch}}
    with pytest.raises(EvidenceError) as refused:
        ask(asked)
    assert f"--global-batch {batch}" in refused.value.missing
    assert ask(asked, global_batch=batch).recommended.strategy.microbatch_samples == microbatch


@pytest.mark.parametrize("limit", [{}, {"max_accelerators": 512}])
def test_sizes_end_where_no_strategy_runs_on_more(limit):
    """168 samples: no larger batch is tried than 64, so that none of 128, 256 and 512 has a sample."""
    found = ask({"workload": "unet3d", "accelerator": [MI300X], **limit})
    assert {each.num_accelerators for each in found.system.unfit} >= {128, 256, 512}
    assert (found.recommended.num_accelerators, found.limited_by) == (64, "strategies")
