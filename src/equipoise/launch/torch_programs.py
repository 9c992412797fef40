"""A strategy in torch's own terms: options of torchtitan, and training scripts rendered from templates/.

Of a template, a line that ends in `#if A !B` stays only where A holds and B does not; `#include NAME` takes
the lines of another template, with its own indentation before each; the rest is `string.Template`. The rules
of torchtitan's parser are in tests/launch.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Template

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
    no_activation_offload,
    stage_layers,
)
from equipoise.spec.strategy import Strategy

# Virtual stages a rank of an interleaved schedule, unless layers a stage are given.
_DEFAULT_LOOPED_STAGES = 2
_CONVERTERS = {
    "fp8": "Float8LinearConverter",
    "fp8_rowwise": "Float8LinearConverter with its rowwise recipe",
    "mxfp8": "MXFP8LinearConverter",
    "fp4": "NVFP4LinearConverter",
}


def _refused(strategy: Strategy, _: Model) -> Iterator[str]:
    if strategy.trained != "full":
        yield f"{adapters(strategy)}: a converter in the model's configuration, not an option"


def _batch(strategy: Strategy, _: Model) -> Expressed:
    # A pipeline cuts a rank's batch into its micro-batches; else each is a pass of accumulation.
    passes = strategy.num_microbatches if strategy.pp > 1 else 1
    yield Option("training.local_batch_size", strategy.microbatch_samples * passes)
    yield Option("training.global_batch_size", strategy.global_batch_samples)


def _precision(strategy: Strategy, _: Model) -> Expressed:
    narrow = "float32" if strategy.precision in {"fp32", "tf32"} else "bfloat16"
    yield Option("training.mixed_precision_param", narrow)
    if strategy.precision in _CONVERTERS:
        yield f"{strategy.precision}: a {_CONVERTERS[strategy.precision]} in the model's configuration"
    if strategy.precision == "fp16":
        yield "fp16: it computes in bfloat16 or float32; bfloat16 is printed"
    if strategy.precision == "tf32":
        yield "tf32 products: set NVIDIA_TF32_OVERRIDE or torch's matmul precision"


def _graphs(_: Strategy, __: Model) -> Expressed:
    # They are on by default, refused with pipelines, and the performance model counts launches from the host.
    yield Option("training.disable_cuda_graphs")


def _states(strategy: Strategy, _: Model) -> Expressed:
    if strategy.offload != "none":
        yield Option("training.enable_cpu_offload")
    is_sharded = strategy.zero_stage > 0
    replicas = strategy.dp_replicate if is_sharded else strategy.dp
    yield Option("parallelism.data_parallel_replicate_degree", replicas)
    yield Option("parallelism.data_parallel_shard_degree", strategy.dp // replicas)
    if is_sharded:
        # In a pipeline weights stay gathered after a way back, whatever is asked; the model counts them so.
        reshards = "always" if strategy.shards_weights and strategy.pp == 1 else "never"
        yield Option("parallelism.fsdp_reshard_after_forward", reshards)
    if strategy.zero_stage == 1:
        yield "ZeRO stage 1: gradients are sharded too (stage 2)"
    if strategy.offload == "optimizer":
        yield "offloading of the optimizer alone: weights and gradients are moved too"
    if strategy.offload != "none" and not strategy.shards_gradients and strategy.dp > 1:
        yield "offloading with unsharded states: it is part of FSDP"


def _tensor(strategy: Strategy, _: Model) -> Expressed:
    if strategy.tp > 1:
        yield Option("parallelism.tensor_parallel_degree", strategy.tp)
        prefix = "" if strategy.sequence_parallel else "no_"
        yield Option(f"parallelism.{prefix}enable_sequence_parallel")


def _context(strategy: Strategy, _: Model) -> Expressed:
    if strategy.cp > 1:
        yield Option("parallelism.context_parallel_degree", strategy.cp)
        if not strategy.shards_weights:
            yield "unsharded weights with context parallelism: they are sharded over its ranks"


def _experts(strategy: Strategy, _: Model) -> Expressed:
    if strategy.ep == 1:
        return
    yield Option("parallelism.expert_parallel_degree", strategy.ep)
    sharded = strategy.num_shards if strategy.zero_stage > 0 else strategy.cp
    if sharded * strategy.tp % strategy.ep:
        yield f"ep={strategy.ep} with replicas: experts are spread over sharded ranks only"


def _pipeline(strategy: Strategy, model: Model) -> Expressed:
    if strategy.pp == 1:
        if strategy.interleave > 1:
            yield f"{strategy.interleave} chunks per rank without a pipeline"
        if strategy.schedule != "1f1b":
            yield f"schedule={strategy.schedule} without a pipeline"
        return
    schedule = "Interleaved1F1B" if strategy.interleave > 1 else "1F1B"
    if strategy.schedule == "dualpipe_v":
        schedule = "DualPipeV"
        if strategy.ep > 1 and strategy.recompute != "none":
            yield f"recompute={strategy.recompute} with DualPipeV and experts on several ranks"
    elif strategy.schedule != "1f1b":
        yield f"schedule={strategy.schedule}: of DualPipe it has the V"
    yield Option("parallelism.pipeline_parallel_degree", strategy.pp)
    yield Option("parallelism.pipeline_parallel_schedule", schedule)
    yield Option("parallelism.pipeline_parallel_microbatch_size", strategy.microbatch_samples)
    # By default the ends have a layer less each, to make up for the embedding and the loss.
    yield Option("parallelism.pipeline_parallel_first_stage_less_layers", 0)
    counts = () if model is None else stage_layers(model.layers, strategy.pp, strategy.interleave)
    # Its stages are equal but for what the last one lacks.
    fewer = counts[0] - counts[-1] if counts and set(counts[:-1]) == {counts[0]} else 0
    yield Option("parallelism.pipeline_parallel_last_stage_less_layers", fewer)
    if len(set(counts)) > 1 and not fewer:
        yield f"{sum(counts)} layers on {len(counts)} stages: it has the fuller ones first, one layer apart"
    if strategy.interleave in {1, _DEFAULT_LOOPED_STAGES}:
        return
    # It cuts the layers into stages of so many, which have to be as many stages as the strategy has.
    if counts and -(-(sum(counts) + fewer) // counts[0]) == len(counts):
        yield Option("parallelism.pipeline_parallel_layers_per_stage", counts[0])
    else:
        yield f"{strategy.interleave} chunks per rank: the layers of the model do not give as many stages"


def _compiler(strategy: Strategy, _: Model) -> Expressed:
    is_compiled = strategy.implementation == "compiled"
    yield Option("compile.enable" if is_compiled else "compile.no_enable")
    if strategy.tp_overlap and is_compiled:
        yield Option("compile.enable_async_tensor_parallel")
    elif strategy.tp_overlap:
        yield "overlap of tensor-parallel communication: it needs the compiler"


def _optimizer(strategy: Strategy, _: Model) -> Expressed:
    if strategy.optimizer != "adam":
        yield f"{strategy.optimizer}: the optimizer is part of the model's configuration, AdamW there"


def _kernels(strategy: Strategy, _: Model) -> Expressed:
    if not strategy.fused_attention:
        yield "unfused attention: its models have fused attention"
    if not strategy.fused_loss:
        yield "an unfused loss: ChunkedLossWrapper is part of the model's configuration"


def _recompute(strategy: Strategy, _: Model) -> Expressed:
    # A subcommand of its parser: options stand before it, none after.
    yield Option(f"activation-checkpoint:{strategy.recompute}", None)


TORCHTITAN = Program(
    name="torchtitan",
    file="torchtitan.sh",
    form="options",
    version="0.3.0",
    source="https://github.com/pytorch/torchtitan (torchtitan/config/configs.py)",
    rules=(
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_batch),
        FieldRule(fields=("precision",), express=_precision),
        FieldRule(fields=(), express=_graphs),
        FieldRule(fields=("dp", "zero_stage", "dp_replicate", "offload"), express=_states),
        FieldRule(fields=("tp", "sequence_parallel"), express=_tensor),
        FieldRule(fields=("cp",), express=_context),
        FieldRule(fields=("ep",), express=_experts),
        FieldRule(fields=("pp", "interleave", "schedule"), express=_pipeline),
        FieldRule(fields=("implementation", "tp_overlap"), express=_compiler),
        FieldRule(fields=("optimizer",), express=_optimizer),
        master_weights_rule("set the dtype of its training configuration to bfloat16"),
        FieldRule(fields=("fused_attention", "fused_loss"), express=_kernels),
        FieldRule(fields=("compression", "compression_rank"), express=compression),
        FieldRule(fields=("sync_period",), express=averaging),
        FieldRule(fields=("trained", "lora_rank"), derived="refused: adapters are configuration in code"),
        FieldRule(fields=("activation_offload",), express=no_activation_offload),
        FieldRule(fields=("recompute",), express=_recompute),
    ),
    refuse=_refused,
    entry=("-m", "torchtitan.train"),
    is_for_transformers=True,
    use='source torchtitan.sh, then -m torchtitan.train --module M --config C "${OPTIONS[@]}"',
    checked_with="torchtitan 0.3.0's own parser, and a table of its rules",
)


# Precisions of products that torch alone does not compute in.
NARROW_PRECISIONS = frozenset({"fp8", "fp8_rowwise", "mxfp8", "fp4"})
# Below 16 bits, products are narrowed by a library of their own inside a bf16 network.
_HALVES = {"fp16": "float16"}
_OPTIMIZERS = {
    "adam": ("torch.optim.AdamW", "lr=1e-3"),
    "adam_8bit": ("AdamW8bit", "lr=1e-3"),
    "sgd": ("torch.optim.SGD", "lr=1e-2, momentum=0.9"),
}
_TEMPLATES = Path(__file__).with_name("templates")


def rendered(name: str, **values: object) -> str:
    """A template of templates/ with its placeholders filled, where none of its conditions holds."""
    return _filled(name, frozenset(), values)


def _filled(name: str, conditions: frozenset[str], values: Mapping[str, object]) -> str:
    return Template("".join(f"{line}\n" for line in _lines(name, conditions))).substitute(values)


def _lines(name: str, conditions: frozenset[str]) -> Iterator[str]:
    for line in _template(name):
        text, _, needed = line.partition("  #if ")
        if not all((each.removeprefix("!") in conditions) != each.startswith("!") for each in needed.split()):
            continue
        margin, is_include, included = text.partition("#include ")
        if not is_include:
            yield text
            continue
        for each in _lines(included, conditions):
            yield margin + each if each else each


@cache
def _template(name: str) -> tuple[str, ...]:
    return tuple((_TEMPLATES / f"{name}.tmpl").read_text(encoding="utf-8").splitlines())


def is_sharded(strategy: Strategy) -> bool:
    """Whether gradients or weights are, or lie in the host's memory: what `fully_shard` does."""
    return strategy.shards_gradients or strategy.offload != "none"


