"""Layers on one accelerator: against a published breakdown, by hand, and as laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.calibration.profiles import profiles
from equipoise.perfmodel.compute import (
    expert_rate_fraction,
    head_time_s,
    layer_time,
    loss_is_fused,
    optimizer_time_s,
    power_rate,
    product_rate_flop_per_s,
    soft_maximum,
)
from equipoise.perfmodel.estimate import estimate, pp_send_s, tp_layer_s
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import transformer_load, workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import PRECISIONS, SOFTWARE, Strategy, software
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import workload

PLAIN = Parameters()
SELENE = machine(cluster("selene", num_accelerators=8))
GPT_22B = Transformer(
    layers=48,
    hidden=6144,
    heads=64,
    kv_heads=64,
    head_size=96,
    ffn_hidden=4 * 6144,
    vocabulary=51200,
    tied_embeddings=True,
    position_embeddings=2048,
)
OLD = Strategy(
    global_batch_samples=4,
    microbatch_samples=4,
    dp=1,
    tp=8,
    recompute="none",
    precision="fp16",
    implementation="eager",
    fused_attention=False,
)
# A layer of the 22B model on 8 A100, micro-batch 4: milliseconds forward, and back with what is recomputed
# (Korthikanti et al. 2022, arXiv 2205.05198, table 4). Sums on the way back are hidden there.
TABLE_4 = (
    ({}, 7.7, 11.9),
    ({"sequence_parallel": True}, 7.2, 11.8),
    ({"recompute": "full"}, 7.7, 19.5),
    ({"recompute": "selective"}, 7.7, 13.2),
    ({"recompute": "selective", "sequence_parallel": True}, 7.2, 13.1),
)


def one(strategy):
    return grid([strategy])


@pytest.mark.parametrize(("options", "forward_ms", "back_ms"), TABLE_4)
def test_priors_predict_the_published_passes_of_a_layer(options, forward_ms, back_ms):
    strategy = one(replace(OLD, **options))
    load = transformer_load(GPT_22B, sequence=2048)
    hidden = replace(PLAIN, tp_exposed=1e-9)
    layer = layer_time(load, SELENE, strategy, hidden)
    passes_s = layer.forward_s + layer.backward_s
    sums_s = float(tp_layer_s(load, SELENE, strategy, passes_s, hidden)[0])
    # A pass of sums forward, and one more where all is recomputed.
    passes = 2 if options.get("recompute") == "full" else 1
    forward_s = layer.forward_s[0] + sums_s / passes
    back_s = layer.backward_s[0] + layer.recompute_s[0] + sums_s * (1 - 1 / passes)
    assert forward_s * 1e3 == pytest.approx(forward_ms, rel=0.12)
    assert back_s * 1e3 == pytest.approx(back_ms, rel=0.12)


def test_full_recomputation_costs_as_much_of_a_forward_pass_as_it_is_said_to_do():
    load = transformer_load(GPT_22B, sequence=2048)
    layer = layer_time(
        load, SELENE, one(replace(OLD, recompute="full")), Parameters().changed({"recompute_share": 0.25})
    )
    assert layer.recompute_s[0] == pytest.approx(0.25 * layer.forward_s[0])


def test_odd_vocabularies_slow_the_output_matrix_where_nobody_pads_them():
    slow = PLAIN.changed({"unaligned_fraction": 0.5, "head_kernels": 1e-9, "head_traffic": 1e-9})
    times = {}
    for columns in (50256, 50257, 50258, 50260):
        load = transformer_load(replace(GPT_22B, vocabulary=columns), sequence=2048)
        seconds = float(head_time_s(load, SELENE, one(replace(OLD, tp=1)), slow)[0])
        times[columns] = seconds / columns
    # 50256 is a multiple of 16 bytes in fp16; the others of 2, 4 and 8.
    ratios = [times[columns] / times[50256] for columns in (50260, 50258, 50257)]
    assert ratios == pytest.approx([2, 4, 8])


def test_the_output_matrix_is_frozen_next_to_adapters():
    # Hu et al. 2021, section 4.2: only adapters are trained, so of its three products the weights' gradient goes.
    load = transformer_load(GPT_22B, sequence=2048)
    products = PLAIN.changed({"head_kernels": 1e-9, "head_traffic": 1e-9})
    full = replace(OLD, tp=1)
    adapters = replace(full, trained="lora", lora_rank=16)
    all_s, frozen_s = (float(head_time_s(load, SELENE, one(each), products)[0]) for each in (full, adapters))
    assert frozen_s / all_s == pytest.approx(2 / 3)


def test_softmax_not_fused_costs_launches_where_heads_come_in_odd_blocks():
    load = transformer_load(GPT_22B, sequence=2048)
    fused, split = (
        layer_time(
            load, SELENE, one(replace(OLD, microbatch_samples=each, global_batch_samples=12, tp=64)), PLAIN
        ).host_s[0]
        for each in (4, 3)
    )
    # 17 kernels on three passes, and six more on two of them: 51 against 63.
    assert split / fused == pytest.approx(63 / 51)


def test_a_stage_sends_a_part_of_its_activations_by_each_tensor_rank():
    load = transformer_load(GPT_22B, sequence=2048)
    far = machine(cluster("selene", num_accelerators=64))
    whole, parts = (
        float(
            pp_send_s(
                load,
                far,
                one(replace(OLD, tp=size, dp=dp, pp=8, sequence_parallel=size > 1, global_batch_samples=32)),
                PLAIN,
            )[0]
        )
        for size, dp in ((1, 8), (8, 1))
    )
    assert whole / parts == pytest.approx(8, rel=0.25)


@given(st.floats(1e-6, 10), st.floats(1e-6, 10))
def test_device_and_host_together_take_longer_than_either_and_less_than_both_in_turn(busy_s, host_s):
    together_s = float(soft_maximum(busy_s, host_s))
    assert max(busy_s, host_s) <= together_s * (1 + 1e-12)
    assert together_s <= (busy_s + host_s) * (1 + 1e-12)


NODE = machine(cluster("dgx-b200", num_accelerators=8))
DENSE = transformer_load(workload("llama31_8b").transformer, sequence=8192)
MIXTURE = transformer_load(workload("qwen3_30b_a3b").transformer, sequence=4096)
# Nothing takes time but products and attention, and those run at the peak.
FLOP_ONLY = Parameters(
    product_fraction=1.0,
    idle_outputs=1e-12,
    product_ramp_s=1e-15,
    product_traffic=1e-12,
    attention_fraction=1.0,
    asynchronous_attention=1.0,
    tensor_memory_attention=1.0,
    attention_half_tokens=1e-12,
    layer_traffic=1e-12,
    quantise_traffic=1e-12,
)
IDEAL_NODE = replace(NODE, achievable_fraction=1.0)


def step_s(one, load=DENSE, rates=NODE, parameters=PLAIN):
    found = estimate(load, rates, grid([one]), parameters).step_s
    return float(np.broadcast_to(found, (1,))[0])


def single(**options):
    return Strategy(global_batch_samples=1, **options)


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != "fp32"])
def test_no_product_exceeds_the_peak(precision):
    one = grid([single(precision=precision)])
    peak = NODE.peak_flop_per_s[PRECISIONS.index(precision)]
    assert 0 < float(product_rate_flop_per_s(NODE, one, PLAIN)[0]) <= peak


def test_a_layer_forward_is_its_flop_at_the_peak():
    layer = layer_time(DENSE, IDEAL_NODE, grid([single()]), FLOP_ONLY)
    # 218.1 M weights a layer, 2 FLOP each, and 4 x 4096 x 4096.5 of scores a token; 8192 tokens.
    flop = 8192 * (2 * 218_103_808 + 4 * 4096 * 4096.5)
    assert float(layer.forward_s[0]) == pytest.approx(flop / 2.25e15, rel=1e-3)


def test_rounds_of_tiles_leave_processors_idle_as_counting_them_does():
    # Outputs and summed values of Llama 3.1 8B's products, forward and of their inputs' gradients.
    forward = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    products = [*forward, *((summed, outputs) for outputs, summed in forward)]
    processors, tile = 132, 128 * 256
    idle = [
        2 * summed * (np.ceil(tiles / processors) * processors - tiles) * tile
        for tokens in range(1024, 16384, 128)
        for outputs, summed in products
        for tiles in [(tokens // 128) * (outputs // 256)]
    ]
    counted_s = np.sum(idle) / len(range(1024, 16384, 128)) / 2.25e15
    given = replace(FLOP_ONLY, idle_outputs=processors * tile / 2)
    with_tiles, without = (
        layer_time(DENSE, IDEAL_NODE, grid([single()]), each) for each in (given, FLOP_ONLY)
    )
    passes_s = [
        float(getattr(with_tiles, name)[0] - getattr(without, name)[0])
        for name in ("forward_s", "backward_s")
    ]
    assert sum(passes_s) == pytest.approx(counted_s, rel=0.1)


def test_frozen_weights_take_two_thirds_and_attention_its_own():
    full, frozen = (
        layer_time(DENSE, IDEAL_NODE, grid([single(**options)]), FLOP_ONLY)
        for options in ({}, {"trained": "lora", "lora_rank": 16})
    )
    saved_s = float(full.backward_s[0] - frozen.backward_s[0])
    assert saved_s == pytest.approx(8192 * 2 * 218_103_808 / 2.25e15, rel=1e-3)


def test_a_power_limit_slows_products_by_its_root():
    capped = machine(cluster("dgx-h100", num_accelerators=8, power_cap_w=350))
    assert capped.power_share == pytest.approx(0.5)
    cubic = replace(PLAIN, power_exponent=1 / 3)
    assert float(power_rate(capped, cubic)) == pytest.approx(0.5 ** (1 / 3))
    assert float(power_rate(NODE, cubic)) == 1


@settings(deadline=None)  # the first call reads the catalogue
@given(st.floats(140.0, 700.0), st.floats(1.0, 2.0))  # a fifth of 700 W is the least that may be set
def test_more_power_never_hurts(power_w, times):
    lower, higher = (
        machine(cluster("dgx-h100", num_accelerators=8, power_cap_w=each))
        for each in (power_w, power_w * times)
    )
    assert step_s(single(), rates=higher) <= step_s(single(), rates=lower)


@pytest.mark.parametrize(
    ("system", "flop_per_s"),
    # FlashAttention-2 over long causal sequences, heads of 128: Dao 2023, figure 4; "35 % utilization of H100",
    # Shah et al. 2024, abstract; NVIDIA/cudnn-frontend, sdpa_bf16_benchmark_results_NVIDIA_B200.csv.
    [("dgx-a100", 190e12), ("dgx-h100", 0.35 * 989e12), ("dgx-b200", 411e12)],
)
def test_attention_is_as_fast_as_kernels_that_every_chip_runs(system, flop_per_s):
    load = workload_load(replace(workload("llama31_8b"), sequence_tokens=2**17))
    rates = machine(cluster(system, num_accelerators=8))
    with_it, without = (
        float(layer_time(each, rates, grid([single()]), PLAIN).forward_s[0])
        for each in (load, replace(load, attention_flop=0.0))
    )
    # Two products of 2 x S x S x 4096 FLOP, half of them masked.
    assert 2 * 2**34 * 4096 / (with_it - without) == pytest.approx(flop_per_s, rel=0.2)


def test_steps_in_time_wait_for_each_other():
    """A launch each, forward and twice back, whatever the FLOP: CUDA's take 2 us or more of the host."""
    rates = machine(cluster("dgx-a100", num_accelerators=8))
    steps, once = (
        layer_time(
            workload_load(replace(workload("resnet"), layers=1, products_per_layer=each)),
            rates,
            grid([single()]),
            PLAIN,
        )
        for each in (1001.0, 1.0)
    )
    assert float((steps.host_s - once.host_s)[0]) > 3000 * 2e-6
    assert float((steps.forward_s - once.forward_s)[0]) == pytest.approx(1000 * PLAIN.product_ramp_s)


