"""The sizes tried for a system, the strategy searches at each, and fallbacks where nothing fits."""

import math
import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain, product
from threading import Lock
from typing import Final, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.profiles import USER_CALIBRATION
from equipoise.decide.question.field import MAX_ACCELERATORS, MAX_SIZES, Sizes
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem, is_assumed_host, kinds, usual_most
from equipoise.decide.strategies.strategy_search import (
    STAYS,
    Problem,
    ProblemAtSize,
    TimedStrategy,
    faster_at_once,
    plain_strategies,
    search_at_once,
)
from equipoise.errors import UsageError
from equipoise.perfmodel.layouts import divisors, grid, is_node_aligned
from equipoise.perfmodel.machine import HOST_MEMORY_RATIO
from equipoise.perfmodel.memory import held_memory
from equipoise.perfmodel.search import FoundStrategy, SearchResult
from equipoise.scaling.equilibrium import Limit
from equipoise.scaling.laws import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import ALL_OFFLOADED, AXES, WEIGHTS_SHARDED, Strategy, Value
from equipoise.units import format_si, format_si_apart

_Cached = TypeVar("_Cached")
_DOUBLINGS_BEYOND: Final = 3
_EVERY_SIZE_UP_TO: Final = 16  # up to this size every number of accelerators is tried
# Doublings of these multiples of a unit are between the unit's doublings: no size is more than a fifth below
# the next. They have small divisors, which divide samples and layers.
_FACTORS_BETWEEN: Final = (3, 5, 7, 9)


# Sizes by system name.
SizesBySystem: TypeAlias = tuple[tuple[str, frozenset[int]], ...]


class ExtraSizes(Struct, frozen=True, kw_only=True):
    """Sizes tried in addition to the usual ones.

    between: systems for which all sizes between the usual ones are tried; None for every system. These sizes
    do not depend on the limit. By system name: beside, further sizes between; up_to, the largest size to try
    without a limit; beyond, sizes above the limit named when nothing meets the limits.
    """

    sizes: tuple[int, ...] = ()
    between: frozenset[str] | None = frozenset()
    beside: SizesBySystem = ()
    up_to: tuple[tuple[str, int], ...] = ()
    beyond: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def between_of(self, name: str, units: "SizeUnits", ends: tuple[int, int]) -> set[int]:
        """The sizes between the usual ones that are tried for a system, whatever is chosen."""
        return between_usual(units, *ends) if self.between is None or name in self.between else set()

    def beside_of(self, name: str, ends: tuple[int, int]) -> set[int]:
        """The further sizes between of a system. ends: smallest and largest size."""
        beside = {each for system, sizes in self.beside if system == name for each in sizes}
        return {each for each in beside if ends[0] <= each <= ends[1]}


NO_EXTRA_SIZES: Final = ExtraSizes()


