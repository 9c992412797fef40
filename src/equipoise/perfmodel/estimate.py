"""Step time by cause and memory by kind for arrays of strategies, with one function per parallel axis."""

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

# Keys and values are gathered forward and again backward, and their gradients are sent back.
_CP_PASSES = 3
# Exchanges for attention split by heads: activations forward, gradients backward.
_ULYSSES_PASSES = 2
# All-to-all exchanges per pass: to the experts and back.
_EP_TRIPS_PER_PASS = 2
# ZeRO-3 gathers a layer's weights in the forward and in the backward pass, and scatters its gradients once.
_WEIGHT_GATHERS = 2
# Accesses to a row of a recommender's table: read forward, read and written by the optimizer.
_ROW_ACCESSES = 3
# A copy reads and writes.
_COPY_ACCESSES = 2
# Communication kernels that overlap with compute occupy 20 of the 132 multiprocessors of an H800
# (DeepSeek-AI 2024, section 3.2.2), so this share of hidden traffic still costs time.
_OVERLAP_EXPOSED = 20 / 132
# Share of a host link's stated rate that long copies from and to pinned memory reach: 55.7 of 63 GB/s
# (Unsloth and NVIDIA 2026, double-buffered reloads of checkpoints).
_COPY_FRACTION = 55.7 / 63
# A lower bound that sums in another order may exceed the step time by rounding; this margin is larger than
# that.
_ROUNDING_MARGIN = 1.0 - 2.0**-30
_FP16, _POWERSGD, _TOPK = (CODES["compression"].index(name) for name in ("fp16", "powersgd", "topk"))


