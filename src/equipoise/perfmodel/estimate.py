"""A step's time by cause and its memory by kind, for many strategies at once. Arrays in, arrays out."""

from dataclasses import dataclass, fields

import numpy as np

from equipoise.perfmodel.axes import (
    cp_layer_s,
    dp_gradient_s,
    dp_shard_s,
    ep_layer_s,
    exposed_s,
    pp_bubble_s,
    pp_send_s,
    stages,
    tp_layer_s,
)
from equipoise.perfmodel.compute import (
    BACKWARD_PER_FORWARD,
    FROZEN_BACKWARD_PER_FORWARD,
    FULL_TRAINING,
    head_time_s,
    layer_time,
    optimizer_time_s,
    soft_maximum,
)
from equipoise.perfmodel.layouts import CODES, Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.memory import Memory, Shards, memory, shards, state_bytes_per_param
from equipoise.perfmodel.parameters import Parameters

_OFFLOAD_NONE = CODES["offload"].index("none")
_OFFLOAD_ALL = CODES["offload"].index("optimizer_and_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """A step's seconds by cause on the busiest rank; arrays that broadcast, and that sum to the step.

    compute: layers, logits and loss, recomputation included. host: what launching adds. tp, cp, ep, pp, dp:
    exposed traffic of the axis (dp: gradients and gathered weights). idle: the pipeline's bubble
    and stages with less to do. optimizer: its step, and what offloading adds. waiting: for the slowest rank.
    other: the rest of a step.
    """

    compute: Numbers
    host: Numbers
    tp: Numbers
    cp: Numbers
    ep: Numbers
    pp: Numbers
    dp: Numbers
    idle: Numbers
    optimizer: Numbers
    waiting: Numbers
    other: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What a grid of strategies takes: seconds of a step, by cause, and bytes of memory, by kind."""

    step_s: Numbers
    seconds: Seconds
    memory: Memory


def estimate(load: Load, machine: Machine, grid: Grid, parameters: Parameters) -> Estimates:
    """Time and memory of one step of every strategy of a grid; that they are legal is not checked.

    Returns arrays of the grid's shape, or ones that broadcast to it.
    Assumes equal ranks but for jitter; pipelines run one forward, one back; the fullest stage sets the pace.
    Source: each part names its own.
    """
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
    layer_s = unsummed_s + tp_s
    shard_s = dp_shard_s(load, machine, grid, layer_s, parameters)
    per_rank = shards(load, grid)
    head_s = head_time_s(load, machine, grid, parameters)
    send_s = pp_send_s(load, machine, grid, parameters)
    count = grid.num_microbatches
    layers = stages(load, grid)
    stage_s = layers.fullest * (layer_s + shard_s) + send_s
    last_s = layers.last * (layer_s + shard_s) + send_s + head_s
    pace_s = np.maximum(stage_s, last_s)
    # What the mean stage does is work; that others wait for a fuller one, and for each other, is idleness.
    mean_layers = load.layers / grid.pp
    mean_s = mean_layers * (layer_s + shard_s) + send_s + head_s / grid.pp
    idle_s = count * (pace_s - mean_s) + pp_bubble_s(grid, stage_s)
    each = count * mean_layers
    traffic_s = dp_gradient_s(load, machine, grid, per_rank, parameters)
    backward_s = mean_layers * (_backward_share(grid) * layer_s)
    seconds = Seconds(
        compute=each * compute_s + count * head_s / grid.pp,
        host=each * (layer_s - busy_s),
        tp=each * tp_s,
        cp=each * cp_s,
        ep=each * ep_s,
        pp=count * send_s,
        dp=each * shard_s + exposed_s(traffic_s, backward_s, parameters.dp_overlap),
        idle=idle_s,
        optimizer=_optimizer_s(machine, grid, per_rank, parameters),
        waiting=np.zeros(()),
        other=np.asarray(parameters.step_s),
    )
    return _with_waiting(seconds, grid, memory(load, grid, parameters), parameters)


def _backward_share(grid: Grid) -> Numbers:
    """The way back's share of a layer's time, with which gradients overlap.

    Assumes the share of the products. It is of the whole time, and not the seconds of one pass, so that a
    faster pass never exposes more traffic than it saves.
    Source: two products on the way back for each of the way forward (`BACKWARD_PER_FORWARD`).
    """
    passes = np.where(grid.trained == FULL_TRAINING, BACKWARD_PER_FORWARD, FROZEN_BACKWARD_PER_FORWARD)
    return np.asarray(passes / (1.0 + passes))


def _optimizer_s(machine: Machine, grid: Grid, per_rank: Shards, parameters: Parameters) -> Numbers:
    """Seconds of the optimizer's step; offloaded states cross to the host and back instead."""
    dense = per_rank.dense_trained / np.where(grid.zero_stage >= 1, per_rank.dense_ranks, 1.0)
    experts = per_rank.expert_trained / np.where(grid.zero_stage >= 1, per_rank.expert_ranks, 1.0)
    states = (dense + experts) * state_bytes_per_param(grid)
    near = optimizer_time_s(states, machine, parameters)
    far = 2 * states / machine.host_byte_per_s
    crossing = np.where(
        grid.offload == _OFFLOAD_ALL,
        2 * grid.num_microbatches * (per_rank.dense + per_rank.experts) * 2 / machine.host_byte_per_s,
        0.0,
    )
    return np.asarray(np.where(grid.offload == _OFFLOAD_NONE, near, far) + crossing)


def _with_waiting(seconds: Seconds, grid: Grid, needed: Memory, parameters: Parameters) -> Estimates:
    """The estimates, with the time all ranks wait for the slowest.

    Source: the largest of n normal deviates is about sqrt(2 ln n) standard deviations above the mean.
    """
    parts = [getattr(seconds, each.name) for each in fields(Seconds)]
    total = sum(parts[1:], start=parts[0])
    waiting = total * (parameters.rank_jitter * np.sqrt(2 * np.log(grid.num_accelerators)))
    named = {each.name: part for each, part in zip(fields(Seconds), parts, strict=True)}
    return Estimates(
        step_s=total + waiting,
        seconds=Seconds(**(named | {"waiting": waiting})),
        memory=needed,
    )
