"""A strategy in Megatron-LM: options of `pretrain_gpt.py`, and YAML for Megatron-Bridge (NeMo).

The rules of its argument parser, with their source and date, are in tests/launch/megatron_options.toml.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from equipoise.launch.program import (
    Expressed,
    FieldRule,
    Model,
    Option,
    Program,
    adapters,
    averaging,
    compression,
    master_weights_rule,
    only_1f1b,
    stage_layers,
)
from equipoise.spec.strategy import Strategy

_FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
_FP8_RECIPES = {"fp8": "tensorwise", "mxfp8": "mxfp8"}


def pipeline_layout(counts: Sequence[int], num_prediction_layers: int = 0) -> str:
    """Layers of each stage in Megatron-LM's layout language.

    counts: as `stage_layers` has them. The embedding (E) is in the first stage; prediction layers (m) and the
    loss (L) are in the last.

    >>> pipeline_layout(stage_layers(61, 16))
    'Et*4|(t*4|)*14t*1L'
    """
    groups = [(count, len(list(same))) for count, same in groupby(counts[1:-1])]
    between = "".join(f"(t*{count}|)*{times}" if times > 1 else f"t*{count}|" for count, times in groups)
    return f"Et*{counts[0]}|{between}t*{counts[-1]}{'m' * num_prediction_layers}L"


def _refused(strategy: Strategy, model: Model) -> Iterator[str]:
    """Why pretraining does not start, or is no such training."""
    if strategy.trained != "full":
        yield f"{adapters(strategy)}: pretrain_gpt.py trains every weight"
    yield from _no_experts(strategy, model)


def _no_experts(strategy: Strategy, model: Model) -> Iterator[str]:
    if strategy.precision == "fp16" and strategy.ep > 1:
        yield "expert parallelism in fp16: its argument check refuses it"
    if model is not None and model.experts and strategy.tp > 1 and not strategy.sequence_parallel:
        yield "experts with tp but without sequence parallelism: its layers do not support it"


def _batch(strategy: Strategy, _: Model) -> Expressed:
    yield Option("micro-batch-size", strategy.microbatch_samples)
    yield Option("global-batch-size", strategy.global_batch_samples)


def _tensor(strategy: Strategy, _: Model) -> Expressed:
    yield Option("tensor-model-parallel-size", strategy.tp)
    if strategy.sequence_parallel:
        yield Option("sequence-parallel")
    if strategy.tp_overlap:
        yield Option("tp-comm-overlap")


def _pipeline(strategy: Strategy, model: Model) -> Expressed:
    """How layers are shared out among stages: evenly, or by a layout where they do not divide."""
    yield from only_1f1b(strategy)
    yield Option("pipeline-model-parallel-size", strategy.pp)
    if strategy.pp == 1:
        if strategy.interleave > 1:
            yield f"{strategy.interleave} chunks per rank without a pipeline"
        return
    if _is_uneven(strategy, model) and model is not None:
        if model.prediction_layers:
            yield Option("mtp-num-layers", model.prediction_layers)
        counts = stage_layers(model.layers, strategy.pp, strategy.interleave)
        layout = pipeline_layout(counts, model.prediction_layers)
        yield Option("pipeline-model-parallel-layout", layout)
    elif strategy.interleave > 1:
        yield Option("num-virtual-stages-per-pipeline-rank", strategy.interleave)
    if model is None:
        yield "layers of each stage: they are not known here, and pp has to divide them"


def _is_uneven(strategy: Strategy, model: Model) -> bool:
    """Whether stages have unlike layers, so that a layout says which."""
    if model is None or strategy.pp == 1:
        return False
    return bool(model.layers % (strategy.pp * strategy.interleave) or model.prediction_layers)


def _context(strategy: Strategy, _: Model) -> Expressed:
    if strategy.cp > 1:
        yield Option("context-parallel-size", strategy.cp)


def _experts(strategy: Strategy, model: Model) -> Expressed:
    has_experts = model is not None and model.experts
    if strategy.ep == 1 and not has_experts:
        return
    if model is not None and model.experts:
        yield Option("num-experts", model.experts)
    yield Option("expert-model-parallel-size", strategy.ep)
    # Left out it is tp; the performance model keeps each expert whole, on the ranks of ep.
    yield Option("expert-tensor-parallel-size", 1)
    yield Option("moe-token-dispatcher-type", "alltoall")
    if not has_experts:
        yield "the number of experts: not known here, and --num-experts has to be given"


def _states(strategy: Strategy, _: Model) -> Expressed:
    if strategy.shards_gradients:
        yield Option("use-megatron-fsdp")
        yield Option("data-parallel-sharding-strategy", _FSDP_STRATEGIES[strategy.zero_stage])
        yield Option("ckpt-format", "fsdp_dtensor")
        yield Option("no-gradient-accumulation-fusion")
        if strategy.pp > 1:
            yield f"ZeRO stage {strategy.zero_stage} with a pipeline: not documented for Megatron FSDP"
    if strategy.zero_stage > 0 or _is_precision_aware(strategy):
        yield Option("use-distributed-optimizer")
    if strategy.dp_replicate > 1:
        yield Option("num-distributed-optimizer-instances", strategy.dp_replicate)
    if strategy.dp > 1:
        yield Option("overlap-grad-reduce")
        if strategy.zero_stage > 0:
            yield Option("overlap-param-gather")


def _is_precision_aware(strategy: Strategy) -> bool:
    """Whether optimizer states are narrow or in the host's memory, and Megatron-LM can do that."""
    if strategy.shards_gradients:
        return False
    return strategy.optimizer == "adam_8bit" or (
        strategy.optimizer == "adam" and strategy.offload == "optimizer"
    )