def axis_group(size: Numbers, stride: Numbers | float, machine: Machine) -> Group:
    """The group of ranks along an axis whose neighbours are `stride` ranks apart.

    Axes are nested from the inside out: tensor, context, data, pipeline; ranks fill one node after another.
    Assumes nodes are placed without regard to leaf switches: if a group spans several leaves, its slowest
    link crosses between them at the cards' rate divided by `oversubscription`. Bridges join neighbours: a
    ring of more ranks, or of ranks farther apart, passes through the host and is limited by it. Where a mesh
    joins some pairs by fewer links than others, a ring uses the links it has (`Cluster.group_byte_per_s`).
    Partly used nodes count as whole nodes, because the traffic to them is no less.
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
    """Seconds of traffic not hidden by the work that it overlaps with.

    exposed_share: share of the shorter of the two times that stays exposed: 0 hides all it can, 1 nothing.
    Source: two overlapping phases take max + exposed_share x min.
    """
    hidden = np.minimum(traffic_s, overlapped_s)
    return np.asarray(traffic_s - hidden * (1.0 - exposed_share))


def tp_layer_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of a layer's tensor-parallel all-reduces for one micro-batch; 0 where tp is 1.

    overlapped_s: time of everything else in the layer, with which all-reduces overlap under tp_overlap.
    Assumes one all-reduce of a micro-batch's activations after each block and pass; with sequence parallelism
    each is a reduce-scatter and an all-gather. Those of the backward pass overlap with the matrix products of
    weight gradients, as far as the software does so; the others overlap only with tp_overlap.
    Source: Shoeybi et al. 2019; Korthikanti et al. 2022, table 4 (none is exposed in the backward pass).
    """
    if not np.any(grid.tp > 1):
        return np.zeros(())
    ranks = axis_group(grid.tp, 1.0, machine)
    payload = tokens_per_rank(load, grid) * load.hidden * value_bytes(grid)
    whole = all_reduce_s(payload, ranks, machine.wires, parameters.collective)
    halves = reduce_scatter_s(payload, ranks, machine.wires, parameters.collective) + all_gather_s(
        payload, ranks, machine.wires, parameters.collective
    )
    # Recomputing every second product gathers its inputs again, and keeps the scattered outputs (torchtitan).
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
    """Exposed seconds of exchanging a layer's keys and values for one micro-batch; 0 where cp is 1.

    overlapped_s: time of the layer's own work.
    Assumes every rank receives all keys of its sequences while it attends to the keys it already has. With
    `ulysses` a rank waits for the queries, keys and values of its heads, and after attention for its tokens,
    so the whole exchange is exposed.
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
    """Bytes per token that a context-parallel rank exchanges forward: queries, keys, values and results.

    Assumes heads of one width, and that key heads are replicated where there are fewer of them than ranks.
    Source: Jacobs et al. 2023, section 3.2 (4 N h / P with as many heads of keys as of queries);
    deepspeed/sequence/layer.py.
    """
    kv_heads = np.maximum(load.kv_heads, 1.0)
    copies = np.maximum(1.0, grid.tp * grid.cp / kv_heads)
    return np.asarray(load.kv_bytes * width_ratio(grid) / grid.tp * (load.heads / kv_heads + copies))


def token_destinations(load: Load, places: Floats) -> Numbers:
    """Expected number of places that hold at least one of a token's experts.

    places: ranks or nodes, each with an equal share of the experts. Assumes every choice of top_k experts is
    equally likely; with groups, every choice within top_groups of them, no place holding two groups.
    Source: a place with e of E experts holds none of a token's k with probability C(E - e, k) / C(E, k).
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

    overlapped_s: time of the layer's work and of the exposed traffic before it.
    Assumes tokens spread evenly over ranks. A token is sent once to every node, and within it once to every
    rank, that holds one of its experts (`token_destinations`); with `dispatch_copies`, once per expert. The
    traffic is hidden behind another micro-batch by DualPipe, and by 1F1B with overlap without full
    recomputation.
    Source: Lepikhin et al. 2020 (GShard); DeepSeek-AI 2024, section 3.2.1 (DualPipe) and 3.2.2 (one copy a
    node, then over NVLink); megatron-core 0.16.1, moe/token_dispatcher.py (tokens permuted into top_k copies
    before the all-to-all of `alltoall`).
    """
    if not np.any(grid.ep > 1):
        return np.zeros(())
    ranks = axis_group(grid.ep, 1.0, machine)
    copies = token_destinations(load, grid.ep)
    # Fewer copies travel between nodes than inside: the network cards carry only a part of the payload.
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
    """Share of traffic left exposed; where another micro-batch hides it, at most what its kernels occupy."""
    if not np.any(is_hidden):
        return usual
    return np.asarray(np.where(is_hidden, np.minimum(usual, _OVERLAP_EXPOSED), usual))


def dp_gradient_s(
    load: Load, machine: Machine, grid: StrategyGrid, shards: Shards, parameters: Parameters
) -> Numbers:
    """Seconds per step of summing gradients over data ranks, without overlap; 0 where weights have one rank.

    Assumes sharded optimizer states cost as much traffic as unsharded ones: gradients are scattered and
    weights gathered. With replica groups both stay inside a group, and each rank also sums its shard over the
    groups; where weights are sharded, only that sum is counted here.
    Source: Rajbhandari et al. 2020, section 7; Zhang et al. 2022 (MiCS), section 3.4: shards are summed
    between groups once per step, however many micro-batches there are.
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
    """Bytes of gradients sent, divided by the uncompressed bytes."""
    if not np.any(grid.compression):
        return np.ones(())
    halved = np.minimum(1.0, 2.0 / value_bytes(grid))
    # For a square matrix of the layer's mean product size: two factors of `rank` columns replace it.
    side = np.sqrt(np.maximum(load.dense_params / np.maximum(load.num_dense_products, 1.0), 1.0))
    factors = np.minimum(1.0, 2 * grid.compression_rank / side)
    # Each value kept is sent with a 4-byte index.
    kept = np.minimum(1.0, (1 + 4.0 / value_bytes(grid)) / np.maximum(grid.compression_rank, 1.0))
    share = np.ones(())
    for code, value in ((_FP16, halved), (_POWERSGD, factors), (_TOPK, kept)):
        share = np.where(grid.compression == code, value, share)
    return share


