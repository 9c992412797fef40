"""Fine-tuning as people ask it: which weights, on which samples, how many examples, how often."""

import json
import math
import re
from pathlib import Path

import pytest
from asking import ask
from msgspec.structs import replace

from equipoise.calibration.profiles import model_for
from equipoise.decide.question.query import query
from equipoise.decide.question.training import training
from equipoise.decide.strategies.size_searches import SEARCH_CACHE, on_host
from equipoise.decide.strategies.strategy_search import problem
from equipoise.errors import SpecError, UsageError
from equipoise.runs import embedded
from equipoise.spec.catalogue import shipped
from equipoise.spec.strategy import PRIORS_ONLY, adapted_layers, strategy


def trained(workload="llama31_8b", **given):
    return training(query({"workload": workload, **given}), shipped(), embedded.scores())


def test_examples_epochs_and_sequence_make_the_training_budget():
    found = trained(train="qlora", examples="10k", epochs=3, sequence="2k")
    assert found.workload.sequence_tokens == 2048
    assert found.budget.samples_at(128) == 30_000
    assert not found.budget.is_to_target
    assert found.choices["trained"] == ("qlora",)
    assert found.choices["lora_rank"] == (16,)
    # PEFT prints so many for Llama 3 8B with adapters of rank 16 on every linear layer.
    assert found.workload.trained_params == 41_943_040


@pytest.mark.parametrize("given", [{"examples": 1, "epochs": 0.5}, {"examples": 100, "epochs": 1e-3}])
def test_passes_of_less_than_one_example_are_refused(given):
    with pytest.raises(UsageError, match=r"--epochs.*1 example"):
        trained(train="lora", **given)
    assert trained(train="lora", examples=2, epochs=0.5).budget.samples_at(1) == 1


def test_a_config_of_the_hub_is_trained_as_the_workload_of_the_catalogue():
    config = Path(__file__).parents[2] / "bank" / "workloads" / "qwen25_32b_config.json"
    given = {"train": "lora", "examples": "50k", "sequence": 4096}
    found = training(query({"config": config, **given}), shipped(), embedded.scores())
    known = trained("qwen25_32b", **given)
    assert found.workload.transformer == known.workload.transformer
    assert found.budget.samples_at(128) == known.budget.samples_at(128)
    assert found.global_batch_samples == known.global_batch_samples == 128


@pytest.mark.law
@pytest.mark.parametrize(
    ("train", "together"),
    [("lora", 1), ("dpo,lora", 2), ("full", 1)],  # a preferred answer and the other make an example
)
@pytest.mark.parametrize("examples", [40, 65, 500, 2000, 3333, 5000, 8191, 8192])
def test_a_small_batch_is_shared_out_and_leaves_as_many_steps_as_published_trainings(
    train, together, examples
):
    found = trained("qwen3_8b", train=train, examples=examples)
    batch, shared = found.global_batch_samples, found.global_batch_samples // together
    assert batch == shared * together
    assert shared & (shared - 1) == 0
    if examples < 64:
        assert shared == 1
    else:
        # No published training has fewer: the head of the constant. Twice the batch would leave fewer still.
        assert examples / shared >= 64
        assert examples / (2 * shared) < 64 or batch == 128


def test_what_a_model_generates_is_as_long_as_asked_and_no_other_length_is_named():
    config = Path(__file__).parents[2] / "bank" / "workloads" / "qwen25_32b_config.json"
    plain = training(query({"config": config, "examples": "1k", "train": "lora"}), shipped(), None)
    assert any("4,096" in words for words in plain.chosen_for_you)
    asked = {"config": config, "examples": "1k", "train": ["lora", "grpo"], "prompt": 200, "completion": 8000}
    found = training(query(asked), shipped(), None)
    assert found.workload.sequence_tokens == 8200
    assert not any("4,096" in words for words in found.chosen_for_you)


