"""Published measurements: units by hand, words of tables, one execution once, whatever a file may hold."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.calibration.published import read_rows
from equipoise.calibration.published.executions import chosen, read_executions, software_of, with_executions
from equipoise.calibration.published.models import known_workload, model_of
from equipoise.calibration.published.quantities import count_in, quantity
from equipoise.calibration.published.set_ups import collective_of, strategy_words
from equipoise.calibration.step_rows import step_rows
from equipoise.calibration.validate import validate
from equipoise.errors import DataError, UsageError
from equipoise.runs.readers.cells import TextRow
from equipoise.spec.catalogue import shipped

GPT = {
    "workload": "GPT",
    "layers": "24",
    "hidden": "1024",
    "heads": "16",
    "hardware": "DGX A100",
    "n_gpus": "8",
    "tp": "2",
    "pp": "2",
    "precision": "fp16",
    "global_batch": "64",
    "micro_batch": "4",
    "seq": "1024",
}


@pytest.fixture
def read(tmp_path):
    """A function that reads rows, each GPT's with some cells changed, as one file."""

    def reader(*changes):
        rows = [GPT | {"measured": "1", "unit": "s/iteration"} | change for change in changes]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        lines = [",".join(columns)]
        lines += [",".join(f'"{row.get(name, "")}"' for name in columns) for row in rows]
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(lines) + "\n")
        return read_rows([path])

    return reader


# 8 accelerators, 64 samples of 1,024 tokens: 65,536 tokens a step.
GPT_FLOP = 96 * 64 * 1024 * 24 * 1024**2 * (1 + 1024 / (6 * 1024) + 50_257 / (16 * 24 * 1024))


@pytest.mark.parametrize(
    ("measured", "unit", "seconds"),
    [
        ("250", "ms/iteration", 0.25),
        ("1.5", "s/iteration", 1.5),
        ("1.5", "sec/step", 1.5),
        ("4", "iterations/s", 0.25),
        ("8192", "tokens/s/GPU", 1.0),
        ("65536", "tokens/s", 1.0),
        ("65.536", "ktokens/s", 1.0),
        ("32", "samples/s", 2.0),
        ("32", "img/s total", 2.0),
        ("32", "sequences/sec", 2.0),
        ("4", "samples/s/GPU", 2.0),
        ("1,920", "samples/min", 2.0),
        # 300 billion tokens are 4,577,636.7 steps; a step of 1 s takes 52.98 days.
        ("52.98191", "days for 300B tokens", 1.0),
        # Narayanan et al. 2021, eq. 3; written into the unit by those who wrote the table.
        (f"{GPT_FLOP / 8 / 1e12:.9f}", "TFLOP/s/GPU (incl. recompute flops: 96BslLh^2(1+s/6h+V/16Lh))", 1.0),
        (f"{GPT_FLOP / 1e15:.9f}", "PFLOP/s total", 1.0),
    ],
)
def test_units_become_seconds_a_step(read, measured, unit, seconds):
    row = read({"measured": measured, "unit": unit, "recompute": "full"})[0]
    assert row.reason is None
    assert row.kind == "step"
    assert row.seconds == pytest.approx(seconds, rel=1e-6)
    assert row.conversion.figure(row.seconds) == pytest.approx(row.measured, rel=1e-12)


def test_model_flop_leave_out_recomputation_and_masked_scores(read):
    # Three times the way forward: 2 FLOP a weight of 12 h^2 a layer and of the logits, and 4 h a key, of which a
    # query of 1,024 meets 512.5 on average.
    forward = 24 * (24 * 1024**2 + 4 * 1024 * 512.5) + 2 * 50_257 * 1024
    per_gpu = 3 * forward * 65_536 / 8 / 1e12
    row = read({"measured": f"{per_gpu:.9f}", "unit": "model TFLOP/s/GPU", "recompute": "full"})[0]
    assert row.seconds == pytest.approx(1.0, rel=1e-6)


def test_a_share_of_the_peak_is_of_the_accelerator_that_is_named(read):
    # A100: 312 TFLOP/s dense in fp16, NVIDIA's datasheet; shares of the peak count every query with every key.
    forward = 24 * (24 * 1024**2 + 4 * 1024 * 1024) + 2 * 50_257 * 1024
    row = read({"measured": "50", "unit": "% MFU", "hardware": "A100-SXM4-80GB"})[0]
    assert row.seconds == pytest.approx(3 * forward * 65_536 / 8 / (0.5 * 312e12), rel=1e-6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("iteration time (ms)", "ms/iteration"),
        ("average step time in s", "s/iteration"),
        ("time per iteration (ms)", "ms/iteration"),
        ("Throughput (tokens/s/GPU)", "tokens/s/GPU"),
        ("tokens/GPU/s", "tokens/s/GPU"),
        ("TGS", "tokens/s/GPU"),
        ("TPS", "tokens/s"),
        ("images per second", "img/s"),
        ("samples/sec (total)", "samples/s"),
        ("TFLOPS per device", "TFLOP/s/GPU"),
        ("TFLOPs/s/GPU", "TFLOP/s/GPU"),
        ("PFLOP/s (aggregate)", "PFLOP/s total"),
        ("MFU (%)", "% MFU"),
        ("model flops utilization (%)", "% MFU"),
        ("latency (us)", "us"),
    ],
)
def test_one_unit_has_many_spellings(one, other):
    assert quantity(one) == quantity(other)


