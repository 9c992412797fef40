"""How a run is parallelised: every axis and option, their one text form, and the software that runs it."""

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct, convert, field
from msgspec.structs import fields

from equipoise.errors import SpecError, hint
from equipoise.files import shipped_table
from equipoise.spec.hardware import Accelerator, Dtype

Recompute: TypeAlias = Literal["none", "selective", "full"]
Precision: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8_rowwise", "mxfp8", "fp4"]
Implementation: TypeAlias = Literal["eager", "compiled"]
Optimizer: TypeAlias = Literal["adam", "adam_8bit", "sgd"]
Trained: TypeAlias = Literal["full", "lora", "qlora"]
LoraTargets: TypeAlias = Literal["usual", "query_value", "attention", "all_linear"]
Method: TypeAlias = Literal["dpo", "grpo"]
Offload: TypeAlias = Literal["none", "optimizer", "optimizer_and_params"]
Compression: TypeAlias = Literal["none", "fp16", "powersgd", "topk"]
Schedule: TypeAlias = Literal["1f1b", "1f1b_overlap", "dualpipe", "dualpipe_v"]
Value: TypeAlias = int | str | bool

RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TRAINED: tuple[Trained, ...] = get_args(Trained)
LORA_TARGETS: tuple[LoraTargets, ...] = get_args(LoraTargets)
# Schedules that work through micro-batches from both ends of a pipeline.
BOTH_ENDS: tuple[Schedule, ...] = ("dualpipe", "dualpipe_v")
USUAL_LORA_RANK: Final = 16  # where adapters are trained and nobody states how wide: what recipes use most
METHODS: tuple[Method, ...] = get_args(Method)

# What frameworks and trackers call precisions besides.
_PRECISION_NAMES: dict[str, Precision] = {
    "bfloat16": "bf16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "32-true": "fp32",
    "tensorfloat32": "tf32",
    "float8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}


def precision_named(text: str) -> Precision | None:
    """The precision of a text, as it is called here or by frameworks; None where that is none.

    >>> precision_named("torch.bfloat16"), precision_named("int3")
    ('bf16', None)
    """
    name = text.strip().lower().removeprefix("torch.")
    return next((each for each in PRECISIONS if each == name), _PRECISION_NAMES.get(name))


# The dtype whose peak a precision's matrix products run at.
DTYPE_OF: dict[Precision, Dtype] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_rowwise": "fp8",
    "mxfp8": "fp8",
    "fp4": "fp4",
}
_OF_32_BITS: Final[tuple[Precision, ...]] = ("fp32", "tf32")
_OF_16_BITS: Final[tuple[Dtype, ...]] = ("bf16", "fp16")
OF_FEWER_BITS: Final[tuple[Precision, ...]] = ("fp8", "fp8_rowwise", "mxfp8", "fp4")
ZERO_STAGES: Final = (0, 1, 2, 3)
# The ZeRO stages from which gradients, and weights too, are sharded (Rajbhandari et al. 2020).
GRADIENTS_SHARDED, WEIGHTS_SHARDED = 2, 3
# In a pipeline the others hold and send what the last of these does.
PIPELINE_STAGES: Final = ZERO_STAGES[:GRADIENTS_SHARDED]


def adapted_layers(trained: Trained, targets: LoraTargets) -> LoraTargets:
    """The layers on which adapters lie: as stated, else attention's projections, of qlora all linear layers.

    Source: Hu et al. 2021, section 7.1 (queries and values, or all four); Dettmers et al. 2023, section 4.

    >>> adapted_layers("lora", "usual"), adapted_layers("qlora", "usual")
    ('attention', 'all_linear')
    """
    if targets != "usual":
        return targets
    return "all_linear" if trained == "qlora" else "attention"


