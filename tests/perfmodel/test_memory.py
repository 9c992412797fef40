"""Memory against published formulas and reports of runs, and laws that hold for any strategy."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import Load, held_as, transformer_load, workload_load
from equipoise.perfmodel.memory import activation_bytes, kept_activations, memory, sent_bytes, shards
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.hardware import accelerator
from equipoise.spec.strategy import RECOMPUTES, Strategy, strategy
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import workload

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "memory.toml").read_text())
GIB = 2**30
GB = 1e9
PLAIN = Parameters()
STATES = ("weights", "gradients", "optimizer")
LLAMA = transformer_load(workload("llama31_8b").transformer, sequence=2048)
MIXTURE = transformer_load(workload("qwen3_30b_a3b").transformer, sequence=2048)
# 7.5 billion weights and nothing else.
STATES_ONLY = Load(
    **(dict.fromkeys(Load.__struct_fields__, 0.0) | {"layers": 1.0, "sequence": 1.0, "dense_params": 7.5e9})
)
powers = st.sampled_from([1, 2, 4, 8])
recomputes = st.sampled_from(RECOMPUTES)
flags = st.booleans()


@st.composite
def strategies(draw):
    dp, tp, pp, cp = draw(powers), draw(powers), draw(powers), draw(powers)
    ep = draw(st.sampled_from([each for each in (1, 2, 4, 8) if dp * cp * tp % each == 0]))
    size, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        microbatch_samples=size,
        global_batch_samples=size * dp * rounds,
        zero_stage=draw(st.integers(0, 3)),
        sequence_parallel=tp > 1 and draw(flags),
        recompute=draw(recomputes),
        implementation=draw(st.sampled_from(["eager", "compiled"])),
        fused_attention=draw(flags),
        fused_loss=draw(flags),
        chunked_loss=draw(flags),
        precision=draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8"])),
    )


def held(load, one, parameters=PLAIN):
    return memory(load, grid([one]), parameters)


def bytes_of(load, one, *kinds):
    found = held(load, one)
    return sum(float(np.broadcast_to(getattr(found, kind), (1,))[0]) for kind in kinds)


@pytest.mark.truth
@pytest.mark.parametrize("run", TRUTH["run"], ids=lambda run: run["name"])
def test_what_runs_reserved_is_predicted_by_priors_alone(run):
    load = transformer_load(workload(run["model"]).transformer, sequence=run["sequence"])
    reserved = float(held(load, strategy(run["strategy"])).reserved[0])
    assert reserved / GIB == pytest.approx(run["reserved_gib"], rel=run["relative_tolerance"])


@pytest.mark.truth
def test_fsdp_in_a_pipeline_holds_whole_weights_and_gradients():
    """Llama 3.1 405B on 512 with torchtitan, 72.7 to 84.9 GiB; what the schedule itself buffers is not known."""
    steps = tomllib.loads((Path(__file__).parents[1] / "truth" / "large_steps.toml").read_text())["step"]
    errors = []
    for step in steps:
        one = strategy(step["strategy"])
        if one.pp > 1:
            load = transformer_load(workload(step["model"]).transformer, sequence=step["sequence"])
            errors.append(float(held(load, one).reserved[0]) / GIB / step["reserved_gib"] - 1)
    assert len(errors) == 6
    assert np.mean(np.abs(errors)) <= 0.10
    assert max(np.abs(errors)) <= 0.17


# 18 bytes a weight with an fp32 gradient (Megatron-LM): 2 gathered, 4 of a gradient that waits for the last
# micro-batch, 12 of states and the master copy that four ranks share; two stages halve all of it.
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_of_a_pipeline_are_those_of_stage_1(stage):
    one = Strategy(dp=4, pp=2, global_batch_samples=32, zero_stage=stage)
    assert bytes_of(STATES_ONLY, one, *STATES) / 7.5e9 == pytest.approx((2 + 4 + 12 / 4) / 2)


# Rajbhandari et al. 2020, figure 1: 7.5 billion weights, fp16, Adam, 64 ranks.
@pytest.mark.truth
@pytest.mark.parametrize(("stage", "expected_gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_shrink_as_zero_says(stage, expected_gb):
    one = Strategy(dp=64, global_batch_samples=64, zero_stage=stage, precision="fp16")
    assert bytes_of(STATES_ONLY, one, *STATES) / GB == pytest.approx(expected_gb, rel=0.02)


# Zhang et al. 2022 (MiCS), section 3.2: what is sharded is divided by the ranks of a group, not by all. Megatron-Core's
# instances of the distributed optimizer: 6 + 12 / (d / instances) bytes a weight.
@pytest.mark.parametrize(("groups", "expected_gb"), [(1, 1.9), (2, 3.75), (8, 15.0), (32, 60.0)])
def test_groups_divide_states_by_their_own_ranks(groups, expected_gb):
    one = Strategy(dp=64, global_batch_samples=64, zero_stage=3, dp_replicate=groups, precision="fp16")
    assert bytes_of(STATES_ONLY, one, *STATES) / GB == pytest.approx(expected_gb, rel=0.02)
    instances = replace(one, zero_stage=1, precision="bf16")
    assert bytes_of(STATES_ONLY, instances, *STATES) / 7.5e9 == pytest.approx(6 + 12 / (64 / groups))


def test_the_gradient_of_tables_is_counted_once_where_gradients_lie_whole():
    """Tables of 1e9 weights stay gathered in 2 bytes; their half that is the output's matrix has a gradient of 2,
    which goes out, or is added to the whole one, when activations are gone.
    """
    tables = replace(STATES_ONLY, dense_params=0.0, embedding_params=1e9)
    one = Strategy(dp=64, global_batch_samples=256, zero_stage=3)
    assert bytes_of(tables, one, "buffers") == pytest.approx((2 + 2 / 2) * 1e9)
    assert bytes_of(tables, replace(one, whole_gradients=True), "buffers") == pytest.approx((2 + 2 / 2) * 1e9)


# A layer of 1e9 weights: gathered, its gradients in the same 2 bytes, and these in the 4 of a sum in fp32, or in the 2
# of one that is as wide (MixedPrecisionPolicy: reduce_dtype); without gradients the next layer, gathered.
@pytest.mark.parametrize(
    ("options", "ways", "expected"),
    [
        ("", (), 2 + 2 + 4),
        ("", ("narrow_sums",), 2 + 2 + 2),
        ("master_weights=false", (), 2 + 2 + 2),
        ("master_weights=false whole_gradients=true", (), 2 + 2 + 4),
        ("trained=lora lora_rank=8", (), 2 + 2),
        ("precision=fp32", (), 4 + 4 + 4),
    ],
)
def test_a_layer_is_gathered_with_its_gradients_as_wide_as_they_are_summed(options, ways, expected):
    layer = held_as(replace(STATES_ONLY, layers=1.0, dense_params=1e9), ways)
    one = strategy(f"dp=64 global_batch=256 zero_stage=3 {options}")
    assert bytes_of(layer, one, "buffers") == pytest.approx(expected * 1e9)


# Qi et al. 2024, table 3: models of 22 and 30 layers on 8 stages, of 46 on 16, whose ends have a layer less; beside a
# table, or without one to speak of. Layers of 1 weight; 24 share out.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("layers", "stages", "table", "expected"),
    [
        (22, 8, 0.5, 3),
        (22, 8, 2.0, 2 + 2.0),
        (30, 8, 0.5, 4),
        (46, 16, 0.0, 3),
        (24, 8, 0.5, 3.5),
        (36, 8, 0, 4.5),
    ],
)
def test_ends_of_a_pipeline_have_a_layer_less_where_its_layers_share_out_so(layers, stages, table, expected):
    load = replace(STATES_ONLY, hidden=1.0, layers=layers, dense_params=1.0, end_params=table)
    found = shards(load, grid([Strategy(pp=stages, global_batch_samples=2 * stages)]))
    assert float(np.ravel(found.dense)[0]) == pytest.approx(expected)


def test_a_second_stage_of_a_layer_more_has_a_micro_batch_less():
    """By hand, of 22 layers on 8 stages, 3 on each but for the ends: 8 micro-batches of 2 layers or 7 of 3."""
    load = replace(STATES_ONLY, hidden=1.0, layers=22.0, kept_whole_bytes=1.0)
    for num_microbatches, expected in ((16, 7 * 3), (8, 7 * 3), (4, 4 * 3)):
        one = Strategy(pp=8, global_batch_samples=num_microbatches)
        assert float(np.ravel(activation_bytes(load, grid([one])))[0]) == pytest.approx(expected)


# huggingface/nanotron, docs: Llama 3 8B on 8 stages: 32 layers and an output that counts as 2.2 to 2.4 of them, a stage
# having as many as exceed an eighth of all: 5 on the first one.
@pytest.mark.truth
@pytest.mark.parametrize(("stages", "expected"), [(1, 32), (2, 18), (4, 9), (8, 5)])
def test_stages_that_share_out_costs_have_more_layers_before_the_output(stages, expected):
    load = held_as(LLAMA, ["stages_by_cost"])
    one = grid([Strategy(pp=stages, global_batch_samples=64)])
    tables = LLAMA.embedding_params if stages == 1 else LLAMA.end_params
    found = float(np.ravel(shards(load, one).dense)[0]) - tables
    assert found / LLAMA.dense_params == pytest.approx(expected)


# github.com/whitecircle/halo, agent-docs/optimization/halo-vs-stock-trl.md: GPT-OSS 20B with weights sharded, 59 GiB at
# 32,768 tokens and 100 at 65,536: transformers widens logits, and Liger's kernel replaces them.
@pytest.mark.truth
def test_logits_that_are_widened_before_a_kernel_have_six_bytes():
    more = []
    for tokens in (32_768, 65_536):
        load = held_as(
            transformer_load(workload("gpt_oss_20b").transformer, sequence=tokens), ["widened_logits"]
        )
        one = strategy("dp=8 global_batch=8 zero_stage=3 recompute=full master_weights=false")
        more.append(float(held(load, one).allocated[0]) / GIB)
    assert more[1] - more[0] == pytest.approx(100 - 59, rel=0.05)


# github.com/zouyixin116/ai-infra-lab, results/stage1_bs1.json: TinyLlama 1.1B in bf16, one sample of 256 tokens on one
# card, torch.optim.AdamW: 10.29 GiB allocated. By hand 2 + 2 + 4 bytes a weight, and 2 that foreach makes anew.
@pytest.mark.truth
def test_an_optimizer_as_written_makes_as_much_anew_as_there_are_gradients():
    load = transformer_load(workload("tinyllama_1_1b").transformer, sequence=256)
    one = strategy("global_batch=1 implementation=eager master_weights=false")
    found = float(held(load, one).allocated[0])
    assert found == pytest.approx(10 * load.params)
    assert found / GIB == pytest.approx(10.29, rel=0.02)
    for other in ("implementation=compiled", "implementation=eager optimizer=adam_8bit"):
        fused = strategy(f"global_batch=1 master_weights=false {other}")
        assert float(held(load, fused).allocated[0]) < found - load.params


@pytest.mark.parametrize(("precision", "kept"), [("bf16", 2 + 2 + 1), ("fp32", 4 + 4 + 1)])
def test_a_score_keeps_two_results_and_a_byte_of_a_mask(precision, kept):
    """Korthikanti et al. 2022: softmax's result, dropout's, and the mask between; softmax's alone without one."""
    apart, fused = (
        Strategy(global_batch_samples=1, precision=precision, fused_attention=each) for each in (False, True)
    )
    scores = 32 * 2048 * 2048
    for ways, each in (((), kept), (("no_dropout",), (kept - 1) / 2)):
        load = held_as(LLAMA, ways)
        more = kept_activations(load, grid([apart])).all - kept_activations(load, grid([fused])).all
        assert float(np.ravel(more)[0]) == pytest.approx(each * scores)


