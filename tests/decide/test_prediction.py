"""Times at sizes nobody ran: laws recovered by hand, published groups, a user's file; and refusals."""

import re

import numpy as np
import polars as pl
import pytest

from equipoise.decide.decision import answer
from equipoise.decide.prediction import predict
from equipoise.decide.question.query import query
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.runs import embedded
from equipoise.runs.store import SCORES, polars_schema, scores_of
from equipoise.spec.mlperf import Scores

H100, A100 = "h100-sxm5-80gb", "a100-sxm4-80gb"
SERIAL_S, PARALLEL_S = 10.0, 1000.0


def amdahl_s(size):
    """T = 10 s + 1000 s / N."""
    return SERIAL_S + PARALLEL_S / np.asarray(size, dtype=float)


def entry(round_, accelerator, size, score_s, *, workload="bert", division="closed"):
    """One scored entry, as far as a prediction looks."""
    return {
        "entry_id": f"{round_}/somebody/{accelerator}_{size}/{workload}",
        "campaign": round_,
        "division": division,
        "workload": workload,
        "accelerator": accelerator,
        "num_accelerators": size,
        "score_s": score_s,
        "source_uri": f"somebody/results/{accelerator}_{size}/{workload}",
        "source_line": 7,
    }


def table(*rows):
    return scores_of(pl.DataFrame(rows, schema=polars_schema(SCORES)))


def published(*, later_s=None):
    """Three rounds of one workload: T = 12,000 s / N^0.9, a fifth less a round, A100 twice as slow."""
    rows = []
    for age, round_ in enumerate(("v2.0", "v2.1", "v3.0")):
        for accelerator, factor in ((H100, 1.0), (A100, 2.0)):
            for size in (8, 16, 32, 64, 128, 256):
                score_s = 12_000.0 * 0.8**age * factor / size**0.9
                rows.append(entry(round_, accelerator, size, score_s))
    held_out = [row for row in rows if (row["campaign"], row["accelerator"]) != ("v3.0", H100)]
    own = [row for row in rows if row not in held_out and row["num_accelerators"] <= 64]
    later = [] if later_s is None else [entry("v3.1", A100, size, later_s) for size in (8, 16, 64, 512)]
    return table(*held_out, *own, *later)


SIZES = tuple(2**power for power in range(10))


@pytest.fixture
def own(tmp_path):
    """A file of the user's own times, as `--from` takes it."""

    def written(sizes, times_s, *, column="time_to_train_s"):
        lines = [
            f"num_accelerators,{column}",
            *(f"{size},{time_s!r}" for size, time_s in zip(sizes, map(float, times_s), strict=True)),
        ]
        path = tmp_path / "mine.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return written


def predicted(scores=None, **asked):
    return predict(query(asked), scores=table() if scores is None else scores)


def by_size(found):
    return {each.num_accelerators: each for each in found.candidates}


# Laws on the user's own times


@pytest.mark.parametrize("price", [{}, {"accelerator": H100}])
def test_a_time_whose_range_is_a_factor_of_twenty_is_none_nor_what_follows_from_it(own, price):
    # Measured up to 8 alone: the range is 1.6 times at twice as many, 205 times at 128 times.
    of_own = {"from": own((1, 2, 4, 8), (36_000, 18_600, 9_900, 5_880))}
    times = by_size(predicted(**of_own, **price, at="16,1024,1000000", deadline="1h", budget=100))
    assert times[16].time_s.high < 20 * times[16].time_s.low
    assert {times[16].why_not} == {None} != {times[1024].why_not}
    for size in (1024, 1_000_000):
        far = times[size]
        assert "20" in far.why_not
        amounts = (far.time_s, far.accelerator_hours, far.usd, far.energy_j, far.carbon_kg, far.step_s)
        assert amounts == (None,) * len(amounts)
        assert {each.probability for each in far.constraints} == {None}
        assert not far.feasible


