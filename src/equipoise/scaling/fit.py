"""Fits laws to times at a few sizes, and predicts times with intervals.

Several laws are fitted and weighted by their marginal likelihood, because far from the data the uncertainty
about the law exceeds that about its parameters. Formulas are in laws.py, posteriors in posterior.py.
"""

import math
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from equipoise.errors import DataError, FitError
from equipoise.intervals import LEVEL, tails
from equipoise.scaling.equilibrium import pays
from equipoise.scaling.laws import CANDIDATES, CONSTANT, Domain, FloatArray, Law
from equipoise.scaling.posterior import (
    MEASURED_NOISE,
    NULL_NOISE,
    BoolArray,
    Clusters,
    IntArray,
    Noise,
    Posterior,
    clusters,
    even_deviates,
    log_sum,
    outliers,
    posterior,
)
from equipoise.stats import quantiles
from equipoise.units import MOST_LISTED, format_count, listed

# Minimum odds of a law against times independent of size: "very strong" evidence of Jeffreys 1961 (Theory of
# Probability, appendix B). Of 5,000 series of pure noise four exceed it, and one in 160 of those with three
# sizes and one run each; intervals of accepted fits have their stated coverage
# (docs/experiments/0001-law-intervals.md).
LEAST_ODDS = 30.0
# Log likelihood of an outlier: one run in fifty is one, log-uniform within a factor of ten.
_LOG_OUTLIER = math.log(0.02 / (2.0 * math.log(10.0)))
_MIN_SIZES = 3
_NUM_DRAWS = 2000
_EXACT = 1e-12
_MIN_REPETITIONS = 3
# Accelerator-hours that decrease at every step, by this factor in total, are not considered noise.
_FASTER_THAN_PROPORTION = 1.5
# Factor by which both end sizes must be slower than the fastest size to count as slower, above noise.
_SLOWER_AT_ENDS = 1.1
_SILVER = (
    0.41421356237309503  # sqrt(2) - 1: multiples modulo 1 are even, and independent of the golden ratio's
)


class MeasuredTimes(Struct, frozen=True, kw_only=True):
    """Measured times, one item per run.

    num_accelerators, time_s: at least 1 and above 0, (n_runs,). entry: whole numbers, (n_runs,); runs of one
    entry (one submission, or one session on one machine) share a common deviation.
    """

    num_accelerators: FloatArray
    time_s: FloatArray
    entry: IntArray

    def __post_init__(self) -> None:
        """Reject impossible sizes and times, naming the first such item."""
        if not self.num_accelerators.shape == self.time_s.shape == self.entry.shape or self.time_s.ndim != 1:
            raise DataError(
                f"points: num_accelerators, time_s and entry have shapes {self.num_accelerators.shape}, "
                f"{self.time_s.shape} and {self.entry.shape}; expected three lists of one length."
            )
        for name, values, least in (
            ("num_accelerators", self.num_accelerators, 1.0),
            ("time_s", self.time_s, 0.0),
        ):
            wrong = ~(np.isfinite(values) & (values >= least) & (values > 0.0))
            if wrong.any():
                first = int(np.argmax(wrong))
                raise DataError(
                    f"points: item {first + 1} has {name}={values[first]}; expected a finite number "
                    f"{'of at least 1' if least else 'above 0'}."
                )

    @property
    def sizes(self) -> FloatArray:
        """Distinct numbers of accelerators, ascending."""
        return np.unique(self.num_accelerators)

    @property
    def domain(self) -> Domain:
        """The fewest and the most accelerators."""
        return Domain(smallest=float(self.num_accelerators.min()), largest=float(self.num_accelerators.max()))

    def where(self, kept: BoolArray) -> "MeasuredTimes":
        """Only the runs selected by `kept`, (n_runs,) booleans."""
        return MeasuredTimes(
            num_accelerators=self.num_accelerators[kept], time_s=self.time_s[kept], entry=self.entry[kept]
        )


class LawFit(Struct, frozen=True, kw_only=True):
    """One law fitted to the points.

    weight: posterior probability of the law among those compared. values: the most likely parameters. draws:
    equally likely parameter sets, in number proportional to the weight, (n, num_params). noise: sd of log
    times of a run and of its cluster for each draw, (n, 2).
    """

    law: Law
    weight: float
    values: FloatArray
    draws: FloatArray
    noise: FloatArray


