"""A step's time by cause and its memory by kind, for many strategies: what each parallel axis adds.

Arrays in and out.
"""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.perfmodel.collectives import all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s, send_s
from equipoise.perfmodel.compute import (
    EAGER,
    NF4_BYTES,
    TENSORS,
    LayerTime,
    backward_per_forward,
    head_time_s,
    layer_time,
    optimizer_time_s,
    soft_maximum,
    tokens_per_rank,
    value_bytes,
    width_ratio,
)
from equipoise.perfmodel.layouts import (
    CODES,
    DUALPIPE,
    DUALPIPE_V,
    FULL_TRAINING,
    OFFLOAD_ALL,
    OFFLOAD_NONE,
    ONE_OVERLAP,
    QLORA,
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    StrategyGrid,
)
from equipoise.perfmodel.load import Floats, Load, Numbers
from equipoise.perfmodel.machine import GROUPS, Group, Machine
from equipoise.perfmodel.memory import (
    RankMemory,
    Shards,
    kept_activations,
    memory,
    shards,
    state_bytes_per_param,
)
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import fullest_stage
from equipoise.spec.strategy import WEIGHTS_SHARDED
from equipoise.stats import deviations_of_slowest

# Forward, again for the way back, and the gradients of both on their way home.
_CP_PASSES = 3
# Of what is exchanged for attention by heads: forward, and the gradients of it.
_ULYSSES_PASSES = 2
# To the experts and back again, on each pass.
_EP_TRIPS_PER_PASS = 2
# Of a layer's weights with ZeRO-3: gathered forward, gathered back, gradients scattered.
_GATHERS = 2
# Of a row of a recommender's table: read forward, read and written by the optimizer.
_ROW_PASSES = 3
# A copy reads and writes.
_COPYING = 2
# While traffic overlaps with computing, its kernels take 20 of the 132 multiprocessors of an H800
# (DeepSeek-AI 2024, section 3.2.2): so much of what is hidden costs time all the same.
_OVERLAP_EXPOSED = 20 / 132
# Of a host link's stated rate, what long copies from and to pinned memory reach: 55.7 of 63 GB/s (Unsloth and
# NVIDIA 2026, double-buffered reloads of checkpoints).
_COPY_FRACTION = 55.7 / 63
# What is summed in another order may come out smaller, by roundings: never by as much as this.
_UNROUNDED = 1.0 - 2.0**-30
_FP16, _POWERSGD, _TOPK = (CODES["compression"].index(name) for name in ("fp16", "powersgd", "topk"))


def axis_group(size: Numbers, stride: Numbers | float, machine: Machine) -> Group:
    """The ranks of an axis whose neighbours are `stride` ranks apart.

    Axes lie from the inside out: tensor, context, data, pipeline; ranks fill one node after another.
    Assumes that nodes stand in no order of leaf switches: where a group needs several, its slowest link
    crosses, and has one part in `oversubscription` of the cards' rate. Bridges join neighbours: a ring of
    more ranks, or of ranks farther apart, goes through the host somewhere, and no faster than there. Where a
    mesh joins some by fewer links than others, a ring has those there are (`Cluster.group_byte_per_s`). Nodes
    of which a part is used count as whole ones: what crosses to them is no less.
    """
    inside = np.clip(np.floor(machine.node_size / stride), 1.0, size)
    sharing: Floats = 1.0
    if np.any(np.greater(machine.oversubscription, 1.0)):
        sharing = np.where(size * stride > machine.leaf_ranks, machine.oversubscription, 1.0)
    slower: Floats = 1.0
    if np.any(np.greater(machine.bridge_slowdown, 1.0)):
        slower = np.where(inside * stride > machine.bridged_ranks, machine.bridge_slowdown, 1.0)
    if np.any(machine.has_groups):
        for (ranks, apart), slowdown in zip(GROUPS, machine.group_slowdowns, strict=True):
            slower = np.where((inside == ranks) & np.equal(stride, apart), slowdown, slower)
    return Group(
        ranks_per_node=inside,
        num_nodes=np.ceil(size / inside),
        num_sharing=sharing,
        intra_slowdown=slower,
    )


