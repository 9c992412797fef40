"""Symptoms on entries made by hand: each figure in a sentence is worked out in the comment above it."""

import re

import polars as pl
import pytest

from equipoise.study.diminishing_returns import CURVE_RULE, SYMPTOMS, diagnose, diagnose_curves

BASELINE = {
    "entry_id": "base", "like_for_like_baseline_id": "base", "accelerator": "a", "num_accelerators": 8,
    "score_s": 1000.0, "unscaled_s": 1000.0, "like_for_like_efficiency": 1.0, "samples_to_target": 1000.0,
    "global_batch_samples": 64, "statistical": 1.0, "throughput": 1.0, "overhead": None, "eval_outside_s": 0.0,
    "train_block_s": 1000.0,
}  # fmt: skip


def entries(*changes):
    return pl.DataFrame(
        [BASELINE, *({**BASELINE, "entry_id": f"entry{i}", **change} for i, change in enumerate(changes))],
        infer_schema_length=None,
    )


def symptoms(*changes):
    return {(found.subject, found.symptom): numbers(found.words) for found in diagnose(entries(*changes))}


def numbers(words):
    return re.findall(r"\d[\d,.]*\d|\d", words)


def test_more_samples_than_the_baseline_is_convergence_bound():
    # E = 0.4 x 0.9 = 0.36; log 0.4 / log 0.36 = 0.897; 2500 samples against 1000 are 150 % more.
    found = symptoms(
        {
            "num_accelerators": 64,
            "like_for_like_efficiency": 0.36,
            "statistical": 0.4,
            "throughput": 0.9,
            "samples_to_target": 2500.0,
            "global_batch_samples": 1024,
        }
    )
    assert found == {("entry0", "convergence_bound"): ["89.7", "150", "1,024", "64"]}


def test_few_samples_an_accelerator_and_slow_is_batch_starvation():
    # 64 / 64 = 1 sample an accelerator against 64 / 8 = 8.
    found = symptoms(
        {
            "num_accelerators": 64,
            "like_for_like_efficiency": 0.5,
            "throughput": 0.5,
            "global_batch_samples": 64,
        }
    )
    assert found == {("entry0", "batch_starvation"): ["1", "8", "50"]}


def test_an_efficient_entry_has_no_symptom():
    assert symptoms({"num_accelerators": 64, "like_for_like_efficiency": 0.95, "statistical": 0.95}) == {}


def test_evaluation_counts_only_outside_training():
    separate = {"eval_outside_s": 100.0, "train_block_s": 900.0}
    assert symptoms(separate) == {}
    alone = {"eval_outside_s": 400.0, "train_block_s": 600.0}
    assert symptoms(alone) == {("entry0", "evaluation_bound"): ["40"]}
    assert symptoms({"eval_outside_s": None, "train_block_s": None}) == {}


def test_time_outside_training_and_evaluation_is_set_up():
    # 1000 - 700 - 100 = 200 s.
    found = symptoms({"eval_outside_s": 100.0, "train_block_s": 700.0})
    assert found == {("entry0", "set_up_bound"): ["20"]}


def test_one_slow_entry_among_equals_is_an_outlier_and_needs_two_peers():
    slow = {"score_s": 1500.0}
    assert ("entry0", "slow_outlier") not in symptoms(slow)
    found = symptoms(slow, {"score_s": 1100.0})
    # Median of 1000 and 1100 s is 1050 s = 17.5 min; 1500 s = 25 min is 1.43 times as long.
    assert found[("entry0", "slow_outlier")] == ["25", "17.5", "2"]


def test_entries_without_score_are_passed_over():
    assert diagnose(entries({"like_for_like_efficiency": None, "score_s": None})) == ()


@pytest.mark.parametrize(
    ("times_s", "shown"),
    [
        # From 16 to 64 it is 50 / 40 = 1.25 times as fast; half of what ideal scaling adds is 1 + 3 / 2 = 2.5.
        ([100.0, 50.0, 40.0], ["16", "64", "1.25", "2.5"]),
        # 2.4 times as fast: 1.55 times a doubling, yet less than half of what four times as many would add.
        ([100.0, 50.0, 50.0 / 2.4], ["16", "64", "2.4", "2.5"]),
        # The last step gains: an early dent is not diminishing returns.
        ([100.0, 95.0, 24.0], None),
        ([100.0, 50.0, 12.5], None),
        ([100.0, 50.0, 60.0], ["16", "64", "0.833", "2.5"]),
    ],
)  # fmt: skip
def test_returns_diminish_where_every_further_step_gains_less_than_half(times_s, shown):
    curve = pl.DataFrame({"accelerator": ["a"] * 3, "num_accelerators": [8, 16, 64], "score_s": times_s})
    assert [numbers(found.words) for found in diagnose_curves(curve)] == ([] if shown is None else [shown])


def test_every_symptom_prints_its_rule():
    assert SYMPTOMS
    assert all(symptom.rule and symptom.title for symptom in SYMPTOMS)
    assert "0.5" in CURVE_RULE
