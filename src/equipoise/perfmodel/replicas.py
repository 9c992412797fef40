"""Step time of replicas that exchange gradients in buckets, as DistributedDataParallel does.

estimate.py uses a single share of exposed traffic, which suits large models; this module counts launches,
copies and buckets, which dominate for small ones. Floats or arrays that broadcast; messages on the last axis.
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

# PyTorch's sizes: the first bucket is small, so that the exchange starts early (Li et al. 2020, section 4.2).
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1.0 * MIB, 25.0 * MIB
# Copies of a gradient: into its bucket and, after the exchange, back, unless gradients are views of buckets.
_COPIES = 2
# A copy reads and writes.
_COPY_ACCESSES = 2
# Per layer of a convolutional network: its matrix, and the scale and shift of its norm; and the norm's two
# statistics and count, which rank 0 broadcasts before each forward pass.
_TENSORS_PER_CONVOLUTION, _BUFFERS_PER_CONVOLUTION = 3.0, 3.0
# Value of `half_ready` for image networks, whose last layers have most weights: 0.1 to 0.3, counted by
# `spec.torch_model` on ResNets and MobileNetV2.
_HALF_READY_OF_CONVOLUTIONS = 0.2
_HALF_READY_OF_EVEN_WEIGHTS = 0.5
# Statistics per weight of a channel: image networks have 50 to 500 weights per channel of a norm.
_STATISTICS_SHARE = 0.01
# Compute continues at least at this rate, however much of a core a message takes.
_MIN_COMPUTE_RATE = 0.02
# PyTorch sends a matrix uncompressed unless its factors have less than half as many values.
_MIN_COMPRESSION = 2


class ExchangedTensors(Struct, frozen=True, kw_only=True):
    """What a replica exchanges: tensors with gradients, buffers broadcast by rank 0, and bytes of both.

    half_ready: share of the backward pass after which half of the gradients' bytes are ready: 0.5 for evenly
    spread weights, less where the last layers have most of them.
    """

    num_tensors: Floats
    gradient_bytes: Floats
    num_buffers: Floats
    buffer_bytes: Floats
    half_ready: Floats = 0.5


class ReplicaSeconds(Struct, frozen=True, kw_only=True):
    """Seconds of a step by cause, which sum to the step time.

    share: the rank's own part of the batch, without any exchange. launching: exposed launches of copies and
    buffers. copying: copying gradients into buckets and back. buffers: broadcast from rank 0, before the
    forward pass. exposed: buckets that the backward pass does not hide. waiting: for the slowest rank.
    """

    share: Numbers
    launching: Numbers
    copying: Numbers
    buffers: Numbers
    exposed: Numbers
    waiting: Numbers

    @property
    def step(self) -> Numbers:
        """Step time: the sum of all causes."""
        whole = self.share + self.launching + self.copying + self.buffers + self.exposed
        return np.asarray(whole + self.waiting)


def exchanged_tensors(load: Load) -> ExchangedTensors:
    """Estimate of what a replica of a load exchanges.

    Assumes a convolutional network with a norm per convolution, unless the load is a transformer.
    Source: layers of torchvision's networks (ResNet-50: 161 tensors and 159 buffers of 53 convolutions).
    """
    is_transformer = np.greater(load.hidden, 0)
    params = np.asarray(load.params, dtype=float)
    return ExchangedTensors(
        num_tensors=load.layers * np.where(is_transformer, TENSORS, _TENSORS_PER_CONVOLUTION),
        gradient_bytes=params * GRADIENT_BYTES,
        num_buffers=load.layers * np.where(is_transformer, 0.0, _BUFFERS_PER_CONVOLUTION),
        buffer_bytes=np.where(is_transformer, 0.0, _STATISTICS_SHARE * params * GRADIENT_BYTES),
        half_ready=np.where(is_transformer, _HALF_READY_OF_EVEN_WEIGHTS, _HALF_READY_OF_CONVOLUTIONS),
    )


def replica_seconds(
    load: Load,
    machine: Machine,
    grid: StrategyGrid,
    parameters: Parameters,
    *,
    tensors: ExchangedTensors | None = None,
) -> ReplicaSeconds:
    """Seconds of one step of data-parallel replicas; with one rank, the step of the model alone.

    grid: strategies with only a data axis; microbatch_samples is per rank. tensors: as counted; by default
    estimated from the load.
    Assumes buckets of equal size that are sent one after the other, and do not slow down computation.
    Source: Li et al. 2020, sections 3.2 and 4.2; torch/csrc/distributed/c10d/reducer.cpp: a copy of each
    gradient into its bucket and one back, a copy of each buffer (broadcast_buffers).
    """
    tensors = exchanged_tensors(load) if tensors is None else tensors
    ranks = grid.dp
    alone = replace(grid, dp=np.ones(()), global_batch_samples=grid.global_batch_samples / ranks)
    share_s = np.asarray(step_seconds(load, machine, alone, parameters)[0])
    together = np.greater(ranks, 1) * 1.0
    exchanged = together / grid.sync_period
    overhead = _launch_overhead(load, machine, alone, parameters, tensors)
    launching_s = exchanged * overhead.added_s
    memory_byte_per_s = machine.memory_byte_per_s * parameters.memory_fraction
    copying_s = exchanged * (_COPIES * _COPY_ACCESSES * tensors.gradient_bytes / memory_byte_per_s)
    group = axis_group(ranks, 1.0, machine)
    buffers_s = together * np.where(
        np.greater(tensors.num_buffers, 0),
        broadcast_s(tensors.buffer_bytes, group, machine.wires, parameters.collective),
        0.0,
    )
    exposed_s = exchanged * exposed_buckets_s(
        tensors, overhead.backward_s, group, machine.wires, parameters.collective
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


class _LaunchOverhead(Struct, frozen=True, kw_only=True):
    """Seconds that launches of copies add to a step, and seconds of its last backward pass."""

    added_s: Numbers
    backward_s: Numbers


def _launch_overhead(
    load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters, tensors: ExchangedTensors
) -> _LaunchOverhead:
    """Time that launching copies adds, as far as device work does not hide it.

    PyTorch launches them without Python, at the cost of copying one gathered shard (`shard_copy_s`).
    """
    layer = layer_time(load, machine, grid, parameters)
    device_s = layer.forward_s + layer.backward_s + layer.recompute_s
    copies = _COPIES * tensors.num_tensors + tensors.num_buffers
    more_s = copies * parameters.shard_copy_s / (load.layers * grid.num_microbatches)
    before_s = soft_maximum(device_s, layer.host_s)
    after_s = soft_maximum(device_s, layer.host_s + more_s)
    back = (layer.backward_s + layer.recompute_s) / device_s
    return _LaunchOverhead(
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
    """Seconds from the end of a backward pass to the end of its last bucket's exchange.

    Assumes equal buckets except the first; ready bytes grow as a power of the share of the pass. The last
    bucket starts when it is ready, or all are sent without a pause from the moment the first or the second is
    ready.
    Source: Li et al. 2020, section 3.2.3.
    """
    first = np.minimum(tensors.gradient_bytes, _FIRST_BUCKET_BYTES)
    rest = tensors.gradient_bytes - first
    count = np.ceil(rest / _BUCKET_BYTES)
    first_s = all_reduce_s(first, group, wires, links)
    each_s = all_reduce_s(rest / np.maximum(count, 1.0), group, wires, links)
    last_s = np.where(count > 0, each_s, first_s)
    all_bytes = np.maximum(tensors.gradient_bytes, 1.0)
    power = np.log(np.minimum(tensors.half_ready, _HALF_READY_OF_EVEN_WEIGHTS)) / np.log(
        _HALF_READY_OF_EVEN_WEIGHTS
    )
    begun = (first / all_bytes) ** power
    from_first_s = backward_s * (begun - 1.0) + first_s + count * each_s
    second = ((first + rest / np.maximum(count, 1.0)) / all_bytes) ** power
    from_second_s = np.where(count > 0, backward_s * (second - 1.0) + count * each_s, 0.0)
    return np.asarray(np.maximum(last_s, np.maximum(from_first_s, from_second_s)))


def low_rank_bytes(shapes: Sequence[Sequence[int]], rank: int) -> tuple[int, int, int]:
    """Bytes of PowerSGD's three messages: uncompressed gradients, left factors, right factors.

    shapes: of the gradients of one bucket, float32.
    Assumes a tensor of more than two dimensions is a matrix of the first dimension by all others.
    Source: Vogels et al. 2019, section 3; torch's powerSGD_hook, `_should_compress`.

    >>> low_rank_bytes([(100, 200), (100,)], rank=2)
    (400, 800, 1600)
    """
    whole = left = right = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = prod(shape[1:])
        kept = min(rows, columns, rank)
        if len(shape) > 1 and (rows + columns) * kept * _MIN_COMPRESSION < rows * columns:
            left += rows * kept
            right += columns * kept
        else:
            whole += rows * columns
    return whole * FP32_BYTES, left * FP32_BYTES, right * FP32_BYTES


def sparse_bytes(num_values: int, fraction: float) -> int:
    """Bytes that a rank sends of a bucket under top-k compression: values and their indices.

    Source: Stich et al. 2018; indices as int32.

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
    """Time at which a backward pass and its messages end, if each message starts once its gradients are
    ready.

    backward_s: seconds of the pass alone, (...,). ready: share of the pass after which each message may
    start, non-decreasing, (..., n_messages). message_s: seconds of each message alone; overlapped_s: seconds
    of each during computation; core_share: share of the computing core that it takes meanwhile, 0 with a
    separate engine; all (..., n_messages).
    Assumes messages are sent one after the other in this order, and both progress at constant rates.
    Source: Li et al. 2020, section 3.2.3, for the order; definition of rates for the rest.

    >>> float(overlapped_end_s(10.0, [0.5, 1.0], [4.0, 3.0], core_share=0.0, overlapped_s=[4.0, 3.0]))
    13.0
    """
    pass_s = np.asarray(backward_s, dtype=float)
    alone, starts, share, shared_s = np.broadcast_arrays(
        np.asarray(message_s, dtype=float),
        np.asarray(ready, dtype=float),
        np.minimum(np.asarray(core_share, dtype=float), 1.0 - _MIN_COMPUTE_RATE),
        np.asarray(overlapped_s, dtype=float),
    )
    shape = np.broadcast_shapes(pass_s.shape, starts.shape[:-1])
    now, done = np.zeros(shape), np.zeros(shape)
    computed_s = np.full(shape, np.nan)
    for number in range(starts.shape[-1]):
        length_s, compute_rate = alone[..., number], 1.0 - share[..., number]
        wait_s = np.maximum(starts[..., number] * pass_s - done, 0.0)
        now, done = now + wait_s, done + wait_s
        # Both overlap until one of them ends.
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
    """Median step time of the slowest of `num_ranks` ranks, over the median of one rank.

    step_s: of one rank, (n_steps,).
    Assumes equal ranks and independent steps.
    Source: the distribution of the largest of n draws is that of one to the power n.

    >>> round(slowest_of([1.0, 1.0, 1.0], 8), 3)
    1.0
    """
    took = np.asarray(step_s, dtype=float)
    return float(np.quantile(took, 0.5 ** (1.0 / num_ranks)) / np.median(took))


def at_batch(batches: ArrayLike, seconds: ArrayLike, wanted: float) -> float:
    """Seconds at a batch between measured ones, by linear interpolation: a fixed part and one per sample.

    batches: increasing, (n_batches,); seconds: (n_batches,). wanted: within their range.
    Assumes nothing changes abruptly between two batches. Source: linear interpolation.

    >>> at_batch([8, 16], [1.0, 1.5], 12)
    1.25
    """
    return float(np.interp(wanted, np.asarray(batches, dtype=float), np.asarray(seconds, dtype=float)))
