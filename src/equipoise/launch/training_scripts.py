"""Training scripts for every strategy, rendered from the files in templates/. Text only: imports no torch.

Of a template, a line that ends in `#if A !B` stays only where A holds and B does not; `#include NAME` takes
the lines of another template, with its own indentation before each; the rest is `string.Template`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Template

from equipoise.launch.program import Model, adapters, stage_layers
from equipoise.spec.strategy import Strategy

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
