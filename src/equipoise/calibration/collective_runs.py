"""Timed collectives: latency and bandwidth fitted to each run, and the links that its ranks used.

Time is fitted as a piecewise linear function of size; links and their nominal rates come from the catalogue.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from equipoise.bench.collectives import CollectiveRun
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.intervals import LEVEL, Interval
from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.machine import Group, Wires, machine
from equipoise.spec.catalogue import Catalogue, cluster_in_text, shipped
from equipoise.spec.cluster import LARGEST_HOST, Cluster, build_cluster, usual_system
from equipoise.spec.links import FABRICS, KINDS, LinkReach, kind, link_class, network_reach, reach
from equipoise.units import plural

if TYPE_CHECKING:
    from equipoise.spec.hardware import Accelerator, Topology


# 0.02: repetitions of nccl-tests on one machine differ by at least this; fits need not be closer.
NOISE = 0.02
FEWEST_SIZES = 3
MOST_REGIMES = 5
# More sizes are thinned evenly, because the search below considers every pair.
MOST_SIZES = 400
_ROUNDS = 3

Indices: TypeAlias = NDArray[np.intp]


class Regime(Struct, frozen=True, kw_only=True):
    """A range of sizes in which time is latency_s + payload / byte_per_s (inf if time does not grow)."""

    from_bytes: int
    to_bytes: int
    latency_s: float
    byte_per_s: float
    num_points: int


class CollectiveCurve(Struct, frozen=True, kw_only=True):
    """One collective over one group of ranks, as a piecewise linear fit over the measured sizes.

    latency_s: of the smallest messages; None if even they are bandwidth-bound. byte_per_s: marginal payload
    rate of the largest messages; None if even they are latency-bound. num_points: number of sizes. log_sd:
    residual standard deviation of log time.
    """

    latency_s: Interval | None
    byte_per_s: Interval | None
    regimes: tuple[Regime, ...]
    num_points: int
    log_sd: float


class _Line(Struct, frozen=True, kw_only=True):
    """A line fitted to some sizes by relative errors: time = start_s + byte_s x payload."""

    start_s: float
    byte_s: float
    misfit: float


def fit_curve(payload_bytes: ArrayLike, seconds: ArrayLike) -> CollectiveCurve:
    """The curve of one collective, fitted to measured times.

    payload_bytes, seconds: (n_points,), positive; a size may occur several times.
    Raises EvidenceError for fewer than three sizes.
    Assumes equal relative errors, and that one algorithm and protocol runs within each range of sizes.
    Source: Hockney 1994 for a line; least squares over all breakpoints (Bellman 1961), with their number by
    the Bayesian information criterion (Schwarz 1978).

    >>> sizes = [2.0**power for power in range(3, 31)]
    >>> found = fit_curve(sizes, [20e-6 + size / 100e9 for size in sizes])
    >>> round(found.latency_s.value * 1e6, 3), round(found.byte_per_s.value / 1e9, 3), len(found.regimes)
    (20.0, 100.0, 1)
    """
    payload, took = (np.asarray(each, dtype=float) for each in (payload_bytes, seconds))
    sizes = np.unique(payload)
    if sizes.size < FEWEST_SIZES:
        raise EvidenceError(
            f"{plural(sizes.size, 'message size')}; latency and rate need at least {FEWEST_SIZES}",
            missing=(f"{plural(FEWEST_SIZES - sizes.size, 'more size')}, from a few bytes to some GiB",),
        )
    if sizes.size > MOST_SIZES:
        sizes = thinned(sizes, MOST_SIZES)
        kept = np.isin(payload, sizes)
        payload, took = payload[kept], took[kept]
    cuts = _breakpoints(sizes, payload, took)
    pieces = list(pairwise(cuts))
    inside = [(payload >= sizes[first]) & (payload <= sizes[last - 1]) for first, last in pieces]
    lines = [_line(payload[each], took[each]) for each in inside]
    left = np.concatenate(
        [np.log(took[each] / _line_s(line, payload[each])) for each, line in zip(inside, lines, strict=True)]
    )
    return CollectiveCurve(
        latency_s=_latency(lines[0], payload[inside[0]], took[inside[0]]),
        byte_per_s=_rate(lines[-1], payload[inside[-1]], took[inside[-1]]),
        regimes=tuple(
            Regime(
                from_bytes=int(sizes[first]),
                to_bytes=int(sizes[last - 1]),
                latency_s=line.start_s,
                byte_per_s=1.0 / line.byte_s if line.byte_s > 0 else np.inf,
                num_points=last - first,
            )
            for (first, last), line in zip(pieces, lines, strict=True)
        ),
        num_points=int(np.unique(payload).size),
        log_sd=float(np.sqrt(np.mean(left**2))),
    )


def thinned(sizes: Numbers, most: int) -> Numbers:
    """At most `most` of the sizes, chosen evenly from the smallest to the largest."""
    return np.asarray(sizes[np.unique(np.linspace(0, sizes.size - 1, min(most, sizes.size)).astype(int))])


def _line_s(line: _Line, payload: Numbers) -> Numbers:
    return np.asarray(line.start_s + line.byte_s * payload)


def _line(payload: Numbers, took: Numbers) -> _Line:
    """Least-squares line by relative errors, with non-negative start and slope.

    Errors are relative to the line itself, which takes a few iterations. Errors relative to the measured
    times would give more weight to times that are short by chance, and bias the line downwards.
    """
    expected = took
    for _ in range(_ROUNDS):
        line = _weighted(payload, took, expected)
        expected = _line_s(line, payload)
    return line


def _weighted(payload: Numbers, took: Numbers, expected: Numbers) -> _Line:
    one, wire, target = 1.0 / expected, payload / expected, took / expected
    candidates = [
        ((one * target).sum() / (one**2).sum(), 0.0),
        (0.0, (wire * target).sum() / (wire**2).sum()),
    ]
    scale = payload.max()
    start, byte = np.linalg.lstsq(np.stack([one, wire / scale], axis=1), target, rcond=None)[0]
    if start > 0 and byte > 0:
        candidates.append((start, byte / scale))
    misfit, start, byte = min(
        (float(((a * one + b * wire - target) ** 2).sum()), float(a), float(b)) for a, b in candidates
    )
    return _Line(start_s=start, byte_s=byte, misfit=misfit)


def _breakpoints(sizes: Numbers, payload: Numbers, took: Numbers) -> list[int]:
    """Breakpoints of the ranges of sizes: indices into `sizes`, from 0 to `len(sizes)` inclusive."""
    order = np.argsort(payload, kind="stable")
    payload, took = payload[order], took[order]
    ends = np.searchsorted(payload, sizes, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    misfits = _misfits(payload, took, starts, ends)
    num_sizes, num_points = sizes.size, payload.size
    best = misfits[0]  # best[end - 1]: least misfit of the current number of lines through sizes up to `end`
    chosen, score = [0, num_sizes], _score(best[-1], 1, num_points)
    backs: list[Indices] = []
    for num_lines in range(2, min(MOST_REGIMES, num_sizes // FEWEST_SIZES) + 1):
        # total[cut - 1, end - 1]: misfit of the lines before `cut`, plus one more line from there to `end`.
        total = best[:-1, None] + misfits[1:]
        back = total.argmin(axis=0)
        best = total[back, np.arange(num_sizes)]
        backs.append(back + 1)
        found = _score(best[-1], num_lines, num_points)
        if found < score:
            chosen, score = _traced(backs, num_sizes), found
    return chosen


def _traced(backs: list[Indices], num_sizes: int) -> list[int]:
    cuts = [num_sizes]
    for back in reversed(backs):
        cuts.append(int(back[cuts[-1] - 1]))
    return [0, *reversed(cuts)]


def _score(misfit: float, num_lines: int, num_points: int) -> float:
    variance = misfit / num_points + NOISE**2
    return float(num_points * np.log(variance) + (3 * num_lines - 1) * np.log(num_points))


def _misfits(payload: Numbers, took: Numbers, starts: Indices, ends: Indices) -> Numbers:
    """misfits[i, j]: misfit of one line through sizes i to j; infinite for fewer than three sizes."""
    num_sizes = starts.size
    misfits = np.full((num_sizes, num_sizes), np.inf)
    for first in range(num_sizes - FEWEST_SIZES + 1):
        begin = int(starts[first])
        one, wire = 1.0 / took[begin:], payload[begin:] / took[begin:]
        sums = [np.cumsum(each) for each in (np.ones_like(one), one, wire, one**2, one * wire, wire**2)]
        at = ends[first + FEWEST_SIZES - 1 :] - begin - 1
        misfits[first, first + FEWEST_SIZES - 1 :] = _least_misfit(np.stack([each[at] for each in sums]))
    return misfits


def _least_misfit(sums: Numbers) -> Numbers:
    """Least sum of squares of a/t + b m/t - 1 over a, b >= 0; elementwise.

    sums: (6, n_cases), over points: their number, 1/t, m/t, 1/t^2, m/t^2 and m^2/t^2.
    """
    count, s1, sm, s11, s1m, smm = sums
    flat, steep = count - s1**2 / s11, count - sm**2 / smm
    determinant = s11 * smm - s1m**2
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = (s1 * smm - sm * s1m) / determinant, (sm * s11 - s1 * s1m) / determinant
        both = np.where((a > 0) & (b > 0) & (determinant > 0), count - a * s1 - b * sm, np.inf)
    return np.asarray(np.maximum(np.minimum(np.minimum(flat, steep), both), 0.0))


def _deviations(line: _Line, payload: Numbers, took: Numbers) -> tuple[float, float, float]:
    """Standard errors of a line's start and slope, and the quantile of Student's t for their intervals."""
    from scipy.special import stdtrit  # noqa: PLC0415 - loading it takes as long as a plan

    expected = _line_s(line, payload)
    one, wire = 1.0 / expected, payload / expected
    scale = wire.max()
    if line.start_s == 0 or line.byte_s == 0:
        free = took.size - 1
        variance = max(line.misfit / max(free, 1), NOISE**2)
        design = one if line.byte_s == 0 else wire
        error = float(np.sqrt(variance / (design**2).sum()))
        errors = (error, 0.0) if line.byte_s == 0 else (0.0, error)
    else:
        free = took.size - 2
        variance = max(line.misfit / max(free, 1), NOISE**2)
        design = np.stack([one * expected.min(), wire / scale], axis=1)
        spread = np.linalg.inv(design.T @ design) * variance
        errors = (float(np.sqrt(spread[0, 0])) * float(expected.min()), float(np.sqrt(spread[1, 1])) / scale)
    return *errors, float(stdtrit(max(free, 1), 0.5 + LEVEL / 2))


def _latency(line: _Line, payload: Numbers, took: Numbers) -> Interval | None:
    """Latency of the first line; None if it is less than half of the time of the smallest message."""
    if line.start_s < line.byte_s * payload.min():
        return None
    error, _, quantile = _deviations(line, payload, took)
    low, high = max(0.0, line.start_s - quantile * error), line.start_s + quantile * error
    return Interval(value=line.start_s, low=float(low), high=float(high), level=LEVEL)


def _rate(line: _Line, payload: Numbers, took: Numbers) -> Interval | None:
    """Rate of the last line; None if less than half of the time of the largest message is transfer."""
    if line.byte_s * payload.max() < line.start_s:
        return None
    _, error, quantile = _deviations(line, payload, took)
    slow, quick = float(line.byte_s + quantile * error), float(line.byte_s - quantile * error)
    # If the slope may be zero, the rate has no upper bound.
    return Interval(
        value=1.0 / line.byte_s, low=1.0 / slow, high=1.0 / quick if quick > 0 else np.inf, level=LEVEL
    )


def is_like(one: str, other: str) -> bool:
    """Whether two accelerators have the same links, i.e. the same chip and form factor with any memory.

    >>> is_like("a100-sxm4-40gb", "a100-sxm4-80gb")
    True
    """
    return one.rpartition("-")[0] == other.rpartition("-")[0]


class RunLinks(Struct, frozen=True, kw_only=True):
    """The links between the ranks of a run.

    link: description. bus_byte_per_s: upper bound of busbw with rings: the link inside a node, or all network
    cards of a node. card_byte_per_s: one accelerator's share of the network cards.
    """

    cluster: Cluster
    group: Group
    wires: Wires
    link: str
    bus_byte_per_s: float
    card_byte_per_s: float

    @property
    def num_nodes(self) -> int:
        """Number of nodes used by the ranks."""
        return round(float(self.group.num_nodes))

    def is_like(self, accelerator: str, link: str) -> bool:
        """Whether a published figure for an accelerator and link class applies to this machine."""
        is_chip = is_like(accelerator, self.cluster.accelerator.slug)
        return is_chip and _over_host(link) == (self.cluster.topology == "host")


def checked_link(word: str) -> str:
    """A normalised link class of `nvidia-smi topo -m`, or network rate. Raises UsageError for other words.

    >>> checked_link("phb"), checked_link("nv12"), checked_link("10Gbit")
    ('PHB', 'NV12', '10gbit')
    """
    named = word.strip().lower() if network_reach(word) else link_class(word)
    if named is None:
        raise UsageError(
            f"--link {word[:40]!r}: unknown class of link; expected one of NV#, "
            f"{', '.join(KINDS[1:])}, or the "
            "rate of a network such as 10gbit"
        )
    return named


def run_links(
    run: CollectiveRun, *, accelerator: str | None, link: str | None, catalogue: Catalogue | None
) -> RunLinks | str:
    """The links of a run; if they are unknown, a sentence that says what to specify.

    accelerator: an accelerator or system; by default the device that the run names. link: a link class.
    catalogue: the shipped one by default.
    Raises SpecError for an unknown accelerator.
    """
    tables = catalogue or shipped()
    if run.backend == "gloo":
        return _over_gloo(run, link)
    if link is not None and network_reach(link) is not None:
        link = None  # inside a node, the usual links apply
    if accelerator is not None:
        return _machine(run, tables.cluster(accelerator, num_accelerators=run.num_ranks), link)
    if run.device is None:
        return "the file does not name the accelerator: give --accelerator NAME or --link CLASS"
    try:
        found = cluster_of_device(run.device, run.num_ranks, tables)
        if found is not None:
            return _machine(run, found, link)
    except SpecError as err:
        return str(err)
    return f"the accelerator {run.device[:60]!r} is not known: give --accelerator NAME or --link CLASS"


def cluster_of_device(device: str, num_accelerators: int, catalogue: Catalogue) -> Cluster | None:
    """The cluster of the accelerator that a program names, possibly within other words; None if unknown.

    Raises SpecError for contradictory names.
    """
    known = catalogue.accelerator_alias(device)
    if known is not None:
        return catalogue.cluster(known.slug, num_accelerators=num_accelerators)
    return cluster_in_text(device, num_accelerators=num_accelerators, catalogue=catalogue)


def _over_gloo(run: CollectiveRun, link: str | None) -> str:
    """Why a run over gloo cannot be compared with anything."""
    if run.num_nodes == 1:
        return "gloo between processes of one host uses its processors and memory: no link to compare with"
    if link is None:
        return "gloo over a network of unknown rate: give --link, e.g. 10gbit"
    return "no published values for gloo"


def reach_of(run: CollectiveRun, found: RunLinks | str, link: str | None) -> LinkReach | None:
    """The expected rate of the stated link class, if that is more specific than the machine; else None.

    This is the case for ranks of one node connected through the host or with an unknown accelerator, and for
    hosts connected by a network of a stated rate.
    """
    chip: Accelerator | None = None
    network = None if link is None else network_reach(link)
    if network is not None:
        return network if run.num_nodes != 1 else None
    if link is None or (run.num_nodes or 1) > 1:
        return None
    if isinstance(found, RunLinks):
        if found.num_nodes > 1 or not _over_host(link):
            return None
        chip = found.cluster.accelerator
    return reach(link, chip)


def _over_host(link: str) -> bool:
    return network_reach(link) is None and kind(link) not in FABRICS


def _machine(run: CollectiveRun, usual: Cluster, link: str | None) -> RunLinks:
    found = _with_link(usual, link)
    num_nodes, nodes = num_nodes_of(run, found), machine(found)
    per_node = run.num_ranks / num_nodes
    slower = nodes.bridge_slowdown if per_node > nodes.bridged_ranks else 1.0
    group = Group(ranks_per_node=per_node, num_nodes=float(num_nodes), intra_slowdown=slower)
    wires = nodes.wires
    inside, card = float(wires.intra.byte_per_s / slower), float(wires.inter.byte_per_s)
    return RunLinks(
        cluster=found,
        group=group,
        wires=wires,
        link=_inside_link_words(found, link) if num_nodes == 1 else f"the network of {num_nodes} nodes",
        bus_byte_per_s=inside if num_nodes == 1 else card * float(group.ranks_per_node),
        card_byte_per_s=card,
    )


def num_nodes_of(run: CollectiveRun, nodes: Cluster) -> int:
    """Number of nodes of a run: as the file states, at most one per rank; else as few as hold all ranks.

    Files state hosts. With several hosts, that number is not used for racks and pods, whose links span hosts.
    """
    if run.num_nodes is not None and (run.num_nodes == 1 or nodes.node_size <= LARGEST_HOST):
        return min(run.num_nodes, run.num_ranks)
    return -(-run.num_ranks // nodes.node_size)


def _with_link(usual: Cluster, link: str | None) -> Cluster:
    """The cluster with the topology that the link class implies, if that differs from the usual one."""
    chip = usual.accelerator
    topology: Topology | None = None
    if link is not None and _over_host(link) and usual.topology != "host":
        topology = "host"
    elif link is not None and not _over_host(link) and usual.topology == "host" and chip.bridge_byte_per_s:
        topology = "bridge"
    if topology is None:
        return usual
    return build_cluster(
        usual_system(chip, topology),
        accelerator=chip,
        num_accelerators=usual.num_accelerators,
        node_size=usual.node_size,
        topology=topology,
    )


def _inside_link_words(found: Cluster, link: str | None) -> str:
    """Description of the links inside a node."""
    if found.topology == "host":
        return f"PCIe through the host ({link})" if link else "PCIe through the host"
    return found.accelerator.link or "the link"