def test_the_size_of_images_that_examples_are_taken_to_be_is_named():
    # MLPerf trains FLUX.1 on 256 x 256 pixels, a sixteenth of what people fine-tune it on.
    asked = {"workload": "flux1", "examples": "100", "train": "lora"}
    plain, stated = (
        training(query({**asked, **more}), shipped(), None) for more in ({}, {"image_size": 1024})
    )
    assert [each for each in plain.chosen_for_you if each.count("256") == 2]
    assert not [each for each in stated.chosen_for_you if "pixels" in each]


def test_the_images_of_a_file_of_diffusers_are_those_that_a_question_states(tmp_path):
    # Peebles and Xie 2023, table 4: DiT-XL/2 has 256 tokens at 256 pixels, four times as many at 512.
    config = tmp_path / "config.json"
    sizes = {"num_layers": 28, "num_attention_heads": 16, "attention_head_dim": 72, "patch_size": 2}
    config.write_text(json.dumps({"_class_name": "DiTTransformer2DModel", "sample_size": 32, **sizes}))
    asked = {"config": config, "samples": "1M", "global_batch": 256}
    plain, stated = (
        training(query({**asked, **more}), shipped(), None) for more in ({}, {"image_size": 512})
    )
    assert (plain.workload.sequence_tokens, stated.workload.sequence_tokens) == (256, 1024)
    assert [each for each in plain.chosen_for_you if "--image-size" in each]
    assert not [each for each in stated.chosen_for_you if "pixels" in each]


@pytest.mark.parametrize("method", [{"train": "grpo", "completion": 500}, {"train": "dpo"}])
def test_an_encoder_which_generates_no_answers_is_not_trained_on_them(tmp_path, method):
    config = tmp_path / "config.json"
    encoder = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"}
    sizes = {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "vocab_size": 50368}
    config.write_text(json.dumps({**encoder, **sizes, "num_attention_heads": 16}))
    asked = {"config": config, "examples": "10k"}
    with pytest.raises(UsageError, match=rf"--train {method['train']}\b.*\bencoder\b"):
        training(query({**asked, **method}), shipped(), None)
    assert training(query({**asked, "train": "lora"}), shipped(), None).workload.trained == "lora"


@pytest.mark.parametrize(
    ("workload", "given", "batch"),
    [
        ("llama31_8b", {"train": "full", "examples": "50k"}, 128),  # Taori et al. 2023
        ("vit_large", {"train": "full", "examples": "50k"}, 512),  # Dosovitskiy et al. 2021, section 4.1
        ("whisper_small", {"train": "full", "examples": "50k"}, 16),  # Gandhi 2022
        ("vit_large", {"examples": "1.28M", "epochs": 300}, 4096),  # their pretraining: table 3
        ("vit_large", {"train": "full", "examples": 300}, 4),  # 75 steps
        # diffusers' examples/text_to_image: train_batch_size 1, gradient_accumulation_steps 4
        ("stable_diffusion_15", {"train": "full", "examples": 800, "epochs": 20}, 4),
        ("sdxl", {"examples": "100M"}, 2048),  # its training: Podell et al. 2023
    ],
)
def test_a_fine_tuning_has_the_batch_of_fine_tunings(workload, given, batch):
    assert trained(workload, **given).global_batch_samples == batch


def test_a_training_that_nothing_published_was_held_against_has_a_wider_interval():
    nodes = shipped().cluster("h100", num_accelerators=8)
    found = {}
    for kind, software in (("lora", "megatron_core"), ("qlora", None), ("lora,dpo", "megatron_core")):
        asked = trained(train=kind, examples="10k", global_batch=128)
        model = model_for(nodes.accelerator, asked.workload, software=software)
        one = strategy(f"dp=8 microbatch=1 global_batch=128 lora_rank=16 trained={kind.partition(',')[0]}")
        found[kind] = problem(asked, nodes, model, num_best=1).timed([one]).strategies[0].work_s
    widths = {kind: math.log(each.high / each.low) / 2 for kind, each in found.items()}
    # A factor of two either way, independent of the rest.
    assert widths["lora,dpo"] >= math.hypot(widths["lora"], math.log(2)) * 0.999
    # Of 4 bits 42 steps are published (docs/experiments/0048): no factor of two is added.
    assert widths["lora"] <= widths["qlora"] < math.hypot(widths["lora"], math.log(2))
    assert found["qlora"].value > found["lora"].value  # weights are unpacked in each pass
    # Forward and once that back, with one forward more, for twice the sequences.
    assert 2.5 < found["lora,dpo"].value / found["lora"].value < 3.2