class Fit(Struct, frozen=True, kw_only=True):
    """Fitted laws by decreasing weight. outliers: runs excluded as too far from any law, (n_runs,)."""

    points: MeasuredTimes
    laws: tuple[LawFit, ...]
    outliers: BoolArray

    @property
    def best(self) -> LawFit:
        """The law with the largest weight."""
        return self.laws[0]

    @property
    def domain(self) -> Domain:
        """The range of sizes of runs that are not outliers."""
        return self.points.where(~self.outliers).domain

    def curves_s(self, num_accelerators: ArrayLike) -> FloatArray:
        """Expected seconds of equally likely curves: (n_sizes,) -> (n_curves, n_sizes)."""
        sizes = np.atleast_1d(np.asarray(num_accelerators, dtype=float))
        return np.concatenate([each.law.times_s(each.draws, sizes) for each in self.laws])


class LawPrediction(Struct, frozen=True, kw_only=True):
    """Median times and bounds of their interval at some sizes; all (n_sizes,).

    extrapolation: factor beyond the nearest measured size; 1.0 inside the measured range.
    """

    time_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    extrapolation: FloatArray


def measured_times(
    num_accelerators: ArrayLike, time_s: ArrayLike, *, entry: ArrayLike | None = None
) -> MeasuredTimes:
    """Times measured at some sizes. entry: labels of any type, one per run; by default the sizes."""
    sizes = np.asarray(num_accelerators, dtype=float)
    label = sizes if entry is None else np.asarray(entry)
    return MeasuredTimes(
        num_accelerators=sizes,
        time_s=np.asarray(time_s, dtype=float),
        entry=np.unique(label, return_inverse=True)[1].astype(np.int64),
    )


def fit(data: MeasuredTimes, laws: tuple[Law, ...] = CANDIDATES, *, noise: Noise = MEASURED_NOISE) -> Fit:
    """The laws fitted to the points and weighted by posterior probability, with equal prior probabilities.

    noise: prior of the noise: MEASURED_NOISE for one machine, PUBLISHED_NOISE between systems.

    Raises FitError, with what to measure, if the points cannot distinguish a law from times that do not
    depend on size.
    Assumes relative errors; independent runs of an entry (or size), which may deviate jointly from the law.
    Source: Bayesian model averaging, Hoeting et al. 1999, Statistical Science 14, 382.
    """
    compared = _compared(data, laws, noise)
    if compared.log_odds < math.log(LEAST_ODDS):
        raise _no_dependence(data, laws, math.exp(compared.log_odds))
    return compared.fit()


def fit_or_flat(data: MeasuredTimes, *, noise: Noise = MEASURED_NOISE) -> Fit:
    """`fit` with all laws, and also the constant if size may not matter and no larger size pays.

    noise: as in `fit`.

    Raises FitError as `fit` does, unless with probability LEVEL no measured size pays over the smallest.
    Assumes a prior probability of one half for the constant. Source: as in `fit`.
    """
    compared = _compared(data, CANDIDATES, noise)
    if compared.log_odds >= math.log(LEAST_ODDS):
        return compared.fit()
    flat, sizes = compared.fit(with_constant=True), data.sizes
    measured_s = np.array([np.median(data.time_s[data.num_accelerators == size]) for size in sizes])
    if _any_pays(sizes, measured_s[None])[0] or np.mean(_any_pays(sizes, flat.curves_s(sizes))) > 1.0 - LEVEL:
        raise _no_dependence(data, CANDIDATES, math.exp(compared.log_odds))
    return flat


def _any_pays(sizes: FloatArray, time_s: FloatArray) -> BoolArray:
    """Whether any size pays over the fewest accelerators: (n_sizes,) and (n, n_sizes) -> (n,)."""
    return np.asarray(pays(time_s[:, :1] / time_s[:, 1:], sizes[1:] / sizes[0]).any(axis=1))


class _Compared(Struct, frozen=True, kw_only=True):
    """Posteriors of laws, and of times that do not depend on size.

    outliers: (n_runs,), excluded from the laws; the constant is fitted to all runs, with its own noise.
    log_odds: of all laws together against the constant.
    """

    points: MeasuredTimes
    noise: Noise
    outliers: BoolArray
    laws: tuple[Posterior, ...]
    constant: Posterior
    log_odds: float

    def fit(self, *, with_constant: bool = False) -> Fit:
        """The weighted laws."""
        used = self.points.where(~self.outliers)
        evidence = np.array([[each.log_evidence for each in self.laws]])
        share = 1.0 / (1.0 + math.exp(-self.log_odds)) if with_constant else 1.0
        weights = share * np.exp(evidence - log_sum(evidence))[0]
        fits = [
            _law_fit(each, weight=float(weight), noise=self.noise, used=used)
            for each, weight in zip(self.laws, weights, strict=True)
        ]
        if with_constant:
            fits.append(_law_fit(self.constant, weight=1.0 - share, noise=NULL_NOISE, used=used))
        order = sorted(fits, key=lambda each: -each.weight)
        return Fit(points=self.points, laws=tuple(order), outliers=self.outliers)


