"""A machine's measured collectives: parameters fitted to them, and what those leave, interpolated.

Arrays in, a record out. The model carries the shape over sizes and ranks; the table adds what it leaves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from equipoise.perfmodel.prior import Prior

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
# What the fitted model leaves at a point, and how far that says something of others: to about four times the
# size or ranks. Results hardly change from 1 to 3 octaves, or to 0.15 (docs/experiments/0005-collectives.md).
LEFTOVER_LOG_SD = 0.1
OCTAVES = 2.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The most probable parameters, and how sure they are: the covariance of their logarithms.

    names: the fields fitted, in the order of log_values, (n_names,), and log_covariance.
    """

    parameters: CollectiveParameters
    names: tuple[str, ...]
    log_values: Numbers
    log_covariance: Numbers


def fitted(
    measured: tuple[Timings, ...],
    wires: Wires,
    *,
    priors: tuple[Prior, ...] = COLLECTIVE_PRIORS,
    start: CollectiveParameters | None = None,
) -> Fitted:
    """The most probable parameters of a machine whose collectives took the times measured, at any number of
    sizes.

    priors: what is believed of those that are fitted; start: the others. Otherwise as `fit_collectives`.
    Assumes that near its peak the posterior is normal (Gelman et al. 2013, section 4.1).
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    names, others = tuple(prior.name for prior in priors), start or CollectiveParameters()
    medians = np.log([prior.median for prior in priors])
    log_sds = np.array([prior.log_sd for prior in priors])
    largest = np.log([prior.largest for prior in priors])

    def parameters(logs: Numbers) -> CollectiveParameters:
        return replace(others, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

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
    jacobian = np.asarray(found.jac)
    return Fitted(
        parameters=parameters(found.x),
        names=names,
        log_values=np.asarray(found.x),
        log_covariance=np.asarray(np.linalg.pinv(jacobian.T @ jacobian)),
    )


def fit_collectives(measured: tuple[Timings, ...], wires: Wires) -> CollectiveParameters:
    """The most probable parameters of a machine whose collectives took the times measured.

    measured: one Timings per operation, or more. wires: the machine's links as stated, which they scale.
    Raises EvidenceError for fewer than three sizes; FitError if no parameters fit.
    Assumes log errors of NOISE_LOG_SD with heavy tails; what is not measured stays at its prior.
    Source: least squares on log time with a soft L1 loss and priors (Huber 1964; Gelman et al. 2013).
    """
    _check_evidence(measured)
    return fitted(measured, wires).parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What the model leaves of one operation's log times, as a sum of one kernel a point.

    log_bytes, log_inside, log_nodes: where points lie, in octaves; weights: of kernels; all (n_points,).
    """

    log_bytes: Numbers
    log_inside: Numbers
    log_nodes: Numbers
    weights: Numbers

    def at(self, payload_bytes: Numbers, group: Group) -> Numbers:
        """Log(measured / modelled) as the points let expect it; arguments broadcast."""
        asked = _octaves(payload_bytes, group)
        found = np.zeros(np.broadcast_shapes(*(each.shape for each in asked)))
        for size, inside, nodes, weight in zip(
            self.log_bytes, self.log_inside, self.log_nodes, self.weights, strict=True
        ):
            found += weight * _kernel(asked[0] - size, asked[1] - inside, asked[2] - nodes)
        return found


def _octaves(payload_bytes: ArrayLike, group: Group) -> tuple[Numbers, Numbers, Numbers]:
    payload, inside, nodes = (
        np.asarray(each, dtype=float) for each in (payload_bytes, group.ranks_per_node, group.num_nodes)
    )
    return np.log2(np.maximum(payload, 1.0)), np.log2(inside), np.log2(nodes)


def _kernel(sizes: Numbers, inside: Numbers, nodes: Numbers) -> Numbers:
    # Matern 3/2: leftovers have kinks where the library changes its algorithm.
    far = np.sqrt(3.0 * (sizes**2 + inside**2 + nodes**2)) / OCTAVES
    return np.asarray(LEFTOVER_LOG_SD**2 * (1.0 + far) * np.exp(-far))


def _leftovers(points: Timings, wires: Wires, parameters: CollectiveParameters) -> Leftovers:
    sizes, inside, nodes = _octaves(points.payload_bytes, points.group)
    likeness = _kernel(*(each[:, None] - each for each in (sizes, inside, nodes)))
    noise = np.diag(NOISE_LOG_SD**2 + points.log_error**2)
    weights = np.asarray(
        np.linalg.solve(likeness + noise, _log_residuals(points, wires, parameters)), dtype=float
    )
    return Leftovers(
        log_bytes=sizes, log_inside=inside, log_nodes=nodes, weights=np.asarray(weights, dtype=float)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTable:
    """A machine's collectives as measured: fitted parameters, and per operation what they leave."""

    wires: Wires
    parameters: CollectiveParameters
    leftovers: Mapping[str, Leftovers]

    def seconds(self, operation: str, payload_bytes: ArrayLike, group: Group) -> Numbers:
        """Seconds of collectives; arguments broadcast. What was measured comes back nearly as it was.

        Raises DataError for an operation that collective.py does not know.
        Assumes that what the model leaves changes steadily with the logarithms of size and ranks, and fades
        within a few doublings of what was measured: beyond, the model stands alone.
        Source: Gaussian process regression (Rasmussen and Williams 2006, eq. 2.25 and 4.17).
        """
        if operation not in OPERATIONS:
            raise DataError(f"operation={operation!r}; expected one of {', '.join(OPERATIONS)}")
        payload = np.asarray(payload_bytes, dtype=float)
        modelled_s = np.asarray(OPERATIONS[operation](payload, group, self.wires, self.parameters))
        known = self.leftovers.get(operation)
        return modelled_s if known is None else modelled_s * np.exp(known.at(payload, group))


def collective_table(measured: tuple[Timings, ...], wires: Wires) -> CollectiveTable:
    """The table of a machine whose collectives were measured.

    measured: one Timings an operation. wires: as for `fit_collectives`, whose errors this raises.
    Raises DataError where an operation comes twice.
    """
    operations = [points.operation for points in measured]
    if len(set(operations)) < len(operations):
        raise DataError(f"collective table: operations {operations}; expected each once, its points together")
    parameters = fit_collectives(measured, wires)
    leftovers = {points.operation: _leftovers(points, wires, parameters) for points in measured}
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