def attention_flop_per_s(system, parameters):
    """Of a whole pass over 131,072 tokens, heads of 128: forward 2 x 2 x S x S x 4096 FLOP, half of them masked;
    2.5 times as many back."""
    load = workload_load(replace(workload("llama31_8b"), sequence_tokens=2**17))
    rates = machine(cluster(system, num_accelerators=8))
    with_it, without = (
        layer_time(each, rates, grid([single()]), parameters)
        for each in (load, replace(load, attention_flop=0.0))
    )
    passes = (
        float((getattr(with_it, each) - getattr(without, each))[0]) for each in ("forward_s", "backward_s")
    )
    return 3.5 * 2 * 2**34 * 4096 / sum(passes)


@pytest.mark.parametrize("name", ["torchtitan", "fsdp2_eager", "megatron_core"])
def test_software_that_asks_for_cudnn_has_its_attention_on_blackwell(name):
    """NVIDIA/cudnn-frontend, sdpa_bf16_benchmark_results_NVIDIA_B200.csv: cuDNN 9.10 reaches 1,355.4 TFLOP/s forward
    and 1,047.8 back, 3.5 / (1 / 1355.4 + 2.5 / 1047.8) together."""
    of_software = PLAIN.changed(dict(software(name).medians))
    assert attention_flop_per_s("dgx-b200", of_software) == pytest.approx(1120e12, rel=0.2)