def test_adapters_of_a_model_of_images_are_on_its_attention():
    # diffusers publishes adapters of SDXL of rank 4 in 23.4 MB of fp32, and prints 829,952 weights for SD 2.
    for name, rank, weights in (("sdxl", 4, 23.4e6 / 4), ("stable_diffusion", 4, 829_952)):
        found = trained(name, train="lora", examples=1000, epochs=10)
        assert found.global_batch_samples == 4
        assert found.workload.trained_params * rank / 16 == pytest.approx(weights, rel=0.01)
    nodes = shipped().cluster("h100", num_accelerators=1)
    kinds = {}
    for kind in ("full", "lora"):
        asked = trained("sdxl", train=kind, examples=1000, global_batch=4)
        each = strategy(f"microbatch=1 global_batch=4 trained={kind} lora_rank={16 * (kind == 'lora')}")
        model = model_for(nodes.accelerator, asked.workload, software=PRIORS_ONLY)
        known = problem(asked, nodes, model, num_best=1)
        kinds[kind] = known.timed([each]).strategies[0]
    held = {kind: each.memory_by_kind_bytes for kind, each in kinds.items()}
    # 2.567e9 weights with 0.852e9 of encoders in 2 bytes; 16 x 1,451,520 adapters, with 12 bytes of Adam each.
    assert held["lora"]["weights"] == pytest.approx(2 * (2.567e9 + 0.852e9 + 23.2e6), rel=1e-3)
    assert held["lora"]["optimizer"] == pytest.approx(12 * 16 * 1_451_520, rel=1e-6)
    assert held["full"]["optimizer"] == pytest.approx(12 * 2.567e9, rel=1e-6)
    assert held["lora"]["activations"] == held["full"]["activations"]
    # Forward and encoders are the same, the way back has one product of two: 2.74 of 3.79 at most.
    assert 2.74 / 3.79 * 0.9 < kinds["lora"].work_s.value / kinds["full"].work_s.value < 0.95


@pytest.mark.parametrize(
    ("card", "batch", "step_s"),
    [
        # Steps of LoRA of SDXL at 1,024 pixels by kohya's scripts, as those who ran them state them:
        # https://github.com/bmaltais/kohya_ss/issues/1288 and https://github.com/kohya-ss/sd-scripts/issues/827.
        ("rtx3060", 1, 2.4),
        ("rtx3090", 4, 2.99),
        ("rtx3090ti", 1, 1.12),
        ("rtx4090", 1, 0.926),
        ("rtx4090", 6, 2.82),
    ],
)
def test_adapters_of_a_u_net_take_about_as_long_as_those_who_train_them_state(card, batch, step_s):
    found = ask(
        workload="sdxl", train="lora", samples=10_000, accelerator=card, accelerators=1, global_batch=batch
    )
    assert step_s / 1.5 < found.recommended.step_s.value < 1.5 * step_s


def test_adapters_of_speech_models_are_on_every_block_of_attention():
    # PEFT prints 15,728,640 for Whisper large with rank 32 on queries and values alone, half of the four.
    found = trained("whisper_large_v3", train="lora", examples=1000)
    assert found.workload.trained_params * 32 / 16 / 2 == 15_728_640
    assert trained("whisper_large_v3", train="qlora", examples=1000).workload.trained_params > 15_728_640


