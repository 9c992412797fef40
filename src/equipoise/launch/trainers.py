"""A strategy as a configuration of DeepSpeed, of `accelerate launch`, and for the Trainer of transformers."""

from collections.abc import Iterator

from equipoise.launch.program import (
    Expressed,
    FieldRule,
    Model,
    Option,
    Program,
    adapters_in_code,
    averaging,
    compression,
    kernels_in_code,
    master_weights_rule,
    refuse_pipeline,
)
from equipoise.spec.strategy import Strategy

_OPTIMIZERS = {"adam": "AdamW", "adam_8bit": "AdamW", "sgd": "SGD"}


def _batch(strategy: Strategy, _: Model) -> Expressed:
    yield Option("train_batch_size", strategy.global_batch_samples)
    yield Option("train_micro_batch_size_per_gpu", strategy.microbatch_samples)
    yield Option("gradient_accumulation_steps", strategy.num_microbatches)


def _precision(strategy: Strategy, _: Model) -> Expressed:
    if strategy.precision == "fp16":
        yield Option("fp16.enabled")
    elif strategy.precision not in {"fp32", "tf32"}:
        yield Option("bf16.enabled")
    if strategy.precision == "tf32":
        yield 'tf32 products: call torch.set_float32_matmul_precision("high")'
    elif strategy.precision not in {"fp32", "fp16", "bf16"}:
        yield f"{strategy.precision}: its configuration has no products below 16 bits; bf16 is written"


def _states(strategy: Strategy, _: Model) -> Expressed:
    yield Option("zero_optimization.stage", strategy.zero_stage)
    if strategy.zero_stage:
        yield Option("zero_optimization.overlap_comm")
    if strategy.dp_replicate > 1:
        yield (
            f"dp_replicate={strategy.dp_replicate}: states are sharded over all ranks; "
            "zero_hpz_partition_size keeps a second copy of the weights alone in a group"
        )
    if strategy.offload == "none":
        return
    if strategy.zero_stage == 0:
        yield f"offload={strategy.offload} at ZeRO stage 0: it offloads sharded states (stage 1 and above)"
        return
    yield Option("zero_optimization.offload_optimizer.device", "cpu")
    yield Option("zero_optimization.offload_optimizer.pin_memory")
    if strategy.offload == "optimizer_and_params":
        if strategy.shards_weights:
            yield Option("zero_optimization.offload_param.device", "cpu")
            yield Option("zero_optimization.offload_param.pin_memory")
        else:
            yield f"offloading of weights at ZeRO stage {strategy.zero_stage}: it needs stage 3"


def _optimizer(strategy: Strategy, _: Model) -> Expressed:
    yield Option("optimizer.type", _OPTIMIZERS[strategy.optimizer])
    # Those of the scripts: yours replace them.
    if strategy.optimizer == "sgd":
        yield Option("optimizer.params.lr", 1e-2)
        yield Option("optimizer.params.momentum", 0.9)
    else:
        yield Option("optimizer.params.lr", 1e-3)
    if strategy.optimizer == "adam_8bit":
        yield "8-bit Adam: pass one (torchao, bitsandbytes) to deepspeed.initialize; AdamW is written"


def _tensor(strategy: Strategy, _: Model) -> Expressed:
    if strategy.tp > 1:
        yield Option("tensor_parallel.autotp_size", strategy.tp)
    if strategy.tp_overlap:
        yield Option("tensor_parallel.tp_overlap_comm")
    if strategy.sequence_parallel:
        yield "sequence parallelism of tp: it cuts attention and feed-forward products only"


def _context(strategy: Strategy, _: Model) -> Expressed:
    if strategy.cp > 1:
        yield Option("sequence_parallel_size", strategy.cp)
        yield f"cp={strategy.cp} as a ring: it exchanges heads instead (Ulysses)"


def _experts(strategy: Strategy, _: Model) -> Expressed:
    if strategy.ep > 1:
        yield Option("expert_parallel.enabled")
        yield Option("expert_parallel.autoep_size", strategy.ep)
        # The performance model keeps each expert whole.
        yield Option("expert_parallel.expert_tensor_parallel_size", 1)


def _compression(strategy: Strategy, model: Model) -> Expressed:
    if strategy.compression == "fp16":
        yield Option("communication_data_type", "fp16")
    else:
        yield from compression(strategy, model)


def _activations(strategy: Strategy, _: Model) -> Expressed:
    if strategy.activation_offload:
        yield Option("activation_checkpointing.cpu_checkpointing")
        yield "activations in the host's memory: of layers that call deepspeed.checkpointing.checkpoint"