@pytest.mark.parametrize(
    ("workload", "measured", "unit", "seconds"),
    [
        # nccl-tests, PERFORMANCE.md: busbw = bytes / time x 2 (n - 1) / n; 8 ranks, 1 GB.
        ("nccl-tests all_reduce", "175", "busbw GB/s", 0.01),
        ("nccl-tests all_gather", "87.5", "busbw GB/s", 0.01),
        ("nccl-tests broadcast", "100", "busbw GB/s", 0.01),
        ("nccl-tests all_reduce", "100", "algbw GB/s", 0.01),
        ("nccl-tests all_reduce", "800", "algbw Gb/s", 0.01),
        # 1e11 bytes per second over 2**30.
        ("nccl-tests all_reduce", "93.13225746154785", "algbw GiB/s", 0.01),
        ("nccl-tests all_reduce", "10000", "us", 0.01),
    ],
)
def test_units_of_collectives(read, workload, measured, unit, seconds):
    row = read({"workload": workload, "measured": measured, "unit": unit, "global_batch": "1000000000"})[0]
    assert row.kind == "collective"
    assert row.payload_bytes == 1e9
    assert row.seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unit": "furlongs"}, "'furlongs'"),
        ({"unit": "s/epoch"}, "'s/epoch'"),
        ({"unit": "hours"}, "'hours'"),  # of a whole run
        ({"workload": "GPT fine-tuning", "seq": ""}, "column seq"),
        ({"parallel_config": "LoRA rank 8", "seq": ""}, "column seq"),
        ({"parallel_config": "LoRA rank 8; 8-bit base"}, "'8-bit base'"),
        ({"parallel_config": "PEFT LoRA, load_in_8bit"}, "'load_in_8bit'"),
        ({"measured": "fast"}, "measured: found 'fast'; "),
        ({"measured": "-1"}, "column measured"),
        ({"measured": "nan"}, "measured: empty"),
        ({"measured": "1e999"}, "column measured"),
        ({"measured": ""}, "measured: empty"),
        ({"memory_gib": "1e-300"}, "column memory_gib: found '1e-300'; expected 0.001 to 1e+06 GiB"),
        ({"n_gpus": "7.5"}, "column n_gpus: found '7.5'; "),
        ({"n_gpus": "6"}, "cp = 4 "),
        ({"dp": "4"}, " = 16, n_gpus = 8"),
        ({"tp": "99999999999999999999"}, "column tp"),
        ({"heads": "7"}, "heads: found '7'; "),
        ({"layers": ""}, "layers=None"),
        ({"layers": "", "hidden": "", "heads": ""}, "catalogue"),
        ({"global_batch": ""}, "pp=2"),
        ({"global_batch": "", "micro_batch": ""}, "both empty"),
        ({"global_batch": "63"}, "global_batch_samples=63"),
        ({"precision": "posit8"}, "column precision: 'posit8'"),
        ({"recompute": "sometimes"}, "column recompute: 'sometimes'"),
        ({"parallel_config": "ZeRO-9"}, "ZeRO stage '9'"),
        ({"unit": "TFLOP/s"}, "one accelerator"),
        ({"unit": "% MFU", "hardware": "abacus"}, "no peak"),
        ({"unit": "% scaling efficiency"}, "perfect scaling"),
        ({"workload": "max achievable matmul", "unit": "TFLOP/s"}, "matrix products"),
        ({"workload": "all_reduce", "unit": "busbw GB/s", "global_batch": ""}, "message"),
        ({"workload": "all_reduce", "unit": "busbw GB/s", "measured": "0.01"}, "mostly rounding"),
        ({"measured": "1e-12", "unit": "us"}, "expected 1e-08 to 1e+08 s"),
        ({"workload": "all_reduce", "unit": "busbw GB/s", "n_gpus": "1"}, "two ranks"),
    ],
)
def test_a_row_that_means_nothing_says_why_and_is_kept(read, change, reason):
    rows = read(change, {})
    assert reason in rows[0].reason
    assert rows[0].seconds is None
    assert [row.row for row in rows] == [1, 2]
    assert rows[1].seconds == 1.0


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("ZeRO-3", {"zero_stage": 3}),
        ("FSDP(ZeRO-2-like)+TP+PP+CP; batch/DP=32", {"zero_stage": 2}),
        ("FSDP2+compile", {"zero_stage": 3, "implementation": "compiled"}),
        ("FSDP2 eager", {"zero_stage": 3, "implementation": "eager"}),
        ("FSDP2+AsyncTP", {"tp_overlap": True, "splits_sequences": True}),
        ("FSDP2+TP vanilla", {"tp_overlap": False, "splits_sequences": True}),
        ("VP=4;release=26.08 NeMo Container;FSDP=0", {"zero_stage": 1, "interleave": 4}),
        (
            "VP=n/a;release=26.04 NeMo Container;FSDP=64",
            {"zero_stage": 3, "shard_group": 64, "interleave": 1},
        ),
        ("interleave=3;seqpar=yes", {"interleave": 3, "splits_sequences": True}),
        ("interleave=1;seqpar=no", {"interleave": 1, "splits_sequences": False}),
        ("1F1B no interleaving", {"is_interleaved": False}),
        ("interleaved 1F1B where PP>1; scatter/gather", {"is_interleaved": True, "interleave": None}),
        ("DDP/Horovod;accum=64 and 32", {"zero_stage": 0, "num_accumulated": "64 and 32"}),
        ("DeepSpeed 3D", {"zero_stage": 0, "is_interleaved": False}),
        ("distributed optimizer", {"zero_stage": 1}),
        ("LoRA + FSDP", {"trained": "lora", "zero_stage": 3}),
        ("QLoRA", {"trained": "qlora", "rank": None}),
        # LoRA beside a vector of magnitudes (Liu et al. 2024, section 4).
        ("PEFT, DoRA rank 16", {"trained": "lora", "rank": 16}),
        ("QDoRA; rank 8", {"trained": "qlora", "rank": 8}),
        (
            "LoRA rank 64 on all linear layers; 4 ranks 2 nodes",
            {"trained": "lora", "rank": 64, "targets": "all_linear"},
        ),
        ("LoRA rank 8 on q,v; FP8", {"rank": 8, "targets": "query_value"}),
        ("QLoRA rank 16 on q,k,v,o; FSDP full shard", {"trained": "qlora", "targets": "attention"}),
        ("PEFT; LoRA; target_modules=all-linear", {"targets": "all_linear"}),
        ("PEFT; LoRA rank 16, all 7 linears", {"targets": "all_linear"}),
        ("LoRA rank 16; 4-bit base", {"trained": "qlora"}),
        ("LoRA rank 16; no 4-bit base", {"trained": "lora"}),
        ("LoRA rank 16; 4-bit weights off", {"trained": "lora"}),
        ("LoRA; target_modules=['q_proj','v_proj']", {"targets": "query_value"}),
        ("LoRA on linear_qkv, linear_proj", {"targets": "attention"}),
        ("LoRA on linear_qkv, linear_proj, linear_fc1, linear_fc2", {"targets": "all_linear"}),
        ("LoRA; VP=20", {"targets": "usual"}),
        ("qlora; r=8", {"trained": "qlora", "rank": 8}),
        ("Q-LoRA, rank 64", {"trained": "qlora", "rank": 64}),
        ("FSDP2; gradient accumulation 4; no_sync", {"zero_stage": 3, "accumulates_unsharded": True}),
        ("FSDP2; gradient accumulation 4", {"accumulates_unsharded": False, "copies_gradients": None}),
        ("DeepSpeed ZeRO-3; sequence parallelism 8 (Ulysses)", {"exchanges_heads": True, "zero_stage": 3}),
        ("context parallel ring attention over 8", {"exchanges_heads": False}),
        ("Megatron-Core; alltoall dispatch", {"copies_tokens": True}),
        ("Megatron-Bridge; NCCL all-to-all dispatcher", {"copies_tokens": True}),
        ("Megatron-LM; allgather dispatcher", {"copies_tokens": True}),
        ("Megatron-Core; DeepEP; EP 8", {"copies_tokens": False}),
        ("DeepSpeed ZeRO-3; sequence parallelism 8 by all-to-all", {"copies_tokens": False}),
        ("Megatron-Core; CUDA graphs of attention and router", {"records_graphs": True}),
        ("Megatron-Bridge; cuda_graph_impl=local; full-iteration CUDA graph", {"records_graphs": True}),
        ("Megatron-Bridge; full-iteration CUDA graph, fused grouped MLP", {"records_steps": True}),
        ("Megatron-Core, full CUDA graphs, paged stash of activations", {"records_steps": True}),
        ("Megatron-Core; CUDA graphs of attention and router", {"records_steps": False}),
        ("Megatron-LM; no CUDA graphs", {"records_graphs": False}),
        ("Megatron-LM; CUDA graphs off", {"records_graphs": False}),
        ("Megatron-LM; mode and CUDA graphs not stated", {"records_graphs": False}),
        ("Megatron-LM", {"records_graphs": False}),
        ("torchtitan; FSDP2; EP 8", {"copies_tokens": True}),
        ("torchtitan; FSDP2; DeepEP", {"copies_tokens": False}),
        ("Megatron-DeepSpeed; ZeRO-1", {"zero_stage": 1, "copies_gradients": "deepspeed"}),
        ("Megatron-LM", {"copies_gradients": "megatron"}),
        ("KempnerForge; FSDP2; plain loss", {"is_loss_plain": True}),
        ("FSDP2; flash attention 4", {"is_attention_native": True}),
        ("HF Trainer; flash_attention_3", {"is_attention_native": True}),
        ("PyTorch SDPA (cuDNN)", {"is_attention_native": True}),
        ("flash attention 2; 4 nodes", {"is_attention_native": False}),
        ("DeepSpeed pipeline of 2 stages, no ZeRO-2/3; SDPA", {"zero_stage": 0}),
        ("PyTorch DDP, without FSDP", {"zero_stage": 0}),
        ("not ZeRO-3, ZeRO-2", {"zero_stage": 2}),
        ("DeepSpeed ZeRO-3 without prefetching", {"zero_stage": 3}),
        ("FSDP2, no FSDP offload", {"zero_stage": 3}),
        ("pure PyTorch (no Transformer Engine), SDPA", {"implementation": "eager"}),
        ("Transformers, PEFT, without Unsloth", {"implementation": "eager"}),
        ("plain PyTorch; attention kernel and compile not stated", {"implementation": "eager"}),
        ("PyTorch; torch.compile disabled", {"implementation": "eager"}),
        ("torchtitan; recompute and compile not in the excerpt", {"implementation": "compiled"}),
        ("recomputed linear cross-entropy", {"chunks_loss": True}),
        ("PyTorch, no cut cross-entropy", {"chunks_loss": False}),
        ("PyTorch, no fused linear cross-entropy", {"chunks_loss": False}),
        ("HF Trainer, full fine-tuning, no Liger", {"chunks_loss": False, "implementation": "eager"}),
        ("SDPA (no FlashAttention 3)", {"is_attention_native": False}),
        ("SDPA instead of FlashAttention 3", {"is_attention_native": False}),
        ("flash attention 2 without FA3", {"is_attention_native": False}),
        ("HF Trainer; Liger kernels", {"implementation": "compiled"}),
        # No compiler, and still no kernel for each operation between products.
        ("HF Trainer; fused RMSNorm, rotary, SwiGLU and loss; eager", {"implementation": "compiled"}),
        ("HF Trainer; no fused RMSNorm and rotary; eager", {"implementation": "eager"}),
        ("HF Trainer; fused RMSNorm, RoPE off; eager", {"implementation": "eager"}),
        # Liger has no kernels for adapters: Llama 3.1 8B on H100, 9,621 tokens/s without it and 10,115 with
        # (MakazhanAlpamys/Soup, issue 378).
        ("TRL; LoRA rank 16; Liger kernels", {"implementation": "eager", "chunks_loss": True}),
        ("torchtitan; eight loss chunks", {"chunks_loss": True}),
        # 57M parameters, 8 x 2,048 tokens, 16,384 words: 6.07 GiB, less than with logits of all tokens in fp32.
        ("torchtitan; one GPU; loss in chunks", {"chunks_loss": True}),
        ("PyTorch; cross-entropy in chunks of 512 tokens", {"chunks_loss": True}),
        ("TRL SFT; chunked_nll loss", {"chunks_loss": True}),  # huggingface/trl, pull 6869
        ("NeMo AutoModel; FSDP2; eager attention", {"implementation": "compiled"}),
        ("HF Trainer", {"implementation": "eager"}),
        ("Levanter, JAX; FSDP", {"zero_stage": 3, "implementation": "compiled"}),
        ("MaxText; FSDP", {"zero_stage": 3, "implementation": "compiled"}),
        ("torch_xla; FSDP", {"zero_stage": 3, "implementation": "compiled"}),
        ("torchtitan; DualPipeV", {"schedule": "dualpipe_v"}),
        ("DualPipe; 16 micro-batches", {"schedule": "dualpipe"}),
        ("1F1B", {"schedule": "1f1b"}),
        ("VP=4; 1F1B overlap of expert communication", {"schedule": "1f1b_overlap"}),
        ("virtual pipeline 2; overlap of experts' traffic", {"schedule": "1f1b_overlap", "interleave": 2}),
        ("overlap of experts' communication off", {"schedule": "1f1b", "interleave": None}),
        ("ms-swift; Liger", {"chunks_loss": True, "is_narrow": False}),
        ("torchtune; chunked cross entropy", {"chunks_loss": True, "is_narrow": True}),
        ("chunked prefill", {"chunks_loss": False}),
        ("paged 8-bit AdamW stepped in backward", {"optimizer": "adam_8bit"}),
        ("FSDP2; adamw_bnb_8bit", {"optimizer": "adam_8bit"}),
        ("8-bit weights; AdamW", {"optimizer": "adam"}),
        ("bitsandbytes AdamW8bit", {"optimizer": "adam_8bit"}),
        # One moment a weight: momentum, or Chen et al. 2023, algorithm 2.
        ("PyTorch DDP, SGD, eager", {"optimizer": "sgd"}),
        ("torch.compile, fused SGD with momentum", {"optimizer": "sgd"}),
        ("SimpleTuner; optimi-lion; eager", {"optimizer": "sgd"}),
        ("PyTorch; no SGD; AdamW", {"optimizer": "adam"}),
        ("PyTorch; Muon + AdamW", {"optimizer": "adam"}),
        ("PyTorch 2.6; eager; all in bf16", {"is_narrow": True}),
        ("weights, gradients and AdamW in fp16", {"is_narrow": True}),
        ("CPU offload", {"offload": "optimizer", "offloads_activations": False}),
        (
            "checkpoints of layers offloaded to the host",
            {"offload": "none", "offloads_activations": True},
        ),
        ("offload of activations; CPU offload", {"offload": "optimizer", "offloads_activations": True}),
        # PyTorch's CPUOffload and CPUOffloadPolicy move parameters, gradients and states alike.
        ("torchtune; FSDP2 full shard; CPU offload", {"offload": "optimizer_and_params"}),
        ("FSDP; optimizer offload", {"offload": "optimizer"}),
        ("DeepSpeed ZeRO-3; CPU offload", {"offload": "optimizer"}),
        ("TorchTitan; FSDP8, EP1", {"zero_stage": 3, "shard_group": 8}),
        ("FSDP2; 16 GPUs", {"zero_stage": 3, "shard_group": None}),
        ("Colossal-AI; Gemini plugin", {"zero_stage": 3}),
        ("PEFT, AdamW, no AMP", {"is_narrow": True}),
        ("reversedzero-3x", {"zero_stage": 0}),
        ("FSDP1 HYBRID_SHARD", {"zero_stage": 3, "shard_group": None, "shards_in_nodes": True}),
        ("FSDP1 FULL_SHARD", {"zero_stage": 3, "shards_in_nodes": False}),
        ("HSDP: shard 8 inside a node, replicate 2", {"zero_stage": 3, "shard_group": 8}),
        ("HSDP replicate=4 (one per node) x shard=2", {"zero_stage": 3, "shard_group": 2}),
        ("FSDP HYBRID_SHARD 2 nodes", {"zero_stage": 3, "shard_group": None}),
        ("hybrid shard 16 GPUs", {"zero_stage": 3, "shard_group": None}),
        ("YaFSDP; full sharding", {"zero_stage": 3}),
        ("torchtitan FSDP2, reshard_after_forward=never", {"zero_stage": 2}),
        ("FSDP1 SHARD_GRAD_OP", {"zero_stage": 2}),
        ("torchtitan FSDP2, reshard_after_forward=always", {"zero_stage": 3, "keeps_in_pipelines": False}),
        ("PyTorch, no torch.compile", {"implementation": "eager"}),
        ("FSDP2 without torch.compile", {"implementation": "eager"}),
        ("PyTorch, torch.compile", {"implementation": "compiled"}),
        ("OneFlow", {"implementation": "compiled"}),
        # LLaMA-Factory, hparams/model_args.py: disable_gradient_checkpointing is false unless set.
        ("LLaMA Factory; accelerate; FSDP", {"recompute": "full"}),
        ("LLaMA-Factory; no activation checkpointing", {"recompute": "none"}),
        ("torchtitan; FSDP2, no activation checkpointing", {"recompute": "none"}),
        ("torchtitan; compile off, no float8", {"implementation": "eager"}),
        ("torchtitan; FSDP (reshard never)", {"zero_stage": 2}),
        (
            "FSDP2, reshard_after_forward off, gradients reduced on the last micro batch only",
            {"zero_stage": 2, "accumulates_unsharded": True},
        ),
        ("Megatron-Core; TP without sequence parallelism", {"splits_sequences": False}),
        ("Megatron-Bridge; TP 2", {"splits_sequences": True}),
        ("Megatron-Bridge; PP 2, VPP 8, EP 32; a2a overlap", {"interleave": 8, "schedule": "1f1b_overlap"}),
        # As llm-foundry's tables say, and Axolotl's `gradient_checkpointing: offload`.
        ("FSDP; no activation CPU offload", {"offload": "none", "offloads_activations": False}),
        ("ZeRO-3, CPU offload of parameters and fp32 optimizer", {"offload": "optimizer_and_params"}),
        ("ZeRO-3, parameters and optimizer offloaded to the CPU", {"offload": "optimizer_and_params"}),
        ("ZeRO-3, CPU offload of the optimizer", {"offload": "optimizer"}),
        ("ZeRO-3, no cpu-offload", {"offload": "none", "offloads_activations": False}),
        ("gradient checkpointing with offload", {"offload": "none", "offloads_activations": True}),
        ("ZeRO-1; no offload", {"offload": "none", "offloads_activations": False}),
        ("activations of the experts offloaded to host", {"offload": "none", "offloads_activations": True}),
        # AutoModel has no distributed optimizer of Megatron's; it shards by FSDP2.
        ("NeMo AutoModel 25.11; DDP", {"zero_stage": 0, "tp_overlap": False}),
    ],
)
def test_words_of_a_configuration(config, expected):
    found = strategy_words(config, "bf16", "")
    assert {name: getattr(found, name) for name in expected} == expected