def test_gradients_lie_with_weights_where_fsdp_offloads_both():
    one = strategy("dp=8 global_batch=8 zero_stage=3 offload=optimizer_and_params")
    assert bytes_of(STATES_ONLY, one, *STATES) == 0


def test_gradients_that_are_stepped_at_once_and_states_that_are_paged_lie_elsewhere():
    """By hand: of weights and moments in bf16 6 bytes a weight are left without gradients, and 2 without states."""
    one = strategy("global_batch=1 master_weights=false")
    for ways, expected in ((["steps_in_backward"], 6), (["steps_in_backward", "paged_states"], 2)):
        assert bytes_of(held_as(STATES_ONLY, ways), one, *STATES) == pytest.approx(expected * 7.5e9)
    alive = float(np.ravel(activation_bytes(LLAMA, grid([one])))[0])
    assert bytes_of(held_as(LLAMA, ["steps_in_backward"]), one, "activations") == pytest.approx(alive)


def test_what_layers_add_to_is_in_fp32_where_weights_are_cast_as_they_are_used():
    """By hand: two norms a layer read 4,096 values of 4 bytes, not 2; inputs of layers likewise."""
    load = held_as(LLAMA, ["wide_residual"])
    cases = (("", 2), ("recompute=full", 1), ("zero_stage=3", 0), ("master_weights=false", 0))
    for options, times in cases:
        one = grid([strategy(f"dp=2 global_batch=2 {options}")])
        more = kept_activations(load, one).chosen - kept_activations(LLAMA, one).chosen
        assert float(np.ravel(more)[0]) == pytest.approx(times * 2 * 4096 * 2048)


# LlamaRMSNorm.forward: the input in 4 bytes in place of 2, and its multiple of 2 that the weight scales; where weights are
# frozen the former alone. Under autocast, in which inputs have 4 bytes anyway, a multiple of 4. Two norms a layer.
@pytest.mark.parametrize(
    ("options", "ways", "expected"),
    [
        ("implementation=eager master_weights=false", (), 2 + 2),
        ("implementation=eager master_weights=false trained=lora lora_rank=8", (), 2),
        ("implementation=eager", ("wide_residual",), 2 + 4),
        ("implementation=compiled master_weights=false", (), 0),
    ],
)
def test_norms_as_written_keep_what_they_widen_and_what_a_weight_scales(options, ways, expected):
    one = grid([strategy(f"global_batch=1 {options}")])
    held_so = held_as(LLAMA, ["norms_as_written", *ways])
    more = kept_activations(held_so, one).all - kept_activations(LLAMA, one).all
    assert float(np.ravel(more)[0]) == pytest.approx(expected * 2 * 4096 * 2048)


