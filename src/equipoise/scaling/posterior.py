"""Posterior of a law's curves given measured times, by sums over grids; cubic splines. No random numbers."""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from equipoise.scaling.laws import Domain, FloatArray, Law
from equipoise.stats import SD_PER_MEDIAN_DEVIATION

_MIN_KNOTS = 4


class CubicSpline(Struct, frozen=True, kw_only=True, eq=False):
    """Piecewise cubic curves with knots at first, first + step, ...

    values, slopes: at knots, (n_curves, n_knots). rises: mean slopes between knots, (n_curves, n_knots - 1).
    """

    first: float
    step: float
    values: FloatArray
    rises: FloatArray
    slopes: FloatArray

    def __call__(self, at: FloatArray) -> FloatArray:
        """The curves at positions, also beyond the knots: (n,) -> (n_curves, n)."""
        positions = (np.asarray(at) - self.first) / self.step
        piece = np.clip(np.floor(positions), 0, self.values.shape[1] - 2).astype(np.intp)
        # Hermite form, in powers of the relative position within a piece.
        passed = positions - piece
        rise, begin, end = self.rises[:, piece], self.slopes[:, piece], self.slopes[:, piece + 1]
        bend = 3.0 * rise - 2.0 * begin - end
        twist = begin + end - 2.0 * rise
        return np.asarray(
            self.values[:, piece] + self.step * passed * (begin + passed * (bend + passed * twist)),
            dtype=float,
        )


def cubic_spline(first: float, step: float, values: FloatArray) -> CubicSpline:
    """The twice differentiable piecewise cubic through values at first, first + step, ...

    values: (n_curves, n_knots), at least 4 knots.
    Assumes the two pieces at either end are one cubic ("not-a-knot").
    Source: de Boor 1978, A Practical Guide to Splines, chapter IV, for slopes at the knots.

    >>> cube = cubic_spline(0.0, 1.0, np.arange(5.0)[None] ** 3)
    >>> cube(np.array([2.5])).round(9).tolist()
    [[15.625]]
    """
    num_knots = values.shape[1]
    assert num_knots >= _MIN_KNOTS
    rises = np.diff(values) / step
    system = 4.0 * np.eye(num_knots) + np.eye(num_knots, k=1) + np.eye(num_knots, k=-1)
    right = np.empty_like(values)
    right[:, 1:-1] = 3.0 * (rises[:, :-1] + rises[:, 1:])
    system[[0, -1]] = 0.0
    system[0, [0, 2]] = system[-1, [-3, -1]] = 1.0, -1.0
    right[:, 0] = 2.0 * (rises[:, 0] - rises[:, 1])
    right[:, -1] = 2.0 * (rises[:, -2] - rises[:, -1])
    slopes = np.asarray(np.linalg.solve(system, right.T).T, dtype=float)
    return CubicSpline(first=first, step=step, values=values, rises=rises, slopes=slopes)


BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]

# Cells per side in each refinement, by the number of shape parameters; the last grid is used.
_GRID_SIDES = {0: (1,), 1: (99, 99, 147), 2: (25, 25, 41)}
_NEGLIGIBLE_LOG_WEIGHT = -12.0

# Prior of the noise of a run: about 2.5 % at one size, from well below 1 % to above 10 %.
_RUN_NOISE = np.geomspace(0.0005, 0.3, 13)
_RUN_NOISE_MEDIAN, _RUN_NOISE_LOG_SD = 0.025, 0.8

_OUTLIER_SPREADS = 4.0
_MAX_OUTLIER_SHARE = 0.2
_MIN_FREEDOM = 3
_MAX_RUNS_SEARCHED = 500  # an even sample of many runs gives the same curve
GOLDEN = 0.6180339887498949  # multiples of the golden ratio modulo 1 are the most even sequence


