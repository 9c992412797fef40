"""Parallelisation strategies: their axes, options and text form, and the software that runs them."""

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
# Schedules that feed micro-batches from both ends of a pipeline.
BOTH_ENDS: tuple[Schedule, ...] = ("dualpipe", "dualpipe_v")
USUAL_LORA_RANK: Final = 16  # the default rank of adapters, which is the most common in recipes
METHODS: tuple[Method, ...] = get_args(Method)

# Other names of precisions in frameworks and trackers.
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
    """Return the precision named by a text, with our or a framework's name; None if unknown.

    >>> precision_named("torch.bfloat16"), precision_named("int3")
    ('bf16', None)
    """
    name = text.strip().lower().removeprefix("torch.")
    return next((each for each in PRECISIONS if each == name), _PRECISION_NAMES.get(name))


# The dtype whose peak applies to the matrix products of a precision.
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
# Precisions with equal peaks, the slowest first.
_BY_PEAK: Final = (("fp32",), ("tf32",), _OF_16_BITS, ("fp8", "fp8_rowwise", "mxfp8"), ("fp4",))
ZERO_STAGES: Final = (0, 1, 2, 3)
# The first ZeRO stages that shard gradients and weights, respectively (Rajbhandari et al. 2020).
GRADIENTS_SHARDED, WEIGHTS_SHARDED = 2, 3
ALL_OFFLOADED: Final[Offload] = "optimizer_and_params"
# In a pipeline, higher stages hold and send the same as the last of these.
PIPELINE_STAGES: Final = ZERO_STAGES[:GRADIENTS_SHARDED]


def adapted_layers(trained: Trained, targets: LoraTargets) -> LoraTargets:
    """Return the layers with adapters: as stated, or by default attention's (qlora: all linear layers).

    Source: Hu et al. 2021, section 7.1 (queries and values, or all four); Dettmers et al. 2023, section 4.

    >>> adapted_layers("lora", "usual"), adapted_layers("qlora", "usual")
    ('attention', 'all_linear')
    """
    if targets != "usual":
        return targets
    return "all_linear" if trained == "qlora" else "attention"