# github.com/PrimeIntellect-ai/prime-rl, benchmarks/baselines: adapters on Qwen3 30B-A3B take 52.9 GB on four ranks and 35.3
# on eight: 17.6 GB less, a seventh more than an eighth of the weights in fp32 and what the allocator adds.
@pytest.mark.truth
def test_shards_of_frozen_weights_are_in_fp32_where_they_are_narrowed_as_they_are_gathered():
    load = held_as(transformer_load(workload("qwen3_30b_a3b").transformer, sequence=16_384), ["wide_frozen"])
    asked = "zero_stage=3 recompute=full trained=lora lora_rank=16"
    four, eight = (held(load, strategy(f"dp={ranks} global_batch=8 {asked}")) for ranks in (4, 8))
    less = float(np.ravel(four.weights)[0] - np.ravel(eight.weights)[0])
    assert less == pytest.approx(load.params * 4 * (1 / 4 - 1 / 8), rel=1e-3)
    assert float(four.reserved[0] - eight.reserved[0]) / GB == pytest.approx(52.9 - 35.3, rel=0.15)
    whole = strategy("dp=8 global_batch=8 trained=lora lora_rank=16")
    assert bytes_of(held_as(STATES_ONLY, ["wide_frozen"]), whole, "weights") == pytest.approx(2 * 7.5e9)


def test_other_weights_than_experts_are_of_all_ranks_where_experts_are_replicated():
    """Eight ranks that hold experts on two: a copy of all experts' states on each two, an eighth of the others'."""
    one = grid([Strategy(dp=8, ep=2, dp_replicate=4, global_batch_samples=8, zero_stage=2)])
    apart, alike = (shards(load, one) for load in (held_as(MIXTURE, ["replicated_experts"]), MIXTURE))
    assert [float(np.ravel(each.dense_ranks)[0]) for each in (apart, alike)] == [8, 2]
    assert [float(np.ravel(each.expert_ranks)[0]) for each in (apart, alike)] == [1, 1]


def test_frozen_models_whose_results_are_cached_are_not_there():
    known = workload_load(workload("flux_1_dev"))
    assert known.frozen_params > 0
    one = strategy("global_batch=1 trained=lora lora_rank=16")
    less = bytes_of(known, one, "weights") - bytes_of(held_as(known, ["cached_inputs"]), one, "weights")
    assert less == pytest.approx(2 * known.frozen_params)


def test_a_way_that_is_not_known_is_refused():
    with pytest.raises(SpecError, match="stages_by_chance"):
        held_as(LLAMA, ["stages_by_chance"])


def test_frozen_weights_have_no_slack():
    """They are allocated once, and nothing of them is freed: 2 bytes a weight."""
    frozen = held(STATES_ONLY, strategy("global_batch=1 trained=lora lora_rank=8"))
    assert float(np.ravel(frozen.reserved)[0]) == pytest.approx(2 * 7.5e9)


# PyTorch, FSDPParam: gradients that a reduction in fp32 still awaits are added up in 4 bytes, whole.
@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_that_are_reduced_once_a_step_lie_whole(stage):
    one = Strategy(dp=64, global_batch_samples=256, zero_stage=stage)
    apart = replace(one, whole_gradients=True)
    assert bytes_of(STATES_ONLY, apart, "gradients") / 7.5e9 == pytest.approx(4)
    assert bytes_of(STATES_ONLY, one, "gradients") / 7.5e9 <= 4 / 64
    assert bytes_of(STATES_ONLY, apart, "weights", "optimizer") == bytes_of(
        STATES_ONLY, one, "weights", "optimizer"
    )


# DeepSpeed, estimate_zero2_model_states_mem_needs: 4 + 16 / n bytes a weight, and 2 / n of the flat copy that `step`
# widens (runtime/zero/stage_1_and_2.py); estimate_zero3: 18 / n. In bf16 pipelines fp32 gradients are whole: 2 + 2 + 4 +
# 12 / n (runtime/bf16_optimizer.py). Megatron-LM, distributed optimizer: fp16 weights and gradients, 20.
@pytest.mark.parametrize(
    ("axes", "precision", "bytes_per_weight"),
    [
        ("dp=8", "fp16", 20),
        ("dp=8 zero_stage=1", "fp16", 4 + 18 / 8),
        ("dp=8 zero_stage=1", "bf16", 4 + 18 / 8),
        ("dp=8 zero_stage=3", "bf16", 18 / 8),
        ("dp=8 pp=2 zero_stage=1", "fp16", 4 + 18 / 8),
        ("dp=8 pp=2 zero_stage=1", "bf16", 8 + 12 / 8),
    ],
)
def test_gradients_of_two_widths_lie_next_to_each_other(axes, precision, bytes_per_weight):
    one = strategy(f"{axes} global_batch=8 gradient_copies=true precision={precision}")
    weights = 7.5e9 / one.pp
    assert bytes_of(STATES_ONLY, one, *STATES) / weights == pytest.approx(bytes_per_weight)


@pytest.mark.truth
@pytest.mark.parametrize(("ranks", "measured_gib"), [(8, 93.2), (16, 86.8), (32, 83.6), (40, 82.9)])
def test_llama_70b_under_no_sync_takes_what_was_measured(ranks, measured_gib):
    """KempnerForge, benchmarks/weak_scaling_160gpu/README.md: tp 4, four micro-batches, pure bf16, H200."""
    load = transformer_load(workload("llama3_70b").transformer, sequence=4096)
    one = strategy(
        f"dp={ranks} tp=4 microbatch=2 global_batch={ranks * 8} zero_stage=3 whole_gradients=true "
        "sequence_parallel=true recompute=full master_weights=false"
    )
    assert float(held(load, one).reserved[0]) / GIB == pytest.approx(measured_gib, rel=0.1)
    sharded = held(load, replace(one, whole_gradients=False))
    assert float(sharded.reserved[0]) / GIB < 0.4 * measured_gib


# KempnerForge, benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md, most that was allocated: Llama 3 8B, 4 samples of 4,096
# tokens, pure bf16, layers recomputed in full, two micro-batches whose gradients wait whole.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("axes", "measured_gib"),
    [("dp=2 tp=4", 32.7), ("dp=4 tp=4", 29.4), ("dp=8 tp=4", 27.6)],
)
def test_a_plain_loss_has_all_logits_on_every_tensor_rank(axes, measured_gib):
    load = transformer_load(workload("llama31_8b").transformer, sequence=4096)
    one = strategy(
        f"{axes} microbatch=4 global_batch={8 * strategy(f'{axes} global_batch=64').dp} zero_stage=3 "
        "sequence_parallel=true whole_gradients=true recompute=full master_weights=false plain_loss=true"
    )
    assert float(held(load, one).allocated[0]) / GIB == pytest.approx(measured_gib, rel=0.06)
    # By hand: logits, log-probabilities and two gradients of 16,384 tokens and 128,256 words in 2 bytes.
    headless = replace(load, layers=0.0, gradient_bytes=0.0, kept_whole_bytes=0.0, kept_shared_bytes=0.0)
    alone = replace(one, sequence_parallel=False)
    logits = bytes_of(headless, alone, "activations")
    assert logits == pytest.approx(4 * 16384 * 128256 * 2)
    assert bytes_of(headless, replace(alone, chunked_loss=True), "activations") < logits / 4


