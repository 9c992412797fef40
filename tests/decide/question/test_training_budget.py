"""How much work a training is: as stated, to a published target, or not known."""

import math

import numpy as np
import pytest
from asking import published_scores
from msgspec.structs import replace

from equipoise.decide.question.query import query
from equipoise.decide.question.training import fixed_budget, training_budget
from equipoise.errors import UsageError
from equipoise.spec.mlperf import Scores
from equipoise.spec.workload import ReferenceRuns, workload


def budget(name, *, scores=None, **stated):
    return training_budget(query({"workload": name, **stated}), workload(name), scores)


def test_tokens_are_samples_times_their_length():
    # GPT-3 trains on sequences of 2,048 tokens
    assert budget("gpt3", tokens=2048e6).samples_at(8) == pytest.approx(1e6)
    assert budget("resnet50", samples=5e6).samples_at(256) == pytest.approx(5e6)
    with pytest.raises(UsageError, match=r"--tokens.*ResNet-50.*--samples"):
        budget("resnet50", tokens=1e9)


def test_a_stated_budget_is_the_same_at_every_batch_and_certain():
    found = fixed_budget(workload("resnet50"), 1e6)
    assert np.ptp(found.samples(np.array([8.0, 4096.0]))) == 0.0
    assert found.log_sd(64.0) == 0.0
    assert not found.is_to_target
    assert found.work == "train on 1 M samples"
    assert fixed_budget(workload("resnet50"), 1.0).work == "train on 1 sample"


def test_samples_to_a_target_grow_with_the_batch():
    found = budget("bert", scores=published_scores())
    assert found.is_to_target
    assert found.batches == (66, 16384)
    # S(B) = S_min (1 + B / B_crit), S_min 2.68 M samples and B_crit 18.1 k over v0.5 to v5.0
    for batch in (256, 4096):
        assert found.samples_at(batch) == pytest.approx(2.68e6 * (1 + batch / 18115), rel=0.01)
    assert sum(each.share for each in found.evidence) == pytest.approx(1.0)
    assert all(each.source_uri for each in found.evidence)


def test_evaluation_takes_the_share_of_the_time_that_published_runs_state():
    entries = published_scores().of("bert")
    stated = [replace(each, eval_s=None) for each in entries[3:]]
    stated += [
        replace(each, eval_s=share * each.score_s)
        for each, share in zip(entries[:3], (0.1, 0.2, 0.4), strict=True)
    ]
    found = budget("bert", scores=Scores(tuple(stated)))
    assert found.time_per_step_time == pytest.approx(1 / (1 - 0.2))
    assert any("20 %" in each for each in found.notes)
    assert budget("bert", samples=1e6, scores=published_scores()).time_per_step_time == 1.0


def test_evaluation_of_adapters_is_at_most_what_the_rules_ask_for():
    # MLPerf's rules: at most every 384 sequences on 173 others, forward only, half of what a step with adapters
    # computes; the first evaluations are left out.
    found = budget("llama2_70b_lora", scores=published_scores())
    assert 1.05 < found.time_per_step_time < 1 + 173 / 384 / 2


@pytest.mark.parametrize(
    ("name", "batch", "samples"),
    [
        # Entries of MLPerf Training v6.0: on eight B300 GPUs by ASUSTeK and by Giga Computing.
        ("gpt_oss_20b", 24, 208_896),
        # Reference convergence points of v6.0: the mean of six runs.
        ("deepseekv3_671b", 16_384, 767_317),
    ],
)
def test_without_results_samples_to_a_target_are_those_of_the_benchmark_s_reference_runs(
    name, batch, samples
):
    found = budget(name, scores=published_scores())
    assert found.is_to_target
    assert found.batches[0] <= batch <= found.batches[1]
    assert found.samples_at(batch) == pytest.approx(samples, rel=0.03)
    assert 0.05 < found.log_sd(batch) < 0.1
    # Of another length of sequences nothing is known.
    with pytest.raises(UsageError, match="--tokens"):
        budget(name, scores=published_scores(), sequence=2048)


@pytest.mark.parametrize(
    ("runs", "samples"),
    [
        ({512: 7e6}, {256: 7e6, 1024: 7e6}),  # of one batch
        ({512: 7e6, 1024: 7e6}, {512: 7e6, 2048: 7e6}),  # larger ones took no more
        ({8: 80.0, 16: 170.0}, {8: 80.0, 16: 170.0}),  # more than in proportion
    ],
)
def test_reference_runs_of_a_file_need_not_grow_with_the_batch(runs, samples):
    reference = [
        ReferenceRuns(global_batch_samples=batch, samples_to_target=each, num_runs=3)
        for batch, each in runs.items()
    ]
    about = replace(workload("gpt_oss_20b"), reference_runs=tuple(reference))
    found = training_budget(query({"workload": "gpt_oss_20b"}), about, None)
    assert {batch: found.samples_at(batch) for batch in samples} == pytest.approx(samples, rel=0.04)


def test_too_few_results_leave_the_samples_open():
    few = Scores(published_scores().of("bert")[:2])
    found = budget("bert", scores=few)
    assert found.samples is None
    assert found.samples_at(64) is None
    assert found.is_to_target
    assert any("--samples" in each for each in found.missing)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama31_8b", r" tokens .*give --tokens 1e12, or --samples 1e6$"),
        ("vit_large", r" images .*give --examples 10000 and --epochs 3, or --samples 1e6$"),
        ("resnet152", r"--epochs 3, or --samples 1e6$"),
    ],
)
def test_a_training_of_no_stated_amount_is_refused_with_what_to_add(name, words):
    with pytest.raises(UsageError, match=words):
        budget(name, scores=Scores(()))


def test_uncertainty_of_samples_is_finite_at_any_batch():
    found = budget("bert", scores=published_scores())
    assert all(math.isfinite(found.log_sd(batch)) and found.log_sd(batch) >= 0 for batch in (1.0, 1e3, 1e9))
