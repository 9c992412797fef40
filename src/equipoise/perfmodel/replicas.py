"""A step of replicas that exchange gradients in buckets, as DistributedDataParallel does, part by part.

estimate.py has one share of traffic left exposed, fit for large models; this counts launches, copies and
buckets, which decide for small ones. Floats or arrays that broadcast; messages on the last axis.
"""

from collections.abc import Sequence
from math import ceil, prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike

from equipoise.perfmodel.collectives import all_reduce_s, broadcast_s
from equipoise.perfmodel.compute import TENSORS, layer_time, soft_maximum
from equipoise.perfmodel.estimate import axis_group, step_seconds
from equipoise.perfmodel.layouts import StrategyGrid
from equipoise.perfmodel.load import GRADIENT_BYTES, Floats, Load, Numbers
from equipoise.perfmodel.machine import Group, Machine, Wires
from equipoise.perfmodel.parameters import CollectiveParameters, Parameters
from equipoise.stats import deviations_of_slowest
from equipoise.units import FP32_BYTES, MIB

# Of torch: the first bucket is small, so that the exchange begins early (Li et al. 2020, section 4.2).
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1.0 * MIB, 25.0 * MIB
# Into its bucket and, when all have arrived, back: unless gradients live in their buckets.
_COPIES = 2
# A copy reads and writes.
_TOUCHES = 2
# Of a layer of a network of convolutions: its matrix, and the scale and shift of its norm; of its norm also
# two statistics and a count, which rank 0 sends to the others before each forward pass.
_TENSORS_PER_CONVOLUTION, _BUFFERS_PER_CONVOLUTION = 3.0, 3.0
# Networks of images have most of their weights in their last layers: 0.1 to 0.3, counted by
# `spec.torch_model` on ResNets and MobileNetV2.
_HALF_READY_OF_CONVOLUTIONS = 0.2
_EVENLY = 0.5
# Statistics of a channel, over its weights: networks of images have 50 to 500 weights a channel of a norm.
_STATISTICS_SHARE = 0.01
# However busy a message keeps a core, computing goes on a little.
_LEAST_OWN_RATE = 0.02
# torch sends a matrix whole unless its factors take less than half of its values.
_LEAST_COMPRESSION = 2


class ExchangedTensors(Struct, frozen=True, kw_only=True):
    """What a replica exchanges: tensors with gradients, buffers that rank 0 sends, and bytes of both.

    half_ready: share of the backward pass after which half of the gradients' bytes exist: 0.5 where weights
    are spread evenly, less where the last layers have most.
    """

    num_tensors: Floats
    gradient_bytes: Floats
    num_buffers: Floats
    buffer_bytes: Floats
    half_ready: Floats = 0.5


class ReplicaSeconds(Struct, frozen=True, kw_only=True):
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


def exchanged_tensors(load: Load) -> ExchangedTensors:
    """What a replica of a load exchanges, where it was not counted.

    Assumes a network of convolutions, each with a norm, unless the load has attention.
    Source: layers of torchvision's networks (ResNet-50: 161 tensors and 159 buffers of 53 convolutions).
    """
    is_transformer = np.greater(load.hidden, 0)
    params = np.asarray(load.params, dtype=float)
    return ExchangedTensors(
        num_tensors=load.layers * np.where(is_transformer, TENSORS, _TENSORS_PER_CONVOLUTION),
        gradient_bytes=params * GRADIENT_BYTES,
        num_buffers=load.layers * np.where(is_transformer, 0.0, _BUFFERS_PER_CONVOLUTION),
        buffer_bytes=np.where(is_transformer, 0.0, _STATISTICS_SHARE * params * GRADIENT_BYTES),
        half_ready=np.where(is_transformer, _EVENLY, _HALF_READY_OF_CONVOLUTIONS),
    )