def test_experts_that_are_replicated_are_sharded_over_their_own_ranks_alone(read):
    """whitecircle/halo, throughput-benchmarks.md: of 20.7e9 weights a rank holds 11.36e9 with two expert ranks, 4.19e9
    with eight.
    """
    model = {"workload": "GPT-OSS 20B", "layers": "", "hidden": "", "heads": "", "tp": "1", "pp": "1"}
    cells = {"parallel_config": "DeepEP; ZeRO-2; experts replicated over data ranks", **model}
    rows = read(
        *(cells | {"ep": str(ranks)} for ranks in (1, 2, 8)), cells | {"parallel_config": "ZeRO-2", "ep": "2"}
    )
    assert [row.strategy.dp_replicate for row in rows] == [1, 4, 1, 1]
    assert [any("2 ranks" in note for note in row.notes) for row in rows] == [False, True, False, False]


@pytest.mark.parametrize(
    ("config", "gathered", "loss"),
    [
        ("torchtitan", 4096, 12),
        ("nanotron; eager; sequence parallel; gathered inputs kept", 4096, 12),
        ("nanotron; eager; sequence parallel", 0, 12),
        ("Megatron-LM; sequence parallel", 0, 6),
    ],
)
def test_rows_are_held_in_memory_as_their_software_holds_them(read, config, gathered, loss):
    """Two inputs of a layer, 1,024 values in 2 bytes; bytes of a logit of 50,257 in fp32, before it is returned."""
    load = step_rows(read({"parallel_config": config, "tp": "2"})).load
    assert load.gathered_bytes == gathered
    assert load.kept_loss_bytes == loss * 50257


def test_a_frozen_model_beside_the_trained_one_has_weights(read):
    """Of Qwen-VL's page: a vision tower of 1.9 G weights."""
    for workload, params in (
        ("Llama 2 7B (with frozen ViT-bigG of 1.9B, 448 pixels)", 1.9e9),
        ("Llama 2 7B", 0),
    ):
        (one,) = step_rows(read({"workload": workload})).load.frozen_params
        assert one == pytest.approx(params)


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        ("logits widened before the loss", "kept_fused_loss_bytes", 6 * 50257),
        ("own attention; no dropout", "kept_mask_bytes", 0),
        ("AdamW stepped in backward", "steps_in_backward", 1),
        ("paged 8-bit AdamW", "paged_states", 1),
        ("paged stash", "paged_states", 0),
        ("experts replicated over data ranks", "replicated_experts", 1),
        ("FSDP; bf16 autocast", "wide_frozen", 1),
        ("nanotron", "output_layers", 50257 * 1024 / (12 * 1024**2)),
        ("", "output_layers", 0),
    ],
)
def test_rows_are_held_in_memory_as_their_words_say(read, words, field, expected):
    """Layers of 12 squares of 1,024 weights, and an output for 50,257 words."""
    load = step_rows(read({"parallel_config": f"PyTorch; {words}"})).load
    assert float(getattr(load, field)[0]) == pytest.approx(expected, rel=1e-3)


def test_a_schedule_is_of_a_pipeline(read):
    """64 samples in micro-batches of 4 over two data ranks and two stages are twice as many as stages, twice."""
    split = {"parallel_config": "DualPipeV", "precision": "bf16"}
    piped, alone = read(split, split | {"pp": "1"})
    assert (piped.strategy.schedule, alone.strategy.schedule) == ("dualpipe_v", "1f1b")


def test_torchtitan_keeps_parameters_between_micro_batches_of_a_pipeline(read):
    """Its fsdp_reshard_after_forward is `default`: not with a pipeline (torchtitan, parallelize_llama.py)."""
    titan = {"parallel_config": "torchtitan; FSDP2", "precision": "bf16"}
    piped, alone = read(titan, titan | {"pp": "1"})
    assert (piped.strategy.zero_stage, alone.strategy.zero_stage) == (2, 3)


def test_adapters_may_be_named_with_the_model(read):
    beside = {"workload": "Llama 2 7B LoRA rank 4 on q/k/v/out", "parallel_config": "PyTorch"}
    (found,) = read(beside)
    assert (found.strategy.trained, found.strategy.lora_rank) == ("lora", 4)
    assert found.strategy.lora_targets == "attention"


def test_a_rank_beside_the_model_is_of_the_adapters_that_the_configuration_names(read):
    tuned = {"workload": "TinyLlama 1.1B LoRA rank 8", "parallel_config": "MLX; LoRA on some layers"}
    narrow = {"workload": "TinyLlama 1.1B QLoRA (nf4)", "parallel_config": "PEFT; LoRA rank 32"}
    own, other = (row.strategy for row in read(tuned, narrow))
    assert (own.trained, own.lora_rank) == ("lora", 8)
    assert (other.trained, other.lora_rank) == ("qlora", 32)


@pytest.mark.parametrize(
    "words", ["etp=1", "Megatron-Core; expert tensor parallel size 1", "--expert-tensor-parallel-size 1"]
)
def test_experts_whole_on_a_rank_are_what_is_modelled(read, words):
    (found,) = read({"parallel_config": words})
    assert found.reason is None
    assert found.strategy.tp == 2


@pytest.mark.parametrize("words", ["etp=2", "ETP4", "--expert-tensor-parallel-size 2", "EP 2, expert TP 4"])
def test_experts_split_among_tensor_ranks_are_refused(read, words):
    (found,) = read({"parallel_config": words})
    assert found.strategy is None
    assert "etp=1" in found.reason


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("float16", "fp16"),
        ("fp16 mixed", "fp16"),
        ("fp16 (not stated in file)", "fp16"),
        ("mixed", "fp16"),
        ("bf16 mixed", "bf16"),
        ("16-bit parameters, fp32 reduction", "fp16"),
        ("BF16", "bf16"),
        ("FP32", "fp32"),
        ("fp32 (no TF32 in matmul)", "fp32"),
        ("TF32", "tf32"),
        ("fp32 (no TF32 in products)", "fp32"),
        ("fp32 (TF32 off)", "fp32"),
        ("fp32 (TF32 on)", "tf32"),
        ("fp32 (TF32 not set by the command)", "fp32"),
        ("fp32 (no mixed precision; TF32 not stated)", "fp32"),
        ("FP32, without AMP", "fp32"),
        ("FP8", "fp8"),
        ("fp8 linear", "fp8"),
        ("fp8 tensorwise", "fp8"),
        ("fp8 rowwise", "fp8_rowwise"),
        ("MXFP8", "mxfp8"),
        ("NVFP4", "fp4"),
    ],
)
def test_words_of_precision(text, precision):
    assert strategy_words("", text, "").precision == precision


@pytest.mark.parametrize(
    ("text", "recompute"),
    [
        ("", None),
        ("none", "none"),
        ("no", "none"),
        ("full", "full"),
        ("full (use_checkpoint=true in config/validation)", "full"),
        ("selective", "selective"),
        ("per-op selective", "selective"),
        ("selective (default toml)", "selective"),
        ("full for 10 of 80 layers", "none"),  # an eighth
        # JAX, jax.checkpoint_policies: results of products are kept, the rest is computed again.
        ("dots_no_batch", "selective"),
        ("save_qkv_proj", "selective"),
        ("norm and SwiGLU only", "selective"),
        ("activation checkpointing", "full"),
        ("full for 50 of 80 layers", "full"),
    ],
)
def test_words_of_recomputation(text, recompute):
    assert strategy_words("", "bf16", text).recompute == recompute