def test_a_70b_of_four_bits_trains_on_two_cards_of_24_gb():
    # Answer.AI, "You can now train a 70b language model at home", 6 March 2024: two RTX 3090 or 4090.
    asked = trained("llama3_70b", train="qlora", examples="10k", sequence=512)
    nodes = shipped().cluster("rtx3090", num_accelerators=2)
    known = SEARCH_CACHE.searches(
        problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=3), (1, 2)
    )
    one, two = known.sizes
    # On one, whose 24 GB do not hold them, all 35 GB lie on the host: ZeRO-3 with offload_param (PEFT's documentation,
    # accelerate/deepspeed: "ZeRO3 and CPU Offloading for finetuning large models on a single GPU").
    assert one.best.strategy.offload == "optimizer_and_params"
    assert one.best.work_s.value > 2 * two.best.work_s.value
    # As was published: sharded weights of 4 bits, in the host's memory.
    published = [each.strategy for each in two.found.best if each.strategy.zero_stage == 3]
    assert {each.offload for each in published} == {"optimizer_and_params"}
    assert two.best.memory_bytes < 24e9


def test_weights_stay_on_the_card_where_the_question_says_what_leaves_it():
    # The two values are those that QLoRA has anyway: stated, they are all that may be taken.
    nodes = shipped().cluster("rtx3090", num_accelerators=1)
    found = {}
    for fix in ((), ("offload=none,optimizer",), ("offload=none",)):
        asked = trained("llama_33b", train="qlora", examples="10k", sequence=512, fix=[*fix])
        model = model_for(nodes.accelerator, asked.workload)
        known = SEARCH_CACHE.searches(problem(asked, nodes, model, num_best=1), (1,))
        found[fix] = known.sizes[0].best.strategy.offload
    assert found[()] == "optimizer_and_params"
    assert found["offload=none,optimizer",] in {"none", "optimizer"}
    assert found["offload=none",] == "none"


def test_two_pairs_of_cards_train_pairs_of_answers_faster_than_one():
    # Each pair of cards can do what one does, on half of the samples: a layout that fits without the host and is
    # slower than that is not taken.
    asked = trained("llama3_70b", train="qlora,dpo", examples="10k", sequence=4096)
    nodes = shipped().cluster("rtx4090", num_accelerators=4)
    known = SEARCH_CACHE.searches(
        problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1), (2, 4)
    )
    two, four = (each.best.work_s.value for each in known.sizes)
    assert four < 0.6 * two


@pytest.mark.parametrize(
    ("asked", "hosts", "stays", "moved"),
    [
        (
            {"workload": "qwen25_14b", "train": "qlora,dpo", "examples": "10k", "sequence": 16_384},
            *(("rtx5090", 8, 2), "activation_offload=false", "activation_offload=true"),
        ),
        ({"workload": "llama31_8b", "tokens": "10B"}, ("rtx4090", 8, 8), "offload=none", "offload=optimizer"),
        # Without, four cards share a sample over a network.
        (
            {"workload": "llama31_8b", "train": "qlora", "examples": "10k", "sequence": 16_384},
            *(("rtx4090", 4, 2), "activation_offload=false", "activation_offload=true"),
        ),
    ],
)
def test_what_saves_much_time_is_kept_on_the_host(asked, hosts, stays, moved):
    chip, size, node_size = hosts
    nodes = shipped().cluster(chip, num_accelerators=size, node_size=node_size)

    def best(**given):
        known = trained(**asked, **given)
        posed = problem(known, nodes, model_for(nodes.accelerator, known.workload), num_best=1)
        return SEARCH_CACHE.searches(posed, (size,)).sizes[0].best

    free, kept, asked_for = best(), best(fix=[stays]), best(fix=[moved])
    assert free.work_s.value == pytest.approx(asked_for.work_s.value)
    assert free.strategy == asked_for.strategy
    assert free.work_s.value < 0.8 * kept.work_s.value


