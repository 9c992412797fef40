"""Layouts of a space: no legal strategy missing, no illegal one among them, none twice."""

import re
from itertools import product

import pytest
from exhaustive import legal_strategies, strategy_at
from legal import EXPERTS, SAMPLES, SMALL, fault

from equipoise.perfmodel.layouts import divisors
from equipoise.perfmodel.space import Space
from equipoise.spec.strategy import PRECISIONS, Strategy


def strategies(space, limits, most_elements=500):
    """Every strategy of a space, as its meshes hold them."""
    meshes = legal_strategies(space, limits, most_elements=most_elements).meshes
    for mesh in meshes:
        count = 1
        for size in mesh.shape:
            count *= size
        for index in range(count):
            yield strategy_at(mesh, index)


def brute_force(space, limits, options):
    """Every legal strategy by trying all values of all options, one at a time."""
    total, (batch,) = space.num_accelerators, space.global_batches
    numbers = range(1, max(total, batch, limits.layers) + 1)
    sizes = [each for each in product(numbers, repeat=5) if each[0] * each[1] * each[2] * each[3] == total]
    for (dp, tp, pp, cp, ep), size, interleave in product(sizes, numbers, numbers):
        if batch % (dp * size) or (dp * tp * cp) % ep:
            continue
        for values in product(*options.values()):
            one = Strategy(
                global_batch_samples=batch, microbatch_samples=size, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
                interleave=interleave, **dict(zip(options, values, strict=True)),
            )  # fmt: skip
            if fault(one, limits) is None:
                yield one


USUAL = {
    "sequence_parallel": (False, True),
    "tp_overlap": (False, True),
    "recompute": ("none", "selective", "full"),
    "zero_stage": (0, 1, 2, 3),
}


@pytest.mark.parametrize(
    ("limits", "num_accelerators", "batch", "options"),
    [
        (SMALL, 4, 8, USUAL),
        (SMALL, 6, 6, USUAL),
        (EXPERTS, 4, 4, USUAL),
        (
            SMALL, 4, 4,
            {
                "zero_stage": (0, 1, 3),
                "offload": ("none", "optimizer", "optimizer_and_params"),
                "compression": ("none", "fp16", "powersgd"),
                "compression_rank": (0, 4),
                "sync_period": (1, 8),
                "activation_offload": (False, True),
            },
        ),
        (
            SMALL, 2, 2,
            {
                "precision": PRECISIONS, "implementation": ("eager", "compiled"),
                "optimizer": ("adam", "sgd"), "trained": ("full", "lora", "qlora"), "lora_rank": (0, 8),
            },
        ),
    ],
)  # fmt: skip
def test_the_space_holds_every_legal_strategy_once_and_no_other(limits, num_accelerators, batch, options):
    usual = Strategy(global_batch_samples=1)
    choices = {name: (getattr(usual, name),) for name in (*USUAL, "dp_replicate")} | options
    space = Space(num_accelerators=num_accelerators, global_batches=(batch,), choices=choices)
    found = list(strategies(space, limits))
    assert len(found) == len(set(found))
    assert set(found) == set(brute_force(space, limits, choices))
    assert len(found) == legal_strategies(space, limits, most_elements=500).num_legal > 0


@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ({"pp": (2,)}, {0, 1}),
        ({"zero_stage": (3,)}, set()),
        ({"pp": (2,), "zero_stage": (1, 3)}, {1, 3}),
    ],
)
def test_fsdp_goes_with_a_pipeline_where_both_are_chosen(choices, found):
    space = Space(num_accelerators=8, global_batches=(8,), choices={"dp": (4,), "tp": (1,)} | choices)
    assert {each.zero_stage for each in strategies(space, SMALL) if each.pp == 2} == found


def test_fsdp_goes_with_a_pipeline_in_software_that_shards_nothing_else():
    asked = Space(
        num_accelerators=8,
        global_batches=(8,),
        choices={"dp": (4,), "tp": (1,), "zero_stage": (0, 2, 3)},
        pipeline_stages=(0, 2),
    )
    assert {each.zero_stage for each in strategies(asked, SMALL) if each.pp == 2} == {0, 2}


def test_a_fixed_option_has_no_other_value():
    choices = {"tp": (2,), "microbatch_samples": (1, 2), "interleave": (1,), "zero_stage": (1,)}
    found = list(strategies(Space(num_accelerators=8, global_batches=(8, 16), choices=choices), SMALL))
    assert {each.tp for each in found} == {2}
    assert {each.microbatch_samples for each in found} == {1, 2}
    assert {each.interleave for each in found} == {1}
    assert {each.zero_stage for each in found} == {1}
    assert {each.global_batch_samples for each in found} == {8, 16}


def test_a_model_of_samples_shares_out_data_and_layers_only():
    found = list(
        strategies(Space(num_accelerators=4, global_batches=(8,), choices={"precision": ("fp32",)}), SAMPLES)
    )
    assert {(each.tp, each.cp, each.ep) for each in found} == {(1, 1, 1)}
    assert {each.dp for each in found} == {1, 2, 4}


def test_what_is_illegal_is_counted_by_its_reason():
    space = Space(num_accelerators=3, global_batches=(4,), choices={"precision": ("fp8",)})
    faults = legal_strategies(space, SMALL, most_elements=500).faults
    for reason in (r"^tp .*heads=4 .*hidden=64", r"^2 x cp .*sequence=64", r"^dp .*batch", r"precision=fp8"):
        assert [number for fault, number in faults.items() if re.search(reason, fault.words)] == [1], reason


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"tp": (3,)}, r"^tp .*\bmultiple of 3\b"),
        ({"dp": (8,), "tp": (8,)}, r"^dp, tp .*\bmultiple of 64\b"),
        ({"tp": (3, 5)}, r"^tp .*\bdp x tp x pp x cp\b"),
        ({"ep": (2,)}, r"\bep\b.*\bexperts\b"),
        ({"microbatch_samples": (7,)}, r"\bmicrobatch\b.*\bdivide"),
        ({"pp": (1,), "interleave": (4,)}, r"\binterleave\b.*\bpp above 1"),
    ],
)
def test_values_that_nothing_has_are_a_reason(choices, words):
    space = Space(num_accelerators=8, global_batches=(16,), choices=choices)
    found = legal_strategies(space, SMALL, most_elements=500)
    assert not found.meshes
    assert any(re.search(words, each.words) for each in found.faults)


def test_divisors_come_in_order():
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(1) == (1,)