@pytest.mark.truth
@pytest.mark.parametrize("is_plain", [True, False])
def test_losses_as_written_take_what_torch_s_own_tracker_counts(is_plain):
    """Bytes a logit at the fullest moment, from torch's memory tracker: logits in 16 bits, or widened ones whose
    narrow ones the model has returned.
    """
    torch = pytest.importorskip("torch")
    trackers = pytest.importorskip("torch.distributed._tools.mem_tracker")
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    tokens, words = 4096, 16384
    with fake.FakeTensorMode():
        head = torch.nn.Linear(8, words, bias=False, dtype=torch.bfloat16)
        hidden = torch.randn(tokens, 8, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(0, words, (tokens,))
        tracker = trackers.MemTracker()
        tracker.track_external(head, hidden, targets)
        with tracker:
            logits = head(hidden)
            torch.nn.functional.cross_entropy(logits if is_plain else logits.float(), targets).backward()
    (found,) = tracker.get_tracker_snapshot("peak").values()
    headless = replace(LLAMA, layers=0.0, gradient_bytes=0.0, kept_whole_bytes=0.0, kept_shared_bytes=0.0)
    # Of 8 bits, an optimizer makes no copies.
    one = Strategy(global_batch_samples=1, implementation="eager", plain_loss=is_plain, optimizer="adam_8bit")
    predicted = bytes_of(headless, one, "activations") / (2048 * 128256)
    assert predicted == pytest.approx(found["Total"] / (tokens * words), rel=0.01)


def test_a_stage_holds_its_outputs_until_their_way_back_in_code_as_written():
    """DeepSpeed's pipe_buffers: of four micro-batches of 2,048 tokens under way, 4,096 values of 2 bytes each."""
    without_loss = replace(
        LLAMA, kept_loss_bytes=0.0, kept_fused_loss_bytes=0.0, logits_bytes=0.0, gate_bytes=0.0
    )
    one = strategy("pp=4 global_batch=8 recompute=full")
    held_bytes = [
        bytes_of(without_loss, replace(one, implementation=each), "activations")
        for each in ("eager", "compiled")
    ]
    assert held_bytes[0] - held_bytes[1] == pytest.approx(4 * 2048 * 4096 * 2)


@pytest.mark.parametrize("name", ["sdxl", "resnet50", "whisper_large_v3"])
def test_what_has_no_equal_layers_is_recomputed_in_the_segments_that_keep_least(name):
    """Chen et al. 2016, section 3: k inputs of b bytes and 1/k of all a bytes, at least 2 sqrt(a b) together."""
    known = workload(name)
    load = workload_load(known)
    one = Strategy(global_batch_samples=2, recompute="full")
    found = float(np.ravel(activation_bytes(load, grid([one])))[0])
    kept, boundary = known.activation_bytes_per_sample, known.boundary_bytes_per_sample
    assert found == pytest.approx(2 * np.sqrt(kept * boundary), rel=0.05)
    offloaded = replace(one, activation_offload=True)
    assert boundary <= float(np.ravel(activation_bytes(load, grid([offloaded])))[0]) <= found


def test_a_gate_s_activation_is_kept_in_code_as_written():
    """LlamaMLP.forward: the activation of the gate, 14,336 values of 2 bytes a token, next to the gate itself."""
    eager, compiled = (
        Strategy(global_batch_samples=2, implementation=each) for each in ("eager", "compiled")
    )
    kept = [float(np.ravel(kept_activations(LLAMA, grid([each])).all)[0]) for each in (eager, compiled)]
    assert kept[0] - kept[1] == pytest.approx(2048 * 14_336 * 2)


# Bytes that torch reserved, in GB, of all weights trained in bf16 on one card, one micro-batch a step.
# github.com/jinsan02/kotokenlab, reports/tables/resource_probe.md: Qwen2.5-0.5B, torch AdamW and 8-bit AdamW.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("tokens", "optimizer", "reserved"),
    [(1024, "adam", 5.2), (1024, "adam_8bit", 4.3), (2048, "adam_8bit", 6.5), (4096, "adam_8bit", 10.9)],
)
def test_gradients_of_one_accelerator_come_as_activations_go(tokens, optimizer, reserved):
    asked = {"optimizer": optimizer, "master_weights": False, "recompute": "full", "implementation": "eager"}
    found = reserved_gb("qwen25_0_5b", tokens, microbatch_samples=1, trained="full", **asked)
    assert found == pytest.approx(reserved, rel=0.2)


def on_one_accelerator(one: Strategy) -> Strategy:
    degrees = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "dp_replicate"), 1)
    return replace(one, **degrees, zero_stage=0)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies())
def test_a_step_of_one_micro_batch_on_one_accelerator_needs_no_more_than_one_of_two(one):
    lone = replace(on_one_accelerator(one), trained="full", lora_rank=0, lora_targets="usual")
    lone = replace(lone, global_batch_samples=lone.microbatch_samples)
    two = replace(lone, global_batch_samples=2 * lone.microbatch_samples)
    kinds = ("gradients", "activations")
    once, twice = (sum(bytes_of(LLAMA, each, kind) for kind in kinds) for each in (lone, two))
    assert once <= twice * (1 + 1e-9)
    # At its fullest moment it has all activations, or all gradients and what the last layer keeps.
    last = float(np.ravel(kept_activations(LLAMA, grid([two])).all)[0]) * PLAIN.activation_slack
    gradients, activations = (bytes_of(LLAMA, two, kind) for kind in kinds)
    assert once >= max(activations, gradients + last) * (1 - 1e-9)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies(), st.integers(2, 4))
def test_a_step_of_one_micro_batch_needs_more_with_each_sample(one, times):
    lone = on_one_accelerator(one)
    few, many = (
        replace(lone, microbatch_samples=each, global_batch_samples=each)
        for each in (one.microbatch_samples, times * one.microbatch_samples)
    )
    assert bytes_of(LLAMA, few, "activations") <= bytes_of(LLAMA, many, "activations")


@pytest.mark.parametrize("slack", [0.7, 1.0, 1.4])
def test_a_step_of_one_micro_batch_has_all_activations_whatever_they_take_more(slack):
    """Weights of 2 bytes, states of 12 and activations lie next to each other before there are gradients."""
    one = Strategy(microbatch_samples=32, global_batch_samples=32)
    found = memory(LLAMA, grid([one]), replace(PLAIN, activation_slack=slack))
    alive = float(activation_bytes(LLAMA, grid([one]))[0]) * slack
    assert float(np.ravel(found.gradients)[0] + np.ravel(found.activations)[0]) == pytest.approx(alive)


@pytest.mark.parametrize(("sequence", "is_wide"), [(262_144, True), (131_072, False)])
def test_the_last_layer_goes_back_next_to_all_gradients(sequence, is_wide):
    """Where inputs of layers are in the host's memory, what one layer keeps is most of what is alive, to the end."""
    options = {"recompute": "full", "activation_offload": True, "chunked_loss": True}
    one = Strategy(global_batch_samples=1, master_weights=is_wide, **options)
    load = transformer_load(workload("llama31_8b").transformer, sequence=sequence)
    last = float(np.ravel(kept_activations(load, grid([one])).all)[0])
    held = memory(load, grid([one]), replace(PLAIN, activation_slack=1.0))
    assert float(np.ravel(held.activations)[0]) >= last