def test_none_in_the_column_of_recomputation_is_not_what_a_software_does_unless_told(read):
    """tione-tilearn-angel, benchmark/README.md: LLaMA-Factory with and without gradient checkpointing."""
    factory = {"parallel_config": "LLaMA-Factory; ZeRO-3"}
    rows = read(*(factory | {"recompute": text} for text in ("none", "None", "", "full")))
    assert [each.strategy.recompute for each in rows] == ["none", "none", "full", "full"]


@pytest.mark.parametrize(
    ("config", "recompute"),
    # 24 layers on two stages of two chunks: 6 a chunk.
    [
        ("Megatron-Bridge; VPP 2; recompute_num_layers=6", "full"),
        ("Megatron-Bridge; VPP 2; recompute of 4 layers", "full"),
        ("Megatron-Bridge; VPP 2; recompute-num-layers 3", "none"),
        ("Megatron-Bridge; VPP 2", "none"),
        ("Megatron-Bridge; VPP 2; no recompute", "none"),
    ],
)
def test_a_number_of_layers_is_of_every_chunk(read, config, recompute):
    (found,) = read({"parallel_config": config, "hardware": "DGX H100", "precision": "bf16"})
    assert found.strategy.recompute == recompute


@pytest.mark.parametrize(
    ("workload", "stated", "recompute"),
    # torchtitan/models/*/config_registry.py: FullAC from 14B on, selective for 8B and DeepSeek.
    [
        ("Qwen3 32B", "", "full"),
        ("GPT-OSS 20B", "", "full"),
        ("Qwen3 32B", "none", "none"),
        ("Llama 3.1 8B", "", "selective"),
        ("DeepSeek-V3 671B", "", "selective"),
    ],
)
def test_torchtitan_recomputes_large_models(read, workload, stated, recompute):
    sizes = dict.fromkeys(("layers", "hidden", "heads", "tp", "pp"), "")
    where = {"hardware": "DGX B200", "n_gpus": "64", "global_batch": "256", "precision": "bf16"}
    titan = {"parallel_config": "torchtitan; FSDP2", "recompute": stated}
    (found,) = read(sizes | where | titan | {"workload": workload})
    assert found.strategy.recompute == recompute


@pytest.mark.parametrize(
    ("hardware", "split", "expected"),
    [
        ("MI250X, LUMI, one die (GCD) counted as a card", {}, (4, 1, 2, 2, 4)),
        ("Intel Max 1550 64GB per tile, 12 tiles per node", {"tp": "1"}, (4, 1, 2, 2, 8)),
        ("MI250 (8 GCDs)", {"tp": "1", "pp": "1"}, (4, 1, 1, 4, 8)),
        ("MI250X, 4 modules per node", {}, (8, 2, 2, 2, 4)),
    ],
)
def test_dies_are_counted_by_their_accelerators(read, hardware, split, expected):
    """Two dies of an accelerator are its tensor ranks, or one rank of the samples of both: the same 64 samples of
    1,024 tokens in a second.
    """
    rate = {"measured": "8192", "unit": "tokens/s/GPU", "memory_gib": "20"}
    (found,) = read(rate | split | {"hardware": hardware})
    strategy = found.strategy
    assert (
        found.num_accelerators,
        strategy.tp,
        strategy.pp,
        strategy.dp,
        strategy.microbatch_samples,
    ) == expected
    assert found.seconds == pytest.approx(1.0)
    assert found.memory_bytes == (40 if expected[0] == 4 else 20) * 2**30


def test_a_die_alone_is_no_accelerator(read):
    alone = {"hardware": "MI250X (one GCD each)", "n_gpus": "1", "tp": "1", "pp": "1"}
    assert "column n_gpus: 1 " in (read(alone)[0].reason or "")


@pytest.mark.parametrize(
    ("precision", "is_narrow"),
    [
        ("bf16 (weights and states in bf16)", True),
        ("bf16 weights and states", True),
        ("bf16 (weights and gradients in bf16)", True),
        ("bf16 (weights and AdamW states in bf16)", True),
        ("bf16 (weights and optimizer states are in bf16)", True),
        ("bf16, weights and AdamW states in fp32", False),
        ("bf16 weights and Adam moments", True),
        ("bf16, fused AdamW on bf16 parameters", True),
        ("bf16 AdamW", True),
        ("bf16 weights, fp32 moments", False),
        ("bf16 autocast, fp32 master weights", False),
        ("bf16", False),
    ],
)
def test_a_precision_says_of_what_it_is(precision, is_narrow):
    found = strategy_words("PyTorch", precision, "")
    assert (found.precision, found.is_narrow) == ("bf16", is_narrow)


def test_ms_amp_has_no_states_of_32_bits():
    """Peng et al. 2023, section 2.2: gradients and the first moment in fp8, the second and weights in fp16."""
    for words, is_narrow in (
        ("fp8 (MS-AMP: fp8 gradients, fp8/fp16 optimizer states)", True),
        ("fp8", False),
    ):
        assert strategy_words("Megatron-LM", words, "").is_narrow == is_narrow


@pytest.mark.parametrize(
    ("text", "precision", "samples"),
    [
        ("32", "FP32", 32),
        ("1,048,576", "TF32", 1_048_576),
        ("24,576", "mixed", 24_576),
        ("64k", "TF32", 65_536),
        ("126 and 256", "FP32", 126),
        ("126 and 256", "mixed", 256),
        ("16  and 32", "TF32", 16),
        ("8 : 16", "mixed", 16),
        ("100, 200", "FP32", 100),
        ("128 (FP32) / 256 (AMP)", "FP32", 128),
        ("128 (FP32) / 256 (AMP)", "mixed", 256),
        ("1 and 2 and 3", "mixed", None),
        ("many", "mixed", None),
    ],
)
def test_a_batch_of_two_precisions_is_that_of_the_row(text, precision, samples):
    assert count_in(text, precision) == samples


def test_axes_that_are_not_stated_follow_from_the_accelerators(read):
    strategy = read({"n_gpus": "16"})[0].strategy
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.cp, strategy.ep) == (4, 2, 2, 1, 1)
    assert strategy.num_microbatches == 4


def test_axes_may_stand_in_words_where_their_columns_are_empty(read):
    strategy = read({"tp": "", "pp": "", "parallel_config": "TP=2 pp4, Interleaved1F1B", "n_gpus": "16"})[
        0
    ].strategy
    assert (strategy.tp, strategy.pp, strategy.dp, strategy.interleave) == (2, 4, 2, 2)
    strategy = read({"tp": "1", "pp": "1", "parallel_config": "TP=2"})[0].strategy  # the column stands above
    assert strategy.tp == 1


def test_a_batch_that_is_not_stated_is_said_to_be_assumed(read):
    whole = read({"pp": "1", "global_batch": ""})[0]
    assert (whole.strategy.global_batch_samples, whole.notes[-1].partition(" ")[0]) == (
        16,
        "global_batch",
    )
    share = read({"pp": "1", "micro_batch": ""})[0]
    assert (share.strategy.microbatch_samples, share.notes[-1].partition(" ")[0]) == (
        16,
        "micro_batch",
    )
    piped = read({"micro_batch": ""})[0]
    assert (piped.strategy.microbatch_samples, piped.notes[-1]) == (1, "micro_batch not stated: 1 sample")


def test_chunks_that_are_not_stated_are_the_fewest_that_divide_a_ranks_layers(read):
    # 24 layers over 2 ranks: 12 each, in 2 chunks; 105 over 35: 3 each, in 3.
    assert read({"parallel_config": "interleaved 1F1B"})[0].strategy.interleave == 2
    changes = {"parallel_config": "interleaved 1F1B", "layers": "105", "pp": "35", "n_gpus": "280", "tp": "8"}
    assert read(changes)[0].strategy.interleave == 3


def test_sizes_of_a_row_stand_above_the_catalogue(read):
    shorter = read({"workload": "Llama 3.1 8B", "layers": "16", "hidden": "4096", "heads": "32"})[0]
    assert shorter.model.transformer.layers == 16
    assert shorter.model.transformer.kv_heads == 8  # as published, where the row does not say otherwise
    other = read({"workload": "Llama 3.1 8B", "layers": "16", "hidden": "1024", "heads": "8"})[0]
    assert other.model.transformer.kv_heads == 8
    assert other.model.transformer.ffn_hidden == 4096
    assert other.model.known is None


def test_a_model_cut_to_fewer_layers_keeps_its_experts(read):
    # MindSpeed-LLM, examples/mcore/deepseek2/pretrain_deepseek2_60b_8k_ptd.sh: 16 of 60 layers are 60 B.
    sizes = {"params_b": "60", "layers": "16", "hidden": "5120", "heads": "128"}
    cut = read({"workload": "DeepSeek-V2 cut to 16 layers", **sizes, **_SPREAD_OUT, "ep": "8"})[0]
    assert cut.reason is None
    assert (cut.model.transformer.experts, cut.model.transformer.top_k) == (160, 6)
    assert cut.model.transformer.params == pytest.approx(60e9, rel=0.03)


def test_a_model_cut_to_fewer_layers_keeps_its_share_of_windows(read):
    # Llama 4 Scout attends in chunks of 8,192 tokens in three of four layers; torchao times 2 of its 48 layers.
    sizes = {"layers": "4", "hidden": "5120", "heads": "40", "n_gpus": "4", "seq": "16384"}
    (cut,) = read({"workload": "Llama 4 Scout", **sizes})
    assert (cut.model.transformer.layers, cut.model.transformer.windowed_layers) == (4, 3)


def test_experts_of_an_axis_are_of_the_model(read):
    # Llama 3 70B upcycled to 8 experts (Vavre et al. 2024) is no Llama 3 70B.
    sizes = {"layers": "80", "hidden": "8192", "heads": "64", "n_gpus": "256", "tp": "8", "pp": "8"}
    (found,) = read({"workload": "Llama 3 70B upcycled to 8 experts", **sizes, "ep": "4", "seq": "4096"})
    assert found.strategy is None
    assert "ep=4" in found.reason
    (dense,) = read({"workload": "Llama 3 70B", **sizes, "ep": "1", "seq": "4096"})
    assert dense.reason is None


