"""The performance model held against the user's own steps.

At their level, or with its parameters fitted to them.
"""

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
from equipoise.decide.user_evidence.runs import UserSteps
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

# Products, memory and links of a machine that nobody else measured may be slower than those of the tables by
# far: what limits them is its own. A factor of e two times in three for links, of 1.4 for rates.
_OWN_LOG_SD = {
    "product_fraction": 0.35,
    "layer_traffic": 0.35,
    "collective.intra_fraction": 1.0,
    "collective.inter_fraction": 1.0,
    "collective.switch_fraction": 1.0,
}
# Links may also be faster than in the tables.
_LINKS = "collective."
_UNLIMITED = frozenset(name for name in _OWN_LOG_SD if name.startswith(_LINKS))
# Fewer do not separate rates, links and what a step costs besides them; one size shows no links.
_FEWEST_SET_UPS, _FEWEST_SIZES = 4, 2
_FEWEST_FOR_LAW = 3
# Of steps held out, in the median: a fit that is further off does not say what another strategy would change.
_MOST_ERROR = 0.5
# Of a doubling beyond times that no law follows, by our convention: a factor of two either way.
_UNKNOWN_LOG_SD = 0.4
# What tells ways to train apart: all of a strategy but how many ranks share samples out, and how many.
_OF_A_WAY: Final = tuple(
    name
    for name in Strategy.__struct_fields__
    if name not in {"dp", "dp_replicate", "microbatch_samples", "global_batch_samples"}
)
_SENSITIVE = 1e-3
_NOTICED = 1.25
_NUDGE = 1e-3
_SEED = 2


class UserFit(Struct, frozen=True, kw_only=True):
    """A model fitted to the user's steps, and how wrong it was about those held out of it.

    model: to search with. error, level_error: median of |predicted / measured - 1| of steps held out, by the
    fit and by the level alone. held_out: what was left out at a time. intra, inter: how many times as fast
    as stated links turned out.
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
        """What was fitted, and how wrong it was, in one sentence."""
        return (
            f"fitted to {_set_ups(self.steps)}; with {self.held_out} held out it was off by "
            f"{tenths(self.error)} (median), with only its level set by {tenths(self.level_error)}"
        )

    @property
    def sentence(self) -> str:
        """What was fitted, with links that are not as stated."""
        found = [
            f"links {where} are {factor:.2g} times as fast as stated"
            for where, factor in (("inside nodes", self.intra), ("between nodes", self.inter))
            if not 1.0 / _NOTICED < factor < _NOTICED
        ]
        return "; ".join((f"the model's parameters were {self.words}", *found))


def user_fit(steps: UserSteps, start: CalibratedModel) -> UserFit | str:
    """The model fitted to the user's steps; in words why not, where only its level follows.

    start: what is believed before: the model of the plan.
    Assumes the user's steps differ from the model by its parameters, each as far as its prior allows.
    Source: maximum a posteriori as `calibrate`; held out by whole sizes where three ran, else by set-up.
    """
    num_sizes = len(np.unique(steps.sizes))
    if len(steps.measured_s) < _FEWEST_SET_UPS or num_sizes < _FEWEST_SIZES:
        return (
            f"{_set_ups(steps)} only set its level: fitting parameters needs {_FEWEST_SET_UPS} "
            f"set-ups or more, on {_FEWEST_SIZES} sizes or more"
        )
    fitting = _Fitting(start=start.parameters, priors=_priors_about(start), names=())
    fitting = replace(fitting, names=fitting.sensitive(steps))
    by_size = num_sizes > _FEWEST_SIZES
    folds = steps.sizes if by_size else np.arange(float(len(steps.sizes)))
    ours, levels = (np.array(each) for each in zip(*fitting.left_out(steps, folds), strict=True))
    what = "a size" if by_size else "a set-up"
    if np.mean(np.abs(ours)) > np.mean(np.abs(levels)) or _median_error(ours) > _MOST_ERROR:
        wrong, less = (tenths(_median_error(each)) for each in (ours, levels))
        return (
            f"{_set_ups(steps)} only set its level: with {what} held out, fitted parameters were off by "
            f"{wrong} (median), the level by {less}"
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


# A unit that slipped is a factor of 60 or 1,000; no software is as slow where products take the time.
_FAR_SLOWER = 20.0
_MOST_OF_STEP = 0.5


def far_slower(steps: UserSteps, model: CalibratedModel) -> Iterator[Note]:
    """That a step took far longer than modelled, of the set-up that did most; none where none did.

    Of steps that mostly compute, by the model: what launching and links take of small ones may be anything.
    Source: the upper end of the model's own interval at LEVEL.
    """
    found = estimate(steps.rows.load, steps.rows.machine, steps.rows.grid, model.parameters)
    computes = np.broadcast_to(found.seconds.compute / found.step_s > _MOST_OF_STEP, steps.sizes.shape)
    logs = np.where(computes, steps.log_ratios(model.parameters), -math.inf)
    at = int(np.argmax(logs))
    if logs[at] > math.log(_FAR_SLOWER) + model.log_half_width:
        batch = format_count(steps.strategies[at].global_batch_samples)
        size, measured_s = plural(int(steps.sizes[at]), "accelerator"), float(steps.measured_s[at])
        predicted = format_duration(measured_s / math.exp(logs[at]))
        yield Note(
            f"{steps.run_ids[at]}: a step of {format_duration(measured_s)} on {size} at "
            f"batch {batch}; the model says {predicted}. Are the times in the unit that the column names "
            "(step_s, step_ms), and is the batch right?",
            "check",
        )


# One size beside others of which none is so far from their median: then it is the size that is out of line. A
# network that is slower than stated shows at every size beyond a node.
_OUT_OF_LINE: Final = 2.0
_IN_LINE: Final = 1.5
_FEWEST_IN_LINE: Final = 2


def out_of_line(steps: UserSteps, model: CalibratedModel) -> Iterator[Note]:
    """That steps on one size took far longer or shorter than those on the others show; none where none did.

    Of sizes but the largest, beyond which nothing shows that it is not the machine.
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
                "show, and count as they are. Is the rate right?",
                "check",
            )