def exposed_s(traffic_s: Numbers, overlapped_s: Numbers | float, exposed_share: Floats) -> Numbers:
    """Seconds of traffic that the work it overlaps with does not hide.

    exposed_share: of the shorter of the two, what stays exposed: 0 hides all it can, 1 hides nothing.
    Source: two phases side by side take max + exposed_share x min.
    """
    hidden = np.minimum(traffic_s, overlapped_s)
    return np.asarray(traffic_s - hidden * (1.0 - exposed_share))


def tp_layer_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of a layer's sums for one micro-batch; 0 where tp is 1.

    overlapped_s: of all else in the layer, with which sums overlap under tp_overlap.
    Assumes a sum behind each block, of a micro-batch's activations, on every pass; with sequence parallelism
    each is a reduce-scatter and an all-gather. Those on the way back overlap with products for the weights'
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
    passes = 1 + load.frozen_share + parameters.tp_exposed + full + 0.5 * again
    traffic = load.num_sums * passes * np.where(grid.sequence_parallel > 0, halves, whole)
    return np.where(grid.tp_overlap > 0, exposed_s(traffic, overlapped_s, parameters.tp_overlap), traffic)


def cp_layer_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of a layer's keys and values for one micro-batch; 0 where cp is 1.

    overlapped_s: of the layer's own work.
    Assumes every rank receives all keys of its sequences, while it attends to those that it has. With
    `ulysses` it has nothing to do before queries, keys and values of its heads are there, and after attention
    before its tokens are back, so all of that shows.
    Source: Liu et al. 2023 (ring attention); Llama team 2024, section 3.3.2 (gathered keys and values);
    Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.1.
    """
    if not np.any(grid.cp > 1):
        return np.zeros(())
    ranks = axis_group(grid.cp, grid.tp, machine)
    payload = (
        grid.microbatch_samples
        * load.sequence
        * (load.kv_bytes * width_ratio(grid))
        / np.minimum(grid.tp, np.maximum(load.kv_heads, 1.0))
    )
    again = grid.recompute == RECOMPUTE_FULL
    traffic = (_CP_PASSES + again) * all_gather_s(payload, ranks, machine.wires, parameters.collective)
    exposed = exposed_s(np.asarray(traffic), overlapped_s, parameters.cp_overlap)
    if not np.any(grid.ulysses > 0):
        return exposed
    exchanged = tokens_per_rank(load, grid) * ulysses_bytes(load, grid)
    trips = (_ULYSSES_PASSES + again) * all_to_all_s(exchanged, ranks, machine.wires, parameters.collective)
    return np.asarray(np.where(grid.ulysses > 0, trips, exposed))


def ulysses_bytes(load: Load, grid: StrategyGrid) -> Numbers:
    """Bytes of a token that a rank of the context axis exchanges, forward: queries, keys, values and results.

    Assumes heads of one width, and that heads of keys are copied where there are fewer than ranks.
    Source: Jacobs et al. 2023, section 3.2 (4 N h / P with as many heads of keys as of queries);
    deepspeed/sequence/layer.py.
    """
    kv_heads = np.maximum(load.kv_heads, 1.0)
    copies = np.maximum(1.0, grid.tp * grid.cp / kv_heads)
    return np.asarray(load.kv_bytes * width_ratio(grid) / grid.tp * (load.heads / kv_heads + copies))


def token_destinations(load: Load, places: Floats) -> Numbers:
    """Expected number of places, with equal shares of the experts, among which a token's experts are.

    places: ranks or nodes that the experts are spread over. Assumes every choice of top_k experts is equally
    likely; with groups, every choice within top_groups of them, each group in places of its own.
    Source: of p places with e of E experts each, a token misses one with probability C(E - e, k) / C(E, k).
    """
    share = np.where(load.expert_groups > 0, load.top_groups / np.maximum(load.expert_groups, 1.0), 1.0)
    eligible = np.where(
        load.expert_groups > 0, np.maximum(places * share, np.minimum(places, load.top_groups)), places
    )
    held = load.experts / np.maximum(places, 1.0)
    missed = np.ones(np.broadcast_shapes(np.shape(eligible), np.shape(load.top_k)))
    for drawn in range(int(np.max(load.top_k))):
        left = np.maximum(held * eligible - drawn, 1.0)
        missed = missed * np.where(drawn < load.top_k, np.maximum(left - held, 0.0) / left, 1.0)
    return np.asarray(eligible * (1.0 - missed))


def ep_layer_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of sending a layer's tokens to experts and back, for one micro-batch; 0 where ep is 1.

    overlapped_s: of the layer's work, and of the exposed traffic before it.
    Assumes tokens spread evenly over ranks; one travels once to every node, and there once to every rank,
    that holds experts of it (`token_destinations`), or with `dispatch_copies` once for each of its experts,
    wherever that is. DualPipe, and 1F1B with overlap where nothing is recomputed whole, hide it behind
    another micro-batch.
    Source: Lepikhin et al. 2020 (GShard); DeepSeek-AI 2024, section 3.2.1 (DualPipe) and 3.2.2 (one copy a
    node, then over NVLink); megatron-core 0.16.1, moe/token_dispatcher.py (tokens permuted into top_k copies
    before the all-to-all of `alltoall`).
    """
    if not np.any(grid.ep > 1):
        return np.zeros(())
    ranks = axis_group(grid.ep, 1.0, machine)
    copies = token_destinations(load, grid.ep)
    # Between nodes fewer copies travel than inside: the cards see only a part of the payload.
    crossing = token_destinations(load, ranks.num_nodes) / np.maximum(copies, 1.0)
    if np.any(grid.dispatch_copies > 0):
        copies = np.where(grid.dispatch_copies > 0, load.top_k, copies)
        crossing = np.where(grid.dispatch_copies > 0, 1.0, crossing)
    ranks = replace(ranks, num_sharing=ranks.num_sharing * crossing)
    payload = tokens_per_rank(load, grid) / grid.tp * (load.routed_bytes * width_ratio(grid) * copies)
    passes = 2 + (grid.recompute == RECOMPUTE_FULL)
    traffic = _EP_TRIPS_PER_PASS * passes * all_to_all_s(payload, ranks, machine.wires, parameters.collective)
    is_hidden = (grid.schedule == ONE_OVERLAP) & (grid.recompute != RECOMPUTE_FULL)
    is_hidden = is_hidden | (grid.schedule >= DUALPIPE)
    return exposed_s(np.asarray(traffic), overlapped_s, _exposed_share(parameters.ep_overlap, is_hidden))