@pytest.mark.parametrize(
    ("software", "train", "recomputed"),
    [
        # Megatron-Core's fine-grained offloading takes inputs of modules, unless whole layers are recomputed.
        ("megatron_core", "lora", {"none", "selective"}),
        # transformers 5.23, gradient_checkpointing_kwargs.offload: what recomputed layers keep.
        ("hf", "qlora", {"full"}),
        # torchtitan has no option for it.
        ("torchtitan", "lora", set()),
    ],
)
def test_activations_go_to_the_host_as_the_software_can_move_them(software, train, recomputed):
    # Two samples of 8,192 tokens a card: more than its memory holds without.
    nodes = shipped().cluster("rtx3090", num_accelerators=2)

    def searched(**given):
        known = trained("mistral_7b", train=train, examples="10k", **given)
        model = model_for(nodes.accelerator, known.workload, software=software)
        posed = problem(known, nodes, model, num_best=20, software=software)
        return SEARCH_CACHE.searches(posed, (2,)).sizes[0].found.best

    found = searched()
    assert {each.strategy.recompute for each in found if each.strategy.activation_offload} <= recomputed
    assert found
    fixed = {"fix": ["activation_offload=true"]}
    if recomputed:
        assert {each.strategy.recompute for each in searched(**fixed)} <= recomputed
    else:
        with pytest.raises(SpecError, match="activation_offload=false"):
            searched(**fixed)


@pytest.mark.parametrize(
    ("asked", "fixed", "moved_bytes"),
    [
        # 8.03 G parameters with two moments and a master copy of 4 bytes each, on eight cards.
        ({"tokens": "1B"}, "offload=optimizer", 12 * 8.03e9 / 8),
        # 32 layers' inputs but for two, of 4,096 values of 2 bytes, of 1 Mi tokens on eight cards.
        (
            {"train": "lora", "examples": "1k", "sequence": 2**20},
            *("activation_offload=true", 30 * 2**20 / 8 * 4096 * 2),
        ),
    ],
)
def test_what_lies_on_the_host_is_said_in_bytes(asked, fixed, moved_bytes):
    fixes = [fixed, "recompute=full", "cp=8" if "sequence" in asked else "dp=8"]
    nodes = shipped().cluster("h100", num_accelerators=8)
    known = trained(**asked, fix=fixes)
    start = problem(known, nodes, model_for(nodes.accelerator, known.workload), num_best=1)
    chosen = strategy(f"{' '.join(fixes)} zero_stage=1 microbatch=1 global_batch=8")
    ((_, words),) = on_host(start, replace(chosen, trained=known.workload.trained)).items()
    assert float(re.search(r"([\d.]+) GB each", words)[1]) == pytest.approx(moved_bytes / 1e9, rel=0.1)


def test_activations_go_to_hosts_that_hold_them():
    # Inputs of 80 layers of 8,192 values of 2 bytes: 1.37 TB of 1 Mi tokens, half of half as many; a host is taken
    # to have twice the 640 GB of its eight accelerators.
    nodes = shipped().cluster("h100", num_accelerators=8)
    fixes = ["activation_offload=true", "recompute=full", "cp=8"]
    fits = {}
    for tokens in (2**19, 2**20):
        asked = trained(
            "llama3_70b", train="lora", examples="1k", sequence=tokens, fix=[*fixes, "zero_stage=3"]
        )
        model = model_for(nodes.accelerator, asked.workload, software="jax")
        start = problem(asked, nodes, model, num_best=1, software="jax")
        fits[tokens] = SEARCH_CACHE.fits(start, 8)
    assert fits == {2**19: True, 2**20: False}


@pytest.mark.parametrize("fixed", ["microbatch=1", "microbatch=1,3"])
def test_half_a_pair_of_answers_is_no_micro_batch(fixed):
    with pytest.raises(UsageError, match=r"microbatch.*\b2\b"):
        trained(train="lora,dpo", examples="10k", fix=[fixed])
    assert trained(train="lora,dpo", examples="10k", fix=["microbatch=1,2"]).choices[
        "microbatch_samples"
    ] == (2,)