@pytest.mark.parametrize("name", [each.name for each in SOFTWARE if each.vendor == "NVIDIA"])
@pytest.mark.parametrize(
    ("system", "most"),
    [
        # cuDNN 9.19 (NVIDIA/cudnn-frontend, sdpa_benchmark_training/results, *_919_only_cudnn, causal, 32,768 tokens):
        # 1,720 forward and 1,473 back, 1,536 together.
        ("gb200-nvl72", 1536e12),
        # Shah et al. 2024, abstract: FlashAttention-3, forward, on H100. Of both passes cuDNN 9.19 reaches 608, which
        # Megatron-Core's rows ask for 7 % more than (docs/experiments/0059).
        ("dgx-h200", 740e12),
    ],
)
def test_no_software_attends_faster_than_any_kernel_that_was_published(name, system, most):
    assert attention_flop_per_s(system, profiles()[name].parameters) <= most


@pytest.mark.parametrize(
    ("system", "least", "most"),
    [
        # Shah et al. 2024, abstract: FlashAttention-3 is 1.5 to 2.0 times as fast as FlashAttention-2 on H100.
        ("dgx_h100", 1.5, 2.0),
        # A100 has no such instructions.
        ("dgx_a100", 1.0, 1.0),
    ],
)
def test_kernels_of_attention_for_the_chip_are_faster_where_it_has_their_instructions(system, least, most):
    rates = machine(cluster(system))

    def attention_s(*, native):
        strategy = one(single(native_attention=native))
        short = replace(DENSE, attention_flop=0.0)
        whole, rest = (layer_time(load, rates, strategy, PLAIN).forward_s for load in (DENSE, short))
        return float((whole - rest)[0])

    gain = attention_s(native=False) / attention_s(native=True)
    assert least - 1e-9 <= gain <= most + 1e-9