def _optimizer(strategy: Strategy, _: Model) -> Expressed:
    yield Option("optimizer", "sgd" if strategy.optimizer == "sgd" else "adam")
    if _is_precision_aware(strategy):
        yield Option("use-precision-aware-optimizer")
        if strategy.optimizer == "adam_8bit":
            yield Option("exp-avg-dtype", "fp8")
            yield Option("exp-avg-sq-dtype", "fp8")
        if strategy.offload == "optimizer" and strategy.optimizer == "adam":
            yield Option("optimizer-cpu-offload")
    yield from _not_in_its_optimizer(strategy)


def _not_in_its_optimizer(strategy: Strategy) -> Iterator[str]:
    is_replicated = strategy.zero_stage == 0 and strategy.dp > 1
    if strategy.optimizer == "adam_8bit":
        if strategy.shards_gradients:
            yield "8-bit Adam with Megatron FSDP: states stay in fp32"
        else:
            yield "8-bit Adam by block: its fp8 states have one scale per tensor, and are as large"
            if is_replicated:
                yield (
                    "full optimizer states: low-precision ones need its distributed optimizer (ZeRO stage 1)"
                )
    if strategy.offload == "optimizer_and_params":
        yield "offloading of weights: only the optimizer's states can be"
    elif strategy.offload == "optimizer":
        if strategy.optimizer != "adam" or not _is_precision_aware(strategy):
            yield "offloading of this optimizer: only Adam's states with the distributed optimizer can be"
        elif is_replicated:
            yield "full offloaded states: they need its distributed optimizer (ZeRO stage 1)"


def _recompute(strategy: Strategy, model: Model) -> Expressed:
    if strategy.recompute == "full":
        yield Option("recompute-granularity", "full")
        yield Option("recompute-method", "uniform")
        yield Option("recompute-num-layers", 1)
    if strategy.recompute == "selective":
        yield Option("recompute-granularity", "selective")
        yield Option("recompute-modules", _recomputed_modules(strategy, model))
        if strategy.fused_attention:
            yield "recomputing every second product: whole modules are recomputed instead"


