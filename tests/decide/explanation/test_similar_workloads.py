"""The closest published workload."""

import math

import pytest
from msgspec.structs import replace

from equipoise.decide.explanation.reasons import closest_workload, model_size
from equipoise.spec.workload import Workload, workload


def convolutions(params, flop):
    return Workload(
        slug="mine",
        title="mine",
        area="vision",
        source="",
        params=params,
        forward_flop_per_sample=flop,
        activation_bytes_per_sample=1e8,
        layers=50,
    )


def test_a_network_twice_as_large_as_resnet50_is_closest_to_it():
    # 25.6 M parameters; a sample's way back costs twice the way forward
    params, flop = model_size(workload("resnet50"))
    found = closest_workload(convolutions(2 * params, 2 * flop / 3))
    assert found.workload.slug == "resnet50"
    assert found.octaves == pytest.approx(math.sqrt(2.0))
    assert found.plans.num_trainings == 70


def test_adapters_leave_two_of_three_passes():
    # Frozen weights need no gradients: 4 FLOP a weight and token in place of 6 (Hu et al. 2021).
    whole = workload("qwen3_30b_a3b")
    adapted = replace(whole, trained="lora", lora_rank=16)
    assert model_size(adapted)[1] == pytest.approx(2 / 3 * model_size(whole)[1])


def test_gpt2_is_closest_to_bert():
    # of 0.12 B parameters, where BERT has 0.33 B and Stable Diffusion 0.87 B
    assert closest_workload(workload("gpt2")).workload.slug == "bert"


def test_what_is_not_known_or_far_from_all_is_close_to_nothing():
    assert closest_workload(workload("dlrm")) is None
    assert closest_workload(convolutions(1e4, 1e6)) is None
