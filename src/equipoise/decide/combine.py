"""Several estimates of one time as one: weights by how wrong each was, the interval, the disagreement.

docs/decide/advice.md explains it for users. Curves of several estimators are combined by their slopes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from equipoise.decide.estimate import LEAST_LOG_SD, Curves, Estimates
from equipoise.scaling.law import Domain, FloatArray
from equipoise.stats import Interval

# Errors of the estimators may go together: they share the samples to target, the year's software, the
# submitters. More than was seen on results held out (about 0: data/joined.json), to be safe.
CORRELATION = 0.2
_STEPS_PER_OCTAVE = 8
_NUM_CURVES = 200
_ROUNDING = 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """The combined estimate. weights: (n,), which sum to 1, in the order given.

    disagreement: by how much the evidence differs beyond what its own widths explain, 1 where it does not:
    the factor by which the interval was widened.
    """

    time: Interval
    weights: tuple[float, ...]
    disagreement: float


def shares(log_sds: FloatArray) -> FloatArray:
    """The weight of each estimate, along the first axis; they sum to 1 there.

    log_sds: (n_estimates, ...) standard deviations of errors of the logarithm, positive; infinite where an
    estimator has none.
    Assumes nothing of the correlation: weights that use it are unstable where it is not well known.
    Source: Bates and Granger 1969: the inverse of the mean squared error of each.

    >>> shares(np.array([0.1, 0.2])).round(3).tolist()
    [0.8, 0.2]
    """
    precisions = 1.0 / np.maximum(log_sds, LEAST_LOG_SD) ** 2
    return np.asarray(precisions / precisions.sum(axis=0))


def combine(times: Sequence[Interval], log_sds: Sequence[float]) -> Combined:
    """The combined estimate of the same time by several pieces of evidence.

    times: at least one; positive, all at one level. log_sds: how wrong such evidence was, as the standard
    deviation of the logarithm. A single one stays as it is.
    The interval is that of a weighted mean of errors that go together by CORRELATION, widened where the
    estimates differ by more than their widths explain, and never beyond the widest ends of them all.
    Assumes log-normal errors, each as large as its log_sd.
    Source: Bates and Granger 1969 for the weights; Birge 1932 for the widening, as the Particle Data Group
    applies it (S^2 = chi^2 / (n - 1), where above 1).
    """
    if len(times) == 1:
        return Combined(time=times[0], weights=(1.0,), disagreement=1.0)
    level = times[0].level
    logs = np.log([each.value for each in times])
    spreads = np.maximum(np.asarray(log_sds, dtype=float), LEAST_LOG_SD)
    weights = shares(spreads)
    mean = float(weights @ logs)
    together = np.full((len(times), len(times)), CORRELATION)
    np.fill_diagonal(together, 1.0)
    variance = float((weights * spreads) @ together @ (weights * spreads))
    chi_square = float((((logs - mean) / spreads) ** 2).sum())
    widening = max(1.0, math.sqrt(chi_square / (len(times) - 1)))
    half = NormalDist().inv_cdf((1.0 + level) / 2.0) * math.sqrt(variance) * widening
    return Combined(
        time=Interval(
            value=math.exp(mean),
            low=max(math.exp(mean - half), min(each.low for each in times)),
            high=min(math.exp(mean + half), max(each.high for each in times)),
            level=level,
        ),
        weights=tuple(weights.tolist()),
        disagreement=widening,
    )


def combined_curves(
    estimators: Sequence[Estimates], *, domain: Domain | None = None
) -> tuple[Curves, Domain] | None:
    """Equally likely curves of time, over that at the smallest size, and the sizes they hold for.

    None where no estimator has a curve. The sizes are those of `domain`, of the surest estimator unless
    given; the curves go on to twice the largest. Slopes are combined, not times: where one estimator of
    another level ends, times would leave a step. An estimator that is only shown for reference counts
    where no other has one.
    Assumes draws of different estimators are independent.
    Source: docs/decide/advice.md; weights as `shares`.
    """
    wide = [each for each in _with_curves(estimators) if _is_wide(each)]
    if not wide:
        return None
    domain = domain or min(wide, key=_mean_log_sd).domain
    assert domain is not None
    grid_log2 = _grid(domain)
    slopes = np.stack([_slopes(each, grid_log2) for each in wide])
    spreads = np.stack([_log_sds(each, grid_log2) for each in wide])
    weights = shares(spreads)[:, None, :]
    climbs = np.cumsum((weights * slopes).sum(axis=0), axis=1)
    logs = np.concatenate([np.zeros((len(climbs), 1)), climbs], axis=1)

    def curves(sizes: FloatArray) -> FloatArray:
        wanted = np.log2(np.asarray(sizes, dtype=float))
        return np.exp([np.interp(wanted, grid_log2, each) for each in logs])

    return curves, domain


def ratio_log_sd(estimators: Sequence[Estimates], first: int, size: int) -> float | None:
    """How uncertain the time of one size over that of another is, of its logarithm; None where nobody knows.

    Of each estimator from its equally likely curves, in which what both sizes share cancels; then of their
    weighted mean. Assumes draws of different estimators are independent. Source: weights as `shares`.
    """
    if size == first:
        return 0.0
    ends = np.log2([min(first, size), max(first, size)])
    known = [
        each
        for each in _with_curves(estimators)
        if {first, size} <= set(each.by_size) and bool(_is_known(each, ends).all())
    ]
    if not known:
        return None
    weights = shares(np.array([each.by_size[size].log_sd for each in known]))
    spreads = [_log_ratio_sd(each, first, size) for each in known]
    return float(np.linalg.norm(weights * spreads))


def _log_ratio_sd(estimates: Estimates, first: int, size: int) -> float:
    assert estimates.curves_s is not None
    drawn = np.log(estimates.curves_s(np.array([float(first), float(size)])))
    return float(np.std(drawn[:, 1] - drawn[:, 0]))


def _with_curves(estimators: Sequence[Estimates]) -> list[Estimates]:
    """Those that have curves; references only where there is no other."""
    known = [each for each in estimators if each.curves_s is not None and each.domain is not None]
    return [each for each in known if not each.is_reference] or known


def _is_wide(estimates: Estimates) -> bool:
    """Whether the domain holds more than one size."""
    assert estimates.domain is not None
    return estimates.domain.largest > estimates.domain.smallest


def _mean_log_sd(estimates: Estimates) -> float:
    return float(np.mean([each.log_sd for each in estimates.by_size.values()]))


def _grid(domain: Domain) -> FloatArray:
    """Logarithms of sizes, from the smallest to twice the largest."""
    low, high = math.log2(domain.smallest), math.log2(2.0 * domain.largest)
    return np.linspace(low, high, max(2, round((high - low) * _STEPS_PER_OCTAVE) + 1))


def _slopes(estimates: Estimates, grid_log2: FloatArray) -> FloatArray:
    """Changes of log time from one grid point to the next: (_NUM_CURVES, n - 1); 0 where it has no curve."""
    assert estimates.curves_s is not None
    logs = np.log(estimates.curves_s(2.0**grid_log2))
    rows = np.arange(_NUM_CURVES) % len(logs)
    return np.where(_is_known(estimates, grid_log2), np.diff(logs, axis=1)[rows], 0.0)


def _log_sds(estimates: Estimates, grid_log2: FloatArray) -> FloatArray:
    """How wrong the estimates are between grid points: (n - 1,); infinite where there is no curve."""
    sizes = sorted(estimates.by_size)
    middles = (grid_log2[1:] + grid_log2[:-1]) / 2.0
    known = np.interp(middles, np.log2(sizes), [estimates.by_size[size].log_sd for size in sizes])
    return np.where(_is_known(estimates, grid_log2), known, np.inf)


def _is_known(estimates: Estimates, grid_log2: FloatArray) -> FloatArray:
    """Between which grid points an estimator has a curve: up to a doubling beyond its domain."""
    domain = estimates.domain
    assert domain is not None
    low, high = math.log2(domain.smallest) - _ROUNDING, math.log2(2.0 * domain.largest) + _ROUNDING
    return np.asarray((grid_log2[:-1] >= low) & (grid_log2[1:] <= high))


def straight_between(sizes: Sequence[int], drawn_s: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Curves through drawn times, straight between sizes in both logarithms, flat beyond them.

    drawn_s: (n_draws, n_sizes).
    """
    at, logs = np.log(sizes), np.log(drawn_s)

    def curves_s(wanted: FloatArray) -> FloatArray:
        return np.exp([np.interp(np.log(wanted), at, each) for each in logs])

    return curves_s
