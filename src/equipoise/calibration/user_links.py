"""Link parameters from a user's timed collectives, which replace the catalogue's figures in a plan."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.collectives import bus_fraction
from equipoise.calibration.collective_verdicts import LARGE_BYTES, RINGS, SMALL_BYTES
from equipoise.calibration.user_collectives import TimedCollectives, TimedOperation, timed_operations
from equipoise.files import file_names
from equipoise.notes import Note
from equipoise.perfmodel.collectives import OPERATIONS, Fitted, fitted
from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.machine import Wires, machine
from equipoise.perfmodel.parameters import (
    COLLECTIVE_PRIORS,
    OCTAVES,
    SIZES,
    STEPS,
    CollectiveParameters,
    Correction,
    Prior,
)
from equipoise.spec.cluster import Cluster
from equipoise.stats import covariance_root
from equipoise.units import MICROSECOND_S, format_count, format_percent, format_si

# Errors of the law as standard deviations of the logarithm: per octave of ranks or nodes away from the timed
# group, and for another operation on the same links (docs/experiments/0005-collectives.md: with these, 90 %
# ranges covered 96 % of all-reduces over groups that were not timed).
OCTAVE_LOG_SD = 0.1
OTHER_LOG_SD = 0.1
_LINK_TABLES_SEED = 4
# For each of SIZES, 0 if messages are latency-bound, 1 if bandwidth-bound, and between these in between.
_BANDWIDTH_BOUND = np.clip(np.log(SIZES / SMALL_BYTES) / np.log(LARGE_BYTES / SMALL_BYTES), 0.0, 1.0)
# Operations with similar traffic, the most similar first.
FAMILIES = (("all_gather", "reduce_scatter"), RINGS, ("all_to_all", "send"))


def timed_like(timed: Sequence[TimedOperation], operation: str) -> list[TimedOperation]:
    """The timings of an operation; if there are none, those of operations with similar traffic."""
    for names in ((operation,), *(family for family in FAMILIES if operation in family)):
        found = [each for each in timed if each.operation in names]
        if found:
            return found
    return []


def centre_tables(
    timed: Sequence[TimedOperation], wires: Wires, centre: CollectiveParameters
) -> dict[str, Correction]:
    """The residuals of the law by operation, as corrections.

    An operation that was not timed gets the residuals of operations with similar traffic, but only for long
    messages, because the overhead of short ones differs by operation.
    """
    found = {}
    for operation in OPERATIONS:
        mine = timed_like(timed, operation)
        if mine:
            share = 1.0 if mine[0].operation == operation else _BANDWIDTH_BOUND
            found[operation] = _correction(
                mine, np.stack([share * log_factor(each, wires, centre) for each in mine])
            )
    return found


def drawn_tables(
    timed: Sequence[TimedOperation], wires: Wires, drawn: CollectiveParameters, *, num_draws: int
) -> dict[str, Correction]:
    """As `centre_tables`, for each draw, with the errors expected for operations and groups not timed.

    drawn: parameters of shape (n_draws, 1). For timed operations, only the spread of repetitions is added.
    """
    repeated, other, octave = np.random.default_rng(_LINK_TABLES_SEED).standard_normal((3, num_draws, 1))
    far = OCTAVE_LOG_SD * octave[:, 0]
    found = {}
    for operation in OPERATIONS:
        mine = timed_like(timed, operation)
        is_timed = bool(mine) and mine[0].operation == operation
        share = 1.0 if is_timed else _BANDWIDTH_BOUND
        unlike = 0.0 if is_timed else OTHER_LOG_SD * other
        if mine:
            factors = [
                share * log_factor(each, wires, drawn) + repeated * each.spread + unlike for each in mine
            ]
        else:
            mine = list(timed)
            factors = [np.broadcast_to(unlike, (num_draws, len(SIZES)))] * len(mine)
        found[operation] = _correction(mine, np.stack(factors, axis=1), far)
    return found


def _correction(timed: Sequence[TimedOperation], factors: Numbers, far: Numbers | float = 0.0) -> Correction:
    return Correction(
        log_factor=factors,
        log_inside=np.log2([float(each.group.ranks_per_node) for each in timed]),
        log_nodes=np.log2([float(each.group.num_nodes) for each in timed]),
        log_octave=far,
    )


def of_draw(table: Correction, draw: int) -> Correction:
    """The correction table of one draw."""
    return replace(
        table, log_factor=table.log_factor[draw], log_octave=float(np.asarray(table.log_octave)[draw])
    )


def log_factor(timed: TimedOperation, wires: Wires, parameters: CollectiveParameters) -> Numbers:
    """Log(measured / modelled) at SIZES: (n_sizes,), or (n_draws, n_sizes) for stacked parameters.

    Beyond the timed sizes, the first factor is kept if its size is latency-bound, and the last if its size is
    bandwidth-bound; otherwise they decay with distance, as distant sizes have little in common.
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


