"""What is trained: the batch is the user's, what is chosen for the user is named, knobs are the workload's."""

import pytest
from asking import published_scores

from equipoise.decide.query import query
from equipoise.decide.training import training, usual_batch
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.spec.catalogue import catalogue
from equipoise.spec.workload import workload


def trained(name, *, scores=None, **stated):
    return training(query({"workload": name, **stated}), catalogue(), scores)


def test_the_batch_of_a_users_own_model_is_kept(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    (tmp_path / "own_layers.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 10))\n"
        "    return model, torch.zeros(32, 1000)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = trained("own_layers:make", samples=1e6)
    assert found.global_batch_samples == 32
    assert any("batch 32" in words and "--global-batch" in words for words in found.chosen_for_you)
    assert found.workload.params == 1000 * 1000 + 1000 + 1000 * 10 + 10
    # Forward 2 FLOP a weight and sample; back twice that, less the gradient of the input, which nobody needs.
    assert found.workload.train_flop_per_sample == pytest.approx(2 * 1010e3 * 3 - 2 * 1e6, rel=0.01)
    stated = trained("own_layers:make", samples=1e6, global_batch=256)
    assert (stated.global_batch_samples, stated.chosen_for_you) == (256, ())


def test_a_language_model_of_no_published_batch_takes_the_usual_one_and_names_it():
    found = trained("gpt2", tokens=1e9)
    assert found.global_batch_samples == 2**22 // 1024
    assert any("4 Mi tokens" in words for words in found.chosen_for_you)


def test_the_batch_of_short_published_trainings_is_not_that_of_a_long_one():
    # Results of Llama 3.1 8B (v5.1) are of 180,000 to 344,000 sequences of 8,192 tokens, at a median batch of 32
    short = trained("llama31_8b", tokens=2e9, scores=published_scores())
    assert short.global_batch_samples == 32
    assert any("32: " in words and "published" in words for words in short.chosen_for_you)
    assert trained("llama31_8b", tokens=1e12, scores=published_scores()).global_batch_samples == 512
    # those of the 405B model are already larger than the usual one
    assert trained("llama31_405b", tokens=15e12, scores=published_scores()).global_batch_samples == 1152


def test_a_batch_that_results_span_is_left_to_be_chosen():
    assert trained("bert", scores=published_scores()).global_batch_samples is None


def test_a_short_training_is_not_a_part_of_a_step():
    # 1e6 tokens are 976 samples of 1,024, fewer than the usual 4,096 of a step
    assert trained("gpt2", tokens=1e6).global_batch_samples == 976
    with pytest.raises(UsageError, match="97 samples"):
        trained("gpt2", tokens=1e5, global_batch=512)


def test_where_no_batch_is_usual_it_is_asked_for():
    with pytest.raises(EvidenceError) as caught:
        usual_batch(workload("vit_large"))
    (missing,) = caught.value.missing
    assert "--global-batch N" in missing


def test_adapters_are_trained_where_the_workload_is_of_adapters():
    lora = trained("llama2_70b_lora", scores=published_scores())
    assert lora.choices["trained"] == ("lora",)
    assert lora.choices["lora_rank"] == (workload("llama2_70b_lora").lora_rank,)
    asked = trained("llama2_7b", tokens=1e9, fix=["trained=full,lora"])
    assert asked.choices["lora_rank"] == (0, 16)
    assert asked.is_fixed


@pytest.mark.parametrize(("name", "words"), [("gpt33", "gpt3"), ("nowhere:make", "nowhere")])
def test_what_names_no_training_is_refused(name, words):
    with pytest.raises(SpecError, match=words):
        trained(name, tokens=1e9)
