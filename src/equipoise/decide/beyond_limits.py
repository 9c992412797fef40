"""Finds sizes beyond a system's usual or allowed ones that would keep the limits which those break."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.assessment import Inputs
from equipoise.decide.candidates import SystemCandidates, system_candidates
from equipoise.decide.collect import Collected, assess, collect_candidates
from equipoise.decide.question.field import MAX_ACCELERATORS, MAX_SIZES, Sizes
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import LARGE_SYSTEM, is_assumed_host, with_number
from equipoise.decide.strategies.remedies import least_fitting
from equipoise.decide.strategies.size_searches import SizeUnits, between_usual, units_beyond
from equipoise.errors import EvidenceError, UsageError
from equipoise.spec.mlperf import Scores

if TYPE_CHECKING:
    from equipoise.spec.cluster import Cluster

# Stages of the search for a size that keeps the deadline, as (doublings beyond the size needed at perfect
# scaling, whether sizes between the usual ones are tried). The first stage is short, since larger sizes take
# longer to search; None is up to LARGE_SYSTEM. If all usual sizes are late, one between them that divides the
# batch may still be in time.
_SEARCH_STAGES: Final = ((1, False), (None, False), (None, True))

# Sizes beyond the largest allowed one, by system name.
_SizesByName: TypeAlias = Mapping[str, frozenset[int]]


def least_beyond_usual(found: Collected, scores: Scores | None, *, is_refused: bool) -> dict[str, Candidate]:
    """By system, the smallest size beyond the usual ones that keeps every limit.

    Only for open systems (`open_systems`) without a usual size that keeps the limits. Each system is searched
    alone, so that comparing it with others changes nothing (law 3). is_refused: whether no system keeps the
    limits. A refusal needs a size for each system: if none keeps every limit, the smallest that keeps the
    deadline at any cost, else the fastest.
    """
    least: dict[str, Candidate] = {}
    for one in found.systems:
        if one.system.name in open_systems(found) and not one.keeps_limits:
            alone = replace(found, systems=(one,))
            if is_refused or _may_be_in_time(found.inputs.query, one):
                least |= _first_least(alone, scores)[0]
    return {name: each for name, each in least.items() if is_refused or not _breaks_more_than_size(each)}


def least_beyond_limits(found: Collected, scores: Scores | None) -> dict[str, Candidate]:
    """By system, the smallest size beyond its largest allowed one that keeps all other limits.

    Only for systems that are not open. If no size keeps the other limits, the smallest that keeps the
    deadline at any cost, else the fastest. If no allowed size fits into memory, at least the smallest that
    does. Once a usual size is found, the sizes between it and the next smaller one tried are searched.
    """
    opened = open_systems(found)
    limited = replace(found, systems=tuple(one for one in found.systems if one.system.name not in opened))
    least, beyond, tried = _first_least(limited, scores)
    fitting = {one.system.name: _first_to_fit(one) for one in limited.systems}
    while True:
        mosts = {one.system.name: one.assessment.sizes.most for one in tried.systems}
        nearest = min((each.num_accelerators / mosts[name] for name, each in least.items()), default=0.0)
        finer = {
            name: sizes
            for one in tried.systems
            if (name := one.system.name) in least
            and (sizes := _finer_sizes(one, least[name], fitting))
            and min(sizes) < nearest * mosts[name]  # only these could become the nearest size named
        }
        if not finer:
            return least
        beyond = _merged(beyond, finer)
        tried = _with_sizes_beyond(limited, beyond, scores)
        known = {one.system.name: _least_kept(one) for one in tried.systems if one.system.name in finer}
        least |= {name: each for name, each in known.items() if each is not None}


def _first_least(
    found: Collected, scores: Scores | None
) -> tuple[dict[str, Candidate], _SizesByName, Collected]:
    """By system, the usual size with which `least_beyond_limits` starts.

    Returns also the sizes tried beyond the allowed ones, and the candidates including these.
    """
    beyond: _SizesByName = {one.system.name: size for one in found.systems if (size := _first_to_fit(one))}
    tried = _with_sizes_beyond(found, beyond, scores)
    least = {one.system.name: each for one in tried.systems if (each := _least_kept(one)) is not None}
    if least:
        return least, beyond, tried
    in_time, tried = _try_for_deadline(found, beyond, tried, scores)
    least = {
        one.system.name: each
        for one in tried.systems
        if one.system.name in in_time and (each := _least_beyond(one)) is not None
    }
    return least, in_time, tried


def _merged(beyond: _SizesByName, more: _SizesByName) -> dict[str, frozenset[int]]:
    return {name: beyond.get(name, frozenset()) | more.get(name, frozenset()) for name in {**beyond, **more}}


def _try_for_deadline(
    found: Collected, beyond: _SizesByName, tried: Collected, scores: Scores | None
) -> tuple[_SizesByName, Collected]:
    """Tries larger sizes until each system has one that keeps all other limits or no size is left.

    beyond: the sizes tried so far. tried: the candidates including them. Returns both, extended.
    """
    query = found.inputs.query
    if not 0.0 < query.within_s < math.inf:
        return beyond, tried
    for doublings, is_between in _SEARCH_STAGES:
        is_short = _is_late if is_between else _breaks_more_than_size
        larger = {
            one.system.name: sizes
            for one in tried.systems
            if is_short(_least_beyond(one))
            and (sizes := _sizes_for_deadline(query, one, doublings, is_between=is_between))
        }
        if not larger:
            break
        beyond = _merged(beyond, larger)
        tried = _with_sizes_beyond(found, beyond, scores)
    return beyond, tried


def _with_sizes_beyond(found: Collected, beyond: _SizesByName, scores: Scores | None) -> Collected:
    """The candidates, with sizes beyond the limits added, each as if it were the question's limit."""
    query, inputs = found.inputs.query, found.inputs
    if beyond:
        names = {one.system.name for one in found.systems}
        extra = replace(
            inputs.extra, beyond=tuple((name, tuple(sorted(beyond[name]))) for name in sorted(beyond))
        )
        every = collect_candidates(query, inputs.catalogue, scores, runs=inputs.user.runs, extra=extra)
        found = replace(every, systems=tuple(one for one in every.systems if one.system.name in names))
    return with_larger_hosts(found)


