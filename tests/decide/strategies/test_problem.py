"""Searches for strategies: what is found fits, is the fastest and sums up; better machines are never slower."""

import math
import re

import pytest
from asking import PRETRAINING, ask, by_size
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.calibration.profiles import prior_model
from equipoise.decide.combine import pretraining_kind, record_of
from equipoise.decide.question.query import query
from equipoise.decide.question.training import training
from equipoise.decide.strategies.remedies import remedy
from equipoise.decide.strategies.size_searches import SEARCH_CACHE
from equipoise.decide.strategies.strategy_search import plain_strategies, problem
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.runs import embedded
from equipoise.spec.catalogue import catalogue

CATALOGUE = catalogue()
MODEL = replace(prior_model(), draws=prior_model().draws[:4])
CHIPS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "mi300x-oam-192gb", "rtx-4090-pcie-24gb", "v100-sxm2-16gb")
# The same chip with more memory, as fast or faster.
SMALLER_A100 = ("a100-sxm4-40gb", "a100-sxm4-80gb")
SMALLER_V100 = ("v100-sxm2-16gb", "v100-sxm2-32gb")
ASKED = st.fixed_dictionaries(
    {
        "workload": st.sampled_from(["gpt2", "llama2_7b", "mixtral_8x7b", "bert", "resnet50"]),
        "chip": st.sampled_from(CHIPS),
        "size": st.sampled_from([1, 3, 7, 8, 48]),
        "global_batch": st.sampled_from([1, 7, 64, 1021, 1536]),
    }
)


def posed(workload, chip="a100-sxm4-80gb", *, node=None, num_best=3, **stated):
    nodes = CATALOGUE.cluster(chip, **(node or {}))
    return problem(training(question(workload, stated), CATALOGUE, None), nodes, MODEL, num_best=num_best)


def question(workload, stated):
    return query({"workload": workload, "samples": 1e6, **stated})


def would_do(workload, size, **stated):
    """What a training lacks on so many A100, and what would do."""
    nodes = CATALOGUE.cluster("a100-sxm4-80gb")
    return remedy(
        posed(workload, **stated),
        size,
        asked=question(workload, stated),
        pose=lambda asked: problem(training(asked, CATALOGUE, None), nodes, MODEL, num_best=3),
    )


def best(size, found):
    """The strategies of one size, each in full, the fastest first."""
    (searched,) = found.search_sizes((size,))
    return found.timed([each.strategy for each in searched.best]).strategies


@pytest.mark.law
@settings(max_examples=15, deadline=None)
@given(asked=ASKED)
@example(asked={"workload": "mixtral_8x7b", "chip": "mi300x-oam-192gb", "size": 8, "global_batch": 7})
def test_what_is_found_fits_is_the_fastest_and_sums_up(asked):
    found = posed(asked["workload"], asked["chip"], global_batch=asked["global_batch"])
    strategies = best(asked["size"], found)
    if not strategies:
        (searched,) = found.search_sizes((asked["size"],))
        assert searched.faults or searched.nearest_bytes
        return
    for each in strategies:
        chosen = each.strategy
        assert sum(each.by_cause_s.values()) == pytest.approx(each.step_s, rel=1e-9)
        kinds = each.memory_by_kind_bytes
        assert min(*each.by_cause_s.values(), *kinds.values()) >= 0
        assert sum(kinds.values()) == pytest.approx(each.memory_bytes, rel=1e-9)
        assert each.memory_bytes <= found.cluster.accelerator.memory_bytes
        assert chosen.dp * chosen.tp * chosen.pp * chosen.cp == asked["size"]
        assert chosen.global_batch_samples == asked["global_batch"]
        steps_s = each.step_s * 1e6 / asked["global_batch"]
        longer = found.training.budget.time_per_step_time
        if found.training.is_pretraining:
            # Of 10 EFLOP as long as their steps, of 300 as much longer as most were, between them by the logarithm.
            flop = found.training.workload.train_flop_per_sample * 1e6
            share = min(1, max(0, math.log(flop / 1e19) / math.log(30)))
            longer = record_of(pretraining_kind(found.training.workload)).bias ** -share
        if found.quick_pretraining is None:
            assert each.work_s.value == pytest.approx(steps_s * longer)
        assert each.work_s.value <= steps_s * longer * (1 + 1e-9)
        assert each.work_s.low < each.work_s.value < each.work_s.high
    times = [each.work_s.value for each in strategies]
    assert times == sorted(times)
    axes = ("dp", "tp", "pp", "cp", "ep")
    layouts = {tuple(getattr(each.strategy, axis) for axis in axes) for each in strategies}
    assert len(layouts) == len(strategies)