_USER_LINKS_SEED = 3


class LinkFigure(Struct, frozen=True, kw_only=True):
    """One operation over one group, as timed and as the model predicted before.

    num_ranks, num_nodes: on the nodes of the plan. from_bytes, to_bytes: smallest and largest size.
    latency_s: time of a message of from_bytes; None unless that is latency-bound. bus_byte_per_s: busbw at
    to_bytes, as nccl-tests counts; None unless that is bandwidth-bound. usual_latency_s,
    usual_bus_byte_per_s: with the catalogue's links. spread: standard deviation of log time of repetitions.
    """

    files: tuple[str, ...]
    operation: str
    num_ranks: int
    num_nodes: int
    from_bytes: int
    to_bytes: int
    latency_s: float | None
    bus_byte_per_s: float | None
    usual_latency_s: float | None
    usual_bus_byte_per_s: float | None
    spread: float


class UserLinks(Struct, frozen=True, kw_only=True):
    """The collectives of a machine, calibrated to its timings.

    parameters, draws: replace the model's own; draws are equally likely. usual_draws: the model's own draws.
    by_law: operations that were not timed, but whose links were. inside, between: whether links inside nodes
    and between nodes were timed. notes: on timings that were not used or are contradictory.
    """

    parameters: CollectiveParameters
    draws: tuple[CollectiveParameters, ...]
    usual_draws: tuple[CollectiveParameters, ...]
    notes: tuple[Note, ...]
    figures: tuple[LinkFigure, ...] = ()
    by_law: tuple[str, ...] = ()
    inside: bool = False
    between: bool = False

    def on(self, nodes: Cluster) -> Cluster:
        """The cluster, with link rates scaled by the timed over the expected rate of long messages."""
        intra, inter = (self._ratio(inside=inside) for inside in (True, False))
        shared = nodes.shared_host_byte_per_s
        return replace(
            nodes,
            intra=replace(nodes.intra, byte_per_s=intra * nodes.intra.byte_per_s),
            inter=replace(nodes.inter, byte_per_s=inter * nodes.inter.byte_per_s),
            shared_host_byte_per_s=None if shared is None else intra * shared,
        )

    def _ratio(self, *, inside: bool) -> float:
        ratios = [
            each.bus_byte_per_s / each.usual_bus_byte_per_s
            for each in self.figures
            if (each.num_nodes <= 1) == inside and each.bus_byte_per_s and each.usual_bus_byte_per_s
        ]
        return float(np.median(ratios)) if ratios else 1.0


def user_links(
    given: TimedCollectives,
    cluster: Cluster,
    start: CollectiveParameters,
    draws: Sequence[CollectiveParameters],
) -> UserLinks:
    """A cluster's links, fitted to timed collectives; without figures if no timing applies to the cluster.

    start, draws: prior parameters, from a calibration.
    Assumes that other groups of the cluster follow the law of the model with OCTAVE_LOG_SD per octave.
    Source: `fitted` for the law; linear interpolation of time over size between timed sizes (Hockney 1994).
    """
    timed, notes = timed_operations(given, cluster)
    if not timed:
        return UserLinks(parameters=start, draws=tuple(draws), usual_draws=tuple(draws), notes=notes)
    most = max(run.num_ranks for each in timed for run in each.runs)
    wires = machine(replace(cluster, num_accelerators=most)).wires
    plain = replace(start, measured=None)
    found = fitted(
        tuple(points for each in timed if (points := each.points()) is not None),
        wires,
        priors=_priors(timed, wires, plain, draws),
        start=plain,
    )
    drawn = _drawn(found, draws)
    columns: dict[str, Any] = {
        each.name: np.array([[float(getattr(one, each.name))] for one in drawn]) for each in COLLECTIVE_PRIORS
    }
    tables = drawn_tables(timed, wires, CollectiveParameters(**columns), num_draws=len(draws))
    return UserLinks(
        parameters=replace(found.parameters, measured=centre_tables(timed, wires, found.parameters)),
        draws=tuple(
            replace(each, measured={name: of_draw(table, at) for name, table in tables.items()})
            for at, each in enumerate(drawn)
        ),
        usual_draws=tuple(draws),
        figures=tuple(_figure(each, wires, plain) for each in timed),
        by_law=tuple(name for name in OPERATIONS if name not in {each.operation for each in timed}),
        inside=any(each.is_inside for each in timed),
        between=any(not each.is_inside for each in timed),
        notes=notes,
    )


