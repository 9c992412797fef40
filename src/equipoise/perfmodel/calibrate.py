"""Fits the model's parameters to measured steps by robust least squares on log errors, with priors."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.errors import FitError
from equipoise.perfmodel.load import Floats, Numbers
from equipoise.perfmodel.parameters import PRIORS, Parameters, Prior

# Predicts the seconds of every measured case. Parameters are floats or arrays that broadcast against
# (n_points, n_cases), and so is the result.
Predict: TypeAlias = Callable[[Parameters], Numbers]

# Errors beyond this many standard deviations count linearly instead of squared: a cluster may have a broken
# cable.
_ROBUST_SD = 2.0
_STEP = 1e-4
# Largest number of values per call of `predict`, so that its arrays fit in a processor's cache.
_MAX_VALUES_PER_CALL = 16_384
# Standard deviation of a log error. 0.035: among 0.03 to 0.1, the value with the smallest error on held-out
# GPU counts within vtrain_single, and then on held-out hidden sizes: docs/experiments/0006.
NOISE_LOG_SD = 0.035
# Log deviation of one set-up from its parameters. It sets the posterior uncertainty of a fit, and the noise
# when a few of a user's own steps are fitted. Held-out rows are off by 0.03 to 0.1
# (docs/understand/accuracy.md), more than the standard deviation above, because a fit down-weights outliers.
# The intervals of 82 held-out rows of vTrain, Megatron and torchtitan cover as many with 0.035.
STRAY_LOG_SD = 0.05


class Calibration(Struct, frozen=True, kw_only=True):
    """Fitted parameters, their uncertainty and the residuals.

    parameters: for campaigns not fitted, with local parameters at their prior medians. by_campaign: for each
    fitted campaign, by index. moved: names of the fitted parameters. log_sd: standard deviation of the
    logarithms of `parameters`, (n_moved,). covariance: of the logarithms of the fitted parameters of the
    first campaign, (n_moved, n_moved). residuals: log(measured / predicted) of the fitted cases, (n_cases,).
    """

    parameters: Parameters
    by_campaign: tuple[Parameters, ...]
    moved: tuple[str, ...]
    log_sd: Numbers
    covariance: Numbers
    residuals: Numbers


class _Unknowns(Struct, frozen=True, kw_only=True):
    """The unknowns of a fit: shared parameters once, local ones once per campaign, in units of prior sd.

    columns: position of each parameter in the vector, (n_campaigns, n_names). medians, spreads: prior median
    and sd of the logarithm; upper: largest value in units of prior sd; all (n_names,).
    """

    names: tuple[str, ...]
    centre: Parameters
    columns: NDArray[np.intp]
    medians: Numbers
    spreads: Numbers
    upper: Numbers
    is_local: NDArray[np.bool_]

    def values(self, units: Numbers) -> Numbers:
        """The parameters of every campaign: (n_campaigns, n_names)."""
        return np.asarray(np.exp(self.medians + units[self.columns] * self.spreads))

    @property
    def bounds(self) -> Numbers:
        """Upper bounds of the unknowns, in the vector's order."""
        whole = np.empty(self.columns.max() + 1)
        whole[self.columns] = self.upper
        return whole


class _Loss(Struct, frozen=True, kw_only=True):
    """The loss of a fit: errors in units of their noise, and unknowns in units of their priors.

    target: logarithms of measured times; root: square roots of weights; campaigns: indices; all (n_cases,).
    """

    predict: Predict
    unknowns: _Unknowns
    target: Numbers
    root: Numbers
    campaigns: NDArray[np.intp]
    noise_log_sd: float

    def _values(self, units: Numbers) -> dict[str, Floats]:
        """Every parameter, of each case's campaign: (n_cases,) by name."""
        by_case = self.unknowns.values(units)[self.campaigns].T
        return dict(zip(self.unknowns.names, by_case, strict=True))

    def residuals(self, units: Numbers) -> Numbers:
        """log(measured / predicted); (n_cases,)."""
        predicted = self.predict(self.unknowns.centre.changed(self._values(units)))
        return np.asarray(self.target - np.log(predicted))

    def at(self, units: Numbers) -> Numbers:
        """All terms of the loss; (n_cases + n_unknowns,)."""
        soft, _ = self._soft(self.residuals(units))
        return np.concatenate([self.root * soft, units])

    def slopes(self, units: Numbers) -> Numbers:
        """Jacobian of the terms; (n_cases + n_unknowns, n_unknowns)."""
        unknowns = self.unknowns
        log_s, slopes = log_times(self.predict, unknowns.centre, self._values(units))
        _, steepness = self._soft(self.target - log_s)
        whole = np.zeros((len(self.target), len(units)))
        cases = np.arange(len(self.target))[:, None]
        scale = (self.root * steepness / self.noise_log_sd)[:, None]
        whole[cases, unknowns.columns[self.campaigns]] = -scale * slopes.T * unknowns.spreads
        return np.vstack([whole, np.eye(len(units))])

    def _soft(self, errors: Numbers) -> tuple[Numbers, Numbers]:
        """Errors in units of noise after the soft L1 loss, and the derivative of that; (n_cases,) each."""
        scaled = errors / self.noise_log_sd
        # Soft L1 is applied here rather than by SciPy, so that the priors' terms stay squared.
        root = np.sqrt(1 + (scaled / _ROBUST_SD) ** 2)
        soft = np.sign(scaled) * np.sqrt(2 * _ROBUST_SD**2 * (root - 1))
        steepness = np.divide(scaled, root * soft, out=np.ones_like(scaled), where=soft != 0)
        return soft, steepness