def test_kernels_for_the_chip_slow_no_software_that_has_them():
    faster = replace(PLAIN, tensor_memory_attention=1.1)
    plain, native = (
        float(layer_time(DENSE, NODE, one(single(native_attention=each)), faster).forward_s[0])
        for each in (False, True)
    )
    assert native == plain


def test_a_tpu_pads_heads_to_its_128_lanes():
    """As wide an attention takes twice as long in heads of 64 as in heads of 128; no GPU minds that much."""

    def attention_s(slug, heads):
        model = replace(GPT_22B, heads=heads, kv_heads=heads, head_size=6144 // heads)
        load = transformer_load(model, sequence=4096)
        bare = replace(load, attention_flop=0.0, attention_padding_flop=0.0)
        rates = machine(cluster(slug))
        whole, rest = (
            float(layer_time(each, rates, one(single()), PLAIN).forward_s[0]) for each in (load, bare)
        )
        return whole - rest

    assert attention_s("tpu-v5p", 96) == pytest.approx(2 * attention_s("tpu-v5p", 48))
    assert attention_s("a100-sxm4-80gb", 96) == pytest.approx(attention_s("a100-sxm4-80gb", 48))


# nanoGPT's README at commit 0110f3c8 on one A100: 250 ms a step as written, 135 ms with `torch.compile`; its
# bench.py trained 12 samples of 1,024 tokens, and its attention was written out.
@pytest.mark.parametrize(("implementation", "step_ms"), [("eager", 250), ("compiled", 135)])
def test_attention_written_out_takes_as_long_as_it_did(implementation, step_ms):
    load = workload_load(replace(workload("gpt2"), sequence_tokens=1024))
    options = {"implementation": implementation, "fused_attention": False, "precision": "bf16"}
    strategy = one(Strategy(global_batch_samples=12, microbatch_samples=12, recompute="none", **options))
    written_out = Parameters().changed(dict(software("hf").medians))
    found = estimate(load, machine(cluster("a100-sxm4-40gb")), strategy, written_out)
    assert float(found.step_s[0]) * 1e3 == pytest.approx(step_ms, rel=0.25)


def test_scores_cast_for_softmax_move_the_same_bytes_in_any_precision():
    load = transformer_load(GPT_22B, sequence=2048)
    cast = replace(PLAIN, eager_score_traffic=2.7)

    def added_s(precision, parameters):
        strategy = one(replace(OLD, precision=precision))
        with_it, without = (
            layer_time(each, SELENE, strategy, parameters).forward_s
            for each in (load, replace(load, score_bytes=0.0))
        )
        return with_it - without

    assert added_s("fp16", cast) == pytest.approx(2.7 * added_s("fp16", PLAIN))
    assert added_s("tf32", cast) == pytest.approx(added_s("fp16", cast))
    assert added_s("tf32", PLAIN) == pytest.approx(2 * added_s("fp16", PLAIN))


def test_chips_are_of_the_generation_of_their_matrix_instructions():
    generations = {"a100-sxm4-80gb": 0, "h200-sxm5-141gb": 1, "b200-sxm6-180gb": 2, "l40s-pcie-48gb": 0}
    found = {slug: float(machine(cluster(slug)).asynchronous_products) for slug in generations}
    assert found == generations


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "fp4"])
def test_attention_and_logits_stay_wide(precision):
    """However fast few bits were, what stays in 16 takes its time."""
    peaks = list(NODE.peak_flop_per_s)
    peaks[PRECISIONS.index(precision)] = 1e21
    endless = replace(NODE, peak_flop_per_s=tuple(peaks))
    least_s = 3 * 8192 * 32 * 4 * 4096 * 4096 / 2.25e15
    assert step_s(single(precision=precision), rates=endless) > least_s


