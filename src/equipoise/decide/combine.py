"""Several estimates of one time as one.

How wrong each was on held-out data, its weight, the combined interval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.profiles import architecture
from equipoise.decide.evidence import LEAST_LOG_SD, Curves, DrawnCurves, Estimate, Estimates
from equipoise.files import shipped_record
from equipoise.intervals import DEVIATE, Interval, num_sd, with_log_sd
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.spec.hardware import Accelerator, usual_peak_flop_per_s
from equipoise.spec.workload import Workload

ModelKind: TypeAlias = Literal["transformer", "other"]
# Trainings to a published target, by kind of model, and pretrainings of language models on stated tokens, of
# dense ones and of mixtures of experts.
PretrainingKind: TypeAlias = Literal["dense pretraining", "expert pretraining"]
PlanKind: TypeAlias = Literal[ModelKind, PretrainingKind]
PLAN_RECORD_NAME = "plans.json"
# FLOP between which pretrainings come to take longer than their steps, of 30 and 1,000 hours of an A100: one
# of hours on a node is watched by who wrote it, and made of nothing but steps (docs/experiments/0062).
_LONGER_FROM_FLOP, _LONGER_TO_FLOP = 1e19, 3e20
_SAME_PARAMS = 0.001  # relative difference of numbers of parameters within which models are the same


class PlanRecord(Struct, frozen=True, kw_only=True):
    """Errors of planned times, |planned / published - 1|, each workload with equal weight.

    num_unexpressed: trainings that had no plan: what the workload asks for is not known, or nothing fits.
    workloads: of pretrainings the families of models. bias: median of planned over published; of pretrainings
    that of _LONGER_TO_FLOP and more. log_half_width: of the interval at `level`. Plans of
    pretrainings take longer than their steps by the bias, here by that of all other families: what
    evaluation, checkpoints, restarts, slow nodes and growing batches and sequences add to the steps is in
    what was published.
    """

    kind: PlanKind
    num_trainings: int
    num_unexpressed: int
    workloads: tuple[str, ...]
    median: float
    p90: float
    bias: float
    level: float
    log_half_width: float

    def time_per_step_time(self, training_flop: float | None) -> float:
        """Time of pretrainings over that of their steps, by their FLOP; all of it where these are not known.

        Assumes that it grows with their logarithm. Source: docs/experiments/0062.
        """
        return float(self.bias ** -share_of_bias(training_flop))


def share_of_bias(training_flop: float | None) -> float:
    """How much of the logarithm of a bias counts, by FLOP of a training: none of few, all of many or unknown.

    >>> [round(share_of_bias(flop), 2) for flop in (1e18, 5.5e19, 1e24, None)]
    [0.0, 0.5, 1.0, 1.0]
    """
    if training_flop is None:
        return 1.0
    whole = math.log(_LONGER_TO_FLOP / _LONGER_FROM_FLOP)
    return min(1.0, max(0.0, math.log(training_flop / _LONGER_FROM_FLOP) / whole))


class WorkloadPlans(Struct, frozen=True, kw_only=True):
    """How far planned times of one workload were from published ones. bias: median of planned over published.

    median: of |planned / published - 1|.
    """

    workload: str
    num_trainings: int
    bias: float
    median: float


class PlannedPretraining(Struct, frozen=True, kw_only=True):
    """A published pretraining as planned. step_hours_ratio: hours of its steps over those published.

    params, active_params: of the model, all of them and those that a token passes. best_hours_ratio: as
    step_hours_ratio, by the best strategy of all, whatever was stated of its own. peak_flop_per_s,
    memory_byte_per_s: of its accelerator, as `usual_peak_flop_per_s`.
    """

    title: str
    kind: PretrainingKind
    params: float
    active_params: float
    step_hours_ratio: float
    best_hours_ratio: float
    training_flop: float
    peak_flop_per_s: float
    memory_byte_per_s: float

    @property
    def time_per_usual_time(self) -> float:
        """Published time over that which pretrainings of its kind and FLOP take by the best strategy."""
        return 1.0 / (self.best_hours_ratio * record_of(self.kind).time_per_step_time(self.training_flop))

    def time_per_step_time(self, training_flop: float | None, chip: Accelerator) -> float:
        """Time of a pretraining of this model over that of its steps: as usual, by as much less as this took.

        One of fewer FLOP, of which less is usual beside its steps, has less to spare: its steps are no faster
        than those of this one. That its code was faster than the model says nothing of other code on a chip
        that is slower: there no training takes less than its steps.
        """
        usual = record_of(self.kind).time_per_step_time(training_flop)
        took = max(usual * self.time_per_usual_time, min(usual, 1.0 / self.best_hours_ratio))
        rates = usual_peak_flop_per_s(chip) or 0.0, chip.memory_byte_per_s or 0.0
        is_as_fast = rates[0] >= self.peak_flop_per_s and rates[1] >= self.memory_byte_per_s
        return took if is_as_fast else max(1.0, took)


class _Plans(Struct, frozen=True, kw_only=True):
    """What PLAN_RECORD_NAME holds."""

    records: tuple[PlanRecord, ...]
    workloads: tuple[WorkloadPlans, ...]
    pretrainings: tuple[PlannedPretraining, ...]


@cache
def _plans() -> _Plans:
    return shipped_record(PLAN_RECORD_NAME, _Plans, made_by="profiles")


def plan_records() -> tuple[PlanRecord, ...]:
    """The records that ship.

    Raises DataError where their file is missing or not what records/plans.py writes.
    """
    return _plans().records


@cache
def workload_plans() -> Mapping[str, WorkloadPlans]:
    """By workload, those that some training was planned of. Raises DataError as `plan_records` does."""
    return {each.workload: each for each in _plans().workloads}


@cache
def planned_pretrainings() -> Mapping[str, PlannedPretraining]:
    """The published pretrainings that were planned, by title. Raises DataError as `plan_records` does."""
    return {each.title: each for each in _plans().pretrainings}


def model_kind(about: Workload) -> ModelKind:
    """What kind of model a workload trains."""
    return "other" if about.transformer is None else "transformer"


def pretraining_kind(about: Workload) -> PretrainingKind:
    """What kind of pretraining a workload's is."""
    has_experts = architecture(about) == "mixture of experts"
    return "expert pretraining" if has_experts else "dense pretraining"


