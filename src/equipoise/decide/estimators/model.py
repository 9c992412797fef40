"""The estimator of the performance model: the best strategy of each size, as the search found it."""

from dataclasses import replace

import numpy as np

from equipoise.calibration.profiles import PRIORS_ONLY
from equipoise.decide.answer import Estimate, Estimates, EvidenceSource, log_sd
from equipoise.decide.combine import combined_record, straight_between
from equipoise.decide.strategy_search import SizeSearch, Survey
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.units import format_percent


def model_estimates(survey: Survey) -> Estimates | None:
    """Modelled times of the best strategy of each size; None where nothing fits.

    Where only published results state how long a training is, its times are of a unit of samples: good for
    ratios alone.
    """
    fitting = [each for each in survey.sizes if each.best is not None]
    if not fitting:
        return None
    problem = survey.problem
    calibration, record = problem.model.calibration, problem.record
    error = format_percent(round(record.median, 2))
    why = f"{record.num_trainings} plans of published trainings: off by {error} (median)"
    found: dict[int, Estimate] = {}
    for each in fitting:
        assert each.best is not None
        found[each.num_accelerators] = Estimate(
            estimator="model",
            name=f"the performance model (calibration {calibration.name})",
            time_s=each.best.work_s,
            log_sd=_log_sd(survey, each),
            why=why,
        )
    faster = _ever_faster(fitting)
    return Estimates(
        estimator="model",
        name=f"the performance model (calibration {calibration.name})",
        by_size=found,
        grade=dict.fromkeys(found, "priors" if calibration.name == PRIORS_ONLY else "calibrated"),
        sources=(
            EvidenceSource(
                kind="model", ref=f"performance model, calibration {calibration.name}: {calibration.words}"
            ),
        ),
        curves_s=straight_between([each.num_accelerators for each in faster], _drawn(faster)),
        domain=_domain(fitting),
    )


def beside_published(model: Estimates, largest_published: float) -> Estimates:
    """The model's estimates where results are published too: as wrong as it was so far beyond them.

    Source: data/combined.json, by jump; between and below the sizes published as up to twice the largest.
    """
    return replace(
        model,
        by_size={
            size: replace(each, log_sd=combined_record().at(size / largest_published).modelled_log_sd)
            for size, each in model.by_size.items()
        },
    )


def _log_sd(survey: Survey, found: SizeSearch) -> float:
    """How wrong the model was: of published trainings, whose samples it does not know, else as it states."""
    assert found.best is not None
    stated = log_sd(found.best.work_s)
    if survey.problem.training.budget.batches is None:
        return stated
    return max(stated, combined_record().modelled_log_sd[survey.problem.record.kind])


def _ever_faster(searches: list[SizeSearch]) -> list[SizeSearch]:
    """The sizes, from the smallest, that are faster than all smaller ones: elsewhere the rest stands idle."""
    found: list[SizeSearch] = []
    for each in searches:
        assert each.best is not None
        last = found[-1].best if found else None
        if last is None or each.best.work_s.value < last.work_s.value:
            found.append(each)
    return found


def _drawn(searches: list[SizeSearch]) -> FloatArray:
    return np.array([each.drawn_s for each in searches]).T


def _domain(searches: list[SizeSearch]) -> Domain | None:
    """Up to half the largest size tried, for a curve goes on to twice its domain."""
    smallest, largest = float(searches[0].num_accelerators), searches[-1].num_accelerators / 2.0
    return Domain(smallest=smallest, largest=largest) if largest >= smallest else None