def has_hosted_activations(strategy: Strategy) -> bool:
    """Whether a script keeps inputs of recomputed layers in the host's memory.

    What torch keeps of a layer that is not recomputed are its weights too, which would be copied with it.
    """
    return strategy.activation_offload and strategy.recompute == "full"


def training_script(strategy: Strategy) -> str:
    """A whole script that trains with the data axis alone, as the strategy has it; it runs as it stands."""
    return _script("training", strategy)


def tensor_script(strategy: Strategy) -> str:
    """A whole script that cuts each layer's products over `tp` ranks, and shards weights over `dp`."""
    return _script("tensor", strategy)


def pipeline_script(strategy: Strategy) -> str:
    """A whole script that puts a model's layers on `pp` ranks and sends micro-batches through them."""
    return _script("pipeline", strategy)


def _script(name: str, strategy: Strategy) -> str:
    optimizer, settings = _OPTIMIZERS[strategy.optimizer]
    values = {
        "again": strategy.shards_weights,
        # Over gloo, PowerSGD's hook hangs where there are several buckets: all gradients in one.
        "bucket_mib": 4096 if strategy.compression == "powersgd" else 25,
        "chunks": strategy.interleave,
        "compression_rank": max(1, strategy.compression_rank),
        "dp": strategy.dp,
        "dp_replicate": strategy.dp_replicate,
        "dtype": _compute_dtype(strategy),
        "microbatch": strategy.microbatch_samples,
        "num_microbatches": strategy.num_microbatches,
        "num_shards": strategy.num_shards,
        "optimizer": optimizer,
        "pp": strategy.pp,
        "schedule": "ScheduleInterleaved1F1B" if strategy.interleave > 1 else "Schedule1F1B",
        "settings": settings,
        "sync_period": strategy.sync_period,
        "tp": strategy.tp,
    }
    conditions = frozenset(each for each, holds in _conditions(name, strategy).items() if holds)
    return _filled(name, conditions, values)