def _drawn(found: Fitted, draws: Sequence[CollectiveParameters]) -> list[CollectiveParameters]:
    """The draws, with the fitted parameters redrawn from the fit."""
    deviates = np.random.default_rng(_USER_LINKS_SEED).standard_normal((len(draws), len(found.names)))
    logs = found.log_values + deviates @ covariance_root(found.log_covariance)
    limits = {each.name: math.inf if each.name in _RATES else each.largest for each in COLLECTIVE_PRIORS}
    most = [limits[name] for name in found.names]
    return [
        replace(each, measured=None, **dict(zip(found.names, values, strict=True)))
        for each, values in zip(draws, np.minimum(np.exp(logs), most).tolist(), strict=True)
    ]


# Parameters that scale with the rate of the links, by whether they are inside nodes, and the power: fractions
# of the stated rate, and quantities stated in trips on the link.
_RATES: Mapping[str, tuple[bool, float]] = {
    "intra_fraction": (True, 1.0),
    "switch_fraction": (True, 1.0),
    "local_share": (True, -1.0),
    "inter_fraction": (False, 1.0),
}
# Parameters that scale the latency of steps, by whether the links are inside nodes. Only short messages
# determine them.
_LATENCIES = {"intra_latency_scale": True, "inter_latency_scale": False}
# Parameters of links inside nodes only, or between nodes only. Other parameters are fitted only if both kinds
# of links were timed, so that one does not change the other.
_IS_INSIDE = {**_LATENCIES, **{name: is_inside for name, (is_inside, _) in _RATES.items()}}


def _priors(
    timed: Sequence[TimedOperation],
    wires: Wires,
    start: CollectiveParameters,
    draws: Sequence[CollectiveParameters],
) -> tuple[Prior, ...]:
    """The priors of the fit: the calibration, with rates scaled to those of the longest messages.

    A link at a tenth of its stated rate is a different link, not a bad one of its kind. So the rates are
    estimated first, and priors of fractions of a rate apply to the estimates.
    """
    scales = {inside: _rate_scale(timed, wires, start, inside=inside) for inside in (True, False)}
    kinds = {each.is_inside for each in timed}
    found = []
    for prior in COLLECTIVE_PRIORS:
        if len(kinds) == 1 and _IS_INSIDE.get(prior.name) not in kinds:
            continue
        if prior.name in _LATENCIES and not _has_short(timed, inside=_LATENCIES[prior.name]):
            continue
        value = float(getattr(start, prior.name))
        logs = np.log([float(getattr(each, prior.name)) for each in draws])
        log_sd = max(float(np.sqrt(np.mean((logs - math.log(value)) ** 2))), prior.log_sd / 4)
        if prior.name in _RATES:
            inside, power = _RATES[prior.name]
            changed = replace(prior, median=value * scales[inside] ** power, largest=math.inf)
        else:
            changed = replace(prior, median=min(value, prior.largest))
        found.append(replace(changed, log_sd=log_sd))
    return tuple(found)


def _has_short(timed: Sequence[TimedOperation], *, inside: bool) -> bool:
    """Whether short messages of operations in RINGS were timed on the links inside (or between) nodes."""
    return any(
        each.is_inside == inside and each.operation in RINGS and each.payload_bytes[0] <= SMALL_BYTES
        for each in timed
    )


def _rate_scale(
    timed: Sequence[TimedOperation], wires: Wires, start: CollectiveParameters, *, inside: bool
) -> float:
    """The rate of links over the stated rate, from the longest messages; 1 if none is bandwidth-bound."""
    ratios = []
    for each in timed:
        longest = float(each.payload_bytes[-1])
        if each.is_inside == inside and longest >= LARGE_BYTES:
            modelled_s = float(OPERATIONS[each.operation](longest, each.group, wires, start))
            ratios.append(modelled_s / float(each.seconds[-1]))
    return float(np.median(ratios)) if ratios else 1.0


