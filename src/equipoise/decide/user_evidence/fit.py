"""The performance model scaled to the user's own steps, or with its parameters fitted to them."""

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import UNCALIBRATED_LOG_SD, EvidenceSource, HeldOutErrors
from equipoise.calibration.profiles import USER_CALIBRATION, CalibratedModel
from equipoise.decide.combine import nearest_size, with_time
from equipoise.decide.evidence import Estimates, clear_slope, level_at
from equipoise.decide.strategies.size_searches import StrategySearches
from equipoise.decide.strategies.strategy_search import OWN_STEPS_LOG_SD
from equipoise.decide.user_evidence.runs import UserSteps, least_ratios
from equipoise.errors import FitError
from equipoise.intervals import DEVIATE, LEVEL, log_sd
from equipoise.notes import Note
from equipoise.perfmodel.calibrate import STRAY_LOG_SD, Calibration, calibrate
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.parameters import PRIORS, Parameters, Prior, stacked
from equipoise.scaling.fit import fit, measured_times, predict
from equipoise.scaling.laws import FloatArray
from equipoise.spec.strategy import Strategy
from equipoise.stats import covariance_root
from equipoise.units import format_count, format_duration, format_percent, plural, tenths

# Prior log sd of rates of a user's own machine, which may differ much from the tables: a factor of e two
# times in three for links, of 1.4 for products and memory.
_OWN_LOG_SD = {
    "product_fraction": 0.35,
    "layer_traffic": 0.35,
    "collective.intra_fraction": 1.0,
    "collective.inter_fraction": 1.0,
    "collective.switch_fraction": 1.0,
}
# Links may also be faster than in the tables, so they have no upper bound.
_LINKS = "collective."
_UNLIMITED = frozenset(name for name in _OWN_LOG_SD if name.startswith(_LINKS))
# Fewer set-ups cannot separate rates, links and fixed costs; a single size shows no links.
_MIN_SET_UPS, _MIN_SIZES = 4, 2
_MIN_SIZES_FOR_LAW = 3
# Largest median error on held-out steps: a worse fit cannot predict the effect of another strategy.
_MAX_ERROR = 0.5
# Assumed log sd per doubling beyond times that no law fits: a factor of two either way.
_UNKNOWN_LOG_SD = 0.4
# Fields of a strategy that distinguish methods: all except data-parallel ranks and batches.
_METHOD_FIELDS: Final = tuple(
    name
    for name in Strategy.__struct_fields__
    if name not in {"dp", "dp_replicate", "microbatch_samples", "global_batch_samples"}
)
_SENSITIVE = 1e-3
_NOTICEABLE = 1.25
_NUDGE = 1e-3
_SEED = 2


class UserFit(Struct, frozen=True, kw_only=True):
    """A model fitted to the user's steps, and its errors on held-out steps.

    model: to search with. error, level_error: median of |predicted / measured - 1| of held-out steps, by the
    fit and by scaling alone. held_out: what was left out at a time. intra, inter: fitted over stated link
    rates.
    """

    model: CalibratedModel
    steps: UserSteps
    held_out: str
    error: float
    level_error: float
    intra: float
    inter: float

    @property
    def words(self) -> str:
        """Text on the fit and its errors."""
        return (
            f"fitted to {_set_ups(self.steps)}; with {self.held_out} held out it was off by "
            f"{tenths(self.error)} (median), and with only its level fitted by {tenths(self.level_error)}"
        )

    @property
    def sentence(self) -> str:
        """Text on the fit, with links that differ from the stated rates."""
        found = [
            f"links {where} are {factor:.2g} times as fast as stated"
            for where, factor in (("inside nodes", self.intra), ("between nodes", self.inter))
            if not 1.0 / _NOTICEABLE < factor < _NOTICEABLE
        ]
        return "; ".join((f"the model was {self.words}", *found))


