"""Plans of trainings that were published: planned times against published ones, and data/plans.json.

python records/plans.py
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final, get_args

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from threadpoolctl import threadpool_limits
from written import write_of_dataset

from equipoise.calibration.profiles import model_for
from equipoise.decide.combine import (
    PLAN_RECORD_NAME,
    ModelKind,
    PlanKind,
    PlanRecord,
    PretrainingKind,
    WorkloadPlans,
    model_kind,
    pretraining_kind,
    share_of_bias,
)
from equipoise.decide.estimators.model import model_estimates
from equipoise.decide.evidence import Estimates
from equipoise.decide.explanation.published_nearby import Pretraining, pretrainings
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.training import fixed_budget, training, usual_batch
from equipoise.decide.strategies.size_searches import StrategySearches
from equipoise.decide.strategies.strategy_search import Problem, problem
from equipoise.economics.interruptions import interrupted
from equipoise.errors import InputError
from equipoise.intervals import LEVEL, exact
from equipoise.runs import embedded
from equipoise.scaling.laws import FloatArray
from equipoise.spec.catalogue import Catalogue, catalogue, shipped
from equipoise.spec.hardware import usual_peak_flop_per_s
from equipoise.spec.mlperf import ScoredEntry, Scores, best_per_size, round_key
from equipoise.spec.workload import Workload
from equipoise.units import HOUR_S

_TO_TARGET: Final[tuple[PlanKind, ...]] = get_args(ModelKind)
_PRETRAININGS: Final[tuple[PlanKind, ...]] = get_args(PretrainingKind)
# Rounds from here on: software and hardware that are still in use.
_FIRST_ROUND: Final = "v3.0"
# Number of accelerators assumed for a pretraining published without it.
_USUAL_PRETRAINING_SIZE: Final = 1024


class Planned(Struct, frozen=True, kw_only=True):
    """A published training and its plan at the same batch; planned_s: None without a plan.

    group: round, workload and accelerator. training_flop: of a pretraining.
    """

    entry: str
    workload: str
    kind: PlanKind
    published_s: float
    planned_s: float | None
    group: tuple[str, ...] = ()
    num_accelerators: int = 1
    training_flop: float | None = None


def published_problem(
    workload: str,
    accelerator: str,
    scores: Scores,
    *,
    global_batch_samples: int | None = None,
) -> Problem:
    """A training to the published target on the usual nodes of an accelerator, as a question would pose it.

    scores: known published results, with samples to target. global_batch_samples: None: to be chosen.
    Raises SpecError for unknown names or a workload whose work is unknown, UsageError where no result has a
    target.
    """
    catalogue = shipped()
    query = TrainingQuery(workload=workload, global_batch_samples=global_batch_samples)
    trained = training(query, catalogue, scores)
    nodes = catalogue.cluster(accelerator)
    return problem(trained, nodes, model_for(nodes.accelerator, trained.workload), num_best=1)


def modelled(posed: Problem, sizes: Sequence[int]) -> Estimates | None:
    """The times of the performance model for a problem at some sizes; None where nothing fits at any.

    Raises EvidenceError where no batch is known.
    """
    return model_estimates(StrategySearches(problem=posed).with_sizes(sizes))


def kind_of(workload: str) -> ModelKind:
    """The kind of model that a workload of the catalogue trains."""
    return model_kind(shipped().workload(workload))


def recent_rounds(rounds: Iterable[str]) -> list[str]:
    """The rounds whose software and hardware are still in use, oldest first."""
    ordered = sorted(rounds, key=round_key)
    return [name for name in ordered if round_key(name) >= round_key(_FIRST_ROUND)]


def planned(scores: Scores) -> Iterator[Planned]:
    """The best published training of each round, workload, accelerator and size, with its plan."""
    stated = [each for each in scores.entries if each.global_batch_samples is not None]
    recent = set(recent_rounds({each.campaign for each in stated}))
    for row in best_per_size(each for each in stated if each.campaign in recent):
        yield Planned(
            entry=row.entry_id,
            workload=row.workload,
            kind=kind_of(row.workload),
            published_s=row.score_s,
            planned_s=_planned_s(row, scores),
            group=row.group,
            num_accelerators=row.num_accelerators,
        )


def _planned_s(row: ScoredEntry, scores: Scores) -> float | None:
    """The planned working time of one published training, at its batch; None where there is no plan.

    Assumes published runs were not interrupted: submitters leave out those that were.
    """
    try:
        posed = published_problem(
            row.workload,
            row.accelerator,
            scores,
            global_batch_samples=row.global_batch_samples,
        )
    except InputError:
        return None
    if posed.training.budget.samples is None:
        return None
    best = posed.search_size(row.num_accelerators).best
    return best[0].training_s * posed.time_per_own_step_time if best else None


def planned_published_pretrainings() -> Iterator[tuple[Planned, Workload, Callable[[], float | None]]]:
    """Yield published pretrainings with their plan, their model, and a function for the best strategy's time.

    The plan uses the best strategy consistent with the stated one, so that a team's loss by its choice is not
    part of the common factor: an answer names the best. The function searches all strategies.
    Times include failures at the training's size, because plans count them in addition to that factor.
    """
    known = catalogue(workloads=(Path(str(files("equipoise"))) / "data" / "pretrained_models.toml",))
    for each in pretrainings():
        posed = _pretraining(each, known, each.strategy)
        about, nodes = posed.training.workload, posed.cluster
        size = each.num_accelerators or _USUAL_PRETRAINING_SIZE
        published_s = each.accelerator_hours * HOUR_S / size
        stopped = interrupted(
            exact(published_s),
            num_accelerators=size,
            num_nodes=-(-size // nodes.node_size),
            trained_params=about.params,
            is_spot=False,
        )
        assert stopped.goodput is not None
        planned_s = _steps_s(posed, size, stopped.goodput.value)
        of_all = posed if each.strategy is None else _pretraining(each, known, None)
        yield (
            Planned(
                entry=each.title,
                workload=each.family,
                kind=pretraining_kind(about),
                published_s=published_s,
                planned_s=planned_s,
                num_accelerators=size,
                training_flop=posed.training.stated_flop,
            ),
            about,
            partial(_steps_s, of_all, size, stopped.goodput.value),
        )


def _pretraining(each: Pretraining, known: Catalogue, strategy: str | None) -> Problem:
    """A published pretraining as a question would pose it, at its batch, with its stated strategy."""
    query = TrainingQuery(
        workload=each.workload,
        training_tokens=each.tokens,
        precision=() if each.precision is None else (each.precision,),
        fixed=() if strategy is None else (strategy,),
    )
    asked = training(query, known, None)
    about = replace(asked.workload, sequence_tokens=each.sequence_tokens)
    samples = each.tokens / each.sequence_tokens
    stated = each.batch_tokens
    posed = replace(
        asked,
        workload=about,
        budget=fixed_budget(about, samples),
        global_batch_samples=usual_batch(about, samples)
        if stated is None
        else stated // each.sequence_tokens,
    )
    nodes = shipped().cluster(each.accelerator)
    return problem(posed, nodes, model_for(nodes.accelerator, about), num_best=1)


def _steps_s(posed: Problem, size: int, goodput: float) -> float | None:
    """Seconds of the best strategy's steps, including failures; None where nothing fits."""
    best = posed.search_size(size).best
    return best[0].training_s / goodput if best else None


