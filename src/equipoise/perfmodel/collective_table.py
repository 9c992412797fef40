"""A machine's measured collectives: parameters fitted to them, and what those leave, interpolated.

Arrays in, a record out. The model carries the shape over sizes and ranks; the table adds what it leaves.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from equipoise.errors import DataError, EvidenceError, FitError
from equipoise.perfmodel.collective import (
    Group,
    Wires,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    reduce_scatter_s,
    send_s,
)
from equipoise.perfmodel.collective_parameters import COLLECTIVE_PRIORS, CollectiveParameters
from equipoise.perfmodel.load import Floats

Numbers: TypeAlias = NDArray[np.float64]
Timer: TypeAlias = Callable[[Floats, Group, Wires, CollectiveParameters], Floats]

OPERATIONS: Mapping[str, Timer] = MappingProxyType(
    {
        "all_reduce": all_reduce_s,
        "all_gather": all_gather_s,
        "reduce_scatter": reduce_scatter_s,
        "all_to_all": all_to_all_s,
        "broadcast": broadcast_s,
        "send": send_s,
    }
)

FEWEST_SIZES = 3
# 0.05: what repetitions of one collective on one machine differ by, and no model need follow more closely.
NOISE_LOG_SD = 0.05
# Leftovers of the model at one rank count say something of another up to about twice as many ranks.
KERNEL_OCTAVES = 1.0
# (0.05 / 0.15)^2: the noise of a point over what the model leaves at one, both squared
# (docs/experiments/0005-collectives.md).
KERNEL_NOISE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Measured collectives of one operation; every field of shape (n_points,).

    payload_bytes: as the operation's function in collective.py counts them. log_error: half the width, in
    logarithms, of what rounding leaves open; such a point counts that much less.
    """

    operation: str
    payload_bytes: Numbers
    ranks_per_node: Numbers
    num_nodes: Numbers
    seconds: Numbers
    log_error: Numbers

    def __post_init__(self) -> None:
        """Refuse what is no measurement of a collective."""
        if self.operation not in OPERATIONS:
            raise DataError(f"operation={self.operation!r}; expected one of {', '.join(OPERATIONS)}")
        shapes = {getattr(self, each.name).shape for each in fields(self) if each.name != "operation"}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise DataError(f"timings: arrays of shapes {sorted(shapes)}; expected one shape (n_points,)")
        for name in ("payload_bytes", "ranks_per_node", "num_nodes", "seconds"):
            wrong = ~(np.isfinite(getattr(self, name)) & (getattr(self, name) > 0))
            if wrong.any():
                row = int(np.argmax(wrong))
                raise DataError(
                    f"timings: {name}[{row}]={getattr(self, name)[row]:g}; expected a number above zero"
                )

    @property
    def group(self) -> Group:
        """The ranks that took part, per point."""
        return Group(ranks_per_node=self.ranks_per_node, num_nodes=self.num_nodes)

    def where(self, chosen: NDArray[np.bool_]) -> "Timings":
        """The points at which `chosen`, of shape (n_points,), holds."""
        arrays = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "operation"}
        return replace(self, **{name: values[chosen] for name, values in arrays.items()})


def timings(
    operation: str,
    payload_bytes: ArrayLike,
    seconds: ArrayLike,
    *,
    ranks_per_node: ArrayLike,
    num_nodes: ArrayLike = 1.0,
    log_error: ArrayLike = 0.0,
) -> Timings:
    """Timings from numbers that broadcast to one row of points.

    Raises DataError for an unknown operation, a number that is not above zero, or shapes that do not agree.
    """
    stated = (payload_bytes, seconds, ranks_per_node, num_nodes, log_error)
    try:
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=float)) for each in stated))
    except ValueError as err:
        shapes = [np.shape(each) for each in stated]
        raise DataError(f"timings: arrays of shapes {shapes}; expected one shape (n_points,)") from err
    names = ("payload_bytes", "seconds", "ranks_per_node", "num_nodes", "log_error")
    return Timings(operation=operation, **dict(zip(names, arrays, strict=True)))