@pytest.mark.law
@settings(max_examples=8, deadline=None)
@given(asked=ASKED)
def test_faster_links_are_never_slower(asked):
    nodes = CATALOGUE.cluster(asked["chip"])
    rates = {
        "intra_byte_per_s": 2.0 * nodes.intra.byte_per_s,
        "inter_byte_per_s": 2.0 * nodes.inter.byte_per_s,
    }
    plain, faster = (
        best(
            asked["size"],
            posed(asked["workload"], asked["chip"], node=node, global_batch=asked["global_batch"]),
        )
        for node in ({}, rates)
    )
    assert bool(plain) == bool(faster)
    if plain and faster:
        assert faster[0].step_s <= plain[0].step_s * (1 + 1e-9)


@pytest.mark.law
@settings(max_examples=8, deadline=None)
@given(asked=ASKED, chips=st.sampled_from([SMALLER_A100, SMALLER_V100]))
def test_more_memory_is_never_slower(asked, chips):
    smaller, larger = (
        best(asked["size"], posed(asked["workload"], chip, global_batch=asked["global_batch"]))
        for chip in chips
    )
    if smaller:
        assert larger[0].step_s <= smaller[0].step_s * (1 + 1e-9)


def test_fixed_parameters_stay_fixed():
    fixed = ["tp=2", "zero_stage=3", "recompute=full"]
    found = best(8, posed("gpt2", global_batch=512, fix=fixed, precision="fp16"))[0].strategy
    assert (found.tp, found.zero_stage, found.precision, found.recompute) == (2, 3, "fp16", "full")


def test_no_chip_does_better_than_its_best_matrix_product():
    # 87 % of its peak on A100 (DESIGN.md: MAMF)
    asked = posed("gpt2_xl", global_batch=512)
    found = best(8, asked)[0]
    assert 0.2 < asked.mfu(found.strategy, found.step_s, found.strategy.precision) < 0.87


def test_adapters_need_far_less_memory():
    whole, adapters = (
        best(8, posed("llama2_7b", global_batch=512, fix=fix))[0] for fix in ([], ["trained=lora"])
    )
    assert adapters.strategy.lora_rank == 16
    assert adapters.memory_by_kind_bytes["optimizer"] < whole.memory_by_kind_bytes["optimizer"] / 10


@pytest.mark.parametrize("fix", [["tp=3"], ["dp=8", "tp=8"], ["microbatch=7"], ["interleave=99"]])
def test_where_nothing_is_legal_there_is_a_reason(fix):
    (searched,) = posed("gpt2_xl", global_batch=512, fix=fix).search_sizes((8,))
    assert not searched.best
    assert searched.faults


def test_what_does_not_fit_has_a_remedy():
    # 175e9 weights of 16 bytes are 2.8 TB
    words = str(would_do("gpt3", 8, global_batch=64))
    assert re.search(r"\b[23]\.\d+ TB", words)
    assert "640 GB" in words
    assert "accelerators" in words
    fixed = ["zero_stage=0", "tp=1", "pp=1", "cp=1", "recompute=none", "offload=none"]
    assert "=3" in str(would_do("llama2_7b", 8, global_batch=64, fix=fixed))
    assert would_do("gpt2", 8, global_batch=64) is None


@pytest.mark.parametrize(("name", "params"), [("llama3_70b", 70e9), ("gpt3", 175e9), ("llama31_405b", 405e9)])
def test_more_accelerators_that_hold_less_than_is_needed_are_named_with_what_the_host_holds(name, params):
    # 16 bytes per parameter of mixed-precision Adam (Rajbhandari et al. 2020), 12 of them optimizer states
    words = str(would_do(name, 4, global_batch=64))
    size = int(re.search(r"try (\d+) accelerators", words)[1])
    assert ("host" in words.split(",")[1]) == (size * 80e9 < 16 * params)