@settings(deadline=None)  # the first call reads the catalogue
@given(st.sampled_from(["none", "selective", "full"]), st.sampled_from(["bf16", "fp8"]))
def test_recomputing_takes_time(recompute, precision):
    kept = single(precision=precision)
    assert step_s(replace(kept, recompute=recompute)) >= step_s(kept)
    assert step_s(replace(kept, recompute="full")) >= step_s(replace(kept, recompute=recompute))


@settings(deadline=None)  # the first call reads the catalogue
@given(st.integers(0, 3), st.integers(0, 3))
def test_experts_elsewhere_never_add_work_of_their_own(first, second):
    few, many = sorted((2**first, 2**second))
    times = [
        layer_time(MIXTURE, NODE, grid([Strategy(dp=8, ep=each, global_batch_samples=8)]), PLAIN)
        for each in (few, many)
    ]
    assert float(times[1].forward_s[0]) <= float(times[0].forward_s[0])
    assert float(times[1].host_s[0]) <= float(times[0].host_s[0])


def host_s(load, parameters, on=NODE, **options):
    chosen = Strategy(global_batch_samples=8, dp=8, **options)
    return float(np.ravel(layer_time(load, on, grid([chosen]), parameters).host_s)[0])


def test_a_recorded_graph_launches_all_of_a_dense_layer():
    dense = transformer_load(workload("llama31_8b").transformer, sequence=4096)
    quick = replace(PLAIN, graph_launch=0.25)
    assert host_s(dense, quick, cuda_graphs=True) == pytest.approx(0.25 * host_s(dense, quick))