def with_larger_hosts(found: Collected) -> Collected:
    """The candidates; those of more cards than an assumed host has are in a host that holds them."""
    return replace(found, systems=tuple(_in_one_host(found.inputs, one) for one in found.systems))


def _in_one_host(inputs: Inputs, one: SystemCandidates) -> SystemCandidates:
    """The candidates of a system assumed to be one host, with larger sizes in a host that holds them."""
    if not is_assumed_host(one.system, inputs.query):
        return one
    sizes = one.assessment.sizes
    shown = [each for each in one.candidates if each.num_accelerators <= sizes.most]
    hosts: dict[Cluster | None, list[int]] = {}
    for size in {each.num_accelerators for each in one.candidates} | sizes.beyond:
        if size > sizes.most:
            nodes = with_number(one.system, size, inputs.query, inputs.catalogue).cluster
            hosts.setdefault(nodes, []).append(size)
    for nodes, members in hosts.items():
        there = system_candidates(inputs, assess(inputs, replace(one.system, cluster=nodes)))
        shown += [each for each in there.candidates if each.num_accelerators in members]
    return replace(one, candidates=tuple(shown))


def _first_to_fit(one: SystemCandidates) -> frozenset[int]:
    """The smallest size beyond the allowed ones that fits into memory, as a set.

    Empty if an allowed size has a time, or if no doubling of the limit fits.
    """
    searches, sizes = one.assessment.searches, one.assessment.sizes
    is_open = sizes.fewest <= sizes.most and one.candidates
    if searches is None or not is_open or any(each.time_s is not None for each in one.allowed):
        return frozenset()
    size = least_fitting(searches.problem, sizes.most)
    return frozenset() if size is None else frozenset({size})


