"""Statistics that several layers share: robust estimates, and what a calculation makes of uncertain inputs.

No frames, no files, no random numbers.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from statistics import NormalDist
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import EvidenceError
from equipoise.intervals import Bar, Input, Interval, Tornado, num_sd, tails

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_ROUNDING = 1e-10
Key = TypeVar("Key")
Value = TypeVar("Value")
SD_PER_MEDIAN_DEVIATION = 1.4826  # of normal values, sd over their median absolute deviation


def by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values that each key came with, both in the order in which they came.

    >>> by_key([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it the library of linear algebra takes one thread: small matrices only wait for several.

    The limit is the process's: of two threads of a program that ask at once, the first to end lifts it.
    """
    with _libraries(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _libraries(_num_modules: int) -> "ThreadpoolController":
    """The libraries that are loaded; finding them takes 2 ms of each answer, and others come with modules."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - many importers never compute

    return ThreadpoolController()


def percentile_interval(draws: ArrayLike, *, value: float, level: float) -> Interval:
    """The interval between the two quantiles of `draws` that leave half of 1 - level on each side.

    draws: (n_draws,) values of a statistic over resamples. value: the statistic itself, carried along.
    Assumes the draws are exchangeable with the statistic; few resampled items make it too narrow.
    Source: Efron 1979, percentile method.

    >>> interval = percentile_interval(range(101), value=50.0, level=0.9)
    >>> round(interval.low, 3), round(interval.high, 3)
    (5.0, 95.0)
    """
    low, high = quantiles(draws, tails(level))
    return Interval(value=value, low=float(low), high=float(high), level=level)


def quantiles(values: ArrayLike, shares: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles of columns, on the straight line between neighbours: (n, ...) -> (n_shares, ...).

    As np.quantile, without loading numpy.ma, which takes as long as all quantiles of an answer.
    Source: Hyndman and Fan 1996, definition 7.
    """
    ordered = np.sort(np.asarray(values, dtype=float), axis=0)
    found = []
    for share in shares:
        place = (len(ordered) - 1) * share
        below = math.floor(place)
        part = place - below
        low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
        step = high - low
        found.append(low + step * part if part < 0.5 else high - step * (1.0 - part))  # noqa: PLR2004
    return np.array(found)


def medians(values: ArrayLike) -> NDArray[np.float64]:
    """The median of columns: (n, ...) -> (...). As np.median, without loading numpy.ma."""
    ordered = np.sort(np.asarray(values, dtype=float), axis=0)
    middle = len(ordered) // 2
    return np.asarray(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def located_quantiles(values: ArrayLike, shares: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles that are values themselves: (n,) -> (n_shares,), the least with that share at or below.

    Source: Hyndman and Fan 1996, definition 1.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    return ordered[[max(0, math.ceil(len(ordered) * share - 1)) for share in shares]]


def covariance_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric R with R @ R = covariance: (n, n) symmetric -> (n, n). Negative eigenvalues count as 0.

    Independent normal deviates times R have that covariance, which may be singular, unlike with Cholesky's.
    There is one such R, so that equal deviates give equal draws on every machine: of eigenvectors, whose
    signs and order differ from one build of LAPACK to the next, that is not so.

    >>> covariance_root(np.array([[5.0, 4.0], [4.0, 5.0]])).round(6).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    variances, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(variances, 0.0))) @ vectors.T)