def test_a_grace_cpu_takes_longer_to_launch_all_but_the_graph_of_a_whole_step():
    of_grace = {
        "gh200-superchip-96gb": 1,
        "gb200-nvl72-186gb": 1,
        "gb300-nvl72-279gb": 1,
        "b200-sxm6-180gb": 0,
    }
    assert {slug: float(machine(cluster(slug)).grace_host) for slug in of_grace} == of_grace
    superchip, slow = replace(NODE, grace_host=1.0), replace(PLAIN, grace_launch=1.5)
    for mode, longer in (({}, 1.5), ({"cuda_graphs": True}, 1.5), ({"full_graphs": True}, 1.0)):
        paces = [host_s(MIXTURE, slow, on=on, **mode) for on in (NODE, superchip)]
        assert paces[1] == pytest.approx(longer * paces[0])


def test_a_recorded_graph_holds_no_kernels_of_experts():
    """What is left of the host's time beside an empty graph are the experts' own kernels, at their own pace."""
    empty = replace(PLAIN, graph_launch=1e-30, expert_launch=1.0)
    left = [host_s(MIXTURE, replace(empty, expert_launch=pace), cuda_graphs=True) for pace in (1.0, 0.5)]
    assert left[0] == pytest.approx(2 * left[1])
    assert 0 < left[0] < host_s(MIXTURE, empty)


def test_one_graph_of_a_step_holds_experts_and_waits_for_no_count_of_their_tokens():
    """By hand: of 128 experts on 4 ranks each has 32, a gated block three matrices, and each product a ramp; the
    host no longer waits once a layer for how many tokens each expert got, and launches all as nodes of a graph.
    """
    paces = [replace(PLAIN, graph_launch=share) for share in (0.5, 0.25)]
    half, quarter = (host_s(MIXTURE, pace, full_graphs=True) for pace in paces)
    assert half == pytest.approx(2 * quarter)
    each, whole = (
        grid([Strategy(dp=4, ep=4, global_batch_samples=4, full_graphs=full)]) for full in (False, True)
    )
    known = PLAIN.changed({"separate_experts": 1.0, "expert_sync_s": 1e-3})
    before, after = (float(layer_time(MIXTURE, NODE, one, known).forward_s[0]) for one in (each, whole))
    assert before - after == pytest.approx(3 * 31 * PLAIN.product_ramp_s + 1e-3)


def test_kernels_that_route_tokens_are_launched_once_a_layer_of_experts():
    none, some = (host_s(MIXTURE, replace(PLAIN, routing_kernels=each)) for each in (1e-30, 40.0))
    # Forward once, and back twice.
    assert some - none == pytest.approx(40 * 3 * PLAIN.launch_s, rel=1e-6)


@pytest.mark.parametrize(("share", "launched"), [(1.0, 32), (0.5, 16.5)])
def test_experts_beyond_the_first_of_a_rank_launch_as_many_products_as_are_separate(share, launched):
    """By hand: of 128 experts on 4 ranks each has 32, a gated block three matrices, and each product a ramp."""
    one = grid([Strategy(dp=4, ep=4, global_batch_samples=4)])

    def forward_s(**changed):
        return float(layer_time(MIXTURE, NODE, one, PLAIN.changed(changed)).forward_s[0])

    one_kernel = forward_s(separate_experts=0.0)
    assert MIXTURE.num_expert_products == 3.0
    assert forward_s(separate_experts=share) - one_kernel == pytest.approx(
        3 * (launched - 1) * PLAIN.product_ramp_s
    )


def test_only_a_compiler_or_kernel_fuses_the_loss():
    strategies = [single(), single(fused_loss=False), single(implementation="eager")]
    assert loss_is_fused(grid(strategies)).tolist() == [True, False, False]


@pytest.mark.parametrize(("columns", "lost"), [(1024, 0.4), (2048, 0.4), (4096, 0.2), (32768, 0.025)])
def test_what_grouping_costs_shrinks_with_the_width_of_experts(columns, lost) -> None:
    # By hand: up to 2,048 columns experts reach 0.6 of the rate, and each doubling halves what is lost.
    load = transformer_load(
        replace(GPT_22B, experts=8, top_k=2, expert_ffn_hidden=columns, dense_layers=0), sequence=2048
    )
    assert float(expert_rate_fraction(load, replace(PLAIN, expert_fraction=0.6))) == pytest.approx(1 - lost)


