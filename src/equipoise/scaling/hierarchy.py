"""A robust regression whose curves share their shape: fitted on earlier entries, conditioned on own ones.

A Gaussian process with variance components and Student-t noise. Arrays in, records out; knows no units.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from equipoise.scaling.points import (
    CENTRE_LOG2,
    Floats,
    Points,
    bend,
    covariances,
    prior_deviations,
    smooth_components,
)

# Results have heavy tails: a first attempt of a new submitter can be twice as slow. Three degrees of freedom
# is the smallest whole number with a variance.
DEGREES_OF_FREEDOM = 3.0
NOISE_PRIOR_DEVIATION = 0.05
# Prior standard deviation of each log deviation: a factor 1.6 up or down.
PRIOR_SPREAD = 0.5
# No search beyond: a noise of zero has no covariance matrix, and e**4 of the prior is no deviation of a time.
MOST_LOG = 4.0
FIT_ROUNDS = 2
REWEIGHTINGS = 4
MAX_ITERATIONS = 25

# Of each block: covariances of the components, values, columns of the trend, looseness.
_System: TypeAlias = list[tuple[Floats, Floats, Floats, Floats]]


class Trend(Struct, frozen=True, kw_only=True):
    """Prior of the mean, in log units: per doubling, and more per doubling beyond 64 accelerators."""

    per_doubling: float
    beyond: float


class CurveBlock(Struct, frozen=True, kw_only=True):
    """Points that may share deviations (one workload) and their values, log units, (n_points,)."""

    points: Points
    values: Floats


class Predicted(Struct, frozen=True, kw_only=True):
    """What is expected at some points, in log units.

    mean, deviation: (n_at,), with the noise of a new entry. covariance: (n_at, n_at), without it.
    weights: (n_at, n_block + n_own), what each known point adds to each mean.
    """

    mean: Floats
    deviation: Floats
    covariance: Floats
    weights: Floats


class Hierarchy(Struct, frozen=True, kw_only=True):
    """The fitted regression: deviations of the components (the noise last), the trend, and its blocks.

    trends: (n_rounds, 3), the trend's coefficients as each round of the fit found them; the last ones hold.
    centre: subtracted from all values; None where no values are known.
    looseness: by block, what each point's noise variance is multiplied by; outliers have large ones.
    """

    log_deviations: Floats
    trends: Floats
    centre: float | None
    blocks: Mapping[str, CurveBlock]
    looseness: Mapping[str, Floats]

    def predict(self, name: str, own: CurveBlock, at: Points, *, smooth: bool = False) -> Predicted:
        """What is expected at the points `at` of a curve, from the block `name` and its own points.

        Without such a block only the trend and the own points count. smooth: leaves out what differs from
        size to size without pattern, so that the mean is the curve and not the next entry.
        """
        past, centre = self.blocks.get(name), self.centre or 0.0
        known, values, looseness = own.points, own.values, np.ones(len(own.values))
        if past is not None:
            known = past.points.followed_by(own.points)
            values = np.concatenate([past.values, own.values])
            looseness = np.concatenate([self.looseness[name], looseness])
        variances, noise = _variances(self.log_deviations)
        wanted = variances * smooth_components(with_lever=at.lever_log2 is not None) if smooth else variances
        mean = centre + _basis(at) @ self.trends[-1]
        covariance = np.tensordot(wanted, covariances(at, at), 1)
        weights = np.zeros((len(at), len(known)))
        if len(known):
            shared = np.tensordot(variances, covariances(known, known), 1)
            residuals = values - centre - _basis(known) @ self.trends[-1]
            looseness = _reweighted(shared, noise, residuals, looseness)
            if len(own.values) == 1:
                # One point alone is the level of its curve: nothing of its own shows it to be an outlier.
                looseness[-1] = 1.0
            between = np.tensordot(wanted, covariances(known, at), 1)
            weights[:] = np.linalg.solve(shared + np.diag(noise * looseness), between).T
            mean = mean + weights @ residuals
            covariance = covariance - weights @ between
        # Rounding may leave a hair less than nothing.
        spread = np.maximum(np.diag(covariance), 0.0)
        tail = DEGREES_OF_FREEDOM / (DEGREES_OF_FREEDOM - 2.0)
        return Predicted(
            mean=mean, deviation=np.sqrt(spread + noise * tail), covariance=covariance, weights=weights
        )


def fit(
    blocks: Mapping[str, CurveBlock],
    trend: Trend,
    *,
    centre: float | None,
    prior: Floats,
    start: Floats | None = None,
    search: bool = True,
    trends: Floats | None = None,
) -> Hierarchy:
    """The regression with the deviations and trend of highest posterior density, outliers weighted down.

    blocks: by name. centre: subtracted from all values; makes the result independent of the unit of time.
    prior: `prior_log_deviations`, the noise last. start: log deviations to begin from, as of an earlier
    fit; the prior by default.
    search: whether to look for better ones; else only the trend and the weights of outliers are found.
    trends: of a fit with the same deviations, of which these are some of the blocks: only the weights of
    their outliers are found.
    Assumes log deviations are normal around their prior medians and noise is Student-t.
    Source: Rasmussen and Williams 2006, equations 5.8 and 5.9; Lange, Little and Taylor 1989 for the weights.
    """
    log_deviations = prior if start is None else start
    components = {name: covariances(block.points, block.points) for name, block in blocks.items()}
    looseness = {name: np.ones(len(block.values)) for name, block in blocks.items()}
    found = []
    for i in range(FIT_ROUNDS if blocks else 0):
        system = [
            (components[name], block.values - (centre or 0.0), _basis(block.points), looseness[name])
            for name, block in blocks.items()
        ]
        if search and trends is None:
            log_deviations = _searched(log_deviations, prior, trend, system)
        found.append(_coefficients(log_deviations, trend, system) if trends is None else trends[i])
        variances, noise = _variances(log_deviations)
        for name, block in blocks.items():
            residuals = block.values - (centre or 0.0) - _basis(block.points) @ found[-1]
            shared = np.tensordot(variances, components[name], 1)
            looseness[name] = _reweighted(shared, noise, residuals, looseness[name])
    return Hierarchy(
        log_deviations=log_deviations,
        trends=np.array(found or [_prior_coefficients(trend)]) if trends is None else trends,
        centre=centre,
        blocks=blocks,
        looseness=looseness,
    )


def prior_log_deviations(*, with_lever: bool) -> Floats:
    """The prior medians of the log deviations, the noise last."""
    medians = np.append(prior_deviations(with_lever=with_lever), NOISE_PRIOR_DEVIATION)
    return np.asarray(np.log(medians), dtype=np.float64)


def _searched(start: Floats, prior: Floats, trend: Trend, system: _System) -> Floats:
    """The log deviations of highest posterior density near the start."""
    from scipy.optimize import minimize  # noqa: PLC0415 - loading it takes as long as a plan

    found = minimize(
        _value_and_gradient,
        start,
        args=(prior, trend, system),
        jac=True,
        method="L-BFGS-B",
        bounds=[(middle - MOST_LOG, middle + MOST_LOG) for middle in prior],
        options={"maxiter": MAX_ITERATIONS},
    )
    return np.asarray(found.x, dtype=np.float64)


def _variances(log_deviations: Floats) -> tuple[Floats, float]:
    """Of the components, and of the noise."""
    return np.exp(2.0 * log_deviations[:-1]), float(np.exp(2.0 * log_deviations[-1]))


def _basis(points: Points) -> Floats:
    """Columns of the trend: constant, doublings from the centre, doublings beyond the bend: (n_points, 3)."""
    return np.column_stack([np.ones(len(points)), points.size_log2 - CENTRE_LOG2, bend(points.size_log2)])


# Prior standard deviations of the trend's coefficients: the level is free.
_TREND_SPREAD = np.array([30.0, 0.07, 0.07])


def _prior_coefficients(trend: Trend) -> Floats:
    return np.array([0.0, trend.per_doubling, trend.beyond])


def _inverses(log_deviations: Floats, system: _System) -> list[tuple[Floats, float]]:
    """Of each block the inverse of its covariance matrix, and half the log of the matrix's determinant."""
    variances, noise = _variances(log_deviations)
    found = []
    for components, _, _, looseness in system:
        factor = np.linalg.cholesky(np.tensordot(variances, components, 1) + np.diag(noise * looseness))
        half = np.linalg.inv(factor)
        found.append((half.T @ half, float(np.log(np.diag(factor)).sum())))
    return found