def test_amdahl_by_hand(own):
    found = predicted(**{"from": own(SIZES, amdahl_s(SIZES))}, law="amdahl", at="64,1024")
    times = by_size(found)
    assert times[64].time_s.value == pytest.approx(25.625, rel=0.01)
    assert times[64].time_s.low < 25.625 < times[64].time_s.high
    assert 64 not in found.outside
    assert times[1024].time_s.value == pytest.approx(10.9765625, rel=0.02)
    assert {"2", "512"} <= set(re.findall(r"\d+", found.outside[1024]))
    assert found.law.values == pytest.approx({"serial_s": SERIAL_S, "parallel_s": PARALLEL_S}, rel=1e-6)
    points = {each.kind: each for each in found.equilibria}
    # Largest E S: T + 2 N T' = 0, N = parallel / serial. Doubling gains half from N = parallel / (2 serial): taken.
    # Half the efficiency: serial N + parallel = 2 (serial + parallel).
    for kind, size in (("balance", 100), ("marginal", 100), ("floor", 102)):
        assert points[kind].num_accelerators == pytest.approx(size, rel=0.04), kind
        assert points[kind].low <= size <= points[kind].high, kind
    assert points["peak"].limited_by == "data"


def test_all_laws_together_hold_the_truth_of_noisy_times(own):
    rng = np.random.default_rng(5)
    sizes = np.repeat(SIZES[:7], 3)
    times_s = amdahl_s(sizes) * rng.lognormal(0.0, 0.02, len(sizes))
    found = predicted(**{"from": own(sizes, times_s)}, at="32,128")
    assert by_size(found).keys() == {32, 128}
    for size, each in by_size(found).items():
        assert each.time_s.low < amdahl_s(size) < each.time_s.high
    assert sum(found.law.shares.values()) == pytest.approx(1.0)
    assert {each.ref.rpartition("/")[2] for each in found.evidence} == {"mine.csv"}
    assert {each.grade for each in found.candidates} == {"measured"}


def test_times_far_from_published_ones_are_compared_in_plain_numbers_and_once(own):
    # 12,000 s / 16^0.9 x 0.8^2 = 633 s, published; these are 240 times as long
    asked = {"from": own((4, 8, 16), (600_000, 300_000, 633.3 * 240), column="seconds")}
    notes = [*map(str, predicted(published(), **asked, workload="bert", accelerator=H100, at=16).notes)]
    assert [each for each in notes if re.search(r"\b16\b.*\b240\b", each)]
    assert not [each for each in notes if "e+" in each]
    assert [each for each in notes if "seconds" in each]
    assert len(set(notes)) == len(notes)


def test_without_sizes_those_measured_and_one_doubling_more_are_predicted(own):
    found = predicted(**{"from": own(SIZES[:5], amdahl_s(SIZES[:5]))})
    assert list(by_size(found)) == [1, 2, 4, 8, 16, 32]


def test_the_record_is_the_largest_size_held_out(own):
    # 41.25 s is what Amdahl's law predicts at 32; at 60 s it is off by 31 %.
    found = predicted(**{"from": own(SIZES[:6], [*amdahl_s(SIZES[:5]), 60.0])})
    (words,) = {each.estimates[0].why for each in found.candidates}
    held_out, percent = re.search(r" (\d+),.* ([\d.]+) %", words).groups()
    assert int(held_out) == 32
    assert float(percent) == pytest.approx(100 * (1 - 41.25 / 60), abs=5)


def test_a_run_that_is_left_out_is_no_evidence_and_nothing_is_held_against_it(own):
    sizes, times_s = [*SIZES[:7], 64], [*amdahl_s(SIZES[:7]), 0.7 * float(amdahl_s(64))]
    found = predicted(**{"from": own(sizes, times_s)}, law="amdahl", at=64)
    held = {each.num_accelerators: each.time_s for each in found.evidence}
    assert held[64] == pytest.approx(25.625)
    (words,) = {each.estimates[0].why for each in found.candidates}
    assert float(re.search(r" ([\d.]+) %", words)[1]) < 1


@pytest.mark.parametrize(
    ("sizes", "times_s"),
    [
        ([8], [10.0]),
        ([8, 16], [10.0, 6.0]),
        ([8, 8, 8], [10.0, 10.1, 9.9]),
        ([1, 2, 4], [10.0, 4.0, 6.0]),
    ],
    ids=["one size", "two sizes", "repetitions of one size", "no order"],
)
def test_too_little_evidence_is_no_number(own, sizes, times_s):
    with pytest.raises(EvidenceError) as caught:
        predicted(**{"from": own(sizes, times_s)})
    assert caught.value.missing


