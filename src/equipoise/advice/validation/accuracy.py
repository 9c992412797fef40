"""How wrong predictions were, every cluster counted once; and intervals from how wrong they were
elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from equipoise.advice.validation.predictor import cluster_weights
from equipoise.stats import conformal_half_width

LEVEL = 0.9  # at which every interval here is meant to hold
# Below so many clusters a quantile of their errors says less than a distribution fitted to them.
_FEWEST_FOR_QUANTILE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """|predicted time / measured time - 1|, by cluster: the mean of its executions.

    mape, median, p90: over clusters. coverage: share of clusters' executions inside their intervals.
    mape_by_execution, median_by_execution: with every execution counted once.
    """

    num_executions: int
    num_clusters: int
    mape: float
    median: float
    p90: float
    coverage: float
    mape_by_execution: float
    median_by_execution: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """|predicted / stated - 1| of the memory of executions that state it."""

    num_executions: int
    mean: float
    largest: float


def errors_of(
    *,
    measured_s: NDArray[np.float64],
    predicted_s: NDArray[np.float64],
    low_s: NDArray[np.float64],
    high_s: NDArray[np.float64],
    clusters: NDArray[np.intp],
) -> Errors:
    """The errors of some executions; all arguments of shape (n_executions,), at least one."""
    error = np.abs(predicted_s / measured_s - 1.0)
    inside = (low_s <= measured_s) & (measured_s <= high_s)
    weights = cluster_weights(clusters)
    _, member = np.unique(clusters, return_inverse=True)
    of_cluster = np.bincount(member, weights=weights * error)
    return Errors(
        num_executions=len(error),
        num_clusters=len(of_cluster),
        mape=float(np.mean(of_cluster)),
        median=float(np.median(of_cluster)),
        p90=float(np.quantile(of_cluster, 0.9)),
        coverage=float(np.average(inside, weights=weights)),
        mape_by_execution=float(np.mean(error)),
        median_by_execution=float(np.median(error)),
    )


def memory_errors(measured: Sequence[float | None], predicted: Sequence[float | None]) -> MemoryErrors | None:
    """Errors of memory over the executions that state it and have a prediction; None where there are none."""
    errors = [
        abs(told / stated - 1.0)
        for stated, told in zip(measured, predicted, strict=True)
        if stated is not None and told is not None
    ]
    if not errors:
        return None
    return MemoryErrors(num_executions=len(errors), mean=float(np.mean(errors)), largest=max(errors))


def prior_half_width(log_sd: NDArray[np.float64], *, level: float) -> NDArray[np.float64]:
    """Half the width of an interval, of the logarithm, where a prediction rests on beliefs alone.

    Assumes that the logarithm is normal. Source: the normal quantile.
    """
    return np.asarray(NormalDist().inv_cdf((1 + level) / 2) * log_sd)


def half_width(residuals: NDArray[np.float64], clusters: NDArray[np.intp], *, level: float) -> float:
    """What |log(measured / predicted)| of a new row stays below at a level; NaN without residuals.

    residuals: (n_rows,) of rows that were held out. clusters: of each.
    Assumes that new rows err like those; of few clusters, that their errors are normal.
    Source: `conformal_half_width`; of few, Student 1908.
    """
    if not len(residuals):
        return float("nan")
    weights = cluster_weights(clusters)
    num_clusters = len(np.unique(clusters))
    if num_clusters >= _FEWEST_FOR_QUANTILE:
        return conformal_half_width(residuals, clusters, level=level)
    from scipy.special import stdtrit  # noqa: PLC0415 - loading it takes as long as a plan

    rms = np.sqrt(np.average(residuals**2, weights=weights))
    # A new cluster errs by as much again as those seen, and how much they err is known by so few.
    return float(stdtrit(num_clusters, (1 + level) / 2) * rms * np.sqrt(1 + 1 / num_clusters))