def user_fit(steps: UserSteps, start: CalibratedModel) -> UserFit | str:
    """The model fitted to the user's steps; or text why the model can only be scaled.

    start: the plan's model, the centre of the priors.
    Assumes the user's steps differ from the model by its parameters, within their priors.
    Source: maximum a posteriori as in `calibrate`; cross-validation by size from three sizes up, else by
    set-up.
    """
    num_sizes = len(np.unique(steps.sizes))
    if len(steps.measured_s) < _MIN_SET_UPS or num_sizes < _MIN_SIZES:
        return (
            f"{_set_ups(steps)} only set its level, because fitting its parameters needs at least "
            f"{_MIN_SET_UPS} set-ups on {_MIN_SIZES} sizes"
        )
    fitting = _Fitting(start=start.parameters, priors=_priors_about(start), names=())
    fitting = replace(fitting, names=fitting.sensitive(steps))
    by_size = num_sizes > _MIN_SIZES
    folds = steps.sizes if by_size else np.arange(float(len(steps.sizes)))
    ours, levels = (np.array(each) for each in zip(*fitting.left_out(steps, folds), strict=True))
    what = "a size" if by_size else "a set-up"
    if np.mean(np.abs(ours)) > np.mean(np.abs(levels)) or _median_error(ours) > _MAX_ERROR:
        wrong, less = (tenths(_median_error(each)) for each in (ours, levels))
        return (
            f"{_set_ups(steps)} only set its level: with {what} held out, fitted parameters were off by "
            f"{wrong} (median), the level alone by {less}"
        )
    from equipoise.calibration.accuracy import half_width  # noqa: PLC0415 - only where runs were measured

    found = fitting.calibrated(steps)
    half = half_width(ours, np.unique(np.sort(folds), return_inverse=True)[1], level=LEVEL)
    fitted = found.by_campaign[0]

    def ratio(link: str) -> float:
        name = f"collective.{link}_fraction"
        return fitted.value(name) / start.parameters.value(name)

    result = UserFit(
        model=replace(
            start,
            parameters=fitted,
            draws=_draws(found, start),
            log_half_width=float(half),
            calibration=USER_CALIBRATION,
            record=HeldOutErrors(
                of=what,
                num_held_out=len(ours),
                median_abs_error=_median_error(ours),
                p90_abs_error=float(np.quantile(np.abs(np.expm1(ours)), 0.9)),
                coverage=float(np.mean(np.abs(ours) <= half)),
            ),
        ),
        steps=steps,
        held_out=what,
        error=_median_error(ours),
        level_error=_median_error(levels),
        intra=ratio("intra"),
        inter=ratio("inter"),
    )
    return replace(result, model=replace(result.model, words=result.words))


# A wrong unit is a factor of 60 or 1,000; no software is so slow in steps dominated by computation.
_FAR_SLOWER = 20.0
_MIN_COMPUTE_SHARE = 0.5


def far_slower(steps: UserSteps, model: CalibratedModel) -> Iterator[Note]:
    """Yield a note on the set-up whose step most exceeds the modelled time, if by far.

    Only for steps that mostly compute by the model, because launches and links of small steps vary widely.
    Source: the upper end of the model's own interval at LEVEL.
    """
    found = estimate(steps.rows.load, steps.rows.machine, steps.rows.grid, model.parameters)
    computes = np.broadcast_to(found.seconds.compute / found.step_s > _MIN_COMPUTE_SHARE, steps.sizes.shape)
    logs = np.where(computes, steps.log_ratios(model.parameters), -math.inf)
    at = int(np.argmax(logs))
    if logs[at] > math.log(_FAR_SLOWER) + model.log_half_width:
        batch = format_count(steps.strategies[at].global_batch_samples)
        size, measured_s = plural(int(steps.sizes[at]), "accelerator"), float(steps.measured_s[at])
        predicted = format_duration(measured_s / math.exp(logs[at]))
        yield Note(
            f"{steps.run_ids[at]}: a step of {format_duration(measured_s)} on {size} at "
            f"batch {batch}; the model predicts {predicted}. Are times in the unit that the column "
            "names (step_s, step_ms), are rates those of all accelerators together, and is the batch right?",
            "check",
        )


# A size is an outlier if it deviates by the first factor while no other size deviates from their median by
# the second. A network slower than stated affects all sizes above a node.
_OUT_OF_LINE: Final = 2.0
_IN_LINE: Final = 1.5
_FEWEST_IN_LINE: Final = 2


