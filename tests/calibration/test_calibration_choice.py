"""One calibration for all chips of a maker: laws 3 and 5 of a decision."""

import pytest

from equipoise.calibration.profiles import RULES, architecture, model_for, profiles, software_for
from equipoise.errors import SpecError
from equipoise.spec.hardware import accelerator, accelerators
from equipoise.spec.strategy import PRIORS_ONLY
from equipoise.spec.workload import workload


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama31_8b", "dense transformer"),
        ("gpt3", "dense transformer"),
        ("llama2_70b_lora", "dense transformer"),
        ("mixtral_8x7b", "mixture of experts"),
        ("resnet50", "other"),
    ],
)
def test_architectures_are_told_apart(name, kind):
    assert architecture(workload(name)) == kind


@pytest.mark.parametrize("name", ["llama31_8b", "mixtral_8x7b", "resnet50"])
def test_all_chips_of_a_maker_share_one_calibration(name):
    by_maker = {}
    for chip in accelerators():
        found = software_for(chip, workload(name))
        by_maker.setdefault((chip.vendor, chip.kind), set()).add(found)
    assert len(by_maker) > 5
    assert all(len(names) == 1 for names in by_maker.values())


def test_every_rule_names_software_that_was_measured():
    assert RULES
    assert {rule.software for rule in RULES} <= profiles().keys()


@pytest.mark.parametrize("chip", ["mi300x-oam-192gb", "gaudi2-oam-96gb", "xeon-8380h-cpu"])
def test_makers_without_measurements_have_the_priors(chip):
    assert model_for(accelerator(chip), workload("llama31_8b")).calibration == PRIORS_ONLY


def test_tpus_have_the_software_that_was_measured_on_them():
    chip = accelerator("tpu-v6e")
    assert model_for(chip, workload("llama31_8b")).calibration == "jax_tpu"
    assert model_for(chip, workload("llama31_8b"), software=PRIORS_ONLY).calibration == PRIORS_ONLY
    assert model_for(chip, workload("resnet50")).calibration == PRIORS_ONLY


def test_models_that_are_no_transformers_have_the_priors():
    """The priors are nearer to what was published than parameters by software (experiments 0025 and 0041)."""
    assert software_for(accelerator("h100-sxm5-80gb"), workload("resnet50")) is None


def test_the_choice_says_whom_it_serves():
    chip, tpu = accelerator("h100-sxm5-80gb"), accelerator("tpu-v6e")
    assert "every NVIDIA GPU" in model_for(chip, workload("llama31_8b")).words
    assert "every Google TPU" in model_for(tpu, workload("resnet50")).words


@pytest.mark.parametrize("chip", ["h100-sxm5-80gb", "mi300x-oam-192gb"])
def test_a_name_overrules_the_choice(chip):
    found = model_for(accelerator(chip), workload("resnet50"), software="megatron")
    assert found.calibration == "megatron"


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(SpecError, match="torchtitan"):
        model_for(accelerator("h100-sxm5-80gb"), workload("resnet50"), software="h100")
