"""Time of a collective from payload, group and links, and fits of that model to measured collectives.

Arguments are floats or arrays that broadcast. A search evaluates these functions for millions of strategies.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import DataError, EvidenceError, FitError
from equipoise.perfmodel.load import Floats, Numbers
from equipoise.perfmodel.machine import Group, Wires
from equipoise.perfmodel.parameters import COLLECTIVE_PRIORS, OCTAVES, CollectiveParameters, Prior
from equipoise.units import plural

Timer: TypeAlias = Callable[[Floats, Group, Wires, CollectiveParameters], Floats]

# Time of a step of a tree over that of a ring. A tree step moves a whole chunk: 28 us inside and 50 us
# between nodes, against 3.4 and 14 us of a ring step, 8.2 and 3.6 times as long (NCCL src/graph/tuning.cc;
# aws-ofi-nccl include/nccl_ofi_tuner.h).
_TREE_STEP = 5.0
_MIN_SIZES = 3
# 0.05: log deviation between repetitions of one collective on one machine.
NOISE_LOG_SD = 0.05
# Standard deviation of the fitted model's residuals, whose correlation length is OCTAVES. Results hardly
# change from 0.1 to 0.15 (docs/experiments/0005-collectives.md).
_RESIDUAL_LOG_SD = 0.1


class _Route(Struct, frozen=True, kw_only=True):
    """The group, links and model parameters of a collective."""

    group: Group
    wires: Wires
    parameters: CollectiveParameters

    @property
    def intra_byte_per_s(self) -> Floats:
        """Rate of the slowest link inside a node that a ring, or a pair, uses."""
        return self.wires.intra.byte_per_s / self.group.intra_slowdown

    @property
    def inter_byte_s(self) -> Floats:
        """A rank's seconds per byte over its share of the network cards; 0 for groups inside a node."""
        rate = self.parameters.inter_fraction * self.wires.inter.byte_per_s
        return np.greater(self.group.num_nodes, 1) * (self.group.num_sharing / rate)

    def together(self, intra: Floats, inter: Floats) -> Floats:
        """Time of two pipelined phases: the longer, plus the part of the shorter that it does not hide."""
        return np.maximum(intra, inter) + self.parameters.serial_share * np.minimum(intra, inter)

    def steps_s(self, intra_steps: Floats, inter_steps: Floats) -> Floats:
        """Latency in seconds of these numbers of steps inside and between nodes."""
        return intra_steps * (
            self.parameters.intra_latency_scale * self.wires.intra.latency_s
        ) + inter_steps * (self.parameters.inter_latency_scale * self.wires.inter.latency_s)

    def ring_byte_s(self, traffic: Floats, local: float) -> Floats:
        """Transfer seconds per payload byte around a ring.

        traffic: bytes that each rank passes on per payload byte. local: bytes that it moves in its own
        memory.
        """
        rate = self.intra_byte_per_s
        intra_s = (
            traffic / (self.parameters.intra_fraction * rate) + local * self.parameters.local_share / rate
        )
        # A node has one ring per network card, so each card carries a part of the traffic.
        inter_s = traffic / self.group.ranks_per_node * self.inter_byte_s
        return self.together(np.greater(self.group.ranks_per_node, 1) * intra_s, inter_s)

    def tree_byte_s(self) -> Floats:
        """Transfer seconds per payload byte of an all-reduce by two trees of half the payload each."""
        inside, rate, parameters = self.group.ranks_per_node, self.intra_byte_per_s, self.parameters
        chain_s = (2 / parameters.intra_fraction + parameters.local_share) / rate
        # With a reducing switch, a rank sends its payload once and its share of the sums once, and receives
        # both.
        switch_s = (inside + 1) / inside / (parameters.switch_fraction * rate)
        intra_s = np.where(np.greater(self.wires.switch_reduces, 0), np.minimum(chain_s, switch_s), chain_s)
        # Between two nodes each card sends the sums once; between more, twice: down to two nodes, or up and
        # down.
        inter_s = np.minimum(self.group.num_nodes - 1, 2) / inside * self.inter_byte_s
        return self.together(np.greater(inside, 1) * intra_s, inter_s)

    def seconds(
        self,
        operation: str,
        payload_bytes: Floats,
        byte_s: Floats,
        steps_s: Floats,
        *,
        quick_steps_s: Floats | None = None,
    ) -> Floats:
        """Seconds of an operation by the faster of two protocols, corrected by measurements of this machine.

        byte_s: transfer seconds per byte. steps_s: latency of all steps; quick_steps_s: that of the
        low-latency protocol, where it differs. The ordinary protocol splits a long message into chunks and
        pays for filling the pipeline once; a message shorter than the fill is not split and takes twice its
        transfer time. The low-latency protocol trades bandwidth for latency, where the network supports it.
        For speed, terms that do not depend on the payload have the shape of the groups.
        """
        group, parameters = self.group, self.parameters
        launch_s = np.greater(group.num_ranks, 1) * parameters.launch_s
        carried = np.logical_or(np.less_equal(group.num_nodes, 1), np.greater(self.wires.keeps_order, 0))
        quick_s = steps_s if quick_steps_s is None else quick_steps_s
        quick_start_s = np.where(carried, launch_s + parameters.quick_step * quick_s, np.inf)
        wire_s = payload_bytes * byte_s
        bulk_s = wire_s * (1.0 + parameters.fill_s / (wire_s + parameters.fill_s)) + (launch_s + steps_s)
        seconds = np.minimum(bulk_s, wire_s / parameters.quick_rate + quick_start_s)
        known = None if parameters.measured is None else parameters.measured.get(operation)
        return seconds if known is None else seconds * np.exp(known.at(payload_bytes, group))

    def ring_s(self, operation: str, payload_bytes: Floats, traffic: Floats) -> Floats:
        """Seconds of one pass around a ring of all ranks; each link carries `traffic` of every byte."""
        ranks, nodes = self.group.num_ranks, self.group.num_nodes
        steps_s = self.steps_s(ranks - nodes, nodes - 1)
        return self.seconds(operation, payload_bytes, self.ring_byte_s(traffic, 0.5), steps_s)