def _compared(data: MeasuredTimes, laws: tuple[Law, ...], noise: Noise) -> _Compared:
    """The posterior of each law and of the constant. Raises FitError with too few sizes for any law."""
    _require_sizes(data.sizes, laws)
    far = outliers(laws, data.num_accelerators, np.log(data.time_s), data.domain)
    if len(data.where(~far).sizes) < _sizes_needed(laws):
        far = np.zeros_like(far)
    used = data.where(~far)
    posteriors = [posterior(law, _clusters(used), used.domain, noise) for law in laws]
    null = posterior(CONSTANT, _clusters(data), data.domain, NULL_NOISE)
    evidence = np.array([[each.log_evidence for each in posteriors]])
    with_outliers = float(log_sum(evidence)[0]) - math.log(len(laws)) + _LOG_OUTLIER * np.sum(far)
    return _Compared(
        points=data,
        noise=noise,
        outliers=far,
        laws=tuple(posteriors),
        constant=null,
        log_odds=float(with_outliers - null.log_evidence),
    )


def predict(
    fitted: Fit, num_accelerators: ArrayLike, *, level: float = 0.9, of: Literal["law", "run"] = "law"
) -> LawPrediction:
    """Time at each size, with its interval at `level`.

    of: "law" for the expected time; "run" for one more run of one more entry, whose noise widens the
    interval.
    Assumes one of the fitted laws remains valid; the interval always includes constant efficiency beyond the
    largest size. Coverage was tested up to 4 times beyond the data (docs/experiments/0001-law-intervals.md).
    """
    sizes = np.atleast_1d(np.asarray(num_accelerators, dtype=float))
    if not np.all(np.isfinite(sizes) & (sizes >= 1.0)):
        raise DataError(
            f"num_accelerators={sizes.tolist()}: a prediction needs finite numbers of at least 1."
        )
    log_times = np.log(fitted.curves_s(sizes))
    if of == "run":
        noise = np.concatenate([each.noise for each in fitted.laws])
        log_times += (np.hypot(noise[:, 0], noise[:, 1]) * even_deviates(len(noise), _SILVER))[:, None]
    below, above = tails(level)
    low_s, time_s, high_s = np.exp(quantiles(log_times, (below, 0.5, above)))
    domain = fitted.domain
    # Rising efficiency may not continue beyond the data: the benefit of more cache and memory ends somewhere.
    at_largest_s = float(np.median(fitted.curves_s(np.array([domain.largest]))))
    linear_s = at_largest_s * domain.largest / sizes
    high_s = np.where(sizes > domain.largest, np.maximum(high_s, linear_s), high_s)
    return LawPrediction(
        time_s=time_s,
        low_s=low_s,
        high_s=high_s,
        extrapolation=np.maximum(1.0, np.maximum(sizes / domain.largest, domain.smallest / sizes)),
    )


def _clusters(runs: MeasuredTimes) -> Clusters:
    return clusters(runs.num_accelerators, np.log(runs.time_s), runs.entry)


def _law_fit(found: Posterior, *, weight: float, noise: Noise, used: MeasuredTimes) -> LawFit:
    """The fit of one law. used: the runs that are not outliers."""
    draws, levels = found.draws(_NUM_DRAWS)
    count = round(weight * _NUM_DRAWS)
    earned = ((np.arange(count) + 0.5) * (_NUM_DRAWS / max(count, 1))).astype(int)
    return LawFit(
        law=found.law,
        weight=weight,
        values=_least_squares(found, used),
        draws=draws[earned],
        noise=np.stack([noise.run[levels], noise.cluster[levels]], axis=1)[earned],
    )