def log_times(predict: Predict, centre: Parameters, values: Mapping[str, Floats]) -> tuple[Numbers, Numbers]:
    """Logarithms of all times, (n_cases,), and their derivatives by log parameter, (n_names, n_cases).

    values: the parameters to differentiate by, a float or one value per case. centre: all others.
    Source: backward differences, several parameters per call of `predict`.
    """
    here = centre.changed(values)
    log_s = np.log(predict(here))
    names = [*values]
    most = max(1, _MAX_VALUES_PER_CALL // max(1, len(log_s)))
    slopes = np.empty((len(names), len(log_s)))
    for first in range(0, len(names), most):
        block = names[first : first + most]
        factors = np.exp(-_STEP * np.eye(len(block)))[:, :, None]
        moved = {name: values[name] * factor for name, factor in zip(block, factors, strict=True)}
        slopes[first : first + most] = (log_s - np.log(predict(here.changed(moved)))) / _STEP
    return log_s, slopes


def calibrate(
    predict: Predict,
    measured_s: Numbers,
    *,
    names: Sequence[str],
    weights: Numbers,
    campaigns: NDArray[np.intp] | None = None,
    noise_log_sd: float = NOISE_LOG_SD,
    priors: Sequence[Prior] = PRIORS,
    centre: Parameters | None = None,
) -> Calibration:
    """The most probable parameters given measured step times and priors.

    measured_s, weights: (n_cases,); weights are shares of independent observations (cases of one cluster
    share one). names: parameters of PRIORS to fit. campaigns: index of each case's campaign from 0,
    (n_cases,); each campaign has its own values of local parameters; None: one campaign. noise_log_sd:
    standard deviation of a log error. priors: used instead of PRIORS. centre: values of parameters not
    fitted; by default the prior medians.
    Raises FitError without cases, or if a prediction is not a positive number.
    Assumes errors are independent between clusters, and log-normal except for outliers.
    Source: maximum a posteriori with a soft L1 loss (Huber 1964); campaigns as random effects (Laird and Ware
    1982).
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - loading it takes as long as a plan

    if not len(measured_s):
        raise FitError("no measured step to calibrate on", missing=("rows of measurements",))
    of = np.zeros(len(measured_s), dtype=np.intp) if campaigns is None else campaigns
    unknowns = _unknowns(names, int(of.max()) + 1, priors, centre or Parameters())
    loss = _Loss(
        predict=predict,
        unknowns=unknowns,
        target=np.log(measured_s),
        root=np.sqrt(weights),
        campaigns=of,
        noise_log_sd=noise_log_sd,
    )
    upper = unknowns.bounds
    begin = np.minimum(np.zeros(len(upper)), upper - _STEP)
    if not np.isfinite(loss.at(begin)).all():
        raise FitError("a measured step has no positive prediction under the priors; reject its row first")
    fit = partial(least_squares, loss.at, jac=loss.slopes, bounds=(-np.inf, upper), x_scale=1.0, max_nfev=60)
    try:
        found = fit(begin)
    except np.linalg.LinAlgError:
        # LAPACK's gesdd, which SciPy calls, fails on some finite matrices, with some numbers of threads.
        found = fit(begin, tr_solver="lsmr")
    by_campaign = tuple(
        unknowns.centre.changed(dict(zip(names, each, strict=True)))
        for each in unknowns.values(found.x).tolist()
    )
    return Calibration(
        parameters=by_campaign[0].elsewhere(),
        by_campaign=by_campaign,
        moved=tuple(names),
        log_sd=_log_sd(np.asarray(found.jac), unknowns),
        covariance=_covariance(np.asarray(found.jac), unknowns),
        residuals=loss.residuals(found.x),
    )


def _unknowns(
    names: Sequence[str], num_campaigns: int, priors: Sequence[Prior], centre: Parameters
) -> _Unknowns:
    """The unknowns of a fit, with one column per parameter, and per campaign if the parameter is local."""
    by_name = {each.name: each for each in priors}
    chosen = [by_name[name] for name in names]
    columns = np.empty((num_campaigns, len(chosen)), dtype=np.intp)
    column = 0
    for at, each in enumerate(chosen):
        copies = num_campaigns if each.local else 1
        columns[:, at] = column + np.arange(num_campaigns) % copies
        column += copies
    medians = np.log([each.median for each in chosen])
    spreads = np.array([each.log_sd for each in chosen])
    largest = np.log([each.largest for each in chosen])
    return _Unknowns(
        names=tuple(names),
        centre=centre,
        columns=columns,
        medians=medians,
        spreads=spreads,
        upper=(largest - medians) / spreads,
        is_local=np.array([each.local for each in chosen]),
    )


def _covariance(jacobian: Numbers, unknowns: _Unknowns) -> Numbers:
    """Posterior covariance of the log parameters of the first campaign; (n_moved, n_moved)."""
    mine = unknowns.columns[0]
    units = np.linalg.pinv(jacobian.T @ jacobian)[np.ix_(mine, mine)]
    return np.asarray(units * np.outer(unknowns.spreads, unknowns.spreads))


def _log_sd(jacobian: Numbers, unknowns: _Unknowns) -> Numbers:
    """Standard deviations of log parameters for campaigns not fitted: of local parameters, their priors'."""
    fitted = np.sqrt(np.diag(_covariance(jacobian, unknowns)))
    return np.asarray(np.where(unknowns.is_local, unknowns.spreads, fitted))