def test_longer_samples_fit_with_activations_on_the_host():
    # Unsloth (unsloth.ai/blog/long-context) trains longer samples so on a card of 24 GB, with a loss in chunks; what
    # stays is 32 inputs of layers of 4096 values of 2 bytes a token, of which two are left.
    nodes = shipped().cluster("rtx4090", num_accelerators=1)
    full = replace(nodes, accelerator=replace(nodes.accelerator, memory_bytes=4 * 10**9))

    def found(tokens, *fixed, card=nodes):
        fixed = ("implementation=compiled", "chunked_loss=true", *fixed)
        asked = trained("llama31_8b", train="qlora", examples="10k", sequence=tokens, fix=fixed)
        known = problem(asked, card, model_for(card.accelerator, asked.workload), num_best=1)
        return SEARCH_CACHE.searches(known, (1,)).sizes[0]

    assert found(8192, "activation_offload=false").best is not None
    assert found(65_536).best.strategy.activation_offload
    assert found(65_536, "activation_offload=false").best is None
    least_bytes = [
        found(24_576, f"activation_offload={each}", card=full).found.nearest_bytes
        for each in ("false", "true")
    ]
    saved = least_bytes[0] - least_bytes[1]
    assert saved >= 30 * 24_576 * 4096 * 2


@pytest.mark.parametrize(
    ("workload", "chip", "fits", "is_too_long"),
    [
        # Measured: 5,789, 15,502 and 28,454 tokens of 8B on 24, 48 and 80 GB; none of 70B on 48 GB, 6,916 on 80 GB.
        ("llama31_8b", "rtx4090", 4096, 8192),
        ("llama31_8b", "rtx-a6000", 12_288, 20_480),
        ("llama31_8b", "a100-sxm4-80gb", 24_576, 36_864),
        ("llama3_70b", "rtx-a6000", None, 512),
        ("llama3_70b", "a100-sxm4-80gb", 4096, 10_240),
    ],
)
def test_the_software_of_four_bits_holds_samples_as_long_as_it_was_measured_to(
    workload, chip, fits, is_too_long
):
    """Hugging Face with FlashAttention 2: unsloth.ai/docs/basics/unsloth-benchmarks, rank 32, a sample at a time."""
    nodes = shipped().cluster(chip, num_accelerators=1)
    fixed = ["lora_rank=32", "offload=none", "activation_offload=false"]
    for tokens, is_held in ((fits, True), (is_too_long, False)):
        if tokens is None:
            continue
        asked = trained(workload, train="qlora", examples="1k", sequence=tokens, fix=fixed)
        known = problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1)
        assert (SEARCH_CACHE.searches(known, (1,)).sizes[0].best is not None) == is_held


@pytest.mark.parametrize("name", ["gb10-superchip-128gb", "mi300a-apu-128gb"])
def test_nothing_moves_to_a_host_that_shares_the_memory(name):
    """Qwen2.5 72B of 4 bits leaves room in neither, with states of 8 bytes a trained parameter in 128 GB."""
    nodes = shipped().cluster(name, num_accelerators=2)
    moved = trained("qwen25_72b", train="qlora", examples="5k", fix=["offload=none,optimizer"])
    start = problem(moved, nodes, model_for(nodes.accelerator, moved.workload), num_best=3)
    searched = SEARCH_CACHE.searches(start, [1, 2]).sizes
    assert {each.best.strategy.offload for each in searched if each.best is not None} <= {"none"}
    stays = trained("qwen25_72b", train="qlora", examples="5k", fix=["offload=none"])
    plain = problem(stays, nodes, model_for(nodes.accelerator, stays.workload), num_best=3)
    assert [each.found.num_fitting for each in searched] == [
        each.found.num_fitting for each in SEARCH_CACHE.searches(plain, [1, 2]).sizes
    ]
    only = trained("qwen25_72b", train="qlora", examples="5k", fix=["offload=optimizer"])
    with pytest.raises(SpecError, match="offload=optimizer"):
        problem(only, nodes, model_for(nodes.accelerator, only.workload), num_best=3)


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