def layer_of_vision(**options):
    strategy = Strategy(
        global_batch_samples=64, microbatch_samples=64, implementation="eager", **options.pop("strategy", {})
    )
    load = workload_load(workload("resnet50"))
    return layer_time(load, SELENE, one(strategy), replace(PLAIN, **options))


def test_models_without_attention_take_as_long_whatever_happens_to_scores():
    fused = layer_of_vision(strategy={"fused_attention": True})
    plain = layer_of_vision(strategy={"fused_attention": False})
    assert fused.forward_s == pytest.approx(plain.forward_s)
    assert fused.backward_s == pytest.approx(plain.backward_s)


def test_casts_move_more_bytes_in_16_bits_and_none_in_32():
    load = workload_load(workload("resnet50"))
    # 64 samples pass through memory, and half as often again with casts.
    moved_bytes = 64 * load.whole_bytes * PLAIN.eager_traffic
    more_s = 0.5 * moved_bytes / (SELENE.memory_byte_per_s * PLAIN.memory_fraction)
    plain, cast = (layer_of_vision(cast_traffic=each).forward_s for each in (1.0, 1.5))
    assert cast - plain == pytest.approx(more_s)
    wide, cast_wide = (
        layer_of_vision(cast_traffic=each, strategy={"precision": "tf32"}).forward_s for each in (1.0, 1.5)
    )
    assert cast_wide == pytest.approx(wide)


def optimizer_ms(parameters, **strategy):
    """Of BERT-large, 24 layers of 12 tensors, whose states are 1 GB."""
    one = Strategy(**({"global_batch_samples": 1, "precision": "tf32", "implementation": "eager"} | strategy))
    load = transformer_load(workload("bert").transformer, sequence=384)
    found = optimizer_time_s(load, SELENE, grid([one]), np.array([1e9]), parameters)
    return float(found[0]) * 1e3


def test_an_optimizer_as_written_goes_over_its_tensors_kernel_by_kernel():
    """BertAdam (NVIDIA/DeepLearningExamples, optimization.py): mul, add; mul, addcmul; sqrt, add, div; mul, add of
    the decay; mul, neg, add: 12 kernels a tensor; with the norm's read, 30 values for the 7 of a fused one.
    """
    unhurried = replace(PLAIN, launch_s=1e-30, optimizer_passes=30 / 7)
    fused_ms = 2 * 1.25 * 1e9 / (float(SELENE.memory_byte_per_s) * PLAIN.memory_fraction) * 1e3
    assert optimizer_ms(unhurried) == pytest.approx(30 / 7 * fused_ms)
    assert optimizer_ms(unhurried, precision="fp16") == pytest.approx(fused_ms)
    assert optimizer_ms(unhurried, implementation="compiled") == pytest.approx(fused_ms)
    launched = replace(unhurried, launch_s=1e-5, eager_launch=1.0, memory_fraction=1e30)
    assert optimizer_ms(launched) == pytest.approx(24 * 12 * 12 * 1e-5 * 1e3)


@pytest.mark.parametrize(
    ("trained", "targets", "adapted"),
    [
        ("lora", "usual", 3),
        ("qlora", "usual", 7),
        ("lora", "all_linear", 7),
        ("qlora", "attention", 3),
        ("lora", "query_value", 2),
    ],
)
def test_adapters_launch_their_own_products(trained, targets, adapted):
    """Hu et al. 2021, equation 3: W x + B A x. Two products forward, four back, and none for the gradient of W.

    A and B are cast before both; a W of 4 bits takes three kernels to unpack, forward and back (Unsloth,
    kernels/utils.py: matmul_lora, fast_dequantize). Adapters lie on queries, keys and values, or on all seven matrices of a layer of Llama, as with 4-bit weights.
    """
    llama = transformer_load(workload("llama31_8b").transformer, sequence=2048)
    h100 = machine(cluster("dgx-h100", num_accelerators=1))
    one = Strategy(microbatch_samples=1, global_batch_samples=1)
    host = {}
    for name, rank in (("full", 0), (trained, 16)):
        chosen = replace(one, trained=name, lora_rank=rank, lora_targets=targets)
        host[name] = float(np.ravel(layer_time(llama, h100, grid([chosen]), PLAIN).host_s)[0])
    unpacked = 3 * 2 * 7 if trained == "qlora" else 0
    assert host[trained] - host["full"] == pytest.approx((10 * adapted - 7 + unpacked) * PLAIN.launch_s)