def test_the_last_segment_goes_back_next_to_all_gradients():
    """Of SDXL, whose layers are cut into segments: the one that is made again, with all that it keeps."""
    known = workload("sdxl")
    segment = np.sqrt(known.activation_bytes_per_sample * known.boundary_bytes_per_sample)
    one = Strategy(microbatch_samples=32, global_batch_samples=32, recompute="full", activation_offload=True)
    held = memory(workload_load(known), grid([one]), replace(PLAIN, activation_slack=1.0))
    assert float(np.ravel(held.activations)[0]) >= 32 * segment


def test_gradients_of_bf16_weights_rest_in_four_bytes():
    # Megatron-LM, distributed optimizer: 18 bytes a weight; 6 + 12 / d with it.
    alone = Strategy(global_batch_samples=1)
    spread = Strategy(dp=4, global_batch_samples=4, zero_stage=1)
    assert bytes_of(STATES_ONLY, alone, *STATES) / 7.5e9 == pytest.approx(18)
    assert bytes_of(STATES_ONLY, spread, *STATES) / 7.5e9 == pytest.approx(6 + 12 / 4)


@pytest.mark.parametrize(("optimizer", "states"), [("adam", 12), ("adam_8bit", 6), ("sgd", 8)])
def test_an_optimizer_s_states(optimizer, states):
    one = Strategy(global_batch_samples=1, optimizer=optimizer)
    assert bytes_of(STATES_ONLY, one, "optimizer") / 7.5e9 == pytest.approx(states)
    gone = replace(one, offload="optimizer")
    assert bytes_of(STATES_ONLY, gone, "optimizer") == 0


# A model converted to bf16 whole: 2 bytes each for a weight, its gradient and both moments; bitsandbytes keeps moments
# in a byte each (Dettmers et al. 2022).
@pytest.mark.parametrize(("optimizer", "bytes_per_weight"), [("adam", 8), ("adam_8bit", 6), ("sgd", 6)])
def test_without_master_weights_all_states_are_narrow(optimizer, bytes_per_weight):
    one = Strategy(global_batch_samples=1, optimizer=optimizer, master_weights=False)
    assert bytes_of(STATES_ONLY, one, *STATES) / 7.5e9 == pytest.approx(bytes_per_weight)
    wide = replace(one, precision="fp32")
    assert bytes_of(STATES_ONLY, wide, *STATES) == bytes_of(
        STATES_ONLY, replace(wide, master_weights=True), *STATES
    )


def test_frozen_weights_have_no_gradients_and_can_rest_in_four_bits():
    lora = Strategy(global_batch_samples=1, trained="lora", lora_rank=16)
    qlora = replace(lora, trained="qlora")
    # Hu et al. 2021: rank x (in + out); queries, keys and values are one projection, the output another.
    trained = 16 * (4096 + 6144 + 4096 + 4096) * 32
    assert bytes_of(LLAMA, lora, "gradients") == pytest.approx(4 * trained)
    # Dettmers et al. 2023, section 4: adapters on all linear layers, here three matrices more.
    trained += 16 * (2 * 4096 + 3 * (4096 + 14_336)) * 32
    assert trained == 41_943_040  # what PEFT prints for Llama 3 8B, rank 16 on all linear layers
    assert bytes_of(LLAMA, qlora, "gradients") == pytest.approx(4 * trained)
    # transformers and bitsandbytes quantise linear layers; the two tables stay in 16 bits.
    tables = 2 * 128_256 * 4096
    frozen = bytes_of(LLAMA, qlora, "weights") - 2 * trained - 2 * tables
    assert frozen / (LLAMA.params - tables) == pytest.approx(0.516, rel=0.001)


def reserved_gb(model, sequence, **options):
    load = transformer_load(workload(model).transformer, sequence=sequence)
    eager = {"implementation": "eager", "master_weights": False, "trained": "lora"} | options
    size = eager.get("microbatch_samples", 1)
    return float(held(load, Strategy(global_batch_samples=size, **eager)).reserved[0]) / GB


# Peak memory of Llama 2 7B by which layers have adapters, in GB over that of rank 8 on queries and values: torchtune,
# docs/source/tutorials/lora_finetune.rst at 14b59e7a1, two samples a step and checkpoints of all layers (here of 512
# tokens); Lit-GPT, one sample of at most 1,304 tokens (Raschka, "Practical tips for finetuning LLMs using LoRA", 2023),
# whose dropout keeps more. In both "all" has the output matrix besides, 2 % of its adapters.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("targets", "rank", "more_gb", "recompute", "within_gb"),
    [
        ("all_linear", 8, 15.87 - 15.57, "full", 0.2),
        ("query_value", 64, 15.86 - 15.57, "full", 0.1),
        ("all_linear", 64, 17.04 - 15.57, "full", 0.2),
        ("all_linear", 8, 16.62 - 14.18, "none", 0.7),
    ],
)
def test_more_adapters_take_the_memory_that_was_measured(targets, rank, more_gb, recompute, within_gb):
    samples, tokens = (2, 512) if recompute == "full" else (1, 1304)
    asked = {"microbatch_samples": samples, "recompute": recompute}
    few = reserved_gb("llama2_7b", tokens, lora_rank=8, lora_targets="query_value", **asked)
    many = reserved_gb("llama2_7b", tokens, lora_rank=rank, lora_targets=targets, **asked)
    assert many - few == pytest.approx(more_gb, abs=within_gb)


def test_adapters_outside_attention_keep_what_they_read():
    """Gate and up read the block's input, down its hidden values: 2 x 4,096 and 14,336 of 2 bytes, in 32 layers."""
    one = Strategy(global_batch_samples=1, trained="lora", lora_rank=16)
    wide = replace(one, lora_targets="all_linear")
    more = bytes_of(LLAMA, wide, "activations") - bytes_of(LLAMA, one, "activations")
    assert more == pytest.approx(2048 * 32 * 2 * (2 * 4096 + 14_336) * PLAIN.activation_slack)


@given(strategies(), st.integers(1, 256), st.sampled_from(["lora", "qlora"]))
def test_more_adapters_never_take_less_memory(one, rank, trained):
    one = replace(one, trained=trained, lora_rank=rank)
    for load in (LLAMA, MIXTURE):
        needed = [
            float(np.ravel(held(load, replace(one, lora_targets=each)).needed)[0])
            for each in ("query_value", "attention", "all_linear")
        ]
        assert needed == sorted(needed)


@pytest.mark.parametrize("targets", ["query_value", "attention", "all_linear"])
def test_narrow_adapters_cost_no_more_than_what_is_frozen(targets):
    """Of rank 0 there would be no weights, gradients and states, and nothing to exchange."""
    one = replace(grid([Strategy(global_batch_samples=1, trained="lora", lora_rank=1, lora_targets=targets)]))
    found = [memory(LLAMA, replace(one, lora_rank=np.array([rank])), PLAIN) for rank in (1e-9, 1.0, 2.0)]
    for kind in ("gradients", "optimizer"):
        least, first, second = (float(getattr(each, kind)[0]) for each in found)
        assert least == pytest.approx(0, abs=1)
        assert second == pytest.approx(2 * first)
    assert float(found[0].weights[0]) == pytest.approx(2 * LLAMA.params)