def out_of_line(steps: UserSteps, model: CalibratedModel) -> Iterator[Note]:
    """Yield notes on sizes whose steps deviate much from those at all other sizes.

    Not for the largest size, where the machine may be the cause.
    """
    by_size = _by_size(steps, steps.log_ratios(model.parameters))
    for size in [*by_size][:-1]:
        others = [log for other, log in by_size.items() if other != size]
        middle = median(others)
        factor = math.exp(by_size[size] - middle)
        if len(others) < _FEWEST_IN_LINE or max(factor, 1.0 / factor) < _OUT_OF_LINE:
            continue
        if max(abs(log - middle) for log in others) < math.log(_IN_LINE):
            at = int(np.flatnonzero(steps.sizes == size)[0])
            took = f"{factor:.1f} times as long as" if factor > 1.0 else f"{factor:.2g} of the time that"
            yield Note(
                f"{steps.run_ids[at]}: steps on {plural(size, 'accelerator')} took {took} your other sizes "
                "suggest; they are used unchanged. Is the rate right?",
                "check",
            )


# Factor beyond the model's interval by which a step must be faster to count as one of another strategy.
_FAR_FASTER: Final = 2.0


def as_stated(steps: UserSteps, model: CalibratedModel) -> UserSteps | None:
    """The steps without those far faster than modelled, which did not run as stated or as modelled.

    Those are not converted to the plan's strategy; they count as they ran.
    Source: half of the lower end of the model's own interval at LEVEL.
    """
    kept = np.flatnonzero(steps.log_ratios(model.parameters) >= _min_log_ratio(model))
    return steps.taken(kept) if len(kept) else None


def _min_log_ratio(model: CalibratedModel) -> float:
    return -math.log(_FAR_FASTER) - model.log_half_width


def far_faster(steps: UserSteps, model: CalibratedModel) -> Iterator[Note]:
    """Yield a note on the set-up whose step is fastest relative to the model, if by far."""
    logs = steps.log_ratios(model.parameters)
    at = int(np.argmin(logs))
    if logs[at] < _min_log_ratio(model):
        measured_s = float(steps.measured_s[at])
        predicted = format_duration(measured_s / math.exp(logs[at]))
        yield Note(
            f"{steps.run_ids[at]}: a step of {format_duration(measured_s)}; the model predicts {predicted} "
            "for its strategy, so it is used unconverted. Is the strategy right?",
            "check",
        )


def _set_ups(steps: UserSteps) -> str:
    sizes = _sizes(steps)
    listed, ending = ", ".join(map(format_count, sizes)), "" if sizes == (1,) else "s"
    return f"your {plural(len(steps.measured_s), 'set-up')} on {listed} accelerator{ending}"


def _median_error(logs: FloatArray) -> float:
    return float(np.median(np.abs(np.expm1(logs))))


def _priors_about(start: CalibratedModel) -> tuple[Prior, ...]:
    """Priors centred on the plan's model, wider for rates of the user's machine.

    Links with own measurements are not fitted, because steps determine them less well.
    """
    return tuple(
        replace(
            each,
            median=start.parameters.value(each.name),
            log_sd=max(each.log_sd, _OWN_LOG_SD.get(each.name, 0.0)),
            largest=math.inf if each.name in _UNLIMITED else each.largest,
        )
        for each in PRIORS
        if start.links is None or not each.name.startswith(_LINKS)
    )


class _Fitting(Struct, frozen=True, kw_only=True):
    """Starting point, priors and names of the parameters to fit."""

    start: Parameters
    priors: tuple[Prior, ...]
    names: tuple[str, ...]

    def sensitive(self, steps: UserSteps) -> tuple[str, ...]:
        """Names of the parameters on which any step depends."""
        moved = [self.start.changed({each.name: each.median * (1 - _NUDGE)}) for each in self.priors]
        steps_s = steps.rows.step_s(stacked([self.start, *moved]))
        slopes = np.abs(np.log(steps_s[1:] / steps_s[:1]) / _NUDGE).max(axis=1)
        return tuple(each.name for each, slope in zip(self.priors, slopes, strict=True) if slope > _SENSITIVE)

    def calibrated(self, steps: UserSteps) -> Calibration:
        """The fit to some steps."""
        return calibrate(
            steps.rows.step_s,
            steps.measured_s,
            names=self.names,
            weights=np.ones(len(steps.measured_s)),
            noise_log_sd=STRAY_LOG_SD,
            priors=self.priors,
            centre=self.start,
        )

    def left_out(self, steps: UserSteps, folds: FloatArray) -> Iterator[tuple[float, float]]:
        """Yield log(measured / predicted) of every set-up by the fit, and by scaling, to the other folds."""
        level = steps.log_ratios(self.start)
        for fold in np.unique(folds):
            rest, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            found = self.calibrated(steps.taken(rest)).by_campaign[0]
            ours = steps.taken(held).log_ratios(found)
            yield from zip(ours.tolist(), (level[held] - np.median(level[rest])).tolist(), strict=True)


