"""Times at a few sizes in; curves with weights, and predictions with intervals, out.

Several laws are fitted at once and weighted by how well each predicts the points, because far from the data
the doubt about the law is larger than the doubt about its parameters. Formulas stand in laws.py, sums over
them in posterior.py.
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

# Odds against "the size does not matter" below which there is no answer: very strong evidence in the grades
# of Jeffreys 1961 (Theory of Probability, appendix B). Of 5,000 series of noise alone, four passed, and of
# those of three sizes run once, one in 160; intervals of what is answered hold as often as they say
# (docs/experiments/0001-law-intervals.md).
LEAST_ODDS = 30.0
# What a law pays for each run it leaves out: one run in fifty is an outlier, anywhere within a factor of ten.
_LOG_OUTLIER = math.log(0.02 / (2.0 * math.log(10.0)))
_FEWEST_SIZES = 3
_NUM_DRAWS = 2000
_EXACT = 1e-12
_ENOUGH_REPETITIONS = 3
# Accelerator-hours that fall at every size, by this factor in all, are taken for more than scatter.
_FASTER_THAN_PROPORTION = 1.5
# Slower than the fastest size by which both ends count as such: beyond the scatter of runs.
_SLOWER_AT_ENDS = 1.1
_SILVER = 0.41421356237309503  # sqrt(2) - 1: as even as the golden ratio, and unlike it


class MeasuredTimes(Struct, frozen=True, kw_only=True):
    """Measured times: one run an item.

    num_accelerators, time_s: (n_runs,), at least 1 and above 0. entry: (n_runs,) whole numbers; runs of one
    entry (one submission, one session on one machine) share what made it fast or slow. Without it, runs at
    one size do.
    """

    num_accelerators: FloatArray
    time_s: FloatArray
    entry: IntArray

    def __post_init__(self) -> None:
        """Refuse what cannot be a size or a time, naming the first such item."""
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
        """The distinct numbers of accelerators, ascending."""
        return np.unique(self.num_accelerators)

    @property
    def domain(self) -> Domain:
        """The fewest and the most accelerators."""
        return Domain(smallest=float(self.num_accelerators.min()), largest=float(self.num_accelerators.max()))

    def where(self, kept: BoolArray) -> "MeasuredTimes":
        """Only the runs that are True in `kept`: (n_runs,)."""
        return MeasuredTimes(
            num_accelerators=self.num_accelerators[kept], time_s=self.time_s[kept], entry=self.entry[kept]
        )


class LawFit(Struct, frozen=True, kw_only=True):
    """One law fitted to the points.

    weight: how likely this law is, among those compared. values: the likeliest parameters.
    draws: (n, num_params) equally likely parameter sets, as many as the weight earns; noise: (n, 2) the log
    standard deviations (of a run, of its cluster) of each.
    """

    law: Law
    weight: float
    values: FloatArray
    draws: FloatArray
    noise: FloatArray


class Fit(Struct, frozen=True, kw_only=True):
    """The laws that explain the points, the heaviest first.

    outliers: (n_runs,) runs left out as too far from any law.
    """

    points: MeasuredTimes
    laws: tuple[LawFit, ...]
    outliers: BoolArray

    @property
    def best(self) -> LawFit:
        """The law of the largest weight."""
        return self.laws[0]

    @property
    def domain(self) -> Domain:
        """The sizes that were measured and used."""
        return self.points.where(~self.outliers).domain

    def curves_s(self, num_accelerators: ArrayLike) -> FloatArray:
        """Expected seconds by equally likely curves: (n_sizes,) -> (n_curves, n_sizes)."""
        sizes = np.atleast_1d(np.asarray(num_accelerators, dtype=float))
        return np.concatenate([each.law.times_s(each.draws, sizes) for each in self.laws])


class LawPrediction(Struct, frozen=True, kw_only=True):
    """Time at some sizes, all (n_sizes,): the median, and the bounds that hold it with a probability.

    extrapolation: how many times beyond the nearest measured size; 1.0 inside the measured range.
    """

    time_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    extrapolation: FloatArray


def measured_times(
    num_accelerators: ArrayLike, time_s: ArrayLike, *, entry: ArrayLike | None = None
) -> MeasuredTimes:
    """Times measured at some sizes. entry: labels of any kind, one per run."""
    sizes = np.asarray(num_accelerators, dtype=float)
    label = sizes if entry is None else np.asarray(entry)
    return MeasuredTimes(
        num_accelerators=sizes,
        time_s=np.asarray(time_s, dtype=float),
        entry=np.unique(label, return_inverse=True)[1].astype(np.int64),
    )


def fit(data: MeasuredTimes, laws: tuple[Law, ...] = CANDIDATES, *, noise: Noise = MEASURED_NOISE) -> Fit:
    """The laws fitted to the points and weighted against each other, every law being as likely before.

    noise: the scatter to expect: MEASURED_NOISE on one machine, PUBLISHED_NOISE between systems.

    Raises FitError, naming what to measure, when the points cannot distinguish a law from times that do not
    depend on size.
    Assumes relative errors; independent runs of an entry (or size), which may stray from the law as a whole.
    Source: Bayesian model averaging, Hoeting et al. 1999, Statistical Science 14, 382.
    """
    compared = _compared(data, laws, noise)
    if compared.log_odds < math.log(LEAST_ODDS):
        raise _no_dependence(data, laws, math.exp(compared.log_odds))
    return compared.fit()


def fit_or_flat(data: MeasuredTimes, *, noise: Noise = MEASURED_NOISE) -> Fit:
    """As `fit` with all laws, and where size may not matter with the constant too, if no size pays.

    noise: as for `fit`.

    Raises FitError as `fit` does, unless the fewest accelerators are likely, by LEVEL, the best that ran.
    Assumes that the constant is as likely before as all laws together. Source: as for `fit`.
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
    """Laws against each other, and together against times that do not depend on size.

    outliers: (n_runs,), of which the constant alone, with noise of its own, has the others too.
    """

    points: MeasuredTimes
    noise: Noise
    outliers: BoolArray
    laws: tuple[Posterior, ...]
    constant: Posterior
    log_odds: float

    def fit(self, *, with_constant: bool = False) -> Fit:
        """The laws, weighted."""
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
    """How likely each law is. Raises FitError where there are too few sizes for any."""
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
    """Time at each size, with the interval that holds it with probability `level`.

    of: "law" for the expected time; "run" for one more run (of one more entry), whose noise widens the
    interval.
    Assumes that one of the fitted laws goes on to hold; that each accelerator does more than at the largest
    size of the data is not ruled out, and not sure. The intervals were checked up to 4 times beyond the
    data (docs/experiments/0001-law-intervals.md); `extrapolation` is how far beyond each size lies.
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
    # That efficiency goes on to rise beyond the data is never sure: caches and memory that came with more
    # accelerators are used up somewhere.
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
    """One law of the comparison; `used` holds the runs that are no outliers."""
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
    """The parameters of the curve nearest to the runs, started from the heaviest cell: (num_params,)."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    def off(unit: FloatArray) -> FloatArray:
        return _residuals(found.law, found.law.at(unit[None, :], found.domain)[0], used)

    def off_shape(unit: FloatArray) -> FloatArray:
        return off(unit) - np.mean(off(unit))

    unit = found.likeliest_unit
    if found.law.num_shapes:
        unit = least_squares(off_shape, unit, bounds=(0.0, 1.0), xtol=_EXACT, ftol=_EXACT).x
    scale = np.exp(np.mean(off(unit), keepdims=True))
    return np.asarray(found.law.scaled(found.law.at(unit[None, :], found.domain), scale)[0])


