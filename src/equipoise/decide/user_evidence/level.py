"""The model's estimates with the user's own steps: at their level, or with the parameters fitted to them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from equipoise.advice.validation.calibrated_model import CalibratedModel, CalibrationRecord
from equipoise.decide.estimate import DEVIATE, Estimates, Source, log_sd, with_log_sd
from equipoise.decide.strategies.survey import Survey
from equipoise.decide.user_evidence.fit import UserFit
from equipoise.decide.user_evidence.steps import UserSteps

# Of a doubling away from the sizes measured, beyond the calibration's own record: what its held-out sizes
# showed (docs/experiments/0006-calibration.md: leaving whole sizes out).
_LOG_SD_A_DOUBLING = 0.06
# Where nothing was held out of a calibration, as wrong as steps by the priors alone are:
# docs/understand/accuracy.md.
_UNCALIBRATED_LOG_SD = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLevel:
    """How many times longer the user's steps take than modelled: the median over set-ups.

    log_sd: of that level. steps: from which it is. why: in words, why no more than it was fitted.
    """

    factor: float
    log_sd: float
    steps: UserSteps
    why: str

    @property
    def sentence(self) -> str:
        """What was learnt, and why no more."""
        return f"the model is set to your level, {self.factor:.2f} times its own: {self.why}"


def user_level(steps: UserSteps, model: CalibratedModel, why: str) -> UserLevel:
    """The level of the user's steps over a model. why: it is no fit, in words.

    Assumes that what the model gets wrong about a machine and its software is one factor at all sizes.
    Source: the median of log(measured / modelled), its standard error from the spread of the set-ups, at
    least the calibration's record over their number.
    """
    logs = steps.log_ratios(model.parameters).tolist()
    scatter = float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0
    spread = max(scatter, _record_log_sd(model.calibration))
    return UserLevel(
        factor=math.exp(median(logs)),
        log_sd=spread / math.sqrt(len(logs)),
        steps=steps,
        why=why,
    )


def _sizes(steps: UserSteps) -> tuple[int, ...]:
    return tuple(np.unique(steps.sizes).astype(int).tolist())


def _record_log_sd(calibration: CalibrationRecord) -> float:
    """How wrong steps by a calibration were, as a standard deviation of logarithms."""
    most = calibration.p90_abs_error
    return _UNCALIBRATED_LOG_SD if most is None else math.log1p(most) / DEVIATE


def levelled_estimates(estimates: Estimates, survey: Survey, level: UserLevel) -> Estimates:
    """The model's estimates at the user's own level, in place of the default.

    Their width is that of the level, of a step by the calibration, of the samples, and of the distance in
    doublings from the sizes measured; not that of plans of other people's trainings.
    """
    of_samples, sizes = _log_sds_of_samples(survey), _sizes(level.steps)
    spreads = {}
    for size, each in estimates.by_size.items():
        far = _LOG_SD_A_DOUBLING * _num_doublings(size, sizes)
        spread = math.hypot(
            level.log_sd, _record_log_sd(survey.problem.model.calibration), of_samples[size], far
        )
        # Never surer of a size far away than the model without the runs would be of itself.
        spreads[size] = min(spread, max(log_sd(each.time_s), level.log_sd))
    why = f"your steps take {level.factor:.2f} times what is modelled; {level.why}"
    return _changed(
        estimates,
        level.steps,
        spreads,
        name="the performance model, at the level of your runs",
        why=why,
        factor=level.factor,
    )


def fitted_estimates(estimates: Estimates, survey: Survey, fit: UserFit) -> Estimates:
    """The estimates of a survey that was searched with the fitted model.

    Their width is what the parameters leave open at each size, what the fit got wrong about steps held out,
    the samples, and the distance in doublings from the sizes measured.
    """
    of_samples = _log_sds_of_samples(survey)
    sizes, half_width = _sizes(fit.steps), fit.model.log_half_width
    spreads = {}
    for each in survey.sizes:
        size = each.num_accelerators
        if size in estimates.by_size:
            open_ = float(np.std(np.log(each.drawn_s)))
            far = _LOG_SD_A_DOUBLING * _num_doublings(size, sizes)
            spreads[size] = math.hypot(open_, half_width / DEVIATE, of_samples[size], far)
    return _changed(
        estimates, fit.steps, spreads, name="the performance model, fitted to your runs", why=fit.words
    )


def _changed(
    estimates: Estimates,
    steps: UserSteps,
    spreads: Mapping[int, float],
    *,
    name: str,
    why: str,
    factor: float = 1.0,
) -> Estimates:
    """The estimates with other widths, and so many times as long."""
    return replace(
        estimates,
        name=name,
        by_size={
            size: replace(
                each,
                name=name,
                time_s=with_log_sd(factor * each.time_s.value, spreads[size]),
                log_sd=spreads[size],
                why=why,
            )
            for size, each in estimates.by_size.items()
        },
        grade=dict.fromkeys(estimates.by_size, "measured"),
        sources=(*(Source(kind="measured", ref=each) for each in steps.run_ids), *estimates.sources),
    )


def _log_sds_of_samples(survey: Survey) -> Mapping[int, float]:
    """How unsure the samples of the training are, by size, each at its own batch."""
    budget = survey.problem.training.budget
    return {
        each.num_accelerators: budget.log_sd(float(each.best.strategy.global_batch_samples))
        for each in survey.sizes
        if each.best is not None
    }


def _num_doublings(size: int, sizes: tuple[int, ...]) -> float:
    """From the nearest size measured."""
    return min(abs(math.log2(size / each)) for each in sizes)