class Strategy(Struct, frozen=True, kw_only=True):
    """One way to spread a training step over dp x tp x pp x cp accelerators.

    dp, tp, pp, cp: sizes of the data, tensor, pipeline and context axes. ep: size of the expert axis, which
    is within dp x cp x tp and takes no accelerators of its own.
    zero_stage: ZeRO stage: 1 shards optimizer states over dp, 2 gradients too, 3 parameters too (FSDP); in a
    pipeline these lie whole from the first micro-batch of a step to the last.
    whole_gradients: gradients that are sharded after a step lie whole during it, in fp32 on every rank, and
    travel once a step (no_sync of FSDP) in place of once a micro-batch.
    gradient_copies: gradients of 16 bits have copies in fp32 until the step is done (DeepSpeed's optimizers).
    dp_replicate: groups of dp ranks that each hold one sharded copy, and sum gradients between them: 1 shards
    over all of dp (hybrid sharding: HSDP, MiCS; Megatron-Core's instances of the distributed optimizer).
    microbatch_samples: samples a dp rank takes at a time; global_batch_samples: of one step over all ranks.
    ulysses: ranks of cp exchange heads for tokens before attention and back after it (all-to-all), in place
    of passing keys and values round.
    dispatch_copies: a token goes to its experts once for each of them (an all-to-all of NCCL: Megatron-Core's
    `alltoall`), and not once for each rank and node that holds some of them (DeepEP, HybridEP).
    interleave: layer chunks each pipeline rank holds (virtual pipeline stages).
    schedule: of the pipeline: one forward and one back in turn; the same with the forward pass of one
    micro-batch overlapped with the way back of another, chunk by chunk (Megatron-Core's overlap of experts'
    traffic); or that from both ends (DualPipe: two stages a rank; V: two halves of one).
    sequence_parallel: what tp leaves whole is split along the sequence. tp_overlap: its collectives run in
    pieces during the matrix products (asynchronous tensor parallelism).
    fused_attention: scores never reach memory (FlashAttention). native_attention: by kernels written for the
    chip's asynchronous instructions, whatever the software would take (FlashAttention-3 on Hopper, -4 on
    Blackwell, cuDNN's). fused_loss: nor do fp32 logits, all at once.
    chunked_loss: nor do logits of any width: those of a few tokens are made, turned into their gradients and
    dropped (Liger Kernel, Cut Cross-Entropy).
    plain_loss: the loss is a cross-entropy as written, of logits as wide as values are, which every tensor
    rank has whole (torch's cross_entropy of an output whose layout is Replicate).
    cuda_graphs: a layer's kernels, but for those of experts, are launched as recorded graphs and not one by
    one (CUDA graphs of Transformer Engine or Megatron-Core; HIP graphs). full_graphs: the whole step is one
    graph, with experts' kernels, which then find on the device how many tokens each expert got.
    recompute: activations discarded and computed again. offload: what is kept in host memory between uses.
    activation_offload: what recompute keeps of every layer waits for the way back in host memory.
    compression, compression_rank: of gradients between dp ranks; the rank of PowerSGD, or the inverse of the
    fraction top-k keeps. sync_period: steps between averagings (local SGD, DiLoCo); 1 is every step.
    master_weights: 2-byte weights have a 4-byte copy, 4-byte gradients and moments; without, all are of 2
    bytes (8-bit moments of 1), as in a model that is converted to bf16 whole.
    trained: all weights, or adapters of rank lora_rank over frozen (qlora: 4-bit) weights. lora_targets: the
    layers that have adapters, as `adapted_layers` says.
    """

    global_batch_samples: int
    microbatch_samples: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero_stage: int = 0
    whole_gradients: bool = False
    gradient_copies: bool = False
    dp_replicate: int = 1
    ulysses: bool = False
    dispatch_copies: bool = False
    interleave: int = 1
    schedule: Schedule = "1f1b"
    sequence_parallel: bool = False
    tp_overlap: bool = False
    fused_attention: bool = True
    native_attention: bool = False
    fused_loss: bool = True
    chunked_loss: bool = False
    plain_loss: bool = False
    recompute: Recompute = "none"
    precision: Precision = "bf16"
    implementation: Implementation = "compiled"
    cuda_graphs: bool = False
    full_graphs: bool = False
    optimizer: Optimizer = "adam"
    master_weights: bool = True
    offload: Offload = "none"
    activation_offload: bool = False
    compression: Compression = "none"
    compression_rank: int = 0
    sync_period: int = 1
    trained: Trained = "full"
    lora_rank: int = 0
    lora_targets: LoraTargets = "usual"

    def __post_init__(self) -> None:
        """Refuse what no machine could run, whatever its size."""
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise SpecError(
                    f"strategy {self.text()!r}: {name}={getattr(self, name)}; expected at least 1"
                )
        if self.zero_stage not in range(4):
            raise SpecError(f"strategy {self.text()!r}: zero_stage={self.zero_stage}; expected 0, 1, 2 or 3")
        per_round = self.dp * self.microbatch_samples
        if self.global_batch_samples % per_round:
            raise SpecError(
                f"strategy {self.text()!r}: global_batch_samples={self.global_batch_samples} is "
                f"not a multiple of dp x microbatch_samples = {per_round}; every rank needs the same share"
            )
        if (self.dp * self.tp * self.cp) % self.ep:
            raise SpecError(
                f"strategy {self.text()!r}: ep={self.ep} does not divide dp x tp x cp = "
                f"{self.dp * self.tp * self.cp}; experts are spread over those ranks"
            )
        if self.dp_replicate > 1:
            self._check_groups()

    def _check_groups(self) -> None:
        """Refuse groups of data ranks that share nothing out, or not evenly."""
        where = f"strategy {self.text()!r}: dp_replicate={self.dp_replicate}"
        if self.dp % self.dp_replicate:
            raise SpecError(f"{where} does not divide dp={self.dp}; each group needs as many ranks")
        if not self.zero_stage or self.num_shards == 1:
            raise SpecError(
                f"{where} with zero_stage={self.zero_stage} leaves {self.num_shards} ranks a group; groups "
                "need a zero_stage of 1 to 3 and several ranks that share the states (else leave it out)"
            )
        if self.num_shards * self.tp % self.ep:
            raise SpecError(
                f"{where}: ep={self.ep} does not divide the {self.num_shards * self.tp} ranks of a group"
            )

    @property
    def num_accelerators(self) -> int:
        """Accelerators the strategy takes."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_shards(self) -> int:
        """Ranks that share one copy of what the ZeRO stage shards."""
        return self.dp * self.cp // self.dp_replicate

    @property
    def shards_gradients(self) -> bool:
        """Whether each dp rank keeps its share of the gradients alone: ZeRO stage 2 and 3."""
        return self.zero_stage >= GRADIENTS_SHARDED

    @property
    def shards_weights(self) -> bool:
        """Whether each dp rank keeps its share of the weights alone: ZeRO stage 3."""
        return self.zero_stage >= WEIGHTS_SHARDED

    @property
    def num_microbatches(self) -> int:
        """Micro-batches a dp rank goes through in one step."""
        return self.global_batch_samples // (self.dp * self.microbatch_samples)

    def text(self) -> str:
        """The one text form: options that differ from the default, `name=value`, in the order of the fields.

        >>> Strategy(global_batch_samples=64, dp=8, zero_stage=3, recompute="full").text()
        'dp=8 microbatch=1 global_batch=64 zero_stage=3 recompute=full'
        """
        parts = [f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) != 1]
        parts.append(f"microbatch={self.microbatch_samples} global_batch={self.global_batch_samples}")
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if name not in _ALWAYS_WRITTEN and value != default:
                parts.append(f"{name}={value_text(value)}")
        return " ".join(parts)

    def changes_to(self, other: "Strategy") -> str:
        """What has to be changed to make it another strategy, in the text form.

        >>> eight = Strategy(global_batch_samples=64, dp=4, tp=2)
        >>> eight.changes_to(Strategy(global_batch_samples=64, dp=8, zero_stage=3))
        'dp=8 tp=1 zero_stage=3'
        """
        others = (each for each in _DEFAULTS if each not in _ALWAYS_WRITTEN)
        names = (*AXES, "microbatch_samples", "global_batch_samples", *others)
        short = {full: name for name, full in _SHORT.items()}
        changed = [(name, value) for name in names if (value := getattr(other, name)) != getattr(self, name)]
        return " ".join(f"{short.get(name, name)}={value_text(value)}" for name, value in changed)


def value_text(value: Value) -> str:
    """The value of an option as the text form has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


