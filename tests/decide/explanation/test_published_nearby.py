"""Published pretrainings near to what is planned."""

import pytest
from asking import H100, ask

from equipoise.decide.explanation.published_nearby import (
    near_published_pretrainings,
    pretrainings,
    published_itself,
)
from equipoise.decide.question.training import parameter_choices
from equipoise.report.blocks import Facts, Tiles
from equipoise.report.pages.answer import ANSWER
from equipoise.report.pages.answer.overview import overview_blocks


def test_the_same_model_on_the_same_chip_is_the_nearest():
    found = near_published_pretrainings(ask(workload="llama3_70b", tokens="1T", accelerator="h100"))
    # meta-llama/llama-models, model cards: 6.4 M hours for Llama 3, 7.0 M for 3.1, of about 15 T tokens each.
    hours = {each.title: each.accelerator_hours_per_t_tokens for each in found[:2]}
    assert hours == pytest.approx({"Llama 3 70B": 6.4e6 / 15, "Llama 3.1 70B": 7.0e6 / 15})
    assert [each.distance for each in found] == sorted(each.distance for each in found)
    assert found[0].distance == 0.0
    assert all(each.model_ratio > 0.0 for each in found)


@pytest.mark.parametrize(
    "question",
    [
        {"workload": "llama31_8b", "accelerator": "h100"},  # to the MLPerf target
        {"workload": "llama31_8b", "accelerator": "h100", "examples": "10k", "train": "lora"},
        {"workload": "resnet50", "accelerator": "h100", "epochs": "90"},
    ],
)
def test_other_trainings_have_none(question):
    assert near_published_pretrainings(ask(**question)) == ()


def test_every_pretraining_has_a_source_and_a_name_of_its_own():
    known = pretrainings()
    assert len(known) > 100
    assert len({each.title for each in known}) == len(known)
    assert all(each.source and each.tokens > 0.0 and each.accelerator_hours > 0.0 for each in known)


def test_stated_ranks_are_those_of_the_stated_accelerators():
    stated = {each.title: each for each in pretrainings() if each.strategy is not None}
    # OpenLLM-France/Lucie-Training, model card: "Tensor Parallelism (with 512 GPUs) 4", pipeline 4, data 32.
    assert parameter_choices((stated["Lucie 7B"].strategy,)) == {"tp": (4,), "pp": (4,), "dp": (32,)}
    for each in stated.values():
        ranks = {name: values[0] for name, values in parameter_choices((each.strategy,)).items()}
        if {"tp", "pp", "dp"} <= ranks.keys():
            assert ranks["tp"] * ranks["pp"] * ranks["dp"] == each.num_accelerators, each.title


@pytest.mark.parametrize(
    ("asked", "hours", "words"),
    [
        # karpathy/llm.c, discussion 481: 90 minutes of 8 A100; DeepSeek-V3 report, table 1: 2.664 M H800-hours.
        ({"workload": "gpt2", "tokens": "1e10", "accelerator": ["8x a100"]}, 12.0, ["GPT-2", " on 8:"]),
        (
            {"workload": "deepseek_v3", "tokens": "1.48e13", "accelerator": "h800", "max_accelerators": 2048},
            2.664e6,
            ["DeepSeek-V3", " on 2,048:", "fp8, not bf16"],
        ),
    ],
    ids=["llm.c", "fp8"],
)
def test_a_published_run_outside_the_range_of_its_answer_is_said_to_be_with_what_differs(asked, hours, words):
    found = ask(asked)
    best = found.recommended
    low = best.time_s.low / 3600 * best.num_accelerators
    facts = next(each for each in ANSWER.brief(found, 5) if isinstance(each, Facts))
    evidence = str(dict(facts.items)["Evidence"][0])
    assert [each for each in words if each not in evidence] == []
    assert f"{hours / best.accelerator_hours:.2g}x" in evidence
    assert published_itself(found).is_in_range == (low <= hours)
    assert ("below" in evidence) == (hours < low)
    # The first page of HTML says what the terminal's line does.
    tiles = next(each for each in overview_blocks(found) if isinstance(each, Tiles))
    assert [each.words.rstrip(".") for each in tiles.items if each.label == "Evidence"] == [evidence]


def test_a_training_on_other_sequences_is_not_the_published_one():
    # Llama team 2024, table 3 and model card: 8,192 tokens, 1.46 M H100-hours for 15 T tokens
    asked = {"workload": "llama31_8b", "tokens": "1e12", "accelerator": [H100], "max_accelerators": 64}
    same = published_itself(ask(asked))
    assert 1 / 3 < same.answer_ratio < 3.0
    assert same.title == "Llama 3.1 8B"
    assert published_itself(ask(asked, sequence=131_072)) is None
