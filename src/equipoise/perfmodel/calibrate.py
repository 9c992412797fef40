"""Fits the model's parameters to measured steps: robust least squares on log error, a prior on every
parameter.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.errors import FitError
from equipoise.perfmodel.load import Floats, Numbers
from equipoise.perfmodel.parameters import PRIORS, Parameters, Prior

# Seconds of every measured case. Parameters are floats or arrays that broadcast against (n_points, n_cases),
# and so does what is returned.
Predict: TypeAlias = Callable[[Parameters], Numbers]

# Errors beyond this many standard deviations count linearly, not squared: one cluster may have a broken
# cable.
_ROBUST_SD = 2.0
_STEP = 1e-4
# Numbers that one call of `predict` goes through at most: arrays that fit into a processor's cache.
_MOST_AT_ONCE = 16_384
# What an error of one standard deviation is, in logs. 0.035: of 0.03 to 0.1, what leaves the smallest error
# on GPU counts left out within vtrain_single, and then on hidden sizes: docs/experiments/0006.
NOISE_LOG_SD = 0.035
# How far one set-up deviates from its parameters, in logs: it sets the uncertainty that a fit leaves, and the
# noise with which few steps of a user's own are fitted. Rows held out are off by 0.03 to 0.1
# (docs/understand/accuracy.md), more than one standard deviation above, because a fit gives outliers less
# weight. The intervals of 82 rows held out of vTrain, Megatron and torchtitan cover as many with 0.035.
STRAY_LOG_SD = 0.05


class Calibration(Struct, frozen=True, kw_only=True):
    """Fitted parameters and how they came about.

    parameters: for other campaigns; what is local to one stands at its prior's median. by_campaign: for those
    that were seen, by their number. moved: the names fitted; log_sd: standard deviation of the logarithms of
    `parameters`, shape (n_moved,). covariance: of the logarithms of what moved for the first campaign, shape
    (n_moved, n_moved). residuals: log(measured / predicted) of the cases it was fitted to, shape (n_cases,).
    """

    parameters: Parameters
    by_campaign: tuple[Parameters, ...]
    moved: tuple[str, ...]
    log_sd: Numbers
    covariance: Numbers
    residuals: Numbers


class _Unknowns(Struct, frozen=True, kw_only=True):
    """What a fit moves: every shared parameter once, every local one once a campaign, in units of their
    priors.

    columns: (n_campaigns, n_names), where in the vector each stands. medians, spreads, upper: (n_names,).
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
        """What no unknown may exceed, in the vector's order."""
        whole = np.empty(self.columns.max() + 1)
        whole[self.columns] = self.upper
        return whole


class _Loss(Struct, frozen=True, kw_only=True):
    """What a fit minimises: errors over their noise, and how far unknowns are from their priors.

    target: logs of the measured, root: roots of weights, campaigns: their numbers; all (n_cases,).
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
        """Every part of the loss; (n_cases + n_unknowns,)."""
        soft, _ = self._soft(self.residuals(units))
        return np.concatenate([self.root * soft, units])

    def slopes(self, units: Numbers) -> Numbers:
        """Its change with every unknown; (n_cases + n_unknowns, n_unknowns)."""
        unknowns = self.unknowns
        log_s, slopes = log_times(self.predict, unknowns.centre, self._values(units))
        _, steepness = self._soft(self.target - log_s)
        whole = np.zeros((len(self.target), len(units)))
        cases = np.arange(len(self.target))[:, None]
        scale = (self.root * steepness / self.noise_log_sd)[:, None]
        whole[cases, unknowns.columns[self.campaigns]] = -scale * slopes.T * unknowns.spreads
        return np.vstack([whole, np.eye(len(units))])

    def _soft(self, errors: Numbers) -> tuple[Numbers, Numbers]:
        """Errors over their noise with outliers weakened, and the change of that with each; (n_cases,)."""
        scaled = errors / self.noise_log_sd
        # soft L1 by hand, so that the priors stay plain squares
        root = np.sqrt(1 + (scaled / _ROBUST_SD) ** 2)
        soft = np.sign(scaled) * np.sqrt(2 * _ROBUST_SD**2 * (root - 1))
        steepness = np.divide(scaled, root * soft, out=np.ones_like(scaled), where=soft != 0)
        return soft, steepness


def log_times(predict: Predict, centre: Parameters, values: Mapping[str, Floats]) -> tuple[Numbers, Numbers]:
    """The logarithms of all times, (n_cases,), and their change with that of each parameter, (n_names,
    n_cases).

    values: the parameters that change, by name: a float, or one for every case. centre: all others.
    Source: backward differences, several parameters in one call of `predict`.
    """
    here = centre.changed(values)
    log_s = np.log(predict(here))
    names = [*values]
    most = max(1, _MOST_AT_ONCE // max(1, len(log_s)))
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
    """The parameters under which `predict` comes closest to `measured_s`, as far as their priors allow.

    measured_s, weights: shape (n_cases,); weights are the shares of independent observations (cases of one
    cluster share one). names: which parameters of PRIORS may move. campaigns: (n_cases,), numbers from 0 of
    the campaigns the cases are from; each has its own values of what is local; None: one campaign.
    noise_log_sd: what an error of one sd is, in logs. priors: of these, in place of PRIORS.
    centre: where what does not move stands; the priors' medians unless given.
    Raises FitError without cases, or if a prediction is no positive number.
    Assumes errors independent between clusters, log-normal but for outliers.
    Source: maximum a posteriori with a soft L1 loss (Huber 1964), effects of campaigns as random ones (Laird
    and Ware 1982).
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
    """The unknowns of a fit to so many campaigns."""
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
    """Of the logarithms of what moved for the first campaign, around the fit; (n_moved, n_moved)."""
    mine = unknowns.columns[0]
    units = np.linalg.pinv(jacobian.T @ jacobian)[np.ix_(mine, mine)]
    return np.asarray(units * np.outer(unknowns.spreads, unknowns.spreads))


def _log_sd(jacobian: Numbers, unknowns: _Unknowns) -> Numbers:
    """Standard deviations of the logarithms for other campaigns: of what is local, as wide as its prior."""
    fitted = np.sqrt(np.diag(_covariance(jacobian, unknowns)))
    return np.asarray(np.where(unknowns.is_local, unknowns.spreads, fitted))
