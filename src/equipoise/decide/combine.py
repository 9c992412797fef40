"""Combines several estimates of one time, weighted by their errors on held-out data."""

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
# Plans of trainings to a published target, by kind of model, and of pretrainings of language models on stated
# tokens, dense or with experts.
PretrainingKind: TypeAlias = Literal["dense pretraining", "expert pretraining"]
PlanKind: TypeAlias = Literal[ModelKind, PretrainingKind]
PLAN_RECORD_NAME = "plans.json"
# The FLOP from which pretrainings take longer than their steps, and from which the full bias applies: 30 and
# 1,000 hours of an A100. One of a few hours on a node consists only of steps (docs/experiments/0062).
_BIAS_FROM_FLOP, _FULL_BIAS_FLOP = 1e19, 3e20
_SAME_PARAMS = 0.001  # relative difference of numbers of parameters within which models are the same


class PlanRecord(Struct, frozen=True, kw_only=True):
    """Errors of planned times, |planned / published - 1|, each workload with equal weight.

    num_unexpressed: trainings without a plan, because a fact of the workload is unknown or nothing fits.
    workloads: for pretrainings, the families of models. bias: median of planned over published; for
    pretrainings, over those of at least _FULL_BIAS_FLOP. log_half_width: of the interval at `level`.
    The planned time of a pretraining is that of its steps, lengthened by the bias (in these errors, by that
    of all other families): published times include evaluation, checkpoints, restarts, slow nodes, and growing
    batches and sequences.
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
        """Ratio of a pretraining's time to that of its steps, by FLOP; the full ratio if these are unknown.

        Assumes that the log ratio grows linearly with log FLOP. Source: docs/experiments/0062.
        """
        return float(self.bias ** -share_of_bias(training_flop))


def share_of_bias(training_flop: float | None) -> float:
    """The fraction of the log bias that applies, by FLOP of a training: 0 for few, 1 for many or unknown.

    >>> [round(share_of_bias(flop), 2) for flop in (1e18, 5.5e19, 1e24, None)]
    [0.0, 0.5, 1.0, 1.0]
    """
    if training_flop is None:
        return 1.0
    whole = math.log(_FULL_BIAS_FLOP / _BIAS_FROM_FLOP)
    return min(1.0, max(0.0, math.log(training_flop / _BIAS_FROM_FLOP) / whole))


class WorkloadPlans(Struct, frozen=True, kw_only=True):
    """Errors of planned times for one workload. bias: median of planned over published.

    median: of |planned / published - 1|.
    """

    workload: str
    num_trainings: int
    bias: float
    median: float


class PlannedPretraining(Struct, frozen=True, kw_only=True):
    """The plan of a published pretraining. step_hours_ratio: planned hours of its steps over published hours.

    params, active_params: all parameters of the model, and those active per token. best_hours_ratio: as
    step_hours_ratio, with the best strategy instead of the published one. peak_flop_per_s: of its
    accelerator, by `usual_peak_flop_per_s`. memory_byte_per_s: of its accelerator.
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
        """Published time over the planned time with the best strategy and the usual overhead."""
        return 1.0 / (self.best_hours_ratio * record_of(self.kind).time_per_step_time(self.training_flop))

    def time_per_step_time(self, training_flop: float | None, chip: Accelerator) -> float:
        """Ratio of a pretraining's time to that of its steps: the usual one times `time_per_usual_time`.

        A pretraining of fewer FLOP has a smaller usual ratio and so less to save: its steps are not made
        faster than those of this one. On a slower chip the ratio is at least 1, because code that was faster
        than the model on one chip is no evidence for other code on a slower one.
        """
        usual = record_of(self.kind).time_per_step_time(training_flop)
        took = max(usual * self.time_per_usual_time, min(usual, 1.0 / self.best_hours_ratio))
        rates = usual_peak_flop_per_s(chip) or 0.0, chip.memory_byte_per_s or 0.0
        is_as_fast = rates[0] >= self.peak_flop_per_s and rates[1] >= self.memory_byte_per_s
        return took if is_as_fast else max(1.0, took)


class _Plans(Struct, frozen=True, kw_only=True):
    """The contents of PLAN_RECORD_NAME."""

    records: tuple[PlanRecord, ...]
    workloads: tuple[WorkloadPlans, ...]
    pretrainings: tuple[PlannedPretraining, ...]


