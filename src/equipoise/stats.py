"""Statistics shared by several packages: robust estimates, and propagation of uncertain inputs.

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
    """The values of each key; keys and values keep their order.

    >>> by_key([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit linear algebra libraries to one thread, which is faster for small matrices.

    The limit applies to the whole process: if two threads use it at once, the first to end lifts it.
    """
    with _libraries(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _libraries(_num_modules: int) -> "ThreadpoolController":
    """The loaded libraries; cached until further modules load, because finding them takes 2 ms."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - many importers never compute

    return ThreadpoolController()


def percentile_interval(draws: ArrayLike, *, value: float, level: float) -> Interval:
    """The interval between the two quantiles of `draws` that leave half of 1 - level on each side.

    draws: (n_draws,) values of a statistic over resamples. value: the statistic itself.
    Assumes the draws are exchangeable with the statistic; with few resampled items it is too narrow.
    Source: Efron 1979, percentile method.

    >>> interval = percentile_interval(range(101), value=50.0, level=0.9)
    >>> round(interval.low, 3), round(interval.high, 3)
    (5.0, 95.0)
    """
    low, high = quantiles(draws, tails(level))
    return Interval(value=value, low=float(low), high=float(high), level=level)


def quantiles(values: ArrayLike, shares: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles of columns with linear interpolation: (n, ...) -> (n_shares, ...).

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
    """Quantiles without interpolation, (n,) -> (n_shares,): the least value with that share at or below it.

    Source: Hyndman and Fan 1996, definition 1.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    return ordered[[max(0, math.ceil(len(ordered) * share - 1)) for share in shares]]


def covariance_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric R with R @ R = covariance: (n, n) symmetric -> (n, n). Negative eigenvalues count as 0.

    Independent normal deviates times R have this covariance, which may be singular, unlike with Cholesky's
    root. R is unique, so equal deviates give equal draws on every machine; eigenvectors, whose signs and
    order differ between builds of LAPACK, would not.

    >>> covariance_root(np.array([[5.0, 4.0], [4.0, 5.0]])).round(6).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    variances, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(variances, 0.0))) @ vectors.T)


def conformal_half_width(log_errors: ArrayLike, clusters: ArrayLike, *, level: float) -> float:
    """The w for which predicted * exp(-w) to predicted * exp(w) covers a new cluster's true value at `level`.

    log_errors: (n_points,) log(predicted / measured) of held-out data. clusters: (n_points,) cluster of each
    point; every cluster has equal weight. level: above 0 and below 1.
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
    # Allow for rounding of the level: at 0.9, nine clusters are enough.
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
    """The median and the narrowest symmetric pair of order statistics that covers the true median at `level`.

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
    # Values that may be excluded on each side: P(at most `places` draws fall below the median) <= tail.
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


_MAX_BATCHES = 20


def series_mean_interval(values: ArrayLike, *, level: float) -> Interval:
    """The mean of a time series of positive values, and its interval by the method of batch means.

    values: (n_values,), 4 or more, else EvidenceError. The mean is the geometric mean of low and high.
    Assumes neighbouring values may be correlated, and batches hardly are.
    Source: Conway 1963: batch means, Student's t; Schmeiser 1982: 10 to 30 batches are enough; delta method
    for the logarithm.

    >>> interval = series_mean_interval([1.0, 1.0, 1.0, 5.0], level=0.9)
    >>> interval.value, round(interval.high / interval.value, 6) == round(interval.value / interval.low, 6)
    (2.0, True)
    """
    series = np.asarray(values, dtype=float)
    num_batches = min(len(series) // 2, _MAX_BATCHES)
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
    Assumes logarithms are normal, so that their mean is the logarithm of the median.
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
    The interval is widened to include the value, where outliers would exclude it.
    Assumes logarithms are normal, with separate variances; effects common to both sides, such as a slow
    drift, widen the interval.
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
    """The share of hits among trials, and its exact interval, with coverage of `level` or more.

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
    """Standard deviations by which the slowest of `num_ranks` ranks exceeds their mean; 0 for one rank.

    Assumes independent normal deviates; too large for few ranks (2.0 for 8, where 1.4 is right).
    Source: extreme values, sqrt(2 ln n) in the limit.
    """
    return np.asarray(np.sqrt(2 * np.log(num_ranks)))


def _special() -> ModuleType:
    """SciPy's special functions, imported on first use: most answers need none, and take less time."""
    import scipy.special  # noqa: PLC0415 - loading it takes as long as a plan

    return scipy.special


Values: TypeAlias = Mapping[str, NDArray[np.float64]]
Evaluate: TypeAlias = Callable[[Values], NDArray[np.float64]]

# With this number, the ends of a 90 % interval are within 2 % of those of two million draws
# (tests/economics).
_NUM_DRAWS = 8192
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)  # one for each input


def propagated(evaluate: Evaluate, inputs: Sequence[Input]) -> Interval:
    """The result of a calculation at its inputs' values, and its interval as all inputs vary together.

    evaluate: maps values by name, each (n,), to results, (n,). inputs: at least one, all with the same level.
    Assumes independent inputs; the logarithm of a positive input, or the value of any other, is normal on
    each side of its value with the width of that side.
    Source: JCGM 101:2008, propagation of distributions by Monte Carlo.
    """
    level = inputs[0].interval.level
    value = float(evaluate({each.name: np.array([each.interval.value]) for each in inputs})[0])
    results = np.sort(drawn(evaluate, inputs))
    low, high = (float(results[round(share * (len(results) - 1))]) for share in tails(level))
    return Interval(value=value, low=min(low, value), high=max(high, value), level=level)


def drawn(evaluate: Evaluate, inputs: Sequence[Input]) -> NDArray[np.float64]:
    """Equally likely results of a calculation as all inputs vary together: (n_draws,)."""
    values = {each.name: np.full(_NUM_DRAWS, each.interval.value) for each in inputs}
    moving = [each for each in inputs if each.interval.low < each.interval.high]
    deviates = _deviates(len(moving)) / num_sd(inputs[0].interval.level)
    for column, each in enumerate(moving):
        values[each.name] = _at(each.interval, deviates[:, column])
    return evaluate(values)


def tornado(name: str, unit: str, evaluate: Evaluate, inputs: Sequence[Input]) -> Tornado:
    """The result, its interval, and the effect of each input alone, largest first.

    A bar is evaluated at both ends of its input, with the others at their values; exact inputs have no bar.
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
    """Values at these numbers of half widths from the middle: -1 is the low end, 1 the high end."""
    if interval.low > 0.0:
        below = math.log(interval.value / interval.low)
        above = math.log(interval.high / interval.value)
        return np.asarray(interval.value * np.exp(reaches * np.where(reaches < 0, below, above)))
    width = np.where(reaches < 0, interval.value - interval.low, interval.high - interval.value)
    return np.asarray(interval.value + reaches * width)


@cache
def _deviates(num_inputs: int) -> NDArray[np.float64]:
    """Evenly spaced normal deviates, in a different order for each input: (n_draws, n_inputs).

    Source: McKay, Beckman and Conover 1979, Latin hypercube sampling, at the middle of each cell; the orders
    are those of multiples of irrational numbers modulo 1 (Niederreiter 1992, chapter 3).
    """
    number = np.arange(_NUM_DRAWS)
    lower = np.array([*map(NormalDist().inv_cdf, ((number[: _NUM_DRAWS // 2] + 0.5) / _NUM_DRAWS).tolist())])
    found = np.empty((_NUM_DRAWS, num_inputs))
    for column, prime in enumerate(_PRIMES[:num_inputs]):
        found[np.argsort(number * math.sqrt(prime) % 1.0), column] = np.concatenate([lower, -lower[::-1]])
    return found