def dp_shard_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, parameters: Parameters
) -> Numbers:
    """Exposed seconds of gathering a layer's sharded weights and scattering its gradients, per micro-batch.

    Gradients accumulated unsharded are scattered once per step (`whole_gradients`). Frozen weights have no
    gradients; 4-bit weights are sent in 4 bits (Answer.AI 2024, FSDP and QLoRA).

    overlapped_s: the layer's own time, during which the next layer's weights travel.
    Returns 0 below zero_stage 3, and in a pipeline, which sends weights and gradients once per step
    (`dp_gradient_s`).
    Assumes eager software older than fused attention gathers tensor by tensor, copies each byte once more,
    hides none of this, and frees recomputed weights before it gathers them again for the backward pass; XLA
    prefetches in compiled programs, however it implements attention.
    Source: Zhao et al. 2023 (FSDP): two gathers and one scatter per layer, next layer prefetched; DeepSpeed
    ZeRO-3 of 2021, whose hooks gather before each use of a module; XLA's latency-hiding scheduler.
    """
    is_sharded = grid.held_stage >= WEIGHTS_SHARDED
    if not np.any(is_sharded):
        return np.zeros(())
    width = np.where(grid.trained == QLORA, NF4_BYTES, value_bytes(grid))
    wires, links = machine.wires, parameters.collective
    scatters = np.where(grid.trained == FULL_TRAINING, 1.0, 0.0)
    if np.any(whole := grid.accumulates_unsharded):
        scatters = np.where(whole, scatters / grid.num_microbatches, scatters)
    shared = grid.dp * grid.cp / grid.dp_replicate
    gathers = _WEIGHT_GATHERS + load.frozen_share
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
        parts = _per_tensor_gather_extra_s(dense_ranks, machine, parameters)
        trips = 1 + (grid.recompute == RECOMPUTE_FULL) / (_WEIGHT_GATHERS + 1)
        one_by_one = trips * (traffic + (_WEIGHT_GATHERS + 1) * (parts + _COPY_ACCESSES * copied))
        exposed = np.where(singly, one_by_one, exposed)
    return np.where(is_sharded, exposed, 0.0)


def _per_tensor_gather_extra_s(ranks: Group, machine: Machine, parameters: Parameters) -> Numbers:
    """Extra seconds of gathering weights tensor by tensor into a list of shards, over one gather of all.

    Assumes every collective beyond the first adds its latency, and every rank's shard a copy.
    Source: DeepSpeed ZeRO-3 of 2021; Zhao et al. 2023, figure 2.
    """
    empty = all_gather_s(0.0, ranks, machine.wires, parameters.collective)
    copies = TENSORS * ranks.num_ranks * parameters.shard_copy_s
    return np.asarray((TENSORS - 1) * empty + copies)


def tables_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Seconds per step for a recommender's tables, which are spread over all ranks; 0 without tables.

    Assumes looked-up rows spread evenly over ranks; each is read in the forward pass, and read and written by
    the optimizer. Pooled embeddings are sent to the ranks of their samples and their gradients back, with no
    overlap.
    Source: Naumov et al. 2019, section 2.2; Mudigere et al. 2022 (arXiv:2104.05158), section 4.
    """
    if not np.any(load.table_params):
        return np.zeros(())
    samples = grid.global_batch_samples / grid.num_accelerators
    rows_s = samples * (_ROW_ACCESSES * load.lookup_bytes)
    rows_s = rows_s / (machine.memory_byte_per_s * parameters.memory_fraction)
    ranks = axis_group(grid.num_accelerators, 1.0, machine)
    payload = samples / grid.num_microbatches * load.pooled_bytes
    trip_s = all_to_all_s(payload, ranks, machine.wires, parameters.collective)
    return np.asarray(rows_s + 2 * grid.num_microbatches * trip_s)


class Stages(Struct, frozen=True, kw_only=True):
    """Numbers of layers in the fullest pipeline stage and in the last, which also computes logits."""

    fullest: Numbers
    last: Numbers


def stages(load: Load, grid: StrategyGrid) -> Stages:
    """Layers per stage: every stage takes whole chunks, and the last stage takes the remaining layers.

    If none remain for the last stage, layers are spread as evenly as possible, fuller stages first.
    """
    chunks = _chunks(grid)
    fullest = np.asarray(fullest_stage(load.layers, grid.pp, chunks))
    left = load.layers - (grid.pp - 1) * fullest
    even = load.layers // (grid.pp * chunks) * chunks
    return Stages(fullest=fullest, last=np.where(left > 0, left, np.maximum(even, 1.0)))


def _chunks(grid: StrategyGrid) -> Numbers:
    """Model chunks per pipeline rank; DualPipe's V schedule has two."""
    return np.asarray(np.where(grid.schedule == DUALPIPE_V, 2.0, grid.interleave))


def pp_send_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Exposed seconds of a stage sending a micro-batch forward and its gradient back; 0 where pp is 1.

    Assumes each tensor rank sends its part; without sequence parallelism, the receiving ranks then gather the
    other parts inside their node.
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

    stage_s: time of one micro-batch on one stage.
    Assumes weight gradients, where there are any, take half of the backward pass.
    Source: Narayanan et al. 2021: (p - 1) / v stages, with overlap one chunk more (megatron-core 0.16.1,
    pipeline_parallel/schedules.py: one extra micro-batch before the first backward pass); arXiv 2412.19437,
    table 2: (p / 2 - 1) (F&B + B - 3 W); github.com/deepseek-ai/DualPipe: the V schedule over p ranks is as
    long as 2 p stages of half a rank's layers.
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