# Whose inputs can be copied to the host's memory: megatron-core 0.16.1, TransformerConfig.offload_modules.
_OFFLOADED_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
_OFFLOADED_EXPERTS = ("expert_fc1", "moe_act")


def _activations(strategy: Strategy, model: Model) -> Expressed:
    if not strategy.activation_offload:
        return
    if strategy.recompute == "full":
        yield "activations in the host's memory with full recomputation: it copies inputs of single modules"
        return
    has_experts = model is not None and model.experts
    yield Option("fine-grained-activation-offloading")
    yield Option("offload-modules", _OFFLOADED_MODULES + (_OFFLOADED_EXPERTS if has_experts else ()))
    if not has_experts:
        yield "inputs of feed-forward products in the host's memory: it copies those of attention and norms"


def _bridge_activations(strategy: Strategy, model: Model) -> Expressed:
    for each in _activations(strategy, model):
        if isinstance(each, str):
            yield each
        else:
            yield Option(f"model.{each.name.replace('-', '_')}", each.value)


def _recomputed_modules(strategy: Strategy, model: Model) -> tuple[str, ...]:
    """What is recomputed: scores of unfused attention; where it is fused, the feed-forward blocks."""
    if not strategy.fused_attention:
        return ("core_attn",)
    if model is None or not model.experts:
        return ("layernorm", "mlp")
    return ("layernorm", "mlp", "moe") if model.dense_layers else ("layernorm", "moe")


def _precision(strategy: Strategy, _: Model) -> Expressed:
    if strategy.precision == "fp16":
        yield Option("fp16")
    elif strategy.precision not in {"fp32", "tf32"}:
        yield Option("bf16")
    if strategy.precision in _FP8_RECIPES:
        yield Option("fp8-format", "hybrid")
        yield Option("fp8-recipe", _FP8_RECIPES[strategy.precision])
    if strategy.precision == "fp4":
        yield Option("fp4-format", "e2m1")
        yield Option("fp4-recipe", "nvfp4")
    yield from _no_precision(strategy)


def _no_precision(strategy: Strategy) -> Iterator[str]:
    if strategy.precision == "fp8_rowwise":
        yield "fp8 scales by row: its recipes scale by tensor, block or MX group; bf16 is printed"
    if strategy.precision == "tf32":
        yield "tf32 products: it has no option for them"


def _kernels(strategy: Strategy, _: Model) -> Expressed:
    yield Option("attention-backend", "flash" if strategy.fused_attention else "unfused")
    if strategy.fused_loss:
        yield Option("cross-entropy-loss-fusion")
        yield Option("cross-entropy-fusion-impl", "te")
    yield from _no_compiler(strategy)


def _no_compiler(strategy: Strategy) -> Iterator[str]:
    if strategy.implementation == "compiled":
        yield "torch.compile: fused kernels of Transformer Engine are used instead"


_DATA = FieldRule(fields=("dp",), derived="processes over tp x pp x cp")
_NO_EXCHANGE = (
    FieldRule(fields=("compression", "compression_rank"), express=compression),
    FieldRule(fields=("sync_period",), express=averaging),
)