# Dettmers et al. 2023, table 1: memory of Guanaco, LLaMA of 2023 with adapters of rank 64, which the paper trains on
# samples of 16 + 512 tokens with paged optimizer states; 33B on one card of 24 GB, 65B on one of 48 GB.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("sizes", "stated_gb", "card"),
    [
        ((32, 4096, 11_008), 6, None),
        ((40, 5120, 13_824), 10, None),
        ((60, 6656, 17_920), 21, "rtx-4090-pcie-24gb"),
        ((80, 8192, 22_016), 41, "rtx-a6000-pcie-48gb"),
    ],
)
def test_qlora_needs_what_its_paper_says(sizes, stated_gb, card):
    layers, hidden, ffn_hidden = sizes
    model = Transformer(
        layers=layers,
        hidden=hidden,
        heads=hidden // 128,
        kv_heads=hidden // 128,
        head_size=128,
        ffn_hidden=ffn_hidden,
        gated=True,
        vocabulary=32_000,
    )
    load = transformer_load(model, sequence=528)
    paged = strategy("global_batch=16 trained=qlora lora_rank=64 recompute=full offload=optimizer")
    needed = float(held(load, paged).needed[0])
    # Stated in whole gigabytes.
    assert needed / GB == pytest.approx(stated_gb, rel=0.16)
    if card is not None:
        capacity = accelerator(card).memory_bytes
        assert needed <= capacity
        # Section 3 of the paper: it is paging that lets them fit.
        assert float(held(load, replace(paged, offload="none")).needed[0]) > capacity


def test_a_reference_model_lies_next_to_the_trained_one():
    load = replace(LLAMA, frozen_share=1.0, frozen_params=LLAMA.params)
    for stage, ranks in ((0, 1), (3, 8)):
        one = Strategy(dp=8, global_batch_samples=8, zero_stage=stage)
        more = bytes_of(load, one, "weights") - bytes_of(LLAMA, one, "weights")
        assert more == pytest.approx(2 * LLAMA.params / ranks)


# Korthikanti et al. 2022, eq. 1, 2 and 4: bytes a layer keeps of s b h values.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("tp", "split", "selective", "expected"),
    [
        (1, False, False, lambda _, x: 34 + x),
        (8, False, False, lambda t, x: 10 + 24 / t + x / t),
        (8, True, False, lambda t, x: (34 + x) / t),
        (8, True, True, lambda t, _: 34 / t),
    ],
)
def test_a_layer_keeps_what_korthikanti_counts(tp, split, selective, expected):
    hidden, heads, sequence, layers = 6144, 64, 2048, 64
    model = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=1,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn_hidden=4 * hidden,
    )
    load = transformer_load(model, sequence=sequence)
    one = Strategy(
        tp=tp,
        global_batch_samples=1,
        sequence_parallel=split,
        recompute="selective" if selective else "none",
        fused_attention=False,
    )
    layer = expected(tp, 5 * heads * sequence / hidden) * sequence * hidden
    # Beside the layers: of one scores done again, and gradients of its four times wider hidden layer; what a split
    # product gathers.
    again = 5 * heads * sequence * sequence / tp if selective else 0
    gathered = 2 * 2 * sequence * hidden if split else 0
    gradients = 2 * 4 * hidden * sequence / tp
    found = float(activation_bytes(load, grid([one]))[0])
    assert found == pytest.approx(layers * layer + again + gradients + gathered, rel=1e-6)


@pytest.mark.parametrize(("recompute", "layers"), [("none", 32), ("selective", 1), ("full", 1)])
def test_inputs_that_stay_gathered_are_kept_whole_by_each_layer_that_keeps_them(recompute, layers):
    """By hand: two inputs of 2,048 tokens with 4,096 values in 2 bytes, of which a rank has a quarter anyway; the
    layer at work had one of them whole before.
    """
    free = replace(LLAMA, kept_loss_bytes=0.0, kept_fused_loss_bytes=0.0, logits_bytes=0.0)
    kept = held_as(free, ["gathered_inputs"])
    whole = 2048 * 4096 * 2
    for rest, more in (("sequence_parallel=true", layers * 2 * 0.75 * whole - whole), ("", 0.0)):
        one = grid([strategy(f"tp=4 global_batch=1 recompute={recompute} {rest}")])
        assert activation_bytes(kept, one)[0] - activation_bytes(free, one)[0] == pytest.approx(more)


def test_a_loss_in_place_has_six_bytes_of_a_logit_beside_those_returned():
    """Narayanan et al. 2021's Megatron-LM: a logit in fp32 becomes softmax and gradient, and this one of 2 bytes."""
    bare = replace(
        LLAMA, layers=0.0, kept_whole_bytes=0.0, kept_shared_bytes=0.0, gradient_bytes=0.0, gate_bytes=0.0
    )
    one = grid([strategy("tp=4 global_batch=1 implementation=eager")])
    in_place = held_as(bare, ["loss_in_place"])
    logits = 2048 * 128256 / 4
    assert activation_bytes(bare, one)[0] == pytest.approx((12 + 2) * logits)
    assert activation_bytes(in_place, one)[0] == pytest.approx((6 + 2) * logits)


@pytest.mark.parametrize(
    ("axes", "copies"), [("dp=1", 0), ("dp=2", 1), ("cp=2", 1), ("tp=2", 0), ("dp=2 zero_stage=1", 0)]
)
def test_gradients_are_copied_into_buckets_where_they_are_summed_whole(axes, copies):
    """PyTorch, DistributedDataParallel: gradient_as_bucket_view saves the size of all gradients, 4 bytes a weight."""
    one = strategy(f"{axes} global_batch=2")
    more = held(held_as(LLAMA, ["bucket_copies"]), one).gradients - held(LLAMA, one).gradients
    assert more == pytest.approx(copies * 4 * LLAMA.params)


def test_what_is_gathered_and_sent_has_the_width_of_its_values():
    # A micro-batch of 2,048 tokens with 4,096 values: 16.8 MB in bf16, 33.6 MB in fp32. A stage receives and sends
    # one; a split product gathers two.
    stage, split = {"pp": 2}, {"tp": 2, "sequence_parallel": True}
    for precision, width in (("bf16", 2), ("fp32", 4)):
        batch = width * 2048 * 4096
        both = [Strategy(precision=precision, global_batch_samples=1, **each) for each in (stage, split)]
        assert sent_bytes(LLAMA, grid(both)) == pytest.approx([2 * batch, 0])
        free = replace(LLAMA, kept_whole_bytes=0.0, kept_shared_bytes=0.0, gradient_bytes=0.0)
        free = replace(free, kept_fused_loss_bytes=0.0, kept_loss_bytes=0.0, kept_score_bytes=0.0)
        compiled = replace(both[1], implementation="compiled")
        assert activation_bytes(free, grid([compiled])) == pytest.approx([2 * batch])