def _least_squares(found: Posterior, used: MeasuredTimes) -> FloatArray:
    """The least-squares parameters, starting from the most likely cell: (num_params,)."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    def log_errors(unit: FloatArray) -> FloatArray:
        return _residuals(found.law, found.law.at(unit[None, :], found.domain)[0], used)

    def centred_log_errors(unit: FloatArray) -> FloatArray:
        return log_errors(unit) - np.mean(log_errors(unit))

    unit = found.likeliest_unit
    if found.law.num_shapes:
        unit = least_squares(centred_log_errors, unit, bounds=(0.0, 1.0), xtol=_EXACT, ftol=_EXACT).x
    scale = np.exp(np.mean(log_errors(unit), keepdims=True))
    return np.asarray(found.law.scaled(found.law.at(unit[None, :], found.domain), scale)[0])


def _residuals(law: Law, values: FloatArray, runs: MeasuredTimes) -> FloatArray:
    """Log of measured over fitted time: (n_runs,)."""
    return np.asarray(np.log(runs.time_s) - np.log(law.predict_s(runs.num_accelerators, *values)))


def _sizes_needed(laws: tuple[Law, ...]) -> int:
    """Number of distinct sizes needed: one more than the simplest law's parameters, at least three."""
    return max(_MIN_SIZES, min(len(law.params) for law in laws) + 1)


def _require_sizes(sizes: FloatArray, laws: tuple[Law, ...]) -> None:
    """Raise FitError if there are too few distinct sizes for any of the laws."""
    needed = _sizes_needed(laws)
    if len(sizes) >= needed:
        return
    if len(sizes) == 0:
        raise FitError(
            "points: there is no measured time.", missing=(f"times at {needed} numbers of accelerators",)
        )
    more = [float(sizes[-1]) * 2.0**step for step in range(1, needed - len(sizes) + 1)]
    what = (
        f"{laws[0].name} has {len(laws[0].params)} parameters and"
        if len(laws) == 1
        else "a law of time against size"
    )
    raise FitError(
        f"{what} needs {needed} distinct sizes; got times at {_listed(sizes)} accelerators.",
        missing=tuple(f"the time at one more size, e.g. {format_count(size)} accelerators" for size in more),
    )


def _no_dependence(data: MeasuredTimes, laws: tuple[Law, ...], odds: float) -> FitError:
    """The error for times in which the laws find no dependence on size."""
    sizes, runs = np.unique(data.num_accelerators, return_counts=True)
    at_size_s = [float(np.median(data.time_s[data.num_accelerators == size])) for size in sizes]
    ends_s, fastest = (at_size_s[0], at_size_s[-1]), int(np.argmin(at_size_s))
    larger = format_count(2.0 * sizes[-1])
    missing = f"the time at {larger} accelerators or more, so that the sizes span a wider range"
    if min(ends_s) > _SLOWER_AT_ENDS * at_size_s[fastest]:
        missing = f"the times at more numbers of accelerators around {sizes[fastest]:g}"
    if runs.min() < _MIN_REPETITIONS:
        again = sizes[runs < _MIN_REPETITIONS]
        missing += f", or {_MIN_REPETITIONS} repetitions at each of {_listed(again)} accelerators"
    work_s = sizes * at_size_s
    if np.all(np.diff(work_s) < 0.0) and work_s[0] > _FASTER_THAN_PROPORTION * work_s[-1]:
        speedup, growth = ends_s[0] / ends_s[1], sizes[-1] / sizes[0]
        return FitError(
            f"the times at {_listed(sizes)} accelerators fall faster than in proportion to that number, "
            f"which no law here continues: {speedup:.3g} times as fast on {growth:.3g} times as many; "
            "usually the smaller sizes lack memory or cache, or ran with other settings.",
            missing=("times at sizes that have enough memory and ran with the same settings",),
        )
    if len(laws) == 1:
        what = f"fit the law {laws[0].name} no better than a constant; all laws together may show more"
    elif fastest == 0:
        what = "do not fall: more accelerators made it slower or changed nothing"
    else:
        what = (
            f"do not show yet how they depend on that number; of these {sizes[fastest]:g} were the fastest, "
            f"{at_size_s[0] / at_size_s[fastest]:.3g} times as fast as {sizes[0]:g}"
        )
    return FitError(
        f"the times at {_listed(sizes)} accelerators {what}: the odds for a law against a constant are "
        f"{f'{odds:,.0f}' if odds >= 1 else f'{odds:.2g}'} to 1, and {LEAST_ODDS:,.0f} to 1 are needed.",
        missing=(missing,),
    )


def _listed(sizes: FloatArray) -> str:
    return listed([f"{size:g}" for size in sizes], MOST_LISTED)