def _exposed_share(usual: Floats, is_hidden: NDArray[np.bool_]) -> Floats:
    """The share of traffic left exposed: behind another micro-batch no more than its kernels take."""
    if not np.any(is_hidden):
        return usual
    return np.asarray(np.where(is_hidden, np.minimum(usual, _OVERLAP_EXPOSED), usual))


def dp_gradient_s(
    load: Load, machine: Machine, grid: StrategyGrid, shards: Shards, parameters: Parameters
) -> Numbers:
    """Seconds of gradients between data ranks, once a step, without overlap; 0 for one rank a weight.

    Assumes sharded optimizer states cost the same traffic as none: gradients scattered, weights gathered.
    With groups both stay inside a group, and each rank sums its part with those of the other groups; with
    weights sharded that sum is all that is left here.
    Source: Rajbhandari et al. 2020, section 7; Zhang et al. 2022 (MiCS), section 3.4: parts are summed
    between groups once a step, however many micro-batches there are.
    """
    width = value_bytes(grid) * _compressed_share(load, grid)
    kinds = [(shards.dense_trained, shards.dense_ranks, grid.tp)]
    if np.any(shards.expert_trained > 0):
        kinds.append((shards.expert_trained, shards.expert_ranks, grid.ep))
    wires, links = machine.wires, parameters.collective
    whole = grid.held_stage < WEIGHTS_SHARDED
    seconds = np.zeros(())
    for trained, ranks, stride in kinds:
        payload, group = trained * width, axis_group(ranks, stride, machine)
        flat = np.where(whole, all_reduce_s(payload, group, wires, links), 0.0)
        if np.any(grid.dp_replicate > 1):
            inside = reduce_scatter_s(payload, group, wires, links) + all_gather_s(
                payload, group, wires, links
            )
            peers = axis_group(grid.dp_replicate, stride * ranks, machine)
            between = all_reduce_s(payload / ranks, peers, wires, links)
            flat = np.where(grid.dp_replicate > 1, np.where(whole, inside, 0.0) + between, flat)
        seconds = seconds + flat
    return np.asarray(seconds / grid.sync_period)


