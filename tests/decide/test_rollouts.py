"""Reinforcement learning with rollouts: published steps, what it is refused for, and how it shares accelerators."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from equipoise.calibration.profiles import model_for
from equipoise.decide.decision import answer
from equipoise.decide.question.fine_tuning import ROLLOUT_LOG_SD, ROLLOUT_TIME_PER_STEP_TIME
from equipoise.decide.question.query import query
from equipoise.decide.question.training import training
from equipoise.decide.strategies.strategy_search import problem
from equipoise.errors import UsageError
from equipoise.spec.catalogue import shipped

PUBLISHED = tomllib.loads((Path(__file__).parents[1] / "truth" / "rollouts.toml").read_text())
PROMPT = 100  # the table states prompt and completion together


def trained(workload="llama31_8b", **given):
    asked = {"workload": workload, "train": "full,grpo", "examples": "10k", **given}
    return training(query(asked), shipped(), None)


@pytest.mark.truth
def test_published_steps_lie_in_the_interval_of_their_plans():
    ratios, inside = [], []
    for each in PUBLISHED["step"]:
        asked = trained(
            each["workload"],
            group=PUBLISHED["group_size"],
            prompt=PROMPT,
            completion=each["tokens"] - PROMPT,
            sequence=each["most_tokens"],
            global_batch=each["completions"],
        )
        nodes = shipped().cluster("h100-sxm5-80gb", num_accelerators=each["num_accelerators"])
        known = problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1)
        (found,) = known.search_sizes((each["num_accelerators"],))
        (timed,) = known.timed([found.best[0].strategy]).strategies
        ratios.append(each["step_s"] / timed.step_s)
        per_step_s = timed.work_s.value * each["completions"] / timed.num_samples
        low, high = timed.work_s.low / timed.work_s.value, timed.work_s.high / timed.work_s.value
        inside.append(per_step_s * low <= each["step_s"] <= per_step_s * high)
    assert len(ratios) == 10
    assert sum(inside) >= 9
    assert np.median(ratios) == pytest.approx(ROLLOUT_TIME_PER_STEP_TIME, rel=0.1)
    assert np.std(np.log(ratios), ddof=1) == pytest.approx(ROLLOUT_LOG_SD, rel=0.15)


def test_a_prompt_is_a_group_of_completions():
    found = trained(completion=1024, prompt=200, group=8, sequence="4k", epochs=2)
    assert found.workload.sequence_tokens == 1224
    assert found.budget.samples_at(512) == 10_000 * 8 * 2
    assert found.workload.rollout.most_completion_tokens == 4096 - 200
    # The reference model's weights besides, and two forward passes more: 3 + 2 (Shao et al. 2024).
    assert found.workload.frozen_params == found.workload.params
    plain = trained(train="full", sequence=1224).workload.train_flop_per_sample
    assert found.workload.train_flop_per_sample / plain == pytest.approx(5 / 3)


def test_accelerators_are_shared_or_in_two_pools_that_add_up():
    asked = query(
        {
            "workload": "llama31_8b",
            "train": "full,grpo",
            "examples": "10k",
            "completion": "1k",
            "accelerator": ["h100"],
            "accelerators": "16",
        }
    )
    found = answer(asked, scores=None)
    split, step_s = found.rollout, found.recommended.model.step_s
    assert split.num_shared == 16
    assert split.shared_step_s == pytest.approx(step_s)
    assert split.num_generating + split.num_training == 16
    assert split.num_training % 8 == 0
    assert split.pooled_step_s >= max(split.pooled_generation_s, split.pooled_training_s)
    no_rollout = query(
        {"workload": "llama31_8b", "examples": "10k", "accelerator": ["h100"], "accelerators": "8"}
    )
    assert answer(no_rollout, scores=None).rollout is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "--completion"),
        ({"train": "full", "completion": 512}, "--train grpo"),
        ({"completion": 512, "global_batch": 100}, "multiple"),
        ({"completion": 512, "prompt": 512, "sequence": 600}, "--sequence"),
        ({"train": "dpo,grpo", "completion": 512}, "twice"),
        ({"workload": "resnet50", "completion": 512}, "per sample"),
    ],
)
def test_what_is_no_reinforcement_learning_is_refused(given, words):
    with pytest.raises(UsageError, match=words):
        trained(**given)


def test_a_measured_step_holds_what_generates_its_samples(tmp_path):
    """By hand: 2,000 prompts of 16 completions, 32 a step, are 1,000 steps of 10 s."""
    runs = tmp_path / "mine.csv"
    columns = "workload,accelerator,num_accelerators,global_batch,precision,step_s"
    runs.write_text(f"{columns}\nllama31_8b,h100,8,32,bf16,10\n")
    asked = {"train": "full,grpo", "examples": "2k", "completion": 512, "accelerator": "h100", "runs": runs}
    found = answer(
        query({"workload": "llama31_8b", "accelerators": 8, "global_batch": 32, **asked}), scores=None
    )
    assert found.recommended.time_s.value == pytest.approx(1_000 * 10.0, rel=1e-3)