def test_a_training_holds_what_the_system_of_its_host_leaves_alone():
    # llama2_7b in full: 16 bytes of each of 6.74e9 weights, 108 GB, are within 128 GB and above the 96 GB that macOS leaves.
    problem = posed("llama2_7b", "apple-m4-max-128gb", global_batch=4)
    (searched,) = problem.search_sizes((1,))
    assert not searched.num_fitting
    (adapters,) = posed("llama2_7b", "apple-m4-max-128gb", global_batch=4, train="lora").search_sizes((1,))
    assert adapters.num_fitting


@pytest.mark.parametrize("size", [3, 5, 7])
def test_weights_go_to_hosts_that_a_training_does_not_fill(size):
    # Of hosts of two, the last is half used: no group but all ranks together lies on whole ones.
    found = posed("llama3_70b", "rtx-4060-pcie-8gb", node={"node_size": 2}, train="qlora", sequence=512)
    (searched,) = SEARCH_CACHE.searches(found, (size,)).sizes
    assert searched.best is None or searched.best.strategy.dp_replicate == 1


def test_what_is_short_by_little_reads_as_more_than_there_is():
    # 16 x 80 GB are 1.28 TB; what needs a thousandth more is written with as many digits as show it.
    words = str(would_do("llama3_70b", 16, global_batch=512, fix=["offload=none"]))
    needed, *_, whole = re.findall(r"([\d.]+) TB", words)
    assert float(needed) > float(whole) == 1.28
    # Adam's moments on the host leave what is computed as it was; 8-bit moments do not, and come after them.
    # Megatron-Core offloads no weights, so moving these too is not offered.
    assert words.index("offload=optimizer") < words.index("8bit")
    assert "optimizer_and_params" not in words


def test_plain_strategies_are_those_that_run_without_thought():
    found = posed("gpt2_xl", global_batch=512)
    plain = plain_strategies(found, best(8, found)[0].strategy)
    assert [each.zero_stage for each in plain] == [0, 3]
    assert {(each.dp, each.tp, each.pp, each.cp) for each in plain} == {(8, 1, 1, 1)}
    # 7e9 weights with 16 bytes each do not fit into 80 GB without sharding
    large = posed("llama2_7b", global_batch=64)
    assert 0 not in {each.zero_stage for each in plain_strategies(large, best(8, large)[0].strategy)}
    assert plain_strategies(found, best(1, found)[0].strategy) == ()


@pytest.mark.parametrize(
    "asked",
    [
        {"workload": "llama31_8b", "tokens": 1e12},
        {"workload": "llama31_8b", "train": "full", "examples": 1e5},
    ],
)
def test_a_chip_without_measured_steps_has_the_wider_range(asked):
    """What is published are trainings on chips whose steps were measured too."""
    spread = {}
    for chip in ("h100-sxm5-80gb", "trainium2-module-96gb"):
        time_s = ask(**asked, accelerator=[chip], at="64", scores=False).recommended.time_s
        spread[chip] = math.log(time_s.high / time_s.low)
    assert spread["trainium2-module-96gb"] > 1.2 * spread["h100-sxm5-80gb"]


@pytest.mark.parametrize(
    "chip", ["p100-sxm2-16gb", "p100-pcie-16gb", "p40-pcie-24gb", "gtx-1080-ti-pcie-11gb"]
)
def test_chips_below_compute_capability_7_run_code_as_written(chip):
    """Inductor refuses them: github.com/pytorch/pytorch, issue 93801."""
    strategies = best(1, posed("gpt2", chip))
    assert {each.strategy.implementation for each in strategies} == {"eager"}
    with pytest.raises(SpecError, match="implementation=eager"):
        posed("gpt2", chip, fix=["implementation=compiled"])
    assert {each.strategy.implementation for each in best(1, posed("gpt2", "v100-sxm2-16gb"))} == {"compiled"}