@cache
def _plans() -> _Plans:
    return shipped_record(PLAN_RECORD_NAME, _Plans, made_by="profiles")


def plan_records() -> tuple[PlanRecord, ...]:
    """The shipped records of planned times.

    Raises DataError if their file is missing or not as written by records/plans.py.
    """
    return _plans().records


@cache
def workload_plans() -> Mapping[str, WorkloadPlans]:
    """The errors of planned times by workload. Raises DataError as `plan_records` does."""
    return {each.workload: each for each in _plans().workloads}


@cache
def planned_pretrainings() -> Mapping[str, PlannedPretraining]:
    """The published pretrainings that have a plan, by title. Raises DataError as `plan_records` does."""
    return {each.title: each for each in _plans().pretrainings}


def model_kind(about: Workload) -> ModelKind:
    """The kind of model that a workload trains."""
    return "other" if about.transformer is None else "transformer"


def pretraining_kind(about: Workload) -> PretrainingKind:
    """The kind of pretraining for a workload's model."""
    has_experts = architecture(about) == "mixture of experts"
    return "expert pretraining" if has_experts else "dense pretraining"


def record_of(kind: PlanKind) -> PlanRecord:
    """The record for one kind of plan. Raises DataError as `plan_records` does."""
    return next(each for each in plan_records() if each.kind == kind)


def quick_pretraining(about: Workload) -> PlannedPretraining | None:
    """The published pretraining of this model with the least time beyond its steps, if less than usual.

    None if none of the model was published, or all took longer than usual: they show what is attainable, not
    what must be lost (docs/experiments/0068). Models are matched by their numbers of parameters, which padded
    vocabularies change by less than _SAME_PARAMS.
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
    """Errors at sizes up to `most` times the largest known size; None if unbounded.

    published_scale: root mean square error of the pooled law over the standard deviation implied by its
    interval. modelled_log_sd: root mean square error of plans scaled to the result of the largest known size.
    """

    most: float | None
    num_held_out: int
    published_scale: float
    modelled_log_sd: float


class CombinedRecord(Struct, frozen=True, kw_only=True):
    """Errors of log time at the held-out largest size of groups of results, where a plan has that size too.

    by_jump: errors by the ratio of the size to the largest known size. modelled_log_sd: root mean square
    error of plans that choose their batch and use no result of the group, by kind of model. correlation:
    between the errors of published and modelled times. carried_log_sd: error of a published time carried by
    the model over 0, 1, 2, ... doublings. median, p90, coverage: of the combined answer, errors as |combined
    / published - 1|; published_median, published_p90, modelled_median: of each estimator alone; alone_median:
    of plans that use no result of the group.
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
        """The errors at a size `jump` times the largest known."""
        return next(each for each in self.by_jump if each.most is None or jump <= each.most)

    def carried(self, num_doublings: float) -> float:
        """The error of carrying a time over a number of doublings, interpolated linearly."""
        places = np.arange(len(self.carried_log_sd))
        return float(np.interp(num_doublings, places, self.carried_log_sd))


class _Combined(Struct, frozen=True, kw_only=True):
    """The contents of COMBINED_RECORD_NAME."""

    record: CombinedRecord


@cache
def combined_record() -> CombinedRecord:
    """The shipped record of combined estimates.

    Raises DataError if its file is missing or not as written by records/combined.py.
    """
    return shipped_record(COMBINED_RECORD_NAME, _Combined, made_by="profiles").record


# Errors of the estimators are correlated: they share the level of the known results, the samples to target
# and the software of the year. Close to the value on held-out results (0.27: data/combined.json).
CORRELATION = 0.3
_STEPS_PER_OCTAVE = 8
_NUM_CURVES = 200
_ROUNDING = 2.0**-30


class Combined(Struct, frozen=True, kw_only=True):
    """The combined estimate. weights: (n,), summing to 1, in the order of the estimates.

    disagreement: the factor by which the interval was widened because the estimates differ by more than their
    own intervals explain; 1 if they do not.
    """

    time: Interval
    weights: tuple[float, ...]
    disagreement: float