def _draws(found: Calibration, start: CalibratedModel) -> tuple[Parameters, ...]:
    """Equally likely parameters: fitted ones with their joint covariance, others as before the fit."""
    deviates = np.random.default_rng(_SEED).standard_normal((len(start.draws), len(found.moved)))
    centre = np.log([found.by_campaign[0].value(name) for name in found.moved])
    largest = {each.name: math.inf if each.name in _UNLIMITED else each.largest for each in PRIORS}
    logs = centre + deviates @ covariance_root(found.covariance)
    drawn = np.minimum(np.exp(logs), [largest[name] for name in found.moved])
    return tuple(
        each.changed(dict(zip(found.moved, row, strict=True)))
        for each, row in zip(start.draws, drawn.tolist(), strict=True)
    )


# Log sd per doubling of distance from the measured sizes, in addition to the calibration's record: from
# held-out sizes (docs/experiments/0006-calibration.md).
_LOG_SD_PER_DOUBLING = 0.06


class UserLevel(Struct, frozen=True, kw_only=True):
    """Ratio of the user's steps to their modelled times.

    logs: logarithm of the ratio by size: the median over all set-ups, but at the largest size at least its
    own median; or each size's own, if the ratio clearly changes with size. a_doubling: growth of the
    logarithm per doubling beyond the largest size. log_sd: of the level. steps: on which it is based. why:
    text why parameters were not fitted. ran_on: title of the accelerator of the runs, if another one.
    """

    logs: Mapping[int, float]
    a_doubling: float = 0.0
    log_sd: float
    steps: UserSteps
    why: str
    ran_on: str | None = None

    def log_at(self, size: int) -> float:
        """The logarithm of the ratio at a size; below the smallest size, that of the smallest."""
        return level_at(self.logs, size, self.a_doubling)

    @property
    def factors(self) -> str:
        """The ratio as text; if it varies, at the smallest and at the largest size that ran."""
        first, last = (math.exp(self.logs[each]) for each in (min(self.logs), max(self.logs)))
        if first == last:
            return f"{first:.2f} times"
        return (
            f"{first:.2f} times on {format_count(min(self.logs))} to {last:.2f} times on "
            f"{format_count(max(self.logs))} accelerators"
        )

    @property
    def largest_factor(self) -> float:
        """The ratio at the largest size that ran."""
        return math.exp(self.logs[max(self.logs)])

    @property
    def sentence(self) -> str:
        """Text on the scaling, and why parameters were not fitted."""
        runs = "your runs" if self.ran_on is None else f"your runs on {self.ran_on}"
        return f"the model is scaled to {runs}, by {self.factors} its time: {self.why}"