AXES = ("dp", "tp", "pp", "cp", "ep")
_ALWAYS_WRITTEN = frozenset((*AXES, "microbatch_samples", "global_batch_samples"))
_SIZES = (*AXES, "microbatch_samples", "global_batch_samples", "dp_replicate", "interleave", "sync_period")
_SHORT = {"microbatch": "microbatch_samples", "global_batch": "global_batch_samples"}
# What other software and people call parameters, for messages.
_GUESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "dp": ("data_parallel", "data_parallel_size", "dp_size", "data_parallelism", "ddp", "dp_degree"),
    "tp": ("tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "tp_size", "tp_degree"),
    "pp": (
        "pipeline_parallel",
        "pipeline_parallel_size",
        "pipeline_model_parallel_size",
        "pp_size",
        "stages",
    ),
    "cp": ("context_parallel", "context_parallel_size", "cp_size", "ring_attention"),
    "ep": ("expert_parallel", "expert_parallel_size", "expert_model_parallel_size", "ep_size"),
    "zero_stage": ("zero", "zero_level", "zero_optimization", "stage", "fsdp", "sharding", "shard_state"),
    "whole_gradients": ("no_sync", "defer_grad_sync", "gradient_sync"),
    "dp_replicate": ("hsdp", "replicas", "data_parallel_replicate_degree"),
    "microbatch": (
        *("mbs", "micro_batch", "micro_batch_size", "microbatch_size", "per_device_batch_size"),
        *("per_gpu_batch_size", "per_device_train_batch_size", "local_batch_size"),
    ),
    "interleave": ("vpp", "virtual_pipeline", "virtual_pipeline_stages", "num_model_chunks"),
    "sequence_parallel": ("sp",),
    "dispatch_copies": ("alltoall", "all_to_all"),
    "cuda_graphs": ("cuda_graph", "cudagraphs", "graphs", "enable_cuda_graph", "cuda_graph_impl"),
    "full_graphs": ("full_iteration", "full_iteration_graph", "full_cuda_graphs"),
    "ulysses": ("ulysses_sequence_parallel", "sequence_parallel_size", "sequence_parallel_degree"),
    "recompute": (
        *("checkpointing", "activation_checkpointing", "gradient_checkpointing", "recomputation", "remat"),
        *("activation_checkpoint", "gradient_checkpoint", "activation_recompute"),
    ),
    "implementation": ("compile", "compiled", "torch_compile", "eager"),
    "offload": ("cpu_offload", "offload_optimizer", "zero_offload"),
    "fused_attention": ("flash_attention", "flash_attn", "sdpa"),
    "lora_rank": ("rank", "lora_r"),
    "optimizer": ("optimiser", "optim"),
    "precision": ("dtype", "mixed_precision", "amp"),
}
_EXPERT_TENSOR = ("etp", "expert_tensor_parallel", "expert_tensor_parallel_size")
WHOLE_EXPERTS: Final = (
    "experts split over tensor ranks are not modelled; each expert lies whole on one rank of ep (etp=1)"
)
# What the options that are words may be.
CHOICES: dict[str, tuple[str, ...]] = {
    each.name: get_args(each.type) for each in fields(Strategy) if get_args(each.type)
}
FLAGS = tuple(each.name for each in fields(Strategy) if each.type is bool)
_DEFAULTS = {each.name: each.default for each in fields(Strategy)}


