"""Training programs: the template by which each expresses a strategy, and the variables of templates.

A line of a template is an option (`NAME = VALUE`, or the name of a flag) or a reason (`! `, `!! `) that
states what the program cannot express. tests/launch/test_programs.py checks every program against every field
of a strategy.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from shlex import join
from typing import Literal, TypeAlias

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from equipoise.files import shipped_table
from equipoise.launch.text import filled, yaml_text
from equipoise.spec.strategy import ALL_OFFLOADED, WEIGHTS_SHARDED, LoraTargets, Strategy, adapted_layers
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload

Model: TypeAlias = Transformer | None

_PROPERTIES = ("num_accelerators", "num_microbatches", "shards_gradients", "shards_weights")
_OPTIMIZERS = {
    "adam": ("torch.optim.AdamW", "lr=1e-3"),
    "adam_8bit": ("AdamW8bit", "lr=1e-3"),
    "sgd": ("torch.optim.SGD", "lr=1e-2, momentum=0.9"),
}
# Names of attention projections in transformers and diffusers; image models also have those of the text.
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_QUERIES_AND_VALUES = ("q_proj", "v_proj")
# Words for the layers with adapters, for use in a sentence.
_ON_TARGETS: Mapping[LoraTargets, str] = {
    "usual": "",
    "query_value": " on queries and values",
    "attention": " on attention",
    "all_linear": " on every linear layer",
}
_DIFFUSERS_PROJECTIONS = (
    *("to_q", "to_k", "to_v", "to_out.0"),
    *("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
)


def _as_stated(strategy: Strategy) -> Strategy:
    """The strategy as programs state it: offloaded weights are sharded, also on a single accelerator."""
    is_alone = strategy.num_accelerators == 1 and strategy.offload == ALL_OFFLOADED
    return replace(strategy, zero_stage=WEIGHTS_SHARDED) if is_alone else strategy


def program_facts(strategy: Strategy, model: Model) -> dict[str, object]:
    """The variables available to templates of programs. model: None if unknown; its sizes are then zero."""
    strategy = _as_stated(strategy)
    experts = 0 if model is None else model.experts or 0
    has_hosted_adam = strategy.optimizer == "adam" and strategy.offload == "optimizer"
    is_precision_aware = not strategy.shards_gradients and (
        strategy.optimizer == "adam_8bit" or has_hosted_adam
    )
    needs_fsdp = strategy.zero_stage > 0 or strategy.offload != "none" or strategy.tp * strategy.cp > 1
    expert_ranks = (strategy.num_shards if strategy.zero_stage else strategy.cp) * strategy.tp
    return {
        **strategy_facts(strategy),
        **_stage_facts(strategy, model),
        "num_experts": experts,
        "has_windows": model is not None and model.windowed_layers > 0,
        "is_hybrid": model is not None and _is_hybrid(model),
        "num_dense_layers": 0 if model is None else model.dense_layers,
        "graph_modules": json.dumps(_graph_modules(strategy, experts)),
        "recomputed_modules": json.dumps(_recomputed_modules(strategy, model)),
        "has_expert_axis": strategy.ep > 1 or experts > 0,
        "dispatches_once": strategy.ep > 1 and not strategy.dispatch_copies,
        "shards_hold_experts": expert_ranks % strategy.ep == 0,
        # Optimizer states are narrow or offloaded, in a way that Megatron-LM supports.
        "is_precision_aware": is_precision_aware,
        "has_distributed_optimizer": strategy.zero_stage > 0 or is_precision_aware,
        "gathers_weights": strategy.dp > 1 and strategy.zero_stage > 0,
        # FSDP shards and offloads; in accelerate and the Trainer, tensor and context parallelism require it.
        "needs_fsdp": needs_fsdp,
        "runs_fsdp": needs_fsdp and strategy.num_accelerators > 1,
        "has_mesh": strategy.tp * strategy.cp * strategy.dp_replicate > 1,
        "num_dp_shards": strategy.dp // strategy.dp_replicate,
        "num_samples_per_rank": strategy.microbatch_samples * strategy.num_microbatches,
    }


def _is_hybrid(model: Transformer) -> bool:
    """Whether each layer is a single block: state space, attention or feed-forward."""
    return 0 < model.state_layers < model.layers - (model.attention_layers or 0)


def _graph_modules(strategy: Strategy, num_experts: int) -> tuple[str, ...]:
    """The modules of a Megatron-Core layer that graphs record: not experts, whose shapes depend on routing,
    and not recomputed ones.

    Source: megatron-core 0.16.1, TransformerConfig.
    """
    feed_forward = ("moe_router", "moe_preprocess") if num_experts else ("mlp",)
    if strategy.recompute == "none":
        return ("attn", *feed_forward)
    return ("attn",) if strategy.fused_attention else feed_forward


def _recomputed_modules(strategy: Strategy, model: Model) -> tuple[str, ...]:
    """The modules of a Megatron-Core layer that selective recomputation covers.

    With overlapped expert traffic, which calls parts of a layer, only norms and activations.
    Source: megatron-core 0.16.1, fine_grained_callables.py.
    """
    if not strategy.fused_attention:
        return ("core_attn",)
    if model is None or not model.experts:
        return ("layernorm", "mlp")
    if strategy.schedule == "1f1b_overlap":
        return ("layernorm", "moe_act")
    return ("layernorm", "mlp", "moe") if model.dense_layers else ("layernorm", "moe")


def strategy_facts(strategy: Strategy) -> dict[str, object]:
    """Template variables of a strategy: its fields, properties, and the layers with adapters."""
    return {
        **asdict(strategy),
        **{name: getattr(strategy, name) for name in _PROPERTIES},
        "adapted_layers": adapted_layers(strategy.trained, strategy.lora_targets),
        "on_targets": _ON_TARGETS[strategy.lora_targets],
    }


def code_facts(strategy: Strategy, workload: Workload | None) -> dict[str, object]:
    """The variables available to templates of scripts and additions."""
    strategy = _as_stated(strategy)
    sharded = is_sharded(strategy)
    alone = strategy.dp == 1 and not sharded
    averages = strategy.sync_period > 1 and not alone and not sharded
    waits = strategy.num_microbatches > 1 and not alone and not averages
    dtype = _compute_dtype(strategy)
    is_narrowed_by_shard = strategy.dp > 1 if strategy.tp > 1 else sharded and strategy.pp == 1
    is_of_images = workload is not None and workload.area == "generation"
    optimizer, settings = _OPTIMIZERS[strategy.optimizer]
    return {
        **strategy_facts(strategy),
        **_stage_facts(strategy, None if workload is None else workload.transformer),
        "has_states": _has_states(workload),
        "has_experts": workload is not None
        and workload.transformer is not None
        and workload.transformer.experts > 0,
        "projections": json.dumps(_projections(strategy, is_of_images=is_of_images)),
        "sharded": sharded,
        "alone": alone,
        "averages": averages,
        "quiet": waits and not sharded,
        # By default, FSDP shards gradients after each micro-batch.
        "sums_whole": waits and (strategy.whole_gradients or not strategy.shards_gradients),
        "replicated": not (alone or sharded or averages),
        "zero_1": strategy.zero_stage == 1 and strategy.dp > 1 and not sharded,
        # Without recomputation, torch also saves a layer's weights, which would be offloaded as well.
        "hosted": strategy.activation_offload and strategy.recompute == "full",
        "autocast": dtype != "float32" and not is_narrowed_by_shard,
        "dtype": dtype,
        "again": str(strategy.shards_weights),
        # Over gloo, PowerSGD's hook hangs with several buckets, so all gradients go into one.
        "bucket_mib": 4096 if strategy.compression == "powersgd" else 25,
        "compression_rank": max(1, strategy.compression_rank),
        "num_shards": strategy.num_shards,
        "optimizer_class": optimizer,
        "optimizer_settings": settings,
        "schedule_class": "ScheduleInterleaved1F1B" if strategy.interleave > 1 else "Schedule1F1B",
    }


def _has_states(workload: Workload | None) -> bool:
    """Whether layers of a model are state spaces."""
    return workload is not None and workload.transformer is not None and workload.transformer.state_layers > 0


def _projections(strategy: Strategy, *, is_of_images: bool) -> tuple[str, ...]:
    """The attention projections with adapters."""
    if is_of_images:
        return _DIFFUSERS_PROJECTIONS
    return _QUERIES_AND_VALUES if strategy.lora_targets == "query_value" else _PROJECTIONS


def is_sharded(strategy: Strategy) -> bool:
    """Whether gradients or weights are sharded or offloaded, i.e. whether `fully_shard` is needed."""
    return strategy.shards_gradients or strategy.offload != "none"


def _compute_dtype(strategy: Strategy) -> str:
    """The torch dtype of the network; products below 16 bits are converted inside a bf16 network."""
    if strategy.precision in {"fp32", "tf32"}:
        return "float32"
    return "float16" if strategy.precision == "fp16" else "bfloat16"


def _stage_facts(strategy: Strategy, model: Model) -> Mapping[str, object]:
    """Template variables of pipeline stages; zero if the number of layers is unknown."""
    counts = () if model is None else stage_layers(model.layers, strategy.pp, strategy.interleave)
    extra = 0 if model is None else model.prediction_layers
    most, num_layers = max(counts, default=0), sum(counts)
    # Number of layers by which the last stage is smaller, if all others are equal.
    lacking = most - counts[-1] if counts and set(counts[:-1]) == {most} else 0
    needs_layout = strategy.pp > 1 and (len(set(counts)) > 1 or extra > 0)
    return {
        "num_layers": num_layers,
        "num_stages": len(counts),
        "prediction_layers": extra,
        "most_stage_layers": most,
        "num_lacking_layers": lacking,
        "stage_sizes": ", ".join(map(str, counts)),
        "has_unlike_stages": len(set(counts)) > 1,
        # Stages filled up to the largest size are as many as in the strategy.
        "has_stages_by_layers": bool(counts) and -(-(num_layers + lacking) // most) == len(counts),
        "needs_layout": needs_layout,
        "layout": pipeline_layout(counts, extra) if needs_layout else "",
    }


def stage_layers(num_layers: int, num_ranks: int, interleave: int = 1) -> tuple[int, ...]:
    """Layers of each stage of a pipeline, in order: all stages are full except those of the last rank.

    If that leaves a stage empty, layers are distributed as evenly as possible, larger stages first.
    Source: the performance model distributes layers in the same way (perfmodel.estimate.stages).

    >>> stage_layers(10, 4), stage_layers(13, 2, 2), stage_layers(9, 8)
    ((3, 3, 3, 1), (4, 4, 4, 1), (2, 1, 1, 1, 1, 1, 1, 1))
    """
    num_stages = num_ranks * interleave
    fullest = -(-num_layers // num_stages)
    counts, missing = [fullest] * num_stages, fullest * num_stages - num_layers
    for stage in range(num_stages - 1, 0, -num_ranks):
        counts[stage] -= min(missing, fullest - 1)
        missing -= fullest - counts[stage]
    if missing:
        least, num_fuller = divmod(num_layers, num_stages)
        return (least + 1,) * num_fuller + (least,) * (num_stages - num_fuller)
    return tuple(counts)


def pipeline_layout(counts: Sequence[int], num_prediction_layers: int = 0) -> str:
    """Layers of each stage in Megatron-LM's layout language.

    counts: from `stage_layers`. The embedding (E) is in the first stage; prediction layers (m) and the loss
    (L) are in the last.

    >>> pipeline_layout(stage_layers(61, 16))
    'Et*4|(t*4|)*14t*1L'
    """
    groups = [(count, len(list(same))) for count, same in groupby(counts[1:-1])]
    between = "".join(f"(t*{count}|)*{times}" if times > 1 else f"t*{count}|" for count, times in groups)
    return f"Et*{counts[0]}|{between}t*{counts[-1]}{'m' * num_prediction_layers}L"


Value: TypeAlias = bool | int | float | str | tuple[str | int, ...] | None


class Option(Struct, frozen=True):
    """One option of a program.

    name: as the program spells it; in YAML and JSON, dots separate nested sections. value: on a command line,
    True means a flag, and None a bare word.
    """

    name: str
    value: Value = True

    @property
    def words(self) -> tuple[str, ...]:
        """The option on a command line, without quotes."""
        if self.value is None:
            return (self.name,)
        if self.value is True:
            return (f"--{self.name}",)
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return (f"--{self.name}", *map(str, values))


class Translation(Struct, frozen=True, kw_only=True):
    """Options that express a strategy in another program, and what it has no option for."""

    options: tuple[Option, ...]
    unsupported: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """All options as command-line arguments."""
        return tuple(word for each in self.options for word in each.words)

    @property
    def bash_text(self) -> str:
        """The options as a bash array, one per line; empty if there are none."""
        lines = [f"  {join(each.words)}\n" for each in self.options]
        return f"OPTIONS=(\n{''.join(lines)})\n" if lines else ""

    @property
    def document(self) -> dict[str, object]:
        """The options as nested sections."""
        found: dict[str, object] = {}
        for each in self.options:
            *sections, name = each.name.split(".")
            inside = found
            for section in sections:
                inside = inside.setdefault(section, {})  # type: ignore[assignment]  # sections are dicts
            inside[name] = list(each.value) if isinstance(each.value, tuple) else each.value
        return found


class Program(Struct, frozen=True, kw_only=True):
    """A training program, and how it expresses a strategy.

    template: of its options. file: the name of the file with the options. form: format of that file.
    version, source: the version and source that the template is based on. entry: what torchrun starts: the
    program, or the user's script with the file of options; empty if the program has its own launcher.
    software: names of the software that runs it. is_for_transformers: whether it trains only transformers.
    use: how to pass the options to the program. checked_with: what accepts such options in the tests.
    """

    name: str
    template: str
    file: str
    form: Literal["options", "yaml", "json"]
    version: str
    source: str
    use: str
    checked_with: str
    entry: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    is_for_transformers: bool = False

    @property
    def is_library(self) -> bool:
        """Whether it is called from a script of the user's, which reads the file of options."""
        return self.form != "options"

    def translate(self, strategy: Strategy, model: Model = None) -> Translation:
        """The options that express the strategy, and what the program cannot express.

        model: for options that depend on its layers and experts. If the program would not start, or would
        train something else, there are no options.
        """
        found = filled(self.template, program_facts(strategy, model))
        if found.refused:
            return Translation(options=(), unsupported=found.refused)
        options = tuple(_option(each) for each in found.lines if not each.startswith("#"))
        return Translation(options=options, unsupported=found.unsupported)

    def text(self, found: Translation) -> str:
        """A translation in the format of the program; empty if there are no options."""
        if not found.options:
            return ""
        if self.form == "options":
            return found.bash_text
        if self.form == "yaml":
            return yaml_text(found.document)
        return json.dumps(found.document, indent=2) + "\n"


def _option(line: str) -> Option:
    """The option on a line of a template. Its value is parsed as JSON, or else taken as text."""
    name, equals, text = line.partition(" = ")
    if not equals:
        return Option(name)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return Option(name, tuple(value) if isinstance(value, list) else value)


# The programs of programs.toml.
PROGRAMS: tuple[Program, ...] = convert(
    shipped_table(Path(__file__).with_name("programs.toml"))["program"], tuple[Program, ...]
)