def user_level(steps: UserSteps, model: CalibratedModel, why: str) -> UserLevel:
    """The level of the user's steps relative to a model. why: text why parameters were not fitted.

    Assumes the model's error for a machine and its software is one factor at all sizes, unless runs with one
    stated method show clearly that it changes with size; a growth then continues.
    Source: the median of log(measured / modelled), with the standard error from the spread of set-ups, at
    least that from the calibration's record.
    """
    ratios = steps.log_ratios(model.parameters)
    by_size = _by_size(steps, ratios)
    methods = {
        tuple(getattr(each, name) for name in _METHOD_FIELDS)
        for each, is_assumed in zip(steps.strategies, steps.are_assumed, strict=True)
        if not is_assumed
    }
    first, last, slope = min(by_size), max(by_size), 0.0
    if len(methods) <= 1 and first < last:
        spreads = (_log_sd_at(steps, ratios, first), _log_sd_at(steps, ratios, last))
        slope = clear_slope(by_size[last] - by_size[first], spreads, math.log2(last / first))
    if any(steps.are_assumed):
        # With assumed strategies, a trend is limited to the measured loss of efficiency with size.
        slope = min(slope, max(0.0, _loss_per_doubling(steps)))
    level = median(ratios.tolist())
    # Larger sizes keep the deviation of the largest measured size, if it is above the median.
    logs = by_size if slope else {**dict.fromkeys(by_size, level), last: max(level, by_size[last])}
    rest = ratios - [logs[int(size)] for size in steps.sizes]
    scatter = float(np.std(rest, ddof=1)) if len(ratios) > 1 else 0.0
    return UserLevel(
        logs=logs,
        a_doubling=max(0.0, slope),
        log_sd=math.hypot(
            max(scatter, _record_log_sd(model.record)) / math.sqrt(len(ratios)),
            float(np.linalg.norm(steps.log_sds)) / len(ratios),
        ),
        steps=steps,
        why=why,
    )


# Share of a team's log error on one chip that also applies on another chip, and the sd of the remainder: from
# pairs of chips of published steps (docs/experiments/0066).
_SHARED_BY_CHIPS: Final = 0.6
_BETWEEN_CHIPS_LOG_SD: Final = 0.2


def carried_level(
    level: UserLevel, usual_log: float, *, ran_on: str, no_slower: bool, no_faster: bool
) -> UserLevel:
    """The level of the user's steps on one accelerator, transferred to another one.

    usual_log: log level of other teams' trainings. ran_on: title of the accelerator of the steps. no_slower,
    no_faster: whether no stated property of the other accelerator is lower, or higher; then its steps with
    the same software are not slower, or faster.
    Source: shared part of errors on two chips of one source, docs/experiments/0066.
    """

    def carried(log: float) -> float:
        shared = usual_log + _SHARED_BY_CHIPS * (log - usual_log)
        shared = min(shared, log) if no_slower else shared
        return max(shared, log) if no_faster else shared

    return replace(
        level,
        logs={size: carried(log) for size, log in level.logs.items()},
        log_sd=math.hypot(level.log_sd, _BETWEEN_CHIPS_LOG_SD),
        why=f"{format_percent(_SHARED_BY_CHIPS)} of the model's error there is assumed here, or more where "
        "one of the two accelerators is at least as good in every fact",
        ran_on=ran_on,
    )


def _loss_per_doubling(steps: UserSteps) -> float:
    """Growth per doubling of the logarithm of measured accelerator-time per sample."""
    batches = np.array([each.global_batch_samples for each in steps.strategies])
    by_size = _by_size(steps, np.log(steps.measured_s * steps.sizes / batches))
    first, last = min(by_size), max(by_size)
    return (by_size[last] - by_size[first]) / math.log2(last / first) if first < last else 0.0


def _log_sd_at(steps: UserSteps, ratios: FloatArray, size: int) -> float:
    """Log sd of the level at one size, from its runs and the spread of its set-ups."""
    here = steps.sizes == size
    scatter = float(np.std(ratios[here], ddof=1)) if here.sum() > 1 else 0.0
    return math.hypot(float(np.median(steps.log_sds[here])), scatter) / math.sqrt(here.sum())


def _by_size(steps: UserSteps, logs: FloatArray) -> dict[int, float]:
    """Median over set-ups of their logarithms at each size, ascending."""
    return {size: float(np.median(logs[steps.sizes == size])) for size in _sizes(steps)}


def _sizes(steps: UserSteps) -> tuple[int, ...]:
    return tuple(np.unique(steps.sizes).astype(int).tolist())


def _record_log_sd(record: HeldOutErrors | None) -> float:
    """Log sd of a calibration's errors on held-out steps."""
    if record is None or record.p90_abs_error is None:
        return UNCALIBRATED_LOG_SD
    return math.log1p(record.p90_abs_error) / DEVIATE