def _conditions(name: str, strategy: Strategy) -> dict[str, bool]:
    """The conditions of a template, and whether each holds."""
    sharded = is_sharded(strategy)
    alone = strategy.dp == 1 and not sharded
    averages = strategy.sync_period > 1 and not alone and not sharded
    waits = strategy.num_microbatches > 1 and not alone and not averages
    is_narrowed_by_shard = {"training": sharded, "tensor": strategy.dp > 1, "pipeline": False}[name]
    return {
        "adam_8bit": strategy.optimizer == "adam_8bit",
        "accumulates": strategy.num_microbatches > 1,
        "alone": alone,
        "autocast": _compute_dtype(strategy) != "float32" and not is_narrowed_by_shard,
        "averages": averages,
        "compiled": strategy.implementation == "compiled",
        "dp": strategy.dp > 1,
        "fp16": strategy.precision == "fp16",
        "fp16_hook": strategy.compression == "fp16",
        "fp32": strategy.precision == "fp32",
        "hosted": has_hosted_activations(strategy),
        "grouped": strategy.dp_replicate > 1,
        "interleaved": strategy.interleave > 1,
        "offload": strategy.offload != "none",
        "powersgd": strategy.compression == "powersgd",
        "quiet": waits and not sharded,
        "recomputed": strategy.recompute != "none",
        "replicated": not (alone or sharded or averages),
        "selective": strategy.recompute == "selective",
        "sequence": strategy.sequence_parallel,
        "sharded": sharded,
        "waits": waits,
        "zero_1": strategy.zero_stage == 1 and strategy.dp > 1 and not sharded,
        "zero_3": strategy.shards_weights,
    }