class Strategy(Struct, frozen=True, kw_only=True):
    """One way to distribute a training step over dp x tp x pp x cp accelerators.

    dp, tp, pp, cp: sizes of the data, tensor, pipeline and context axes. ep: size of the expert axis, which
    is within dp x cp x tp and uses no additional accelerators.
    zero_stage: ZeRO stage: 1 shards optimizer states over dp, 2 gradients too, 3 parameters too (FSDP). In a
    pipeline, gradients and parameters are unsharded from the first to the last micro-batch of a step.
    whole_gradients: gradients that are sharded after a step are kept unsharded during it, in fp32 on every
    rank, and are communicated once per step instead of once per micro-batch (FSDP's no_sync).
    gradient_copies: 16-bit gradients have fp32 copies until the end of the step (DeepSpeed's optimizers).
    dp_replicate: number of groups of dp ranks that each hold one sharded copy and reduce gradients among
    them; 1 shards over all of dp (hybrid sharding: HSDP, MiCS; Megatron-Core's distributed optimizer
    instances). microbatch_samples: samples per micro-batch and dp rank; global_batch_samples: of one step
    over all ranks. ulysses: cp ranks exchange heads for tokens before and after attention (all-to-all),
    instead of passing keys and values around a ring.
    dispatch_copies: a token is sent once per expert (an all-to-all of NCCL: Megatron-Core's `alltoall`),
    instead of once per rank and node that holds some of its experts (DeepEP, HybridEP).
    interleave: layer chunks per pipeline rank (virtual pipeline stages).
    schedule: of the pipeline: 1F1B; 1F1B with the forward pass of one micro-batch overlapped with the
    backward pass of another, chunk by chunk (Megatron-Core's overlap of expert communication); or the latter
    from both ends (DualPipe: two stages per rank; V: two halves of one).
    sequence_parallel: activations that tp replicates are split along the sequence. tp_overlap: its
    collectives run in pieces during the matrix products (asynchronous tensor parallelism).
    fused_attention: scores are never written to memory (FlashAttention). native_attention: attention uses
    kernels for the chip's asynchronous instructions, whatever the software's default (FlashAttention-3 on
    Hopper, -4 on Blackwell, cuDNN's). fused_loss: fp32 logits are never in memory all at once.
    chunked_loss: logits of any width are never in memory all at once: those of a few tokens are computed,
    converted to their gradients and discarded (Liger Kernel, Cut Cross-Entropy).
    plain_loss: an unfused cross-entropy of logits in the width of values, which every tensor rank holds
    unsharded (torch's cross_entropy of an output with layout Replicate).
    cuda_graphs: a layer's kernels, except experts', are launched as recorded graphs instead of individually
    (CUDA graphs of Transformer Engine or Megatron-Core; HIP graphs). full_graphs: the whole step is one
    graph, including experts' kernels, which read the number of tokens per expert on the device.
    recompute: activations that are discarded and recomputed. offload: states kept in host memory between
    uses. activation_offload: activations that recompute keeps are moved to host memory until the backward
    pass. compression, compression_rank: of gradients between dp ranks; the rank of PowerSGD, or the inverse
    of the fraction that top-k sends. sync_period: steps between averages (local SGD, DiLoCo); 1 is every
    step. master_weights: 2-byte weights have a 4-byte copy, 4-byte gradients and moments; otherwise all have
    2 bytes (8-bit moments 1), as in a model converted completely to bf16.
    trained: all weights, or adapters of rank lora_rank over frozen (qlora: 4-bit) weights. lora_targets: the
    layers with adapters; see `adapted_layers`.
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
        """Raise SpecError for a strategy that cannot run on any cluster."""
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
        """Raise SpecError for groups of data ranks that shard nothing, or not evenly."""
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
        """Number of accelerators that the strategy uses."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_shards(self) -> int:
        """Number of ranks over which the ZeRO stage shards one copy."""
        return self.dp * self.cp // self.dp_replicate

    @property
    def shards_gradients(self) -> bool:
        """Return whether gradients are sharded over dp ranks: ZeRO stages 2 and 3."""
        return self.zero_stage >= GRADIENTS_SHARDED

    @property
    def shards_weights(self) -> bool:
        """Return whether weights are sharded over dp ranks: ZeRO stage 3."""
        return self.zero_stage >= WEIGHTS_SHARDED

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches per dp rank and step."""
        return self.global_batch_samples // (self.dp * self.microbatch_samples)

    def text(self) -> str:
        """Return the text form: options that differ from the default, `name=value`, in field order.

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
        """Return the options that change to obtain another strategy, in text form.

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
    """Return the value of an option in text form."""
    return str(value).lower() if isinstance(value, bool) else str(value)


AXES = ("dp", "tp", "pp", "cp", "ep")
_ALWAYS_WRITTEN = frozenset((*AXES, "microbatch_samples", "global_batch_samples"))
_SIZES = (*AXES, "microbatch_samples", "global_batch_samples", "dp_replicate", "interleave", "sync_period")
_SHORT = {"microbatch": "microbatch_samples", "global_batch": "global_batch_samples"}
# Other names of parameters in software and by users, for messages.
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
# The allowed values of options that are words.
CHOICES: dict[str, tuple[str, ...]] = {
    each.name: get_args(each.type) for each in fields(Strategy) if get_args(each.type)
}
FLAGS = tuple(each.name for each in fields(Strategy) if each.type is bool)
_DEFAULTS = {each.name: each.default for each in fields(Strategy)}


def strategy(text: str) -> Strategy:
    """Return the strategy of a text of `name=value`, separated by spaces or commas; others are defaults.

    Raises SpecError with the unknown name or value and what was expected.

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
    """Return the field of `Strategy` for a name in its text form; other names are returned unchanged.

    >>> field_of("microbatch"), field_of("tp")
    ('microbatch_samples', 'tp')
    """
    return _SHORT.get(name, name)


def parameter_guessed(name: str) -> str | None:
    """Return the parameter of the text form for its own name or another common name; None if unknown.

    >>> parameter_guessed("mbs"), parameter_guessed("tp"), parameter_guessed("speed")
    ('microbatch', 'tp', None)
    """
    key = name.strip().lower().replace("-", "_")
    if key in _SHORT or key in Strategy.__struct_fields__:
        return key
    return next((ours for ours, theirs in _GUESSES.items() if key in theirs), None)


def without_ranks(text: str) -> str:
    """Return the text form of a strategy without dp, which follows from the number of accelerators.

    >>> without_ranks("dp=8 zero_stage=3")
    'zero_stage=3'
    """
    return " ".join(each for each in text.replace(",", " ").split() if not each.startswith("dp="))


