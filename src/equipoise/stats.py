"""Statistics over plain arrays that several layers share. No frames, no files, no random numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value between two bounds that are meant to hold with probability `level`."""

    value: float
    low: float
    high: float
    level: float


def percentile_interval(draws: ArrayLike, *, value: float, level: float) -> Interval:
    """The interval between the two quantiles of `draws` that leave (1 - level) / 2 on each side.

    draws: (n_draws,) values of a statistic over resamples. value: the statistic itself, carried along.
    Assumes the draws are exchangeable with the statistic; few resampled items make it too narrow.
    Source: Efron 1979, percentile method.

    >>> interval = percentile_interval(range(101), value=50.0, level=0.9)
    >>> round(interval.low, 3), round(interval.high, 3)
    (5.0, 95.0)
    """
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.asarray(draws, dtype=float), [tail, 1.0 - tail])
    return Interval(value=value, low=float(low), high=float(high), level=level)