def shares(log_sds: FloatArray) -> FloatArray:
    """The weight of each estimate, along the first axis; they sum to 1 there.

    log_sds: (n_estimates, ...) standard deviations of log errors, positive; infinite where an estimator has
    none.
    Assumes nothing about correlations: weights that use them are unstable unless they are well known.
    Source: Bates and Granger 1969: the inverse of the mean squared error of each.

    >>> shares(np.array([0.1, 0.2])).round(3).tolist()
    [0.8, 0.2]
    """
    precisions = 1.0 / np.maximum(log_sds, LEAST_LOG_SD) ** 2
    return np.asarray(precisions / precisions.sum(axis=0))


def combine(
    times: Sequence[Interval], log_sds: Sequence[float], unweighted_log_sds: Sequence[float] = ()
) -> Combined:
    """The combined estimate of one time from several estimates of it.

    times: at least one; positive, all at one level. A single one is returned unchanged. log_sds: errors of
    such estimates, as the standard deviation of the logarithm. unweighted_log_sds: further errors, which do
    not affect the weights.
    The interval is that of a weighted mean whose errors are correlated by CORRELATION, widened if the
    estimates differ by more than their intervals explain, but never beyond the outermost ends of the inputs.
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
    """Equally likely curves of time relative to the smallest size, and the domain in which they hold.

    None if no estimator has a curve. The default domain is the union of the estimators' domains that are
    connected without a gap to the one with the smallest error. The curves extend to twice the largest size,
    as far as any estimator's does.
    Slopes are combined rather than times, which would leave a step where one estimator's curve ends. An
    estimator shown only for reference counts if no other has a curve.
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
        wide = _connected(wide, surest)
        # More evidence must not reduce the sizes to choose from.
        domain = Domain(
            smallest=min(curves.domain.smallest for _, curves in wide),
            largest=max(curves.domain.largest for _, curves in wide),
        )
    most = max(_reach_end(curves) for _, curves in wide)
    grid_log2 = _log2_grid(domain.smallest, max(domain.largest, min(2.0 * domain.largest, most)))
    grid_log2 = _with_end_points(grid_log2, [curves for _, curves in wide])
    slopes = np.stack([_slopes(curves, grid_log2) for _, curves in wide])
    spreads = np.stack([_step_log_sds(each, curves, grid_log2) for each, curves in wide])
    weights = shares(spreads)[:, None, :]
    climbs = np.cumsum((weights * slopes).sum(axis=0), axis=1)
    logs = np.concatenate([np.zeros((len(climbs), 1)), climbs], axis=1)

    def curves(sizes: FloatArray) -> FloatArray:
        wanted = np.log2(np.asarray(sizes, dtype=float))
        return np.exp([np.interp(wanted, grid_log2, each) for each in logs])

    return curves, domain


def _connected(
    wide: Sequence[tuple[Estimates, DrawnCurves]], surest: DrawnCurves
) -> list[tuple[Estimates, DrawnCurves]]:
    """The estimators whose curves are connected to the most certain one; in a gap no slope is known."""
    low, high = surest.domain.smallest, _reach_end(surest)
    for _ in wide:
        joined = [each for each in wide if each[1].domain.smallest <= high and _reach_end(each[1]) >= low]
        low = min(curves.domain.smallest for _, curves in joined)
        high = max(_reach_end(curves) for _, curves in joined)
    return joined