class Clusters(Struct, frozen=True, kw_only=True):
    """Runs in clusters with a common deviation: the runs of one entry, or of one size.

    num_accelerators, mean_log_s, num_runs: (n_clusters,). within: squared deviations from means, summed.
    """

    num_accelerators: FloatArray
    mean_log_s: FloatArray
    num_runs: FloatArray
    within: float

    @property
    def within_freedom(self) -> float:
        """Degrees of freedom of `within`."""
        return float(np.sum(self.num_runs) - len(self.num_runs))


class Noise(Struct, frozen=True, kw_only=True):
    """A grid of noise levels: sd of log times of a run and of its cluster, log prior weights; (n_noises,)."""

    run: FloatArray
    cluster: FloatArray
    log_weight: FloatArray


class Posterior(Struct, frozen=True, kw_only=True):
    """Posterior weights of one law's curves and noise levels.

    unit: curves as arguments of `Law.at`, (n_cells, num_shapes). log_weight, log_scale: (n_cells, n_noises).
    log_scale_sd: (n_noises,). log_evidence: log marginal likelihood of the law.
    """

    law: Law
    domain: Domain
    unit: FloatArray
    log_weight: FloatArray
    log_scale: FloatArray
    log_scale_sd: FloatArray
    log_evidence: float

    def draws(self, count: int) -> tuple[FloatArray, IntArray]:
        """`count` equally likely parameter sets, (count, num_params), and the noise level of each, (count,).

        They are spread evenly over the posterior, so that the same data always give the same draws.
        """
        cell, noise = even_draws(self.log_weight, count)
        deviate = even_deviates(count, GOLDEN)
        scale = np.exp(self.log_scale[cell, noise] + deviate * self.log_scale_sd[noise])
        return self.law.scaled(self.law.at(self.unit[cell], self.domain), scale), noise

    @property
    def likeliest_unit(self) -> FloatArray:
        """The curve with the largest weight: (num_shapes,)."""
        return np.asarray(self.unit[np.argmax(self.log_weight.max(axis=1))])


def log_sum(log_weight: FloatArray) -> FloatArray:
    """Log-sum-exp of each row: (n_rows, n_columns) -> (n_rows,)."""
    largest = log_weight.max(axis=1, keepdims=True)
    return np.asarray(largest[:, 0] + np.log(np.exp(log_weight - largest).sum(axis=1)))


def even_draws(log_weight: FloatArray, count: int) -> tuple[IntArray, IntArray]:
    """Rows and columns of `count` cells drawn by weight, without random numbers.

    log_weight: (n_rows, n_columns). Returns (count,) each.

    Source: systematic resampling, Kitagawa 1996, with the offset fixed at one half.
    """
    cumulative = np.cumsum(np.exp(log_weight - log_weight.max()))
    even = (np.arange(count) + 0.5) / count
    return np.divmod(np.searchsorted(cumulative, even * cumulative[-1]), log_weight.shape[1])


@lru_cache(maxsize=16)
def even_deviates(count: int, irrational: float) -> FloatArray:
    """`count` standard normal deviates with even quantiles, in an irregular order: (count,).

    Source: the additive recurrence, Niederreiter 1992, chapter 3: multiples of an irrational number modulo 1.
    """
    shares = np.arange(1, count + 1) * irrational % 1.0
    found = np.array([*map(NormalDist().inv_cdf, shares.tolist())])
    found.flags.writeable = False  # the cached array is shared by all callers
    return found


def law_noise(cluster: ArrayLike, weight: ArrayLike) -> Noise:
    """Prior of the noise around a law. cluster, weight: sd of clusters, and their probabilities, (n,)."""
    log_weight = -0.5 * (np.log(_RUN_NOISE / _RUN_NOISE_MEDIAN) / _RUN_NOISE_LOG_SD) ** 2
    log_weight -= np.log(np.sum(np.exp(log_weight)))
    run, straying = np.meshgrid(_RUN_NOISE, np.asarray(cluster, dtype=float), indexing="ij")
    weights = log_weight[:, None] + np.log(np.asarray(weight, dtype=float))
    return Noise(run=run.ravel(), cluster=straying.ravel(), log_weight=weights.ravel())


