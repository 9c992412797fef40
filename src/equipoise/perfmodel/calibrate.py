"""Fits the model's parameters to measured steps: robust least squares on log error, a prior on every
parameter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import FitError
from equipoise.perfmodel.parameters import PRIORS, Parameters

# Seconds of every measured case under some parameters, shape (n_cases,).
Predict: TypeAlias = Callable[[Parameters], NDArray[np.float64]]

# Errors beyond this many standard deviations count linearly, not squared: a cluster with a broken cable is
# one.
_ROBUST_SD = 2.0
_STEP = 1e-4
# What an error of one standard deviation is, in logs. 0.035: of 0.03 to 0.1, what leaves the smallest error
# on # GPU counts left out within vtrain_single, and then on hidden sizes
# (docs/experiments/0006-calibration.md).
NOISE_LOG_SD = 0.035


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted parameters and how they came about.

    parameters: for other campaigns; what is local to one stands at its prior's median. by_campaign: for those
    that were seen, by their number. moved: the names fitted; log_sd: standard deviation of the logarithms of
    `parameters`, shape (n_moved,). residuals: log(measured / predicted) of the cases it was fitted to, shape
    (n_cases,).
    """

    parameters: Parameters
    by_campaign: tuple[Parameters, ...]
    moved: tuple[str, ...]
    log_sd: NDArray[np.float64]
    residuals: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unknowns:
    """What a fit moves: every shared parameter once, every local one once a campaign, in units of their
    priors.

    columns: (n_campaigns, n_names), where in the vector each stands. medians, spreads, upper: (n_names,).
    """

    names: tuple[str, ...]
    centre: Parameters
    columns: NDArray[np.intp]
    medians: NDArray[np.float64]
    spreads: NDArray[np.float64]
    upper: NDArray[np.float64]

    def parameters(self, units: NDArray[np.float64], campaign: int) -> Parameters:
        """The parameters of one campaign."""
        values = np.exp(self.medians + units[self.columns[campaign]] * self.spreads)
        return self.centre.changed(dict(zip(self.names, values.tolist(), strict=True)))

    @property
    def bounds(self) -> NDArray[np.float64]:
        """What no unknown may exceed, in the vector's order."""
        whole = np.empty(self.columns.max() + 1)
        whole[self.columns] = self.upper
        return whole


def calibrate(
    predict: Predict,
    measured_s: NDArray[np.float64],
    *,
    names: Sequence[str],
    weights: NDArray[np.float64],
    campaigns: NDArray[np.intp] | None = None,
    noise_log_sd: float = NOISE_LOG_SD,
) -> Calibration:
    """The parameters under which `predict` comes closest to `measured_s`, as far as their priors allow.

    measured_s, weights: shape (n_cases,); weights are the shares of independent observations (cases of one
    cluster share one). names: which parameters of PRIORS may move. campaigns: (n_cases,), numbers from 0 of
    the campaigns the cases are from; each has its own values of what is local; None: one campaign.
    noise_log_sd: what an error of one sd is, in logs.
    Raises FitError without cases, or if a prediction is no positive number.
    Assumes errors independent between clusters, log-normal but for outliers.
    Source: maximum a posteriori with a soft L1 loss (Huber 1964), effects of campaigns as random ones (Laird
    and Ware 1982).
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    if not len(measured_s):
        raise FitError("no measured step to calibrate on", missing=("rows of measurements",))
    of = np.zeros(len(measured_s), dtype=np.intp) if campaigns is None else campaigns
    unknowns = _unknowns(names, int(of.max()) + 1)
    target, root = np.log(measured_s), np.sqrt(weights)

    def residuals(units: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = np.empty(len(measured_s))
        for campaign in range(len(unknowns.columns)):
            mine = of == campaign
            predicted[mine] = predict(unknowns.parameters(units, campaign))[mine]
        return np.asarray(target - np.log(predicted))

    def loss(units: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = residuals(units) / noise_log_sd
        # soft L1 by hand, so that the priors stay plain squares
        soft = np.sign(scaled) * np.sqrt(2 * _ROBUST_SD**2 * (np.sqrt(1 + (scaled / _ROBUST_SD) ** 2) - 1))
        return np.concatenate([root * soft, units])

    upper = unknowns.bounds
    begin = np.minimum(np.zeros(len(upper)), upper - _STEP)
    if not np.isfinite(loss(begin)).all():
        raise FitError("a measured step has no positive prediction under the priors; reject its row first")
    found = least_squares(
        loss, begin, bounds=(-np.inf, upper), diff_step=np.full(len(upper), _STEP), x_scale=1.0, max_nfev=60
    )
    by_campaign = tuple(unknowns.parameters(found.x, each) for each in range(len(unknowns.columns)))
    return Calibration(
        parameters=by_campaign[0].elsewhere(),
        by_campaign=by_campaign,
        moved=tuple(names),
        log_sd=_log_sd(np.asarray(found.jac), unknowns),
        residuals=residuals(found.x),
    )


def _unknowns(names: Sequence[str], num_campaigns: int) -> _Unknowns:
    """The unknowns of a fit to so many campaigns."""
    priors = {each.name: each for each in PRIORS}
    chosen = [priors[name] for name in names]
    columns = np.empty((num_campaigns, len(chosen)), dtype=np.intp)
    place = 0
    for at, each in enumerate(chosen):
        copies = num_campaigns if each.local else 1
        columns[:, at] = place + np.arange(num_campaigns) % copies
        place += copies
    medians = np.log([each.median for each in chosen])
    spreads = np.array([each.log_sd for each in chosen])
    largest = np.log([each.largest for each in chosen])
    return _Unknowns(
        names=tuple(names),
        centre=Parameters(),
        columns=columns,
        medians=medians,
        spreads=spreads,
        upper=(largest - medians) / spreads,
    )


def _log_sd(jacobian: NDArray[np.float64], unknowns: _Unknowns) -> NDArray[np.float64]:
    """Standard deviations of the logarithms for other campaigns: of what is local, as wide as its prior."""
    local = {each.name for each in PRIORS if each.local}
    covariance = np.linalg.pinv(jacobian.T @ jacobian)
    fitted = np.sqrt(np.diag(covariance))[unknowns.columns[0]]
    is_local = np.array([name in local for name in unknowns.names])
    return np.asarray(np.where(is_local, 1.0, fitted) * unknowns.spreads)
