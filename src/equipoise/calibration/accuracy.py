"""How wrong predictions were, every cluster counted once, with intervals, and what choosing by them costs."""

from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.calibration.published.rows import PublishedRow
from equipoise.stats import conformal_half_width


def cluster_weights(clusters: NDArray[np.intp]) -> NDArray[np.float64]:
    """Weights with which every cluster counts once: one over the rows it has, shape as the clusters'."""
    _, inverse, counts = np.unique(clusters, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[inverse])


LEVEL = 0.9  # at which every interval here is meant to hold
# Below so many clusters a quantile of their errors is worse known than a distribution fitted to them.
_FEWEST_FOR_QUANTILE = 20


class TimeErrors(Struct, frozen=True, kw_only=True):
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


class MemoryErrors(Struct, frozen=True, kw_only=True):
    """|predicted / stated - 1| of the memory of executions that state it."""

    num_executions: int
    mean: float
    largest: float


def time_errors(
    *,
    measured_s: NDArray[np.float64],
    predicted_s: NDArray[np.float64],
    low_s: NDArray[np.float64],
    high_s: NDArray[np.float64],
    clusters: NDArray[np.intp],
) -> TimeErrors:
    """The errors of some executions; all arguments of shape (n_executions,), at least one."""
    error = np.abs(predicted_s / measured_s - 1.0)
    inside = (low_s <= measured_s) & (measured_s <= high_s)
    weights = cluster_weights(clusters)
    _, member = np.unique(clusters, return_inverse=True)
    of_cluster = np.bincount(member, weights=weights * error)
    return TimeErrors(
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
        abs(value / stated - 1.0)
        for stated, value in zip(measured, predicted, strict=True)
        if stated is not None and value is not None
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


# Among fewer strategies there is little to choose.
FEWEST_CHOICES = 4


class Regret(Struct, frozen=True, kw_only=True):
    """Time of the strategy that was predicted fastest over that of the fastest, less one, over groups.

    A group is the same model, batch and number of accelerators under at least FEWEST_CHOICES strategies.
    """

    num_groups: int
    mean: float
    largest: float


def regret(rows: Sequence[PublishedRow], predicted_s: Sequence[float]) -> Regret | None:
    """The regret over all groups of some executions; None where no group is large enough.

    Assumes that of one strategy measured several times the mean counts.
    """
    groups: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = {}
    for row, row_predicted_s in zip(rows, predicted_s, strict=True):
        if row.kind != "step" or row.strategy is None or row.model is None or row.seconds is None:
            continue
        job = (row.workload, row.model.transformer, row.model.sequence, row.hardware, row.num_accelerators)
        of_job = groups.setdefault((*job, row.strategy.global_batch_samples), {})
        of_job.setdefault(row.strategy, []).append((row_predicted_s, row.seconds))
    costs = [_cost(choices) for choices in groups.values() if len(choices) >= FEWEST_CHOICES]
    if not costs:
        return None
    return Regret(num_groups=len(costs), mean=sum(costs) / len(costs), largest=max(costs))


def _cost(choices: dict[Hashable, list[tuple[float, float]]]) -> float:
    """Regret of one group."""
    means = [
        (sum(value for value, _ in pairs) / len(pairs), sum(was for _, was in pairs) / len(pairs))
        for pairs in choices.values()
    ]
    chosen_s = min(means)[1]
    return chosen_s / min(was for _, was in means) - 1.0
