"""The sizes of a system that are tried, what a search of strategies finds at each, and what would fit."""

import math
import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain
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
from equipoise.perfmodel.compute import NF4_BYTES
from equipoise.perfmodel.layouts import divisors, is_node_aligned
from equipoise.perfmodel.machine import HOST_MEMORY_RATIO
from equipoise.perfmodel.search import FoundStrategy, SearchResult
from equipoise.scaling.equilibrium import Limit
from equipoise.scaling.laws import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import AXES, Strategy, Value
from equipoise.units import format_si, format_si_apart

_Kept = TypeVar("_Kept")
_DOUBLINGS_BEYOND: Final = 3
_SMALL: Final = 16  # up to so many accelerators every number is tried
# Doublings of these of a unit lie between its own: no size is more than a fifth below the next. Samples and
# layers are shared out by numbers with small divisors.
_BETWEEN: Final = (3, 5, 7, 9)


# By the name of a system.
SizesBySystem: TypeAlias = tuple[tuple[str, frozenset[int]], ...]


class ExtraSizes(Struct, frozen=True, kw_only=True):
    """Sizes that are tried besides the usual ones: some by number, and whether those between them.

    Those between are the same whatever the limit: a lower limit may end at a better one. between: the systems
    of which all of them are tried; None for every system. beside, up_to, beyond: by the name of a system,
    further ones between that are tried, the most to try where nothing limits it, and sizes beyond its limit
    that a refusal names.
    """

    sizes: tuple[int, ...] = ()
    between: frozenset[str] | None = frozenset()
    beside: SizesBySystem = ()
    up_to: tuple[tuple[str, int], ...] = ()
    beyond: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def between_of(self, name: str, units: "SizeUnits", ends: tuple[int, int]) -> set[int]:
        """The sizes of a system between the usual ones that are tried. ends: the fewest and the most."""
        fewest, most = ends
        every = between_usual(units, *ends) if self.between is None or name in self.between else set()
        beside = {each for system, sizes in self.beside if system == name for each in sizes}
        return every | {each for each in beside if fewest <= each <= most}


NO_EXTRA_SIZES: Final = ExtraSizes()