def _in_code(strategy: Strategy, _: Model) -> Expressed:
    if strategy.recompute != "none":
        yield (
            f"{strategy.recompute} recomputation: the code of your model calls it, "
            "e.g. gradient_checkpointing_enable()"
        )
    if strategy.implementation == "compiled":
        yield "compilation: call engine.compile() after deepspeed.initialize"


DEEPSPEED = Program(
    name="DeepSpeed",
    file="deepspeed.json",
    form="json",
    version="0.19.8",
    source="https://www.deepspeed.ai/docs/config-json",
    rules=(
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_batch),
        FieldRule(fields=("dp",), derived="processes over tp x cp; the batch states it too"),
        FieldRule(fields=("precision",), express=_precision),
        FieldRule(fields=("zero_stage", "dp_replicate", "offload"), express=_states),
        FieldRule(fields=("optimizer",), express=_optimizer),
        master_weights_rule("its optimizer keeps one"),
        FieldRule(fields=("tp", "sequence_parallel", "tp_overlap"), express=_tensor),
        FieldRule(fields=("cp",), express=_context),
        FieldRule(fields=("ep",), express=_experts),
        FieldRule(fields=("pp", "interleave", "schedule"), derived="refused: pipelines are modules in code"),
        FieldRule(fields=("compression", "compression_rank"), express=_compression),
        FieldRule(fields=("sync_period",), express=averaging),
        FieldRule(fields=("activation_offload",), express=_activations),
        FieldRule(fields=("recompute", "implementation"), express=_in_code),
        FieldRule(fields=("fused_attention", "fused_loss"), express=kernels_in_code),
        FieldRule(fields=("trained", "lora_rank"), express=adapters_in_code),
    ),
    refuse=refuse_pipeline,
    use="deepspeed.initialize(config=...), --deepspeed_config of a script, or deepspeed= of the Trainer",
    checked_with="DeepSpeed 0.19.8's DeepSpeedConfig",
)


# --- accelerate and the Trainer


_TRAINER_OPTIMIZERS = {"adam": "adamw_torch", "adam_8bit": "adamw_bnb_8bit", "sgd": "sgd"}


def _is_sharded(strategy: Strategy) -> bool:
    """Whether FSDP trains: it shards, offloads, and alone has tensor and context parallelism."""
    return strategy.zero_stage > 0 or strategy.offload != "none" or strategy.tp * strategy.cp > 1


def _refused(strategy: Strategy, model: Model) -> Iterator[str]:
    yield from refuse_pipeline(strategy, model)
    if strategy.tp > 1 and strategy.dp * strategy.cp == 1:
        yield f"tp={strategy.tp} alone: FSDP, which it is part of, has no ranks to shard over"


def _stage(strategy: Strategy) -> Iterator[str]:
    """What FSDP does otherwise than the strategy."""
    if strategy.zero_stage == 1:
        yield "ZeRO stage 1: gradients are sharded too (stage 2)"
    if strategy.zero_stage == 0 and _is_sharded(strategy) and strategy.dp * strategy.cp > 1:
        yield "ZeRO stage 0: FSDP shards gradients and states (stage 2)"
    if strategy.offload == "optimizer":
        yield "offloading of the optimizer alone: weights and gradients are moved too"


def _launched(strategy: Strategy, _: Model) -> Expressed:
    yield Option("compute_environment", "LOCAL_MACHINE")
    kind = "FSDP" if _is_sharded(strategy) else "MULTI_GPU"
    yield Option("distributed_type", "NO" if strategy.num_accelerators == 1 else kind)
    yield Option("num_processes", strategy.num_accelerators)
    if strategy.tp * strategy.cp * strategy.dp_replicate > 1:
        shards = strategy.dp // strategy.dp_replicate
        yield Option("parallelism_config.parallelism_config_dp_replicate_size", strategy.dp_replicate)
        yield Option("parallelism_config.parallelism_config_dp_shard_size", shards)
        yield Option("parallelism_config.parallelism_config_tp_size", strategy.tp)
        yield Option("parallelism_config.parallelism_config_cp_size", strategy.cp)