def test_times_that_do_not_fall_advise_the_fewest(own):
    found = predicted(**{"from": own([1, 2, 4, 8], [10.0, 10.1, 9.9, 10.05])})
    at = {each.kind: each.num_accelerators for each in found.equilibria}
    assert (at["balance"], at["marginal"], at["floor"]) == (1, 1, 2)  # half the efficiency of one is two's
    assert found.candidates[0].time_s.value == pytest.approx(10.0, rel=0.02)


def test_too_few_runs_say_how_many_were_left_out_and_why(own):
    path = own([8, 16, 32], [10.0, 6.0, 4.0])
    header, *rows = path.read_text().splitlines()
    states = ("completed", "failed", "failed")
    path.write_text(
        "\n".join((f"{header},status", *(f"{row},{state}" for row, state in zip(rows, states, strict=True))))
    )
    with pytest.raises(EvidenceError, match=r"mine\.csv.*status.*2"):
        predicted(**{"from": path})


def test_money_by_hand(own):
    # 64 accelerators for 25.625 s at 3.60 US dollars an hour
    found = predicted(**{"from": own(SIZES, amdahl_s(SIZES))}, law="amdahl", at="64", price="3.6")
    (each,) = found.candidates
    assert each.accelerator_hours == pytest.approx(64 * 25.625 / 3600, rel=0.01)
    assert each.usd.value == pytest.approx(64 * 25.625 / 1000, rel=0.01)
    assert (each.energy_j, each.carbon_kg) == (None, None)


def test_from_which_value_of_an_hour_more_pay_by_hand(own):
    # From 32 to 64 at 2 USD: 64 x 25.625 s - 32 x 41.25 s = 320 accelerator-seconds for 15.625 s: 40.96 USD per hour.
    found = predicted(**{"from": own(SIZES, amdahl_s(SIZES))}, law="amdahl", at="32,64", price="2")
    (first, second) = found.time_values
    assert (first.from_usd_per_hour, second.candidate.split("/")[1]) == (0.0, "64")
    assert second.from_usd_per_hour == pytest.approx(2 * 320 / 15.625, rel=0.02)


# Published groups


def test_a_published_group_is_predicted_from_its_sizes_and_earlier_rounds():
    found = predicted(published(), workload="bert", accelerator=[H100], at="32,48,128", law="pooled")
    assert found.round == "v3.0"
    for size, each in by_size(found).items():
        (carried,) = [one for one in each.estimates if one.estimator == "published"]
        # Nobody submitted 128 in v3.0: the result of the round before is what was published there.
        true_s = 12_000.0 * (0.8 if size == 128 else 0.64) / size**0.9
        assert carried.time_s.value == pytest.approx(true_s, rel=0.1)
        assert carried.time_s.low < true_s < carried.time_s.high
    assert {size: each.grade for size, each in by_size(found).items()} == {
        32: "published",
        48: "carried",
        128: "published",
    }
    assert found.equilibria


def test_one_law_alone_is_fitted_to_the_groups_own_points():
    found = predicted(published(), workload="bert", accelerator=[H100], law="power", at="128", round="v3.0")
    assert found.law.values["exponent"] == pytest.approx(0.9, rel=1e-6)
    assert [each.num_accelerators for each in found.evidence] == [8, 16, 32, 64]
    assert found.evidence[0].source_uri is None or "somebody/results" in found.evidence[0].source_uri


def test_a_result_that_one_law_leaves_out_is_no_evidence_for_it():
    # Six results on one curve, and one that took eight times as long as the others say.
    times_s = {size: 12_000.0 / size**0.9 for size in (8, 16, 32, 64, 128, 256)}
    scores = table(
        *(entry("v3.0", H100, size, time_s) for size, time_s in times_s.items()),
        entry("v3.0", H100, 512, 8 * 12_000.0 / 512**0.9),
    )
    found = predicted(scores, workload="bert", accelerator=[H100], law="power", at="128", round="v3.0")
    assert [each.num_accelerators for each in found.evidence] == [8, 16, 32, 64, 128, 256]


