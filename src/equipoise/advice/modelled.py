"""The calibration a plan rests on: parameters, equally likely others, and how wrong it was."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from equipoise.advice.planned import Basis
from equipoise.perfmodel.parameters import PRIORS, Parameters

_NUM_DRAWS = 64
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Parameters, draws of equally likely ones, and what they rest on.

    log_half_width: of the interval of a step's time at LEVEL, from errors on what was held out; None where
    nothing was: then the draws tell it.
    """

    parameters: Parameters
    draws: tuple[Parameters, ...]
    log_half_width: float | None
    basis: Basis


@cache
def prior_model() -> Model:
    """The model before any measurement: the medians of the priors, and draws from them.

    Assumes parameters are independent and log-normal, as their priors say.
    Source: each prior names its own.
    """
    rng = np.random.default_rng(_SEED)
    draws = []
    for _ in range(_NUM_DRAWS):
        deviates = rng.standard_normal(len(PRIORS))
        values = {
            each.name: min(each.largest, each.median * math.exp(each.log_sd * deviate))
            for each, deviate in zip(PRIORS, deviates, strict=True)
        }
        draws.append(Parameters().changed(values))
    return Model(
        parameters=Parameters(),
        draws=tuple(draws),
        log_half_width=None,
        basis=Basis(
            name="priors",
            words="no calibration: the medians of all priors; the interval is what the priors leave open",
            num_held_out=0,
            median_abs_error=None,
            p90_abs_error=None,
            coverage=None,
        ),
    )