@pytest.mark.law
@pytest.mark.parametrize("chip", ["rtx-4090-pcie-24gb", "h100-sxm5-80gb", "a100-sxm4-80gb"])
@pytest.mark.parametrize("workload", ["sdxl", "flux1_dev"])
def test_adapters_of_image_models_are_no_slower_on_more_accelerators(workload, chip):
    """Programs for them take a batch a device (diffusers, train_text_to_image_lora_sdxl.py)."""
    found = posed(workload, chip, train="lora", samples=200_000, num_best=1)
    times_s = [best(size, found)[0].work_s.value for size in (4, 8, 16, 32, 64, 128)]
    assert times_s == sorted(times_s, reverse=True)


@pytest.mark.parametrize(
    ("workload", "given"),
    [
        ("sdxl", {"examples": 1000}),
        ("llama31_8b", {"train": "full", "examples": 300}),
        ("llama31_8b", {"train": "lora,dpo", "examples": 500}),
        ("llama31_8b", {"train": "full,grpo", "examples": 1000, "prompt": 200, "completion": 1000}),
        ("vit_large", {"train": "full", "examples": 5000}),
    ],
)
@pytest.mark.parametrize("size", [1, 8, 24])
def test_a_batch_that_nobody_states_leaves_dozens_of_steps(workload, given, size):
    """Of all published results of MLPerf Training none took fewer steps than 86."""
    about = training(query({"workload": workload, **given}), CATALOGUE, embedded.scores())
    nodes = CATALOGUE.cluster("h100-sxm5-80gb")
    batches = problem(about, nodes, MODEL, num_best=1).batches(size)
    group = (
        about.workload.rollout.group_size if about.workload.rollout else about.workload.samples_per_example
    )
    assert batches
    assert all(batch % group == 0 and about.budget.samples_at(batch) / batch > 48 for batch in batches)


def test_a_rack_of_72_may_share_out_a_sample_among_eight_four_or_two():
    """Batches of 9, 18 and 72 are those of GB200's published results on 72, 144 and 576 (v5.0 and v5.1)."""
    about = training(query({"workload": "llama2_70b_lora"}), CATALOGUE, embedded.scores())
    batches = problem(about, CATALOGUE.cluster("gb300"), MODEL, num_best=1).batches
    assert [{9, 18, 36} <= {*batches(size)} for size in (72, 144, 576)] == [True] * 3


@pytest.mark.parametrize(
    ("software", "stages", "copies"),
    # torchtitan's FSDP2 has no stage 1, and its usual dispatcher is an all-to-all, as DeepSpeed's is.
    [
        ("torchtitan", {0, 2, 3}, True),
        ("deepspeed", {0, 1, 2, 3}, True),
        ("megatron_core", {0, 1, 2, 3}, False),
    ],
)
def test_software_is_planned_with_what_it_has(software, stages, copies):
    asked = {"accelerator": "h100", "tokens": "1T", "max_accelerators": 64, "software": software}
    mixture = ask(workload="qwen3_30b_a3b", **asked).recommended.strategy
    assert mixture.dispatch_copies == copies
    dense = ask(workload="llama31_8b", **asked).recommended.strategy
    assert not dense.dispatch_copies
    assert {mixture.zero_stage, dense.zero_stage} <= stages


@pytest.mark.parametrize(
    ("software", "gathered", "loss"),
    # DTensor's linear layers save what they were given, two of a layer 4,096 values in 2 bytes; Megatron-LM's gather again.
    [("torchtitan", 16384, 12), ("megatron_core", 0, 12), ("megatron", 0, 6), ("hf", 0, 12), (None, 0, 12)],
)
def test_memory_is_planned_as_software_holds_it(software, gathered, loss):
    about = training(query({"workload": "llama31_8b", "tokens": "1T"}), CATALOGUE, embedded.scores())
    load = problem(about, CATALOGUE.cluster("a100-sxm4-80gb"), MODEL, num_best=1, software=software).load
    assert load.gathered_bytes == gathered
    assert load.kept_loss_bytes == loss * 128256
    assert load.bucket_copies == (software == "hf")