# Of the interval of the model, by how many times more a step has to be faster to be of another strategy.
_FAR_FASTER: Final = 2.0


def as_stated(steps: UserSteps, model: CalibratedModel) -> UserSteps | None:
    """The steps but for those far faster than modelled: they did not train as they state, or as is modelled.

    The plan is not as much faster than they were as it is than their strategy; they count as they ran.
    Source: the lower end of the model's own interval at LEVEL, and half of that.
    """
    kept = np.flatnonzero(steps.log_ratios(model.parameters) >= _least_log(model))
    return steps.taken(kept) if len(kept) else None


def _least_log(model: CalibratedModel) -> float:
    return -math.log(_FAR_FASTER) - model.log_half_width


def far_faster(steps: UserSteps, model: CalibratedModel) -> Iterator[Note]:
    """That a step was far faster than modelled, of the set-up that was most; none where none was."""
    logs = steps.log_ratios(model.parameters)
    at = int(np.argmin(logs))
    if logs[at] < _least_log(model):
        measured_s = float(steps.measured_s[at])
        predicted = format_duration(measured_s / math.exp(logs[at]))
        yield Note(
            f"{steps.run_ids[at]}: a step of {format_duration(measured_s)}; the model says {predicted} of "
            "its strategy, and does not convert it. Is the strategy right?",
            "check",
        )


def _set_ups(steps: UserSteps) -> str:
    sizes = _sizes(steps)
    listed, ending = ", ".join(map(format_count, sizes)), "" if sizes == (1,) else "s"
    return f"your {plural(len(steps.measured_s), 'set-up')} on {listed} accelerator{ending}"


def _median_error(logs: FloatArray) -> float:
    return float(np.median(np.abs(np.expm1(logs))))


