"""Statistics over plain arrays that several layers share. No frames, no files, no random numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.errors import EvidenceError

_ROUNDING = 1e-10


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