# One machine: most data follow a smooth law within the noise of runs; some deviate by up to 8 % at a size.
MEASURED_NOISE = law_noise([0.0, 0.01, 0.02, 0.04, 0.08], [0.6, 0.1, 0.1, 0.1, 0.1])
# Published results: each size is another system, submitter or recipe; replicates alone differ by 3.3 %. The
# coverage with both is in docs/experiments/0001-law-intervals.md.
PUBLISHED_NOISE = law_noise([0.03, 0.06, 0.12, 0.24], [0.3, 0.35, 0.25, 0.1])
# Noise of times that do not depend on size: from nothing to a factor of twenty, all equally likely.
_NULL_RUN_NOISE = np.geomspace(_RUN_NOISE[0], 3.0, 25)
NULL_NOISE = Noise(
    run=_NULL_RUN_NOISE,
    cluster=np.zeros(len(_NULL_RUN_NOISE)),
    log_weight=np.full(len(_NULL_RUN_NOISE), -np.log(len(_NULL_RUN_NOISE))),
)


def clusters(num_accelerators: FloatArray, log_time_s: FloatArray, label: IntArray) -> Clusters:
    """Clusters of runs with equal labels; all arrays (n_runs,)."""
    _, index, num_runs = np.unique(label, return_inverse=True, return_counts=True)
    mean = np.bincount(index, log_time_s) / num_runs
    size = np.bincount(index, num_accelerators) / num_runs
    within = float(np.sum((log_time_s - mean[index]) ** 2))
    return Clusters(num_accelerators=size, mean_log_s=mean, num_runs=num_runs.astype(float), within=within)


def posterior(law: Law, data: Clusters, domain: Domain, noise: Noise) -> Posterior:
    """The posterior of the curves of `law` given the clusters, without outliers.

    Assumes normal log times: of runs around their cluster, and of clusters around the law.
    Source: Bayes' rule; the scale has a flat prior on its logarithm and is integrated exactly (Gelman et al.
    2013, section 14.2).
    """
    variance = noise.cluster**2 + noise.run**2 / data.num_runs[:, None]  # (n_clusters, n_noises)
    precision = 1.0 / variance
    total = precision.sum(axis=0)
    of_noise = (
        noise.log_weight
        - 0.5 * np.log(variance).sum(axis=0)
        - 0.5 * np.log(total)
        - data.within_freedom * np.log(noise.run)
        - data.within / (2.0 * noise.run**2)
    )

    def weigh(unit: FloatArray) -> tuple[FloatArray, FloatArray]:
        residual = data.mean_log_s - np.log(law.times_s(law.at(unit, domain), data.num_accelerators))
        log_scale = residual @ precision / total
        chi_square = residual**2 @ precision - log_scale**2 * total
        return of_noise - 0.5 * np.maximum(chi_square, 0.0), log_scale

    unit, volume = adaptive_grid(law.num_shapes, lambda cells: log_sum(weigh(cells)[0]))
    log_weight, log_scale = weigh(unit)
    return Posterior(
        law=law,
        domain=domain,
        unit=unit,
        log_weight=log_weight,
        log_scale=log_scale,
        log_scale_sd=total**-0.5,
        log_evidence=float(log_sum(log_weight.reshape(1, -1))[0]) + math.log(volume / len(unit)),
    )