def conformal_half_width(log_errors: ArrayLike, clusters: ArrayLike, *, level: float) -> float:
    """The w for which predicted * exp(-w) to predicted * exp(w) holds the truth of a new cluster at `level`.

    log_errors: (n_points,) log(predicted / measured) on data held out of the fit. clusters: (n_points,) which
    points belong together; a cluster counts once, however many points it has. level: above 0 and below 1.
    Raises EvidenceError with fewer clusters than the level needs, level / (1 - level).
    Assumes clusters are exchangeable with the new one, and were held out whole.
    Source: Lee, Barber and Willett 2023, hierarchical conformal prediction: each of G clusters weighs
    1 / (G + 1), spread over its points, and the new one 1 / (G + 1) at infinity.

    >>> conformal_half_width([0.1, -0.2, 0.3], [0, 1, 2], level=0.5)
    0.2
    """
    sizes = np.abs(np.asarray(log_errors, dtype=float))
    _, which, counts = np.unique(np.asarray(clusters), return_inverse=True, return_counts=True)
    num_clusters = len(counts)
    # Spare the level its rounding error: at 0.9, nine clusters are enough.
    needed = level * (num_clusters + 1) - _ROUNDING
    if needed > num_clusters:
        fewest = int(np.ceil(level / (1.0 - level) - _ROUNDING))
        raise EvidenceError(
            f"{num_clusters} clusters were held out; an interval that holds at {level:g} needs {fewest}",
            missing=(f"{fewest - num_clusters} more groups of measurements",),
        )
    order = np.argsort(sizes, kind="stable")
    weight = np.cumsum(1.0 / counts[which[order]])
    return float(sizes[order][np.searchsorted(weight, needed)])