class SizeRange(Struct, frozen=True, kw_only=True):
    """Sizes tried, ascending, and those that may be taken: from `fewest` to `most`, or `listed` alone.

    between: of those tried, sizes between the usual ones, and those that ran but may not be taken, on which
    no curve rests. limited_by: whose limit `most` is. next_usual: the one beyond `most` that is shown,
    whatever `most` is just below it (law 3); None around a single size, where those up to `shown_most` are
    shown.
    beyond: those beyond `most` that a refusal names. units: what those up to `most` are doublings of; None of
    runs alone.
    """

    tried: tuple[int, ...]
    between: frozenset[int] = frozenset()
    fewest: int
    most: int
    limited_by: Limit
    next_usual: int | None = None
    listed: frozenset[int] | None = None
    beyond: frozenset[int] = frozenset()
    units: "SizeUnits | None" = None

    @property
    def is_one(self) -> bool:
        """Whether one size may be taken: those beyond it are tried to show what more would do."""
        return self.fewest == self.most and len(self.tried) > 1

    @property
    def shown_most(self) -> int:
        """The largest size whose equilibria are of interest: curves go on to its double."""
        return max(self.most, max({*self.tried} - self.between) // 2) if self.is_one else self.most

    def holds(self, num_accelerators: int) -> bool:
        """Whether a size may be taken."""
        is_listed = self.listed is None or num_accelerators in self.listed
        return is_listed and self.fewest <= num_accelerators <= self.most

    def shows(self, num_accelerators: int) -> bool:
        """Whether a size is a candidate: it may be taken, or shows what more would do.

        Sizes below those asked about are for the curve alone.
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
    """The sizes of a system that are tried, and those that may be taken.

    system: one whose cluster is known. flop: of the whole training, where its amount is stated. known: with
    published results, ascending. Sizes begin with one, whatever the most is (law 3), and end with what the
    question or the stock allows, else what is usually asked about or was published. ran: of the user's runs,
    from which times of others are carried whatever is asked about. extra: what is tried besides.
    fixed_ranks: that a fixed strategy needs, as 5 of pp=5: doublings of them are tried too.
    fixed_batch_samples: the batch, where it is stated.
    Raises SpecError where more than a node may be taken, and nothing states what joins nodes.
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
    found = _up_to_limits(query, system, units, flop=flop, known=known, extra=extra)
    nodes.expect_network(found.most)
    beyond = {each for each in dict(extra.beyond).get(system.name, ()) if each > found.most}
    not_asked = {each for each in ran if each not in found.tried and not found.holds(each)}
    tried = {*found.tried, *beyond, *ran}
    if nodes.unstated:  # what more than a node would do nobody knows
        tried = {each for each in tried if each <= nodes.node_size}
    return replace(
        found,
        tried=tuple(sorted(tried)),
        between=found.between | (not_asked & tried),
        beyond=frozenset(beyond & tried),
    )


def _up_to_limits(
    query: TrainingQuery,
    system: RequestedSystem,
    units: "SizeUnits",
    *,
    flop: float | None,
    known: Sequence[int],
    extra: ExtraSizes,
) -> SizeRange:
    """The sizes up to the limits, and those beyond that show what more would do."""
    limits = [each for each in (query.max_accelerators, system.stock) if each is not None]
    if min(limits, default=units.num_kinds) < units.num_kinds:
        raise UsageError(
            f"{min(limits)} of {system.name}: less than one of each; give {units.num_kinds} or more"
        )
    asked = _asked_for(query, system, units, limits)
    fewest, listed = 1, None
    if asked is not None:
        limits.append(asked.most)
        asked = _in_slices(asked, units.slice_sizes, system.name, is_alone=len(query.systems) <= 1)
        fewest, most = asked.fewest, min(limits)
        if fewest == asked.most == most:
            return _from(most, units)
        listed = None if asked.is_range else frozenset(asked.listed)
        tried = set(asked.listed) if listed else _ladder(units, fewest, most)
    else:
        usual = units.at_least(usual_most(query, system, flop))
        wanted = {*extra.sizes, *(size for name, size in extra.up_to if name == system.name)}
        wanted = {each for each in wanted if is_slice(each, units.slice_sizes)}
        most = min(limits) if limits else max((usual, *known, *wanted))
        # Without a limit the most is a usual size or one with results: whole nodes next below it add nothing.
        tried = _ladder(units, 1, most, has_end=bool(limits)) | {each for each in known if each <= most}
        tried = {*sorted(tried | wanted)[-(MAX_SIZES - 1) :]}
    tried |= _beyond(units, most)
    between = set() if listed else extra.between_of(system.name, units, (fewest, most)) - tried
    return SizeRange(
        tried=tuple(sorted(tried | between)),
        between=frozenset(between),
        fewest=fewest,
        most=most,
        limited_by="question" if limits else "catalogue",
        next_usual=fewest if fewest > most else _next_usual(units, most),
        listed=listed,
        units=units,
    )


def _asked_for(
    query: TrainingQuery, system: RequestedSystem, units: "SizeUnits", limits: Sequence[int]
) -> Sizes | None:
    """The numbers that a question names; of slices of which its limits allow none the smallest, which a
    refusal then names; None where any number up to the limits may be taken.

    Raises UsageError where the system is not had in these.
    """
    asked, least = query.sizes, next(iter(units.slice_sizes), 1)
    if query.num_nodes is not None:
        number = query.num_nodes * units.node_size
        if is_assumed_host(system, query) and query.num_nodes > 1:
            raise UsageError(
                f"--nodes {query.num_nodes}: {units.node_size}x{system.name} are in one node; expected all "
                f"that there are and how many a node has, as {number}x{system.name} "
                f"--node-size {units.node_size}"
            )
        asked = Sizes(listed=(number,))
    if asked is None and min(limits, default=least) < least:
        asked = Sizes(listed=(least,))
    named = () if asked is None or asked.is_range else asked.listed
    uneven = [each for each in named if each % units.num_kinds]
    if uneven:
        raise UsageError(
            f"{system.name} is as many of each of {units.num_kinds} kinds: {uneven[0]} is no multiple of "
            f"{units.num_kinds}"
        )
    return asked


def _slice_sizes(cluster: Cluster) -> tuple[int, ...]:
    """The slices of an accelerator's usual pods; none of pods that are described with another size."""
    chip = cluster.accelerator
    return chip.slice_sizes if cluster.node_size == chip.node_size else ()


def expect_slices(sizes: Collection[int], cluster: Cluster) -> None:
    """Raises UsageError where one of the sizes is no slice of the cluster's accelerator."""
    odd = {*sizes} - {*in_slices(sizes, cluster)}
    if odd:
        raise _no_slice(_listed(odd), _slice_sizes(cluster), cluster.accelerator.slug)


def in_slices(sizes: Collection[int], cluster: Cluster) -> tuple[int, ...]:
    """Those of the sizes that are slices of the cluster's accelerator."""
    slice_sizes = _slice_sizes(cluster)
    return tuple(each for each in sizes if is_slice(each, slice_sizes))


def _listed(sizes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _no_slice(odd: str, slice_sizes: Sequence[int], name: str) -> UsageError:
    return UsageError(
        f"{odd} of {name}: it is had in slices of {', '.join(map(str, slice_sizes))}, or multiples of "
        f"{slice_sizes[-1]}; give one of these"
    )


def _in_slices(asked: Sizes, slice_sizes: Sequence[int], name: str, *, is_alone: bool) -> Sizes:
    """The numbers asked for that are slices; where none is, the next above, more than was asked for.

    name: of the system. is_alone: whether it is the only one asked about.
    Raises UsageError where that is so, with the slices that there are.
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
    """How many of each node's accelerators are used where more than a node is: of odd nodes a power of two.

    Nodes of 72 share out no batch of 1,024, but 64 of each do; where a batch is stated, it cannot give way.
    """
    odd = node_size // (node_size & -node_size)
    if global_batch_samples is None or global_batch_samples % odd == 0:
        return node_size
    return 1 << node_size.bit_length() - 1


def taken_of_node(size: int, node_size: int, global_batch_samples: int | None) -> int:
    """How many of each node so many accelerators are: all, or `used_of_node` where nodes are not whole."""
    used = used_of_node(node_size, global_batch_samples)
    is_partly = size > node_size and size % node_size > 0 and size % used == 0
    return used if is_partly else node_size


def is_slice(size: int, slice_sizes: Sequence[int]) -> bool:
    """Whether a size is one of an accelerator's slices, or a multiple of the largest; any where none are.

    slice_sizes: as of `Accelerator`.
    """
    return not slice_sizes or size in slice_sizes or size % slice_sizes[-1] == 0


# Sizes that are tried at once between two for the smallest that would do.
_MOST_FINER: Final = 16


class SizeUnits(Struct, frozen=True, kw_only=True):
    """What sizes are doublings of: one accelerator, a node and the ranks of a fixed strategy.

    num_kinds: of a mixture, of which there are as many of each. is_whole_nodes: whether more than a node is
    had in whole nodes alone. slice_sizes: as of `Accelerator`. batch: one that is stated, which ranks have to
    share out; None where it is not.
    """

    node_size: int
    batch: int | None
    fixed_ranks: int
    num_kinds: int
    is_whole_nodes: bool
    slice_sizes: tuple[int, ...]

    @property
    def used_of_node(self) -> int:
        """How many of each node are used where more than a node is."""
        return used_of_node(self.node_size, self.batch)

    def may_be(self, size: int) -> bool:
        """Whether a size has as many of each kind, leaves no part of a node unused that is paid for, and is a
        slice of a pod where these are had.
        """
        is_whole = any(size % each == 0 for each in (self.node_size, self.used_of_node))
        is_had = is_whole or size <= self.node_size or not self.is_whole_nodes
        return is_had and size % self.num_kinds == 0 and is_slice(size, self.slice_sizes)

    def doublings(self, most: int, factor: int = 1) -> set[int]:
        """Those of a multiple of each unit, to at least twice as many as `most`."""
        steps = range(math.ceil(math.log2(most)) + 2)
        units = (self.num_kinds, self.used_of_node, self.fixed_ranks)
        return {each for unit in units for step in steps if self.may_be(each := factor * unit * 2**step)}

    def at_least(self, size: int) -> int:
        """The smallest of the doublings that is no less."""
        return min(each for each in self.doublings(size) if each >= size)

    def whole_below(self, size: int) -> int:
        """The most whole nodes that are no more, as accelerators; within a node the size itself, or slice."""
        if self.may_be(size):
            return size
        nodes = size // self.used_of_node * self.used_of_node
        if nodes or not self.slice_sizes:
            return nodes
        last = self.slice_sizes[-1]
        return max((each for each in (*self.slice_sizes, size // last * last) if each <= size), default=0)

    def usual(self, low: int, high: int) -> list[int]:
        """The usual sizes above one and up to another, or to the next usual one beyond it, ascending."""
        end = self.at_least(high)
        return sorted(each for each in self.doublings(high) if low < each <= end)

    def between(self, low: int, high: int, most: int = _MOST_FINER) -> list[int]:
        """Sizes between two, ascending: all that may be had, of more than `most` evenly spaced ones."""
        unit = self.num_kinds
        if self.is_whole_nodes and low >= self.node_size:
            unit = math.lcm(unit, self.used_of_node)
        step = unit * max(1, math.ceil((high - low) / unit / most))
        finer = {*range(low // step * step + step, high, step), *between_usual(self, low, high)}
        return sorted(each for each in finer if low < each < high and self.may_be(each))


def _ladder(units: SizeUnits, fewest: int, most: int, *, has_end: bool = True) -> set[int]:
    """Doublings of the units, the ends; of cards in no rack every number up to a few in one host.

    has_end: whether the most that is whole nodes is among them, and the sizes between it and the last
    doubling: else a larger limit, whose step from there does not pay, could end in fewer accelerators.
    """
    few = 0 if units.is_whole_nodes else min(_SMALL, units.node_size)
    doublings = units.doublings(most)
    sizes = doublings | {fewest} | {*range(1, few + 1)}
    # No power of two shares out a batch of 1,000 beyond 8 ranks: 400 accelerators are faster than 512.
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
    """The sizes between the usual ones: doublings of a few units."""
    sizes = {each for factor in _BETWEEN for each in units.doublings(most, factor)}
    return {each for each in sizes if fewest <= each <= most}


def _next_usual(units: SizeUnits, most: int) -> int:
    """The size that shows what more would do."""
    return min(MAX_ACCELERATORS, *(each for each in units.doublings(most) if each > most))


def _beyond(units: SizeUnits, most: int) -> set[int]:
    """The sizes tried beyond the most that may be taken: curves go on to its double, or the next usual size.

    A usual one, for the double of a limit is often a number that shares out no batch.
    """
    return {min(units.at_least(2 * most), MAX_ACCELERATORS), _next_usual(units, most)}


def units_beyond(cluster: Cluster, problem: Problem | None) -> SizeUnits:
    """Units of the sizes tried beyond a limit of a system: whole nodes but of cards for desktop computers.

    problem: whose stated batch and fixed axes sizes have to share out; None where there is no model.
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
    """The sizes next above a strategy's to which a larger batch lets it grow, between the usual ones.

    Of a usual batch, which may be rounded, that gives each rank no more samples than fill its pipeline, one
    a stage: more ranks need a larger batch, and as much larger it costs no efficiency. Empty of any other
    strategy.
    """
    about, size, batch = problem.training, best.num_accelerators, best.global_batch_samples
    if about.budget.is_to_target or best.dp * best.pp * about.workload.samples_per_example < batch:
        return frozenset()
    units = units_beyond(problem.cluster, problem)
    near = between_usual(units, size + 1, 2 * size)
    return frozenset(each for each in near if max(problem.batches(each)) > batch)


def fixed_ranks(choices: Mapping[str, tuple[Value, ...]]) -> int:
    """How many ranks the fixed axes have together: a size has to be a multiple of them."""
    values = (choices.get(axis, ()) for axis in ("dp", "tp", "pp", "cp"))
    return math.prod(int(each[0]) for each in values if len(each) == 1)


def _from(size: int, units: SizeUnits) -> SizeRange:
    """One size, and its doublings, which show what more would do, and one for the curve."""
    doubled = tuple(size * 2**step for step in range(_DOUBLINGS_BEYOND + 2))
    return SizeRange(
        tried=tuple(each for each in doubled if each <= MAX_ACCELERATORS),
        fewest=size,
        most=size,
        limited_by="catalogue",
        units=units,
    )


# Searches of more sizes than this are kept for the sizes of the last question alone.
_MOST_SIZES: Final = 2 * MAX_SIZES


class SearchedSize(Struct, frozen=True, kw_only=True):
    """What a search at one size found. best: the best strategy in full; None where nothing fits.

    drawn_s: (n_draws,) equally likely times of the training by the best. freed: what was found at any batch,
    where the batch is that of the best published result.
    """

    num_accelerators: int
    found: SearchResult
    best: TimedStrategy | None
    drawn_s: FloatArray
    freed: "SearchedSize | None" = None


class StrategySearches(Struct, frozen=True, kw_only=True):
    """A problem, and what was found at each size, from the smallest. search_s: what finding it took."""

    problem: Problem
    sizes: tuple[SearchedSize, ...] = ()
    search_s: float = 0.0

    def at(self, sizes: Collection[int]) -> tuple[SearchedSize, ...]:
        """What was found at some sizes, from the smallest."""
        return tuple(each for each in self.sizes if each.num_accelerators in sizes)

    def near_axes(self, chosen: Strategy) -> dict[str, tuple[Value, ...]]:
        """The sizes of axes of a strategy and of the best found of its size, as choices: quickly searched."""
        found = (each.strategy for size in self.at((chosen.num_accelerators,)) for each in size.found.best)
        near = (chosen, *found)
        return {axis: tuple(dict.fromkeys(getattr(each, axis) for each in near)) for axis in AXES}

    def with_sizes(self, sizes: Collection[int]) -> "StrategySearches":
        """These searches with those of some sizes; only what is missing is searched, all at once."""
        missing = sorted(set(sizes) - {each.num_accelerators for each in self.sizes})
        if not missing:
            return self
        began = time.perf_counter()
        found = (*self.sizes, *_search_with_fallbacks(self.problem, missing))
        spent_s = time.perf_counter() - began
        by_size = tuple(sorted(found, key=lambda each: each.num_accelerators))
        return replace(self, sizes=by_size, search_s=self.search_s + spent_s)


def _search_with_fallbacks(problem: Problem, sizes: Sequence[int]) -> list[SearchedSize]:
    """What a search finds at each size, and at those of a published batch at any other.

    QLoRA that fits on no layout keeps its weights on the host (of several cards FSDP, Answer.AI 2024: 70B on
    two of 24 GB; of one ZeRO-3 of DeepSpeed, Rajbhandari et al. 2021, ZeRO-Infinity), as it does where it
    only just fits and that is faster; adapters that still do not fit, activations (Unsloth, torchtune).
    Optimizer states are moved to the host wherever that is faster, by any margin: else a chip with more
    memory or faster links could be the slower one.
    """
    with_published = [size for size in sizes if problem.has_published_batch(size)]
    asked = [(problem, size) for size in sizes] + [(problem.freed, size) for size in with_published]
    searched = search_at_once([(_with_states_open(*each), each[1]) for each in asked])
    found = [
        _or_leaner(*each, _generable(*each, result)) for each, result in zip(asked, searched, strict=True)
    ]
    found = _with_activations_on_host(asked, found)
    timed = _timed(problem, [size for _, size in asked], found)
    freed = {each.num_accelerators: each for each in timed[len(sizes) :]}
    return [replace(each, freed=freed.get(each.num_accelerators)) for each in timed[: len(sizes)]]


def _with_states_open(problem: Problem, size: int) -> Problem:
    """The problem, with optimizer states on hosts that hold them where that is open."""
    if not _may_keep_states_away(problem, size):
        return problem
    return replace(problem, choices={**problem.choices, "offload": (STAYS["offload"], "optimizer")})


def _generable(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """What was found, without the strategies of rollouts whose samples no engine can generate."""
    if problem.training.workload.rollout is None:
        return found
    is_generable = any(problem.generation(size, batch) for batch in problem.batches(size))
    return found if is_generable else replace(found, best=())


def _timed(problem: Problem, sizes: Sequence[int], found: Sequence[SearchResult]) -> list[SearchedSize]:
    """What was found at each size, the best in full."""
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
    """What was found, with the activations of adapters on the host wherever that is faster.

    asked: as searched just before. It is tried whatever the memory: a chip with more memory, or with faster
    links, would else be the slower one. What was counted stays the count.
    """
    problem, _ = asked[0]
    choices = problem.with_activations_on_host
    trained = problem.choices.get("trained", ("full",))
    if choices is None or "full" in trained or not _may_move(problem, "activation_offload"):
        return [*found]
    faster = faster_at_once(
        asked,
        {place: each.best[0].training_s for place, each in enumerate(found) if each.best},
        name="activation_offload",
        value=True,
        allowed={"recompute": choices["recompute"], "offload": choices.get("offload", (STAYS["offload"],))},
    )
    both = []
    for place, (each, size) in enumerate(asked):
        moved = replace(each, choices=choices)
        held = [one for one in faster.get(place, ()) if beyond_hosts(moved, one.strategy) is None]
        searched = replace(found[place], best=_best(problem, (*found[place].best, *held)))
        both.append(_or_weights_on_host(moved, size, searched))
    return both


def _may_move(problem: Problem, option: str) -> bool:
    """Whether an option that moves something to the host is left open, and there is a host to move it to."""
    chip = problem.cluster.accelerator
    return option not in problem.choices and not chip.shares_host_memory and chip.memory_bytes is not None


def _merged(problem: Problem, found: SearchResult, other: SearchResult) -> SearchResult:
    """What two searches of one size found, the best first."""
    return replace(
        found,
        num_legal=found.num_legal + other.num_legal,
        num_fitting=found.num_fitting + other.num_fitting,
        best=_best(problem, (*found.best, *other.best)),
    )


def _best(problem: Problem, found: Sequence[FoundStrategy]) -> tuple[FoundStrategy, ...]:
    """The fastest of what was found, as many as the problem asks for."""
    return tuple(sorted(found, key=lambda each: each.training_s)[: problem.num_best])


def _or_leaner(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """What was found, with what needs less of the accelerators' memory where that is short."""
    return _or_weights_on_host(problem, size, found) if found.num_fitting else _leaner(problem, size, found)


def _or_weights_on_host(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """What was found, with strategies of QLoRA that keep weights on hosts with room where memory is short."""
    moved = _weights_on_host(problem, size)
    if not found.best or found.best[0].strategy.recompute != "full" or moved is None:
        return found
    return _merged(problem, found, _held(problem, size, {**problem.choices, **moved}))


def _held(problem: Problem, size: int, choices: Mapping[str, tuple[Value, ...]]) -> SearchResult:
    """What a search finds that hosts hold: where they do not hold the fastest, by smaller micro-batches, of
    which less lies there.
    """
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


def _leaner(problem: Problem, size: int, found: SearchResult) -> SearchResult:
    """What the first of the searches tried instead finds in which anything fits; else the last one in which
    anything is legal.
    """
    for each in _fallbacks(problem, size):
        tried = each.search_size(size)
        found = tried if tried.num_legal or not found.num_legal else found
        if found.num_fitting:
            break
    return found


def first_that_fits(problem: Problem, size: int) -> Problem | None:
    """The first of the searches at a size, fallbacks after it, that would find anything that fits."""
    searches = chain((problem,), _fallbacks(problem, size))
    return next((each for each in searches if each.fits(size)), None)


ON_HOST: Final[Mapping[Value, str]] = {
    "optimizer": "optimizer states",
    "optimizer_and_params": "weights and optimizer states",
}
# Bytes of a trained parameter that leave an accelerator with its optimizer states: two moments and a master
# copy in fp32 (Rajbhandari et al. 2020).
_STATES_BYTES: Final = 12.0
_TABLE_BYTES: Final = 2.0  # of a weight in tables, which QLoRA does not quantise


def on_host_bytes(problem: Problem, chosen: Strategy) -> dict[str, float]:
    """What of a strategy lies in the host's memory, by option, in bytes per accelerator: what it would hold
    besides, were nothing moved.
    """
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
    """What of a strategy lies in the host's memory, by option, in words."""
    names = {"offload": ON_HOST.get(chosen.offload, ""), "activation_offload": "activations"}
    return {
        option: f"{names[option]} on the host: {format_si(moved_bytes, 'B')} each"
        for option, moved_bytes in on_host_bytes(problem, chosen).items()
    }


def beyond_hosts(problem: Problem, chosen: Strategy) -> str | None:
    """How much lies on hosts that are taken to have less memory, in words; None where they hold it.

    Activations alone are moved as far as hosts hold them.
    """
    size, held = chosen.num_accelerators, problem.cluster.accelerator.memory_bytes
    if chosen.offload not in ON_HOST or held is None:
        return None
    moved_bytes = size * sum(on_host_bytes(problem, chosen).values())
    if _hosts_hold(problem, size, moved_bytes):
        return None
    whole, room = format_si_apart(moved_bytes, size * HOST_MEMORY_RATIO * held, "B")
    return (
        f"hosts have to hold {whole} ({format_si(moved_bytes / size, 'B')} for each accelerator); they are "
        f"taken to have {room}, {HOST_MEMORY_RATIO:g} times what their accelerators have"
    )


def _hosts_hold(problem: Problem, size: int, moved_bytes: float) -> bool:
    """Whether the hosts of so many accelerators have room for what is moved to them."""
    held = problem.cluster.accelerator.memory_bytes
    return held is not None and moved_bytes <= HOST_MEMORY_RATIO * held * size


def _weights_on_host(problem: Problem, size: int) -> dict[str, tuple[Value, ...]] | None:
    """The choices that keep weights on the hosts: of QLoRA, where that is left open.

    None where the hosts have no room for them. Of replicas each takes a copy: there are none of groups whose
    part of the hosts' memory has no room for one.
    """
    is_qlora = problem.choices.get("trained") == ("qlora",)
    if not is_qlora or problem.cluster.accelerator.shares_host_memory or problem.training.states_offload:
        return None
    tables = float(problem.load.embedding_params)
    copy_bytes = NF4_BYTES * (float(problem.load.params) - tables) + _TABLE_BYTES * tables
    if not _hosts_hold(problem, size, copy_bytes):
        return None
    moved: dict[str, tuple[Value, ...]] = {"offload": ("optimizer_and_params",)}
    if "dp_replicate" not in problem.choices:
        node_size = problem.cluster.node_size
        tried = [
            each for each in divisors(size) if each == 1 or is_node_aligned(size // each, size, node_size)
        ]
        held = tuple(each for each in tried if _hosts_hold(problem, size // each, copy_bytes))
        if len(held) < len(tried):
            moved["dp_replicate"] = held
    return moved


def _may_keep_states_away(problem: Problem, size: int) -> bool:
    """Whether optimizer states may go to hosts that hold them: left open, and all weights are trained."""
    trained = problem.training.workload.trained_params
    is_full = problem.choices.get("trained", ("full",)) == ("full",)
    if not is_full or trained is None or not _may_move(problem, "offload"):
        return False
    return _hosts_hold(problem, size, _STATES_BYTES * trained)


def _fallbacks(problem: Problem, size: int) -> Iterator[Problem]:
    """What is tried in turn where nothing fits: any batch, then more on the host.

    Of adapters their activations, and weights of QLoRA; of a training of all weights the optimizer states.
    """
    free = problem.freed
    if problem.has_published_batch(size):
        yield free
    trained = problem.choices.get("trained", ("full",))
    if "full" in trained:
        if _may_keep_states_away(problem, size):
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
    """The searches of the problems asked about last, each of a bounded number of sizes; thread-safe.

    What a server is asked again with other money, deadlines or sizes is searched once.
    """

    def __init__(self, most: int = 64) -> None:
        """most: how many problems to keep; about 0.2 MB each."""
        self._most = most
        self._kept: OrderedDict[Hashable, StrategySearches] = OrderedDict()
        self._compared: OrderedDict[Hashable, tuple[TimedStrategy, ...]] = OrderedDict()
        self._fitting: OrderedDict[Hashable, bool] = OrderedDict()
        self._lock = Lock()

    def searches(self, problem: Problem, sizes: Collection[int]) -> StrategySearches:
        """The searches of a problem at these sizes and no others."""
        key = _key(problem)
        known = self._recalled(self._kept, key) or StrategySearches(problem=problem)
        found = known.with_sizes(sizes)
        kept = found if len(found.sizes) <= _MOST_SIZES else replace(found, sizes=found.at(sizes))
        self._keep(self._kept, key, kept)
        return replace(found, problem=problem, sizes=found.at(sizes))

    def fits(self, problem: Problem, size: int) -> bool:
        """Whether a search at this size would find anything that fits."""
        key = _key(problem)
        searches = self._recalled(self._kept, key)
        if searches is not None and (searched := searches.at((size,))):
            return searched[0].found.num_fitting > 0
        of_size = None if key is None else (key, size)
        found = self._recalled(self._fitting, of_size)
        if found is None:
            found = first_that_fits(problem, size) is not None
        self._keep(self._fitting, of_size, found)
        return found

    def compared(
        self, searches: StrategySearches, best: Strategy, *, num_found: int
    ) -> tuple[TimedStrategy, ...]:
        """A strategy's rivals of its size, each in full: the best ones found, and plain data parallelism.

        num_found: how many of those found.
        """
        asked = _key(searches.problem)
        key = None if asked is None else (asked, best, num_found)
        timed = self._recalled(self._compared, key)
        if timed is None:
            of_size = searches.at((best.num_accelerators,))
            found = [each.strategy for size in of_size for each in size.found.best]
            listed = dict.fromkeys((*found[:num_found], *plain_strategies(searches.problem, best)))
            timed = searches.problem.timed([*listed]).strategies
        self._keep(self._compared, key, timed)
        return timed

    def _recalled(self, store: OrderedDict[Hashable, _Kept], key: Hashable | None) -> _Kept | None:
        """What is kept; None where nothing is, or the problem is not one that is kept."""
        with self._lock:
            return store.get(key)

    def _keep(self, store: OrderedDict[Hashable, _Kept], key: Hashable | None, value: _Kept) -> None:
        """Keep a value as the one asked for last, and forget those asked for longest ago."""
        if key is None:
            return
        with self._lock:
            store[key] = value
            store.move_to_end(key)
            while len(store) > self._most:
                store.popitem(last=False)

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._kept.clear()
            self._compared.clear()
            self._fitting.clear()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)


def _key(problem: Problem) -> Hashable | None:
    """What searches depend on; None with the user's own measurements in the model: those are not kept."""
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