def test_published_targets_are_planned_with_recorded_graphs():
    """MLPerf's results are of tuned code; whoever trains on tokens of his own states it."""
    tuned = ask(workload="llama2_70b_lora", accelerator="h200", max_accelerators=8).recommended.strategy
    usual = ask(
        workload="llama31_8b", accelerator="h200", tokens="1T", max_accelerators=8
    ).recommended.strategy
    assert (tuned.cuda_graphs, usual.cuda_graphs) == (True, False)
    assert not tuned.full_graphs
    # Entries of v6.0 launch mixtures of experts as one graph a step (config_*_full_cg.sh).
    mixture = {"workload": "gpt_oss_20b", "accelerator": "gb300", "at": 8}
    assert ask(**mixture).recommended.strategy.full_graphs
    assert not ask(**mixture, software="torchtitan").recommended.strategy.full_graphs
    asked = {"workload": "qwen3_30b_a3b", "accelerator": "h100", "tokens": "1T", "max_accelerators": 8}
    plain, recorded = (ask(**asked, fix={"cuda_graphs": each}) for each in (False, True))
    assert recorded.recommended.time_s.value < plain.recommended.time_s.value
    with pytest.raises(EvidenceError):
        ask(**asked, software="hf", fix={"cuda_graphs": True})


def test_a_batch_of_a_fine_tuning_allows_micro_batches_of_three():
    """128 on 8 leave each 16, in micro-batches of two or four: seven took 18 each by threes, and were advised."""
    asked = {"workload": "qwen3_8b", "train": "lora", "examples": "20k", "sequence": "2k"}
    free = ask(**asked, accelerator="8x h100").recommended
    assert free.num_accelerators == 8
    stated = ask(**asked, accelerator="8x h100", at=8, global_batch=120).recommended
    assert free.time_s.value <= stated.time_s.value * 1.001


def test_what_the_assumed_software_lacks_is_asked_of_one_that_has_it():
    """Hugging Face's Trainer has no pipeline: its rates say nothing of one, and no restriction is faster."""
    asked = {"workload": "llama31_8b", "train": "lora", "examples": "10k", "accelerator": "h100", "at": 8}
    with pytest.raises(EvidenceError) as refused:
        ask(**asked, fix={"pp": 2})
    assert "megatron_core" in str(refused.value.missing)
    free, split = (ask(**asked, software="megatron_core", fix=each) for each in ({}, {"pp": 2}))
    assert free.recommended.time_s.value <= split.recommended.time_s.value * 1.001
    # No software of NVIDIA's chips that was measured has DualPipe: what is fixed is kept.
    kept = ask(workload="llama31_8b", accelerator="h100", tokens="1T", at=64, fix={"schedule": "dualpipe"})
    assert kept.recommended.strategy.schedule == "dualpipe"


def test_a_mixture_is_planned_faster_as_one_graph_a_step():
    """GPT-OSS 20B as eight GB300 trained it for MLPerf Training 6.0: 0.49 s a step of 24 samples, as one graph."""
    asked = {
        "workload": "gpt_oss_20b",
        "accelerator": "gb300",
        "at": 8,
        "tokens": "1B",
        "global_batch": 24,
        "precision": "mxfp8",
    }
    layers, whole = (
        ask(**asked, fix={"cuda_graphs": True, "full_graphs": full}).recommended for full in (False, True)
    )
    assert whole.strategy.full_graphs
    assert whole.model.step_s < layers.model.step_s
    with pytest.raises(EvidenceError):
        ask(**asked, software="torchtitan", fix={"full_graphs": True})


def test_published_targets_are_planned_in_a_precision_that_the_software_has():
    # DeepSpeed's configuration knows fp16 and bf16 (deepspeed.ai, docs/config-json); NeMo's results of MLPerf are in fp8.
    asked = {"workload": "llama31_8b", "accelerator": "h100", "max_accelerators": 16}
    chosen = {
        name: ask(**asked, software=name).recommended.strategy for name in ("deepspeed", "megatron_core")
    }
    assert {name: each.precision for name, each in chosen.items()} == {
        "deepspeed": "bf16",
        "megatron_core": "fp8",
    }
    with pytest.raises(EvidenceError) as caught:
        ask(**asked, software="deepspeed", precision="fp8")
    assert "precision=fp8" in caught.value.missing[0]