def test_a_micro_batch_of_preferences_holds_both_answers_of_a_pair():
    given = {"train": "lora,dpo", "examples": "50k"}
    pairs = trained(**given)
    nodes = shipped().cluster("h100-sxm5-80gb", num_accelerators=8)
    start = problem(pairs, nodes, model_for(nodes.accelerator, pairs.workload), num_best=3)
    searched = SEARCH_CACHE.searches(start, [3, 8]).sizes
    strategies = [each.best.strategy for each in searched if each.best is not None]
    assert len(strategies) == 2
    for each in strategies:
        assert each.microbatch_samples % 2 == 0
    with pytest.raises(UsageError, match="--global-batch 127"):
        trained(**given, global_batch=127)
    # Alone, a sequence is a micro-batch of its own.
    assert "microbatch_samples" not in trained(train="lora", examples="50k").choices


def test_the_layers_with_adapters_can_be_stated():
    nodes = shipped().cluster("h100", num_accelerators=1)
    found = {}
    for targets in ("usual", "attention", "all_linear"):
        stated = {} if targets == "usual" else {"fix": [f"lora_targets={targets}"]}
        asked = trained("llama31_8b", train="lora", examples="10k", sequence="2k", **stated)
        assert asked.choices["lora_targets"] == (targets,)
        one = strategy(f"microbatch=1 global_batch=128 lora_rank=16 trained=lora lora_targets={targets}")
        model = model_for(nodes.accelerator, asked.workload)
        found[targets] = problem(asked, nodes, model, num_best=1).timed([one]).strategies[0].work_s.value
    # --train lora means attention unless it is said; adapters on twice as many matrices take longer.
    assert found["usual"] == found["attention"] < found["all_linear"]


# config.json of state-spaces/mamba-2.8b-hf and mamba2-2.7b, and adapters of one layer, by rank, by hand: in_proj
# 2,560 to 2 x 5,120, x_proj 5,120 to 160 + 2 x 16, dt_proj 160 to 5,120; in_proj 2,560 to 2 x 5,120 + 2 x 128 + 80.
# PEFT refuses them on out_proj, whose weights the kernels read (huggingface/peft#2562).
STATE_SPACES = {
    "mamba": (
        {"state_size": 16, "time_step_rank": 160, "intermediate_size": 5120},
        (2560 + 10_240) + (5120 + 192) + (160 + 5120),
    ),
    "mamba2": (
        {"state_size": 128, "num_heads": 80, "head_dim": 64, "n_groups": 1},
        2560 + 10_240 + 256 + 80,
    ),
}


@pytest.mark.parametrize("kind", STATE_SPACES)
@pytest.mark.parametrize("adapters", ["lora", "qlora"])
def test_models_of_state_spaces_alone_have_adapters_before_their_scans(kind, adapters, mine):
    sizes, width = STATE_SPACES[kind]
    common = {
        "hidden_size": 2560,
        "num_hidden_layers": 64,
        "vocab_size": 50_280,
        "conv_kernel": 4,
        "expand": 2,
    }
    path = mine(
        json.dumps({"model_type": kind, "tie_word_embeddings": True, **common, **sizes}), "config.json"
    )
    given = {"config": path, "train": adapters, "sequence": 2048, "examples": 1000}
    asked = training(query(given), shipped(), None)
    assert asked.workload.trained_params == 64 * 16 * width
    assert adapted_layers(adapters, asked.choices["lora_targets"][0]) == "all_linear"
    nodes = shipped().cluster("h100", num_accelerators=8)
    found = problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1)
    assert found.search_size(8).best[0].strategy.trained == adapters
    with pytest.raises(UsageError, match="all_linear"):
        training(query(given | {"fix": ["lora_targets=attention"]}), shipped(), None)