def records(found: Sequence[Planned]) -> tuple[PlanRecord, ...]:
    """The records by kind of model, for kinds with at least one planned training."""
    return tuple(
        _record(kind, [each for each in found if each.kind == kind])
        for kind in (*_TO_TARGET, *_PRETRAININGS)
        if any(each.kind == kind and each.planned_s is not None for each in found)
    )


def by_workload(found: Sequence[Planned]) -> tuple[WorkloadPlans, ...]:
    """Errors of plans by workload, for workloads with at least one planned training."""
    ratios: dict[str, list[float]] = {}
    for each in found:
        if each.planned_s is not None:
            ratios.setdefault(each.workload, []).append(each.planned_s / each.published_s)
    return tuple(
        WorkloadPlans(
            workload=name,
            num_trainings=len(ratios[name]),
            bias=float(np.median(ratios[name])),
            median=float(np.median(np.abs(np.array(ratios[name]) - 1.0))),
        )
        for name in sorted(ratios)
    )


def _record(kind: PlanKind, found: Sequence[Planned]) -> PlanRecord:
    known = [(each, each.planned_s) for each in found if each.planned_s is not None]
    names = np.array([each.workload for each, _ in known])
    ratios = np.array([planned_s / each.published_s for each, planned_s in known])
    weights = np.array([1.0 / np.count_nonzero(names == name) for name in names])
    shares, corrected = np.ones(len(known)), ratios
    if kind in _PRETRAININGS:
        shares = np.array([share_of_bias(each.training_flop) for each, _ in known])
        others = [names != name for name in names]
        biases = [_bias(ratios[each], shares[each], weights[each]) for each in others]
        corrected = ratios / np.array(biases) ** shares
    errors = np.abs(corrected - 1.0)
    return PlanRecord(
        kind=kind,
        num_trainings=len(known),
        num_unexpressed=len(found) - len(known),
        workloads=tuple(sorted(set(names.tolist()))),
        median=_median(errors, weights),
        p90=_quantile(errors, weights, 0.9),
        bias=_bias(ratios, shares, weights),
        level=LEVEL,
        log_half_width=_quantile(np.abs(np.log(corrected)), weights, LEVEL),
    )