@pytest.mark.parametrize(
    ("software", "more", "lacks"),
    [
        # transformers' documentation: expert parallelism is of the ranks of tensor parallelism; no option of the Trainer.
        ("hf", {"fix": ["ep=2"]}, "ep=2"),
        # Megatron-Bridge's configuration has no 4-bit weights.
        ("megatron_core", {"train": "qlora", "examples": 1000}, "--train qlora"),
    ],
)
def test_what_the_stated_software_lacks_is_refused(software, more, lacks):
    asked = {"workload": "qwen3_30b_a3b", "accelerator": "h100", "max_accelerators": 8}
    asked |= {} if "train" in more else {"tokens": "1B"}
    with pytest.raises(EvidenceError) as caught:
        ask(**asked, **more, software=software)
    assert lacks in caught.value.missing[0]


def test_a_mixture_in_hugging_face_s_trainer_has_no_expert_axis():
    asked = {"workload": "qwen3_30b_a3b", "accelerator": "h100", "max_accelerators": 8, "tokens": "1B"}
    assert ask(**asked, software="hf").recommended.strategy.ep == 1


def test_tokens_that_travel_once_have_as_many_ranks_as_their_library():
    # deepseek-ai/DeepEP, csrc/kernels/configs.cuh: 20 nodes of 8.
    asked = {"workload": "deepseekv3_671b", "tokens": "1T", "accelerators": 2048}
    assert ask(**asked, accelerator="h100").recommended.strategy.ep <= 160


def test_chips_of_no_measured_software_are_planned_with_a_schedule_that_all_have():
    asked = {"workload": "qwen3_235b_a22b", "tokens": "100B", "accelerator": "mi355x", "accelerators": 256}
    assert ask(**asked).recommended.strategy.schedule == "1f1b"


def test_the_least_energy_is_not_looked_for_where_no_power_is_known():
    with pytest.raises(EvidenceError) as caught:
        ask(workload="resnet50", accelerator="tpu-v6e", objective="energy")
    assert "power_w" in caught.value.missing[0]
    both = ask(workload="resnet50", accelerator=["tpu-v6e", "h100"], objective="energy")
    assert both.recommended.energy_j is not None
    assert any("tpu-v6e" in str(each) for each in both.notes_of("not_compared"))
    # Nothing fits on 64 of T4, whose power is known.
    asked = {"workload": "llama31_405b", "tokens": 1e9, "accelerator": ["t4", "h100"], "max_accelerators": 64}
    assert not ask(**asked, objective="energy").notes_of("not_compared")


def test_nodes_of_which_a_part_is_used_are_counted_as_they_are_taken():
    # 64 of the 72 in each node share out a batch of 8,960.
    asked = {"workload": "gpt_oss_120b", "tokens": "5T", "accelerator": "gb300", "global_batch": 8960}
    found = ask(**asked, accelerators=[1792]).recommended
    assert (found.num_accelerators, found.num_nodes) == (1792, 28)
    assert ask(**asked, accelerators=[72]).recommended.num_nodes == 1


def test_a_stock_in_one_host_has_no_second_node():
    with pytest.raises(UsageError) as caught:
        ask(workload="qwen3_8b", tokens="1B", accelerator="3xrtx4090", nodes=2)
    assert "6xrtx-4090-pcie-24gb --node-size 3" in str(caught.value)


def test_images_of_another_side_are_trained_in_published_batches():
    found = ask(workload="resnet50", accelerator="a100", image_size=448, epochs=90, max_accelerators=64)
    assert found.recommended.global_batch_samples is not None
    # Four times the pixels take about four times as long.
    usual = ask(workload="resnet50", accelerator="a100", epochs=90, max_accelerators=64)
    at = {each.num_accelerators: each.time_s.value for each in usual.candidates if each.time_s is not None}
    ratio = found.recommended.time_s.value / at[found.recommended.num_accelerators]
    assert 2.5 < ratio < 8


@pytest.mark.parametrize(
    ("workload", "size"), [("stable_diffusion", 512), ("retinanet", 256), ("dlrm_dcnv2", 16)]
)
def test_models_that_no_program_cuts_into_stages_share_out_data_alone(workload, size):
    found = ask(workload=workload, accelerator="l40s", accelerators=[size]).recommended
    assert (found.strategy.pp, found.strategy.dp) == (1, size)
    fixed = ask(workload="stable_diffusion", accelerator="l40s", accelerators=[8], fix=["pp=2"]).recommended
    assert fixed.strategy.pp == 2


