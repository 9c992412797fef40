"""Small limits, and whether a whole strategy is legal, by the rules of the search one after the other."""

from equipoise.perfmodel.space import (
    Limits,
    adapter_fault,
    axes_fault,
    exchange_fault,
    expert_fault,
    head_fault,
    overlap_fault,
    pipeline_fault,
    precision_fault,
    split_fault,
    state_fault,
)

SMALL = Limits(
    node_size=8,
    peer_ranks=2,
    layers=6,
    hidden=64,
    heads=4,
    kv_heads=2,
    experts=0,
    sequence=64,
    precisions=("bf16", "fp32"),
)
EXPERTS = Limits(
    node_size=8,
    peer_ranks=8,
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=4,
    experts=4,
    sequence=64,
    precisions=("bf16",),
)
SAMPLES = Limits(
    node_size=8,
    peer_ranks=8,
    layers=50,
    hidden=0,
    heads=0,
    kv_heads=0,
    experts=0,
    sequence=1,
    precisions=("fp32",),
)


def fault(strategy, limits):
    """Why the model or chip does not allow a strategy, in a few words; None where it does."""
    ranks = strategy.dp * strategy.cp
    return (
        axes_fault(limits, tp=strategy.tp, pp=strategy.pp, cp=strategy.cp)
        or expert_fault(limits, ranks=ranks * strategy.tp, ep=strategy.ep)
        or pipeline_fault(
            limits,
            pp=strategy.pp,
            interleave=strategy.interleave,
            num_microbatches=strategy.num_microbatches,
            schedule=strategy.schedule,
        )
        or head_fault(limits, tp=strategy.tp, cp=strategy.cp, ulysses=strategy.ulysses)
        or split_fault(
            limits,
            tp=strategy.tp,
            cp=strategy.cp,
            sequence_parallel=strategy.sequence_parallel,
            tp_overlap=strategy.tp_overlap,
        )
        or state_fault(
            ranks=ranks,
            pp=strategy.pp,
            zero_stage=strategy.zero_stage,
            offload=strategy.offload,
            whole_gradients=strategy.whole_gradients,
        )
        or overlap_fault(strategy.schedule, strategy.zero_stage)
        or exchange_fault(
            ranks=ranks,
            zero_stage=strategy.zero_stage,
            compression=strategy.compression,
            compression_rank=strategy.compression_rank,
            sync_period=strategy.sync_period,
        )
        or adapter_fault(limits, tp=strategy.tp, trained=strategy.trained, lora_rank=strategy.lora_rank)
        or precision_fault(limits, strategy.precision)
    )
