"""The model's witness with the user's own steps: at their level, or with the parameters fitted to them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from equipoise.advice.answer.evidence import Source, Witness
from equipoise.advice.answer.own_fit import OwnFit
from equipoise.advice.answer.own_steps import OwnSteps
from equipoise.advice.answer.weighed import log_sd
from equipoise.advice.answer.witnesses import with_log_sd
from equipoise.advice.plans.length import DEVIATE
from equipoise.advice.plans.modelled import Model
from equipoise.advice.plans.planned import Basis, Plan

# Of a doubling away from the sizes measured, beyond what the calibration's own record says: what its held-out
# sizes showed (docs/experiments/0006-calibration.md: leaving whole sizes out).
_LOG_SD_A_DOUBLING = 0.06
# Where nothing was held out of a calibration, as wrong as steps by the priors alone are (docs/accuracy.md).
_UNCALIBRATED_LOG_SD = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLevel:
    """How many times longer the user's steps take than the model says: the median over set-ups.

    log_sd: of that level. steps: from which it is. why: in words, why no more than it was fitted.
    """

    factor: float
    log_sd: float
    steps: OwnSteps
    why: str

    @property
    def sentence(self) -> str:
        """What was learnt, and why no more."""
        return f"the model is set to your level, {self.factor:.2f} times its own: {self.why}"


def own_level(steps: OwnSteps, model: Model, why: str) -> OwnLevel:
    """The level of the user's steps over a model. why: it is no fit, in words.

    Assumes that what the model gets wrong about a machine and its software is one factor at all sizes.
    Source: the median of log(measured / modelled), its standard error from the spread of the set-ups, at
    least the calibration's record over their number.
    """
    logs = steps.log_ratios(model.parameters).tolist()
    scatter = float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0
    spread = max(scatter, _record_log_sd(model.basis))
    return OwnLevel(
        factor=math.exp(median(logs)),
        log_sd=spread / math.sqrt(len(logs)),
        steps=steps,
        why=why,
    )


def _sizes(steps: OwnSteps) -> tuple[int, ...]:
    return tuple(np.unique(steps.sizes).astype(int).tolist())


def _record_log_sd(basis: Basis) -> float:
    """How wrong steps by a calibration were, as a standard deviation of logarithms."""
    most = basis.p90_abs_error
    return _UNCALIBRATED_LOG_SD if most is None else math.log1p(most) / DEVIATE


def levelled_witness(witness: Witness, plan: Plan, level: OwnLevel) -> Witness:
    """The model's witness at the user's own level, in place of the default.

    Its width is that of the level, of a step by the calibration, of the samples, and of the distance in
    doublings from the sizes measured; not that of plans of other people's trainings.
    """
    of_samples, sizes = _log_sds_of_samples(plan), _sizes(level.steps)
    times = {}
    for size, time in witness.times.items():
        far = _LOG_SD_A_DOUBLING * _num_doublings(size, sizes)
        spread = math.hypot(level.log_sd, _record_log_sd(plan.basis), of_samples[size], far)
        # Never surer of a size far away than the model without the runs would be of itself.
        times[size] = with_log_sd(level.factor * time.value, min(spread, max(log_sd(time), level.log_sd)))
    return replace(
        witness,
        name="the model (at the level of your runs)",
        times=times,
        log_sds={size: log_sd(time) for size, time in times.items()},
        why=dict.fromkeys(times, f"your steps take {level.factor:.2f} times what it says; {level.why}"),
        sources=(*_sources(level.steps.run_ids), *witness.sources),
    )


def fitted_witness(witness: Witness, plan: Plan, fit: OwnFit) -> Witness:
    """The witness of a plan that was searched with the fitted model.

    Its width is what the parameters leave open at each size, what the fit got wrong about steps held out, the
    samples, and the distance in doublings from the sizes measured.
    """
    of_samples = _log_sds_of_samples(plan)
    sizes, half_width = _sizes(fit.steps), fit.model.log_half_width
    times = {}
    for place, option in enumerate(plan.by_size):
        size = option.num_accelerators
        open_ = float(np.std(np.log(plan.drawn_s[:, place])))
        far = _LOG_SD_A_DOUBLING * _num_doublings(size, sizes)
        spread = math.hypot(open_, half_width / DEVIATE, of_samples[size], far)
        times[size] = with_log_sd(witness.times[size].value, spread)
    return replace(
        witness,
        name="the model (fitted to your runs)",
        times=times,
        log_sds={size: log_sd(time) for size, time in times.items()},
        why=dict.fromkeys(times, fit.words),
        sources=(*_sources(fit.steps.run_ids), *witness.sources),
    )


def _log_sds_of_samples(plan: Plan) -> Mapping[int, float]:
    """How unsure the samples of the training are, by size, each at its own batch."""
    return {
        each.num_accelerators: plan.length.log_sd(float(each.strategy.global_batch_samples))
        for each in plan.by_size
    }


def _num_doublings(size: int, sizes: tuple[int, ...]) -> float:
    """From the nearest size measured."""
    return min(abs(math.log2(size / each)) for each in sizes)


def _sources(run_ids: tuple[str, ...]) -> tuple[Source, ...]:
    return tuple(Source(kind="measured", ref=each) for each in run_ids)