def _compressed_share(load: Load, grid: StrategyGrid) -> Numbers:
    """Bytes of gradients that are sent, over those that there are."""
    if not np.any(grid.compression):
        return np.ones(())
    halved = np.minimum(1.0, 2.0 / value_bytes(grid))
    # A square matrix of a layer's mean product: two factors of `rank` columns instead of all of them.
    side = np.sqrt(np.maximum(load.dense_params / np.maximum(load.num_dense_products, 1.0), 1.0))
    factors = np.minimum(1.0, 2 * grid.compression_rank / side)
    # A value and its 4-byte place for each that is kept.
    kept = np.minimum(1.0, (1 + 4.0 / value_bytes(grid)) / np.maximum(grid.compression_rank, 1.0))
    share = np.ones(())
    for code, value in ((_FP16, halved), (_POWERSGD, factors), (_TOPK, kept)):
        share = np.where(grid.compression == code, value, share)
    return share


def dp_shard_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of gathering a layer's sharded weights and scattering its gradients, per micro-batch.

    Gradients that lie whole between micro-batches are scattered once a step (`whole_gradients`).
    Frozen weights have no gradients; those of 4 bits travel as they are (Answer.AI 2024, FSDP and QLoRA).

    overlapped_s: the layer's own time, during which the next layer's weights travel. 0 below zero_stage 3,
    and in a pipeline, whose weights and gradients travel once a step (`dp_gradient_s`).
    Assumes that software from before fused attention which runs as written gathers tensor by tensor, copies
    each byte once more, hides nothing of it, and lets go what is recomputed before it gathers it again for
    the way back; XLA gathers ahead of what it compiled, whatever it makes of attention.
    Source: Zhao et al. 2023 (FSDP): two gathers and one scatter a layer, the next layer prefetched; DeepSpeed
    ZeRO-3 of 2021, whose hooks gather before each use of a module; XLA's latency-hiding scheduler.
    """
    is_sharded = grid.held_stage >= WEIGHTS_SHARDED
    if not np.any(is_sharded):
        return np.zeros(())
    width = np.where(grid.trained == QLORA, NF4_BYTES, value_bytes(grid))
    wires, links = machine.wires, parameters.collective
    scatters = np.where(grid.trained == FULL_TRAINING, 1.0, 0.0)
    if np.any(whole := grid.adds_up_whole):
        scatters = np.where(whole, scatters / grid.num_microbatches, scatters)
    shared = grid.dp * grid.cp / grid.dp_replicate
    gathers = _GATHERS + load.frozen_share
    payload, dense_ranks = load.dense_params / grid.tp * width, axis_group(shared, grid.tp, machine)
    kinds = [(payload, dense_ranks)]
    if np.any(load.expert_params):
        expert_ranks = axis_group(shared * grid.tp / grid.ep, grid.ep, machine)
        kinds.append((load.expert_params / grid.ep * width, expert_ranks))
    traffic = np.zeros(())
    for weights, ranks in kinds:
        traffic = traffic + gathers * all_gather_s(weights, ranks, wires, links)
        traffic = traffic + scatters * reduce_scatter_s(weights, ranks, wires, links)
    exposed = exposed_s(np.asarray(traffic), overlapped_s, parameters.shard_overlap)
    singly = (grid.fused_attention <= 0) & (grid.implementation == EAGER)
    if np.any(singly):
        copied = payload / (machine.memory_byte_per_s * parameters.memory_fraction)
        parts = _tensor_by_tensor_s(dense_ranks, machine, parameters)
        trips = 1 + (grid.recompute == RECOMPUTE_FULL) / (_GATHERS + 1)
        one_by_one = trips * (traffic + (_GATHERS + 1) * (parts + _COPYING * copied))
        exposed = np.where(singly, one_by_one, exposed)
    return np.where(is_sharded, exposed, 0.0)


def _tensor_by_tensor_s(ranks: Group, machine: Machine, parameters: Parameters) -> Numbers:
    """Seconds that gathering weights tensor by tensor, into a list of parts, adds to gathering them at once.

    Assumes every collective beyond the first costs its steps once more, and every rank's part a copy.
    Source: DeepSpeed ZeRO-3 of 2021; Zhao et al. 2023, figure 2.
    """
    empty = all_gather_s(0.0, ranks, machine.wires, parameters.collective)
    copies = TENSORS * ranks.num_ranks * parameters.shard_copy_s
    return np.asarray((TENSORS - 1) * empty + copies)


def tables_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Seconds of a step's rows of a recommender's tables, spread over all ranks; 0 without tables.

    Assumes looked-up rows spread evenly over ranks; each is read on the way forward, and read and written by
    the optimizer; what is pooled of them travels to the ranks of their samples, and its gradients back, and
    nothing hides either.
    Source: Naumov et al. 2019, section 2.2; Mudigere et al. 2022 (arXiv:2104.05158), section 4.
    """
    if not np.any(load.table_params):
        return np.zeros(())
    samples = grid.global_batch_samples / grid.num_accelerators
    rows_s = samples * (_ROW_PASSES * load.lookup_bytes)
    rows_s = rows_s / (machine.memory_byte_per_s * parameters.memory_fraction)
    ranks = axis_group(grid.num_accelerators, 1.0, machine)
    payload = samples / grid.num_microbatches * load.pooled_bytes
    trip_s = all_to_all_s(payload, ranks, machine.wires, parameters.collective)
    return np.asarray(rows_s + 2 * grid.num_microbatches * trip_s)