def _figure(timed: TimedOperation, wires: Wires, start: CollectiveParameters) -> LinkFigure:
    smallest, largest = int(timed.payload_bytes[0]), int(timed.payload_bytes[-1])
    ranks = round(float(timed.group.num_ranks))
    usual_s = [
        float(OPERATIONS[timed.operation](float(size), timed.group, wires, start))
        for size in (smallest, largest)
    ]
    moved = largest * bus_fraction(timed.operation, ranks)
    short, long = smallest <= SMALL_BYTES, largest >= LARGE_BYTES
    return LinkFigure(
        files=tuple(dict.fromkeys(each.file for each in timed.runs)),
        operation=timed.operation,
        num_ranks=ranks,
        num_nodes=round(float(timed.group.num_nodes)),
        from_bytes=smallest,
        to_bytes=largest,
        latency_s=float(timed.seconds[0]) if short else None,
        bus_byte_per_s=moved / float(timed.seconds[-1]) if long else None,
        usual_latency_s=usual_s[0] if short else None,
        usual_bus_byte_per_s=moved / usual_s[1] if long else None,
        spread=timed.spread,
    )


# A timing agrees with the catalogue within this factor; beyond it, the two contradict each other.
LIKE_FACTOR = 1.5
_MOST_FIGURES = 6
_MOST_FILES = 2


def link_words(timed: UserLinks, nodes: Cluster) -> Iterator[str]:
    """Sentences on what was timed and what is still from the catalogue; timed.notes has what was not used."""
    for each in timed.figures[:_MOST_FIGURES]:
        yield figure_words(each)
    if len(timed.figures) > _MOST_FIGURES:
        yield f"{len(timed.figures) - _MOST_FIGURES} more were timed: --json has them."
    for each in timed.figures[:_MOST_FIGURES]:
        yield from _contradiction(each)
    yield from _untimed_words(timed, nodes)


def figure_words(each: LinkFigure) -> str:
    """Text on the timing of one operation over one group."""
    figures, usual = [], []
    if each.latency_s is not None and each.usual_latency_s is not None:
        figures.append(f"short messages take {_micro(each.latency_s)}")
        usual.append(_micro(each.usual_latency_s))
    if each.bus_byte_per_s is not None and each.usual_bus_byte_per_s is not None:
        figures.append(f"long ones reach {format_si(each.bus_byte_per_s, 'B/s')} bus bandwidth")
        usual.append(format_si(each.usual_bus_byte_per_s, "B/s"))
    if not figures:
        figures = [f"{format_si(float(each.from_bytes), 'B')} to {format_si(float(each.to_bytes), 'B')} only"]
    without = f"; the model without it: {' and '.join(usual)}" if usual else ""
    return (
        f"Timed links, {_group(each)} ({file_names(each.files, _MOST_FILES)}): {', '.join(figures)}{without}."
    )


def _contradiction(each: LinkFigure) -> Iterator[str]:
    """What to check if the timing contradicts the catalogue."""
    if each.bus_byte_per_s is None or each.usual_bus_byte_per_s is None:
        return
    ratio = each.bus_byte_per_s / each.usual_bus_byte_per_s
    if 1 / LIKE_FACTOR <= ratio <= LIKE_FACTOR:
        return
    times = f"{ratio:.2g} times" if ratio > 1 else f"{ratio:.2g} of"
    yield (
        f"The timing contradicts the catalogue: {_group(each)} reaches {times} its value. The "
        f"timing is used; `equipoise collectives {each.files[0].rpartition('/')[2]}` shows whether "
        "it is normal."
    )


def _untimed_words(timed: UserLinks, nodes: Cluster) -> Iterator[str]:
    """Which operations follow from the law, and which links were not timed."""
    if not timed.figures:
        yield "No link was timed: all values come from the catalogue."
        return
    others = f"{', '.join(timed.by_law)} and " if timed.by_law else ""
    yield (
        f"By the law fitted to these: {others}groups of other sizes, with "
        f"{format_percent(OCTAVE_LOG_SD)} more uncertainty per doubling."
    )
    if not timed.inside:
        yield f"From the catalogue: links of an accelerator inside a node, {nodes.intra.words}."
    if not timed.between and nodes.num_accelerators > nodes.node_size:
        yield f"From the catalogue: links of an accelerator between nodes, {nodes.inter.words}."


def _group(each: LinkFigure) -> str:
    where = "in a node" if each.num_nodes <= 1 else f"on {format_count(each.num_nodes)} nodes"
    return f"{each.operation} of {format_count(each.num_ranks)} {where}"


def _micro(seconds: float) -> str:
    return f"{seconds / MICROSECOND_S:.3g} µs"