def all_reduce_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of an all-reduce of `payload_bytes` per rank, by a ring or by trees.

    Returns 0.0 for one rank.
    Assumes idle links, equal ranks, and network cards used equally by all ranks of a node.
    Source: Patarasuk and Yuan 2009 (ring); Sanders, Speck and Träff 2009 (two trees); steps as counted by
    NCCL (src/graph/tuning.cc); a reducing switch moves (p + 1) / p payloads in each direction.

    >>> from equipoise.perfmodel.machine import Wire
    >>> wire = Wire(byte_per_s=100e9, latency_s=0.0)
    >>> ideal = CollectiveParameters(launch_s=0.0, intra_fraction=1.0, local_share=0.0, fill_s=1e-12)
    >>> pair = Group(ranks_per_node=2, num_nodes=1)
    >>> round(float(all_reduce_s(1e9, pair, Wires(intra=wire, inter=wire), ideal)), 9)
    0.01
    """
    ranks, nodes = group.num_ranks, group.num_nodes
    route = _Route(group=group, wires=wires, parameters=parameters)
    byte_s = np.minimum(route.ring_byte_s(2 * (ranks - 1) / ranks, 1.0), route.tree_byte_s())
    ring_s = route.steps_s(2 * (ranks - nodes), 2 * (nodes - 1))
    tree_s = route.steps_s(2 * (group.ranks_per_node - 1), 2 * np.ceil(np.log2(nodes)))
    steps_s = np.minimum(ring_s, _TREE_STEP * tree_s)
    return route.seconds("all_reduce", payload_bytes, byte_s, steps_s, quick_steps_s=tree_s)


def all_gather_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of an all-gather of `payload_bytes`, of which each rank holds an equal part.

    payload_bytes: held by a rank afterwards. Returns 0.0 for one rank.
    Assumes a ring of all ranks, with a rail for each network card.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    passed_on = (group.num_ranks - 1) / group.num_ranks
    route = _Route(group=group, wires=wires, parameters=parameters)
    return route.ring_s("all_gather", payload_bytes, passed_on)


def reduce_scatter_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of a reduce-scatter of `payload_bytes` per rank, each keeping an equal part of the sum.

    payload_bytes: held by a rank before. Returns 0.0 for one rank.
    Assumes a ring of all ranks, with a rail for each network card: the reverse of an all-gather.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    passed_on = (group.num_ranks - 1) / group.num_ranks
    route = _Route(group=group, wires=wires, parameters=parameters)
    return route.ring_s("reduce_scatter", payload_bytes, passed_on)


def broadcast_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of a broadcast of `payload_bytes` from one rank to all; 0.0 for one rank.

    Assumes a pipelined chain of all ranks, with a rail for each network card.
    Source: Hockney 1994 for a step; every link carries the payload once.
    """
    passed_on = np.greater(group.num_ranks, 1) * 1.0
    route = _Route(group=group, wires=wires, parameters=parameters)
    return route.ring_s("broadcast", payload_bytes, passed_on)