# Parameters that a host's CPUs update per second, for all its accelerators together: 0.24 s for 1e9 and 1.03
# s for 4e9 on two Xeon Platinum 8168 (Ren et al. 2021, ZeRO-Offload, table 4, CPU-Adam; recalled).
_HOST_UPDATES_PER_S = 4e9
_MAX_ACCELERATORS_PER_HOST = 8.0  # also where fast links join the accelerators of several hosts


class Seconds(Struct, frozen=True, kw_only=True):
    """A step's seconds by cause on the busiest rank: arrays that broadcast and sum to the step time.

    compute: layers, logits and loss, with recomputation. host: exposed kernel launching. activation_offload:
    exposed copies of activations to host memory and back. tp, cp, ep, pp, dp: exposed communication of the
    axis (dp: gradients and gathered weights). idle: pipeline bubble and imbalance of stages. tables: a
    recommender's tables. optimizer: its step, including offloaded states. waiting: for the slowest rank.
    other: the rest of the step.
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
    """Step time by cause (s) and memory per rank by kind (bytes) of a grid of strategies."""

    step_s: Numbers
    seconds: Seconds
    memory: RankMemory


class LayerSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of a layer's passes over one micro-batch, which depend on tp, cp, ep and the micro-batch only.

    compute: includes recomputation. host: exposed kernel launching. tp, cp, ep: exposed communication of the
    axis. copies: exposed copies of activations to host memory and back. total: their sum.
    """

    compute: Numbers
    host: Numbers
    tp: Numbers
    cp: Numbers
    ep: Numbers
    copies: Numbers
    total: Numbers