def _timed_beyond_limit(one: SystemCandidates) -> list[Candidate]:
    """A system's candidates beyond its largest allowed size that have a time."""
    most = one.assessment.sizes.most
    return [each for each in one.candidates if each.time_s is not None and each.num_accelerators > most]


def _least_kept(one: SystemCandidates) -> Candidate | None:
    """The smallest size beyond the allowed ones that keeps all other limits; None if none does."""
    kept = [each for each in _timed_beyond_limit(one) if not _breaks_more_than_size(each)]
    return min(kept, key=lambda each: (each.num_accelerators, each.id), default=None)


def _finer_sizes(one: SystemCandidates, least: Candidate, fitting: _SizesByName) -> frozenset[int]:
    """Sizes between the one found and the next smaller one tried, which may keep the limits too.

    Includes sizes between the usual ones from the limit on: one that divides the batch may be faster than a
    larger usual one. Empty if the size found breaks other limits itself or is the smallest that fits.
    """
    size, nodes = least.num_accelerators, one.assessment.cluster
    sizes = one.assessment.sizes
    is_least = size in fitting.get(one.system.name, ()) or sizes.fewest > sizes.most
    if nodes is None or is_least or _breaks_more_than_size(least):
        return frozenset()
    low = max(each for each in {*sizes.tried, sizes.most} if each < size)
    units = _size_units(one)
    finer = {*units.between(low, size), *between_usual(units, sizes.most, low)}
    return frozenset(finer.difference(sizes.tried))


def _size_units(one: SystemCandidates) -> SizeUnits:
    """The units of sizes to try beyond the limit of a system, which must be in the catalogue."""
    nodes, searches = one.assessment.cluster, one.assessment.searches
    assert nodes is not None
    return units_beyond(nodes, None if searches is None else searches.problem)


def _breaks_more_than_size(each: Candidate | None) -> bool:
    """Whether a candidate breaks any limit other than the number of accelerators; true for None."""
    return each is None or any(one.name != "max_accelerators" for one in each.broken)


def _is_late(each: Candidate | None) -> bool:
    """Whether a candidate misses the deadline; true for None."""
    return each is None or any(one.name == "deadline_s" for one in each.broken)


def _sizes_for_deadline(
    query: TrainingQuery, one: SystemCandidates, doublings: int | None, *, is_between: bool
) -> frozenset[int]:
    """Usual sizes of a system, or those between them, to try in order to keep the deadline.

    Empty if a known size would keep it at perfect scaling, or if larger ones are not available. doublings:
    how far beyond the size needed at perfect scaling; None is up to LARGE_SYSTEM.
    """
    sizes = one.assessment.sizes
    is_host = is_assumed_host(one.system, query)  # few cards: nobody has hundreds of them
    if is_host or one.assessment.cluster is None or sizes.fewest > sizes.most:
        return frozenset()
    most, ideal = _at_perfect_scaling(query, one)
    if ideal <= most or most >= LARGE_SYSTEM:
        return frozenset()
    if doublings is None or ideal > LARGE_SYSTEM:
        end = LARGE_SYSTEM
    else:
        end = min(LARGE_SYSTEM, 1 << math.ceil(math.log2(ideal) + doublings))
    units = _size_units(one)
    return frozenset(between_usual(units, sizes.most, end) if is_between else units.usual(sizes.most, end))


def _at_perfect_scaling(query: TrainingQuery, one: SystemCandidates) -> tuple[int, float]:
    """The largest size of a system, and the size that would keep the deadline at perfect scaling from there.

    Both are zero if no size has a time.
    """
    timed = [each for each in one.allowed if each.time_s is not None]
    larger = _timed_beyond_limit(one)
    most = one.assessment.sizes.most if timed else max((each.num_accelerators for each in larger), default=0)
    fastest_s = min((each.known_time_s.value for each in timed or larger), default=0.0)
    return most, most * fastest_s / query.within_s


