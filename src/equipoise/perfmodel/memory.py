"""Memory of the fullest rank, by kind. Bytes only; nothing here knows a time."""

from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.compute import tokens_per_rank, value_bytes
from equipoise.perfmodel.grid import CODES, RECOMPUTE_FULL, RECOMPUTE_NONE, Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.parameters import Parameters

# Bytes of optimizer state a trained parameter has, by precision of the weights: with 2-byte weights a 4-byte
# master copy comes on top of the moments (Micikevicius et al. 2018; Dettmers et al. 2022 for 8-bit moments).
_MOMENTS = {"adam": 8.0, "adam_8bit": 2.0, "sgd": 4.0}
_MASTER_BYTES = 4.0
# 4 bits and 0.127 bits of scales a frozen weight (Dettmers et al. 2023, double quantisation).
_QLORA_BYTES = (4 + 0.127) / 8
_MOMENT_BYTES = np.array([_MOMENTS[name] for name in CODES["optimizer"]])
_QLORA = CODES["trained"].index("qlora")
_FULL_TRAINING = CODES["trained"].index("full")
_OFFLOAD_NONE = CODES["offload"].index("none")
_OFFLOAD_ALL = CODES["offload"].index("optimizer_and_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest rank, by kind; arrays that broadcast. `reserved` is what the allocator holds in all."""

    weights: Numbers
    gradients: Numbers
    optimizer: Numbers
    activations: Numbers
    buffers: Numbers
    fixed: Numbers
    reserved: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Parameters one rank of the fullest stage is answerable for, before and after sharding over data ranks.

    dense, experts: weights in the rank's tensor or expert shard. dense_ranks, expert_ranks: how many data ranks
    hold the same ones. trained, expert_trained: of these, how many are trained.
    """

    dense: Numbers
    experts: Numbers
    dense_ranks: Numbers
    expert_ranks: Numbers
    dense_trained: Numbers
    expert_trained: Numbers


def shards(load: Load, grid: Grid) -> Shards:
    """Parameters by rank on the fullest pipeline stage.

    Assumes tensor and expert shards are even, and that experts are spread over ep ranks whole.
    """
    tables = np.where(grid.pp > 1, load.end_params, load.embedding_params)
    layers = load.layers / grid.pp
    dense = (layers * load.dense_params + tables) / grid.tp
    experts = layers * load.expert_params / grid.ep
    full = grid.trained == _FULL_TRAINING
    adapters = layers * (grid.lora_rank * load.adapter_params) / grid.tp
    return Shards(
        dense=dense,
        experts=experts,
        dense_ranks=grid.dp * grid.cp,
        expert_ranks=grid.dp * grid.cp * grid.tp / grid.ep,
        dense_trained=np.where(full, dense, adapters),
        expert_trained=np.where(full, experts, 0.0),
    )


def state_bytes_per_param(grid: Grid) -> Numbers:
    """Bytes of optimizer state a trained parameter has, the master copy included."""
    master = np.where(value_bytes(grid) < _MASTER_BYTES, _MASTER_BYTES, 0.0)
    return np.asarray(_MOMENT_BYTES[grid.optimizer] + master)


def memory(load: Load, grid: Grid, parameters: Parameters) -> Memory:
    """Bytes by kind on the fullest rank.

    Assumes 1F1B: the first stage keeps min(micro-batches, pp) of them alive, interleaving (1 + (pp - 1) / (pp v))
    as many; ZeRO shards optimizer states, gradients and weights in this order.
    Source: Rajbhandari et al. 2020 (states); Korthikanti et al. 2022 (activations); Narayanan et al. 2021 (1F1B).
    """
    held = shards(load, grid)
    by_stage = [np.where(grid.shard_state >= stage, 1 / held.dense_ranks, 1.0) for stage in (1, 2, 3)]
    experts_by_stage = [
        np.where(grid.shard_state >= stage, 1 / held.expert_ranks, 1.0) for stage in (1, 2, 3)
    ]
    width = value_bytes(grid)
    frozen = np.where(grid.trained == _QLORA, _QLORA_BYTES, width)
    resident = np.where(grid.offload == _OFFLOAD_ALL, 0.0, 1.0)
    weights = frozen * resident * (held.dense * by_stage[2] + held.experts * experts_by_stage[2]) + np.where(
        grid.trained == _FULL_TRAINING, 0.0, width * held.dense_trained
    )
    gradients = width * (held.dense_trained * by_stage[1] + held.expert_trained * experts_by_stage[1])
    states = np.where(grid.offload == _OFFLOAD_NONE, state_bytes_per_param(grid), 0.0)
    optimizer = states * (held.dense_trained * by_stage[0] + held.expert_trained * experts_by_stage[0])
    activations = activation_bytes(load, grid) * parameters.activation_slack
    buffers = _buffer_bytes(load, grid, held)
    lives = weights + gradients + optimizer + activations + buffers
    fixed = np.asarray(parameters.fixed_bytes)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        buffers=buffers,
        fixed=fixed,
        reserved=lives * parameters.reserved_slack + fixed,
    )


def activation_bytes(load: Load, grid: Grid) -> Numbers:
    """Bytes of activations that wait for the way back on the first stage, and one layer's at work."""
    wider = value_bytes(grid) / 2
    tokens = tokens_per_rank(load, grid) * wider
    sharded = tokens / grid.tp
    whole = np.where(grid.sequence_parallel > 0, sharded, tokens)
    kept = whole * load.kept_whole_bytes + sharded * load.kept_shared_bytes
    scores = np.where(grid.fused_attention > 0, 0.0, sharded / wider * load.kept_score_bytes)
    boundary = whole * load.boundary_bytes
    layer = np.where(
        grid.recompute == RECOMPUTE_NONE,
        kept + scores,
        np.where(grid.recompute == RECOMPUTE_FULL, boundary, kept),
    )
    at_work = np.where(grid.recompute == RECOMPUTE_FULL, kept + scores, 0.0)
    alive = np.minimum(grid.num_microbatches, grid.pp)
    early = np.where(grid.interleave > 1, 1 + (grid.pp - 1) / (grid.pp * grid.interleave), 1.0)
    return np.asarray(load.layers / grid.pp * alive * early * layer + at_work)


def _buffer_bytes(load: Load, grid: Grid, held: Shards) -> Numbers:
    """Bytes of what is gathered, sent or lost again within a step: weights of two layers, logits, boundaries."""
    width = value_bytes(grid)
    layer = (load.dense_params / grid.tp + load.expert_params / grid.ep) * width
    elsewhere = (grid.shard_state >= 3) & (held.dense_ranks > 1) | (grid.offload == _OFFLOAD_ALL)  # noqa: PLR2004 - ZeRO-3
    tokens = tokens_per_rank(load, grid)
    # With more than one stage the logits live on the last, which holds one micro-batch's activations only.
    logits = np.where(grid.pp > 1, 0.0, tokens / grid.tp * load.kept_head_bytes)
    sent = np.where(grid.pp > 1, 2 * tokens * load.boundary_bytes, 0.0)
    return np.asarray(np.where(elsewhere, 2 * layer, 0.0) + logits + sent)
