"""A robust regression whose curves share their shape: fitted on earlier entries, conditioned on own ones.

A Gaussian process with variance components and Student-t noise. Arrays in, records out; knows no units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import minimize

from equipoise.scaling.covariance import CENTRE_LOG2, bend, covariances, prior_deviations
from equipoise.scaling.points import Floats, Points

# Results have heavy tails: a first attempt of a new submitter can be twice as slow. Three degrees of freedom
# is the smallest whole number with a variance.
DEGREES_OF_FREEDOM = 3.0
NOISE_PRIOR_DEVIATION = 0.05
# Prior standard deviation of each log deviation: a factor e up or down.
PRIOR_SPREAD = 1.0
# No search beyond: a noise of zero has no covariance matrix, and e**4 of the prior is no deviation of a time.
MOST_SPREADS = 4.0
FIT_ROUNDS = 2
REWEIGHTINGS = 4
MAX_ITERATIONS = 25

# Of each block: covariances of the components, values, columns of the trend, looseness.
_System: TypeAlias = list[tuple[Floats, Floats, Floats, Floats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Prior of the mean, in log units: per doubling, and more per doubling beyond 64 accelerators."""

    per_doubling: float
    beyond: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Points that may share deviations (one workload) and their values, log units, (n_points,)."""

    points: Points
    values: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Mean and standard deviation in log units at one point, and the weight of each point in the mean."""

    mean: float
    deviation: float
    weights: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The fitted regression: deviations of the components (the noise last), the trend, and its blocks.

    looseness: by block, what each point's noise variance is multiplied by; outliers have large ones.
    """

    log_deviations: Floats
    coefficients: Floats
    centre: float
    blocks: Mapping[str, Block]
    looseness: Mapping[str, Floats]

    def predict(self, name: str, own: Block, at: Points) -> Predicted:
        """The value expected at the one point `at`, from the block `name` and the curve's own points.

        Without such a block only the trend and the own points speak.
        Weights: (n_block + n_own,), of the block's points first.
        """
        past = self.blocks.get(name)
        points, values, looseness = own.points, own.values, np.ones(len(own.values))
        if past is not None:
            points = past.points.joined(own.points)
            values = np.concatenate([past.values, own.values])
            looseness = np.concatenate([self.looseness[name], looseness])
        if len(points) == 0:
            return self._prior(at)
        variances, noise = _variances(self.log_deviations)
        shared = np.tensordot(variances, covariances(points, points), 1)
        residuals = values - self.centre - _basis(points) @ self.coefficients
        looseness = _reweighted(shared, noise, residuals, looseness)
        with_target = variances @ covariances(points, at)[:, :, 0]
        weights = np.asarray(
            np.linalg.solve(shared + np.diag(noise * looseness), with_target), dtype=np.float64
        )
        prior = self._prior(at)
        return Predicted(
            mean=prior.mean + float(weights @ residuals),
            deviation=max(prior.deviation**2 - float(weights @ with_target), noise) ** 0.5,
            weights=weights,
        )

    def _prior(self, at: Points) -> Predicted:
        variances, noise = _variances(self.log_deviations)
        tail = DEGREES_OF_FREEDOM / (DEGREES_OF_FREEDOM - 2)
        own = float(variances @ covariances(at, at)[:, 0, 0]) + noise * tail
        mean = self.centre + float((_basis(at) @ self.coefficients)[0])
        return Predicted(mean=mean, deviation=float(np.sqrt(own)), weights=np.zeros(0))


def fit(
    blocks: Mapping[str, Block], trend: Trend, *, centre: float, with_lever: bool, start: Floats | None = None
) -> Hierarchy:
    """The regression with the deviations and trend of highest posterior density, outliers weighted down.

    blocks: by name. centre: subtracted from all values; makes the result independent of the unit of time.
    with_lever: whether the points have one. start: log deviations of an earlier fit to begin from; the prior
    medians by default.
    Assumes log deviations are normal around their prior medians and noise is Student-t.
    Source: Rasmussen and Williams 2006, equations 5.8 and 5.9; Lange, Little and Taylor 1989 for the weights.
    """
    prior = np.log(np.append(prior_deviations(with_lever=with_lever), NOISE_PRIOR_DEVIATION))
    log_deviations = prior if start is None else start
    components = {name: covariances(block.points, block.points) for name, block in blocks.items()}
    looseness = {name: np.ones(len(block.values)) for name, block in blocks.items()}
    coefficients = _prior_coefficients(trend)
    for _ in range(FIT_ROUNDS if blocks else 0):
        system = [
            (components[name], block.values - centre, _basis(block.points), looseness[name])
            for name, block in blocks.items()
        ]
        found = minimize(
            _value_and_gradient,
            log_deviations,
            args=(prior, trend, system),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(prior - MOST_SPREADS, prior + MOST_SPREADS, strict=True)),
            options={"maxiter": MAX_ITERATIONS},
        )
        log_deviations = found.x
        coefficients = _posterior(log_deviations, prior, trend, system)[2]
        variances, noise = _variances(log_deviations)
        for name, block in blocks.items():
            residuals = block.values - centre - _basis(block.points) @ coefficients
            shared = np.tensordot(variances, components[name], 1)
            looseness[name] = _reweighted(shared, noise, residuals, looseness[name])
    return Hierarchy(
        log_deviations=log_deviations,
        coefficients=coefficients,
        centre=centre,
        blocks=blocks,
        looseness=looseness,
    )


def _variances(log_deviations: Floats) -> tuple[Floats, float]:
    """Of the components, and of the noise."""
    return np.exp(2.0 * log_deviations[:-1]), float(np.exp(2.0 * log_deviations[-1]))


def _basis(points: Points) -> Floats:
    """Columns of the trend: constant, doublings from the centre, doublings beyond the bend: (n_points, 3)."""
    return np.column_stack([np.ones(len(points)), points.size_log2 - CENTRE_LOG2, bend(points.size_log2)])


# Prior standard deviations of the trend's coefficients: the level is free.
_TREND_SPREAD = np.array([30.0, 0.15, 0.15])


def _prior_coefficients(trend: Trend) -> Floats:
    return np.array([0.0, trend.per_doubling, trend.beyond])


def _value_and_gradient(
    log_deviations: Floats, prior: Floats, trend: Trend, system: _System
) -> tuple[float, Floats]:
    return _posterior(log_deviations, prior, trend, system)[:2]


def _posterior(
    log_deviations: Floats, prior: Floats, trend: Trend, system: _System
) -> tuple[float, Floats, Floats]:
    """Negative log posterior, its gradient, and the coefficients of the trend at which it is taken."""
    variances, noise = _variances(log_deviations)
    precision = np.diag(_TREND_SPREAD**-2.0)
    expected = _prior_coefficients(trend)
    left, right = precision.copy(), precision @ expected
    inverses = []
    value = 0.0
    for components, values, basis, looseness in system:
        total = np.tensordot(variances, components, 1) + np.diag(noise * looseness)
        factor = np.linalg.cholesky(total)
        half = np.linalg.inv(factor)
        inverse = half.T @ half
        inverses.append(inverse)
        value += float(np.log(np.diag(factor)).sum())
        left += basis.T @ inverse @ basis
        right += basis.T @ inverse @ values
    coefficients = np.asarray(np.linalg.solve(left, right), dtype=np.float64)
    away = coefficients - expected
    value += 0.5 * float(away @ precision @ away)
    gradient = np.zeros_like(log_deviations)
    for (components, values, basis, looseness), inverse in zip(system, inverses, strict=True):
        residuals = values - basis @ coefficients
        solved = inverse @ residuals
        value += 0.5 * float(residuals @ solved)
        slack = inverse - np.outer(solved, solved)
        gradient[:-1] += variances * (components.reshape(len(components), -1) @ slack.ravel())
        gradient[-1] += noise * float(np.diag(slack) @ looseness)
    away = (log_deviations - prior) / PRIOR_SPREAD
    return value + 0.5 * float(away @ away), gradient + away / PRIOR_SPREAD, coefficients


def _reweighted(shared: Floats, noise: float, residuals: Floats, looseness: Floats) -> Floats:
    """What the noise variance of each point is multiplied by, under Student-t noise, given the others."""
    for _ in range(REWEIGHTINGS):
        own = noise * looseness
        inverse = np.linalg.inv(shared + np.diag(own))
        error = own * (inverse @ residuals)
        variance = own - own**2 * np.diag(inverse)
        looseness = (DEGREES_OF_FREEDOM + (error**2 + variance) / noise) / (DEGREES_OF_FREEDOM + 1)
    return looseness