def _log_residuals(points: Timings, wires: Wires, parameters: CollectiveParameters) -> Numbers:
    modelled_s = OPERATIONS[points.operation](points.payload_bytes, points.group, wires, parameters)
    return np.asarray(np.log(points.seconds) - np.log(modelled_s))


def _check_evidence(measured: tuple[Timings, ...]) -> None:
    num_sizes = len({float(size) for points in measured for size in points.payload_bytes})
    if num_sizes < FEWEST_SIZES:
        raise EvidenceError(
            f"collectives were measured at {num_sizes} sizes; latency and rate need at least {FEWEST_SIZES}",
            missing=(f"{FEWEST_SIZES - num_sizes} more message sizes, from a few KiB to some GiB",),
        )
    if any(np.less_equal(points.group.num_ranks, 1).any() for points in measured):
        raise DataError("timings: a collective over one rank; expected at least two, as one never talks")


def fit_collectives(measured: tuple[Timings, ...], wires: Wires) -> CollectiveParameters:
    """The most probable parameters of a machine whose collectives took the times measured.

    measured: one Timings per operation, or more. wires: the machine's links as stated, which they scale.
    Raises EvidenceError for fewer than three sizes; FitError if no parameters fit.
    Assumes log errors of NOISE_LOG_SD with heavy tails; what is not measured stays at its prior.
    Source: least squares on log time with a soft L1 loss and priors (Huber 1964; Gelman et al. 2013).
    """
    _check_evidence(measured)
    names = [prior.name for prior in COLLECTIVE_PRIORS]
    medians = np.log([prior.median for prior in COLLECTIVE_PRIORS])
    log_sds = np.array([prior.log_sd for prior in COLLECTIVE_PRIORS])
    largest = np.log([prior.largest for prior in COLLECTIVE_PRIORS])

    def parameters(logs: Numbers) -> CollectiveParameters:
        return CollectiveParameters(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def misfits(logs: Numbers) -> Numbers:
        candidate = parameters(logs)
        data = [
            _log_residuals(points, wires, candidate) / np.hypot(NOISE_LOG_SD, points.log_error)
            for points in measured
        ]
        return np.concatenate([*data, (logs - medians) / log_sds])

    found = least_squares(misfits, medians, bounds=(-np.inf, largest + 1e-9), loss="soft_l1", x_scale=log_sds)
    if not np.isfinite(found.cost):
        raise FitError("collectives: no parameters fit the times measured; check units and sizes")
    return parameters(found.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What the model left at one group of ranks: log(measured / modelled) over log bytes, both (n_sizes,)."""

    ranks_per_node: float
    num_nodes: float
    log_bytes: Numbers
    log_ratio: Numbers


def _leftovers(points: Timings, wires: Wires, parameters: CollectiveParameters) -> Iterator[Leftover]:
    residuals = _log_residuals(points, wires, parameters)
    # A point that rounding leaves wide open says less about the model's error.
    residuals = residuals / (1.0 + (points.log_error / NOISE_LOG_SD) ** 2)
    groups = np.stack([points.ranks_per_node, points.num_nodes])
    for inside, nodes in np.unique(groups, axis=1).T:
        chosen = (points.ranks_per_node == inside) & (points.num_nodes == nodes)
        sizes, where = np.unique(np.log(points.payload_bytes[chosen]), return_inverse=True)
        mean = np.bincount(where, weights=residuals[chosen]) / np.bincount(where)
        yield Leftover(ranks_per_node=inside, num_nodes=nodes, log_bytes=sizes, log_ratio=mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """A machine's collectives as measured: fitted parameters, and per operation what they leave."""

    wires: Wires
    parameters: CollectiveParameters
    leftovers: Mapping[str, tuple[Leftover, ...]]

    def seconds(self, operation: str, payload_bytes: ArrayLike, group: Group) -> Numbers:
        """Seconds of collectives; arguments broadcast. What was measured comes back nearly as it was.

        Raises DataError for an operation that collective.py does not know.
        Assumes that what the model leaves changes steadily with the logarithm of the size, is the same beyond
        the sizes measured, and fades within about a doubling of ranks, or of nodes.
        Source: Gaussian process regression over ranks (Rasmussen and Williams 2006, eq. 2.25).
        """
        if operation not in OPERATIONS:
            raise DataError(f"operation={operation!r}; expected one of {', '.join(OPERATIONS)}")
        payload = np.asarray(payload_bytes, dtype=float)
        modelled_s = OPERATIONS[operation](payload, group, self.wires, self.parameters)
        known = self.leftovers.get(operation, ())
        if not known:
            return np.asarray(modelled_s)
        weights = _weights(known, group)
        log_bytes = np.log(np.maximum(payload, 1.0))
        correction = sum(
            weight * np.interp(log_bytes, each.log_bytes, each.log_ratio)
            for weight, each in zip(weights, known, strict=True)
        )
        return np.asarray(modelled_s * np.exp(correction))


def _kernel(octaves: Numbers) -> Numbers:
    return np.exp(-0.5 * (octaves / KERNEL_OCTAVES) ** 2)


def _weights(known: tuple[Leftover, ...], group: Group) -> list[Numbers]:
    """The share of each measured group's leftover in that of `group`, each of the group's shape."""
    inside = np.log2([each.ranks_per_node for each in known])
    nodes = np.log2([each.num_nodes for each in known])
    near = _kernel(np.hypot(inside[:, None] - inside, nodes[:, None] - nodes))
    solved = np.linalg.inv(near + KERNEL_NOISE * np.eye(len(known)))
    asked = (
        np.log2(np.asarray(group.ranks_per_node, dtype=float)),
        np.log2(np.asarray(group.num_nodes, dtype=float)),
    )
    to_known = [_kernel(np.hypot(asked[0] - x, asked[1] - y)) for x, y in zip(inside, nodes, strict=True)]
    return [sum(row[j] * to_known[j] for j in range(len(known))) for row in solved]


def collective_table(measured: tuple[Timings, ...], wires: Wires) -> CollectiveTable:
    """The table of a machine whose collectives were measured.

    measured, wires: as for `fit_collectives`, of which this raises the errors.
    """
    parameters = fit_collectives(measured, wires)
    leftovers: dict[str, tuple[Leftover, ...]] = {}
    for points in measured:
        found = tuple(_leftovers(points, wires, parameters))
        leftovers[points.operation] = (*leftovers.get(points.operation, ()), *found)
    return CollectiveTable(wires=wires, parameters=parameters, leftovers=MappingProxyType(leftovers))


def held_out(
    measured: tuple[Timings, ...], wires: Wires, *, by: Literal["size", "ranks"]
) -> tuple[Numbers, Numbers]:
    """What a table is wrong by where it was not measured: (log errors, their clusters), both (n_points,).

    by: what is left out at a time and is a cluster: the points of one size, or of one group of ranks.
    Returns log(foretold / measured) of tables that saw all but the cluster, for stats.conformal_half_width.
    Raises EvidenceError if too little is left to fit.
    Assumes each cluster is as unlike the rest as the next unmeasured one will be.
    """
    marks = [
        points.payload_bytes if by == "size" else points.ranks_per_node + 1j * points.num_nodes
        for points in measured
    ]
    kinds, clusters = np.unique(np.concatenate(marks), return_inverse=True)
    errors = [np.zeros_like(points.seconds) for points in measured]
    for kind in kinds:
        kept = tuple(points.where(mark != kind) for points, mark in zip(measured, marks, strict=True))
        table = collective_table(tuple(points for points in kept if points.seconds.size), wires)
        for points, mark, error in zip(measured, marks, errors, strict=True):
            foretold_s = table.seconds(points.operation, points.payload_bytes, points.group)
            error[mark == kind] = np.log(foretold_s / points.seconds)[mark == kind]
    return np.concatenate(errors), clusters.astype(float)