class Stages(Struct, frozen=True, kw_only=True):
    """Layers of the stages of a pipeline: the fullest, and the last, which also computes logits."""

    fullest: Numbers
    last: Numbers


def stages(load: Load, grid: StrategyGrid) -> Stages:
    """Layers by stage: every stage takes whole chunks, and the last what is left.

    Where that leaves the last stage none, stages are as even as they go, fuller ones first.
    """
    chunks = _chunks(grid)
    fullest = np.asarray(fullest_stage(load.layers, grid.pp, chunks))
    left = load.layers - (grid.pp - 1) * fullest
    even = load.layers // (grid.pp * chunks) * chunks
    return Stages(fullest=fullest, last=np.where(left > 0, left, np.maximum(even, 1.0)))


def _chunks(grid: StrategyGrid) -> Numbers:
    """Runs of layers that a pipeline rank holds one copy of: the V of DualPipe has two."""
    return np.asarray(np.where(grid.schedule == DUALPIPE_V, 2.0, grid.interleave))


def pp_send_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Exposed seconds of a stage sending a micro-batch forward and its gradient back; 0 where pp is 1.

    Assumes each tensor rank sends its part, and where activations are not split along the sequence, gathers
    the others' inside its node.
    Source: Narayanan et al. 2021, section 4.1 (scatter and gather between stages); DeepSpeed does
    the same.
    """
    if not np.any(grid.pp > 1):
        return np.zeros(())
    ranks = axis_group(grid.pp, grid.tp * grid.cp * grid.dp, machine)
    payload = tokens_per_rank(load, grid) * load.boundary_bytes * width_ratio(grid)
    wires, links = machine.wires, parameters.collective
    once = send_s(payload / grid.tp, ranks, wires, links)
    if np.any((grid.tp > 1) & (grid.sequence_parallel <= 0)):
        whole = all_gather_s(payload, axis_group(grid.tp, 1.0, machine), wires, links)
        once = once + np.where((grid.pp > 1) & (grid.sequence_parallel <= 0), whole, 0.0)
    exposed = _exposed_share(parameters.pp_overlap, grid.schedule >= DUALPIPE)
    return np.asarray(2 * _chunks(grid) * once * exposed)


def pp_bubble_s(grid: StrategyGrid, stage_s: Numbers) -> Numbers:
    """Idle seconds of a step while the pipeline fills and drains.

    stage_s: of one micro-batch on one stage.
    Assumes that gradients of weights take half of the way back where there are any.
    Source: Narayanan et al. 2021: (p - 1) / v stages, with overlap one chunk more (megatron-core 0.16.1,
    pipeline_parallel/schedules.py: one extra micro-batch before the first way back); arXiv 2412.19437, table
    2: (p / 2 - 1) (F&B + B - 3 W), and github.com/deepseek-ai/DualPipe: with the V over p ranks as with 2 p
    stages of half a rank's layers.
    """
    more = (grid.schedule == ONE_OVERLAP) & (grid.pp > 1)
    whole = (grid.pp - 1 + more) / grid.interleave * stage_s
    if not np.any(grid.schedule >= DUALPIPE):
        return np.asarray(whole)
    back = _backward_share(grid)
    of_weights = np.where(grid.trained == FULL_TRAINING, back / 2, 0.0)
    count = np.where(grid.schedule == DUALPIPE, grid.pp / 2 - 1, (grid.pp - 1) / 2)
    both_ends = count * (1 + back - 3 * of_weights) * stage_s
    return np.asarray(np.where(grid.schedule >= DUALPIPE, both_ends, whole))


# Parameters that the processors of a host update in a second, for all accelerators together: 0.24 s for 1e9
# and 1.03 s for 4e9 of two Xeon Platinum 8168 (Ren et al. 2021, ZeRO-Offload, table 4, CPU-Adam; recalled).
_HOST_UPDATES_PER_S = 4e9
_MOST_ON_HOST = 8.0  # accelerators that share a host, also where fast links join those of several


class Seconds(Struct, frozen=True, kw_only=True):
    """A step's seconds by cause on the busiest rank; arrays that broadcast, and that sum to the step.

    compute: layers, logits and loss, recomputation included. host: what launching adds. activation_offload:
    exposed copies of activations to the host's memory and back. tp, cp, ep, pp, dp: exposed traffic of the
    axis (dp: gradients and gathered weights). idle: the pipeline's bubble and stages with less to do. tables:
    rows of a recommender's tables. optimizer: its step, and what offloading its states adds. waiting: for the
    slowest rank. other: the rest of a step.
    """

    compute: Numbers
    host: Numbers
    activation_offload: Numbers
    tp: Numbers
    cp: Numbers
    ep: Numbers
    pp: Numbers
    dp: Numbers
    idle: Numbers
    tables: Numbers
    optimizer: Numbers
    waiting: Numbers
    other: Numbers


class StepEstimates(Struct, frozen=True, kw_only=True):
    """What a grid of strategies takes: seconds of a step, by cause, and bytes of memory, by kind."""

    step_s: Numbers
    seconds: Seconds
    memory: RankMemory


class LayerSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of a layer's passes over one micro-batch; what tp, cp, ep and the micro-batch decide.

    compute: recomputation included. host: what launching adds. tp, cp, ep, copies: exposed traffic of the
    axes, and of activations on their way to the host's memory and back. total: of all.
    """

    compute: Numbers
    host: Numbers
    tp: Numbers
    cp: Numbers
    ep: Numbers
    copies: Numbers
    total: Numbers


