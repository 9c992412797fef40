"""What each parallel axis adds to a step: its traffic, and how much of that is exposed (not overlapped).

A name begins with its axis: tp, cp and ep in every layer, dp for gradients and sharded weights, pp between
stages. `overlapped_s` is always the work that runs at the same time as the traffic.
"""

from dataclasses import dataclass, replace

import numpy as np

from equipoise.perfmodel.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from equipoise.perfmodel.compute import tokens_per_rank, value_bytes
from equipoise.perfmodel.layouts import CODES, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, Grid, Numbers
from equipoise.perfmodel.load import Floats, Load
from equipoise.perfmodel.machine import Group, Machine
from equipoise.perfmodel.memory import Shards
from equipoise.perfmodel.parameters import Parameters

# Forward, again for the way back, and the gradients of both on their way home.
_CP_PASSES = 3
# To the experts and back again, on each pass.
_EP_TRIPS_PER_PASS = 2
_WEIGHTS_SHARDED = 3  # the ZeRO stage from which weights are sharded too
# Of a layer's weights with ZeRO-3: gathered forward, gathered back, gradients scattered.
_GATHERS = 2
# Weights, biases and norms of a layer, each a tensor.
_TENSORS = 12
# A copy reads and writes.
_COPYING = 2
_FP16, _POWERSGD, _TOPK = (CODES["compression"].index(name) for name in ("fp16", "powersgd", "topk"))


def axis_group(size: Numbers, stride: Numbers | float, machine: Machine) -> Group:
    """The ranks of an axis whose neighbours are `stride` ranks apart.

    Axes lie from the inside out: tensor, context, data, pipeline; ranks fill one node after another.
    """
    inside = np.clip(np.floor(machine.node_size / stride), 1.0, size)
    return Group(ranks_per_node=inside, num_nodes=np.asarray(size / inside))


def exposed_s(traffic_s: Numbers, overlapped_s: Numbers | float, exposed_share: Floats) -> Numbers:
    """Seconds of traffic that the work it overlaps with does not hide.

    exposed_share: of the shorter of the two, what stays exposed: 0 hides all it can, 1 hides nothing.
    Source: two phases side by side take max + exposed_share x min.
    """
    hidden = np.minimum(traffic_s, overlapped_s)
    return np.asarray(traffic_s - hidden * (1.0 - exposed_share))