def _bias(ratios: FloatArray, shares: FloatArray, weights: FloatArray) -> float:
    """The bias b for which b ** shares is closest to the ratios, by least absolute deviations of logs.

    1 where all shares are 0.
    Source: the line through the origin by weighted medians (Bloomfield and Steiger 1983, chapter 1).
    """
    some = shares > 0.0
    if not some.any():
        return 1.0
    return _median(ratios[some] ** (1.0 / shares[some]), (weights * shares)[some])


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """The weighted quantile at a share of the total weight."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share - 1e-12)])


def _median(values: FloatArray, weights: FloatArray) -> float:
    """The weighted median; the mean of two values where half of the weight is on each side."""
    return (_quantile(values, weights, 0.5) - _quantile(-values, weights, 0.5)) / 2


def main() -> int:
    """Plan every training, and write the record next to the embedded tables."""
    with threadpool_limits(limits=1):
        to_target = list(planned(embedded.scores()))
        pretrained = [(each, about, best_s()) for each, about, best_s in planned_published_pretrainings()]
    found = (*to_target, *(each for each, *_ in pretrained))
    chips = {each.title: shipped().cluster(each.accelerator).accelerator for each in pretrainings()}
    write_of_dataset(
        PLAN_RECORD_NAME,
        {
            "records": [to_builtins(each) for each in records(found)],
            "workloads": [to_builtins(each) for each in by_workload(to_target)],
            "pretrainings": [
                {
                    "title": each.entry,
                    "kind": each.kind,
                    "params": about.transformer.params,
                    "active_params": about.transformer.active_params,
                    "step_hours_ratio": each.planned_s / each.published_s,
                    "best_hours_ratio": best_s / each.published_s,
                    "training_flop": each.training_flop,
                    "peak_flop_per_s": usual_peak_flop_per_s(chips[each.entry]),
                    "memory_byte_per_s": chips[each.entry].memory_byte_per_s,
                }
                for each, about, best_s in pretrained
                if each.planned_s is not None and best_s is not None and about.transformer is not None
            ],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