def _launched_states(strategy: Strategy, _: Model) -> Expressed:
    if not _is_sharded(strategy):
        return
    if strategy.num_accelerators == 1:
        yield f"offload={strategy.offload} on one accelerator: FSDP, which offloads, is for several"
        return
    yield Option("fsdp_config.fsdp_version", 2)
    yield Option("fsdp_config.fsdp_reshard_after_forward", strategy.shards_weights)
    yield Option("fsdp_config.fsdp_offload_params", strategy.offload != "none")
    yield Option("fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    yield Option("fsdp_config.fsdp_state_dict_type", "SHARDED_STATE_DICT")
    yield Option("fsdp_config.fsdp_activation_checkpointing", strategy.recompute != "none")
    yield from _stage(strategy)


def _offloaded_checkpoints(strategy: Strategy) -> Iterator[str]:
    """What either does otherwise with activations in the host's memory."""
    if strategy.recompute != "full":
        yield f"activations in the host's memory but for inputs of layers: {strategy.recompute} recomputation"
    yield "copies during products: it copies activations to the host's memory and back between them"


def _launched_activations(strategy: Strategy, _: Model) -> Expressed:
    if not strategy.activation_offload:
        return
    if strategy.recompute == "none" or not _is_sharded(strategy) or strategy.num_accelerators == 1:
        yield "activations in the host's memory: FSDP copies those of recomputed layers, and no others"
        return
    yield Option("fsdp_config.fsdp_activation_checkpointing_offload")
    yield from _offloaded_checkpoints(strategy)


def _launched_recompute(strategy: Strategy, _: Model) -> Expressed:
    if strategy.recompute == "selective":
        yield "selective recomputation: it recomputes whole layers"
    if strategy.recompute != "none" and not (_is_sharded(strategy) and strategy.num_accelerators > 1):
        yield f"{strategy.recompute} recomputation without FSDP: the code of your model calls it"


def _launched_precision(strategy: Strategy, _: Model) -> Expressed:
    if strategy.precision in {"fp16", "bf16"}:
        yield Option("mixed_precision", strategy.precision)
    elif strategy.precision in {"fp32", "tf32"}:
        yield Option("mixed_precision", "no")
    elif strategy.precision == "fp8":
        yield Option("mixed_precision", "fp8")
        yield Option("fp8_config.backend", "AO")
    else:
        yield Option("mixed_precision", "bf16")
        yield f"{strategy.precision}: its torchao configuration scales by tensor (fp8); bf16 is written"
    if strategy.precision == "tf32":
        yield 'tf32 products: call torch.set_float32_matmul_precision("high")'


def _launched_compiler(strategy: Strategy, _: Model) -> Expressed:
    compiles = strategy.implementation == "compiled"
    yield Option("dynamo_config.dynamo_backend", "INDUCTOR" if compiles else "NO")


def _batch_in_code(strategy: Strategy, _: Model) -> Expressed:
    yield f"micro-batch of {strategy.microbatch_samples}: batch_size of your DataLoader"
    if strategy.num_microbatches > 1:
        yield (
            f"a global batch of {strategy.global_batch_samples}: "
            f"Accelerator(gradient_accumulation_steps={strategy.num_microbatches})"
        )


def _optimizer_in_code(strategy: Strategy, _: Model) -> Expressed:
    if strategy.optimizer != "adam":
        yield f"{strategy.optimizer}: your code makes the optimizer"


def _no_sequence_parallel(strategy: Strategy, _: Model) -> Expressed:
    if strategy.sequence_parallel:
        yield "sequence parallelism of tp: the tensor-parallel plan of the model decides it"
    if strategy.tp_overlap:
        yield "overlap of tensor-parallel communication"


def _no_experts(strategy: Strategy, _: Model) -> Expressed:
    if strategy.ep > 1:
        yield f"ep={strategy.ep}: an argument of from_pretrained (enable_expert_parallel), in code"


ACCELERATE = Program(
    name="accelerate",
    file="accelerate.yaml",
    form="yaml",
    version="1.15.0",
    source="https://huggingface.co/docs/accelerate/package_reference/cli",
    rules=(
        FieldRule(fields=("dp", "tp", "cp", "dp_replicate"), express=_launched),
        FieldRule(fields=("sequence_parallel", "tp_overlap"), express=_no_sequence_parallel),
        FieldRule(fields=("pp", "interleave", "schedule"), derived="refused: it has no pipeline"),
        FieldRule(fields=("ep",), express=_no_experts),
        FieldRule(fields=("zero_stage", "offload"), express=_launched_states),
        FieldRule(fields=("recompute",), express=_launched_recompute),
        FieldRule(fields=("activation_offload",), express=_launched_activations),
        FieldRule(fields=("precision",), express=_launched_precision),
        FieldRule(fields=("implementation",), express=_launched_compiler),
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_batch_in_code),
        FieldRule(fields=("optimizer",), express=_optimizer_in_code),
        master_weights_rule("load the model in bfloat16, without mixed precision"),
        FieldRule(fields=("fused_attention", "fused_loss"), express=kernels_in_code),
        FieldRule(fields=("compression", "compression_rank"), express=compression),
        FieldRule(fields=("sync_period",), express=averaging),
        FieldRule(fields=("trained", "lora_rank"), express=adapters_in_code),
    ),
    refuse=_refused,
    use="accelerate launch --config_file accelerate.yaml, with --num_machines, --machine_rank and "
    "--main_process_ip on several hosts",
    checked_with="accelerate 1.15's own `launch` parser",
)