def test_a_range_has_the_sizes_within_it(own):
    # BERT has results of H100 on 4 to 3,472, also at 48.
    asked = {"workload": "bert", "accelerator": H100, "at": "8..100"}
    known, law = (predicted(embedded.scores(), **asked, **each) for each in ({}, {"law": "usl"}))
    assert [each.num_accelerators for each in known.candidates] == [8, 16, 32, 48, 64, 100]
    assert [each.num_accelerators for each in law.candidates] == [8, 16, 32, 64, 100]
    of_times = predicted(**{"from": own([1, 2, 4, 8], [1000.0, 520.0, 280.0, 160.0])}, at="3..20")
    assert [each.num_accelerators for each in of_times.candidates] == [3, 4, 8, 16, 20]


def test_one_law_alone_takes_one_round_the_newest_with_enough_sizes():
    # v4.0 has two sizes, too few for the two parameters of the law; older rounds are not mixed in.
    newer = table(*(entry("v4.0", H100, size, 4_000.0 / size**0.9) for size in (8, 16)))
    scores = Scores((*published().entries, *newer.entries))
    found = predicted(scores, workload="bert", accelerator=[H100], law="power", at="128")
    assert found.round == "v3.0"
    assert {each.ref.partition("/")[0] for each in found.evidence} == {"v3.0"}
    assert found.law.values["exponent"] == pytest.approx(0.9, rel=1e-6)
    assert any("v3.0" in note and "--round" in note for note in map(str, found.notes))


def test_two_user_sizes_are_enough_with_published_ones(own):
    times_s = 3.0 * 12_000.0 * 0.64 / np.array([8.0, 16.0]) ** 0.9
    found = predicted(
        published(), **{"from": own([8, 16], times_s)}, workload="bert", accelerator=[H100], at="32"
    )
    (each,) = found.candidates
    (mine,) = [one for one in each.estimates if one.estimator == "measured"]
    assert mine.time_s.low < 3.0 * 12_000.0 * 0.64 / 32**0.9 < mine.time_s.high
    assert any(re.search(r"\b8 accelerators .*\b3 times", note) for note in map(str, found.notes))


@pytest.mark.law
@pytest.mark.parametrize("factor", [0.1, 30.0])
def test_a_system_slower_by_any_factor_is_predicted_slower_by_that_factor(own, factor):
    times_s = np.array([1000.0, 600.0, 200.0])
    asked = {"workload": "bert", "accelerator": [H100], "at": "8,128"}
    plain, slower = (
        {
            each.num_accelerators: one
            for each in predicted(published(), **{"from": own([8, 16, 64], times)}, **asked).candidates
            for one in each.estimates
            if one.estimator == "measured"
        }
        for times in (times_s, factor * times_s)
    )
    assert set(plain) == set(slower) == {8, 128}
    for size, one in plain.items():
        assert slower[size].time_s.value == pytest.approx(factor * one.time_s.value, rel=1e-9)
    # What was measured is predicted, however far from the best published time it lies.
    assert slower[8].time_s.low < factor * 1000.0 < slower[8].time_s.high


def test_times_of_steps_do_not_join_times_to_train(own):
    found = predicted(
        published(),
        **{"from": own(SIZES, amdahl_s(SIZES), column="step_s")},
        workload="bert",
        accelerator=[H100],
    )
    assert {each.kind for each in found.evidence} == {"measured"}
    assert any("not used" in note for note in map(str, found.notes))