def saved_by_offload(layers, hidden, sequence, **options):
    """Bytes of activations that lie on the host, of layers as Qwen3's."""
    model = Transformer(
        layers=layers,
        hidden=hidden,
        heads=16,
        kv_heads=8,
        head_size=128,
        ffn_hidden=3 * hidden,
        gated=True,
        vocabulary=1024,
    )
    load = transformer_load(model, sequence=sequence)
    stays = Strategy(**({"global_batch_samples": 2, "recompute": "full"} | options))
    travels = replace(stays, activation_offload=True)
    before, after = (float(activation_bytes(load, grid([each]))[0]) for each in (stays, travels))
    return before - after


# https://github.com/huggingface/transformers/pull/48444: MiB that an H100 held less after the way forward, with inputs
# of recomputed layers in the host's memory. Of those the way back needs two at once.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("layers", "hidden", "sequence", "freed_mib"),
    [(8, 1024, 8192, 128), (16, 1024, 16384, 512), (28, 2048, 32768, 3584)],
)
def test_offloading_frees_the_inputs_of_layers(layers, hidden, sequence, freed_mib):
    expected = freed_mib * 2**20 * (layers - 2) / layers
    assert saved_by_offload(layers, hidden, sequence) == pytest.approx(expected, rel=1e-6)


@pytest.mark.truth
def test_offloading_saves_at_the_peak_what_a_long_sequence_measured():
    # https://github.com/huggingface/accelerate/pull/4175: Qwen3-0.6B, 1,048,576 tokens over 8 context ranks: 27.9 GB
    # became 20.8.
    saved = saved_by_offload(28, 1024, 1_048_576, cp=8)
    assert saved / GB == pytest.approx(27.9 - 20.8, rel=0.02)


def test_of_what_is_offloaded_two_layers_lie_there_however_many_micro_batches_wait():
    # Four stages of eight layers keep four micro-batches; a layer recomputed holds all it keeps.
    stays = Strategy(global_batch_samples=8, pp=4, recompute="full")
    load = replace(LLAMA, kept_fused_loss_bytes=0.0)
    before, after = (
        float(activation_bytes(load, grid([each]))[0])
        for each in (stays, replace(stays, activation_offload=True))
    )
    assert before - after == pytest.approx((4 * 8 - 2) * 2048 * 4096 * 2)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies())
def test_shards_sum_to_the_whole_model(one):
    for load in (LLAMA, MIXTURE):
        part = shards(load, grid([one]))
        tables = load.end_params if one.pp > 1 else load.embedding_params
        dense = float(part.dense[0]) * one.tp - tables
        experts = float(part.experts[0]) * one.ep
        whole = one.pp * (dense + experts) + load.embedding_params
        assert whole == pytest.approx(load.params, rel=1e-9)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies())
def test_data_ranks_hold_every_weight_once_between_copies(one):
    part = shards(MIXTURE, grid([one]))
    ranks = one.dp * one.cp * one.tp
    assert float(part.dense_ranks[0]) * one.tp == ranks
    assert float(part.expert_ranks[0]) * one.ep == ranks


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies(), st.integers(0, 2))
def test_sharding_more_never_needs_more_for_states(one, stage):
    for load in (LLAMA, MIXTURE):
        less, more = (replace(one, zero_stage=each) for each in (stage, stage + 1))
        assert bytes_of(load, more, *STATES) <= bytes_of(load, less, *STATES) * (1 + 1e-12)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies())
def test_recomputing_more_never_keeps_more(one):
    for load in (LLAMA, MIXTURE):
        full, selective, none = (
            bytes_of(load, replace(one, recompute=each), "activations")
            for each in ("full", "selective", "none")
        )
        assert full <= selective * (1 + 1e-12)
        assert selective <= none * (1 + 1e-12)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies(), st.integers(2, 4))
def test_activations_grow_with_the_micro_batch(one, times):
    assume(one.num_accelerators > 1 or one.num_microbatches > 1)  # else gradients come as activations go
    assume(
        one.implementation != "eager" or one.zero_stage > 0
    )  # else what an optimizer makes anew may be more
    larger = replace(
        one,
        microbatch_samples=times * one.microbatch_samples,
        global_batch_samples=times * one.global_batch_samples,
    )
    for load in (LLAMA, MIXTURE):
        grown = bytes_of(load, larger, "activations")
        assert grown == pytest.approx(times * bytes_of(load, one, "activations"), rel=1e-9)


@settings(deadline=None)  # the first call reads the catalogue
@given(strategies())
def test_what_is_needed_is_what_is_reserved_the_context_and_the_communicators(one):
    found = held(MIXTURE, one)
    kinds = (*STATES, "activations", "buffers")
    lives = sum(float(np.broadcast_to(getattr(found, kind), (1,))[0]) for kind in kinds)
    assert float(found.allocated[0]) == pytest.approx(lives)
    assert float(found.reserved[0]) == pytest.approx(lives * PLAIN.reserved_slack)
    # A rank has a communicator for each axis on which it is not alone (NVIDIA/nccl, issue 864).
    outside = PLAIN.fixed_bytes + PLAIN.communicator_bytes * sum(
        size > 1 for size in (one.dp, one.tp, one.pp, one.cp, one.ep)
    )
    assert float(found.needed[0]) == pytest.approx(float(found.reserved[0]) + outside)


def test_cards_that_meet_in_their_host_have_no_communicators_of_their_own():
    """NCCL's buffers then are the host's (transport/shm.cc)."""
    one = grid([strategy("dp=2 tp=4 global_batch=8")])
    among = [memory(LLAMA, one, PLAIN, peer_ranks=each).fixed for each in (1.0, 8.0)]
    assert among[1] - among[0] == pytest.approx(2 * PLAIN.communicator_bytes)


def test_of_experts_nothing_is_kept_where_operations_are_recomputed_one_by_one():
    """torchtitan's list of operations to keep has `aten.mm` and attention, and no grouped product.

    Of Qwen3 30B-A3B a token keeps a layer's input (2,048 values), queries and attention's result (32 heads of
    128 each) and every second of keys and values (4 heads of 128), in 2 bytes.
    """
    one = Strategy(dp=8, ep=8, global_batch_samples=8, zero_stage=3, recompute="selective")
    kept = kept_activations(MIXTURE, grid([one])).chosen
    assert float(np.ravel(kept)[0]) / 2048 == 2 * (2048 + 2 * 32 * 128 + 4 * 128)


def test_what_runs_as_it_was_written_holds_the_logits_it_returns():
    """`CausalLMOutputWithPast` has logits beside the loss: 128,256 of them a token, in 2 bytes."""
    one = Strategy(dp=1, microbatch_samples=1, global_batch_samples=1, implementation="eager")
    without = replace(LLAMA, logits_bytes=0.0)
    more = activation_bytes(LLAMA, grid([one])) - activation_bytes(without, grid([one]))
    assert float(np.ravel(more)[0]) == 2 * 2048 * 128_256


def test_a_fused_loss_never_holds_more():
    apart = Strategy(global_batch_samples=1, fused_loss=False)
    assert bytes_of(LLAMA, replace(apart, fused_loss=True), "activations") < bytes_of(
        LLAMA, apart, "activations"
    )
    eager = Strategy(global_batch_samples=1, implementation="eager")
    assert bytes_of(LLAMA, eager, "activations") == bytes_of(
        LLAMA, replace(eager, fused_loss=False), "activations"
    )


