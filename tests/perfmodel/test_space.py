"""Rules of what is legal, and spaces that are empty."""

import re

import pytest
from legal import EXPERTS, SMALL, fault

from equipoise.errors import SpecError
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.space import Space, limits
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tp": 3}, "tp .*heads=4"),
        ({"tp": 4}, None),  # two shared keys, each on two ranks
        ({"pp": 4}, None),  # 2, 2, 1 and 1 of six layers
        ({"pp": 7}, "pp .*layers=6"),
        ({"pp": 2, "interleave": 3}, None),
        ({"pp": 2, "interleave": 2}, "interleave.*layers=6"),
        ({"pp": 2, "interleave": 3, "global_batch_samples": 3}, "multiples .*pp"),
        ({"interleave": 2}, "interleave .*pp above 1"),
        ({"schedule": "dualpipe"}, "schedule=dualpipe"),
        ({"schedule": "dualpipe", "pp": 2}, None),
        ({"schedule": "dualpipe", "pp": 2, "global_batch_samples": 5}, "even micro-batches"),
        ({"schedule": "dualpipe", "pp": 3, "global_batch_samples": 6}, "even pp"),
        ({"schedule": "dualpipe_v", "pp": 3, "global_batch_samples": 7}, None),
        ({"schedule": "dualpipe_v", "pp": 2, "global_batch_samples": 3}, "2 pp micro-batches"),
        ({"schedule": "dualpipe_v", "pp": 4, "global_batch_samples": 8}, "layers=6"),
        ({"schedule": "dualpipe_v", "pp": 2, "interleave": 3}, "excludes interleave"),
        ({"schedule": "1f1b_overlap", "pp": 2, "interleave": 3}, None),
        ({"schedule": "1f1b_overlap", "pp": 2}, "needs interleave"),
        ({"schedule": "1f1b_overlap"}, None),
        ({"schedule": "1f1b_overlap", "global_batch_samples": 1}, "two micro-batches"),
        ({"schedule": "1f1b_overlap", "dp": 2, "zero_stage": 2}, "excludes zero_stage"),
        ({"ep": 2, "dp": 2}, "without experts"),
        ({"ulysses": True}, "ulysses .*cp"),
        ({"ulysses": True, "cp": 4}, None),
        ({"ulysses": True, "cp": 4, "tp": 2}, "ulysses .*heads=4"),
        ({"sequence_parallel": True}, "sequence_parallel needs tp"),
        ({"tp": 2, "tp_overlap": True}, "tp_overlap needs sequence_parallel"),
        ({"tp": 2, "tp_overlap": True, "sequence_parallel": True}, None),
        ({"tp": 4, "tp_overlap": True, "sequence_parallel": True}, "fast links .*up to 2"),
        ({"zero_stage": 1}, "zero_stage .*dp x cp"),
        ({"zero_stage": 1, "cp": 2}, None),
        ({"zero_stage": 2, "dp": 2, "pp": 2}, "exclude pp"),
        ({"zero_stage": 3, "dp": 2, "pp": 2}, "exclude pp"),
        ({"offload": "optimizer", "dp": 2}, "offload .*data ranks"),
        ({"offload": "optimizer_and_params"}, None),
        ({"offload": "optimizer_and_params", "dp": 2, "zero_stage": 1}, "offloaded weights"),
        ({"compression": "fp16"}, "compression .*data ranks"),
        ({"compression": "powersgd", "dp": 2}, "needs a compression_rank"),
        ({"compression_rank": 4}, "compression_rank needs"),
        ({"sync_period": 8, "dp": 2, "zero_stage": 1}, "zero_stage=0"),
        ({"trained": "lora"}, "lora_rank"),
        ({"trained": "qlora", "lora_rank": 8, "tp": 2}, "tp=1"),
        ({"precision": "fp8"}, "precision=fp8"),
    ],
)  # fmt: skip
def test_a_fault_says_which_rule_is_broken(changed, words):
    found = fault(Strategy(**({"global_batch_samples": 4} | changed)), SMALL)
    assert (found is None) if words is None else re.search(words, found.words)


@pytest.mark.parametrize(
    ("system", "ranks"),
    [
        # NVIDIA, H100 and GB200 NVL72 data sheets: an NVSwitch joins 8, and 72.
        ("h100", 8),
        ("gb200-nvl72-186gb", 72),
        # NVIDIA, GeForce RTX 4090 and P100 PCIe: no NVLink, and no peer access between GeForce cards.
        ("rtx-4090-pcie-24gb", 1),
        ("p100-pcie-16gb", 1),
    ],
)
def test_tensor_ranks_overlap_within_what_links_of_their_own_join(system, ranks):
    load = workload_load(workload("llama31_8b"))
    assert limits(load, machine(cluster(system, num_accelerators=256))).peer_ranks == ranks


def test_experts_are_spread_over_ranks_that_divide_them():
    assert fault(Strategy(global_batch_samples=4, dp=4, ep=4), EXPERTS) is None
    assert re.search("ep .*experts=4", fault(Strategy(global_batch_samples=8, dp=8, ep=8), EXPERTS).words)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_accelerators": 0, "global_batches": (1,)},
        {"num_accelerators": 1, "global_batches": ()},
        {"num_accelerators": 1, "global_batches": (1,), "choices": {"speed": (1,)}},
        {"num_accelerators": 1, "global_batches": (1,), "choices": {"tp": ()}},
    ],
)
def test_an_empty_space_is_refused(wrong):
    with pytest.raises(SpecError, match="space: "):
        Space(**wrong)