def record_of(kind: PlanKind) -> PlanRecord:
    """The record of one kind of plans. Raises DataError as `plan_records` does."""
    return next(each for each in plan_records() if each.kind == kind)


def quick_pretraining(about: Workload) -> PlannedPretraining | None:
    """The published pretraining of this model that took least beside its steps, if less than is usual.

    None where none of the model was published, or all took longer than is usual: they show what can be
    reached, not what must be lost (docs/experiments/0068). A model is known by its numbers of parameters,
    which padded vocabularies change by less than _SAME_PARAMS.
    Raises DataError as `plan_records` does.
    """
    if about.transformer is None:
        return None
    size, active = about.transformer.params, about.transformer.active_params
    same = [
        each
        for each in planned_pretrainings().values()
        if math.isclose(each.params, size, rel_tol=_SAME_PARAMS)
        and math.isclose(each.active_params, active, rel_tol=_SAME_PARAMS)
    ]
    quickest = min(same, key=lambda each: each.time_per_usual_time, default=None)
    return None if quickest is None or quickest.time_per_usual_time >= 1.0 else quickest


COMBINED_RECORD_NAME = "combined.json"


class Jump(Struct, frozen=True, kw_only=True):
    """Errors at sizes up to `most` times the largest known; None: without end.

    published_scale: root mean square error of the pooled law over the standard deviation that its interval
    stands for. modelled_log_sd: root mean square error of plans at the level of the largest known.
    """

    most: float | None
    num_held_out: int
    published_scale: float
    modelled_log_sd: float


class CombinedRecord(Struct, frozen=True, kw_only=True):
    """Errors of logarithms of time on the largest size of a group, held out, where a plan has it too.

    by_jump: errors by how many times the largest size known the size is. modelled_log_sd: root mean square
    error of plans that choose their batch and know no result of the group, by kind of model, of all.
    correlation: between the errors of published and modelled times. carried_log_sd: of a published time
    carried by the model over so many doublings, from 0. median, p90, coverage: of the joint answer, errors as
    |joint / published - 1|; published_median, published_p90, modelled_median: of each alone; alone_median: of
    plans that know no result of the group.
    """

    num_held_out: int
    by_jump: tuple[Jump, ...]
    modelled_log_sd: Mapping[ModelKind, float]
    correlation: float
    carried_log_sd: tuple[float, ...]
    num_carried: int
    median: float
    p90: float
    coverage: float
    published_median: float
    published_p90: float
    modelled_median: float
    alone_median: float

    def at(self, jump: float) -> Jump:
        """The errors at a size so many times the largest known."""
        return next(each for each in self.by_jump if each.most is None or jump <= each.most)

    def carried(self, num_doublings: float) -> float:
        """The error of carrying a time over so many doublings, straight between whole numbers of them."""
        places = np.arange(len(self.carried_log_sd))
        return float(np.interp(num_doublings, places, self.carried_log_sd))