def test_prediction_and_advice_have_the_same_candidates():
    from asking import LORA, ask, published_scores  # noqa: PLC0415 - real data for this test alone

    asked = query({**LORA, "at": "8,64,512"})
    found = predict(asked, scores=published_scores())
    advised = {each.id: each for each in ask(LORA).candidates}
    assert [each.num_accelerators for each in found.candidates] == [8, 64, 512]
    for each in found.candidates:
        assert each.time_s.value == pytest.approx(advised[each.id].time_s.value, rel=1e-9)
        assert each.usd.value == pytest.approx(advised[each.id].usd.value, rel=1e-9)
    kinds = [(each.kind, each.num_accelerators) for each in found.equilibria]
    assert kinds == [(each.kind, each.num_accelerators) for each in ask(LORA).equilibria]


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"workload": "bert"}, UsageError, "--workload and --accelerator"),
        ({"workload": "bert", "accelerator": H100, "strategy": "ddp"}, UsageError, "--strategy.*--from"),
        ({"workload": "bert", "accelerator": H100, "column": ["a=b"]}, UsageError, "--column.*--from"),
        ({"workload": "bret", "accelerator": [H100]}, SpecError, "bret"),
        ({"workload": "bert", "accelerator": ["h9000"]}, SpecError, "h9000"),
        ({"workload": "bert", "accelerator": [H100], "round": "v9.9"}, SpecError, "v2.0, v2.1, v3.0 have"),
        ({"workload": "bert", "accelerator": [H100], "law": "magic"}, SpecError, "'magic'.*amdahl"),
    ],
)
def test_what_cannot_be_predicted_is_refused(asked, error, words):
    with pytest.raises(error, match=words):
        predicted(published(), **asked)


def test_a_round_before_may_be_asked_for():
    found = predicted(published(), workload="bert", accelerator=[H100], round="2.1", at="256", law="pooled")
    assert found.round == "v2.1"
    (each,) = found.candidates
    (carried,) = [one for one in each.estimates if one.estimator == "published"]
    assert carried.time_s.value == pytest.approx(12_000.0 * 0.8 / 256**0.9, rel=0.1)


def test_later_rounds_change_nothing_that_is_carried():
    asked = {"workload": "bert", "accelerator": [H100], "at": "128", "law": "pooled", "round": "v3.0"}
    times = [
        next(
            one.time_s.value
            for one in predicted(scores, **asked).candidates[0].estimates
            if one.estimator == "published"
        )
        for scores in (published(), published(later_s=1.0))
    ]
    assert times[0] == pytest.approx(times[1])


def test_a_size_with_results_of_its_own_is_no_extrapolation():
    # v5.1 was the first round of Llama 3.1 8B: earlier rounds have no trend to carry, yet 8 and 16 B200 were submitted
    found = predict(
        query({"workload": "llama31_8b", "accelerator": ["b200-sxm6-180gb"], "at": "8,16,24"}),
        scores=embedded.scores(),
    )
    assert [bool(each.published) for each in found.candidates] == [True, True, False]
    assert not {8, 16} & found.outside.keys()


def test_what_the_user_measured_is_kept_however_unlike_published_results(own):
    hours = {16: 19.92, 32: 20.19, 64: 19.97}
    path = own([*hours], [3600 * each for each in hours.values()])
    asked = {"workload": "llama2_70b_lora", "accelerator": [H100], "from": path, "at": "8,16,32,64,128"}
    found = by_size(predict(query(asked), scores=embedded.scores()))
    assert {size: round(found[size].time_s.value / 3600, 1) for size in hours} == {
        16: 19.9,
        32: 20.2,
        64: 20.0,
    }


def test_trainings_of_a_size_that_contradict_each_other_are_named_and_leave_every_size_as_open(own):
    """Neither of two times is known to be wrong: ranges, of their size and of others, are as wide as they are apart."""
    asked = {"workload": "llama2_70b_lora", "accelerator": [H100], "at": "8,64"}
    wide = predict(query({**asked, "from": own([8, 8], [1800, 18_000])}), scores=embedded.scores())
    (check,) = [each for each in wide.notes if each.kind == "check"]
    assert re.search(r"\b2\b.*\b8 acc.*\b10\.0", check.words)
    for size in (8, 64):
        assert by_size(wide)[size].time_s.high / by_size(wide)[size].time_s.low > 10
    alike, one = (
        predict(query({**asked, "from": own(sizes, times_s)}), scores=embedded.scores())
        for sizes, times_s in (([8, 8], [1800, 1830]), ([8], [1815]))
    )
    assert not [each for each in alike.notes if each.kind == "check"]
    for size in (8, 64):
        assert by_size(alike)[size].time_s.high == pytest.approx(by_size(one)[size].time_s.high, rel=0.01)


