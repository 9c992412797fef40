"""A step of replicas that exchange gradients in buckets, as DistributedDataParallel does, part by part.

Where `axes/dp.py` has one share of traffic left bare, fit for large models, this counts launches, copies and
buckets: what decides for small ones. Floats or arrays that broadcast.
"""

from dataclasses import dataclass, replace

import numpy as np

from equipoise.perfmodel.collective import Group, Wires, all_reduce_s
from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.compute import layer_time, soft_maximum
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import Grid, Numbers
from equipoise.perfmodel.load import Floats, Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.units import MIB

# Of torch: the first bucket is small, so that the exchange begins early (Li et al. 2020, section 4.2).
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1.0 * MIB, 25.0 * MIB
# Into its bucket and, when all have arrived, back: unless gradients live in their buckets.
_COPIES = 2
# A copy reads and writes.
_TOUCHES = 2
# Gradients keep 4 bytes where weights do, mixed precision by autocast included.
GRADIENT_BYTES = 4.0
# Of a layer of a network of convolutions: its matrix, and the scale and shift of its norm; of its norm also
# two statistics and a count, which rank 0 sends to the others before each forward pass.
_TENSORS_PER_CONVOLUTION, _BUFFERS_PER_CONVOLUTION = 3.0, 3.0
# Of a layer of a transformer: four matrices of attention, two of the rest, norms, and their biases.
_TENSORS_PER_BLOCK = 12.0
# Networks of images have most of their weights in their last layers: 0.1 to 0.3, counted by
# `spec.torch_model` on ResNets and MobileNetV2.
_HALF_READY_OF_CONVOLUTIONS = 0.2
_EVENLY = 0.5
# Statistics of a channel, over its weights: networks of images have 50 to 500 weights a channel of a norm.
_STATISTICS_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a replica exchanges: tensors with gradients, buffers that rank 0 sends, and bytes of both.

    half_ready: share of the backward pass after which half of the gradients' bytes exist: 0.5 where weights
    are spread evenly, less where the last layers have most.
    """

    num_tensors: Floats
    gradient_bytes: Floats
    num_buffers: Floats
    buffer_bytes: Floats
    half_ready: Floats = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSeconds:
    """Seconds of a step by cause; they sum to the step.

    share: the rank's own part of the batch, with nothing exchanged. launching: what copies and buffers add to
    the host's launches, as far as the device does not hide it. copying: gradients into buckets and back.
    buffers: of rank 0 on their way, before the forward pass. exposed: buckets that the backward pass does not
    hide. waiting: for the slowest rank.
    """

    share: Numbers
    launching: Numbers
    copying: Numbers
    buffers: Numbers
    exposed: Numbers
    waiting: Numbers

    @property
    def step(self) -> Numbers:
        """The step."""
        whole = self.share + self.launching + self.copying + self.buffers + self.exposed
        return np.asarray(whole + self.waiting)


def held(load: Load) -> Held:
    """What a replica of a load holds where nobody counted it.

    Assumes a network of convolutions, each with a norm, unless the load has attention.
    Source: layers of torchvision's networks (ResNet-50: 161 tensors and 159 buffers of 53 convolutions).
    """
    is_transformer = np.greater(load.hidden, 0)
    params = np.asarray(load.params, dtype=float)
    return Held(
        num_tensors=load.layers * np.where(is_transformer, _TENSORS_PER_BLOCK, _TENSORS_PER_CONVOLUTION),
        gradient_bytes=params * GRADIENT_BYTES,
        num_buffers=load.layers * np.where(is_transformer, 0.0, _BUFFERS_PER_CONVOLUTION),
        buffer_bytes=np.where(is_transformer, 0.0, _STATISTICS_SHARE * params * GRADIENT_BYTES),
        half_ready=np.where(is_transformer, _EVENLY, _HALF_READY_OF_CONVOLUTIONS),
    )


def replica_seconds(
    load: Load, machine: Machine, grid: Grid, parameters: Parameters, *, holds: Held | None = None
) -> ReplicaSeconds:
    """Seconds of one step of data-parallel replicas; with one rank, the step of the model and nothing else.

    grid: strategies of the data axis alone; microbatch_samples is of a rank. holds: where it was counted.
    Assumes buckets of alike size that travel one after the other, and messages that slow no computing.
    Source: Li et al. 2020, sections 3.2 and 4.2; torch/csrc/distributed/c10d/reducer.cpp: a copy of each
    gradient into its bucket and one back, a copy of each buffer (broadcast_buffers).
    """
    holds = held(load) if holds is None else holds
    ranks = grid.dp
    alone = replace(grid, dp=np.ones(()), global_batch_samples=grid.global_batch_samples / ranks)
    share_s = np.asarray(estimate(load, machine, alone, parameters).step_s)
    together = np.greater(ranks, 1) * 1.0
    exchanged = together / grid.sync_period
    busy = _launching(load, machine, alone, parameters, holds)
    launching_s = exchanged * busy.added_s
    memory_byte_per_s = machine.memory_byte_per_s * parameters.memory_fraction
    copying_s = exchanged * (_COPIES * _TOUCHES * holds.gradient_bytes / memory_byte_per_s)
    group = Group(
        ranks_per_node=np.minimum(ranks, machine.node_size),
        num_nodes=np.maximum(1.0, ranks / machine.node_size),
    )
    buffers_s = together * np.where(
        np.greater(holds.num_buffers, 0),
        all_reduce_s(holds.buffer_bytes, group, machine.wires, parameters.collective),
        0.0,
    )
    exposed_s = exchanged * bare_buckets_s(
        holds, busy.backward_s, group, machine.wires, parameters.collective
    )
    waiting_s = share_s * parameters.rank_jitter * np.sqrt(2 * np.log(ranks))
    return ReplicaSeconds(
        share=share_s,
        launching=launching_s,
        copying=copying_s,
        buffers=buffers_s,
        exposed=exposed_s,
        waiting=waiting_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """Seconds that more launches add to a step, and those of its last backward pass."""

    added_s: Numbers
    backward_s: Numbers


def _launching(load: Load, machine: Machine, grid: Grid, parameters: Parameters, holds: Held) -> _Busy:
    """What launching copies adds beside a device at work.

    They are launched by torch itself, without Python: at the price of a copy out of gathered parts.
    """
    layer = layer_time(load, machine, grid, parameters)
    device_s = layer.forward_s + layer.backward_s + layer.recompute_s
    copies = _COPIES * holds.num_tensors + holds.num_buffers
    more_s = copies * parameters.shard_copy_s / (load.layers * grid.num_microbatches)
    before_s = soft_maximum(device_s, layer.host_s)
    after_s = soft_maximum(device_s, layer.host_s + more_s)
    back = (layer.backward_s + layer.recompute_s) / device_s
    return _Busy(
        added_s=np.asarray(grid.num_microbatches * load.layers * (after_s - before_s)),
        backward_s=np.asarray(load.layers * after_s * back),
    )


def bare_buckets_s(
    holds: Held,
    backward_s: Floats,
    group: Group,
    wires: Wires,
    links: CollectiveParameters,
) -> Numbers:
    """Seconds from the end of a backward pass to the arrival of its last bucket.

    Assumes buckets alike but for the first; bytes that are ready grow as a power of the share of the pass.
    The last bucket begins when it is ready, or all travel without a pause from the moment the first is, or
    the second.
    Source: Li et al. 2020, section 3.2.3.
    """
    first = np.minimum(holds.gradient_bytes, _FIRST_BUCKET_BYTES)
    rest = holds.gradient_bytes - first
    count = np.ceil(rest / _BUCKET_BYTES)
    first_s = all_reduce_s(first, group, wires, links)
    each_s = all_reduce_s(rest / np.maximum(count, 1.0), group, wires, links)
    last_s = np.where(count > 0, each_s, first_s)
    all_bytes = np.maximum(holds.gradient_bytes, 1.0)
    power = np.log(np.minimum(holds.half_ready, _EVENLY)) / np.log(_EVENLY)
    begun = (first / all_bytes) ** power
    from_first_s = backward_s * (begun - 1.0) + first_s + count * each_s
    second = ((first + rest / np.maximum(count, 1.0)) / all_bytes) ** power
    from_second_s = np.where(count > 0, backward_s * (second - 1.0) + count * each_s, 0.0)
    return np.asarray(np.maximum(last_s, np.maximum(from_first_s, from_second_s)))
