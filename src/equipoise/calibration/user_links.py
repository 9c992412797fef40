"""A user's timed collectives as the links of a plan: they take the place of the catalogue's figures."""

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

# What the law errs by, as a standard deviation of the logarithm: an octave of ranks or nodes away, and for
# another operation on the same links (docs/experiments/0005-collectives.md: with these, 90 % ranges held 96 %
# of all-reduces over groups that were not timed).
OCTAVE_LOG_SD = 0.1
OTHER_LOG_SD = 0.1
_LINK_TABLES_SEED = 4
# How long messages of each of SIZES are: 0 where they are all latency, 1 where all wire.
_LONG = np.clip(np.log(SIZES / SMALL_BYTES) / np.log(LARGE_BYTES / SMALL_BYTES), 0.0, 1.0)
# Operations with similar traffic, the most similar first.
FAMILIES = (("all_gather", "reduce_scatter"), RINGS, ("all_to_all", "send"))


def timed_like(timed: Sequence[TimedOperation], operation: str) -> list[TimedOperation]:
    """What was timed of an operation; else of those with similar traffic."""
    for names in ((operation,), *(family for family in FAMILIES if operation in family)):
        found = [each for each in timed if each.operation in names]
        if found:
            return found
    return []


def centre_tables(
    timed: Sequence[TimedOperation], wires: Wires, centre: CollectiveParameters
) -> dict[str, Correction]:
    """What the law leaves of what was timed; of other operations, what it leaves of those with similar
    traffic, where messages are long: what short ones take above their steps differs by operation.
    """
    found = {}
    for operation in OPERATIONS:
        mine = timed_like(timed, operation)
        if mine:
            share = 1.0 if mine[0].operation == operation else _LONG
            found[operation] = _correction(
                mine, np.stack([share * log_factor(each, wires, centre) for each in mine])
            )
    return found


def drawn_tables(
    timed: Sequence[TimedOperation], wires: Wires, drawn: CollectiveParameters, *, num_draws: int
) -> dict[str, Correction]:
    """The same for each draw, and by how much what was not timed may be off.

    drawn: numbers of shape (n_draws, 1). What was timed is as sure as its repetitions, whatever the law.
    """
    repeated, other, octave = np.random.default_rng(_LINK_TABLES_SEED).standard_normal((3, num_draws, 1))
    far = OCTAVE_LOG_SD * octave[:, 0]
    found = {}
    for operation in OPERATIONS:
        mine = timed_like(timed, operation)
        is_timed = bool(mine) and mine[0].operation == operation
        share = 1.0 if is_timed else _LONG
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
    """The table of one draw."""
    return replace(
        table, log_factor=table.log_factor[draw], log_octave=float(np.asarray(table.log_octave)[draw])
    )


def log_factor(timed: TimedOperation, wires: Wires, parameters: CollectiveParameters) -> Numbers:
    """Log(measured / modelled) at SIZES: (n_sizes,), or (n_draws, n_sizes) for parameters of so many draws.

    Beyond the sizes timed the first and last factor hold where the messages there are all latency, or all
    wire; else they fade, as sizes far apart have little in common.
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
    """One operation over one group as it was timed, and as the model had it before.

    num_ranks, num_nodes: as the nodes in question hold them. from_bytes, to_bytes: sizes timed. latency_s: of
    a message of from_bytes; None where even that is long. bus_byte_per_s: of one of to_bytes, as nccl-tests
    counts; None where even that is short. usual_latency_s, usual_bus_byte_per_s: by the catalogue's links.
    spread: how far repetitions differ, the standard deviation of the logarithm.
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
    """The collectives of a machine as they were timed.

    parameters, draws: in place of the model's own; each draw as likely as the other. usual_draws: those it
    had before. by_law: operations that were not timed on links that were. inside, between: whether links in a
    node, and between nodes, were. notes: what was not used, or contradicts, one sentence each.
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
        """The cluster, with links as fast as their long messages were timed, over what was expected."""
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
    """A cluster's links by timed collectives; without figures where none of these applies to it.

    start, draws: what is believed of them before, from a calibration.
    Assumes that other groups of a cluster follow the law of the model with OCTAVE_LOG_SD an octave.
    Source: `fitted` for the law; between sizes timed straight lines of time over size (Hockney 1994).
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
    """The draws, with what was fitted drawn anew."""
    deviates = np.random.default_rng(_USER_LINKS_SEED).standard_normal((len(draws), len(found.names)))
    logs = found.log_values + deviates @ covariance_root(found.log_covariance)
    limits = {each.name: math.inf if each.name in _RATES else each.largest for each in COLLECTIVE_PRIORS}
    most = [limits[name] for name in found.names]
    return [
        replace(each, measured=None, **dict(zip(found.names, values, strict=True)))
        for each, values in zip(draws, np.minimum(np.exp(logs), most).tolist(), strict=True)
    ]


# Parameters that the rate of the links scales: fractions of the rate stated, and what is stated in trips on
# it.
_RATES: Mapping[str, tuple[bool, float]] = {
    "intra_fraction": (True, 1.0),
    "switch_fraction": (True, 1.0),
    "local_share": (True, -1.0),
    "inter_fraction": (False, 1.0),
}
# Which links' steps they scale: only short messages determine these.
_LATENCIES = {"intra_latency_scale": True, "inter_latency_scale": False}
# What belongs to the links inside nodes alone, and to those between them alone: the rest is fitted only where
# both were timed, so that one does not change the other.
_IS_INSIDE = {**_LATENCIES, **{name: is_inside for name, (is_inside, _) in _RATES.items()}}


def _priors(
    timed: Sequence[TimedOperation],
    wires: Wires,
    start: CollectiveParameters,
    draws: Sequence[CollectiveParameters],
) -> tuple[Prior, ...]:
    """The priors of the fit: the calibration, on links of the rate that the longest messages show.

    A link of a tenth of its stated rate is another link, not a bad one of its kind: so the rates are found
    first, and priors of shares of them hold of what was found.
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
    """Whether short messages of what the law knows the steps of were timed on such links."""
    return any(
        each.is_inside == inside and each.operation in RINGS and each.payload_bytes[0] <= SMALL_BYTES
        for each in timed
    )


def _rate_scale(
    timed: Sequence[TimedOperation], wires: Wires, start: CollectiveParameters, *, inside: bool
) -> float:
    """The rate of links over what is stated, as the longest messages show it; 1 where none is long."""
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


# What was timed is as the catalogue has it within this factor; beyond, the two contradict.
LIKE_FACTOR = 1.5
_MOST_FIGURES = 6
_MOST_FILES = 2


def link_words(timed: UserLinks, nodes: Cluster) -> Iterator[str]:
    """Sentences, from what was timed to what is still of the catalogue; timed.notes has what was not used."""
    for each in timed.figures[:_MOST_FIGURES]:
        yield figure_words(each)
    if len(timed.figures) > _MOST_FIGURES:
        yield f"{len(timed.figures) - _MOST_FIGURES} more were timed: --json has them."
    for each in timed.figures[:_MOST_FIGURES]:
        yield from _contradiction(each)
    yield from _rest(timed, nodes)


def figure_words(each: LinkFigure) -> str:
    """One operation over one group, as it was timed."""
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
    """What to check where the timing contradicts the catalogue."""
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


def _rest(timed: UserLinks, nodes: Cluster) -> Iterator[str]:
    """What follows by the law, and what nothing was timed on."""
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