def replica_seconds(
    load: Load,
    machine: Machine,
    grid: StrategyGrid,
    parameters: Parameters,
    *,
    tensors: ExchangedTensors | None = None,
) -> ReplicaSeconds:
    """Seconds of one step of data-parallel replicas; with one rank, the step of the model and nothing else.

    grid: strategies of the data axis alone; microbatch_samples is of a rank. tensors: as counted; of the
    load unless given.
    Assumes buckets of equal size that travel one after the other, and messages that slow no computing.
    Source: Li et al. 2020, sections 3.2 and 4.2; torch/csrc/distributed/c10d/reducer.cpp: a copy of each
    gradient into its bucket and one back, a copy of each buffer (broadcast_buffers).
    """
    tensors = exchanged_tensors(load) if tensors is None else tensors
    ranks = grid.dp
    alone = replace(grid, dp=np.ones(()), global_batch_samples=grid.global_batch_samples / ranks)
    share_s = np.asarray(step_seconds(load, machine, alone, parameters)[0])
    together = np.greater(ranks, 1) * 1.0
    exchanged = together / grid.sync_period
    busy = _launching(load, machine, alone, parameters, tensors)
    launching_s = exchanged * busy.added_s
    memory_byte_per_s = machine.memory_byte_per_s * parameters.memory_fraction
    copying_s = exchanged * (_COPIES * _TOUCHES * tensors.gradient_bytes / memory_byte_per_s)
    group = axis_group(ranks, 1.0, machine)
    buffers_s = together * np.where(
        np.greater(tensors.num_buffers, 0),
        broadcast_s(tensors.buffer_bytes, group, machine.wires, parameters.collective),
        0.0,
    )
    exposed_s = exchanged * exposed_buckets_s(
        tensors, busy.backward_s, group, machine.wires, parameters.collective
    )
    waiting_s = share_s * parameters.rank_jitter * deviations_of_slowest(ranks)
    return ReplicaSeconds(
        share=share_s,
        launching=launching_s,
        copying=copying_s,
        buffers=buffers_s,
        exposed=exposed_s,
        waiting=waiting_s,
    )


class _Busy(Struct, frozen=True, kw_only=True):
    """Seconds that more launches add to a step, and those of its last backward pass."""

    added_s: Numbers
    backward_s: Numbers


def _launching(
    load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters, tensors: ExchangedTensors
) -> _Busy:
    """What launching copies adds while the device works.

    They are launched by torch itself, without Python: at the price of a copy out of gathered parts.
    """
    layer = layer_time(load, machine, grid, parameters)
    device_s = layer.forward_s + layer.backward_s + layer.recompute_s
    copies = _COPIES * tensors.num_tensors + tensors.num_buffers
    more_s = copies * parameters.shard_copy_s / (load.layers * grid.num_microbatches)
    before_s = soft_maximum(device_s, layer.host_s)
    after_s = soft_maximum(device_s, layer.host_s + more_s)
    back = (layer.backward_s + layer.recompute_s) / device_s
    return _Busy(
        added_s=np.asarray(grid.num_microbatches * load.layers * (after_s - before_s)),
        backward_s=np.asarray(load.layers * after_s * back),
    )


def exposed_buckets_s(
    tensors: ExchangedTensors,
    backward_s: Floats,
    group: Group,
    wires: Wires,
    links: CollectiveParameters,
) -> Numbers:
    """Seconds from the end of a backward pass to the arrival of its last bucket.

    Assumes equal buckets but for the first; bytes that are ready grow as a power of the share of the pass.
    The last bucket begins when it is ready, or all travel without a pause from the moment the first is, or
    the second.
    Source: Li et al. 2020, section 3.2.3.
    """
    first = np.minimum(tensors.gradient_bytes, _FIRST_BUCKET_BYTES)
    rest = tensors.gradient_bytes - first
    count = np.ceil(rest / _BUCKET_BYTES)
    first_s = all_reduce_s(first, group, wires, links)
    each_s = all_reduce_s(rest / np.maximum(count, 1.0), group, wires, links)
    last_s = np.where(count > 0, each_s, first_s)
    all_bytes = np.maximum(tensors.gradient_bytes, 1.0)
    power = np.log(np.minimum(tensors.half_ready, _EVENLY)) / np.log(_EVENLY)
    begun = (first / all_bytes) ** power
    from_first_s = backward_s * (begun - 1.0) + first_s + count * each_s
    second = ((first + rest / np.maximum(count, 1.0)) / all_bytes) ** power
    from_second_s = np.where(count > 0, backward_s * (second - 1.0) + count * each_s, 0.0)
    return np.asarray(np.maximum(last_s, np.maximum(from_first_s, from_second_s)))


def low_rank_bytes(shapes: Sequence[Sequence[int]], rank: int) -> tuple[int, int, int]:
    """Bytes of the three messages of PowerSGD: gradients sent whole, left factors, right factors.

    shapes: of the gradients of one bucket, float32.
    Assumes a tensor of more than two dims is a matrix of its first dim by the others.
    Source: Vogels et al. 2019, section 3; torch's powerSGD_hook, `_should_compress`.

    >>> low_rank_bytes([(100, 200), (100,)], rank=2)
    (400, 800, 1600)
    """
    whole = left = right = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = prod(shape[1:])
        kept = min(rows, columns, rank)
        if len(shape) > 1 and (rows + columns) * kept * _LEAST_COMPRESSION < rows * columns:
            left += rows * kept
            right += columns * kept
        else:
            whole += rows * columns
    return whole * FP32_BYTES, left * FP32_BYTES, right * FP32_BYTES