def test_a_size_that_the_user_measured_is_no_extrapolation_however_unlike_published_results(own):
    path = own([1, 2, 4, 8], [36_000, 35_640, 36_360, 36_000])
    asked = {"workload": "resnet50", "accelerator": ["rtx3090"], "from": path, "at": "8,64"}
    found = predict(query(asked), scores=embedded.scores())
    assert by_size(found)[8].time_s.value == pytest.approx(36_000, rel=0.01)
    assert {*found.outside} == {64}


def test_a_fixed_strategy_takes_as_long_as_in_a_plan_and_no_law_knows_it():
    asked = {"workload": "bert", "accelerator": [H100], "at": "64", "fix": ["zero_stage=0"]}
    found = predict(query(asked), scores=embedded.scores())
    planned = answer(query(asked), scores=embedded.scores())
    (expected,) = [
        each for each in planned.candidates if (each.num_accelerators, each.terms) == (64, "on_demand")
    ]
    assert found.candidates[0].time_s.value == pytest.approx(expected.time_s.value)
    with pytest.raises(UsageError, match="--fix"):
        predict(query(asked | {"law": "amdahl"}), scores=embedded.scores())


def test_a_strategy_that_cannot_be_is_why_there_is_no_time():
    # BERT-large has 16 heads (Devlin et al. 2019)
    asked = query({"workload": "bert", "accelerator": "h100-sxm5-80gb", "at": 64, "fix": "tp=64"})
    with pytest.raises(EvidenceError, match=r"heads=16\b") as refused:
        predict(asked, scores=embedded.scores())
    assert "--fix" in refused.value.missing[0]


@pytest.mark.parametrize(("size", "has_time"), [(2048, True), (4096, False)])
def test_a_law_alone_states_no_time_beyond_four_times_the_largest_result(size, has_time):
    # No performance model of the workload is known; its results, of any chip, end at 512 accelerators.
    scores = embedded.scores()
    assert max(each.num_accelerators for each in scores.of("rgat")) == 512
    asked = query({"workload": "rgat", "accelerator": "h100-sxm5-80gb", "accelerators": size})
    advised = answer(asked, scores=scores)
    found = {
        each.num_accelerators: each
        for each in (*advised.candidates, *predict(asked, scores=scores).candidates)
    }
    assert (found[size].time_s is not None) is has_time
    assert (advised.recommended is not None) is has_time
    assert has_time or {"4", "512"} <= set(re.findall(r"\d+", found[size].why_not))


def test_a_size_without_a_time_is_answered_with_the_next_ones_that_have_one():
    # 80,056 = 2^3 x 10,007 accelerators, a prime, share out no batch as small as those of results.
    asked = query({"workload": "gpt3", "accelerator": "h100-sxm5-80gb", "at": 80_056})
    with pytest.raises(EvidenceError) as refused:
        predict(asked, scores=embedded.scores())
    (words,) = refused.value.missing
    below, above = sorted(int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", words))
    assert 40_000 < below < 80_056 < above < 160_000


def test_rows_in_another_precision_are_said_once_to_be_unused(mine):
    rows = [
        f"{size},{1.5 * amdahl_s(size)},{precision}" for size in (8, 16, 32) for precision in ("bf16", "fp8")
    ]
    path = mine("\n".join(["num_accelerators,time_to_train_s,precision", *rows[:-1], ""]))
    found = predicted(published(), **{"from": path}, workload="bert", accelerator=[H100], precision=["bf16"])
    unused = [note for note in found.notes if "precision" in note.words and "excluded" in note.words]
    assert [(note.kind, "2" in note.words) for note in unused] == [("not_used", True)]


@pytest.mark.truth
def test_a_round_that_is_stated_is_predicted_as_it_was_submitted():
    # v5.0, IBM, CoreWeave and NVIDIA: 121.09 minutes on 512 GB200, 62.07 on 1,024.
    asked = query({"workload": "llama31_405b", "accelerator": "gb200", "at": "512,1024", "round": "v5.0"})
    times_s = [each.time_s.value for each in predict(asked, scores=embedded.scores()).candidates]
    assert [each / 60 for each in times_s] == pytest.approx([121.09, 62.07], rel=0.04)