def ratio_log_sd(estimators: Sequence[Estimates], first: int, size: int) -> float | None:
    """Standard deviation of the log ratio of the times of two sizes; None if no estimator's curve has both.

    For each estimator from its equally likely curves, in which shared errors cancel; then for the weighted
    mean. Assumes draws of different estimators are independent. Source: weights as `shares`.
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
    """The estimators that have curves, with these; pure references only if there is no other."""
    known = [(each, each.curves) for each in estimators if each.curves is not None]
    return [each for each in known if not each[0].by_size.keys() <= each[0].references] or known


def _mean_log_sd(estimates: Estimates) -> float:
    return float(np.mean([each.log_sd for each in estimates.by_size.values()]))


def _reach_end(curves: DrawnCurves) -> float:
    """The largest size at which the curves hold, including their extrapolation."""
    return curves.reach * curves.domain.largest


def _log2_grid(smallest: float, largest: float) -> FloatArray:
    """Evenly spaced log2 sizes from the smallest to the largest."""
    low, high = math.log2(smallest), math.log2(largest)
    return np.linspace(low, high, max(2, round((high - low) * _STEPS_PER_OCTAVE) + 1))


def _with_end_points(grid_log2: FloatArray, joined: Sequence[DrawnCurves]) -> FloatArray:
    """The grid with the ends of curves added inside steps that no single curve covers, whose slope would
    otherwise be unknown.
    """
    unknown = ~np.any([_is_known(curves, grid_log2) for curves in joined], axis=0)
    ends = np.log2([end for curves in joined for end in (curves.domain.smallest, _reach_end(curves))])
    steps = np.clip(np.searchsorted(grid_log2, ends) - 1, 0, len(unknown) - 1)
    joints = ends[unknown[steps] & (grid_log2[0] < ends) & (ends < grid_log2[-1])]
    return np.sort(np.concatenate([grid_log2, joints]))


def _slopes(curves: DrawnCurves, grid_log2: FloatArray) -> FloatArray:
    """Changes of log time between grid points: (_NUM_CURVES, n - 1); 0 where there is no curve."""
    logs = np.log(curves.time_s(2.0**grid_log2))
    rows = np.arange(_NUM_CURVES) % len(logs)
    return np.where(_is_known(curves, grid_log2), np.diff(logs, axis=1)[rows], 0.0)


def _step_log_sds(estimates: Estimates, curves: DrawnCurves, grid_log2: FloatArray) -> FloatArray:
    """Log standard deviations of the estimates between grid points: (n - 1,); infinite without a curve."""
    sizes = sorted(estimates.by_size)
    middles = (grid_log2[1:] + grid_log2[:-1]) / 2.0
    known = np.interp(middles, np.log2(sizes), [estimates.by_size[size].log_sd for size in sizes])
    return np.where(_is_known(curves, grid_log2), known, np.inf)


def _is_known(curves: DrawnCurves, grid_log2: FloatArray) -> FloatArray:
    """Whether there is a curve between each pair of grid points: (n - 1,)."""
    low = math.log2(curves.domain.smallest) - _ROUNDING
    high = math.log2(_reach_end(curves)) + _ROUNDING
    return np.asarray((grid_log2[:-1] >= low) & (grid_log2[1:] <= high))


class StraightCurves(Struct, frozen=True, kw_only=True, eq=False):
    """Curves interpolated linearly in log time over log size, constant outside the sizes.

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
    """The estimate with another time, error and name. why: unchanged unless given."""
    changes = {"time_s": with_log_sd(time_s, log_sd), "log_sd": log_sd, "name": name}
    return replace(start, **changes, why=start.why if why is None else why)


def scaled_curves(curves: DrawnCurves, ratios: Mapping[int, float]) -> DrawnCurves:
    """Curves scaled by ratios given by size, interpolated as in StraightCurves."""
    sizes = sorted(ratios)
    factor = straight_between(sizes, np.array([[ratios[size] for size in sizes]]))
    return replace(curves, time_s=ScaledCurves(curves=curves.time_s, factor=factor))


# Half width, in log time, of the 90 % interval of steps scaled from fewer ranks, on workloads that were in no
# fit (docs/experiments/0009).
_SCALED_HALF_WIDTH_LOG = 0.38
# Errors of steps predicted from few ranks grow with the doublings: 3 % from 1 to 8, 7 % to 16, 22 % to 32 and
# 64 (medians, docs/experiments/0009); the 90 % interval was set on the first three doublings.
_FULL_AFTER_DOUBLINGS = 3.0
_LOG_SD_PER_DOUBLING = 0.06


def nearest_size(sizes: Iterable[int], size: int) -> int:
    """The nearest of the given sizes, in doublings."""
    return min(sizes, key=lambda each: abs(math.log2(each / size)))


def distance_log_sd(num_doublings: float) -> float:
    """Log standard deviation of steps predicted a number of doublings beyond the measured ones.

    Source: docs/experiments/0009: the half width of the 90 % interval is 0.38 from three doublings on;
    beyond, 0.06 per doubling if that is more.

    >>> distance_log_sd(0.0)
    0.0
    """
    usual = _SCALED_HALF_WIDTH_LOG / DEVIATE
    return max(usual * min(1.0, num_doublings / _FULL_AFTER_DOUBLINGS), _LOG_SD_PER_DOUBLING * num_doublings)