class _Combined(Struct, frozen=True, kw_only=True):
    """What COMBINED_RECORD_NAME holds."""

    record: CombinedRecord


@cache
def combined_record() -> CombinedRecord:
    """The record that ships.

    Raises DataError where its file is missing or not what records/combined.py writes.
    """
    return shipped_record(COMBINED_RECORD_NAME, _Combined, made_by="profiles").record


# Errors of the estimators go together: they share the level of the known results, the samples to target, the
# year's software. About what was seen on results held out (0.27: data/combined.json).
CORRELATION = 0.3
_STEPS_PER_OCTAVE = 8
_NUM_CURVES = 200
_ROUNDING = 2.0**-30


class Combined(Struct, frozen=True, kw_only=True):
    """The combined estimate. weights: (n,), which sum to 1, in the order given.

    disagreement: by how much the evidence differs beyond what its own widths explain, 1 where it does not:
    the factor by which the interval was widened.
    """

    time: Interval
    weights: tuple[float, ...]
    disagreement: float


def shares(log_sds: FloatArray) -> FloatArray:
    """The weight of each estimate, along the first axis; they sum to 1 there.

    log_sds: (n_estimates, ...) standard deviations of errors of the logarithm, positive; infinite where an
    estimator has none.
    Assumes nothing of the correlation: weights that use it are unstable where it is not well known.
    Source: Bates and Granger 1969: the inverse of the mean squared error of each.

    >>> shares(np.array([0.1, 0.2])).round(3).tolist()
    [0.8, 0.2]
    """
    precisions = 1.0 / np.maximum(log_sds, LEAST_LOG_SD) ** 2
    return np.asarray(precisions / precisions.sum(axis=0))


def combine(
    times: Sequence[Interval], log_sds: Sequence[float], unweighted_log_sds: Sequence[float] = ()
) -> Combined:
    """The combined estimate of the same time by several pieces of evidence.

    times: at least one; positive, all at one level. log_sds: how wrong such evidence was, as the standard
    deviation of the logarithm. A single one stays as it is. unweighted_log_sds: further errors, which have no
    part in the weights.
    The interval is that of a weighted mean of errors that go together by CORRELATION, widened where the
    estimates differ by more than their widths explain, and never beyond the widest ends of them all.
    Assumes log-normal errors, each as large as its log_sd.
    Source: Bates and Granger 1969 for the weights; Birge 1932 for the widening, as the Particle Data Group
    applies it (S^2 = chi^2 / (n - 1), where above 1).
    """
    if len(times) == 1:
        return Combined(time=times[0], weights=(1.0,), disagreement=1.0)
    level = times[0].level
    values = [each.value for each in times]
    logs = np.log(values)
    spreads = np.maximum(np.asarray(log_sds, dtype=float), LEAST_LOG_SD)
    weights = shares(spreads)
    mean = float(weights @ logs)
    together = np.full((len(times), len(times)), CORRELATION)
    np.fill_diagonal(together, 1.0)
    variance = float((weights * spreads) @ together @ (weights * spreads))
    chi_square = float((((logs - mean) / spreads) ** 2).sum())
    widening = max(1.0, math.sqrt(chi_square / (len(times) - 1)))
    further = float(weights @ unweighted_log_sds) if unweighted_log_sds else 0.0
    half = num_sd(level) * math.hypot(math.sqrt(variance) * widening, further)
    return Combined(
        time=Interval(
            value=min(
                max(math.exp(mean), min(each.value for each in times)), max(each.value for each in times)
            ),
            low=max(math.exp(mean - half), min(each.low for each in times)),
            high=min(math.exp(mean + half), max(each.high for each in times)),
            level=level,
        ),
        weights=tuple(weights.tolist()),
        disagreement=widening,
    )


