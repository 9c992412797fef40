"""The calibration a plan rests on: parameters, equally likely others, and how wrong it was."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from equipoise.advice.links.own_links import OwnLinks, own_links
from equipoise.advice.links.spoken import TimedCollectives
from equipoise.advice.plans.planned import Basis, Question
from equipoise.advice.validation.profiles import Profile, profile, profile_for
from equipoise.perfmodel.parameters import PRIORS, Parameters
from equipoise.spec.cluster import Cluster

PRIORS_ONLY = "priors"
_NUM_DRAWS = 64
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Parameters, draws of equally likely ones, and what they rest on.

    log_half_width: half the width of a step's interval at LEVEL, of its logarithm, that errors on what was
    held out show; it comes on top of what the draws leave open. 0 where nothing was held out. links: the
    user's own timed collectives, which parameters and draws hold; None where none were given.
    """

    parameters: Parameters
    draws: tuple[Parameters, ...]
    log_half_width: float
    basis: Basis
    links: OwnLinks | None = None


@lru_cache(maxsize=64)
def model_for(accelerator: str, name: str | None = None) -> Model:
    """The calibration to plan with on an accelerator: the profile of a name, or one measured on this chip.

    accelerator: slug. name: of a profile, or `priors`. Where none is named and none was measured, the priors.
    Raises SpecError with the names there are.
    """
    if name == PRIORS_ONLY:
        return prior_model()
    if name is not None:
        return _profile_model(profile(name))
    found = profile_for(accelerator)
    return prior_model() if found is None else _profile_model(found)


def prior_model() -> Model:
    """The model before any measurement: the medians of the priors, and draws from them."""
    words = "no calibration: the medians of all priors; the range is what the priors leave open"
    return Model(
        parameters=Parameters(),
        draws=_draws({}, {}),
        log_half_width=0.0,
        basis=Basis(
            name=PRIORS_ONLY,
            words=words,
            num_held_out=0,
            median_abs_error=None,
            p90_abs_error=None,
            coverage=None,
        ),
    )


def _profile_model(found: Profile) -> Model:
    """The model with a profile's parameters."""
    values, record = found.values, found.record
    return Model(
        parameters=Parameters().changed(values),
        draws=_draws(values, found.log_sd),
        log_half_width=record.log_half_width,
        basis=Basis(
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


def start_model(question: Question, nodes: Cluster) -> Model:
    """The model before any training of the user: a calibration, with the user's own links where given."""
    return with_links(model_for(nodes.accelerator.slug, question.profile), question.collectives, nodes)


def with_links(model: Model, given: TimedCollectives | None, nodes: Cluster) -> Model:
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
