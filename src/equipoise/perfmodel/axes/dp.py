"""The data axis: ranks hold the same weights, or shards of them; gradients travel, and gathered weights."""

import numpy as np

from equipoise.perfmodel.axes.placement import bare_s, group
from equipoise.perfmodel.collective import Group, all_gather_s, all_reduce_s, reduce_scatter_s
from equipoise.perfmodel.compute import value_bytes
from equipoise.perfmodel.grid import CODES, RECOMPUTE_FULL, Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.memory import Shards
from equipoise.perfmodel.parameters import Parameters

_WEIGHTS = 3  # the ZeRO stage from which weights are sharded too
# Of a layer's weights with ZeRO-3: gathered forward, gathered back, gradients scattered.
_GATHERS = 2
# Weights, biases and norms of a layer, each a tensor.
_TENSORS = 12
# A copy reads and writes.
_COPYING = 2
_FP16, _POWERSGD, _TOPK = (CODES["compression"].index(name) for name in ("fp16", "powersgd", "topk"))


def gradient_traffic_s(
    load: Load, machine: Machine, grid: Grid, held: Shards, parameters: Parameters
) -> Numbers:
    """Seconds of gradients between data ranks, once a step, if nothing hides them; 0 where each weight has
    one rank.

    Assumes sharded optimizer states cost the same traffic as none: gradients scattered, weights gathered.
    Source: Rajbhandari et al. 2020, section 7.
    """
    width = value_bytes(grid) * _kept_share(load, grid)
    dense = group(held.dense_ranks, grid.tp, machine)
    experts = group(held.expert_ranks, grid.ep, machine)
    wires, links = machine.wires, parameters.collective
    seconds = all_reduce_s(held.dense_trained * width, dense, wires, links)
    if np.any(held.expert_trained > 0):
        seconds = seconds + all_reduce_s(held.expert_trained * width, experts, wires, links)
    return np.where(grid.shard_state >= _WEIGHTS, 0.0, seconds / grid.sync_period)


def _kept_share(load: Load, grid: Grid) -> Numbers:
    """Bytes of gradients that travel over those that are."""
    if not np.any(grid.compression):
        return np.ones(())
    halved = np.minimum(1.0, 2.0 / value_bytes(grid))
    # A square matrix of a layer's mean product: two factors of `rank` columns instead of all of them.
    side = np.sqrt(np.maximum(load.dense_params, 1.0))
    factors = np.minimum(1.0, 2 * grid.compression_rank / side)
    # A value and its 4-byte place for each that is kept.
    kept = np.minimum(1.0, (1 + 4.0 / value_bytes(grid)) / np.maximum(grid.compression_rank, 1.0))
    share = np.ones(())
    for code, value in ((_FP16, halved), (_POWERSGD, factors), (_TOPK, kept)):
        share = np.where(grid.compression == code, value, share)
    return share


def shard_traffic_s(
    load: Load, machine: Machine, grid: Grid, beside_s: Numbers, parameters: Parameters
) -> Numbers:
    """Bare seconds of gathering one layer's sharded weights and scattering its gradients, for one
    micro-batch.

    beside_s: the layer's own time, beside which the next layer's weights travel. 0 below shard_state 3.
    Assumes software from before fused attention gathers tensor by tensor, copies each byte once more, hides
    nothing of it, and lets go what is recomputed before it gathers it again for the way back.
    Source: Zhao et al. 2023 (FSDP): two gathers and one scatter a layer, the next layer prefetched; DeepSpeed
    ZeRO-3 of 2021, whose hooks gather before each use of a module.
    """
    if not np.any(grid.shard_state >= _WEIGHTS):
        return np.zeros(())
    width = value_bytes(grid)
    wires, links = machine.wires, parameters.collective
    dense_ranks = group(grid.dp * grid.cp, grid.tp, machine)
    payload = load.dense_params / grid.tp * width
    traffic = _GATHERS * all_gather_s(payload, dense_ranks, wires, links) + reduce_scatter_s(
        payload, dense_ranks, wires, links
    )
    if np.any(load.expert_params):
        ranks = group(grid.dp * grid.cp * grid.tp / grid.ep, grid.ep, machine)
        routed = load.expert_params / grid.ep * width
        traffic = (
            traffic
            + _GATHERS * all_gather_s(routed, ranks, wires, links)
            + reduce_scatter_s(routed, ranks, wires, links)
        )
    bare = bare_s(np.asarray(traffic), beside_s, parameters.shard_overlap)
    singly = grid.fused_attention <= 0
    if np.any(singly):
        copied = payload / (machine.memory_byte_per_s * parameters.memory_fraction)
        parts = _parts_s(dense_ranks, machine, parameters)
        trips = 1 + (grid.recompute == RECOMPUTE_FULL) / (_GATHERS + 1)
        one_by_one = trips * (traffic + (_GATHERS + 1) * (parts + _COPYING * copied))
        bare = np.where(singly, one_by_one, bare)
    return np.where(grid.shard_state >= _WEIGHTS, bare, 0.0)


def _parts_s(ranks: Group, machine: Machine, parameters: Parameters) -> Numbers:
    """Seconds that gathering a layer's weights tensor by tensor, into a list of parts, adds to doing it at
    once,
    whatever their size.

    Assumes every collective beyond the first costs its steps once more, and every rank's part a copy.
    Source: DeepSpeed ZeRO-3 of 2021; Zhao et al. 2023, figure 2.
    """
    empty = all_gather_s(0.0, ranks, machine.wires, parameters.collective)
    copies = _TENSORS * ranks.num_ranks * parameters.shard_copy_s
    return np.asarray((_TENSORS - 1) * empty + copies)