def outliers(
    laws: tuple[Law, ...], num_accelerators: FloatArray, log_time_s: FloatArray, domain: Domain
) -> BoolArray:
    """Which runs are outliers of the best-fitting law: (n_runs,) booleans.

    An outlier deviates by more than four robust standard deviations and more than 10 %, and is not confirmed
    by another run of its size. If more than a fifth of the runs would be outliers, none is.
    Assumes at least three runs more than a law has parameters; other laws are skipped.
    Source: least absolute deviations; the scale as in Rousseeuw and Leroy 1987, p. 44 and 202.
    """
    far = np.zeros(len(log_time_s), dtype=bool)
    least = np.inf
    for law in laws:
        freedom = len(log_time_s) - len(law.params)
        if freedom < _MIN_FREEDOM:
            continue
        distance = _least_distances(law, num_accelerators, log_time_s, domain)
        if np.sum(distance) / freedom < least:
            least = np.sum(distance) / freedom
            # A curve passes through as many runs as it has parameters, which say nothing about noise.
            spread = SD_PER_MEDIAN_DEVIATION * np.median(np.sort(distance)[-freedom:])
            most = _OUTLIER_SPREADS * max(spread, _RUN_NOISE_MEDIAN)
            far = (distance > most) & ~_confirmed(num_accelerators, log_time_s, most)
    return far if np.mean(far) <= _MAX_OUTLIER_SHARE else np.zeros_like(far)


def _confirmed(num_accelerators: FloatArray, log_time_s: FloatArray, most: float) -> BoolArray:
    """Which runs have another run of their size within `most` in log time: (n_runs,) booleans."""
    order = np.lexsort((log_time_s, num_accelerators))
    is_next = (np.diff(num_accelerators[order]) == 0.0) & (np.diff(log_time_s[order]) <= most)
    found = np.zeros(len(order), dtype=bool)
    found[order] = np.append(is_next, False) | np.append(False, is_next)
    return found


def _least_distances(
    law: Law, num_accelerators: FloatArray, log_time_s: FloatArray, domain: Domain
) -> FloatArray:
    """Absolute log deviation of each run from the law's least-absolute-deviations curve: (n_runs,)."""

    def distances(unit: FloatArray, runs: IntArray) -> FloatArray:
        residual = log_time_s[runs] - np.log(law.times_s(law.at(unit, domain), num_accelerators[runs]))
        return np.asarray(np.abs(residual - np.median(residual, axis=1, keepdims=True)))

    everyone = np.argsort(num_accelerators, kind="stable")
    some = everyone[:: math.ceil(len(everyone) / _MAX_RUNS_SEARCHED)]

    def score(unit: FloatArray) -> FloatArray:
        # Likelihood under Laplace noise of unknown width; the constant keeps it finite for exact data.
        return np.asarray(-len(some) * np.log(distances(unit, some).sum(axis=1) + _RUN_NOISE[0]))

    unit, _ = adaptive_grid(law.num_shapes, score)
    return np.asarray(distances(unit[[np.argmax(score(unit))]], np.arange(len(log_time_s)))[0])


def adaptive_grid(num_shapes: int, score: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, float]:
    """A grid where the weight is not negligible, (n, num_shapes), and its share of the unit box's volume.

    score: (n, num_shapes) -> log weights (n,).
    Assumes one box includes all non-negligible weight, and a coarse grid finds it.
    Source: integration on a grid that is refined where the integrand is not negligible.
    """
    low, high = np.zeros(num_shapes), np.ones(num_shapes)
    *coarse, fine = _GRID_SIDES[num_shapes]
    for side in coarse:
        unit = _cells(low, high, side)
        weight = score(unit)
        kept = unit[weight > weight.max() + _NEGLIGIBLE_LOG_WEIGHT]
        margin = (high - low) / side
        low, high = np.maximum(kept.min(axis=0) - margin, 0.0), np.minimum(kept.max(axis=0) + margin, 1.0)
    return _cells(low, high, fine), float(np.prod(high - low))


def _cells(low: FloatArray, high: FloatArray, side: int) -> FloatArray:
    """Centres of a grid with `side` cells along each dimension of the box: (side ** num_dims, num_dims)."""
    middle = (np.arange(side) + 0.5) / side
    axes = np.meshgrid(
        *(start + (end - start) * middle for start, end in zip(low, high, strict=True)), indexing="ij"
    )
    return np.stack([axis.ravel() for axis in axes], axis=1) if axes else np.zeros((1, 0))