def combined_curves(
    estimators: Sequence[Estimates], *, domain: Domain | None = None
) -> tuple[Curves, Domain] | None:
    """Equally likely curves of time, over that at the smallest size, and the sizes they hold for.

    None where no estimator has a curve. The sizes are those of `domain`; unless given, all that any of them
    knows without a gap from the surest. The curves go on to twice the largest, as far as any of them does.
    Slopes are combined, not times: where one estimator of another level ends, times would leave a step. An
    estimator that is only shown for reference counts where no other has one.
    Assumes draws of different estimators are independent.
    Source: docs/decide/advice.md; weights as `shares`.
    """
    wide = [
        (each, curves)
        for each, curves in _with_curves(estimators)
        if curves.domain.largest > curves.domain.smallest
    ]
    if not wide:
        return None
    if domain is None:
        surest = min(wide, key=lambda each: _mean_log_sd(each[0]))[1]
        wide = _without_gap(wide, surest)
        # More evidence must not leave less to choose from.
        domain = Domain(
            smallest=min(curves.domain.smallest for _, curves in wide),
            largest=max(curves.domain.largest for _, curves in wide),
        )
    most = max(_most(curves) for _, curves in wide)
    grid_log2 = _grid(domain.smallest, max(domain.largest, min(2.0 * domain.largest, most)))
    grid_log2 = _with_joints(grid_log2, [curves for _, curves in wide])
    slopes = np.stack([_slopes(curves, grid_log2) for _, curves in wide])
    spreads = np.stack([_log_sds(each, curves, grid_log2) for each, curves in wide])
    weights = shares(spreads)[:, None, :]
    climbs = np.cumsum((weights * slopes).sum(axis=0), axis=1)
    logs = np.concatenate([np.zeros((len(climbs), 1)), climbs], axis=1)

    def curves(sizes: FloatArray) -> FloatArray:
        wanted = np.log2(np.asarray(sizes, dtype=float))
        return np.exp([np.interp(wanted, grid_log2, each) for each in logs])

    return curves, domain


def _without_gap(
    wide: Sequence[tuple[Estimates, DrawnCurves]], surest: DrawnCurves
) -> list[tuple[Estimates, DrawnCurves]]:
    """Those whose curves join that of the surest, or one that joins it: in a gap nobody knows a slope."""
    low, high = surest.domain.smallest, _most(surest)
    for _ in wide:
        joined = [each for each in wide if each[1].domain.smallest <= high and _most(each[1]) >= low]
        low = min(curves.domain.smallest for _, curves in joined)
        high = max(_most(curves) for _, curves in joined)
    return joined


def ratio_log_sd(estimators: Sequence[Estimates], first: int, size: int) -> float | None:
    """How uncertain the time of one size over that of another is, of its logarithm; None where nobody knows.

    Of each estimator from its equally likely curves, in which what both sizes share cancels; then of their
    weighted mean. Assumes draws of different estimators are independent. Source: weights as `shares`.
    """
    if size == first:
        return 0.0
    ends = np.log2([min(first, size), max(first, size)])
    known = [
        (each, curves)
        for each, curves in _with_curves(estimators)
        if {first, size} <= set(each.by_size) and bool(_is_known(curves, ends).all())
    ]
    if not known:
        return None
    weights = shares(np.array([each.by_size[size].log_sd for each, _ in known]))
    spreads = [_log_ratio_sd(curves, first, size) for _, curves in known]
    return float(np.linalg.norm(weights * spreads))


def _log_ratio_sd(curves: DrawnCurves, first: int, size: int) -> float:
    if {first, size} <= curves.by_size.keys():
        return float(np.std(np.log(curves.by_size[size] / curves.by_size[first])))
    drawn = np.log(curves.time_s(np.array([float(first), float(size)])))
    return float(np.std(drawn[:, 1] - drawn[:, 0]))


def _with_curves(estimators: Sequence[Estimates]) -> list[tuple[Estimates, DrawnCurves]]:
    """Those that have curves, and these; references only where there is no other."""
    known = [(each, each.curves) for each in estimators if each.curves is not None]
    return [each for each in known if not each[0].by_size.keys() <= each[0].references] or known


def _mean_log_sd(estimates: Estimates) -> float:
    return float(np.mean([each.log_sd for each in estimates.by_size.values()]))


def _most(curves: DrawnCurves) -> float:
    """The size up to which curves hold."""
    return curves.reach * curves.domain.largest


def _grid(smallest: float, largest: float) -> FloatArray:
    """Logarithms of sizes between two."""
    low, high = math.log2(smallest), math.log2(largest)
    return np.linspace(low, high, max(2, round((high - low) * _STEPS_PER_OCTAVE) + 1))


def _with_joints(grid_log2: FloatArray, joined: Sequence[DrawnCurves]) -> FloatArray:
    """The grid with a point where one curve goes on within a step in which the other ends: else nobody would
    know the slope of the whole step.
    """
    unknown = ~np.any([_is_known(curves, grid_log2) for curves in joined], axis=0)
    ends = np.log2([end for curves in joined for end in (curves.domain.smallest, _most(curves))])
    steps = np.clip(np.searchsorted(grid_log2, ends) - 1, 0, len(unknown) - 1)
    joints = ends[unknown[steps] & (grid_log2[0] < ends) & (ends < grid_log2[-1])]
    return np.sort(np.concatenate([grid_log2, joints]))