MEGATRON = Program(
    name="Megatron-LM",
    file="megatron.sh",
    form="options",
    version="000c4ac (2026-11)",
    source="https://github.com/NVIDIA/Megatron-LM (megatron/training/arguments.py)",
    rules=(
        _DATA,
        FieldRule(fields=("tp", "sequence_parallel", "tp_overlap"), express=_tensor),
        FieldRule(fields=("pp", "interleave", "schedule"), express=_pipeline),
        FieldRule(fields=("cp",), express=_context),
        FieldRule(fields=("ep",), express=_experts),
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_batch),
        FieldRule(fields=("zero_stage", "dp_replicate"), express=_states),
        FieldRule(fields=("optimizer", "offload"), express=_optimizer),
        master_weights_rule("its optimizer keeps one"),
        FieldRule(fields=("recompute",), express=_recompute),
        FieldRule(fields=("activation_offload",), express=_activations),
        FieldRule(fields=("precision",), express=_precision),
        FieldRule(fields=("fused_attention", "fused_loss", "implementation"), express=_kernels),
        *_NO_EXCHANGE,
        FieldRule(fields=("trained", "lora_rank"), derived="refused: every weight is trained"),
    ),
    refuse=_refused,
    entry=("pretrain_gpt.py",),
    is_for_transformers=True,
    use='source megatron.sh, then pretrain_gpt.py with those of your model and data and "${OPTIONS[@]}"',
    checked_with="rules of its parser at 000c4ac; megatron-core 0.16.1",
)


# Names of `get_mixed_precision_config`; fp32 has none, and products stay as the model is built.
_RECIPES = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "fp4": "bf16_with_nvfp4_mixed",
    "fp8_rowwise": "bf16_mixed",
}


def _bridge_model(strategy: Strategy, model: Model) -> Expressed:
    yield Option("model.tensor_model_parallel_size", strategy.tp)
    yield Option("model.sequence_parallel", strategy.sequence_parallel)
    if strategy.tp_overlap:
        yield Option("model.tp_comm_overlap")
    yield Option("model.context_parallel_size", strategy.cp)
    if strategy.ep > 1 or (model is not None and model.experts):
        yield Option("model.expert_model_parallel_size", strategy.ep)
        yield Option("model.expert_tensor_parallel_size", 1)
        yield Option("model.moe_token_dispatcher_type", "alltoall")


def _bridge_pipeline(strategy: Strategy, model: Model) -> Expressed:
    yield from only_1f1b(strategy)
    yield Option("model.pipeline_model_parallel_size", strategy.pp)
    if _is_uneven(strategy, model) and model is not None:
        counts = stage_layers(model.layers, strategy.pp, strategy.interleave)
        layout = pipeline_layout(counts, model.prediction_layers)
        if model.prediction_layers:
            yield Option("model.mtp_num_layers", model.prediction_layers)
        yield Option("model.pipeline_model_parallel_layout", layout)
    elif strategy.interleave > 1 and strategy.pp > 1:
        if model is None:
            yield f"{strategy.interleave} chunks per rank: layers of the model are not known here"
        else:
            yield Option("model.virtual_pipeline_model_parallel_size", strategy.interleave)
    elif strategy.interleave > 1:
        yield f"{strategy.interleave} chunks per rank without a pipeline"


def _bridge_batch(strategy: Strategy, _: Model) -> Expressed:
    yield Option("train.micro_batch_size", strategy.microbatch_samples)
    yield Option("train.global_batch_size", strategy.global_batch_samples)


def _bridge_states(strategy: Strategy, _: Model) -> Expressed:
    is_sharded = strategy.zero_stage > 0 or _is_precision_aware(strategy)
    yield Option("ddp.use_distributed_optimizer", is_sharded)
    if strategy.dp_replicate > 1:
        yield Option("ddp.num_distributed_optimizer_instances", strategy.dp_replicate)
    yield Option("ddp.overlap_grad_reduce", strategy.dp > 1)
    yield Option("ddp.overlap_param_gather", strategy.dp > 1 and strategy.zero_stage > 0)
    if strategy.shards_gradients:
        yield Option("ddp.use_megatron_fsdp")
        yield Option("ddp.data_parallel_sharding_strategy", _FSDP_STRATEGIES[strategy.zero_stage])
        yield Option("checkpoint.ckpt_format", "fsdp_dtensor")
        yield Option("model.gradient_accumulation_fusion", value=False)
        if strategy.pp > 1:
            yield f"ZeRO stage {strategy.zero_stage} with a pipeline: not documented for Megatron FSDP"


