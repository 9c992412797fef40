"""Which strategies a model and a chip allow at all, and why others are not: the rules, one place each."""

from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.spec.strategy import PRECISIONS, Precision, Strategy

_SHARDED_GRADIENTS = 2  # the ZeRO stage from which gradients are sharded
_SHARDED_WEIGHTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the sharding of a model on one accelerator; hidden 0: only data can be shared out."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    experts: int
    sequence: int
    precisions: tuple[Precision, ...]


def limits(load: Load, machine: Machine) -> Limits:
    """The limits of a load on a machine, both of plain numbers."""
    peaks = (float(peak) for peak in machine.peak_flop_per_s)
    return Limits(
        layers=int(load.layers),
        hidden=int(load.hidden),
        heads=int(load.heads),
        kv_heads=int(load.kv_heads),
        experts=int(load.experts),
        sequence=int(load.sequence),
        precisions=tuple(name for name, peak in zip(PRECISIONS, peaks, strict=True) if not np.isnan(peak)),
    )


def fault(strategy: Strategy, limits: Limits) -> str | None:
    """Why the model or chip does not allow a strategy, in a few words; None where it does."""
    ranks = strategy.dp * strategy.cp
    return (
        axes_fault(limits, tp=strategy.tp, pp=strategy.pp, cp=strategy.cp)
        or expert_fault(limits, ranks=ranks * strategy.tp, ep=strategy.ep)
        or pipeline_fault(
            limits, pp=strategy.pp, interleave=strategy.interleave, num_microbatches=strategy.num_microbatches
        )
        or split_fault(
            limits,
            tp=strategy.tp,
            cp=strategy.cp,
            sequence_parallel=strategy.sequence_parallel,
            tp_overlap=strategy.tp_overlap,
        )
        or state_fault(
            ranks=ranks, pp=strategy.pp, shard_state=strategy.shard_state, offload=strategy.offload
        )
        or sparing_fault(
            ranks=ranks,
            shard_state=strategy.shard_state,
            compression=strategy.compression,
            compression_rank=strategy.compression_rank,
            sync_period=strategy.sync_period,
        )
        or adapter_fault(limits, tp=strategy.tp, trained=strategy.trained, lora_rank=strategy.lora_rank)
        or precision_fault(limits, strategy.precision)
    )


def axes_fault(limits: Limits, *, tp: int, pp: int, cp: int) -> str | None:
    """What forbids these tensor, pipeline and context axes.

    Source: Shoeybi et al. 2019 (whole heads a rank; shared keys are copied where tp exceeds them); Llama team
    2024, section 3.3.2 (2 cp chunks a sequence balance causal attention).
    """
    if not limits.hidden and (tp > 1 or cp > 1):
        return "a model known by its figures a sample has no tensor or context axis"
    if tp > 1 and (limits.heads % tp or limits.hidden % tp):
        return f"tp does not divide heads={limits.heads} and hidden={limits.hidden}"
    if tp > 1 and limits.kv_heads % tp and tp % limits.kv_heads:
        return f"tp neither divides nor is a multiple of kv_heads={limits.kv_heads}"
    if cp > 1 and limits.sequence % (2 * cp):
        return f"2 cp does not divide sequence={limits.sequence}"
    return f"pp exceeds layers={limits.layers}" if pp > limits.layers else None


def expert_fault(limits: Limits, *, ranks: int, ep: int) -> str | None:
    """What forbids an expert axis within so many ranks of one stage. Source: Lepikhin et al. 2020."""
    if ep == 1:
        return None
    if not limits.experts:
        return "a model without experts has no expert axis"
    if limits.experts % ep:
        return f"ep does not divide experts={limits.experts}"
    return "ep does not divide dp x tp x cp" if ranks % ep else None


def pipeline_fault(limits: Limits, *, pp: int, interleave: int, num_microbatches: int) -> str | None:
    """What forbids a pipeline schedule. Source: Narayanan et al. 2021, section 2.2."""
    chunks = pp * interleave
    if interleave > 1:
        if pp == 1:
            return "interleave needs pp above 1"
        if num_microbatches % pp:
            return "interleave needs micro-batches in multiples of pp"
        if limits.layers % chunks and not limits.layers % pp:
            return f"pp x interleave does not divide layers={limits.layers}"
    fullest = -(-limits.layers // chunks) * interleave
    if limits.layers <= (pp - 1) * fullest:
        return f"pp x interleave leaves the last stage none of layers={limits.layers}"
    return None


def split_fault(limits: Limits, *, tp: int, cp: int, sequence_parallel: bool, tp_overlap: bool) -> str | None:
    """What forbids splitting activations along the sequence. Source: Korthikanti et al. 2022."""
    if sequence_parallel and tp == 1:
        return "sequence_parallel needs tp above 1"
    if sequence_parallel and limits.sequence % (tp * cp):
        return f"sequence_parallel needs tp x cp to divide sequence={limits.sequence}"
    # What is overlapped are the pieces of gathers and scatters, which only sequence parallelism makes.
    return "tp_overlap needs sequence_parallel" if tp_overlap and not sequence_parallel else None


def state_fault(*, ranks: int, pp: int, shard_state: int, offload: str) -> str | None:
    """What forbids sharding or offloading states among so many ranks with the same weights.

    Source: DeepSpeed, runtime/pipe/engine.py (stages from 2 on exclude pipelines: gradients accumulate
    whole); Ren et al. 2021, Rajbhandari et al. 2021 (what is offloaded is a rank's shard).
    """
    if shard_state and ranks == 1:
        return "shard_state needs dp x cp above 1"
    if shard_state >= _SHARDED_GRADIENTS and pp > 1:
        return "shard_state of 2 and 3 exclude pp above 1"
    if offload != "none" and ranks > 1 and not shard_state:
        return "offload among several data ranks needs shard_state"
    if offload == "optimizer_and_params" and (pp > 1 or (ranks > 1 and shard_state < _SHARDED_WEIGHTS)):
        return "offloaded weights need shard_state=3 (or one data rank) and no pipeline"
    return None


def sparing_fault(
    *, ranks: int, shard_state: int, compression: str, compression_rank: int, sync_period: int
) -> str | None:
    """What forbids compressed or rarer exchange of gradients.

    Source: torch.distributed, DDP communication hooks (replicated weights only); Stich 2019 (local SGD).
    """
    if compression == "none" and compression_rank:
        return "compression_rank needs a compression"
    if compression in {"powersgd", "topk"} and not compression_rank:
        return f"compression={compression} needs a compression_rank"
    if (compression != "none" or sync_period > 1) and (ranks == 1 or shard_state):
        return "compression and sync_period need several data ranks and shard_state=0"
    return None


def adapter_fault(limits: Limits, *, tp: int, trained: str, lora_rank: int) -> str | None:
    """What forbids the trained part. Source: Hu et al. 2021; Dettmers et al. 2023."""
    if (trained == "full") != (lora_rank == 0):
        return "adapters need a lora_rank, and only they have one"
    if trained != "full" and not limits.hidden:
        return "a model known by its figures a sample has no adapters"
    # bitsandbytes packs a whole matrix into blocks of 4-bit numbers and has no tensor-parallel layer.
    return "trained=qlora needs tp=1" if trained == "qlora" and tp > 1 else None


def precision_fault(limits: Limits, precision: str) -> str | None:
    """What forbids a number format: the maker of the chip states no rate for it."""
    return None if precision in limits.precisions else f"the chip states no rate for precision={precision}"