def strategy(text: str) -> Strategy:
    """The strategy a text names: `name=value`, separated by spaces or commas; others have their defaults.

    Raises SpecError with the name or value that is not known and what was expected.

    >>> strategy("dp=8 microbatch=1 global_batch=64 zero_stage=3").num_microbatches
    8
    """
    stated: dict[str, Value] = {}
    for part in text.replace(",", " ").split():
        name, value = read_option(part, where=f"strategy {text!r}")
        if name in stated:
            raise SpecError(f"strategy {text!r}: {name} is given twice; keep one")
        stated[name] = value
    if "global_batch_samples" not in stated:
        raise SpecError(f"strategy {text!r}: global_batch is missing; add e.g. global_batch=512")
    return Strategy(**stated)  # type: ignore[arg-type]  # each value was checked by name


def field_of(name: str) -> str:
    """The field of `Strategy` that a name of its text form means: another name is its own.

    >>> field_of("microbatch"), field_of("tp")
    ('microbatch_samples', 'tp')
    """
    return _SHORT.get(name, name)


def parameter_guessed(name: str) -> str | None:
    """The parameter of the text form that a person means by a name: its own, or one that others use.

    >>> parameter_guessed("mbs"), parameter_guessed("tp"), parameter_guessed("speed")
    ('microbatch', 'tp', None)
    """
    key = name.strip().lower().replace("-", "_")
    if key in _SHORT or key in Strategy.__struct_fields__:
        return key
    return next((ours for ours, theirs in _GUESSES.items() if key in theirs), None)