def levelled_estimates(estimates: Estimates, searches: StrategySearches, level: UserLevel) -> Estimates:
    """The model's estimates scaled to the user's level.

    Their uncertainty is from the level, the calibration's errors, the work, and the distance in doublings
    from the measured sizes, instead of from plans of other teams' trainings.
    """
    of_work, sizes = _log_sds_of_work(searches), _sizes(level.steps)
    spreads = {}
    for size, each in estimates.by_size.items():
        doublings = _num_doublings(size, sizes)
        far = math.hypot(_LOG_SD_PER_DOUBLING, level.a_doubling if size > sizes[-1] else 0.0) * doublings
        spread = math.hypot(level.log_sd, _record_log_sd(searches.problem.model.record), of_work[size], far)
        # Distant sizes are at most as uncertain as by the model without the runs.
        spreads[size] = min(spread, max(log_sd(each.time_s), level.log_sd))
    why = (
        level.sentence if level.ran_on else f"your steps take {level.factors} the modelled time; {level.why}"
    )
    logs = {size: level.log_at(size) for size in estimates.by_size}
    why += _no_faster_than_best_rates(logs, level.steps, searches)
    if level.ran_on is None:
        why += _with_scaling_losses(estimates, level.steps, logs, spreads)
    return _rescaled(
        estimates,
        level.steps,
        spreads,
        name="the performance model, scaled to your runs",
        why=why,
        logs=logs,
        is_measured=level.ran_on is None,
    )


def fitted_estimates(estimates: Estimates, searches: StrategySearches, fit: UserFit) -> Estimates:
    """The estimates of searches with the fitted model.

    Their uncertainty is from the parameters at each size, errors on held-out steps, the work, and the
    distance in doublings from the measured sizes. Larger sizes keep an excess of the largest measured size
    over the fit, and continue a clear loss of efficiency between measured sizes.
    """
    of_work = _log_sds_of_work(searches)
    sizes, half_width = _sizes(fit.steps), fit.model.log_half_width
    spreads = {}
    for each in searches.sizes:
        size = each.num_accelerators
        if size in estimates.by_size:
            parameter_log_sd = float(np.std(np.log(each.drawn_s)))
            far = _LOG_SD_PER_DOUBLING * _num_doublings(size, sizes)
            spreads[size] = math.hypot(parameter_log_sd, half_width / DEVIATE, of_work[size], far)
    # Residuals of the fit at measured sizes also apply to sizes between.
    missed = _by_size(fit.steps, fit.steps.log_ratios(fit.model.parameters))
    logs = {
        size: max(0.0, missed[sizes[-1]]) if size > sizes[-1] else level_at(missed, size, 0.0)
        for size in estimates.by_size
    }
    further = _no_faster_than_best_rates(logs, fit.steps, searches)
    further += _with_scaling_losses(estimates, fit.steps, logs, spreads)
    return _rescaled(
        estimates,
        fit.steps,
        spreads,
        name="the performance model, fitted to your runs",
        why=fit.words + further,
        logs=logs,
    )


def _no_faster_than_best_rates(logs: dict[int, float], steps: UserSteps, searches: StrategySearches) -> str:
    """Raise log factors to those of `least_ratios`. Returns a text on the change, or none."""
    least = {
        size: math.log(ratio)
        for size, ratio in least_ratios(steps, searches).items()
        if size in logs and logs[size] < math.log(ratio)
    }
    logs |= least
    return "; no step is taken to compute faster than the best known rates allow" if least else ""


