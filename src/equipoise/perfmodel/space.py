"""The space of strategies: allowed values of each option, and the rules that make a strategy legal."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.perfmodel.load import Floats, Load
from equipoise.perfmodel.machine import Machine
from equipoise.spec.strategy import (
    ALL_OFFLOADED,
    AXES,
    BOTH_ENDS,
    GRADIENTS_SHARDED,
    OF_FEWER_BITS,
    PIPELINE_STAGES,
    PRECISIONS,
    RECOMPUTES,
    WEIGHTS_SHARDED,
    ZERO_STAGES,
    Precision,
    Strategy,
    Value,
)
from equipoise.units import listed

OVERLAPPED = 2  # micro-batches, one in its forward pass during the backward pass of the other

Combinations: TypeAlias = tuple[tuple[Value, ...], ...]
# Layout options distribute samples over ranks; layer options affect a layer's time; state options do not.
LAYOUT_OPTIONS = (*AXES, "dp_replicate", "microbatch_samples", "global_batch_samples")
LAYER_OPTIONS = (
    "ulysses",
    "dispatch_copies",
    "sequence_parallel",
    "tp_overlap",
    "recompute",
    "activation_offload",
    "fused_attention",
    "native_attention",
    "fused_loss",
    "chunked_loss",
    "plain_loss",
    "precision",
    "implementation",
    "cuda_graphs",
    "full_graphs",
)
STATE_OPTIONS = (
    "interleave",
    "schedule",
    "zero_stage",
    "whole_gradients",
    "gradient_copies",
    "optimizer",
    "master_weights",
    "offload",
    "compression",
    "compression_rank",
    "sync_period",
    "trained",
    "lora_rank",
    "lora_targets",
)
# Default values in a search: those that do not change the trained model, without offloading.
# Attention and loss are fused and layers compiled, because this is never slower and does not change results.
USUAL: Mapping[str, tuple[Value, ...]] = {
    "ulysses": (False,),
    "dispatch_copies": (False,),
    "sequence_parallel": (False, True),
    "tp_overlap": (False, True),
    "recompute": RECOMPUTES,
    "activation_offload": (False,),
    "fused_attention": (True,),
    "native_attention": (False,),
    "fused_loss": (True,),
    "chunked_loss": (False,),
    "plain_loss": (False,),
    "precision": ("bf16",),
    "implementation": ("compiled",),
    "cuda_graphs": (False,),
    "full_graphs": (False,),
    "schedule": ("1f1b",),
    "zero_stage": (0, 1, 2, 3),
    "whole_gradients": (False,),
    "gradient_copies": (False,),
    "optimizer": ("adam",),
    "master_weights": (True,),
    "offload": ("none",),
    "compression": ("none",),
    "compression_rank": (0,),
    "sync_period": (1,),
    "trained": ("full",),
    "lora_rank": (0,),
    "lora_targets": ("usual",),
}


class Space(Struct, frozen=True, kw_only=True):
    """A search space: a number of accelerators, global batches, and allowed values of each option.

    choices: allowed values by field of `Strategy`, which override USUAL. Axes, microbatch_samples and
    interleave are free unless listed: they take every value that model, batch and accelerators allow; so is
    dp_replicate, with groups aligned to nodes. offload_stages: ZeRO stages with which optimizer states alone
    may be offloaded. pipeline_stages: ZeRO stages allowed with a pipeline, unless choices list both pp and
    zero_stage.
    """

    num_accelerators: int
    global_batches: tuple[int, ...]
    choices: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    offload_stages: tuple[int, ...] = ZERO_STAGES
    pipeline_stages: tuple[int, ...] = PIPELINE_STAGES

    def __post_init__(self) -> None:
        """Reject spaces that are empty for every model."""
        if self.num_accelerators < 1 or not self.global_batches or min(self.global_batches) < 1:
            raise SpecError(
                f"space: num_accelerators={self.num_accelerators}, global_batches={self.global_batches}; "
                "expected at least one accelerator, and global batches of at least one sample"
            )
        known = set(Strategy.__struct_fields__) - {"global_batch_samples"}
        for name, values in self.choices.items():
            if name not in known or not values:
                raise SpecError(f"space: {name}={values!r}; expected values of an option of a strategy")

    def __hash__(self) -> int:
        """Hash of sizes and names of choices; equality also compares their values."""
        return hash((self.num_accelerators, self.global_batches, *self.choices))

    def allows(self, name: str, value: Value) -> bool:
        """Whether a free option may have this value."""
        return name not in self.choices or value in self.choices[name]

    def values(self, name: str) -> tuple[Value, ...]:
        """The values of an option that is not free."""
        return self.choices.get(name, USUAL[name])


class Limits(Struct, frozen=True, kw_only=True):
    """Sizes that limit the sharding of a model on a machine; hidden 0: only data and layers can be sharded.

    peer_ranks: see `Machine`.
    """

    node_size: int
    peer_ranks: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    experts: int
    sequence: int
    precisions: tuple[Precision, ...]
    has_adapters: bool = True

    def asked_by(self, space: Space) -> "Limits":
        """A copy with only the precisions of a space, so that equal limits compare equal for other chips."""
        asked = space.values("precision")
        return replace(self, precisions=tuple(each for each in self.precisions if each in asked))


def limits(load: Load, machine: Machine) -> Limits:
    """The limits of a load on a machine, both with scalar fields."""
    peaks = (float(peak) for peak in machine.peak_flop_per_s)
    return Limits(
        node_size=int(machine.node_size),
        peer_ranks=int(machine.peer_ranks),
        layers=int(load.layers),
        hidden=int(load.hidden),
        heads=int(load.heads),
        kv_heads=int(load.kv_heads),
        experts=int(load.experts),
        sequence=int(load.sequence),
        precisions=tuple(name for name, peak in zip(PRECISIONS, peaks, strict=True) if not np.isnan(peak)),
        has_adapters=float(load.adapter_params + load.linear_adapter_params) > 0.0,
    )


class Fault(NamedTuple):
    """Why strategies are illegal. parameters: fields of a strategy whose other values may be legal."""

    words: str
    parameters: tuple[str, ...]


_NO_CHUNKS = Fault(
    "the chosen interleave needs pp above 1 and that many layers per stage", ("interleave", "pp")
)


def axes_fault(limits: Limits, *, tp: int, pp: int, cp: int) -> Fault | None:
    """Why these sizes of the tensor, pipeline and context axes are illegal.

    Source: Shoeybi et al. 2019 (whole heads per rank; key heads are replicated where tp exceeds their
    number); Llama team 2024, section 3.3.2 (2 cp chunks per sequence balance causal attention).
    """
    if not limits.hidden and (tp > 1 or cp > 1):
        return Fault("a model described by figures per sample has no tensor or context axis", ("tp", "cp"))
    if tp > 1 and (limits.heads % tp or limits.hidden % tp):
        return Fault(f"tp does not divide heads={limits.heads} and hidden={limits.hidden}", ("tp",))
    if tp > 1 and limits.kv_heads % tp and tp % limits.kv_heads:
        return Fault(f"tp neither divides nor is a multiple of kv_heads={limits.kv_heads}", ("tp",))
    if cp > 1 and limits.sequence % (2 * cp):
        return Fault(f"2 x cp does not divide sequence={limits.sequence}", ("cp",))
    return Fault(f"pp exceeds layers={limits.layers}", ("pp",)) if pp > limits.layers else None


def expert_fault(limits: Limits, *, ranks: int, ep: int) -> Fault | None:
    """Why an expert axis is illegal. ranks: of one stage. Source: Lepikhin et al. 2020."""
    if ep == 1:
        return None
    if not limits.experts:
        return Fault("a model without experts has no expert axis", ("ep",))
    if limits.experts % ep:
        return Fault(f"ep does not divide experts={limits.experts}", ("ep",))
    return Fault("ep does not divide dp x tp x cp", ("ep", "dp", "tp", "cp")) if ranks % ep else None


def pipeline_fault(
    limits: Limits, *, pp: int, interleave: int, num_microbatches: int, schedule: str
) -> Fault | None:
    """Why a pipeline schedule is illegal. Source: Narayanan et al. 2021, section 2.2; `_dual_fault`."""
    wrong, halves = None, interleave
    if schedule in BOTH_ENDS:
        wrong = _dual_fault(schedule, pp=pp, interleave=interleave, num_microbatches=num_microbatches)
        halves = 2 if schedule == "dualpipe_v" else 1
    elif schedule == "1f1b_overlap" and (pp > 1) != (interleave > 1):
        # Passes of different chunks overlap: megatron-core 0.16.1, TransformerConfig.
        return Fault(
            "schedule=1f1b_overlap needs interleave above 1 with pp alone", ("schedule", "pp", "interleave")
        )
    elif schedule == "1f1b_overlap" and num_microbatches < OVERLAPPED:
        return Fault("schedule=1f1b_overlap needs two micro-batches", ("schedule",))
    elif interleave > 1:
        if pp == 1:
            wrong = Fault("interleave needs pp above 1", ("interleave", "pp"))
        elif num_microbatches % pp:
            wrong = Fault("interleave needs micro-batches in multiples of pp", ("interleave", "pp"))
        elif limits.layers % (pp * interleave) and not limits.layers % pp:
            wrong = Fault(f"pp x interleave does not divide layers={limits.layers}", ("pp", "interleave"))
    # Stages of one chunk may be uneven; with several chunks, the last stage must still have some layers.
    least = pp if halves == 1 else (pp - 1) * fullest_stage(limits.layers, pp, halves) + 1
    if wrong is None and limits.layers < least:
        return Fault(
            f"pp x interleave leaves a stage without any of layers={limits.layers}", ("pp", "interleave")
        )
    return wrong


def fullest_stage(layers: Floats, pp: Floats, chunks: Floats) -> Floats:
    """Layers of a pipeline's fullest stage, whose equal chunks have whole layers."""
    return -(-layers // (pp * chunks)) * chunks


def _dual_fault(schedule: str, *, pp: int, interleave: int, num_microbatches: int) -> Fault | None:
    """Why DualPipe or its V schedule is illegal.

    Source: github.com/deepseek-ai/DualPipe (dualpipe.py, step); torch.distributed.pipelining,
    ScheduleDualPipeV.
    """
    if pp == 1:
        return Fault(f"schedule={schedule} needs pp above 1", ("schedule", "pp"))
    if interleave > 1:
        return Fault(f"schedule={schedule} excludes interleave above 1", ("schedule", "interleave"))
    if num_microbatches < 2 * pp:
        return Fault(f"schedule={schedule} needs 2 pp micro-batches", ("schedule", "pp"))
    if schedule == "dualpipe" and (pp % 2 or num_microbatches % 2):
        return Fault("schedule=dualpipe needs an even pp and even micro-batches", ("schedule", "pp"))
    return None


def head_fault(limits: Limits, *, tp: int, cp: int, ulysses: bool) -> Fault | None:
    """Why exchanging heads for tokens over the context axis (Ulysses) is illegal.

    Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.1: a rank attends to whole sequences for its
    heads; deepspeed/sequence/layer.py: if there are fewer heads of keys and values, they are replicated.
    """
    if not ulysses:
        return None
    if cp == 1:
        return Fault("ulysses needs cp above 1", ("ulysses", "cp"))
    if limits.heads % (tp * cp):
        return Fault(f"ulysses needs tp x cp to divide heads={limits.heads}", ("ulysses", "tp", "cp"))
    return None


def split_fault(
    limits: Limits, *, tp: int, cp: int, sequence_parallel: bool, tp_overlap: bool
) -> Fault | None:
    """Why sequence parallelism or tensor-parallel overlap is illegal.

    Source: Korthikanti et al. 2022; Transformer Engine's userbuffers and PyTorch's symmetric memory: ranks
    with overlap write into each other's memory, over NVLink or similar links.
    """
    if sequence_parallel and tp == 1:
        return Fault("sequence_parallel needs tp above 1", ("sequence_parallel", "tp"))
    if sequence_parallel and limits.sequence % (tp * cp):
        return Fault(
            f"sequence_parallel needs tp x cp to divide sequence={limits.sequence}",
            ("sequence_parallel", "tp", "cp"),
        )
    # Overlap applies to chunks of gathers and scatters, which exist only with sequence parallelism.
    if tp_overlap and limits.peer_ranks < max(2, tp):
        joined = f"here tp up to {limits.peer_ranks}" if limits.peer_ranks > 1 else "and nodes here have none"
        return Fault(
            f"tp_overlap needs fast links inside a node between its ranks, {joined}", ("tp_overlap", "tp")
        )
    if tp_overlap and not sequence_parallel:
        return Fault("tp_overlap needs sequence_parallel", ("tp_overlap", "sequence_parallel"))
    return None


def state_fault(
    *,
    ranks: int,
    pp: int,
    zero_stage: int,
    offload: str,
    whole_gradients: bool,
    offload_stages: tuple[int, ...] = ZERO_STAGES,
    pipeline_stages: tuple[int, ...] = PIPELINE_STAGES,
) -> Fault | None:
    """Why sharding or offloading states is illegal. ranks: with the same weights.

    offload_stages, pipeline_stages: see `Space`. In a pipeline, ZeRO stages 2 and 3 hold and send the same as
    stage 1 (`StrategyGrid.held_stage`).
    Source: DeepSpeed, runtime/pipe/engine.py (stages 2 and 3 exclude pipelines, because gradients accumulate
    unsharded); Ren et al. 2021, Rajbhandari et al. 2021 (a rank offloads its shard).
    """
    if zero_stage and ranks == 1:
        return Fault("zero_stage needs dp x cp above 1", ("zero_stage", "dp", "cp"))
    if pp > 1 and zero_stage not in pipeline_stages:
        return Fault("zero_stage of 2 and 3 exclude pp above 1 unless both are chosen", ("zero_stage", "pp"))
    if whole_gradients and (zero_stage < GRADIENTS_SHARDED or pp > 1):
        return Fault(
            "whole_gradients needs gradients that are sharded: a zero_stage of 2 or 3 and no pipeline",
            ("whole_gradients", "zero_stage", "pp"),
        )
    return _offload_fault(ranks=ranks, pp=pp, zero_stage=zero_stage, offload=offload, stages=offload_stages)


def _offload_fault(
    *, ranks: int, pp: int, zero_stage: int, offload: str, stages: tuple[int, ...]
) -> Fault | None:
    """Why offloading states is illegal; source as in `state_fault`. stages: ZeRO stages for the optimizer
    alone.
    """
    if offload == "optimizer" and zero_stage not in stages:
        words = f"offload=optimizer needs a zero_stage of {listed(map(str, stages))} in this software"
        return Fault(words, ("offload", "zero_stage"))
    if offload != "none" and ranks > 1 and not zero_stage:
        return Fault("offload among several data ranks needs zero_stage", ("offload", "zero_stage"))
    if offload == ALL_OFFLOADED and (pp > 1 or (ranks > 1 and zero_stage < WEIGHTS_SHARDED)):
        return Fault(
            "offloaded weights need zero_stage=3 (or one data rank) and no pipeline",
            ("offload", "zero_stage"),
        )
    return None


def overlap_fault(schedule: str, zero_stage: int) -> Fault | None:
    """Why passes of different micro-batches cannot overlap.

    Source: megatron-core 0.16.1, models/gpt/fine_grained_callables.py: parts of layers run one by one, which
    bypasses the hooks by which its FSDP gathers and reduces.
    """
    if schedule == "1f1b_overlap" and zero_stage >= GRADIENTS_SHARDED:
        return Fault("schedule=1f1b_overlap excludes zero_stage of 2 and 3", ("schedule", "zero_stage"))
    return None


def exchange_fault(
    *, ranks: int, zero_stage: int, compression: str, compression_rank: int, sync_period: int
) -> Fault | None:
    """Why compressing gradients or exchanging them less often is illegal.

    Source: torch.distributed, DDP communication hooks (replicated weights only); Stich 2019 (local SGD).
    """
    if compression == "none" and compression_rank:
        return Fault("compression_rank needs a compression", ("compression_rank", "compression"))
    if compression in {"powersgd", "topk"} and not compression_rank:
        return Fault(
            f"compression={compression} needs a compression_rank", ("compression", "compression_rank")
        )
    if (compression != "none" or sync_period > 1) and (ranks == 1 or zero_stage):
        return Fault(
            "compression and sync_period need several data ranks and zero_stage=0",
            ("compression", "sync_period", "zero_stage"),
        )
    return None


def adapter_fault(limits: Limits, *, tp: int, trained: str, lora_rank: int) -> Fault | None:
    """Why training this part of the weights is illegal. Source: Hu et al. 2021; Dettmers et al. 2023."""
    if (trained == "full") != (lora_rank == 0):
        return Fault("adapters need a lora_rank, and only they have one", ("lora_rank", "trained"))
    if trained != "full" and not limits.has_adapters:
        return Fault("the model has no layers that adapters are known for", ("trained", "lora_rank"))
    # bitsandbytes packs a whole matrix into blocks of 4-bit numbers and has no tensor-parallel layer.
    return Fault("trained=qlora needs tp=1", ("trained", "tp")) if trained == "qlora" and tp > 1 else None


def precision_fault(limits: Limits, precision: str) -> Fault | None:
    """Why a precision is illegal: the chip has no stated rate for it, or for 16 bits, which narrower ones
    need.
    """
    if precision in limits.precisions:
        return None
    also = ", or none for the 16 bits that it also needs" if precision in OF_FEWER_BITS else ""
    return Fault(f"the chip states no rate for precision={precision}{also}", ("precision",))


class LegalValues(Struct, frozen=True, kw_only=True):
    """Legal combinations of some options. key: values on which they depend. reason: why there are none."""

    key: tuple[Any, ...]
    allowed: Combinations
    reason: Fault | None


class LegalCombinations(Struct, frozen=True, kw_only=True):
    """Legal combinations of layer and state options, cached by the sizes on which they depend.

    known, others: the caches. interned: their combinations, so that equal ones are the same object.
    """

    space: Space
    limits: Limits
    known: dict[tuple[Any, ...], LegalValues] = field(default_factory=dict)
    others: dict[tuple[Any, ...], tuple[Combinations, Counter[Fault]]] = field(default_factory=dict)
    interned: dict[Combinations, Combinations] = field(default_factory=dict)

    def of_layers(self, *, tp: int, cp: int) -> LegalValues:
        """Values of LAYER_OPTIONS that the axis sizes allow."""
        key = ("layers", tp, cp)
        if key not in self.known:
            choices = [self.space.values(name) for name in LAYER_OPTIONS]
            self._store(key, *_legal(LAYER_OPTIONS, choices, partial(self._layer_fault, tp=tp, cp=cp)))
        return self.known[key]

    def of_states(
        self,
        *,
        tp: int,
        pp: int,
        ranks: int,
        has_groups: bool,
        schedule: str,
        num_microbatches: int,
        kind: int,
    ) -> LegalValues:
        """Values of STATE_OPTIONS that the axis sizes, schedule and number of micro-batches allow.

        ranks: with the same weights. has_groups: whether they form several replica groups. kind: identifies
        numbers of micro-batches that allow the same combinations under the schedule.
        """
        ranks = min(ranks, 2)
        key = ("states", pp, schedule, kind, ranks, has_groups, tp > 1)
        if key not in self.known:
            free = range(1, max(1, self.limits.layers // pp) + 1) if pp > 1 else (1,)
            chunks = tuple(each for each in free if self.space.allows("interleave", each))
            kept, wrong = self._other_states(min(tp, 2), min(pp, 2), ranks, schedule, has_groups=has_groups)
            wrong = wrong.copy()
            num_others = len(kept) + wrong.total()
            legal = []
            for each in chunks:
                reason = pipeline_fault(
                    self.limits,
                    pp=pp,
                    interleave=each,
                    num_microbatches=num_microbatches,
                    schedule=schedule,
                )
                if reason is None:
                    legal.append((each, schedule))
                else:
                    wrong[reason] += num_others
            if not chunks:
                wrong = Counter([_NO_CHUNKS])
            self._store(key, tuple((*each, *rest) for each in legal for rest in kept), wrong)
        return self.known[key]

    def _other_states(
        self, tp: int, pp: int, ranks: int, schedule: str, *, has_groups: bool
    ) -> tuple[Combinations, Counter[Fault]]:
        """Legal values of STATE_OPTIONS without interleave and schedule. 2 stands for all larger numbers."""
        key = tp, pp, ranks, schedule, has_groups
        if key not in self.others:
            choices = {name: self.space.values(name) for name in STATE_OPTIONS[2:]}
            if has_groups:
                shared = (1, 2, 3) if "dp_replicate" in self.space.choices else (WEIGHTS_SHARDED,)
                choices["zero_stage"] = tuple(each for each in choices["zero_stage"] if each in shared)
            reason = partial(self._state_fault, tp=tp, pp=pp, ranks=ranks, schedule=schedule)
            self.others[key] = _legal(STATE_OPTIONS[2:], [*choices.values()], reason)
        return self.others[key]

    def _store(self, key: tuple[Any, ...], allowed: Combinations, wrong: Counter[Fault]) -> None:
        """Cache what a key allows; if that is nothing, with the most frequent reason."""
        reason = wrong.most_common(1)[0][0] if wrong and not allowed else None
        one = self.interned.setdefault(allowed, allowed)
        self.known[key] = LegalValues(key=key, allowed=one, reason=reason)

    def _layer_fault(self, chosen: dict[str, Any], *, tp: int, cp: int) -> Fault | None:
        return (
            precision_fault(self.limits, chosen["precision"])
            or head_fault(self.limits, tp=tp, cp=cp, ulysses=chosen["ulysses"])
            or split_fault(
                self.limits,
                tp=tp,
                cp=cp,
                sequence_parallel=chosen["sequence_parallel"],
                tp_overlap=chosen["tp_overlap"],
            )
        )

    def _state_fault(
        self, chosen: dict[str, Any], *, tp: int, pp: int, ranks: int, schedule: str
    ) -> Fault | None:
        are_chosen = {"pp", "zero_stage"} <= self.space.choices.keys()
        return (
            state_fault(
                ranks=ranks,
                pp=pp,
                zero_stage=chosen["zero_stage"],
                offload=chosen["offload"],
                whole_gradients=chosen["whole_gradients"],
                offload_stages=self.space.offload_stages,
                pipeline_stages=ZERO_STAGES if are_chosen else self.space.pipeline_stages,
            )
            or overlap_fault(schedule, chosen["zero_stage"])
            or exchange_fault(
                ranks=ranks,
                zero_stage=chosen["zero_stage"],
                compression=chosen["compression"],
                compression_rank=chosen["compression_rank"],
                sync_period=chosen["sync_period"],
            )
            or adapter_fault(self.limits, tp=tp, trained=chosen["trained"], lora_rank=chosen["lora_rank"])
        )


def _legal(
    names: tuple[str, ...], choices: list[tuple[Value, ...]], reason: Callable[[Any], Fault | None]
) -> tuple[Combinations, Counter[Fault]]:
    """The combinations without a fault, and the number of the others by fault."""
    kept: list[tuple[Value, ...]] = []
    wrong: Counter[Fault] = Counter()
    for values in product(*choices):
        found = reason(dict(zip(names, values, strict=True)))
        if found is None:
            kept.append(values)
        else:
            wrong[found] += 1
    return tuple(kept), wrong