def _coefficients(
    log_deviations: Floats, trend: Trend, system: _System, inverses: list[tuple[Floats, float]] | None = None
) -> Floats:
    """The trend of highest posterior density, given the deviations."""
    inverses = inverses or _inverses(log_deviations, system)
    left = np.diag(_TREND_SPREAD**-2.0)
    right = left @ _prior_coefficients(trend)
    for (_, values, basis, _), (inverse, _) in zip(system, inverses, strict=True):
        left = left + basis.T @ inverse @ basis
        right = right + basis.T @ inverse @ values
    return np.asarray(np.linalg.solve(left, right), dtype=np.float64)


def _value_and_gradient(
    log_deviations: Floats, prior: Floats, trend: Trend, system: _System
) -> tuple[float, Floats]:
    """Negative log posterior at the best trend, and its gradient."""
    variances, noise = _variances(log_deviations)
    inverses = _inverses(log_deviations, system)
    coefficients = _coefficients(log_deviations, trend, system, inverses)
    away = (coefficients - _prior_coefficients(trend)) / _TREND_SPREAD
    value = 0.5 * float(away @ away)
    gradient = np.zeros_like(log_deviations)
    for (components, values, basis, looseness), (inverse, half_log_determinant) in zip(
        system, inverses, strict=True
    ):
        residuals = values - basis @ coefficients
        solved = inverse @ residuals
        value += half_log_determinant + 0.5 * float(residuals @ solved)
        slack = inverse - np.outer(solved, solved)
        gradient[:-1] += variances * (components.reshape(len(components), -1) @ slack.ravel())
        gradient[-1] += noise * float(np.diag(slack) @ looseness)
    away = (log_deviations - prior) / PRIOR_SPREAD
    return value + 0.5 * float(away @ away), gradient + away / PRIOR_SPREAD


def _reweighted(shared: Floats, noise: float, residuals: Floats, looseness: Floats) -> Floats:
    """What the noise variance of each point is multiplied by, under Student-t noise, given the others."""
    for _ in range(REWEIGHTINGS):
        own = noise * looseness
        inverse = np.linalg.inv(shared + np.diag(own))
        error = own * (inverse @ residuals)
        variance = own - own**2 * np.diag(inverse)
        looseness = (DEGREES_OF_FREEDOM + (error**2 + variance) / noise) / (DEGREES_OF_FREEDOM + 1)
    return looseness