@pytest.mark.parametrize(
    ("workload", "config", "pixels"),
    [
        ("ResNet-50, 160 pixels", "", 160 * 160),
        ("ResNet-50", "DDP; images of 288 pixels", 288 * 288),
        ("ResNet-50 at 176 resolution", "", 176 * 176),
        ("ResNet-50, image size 192", "", 192 * 192),
        ("ResNet-50", "eager; 256x256 pixels", 256 * 256),
        ("ResNet-50 192^2", "", 192 * 192),
        ("SDXL 512x512", "", 512 * 512),
        ("FLUX.1-dev, 512 x 768 px", "", 512 * 768),
        ("DiT-XL/2 512", "", 512 * 512),
        # Shorter sides of pictures that are no squares, of which the catalogue's are 800 x 1333.
        ("Mask R-CNN", "COCO at 400 pixels", 400 * 666),
    ],
)
def test_a_row_states_the_pixels_of_its_sample(read, workload, config, pixels):
    (row,) = read(IMAGES | {"workload": workload, "parallel_config": config})
    known = known_workload(workload, shipped())
    growth = pixels / known.image.pixels
    found = row.model.known
    assert found.image.pixels == pixels
    # Scores of attention grow with the square, words do not grow.
    assert found.forward_flop_per_sample == pytest.approx(known.forward_flop_per_sample * growth, rel=0.25)
    assert found.params == known.params
    assert any(f"{growth:.3g}" in note for note in row.notes)


IMAGES = {
    **dict.fromkeys(("layers", "hidden", "heads", "seq", "tp", "pp"), ""),
    "unit": "images/s",
    "measured": "1000",
}


@pytest.mark.parametrize(
    ("workload", "config"),
    [
        ("ResNet-50", ""),
        ("ResNet-50, 224 pixels", ""),
        ("ResNet-50, batches of 256 images", "512 img/s"),
        ("ResNet-50", "16x16 mesh; 4x4 torus"),
        ("ResNet-50", "1281167 images"),
        ("ResNeXt-101 32x4d", ""),
        ("SDXL, 64x64 latents", "latents of 128 x 128"),
        # Progressive pictures, of which nothing says how many.
        ("ResNet-50, 128 pixels", "then 224 pixels"),
        ("ResNet-50, CIFAR-10 at 32 pixels", ""),
    ],
)
def test_numbers_of_other_things_are_no_pixels(read, workload, config):
    (row,) = read(IMAGES | {"workload": workload, "parallel_config": config})
    assert row.model.known == known_workload(workload, shipped())
    assert row.model.notes == ()


def test_a_vision_transformer_has_as_many_tokens_as_patches(read):
    (of_name, of_column) = read(
        IMAGES | {"workload": "ViT-B/16 384"}, IMAGES | {"workload": "ViT-B/16 384", "seq": "197"}
    )
    assert of_name.model.sequence == of_name.model.known.sequence_tokens == 577
    assert of_column.model.sequence == 197


def test_a_model_known_by_figures_keeps_them_where_its_layers_are_stated(read):
    sizes = {"layers": "28", "hidden": "1152", "heads": "16", "params_b": "0.675"}
    (row,) = read(IMAGES | sizes | {"workload": "DiT-XL/2"})
    assert row.model.transformer is None
    assert row.model.known == known_workload("DiT-XL/2", shipped())


def test_the_width_that_parameters_set_is_of_three_matrices_where_blocks_are_gated(read):
    """nanotron's Llama of 1.11e9: 24 layers of 2,048, tables of 50,257; 3 x 4,096 or 2 x 6,144 wide (config.yaml)."""
    sizes = {"layers": "24", "hidden": "2048", "heads": "32", "params_b": "1.11"}
    gated, plain = read(sizes | {"workload": "Llama 1B (SwiGLU)"}, sizes | {"workload": "nobody's"})
    found = [(each.model.transformer.gated, each.model.transformer.ffn_hidden) for each in (gated, plain)]
    assert [is_gated for is_gated, _ in found] == [True, False]
    assert [width for _, width in found] == pytest.approx([4096, 6144], rel=0.01)


def test_parameters_that_are_stated_set_the_width_that_is_not(read):
    # Llama 2 13B: 40 layers of 5,120: attention 4 h^2 and 3 x 13,824 h; with two matrices instead, 20,736 wide.
    row = read({"workload": "nobody's", "layers": "40", "hidden": "5120", "heads": "40", "params_b": "15"})[0]
    assert row.model.transformer.params == pytest.approx(15e9, rel=0.001)
    assert any("feed-forward width" in note for note in row.notes)


@pytest.mark.parametrize(
    ("name", "sizes", "params_b", "published"),
    [
        # Published parameters: meta-llama/Llama-2-7b config and card; Qwen2.5-1.5B (tied embeddings) config and
        # card; GPT-NeoX-20B (Black et al. 2022, table 1): two matrices.
        ("Llama 2 of a fork", (32, 4096, 32, 32, 11008, 32000), "", 6_738_415_616),
        ("nobody's", (32, 4096, 32, 32, 11008, 32000), "6.74", 6_738_415_616),
        ("nobody's", (28, 1536, 12, 2, 8960, 151936), "1.54", 1_543_714_304),
        ("nobody's", (44, 6144, 64, 64, 24576, 50432), "20.6", 20_554_567_680),
    ],
)
def test_feed_forward_blocks_have_as_many_matrices_as_the_model_s(read, name, sizes, params_b, published):
    names = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary")
    cells = {column: str(size) for column, size in zip(names, sizes, strict=True)}
    row = read({**cells, "workload": name, "params_b": params_b})[0]
    assert row.model.transformer.params == pytest.approx(published, rel=0.002)


# So that each holds its share of the largest.
_SPREAD_OUT = {"n_gpus": "64", "pp": "8"}


@pytest.mark.parametrize(
    ("name", "config", "sizes", "published"),
    [
        # KempnerForge, mfu_scaling_2026-04-05.md: "13B | 14.84B | 5120 | 40 | 40 | 8" of grouped queries.
        (
            "Llama-3-like 13B (GQA 8; feed-forward 17920; vocabulary 128256)",
            "",
            (40, 5120, 40, 14.84),
            (8, 17_920, 128_256, False),
        ),
        # BLOOM's prequel: 181.2 G by 72 (12 h^2 + 13 h) + 250,000 h, h = 14,336, one table for both ends.
        ("GPT", "Megatron-DeepSpeed; vocabulary 250k", (72, 14_336, 64, 181.2), (64, 57_344, 250_000, True)),
        # config.json of Qwen2.5-0.5B; 494,032,768 parameters (its card).
        (
            "Qwen2.5-0.5B (2 KV heads, SwiGLU ffn 4864, vocabulary 151936)",
            "",
            (24, 896, 14, 0.494),
            (2, 4864, 151_936, True),
        ),
    ],
)
def test_sizes_that_stand_in_words_are_read(read, name, config, sizes, published):
    layers, hidden, heads, params_b = sizes
    cells = {"workload": name, "parallel_config": config, "params_b": f"{params_b}"} | _SPREAD_OUT
    row = read({**cells, "layers": f"{layers}", "hidden": f"{hidden}", "heads": f"{heads}"})[0]
    found = row.model.transformer
    assert (found.kv_heads, found.ffn_hidden, found.vocabulary, found.tied_embeddings) == published
    assert found.params == pytest.approx(params_b * 1e9, rel=0.002)


@pytest.mark.parametrize(
    ("chip", "software", "precision", "is_fused"),
    [
        ("A100 SXM 80GB", "Megatron-LM", "bf16", False),
        ("H100 SXM 80GB", "Megatron-LM", "bf16", True),  # which came out after FlashAttention
        ("A100 SXM 80GB", "Megatron-Core; Megatron-FSDP", "bf16", True),
        ("H100 SXM 80GB", "NGC pytorch 22.09", "bf16", False),
        # What else runs in these containers has the kernels of its own time.
        ("GH200 96GB", "Megatron-LM core_v0.16.1, Transformer Engine, NGC PyTorch 26.01", "bf16", True),
        ("H100 SXM 80GB", "PyTorch 2.6.0a0 (NGC 24.12) FSDP FULL_SHARD", "bf16", True),
        ("V100 SXM 32GB", "PyTorch", "fp16", False),
        # PyTorch has scaled_dot_product_attention since 2.0 (March 2023).
        ("A100 SXM 80GB", "Composer; PyTorch 1.13", "bf16", False),
        ("A100 SXM 80GB", "PyTorch 1.13; flash attention", "bf16", True),
        ("A100 SXM 80GB", "PyTorch 2.1", "bf16", True),
        ("A100 SXM 80GB", "PyTorch 2.6; from-scratch attention", "bf16", False),
        ("A100 SXM 80GB", "PyTorch 2.6; own multi-head attention", "bf16", False),
        # A kernel that is denied, or whose place plain products take, is not fused.
        ("H100 SXM 80GB", "PyTorch 2.6; no flash attention", "bf16", False),
        ("H100 SXM 80GB", "PyTorch 2.6, without FlashAttention", "bf16", False),
        ("H100 SXM 80GB", "PyTorch 2.6; flash_attention=false", "bf16", False),
        ("H100 SXM 80GB", "Megatron-Bridge; unfused attention (NVTE_UNFUSED_ATTN=1)", "bf16", False),
        ("H100 SXM 80GB", "PyTorch 2.6; eager or SDPA math attention", "bf16", False),
        ("H100 SXM 80GB", "PyTorch 2.6; attention by einsum and softmax (not fused); AdamW", "bf16", False),
        ("H100 SXM 80GB", "PyTorch 2.6; attention written out, not fused", "bf16", False),
        ("TPU v5p", "JAX; XLA attention, without a fused kernel; Adam", "bf16", False),
        ("TPU v5p", "JAX; manual softmax attention", "bf16", False),
        ("V100 SXM 32GB", "Flashlight (C++), data parallel", "fp16", False),
        # Another kernel or version is denied than the one used, or an optimizer.
        ("GH200 96GB", "PyTorch 2.9, SDPA (no FlashAttention 3)", "bf16", True),
        ("H100 SXM 80GB", "PyTorch 2.6; no FlashAttention-3", "bf16", True),
        ("H100 SXM 80GB", "Unsloth; xformers 0.0.35, no flash-attn", "bf16", True),
        ("H100 SXM 80GB", "PyTorch 2.6; SDPA efficient attention (no flash)", "bf16", True),
        ("V100 SXM 32GB", "HF Trainer; xformers memory-efficient attention", "fp16", True),
        ("H100 SXM 80GB", "PyTorch 2.6; SDPA flash attention; AdamW not fused", "bf16", True),
        ("H100 SXM 80GB", "PyTorch 2.6; attention by SDPA; AdamW (not fused)", "bf16", True),
        ("H100 SXM 80GB", "PyTorch 2.6; attention's kernel not stated", "bf16", True),
        # `--use_flash_attention` of its scripts is off unless given (examples/language-modeling/run_lora_clm.py).
        ("Gaudi 2", "Optimum Habana, HF Trainer; lazy mode, graphs compiled", "bf16", False),
        ("Gaudi 2", "Optimum Habana, HF Trainer; flash attention (FusedSDPA)", "bf16", True),
        # PyTorch trains on Intel's GPUs without fused kernels, where heads share keys and before 2.10 always
        # (aten/src/ATen/native/mkldnn/xpu/Attention.cpp: check_grad).
        ("Intel Max 1550", "torchtitan; FSDP2", "bf16", False),
        ("Intel Max 1550", "torchtitan; FSDP2; flash attention", "bf16", True),
        ("Gaudi 2", "DeepSpeed; ZeRO-3", "bf16", True),
        # GPT-2 Large, 64 samples on two H200: 72 to 88 GB were taken, where scores alone are 121 GB.
        ("H200 SXM", "Megatron-Core", "fp16", True),
    ],
)
def test_attention_is_fused_unless_software_of_the_time_did_not(read, chip, software, precision, is_fused):
    row = read({"hardware": chip, "parallel_config": software, "precision": precision})[0]
    assert row.strategy.fused_attention is is_fused