@pytest.mark.parametrize("trained", ["lora", "qlora"])
@given(st.integers(1, 256), st.integers(1, 8), st.sampled_from(["eager", "compiled"]), st.booleans())
@settings(max_examples=30)
def test_more_adapters_are_never_faster(trained, rank, samples, implementation, recomputed):
    one = Strategy(
        dp=8,
        microbatch_samples=samples,
        global_batch_samples=8 * samples,
        trained=trained,
        lora_rank=rank,
        implementation=implementation,
        recompute="full" if recomputed else "none",
    )
    llama = transformer_load(workload("llama31_8b").transformer, sequence=2048)
    h100 = machine(cluster("dgx-h100", num_accelerators=8))
    layers = ("query_value", "attention", "all_linear")
    times = [step_s(replace(one, lora_targets=each), llama, h100) for each in layers]
    assert times == sorted(times)
    assert step_s(replace(one, lora_rank=2 * rank, lora_targets="all_linear"), llama, h100) >= times[-1]


def test_thin_products_outside_attention_grow_with_the_rank():
    """Two products of rank columns forward, of which the way back makes four; 0 in all for a rank of 0."""
    llama = transformer_load(workload("llama31_8b").transformer, sequence=2048)
    h100 = machine(cluster("dgx-h100", num_accelerators=1))
    plain = PLAIN.changed({"product_traffic": 1e-12})
    adapters = {"trained": "lora", "lora_targets": "all_linear"}
    one = grid([Strategy(microbatch_samples=1, global_batch_samples=1, lora_rank=1, **adapters)])
    ranks = np.array([1e-12, 16.0, 32.0])
    found = layer_time(llama, h100, replace(one, lora_rank=ranks), plain)
    frozen = layer_time(llama, h100, replace(one, lora_targets=np.array([2])), plain)  # on attention alone
    assert found.forward_s[0] == pytest.approx(frozen.forward_s[0])
    assert found.backward_s[0] == pytest.approx(frozen.backward_s[0])
    # by hand: queries' and outputs' adapters are there already; those of keys, values and three matrices are more
    width = 2 * 4096 + 3 * (4096 + 14_336)
    flop = 2048 * 2 * 16 * width
    rate = float(np.ravel(product_rate_flop_per_s(h100, one, plain))[0])
    more = found.forward_s - found.forward_s[0]
    assert more[1:] * rate == pytest.approx(np.array([flop, 2 * flop]))
    assert (found.backward_s - found.backward_s[0]) == pytest.approx(2 * more)


def test_experts_are_multiplied_again_where_operations_are_recomputed_one_by_one():
    """torchtitan's list of operations to keep has no grouped product: FSDP's layers do all of them again."""
    mixture = transformer_load(workload("qwen3_30b_a3b").transformer, sequence=8192)
    without = replace(mixture, expert_flop=0.0, num_expert_products=0.0)
    h100 = machine(cluster("dgx-h100", num_accelerators=8))
    more = {}
    for stage in (1, 3):
        one = Strategy(
            dp=8, ep=8, microbatch_samples=6, global_batch_samples=48, zero_stage=stage, recompute="selective"
        )
        with_experts, bare = (layer_time(load, h100, grid([one]), PLAIN) for load in (mixture, without))
        forward = float(np.ravel(with_experts.forward_s - bare.forward_s)[0])
        more[stage] = float(np.ravel(with_experts.recompute_s - bare.recompute_s)[0]) / forward
    assert more[3] == pytest.approx(1.0)
    assert more[1] == pytest.approx(0.0)