def _with_scaling_losses(
    estimates: Estimates, steps: UserSteps, logs: dict[int, float], spreads: dict[int, float]
) -> str:
    """Increase times beyond measured sizes to those of scaling laws, if efficiency clearly falls with size.

    Laws are fitted to the fastest step of each of at least three sizes, in the precision of the largest. A
    model that explains the loss, e.g. by slower links, may not continue it. In any case, larger sizes are at
    least as uncertain as by the laws; if no law fits, they are as fast as the largest. logs, spreads: log
    factors on the estimates and log sd by size, changed in place. Returns a text on the change, or none.
    Source: `scaling.fit`, as used by `predict --from` for the same times.
    """
    fastest = _fastest_by_size(steps)
    sizes, of_sample_s = (
        np.array([*fastest]),
        np.array([per_sample_s for per_sample_s, _ in fastest.values()]),
    )
    beyond = sorted(size for size in spreads if size > sizes[-1])
    base = max((size for size in estimates.by_size if size <= sizes[-1]), default=None)
    if not beyond or base is None or len(fastest) < _MIN_SIZES_FOR_LAW:
        return ""
    try:
        law = predict(fit(measured_times(sizes, of_sample_s)), [base, *beyond], level=LEVEL)
        slower = np.log(law.time_s[1:] / law.time_s[0])
        log_sds = np.log(law.high_s[1:] / law.low_s[1:]) / (2 * DEVIATE)
    except FitError:
        log_s = dict(zip(fastest, np.log(of_sample_s).tolist(), strict=True))
        slower = np.full(len(beyond), log_s[max(log_s)] - level_at(log_s, base, 0.0))
        log_sds = _UNKNOWN_LOG_SD * np.log2(np.array(beyond) / sizes[-1])
    lost = math.log(of_sample_s[-1] * sizes[-1] / (of_sample_s[0] * sizes[0]))
    ends = (fastest[int(sizes[0])][1], fastest[int(sizes[-1])][1])
    is_clear = clear_slope(lost, ends, math.log2(sizes[-1] / sizes[0])) > 0.0
    base_s = math.exp(logs[base]) * estimates.by_size[base].time_s.value
    is_longer = False
    for size, log_slower, log_sd_there in zip(beyond, slower.tolist(), log_sds.tolist(), strict=True):
        spreads[size] = math.hypot(spreads[size], log_sd_there)
        log = log_slower + math.log(base_s / estimates.by_size[size].time_s.value)
        if is_clear and log > logs[size]:
            logs[size], is_longer = log, True
    if not is_longer:
        return ""
    return (
        f"; beyond {format_count(float(sizes[-1]))} accelerators their losses continue, by the laws of "
        "`predict`"
    )


def _fastest_by_size(steps: UserSteps) -> dict[int, tuple[float, float]]:
    """Seconds per sample of the fastest step by size, and log sd, in the precision of the largest size."""
    per_sample_s = steps.measured_s / [each.global_batch_samples for each in steps.strategies]
    order = sorted(range(len(per_sample_s)), key=lambda at: (-steps.sizes[at], per_sample_s[at], at))
    precision = steps.strategies[order[0]].precision
    found: dict[int, tuple[float, float]] = {}
    for at in order:
        if steps.strategies[at].precision == precision:
            found.setdefault(int(steps.sizes[at]), (float(per_sample_s[at]), float(steps.log_sds[at])))
    return dict(sorted(found.items()))


def _rescaled(
    estimates: Estimates,
    steps: UserSteps,
    spreads: Mapping[int, float],
    *,
    name: str,
    why: str,
    logs: Mapping[int, float],
    is_measured: bool = True,
) -> Estimates:
    """The estimates with scaled times and other log sd. logs: log factors by size.

    is_measured: whether the steps ran on this accelerator.
    """
    return replace(
        estimates,
        name=name,
        by_size={
            size: with_time(
                each,
                math.exp(logs[size]) * each.time_s.value,
                spreads[size],
                name=name,
                why=why,
            )
            for size, each in estimates.by_size.items()
        },
        grade=dict.fromkeys(estimates.by_size, "measured") if is_measured else estimates.grade,
        sources=(*(EvidenceSource(kind="measured", ref=each) for each in steps.run_ids), *estimates.sources),
    )


def _log_sds_of_work(searches: StrategySearches) -> Mapping[int, float]:
    """Log sd of the work by size: of samples at its batch, and of a pretraining's time beyond its steps."""
    training = searches.problem.training
    more = OWN_STEPS_LOG_SD if training.is_pretraining else 0.0
    return {
        each.num_accelerators: math.hypot(
            training.budget.log_sd(float(each.best.strategy.global_batch_samples)), more
        )
        for each in searches.sizes
        if each.best is not None
    }


def _num_doublings(size: int, sizes: tuple[int, ...]) -> float:
    """Doublings between a size and the nearest measured one."""
    return abs(math.log2(size / nearest_size(sizes, size)))