def all_to_all_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of an all-to-all: every rank sends an equal part of `payload_bytes` to every rank and itself.

    payload_bytes: held by a rank before and after. Returns 0.0 for one rank.
    Assumes equal parts, and one combined message per destination node.
    Source: each rank sends (g - 1) / p of its payload inside its node of g ranks, (p - g) / p to other nodes.
    """
    route = _Route(group=group, wires=wires, parameters=parameters)
    ranks, inside = group.num_ranks, group.ranks_per_node
    intra_s = (inside - 1) / ranks / (parameters.intra_fraction * route.intra_byte_per_s)
    inter_s = (ranks - inside) / ranks * route.inter_byte_s
    steps_s = route.steps_s(inside - 1, group.num_nodes - 1)
    return route.seconds("all_to_all", payload_bytes, route.together(intra_s, inter_s), steps_s)


def send_s(payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    """Seconds of sending `payload_bytes` to the next rank of a group; between nodes if it spans several.

    group: the whole axis, e.g. all stages of a pipeline. Returns 0.0 for one rank.
    Assumes the slowest pair of neighbours decides: with several nodes, some pair is on different nodes.
    Source: Hockney 1994: latency + bytes / rate.
    """
    route = _Route(group=group, wires=wires, parameters=parameters)
    between = np.greater(group.num_nodes, 1)
    within = np.logical_and(np.greater(group.ranks_per_node, 1), np.logical_not(between))
    intra_s = within / (parameters.intra_fraction * route.intra_byte_per_s)
    steps_s = route.steps_s(within * 1.0, between * 1.0)
    return route.seconds("send", payload_bytes, intra_s + route.inter_byte_s, steps_s)


OPERATIONS: Mapping[str, Timer] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
    "broadcast": broadcast_s,
    "send": send_s,
}


class Timings(Struct, frozen=True, kw_only=True):
    """Measured collectives of one operation, validated by `timings`; every field of shape (n_points,).

    payload_bytes: as defined by the operation's function in this module. log_error: half the width of the
    rounding interval, in logarithms, which is added to a point's noise.
    """

    operation: str
    payload_bytes: Numbers
    ranks_per_node: Numbers
    num_nodes: Numbers
    seconds: Numbers
    log_error: Numbers

    @property
    def group(self) -> Group:
        """The participating ranks, per point."""
        return Group(ranks_per_node=self.ranks_per_node, num_nodes=self.num_nodes)

    def where(self, chosen: NDArray[np.bool_]) -> "Timings":
        """The points at which `chosen`, of shape (n_points,), holds."""
        arrays = {name: getattr(self, name) for name in self.__struct_fields__ if name != "operation"}
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
    """Validated timings from values that broadcast to shape (n_points,).

    Raises DataError for an unknown operation, a value that is not above zero, or incompatible shapes.
    """
    if operation not in OPERATIONS:
        raise DataError(f"operation={operation!r}; expected one of {', '.join(OPERATIONS)}")
    stated = (payload_bytes, seconds, ranks_per_node, num_nodes, log_error)
    try:
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=float)) for each in stated))
    except ValueError as err:
        shapes = [np.shape(each) for each in stated]
        raise DataError(f"timings: arrays of shapes {shapes}; expected one shape (n_points,)") from err
    names = ("payload_bytes", "seconds", "ranks_per_node", "num_nodes", "log_error")
    named = dict(zip(names, arrays, strict=True))
    for name in names[:-1]:
        wrong = ~(np.isfinite(named[name]) & (named[name] > 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"timings: {name}[{row}]={named[name][row]:g}; expected a number above zero")
    return Timings(operation=operation, **named)


def _log_residuals(points: Timings, wires: Wires, parameters: CollectiveParameters) -> Numbers:
    modelled_s = OPERATIONS[points.operation](points.payload_bytes, points.group, wires, parameters)
    return np.asarray(np.log(points.seconds) - np.log(modelled_s))


def _check_evidence(measured: tuple[Timings, ...]) -> None:
    num_sizes = len({float(size) for points in measured for size in points.payload_bytes})
    if num_sizes < _MIN_SIZES:
        raise EvidenceError(
            f"collectives were measured at {num_sizes} sizes; latency and rate need at least {_MIN_SIZES}",
            missing=(f"{plural(_MIN_SIZES - num_sizes, 'more message size')}, from a few KiB to some GiB",),
        )
    if any(np.less_equal(points.group.num_ranks, 1).any() for points in measured):
        raise DataError(
            "timings: a collective over one rank; expected at least two, as one never communicates"
        )


class Fitted(Struct, frozen=True, kw_only=True):
    """The most probable parameters, and the posterior covariance of their logarithms.

    names: the fitted fields, in the order of log_values, (n_names,), and log_covariance.
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
    """The most probable parameters of a machine given its measured collectives, at any number of sizes.

    measured: one or more Timings per operation. wires: the machine's stated links, which parameters scale.
    priors: of the parameters to fit; start: values of the others. Raises FitError if no parameters fit.
    Assumes log errors of NOISE_LOG_SD with heavy tails; parameters without data stay at their priors; the
    posterior is normal near its peak (Gelman et al. 2013, section 4.1).
    Source: least squares on log time with a soft L1 loss and priors (Huber 1964; Gelman et al. 2013).
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
    # The robust loss also down-weights priors far from a parameter. The full prior precision is used here, so
    # that no posterior is wider than its prior.
    jacobian = np.asarray(found.jac)[: -len(priors)]
    return Fitted(
        parameters=parameters(found.x),
        names=names,
        log_values=np.asarray(found.x),
        log_covariance=np.asarray(np.linalg.inv(jacobian.T @ jacobian + np.diag(log_sds**-2.0))),
    )


class Residuals(Struct, frozen=True, kw_only=True):
    """Residuals of one operation's log times, as a weighted sum of one kernel per point.

    log_bytes, log_inside, log_nodes: coordinates of points in octaves; weights: of kernels; all (n_points,).
    """

    log_bytes: Numbers
    log_inside: Numbers
    log_nodes: Numbers
    weights: Numbers

    def at(self, payload_bytes: Numbers, group: Group) -> Numbers:
        """Expected log(measured / modelled) given the points; arguments broadcast."""
        at = _octaves(payload_bytes, group)
        found = np.zeros(np.broadcast_shapes(*(each.shape for each in at)))
        for size, inside, nodes, weight in zip(
            self.log_bytes, self.log_inside, self.log_nodes, self.weights, strict=True
        ):
            found += weight * _kernel(at[0] - size, at[1] - inside, at[2] - nodes)
        return found


def _octaves(payload_bytes: ArrayLike, group: Group) -> tuple[Numbers, Numbers, Numbers]:
    payload, inside, nodes = (
        np.asarray(each, dtype=float) for each in (payload_bytes, group.ranks_per_node, group.num_nodes)
    )
    return np.log2(np.maximum(payload, 1.0)), np.log2(inside), np.log2(nodes)


def _kernel(sizes: Numbers, inside: Numbers, nodes: Numbers) -> Numbers:
    # Matern 3/2: residuals have kinks where the library changes its algorithm.
    far = np.sqrt(3.0 * (sizes**2 + inside**2 + nodes**2)) / OCTAVES
    return np.asarray(_RESIDUAL_LOG_SD**2 * (1.0 + far) * np.exp(-far))


def _residuals(points: Timings, wires: Wires, parameters: CollectiveParameters) -> Residuals:
    sizes, inside, nodes = _octaves(points.payload_bytes, points.group)
    covariance = _kernel(*(each[:, None] - each for each in (sizes, inside, nodes)))
    noise = np.diag(NOISE_LOG_SD**2 + points.log_error**2)
    weights = np.linalg.solve(covariance + noise, _log_residuals(points, wires, parameters))
    return Residuals(
        log_bytes=sizes, log_inside=inside, log_nodes=nodes, weights=np.asarray(weights, dtype=float)
    )


class CollectiveTable(Struct, frozen=True, kw_only=True):
    """Measured collectives of a machine: fitted parameters, and residuals by operation."""

    wires: Wires
    parameters: CollectiveParameters
    residuals: Mapping[str, Residuals]

    def seconds(self, operation: str, payload_bytes: ArrayLike, group: Group) -> Numbers:
        """Seconds of collectives; arguments broadcast. At measured points, close to the measured values.

        Raises DataError for an operation that is not in OPERATIONS.
        Assumes residuals vary smoothly with the logarithms of size and ranks, and vanish within a few
        doublings of measured points, beyond which the model is used alone.
        Source: Gaussian process regression (Rasmussen and Williams 2006, eq. 2.25 and 4.17).
        """
        if operation not in OPERATIONS:
            raise DataError(f"operation={operation!r}; expected one of {', '.join(OPERATIONS)}")
        payload = np.asarray(payload_bytes, dtype=float)
        modelled_s = np.asarray(OPERATIONS[operation](payload, group, self.wires, self.parameters))
        known = self.residuals.get(operation)
        return modelled_s if known is None else modelled_s * np.exp(known.at(payload, group))


def collective_table(measured: tuple[Timings, ...], wires: Wires) -> CollectiveTable:
    """The table of a machine's measured collectives.

    measured: one Timings per operation. wires: as in `fitted`.
    Raises DataError for a repeated operation, EvidenceError for fewer than three sizes; errors as in
    `fitted`.
    """
    operations = [points.operation for points in measured]
    if len(set(operations)) < len(operations):
        raise DataError(f"collective table: operations {operations}; expected each once, its points together")
    _check_evidence(measured)
    parameters = fitted(measured, wires).parameters
    residuals = {points.operation: _residuals(points, wires, parameters) for points in measured}
    return CollectiveTable(wires=wires, parameters=parameters, residuals=residuals)