def test_a_loss_in_chunks_holds_twice_the_hidden_states():
    """Liger Kernel: as many logits at a time as hidden values, and the gradient of these, each in 2 bytes."""
    load = replace(LLAMA, gradient_bytes=0.0, gate_bytes=0.0)
    layers = float(np.ravel(kept_activations(load, grid([Strategy(global_batch_samples=1)])).all)[0]) * 32
    for implementation in ("compiled", "eager"):
        one = Strategy(global_batch_samples=2, implementation=implementation, chunked_loss=True)
        assert float(activation_bytes(load, grid([one]))[0]) - layers == 2 * 2 * 4096 * 2048


def test_a_layer_goes_back_next_to_gradients_of_its_wide_products():
    # A gated block of 14,336 makes two such rows, in 2 bytes each; without logits the layer decides.
    load, one = replace(LLAMA, kept_fused_loss_bytes=0.0), Strategy(global_batch_samples=2)
    without = replace(load, gradient_bytes=0.0)
    more = activation_bytes(load, grid([one])) - activation_bytes(without, grid([one]))
    assert float(more[0]) == 2 * 2 * 14_336 * 2048


def test_next_to_4_bit_weights_code_as_written_keeps_tables_and_what_layers_pass_in_fp32():
    """PEFT casts what is not quantised to fp32: two tables of 128,256 by 4,096, and inputs of 32 layers."""
    asked = {"global_batch_samples": 1, "trained": "qlora", "lora_rank": 16, "recompute": "full"}
    narrow, wide = (
        Strategy(**asked, chunked_loss=True, implementation=each) for each in ("compiled", "eager")
    )
    more = bytes_of(LLAMA, wide, "weights") - bytes_of(LLAMA, narrow, "weights")
    assert more == 2 * 2 * 128_256 * 4096
    # Inputs of all layers but the one at work, of which all is kept.
    load = replace(LLAMA, gate_bytes=0.0)
    kept = bytes_of(load, wide, "activations") - bytes_of(load, narrow, "activations")
    at_work = float(np.ravel(kept_activations(load, grid([narrow])).all)[0])
    assert kept == pytest.approx(PLAIN.activation_slack * (2 * 4096 * 2048 * 31 + at_work), rel=1e-6)


@pytest.mark.truth
@pytest.mark.parametrize(("recompute", "gib"), [("none", 9.55), ("full", 4.36)])
def test_qlora_of_hugging_face_needs_what_was_reserved(recompute, gib):
    # Qwen2.5 1.5B, rank 16 on attention, a sample of 1,024 tokens, on an RTX 4080 under transformers 5.8
    # (DaoyuanLi2816/can-i-finetune-this, docs/rtx4080_baselines.md).
    load = transformer_load(workload("qwen2_5_1_5b").transformer, sequence=1024)
    asked = f"global_batch=1 trained=qlora lora_rank=16 lora_targets=attention implementation=eager recompute={recompute}"
    reserved = float(np.ravel(held(load, strategy(asked)).reserved)[0])
    assert reserved / GIB == pytest.approx(gib, rel=0.2)


LONGEST = [
    (model, card_gib, name, tokens)
    for model, card_gib, *both in TRUTH["longest_samples"]["cards"]
    for name, tokens in zip(("own", "hugging_face"), both, strict=True)
    if tokens
]


@pytest.mark.truth
@pytest.mark.parametrize(("model", "card_gib", "name", "tokens"), LONGEST)
def test_the_longest_sample_that_a_card_trains_fills_it(model, card_gib, name, tokens):
    load = transformer_load(workload(model).transformer, sequence=tokens)
    needed = float(np.ravel(held(load, strategy(TRUTH["longest_samples"][name])).needed)[0])
    assert needed / GIB == pytest.approx(card_gib, rel=0.1)


@pytest.mark.truth
@pytest.mark.parametrize(
    ("schedule", "weights", "activations"), [("dualpipe", 2.0, 9.0), ("dualpipe_v", 1.0, 8.5)]
)
def test_dualpipe_keeps_what_its_table_counts(schedule, weights, activations):
    # arXiv 2412.19437, table 2: two stages' weights, micro-batches of stages and one; 1F1B: one, and as many as
    # stages. README of DualPipe: its V over half of the ranks, two stages each: of 16 stages 17 halves. States are
    # shared over twice as many ranks.
    load = replace(MIXTURE, embedding_params=0.0, end_params=0.0, kept_fused_loss_bytes=0.0)
    asked = {"pp": 8, "dp": 2, "zero_stage": 1, "global_batch_samples": 64}
    plain, dual = (Strategy(**asked, schedule=each) for each in ("1f1b", schedule))
    assert bytes_of(load, dual, "weights") == pytest.approx(weights * bytes_of(load, plain, "weights"))
    assert bytes_of(load, dual, "optimizer") == pytest.approx(bytes_of(load, plain, "optimizer"))
    kept = [float(activation_bytes(load, grid([each]))[0]) for each in (plain, dual)]
    assert kept[1] / kept[0] == pytest.approx(activations / 8, rel=0.01)


def test_overlapped_passes_keep_one_chunk_more():
    # megatron-core 0.16.1, pipeline_parallel/schedules.py: one extra micro-batch of a chunk before the first way back.
    one = Strategy(pp=4, interleave=2, global_batch_samples=16)
    kept = float(kept_activations(LLAMA, grid([one])).chosen[0])
    more = bytes_of_activations(replace(one, schedule="1f1b_overlap")) - bytes_of_activations(one)
    assert more == pytest.approx(LLAMA.layers / 4 / 2 * kept, abs=1)


def test_without_a_pipeline_overlapped_passes_keep_one_layer_more():
    # megatron-core, pipeline_parallel/combined_1f1b.py (no pipelining): one first way forward, then pairs in which
    # each layer's forward pass goes with the way back of a layer, so that what one keeps the other has freed.
    one = Strategy(dp=8, global_batch_samples=64)
    kept = float(kept_activations(LLAMA, grid([one])).chosen[0])
    more = bytes_of_activations(replace(one, schedule="1f1b_overlap")) - bytes_of_activations(one)
    assert more == pytest.approx(kept, rel=1e-6)


# Narayanan et al. 2021, section 2.2: a stage of interleaved chunks keeps (pp - 1) / v micro-batches more than pp, of
# as many as a step has: with 4 of them 4 / 4 of the layers' activations, with 8 of them (4 + 3 / 2) / 4.
@pytest.mark.parametrize(("num_microbatches", "alive"), [(4, 4.0), (8, 5.5)])
def test_interleaved_stages_keep_no_more_micro_batches_than_there_are(num_microbatches, alive):
    one = Strategy(pp=4, interleave=2, global_batch_samples=num_microbatches)
    kept = float(kept_activations(LLAMA, grid([one])).chosen[0])
    rest = {"global_batch_samples": 4, "interleave": 1}
    more = bytes_of_activations(one) - bytes_of_activations(replace(one, **rest))
    assert more == pytest.approx((alive - 4) * LLAMA.layers / 4 * kept, abs=1)


def bytes_of_activations(one):
    return float(activation_bytes(LLAMA, grid([one]))[0])
