"""A strategy as options of torchtitan's trainer. The rules of its parser: torchtitan_options.toml."""

from collections.abc import Iterator

from equipoise.launch.megatron import Translation
from equipoise.spec.strategy import Strategy
from equipoise.spec.transformer import Transformer

_DEFAULT_LOOPED_STAGES = (
    2  # virtual stages a rank of an interleaved schedule, unless layers a stage are given
)
_CONVERTERS = {
    "fp8": "Float8LinearConverter",
    "fp8_rowwise": "Float8LinearConverter with its rowwise recipe",
    "mxfp8": "MXFP8LinearConverter",
    "fp4": "NVFP4LinearConverter",
}


def torchtitan_options(strategy: Strategy, model: Transformer | None = None) -> Translation:
    """Options of `torchtitan.train` that set the strategy, and what of it has no option.

    They follow `--module` and `--config`, which name the model. model: sizes that stages depend on.
    No options at all for adapters, which are part of a configuration in code.
    """
    if strategy.trained != "full":
        reason = f"{strategy.trained} adapters: a converter in the model's configuration, not an option"
        return Translation(options=(), inexpressible=(reason,))
    return Translation(
        options=tuple(_options(strategy, model)), inexpressible=tuple(_inexpressible(strategy, model))
    )


def _options(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    is_sharded = strategy.zero_stage > 0
    # A pipeline cuts a rank's batch into its micro-batches; else each is a pass of accumulation.
    passes = strategy.num_microbatches if strategy.pp > 1 else 1
    yield f"--training.local_batch_size {strategy.microbatch_samples * passes}"
    yield f"--training.global_batch_size {strategy.global_batch_samples}"
    narrow = "float32" if strategy.precision in {"fp32", "tf32"} else "bfloat16"
    yield f"--training.mixed_precision_param {narrow}"
    # They are on by default, refused with pipelines, and the plan counts launches from the host.
    yield "--training.disable_cuda_graphs"
    if strategy.offload != "none":
        yield "--training.enable_cpu_offload"
    group = "parallelism"
    yield f"--{group}.data_parallel_replicate_degree {1 if is_sharded else strategy.dp}"
    yield f"--{group}.data_parallel_shard_degree {strategy.dp if is_sharded else 1}"
    if is_sharded:
        yield f"--{group}.fsdp_reshard_after_forward {'always' if strategy.shards_weights else 'never'}"
    if strategy.tp > 1:
        yield f"--{group}.tensor_parallel_degree {strategy.tp}"
        yield f"--{group}.{'' if strategy.sequence_parallel else 'no_'}enable_sequence_parallel"
    if strategy.cp > 1:
        yield f"--{group}.context_parallel_degree {strategy.cp}"
    if strategy.ep > 1:
        yield f"--{group}.expert_parallel_degree {strategy.ep}"
    yield from _stages(strategy, model)
    compiled = strategy.implementation == "compiled"
    yield "--compile.enable" if compiled else "--compile.no_enable"
    if strategy.tp_overlap and compiled:
        yield "--compile.enable_async_tensor_parallel"
    # A subcommand of its parser: options before it, none behind.
    yield f"activation-checkpoint:{strategy.recompute}"


def _stages(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    if strategy.pp == 1:
        return
    group = "parallelism"
    schedule = "Interleaved1F1B" if strategy.interleave > 1 else "1F1B"
    yield f"--{group}.pipeline_parallel_degree {strategy.pp}"
    yield f"--{group}.pipeline_parallel_schedule {schedule}"
    yield f"--{group}.pipeline_parallel_microbatch_size {strategy.microbatch_samples}"
    # By default the ends have a layer less each, to make up for the embedding and the loss.
    yield f"--{group}.pipeline_parallel_first_stage_less_layers 0"
    yield f"--{group}.pipeline_parallel_last_stage_less_layers 0"
    if _needs_layers_per_stage(strategy) and model is not None and _divides(strategy, model):
        num_stages = strategy.pp * strategy.interleave
        yield f"--{group}.pipeline_parallel_layers_per_stage {-(-model.layers // num_stages)}"


def _needs_layers_per_stage(strategy: Strategy) -> bool:
    return strategy.interleave not in {1, _DEFAULT_LOOPED_STAGES}


def _divides(strategy: Strategy, model: Transformer) -> bool:
    """Whether layers a stage, rounded up, give as many virtual stages as the strategy has."""
    num_stages = strategy.pp * strategy.interleave
    layers_per_stage = -(-model.layers // num_stages)
    return -(-model.layers // layers_per_stage) == num_stages


def _inexpressible(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    if strategy.precision in _CONVERTERS:
        yield f"{strategy.precision}: a {_CONVERTERS[strategy.precision]} in the model's configuration"
    if strategy.precision == "fp16":
        yield "fp16: it computes in bfloat16 or float32; bfloat16 is printed"
    if strategy.precision == "tf32":
        yield "tf32 products: set NVIDIA_TF32_OVERRIDE or torch's matmul precision"
    yield from _inexpressible_states(strategy)
    if strategy.tp_overlap and strategy.implementation != "compiled":
        yield "overlap of tensor-parallel communication: it needs the compiler"
    if _needs_layers_per_stage(strategy) and (model is None or not _divides(strategy, model)):
        yield f"{strategy.interleave} chunks a rank: the layers of the model do not give as many stages"
    if strategy.compression != "none":
        yield f"{strategy.compression} gradients"
    if strategy.sync_period > 1:
        yield "averaging of weights instead of gradients"


def _inexpressible_states(strategy: Strategy) -> Iterator[str]:
    """What of the weights, gradients and states has no option."""
    if strategy.zero_stage == 1:
        yield "ZeRO stage 1: gradients are sharded too (stage 2)"
    if strategy.cp > 1 and not strategy.shards_weights:
        yield "whole weights with context parallelism: they are sharded over its ranks"
    shards = (strategy.dp if strategy.zero_stage > 0 else 1) * strategy.cp * strategy.tp
    if strategy.ep > 1 and shards % strategy.ep:
        yield f"ep={strategy.ep} with replicas: experts are spread over sharded ranks only"
    if strategy.optimizer != "adam":
        yield f"{strategy.optimizer}: the optimizer is part of the model's configuration, AdamW there"
    if strategy.offload == "optimizer":
        yield "offloading of the optimizer alone: weights and gradients are moved too"
    if strategy.offload != "none" and not strategy.shards_gradients and strategy.dp > 1:
        yield "offloading with whole states: it is part of FSDP"
