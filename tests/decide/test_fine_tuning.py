"""Fine-tuning as people ask it: which weights, on which samples, how many examples, how often."""

import pytest

from equipoise.decide.query import query
from equipoise.decide.training import training
from equipoise.errors import UsageError
from equipoise.runs.embedded import tables
from equipoise.spec.catalogue import shipped


def trained(workload="llama31_8b", **given):
    return training(query({"workload": workload, **given}), shipped(), tables().scores)


def test_examples_epochs_and_sequence_make_the_training_budget():
    found = trained(train="qlora", examples="10k", epochs=3, sequence="2k")
    assert found.workload.sequence_tokens == 2048
    assert found.budget.samples_at(128) == 30_000
    assert not found.budget.is_to_target
    assert found.choices["trained"] == ("qlora",)
    assert found.choices["lora_rank"] == (16,)
    # PEFT prints so many for Llama 3 8B with adapters of rank 16 on every linear layer.
    assert found.workload.trained_params == 41_943_040


def test_epochs_of_a_workload_are_of_its_own_data_set():
    # ImageNet-1k has 1,281,167 images (Russakovsky et al. 2015); He et al. 2016 train about 90 epochs.
    assert trained("resnet50", epochs=90).budget.samples_at(256) == 90 * 1_281_167


def test_a_preference_pair_is_two_sequences_that_also_pass_the_reference_model():
    plain = trained(examples="10k")
    pairs = trained(examples="10k", train="dpo")
    assert pairs.budget.samples_at(128) == 2 * plain.budget.samples_at(128)
    # Rafailov et al. 2023, equation 7: forward and back through the policy, forward through the reference.
    assert pairs.workload.train_flop_per_sample == pytest.approx(4 / 3 * plain.workload.train_flop_per_sample)
    assert pairs.workload.frozen_params == plain.workload.params
    # The reference of adapters is the model without them.
    assert trained(examples="10k", train="lora,dpo").workload.frozen_params is None


def test_results_of_another_training_are_not_taken():
    assert trained().budget.is_to_target
    for stated in ({"train": "lora"}, {"sequence": "2k"}):
        with pytest.raises(UsageError, match="--tokens"):
            trained(**stated)
    assert trained("llama2_70b_lora", train="lora").budget.is_to_target


@pytest.mark.parametrize(
    ("workload", "given", "names"),
    [
        ("llama31_8b", {"train": "lora,qlora"}, "--train"),
        ("llama31_8b", {"train": "lora", "fix": "trained=qlora", "examples": 9}, "--fix trained"),
        ("llama31_8b", {"examples": 10, "tokens": 10}, "--examples"),
        ("llama31_8b", {"epochs": 3}, "--examples N"),
        ("resnet50", {"train": "lora", "examples": 9}, "--train lora"),
        ("resnet50", {"sequence": 9, "examples": 9}, "--sequence"),
        ("vit_base", {"train": "dpo", "examples": 9}, "--train dpo"),
        ("gpt2", {"sequence": "2k", "examples": 9}, "--sequence 2048"),
    ],
)
def test_what_cannot_be_trained_so_is_refused_with_the_option(workload, given, names):
    with pytest.raises(UsageError) as refused:
        trained(workload, **given)
    assert names in str(refused.value)