class SizeRange(Struct, frozen=True, kw_only=True):
    """Sizes tried, ascending, and sizes allowed: from `fewest` to `most`, or only those `listed`.

    between: tried sizes that are not used for curves: those between the usual ones, and sizes of the user's
    runs that are not allowed. beside: those of them that are tried because one next to them was offered.
    limited_by: kind of limit of `most`. next_usual: the size above `most` that is
    shown (law 3); None around a single size, where those up to `shown_most` are shown. beyond: sizes above
    `most` named when nothing meets the limits. units: of the sizes up to `most`; None with runs alone.
    """

    tried: tuple[int, ...]
    between: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    fewest: int
    most: int
    limited_by: Limit
    next_usual: int | None = None
    listed: frozenset[int] | None = None
    beyond: frozenset[int] = frozenset()
    units: "SizeUnits | None" = None

    @property
    def is_one(self) -> bool:
        """Whether a single size is allowed, and larger ones are tried only for comparison."""
        return self.fewest == self.most and len(self.tried) > 1

    @property
    def shown_most(self) -> int:
        """The largest size for equilibria; curves extend to twice it."""
        return max(self.most, max({*self.tried} - self.between) // 2) if self.is_one else self.most

    def holds(self, num_accelerators: int) -> bool:
        """Whether a size is allowed."""
        is_listed = self.listed is None or num_accelerators in self.listed
        return is_listed and self.fewest <= num_accelerators <= self.most

    def shows(self, num_accelerators: int) -> bool:
        """Whether a size is a candidate: allowed, or a larger one for comparison.

        Sizes below the requested ones are only used for the curve.
        """
        if num_accelerators <= self.most:
            return self.holds(num_accelerators)
        if num_accelerators in self.beyond:
            return True
        if self.next_usual is None:
            return num_accelerators <= self.shown_most and num_accelerators not in self.between
        return num_accelerators == self.next_usual


def size_range(
    query: TrainingQuery,
    system: RequestedSystem,
    *,
    flop: float | None,
    known: Sequence[int],
    ran: Collection[int] = (),
    extra: ExtraSizes = NO_EXTRA_SIZES,
    fixed_ranks: int = 1,
    fixed_batch_samples: int | None = None,
) -> SizeRange:
    """The sizes of a system that are tried, and those that are allowed.

    Sizes start at one (law 3), and end at the limit of the question or the stock, else at a default or the
    largest published size. system: with a known cluster. flop: of the whole training, where stated. known:
    sizes with published results, ascending. ran: sizes of the user's runs, which extrapolate to other sizes.
    extra: further sizes. fixed_ranks: of a fixed strategy, e.g. 5 for pp=5, whose doublings are tried.
    fixed_batch_samples: the batch, if stated.
    Raises SpecError if more than a node is allowed, and the links between nodes are not stated.
    """
    nodes = system.cluster
    assert nodes is not None
    units = SizeUnits(
        node_size=nodes.node_size,
        batch=fixed_batch_samples,
        fixed_ranks=fixed_ranks,
        num_kinds=len(kinds(nodes.accelerator)),
        is_whole_nodes=not system.is_desktop and system.stock is None,
        slice_sizes=_slice_sizes(nodes),
    )
    found = _within_limits(query, system, units, flop=flop, known=known, extra=extra)
    nodes.expect_network(found.most)
    beyond = {each for each in dict(extra.beyond).get(system.name, ()) if each > found.most}
    not_asked = {each for each in ran if each not in found.tried and not found.holds(each)}
    tried = {*found.tried, *beyond, *ran}
    if nodes.unstated:  # sizes above one node cannot be estimated
        tried = {each for each in tried if each <= nodes.node_size}
    return replace(
        found,
        tried=tuple(sorted(tried)),
        between=found.between | (not_asked & tried),
        beyond=frozenset(beyond & tried),
    )


def _within_limits(
    query: TrainingQuery,
    system: RequestedSystem,
    units: "SizeUnits",
    *,
    flop: float | None,
    known: Sequence[int],
    extra: ExtraSizes,
) -> SizeRange:
    """The sizes up to the limits, and larger ones for comparison."""
    limits = [each for each in (query.max_accelerators, system.stock) if each is not None]
    if min(limits, default=units.num_kinds) < units.num_kinds:
        raise UsageError(
            f"{min(limits)} of {system.name}: fewer than one of each kind; give {units.num_kinds} or more"
        )
    asked = _requested_sizes(query, system, units, limits)
    fewest, listed = 1, None
    if asked is not None:
        limits.append(asked.most)
        asked = _in_slices(asked, units.slice_sizes, system.name, is_alone=len(query.systems) <= 1)
        fewest, most = asked.fewest, min(limits)
        if fewest == asked.most == most:
            return _single_size(most, units)
        listed = None if asked.is_range else frozenset(asked.listed)
        tried = set(asked.listed) if listed else _ladder(units, fewest, most)
    else:
        usual = units.at_least(usual_most(query, system, flop))
        wanted = {*extra.sizes, *(size for name, size in extra.up_to if name == system.name)}
        wanted = {each for each in wanted if is_slice(each, units.slice_sizes)}
        most = min(limits) if limits else max((usual, *known, *wanted))
        # Without a limit, the largest size is a usual one or has results, so no end of whole nodes is added.
        tried = _ladder(units, 1, most, has_end=bool(limits)) | {each for each in known if each <= most}
        tried = {*sorted(tried | wanted)[-(MAX_SIZES - 1) :]}
    tried |= _beyond(units, most)
    ends = fewest, most
    between = set() if listed else extra.between_of(system.name, units, ends) - tried
    beside = set() if listed else extra.beside_of(system.name, ends) - tried - between
    return SizeRange(
        tried=tuple(sorted(tried | between | beside)),
        between=frozenset(between | beside),
        beside=frozenset(beside),
        fewest=fewest,
        most=most,
        limited_by="question" if limits else "catalogue",
        next_usual=fewest if fewest > most else _next_usual(units, most),
        listed=listed,
        units=units,
    )


def _requested_sizes(
    query: TrainingQuery, system: RequestedSystem, units: "SizeUnits", limits: Sequence[int]
) -> Sizes | None:
    """The sizes that a question states; None where any size up to the limits is allowed.

    If the limits exclude all slices of an accelerator, the smallest slice, so that the answer can name it.
    Raises UsageError if the system does not exist in these sizes.
    """
    asked, least = query.sizes, next(iter(units.slice_sizes), 1)
    if query.num_nodes is not None:
        number = query.num_nodes * units.node_size
        if is_assumed_host(system, query) and query.num_nodes > 1:
            raise UsageError(
                f"--nodes {query.num_nodes}: {units.node_size}x{system.name} is one node; expected the total "
                f"number and the node size, as {number}x{system.name} --node-size {units.node_size}"
            )
        asked = Sizes(listed=(number,))
    if asked is None and min(limits, default=least) < least:
        asked = Sizes(listed=(least,))
    named = () if asked is None or asked.is_range else asked.listed
    uneven = [each for each in named if each % units.num_kinds]
    if uneven:
        raise UsageError(
            f"{system.name} has {units.num_kinds} kinds of accelerators in equal numbers; expected a "
            f"multiple of {units.num_kinds}, not {uneven[0]}"
        )
    return asked


def _slice_sizes(cluster: Cluster) -> tuple[int, ...]:
    """The slice sizes of an accelerator's usual pods; none for pods described with another size."""
    chip = cluster.accelerator
    return chip.slice_sizes if cluster.node_size == chip.node_size else ()


def expect_slices(sizes: Collection[int], cluster: Cluster) -> None:
    """Raise UsageError if any size is not a slice of the cluster's accelerator."""
    odd = {*sizes} - {*in_slices(sizes, cluster)}
    if odd:
        raise _no_slice(_listed(odd), _slice_sizes(cluster), cluster.accelerator.slug)


def in_slices(sizes: Collection[int], cluster: Cluster) -> tuple[int, ...]:
    """The sizes that are slices of the cluster's accelerator."""
    slice_sizes = _slice_sizes(cluster)
    return tuple(each for each in sizes if is_slice(each, slice_sizes))


def _listed(sizes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _no_slice(odd: str, slice_sizes: Sequence[int], name: str) -> UsageError:
    return UsageError(
        f"{odd} of {name}: it comes in slices of {', '.join(map(str, slice_sizes))}, or multiples of "
        f"{slice_sizes[-1]}; give one of these"
    )


def _in_slices(asked: Sizes, slice_sizes: Sequence[int], name: str, *, is_alone: bool) -> Sizes:
    """The requested sizes that are slices; if none is, the next larger slice, which exceeds the request.

    name: of the system. is_alone: whether it is the only system in the question; a request for sizes that are
    not slices then raises UsageError with the existing slices.
    """
    if not slice_sizes:
        return asked
    among = range(asked.fewest, asked.most + 1) if asked.is_range else asked.listed
    had = tuple(each for each in among if is_slice(each, slice_sizes))
    if is_alone and (not had or (not asked.is_range and had != asked.listed)):
        odd = f"{asked.fewest} to {asked.most}" if asked.is_range else _listed({*among} - {*had})
        raise _no_slice(odd, slice_sizes, name)
    if had:
        return asked if asked.is_range else Sizes(listed=had)
    last = slice_sizes[-1]
    return Sizes(
        listed=(min(each for each in (*slice_sizes, -(-asked.most // last) * last) if each > asked.most),)
    )


def used_of_node(node_size: int, global_batch_samples: int | None) -> int:
    """Accelerators used per node with several nodes: all, or a power of two if a stated batch requires it.

    Nodes of 72 do not divide a batch of 1,024, but 64 per node do; a batch that is not stated can be adapted.
    """
    odd = node_size // (node_size & -node_size)
    if global_batch_samples is None or global_batch_samples % odd == 0:
        return node_size
    return 1 << node_size.bit_length() - 1


def taken_of_node(size: int, node_size: int, global_batch_samples: int | None) -> int:
    """Accelerators per node in a size: `used_of_node` if it has no whole number of nodes, else all."""
    used = used_of_node(node_size, global_batch_samples)
    is_partly = size > node_size and size % node_size > 0 and size % used == 0
    return used if is_partly else node_size


def is_slice(size: int, slice_sizes: Sequence[int]) -> bool:
    """Whether a size is a slice or a multiple of the largest; any size is if there are no slices.

    slice_sizes: see `Accelerator`.
    """
    return not slice_sizes or size in slice_sizes or size % slice_sizes[-1] == 0


# Sizes tried at once between two sizes, in a search for the smallest sufficient one.
_MAX_FINER: Final = 16


class SizeUnits(Struct, frozen=True, kw_only=True):
    """Units whose doublings are the usual sizes: one accelerator, a node, and the ranks of a fixed strategy.

    batch: a stated batch, which ranks must divide; None if not stated. num_kinds: kinds of accelerator in a
    mixed system, with equal numbers of each. is_whole_nodes: whether sizes above a node must be whole nodes.
    slice_sizes: see `Accelerator`.
    """

    node_size: int
    batch: int | None
    fixed_ranks: int
    num_kinds: int
    is_whole_nodes: bool
    slice_sizes: tuple[int, ...]

    @property
    def used_of_node(self) -> int:
        """Accelerators used per node with several nodes."""
        return used_of_node(self.node_size, self.batch)

    def may_be(self, size: int) -> bool:
        """Whether a size has equal numbers of each kind, leaves nothing paid for unused, and is a slice."""
        is_whole = any(size % each == 0 for each in (self.node_size, self.used_of_node))
        is_had = is_whole or size <= self.node_size or not self.is_whole_nodes
        return is_had and size % self.num_kinds == 0 and is_slice(size, self.slice_sizes)

    def doublings(self, most: int, factor: int = 1) -> set[int]:
        """Doublings of `factor` times each unit, up to at least twice `most`."""
        steps = range(math.ceil(math.log2(most)) + 2)
        units = (self.num_kinds, self.used_of_node, self.fixed_ranks)
        return {each for unit in units for step in steps if self.may_be(each := factor * unit * 2**step)}

    def at_least(self, size: int) -> int:
        """The smallest doubling that is at least `size`."""
        return min(each for each in self.doublings(size) if each >= size)

    def whole_below(self, size: int) -> int:
        """The largest size up to `size` with whole nodes; inside a node, the size or slice itself."""
        if self.may_be(size):
            return size
        nodes = size // self.used_of_node * self.used_of_node
        if nodes or not self.slice_sizes:
            return nodes
        last = self.slice_sizes[-1]
        return max((each for each in (*self.slice_sizes, size // last * last) if each <= size), default=0)

    def usual(self, low: int, high: int) -> list[int]:
        """The usual sizes above `low`, up to the first that is at least `high`, ascending."""
        end = self.at_least(high)
        return sorted(each for each in self.doublings(high) if low < each <= end)

    def between(self, low: int, high: int, most: int = _MAX_FINER) -> list[int]:
        """Sizes between two, ascending: all valid ones, or at most about `most` evenly spaced ones."""
        unit = self.num_kinds
        if self.is_whole_nodes and low >= self.node_size:
            unit = math.lcm(unit, self.used_of_node)
        step = unit * max(1, math.ceil((high - low) / unit / most))
        finer = {*range(low // step * step + step, high, step), *between_usual(self, low, high)}
        return sorted(each for each in finer if low < each < high and self.may_be(each))


def _ladder(units: SizeUnits, fewest: int, most: int, *, has_end: bool = True) -> set[int]:
    """Doublings of the units and both ends; for cards outside racks also every small number.

    has_end: whether to include the largest size with whole nodes, and the sizes between it and the last
    doubling. Without them, a larger limit could result in fewer accelerators, if that step does not pay.
    """
    few = 0 if units.is_whole_nodes else min(_EVERY_SIZE_UP_TO, units.node_size)
    doublings = units.doublings(most)
    sizes = doublings | {fewest} | {*range(1, few + 1)}
    # No power of two above 8 divides a batch of 1,000: 400 accelerators are faster than 512.
    batch = units.batch or 1
    factors = [each for each in divisors(batch // (batch & -batch)) if each > 1]
    by_batch = {each for factor in factors for each in units.doublings(most, factor)}
    sizes |= {each for each in by_batch if each > batch & -batch}
    if has_end:
        end = units.whole_below(most)
        last = max((each for each in doublings if each <= end), default=end)
        sizes |= {end} | {each for each in between_usual(units, last, end) if each > last}
    return {each for each in sizes if fewest <= each <= most and units.may_be(each)} or {fewest, most}


def between_usual(units: SizeUnits, fewest: int, most: int) -> set[int]:
    """The sizes between the usual ones: doublings of a few multiples of units."""
    sizes = {each for factor in _FACTORS_BETWEEN for each in units.doublings(most, factor)}
    return {each for each in sizes if fewest <= each <= most}


def _next_usual(units: SizeUnits, most: int) -> int:
    """The next usual size above `most`, shown for comparison."""
    return min(MAX_ACCELERATORS, *(each for each in units.doublings(most) if each > most))


def _beyond(units: SizeUnits, most: int) -> set[int]:
    """The sizes tried above the largest allowed one: the next usual one, and one of at least its double.

    Curves extend to twice the largest size; twice a limit itself often divides no batch.
    """
    return {min(units.at_least(2 * most), MAX_ACCELERATORS), _next_usual(units, most)}


def units_beyond(cluster: Cluster, problem: Problem | None) -> SizeUnits:
    """Units of sizes above a system's limit: whole nodes, except for cards of desktop computers.

    problem: its stated batch and fixed axes must be divisible; None without a model.
    """
    return SizeUnits(
        node_size=cluster.node_size,
        batch=None if problem is None else problem.training.fixed_batch_samples,
        fixed_ranks=1 if problem is None else fixed_ranks(problem.choices),
        num_kinds=len(kinds(cluster.accelerator)),
        is_whole_nodes=not cluster.accelerator.for_desktops,
        slice_sizes=_slice_sizes(cluster),
    )


def raised_sizes(problem: Problem, best: Strategy) -> frozenset[int]:
    """Sizes between the usual ones, up to twice a strategy's, which a larger rounded batch makes useful.

    Only for a usual batch, which may be rounded, with at most one sample per rank and pipeline stage: more
    ranks then need a larger batch, and a proportionally larger one costs no efficiency. Else empty.
    """
    about, size, batch = problem.training, best.num_accelerators, best.global_batch_samples
    if about.budget.is_to_target or best.dp * best.pp * about.workload.samples_per_example < batch:
        return frozenset()
    units = units_beyond(problem.cluster, problem)
    near = between_usual(units, size + 1, 2 * size)
    return frozenset(each for each in near if max(problem.batches(each)) > batch)


def fixed_ranks(choices: Mapping[str, tuple[Value, ...]]) -> int:
    """Product of the fixed axes, of which a size must be a multiple."""
    values = (choices.get(axis, ()) for axis in ("dp", "tp", "pp", "cp"))
    return math.prod(int(each[0]) for each in values if len(each) == 1)


def _single_size(size: int, units: SizeUnits) -> SizeRange:
    """One size with its doublings, for comparison, and one more for the curve."""
    doubled = tuple(size * 2**step for step in range(_DOUBLINGS_BEYOND + 2))
    return SizeRange(
        tried=tuple(each for each in doubled if each <= MAX_ACCELERATORS),
        fewest=size,
        most=size,
        limited_by="catalogue",
        units=units,
    )


# Above this number of sizes, only those of the last question are cached.
_MAX_CACHED_SIZES: Final = 2 * MAX_SIZES


class SearchedSize(Struct, frozen=True, kw_only=True):
    """Result of a search at one size. best: full estimate of the best strategy; None where nothing fits.

    drawn_s: equally likely training times of the best, (n_draws,). freed: result at any batch, if `found` is
    for the batch of the best published result.
    """

    num_accelerators: int
    found: SearchResult
    best: TimedStrategy | None
    drawn_s: FloatArray
    freed: "SearchedSize | None" = None


class StrategySearches(Struct, frozen=True, kw_only=True):
    """A problem and its search results by size, ascending. search_s: time spent searching."""

    problem: Problem
    sizes: tuple[SearchedSize, ...] = ()
    search_s: float = 0.0

    def at(self, sizes: Collection[int]) -> tuple[SearchedSize, ...]:
        """The results at some sizes, ascending."""
        return tuple(each for each in self.sizes if each.num_accelerators in sizes)

    def near_axes(self, chosen: Strategy) -> dict[str, tuple[Value, ...]]:
        """Axis sizes of a strategy and of the best found at its size, as choices for a fast search."""
        found = (each.strategy for size in self.at((chosen.num_accelerators,)) for each in size.found.best)
        near = (chosen, *found)
        return {axis: tuple(dict.fromkeys(getattr(each, axis) for each in near)) for axis in AXES}

    def with_sizes(self, sizes: Collection[int]) -> "StrategySearches":
        """A copy with results at further sizes; missing ones are searched in one search."""
        missing = sorted(set(sizes) - {each.num_accelerators for each in self.sizes})
        if not missing:
            return self
        began = time.perf_counter()
        found = (*self.sizes, *_search_with_fallbacks(self.problem, missing))
        spent_s = time.perf_counter() - began
        by_size = tuple(sorted(found, key=lambda each: each.num_accelerators))
        return replace(self, sizes=by_size, search_s=self.search_s + spent_s)


def _search_with_fallbacks(problem: Problem, sizes: Sequence[int]) -> list[SearchedSize]:
    """Search results at each size; for sizes with a published batch, also at any other batch.

    With adapters, frozen weights (several cards: FSDP, Answer.AI 2024: 70B on two of 24 GB; one card:
    DeepSpeed ZeRO-3, Rajbhandari et al. 2021, ZeRO-Infinity), activations (Unsloth, torchtune) or both are
    offloaded, and otherwise optimizer states, wherever nothing else fits or that is faster, by any margin:
    else a chip with more memory could be slower, or a restriction faster.
    """
    with_published = [size for size in sizes if problem.has_published_batch(size)]
    asked = [(problem, size) for size in sizes] + [(problem.freed, size) for size in with_published]
    searched = search_at_once([(_with_states_offload(*each), each[1]) for each in asked])
    found = [
        _with_leaner_strategies(*each, _without_ungenerable(*each, result))
        for each, result in zip(asked, searched, strict=True)
    ]
    found = _with_weights_on_host(asked, _with_activations_on_host(asked, found))
    timed = _timed(problem, [size for _, size in asked], found)
    freed = {each.num_accelerators: each for each in timed[len(sizes) :]}
    return [replace(each, freed=freed.get(each.num_accelerators)) for each in timed[: len(sizes)]]


def _with_states_offload(problem: Problem, size: int) -> Problem:
    """The problem with offloading of optimizer states as a choice, if allowed and host memory suffices."""
    if not _may_offload_states(problem, size):
        return problem
    return replace(problem, choices={**problem.choices, "offload": (STAYS["offload"], "optimizer")})


def _without_ungenerable(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """The result, without strategies if no engine can generate a rollout's samples."""
    if problem.training.workload.rollout is None:
        return found
    is_generable = any(problem.generation(size, batch) for batch in problem.batches(size))
    return found if is_generable else replace(found, best=())


def _timed(problem: Problem, sizes: Sequence[int], found: Sequence[SearchResult]) -> list[SearchedSize]:
    """The results by size, with a full estimate of the best strategy."""
    timed = problem.timed([each.best[0].strategy for each in found if each.best])
    best = iter(zip(timed.strategies, timed.drawn_s.T, strict=True))
    nothing = (None, np.empty(0))
    searched = []
    for size, each in zip(sizes, found, strict=True):
        fastest, drawn_s = next(best) if each.best else nothing
        searched.append(SearchedSize(num_accelerators=size, found=each, best=fastest, drawn_s=drawn_s))
    return searched


def _with_activations_on_host(
    asked: Sequence[ProblemAtSize], found: Sequence[SearchResult]
) -> list[SearchResult]:
    """The results, with activations of adapters offloaded wherever that is faster.

    asked: as searched just before. Offloading is tried even if memory suffices; otherwise a chip with more
    memory or faster links could be the slower one. Counts of strategies are unchanged.
    """
    problem, _ = asked[0]
    choices = problem.with_activations_on_host
    trained = problem.choices.get("trained", ("full",))
    if choices is None or "full" in trained or not may_offload(problem, "activation_offload"):
        return [*found]
    allowed = {"recompute": choices["recompute"], "offload": choices.get("offload", (STAYS["offload"],))}
    known = dict(enumerate(found))
    faster = _with_faster(
        dict(enumerate(asked)), known, name="activation_offload", value=True, allowed=allowed
    )
    return [*(known | faster).values()]


def _with_weights_on_host(
    asked: Sequence[ProblemAtSize], found: Sequence[SearchResult]
) -> list[SearchResult]:
    """The results, with frozen weights offloaded wherever that is faster, alone or with activations.

    Tried as activations are in `_with_activations_on_host`, and for the same reason. With activations too, a
    step is never shorter than with weights alone in an accelerator of any memory.
    """
    moved = {
        place: (replace(each, choices={**each.choices, **choices}), size)
        for place, (each, size) in enumerate(asked)
        if found[place].best and (choices := _weights_on_host(each, size)) is not None
    }
    known = dict(enumerate(found))
    alone = _with_faster(moved, known, name="offload", value=ALL_OFFLOADED, allowed={})
    known |= alone
    hosted = asked[0][0].with_activations_on_host
    if hosted is not None and may_offload(asked[0][0], "activation_offload"):
        left = {place: moved[place] for place in alone}
        kept = {"recompute": hosted["recompute"]}
        known |= _with_faster(left, known, name="activation_offload", value=True, allowed=kept)
    return [*known.values()]


def _with_faster(
    asked: Mapping[int, ProblemAtSize],
    found: Mapping[int, SearchResult],
    *,
    name: str,
    value: Value,
    allowed: Mapping[str, tuple[Value, ...]],
) -> dict[int, SearchResult]:
    """The results by place, with strategies that are faster with another value of an option, if hosts hold
    them.

    Only of places where a bound leaves room for one. name, value, allowed: as in `faster_at_once`.
    """
    places = [place for place in asked if found[place].best]
    faster = faster_at_once(
        [asked[place] for place in places],
        {number: found[place].best[0].training_s for number, place in enumerate(places)},
        name=name,
        value=value,
        allowed=allowed,
    )
    both = {}
    for number, of_place in faster.items():
        problem, size = asked[places[number]]
        changed = replace(problem, choices={**problem.choices, **allowed, name: (value,)})
        both[places[number]] = _with_held(changed, size, found[places[number]], of_place)
    return both


def _with_held(
    problem: Problem, size: int, found: SearchResult, faster: Sequence[FoundStrategy]
) -> SearchResult:
    """The result, with those faster strategies whose offloaded bytes hosts hold.

    faster: of the problem at a size; with smaller micro-batches where hosts hold none of them.
    """
    held = [each for each in faster if beyond_hosts(problem, each.strategy) is None]
    if faster and not held:
        held = [*_search_within_hosts(problem, size, problem.choices).best]
    return replace(found, best=_best(problem, (*found.best, *held)))


def may_offload(problem: Problem, option: str) -> bool:
    """Whether an offloading option is not fixed, and there is separate host memory."""
    chip = problem.cluster.accelerator
    return option not in problem.choices and not chip.shares_host_memory and chip.memory_bytes is not None


def _best(problem: Problem, found: Sequence[FoundStrategy]) -> tuple[FoundStrategy, ...]:
    """The fastest strategies, as many as the problem requests."""
    return tuple(sorted(found, key=lambda each: each.training_s)[: problem.num_best])


def _with_leaner_strategies(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """The result, with strategies that need less accelerator memory where memory is short."""
    if not found.num_fitting:
        return _search_fallbacks(problem, size, found)
    return _within_hosts(problem, size, found)


def _within_hosts(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """The result; if its offloaded weights exceed host memory, that of fewer copies, where hosts hold them.

    Each replica group needs a copy of the weights, and more groups are faster.
    """
    held = _held_replicas(problem, size, found.best[0].strategy) if found.best else ()
    if not held or "dp_replicate" in problem.choices:
        return found
    narrower = _search_within_hosts(problem, size, {**problem.choices, "dp_replicate": held})
    return replace(found, best=narrower.best) if narrower.best else found


def _held_replicas(problem: Problem, size: int, best: Strategy) -> tuple[int, ...]:
    """Numbers of replica groups for whose weights hosts have room; none if they hold those of `best`."""
    if best.offload != ALL_OFFLOADED or beyond_hosts(problem, best) is None:
        return ()
    copies = best.dp_replicate if best.zero_stage == WEIGHTS_SHARDED else best.dp
    copy_bytes = size * on_host_bytes(problem, best)["offload"] / copies
    return tuple(each for each in _replicas(problem, size) if _hosts_hold(problem, size // each, copy_bytes))


def _replicas(problem: Problem, size: int) -> tuple[int, ...]:
    """Numbers of replica groups into which whole nodes, or equal parts of a node, divide."""
    node_size = problem.cluster.node_size
    return tuple(
        each for each in divisors(size) if each == 1 or is_node_aligned(size // each, size, node_size)
    )


def _search_within_hosts(
    problem: Problem, size: int, choices: Mapping[str, tuple[Value, ...]]
) -> SearchResult:
    """Search result with strategies that fit in host memory, with smaller micro-batches if necessary."""
    while True:
        found = replace(problem, choices=choices).search_size(size)
        held = tuple(each for each in found.best if beyond_hosts(problem, each.strategy) is None)
        least = min((each.strategy.microbatch_samples for each in found.best), default=1)
        smaller = tuple(
            each for each in choices.get("microbatch_samples", range(1, least)) if int(each) < least
        )
        if held or not smaller:
            return replace(found, best=held)
        choices = {**choices, "microbatch_samples": smaller}


def _search_fallbacks(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """Result of the first fallback in which anything fits; else of the last in which anything is legal."""
    for each in _fallbacks(problem, size):
        tried = each.search_size(size)
        found = tried if tried.num_legal or not found.num_legal else found
        if found.num_fitting:
            break
    return found


def first_that_fits(problem: Problem, size: int) -> Problem | None:
    """The problem, or the first of its fallbacks, for which anything fits at a size; None if none."""
    searches = chain((problem,), _fallbacks(problem, size))
    return next((each for each in searches if each.fits(size)), None)


ON_HOST: Final[Mapping[Value, str]] = {
    "optimizer": "optimizer states",
    ALL_OFFLOADED: "weights and optimizer states",
}
# Bytes of optimizer state per trained parameter that are offloaded: two moments and a master copy in fp32
# (Rajbhandari et al. 2020).
_STATES_BYTES: Final = 12.0
# Options on which the bytes of weights and states depend.
_OF_COPIES: Final = frozenset(
    {"precision", "implementation", "optimizer", "master_weights", "trained", "lora_rank", "lora_targets"}
)


def on_host_bytes(problem: Problem, chosen: Strategy) -> dict[str, float]:
    """Bytes per accelerator that a strategy offloads to host memory, by option."""
    kinds: dict[str, tuple[str, ...]] = {}
    if chosen.offload in ON_HOST:
        kinds["offload"] = ("weights", "gradients", "optimizer")
    if chosen.activation_offload:
        kinds["activation_offload"] = ("activations",)
    if not kinds:
        return {}
    both = (chosen, replace(chosen, **STAYS))
    memory = problem.estimated(both, problem.model.parameters).memory
    found = {}
    for option, of_memory in kinds.items():
        held = sum(getattr(memory, kind) for kind in of_memory)
        as_chosen, unmoved = np.broadcast_to(held, len(both))
        found[option] = float(unmoved - as_chosen)
    return found


def on_host(problem: Problem, chosen: Strategy) -> dict[str, str]:
    """Text on what a strategy offloads to host memory, by option."""
    names = {"offload": ON_HOST.get(chosen.offload, ""), "activation_offload": "activations"}
    return {
        option: f"{names[option]} on the host: {format_si(moved_bytes, 'B')} each"
        for option, moved_bytes in on_host_bytes(problem, chosen).items()
    }


def beyond_hosts(problem: Problem, chosen: Strategy) -> str | None:
    """Text on an offloaded amount that exceeds the assumed host memory; None if it fits.

    Activations alone are only offloaded as far as host memory allows.
    """
    size, held = chosen.num_accelerators, problem.cluster.accelerator.memory_bytes
    if chosen.offload not in ON_HOST or held is None:
        return None
    moved_bytes = size * sum(on_host_bytes(problem, chosen).values())
    if _hosts_hold(problem, size, moved_bytes):
        return None
    whole, room = format_si_apart(moved_bytes, size * HOST_MEMORY_RATIO * held, "B")
    return (
        f"hosts must hold {whole} ({format_si(moved_bytes / size, 'B')} per accelerator); they are assumed "
        f"to have {room}, {HOST_MEMORY_RATIO:g} times the memory of their accelerators"
    )


def _hosts_hold(problem: Problem, size: int, moved_bytes: float) -> bool:
    """Whether the hosts of `size` accelerators have room for the offloaded bytes."""
    held = problem.cluster.accelerator.memory_bytes
    return held is not None and moved_bytes <= HOST_MEMORY_RATIO * held * size


def _weights_on_host(problem: Problem, size: int) -> dict[str, tuple[Value, ...]] | None:
    """The choices with which adapters offload frozen weights; None if fixed or impossible.

    Impossible in the software, or if hosts have no room. Each replica group needs a copy, so values of
    dp_replicate whose groups have no room for one are excluded.
    """
    if not moves_weights(problem):
        return None
    copy_bytes = _copy_bytes(problem, size)
    if not _hosts_hold(problem, size, copy_bytes):
        return None
    # What offloaded weights exclude is not enumerated (`_offload_fault`).
    moved: dict[str, tuple[Value, ...]] = {"offload": (ALL_OFFLOADED,), "pp": (1,)}
    if "dp_replicate" not in problem.choices:
        tried = [each for each in _replicas(problem, size) if each < size]
        held = tuple(each for each in tried if _hosts_hold(problem, size // each, copy_bytes))
        if len(held) < len(tried):
            moved["dp_replicate"] = held
    return moved


def moves_weights(problem: Problem) -> bool:
    """Whether the search offloads weights by itself: frozen ones, unless the offload is fixed."""
    is_adapter = "full" not in problem.choices.get("trained", ("full",))
    is_possible = offloads_weights(problem) and 1 in problem.choices.get("pp", (1,))
    is_fixed = problem.training.states_offload or problem.cluster.accelerator.shares_host_memory
    return is_adapter and is_possible and not is_fixed


def offloads_weights(problem: Problem) -> bool:
    """Whether the software can offload weights."""
    return problem.software is None or problem.software.offloads_weights


def _copy_bytes(problem: Problem, size: int) -> float:
    """Least bytes on hosts of one copy of what is offloaded with the weights, among the choices."""
    names = [name for name in problem.choices if name in _OF_COPIES]
    usual = Strategy(global_batch_samples=1, zero_stage=WEIGHTS_SHARDED if size > 1 else 0)
    unmoved = [
        replace(usual, **dict(zip(names, values, strict=True)))
        for values in product(*(problem.choices[name] for name in names))
    ]
    moved = [replace(each, offload=ALL_OFFLOADED) for each in unmoved]
    held = held_memory(problem.load, grid((*unmoved, *moved)))
    held_bytes = np.broadcast_to(held.weights + held.gradients + held.optimizer, 2 * len(moved))
    return float(np.subtract(*np.split(held_bytes, 2)).min())


def _may_offload_states(problem: Problem, size: int) -> bool:
    """Whether optimizer states may be offloaded: not fixed, all weights trained, and hosts have room."""
    trained = problem.training.workload.trained_params
    is_full = problem.choices.get("trained", ("full",)) == ("full",)
    if not is_full or trained is None or not may_offload(problem, "offload"):
        return False
    return _hosts_hold(problem, size, _STATES_BYTES * trained)


def _fallbacks(problem: Problem, size: int) -> Iterator[Problem]:
    """Yield problems to try in turn if nothing fits: with any batch, then with more offloading.

    Offloads activations and frozen weights of adapters; or optimizer states if all weights are trained.
    """
    free = problem.freed
    if problem.has_published_batch(size):
        yield free
    trained = problem.choices.get("trained", ("full",))
    if "full" in trained:
        if _may_offload_states(problem, size):
            yield replace(free, choices={**problem.choices, "offload": ("optimizer",)})
        return
    moved = _weights_on_host(problem, size)
    hosted = problem.with_activations_on_host if "activation_offload" not in problem.choices else None
    if moved is not None:
        yield replace(free, choices={**problem.choices, **moved})
    if hosted is not None:
        yield replace(free, choices=hosted)
    if moved is not None and hosted is not None:
        yield replace(free, choices={**hosted, **moved})


class SearchCache:
    """Cache of the searches of the most recent problems, with a bounded number of sizes each; thread-safe.

    Repeated questions with other prices, deadlines or sizes are searched only once.
    """

    def __init__(self, most: int = 64) -> None:
        """most: number of problems to cache; about 0.2 MB each."""
        self._most = most
        self._searches: OrderedDict[Hashable, StrategySearches] = OrderedDict()
        self._compared: OrderedDict[Hashable, tuple[TimedStrategy, ...]] = OrderedDict()
        self._fitting: OrderedDict[Hashable, bool] = OrderedDict()
        self._lock = Lock()

    def searches(self, problem: Problem, sizes: Collection[int]) -> StrategySearches:
        """The searches of a problem at exactly these sizes."""
        key = _key(problem)
        known = self._lookup(self._searches, key) or StrategySearches(problem=problem)
        found = known.with_sizes(sizes)
        kept = found if len(found.sizes) <= _MAX_CACHED_SIZES else replace(found, sizes=found.at(sizes))
        self._store(self._searches, key, kept)
        return replace(found, problem=problem, sizes=found.at(sizes))

    def fits(self, problem: Problem, size: int) -> bool:
        """Whether any strategy fits at this size, fallbacks included."""
        key = _key(problem)
        searches = self._lookup(self._searches, key)
        if searches is not None and (searched := searches.at((size,))):
            return searched[0].found.num_fitting > 0
        of_size = None if key is None else (key, size)
        found = self._lookup(self._fitting, of_size)
        if found is None:
            found = first_that_fits(problem, size) is not None
        self._store(self._fitting, of_size, found)
        return found

    def compared(
        self, searches: StrategySearches, best: Strategy, *, num_found: int
    ) -> tuple[TimedStrategy, ...]:
        """Full estimates of the best strategies found at a strategy's size, and of plain data parallelism.

        num_found: number of the former.
        """
        asked = _key(searches.problem)
        key = None if asked is None else (asked, best, num_found)
        timed = self._lookup(self._compared, key)
        if timed is None:
            of_size = searches.at((best.num_accelerators,))
            found = [each.strategy for size in of_size for each in size.found.best]
            listed = dict.fromkeys((*found[:num_found], *plain_strategies(searches.problem, best)))
            timed = searches.problem.timed([*listed]).strategies
        self._store(self._compared, key, timed)
        return timed

    def _lookup(self, store: OrderedDict[Hashable, _Cached], key: Hashable | None) -> _Cached | None:
        """The cached value; None if there is none, or the problem is not cacheable (key None)."""
        with self._lock:
            return store.get(key)

    def _store(self, store: OrderedDict[Hashable, _Cached], key: Hashable | None, value: _Cached) -> None:
        """Cache a value as the most recently used, and evict the least recently used ones."""
        if key is None:
            return
        with self._lock:
            store[key] = value
            store.move_to_end(key)
            while len(store) > self._most:
                store.popitem(last=False)

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._searches.clear()
            self._compared.clear()
            self._fitting.clear()

    def __len__(self) -> int:
        """Number of cached problems."""
        return len(self._searches)


def _key(problem: Problem) -> Hashable | None:
    """Everything on which searches depend; None, not cached, if the model uses the user's measurements."""
    training, model = problem.training, problem.model
    if model.links is not None or model.calibration == USER_CALIBRATION:
        return None
    return (
        training.workload,
        training.global_batch_samples,
        training.batch_words,
        replace(training.budget, evidence=(), notes=(), missing=()),
        problem.cluster,
        model.calibration,
        problem.has_own_steps,
        None if problem.software is None else problem.software.name,
        frozenset(problem.choices.items()),
        training.states_offload,
        frozenset(problem.published_batches.items()),
        problem.num_best,
    )


SEARCH_CACHE: Final = SearchCache()
