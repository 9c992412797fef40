"""What exchanging gradients adds to a step: bytes, messages beside the backward pass, what they cost it.

Numbers are floats or arrays; arrays broadcast, messages on the last axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Where nothing tells what a message and computing cost each other on one core: neither gets less than half.
_FAIR_SHARE = 0.5
# However busy a message keeps a core, computing goes on a little.
_LEAST_OWN_RATE = 0.02
# torch sends a matrix whole unless its factors take less than half of its values.
_LEAST_COMPRESSION = 2
_WIDTH_BYTES = 4
# A place of a value travels as an int32.
_PLACE_BYTES = 4

Numbers = NDArray[np.float64]


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
    return whole * _WIDTH_BYTES, left * _WIDTH_BYTES, right * _WIDTH_BYTES


def sparse_bytes(num_values: int, fraction: float) -> int:
    """Bytes that a rank sends of a bucket of which it sends the largest values, each with its place.

    Source: Stich et al. 2018; places as int32.

    >>> sparse_bytes(1000, 0.01)
    80
    """
    return max(1, ceil(fraction * num_values)) * (_WIDTH_BYTES + _PLACE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A backward pass with messages under way; every field of the shape of the cases.

    computed_s: when the pass had computed its last gradient. ended_s: when the last message had arrived.
    """

    computed_s: Numbers
    ended_s: Numbers

    @property
    def exposed_s(self) -> Numbers:
        """Seconds in which only messages are waited for."""
        return self.ended_s - self.computed_s


def overlapped(
    backward_s: ArrayLike,
    ready: ArrayLike,
    message_s: ArrayLike,
    *,
    core_share: ArrayLike = 0.0,
    beside_s: ArrayLike | None = None,
) -> Overlap:
    """When a backward pass and its messages end, if each message starts once its gradients are ready.

    backward_s: (...,) seconds of the pass alone. ready: (..., n_messages) the share of it after which each
    may start, not falling. message_s: (..., n_messages) seconds of each alone. core_share: (..., n_messages)
    what of the computing core it takes while both are under way; 0 where it has its own engine. beside_s:
    (..., n_messages) seconds of each beside computing; None to give each of two loads on one core at least
    half of it.
    Assumes messages one after the other in this order, and both loads at constant rates.
    Source: Li et al. 2020, section 3.2.3, for the order; definition of rates for the rest.

    >>> found = overlapped(10.0, [0.5, 1.0], [4.0, 3.0])
    >>> float(found.computed_s), float(found.ended_s)
    (10.0, 13.0)
    """
    pass_s = np.asarray(backward_s, dtype=float)
    busy = np.asarray(core_share, dtype=float)
    slowed = np.maximum(1.0, busy / _FAIR_SHARE) if beside_s is None else 1.0
    most = _FAIR_SHARE if beside_s is None else 1.0 - _LEAST_OWN_RATE
    alone, starts, share, beside = np.broadcast_arrays(
        np.asarray(message_s, dtype=float),
        np.asarray(ready, dtype=float),
        np.minimum(busy, most),
        np.asarray(message_s if beside_s is None else beside_s, dtype=float) * slowed,
    )
    shape = np.broadcast_shapes(pass_s.shape, starts.shape[:-1])
    now, done = np.zeros(shape), np.zeros(shape)
    computed_s = np.full(shape, np.nan)
    for number in range(starts.shape[-1]):
        length_s, own_rate = alone[..., number], 1.0 - share[..., number]
        wait_s = np.maximum(starts[..., number] * pass_s - done, 0.0)
        now, done = now + wait_s, done + wait_s
        # Both at once until one of them ends.
        left_s = np.maximum(pass_s - done, 0.0) / own_rate
        both_s = np.minimum(left_s, beside[..., number])
        ends_here = np.isnan(computed_s) & (left_s <= beside[..., number])
        computed_s = np.where(ends_here, now + both_s, computed_s)
        done = np.where(ends_here, pass_s, done + both_s * own_rate)
        arrived = both_s / np.maximum(beside[..., number], np.finfo(float).tiny)
        now = now + both_s + length_s * (1.0 - arrived)
    late = np.isnan(computed_s)
    computed_s = np.where(late, now + np.maximum(pass_s - done, 0.0), computed_s)
    return Overlap(computed_s=computed_s, ended_s=np.where(late, computed_s, np.maximum(now, computed_s)))


def slowest_of(step_s: ArrayLike, num_ranks: int) -> float:
    """How much longer than a step of one rank the slowest of so many takes, as medians.

    step_s: (n_steps,) of one rank.
    Assumes ranks are alike, and each step independent of the others.
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