def _bridge_optimizer(strategy: Strategy, _: Model) -> Expressed:
    yield Option("optimizer.optimizer", "sgd" if strategy.optimizer == "sgd" else "adam")
    is_sharded = strategy.zero_stage > 0 or _is_precision_aware(strategy)
    yield Option("optimizer.use_distributed_optimizer", is_sharded)
    if strategy.optimizer == "adam_8bit":
        yield "8-bit Adam: the dtypes of its states are objects of torch, which YAML has none of"
    if strategy.offload == "optimizer" and _is_precision_aware(strategy):
        yield Option("optimizer.use_precision_aware_optimizer")
        yield Option("optimizer.optimizer_cpu_offload")
    yield from (each for each in _not_in_its_optimizer(strategy) if "8-bit" not in each)


def _bridge_recompute(strategy: Strategy, model: Model) -> Expressed:
    for each in _recompute(strategy, model):
        if isinstance(each, str):
            yield each
        else:
            yield Option(f"model.{each.name.replace('-', '_')}", each.value)


def _bridge_precision(strategy: Strategy, _: Model) -> Expressed:
    if strategy.precision in _RECIPES:
        yield Option("mixed_precision", _RECIPES[strategy.precision])
    yield from _no_precision(strategy)


def _bridge_kernels(strategy: Strategy, _: Model) -> Expressed:
    # An enumeration, as its own YAML writer spells one.
    yield Option("model.attention_backend._target_", "megatron.core.transformer.enums.AttnBackend")
    yield Option("model.attention_backend._call_")
    yield Option("model.attention_backend._args_", (1,) if strategy.fused_attention else (3,))
    yield Option("model.cross_entropy_loss_fusion", strategy.fused_loss)
    if strategy.fused_loss:
        yield Option("model.cross_entropy_fusion_impl", "te")
    yield from _no_compiler(strategy)


def _bridge_adapters(strategy: Strategy, _: Model) -> Expressed:
    if strategy.trained == "qlora":
        yield f"{adapters(strategy)}: 4-bit weights are no option of its configuration; lora is written"
    if strategy.trained != "full":
        yield Option("peft._target_", "megatron.bridge.peft.lora.LoRA")
        yield Option("peft.dim", strategy.lora_rank)
    if strategy.trained == "lora":  # qlora has them on every linear layer, as its default
        yield Option("peft.target_modules", ("linear_qkv", "linear_proj"))


NEMO = Program(
    name="NeMo (Megatron-Bridge)",
    file="nemo.yaml",
    form="yaml",
    version="0.3.1",
    source="https://github.com/NVIDIA-NeMo/Megatron-Bridge (src/megatron/bridge/training/config.py)",
    rules=(
        _DATA,
        FieldRule(fields=("tp", "sequence_parallel", "tp_overlap", "cp", "ep"), express=_bridge_model),
        FieldRule(fields=("pp", "interleave", "schedule"), express=_bridge_pipeline),
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_bridge_batch),
        FieldRule(fields=("zero_stage", "dp_replicate"), express=_bridge_states),
        FieldRule(fields=("optimizer", "offload"), express=_bridge_optimizer),
        master_weights_rule("its optimizer keeps one"),
        FieldRule(fields=("recompute",), express=_bridge_recompute),
        FieldRule(fields=("activation_offload",), express=_bridge_activations),
        FieldRule(fields=("precision",), express=_bridge_precision),
        FieldRule(fields=("fused_attention", "fused_loss", "implementation"), express=_bridge_kernels),
        *_NO_EXCHANGE,
        FieldRule(fields=("trained", "lora_rank"), express=_bridge_adapters),
    ),
    refuse=_no_experts,
    is_for_transformers=True,
    use="Overrides for a recipe of your model: merge it into the recipe's ConfigContainer",
    checked_with="the configuration records of megatron-core 0.16.1, the fields of Megatron-Bridge 0.3.1",
)
