"""How wrong plans were about published trainings, of which nothing but the samples to target was fitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson

from equipoise.decide.estimate import LEVEL
from equipoise.errors import DataError
from equipoise.scaling.law import FloatArray
from equipoise.spec.workload import Workload

ModelKind: TypeAlias = Literal["transformer", "other"]
NAME = "plans.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """How far planned times were from published ones, |planned / published - 1|, each workload counted alike.

    kind: of model. num_unexpressed: trainings that had no plan: what the workload asks for is not known, or
    nothing fits. bias: median of planned over published. log_half_width: of the interval at `level`.
    """

    kind: ModelKind
    num_trainings: int
    num_unexpressed: int
    workloads: tuple[str, ...]
    median: float
    p90: float
    bias: float
    level: float
    log_half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlans:
    """How far planned times of one workload were from published ones. bias: median of planned over published.

    median: of |planned / published - 1|.
    """

    workload: str
    num_trainings: int
    bias: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A published training beside its plan at the same batch; planned_s: None where there is none.

    group: round, workload and accelerator.
    """

    entry: str
    workload: str
    kind: ModelKind
    published_s: float
    planned_s: float | None
    group: tuple[str, ...] = ()
    num_accelerators: int = 1


@cache
def plan_records() -> tuple[PlanRecord, ...]:
    """The records that ship. Raises DataError where their file is missing or not what `main` writes."""
    return tuple(
        PlanRecord(**(each | {"workloads": tuple(each["workloads"])})) for each in _read()["records"]
    )


@cache
def workload_plans() -> Mapping[str, WorkloadPlans]:
    """By workload, those that some training was planned of. Raises DataError as `plan_records` does."""
    return {each.workload: each for each in (WorkloadPlans(**found) for found in _read()["workloads"])}


def _read() -> Any:  # noqa: ANN401 - what a JSON file holds
    path = files("equipoise") / "data" / NAME
    try:
        found = orjson.loads(path.read_bytes())
        return {"records": found["records"], "workloads": found["workloads"]}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(f"{path}: {err!r}; expected the record of plans: `make profiles` writes it") from err


def model_kind(about: Workload) -> ModelKind:
    """What kind of model a workload trains."""
    return "other" if about.transformer is None else "transformer"


def record_of(kind: ModelKind) -> PlanRecord:
    """The record of plans of one kind of model. Raises DataError as `plan_records` does."""
    return next(each for each in plan_records() if each.kind == kind)


def records(found: Sequence[Planned]) -> tuple[PlanRecord, ...]:
    """The record of each kind of model that some training was planned of."""
    kinds: tuple[ModelKind, ...] = ("transformer", "other")
    return tuple(
        _record(kind, [each for each in found if each.kind == kind])
        for kind in kinds
        if any(each.kind == kind and each.planned_s is not None for each in found)
    )


def by_workload(found: Sequence[Planned]) -> tuple[WorkloadPlans, ...]:
    """How wrong plans were of each workload that some training was planned of."""
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


def _record(kind: ModelKind, found: Sequence[Planned]) -> PlanRecord:
    planned = [
        (each.workload, each.planned_s / each.published_s) for each in found if each.planned_s is not None
    ]
    names = [name for name, _ in planned]
    ratios = np.array([ratio for _, ratio in planned])
    weights = np.array([1.0 / names.count(name) for name in names])
    errors = np.abs(ratios - 1.0)
    return PlanRecord(
        kind=kind,
        num_trainings=len(planned),
        num_unexpressed=len(found) - len(planned),
        workloads=tuple(sorted(set(names))),
        median=_quantile(errors, weights, 0.5),
        p90=_quantile(errors, weights, 0.9),
        bias=_quantile(ratios, weights, 0.5),
        level=LEVEL,
        log_half_width=_quantile(np.abs(np.log(ratios)), weights, LEVEL),
    )


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """The value that a share of the weight does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share - 1e-12)])