def _residuals(law: Law, values: FloatArray, runs: MeasuredTimes) -> FloatArray:
    """Log of measured over fitted time: (n_runs,)."""
    return np.asarray(np.log(runs.time_s) - np.log(law.predict_s(runs.num_accelerators, *values)))


def _sizes_needed(laws: tuple[Law, ...]) -> int:
    """Distinct sizes needed for a fit: one more than the simplest law has parameters, at least three."""
    return max(_FEWEST_SIZES, min(len(law.params) for law in laws) + 1)


def _require_sizes(sizes: FloatArray, laws: tuple[Law, ...]) -> None:
    """Raise FitError when there are too few distinct sizes for any of the laws."""
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
    """The error for times that may as well not depend on the size, as far as the laws can show."""
    sizes, runs = np.unique(data.num_accelerators, return_counts=True)
    at_size_s = [float(np.median(data.time_s[data.num_accelerators == size])) for size in sizes]
    ends_s, fastest = (at_size_s[0], at_size_s[-1]), int(np.argmin(at_size_s))
    larger = format_count(2.0 * sizes[-1])
    missing = f"the time at {larger} accelerators or more, so that the sizes span a wider range"
    if min(ends_s) > _SLOWER_AT_ENDS * at_size_s[fastest]:
        missing = f"the times at more numbers of accelerators around {sizes[fastest]:g}"
    if runs.min() < _ENOUGH_REPETITIONS:
        again = sizes[runs < _ENOUGH_REPETITIONS]
        missing += f", or {_ENOUGH_REPETITIONS} repetitions at each of {_listed(again)} accelerators"
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