def layer_seconds(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> LayerSeconds:
    """What one layer takes of one micro-batch, gathers of its sharded weights left out."""
    layer = layer_time(load, machine, grid, parameters)
    # Each axis overlaps its traffic with all that comes before it. If several overlapped theirs with the same
    # work, each second less of it would expose several seconds of traffic: faster products, slower step.
    passes_s = layer.forward_s + layer.backward_s
    cp_s = cp_layer_s(load, machine, grid, passes_s, parameters)
    ep_s = ep_layer_s(load, machine, grid, passes_s + cp_s, parameters)
    compute_s = passes_s + layer.recompute_s
    # Sums of the tensor axis stop device and host: what waits for them is launched behind them.
    unsummed_s = soft_maximum(compute_s + cp_s + ep_s, layer.host_s)
    tp_s = tp_layer_s(load, machine, grid, unsummed_s, parameters)
    busy_s = compute_s + tp_s + cp_s + ep_s
    copies_s = activation_offload_s(load, machine, grid, unsummed_s + tp_s, layer)
    return LayerSeconds(
        compute=compute_s,
        host=unsummed_s + tp_s - busy_s,
        tp=tp_s,
        cp=cp_s,
        ep=ep_s,
        copies=copies_s,
        total=unsummed_s + tp_s + copies_s,
    )


def least_step_s(load: Load, grid: StrategyGrid, layer_s: Numbers, parameters: Parameters) -> Numbers:
    """Seconds that a step takes at least: what its micro-batches take on a pipeline's fullest stage, and its
    bubble.

    layer_s: at most `LayerSeconds.total`. A stage that is fullest holds the mean of layers, rounded up.
    Assumes nothing of what else a step takes but that it is no less than zero.
    Source: the sum of positive parts is at least each of them.
    """
    stage_s = np.ceil(load.layers / grid.pp) * layer_s
    certain_s = _UNROUNDED * (grid.num_microbatches * stage_s + pp_bubble_s(grid, stage_s))
    return np.asarray(certain_s * (1.0 + waiting_fraction(grid, parameters)))


def estimate(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> StepEstimates:
    """Time and memory of one step of every strategy of a grid; that they are legal is not checked.

    Returns arrays of the grid's shape, or ones that broadcast to it.
    Assumes what `step_seconds` and `memory` do, which name their sources.
    """
    step_s, seconds = step_seconds(load, machine, grid, parameters)
    held = memory(load, grid, parameters, host_bytes=machine.host_memory_bytes, peer_ranks=machine.peer_ranks)
    return StepEstimates(step_s=step_s, seconds=seconds, memory=held)


def step_seconds(
    load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters
) -> tuple[Numbers, Seconds]:
    """Seconds of one step of every strategy of a grid, and of its parts, as `estimate` has them.

    Returns arrays of the grid's shape, or ones that broadcast to it.
    Assumes equal ranks but for jitter; pipelines run one forward, one back; the fullest stage sets the pace.
    Source: each part names its own.
    """
    layer = layer_seconds(load, machine, grid, parameters)
    compute_s, tp_s, cp_s, ep_s, copies_s = layer.compute, layer.tp, layer.cp, layer.ep, layer.copies
    layer_s = layer.total
    shard_s = dp_shard_s(load, machine, grid, layer_s, parameters)
    per_rank = shards(load, grid)
    head_s = head_time_s(load, machine, grid, parameters)
    send_s = pp_send_s(load, machine, grid, parameters)
    count = grid.num_microbatches
    layers = stages(load, grid)
    stage_s = layers.fullest * (layer_s + shard_s) + send_s
    last_s = layers.last * (layer_s + shard_s) + send_s + head_s
    if np.any(grid.schedule == DUALPIPE):
        # The rank of the last stage has the first one too, and half of the micro-batches of each.
        last_s = np.where(grid.schedule == DUALPIPE, (stage_s + last_s) / 2, last_s)
    pace_s = np.maximum(stage_s, last_s)
    # What the mean stage does is work; that others wait for a fuller one, and for each other, is idleness.
    mean_layers = load.layers / grid.pp
    mean_s = mean_layers * (layer_s + shard_s) + send_s + head_s / grid.pp
    idle_s = count * (pace_s - mean_s) + pp_bubble_s(grid, stage_s)
    each = count * mean_layers
    traffic_s = dp_gradient_s(load, machine, grid, per_rank, parameters)
    backward_s = mean_layers * (_backward_share(grid) * (layer_s + shard_s))
    seconds = Seconds(
        compute=each * compute_s + count * head_s / grid.pp,
        host=each * layer.host,
        activation_offload=each * copies_s,
        tp=each * tp_s,
        cp=each * cp_s,
        ep=each * ep_s,
        pp=count * send_s,
        dp=each * shard_s + exposed_s(traffic_s, backward_s, _gradient_overlap(grid, parameters)),
        idle=idle_s,
        tables=tables_s(load, machine, grid, parameters),
        optimizer=_optimizer_s(load, machine, grid, per_rank, parameters),
        waiting=np.zeros(()),
        other=np.zeros(()),
    )
    parts = [getattr(seconds, name) for name in Seconds.__struct_fields__]
    device_s = sum(parts[1:], start=parts[0])
    # Recommenders load and distribute the next batch while this one trains (TorchRec's pipeline).
    rest_s = np.where(
        np.greater(load.table_params, 0), np.maximum(parameters.step_s - device_s, 0.0), parameters.step_s
    )
    waiting_s = (device_s + rest_s) * waiting_fraction(grid, parameters)
    return device_s + rest_s + waiting_s, replace(seconds, other=rest_s, waiting=waiting_s)


def activation_offload_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, layer: LayerTime
) -> Numbers:
    """Exposed seconds of a layer's activations on their way to the host's memory and back, per micro-batch.

    overlapped_s: of all else in the layer, which the passes of `layer` share out.
    Assumes that what a layer keeps is copied out during a layer's way forward, and in during one's way back;
    only what takes longer than that shows. Each accelerator has a host link of its own.
    Source: pytorch/torchtune 0.4.0 and Unsloth (below 2 % of a step where copies are shorter than products);
    libraries that copy in the stream of the products hide nothing (transformers 5.23, `offload`).
    """
    if not np.any(grid.activation_offload > 0):
        return np.zeros(())
    copy_s = kept_activations(load, grid).chosen / (_COPY_FRACTION * machine.host_byte_per_s)
    forward_s = overlapped_s * (layer.forward_s / (layer.forward_s + layer.backward_s + layer.recompute_s))
    exposed = exposed_s(copy_s, forward_s, 0.0) + exposed_s(copy_s, overlapped_s - forward_s, 0.0)
    return np.asarray(np.where(grid.activation_offload > 0, exposed, 0.0))


def _backward_share(grid: StrategyGrid) -> Numbers:
    """The way back's share of a layer's time, with which gradients overlap.

    Assumes the share of the products. It is of the whole time, and not the seconds of one pass, so that a
    faster pass never exposes more traffic than it saves.
    Source: two products on the way back for each of the way forward (`backward_per_forward`).
    """
    passes = backward_per_forward(grid)
    return np.asarray(passes / (1.0 + passes))


def _gradient_overlap(grid: StrategyGrid, parameters: Parameters) -> Floats:
    """Share of gradient traffic left exposed: where weights are sharded, layer by layer, as of gathers.

    Source: PyTorch FSDP2 (fully_shard over two mesh dimensions): a layer's parts are summed between groups on
    a stream of their own, right behind their reduce-scatter.
    """
    if not np.any(grid.dp_replicate > 1):
        return parameters.dp_overlap
    is_sharded = grid.held_stage >= WEIGHTS_SHARDED
    return np.where(is_sharded, parameters.shard_overlap, parameters.dp_overlap)


def _optimizer_s(
    load: Load, machine: Machine, grid: StrategyGrid, per_rank: Shards, parameters: Parameters
) -> Numbers:
    """Seconds of the optimizer's step; offloaded states cross to the host and back, or are updated there.

    Whichever takes longer, as programs do one or the other: paged optimizers the first, FSDP and DeepSpeed
    the second. Offloaded weights come for each pass, from every data rank's host the shard of that rank.
    Source: Rajbhandari et al. 2021 (ZeRO-Infinity), section 6.1; torch FSDP2, `CPUOffloadPolicy`.
    """
    dense = per_rank.dense_trained / np.where(grid.zero_stage >= 1, per_rank.dense_ranks, 1.0)
    experts = per_rank.expert_trained / np.where(grid.zero_stage >= 1, per_rank.expert_ranks, 1.0)
    states = (dense + experts) * state_bytes_per_param(grid)
    near = optimizer_time_s(load, machine, grid, states, parameters)
    on_host = np.minimum(np.minimum(machine.node_size, _MOST_ON_HOST), grid.num_accelerators)
    updated_s = (dense + experts) * on_host / _HOST_UPDATES_PER_S
    far = np.maximum(near, np.maximum(2 * states / machine.host_byte_per_s, updated_s))
    is_sharded = grid.held_stage >= WEIGHTS_SHARDED
    weights = per_rank.dense / np.where(is_sharded, per_rank.dense_ranks, 1.0)
    weights = weights + per_rank.experts / np.where(is_sharded, per_rank.expert_ranks, 1.0)
    copied_bytes = weights * np.where(grid.trained == QLORA, NF4_BYTES, value_bytes(grid))
    crossing = np.where(
        grid.offload == OFFLOAD_ALL,
        2 * grid.num_microbatches * copied_bytes / machine.host_byte_per_s,
        0.0,
    )
    return np.asarray(np.where(grid.offload == OFFLOAD_NONE, near, far) + crossing)


def waiting_fraction(grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Time that all ranks wait for the slowest, over that of a step without it."""
    return np.asarray(parameters.rank_jitter * deviations_of_slowest(grid.num_accelerators))