def sparse_bytes(num_values: int, fraction: float) -> int:
    """Bytes that a rank sends of a bucket of which it sends the largest values, each with its place.

    Source: Stich et al. 2018; places as int32.

    >>> sparse_bytes(1000, 0.01)
    80
    """
    return max(1, ceil(fraction * num_values)) * 2 * FP32_BYTES


def overlapped_end_s(
    backward_s: ArrayLike,
    ready: ArrayLike,
    message_s: ArrayLike,
    *,
    core_share: ArrayLike,
    overlapped_s: ArrayLike,
) -> Numbers:
    """When a backward pass and its messages have ended, if each message starts once its gradients are ready.

    backward_s: (...,) seconds of the pass alone. ready: (..., n_messages) the share of it after which each
    may start, not falling. message_s: (..., n_messages) seconds of each alone. core_share: (..., n_messages)
    what of the computing core it takes while both are under way; 0 where it has its own engine. overlapped_s:
    (..., n_messages) seconds of each while both are.
    Assumes messages one after the other in this order, and both loads at constant rates.
    Source: Li et al. 2020, section 3.2.3, for the order; definition of rates for the rest.

    >>> float(overlapped_end_s(10.0, [0.5, 1.0], [4.0, 3.0], core_share=0.0, overlapped_s=[4.0, 3.0]))
    13.0
    """
    pass_s = np.asarray(backward_s, dtype=float)
    alone, starts, share, shared_s = np.broadcast_arrays(
        np.asarray(message_s, dtype=float),
        np.asarray(ready, dtype=float),
        np.minimum(np.asarray(core_share, dtype=float), 1.0 - _LEAST_OWN_RATE),
        np.asarray(overlapped_s, dtype=float),
    )
    shape = np.broadcast_shapes(pass_s.shape, starts.shape[:-1])
    now, done = np.zeros(shape), np.zeros(shape)
    computed_s = np.full(shape, np.nan)
    for number in range(starts.shape[-1]):
        length_s, compute_rate = alone[..., number], 1.0 - share[..., number]
        wait_s = np.maximum(starts[..., number] * pass_s - done, 0.0)
        now, done = now + wait_s, done + wait_s
        # Both at once until one of them ends.
        left_s = np.maximum(pass_s - done, 0.0) / compute_rate
        both_s = np.minimum(left_s, shared_s[..., number])
        ends_here = np.isnan(computed_s) & (left_s <= shared_s[..., number])
        computed_s = np.where(ends_here, now + both_s, computed_s)
        done = np.where(ends_here, pass_s, done + both_s * compute_rate)
        arrived = both_s / np.maximum(shared_s[..., number], np.finfo(float).tiny)
        now = now + both_s + length_s * (1.0 - arrived)
    late = np.isnan(computed_s)
    computed_s = np.where(late, now + np.maximum(pass_s - done, 0.0), computed_s)
    return np.asarray(np.where(late, computed_s, np.maximum(now, computed_s)))


def slowest_of(step_s: ArrayLike, num_ranks: int) -> float:
    """How much longer than a step of one rank the slowest of so many takes, as medians.

    step_s: (n_steps,) of one rank.
    Assumes ranks are equal, and each step independent of the others.
    Source: the distribution of the largest of n draws is that of one to the power n.

    >>> round(slowest_of([1.0, 1.0, 1.0], 8), 3)
    1.0
    """
    took = np.asarray(step_s, dtype=float)
    return float(np.quantile(took, 0.5 ** (1.0 / num_ranks)) / np.median(took))


def at_batch(batches: ArrayLike, seconds: ArrayLike, wanted: float) -> float:
    """Seconds at a batch between those measured: straight lines, so a fixed part and one per sample.

    batches: (n_batches,) rising; seconds: (n_batches,). wanted: within them.
    Assumes nothing changes abruptly between two batches. Source: linear interpolation.

    >>> at_batch([8, 16], [1.0, 1.5], 12)
    1.25
    """
    return float(np.interp(wanted, np.asarray(batches, dtype=float), np.asarray(seconds, dtype=float)))