def test_a_pipeline_may_be_of_any_length_up_to_its_layers():
    # 48 layers on 9 stages: 6, 6, 6 and six of 5.
    asked = {"workload": "qwen3_30b_a3b", "tokens": "50B", "accelerator": "rtx5090"}
    found = by_size(ask(**asked, accelerators=[8, 9]))
    # The ninth is in another host, over 10 Gbit/s.
    assert found[9].time_s.value < 2 * found[8].time_s.value


def test_what_a_fixed_value_keeps_from_fitting_is_said():
    asked = {"workload": "qwen3_30b_a3b", "tokens": "50B", "accelerator": "rtx5090"}
    found = ask(**asked, accelerators=[9], fix=["pp=3"])
    assert any("9 without --fix pp=3" in str(each) for each in found.notes)


@pytest.mark.parametrize("chip", ["h100", "mi300x", "rtx4090", "a100"])
def test_products_of_scaled_blocks_need_units_for_them(chip):
    """Transformer Engine: MXFP8 from compute capability 10 on; AMD: gfx950."""
    asked = {"workload": "llama31_8b", "tokens": "10G", "accelerators": "8", "precision": "mxfp8"}
    with pytest.raises(EvidenceError):
        ask(asked, accelerator=chip)
    for has_units in ("b200", "mi355x"):
        assert ask(asked, accelerator=has_units).recommended.strategy.precision == "mxfp8"


@pytest.mark.parametrize(
    ("question", "size"),
    [
        ({"workload": "deepseek_v3", "tokens": "100G", "accelerator": "h100"}, "64"),
        ({"workload": "llama31_8b", "train": "full", "examples": 10_000, "accelerator": "rtx4090"}, "8"),
    ],
)
def test_megatron_moves_states_of_its_distributed_optimizer_alone(question, size):
    """Megatron FSDP, which shards gradients and weights, keeps optimizer states on the accelerator."""
    best = ask(question, accelerators=size, software="megatron_core").recommended.strategy
    assert best.offload == "optimizer"
    assert best.zero_stage <= 1
    with pytest.raises((SpecError, EvidenceError)):
        ask(question, accelerators=size, software="megatron_core", fix=["zero_stage=2", "offload=optimizer"])


@pytest.mark.parametrize("software", ["torchtitan", "automodel"])
def test_ranks_of_experts_are_of_a_group_that_shards_weights(software):
    """torchtitan 0.3.0, distributed/parallel_dims.py: the expert axis is within fsdp x tp x cp."""
    asked = {"workload": "qwen3_30b_a3b", "tokens": "100G", "accelerator": "b200", "accelerators": "40"}
    best = ask(asked, software=software).recommended.strategy
    shards = best.dp * best.cp // best.dp_replicate if best.zero_stage >= 2 else best.cp
    assert best.ep == 1 or (shards * best.tp) % best.ep == 0


CHIP = """
[accelerator.x9-80gb]
title = "X9"
vendor = "Example"
kind = "gpu"
memory_bytes = 80e9
memory_byte_per_s = 3e12
node_size = 8
topology = "switch"
link_byte_per_s = 450e9
inter_byte_per_s = 50e9
intra_latency_s = 3.4e-6
inter_latency_s = 14e-6
power_w = 700
source = "a datasheet"
confidence = "high"
"""


def step_of(tmp_path, peaks, precision):
    path = tmp_path / f"{'-'.join(peaks)}.toml"
    path.write_text(CHIP + "".join(f"peak_{name}_flop_per_s = {peak}\n" for name, peak in peaks.items()))
    found = ask(
        PRETRAINING, accelerator=["x9-80gb"], hardware=[str(path)], accelerators="64", precision=precision
    )
    return found.recommended.model.step_s


def test_fp8_of_a_chip_without_bf16_computes_the_rest_in_fp16(tmp_path):
    both = {"bf16": 900e12, "fp16": 900e12, "fp8": 1800e12}
    without = {name: peak for name, peak in both.items() if name != "bf16"}
    assert step_of(tmp_path, without, "fp8") == step_of(tmp_path, both, "fp8")


def test_fp8_needs_a_rate_in_16_bits_for_the_rest(tmp_path):
    with pytest.raises(EvidenceError, match="16 bits"):
        step_of(tmp_path, {"fp32": 60e12, "fp8": 1800e12}, "fp8")
