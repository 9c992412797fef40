"""A step: its causes sum to it, published steps are predicted from priors alone, and plain ones are counted by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from equipoise.perfmodel.estimate import Seconds, estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import Load, transformer_load, workload_load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import CollectiveParameters, Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy, strategy
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import workload

OLD = {"precision": "fp16", "implementation": "eager", "fused_attention": False}


def gpt(layers, hidden, heads):
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        ffn_hidden=4 * hidden,
        vocabulary=51200,
        tied_embeddings=True,
        position_embeddings=2048,
    )


# Narayanan et al. 2021 (arXiv 2104.04473), table 2: 174.6 billion parameters, 1536 samples of 2048 tokens, 8 x 12 x dp
# A100; TFLOP/s an accelerator with recomputation counted, F = 96 B s l h^2 (1 + s / 6h + V / 16lh).
TABLE_2 = ((4, 153.0), (8, 149.0), (16, 141.0))


@pytest.mark.parametrize(("dp", "tflop_per_s"), TABLE_2)
def test_priors_predict_published_steps_of_175_billion_parameters(dp, tflop_per_s):
    size = 96 * dp
    strategy = Strategy(
        global_batch_samples=1536, microbatch_samples=1, dp=dp, tp=8, pp=12, recompute="full", **OLD
    )
    load = transformer_load(gpt(96, 12288, 96), sequence=2048)
    rates = machine(cluster("selene", num_accelerators=size))
    flop = 96 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    measured_s = flop / (tflop_per_s * 1e12 * size)
    predicted_s = float(estimate(load, rates, grid([strategy]), Parameters()).step_s[0])
    assert predicted_s == pytest.approx(measured_s, rel=0.15)


def test_causes_sum_to_the_step():
    strategies = [
        Strategy(global_batch_samples=64, microbatch_samples=1, dp=dp, tp=tp, pp=pp, **OLD)
        for dp, tp, pp in ((8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2))
    ]
    found = estimate(
        transformer_load(gpt(24, 2048, 16), sequence=1024),
        machine(cluster("dgx-a100", num_accelerators=8)),
        grid(strategies),
        Parameters(),
    )
    total = sum(np.broadcast_to(getattr(found.seconds, name), (4,)) for name in Seconds.__struct_fields__)
    assert found.step_s == pytest.approx(total)


def test_one_accelerator_has_no_traffic():
    alone = grid([Strategy(global_batch_samples=8, microbatch_samples=2, **OLD)])
    load = transformer_load(gpt(24, 1024, 16), sequence=1024)
    seconds = estimate(load, machine(cluster("dgx-a100", num_accelerators=1)), alone, Parameters()).seconds
    for cause in ("tp", "cp", "ep", "pp", "dp", "idle", "waiting"):
        assert not np.any(getattr(seconds, cause)), cause


def test_weights_gathered_one_by_one_cost_more_the_more_ranks_there_are():
    load = transformer_load(gpt(96, 12288, 96), sequence=2048)
    exposed = []
    for dp in (384, 768, 1536):
        strategy = Strategy(
            global_batch_samples=1536, microbatch_samples=1, dp=dp, zero_stage=3, recompute="full", **OLD
        )
        rates = machine(cluster("selene", num_accelerators=dp))
        found = estimate(load, rates, grid([strategy]), Parameters())
        exposed.append(float(found.seconds.dp[0]) / (1536 / dp))
    assert exposed[0] < exposed[1] < exposed[2]


# A world in which a step is counted by hand. Of the model: 8 layers, of 1e9 FLOP forward a token and 1e6 weights; a
# sample is a token of 1e6 bytes between layers and 1e5 in a partial sum. Of the machine: 1e12 FLOP/s, 1e9 byte/s
# over every link. Nothing else takes time, and no traffic hides: a layer takes 1 ms forward and 2 ms back.
PARTS = dict.fromkeys(Load.__struct_fields__, 0.0)
LOAD = Load(
    **(
        PARTS
        | {"layers": 8.0, "hidden": 5e4, "heads": 8.0, "kv_heads": 8.0, "sequence": 1.0, "num_sums": 2.0}
        | {"dense_flop": 1e9, "dense_params": 1e6, "boundary_bytes": 1e6, "input_bytes": 1e6}
    )
)
NODE = replace(
    machine(cluster("dgx-h100", num_accelerators=8)),
    peak_flop_per_s=(1e12,) * 8,
    achievable_fraction=1.0,
    achievable_fp32_fraction=1.0,
    memory_byte_per_s=1e30,
    intra_byte_per_s=1e9,
    inter_byte_per_s=1e9,
    host_byte_per_s=1e9,
    switch_reduces=0.0,
)
IDEAL = Parameters(
    product_fraction=1.0,
    product_ramp_s=0.0,
    launch_s=0.0,
    tp_exposed=0.0,
    dp_overlap=1.0,
    shard_overlap=1.0,
    pp_overlap=1.0,
    rank_jitter=0.0,
    step_s=0.0,
    collective=CollectiveParameters(
        launch_s=0.0,
        intra_fraction=1.0,
        inter_fraction=1.0,
        intra_latency_scale=1e-12,
        inter_latency_scale=1e-12,
        quick_rate=1e-12,
        local_share=0.0,
        fill_s=1e-30,
    ),
)


SENT = 2 * 20 / 132


def milliseconds(parameters=IDEAL, **strategy):
    one = Strategy(
        **({"global_batch_samples": 4, "microbatch_samples": 1, "fused_attention": True} | strategy)
    )
    return estimate(LOAD, NODE, grid([one]), parameters)


@pytest.mark.parametrize(
    ("strategy", "expected_ms", "cause", "cause_ms"),
    [
        # Four micro-batches of 8 layers of 3 ms; 4 ms where all is computed again.
        ({}, 96, "compute", 96),
        ({"recompute": "full"}, 128, "compute", 128),
        # Two stages of 12 ms, 4 micro-batches and one more stage of bubble, half of it in chunks of two; a send
        # either way moves 1e6 bytes: 1 ms, twice, and in chunks of two four times.
        ({"pp": 2}, 4 * 14 + 14, "idle", 14),
        ({"pp": 2, "interleave": 2}, 4 * 16 + 16 / 2, "idle", 8),
        # One chunk more before the first way back.
        ({"pp": 2, "interleave": 2, "schedule": "1f1b_overlap"}, 4 * 16 + 16, "idle", 16),
        # Three stages hold 3, 3 and 2 layers, 9 ms and 2 of sends: the mean is 8 + 2, and two stages fill.
        ({"pp": 3}, 4 * 11 + 2 * 11, "idle", 4 * 1 + 22),
        # arXiv 2412.19437, table 2: (PP / 2 - 1) (F&B + B - 3 W), which is 2/3 of a stage with B of 2/3 and W of 1/3;
        # of sends a share of 20 / 132 shows (section 3.2.2). Two ranks have the same 8 layers, 16 MB of gradients,
        # or the same 4 of four stages. The V of two ranks is that of four stages of half, with twice the sends.
        ({"pp": 2, "schedule": "dualpipe"}, 4 * (12 + SENT) + 16, "idle", 0),
        (
            {"pp": 4, "schedule": "dualpipe", "global_batch_samples": 8},
            (8 + 2 / 3) * (6 + SENT) + 8,
            "idle",
            2 / 3 * (6 + SENT),
        ),
        ({"pp": 2, "schedule": "dualpipe_v"}, (4 + 1 / 3) * (12 + 2 * SENT), "idle", (12 + 2 * SENT) / 3),
        # Four ranks share the batch: 24 ms, and 2 * 3/4 of 16 MB of gradients.
        ({"dp": 4}, 24 + 24, "dp", 24),
        ({"dp": 4, "zero_stage": 1}, 24 + 24, "dp", 24),
        # Exchanged every eighth step; 4-byte values sent in 2; two factors of 50 columns instead of 1000.
        ({"dp": 4, "sync_period": 8}, 24 + 3, "dp", 3),
        ({"dp": 4, "precision": "fp32", "compression": "fp16"}, 24 + 24, "dp", 24),
        ({"dp": 4, "compression": "powersgd", "compression_rank": 50}, 24 + 2.4, "dp", 2.4),
        # With a pipeline of two stages each rank has half of the gradients, once a step, whatever the stage: a stage of
        # 12 ms and 2 of sends, two micro-batches and one stage of bubble; half of the 8 MB goes and comes.
        ({"dp": 2, "pp": 2, "zero_stage": 1}, 3 * 14 + 8, "dp", 8),
        ({"dp": 2, "pp": 2, "zero_stage": 2}, 3 * 14 + 8, "dp", 8),
        ({"dp": 2, "pp": 2, "zero_stage": 3}, 3 * 14 + 8, "dp", 8),
        # Of a layer two gathers and a scatter of 2 MB, 3/4 from elsewhere.
        ({"dp": 4, "zero_stage": 3}, 24 + 8 * 4.5, "dp", 36),
        # Two ranks share each layer: 1.5 ms, and two sums of 1e5 bytes on one way, 0.1 ms each.
        ({"tp": 2}, 4 * 8 * (1.5 + 0.2), "tp", 4 * 8 * 0.2),
        # 8e6 weights with 12 bytes of states to the host and back.
        ({"offload": "optimizer"}, 96 + 2 * 96, "optimizer", 192),
        # Weights too: 16 MB come twice for each of four micro-batches; 32 MB in fp32, with 8 bytes of states a weight.
        ({"offload": "optimizer_and_params"}, 96 + 192 + 128, "optimizer", 192 + 128),
        ({"offload": "optimizer_and_params", "precision": "fp32"}, 96 + 128 + 256, "optimizer", 128 + 256),
        # Four ranks copy a quarter each of states and weights, for one micro-batch, and gather the layers (36 ms):
        # Rajbhandari et al. 2021 (ZeRO-Infinity), section 6.1.
        (
            {"dp": 4, "zero_stage": 3, "offload": "optimizer_and_params"},
            24 + 36 + 48 + 8,
            "optimizer",
            48 + 8,
        ),
    ],
)
def test_a_step_counted_by_hand(strategy, expected_ms, cause, cause_ms):
    found = milliseconds(**strategy)
    assert float(np.ravel(found.step_s)[0]) * 1e3 == pytest.approx(expected_ms, rel=1e-6)
    assert float(np.ravel(getattr(found.seconds, cause))[0]) * 1e3 == pytest.approx(cause_ms, rel=1e-6)


def test_powersgd_sends_two_factors_of_every_matrix():
    # Llama 3.1 8B, rank 32: the factors of q and o (4096 + 4096), k and v (4096 + 1024) and three of 4096 + 14336 rows
    # have 2.62e6 values, the matrices 218e6: 1.2 %. As one square matrix of all weights they would have 0.43 %.
    factors = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    matrices = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    load = workload_load(workload("llama31_8b"))
    whole = Strategy(dp=8, global_batch_samples=8)
    both = grid([whole, replace(whole, compression="powersgd", compression_rank=32)])
    sent = estimate(load, NODE, both, IDEAL).seconds.dp
    assert sent[1] / sent[0] == pytest.approx(factors / matrices, rel=0.25)


@pytest.mark.parametrize("precision", ["bf16", "fp32", "tf32"])
@pytest.mark.parametrize(
    ("strategy", "cause", "narrow_ms"),
    [
        # Four micro-batches of 8 layers; of 1e6 bytes half comes from the other rank, three times.
        ({"cp": 2}, "cp", 4 * 8 * 3 * 0.5),
        # Half a token a rank: of queries, keys, values and results, 1e6 bytes, half leaves, there and back.
        ({"cp": 2, "ulysses": True}, "cp", 4 * 8 * 2 * 0.5),
        # Two micro-batches; of a token of 1e6 bytes half leaves, to the expert and back, on two passes.
        ({"dp": 2, "ep": 2}, "ep", 2 * 8 * 4 * 0.5),
    ],
)
def test_values_of_four_bytes_take_twice_as_long(strategy, cause, narrow_ms, precision):
    load = replace(LOAD, kv_bytes=1e6, experts=2.0, top_k=1.0, routed_bytes=1e6)
    exposed = replace(IDEAL, cp_overlap=1.0, ep_overlap=1.0)
    one = grid([Strategy(global_batch_samples=4, precision=precision, fused_attention=True, **strategy)])
    found = float(np.ravel(getattr(estimate(load, NODE, one, exposed).seconds, cause))[0])
    assert found * 1e3 == pytest.approx(narrow_ms * (1 if precision == "bf16" else 2), rel=1e-6)


@pytest.mark.parametrize(
    ("further", "expected_ms"),
    [
        # Logits of 1e9 FLOP, a micro-batch of 3 ms more.
        ({"head_flop": 1e9, "vocabulary": 1024.0}, 96 + 4 * 3),
        # Experts that take as much as all else in a layer; attention, which takes 2.5 times as long on the way back.
        ({"expert_flop": 1e9, "experts": 4.0, "top_k": 1.0}, 2 * 96),
        ({"attention_flop": 1e9}, 96 + 4 * 8 * 3.5),
    ],
)
def test_further_work_counted_by_hand(further, expected_ms):
    shares = replace(
        IDEAL,
        head_fraction=1.0,
        expert_fraction=1.0,
        expert_imbalance=1.0,
        expert_sync_s=0.0,
        attention_fraction=1.0,
        asynchronous_attention=1.0,
        tensor_memory_attention=1.0,
        attention_half_tokens=1e-12,
    )
    one = grid([Strategy(global_batch_samples=4, microbatch_samples=1, fused_attention=True)])
    found = estimate(replace(LOAD, **further), NODE, one, shares)
    assert float(np.ravel(found.step_s)[0]) * 1e3 == pytest.approx(expected_ms, rel=1e-6)


# A layer keeps 4e6 bytes, or 1e6 of its input where it is recomputed. Copies reach 55.7 of a link's 63 parts
# (unsloth.ai/blog/nvidia-collab): here 1e9 byte/s, and 1 or 4 ms a copy, beside passes of 1 and 2 ms, or 1 and 3.
@pytest.mark.parametrize(
    ("recompute", "slowed", "exposed_ms"),
    [("full", 1, 0), ("none", 1, 3 + 2), ("full", 2, 1), ("full", 4, 3 + 1)],
)
def test_copies_of_activations_show_where_they_take_longer_than_a_pass(recompute, slowed, exposed_ms):
    load = replace(LOAD, kept_whole_bytes=4e6, spared_whole_bytes=1e6)
    node = replace(NODE, host_byte_per_s=1e9 * 63 / 55.7 / slowed)
    stays = Strategy(global_batch_samples=4, microbatch_samples=1, recompute=recompute)
    found = estimate(load, node, grid([stays, replace(stays, activation_offload=True)]), IDEAL)
    before_s, after_s = found.step_s
    assert (after_s - before_s) * 1e3 == pytest.approx(4 * 8 * exposed_ms, abs=1e-6)
    assert found.seconds.activation_offload * 1e3 == pytest.approx([0, 4 * 8 * exposed_ms], abs=1e-6)


def test_what_overlaps_the_way_back_hides():
    # 24 ms of gradients, of which 16 ms, two thirds of the layers' 24, are on the way back.
    assert float(milliseconds(replace(IDEAL, dp_overlap=0.0), dp=4).step_s[0]) == pytest.approx(0.024 + 0.008)
    assert float(milliseconds(replace(IDEAL, dp_overlap=0.5), dp=4).step_s[0]) == pytest.approx(0.024 + 0.016)


def test_the_slowest_of_several_ranks_sets_the_step():
    # sqrt(2 ln 4) = 1.6651 deviations above the mean of 48 ms.
    found = milliseconds(replace(IDEAL, rank_jitter=0.01), dp=4)
    assert float(found.seconds.waiting[0]) == pytest.approx(0.048 * 0.016651, rel=1e-4)


def test_device_and_host_side_by_side():
    # 24 ms of launches a layer against 3 ms of work is not hidden: the square root of the sum of squares.
    slow = estimate(
        replace(LOAD, num_kernels=8.0),
        NODE,
        grid([Strategy(global_batch_samples=1, microbatch_samples=1, implementation="compiled")]),
        replace(IDEAL, launch_s=1e-3, launch_jitter=0.0),
    )
    assert float(np.ravel(slow.step_s)[0]) == pytest.approx(8 * np.hypot(0.003, 0.024))


def test_dualpipe_hides_what_goes_to_experts():
    # arXiv 2412.19437, section 3.2: both all-to-all and sends are hidden; 20 of 132 multiprocessors carry them.
    load = replace(LOAD, experts=4.0, top_k=1.0, routed_bytes=1e3, expert_params=1.0)
    asked = {"pp": 2, "dp": 4, "ep": 4, "global_batch_samples": 16}
    wide = replace(IDEAL, ep_overlap=1.0)

    def exposed(**strategy):
        one = grid([Strategy(**(asked | strategy))])
        return float(np.ravel(estimate(load, NODE, one, wide).seconds.ep)[0])

    assert exposed() > 0
    for schedule in ("dualpipe", "dualpipe_v"):
        assert exposed(schedule=schedule) == pytest.approx(20 / 132 * exposed(), rel=1e-6)
    # Megatron-Core's overlap hides it alike; it refuses layers that are recomputed whole.
    chunks = {"interleave": 2, "schedule": "1f1b_overlap"}
    assert exposed(**chunks) == pytest.approx(20 / 132 * exposed(interleave=2), rel=1e-6)
    whole = {"recompute": "full", "interleave": 2}
    assert exposed(**whole | chunks) == pytest.approx(exposed(**whole), rel=1e-6)


@pytest.mark.parametrize(("dp", "traffic_ms", "times"), [(2, 16, 1), (4, 24, 4)])
def test_beyond_a_leaf_switch_an_oversubscribed_network_has_a_part_of_its_rate(dp, traffic_ms, times):
    # 2 (p - 1) / p of 16 MB of gradients at 1e9 byte/s, where a leaf joins two nodes of one accelerator.
    nodes = replace(NODE, node_size=1.0, inter_byte_per_s=1e9, oversubscription=4.0, leaf_ranks=2.0)
    one = grid([Strategy(global_batch_samples=4, dp=dp)])
    found = estimate(LOAD, nodes, one, IDEAL).seconds.dp
    assert float(np.ravel(found)[0]) * 1e3 == pytest.approx(traffic_ms * times, rel=1e-6)


def test_a_host_updates_the_states_of_all_its_accelerators():
    # CPU-Adam, Ren et al. 2021, table 4: 1.03 s for 4e9 parameters on a host, whose accelerators wait together.
    load, rates = workload_load(workload("llama2_7b")), machine(cluster("dgx-h100", num_accelerators=8))
    shared = strategy("dp=8 microbatch=1 global_batch=8 zero_stage=1 offload=optimizer")
    alone = strategy("microbatch=1 global_batch=1 offload=optimizer")
    found = estimate(load, rates, grid([shared]), Parameters()).seconds.optimizer
    assert float(np.ravel(found)[0]) == pytest.approx(1.03 * 6.74e9 / 4e9, rel=0.05)
    # One on its own waits for its link, which is slower than the host: 12 bytes a parameter, out and in.
    single = machine(cluster("dgx-h100", num_accelerators=1))
    link_s = 2 * 12 * float(load.params) / float(single.host_byte_per_s)
    found = estimate(load, single, grid([alone]), Parameters()).seconds.optimizer
    assert float(np.ravel(found)[0]) == pytest.approx(max(link_s, float(load.params) / 4e9), rel=0.01)