def _priors_about(start: CalibratedModel) -> tuple[Prior, ...]:
    """The priors about where the plan's model stands, wider for what a user's own machine may have.

    Links that were measured by themselves are not fitted to steps, which show them less well.
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
    """What is fitted, and from where. names: the parameters that any of the steps depends on."""

    start: Parameters
    priors: tuple[Prior, ...]
    names: tuple[str, ...]

    def sensitive(self, steps: UserSteps) -> tuple[str, ...]:
        """The parameters that any of the steps depends on."""
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
        """log(measured / predicted) of every set-up by the fit, and by the level, of the other folds."""
        level = steps.log_ratios(self.start)
        for fold in np.unique(folds):
            rest, held = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            found = self.calibrated(steps.taken(rest)).by_campaign[0]
            ours = steps.taken(held).log_ratios(found)
            yield from zip(ours.tolist(), (level[held] - np.median(level[rest])).tolist(), strict=True)


def _draws(found: Calibration, start: CalibratedModel) -> tuple[Parameters, ...]:
    """Equally likely parameters: those fitted as their errors go together, the others as before the fit."""
    deviates = np.random.default_rng(_SEED).standard_normal((len(start.draws), len(found.moved)))
    centre = np.log([found.by_campaign[0].value(name) for name in found.moved])
    largest = {each.name: math.inf if each.name in _UNLIMITED else each.largest for each in PRIORS}
    logs = centre + deviates @ covariance_root(found.covariance)
    drawn = np.minimum(np.exp(logs), [largest[name] for name in found.moved])
    return tuple(
        each.changed(dict(zip(found.moved, row, strict=True)))
        for each, row in zip(start.draws, drawn.tolist(), strict=True)
    )


# Of a doubling away from the sizes measured, beyond the calibration's own record: what its held-out sizes
# showed (docs/experiments/0006-calibration.md: leaving whole sizes out).
_LOG_SD_A_DOUBLING = 0.06


class UserLevel(Struct, frozen=True, kw_only=True):
    """How many times longer the user's steps take than modelled.

    logs: of that ratio, by size: the median over set-ups at all sizes alike, of the largest size no less than
    its own; where it clearly changes with the size, that of each. a_doubling: what the logarithm grows by
    with each doubling beyond the largest. log_sd: of that level. steps: from which it is. why: in words, why
    no more than it was fitted. ran_on: title of the accelerator that ran, where the level is of another one.
    """

    logs: Mapping[int, float]
    a_doubling: float = 0.0
    log_sd: float
    steps: UserSteps
    why: str
    ran_on: str | None = None

    def log_at(self, size: int) -> float:
        """The logarithm of the level at a size; smaller ones than ran have that of the smallest."""
        return level_at(self.logs, size, self.a_doubling)

    @property
    def factors(self) -> str:
        """How many times as long, in words; of several, at the smallest and at the largest size that ran."""
        first, last = (math.exp(self.logs[each]) for each in (min(self.logs), max(self.logs)))
        if first == last:
            return f"{first:.2f} times"
        return (
            f"{first:.2f} times on {format_count(min(self.logs))} to {last:.2f} times on "
            f"{format_count(max(self.logs))} accelerators"
        )

    @property
    def largest_factor(self) -> float:
        """How many times as long, on the most accelerators that ran."""
        return math.exp(self.logs[max(self.logs)])

    @property
    def sentence(self) -> str:
        """What was fitted, and why no more."""
        runs = "your runs" if self.ran_on is None else f"your runs on {self.ran_on}"
        return f"the model is scaled to {runs}, {self.factors} its time: {self.why}"


def user_level(steps: UserSteps, model: CalibratedModel, why: str) -> UserLevel:
    """The level of the user's steps over a model. why: it is no fit, in words.

    Assumes that what the model gets wrong about a machine and its software is one factor at all sizes, unless
    runs that trained in one way, as far as they state it, show clearly that it grows or falls with the size;
    a growth then goes on.
    Source: the median of log(measured / modelled), its standard error from the spread of the set-ups, at
    least the calibration's record over their number.
    """
    ratios = steps.log_ratios(model.parameters)
    by_size = _by_size(steps, ratios)
    ways = {
        tuple(getattr(each, name) for name in _OF_A_WAY)
        for each, is_assumed in zip(steps.strategies, steps.are_assumed, strict=True)
        if not is_assumed
    }
    first, last, slope = min(by_size), max(by_size), 0.0
    if len(ways) <= 1 and first < last:
        spreads = (_log_sd_at(steps, ratios, first), _log_sd_at(steps, ratios, last))
        slope = clear_slope(by_size[last] - by_size[first], spreads, math.log2(last / first))
    if any(steps.are_assumed):
        # What was assumed of one size alone is no trend: no more than what the larger lost is one.
        slope = min(slope, max(0.0, _lost_each_doubling(steps)))
    level = median(ratios.tolist())
    # Sizes beyond do not regain what the largest lost, however little that is.
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


# Of how far one team's steps are from the model on a chip, the part that is so on another chip too, and the
# standard deviation of what is left: pairs of chips of the published steps (docs/experiments/0066).
_SHARED_BY_CHIPS: Final = 0.6
_BETWEEN_CHIPS_LOG_SD: Final = 0.2


def carried_level(
    level: UserLevel, usual_log: float, *, ran_on: str, no_slower: bool, no_faster: bool
) -> UserLevel:
    """The level of the user's steps on one accelerator, as that of another one which they did not run on.

    usual_log: logarithm of the level that trainings of other teams have. ran_on: title of the accelerator
    that they ran on. no_slower, no_faster: whether the other one is in no stated fact below it, or above it:
    with the same software its steps are not either.
    Source: the shared part of errors about two chips of one source, docs/experiments/0066.
    """

    def carried(log: float) -> float:
        shared = usual_log + _SHARED_BY_CHIPS * (log - usual_log)
        shared = min(shared, log) if no_slower else shared
        return max(shared, log) if no_faster else shared

    return replace(
        level,
        logs={size: carried(log) for size, log in level.logs.items()},
        log_sd=math.hypot(level.log_sd, _BETWEEN_CHIPS_LOG_SD),
        why=f"{format_percent(_SHARED_BY_CHIPS)} of the model's error there is taken to be so here, and more "
        "where the facts of the two accelerators leave no other order",
        ran_on=ran_on,
    )


def _lost_each_doubling(steps: UserSteps) -> float:
    """What the logarithm of accelerator time of a sample grew by with each doubling, of steps as measured."""
    batches = np.array([each.global_batch_samples for each in steps.strategies])
    by_size = _by_size(steps, np.log(steps.measured_s * steps.sizes / batches))
    first, last = min(by_size), max(by_size)
    return (by_size[last] - by_size[first]) / math.log2(last / first) if first < last else 0.0


def _log_sd_at(steps: UserSteps, ratios: FloatArray, size: int) -> float:
    """Of the level of one size: of its runs, and of what its set-ups differ by."""
    here = steps.sizes == size
    scatter = float(np.std(ratios[here], ddof=1)) if here.sum() > 1 else 0.0
    return math.hypot(float(np.median(steps.log_sds[here])), scatter) / math.sqrt(here.sum())


def _by_size(steps: UserSteps, logs: FloatArray) -> dict[int, float]:
    """The median of logarithms, one of each set-up, at each size, ascending."""
    return {size: float(np.median(logs[steps.sizes == size])) for size in _sizes(steps)}


def _sizes(steps: UserSteps) -> tuple[int, ...]:
    return tuple(np.unique(steps.sizes).astype(int).tolist())


def _record_log_sd(record: HeldOutErrors | None) -> float:
    """How wrong steps by a calibration were, as a standard deviation of logarithms."""
    if record is None or record.p90_abs_error is None:
        return UNCALIBRATED_LOG_SD
    return math.log1p(record.p90_abs_error) / DEVIATE


def levelled_estimates(estimates: Estimates, searches: StrategySearches, level: UserLevel) -> Estimates:
    """The model's estimates at the user's own level, in place of the default.

    Their width is that of the level, of a step by the calibration, of the work, and of the distance in
    doublings from the sizes measured; not that of plans of other people's trainings.
    """
    of_work, sizes = _log_sds_of_work(searches), _sizes(level.steps)
    spreads = {}
    for size, each in estimates.by_size.items():
        doublings = _num_doublings(size, sizes)
        far = math.hypot(_LOG_SD_A_DOUBLING, level.a_doubling if size > sizes[-1] else 0.0) * doublings
        spread = math.hypot(level.log_sd, _record_log_sd(searches.problem.model.record), of_work[size], far)
        # Never more certain about a distant size than the model without the runs.
        spreads[size] = min(spread, max(log_sd(each.time_s), level.log_sd))
    why = (
        level.sentence if level.ran_on else f"your steps take {level.factors} the modelled time; {level.why}"
    )
    logs = {size: level.log_at(size) for size in estimates.by_size}
    if level.ran_on is None:
        why += _as_they_lose(estimates, level.steps, logs, spreads)
    return _changed(
        estimates,
        level.steps,
        spreads,
        name="the performance model, scaled to your runs",
        why=why,
        logs=logs,
        is_measured=level.ran_on is None,
    )


def fitted_estimates(estimates: Estimates, searches: StrategySearches, fit: UserFit) -> Estimates:
    """The estimates by searches that were made with the fitted model.

    Their width is what the parameters leave open at each size, what the fit got wrong about steps held out,
    the work, and the distance in doublings from the sizes measured. Sizes beyond do not regain what the
    largest took longer than fitted, and go on to lose what those that ran clearly lost to each other.
    """
    of_work = _log_sds_of_work(searches)
    sizes, half_width = _sizes(fit.steps), fit.model.log_half_width
    spreads = {}
    for each in searches.sizes:
        size = each.num_accelerators
        if size in estimates.by_size:
            open_ = float(np.std(np.log(each.drawn_s)))
            far = _LOG_SD_A_DOUBLING * _num_doublings(size, sizes)
            spreads[size] = math.hypot(open_, half_width / DEVIATE, of_work[size], far)
    # What the fit missed at sizes that ran it misses at those between.
    missed = _by_size(fit.steps, fit.steps.log_ratios(fit.model.parameters))
    logs = {
        size: max(0.0, missed[sizes[-1]]) if size > sizes[-1] else level_at(missed, size, 0.0)
        for size in estimates.by_size
    }
    further = _as_they_lose(estimates, fit.steps, logs, spreads)
    return _changed(
        estimates,
        fit.steps,
        spreads,
        name="the performance model, fitted to your runs",
        why=fit.words + further,
        logs=logs,
    )


def _as_they_lose(
    estimates: Estimates, steps: UserSteps, logs: dict[int, float], spreads: dict[int, float]
) -> str:
    """Lengthen sizes beyond those that ran to what laws of scaling make of these, where they clearly lose.

    Of the fastest step of each size, in the precision of that on the largest; of three sizes or more. A model
    that explains what they lost, by slower links as an example, need not go on to lose it. Where they clearly
    lose or not, sizes beyond are no surer than the laws; where no law follows them, those beyond are as fast
    as the largest. logs, spreads: by size, of the times over the estimates and of their logarithm; changed in
    place. Returns what was done, for people; empty where nothing.
    Source: `scaling.fit`, as `predict --from` asks it of the same times.
    """
    fastest = _fastest_of_sizes(steps)
    sizes, of_sample_s = (
        np.array([*fastest]),
        np.array([per_sample_s for per_sample_s, _ in fastest.values()]),
    )
    beyond = sorted(size for size in spreads if size > sizes[-1])
    base = max((size for size in estimates.by_size if size <= sizes[-1]), default=None)
    if not beyond or base is None or len(fastest) < _FEWEST_FOR_LAW:
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
        f"; beyond {format_count(float(sizes[-1]))} accelerators they go on to lose, by the laws of `predict`"
    )


def _fastest_of_sizes(steps: UserSteps) -> dict[int, tuple[float, float]]:
    """By size, ascending: seconds of the fastest step for each of its samples, and their log standard
    deviation, in the precision of the fastest on the largest size.
    """
    per_sample_s = steps.measured_s / [each.global_batch_samples for each in steps.strategies]
    order = sorted(range(len(per_sample_s)), key=lambda at: (-steps.sizes[at], per_sample_s[at], at))
    precision = steps.strategies[order[0]].precision
    found: dict[int, tuple[float, float]] = {}
    for at in order:
        if steps.strategies[at].precision == precision:
            found.setdefault(int(steps.sizes[at]), (float(per_sample_s[at]), float(steps.log_sds[at])))
    return dict(sorted(found.items()))


def _changed(
    estimates: Estimates,
    steps: UserSteps,
    spreads: Mapping[int, float],
    *,
    name: str,
    why: str,
    logs: Mapping[int, float],
    is_measured: bool = True,
) -> Estimates:
    """The estimates with other widths, and so many times as long. logs: of how many, by size.

    is_measured: whether the steps are of the accelerator itself.
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
    """How unsure the work is, by size: the samples at its batch, and what a pretraining takes more than
    steps.
    """
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
    """From the nearest size measured."""
    return abs(math.log2(size / nearest_size(sizes, size)))