def _trained_batch(strategy: Strategy, _: Model) -> Expressed:
    yield Option("output_dir", "runs")
    yield Option("per_device_train_batch_size", strategy.microbatch_samples)
    yield Option("gradient_accumulation_steps", strategy.num_microbatches)


def _trained_precision(strategy: Strategy, _: Model) -> Expressed:
    if strategy.precision == "fp16":
        yield Option("fp16")
    elif strategy.precision not in {"fp32", "tf32"}:
        yield Option("bf16")
    if strategy.precision in {"fp32", "tf32"}:
        yield Option("tf32", strategy.precision == "tf32")
    if strategy.precision not in {"fp32", "tf32", "fp16", "bf16"}:
        yield f"{strategy.precision}: it has no argument for products below 16 bits; bf16 is written"


def _trained_states(strategy: Strategy, _: Model) -> Expressed:
    if not _is_sharded(strategy):
        return
    yield Option("fsdp")
    yield Option("fsdp_config.version", 2)
    yield Option("fsdp_config.reshard_after_forward", strategy.shards_weights)
    yield Option("fsdp_config.cpu_offload", strategy.offload != "none")
    yield Option("fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    yield from _stage(strategy)


def _trained_recompute(strategy: Strategy, _: Model) -> Expressed:
    if strategy.recompute != "none":
        name = "fsdp_config.activation_checkpointing" if _is_sharded(strategy) else "gradient_checkpointing"
        yield Option(name)
    if strategy.recompute == "selective":
        yield "selective recomputation: it recomputes whole layers"


def _trained_activations(strategy: Strategy, _: Model) -> Expressed:
    if not strategy.activation_offload:
        return
    if strategy.recompute == "none":
        yield "activations in the host's memory: it copies those of recomputed layers, and no others"
    elif _is_sharded(strategy):
        yield "activations in the host's memory: with FSDP an option of accelerate.yaml"
    else:
        yield Option("gradient_checkpointing_kwargs.offload")
        yield Option("gradient_checkpointing_kwargs.use_reentrant", value=False)
        yield from _offloaded_checkpoints(strategy)


def _trained_axes(strategy: Strategy, _: Model) -> Expressed:
    for axis in ("tp", "cp", "dp_replicate"):
        if getattr(strategy, axis) > 1:
            yield f"{axis}={getattr(strategy, axis)}: made in code (ParallelismConfig), or by accelerate.yaml"


def _trained_optimizer(strategy: Strategy, _: Model) -> Expressed:
    yield Option("optim", _TRAINER_OPTIMIZERS[strategy.optimizer])


def _trained_compiler(strategy: Strategy, _: Model) -> Expressed:
    yield Option("torch_compile", strategy.implementation == "compiled")


TRAINER = Program(
    name="Trainer",
    file="trainer.yaml",
    form="yaml",
    version="5.23.0",
    source="https://huggingface.co/docs/transformers/main_classes/trainer",
    rules=(
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_trained_batch),
        FieldRule(fields=("dp",), derived="processes; the batch is that of all of them"),
        FieldRule(fields=("tp", "cp", "dp_replicate"), express=_trained_axes),
        FieldRule(fields=("sequence_parallel", "tp_overlap"), express=_no_sequence_parallel),
        FieldRule(fields=("pp", "interleave", "schedule"), derived="refused: it has no pipeline"),
        FieldRule(fields=("ep",), express=_no_experts),
        FieldRule(fields=("precision",), express=_trained_precision),
        FieldRule(fields=("zero_stage", "offload"), express=_trained_states),
        FieldRule(fields=("recompute",), express=_trained_recompute),
        FieldRule(fields=("activation_offload",), express=_trained_activations),
        FieldRule(fields=("optimizer",), express=_trained_optimizer),
        master_weights_rule("load the model in bfloat16, without --bf16"),
        FieldRule(fields=("implementation",), express=_trained_compiler),
        FieldRule(fields=("fused_attention", "fused_loss"), express=kernels_in_code),
        FieldRule(fields=("compression", "compression_rank"), express=compression),
        FieldRule(fields=("sync_period",), express=averaging),
        FieldRule(fields=("trained", "lora_rank"), express=adapters_in_code),
    ),
    refuse=_refused,
    use="HfArgumentParser(TrainingArguments).parse_yaml_file('trainer.yaml'), or --config of TRL's scripts",
    checked_with="TrainingArguments of transformers 5.23",
)