def _compute_dtype(strategy: Strategy) -> str:
    """The dtype of torch that products run in outside libraries for fewer than 16 bits."""
    if strategy.precision in {"fp32", "tf32"}:
        return "float32"
    return _HALVES.get(strategy.precision, "bfloat16")


def not_in_training_scripts(strategy: Strategy) -> tuple[str, ...]:
    """What no training script here does, for a plan that assumes it."""
    missing = []
    if strategy.compression == "topk":
        missing.append("top-k gradients: torch has no communication hook for them")
    if strategy.compression != "none" and (is_sharded(strategy) or strategy.sync_period > 1):
        missing.append(f"{strategy.compression} gradients: only DistributedDataParallel takes a hook")
    if not strategy.master_weights:
        missing.append("weights of 2 bytes without a copy of 4: convert your model, model.to(torch.bfloat16)")
    if strategy.dp_replicate > 1 and not is_sharded(strategy):
        missing.append("optimizer states in groups: ZeroRedundancyOptimizer shares them among all ranks")
    if strategy.offload == "optimizer":
        missing.append("offloading of the optimizer alone: CPUOffloadPolicy moves weights and gradients too")
    if strategy.sync_period > 1 and is_sharded(strategy):
        missing.append("averaging of weights: they are sharded, and gradients are exchanged in every step")
    return (*missing, *_left_to_your_model(strategy))


def _left_to_your_model(strategy: Strategy) -> tuple[str, ...]:
    """What the small model that stands in for the user's does not show."""
    missing = []
    if has_hosted_activations(strategy):
        missing.append("copies of activations during products: save_on_cpu makes them between products")
    elif strategy.activation_offload:
        missing.append("activations in the host's memory: only those of fully recomputed layers can be")
    if strategy.trained != "full":
        missing.append(f"{adapters(strategy)}: add peft's lines to your model")
    if strategy.precision in NARROW_PRECISIONS:
        missing.append(f"{strategy.precision} products: they run in bf16 until your model is converted")
    if not strategy.fused_attention:
        missing.append("unfused attention: the model that stands in has none")
    if not strategy.fused_loss:
        missing.append("an unfused loss: cross_entropy stands in for yours")
    return tuple(missing)


_SHARDED_STAGES = (2, 3)


def not_in_tensor_scripts(strategy: Strategy) -> tuple[str, ...]:
    """What the script for tensor parallelism does not do, for a plan that assumes it."""
    missing = []
    if strategy.dp > 1 and strategy.zero_stage not in _SHARDED_STAGES:
        missing.append(f"ZeRO stage {strategy.zero_stage}: with tp the script shards gradients (stage 2)")
    if strategy.dp_replicate > 1:
        missing.append(f"dp_replicate={strategy.dp_replicate}: with tp the script shards over all of dp")
    if strategy.tp_overlap:
        missing.append("overlap of tensor-parallel communication with products")
    return (*missing, *_in_neither(strategy))


def not_in_pipeline_scripts(strategy: Strategy, model: Model) -> tuple[str, ...]:
    """What the script for pipelines does not do, for a plan that assumes it."""
    missing = []
    counts = () if model is None else stage_layers(model.layers, strategy.pp, strategy.interleave)
    if len(set(counts)) > 1:
        each = ", ".join(map(str, counts))
        missing.append(f"stages of {each} layers: those of the model that stands in are equal")
    if strategy.schedule != "1f1b":
        missing.append(f"schedule={strategy.schedule}: the script runs 1F1B")
    if strategy.zero_stage > 0 and strategy.dp > 1:
        missing.append(f"ZeRO stage {strategy.zero_stage}: each copy of a stage keeps complete states")
    if strategy.implementation == "compiled":
        missing.append("compilation: stages run eagerly")
    return (*missing, *_in_neither(strategy))


def _in_neither(strategy: Strategy) -> tuple[str, ...]:
    missing = []
    if strategy.precision == "fp16":
        missing.append("loss scaling of fp16: use bf16 or your own gradient scaler")
    if strategy.offload != "none":
        missing.append("offloading to the host's memory")
    if strategy.compression not in {"none", "topk"}:
        missing.append(f"{strategy.compression} gradients: only DistributedDataParallel takes a hook")
    if strategy.sync_period > 1:
        missing.append("averaging of weights instead of gradients")
    return (*missing, *_left_to_your_model(strategy))