def _slopes(curves: DrawnCurves, grid_log2: FloatArray) -> FloatArray:
    """Changes of log time from one grid point to the next: (_NUM_CURVES, n - 1); 0 where it has no curve."""
    logs = np.log(curves.time_s(2.0**grid_log2))
    rows = np.arange(_NUM_CURVES) % len(logs)
    return np.where(_is_known(curves, grid_log2), np.diff(logs, axis=1)[rows], 0.0)


def _log_sds(estimates: Estimates, curves: DrawnCurves, grid_log2: FloatArray) -> FloatArray:
    """How wrong the estimates are between grid points: (n - 1,); infinite where there is no curve."""
    sizes = sorted(estimates.by_size)
    middles = (grid_log2[1:] + grid_log2[:-1]) / 2.0
    known = np.interp(middles, np.log2(sizes), [estimates.by_size[size].log_sd for size in sizes])
    return np.where(_is_known(curves, grid_log2), known, np.inf)


def _is_known(curves: DrawnCurves, grid_log2: FloatArray) -> FloatArray:
    """Between which grid points there is a curve."""
    low = math.log2(curves.domain.smallest) - _ROUNDING
    high = math.log2(_most(curves)) + _ROUNDING
    return np.asarray((grid_log2[:-1] >= low) & (grid_log2[1:] <= high))


class StraightCurves(Struct, frozen=True, kw_only=True, eq=False):
    """Curves straight between sizes in both logarithms, flat beyond them.

    log_sizes: (n_sizes,); log_times: (n_curves, n_sizes).
    """

    log_sizes: FloatArray
    log_times: FloatArray

    def __call__(self, at: FloatArray) -> FloatArray:
        """Seconds at some sizes: (n_curves, n_at)."""
        return np.exp([np.interp(np.log(at), self.log_sizes, each) for each in self.log_times])


class ScaledCurves(Struct, frozen=True, kw_only=True, eq=False):
    """Curves times a factor that depends on the size."""

    curves: Curves
    factor: StraightCurves

    def __call__(self, at: FloatArray) -> FloatArray:
        """Seconds at some sizes: (n_curves, n_at)."""
        return np.asarray(self.curves(at) * self.factor(at))


def straight_between(sizes: Sequence[int], drawn_s: FloatArray) -> StraightCurves:
    """Curves through drawn times. drawn_s: (n_draws, n_sizes)."""
    return StraightCurves(log_sizes=np.log(sizes), log_times=np.log(drawn_s))


def with_time(
    start: Estimate, time_s: float, log_sd: float, *, name: str, why: str | None = None
) -> Estimate:
    """An estimate with another time, as wrong as log_sd says. why: as before unless given."""
    changes = {"time_s": with_log_sd(time_s, log_sd), "log_sd": log_sd, "name": name}
    return replace(start, **changes, why=start.why if why is None else why)


def scaled_curves(curves: DrawnCurves, ratios: Mapping[int, float]) -> DrawnCurves:
    """Curves times ratios by size, which are straight between sizes in both logarithms, flat beyond them."""
    sizes = sorted(ratios)
    factor = straight_between(sizes, np.array([[ratios[size] for size in sizes]]))
    return replace(curves, time_s=ScaledCurves(curves=curves.time_s, factor=factor))


# Half of the interval of steps scaled from fewer ranks, of the logarithm: 90 % of workloads that no fit had
# seen (docs/experiments/0009).
_SCALED_HALF_WIDTH_LOG = 0.38
# Errors of steps predicted from few ranks to many grow with doublings: 3 % from 1 to 8, 7 % to 16, 22 % to 32
# and 64 (medians, docs/experiments/0009); their 90 % interval was set on the first three doublings.
_FULL_AFTER_DOUBLINGS = 3.0
_LOG_SD_PER_DOUBLING = 0.06


def nearest_size(sizes: Iterable[int], size: int) -> int:
    """Of some sizes the one that is the fewest doublings away."""
    return min(sizes, key=lambda each: abs(math.log2(each / size)))


def distance_log_sd(num_doublings: float) -> float:
    """How wrong steps so many doublings beyond the measured ones were: log standard deviation.

    Source: docs/experiments/0009: half its 90 % interval is 0.38, from three doublings on; beyond, 0.06 per
    doubling where that is more.

    >>> distance_log_sd(0.0)
    0.0
    """
    usual = _SCALED_HALF_WIDTH_LOG / DEVIATE
    return max(usual * min(1.0, num_doublings / _FULL_AFTER_DOUBLINGS), _LOG_SD_PER_DOUBLING * num_doublings)