def test_heads_are_as_wide_as_a_row_says(read):
    """MaxText's default models of 128B have 128 heads of 128 over a hidden state of 8,192."""
    sizes = {"workload": "nobody's", "layers": "64", "hidden": "8192", "heads": "128"}
    words = "MaxText XLA; head_dim 128, so attention is 16384 wide"
    assert read({**sizes, "parallel_config": words})[0].model.transformer.head_size == 128
    assert read(sizes)[0].model.transformer.head_size == 64


def test_names_like_bert_are_encoders(read):
    sizes = {"layers": "6", "hidden": "768", "heads": "12", "params_b": "0.066"}
    encoder = read({"workload": "DistilBERT-base", **sizes})[0].model.transformer
    # 66 million parameters: Sanh et al. 2019, table 3.
    assert encoder.params == pytest.approx(66e6, rel=0.02)
    assert not encoder.causal
    assert encoder.predicted_fraction == 0.15
    assert read({"workload": "nobody's", **sizes})[0].model.transformer.causal


def test_names_are_found_in_longer_texts():
    assert known_workload("LLAMA3.1_405B Pre-Training Performance", shipped()).transformer.layers == 126
    assert known_workload("Frobnicator XL Pre-Training Performance", shipped()) is None
    assert known_workload("Small CNN of the lab", shipped()) is not None
    assert known_workload("Faster R-CNN R-50-FPN", shipped()) is None  # no CNN of 1.2 million parameters
    assert collective_of("nccl-tests all-reduce") == "all_reduce"
    assert collective_of("reduce_scatter_perf") == "reduce_scatter"
    assert collective_of("overall_reduced") is None


@pytest.mark.parametrize(
    ("name", "sizes", "experts"),
    [
        # Sizes as their sources print them, with the parameters that they print.
        (
            "Hunyuan 3 295B-A21B (1 dense of ffn 13312, 79 MoE; 192 experts top-8 ffn 1536 + 1 shared)",
            (295, 80, 4096, 64),
            (192, 8, 1536, 1536, 1),
        ),
        (
            "MoE-64: 64 experts of 384 top-6 + 2 shared, 1 dense layer",
            (0.755, 12, 768, 12),
            (64, 6, 384, 768, 1),
        ),
        (
            "MoE 6.233B: 3 dense + 21 MoE layers, 80 experts of 768 top-8, shared expert 768",
            (6.233, 24, 1536, 12),
            (80, 8, 768, 768, 3),
        ),
        # marin-community/marin: 249B in all.
        (
            "Grug MoE, 256 experts top-8, expert intermediate 1280, 1 shared expert 5120",
            (249, 48, 5120, 40),
            (256, 8, 1280, 5120, None),
        ),
        ("16 SwiGLU experts of 768 top-2", (0.222, 6, 768, 12), (16, 2, 768, 0, None)),
        # Mixtral 8x7B (Jiang et al. 2024, table 1): 14,336 wide, which 46.7e9 parameters make.
        (
            "a mixture, 8 experts top-2",
            (46.7, 32, 4096, 32),
            (8, 2, pytest.approx(14_336, rel=0.06), 0, None),
        ),
    ],
)
def test_experts_are_read_in_words_and_make_the_parameters_that_are_stated(read, name, sizes, experts):
    params_b, layers, hidden, heads = sizes
    cells = {"params_b": f"{params_b}", "layers": f"{layers}", "hidden": f"{hidden}", "heads": f"{heads}"}
    found = read({"workload": name, **cells, **_SPREAD_OUT})[0].model.transformer
    of_layer = (found.experts, found.top_k, found.expert_ffn_hidden, found.shared_expert_ffn_hidden)
    assert (*of_layer, found.dense_layers) == experts
    assert found.params == pytest.approx(params_b * 1e9, rel=0.05)


@pytest.mark.parametrize(
    ("name", "params_b", "reason"),
    [
        ("Somebody's 30B-A3B", "30", "experts=None, top_k=None"),
        ("MoE of 64 experts", "30", "experts=64, top_k=None"),
        ("a lab's 8x7B", "47", "experts=8, top_k=None"),
        ("MoE of 0 experts top-0", "30", "experts=0"),
        ("MoE of 64 experts of 384 top-6, 12 dense layers", "0.7", "of 12"),
        ("MoE of 64 experts of 384 top-6", "300", "300 B"),
    ],
)
def test_a_mixture_whose_experts_are_not_told_is_no_dense_model(read, name, params_b, reason):
    sizes = {"params_b": params_b, "layers": "12", "hidden": "768", "heads": "12"}
    assert reason in read({"workload": name, **sizes})[0].reason


def test_a_name_of_another_size_is_another_model():
    # GPT-2 has 124 million parameters (Radford et al. 2019, as its repository corrects table 2).
    cells = {"workload": "Lab's GPT 2.7B", "seq": "1024"}
    assert (
        model_of(TextRow(place="here", cells=cells | {"params_b": "0.124"}), shipped()).known.slug == "gpt2"
    )
    with pytest.raises(DataError, match="layers, hidden"):
        model_of(TextRow(place="here", cells=cells | {"params_b": "2.7"}), shipped())


def test_hybrid_sharding_is_within_nodes_unless_a_number_says_otherwise(read):
    def replicas(words, chip="8 x H100 SXM 80GB per node"):
        change = {"hardware": chip, "n_gpus": "32", "tp": "1", "pp": "1", "dp": "32", "global_batch": "64"}
        return read({**change, "micro_batch": "2", "parallel_config": words})[0].strategy.dp_replicate

    assert replicas("FSDP1 HYBRID_SHARD") == 4
    assert replicas("HSDP=16") == 2
    assert replicas("FSDP1 FULL_SHARD") == 1


def test_states_are_in_16_bits_where_one_accelerator_does_not_hold_them_otherwise(read):
    """16 bytes of 8.03e9 parameters are 128 GB, 8 are 64 GB; half the model fits either way (Rajbhandari et al. 2020)."""

    def has_master(model, size, **more):
        alone = dict.fromkeys(("n_gpus", "tp", "pp", "dp", "global_batch", "micro_batch"), "1")
        by_name = dict.fromkeys(("params_b", "layers", "hidden", "heads"), "")
        row = {
            **alone,
            **by_name,
            "workload": model,
            "hardware": size,
            "parallel_config": "HF Trainer",
            **more,
        }
        return read(row)[0].strategy.master_weights

    assert not has_master("Llama 3.1 8B", "RTX PRO 6000 Blackwell 96GB", precision="bf16")
    assert has_master("Llama 3.1 8B", "B200", precision="bf16")
    assert has_master("Llama 3.1 8B", "RTX PRO 6000 Blackwell 96GB", precision="fp32")
    assert has_master("Llama 3.1 8B", "RTX PRO 6000 Blackwell 96GB", precision="bf16 autocast, fp32 masters")
    assert has_master("Llama 3.1 8B", "RTX PRO 6000 Blackwell 96GB", parallel_config="HF Trainer; Adafactor")


def test_a_model_needs_sizes_or_a_name():
    with pytest.raises(DataError, match=r"'x': .*layers, hidden .*heads.*--workloads FILE"):
        model_of(TextRow(place="here", cells={"workload": "x"}), shipped())


def test_two_units_of_one_execution_count_once(read):
    # 8,192 tokens/s/GPU is one second; the FLOP/s with it depend on how FLOP are counted.
    rows = with_executions(
        read(
            {"measured": "8192", "unit": "tokens/s/GPU"},
            {"measured": "11.0", "unit": "model TFLOP/s/GPU"},
            {"measured": "4096", "unit": "tokens/s/GPU", "n_gpus": "16", "global_batch": "64"},
        )
    )
    assert [row.execution for row in rows] == [0, 0, 1]
    assert [row.unit for row in chosen(rows)] == ["tokens/s/GPU", "tokens/s/GPU"]


def test_the_finer_figure_says_how_long_an_execution_took(read):
    # 23 days is anything from 22.5 to 23.5: 2 %; 141 TFLOP/s is known to 0.4 %, and its convention to 1 %.
    rows = read(
        {"measured": "23", "unit": "days for 300B tokens", "recompute": "full"},
        {"measured": "141", "unit": "TFLOP/s/GPU (incl. recompute)", "recompute": "full"},
    )
    assert chosen(with_executions(rows))[0].unit.startswith("TFLOP")
    rows = read(
        {"measured": "230", "unit": "days for 300B tokens", "recompute": "full"},
        {"measured": "141", "unit": "TFLOP/s/GPU (incl. recompute)", "recompute": "full"},
    )
    assert chosen(with_executions(rows))[0].unit.startswith("days")


def test_repetitions_are_separate_executions_of_one_cluster(read):
    rows = with_executions(read({"measured": "1.0"}, {"measured": "1.1"}))
    assert [row.execution for row in rows] == [0, 1]
    assert [row.cluster for row in rows] == [0, 0]


def test_a_cluster_is_one_width_and_strategy_whatever_its_layers_and_micro_batches(read):
    rows = with_executions(
        read(
            {},
            {"layers": "12"},
            {"global_batch": "128"},
            {"micro_batch": "2"},
            {"hidden": "2048"},
            {"tp": "4"},
        )
    )
    assert [row.cluster for row in rows] == [0, 0, 0, 1, 2, 3]


