"""The performance model as calibrated: its parameters, equally likely others, and how wrong it was."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from equipoise.advice.links.own_links import OwnLinks, own_links
from equipoise.advice.links.spoken import TimedCollectives
from equipoise.advice.validation.calibration_choice import architecture, calibration_choice
from equipoise.advice.validation.profiles import profile
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.workload import Workload

PRIORS_ONLY = "priors"
USER_CALIBRATION = "your runs"
_NUM_DRAWS = 64
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """What the model was fitted to, and how wrong it was on what was held out; None is unknown."""

    name: str
    words: str
    num_held_out: int
    median_abs_error: float | None
    p90_abs_error: float | None
    coverage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedModel:
    """Parameters, draws of equally likely ones, and what they rest on.

    log_half_width: half the width of a step's interval at LEVEL, of its logarithm, that errors on what was
    held out show; it comes on top of what the draws leave open. 0 where nothing was held out. links: the
    user's own timed collectives, which parameters and draws hold; None where none were given.
    """

    parameters: Parameters
    draws: tuple[Parameters, ...]
    log_half_width: float
    calibration: CalibrationRecord
    links: OwnLinks | None = None


def model_for(chip: Accelerator, workload: Workload, *, name: str | None = None) -> CalibratedModel:
    """The calibration to use for a workload on a chip: the profile of a name, or the one of the chip's maker.

    name: of a profile, or `priors`. Where none is named and none is known, the priors.
    Raises SpecError with the names there are.
    """
    if name == PRIORS_ONLY:
        return prior_model()
    choice = calibration_choice(chip.vendor, chip.kind, architecture(workload), name=name)
    found = prior_model() if choice.profile is None else _profile_model(choice.profile.name)
    words = f"{found.calibration.words}; {choice.words}"
    return replace(found, calibration=replace(found.calibration, words=words))


@cache
def prior_model() -> CalibratedModel:
    """The model before any measurement: the medians of the priors, and draws from them."""
    words = "no calibration: the medians of all priors; the range is what the priors leave open"
    return CalibratedModel(
        parameters=Parameters(),
        draws=_draws({}, {}),
        log_half_width=0.0,
        calibration=CalibrationRecord(
            name=PRIORS_ONLY,
            words=words,
            num_held_out=0,
            median_abs_error=None,
            p90_abs_error=None,
            coverage=None,
        ),
    )


@lru_cache(maxsize=64)
def _profile_model(name: str) -> CalibratedModel:
    """The model with a profile's parameters."""
    found = profile(name)
    values, record = found.values, found.record
    return CalibratedModel(
        parameters=Parameters().changed(values),
        draws=_draws(values, found.log_sd),
        log_half_width=record.log_half_width,
        calibration=CalibrationRecord(
            name=found.name,
            words=f"fitted to {found.title}; held out by {record.split}",
            num_held_out=record.num_clusters,
            median_abs_error=record.median,
            p90_abs_error=record.p90,
            coverage=record.coverage,
        ),
    )


def _draws(values: Mapping[str, float], log_sd: Mapping[str, float]) -> tuple[Parameters, ...]:
    """Equally likely parameters: log-normal about the fitted values, the priors where nothing was fitted.

    Assumes parameters are independent, which makes sums vary more than they do where fits trade them off.
    Source: each prior names its own.
    """
    deviates = np.random.default_rng(_SEED).standard_normal((_NUM_DRAWS, len(PRIORS)))
    medians = np.array([values.get(each.name, each.median) for each in PRIORS])
    spreads = np.array([log_sd.get(each.name, each.log_sd) for each in PRIORS])
    drawn = np.minimum(medians * np.exp(spreads * deviates), [each.largest for each in PRIORS])
    names = [each.name for each in PRIORS]
    return tuple(Parameters().changed(dict(zip(names, each, strict=True))) for each in drawn.tolist())


def with_links(model: CalibratedModel, given: TimedCollectives | None, nodes: Cluster) -> CalibratedModel:
    """The model with the user's own timed collectives in place of its links; as it is without any.

    nodes: the cluster that is planned on.
    """
    if given is None:
        return model
    found = own_links(given, nodes, model.parameters.collective, [each.collective for each in model.draws])
    return replace(
        model,
        parameters=replace(model.parameters, collective=found.parameters),
        draws=tuple(
            replace(each, collective=own) for each, own in zip(model.draws, found.draws, strict=True)
        ),
        links=found,
    )
