"""A strategy as options of Megatron-LM and torchtitan.

The rules of their parsers: megatron_options.toml, torchtitan_options.toml.
"""

from collections.abc import Iterator

from msgspec import Struct

from equipoise.spec.strategy import Strategy
from equipoise.spec.transformer import Transformer

_FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
_FP8_RECIPES = {"fp8": "tensorwise", "mxfp8": "mxfp8"}


class Translation(Struct, frozen=True, kw_only=True):
    """Options that set a strategy in another program, one an entry, and what it has no option for."""

    options: tuple[str, ...]
    unsupported: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The options, one a line of a shell command; empty where there are none."""
        return " \\\n".join(self.options) + "\n" if self.options else ""


def megatron_options(strategy: Strategy, model: Transformer | None = None) -> Translation:
    """Options of `pretrain_gpt.py` that set the strategy, and what of it Megatron-LM cannot do.

    model: sizes that some options depend on: layers of stages, experts. No options at all where its checks
    refuse to start, or would train something else.
    """
    refused = tuple(_refused(strategy, model))
    if refused:
        return Translation(options=(), unsupported=refused)
    return Translation(
        options=(
            *_axes(strategy, model),
            f"--micro-batch-size {strategy.microbatch_samples}",
            f"--global-batch-size {strategy.global_batch_samples}",
            *_states(strategy),
            *_optimizer(strategy),
            *_recompute(strategy, model),
            *_precision(strategy),
            f"--attention-backend {'flash' if strategy.fused_attention else 'unfused'}",
            *(("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",) if strategy.fused_loss else ()),
        ),
        unsupported=tuple(_megatron_inexpressible(strategy, model)),
    )


def pipeline_layout(num_layers: int, num_stages: int, num_prediction_layers: int = 0) -> str:
    """Layers of each stage in Megatron-LM's layout language: as even as they go, fuller stages first.

    The embedding (E) is in the first stage; prediction layers (m) and the loss (L) are in the last.

    >>> pipeline_layout(61, 16)
    'Et*4|(t*4|)*12(t*3|)*2t*3L'
    """
    fewest, num_fuller = divmod(num_layers, num_stages)
    counts = [fewest + (stage < num_fuller) for stage in range(num_stages)]
    middle = counts[1:-1]
    groups = [(count, middle.count(count)) for count in sorted(set(middle), reverse=True)]
    between = "".join(f"(t*{count}|)*{times}" if times > 1 else f"t*{count}|" for count, times in groups)
    return f"Et*{counts[0]}|{between}t*{counts[-1]}{'m' * num_prediction_layers}L"


def _refused(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    """Why pretraining does not start, or is no such training."""
    if strategy.trained != "full":
        yield f"{strategy.trained} adapters: pretrain_gpt.py trains every weight"
    if strategy.precision == "fp16" and strategy.ep > 1:
        yield "expert parallelism in fp16: its argument check refuses it"
    if model is not None and model.experts and strategy.tp > 1 and not strategy.sequence_parallel:
        yield "experts with tp but without sequence parallelism: its layers do not support it"


def _axes(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    yield f"--tensor-model-parallel-size {strategy.tp}"
    yield f"--pipeline-model-parallel-size {strategy.pp}"
    yield from _megatron_stages(strategy, model)
    if strategy.cp > 1:
        yield f"--context-parallel-size {strategy.cp}"
    if strategy.ep > 1 or (model is not None and model.experts):
        if model is not None and model.experts:
            yield f"--num-experts {model.experts}"
        yield f"--expert-model-parallel-size {strategy.ep}"
        # Left out it is tp; the model keeps each expert whole, on the ranks of ep.
        yield "--expert-tensor-parallel-size 1"
        yield "--moe-token-dispatcher-type alltoall"
    if strategy.sequence_parallel:
        yield "--sequence-parallel"
    if strategy.tp_overlap:
        yield "--tp-comm-overlap"


def _megatron_stages(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    """How layers are shared out among stages: evenly, or by a layout where they do not divide."""
    num_stages = strategy.pp * strategy.interleave
    if strategy.pp == 1:
        return
    if model is not None and (model.layers % num_stages or model.prediction_layers):
        layout = pipeline_layout(model.layers, num_stages, model.prediction_layers)
        if model.prediction_layers:
            yield f"--mtp-num-layers {model.prediction_layers}"
        yield f'--pipeline-model-parallel-layout "{layout}"'
    elif strategy.interleave > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {strategy.interleave}"


def _states(strategy: Strategy) -> Iterator[str]:
    if strategy.shards_gradients:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_FSDP_STRATEGIES[strategy.zero_stage]}"
        yield "--ckpt-format fsdp_dtensor"
        yield "--no-gradient-accumulation-fusion"
    if strategy.zero_stage > 0 or _is_precision_aware(strategy):
        yield "--use-distributed-optimizer"
    if strategy.dp > 1:
        yield "--overlap-grad-reduce"
        if strategy.zero_stage > 0:
            yield "--overlap-param-gather"


def _is_precision_aware(strategy: Strategy) -> bool:
    """Whether optimizer states are narrow or in the host's memory, and Megatron-LM can do that."""
    if strategy.shards_gradients:
        return False
    return strategy.optimizer == "adam_8bit" or (
        strategy.optimizer == "adam" and strategy.offload == "optimizer"
    )