def tp_layer_s(
    load: Load, machine: Machine, grid: Grid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of a layer's sums for one micro-batch; 0 where tp is 1.

    overlapped_s: of all else in the layer, with which sums overlap under tp_overlap.
    Assumes a sum behind each block, of a micro-batch's activations, on every pass; with sequence parallelism
    each is a reduce-scatter and an all-gather. Those on the way back run beside products for the weights'
    gradients, as far as the software does so; the others only with tp_overlap.
    Source: Shoeybi et al. 2019; Korthikanti et al. 2022, table 4 (nothing of them shows on the way back).
    """
    if not np.any(grid.tp > 1):
        return np.zeros(())
    ranks = axis_group(grid.tp, 1.0, machine)
    payload = tokens_per_rank(load, grid) * load.hidden * value_bytes(grid)
    whole = all_reduce_s(payload, ranks, machine.wires, parameters.collective)
    halves = reduce_scatter_s(payload, ranks, machine.wires, parameters.collective) + all_gather_s(
        payload, ranks, machine.wires, parameters.collective
    )
    # Recomputing every second product gathers its inputs again, and keeps what was scattered (torchtitan).
    again = (
        (grid.recompute == RECOMPUTE_SELECTIVE) & (grid.fused_attention > 0) & (grid.sequence_parallel > 0)
    )
    full = (grid.recompute == RECOMPUTE_FULL) * parameters.recompute_share
    passes = 1 + parameters.tp_exposed + full + 0.5 * again
    traffic = load.num_sums * passes * np.where(grid.sequence_parallel > 0, halves, whole)
    return np.where(grid.tp_overlap > 0, exposed_s(traffic, overlapped_s, parameters.tp_overlap), traffic)


def cp_layer_s(
    load: Load, machine: Machine, grid: Grid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of a layer's keys and values for one micro-batch; 0 where cp is 1.

    overlapped_s: of the layer's own work.
    Assumes every rank receives all keys of its sequences.
    Source: Liu et al. 2023 (ring attention); Llama team 2024, section 3.3.2 (gathered keys and values).
    """
    if not np.any(grid.cp > 1):
        return np.zeros(())
    ranks = axis_group(grid.cp, grid.tp, machine)
    payload = (
        grid.microbatch_samples
        * load.sequence
        * load.kv_bytes
        / np.minimum(grid.tp, np.maximum(load.kv_heads, 1.0))
    )
    passes = _CP_PASSES + (grid.recompute == RECOMPUTE_FULL)
    traffic = passes * all_gather_s(payload, ranks, machine.wires, parameters.collective)
    return exposed_s(np.asarray(traffic), overlapped_s, parameters.cp_overlap)


def ep_layer_s(
    load: Load, machine: Machine, grid: Grid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of sending a layer's tokens to experts and back, for one micro-batch; 0 where ep is 1.

    overlapped_s: of the layer's work, and of the exposed traffic before it.
    Assumes tokens spread evenly over ranks; one travels once to every node, and there once to every rank,
    that holds experts of it.
    Source: Lepikhin et al. 2020 (GShard); DeepSeek-AI 2024, section 3.2.2 (one copy a node, then over
    NVLink).
    """
    if not np.any(grid.ep > 1):
        return np.zeros(())
    ranks = axis_group(grid.ep, 1.0, machine)
    copies = np.minimum(load.top_k, grid.ep)
    # Between nodes fewer copies travel than inside: the cards see only a part of the payload.
    crossing = np.minimum(load.top_k, ranks.num_nodes) / np.maximum(copies, 1.0)
    ranks = replace(ranks, num_sharing=ranks.num_sharing * crossing)
    payload = tokens_per_rank(load, grid) / grid.tp * (load.routed_bytes * copies)
    passes = 2 + (grid.recompute == RECOMPUTE_FULL)
    traffic = _EP_TRIPS_PER_PASS * passes * all_to_all_s(payload, ranks, machine.wires, parameters.collective)
    return exposed_s(np.asarray(traffic), overlapped_s, parameters.ep_overlap)


def dp_gradient_s(
    load: Load, machine: Machine, grid: Grid, shards: Shards, parameters: Parameters
) -> Numbers:
    """Seconds of gradients between data ranks, once a step, without overlap; 0 for one rank a weight.

    Assumes sharded optimizer states cost the same traffic as none: gradients scattered, weights gathered.
    Source: Rajbhandari et al. 2020, section 7.
    """
    width = value_bytes(grid) * _compressed_share(load, grid)
    dense = axis_group(shards.dense_ranks, grid.tp, machine)
    experts = axis_group(shards.expert_ranks, grid.ep, machine)
    wires, links = machine.wires, parameters.collective
    seconds = all_reduce_s(shards.dense_trained * width, dense, wires, links)
    if np.any(shards.expert_trained > 0):
        seconds = seconds + all_reduce_s(shards.expert_trained * width, experts, wires, links)
    return np.where(grid.zero_stage >= _WEIGHTS_SHARDED, 0.0, seconds / grid.sync_period)


def _compressed_share(load: Load, grid: Grid) -> Numbers:
    """Bytes of gradients that are sent, over those that there are."""
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


def dp_shard_s(
    load: Load, machine: Machine, grid: Grid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of gathering a layer's sharded weights and scattering its gradients, per micro-batch.

    overlapped_s: the layer's own time, during which the next layer's weights travel. 0 below zero_stage 3.
    Assumes software from before fused attention gathers tensor by tensor, copies each byte once more, hides
    nothing of it, and lets go what is recomputed before it gathers it again for the way back.
    Source: Zhao et al. 2023 (FSDP): two gathers and one scatter a layer, the next layer prefetched; DeepSpeed
    ZeRO-3 of 2021, whose hooks gather before each use of a module.
    """
    if not np.any(grid.zero_stage >= _WEIGHTS_SHARDED):
        return np.zeros(())
    width = value_bytes(grid)
    wires, links = machine.wires, parameters.collective
    dense_ranks = axis_group(grid.dp * grid.cp, grid.tp, machine)
    payload = load.dense_params / grid.tp * width
    traffic = _GATHERS * all_gather_s(payload, dense_ranks, wires, links) + reduce_scatter_s(
        payload, dense_ranks, wires, links
    )
    if np.any(load.expert_params):
        ranks = axis_group(grid.dp * grid.cp * grid.tp / grid.ep, grid.ep, machine)
        routed = load.expert_params / grid.ep * width
        traffic = (
            traffic
            + _GATHERS * all_gather_s(routed, ranks, wires, links)
            + reduce_scatter_s(routed, ranks, wires, links)
        )
    exposed = exposed_s(np.asarray(traffic), overlapped_s, parameters.shard_overlap)
    singly = grid.fused_attention <= 0
    if np.any(singly):
        copied = payload / (machine.memory_byte_per_s * parameters.memory_fraction)
        parts = _tensor_by_tensor_s(dense_ranks, machine, parameters)
        trips = 1 + (grid.recompute == RECOMPUTE_FULL) / (_GATHERS + 1)
        one_by_one = trips * (traffic + (_GATHERS + 1) * (parts + _COPYING * copied))
        exposed = np.where(singly, one_by_one, exposed)
    return np.where(grid.zero_stage >= _WEIGHTS_SHARDED, exposed, 0.0)


def _tensor_by_tensor_s(ranks: Group, machine: Machine, parameters: Parameters) -> Numbers:
    """Seconds that gathering weights tensor by tensor, into a list of parts, adds to gathering them at once.

    Assumes every collective beyond the first costs its steps once more, and every rank's part a copy.
    Source: DeepSpeed ZeRO-3 of 2021; Zhao et al. 2023, figure 2.
    """
    empty = all_gather_s(0.0, ranks, machine.wires, parameters.collective)
    copies = _TENSORS * ranks.num_ranks * parameters.shard_copy_s
    return np.asarray((_TENSORS - 1) * empty + copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Layers of the stages of a pipeline: the fullest, and the last, which also computes logits."""

    fullest: Numbers
    last: Numbers


def stages(load: Load, grid: Grid) -> Stages:
    """Layers by stage: every stage takes whole chunks, and the last what is left.

    Where that leaves the last stage none (a pipeline too long for its layers), it holds as many as the
    others.
    """
    fullest = np.ceil(load.layers / (grid.pp * grid.interleave)) * grid.interleave
    left = load.layers - (grid.pp - 1) * fullest
    return Stages(fullest=fullest, last=np.where(left > 0, left, fullest))


def pp_send_s(load: Load, machine: Machine, grid: Grid, parameters: Parameters) -> Numbers:
    """Exposed seconds of a stage sending a micro-batch forward and its gradient back; 0 where pp is 1.

    Assumes each tensor rank sends its part, and where activations are not split along the sequence, gathers
    the others' inside its node.
    Source: Narayanan et al. 2021, section 4.1 (scatter and gather between stages); DeepSpeed does
    the same.
    """
    if not np.any(grid.pp > 1):
        return np.zeros(())
    ranks = axis_group(grid.pp, grid.tp * grid.cp * grid.dp, machine)
    payload = tokens_per_rank(load, grid) * load.boundary_bytes * (value_bytes(grid) / 2)
    wires, links = machine.wires, parameters.collective
    once = send_s(payload / grid.tp, ranks, wires, links)
    if np.any((grid.tp > 1) & (grid.sequence_parallel <= 0)):
        whole = all_gather_s(payload, axis_group(grid.tp, 1.0, machine), wires, links)
        once = once + np.where((grid.pp > 1) & (grid.sequence_parallel <= 0), whole, 0.0)
    return np.asarray(2 * grid.interleave * once * parameters.pp_overlap)


def pp_bubble_s(grid: Grid, stage_s: Numbers) -> Numbers:
    """Idle seconds of a step while the pipeline fills and drains.

    stage_s: of one micro-batch on one stage. Source: Narayanan et al. 2021: (p - 1) / v stages.
    """
    return np.asarray((grid.pp - 1) / grid.interleave * stage_s)
