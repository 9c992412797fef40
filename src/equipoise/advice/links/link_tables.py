"""What the law of collectives leaves of those that were timed, as tables that a search looks up."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.advice.links.collectives import LARGE_BYTES, SMALL_BYTES
from equipoise.advice.links.timed_groups import RINGS, Numbers, Timed
from equipoise.perfmodel.collectives import OPERATIONS
from equipoise.perfmodel.machine import Wires
from equipoise.perfmodel.parameters import OCTAVES, SIZES, STEPS, CollectiveParameters, Correction

# What the law errs by, as a standard deviation of the logarithm: an octave of ranks or nodes away, and for
# another operation on the same links (docs/experiments/0005-collectives.md: with these, 90 % ranges held 96 %
# of all-reduces over groups that were not timed).
OCTAVE_LOG_SD = 0.1
OTHER_LOG_SD = 0.1
_SEED = 4
# How long messages of each of SIZES are: 0 where they are all latency, 1 where all wire.
_LONG = np.clip(np.log(SIZES / SMALL_BYTES) / np.log(LARGE_BYTES / SMALL_BYTES), 0.0, 1.0)
# Operations that send alike, the likest first.
FAMILIES = (("all_gather", "reduce_scatter"), RINGS, ("all_to_all", "send"))


def alike(timed: Sequence[Timed], operation: str) -> list[Timed]:
    """What was timed of an operation; else of those that send as it does."""
    for names in ((operation,), *(family for family in FAMILIES if operation in family)):
        found = [each for each in timed if each.operation in names]
        if found:
            return found
    return []


def centre_tables(
    timed: Sequence[Timed], wires: Wires, centre: CollectiveParameters
) -> dict[str, Correction]:
    """What the law leaves of what was timed; of other operations, what it leaves of those that send alike,
    where messages are long: what short ones take beside their steps, each operation does in its own way.
    """
    found = {}
    for operation in OPERATIONS:
        mine = alike(timed, operation)
        if mine:
            share = 1.0 if mine[0].operation == operation else _LONG
            found[operation] = _correction(
                mine, np.stack([share * log_factor(each, wires, centre) for each in mine])
            )
    return found


def drawn_tables(
    timed: Sequence[Timed], wires: Wires, drawn: CollectiveParameters, *, num_draws: int
) -> dict[str, Correction]:
    """The same for each draw, and by how much what was not timed may be off.

    drawn: numbers of shape (n_draws, 1). What was timed is as sure as its repetitions, whatever the law.
    """
    own, other, octave = np.random.default_rng(_SEED).standard_normal((3, num_draws, 1))
    far = OCTAVE_LOG_SD * octave[:, 0]
    found = {}
    for operation in OPERATIONS:
        mine = alike(timed, operation)
        has_own = bool(mine) and mine[0].operation == operation
        share = 1.0 if has_own else _LONG
        unlike = 0.0 if has_own else OTHER_LOG_SD * other
        if mine:
            factors = [share * log_factor(each, wires, drawn) + own * each.spread + unlike for each in mine]
        else:
            mine = list(timed)
            factors = [np.broadcast_to(unlike, (num_draws, len(SIZES)))] * len(mine)
        found[operation] = _correction(mine, np.stack(factors, axis=1), far)
    return found


def _correction(timed: Sequence[Timed], factors: Numbers, far: Numbers | float = 0.0) -> Correction:
    return Correction(
        log_factor=factors,
        log_inside=np.log2([float(each.group.ranks_per_node) for each in timed]),
        log_nodes=np.log2([float(each.group.num_nodes) for each in timed]),
        log_octave=far,
    )


def of_draw(table: Correction, draw: int) -> Correction:
    """The table of one draw."""
    return replace(
        table, log_factor=table.log_factor[draw], log_octave=float(np.asarray(table.log_octave)[draw])
    )


def log_factor(timed: Timed, wires: Wires, parameters: CollectiveParameters) -> Numbers:
    """Log(measured / modelled) at SIZES: (n_sizes,), or (n_draws, n_sizes) for parameters of so many draws.

    Beyond the sizes timed the first and last factor hold where the messages there are all latency, or all
    wire; else they fade, as what one says of the other is little.
    """
    timer, sizes = OPERATIONS[timed.operation], timed.payload_bytes
    at_ends = np.log(timed.seconds[[0, -1]] / timer(sizes[[0, -1]], timed.group, wires, parameters))
    between_s = np.interp(SIZES, sizes, timed.seconds)
    inside = np.log(between_s / timer(SIZES, timed.group, wires, parameters))
    octaves = np.arange(len(SIZES)) / STEPS
    below, above = np.log2(sizes[0]) - octaves, octaves - np.log2(sizes[-1])
    first = 1.0 if sizes[0] <= SMALL_BYTES else np.exp(-np.maximum(below, 0.0) / OCTAVES)
    last = 1.0 if sizes[-1] >= LARGE_BYTES else np.exp(-np.maximum(above, 0.0) / OCTAVES)
    return np.asarray(
        np.where(below > 0, at_ends[..., :1] * first, np.where(above > 0, at_ends[..., 1:] * last, inside))
    )