def _optimizer(strategy: Strategy) -> Iterator[str]:
    yield f"--optimizer {'sgd' if strategy.optimizer == 'sgd' else 'adam'}"
    if not _is_precision_aware(strategy):
        return
    yield "--use-precision-aware-optimizer"
    if strategy.optimizer == "adam_8bit":
        yield "--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"
    if strategy.offload == "optimizer" and strategy.optimizer == "adam":
        yield "--optimizer-cpu-offload"


def _recompute(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    if strategy.recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    if strategy.recompute == "selective":
        modules = " ".join(_recomputed_modules(strategy, model))
        yield f"--recompute-granularity selective --recompute-modules {modules}"


def _recomputed_modules(strategy: Strategy, model: Transformer | None) -> tuple[str, ...]:
    """What is recomputed: scores of unfused attention; where it is fused, the feed-forward blocks."""
    if not strategy.fused_attention:
        return ("core_attn",)
    if model is None or not model.experts:
        return ("layernorm", "mlp")
    return ("layernorm", "mlp", "moe") if model.dense_layers else ("layernorm", "moe")


def _precision(strategy: Strategy) -> Iterator[str]:
    if strategy.precision == "fp16":
        yield "--fp16"
    elif strategy.precision not in {"fp32", "tf32"}:
        yield "--bf16"
    if strategy.precision in _FP8_RECIPES:
        yield f"--fp8-format hybrid --fp8-recipe {_FP8_RECIPES[strategy.precision]}"
    if strategy.precision == "fp4":
        yield "--fp4-format e2m1 --fp4-recipe nvfp4"


def _megatron_inexpressible(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    if strategy.pp > 1 and model is None:
        yield "layers of each stage: they are not known here, and pp has to divide them"
    if strategy.precision == "fp8_rowwise":
        yield "fp8 scales by row: its recipes scale by tensor, block or MX group; bf16 is printed"
    if strategy.precision == "tf32":
        yield "tf32 products: it has no option for them"
    if strategy.ep > 1 and model is None:
        yield "the number of experts: not known here, and --num-experts has to be given"
    if not strategy.master_weights:
        yield "weights of 2 bytes without a copy of 4: its optimizer keeps one"
    if strategy.implementation == "compiled":
        yield "torch.compile: fused kernels of Transformer Engine are used instead"
    if strategy.recompute == "selective" and strategy.fused_attention:
        yield "recomputing every second product: whole modules are recomputed instead"
    yield from _megatron_inexpressible_states(strategy)


def _megatron_inexpressible_states(strategy: Strategy) -> Iterator[str]:
    if strategy.shards_gradients and strategy.pp > 1:
        yield f"ZeRO stage {strategy.zero_stage} with a pipeline: not documented for Megatron FSDP"
    if strategy.optimizer == "adam_8bit":
        if strategy.shards_gradients:
            yield "8-bit Adam with Megatron FSDP: states stay in fp32"
        else:
            yield "8-bit Adam by block: its fp8 states have one scale per tensor, and are as large"
            if strategy.zero_stage == 0 and strategy.dp > 1:
                yield (
                    "full optimizer states: low-precision ones need its distributed optimizer (ZeRO stage 1)"
                )
    if strategy.offload == "optimizer_and_params":
        yield "offloading of weights: only the optimizer's states can be"
    elif strategy.offload == "optimizer" and not (
        strategy.optimizer == "adam" and _is_precision_aware(strategy)
    ):
        yield "offloading of this optimizer: only Adam's states with the distributed optimizer can be"
    elif strategy.offload == "optimizer" and strategy.zero_stage == 0 and strategy.dp > 1:
        yield "full offloaded states: they need its distributed optimizer (ZeRO stage 1)"
    if strategy.compression != "none":
        yield f"{strategy.compression} gradients"
    if strategy.sync_period > 1:
        yield "averaging of weights instead of gradients"


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
        return Translation(options=(), unsupported=(reason,))
    return Translation(
        options=tuple(_options(strategy, model)),
        unsupported=tuple(_torchtitan_inexpressible(strategy, model)),
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
    yield from _torchtitan_stages(strategy, model)
    compiled = strategy.implementation == "compiled"
    yield "--compile.enable" if compiled else "--compile.no_enable"
    if strategy.tp_overlap and compiled:
        yield "--compile.enable_async_tensor_parallel"
    # A subcommand of its parser: options before it, none behind.
    yield f"activation-checkpoint:{strategy.recompute}"


def _torchtitan_stages(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
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


def _torchtitan_inexpressible(strategy: Strategy, model: Transformer | None) -> Iterator[str]:
    if strategy.precision in _CONVERTERS:
        yield f"{strategy.precision}: a {_CONVERTERS[strategy.precision]} in the model's configuration"
    if strategy.precision == "fp16":
        yield "fp16: it computes in bfloat16 or float32; bfloat16 is printed"
    if strategy.precision == "tf32":
        yield "tf32 products: set NVIDIA_TF32_OVERRIDE or torch's matmul precision"
    yield from _torchtitan_inexpressible_states(strategy)
    if strategy.tp_overlap and strategy.implementation != "compiled":
        yield "overlap of tensor-parallel communication: it needs the compiler"
    if _needs_layers_per_stage(strategy) and (model is None or not _divides(strategy, model)):
        yield f"{strategy.interleave} chunks per rank: the layers of the model do not give as many stages"
    if strategy.compression != "none":
        yield f"{strategy.compression} gradients"
    if strategy.sync_period > 1:
        yield "averaging of weights instead of gradients"


def _torchtitan_inexpressible_states(strategy: Strategy) -> Iterator[str]:
    """What of the weights, gradients and states has no option."""
    if strategy.zero_stage == 1:
        yield "ZeRO stage 1: gradients are sharded too (stage 2)"
    if strategy.cp > 1 and not strategy.shards_weights:
        yield "unsharded weights with context parallelism: they are sharded over its ranks"
    shards = (strategy.dp if strategy.zero_stage > 0 else 1) * strategy.cp * strategy.tp
    if strategy.ep > 1 and shards % strategy.ep:
        yield f"ep={strategy.ep} with replicas: experts are spread over sharded ranks only"
    if not strategy.master_weights:
        yield "weights without a master copy: set the dtype of its training configuration to bfloat16"
    if strategy.optimizer != "adam":
        yield f"{strategy.optimizer}: the optimizer is part of the model's configuration, AdamW there"
    if strategy.offload == "optimizer":
        yield "offloading of the optimizer alone: weights and gradients are moved too"
    if strategy.offload != "none" and not strategy.shards_gradients and strategy.dp > 1:
        yield "offloading with unsharded states: it is part of FSDP"
