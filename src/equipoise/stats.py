"""Robust statistics over plain arrays: what the layers above share. No frames, no files.

Random numbers come from the caller.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value between two bounds that are meant to hold with probability `level`."""

    value: float
    low: float
    high: float
    level: float


def median_absolute_deviation(values: ArrayLike) -> float:
    """The median distance from the median, unscaled: half of the values lie closer to it than this.

    values: (n,) finite numbers, n >= 1.
    Assumes nothing about the distribution; multiply by 1.4826 to compare with a normal standard deviation.
    Source: Hampel 1974.

    >>> median_absolute_deviation([1.0, 2.0, 3.0, 100.0])
    1.0
    """
    array = np.asarray(values, dtype=float)
    return float(np.median(np.abs(array - np.median(array))))


def bootstrap(
    values: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], float],
    *,
    rng: np.random.Generator,
    num_resamples: int = 1000,
    level: float = 0.9,
) -> Interval:
    """The statistic of the values with its percentile bootstrap interval.

    values: (n,) or (n, n_columns); rows are drawn with replacement. level: coverage, 0..1.
    Assumes the rows are exchangeable; with fewer than ten of them the interval is too narrow.
    Source: Efron 1979, percentile method.
    """
    draws = rng.integers(0, len(values), size=(num_resamples, len(values)))
    resampled = np.array([statistic(values[rows]) for rows in draws])
    return percentile_interval(resampled, value=statistic(values), level=level)


def percentile_interval(draws: ArrayLike, *, value: float, level: float) -> Interval:
    """The interval between the two quantiles of `draws` that leave (1 - level) / 2 on each side."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.asarray(draws, dtype=float), [tail, 1.0 - tail])
    return Interval(value=value, low=float(low), high=float(high), level=level)