def test_two_thirds_of_the_flop_are_adapters(read):
    # Weights that are frozen have no gradients of their own: 4 FLOP a weight and token instead of 6.
    full = 3 * (24 * (24 * 1024**2 + 4 * 1024 * 512.5) + 2 * 50_257 * 1024) * 8192 / 1e12
    for share, trained in ((1.0, "full"), (2 / 3, "lora")):
        rows = with_executions(
            read(
                {"measured": "8192", "unit": "tokens/s/GPU"},
                {"measured": f"{share * full:.6f}", "unit": "model TFLOP/s/GPU"},
            )
        )
        assert {row.strategy.trained for row in rows} == {trained}


def test_memory_is_that_of_the_execution(read):
    rows = with_executions(
        read(
            {"measured": "8192", "unit": "tokens/s/GPU", "memory_gib": "40"},
            {"measured": "1", "unit": "s/step"},
        )
    )
    assert [row.memory_bytes for row in rows] == [40 * 2**30] * 2
    assert {row.memory_counted for row in rows} == {None}


@pytest.mark.parametrize(
    ("source", "counted", "num_bytes"),
    [
        # nvidia-smi's 40,000 MiB are the 40 GB of that page: its A100 with 80 GB in use has 81,251 MiB in all.
        ("github:bigscience-workshop/bigscience@9e64edec2:train/x.md", "device", 40_000 * 2**20),
        ("github:pytorch/torchtitan@31a17bfdb:benchmarks/x.md Table 5", "reserved", 40 * 2**30),
        ("github:KempnerInstitute/KempnerForge@9f3f03a07:x.md row 1", "allocated", 40 * 2**30),
        ("github:alfredyu24/amd-mi350-benchmarks@fde882461:x.md Benchmark 3", "allocated", 40e9),
        ("github:alfredyu24/amd-mi350-benchmarks@fde882461:x.md Benchmark 5", None, 40 * 2**30),
        # `GPU mem: 8430MiB / 40537MiB`, as nvidia-smi prints it.
        ("github:xduan7/scalable-transformer@1c09d1585:docs/x.md", "device", 40 * 2**30),
        # bench_single.py: torch.npu.max_memory_allocated() / 1e9.
        ("github:jianzhnie/ScaleTorch@1685919fe:docs/x.md 7.2", "allocated", 40e9),
        # run_experiment.py: torch.cuda.max_memory_allocated() / 1e9.
        ("github:BastiaanGroot/ML-Infrastructure-Engineer@c62a4677a:training/x.md", "allocated", 40e9),
        (
            "github:jinsan02/kotokenlab@f4cb9f976:x.md; memory allocated, MiB turned to GiB",
            "allocated",
            40 * 2**30,
        ),
        (
            "github:yukicoder0509/x@5f6fe9d89:x.md; memory as reserved (this row: allocated)",
            "allocated",
            40 * 2**30,
        ),
        ("github:yukicoder0509/x@5f6fe9d89:x.md; memory as reserved", None, 40 * 2**30),
        ("github:x/y@5f6fe9d89:x.md; as the script reports it: peak allocated", "allocated", 40 * 2**30),
    ],
)
def test_memory_is_read_as_its_source_counts_it(read, source, counted, num_bytes):
    (row,) = read({"memory_gib": "40", "source": source})
    assert row.memory_counted == counted
    assert row.memory_bytes == pytest.approx(num_bytes)


@pytest.mark.parametrize(
    ("cells", "is_twofold"),
    [
        ({"parallel_config": "Megatron-LM", "precision": "fp16"}, True),
        ({"parallel_config": "Megatron-LM", "precision": "bf16"}, False),
        ({"parallel_config": "DeepSpeed ZeRO-1", "precision": "bf16"}, True),
        ({"parallel_config": "Megatron-DeepSpeed 3D", "precision": "fp16"}, True),
        ({"parallel_config": "Megatron-DeepSpeed 3D", "precision": "bf16"}, False),
        ({"parallel_config": "PyTorch DDP", "precision": "fp16"}, False),
    ],
)
def test_software_that_widens_gradients_of_16_bits_has_both(read, cells, is_twofold):
    (row,) = read(cells)
    assert row.strategy.gradient_copies == is_twofold


def test_a_rate_without_a_step_is_still_a_rate(read):
    row = read(
        {
            "workload": "TFT Electricity",
            "layers": "",
            "hidden": "",
            "heads": "",
            "unit": "throughput (unit in README)",
            "measured": "50",
        }
    )[0]
    assert (row.kind, row.seconds) == ("throughput", 0.02)
    row = read(
        {"workload": "nnUNet", "layers": "", "hidden": "", "heads": "", "unit": "img/s/GPU", "measured": "5"}
    )[0]
    assert (row.kind, row.seconds) == ("throughput", 1 / 40)


def test_columns_may_be_missing_or_too_many(mine):
    path = mine(
        "Hardware,n_gpus,measured,unit,layers,hidden,heads,seq,micro_batch,colour\n"
        "DGX A100,8,2,s/iteration,24,1024,16,1024,4,blue\n",
        "few.csv",
    )
    row = read_rows([path])[0]
    assert row.seconds == 2.0
    assert row.cells["colour"] == "blue"
    path.write_text("hardware,n_gpus,time\nDGX A100,8,2\n")
    with pytest.raises(DataError, match=r"measured, unit; .*'hardware', 'n_gpus' and 'time'"):
        read_rows([path])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty; "),
        (b"a,b\n1,2\n", "column hardware, n_gpus, measured, unit"),
        (b"PAR1 no parquet at all", "Parquet table"),
        (b'hardware,n_gpus,measured,unit\n"unclosed,1\n', "row 1: unexpected"),
        (b"hardware,n_gpus,measured,unit\n1,2,3\n", "row 1: 3 cells; expected 4"),
        ("hardware,unit".encode("utf-16"), "UTF-16"),
        (b"hardware,n_gpus,measured,unit\n" + b"x,1,1,s\n" * 10_001, "more than 10,000 rows"),
        (b"hardware," * 1001, "1,002 columns; "),
        (b"unit,unit\n", "'unit'"),
    ],
)
def test_a_file_that_is_no_table_is_refused(mine, content, words):
    path = mine(content, "rows.csv")
    with pytest.raises(DataError, match=re.escape(words)):
        read_rows([path])


def test_a_file_is_named_once(tmp_path, mine):
    path = mine("hardware,n_gpus,measured,unit\n", "rows.csv")
    assert read_executions([path]) == ()
    with pytest.raises(UsageError, match="given twice"):
        read_rows([path, tmp_path / "." / "rows.csv"])


@pytest.mark.law
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_no_unit_does_worse_than_being_refused(text):
    try:
        found = quantity(text)
    except DataError:
        return
    assert 0 < found.si < math.inf


@pytest.mark.law
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80), st.text(max_size=20), st.text(max_size=20))
def test_no_words_do_worse_than_being_refused(config, precision, recompute):
    try:
        found = strategy_words(config, precision, recompute)
    except DataError:
        return
    assert 0 <= found.zero_stage <= 3


@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        # shared reference, performance model: 1,160 rows in 116 configurations; pairs of units count once.
        ("vtrain_single", (1160, 1160, 116, 0)),
        ("vtrain_multi", (46, 46, 45, 0)),
        ("korthikanti_table5", (4, 4, 4, 0)),
        ("megatron_sc21_mtnlg", (33, 18, 18, 0)),
        ("megatron_bridge_nemo", (286, 143, 46, 0)),
        ("torchtitan", (18, 18, 18, 0)),
        ("llama3_herd_table4", (6, 3, 3, 0)),
        ("nccl_vtrain_allreduce", (154, 77, 77, 0)),
        # Two bandwidths are rounding (0.01, 0.04 GB/s), as in the reference.
        ("nccl_published", (66, 64, None, 2)),
        ("nvidia_deeplearningexamples", (426, 426, None, 0)),
    ],
)
def test_the_published_files_are_read_whole(data_dir, name, numbers):
    num_rows, num_executions, num_clusters, num_rejected = numbers
    rows = with_executions(read_rows([data_dir / "measured" / f"{name}.csv"]))
    assert len(rows) == num_rows
    assert sum(row.seconds is None for row in rows) == num_rejected
    assert len(chosen(rows)) == num_executions
    if num_clusters is not None:
        assert len({row.cluster for row in rows if row.seconds is not None}) == num_clusters


@pytest.mark.truth
@pytest.mark.parametrize("name", ["megatron_sc21_mtnlg", "nccl_vtrain_allreduce"])
def test_both_units_of_published_executions_agree(data_dir, name):
    # Their authors computed one from the other; days and TFLOP/s are rounded to 1 to 2 %.
    by_execution = {}
    for row in with_executions(read_rows([data_dir / "measured" / f"{name}.csv"])):
        by_execution.setdefault(row.execution, []).append(row.seconds)
    pairs = [pair for pair in by_execution.values() if len(pair) == 2]
    assert len(pairs) >= 15
    assert all(pair[0] == pytest.approx(pair[1], rel=0.015) for pair in pairs)


@pytest.mark.parametrize(
    ("column", "figure"),
    [("step_ms", 9000), ("samples_per_s", 128 / 9), ("tokens_per_min", 60 * 128 * 8192 / 9)],
)
def test_files_of_runs_are_read_as_advise_reads_them(tmp_path, column, figure):
    """128 sequences of 8,192 tokens in 9 s."""
    path = tmp_path / "mine.csv"
    header = f"workload,accelerator,num_gpus,global_batch_size,seq_len,{column},precision,status"
    row = f"llama31_8b,h100,8,128,8192,{figure!r},bf16"
    path.write_text(f"{header}\n{row},success\n{row},failed\n")
    (found,) = read_rows([path])
    assert found.reason is None
    assert found.seconds == pytest.approx(9.0)
    assert found.strategy.global_batch_samples == 128
    assert found.strategy.precision == "bf16"
    (predicted,) = validate([path]).verdicts
    assert predicted.predicted is not None


def _of_llama(tmp_path, rate, **changed):
    """Llama 3.1 8B on eight H100: 9,800 tokens a second and accelerator are 45 % of 989 TFLOP/s."""
    cells = {
        "model": "meta-llama/Llama-3.1-8B",
        "accelerator": "h100",
        "num_gpus": "8",
        "seq_len": "8192",
        "global_batch_size": "128",
        "precision": "bf16",
        "tokens_per_s_per_gpu": rate,
    } | changed
    path = tmp_path / "mine.csv"
    path.write_text("\n".join((";".join(cells), ";".join(cells.values()), "")))
    (found,) = read_rows([path])
    return found