def _may_be_in_time(query: TrainingQuery, one: SystemCandidates) -> bool:
    """Whether a larger size is the first to fit, or one up to LARGE_SYSTEM could keep the deadline."""
    is_timed = 0.0 < query.within_s < math.inf
    return bool(_first_to_fit(one)) or (is_timed and _at_perfect_scaling(query, one)[1] <= LARGE_SYSTEM)


def _least_beyond(one: SystemCandidates) -> Candidate | None:
    """The size beyond the allowed ones that a refusal can offer; None if there is none.

    The smallest that keeps all other limits, else the smallest that keeps the deadline, else the fastest,
    unless an allowed size is as fast.
    """
    larger = _timed_beyond_limit(one)
    in_time = [each for each in larger if not _is_late(each)]
    least = _least_kept(one) or min(in_time, key=lambda each: (each.num_accelerators, each.id), default=None)
    if least is not None:
        return least
    timed = [*(each for each in one.allowed if each.time_s is not None), *larger]
    fastest = min(
        timed, key=lambda each: (each.known_time_s.value, each.num_accelerators, each.id), default=None
    )
    return fastest if fastest in larger else None


def open_systems(found: Collected) -> set[str]:
    """Names of the systems without a size limit.

    Empty if the question states a size or leaves open what to rent; else systems without a stock that are not
    desktop cards.
    """
    query = found.inputs.query
    if query.states_size or query.compares_rentable:
        return set()
    systems = (one.system for one in found.systems)
    return {each.name for each in systems if each.stock is None and not each.is_desktop}


def with_sizes_beyond_limits(
    found: Collected, least: Mapping[str, Candidate], scores: Scores | None
) -> Collected:
    """The candidates, with the sizes found by `least_beyond_limits` added.

    For systems with a time, only sizes that break no limit but that of size. Open systems are left out, since
    their sizes were tried before. least: by system.
    """
    opened = open_systems(found)
    no_time = {one.system.name for one in found.systems if all(each.time_s is None for each in one.allowed)}
    shown = {
        name: frozenset({each.num_accelerators})
        for name, each in least.items()
        if name not in opened and (name in no_time or not _breaks_more_than_size(each))
    }
    return _with_sizes_beyond(found, shown, scores)


def may_keep_budget_on_spot(found: Collected) -> bool:
    """Whether spot capacity, which costs less, might keep a budget that is broken.

    False if the question states terms or prices.
    """
    query = found.inputs.query
    if query.budget_usd is None or query.terms or query.quotes is not None:
        return False
    return any(
        each.time_s is not None and any(limit.name == "budget_usd" for limit in each.broken)
        for one in found.systems
        if one.assessment.cluster is not None and one.system.usd_per_accelerator_hour is None
        for each in one.candidates
    )


def near_sizes(asked: int, found: Collected, scores: Scores | None) -> tuple[int, ...]:
    """The nearest sizes below and above a number of accelerators that have a time, if any.

    Tries the nearest multiples of powers of two, among which a batch divides more easily, powers of two up to
    the next one, and the number itself, which may have a time when smaller sizes are tried too.
    """
    powers = [1 << each for each in range(asked.bit_length() + 1)]
    sizes = {asked // each * each for each in powers} | {-(-asked // each) * each for each in powers}
    tried = sorted(each for each in {*sizes, *powers} if 1 <= each <= MAX_ACCELERATORS)[-MAX_SIZES:]
    query = replace(
        found.inputs.query, sizes=Sizes(listed=tuple(tried)), num_nodes=None, max_accelerators=None
    )
    try:
        others = collect_candidates(query, found.inputs.catalogue, scores, runs=found.inputs.user.runs)
    except (EvidenceError, UsageError):
        return ()
    timed = {
        each.num_accelerators for one in others.systems for each in one.allowed if each.time_s is not None
    }
    below, above = [each for each in timed if each < asked], [each for each in timed if each > asked]
    return (*sorted(below)[-1:], *sorted(above)[:1])