def read_option(text: str, *, where: str) -> tuple[str, Value]:
    """Return the field of `Strategy` and its value for one `name=value` of the text form.

    where: the context of the text, for the error message. Raises SpecError as `strategy` does.

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
    """Return the dense peak of a chip in a precision, in FLOP per second; None if not supported.

    Precisions below 16 bits also need 16-bit products, which attention and logits use. Products with block
    scales (mxfp8) are supported by chips with 4-bit products: Blackwell and CDNA 4
    (OCP Microscaling Formats 1.0; NVIDIA Transformer Engine: compute capability 10; AMD: gfx950).
    """
    if precision == "mxfp8" and chip.peak_flop_per_s("fp4") is None:
        return None
    if precision in OF_FEWER_BITS and not any(chip.peak_flop_per_s(each) for each in _OF_16_BITS):
        return None
    return chip.peak_flop_per_s(DTYPE_OF[precision])


# The highest plausible share of peak: chips exceed the clock of their stated peak, and definitions of FLOP
# differ.
MOST_OF_PEAK = 1.1


def has_no_higher_peak(precision: Precision, than: Precision) -> bool:
    """Return whether chips multiply in a precision no faster than in another one."""
    one, other = (
        next(place for place, alike in enumerate(_BY_PEAK) if each in alike) for each in (precision, than)
    )
    return one <= other


def multiplied_in(precision: Precision | None) -> tuple[Precision, ...]:
    """Return the precisions that the products of a run may have: the stated one, or all if none is stated.

    fp32 and tf32 may be confused, because torch's fp32 convolutions multiply in tf32.
    """
    if precision is None:
        return PRECISIONS
    return _OF_32_BITS if precision in _OF_32_BITS else (precision,)


def share_of_peak(flop_per_s: float, chip: Accelerator, among: Iterable[Precision]) -> float:
    """Return FLOP per second divided by the highest peak in some precisions; 0 if the chip states none."""
    peaks = [peak for each in among if (peak := chip.peak_flop_per_s(DTYPE_OF[each]))]
    return flop_per_s / max(peaks, default=math.inf)


_MAX_DIGITS = 12


Family: TypeAlias = Literal["megatron", "torch", "xla", "tpu", "ngc"]


class Software(Struct, frozen=True, kw_only=True):
    """One framework and implementation. words: a pattern that matches its name in rows.

    family: software with a similar way of working. vendor: of the chips on which it was measured. is_eager:
    whether kernels are launched as written, without a compiler or graphs. is_current: whether new trainings
    use it. medians: prior medians of performance-model parameters, from published facts about this
    software. spread: factor by which the unexplained spread of times between its sources exceeds that of
    other software. runs: the supported values of options of a strategy. Options that are not listed support
    all values, except that the default schedule is 1F1B only, and full graphs are not supported. The first
    value of `cuda_graphs` and `dispatch_copies` is that of the vendor's own recipes.
    offloads_with: the recomputations that it can combine with activation offloading.
    offload_stages: the ZeRO stages with which it can offload optimizer states only.
    has_experts_in_shards: whether the ranks of an expert axis belong to one group that shards weights.
    holds: deviations from other software in what it keeps in memory, by the names of `perfmodel.load`.
    most_dispatch_ranks: maximum ranks of experts whose tokens are sent once, between hosts of up to 8
    accelerators. last_chip_year: on chips released later, its words mean its successor.
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
        """The supported values by option of a strategy; options that are missing support all values."""
        return {"schedule": ("1f1b",), "full_graphs": (False,), **self.runs}

    @property
    def pipeline_stages(self) -> tuple[int, ...]:
        """The ZeRO stages to plan a pipeline with: all if it does not support stage 1."""
        stages = tuple(int(each) for each in self.options.get("zero_stage", ZERO_STAGES))
        return stages if 1 not in stages else PIPELINE_STAGES

    @property
    def offloads_weights(self) -> bool:
        """Whether it can offload weights."""
        return ALL_OFFLOADED in self.options.get("offload", (ALL_OFFLOADED,))

    def can_run(self, chosen: Strategy) -> bool:
        """Return whether it supports every option of a strategy."""
        has_options = all(getattr(chosen, name) in values for name, values in self.options.items())
        return has_options and (not chosen.activation_offload or chosen.recompute in self.offloads_with)

    def is_named_in(self, text: str) -> bool:
        """Return whether a text matches its words."""
        return re.search(self.words, text, re.IGNORECASE) is not None


SOFTWARE: tuple[Software, ...] = convert(
    shipped_table(Path(__file__).with_name("software.toml"))["software"],
    tuple[Software, ...],
)
SOFTWARE_NAMES: tuple[str, ...] = tuple(each.name for each in SOFTWARE)
# Used instead of a software for steps without measurements, predicted from the performance model's priors.
PRIORS_ONLY = "priors"


def software(name: str) -> Software:
    """Return the software of a name. Raises SpecError with the known names."""
    for each in SOFTWARE:
        if each.name == name:
            return each
    raise SpecError(f"software {name!r} is not known; expected one of {', '.join(SOFTWARE_NAMES)}")


# Cached, because tables repeat few texts, and every software's pattern is searched in each.
@lru_cache(maxsize=2**13)
def software_in(text: str, *, vendor: str, is_eager: bool, chip_year: int | None = None) -> Software | None:
    """Return the software named in a text, on chips of a vendor; None if it names none.

    is_eager: distinguishes software with the same words. chip_year: the chip's release year, if known.

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