def layer_seconds(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> LayerSeconds:
    """Seconds of one layer for one micro-batch, without the gathers of its sharded weights."""
    layer = layer_time(load, machine, grid, parameters)
    # Each axis overlaps its traffic with everything listed before it. If several axes overlapped theirs with
    # the same work, saving a second of it would expose several seconds of traffic: faster products would make
    # the step slower.
    passes_s = layer.forward_s + layer.backward_s
    cp_s = cp_layer_s(load, machine, grid, passes_s, parameters)
    ep_s = ep_layer_s(load, machine, grid, passes_s + cp_s, parameters)
    compute_s = passes_s + layer.recompute_s
    # All-reduces of the tensor axis stall device and host: kernels that depend on them are launched after
    # them.
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
    """Lower bound of the step time: the micro-batches on the pipeline's fullest stage, and the bubble.

    layer_s: at most `LayerSeconds.total`. The fullest stage holds at least the mean number of layers, rounded
    up. Assumes all other parts of a step are non-negative.
    Source: a sum of non-negative parts is at least each of them.
    """
    stage_s = np.ceil(load.layers / grid.pp) * layer_s
    certain_s = _ROUNDING_MARGIN * (grid.num_microbatches * stage_s + pp_bubble_s(grid, stage_s))
    return np.asarray(certain_s * (1.0 + waiting_fraction(grid, parameters)))


def estimate(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> StepEstimates:
    """Time and memory of one step for every strategy of a grid; legality is not checked.

    Returns arrays of the grid's shape, or ones that broadcast to it.
    Assumes and source: as in `step_seconds` and `memory`.
    """
    step_s, seconds = step_seconds(load, machine, grid, parameters)
    held = memory(load, grid, parameters, host_bytes=machine.host_memory_bytes, peer_ranks=machine.peer_ranks)
    return StepEstimates(step_s=step_s, seconds=seconds, memory=held)


def step_seconds(
    load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters
) -> tuple[Numbers, Seconds]:
    """Seconds of one step and of its parts, for every strategy of a grid.

    Returns arrays of the grid's shape, or ones that broadcast to it.
    Assumes ranks are equal except for jitter; pipelines run 1F1B; the slowest stage sets the pace.
    Source: see each part.
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
        # The rank of the last stage also holds the first stage, and runs half of the micro-batches of each.
        last_s = np.where(grid.schedule == DUALPIPE, (stage_s + last_s) / 2, last_s)
    pace_s = np.maximum(stage_s, last_s)
    # The mean stage's time counts as work; waiting for a fuller stage and for other stages counts as idle.
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
    # Recommenders load and distribute the next batch during the current step (TorchRec's pipeline).
    rest_s = np.where(
        np.greater(load.table_params, 0), np.maximum(parameters.step_s - device_s, 0.0), parameters.step_s
    )
    waiting_s = (device_s + rest_s) * waiting_fraction(grid, parameters)
    return device_s + rest_s + waiting_s, replace(seconds, other=rest_s, waiting=waiting_s)


def activation_offload_s(
    load: Load, machine: Machine, grid: StrategyGrid, overlapped_s: Numbers, layer: LayerTime
) -> Numbers:
    """Exposed seconds of copying a layer's activations to host memory and back, per micro-batch.

    overlapped_s: time of everything else in the layer, split between passes in the proportions of `layer`.
    Assumes kept activations are copied out during one layer's forward pass and in during one layer's backward
    pass; only the excess is exposed. Each accelerator has its own host link.
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
    """Share of a layer's time that its backward pass takes, with which gradient traffic overlaps.

    Assumes the share of the matrix products. It is applied to the layer's whole time rather than taken from
    one pass's seconds, so that a faster pass never exposes more traffic than it saves.
    Source: two products in the backward pass for each in the forward pass (`backward_per_forward`).
    """
    passes = backward_per_forward(grid)
    return np.asarray(passes / (1.0 + passes))


def _gradient_overlap(grid: StrategyGrid, parameters: Parameters) -> Floats:
    """Share of gradient traffic left exposed; that of weight gathers for sharded weights in replica groups.

    Source: PyTorch FSDP2 (fully_shard over two mesh dimensions): a layer's shards are summed between groups
    on a separate stream, right after their reduce-scatter.
    """
    if not np.any(grid.dp_replicate > 1):
        return parameters.dp_overlap
    is_sharded = grid.held_stage >= WEIGHTS_SHARDED
    return np.where(is_sharded, parameters.shard_overlap, parameters.dp_overlap)


def _optimizer_s(
    load: Load, machine: Machine, grid: StrategyGrid, per_rank: Shards, parameters: Parameters
) -> Numbers:
    """Seconds of the optimizer's step, including the transfers of offloaded states and weights.

    Offloaded states are either copied to the accelerator and back (paged optimizers) or updated on the host
    (FSDP, DeepSpeed): the slower of the two counts.
    Source: Rajbhandari et al. 2021 (ZeRO-Infinity), section 6.1; torch FSDP2, `CPUOffloadPolicy`.
    """
    dense = per_rank.dense_trained / np.where(grid.zero_stage >= 1, per_rank.dense_ranks, 1.0)
    experts = per_rank.expert_trained / np.where(grid.zero_stage >= 1, per_rank.expert_ranks, 1.0)
    states = (dense + experts) * state_bytes_per_param(grid)
    near = optimizer_time_s(load, machine, grid, states, parameters)
    on_host = np.minimum(np.minimum(machine.node_size, _MAX_ACCELERATORS_PER_HOST), grid.num_accelerators)
    updated_s = (dense + experts) * on_host / _HOST_UPDATES_PER_S
    far = np.maximum(near, np.maximum(2 * states / machine.host_byte_per_s, updated_s))
    crossing = host_copies_s(machine, grid, per_rank)
    return np.asarray(np.where(grid.offload == OFFLOAD_NONE, near, far) + crossing)


def host_copies_s(machine: Machine, grid: StrategyGrid, per_rank: Shards) -> Numbers:
    """Seconds of a step for copying offloaded weights to the accelerators, once for each pass.

    Each data rank copies its shard from its own host. Source: as in `_optimizer_s`.
    """
    is_sharded = grid.held_stage >= WEIGHTS_SHARDED
    weights = per_rank.dense / np.where(is_sharded, per_rank.dense_ranks, 1.0)
    weights = weights + per_rank.experts / np.where(is_sharded, per_rank.expert_ranks, 1.0)
    copied_bytes = weights * np.where(grid.trained == QLORA, NF4_BYTES, value_bytes(grid))
    copies_s = 2 * grid.num_microbatches * copied_bytes / machine.host_byte_per_s
    return np.asarray(np.where(grid.offload == OFFLOAD_ALL, copies_s, 0.0))


def waiting_fraction(grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Time that ranks wait for the slowest one, as a fraction of the step time without waiting."""
    return np.asarray(parameters.rank_jitter * deviations_of_slowest(grid.num_accelerators))