def test_the_rate_of_one_accelerator_is_a_plain_number(tmp_path):
    """With a comma it would be read as that of all."""
    for cell in ("9800", "9.8k"):
        assert _of_llama(tmp_path, cell).seconds == pytest.approx(128 * 8192 / (8 * 9800))
    refused = _of_llama(tmp_path, "9,800")
    assert refused.seconds is None
    assert "9,800" in refused.reason
    assert "tokens_per_s_per_gpu" in refused.reason


@pytest.mark.parametrize(
    ("rate", "changed", "is_read"),
    [
        ("9800", {}, True),
        # Six FLOP for each of 7 billion weights in layers: 989 TFLOP/s are at most 23,600 tokens.
        ("27000", {}, False),
        ("27000", {"precision": "fp8"}, True),
        ("27000", {"precision": ""}, True),
        ("9800", {"accelerator": "v100-sxm2-32gb", "precision": "fp16"}, False),
    ],
)
def test_no_row_is_above_the_peak(tmp_path, rate, changed, is_read):
    assert (_of_llama(tmp_path, rate, **changed).seconds is not None) == is_read


def test_states_that_do_not_fit_whole_are_sharded_where_nobody_says_how(tmp_path):
    """Sixteen bytes for each of 8 billion parameters are 128 GB: more than 80 GB, less than 141 GB."""
    for chip, stage in (("h100", 3), ("h200", 0)):
        assert _of_llama(tmp_path, "9800", accelerator=chip).strategy.zero_stage == stage
    stated = _of_llama(tmp_path, "9800", framework="PyTorch DDP")
    assert stated.strategy.zero_stage == 0
    # Megatron-Core shards what the optimizer keeps, other software weights too, by whichever name the column has.
    for column in ("framework", "software"):
        for name, stage in (("megatron_core", 1), ("PyTorch", 3), ("quux 1.0", 3)):
            assert _of_llama(tmp_path, "9800", **{column: name}).strategy.zero_stage == stage


@pytest.mark.parametrize(("column", "name"), [("framework", "PyTorch"), ("software", "quux 1.0")])
def test_a_column_of_software_states_no_strategy_in_a_table_of_measured_steps_either(mine, column, name):
    path = mine(
        f"workload,hardware,{column},n_gpus,precision,global_batch,seq,measured,unit\n"
        f"llama31_8b,8x H100 SXM5 80GB,{name},8,bf16,128,8192,13.4,s/step\n",
        "table.csv",
    )
    (found,) = read_rows([path])
    assert found.strategy.zero_stage == 3


@pytest.mark.parametrize(
    ("framework", "name"), [("torchtitan", "torchtitan"), ("NeMo 25.04", "megatron_core")]
)
def test_the_software_of_a_run_is_that_of_its_column(mine, framework, name):
    # Their strategy is FSDP too, which alone is taken for FSDP of 2023.
    path = mine(
        "workload,accelerator,num_gpus,global_batch_size,seq_len,step_ms,precision,framework,strategy\n"
        f"llama31_8b,h100,8,32,8192,3300,bf16,{framework},fsdp\n"
    )
    (found,) = read_rows([path])
    assert found.reason is None
    assert software_of(found).name == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        # A host says nothing of what ran; a repository's own name does.
        ("https://huggingface.co/nanotron/old_bench/blob/6f8338bb6c39/log_metrics.csv", None),
        ("https://github.com/huggingface/nanotron/pull/1", None),
        ("https://github.com/swiss-ai/Megatron-LM/pull/33", "megatron_core"),
        ("github:NVIDIA/Megatron-LM@31a17bfdb:README.md", "megatron_core"),
    ],
)
def test_a_source_names_software_by_its_repository_alone(read, source, name):
    (found,) = read({"hardware": "H100 80GB", "precision": "bf16", "source": source})
    software = software_of(found)
    assert (software and software.name) == name


@pytest.mark.parametrize(
    ("config", "name"),
    [
        # Built on transformers' Trainer and Accelerate, as their documentation says.
        ("Axolotl 0.19.0; FSDP2 no-reshard", "hf"),
        ("trl SFTTrainer, LoRA rank 16", "hf"),
        ("MS-SWIFT 4.5.3; FSDP2", "hf"),
        ("ms-swift with Megatron", "megatron_core"),
        ("PEFT; FSDP2; LoRA rank 8", "hf"),
        ("Unsloth FastLanguageModel; QLoRA", "hf"),
        ("own code; FSDP2", "torchtitan"),
        # CroissantLLM: `We train on a modified version of Megatron-Deepspeed` (arXiv:2402.00786, section 3.5).
        ("Megatron-DeepSpeed; Hugging Face data", "megatron_core"),
        ("Megatron-DeepSpeed; HuggingFace tokenizer", "megatron_core"),
        ("own code; FSDP2; HF datasets; checkpoints of Hugging Face", "torchtitan"),
    ],
)
def test_libraries_on_transformers_run_as_it_does(read, config, name):
    (found,) = read({"hardware": "H100 80GB", "parallel_config": config, "tp": "8", "pp": "1"})
    assert software_of(found).name == name


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"parallel_config": "Automodel, PyTorch; FSDP2; DeepEP"}, "automodel"),
        ({"workload": "GPT (Mistral-Nemo tokenizer)", "parallel_config": "PyTorch DDP"}, None),
        ({"parallel_config": "NeMo 24.09"}, "megatron_core"),
    ],
)
def test_nemo_is_a_library_a_family_of_models_and_part_of_a_name(read, cells, name):
    (found,) = read({"hardware": "H100 80GB", "precision": "bf16", "tp": "1", "pp": "1"} | cells)
    software = software_of(found)
    assert (software and software.name) == name


def test_megatron_splits_sequences_where_it_splits_tensors_next_to_experts(read):
    """It stops otherwise: megatron/training/arguments.py."""
    mixture = {"workload": "MoE of 64 experts of 384 top-6", "precision": "bf16", "pp": "1"}
    named, other, off = read(
        mixture | {"parallel_config": "Megatron-Core"},
        mixture | {"parallel_config": "own code"},
        mixture | {"parallel_config": "Megatron-Core; sequence parallel=no"},
    )
    assert [each.strategy.sequence_parallel for each in (named, other, off)] == [True, False, False]


@pytest.mark.parametrize(("tp", "name"), [("1", "fsdp"), ("8", None)])
def test_a_technique_that_a_row_names_is_no_software_that_lacks_its_axes(read, tp, name):
    # llm-foundry's FSDP of 2023 has no tensor axis (its README); Llama 3's training had FSDP and eight ranks of one.
    (found,) = read({"hardware": "H100 80GB", "parallel_config": "FSDP", "tp": tp, "pp": "1"})
    software = software_of(found)
    assert (software and software.name) == name


def test_what_is_neither_published_rows_nor_runs_is_refused_with_both(mine):
    path = mine("foo,bar\n8,9000\n")
    with pytest.raises(DataError, match=r"hardware, n_gpus.*num_accelerators"):
        read_rows([path])


@pytest.mark.parametrize(
    ("workload", "hardware", "words", "precision"),
    [
        ("ResNet-50", "L40S 48GB", "fp32", "tf32"),
        ("ResNet-50", "V100 SXM2 32GB", "fp32", "fp32"),  # which has no tf32
        ("BERT-large", "A100 SXM 40GB", "fp32", "fp32"),  # of matrix products alone
        ("ResNet-50", "A100 SXM 40GB", "fp32 (TF32 off)", "fp32"),
        ("ResNet-50", "A100 SXM 40GB", "fp32, without TF32", "fp32"),
        ("ResNet-50", "A100 SXM 40GB", "fp32 (no TF32 in matmul)", "tf32"),
        ("ResNet-50", "A100 SXM 40GB", "fp32 (TF32 not stated)", "tf32"),
    ],
)
def test_convolutions_in_fp32_multiply_in_tf32_where_the_chip_does(
    read, workload, hardware, words, precision
):
    """PyTorch's notes on CUDA: TF32 is on for convolutions and off for matrix products unless set."""
    sizes = {"layers": "", "hidden": "", "heads": "", "params_b": "", "seq": "", "n_gpus": "1"}
    split = {"tp": "1", "pp": "1", "dp": "1", "global_batch": "32", "micro_batch": "32"}
    (found,) = read(sizes | split | {"workload": workload, "hardware": hardware, "precision": words})
    assert found.strategy.precision == precision


@pytest.mark.parametrize(
    ("words", "vocabulary"),
    [
        ("GPT-2 124M", 50_257),
        ("GPT-2 124M, vocabulary padded to 50304", 50_304),
        ("GPT-2; vocab=50304", 50_304),
    ],
)
def test_a_model_that_is_known_has_the_vocabulary_that_the_row_states(read, words, vocabulary):
    sizes = {"layers": "12", "hidden": "768", "heads": "12", "params_b": "0.124"}
    (found,) = read(sizes | {"workload": words, "tp": "1"})
    assert found.model.transformer.vocabulary == vocabulary


@pytest.mark.parametrize(
    ("recompute", "samples"),
    # 34 bytes a token, layer and unit of width are 0.86 GB a sample of 24 x 1,024 x 1,024, 2 bytes 0.05 GB
    # (Korthikanti et al. 2022, equation 2): half of 80 GB holds 46 or all 64 of them.
    [("none", 32), ("full", 64)],
)
def test_a_microbatch_that_is_not_stated_is_what_memory_holds(read, recompute, samples):
    split = {"n_gpus": "1", "tp": "1", "pp": "1", "dp": "1", "global_batch": "64", "micro_batch": ""}
    (found,) = read(split | {"hardware": "A100 SXM 80GB", "recompute": recompute})
    assert found.strategy.microbatch_samples == samples


@pytest.mark.parametrize(
    ("split", "is_read"),
    # 350 GB of weights in 16 bits: on 8 of 80 GB they are sharded eight times or not there.
    [({"tp": "1", "pp": "1"}, False), ({"tp": "8", "pp": "1"}, True), ({"parallel_config": "FSDP"}, True)],
)
def test_weights_that_no_accelerator_holds_are_a_layout_that_is_not_stated(read, split, is_read):
    gpt3 = {"workload": "GPT-3 175B", "layers": "96", "hidden": "12288", "heads": "96", "seq": "2048"}
    usual = {"tp": "1", "pp": "1", "hardware": "H100 SXM 80GB", "recompute": "full"}
    (found,) = read(gpt3 | usual | split)
    assert (found.strategy is not None) == is_read
