"""One calibration for all chips of a maker: laws 3 and 5 of a decision."""

import pytest

from equipoise.calibration.profiles import (
    PRIORS_ONLY,
    RULES,
    architecture,
    calibration_choice,
    model_for,
    profiles,
)
from equipoise.errors import SpecError
from equipoise.spec.hardware import accelerator, accelerators
from equipoise.spec.workload import workload

ARCHITECTURES = ("dense transformer", "mixture of experts", "other")


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


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_all_chips_of_a_maker_share_one_calibration(kind):
    by_maker = {}
    for chip in accelerators():
        found = calibration_choice(chip.vendor, chip.kind, kind)
        by_maker.setdefault((chip.vendor, chip.kind), set()).add(found.profile and found.profile.name)
    assert len(by_maker) > 5
    assert all(len(names) == 1 for names in by_maker.values())


def test_every_rule_names_a_profile_that_ships():
    assert RULES
    assert {rule.profile for rule in RULES} <= {None, *(each.name for each in profiles())}


@pytest.mark.parametrize("chip", ["mi300x-oam-192gb", "gaudi2-oam-96gb", "xeon-8380h-cpu"])
def test_makers_without_measurements_have_the_priors(chip):
    assert model_for(accelerator(chip), workload("llama31_8b")).calibration == PRIORS_ONLY


def test_tpus_have_the_software_that_was_measured_on_them():
    chip = accelerator("tpu-v6e")
    assert model_for(chip, workload("llama31_8b")).calibration == "jax_tpu"
    assert model_for(chip, workload("llama31_8b"), name=PRIORS_ONLY).calibration == PRIORS_ONLY
    assert model_for(chip, workload("resnet50")).calibration == PRIORS_ONLY


def test_models_that_are_no_transformers_have_the_priors():
    """No profile was fitted to one, and the priors are nearer to what was published (experiment 0025)."""
    assert calibration_choice("NVIDIA", "gpu", "other").profile is None


def test_the_choice_says_whom_it_serves():
    assert "every NVIDIA GPU" in calibration_choice("NVIDIA", "gpu", "dense transformer").words
    assert "every Google TPU" in calibration_choice("Google", "tpu", "other").words


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD"])
def test_a_name_overrules_the_choice(vendor):
    found = calibration_choice(vendor, "gpu", "other", name="a100-megatron")
    assert found.profile is not None
    assert found.profile.name == "a100-megatron"


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(SpecError, match="h100-torchtitan"):
        calibration_choice("NVIDIA", "gpu", "other", name="h100")