def test_results_of_another_training_are_not_taken():
    assert trained().budget.is_to_target
    for stated in ({"train": "lora"}, {"sequence": "2k"}):
        with pytest.raises(UsageError, match="--tokens"):
            trained(**stated)
    assert trained("llama2_70b_lora", train="lora").budget.is_to_target


def test_images_of_another_size_are_asked_for_by_their_shorter_side():
    asked = trained("vit_base", image_size=384, train="full", examples=10).workload
    assert asked.sequence_tokens == 577  # 24 x 24 patches of 16 pixels and a class token
    asked = trained("maskrcnn", image_size=400, examples=10).workload
    assert (asked.image.height, asked.image.width) == (400, 666)
    asked = trained("sdxl", image_size=512, train="lora", examples=10).workload
    assert asked.trained == "lora"
    assert asked.activation_bytes_per_sample == shipped().workload("sdxl").activation_bytes_per_sample / 4


@pytest.mark.parametrize(
    ("workload", "given", "names"),
    [
        ("llama31_8b", {"train": "lora,qlora"}, "--train"),
        ("llama31_8b", {"train": "lora", "fix": "trained=qlora", "examples": 9}, "--fix trained"),
        ("llama31_8b", {"examples": 10, "tokens": 10}, "--examples"),
        ("llama31_8b", {"epochs": 3}, "--examples N"),
        ("resnet50", {"train": "lora", "examples": 9}, "adapter_width"),
        ("sdxl", {"train": "qlora", "examples": 9}, "--train lora"),
        ("sdxl", {"train": "lora,dpo", "examples": 9}, "--train lora,dpo"),
        ("resnet50", {"sequence": 9, "examples": 9}, "--sequence"),
        ("vit_base", {"train": "dpo", "examples": 9}, "--train dpo"),
        ("bert", {"image_size": 512, "examples": 9}, "--image-size 512"),
        ("gpt2", {"sequence": "2k", "examples": 9}, "--sequence 2048"),
        ("llama31_8b", {"examples": 9, "fix": ["lora_targets=all_linear"]}, "--train lora"),
        (
            "llama31_8b",
            {"train": "lora", "examples": 9, "fix": ["lora_targets=attention,all_linear"]},
            "--fix lora_targets",
        ),
        ("sdxl", {"train": "lora", "examples": 9, "fix": ["lora_targets=all_linear"]}, "SDXL"),
    ],
)
def test_what_cannot_be_trained_so_is_refused_with_the_option(workload, given, names):
    with pytest.raises(UsageError) as refused:
        trained(workload, **given)
    assert names in str(refused.value)


def test_examples_are_samples_and_tokens():
    # "An example is a sample of the model" (docs/decide/fine_tuning.md): 30,000 of 2,048 tokens are 61.44 M.
    batches = set()
    for amount in ({"examples": "30k"}, {"samples": "30k"}, {"tokens": "61.44M"}):
        asked = trained("qwen3_8b", train="lora", sequence=2048, **amount)
        nodes = shipped().cluster("h100", num_accelerators=256)
        known = problem(asked, nodes, model_for(nodes.accelerator, asked.workload), num_best=1)
        batches.add(known.batches(256))
    assert len(batches) == 1


def test_a_card_with_more_of_everything_is_not_slower_for_want_of_memory():
    # AMD's data sheets: the XTX has 24 GB at 960 GB/s, the XT 20 GB at 800 GB/s, and fewer units.
    times = {}
    for card in ("rx-7900-xtx", "rx-7900-xt"):
        asked = trained("qwen25_7b", train="lora", examples="20k", sequence=2048)
        nodes = shipped().cluster(card, num_accelerators=1)
        model = model_for(nodes.accelerator, asked.workload, software="torchtitan")
        known = problem(asked, nodes, model, num_best=1, software="torchtitan")
        times[card] = SEARCH_CACHE.searches(known, (1,)).sizes[0].best.work_s.value
    assert times["rx-7900-xtx"] <= times["rx-7900-xt"]
