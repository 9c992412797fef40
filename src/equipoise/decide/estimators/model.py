"""The performance model as an estimator: times of the best strategy that the search found at each size.

Also carries results of the nearest chip over to one that has none, and derives bounds from other chips.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Literal, TypeAlias, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
from equipoise.decide.combine import (
    combined_record,
    model_kind,
    nearest_size,
    scaled_curves,
    straight_between,
    with_time,
)
from equipoise.decide.evidence import (
    BoundKind,
    DrawnCurves,
    Estimate,
    Estimates,
    OrderBound,
    beyond_replicates,
    growth_of,
    level_at,
)
from equipoise.decide.strategies.size_searches import SearchedSize, StrategySearches
from equipoise.decide.strategies.strategy_search import Problem
from equipoise.errors import SpecError
from equipoise.files import shipped_record
from equipoise.intervals import log_sd
from equipoise.perfmodel.estimate import step_seconds
from equipoise.perfmodel.layouts import grid
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import (
    Accelerator,
    at_least_as_good,
    has_same_peaks,
    is_same_chip,
    is_same_family,
    peak_log2,
)
from equipoise.spec.mlperf import Entries, round_key
from equipoise.spec.strategy import DTYPE_OF, PRIORS_ONLY, Strategy
from equipoise.units import format_count, tenths, whole_percent

# `chip`: a chip with the same peaks (another form, memory or links); `maker`: another chip of the same maker
# and kind. Chips of other makers are less accurate than the model alone (docs/experiments/0021).
Nearness: TypeAlias = Literal["chip", "maker"]
_KINDS: tuple[BoundKind, ...] = get_args(BoundKind)
TRANSFER_RECORD_NAME = "transfer.json"
# Distance for each round of age, in doublings of peak, since software improves.
_DOUBLINGS_PER_ROUND = 0.25
# Results that take longer than this many times the modelled time are taken to use different software.
# Source: of 184 pairs of workload and accelerator (v0.5 to v5.1) the result nearest to the model took 1.03
# times as long (median); seven took more than this, by tinygrad, on CPUs, on TPU v4 and once on A100, and
# none between 3.4 and 3.9 times.
_OTHER_SOFTWARE_RATIO = 3.5


class NearChip(Struct, frozen=True, kw_only=True):
    """A chip with results that is near to one without. doublings: distance."""

    chip: Accelerator
    nearness: Nearness
    doublings: float


class TransferRecord(Struct, frozen=True, kw_only=True):
    """Errors of times carried over to held-out chips, by nearness.

    log_sd: of the log errors. median, p90: of |carried / published - 1|; modelled_median, modelled_p90: of
    the model alone on the same results. coverage: of the 90 % interval, with its width from the other chips.
    """

    nearness: Nearness
    num_held_out: int
    num_chips: int
    log_sd: float
    median: float
    p90: float
    coverage: float
    modelled_median: float
    modelled_p90: float

    @property
    def of(self) -> str:
        """The held-out data, in words."""
        what = "a chip with the same peaks" if self.nearness == "chip" else "another chip of its maker"
        return f"results of {self.num_chips} held-out chips, carried over from {what}"


class _Transfers(Struct, frozen=True, kw_only=True):
    """The contents of TRANSFER_RECORD_NAME."""

    records: tuple[TransferRecord, ...]


@cache
def transfer_records() -> tuple[TransferRecord, ...]:
    """The shipped records. Raises DataError if their file is missing or not as its writer writes it."""
    return shipped_record(TRANSFER_RECORD_NAME, _Transfers, made_by="profiles").records


def transfer_record(nearness: Nearness) -> TransferRecord:
    """The record of a nearness. Raises DataError as `transfer_records` does."""
    return next(each for each in transfer_records() if each.nearness == nearness)


def nearest_chips(
    best: Entries, workload: str, target: Accelerator, sizes: Sequence[int], catalogue: Catalogue
) -> tuple[NearChip, ...]:
    """The chips with results of a workload that are near to one without, the nearest first.

    best: as returned by `best_per_size`, of MLPerf rounds only. sizes: the usual ones of the target.
    The same chip in another form and chips with the same peaks come first, then others of its maker and kind.
    Each group is ordered by distance: in peak, plus the age of its newest result and the doublings by which
    the sizes lie outside those with results.
    """
    others = [each for each in best if each.workload == workload and each.accelerator != target.slug]
    rounds = sorted({each.campaign for each in others}, key=round_key)
    found = []
    for slug in dict.fromkeys(each.accelerator for each in others):
        try:
            chip = catalogue.accelerator(slug)
        except SpecError:
            continue
        nearness = _nearness(target, chip)
        apart = abs(peak_log2(chip) - peak_log2(target))
        if nearness is None or not math.isfinite(apart):
            continue
        results = [each for each in others if each.accelerator == slug]
        newest = max(rounds.index(each.campaign) for each in results)
        known = np.array([each.num_accelerators for each in results], dtype=float)
        far = _DOUBLINGS_PER_ROUND * (len(rounds) - 1 - newest) + _doublings_outside(sizes, known)
        found.append(NearChip(chip=chip, nearness=nearness, doublings=apart + far))
    return tuple(sorted(found, key=lambda each: (each.nearness != "chip", each.doublings)))


def _nearness(target: Accelerator, chip: Accelerator) -> Nearness | None:
    if is_same_chip(target, chip) or has_same_peaks(target, chip):
        return "chip"
    return "maker" if is_same_family(target, chip) else None


def _doublings_outside(sizes: Sequence[int], known: FloatArray) -> float:
    """Mean number of doublings by which sizes lie outside the range of known ones."""
    places = np.log2(np.asarray(sizes, dtype=float))
    low, high = float(np.log2(known.min())), float(np.log2(known.max()))
    return float(np.maximum(0.0, np.maximum(places - high, low - places)).mean())


def carried_over(
    published: Estimates,
    near: NearChip,
    *,
    here_s: Mapping[int, float],
    there_s: Mapping[int, float],
    record: TransferRecord,
) -> Estimates | None:
    """Estimates carried over from the results of a near chip; None if no size is modelled on both chips.

    published: the estimates of the near chip. here_s, there_s: modelled working times by size, of the chip
    asked about and of the near one.
    Assumes that the model's relative error for a workload is the same on both chips.
    Source: T(N) = T_there(N) T_model_here(N) / T_model_there(N); errors as for held-out chips, and never less
    than those of the results themselves.
    """
    shared = sorted(set(published.by_size) & set(here_s) & set(there_s))
    if not shared:
        return None
    ratios = {size: here_s[size] / there_s[size] for size in shared}
    error = tenths(record.median)
    found: dict[int, Estimate] = {}
    for size in shared:
        start = published.by_size[size]
        spread = max(record.log_sd, start.log_sd)
        found[size] = with_time(
            start,
            ratios[size] * start.time_s.value,
            spread,
            name=f"carried from results of {near.chip.title} by the model",
            why=f"{ratios[size]:.2f} times the time of {near.chip.title}, by the model; "
            f"{format_count(record.num_held_out)} {record.of}, were off by {error} (median)",
        )
    return replace(
        published,
        name=f"results of {near.chip.title}, carried over",
        by_size=found,
        grade=dict.fromkeys(found, "carried"),
        curves=_carried_curves(published, ratios),
    )


def order_bounds(
    nodes: Cluster,
    others: Sequence[tuple[Cluster, Estimates]],
    *,
    modelled_s: Mapping[int, float],
    has_results: bool,
    bounds_carried: bool = False,
) -> dict[int, tuple[OrderBound, ...]]:
    """By size, the closest bound of either kind.

    nodes: of the chip asked about. others: usual nodes of other chips with results, and their estimates.
    has_results: whether the chip has its own results, which are better evidence than a better chip's slow
    ones. bounds_carried: whether times only carried to a size on a better chip are lower bounds too.
    modelled_s: the modelled time of the chip asked about, by size.
    Assumes that a better chip of the same maker is at least as fast, since the software is the same. For a
    chip whose times come from another form of it, times only carried to a size are no lower bounds, since
    results of worse chips are usually faster than these. Results so slow that their software must differ are
    no lower bounds either. If a worse chip's result is faster than a better chip's, it replaces the latter.
    Source: docs/experiments/0021.
    """
    found: dict[int, list[OrderBound]] = {}
    for other, estimates in others:
        for size, each in estimates.by_size.items():
            for kind in _KINDS:
                better, worse = (nodes, other) if kind == "at_most" else (other, nodes)
                is_bound = kind == "at_most" or (
                    not has_results
                    and (bounds_carried or estimates.grade[size] == "published")
                    and not is_of_other_software(each.time_s.value, modelled_s.get(size))
                )
                if is_bound and is_ordered(better, worse, size):
                    time_s = each.time_s.value if kind == "at_most" else _least_ordered_s(other, size, others)
                    found.setdefault(size, []).append(
                        OrderBound(
                            kind=kind,
                            accelerator=other.accelerator.slug,
                            num_accelerators=size,
                            time_s=time_s,
                            grade=estimates.grade[size],
                        )
                    )
    return {size: closest_bounds(bounds) for size, bounds in found.items()}


def _least_ordered_s(nodes: Cluster, size: int, others: Sequence[tuple[Cluster, Estimates]]) -> float:
    """The shortest time at a size among a system and all others that are in no fact better."""
    return min(
        estimates.by_size[size].time_s.value
        for other, estimates in others
        if size in estimates.by_size and (other is nodes or is_ordered(nodes, other, size))
    )


def is_of_other_software(time_s: float, modelled_s: float | None) -> bool:
    """Whether a published time is so much longer than modelled that its software must be different."""
    return modelled_s is not None and time_s > _OTHER_SOFTWARE_RATIO * modelled_s


def is_ordered(better: Cluster, worse: Cluster, num_accelerators: int) -> bool:
    """Whether a size of one system is in every stated fact at least as good as the same size of another.

    The facts are chip, links and node; the network between nodes does not count within a node.
    """
    if not at_least_as_good(better.accelerator, worse.accelerator):
        return False
    if better.intra.byte_per_s < worse.intra.byte_per_s:
        return False
    if num_accelerators <= better.node_size and better.intra.byte_per_s >= worse.inter.byte_per_s:
        return True
    return (
        better.inter.byte_per_s >= worse.inter.byte_per_s
        and _is_no_more_oversubscribed(better, worse)
        and better.node_size >= min(worse.node_size, num_accelerators)
    )


def _is_no_more_oversubscribed(better: Cluster, worse: Cluster) -> bool:
    more_in_a_leaf = better.leaf_nodes * better.node_size >= worse.leaf_nodes * worse.node_size
    return better.oversubscription <= (worse.oversubscription if more_in_a_leaf else 1.0)


def closest_bounds(bounds: Sequence[OrderBound]) -> tuple[OrderBound, ...]:
    """The closest bound of either kind."""
    upper = [each for each in bounds if each.kind == "at_most"]
    lower = [each for each in bounds if each.kind == "at_least"]
    found = [min(upper, key=lambda each: each.time_s)] if upper else []
    return (*found, max(lower, key=lambda each: each.time_s)) if lower else tuple(found)


def violated_bound(time_s: float, bounds: Sequence[OrderBound]) -> OrderBound | None:
    """The bound that a time violates; None if it keeps both.

    If both cannot be kept, the upper bound, from the lesser chip, decides, since that time was reached.
    """
    kept = {each.kind: each for each in bounds}
    upper, lower = kept.get("at_most"), kept.get("at_least")
    if upper is not None and (time_s > upper.time_s or (lower is not None and lower.time_s > upper.time_s)):
        return upper
    return lower if lower is not None and time_s < lower.time_s else None


def _carried_curves(published: Estimates, ratios: Mapping[int, float]) -> DrawnCurves | None:
    """The curves scaled by the ratios, restricted to sizes that have one; None if none are left."""
    known = published.curves
    if known is None:
        return None
    low, high = max(known.domain.smallest, min(ratios)), min(known.domain.largest, max(ratios))
    if low > high:
        return None
    return replace(scaled_curves(known, ratios), domain=Domain(smallest=low, largest=high))


def model_estimates(searches: StrategySearches) -> Estimates | None:
    """Modelled times of the best strategy at each size; None if nothing fits.

    If the samples of the training are unknown, the times are for a unit of samples: only ratios are valid.
    """
    fitting = [each for each in searches.sizes if each.best is not None]
    if not fitting:
        return None
    model, why = searches.problem.model, _plan_errors_words(searches.problem)
    name = f"the performance model ({model.basis})"
    found: dict[int, Estimate] = {}
    for each in fitting:
        assert each.best is not None
        found[each.num_accelerators] = Estimate(
            estimator="model",
            name=name,
            time_s=each.best.work_s,
            log_sd=_model_log_sd(searches, each),
            why=why,
        )
    return Estimates(
        estimator="model",
        name=name,
        by_size=found,
        grade=dict.fromkeys(found, "priors" if model.calibration == PRIORS_ONLY else "calibrated"),
        sources=(
            EvidenceSource(
                kind="model",
                ref=f"performance model, calibration {model.calibration}: {model.words}",
            ),
        ),
        curves=_curves(fitting),
    )


def _plan_errors_words(problem: Problem) -> str:
    """Words for the errors of plans of such trainings."""
    record, factor = problem.record, problem.time_per_step_time
    error = whole_percent(record.median)
    if problem.training.workload.rollout is not None:
        return f"modelled steps times {factor:.2f}, the median ratio of ten published steps of this kind"
    if problem.training.is_pretraining and problem.has_own_steps:
        return f"measured steps times {factor:.2f}, the median ratio of four published pretrainings"
    quick = problem.quick_pretraining
    if quick is not None:
        return (
            f"modelled steps times {factor:.2f}: the published pretraining {quick.title} took "
            f"{quick.time_per_usual_time:.2f} times as long as others with such steps"
        )
    if problem.training.is_pretraining:
        return (
            f"modelled steps times {factor:.2f}, the median ratio of {record.num_trainings} published "
            f"pretrainings for this much work; they differ from it by {error} (median)"
        )
    return f"{record.num_trainings} plans of published trainings: off by {error} (median)"


def usual_precision_ratio(known: Problem, chosen: Strategy) -> float:
    """Time of a strategy in bf16 over that in its own precision; 1 unless that is fp8 or fp4 on a bf16 chip.

    Assumes the same strategy, even if another would be chosen in bf16.
    """
    dtype = DTYPE_OF[chosen.precision]
    if dtype not in {"fp8", "fp4"} or known.cluster.accelerator.peak_bf16_flop_per_s is None:
        return 1.0
    nodes = known.machine(chosen.num_accelerators)
    usual = grid((replace(chosen, precision="bf16"),))
    usual_s, own_s = (
        np.asarray(step_seconds(known.load, nodes, each, known.model.parameters)[0]).ravel()[0]
        for each in (usual, grid((chosen,)))
    )
    return float(usual_s / own_s)


def published_levels(published: Estimates, model: Estimates, sizes: Collection[int]) -> dict[int, float]:
    """By size, published over modelled time of unrestricted trainings.

    sizes: with results.
    """
    shared = sorted({*sizes} & {*published.by_size} & {*model.by_size})
    return {size: published.by_size[size].time_s.value / model.by_size[size].time_s.value for size in shared}


def at_published_level(
    model: Estimates, published: Estimates, levels: Mapping[int, float], *, is_one_users: bool = False
) -> Estimates:
    """The model's estimates scaled by the level of the nearest published result; unchanged without levels.

    published: under the same restrictions as the model's estimates. levels: from `published_levels`, without
    restrictions, which could otherwise lower a level. is_one_users: whether the results are trainings of the
    user on one machine. Levels are then interpolated between sizes, and extrapolated if they grow
    significantly. The errors are those of such times at that ratio of sizes, plus for the user's trainings
    the uncertainty of their repetitions.
    Source: data/combined.json; docs/experiments/0058.
    """
    if not levels:
        return model
    logs = {size: math.log(level) for size, level in levels.items()}
    growth = growth_of(logs) if is_one_users else 0.0
    found = {}
    for size, each in model.by_size.items():
        nearest = nearest_size(levels, size)
        is_own = size in levels and size in published.by_size
        level = math.exp(level_at(logs, size, growth)) if is_one_users else levels[nearest]
        time_s = published.by_size[size].time_s.value if is_own else level * each.time_s.value
        spread = combined_record().at(max(size / nearest, nearest / size)).modelled_log_sd
        if is_one_users:
            spread = math.hypot(spread, beyond_replicates(published.by_size[nearest].log_sd))
        name = f"{each.name}, scaled to the results at {format_count(nearest)}"
        found[size] = with_time(each, time_s, spread, name=name)
    return replace(model, by_size=found)


def _model_log_sd(searches: StrategySearches, found: SearchedSize) -> float:
    """The model's log standard deviation; for a training to a target, at least that of published ones."""
    assert found.best is not None
    stated = log_sd(found.best.work_s)
    if searches.problem.training.budget.batches is None:
        return stated
    return max(stated, combined_record().modelled_log_sd[model_kind(searches.problem.training.workload)])


def _ever_faster(searched: list[SearchedSize]) -> list[SearchedSize]:
    """The sizes, ascending, that are faster than all smaller ones; others would leave accelerators idle."""
    found: list[SearchedSize] = []
    for each in searched:
        assert each.best is not None
        last = found[-1].best if found else None
        if last is None or each.best.work_s.value < last.work_s.value:
            found.append(each)
    return found


def _curves(searched: list[SearchedSize]) -> DrawnCurves | None:
    """Curves over all searched sizes, without extrapolation; None for a single size."""
    if len(searched) == 1:
        return None
    faster = _ever_faster(searched)
    drawn_s = np.array([each.drawn_s for each in faster]).T
    return DrawnCurves(
        time_s=straight_between([each.num_accelerators for each in faster], drawn_s),
        domain=Domain(
            smallest=float(searched[0].num_accelerators), largest=float(searched[-1].num_accelerators)
        ),
        reach=1.0,
        by_size={each.num_accelerators: each.drawn_s for each in searched},
    )