def without_ranks(text: str) -> str:
    """The text form of a strategy without its data ranks, which follow from the number of accelerators.

    >>> without_ranks("dp=8 zero_stage=3")
    'zero_stage=3'
    """
    return " ".join(each for each in text.replace(",", " ").split() if not each.startswith("dp="))


def read_option(text: str, *, where: str) -> tuple[str, Value]:
    """The field of `Strategy` and its value that one `name=value` of the text form states.

    where: what the text is part of, for the error. Raises SpecError as `strategy` does.

    >>> read_option("microbatch=4", where="example")
    ('microbatch_samples', 4)
    """
    name, equals, value = text.partition("=")
    name = field_of(name)
    known = set(Strategy.__struct_fields__)
    if name in _EXPERT_TENSOR:
        raise SpecError(f"{where}: {text!r}: {WHOLE_EXPERTS}: leave it out")
    if not equals or name not in known:
        meant = parameter_guessed(name)
        near = [meant] if meant else get_close_matches(name, (*known, *_SHORT), n=1)
        near = [repr(f"{each}={value if equals else 'VALUE'}") for each in near]
        expected = f"expected one of {', '.join(sorted(known))}"
        raise SpecError(f"{where}: {text!r} is not name=value of a strategy; {hint(near, expected)}")
    choices = CHOICES.get(name)
    if choices is not None:
        if value not in choices:
            raise SpecError(f"{where}: {name}={value!r}; expected {' or '.join(choices)}")
        return name, value
    if name in FLAGS:
        if value not in {"true", "false"}:
            raise SpecError(f"{where}: {name}={value!r}; expected true or false")
        return name, value == "true"
    if not value.isdecimal() or len(value) > _MAX_DIGITS:
        raise SpecError(f"{where}: {name}={value!r}; expected a whole number")
    if name in _SIZES and int(value) < 1:
        raise SpecError(f"{where}: {name}={value}; expected at least 1")
    if name == "zero_stage" and int(value) not in range(4):
        raise SpecError(f"{where}: zero_stage={value}; expected 0, 1, 2 or 3")
    return name, int(value)


def peak_in(chip: Accelerator, precision: Precision) -> float | None:
    """Dense FLOP per second of a chip's products in a precision; None where it has none.

    Of less than 16 bits none, either, of a chip without products in 16 bits: attention and logits run in
    these. Products of blocks that share a scale (mxfp8) come with those of 4 bits: Blackwell's and CDNA 4's
    (OCP Microscaling Formats 1.0; NVIDIA Transformer Engine: compute capability 10; AMD: gfx950).
    """
    if precision == "mxfp8" and chip.peak_flop_per_s("fp4") is None:
        return None
    if precision in OF_FEWER_BITS and not any(chip.peak_flop_per_s(each) for each in _OF_16_BITS):
        return None
    return chip.peak_flop_per_s(DTYPE_OF[precision])


# More no run can need: chips clock above what their peak is stated at, and FLOP are counted in several ways.
MOST_OF_PEAK = 1.1


def multiplied_in(precision: Precision | None) -> tuple[Precision, ...]:
    """The precisions that the products of a run may be in which states one: all where it states none.

    Either of 32 bits may be called by the other's name: torch's convolutions in fp32 multiply in tf32.
    """
    if precision is None:
        return PRECISIONS
    return _OF_32_BITS if precision in _OF_32_BITS else (precision,)


def share_of_peak(flop_per_s: float, chip: Accelerator, among: Iterable[Precision]) -> float:
    """FLOP per second of one accelerator over its highest peak in some precisions; 0 where it states none."""
    peaks = [peak for each in among if (peak := chip.peak_flop_per_s(DTYPE_OF[each]))]
    return flop_per_s / max(peaks, default=math.inf)


_MAX_DIGITS = 12


Family: TypeAlias = Literal["megatron", "torch", "xla", "tpu", "ngc"]


