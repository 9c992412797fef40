"""Fits the model's parameters to measured steps: robust least squares on log error, a prior on every parameter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from equipoise.errors import FitError
from equipoise.perfmodel.parameters import PRIORS, Parameters

# Seconds of every measured case under some parameters, shape (n_cases,).
Predict: TypeAlias = Callable[[Parameters], NDArray[np.float64]]

# Errors beyond this many standard deviations count linearly, not squared: a cluster with a broken cable is one.
_ROBUST_SD = 2.0
_STEP = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted parameters and how they came about.

    moved: the names fitted; log_sd: standard deviation of their logarithms, shape (n_moved,).
    residuals: log(measured / predicted) of the cases it was fitted to, shape (n_cases,).
    """

    parameters: Parameters
    moved: tuple[str, ...]
    log_sd: NDArray[np.float64]
    residuals: NDArray[np.float64]


def calibrate(
    predict: Predict,
    measured_s: NDArray[np.float64],
    *,
    names: Sequence[str],
    weights: NDArray[np.float64],
    noise_log_sd: float = 0.05,
    start: Parameters | None = None,
) -> Calibration:
    """The parameters under which `predict` comes closest to `measured_s`, as far as their priors allow.

    measured_s, weights: shape (n_cases,); weights are the shares of independent observations (cases of one cluster
    share one). names: which parameters of PRIORS may move. noise_log_sd: what an error of one sd is, in logs.
    start: priors' medians are taken from here.
    Raises FitError without cases, or if a prediction is no positive number.
    Assumes errors independent between clusters, log-normal but for outliers.
    Source: maximum a posteriori with a soft L1 loss (Huber 1964).
    """
    centre = Parameters() if start is None else start
    if not len(measured_s):
        raise FitError("no measured step to calibrate on", missing=("rows of measurements",))
    priors = {each.name: each for each in PRIORS}
    chosen = [priors[name] for name in names]
    medians = np.log([centre.value(name) for name in names])
    spreads = np.array([each.log_sd for each in chosen])
    upper = np.array(
        [(np.log(each.largest) - median) / each.log_sd for each, median in zip(chosen, medians, strict=True)]
    )
    target = np.log(measured_s)
    root = np.sqrt(weights)

    def parameters(units: NDArray[np.float64]) -> Parameters:
        values = np.exp(medians + units * spreads)
        return centre.changed(dict(zip(names, values.tolist(), strict=True)))

    def residuals(units: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(target - np.log(predict(parameters(units))))

    def loss(units: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = residuals(units) / noise_log_sd
        # soft L1 by hand, so that the priors stay plain squares
        soft = np.sign(scaled) * np.sqrt(2 * _ROBUST_SD**2 * (np.sqrt(1 + (scaled / _ROBUST_SD) ** 2) - 1))
        return np.concatenate([root * soft, units])

    begin = np.minimum(np.zeros(len(names)), upper - _STEP)
    if not np.isfinite(loss(begin)).all():
        raise FitError("a measured step has no positive prediction under the priors; reject its row first")
    found = least_squares(loss, begin, bounds=(-np.inf, upper), diff_step=_STEP, x_scale=1.0, max_nfev=60)
    covariance = np.linalg.pinv(found.jac.T @ found.jac)
    return Calibration(
        parameters=parameters(found.x),
        moved=tuple(names),
        log_sd=np.sqrt(np.diag(covariance)) * spreads,
        residuals=residuals(found.x),
    )