def median_interval(values: ArrayLike, *, level: float) -> Interval:
    """The median and the narrowest symmetric pair of order statistics that holds the true median at `level`.

    values: (n_values,). Raises EvidenceError with too few values for the level: 6 at 0.95.
    Assumes values are independent draws of one distribution, whatever its shape.
    Source: Hahn and Meeker 1991, Statistical Intervals, 5.2: the number of draws below the median is
    binomial(n, 1/2).

    >>> interval = median_interval([3, 1, 2, 6, 5, 4], level=0.95)
    >>> interval.value, interval.low, interval.high
    (3.5, 1.0, 6.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    tail, _ = tails(level)
    # How many values may be left out on each side: P(at most so many draws fall below the median) <= tail.
    places = np.arange(len(ordered))
    allowed = int(np.sum(_special().bdtr(places, len(ordered), 0.5) <= tail + _ROUNDING))
    if not allowed:
        fewest = int(np.ceil(1.0 - np.log2(1.0 - level) - _ROUNDING))
        raise EvidenceError(
            f"{len(ordered)} values; an interval of their median that holds at {level:g} needs {fewest}",
            missing=(f"{fewest - len(ordered)} more values",),
        )
    return Interval(
        value=float(np.median(ordered)),
        low=float(ordered[allowed - 1]),
        high=float(ordered[-allowed]),
        level=level,
    )


_MOST_BATCHES = 20


def series_mean_interval(values: ArrayLike, *, level: float) -> Interval:
    """The mean of positive values in order of time, and its interval from means of batches of neighbours.

    values: (n_values,), 4 or more, else EvidenceError. Low and high are as far from the mean, as factors.
    Assumes neighbours may depend on each other, batches hardly do.
    Source: Conway 1963: batch means, Student's t; Schmeiser 1982: 10 to 30 batches are enough; delta method
    for the logarithm.

    >>> interval = series_mean_interval([1.0, 1.0, 1.0, 5.0], level=0.9)
    >>> interval.value, round(interval.high / interval.value, 6) == round(interval.value / interval.low, 6)
    (2.0, True)
    """
    series = np.asarray(values, dtype=float)
    num_batches = min(len(series) // 2, _MOST_BATCHES)
    if num_batches < 2:  # noqa: PLR2004 - no spread is known from one
        raise EvidenceError(
            f"{len(series)} values have no two batches of neighbours",
            missing=(f"{4 - len(series)} more values",),
        )
    mean = series.mean()
    means = np.array([each.mean() for each in np.array_split(series, num_batches)])
    half = _special().stdtrit(num_batches - 1, (1.0 + level) / 2.0) * means.std(ddof=1) / np.sqrt(num_batches)
    factor = np.exp(half / mean)
    return Interval(value=float(mean), low=float(mean / factor), high=float(mean * factor), level=level)


def log_t_interval(values: ArrayLike, *, level: float) -> Interval:
    """The median of a few positive values, and Student's interval of the mean of their logarithms.

    values: (n_values,), at least 2. Raises EvidenceError with fewer.
    Assumes logarithms are normal: their mean is then that of the median.
    Source: Student 1908 on logarithms.

    >>> interval = log_t_interval([1.0, 1.0, 1.0], level=0.95)
    >>> interval.low, interval.high
    (1.0, 1.0)
    """
    logs = np.log(np.asarray(values, dtype=float))
    if len(logs) < 2:  # noqa: PLR2004 - no spread is known from one
        raise EvidenceError(f"{len(logs)} values have no spread", missing=("another value",))
    half = _special().stdtrit(len(logs) - 1, (1.0 + level) / 2.0) * logs.std(ddof=1) / np.sqrt(len(logs))
    centre = logs.mean()
    return Interval(
        value=float(np.exp(np.median(logs))),
        low=float(np.exp(centre - half)),
        high=float(np.exp(centre + half)),
        level=level,
    )


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike, *, level: float) -> Interval:
    """The ratio of two medians, and Welch's interval of the difference of mean logarithms.

    numerators, denominators: (n,) and (m,) positive values, at least 2 each; EvidenceError with fewer.
    The interval is widened to the value where outliers put it outside.
    Assumes logarithms are normal, with variances of their own; what both sides share, as a slow drift,
    widens the interval.
    Source: Welch 1947, Satterthwaite 1946 for the degrees of freedom.

    >>> interval = ratio_interval([2.0, 2.0, 2.0], [1.0, 1.0], level=0.95)
    >>> interval.low, interval.value, interval.high
    (2.0, 2.0, 2.0)
    """
    sides = [np.log(np.asarray(side, dtype=float)) for side in (numerators, denominators)]
    if min(map(len, sides)) < 2:  # noqa: PLR2004 - no spread is known from one
        raise EvidenceError("one value has no spread", missing=("another value of each side",))
    squares = [side.var(ddof=1) / len(side) for side in sides]
    variance = sum(squares)
    centre = sides[0].mean() - sides[1].mean()
    half = 0.0
    if variance > 0:
        weights = (square**2 / (len(side) - 1) for square, side in zip(squares, sides, strict=True))
        half = float(_special().stdtrit(variance**2 / sum(weights), (1.0 + level) / 2.0) * np.sqrt(variance))
    value = float(np.exp(np.median(sides[0]) - np.median(sides[1])))
    return Interval(
        value=value,
        low=min(value, float(np.exp(centre - half))),
        high=max(value, float(np.exp(centre + half))),
        level=level,
    )


def proportion_interval(num_hits: int, num_trials: int, *, level: float) -> Interval:
    """The share of trials that hit, and its exact interval, which holds at `level` or more.

    num_trials: at least 1.
    Assumes trials are independent with one probability.
    Source: Clopper and Pearson 1934, by quantiles of the beta distribution.

    >>> interval = proportion_interval(0, 10, level=0.95)
    >>> interval.low, round(interval.high, 4)
    (0.0, 0.3085)
    """
    below, above = tails(level)
    missed = num_trials - num_hits
    return Interval(
        value=num_hits / num_trials,
        low=float(_special().betaincinv(num_hits, missed + 1, below)) if num_hits else 0.0,
        high=float(_special().betaincinv(num_hits + 1, missed, above)) if missed else 1.0,
        level=level,
    )


def deviations_of_slowest(num_ranks: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """How many standard deviations the slowest of so many ranks lies above their mean; of one rank, none.

    Assumes independent normal deviates; of few it is too much (of 8, 2.0 where 1.4 is right).
    Source: extreme values, sqrt(2 ln n) in the limit.
    """
    return np.asarray(np.sqrt(2 * np.log(num_ranks)))


def _special() -> ModuleType:
    """Special functions, loaded when first needed: that takes longer than most answers, which need none."""
    import scipy.special  # noqa: PLC0415 - loading it takes as long as a plan

    return scipy.special


Values: TypeAlias = Mapping[str, NDArray[np.float64]]
Evaluate: TypeAlias = Callable[[Values], NDArray[np.float64]]

# So many that the ends of a 90 % interval lie within 2 % of those of two million draws (tests/economics).
_NUM_DRAWS = 8192
_SEED = 1


def propagated(evaluate: Evaluate, inputs: Sequence[Input]) -> Interval:
    """What a calculation gives at the values of its inputs, and the interval as they vary together.

    evaluate: values by name, each of shape (n,), to results of shape (n,). inputs: one or more, of one level.
    Assumes inputs are independent; the logarithm of a positive one, else the value itself, is normal on
    either side of its value, with the width of that side.
    Source: JCGM 101:2008, propagation of distributions by Monte Carlo.
    """
    level = inputs[0].interval.level
    value = float(evaluate({each.name: np.array([each.interval.value]) for each in inputs})[0])
    results = np.sort(drawn(evaluate, inputs))
    low, high = (float(results[round(share * (len(results) - 1))]) for share in tails(level))
    return Interval(value=value, low=min(low, value), high=max(high, value), level=level)


def drawn(evaluate: Evaluate, inputs: Sequence[Input]) -> NDArray[np.float64]:
    """Equally likely results of a calculation as its inputs vary together: (n_draws,)."""
    deviates = _deviates(len(inputs)) / num_sd(inputs[0].interval.level)
    return evaluate(
        {each.name: _at(each.interval, deviates[:, column]) for column, each in enumerate(inputs)}
    )


def tornado(name: str, unit: str, evaluate: Evaluate, inputs: Sequence[Input]) -> Tornado:
    """The result, its interval, and its inputs by how far each moves it alone.

    Every bar evaluates anew at both ends of its input, the others at their values; what is exact has none.
    Source: Eschenbach 1992, tornado diagrams.
    """
    bars = [_bar(evaluate, inputs, each) for each in inputs if each.interval.low < each.interval.high]
    return Tornado(
        name=name,
        unit=unit,
        result=propagated(evaluate, inputs),
        bars=tuple(sorted(bars, key=lambda bar: -bar.effect)),
    )


def _bar(evaluate: Evaluate, inputs: Iterable[Input], moved: Input) -> Bar:
    ends = np.array([moved.interval.low, moved.interval.high])
    values = {each.name: np.full(2, each.interval.value) for each in inputs} | {moved.name: ends}
    at_low, at_high = evaluate(values)
    return Bar(
        name=moved.name,
        unit=moved.unit,
        low=moved.interval.low,
        high=moved.interval.high,
        at_low=float(at_low),
        at_high=float(at_high),
    )


def _at(interval: Interval, reaches: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values at so many half widths from the middle: -1 is the low end, 1 the high end."""
    if interval.low > 0.0:
        below = math.log(interval.value / interval.low)
        above = math.log(interval.high / interval.value)
        return np.asarray(interval.value * np.exp(reaches * np.where(reaches < 0, below, above)))
    width = np.where(reaches < 0, interval.value - interval.low, interval.high - interval.value)
    return np.asarray(interval.value + reaches * width)


@cache
def _deviates(num_inputs: int) -> NDArray[np.float64]:
    """Normal deviates, each input's as even as they can be, in an order of its own: (n_draws, n_inputs).

    Source: McKay, Beckman and Conover 1979, Latin hypercube sampling, at the middle of each cell.
    """
    shares = (np.arange(_NUM_DRAWS) + 0.5) / _NUM_DRAWS
    even = np.array([*map(NormalDist().inv_cdf, shares.tolist())])
    rng = np.random.default_rng(_SEED)
    return np.stack([rng.permutation(even) for _ in range(num_inputs)], axis=1)