class Software(Struct, frozen=True, kw_only=True):
    """One framework and implementation. words: a pattern by which rows name it.

    family: what shares its ways of working. vendor: of the chips that it was measured on. is_eager: whether
    kernels are launched as written, without a compiler or graphs. is_current: whether new trainings take it.
    medians: of priors of the performance model's parameters that what is published of this software replaces.
    spread: how much more than those of others the times of its sources differ, for reasons unknown.
    runs: the values it has of options of a strategy; of what is not named all, of schedules 1F1B alone,
    and no graph of a whole step. Of `cuda_graphs` and `dispatch_copies` the first is what its makers' own
    recipes take.
    offloads_with: the recomputations that it can combine with activations in the host's memory.
    offload_stages: the ZeRO stages with which it can move optimizer states alone to the host.
    has_experts_in_shards: whether ranks of an expert axis are of one group that shards weights.
    holds: how it holds what other software holds otherwise, by the names of `perfmodel.load`.
    most_dispatch_ranks: of experts whose tokens travel once, between hosts of 8 accelerators or fewer.
    last_chip_year: on chips that came out later its words mean its successor.
    """

    name: str
    title: str
    family: Family
    words: str
    vendor: str = "NVIDIA"
    is_eager: bool = False
    is_current: bool = False
    medians: tuple[tuple[str, float], ...] = ()
    spread: float = 1.0
    runs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    offloads_with: tuple[Recompute, ...] = ()
    offload_stages: tuple[int, ...] = ZERO_STAGES
    has_experts_in_shards: bool = False
    holds: tuple[str, ...] = ()
    most_dispatch_ranks: int | None = None
    last_chip_year: float = math.inf
    successor: str | None = None

    @property
    def options(self) -> Mapping[str, tuple[Value, ...]]:
        """By option of a strategy the values that it has; of an option that is not there all."""
        return {"schedule": ("1f1b",), "full_graphs": (False,), **self.runs}

    @property
    def pipeline_stages(self) -> tuple[int, ...]:
        """The ZeRO stages to plan a pipeline with: all where none shards the optimizer's states alone."""
        stages = tuple(int(each) for each in self.options.get("zero_stage", ZERO_STAGES))
        return stages if 1 not in stages else PIPELINE_STAGES

    def can_run(self, chosen: Strategy) -> bool:
        """Whether it has every option of a strategy."""
        has_options = all(getattr(chosen, name) in values for name, values in self.options.items())
        return has_options and (not chosen.activation_offload or chosen.recompute in self.offloads_with)

    def is_named_in(self, text: str) -> bool:
        """Whether a text has its words."""
        return re.search(self.words, text, re.IGNORECASE) is not None


SOFTWARE: tuple[Software, ...] = convert(
    shipped_table(Path(__file__).with_name("software.toml"))["software"],
    tuple[Software, ...],
)
SOFTWARE_NAMES: tuple[str, ...] = tuple(each.name for each in SOFTWARE)
# In place of a software: steps that nothing was measured of, by the priors of the performance model.
PRIORS_ONLY = "priors"


def software(name: str) -> Software:
    """The software of a name. Raises SpecError with the names there are."""
    for each in SOFTWARE:
        if each.name == name:
            return each
    raise SpecError(f"software {name!r} is not known; expected one of {', '.join(SOFTWARE_NAMES)}")


# The rows of a table repeat few texts, and every software's words are looked for in each.
@lru_cache(maxsize=2**13)
def software_in(text: str, *, vendor: str, is_eager: bool, chip_year: int | None = None) -> Software | None:
    """The software that a text names, on chips of a vendor; None where it names none.

    is_eager: distinguishes software of the same words. chip_year: when the chip came out, where it is known.

    >>> software_in("NeMo; VP=8", vendor="NVIDIA", is_eager=False).name
    'megatron_core'
    >>> software_in("FSDP2+compile", vendor="NVIDIA", is_eager=False).name
    'torchtitan'
    >>> software_in("NeMo AutoModel; FSDP2", vendor="NVIDIA", is_eager=False).name
    'automodel'
    >>> software_in("PyTorch FSDP1", vendor="NVIDIA", is_eager=True).name
    'fsdp'
    >>> software_in("NGC PyTorch; transformers", vendor="NVIDIA", is_eager=True).name
    'hf'
    >>> software_in("Megatron-LM", vendor="NVIDIA", is_eager=True, chip_year=2020).name
    'megatron'
    >>> software_in("Megatron-LM", vendor="NVIDIA", is_eager=True, chip_year=2024).name
    'megatron_core'
    """
    found = [each for each in SOFTWARE if each.vendor == vendor and each.is_named_in(text)]
    if not found:
        return None
    first = found[0]
    if first.successor is not None and (chip_year or 0) > first.last_chip_year:
        return software(first.successor)
    same = [each for each in found if each.words == first.words]
    return next((each for each in same if each.is_eager == is_eager), first)
