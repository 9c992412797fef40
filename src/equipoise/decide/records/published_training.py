"""What the makers of records share: a published training as a problem, and the file of a record."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import orjson
import polars as pl

from equipoise.advice.validation.calibrated_model import model_for
from equipoise.decide.estimate import Estimates
from equipoise.decide.estimators.model import model_estimates
from equipoise.decide.query import TrainingQuery
from equipoise.decide.strategies.plan_record import ModelKind, model_kind
from equipoise.decide.strategies.problem import Problem, problem
from equipoise.decide.strategies.survey import Survey, surveyed
from equipoise.decide.training import training
from equipoise.runs import embedded
from equipoise.spec.catalogue import shipped
from equipoise.spec.rounds import round_key
from equipoise.units import significant

# Rounds from here on: software and hardware that are still in use.
_FIRST_ROUND: Final = "v3.0"
_NUM_DIGITS: Final = 4


def published_problem(
    workload: str,
    accelerator: str,
    scores: pl.DataFrame,
    *,
    global_batch_samples: int | None = None,
    precision: tuple[str, ...] = (),
) -> Problem:
    """A training to the published target on the usual nodes of an accelerator, as a question would pose it.

    scores: the table `scores` as far as it is known, which tells the samples to target. global_batch_samples,
    precision: to be chosen unless given.
    Raises SpecError for names that are not known or a workload whose work is not, UsageError where no result
    has a target.
    """
    catalogue = shipped()
    asked = TrainingQuery(workload=workload, global_batch_samples=global_batch_samples, precision=precision)
    trained = training(asked, catalogue, scores)
    nodes = catalogue.cluster(accelerator)
    return problem(trained, nodes, model_for(nodes.accelerator, trained.workload), num_best=1)


def modelled(posed: Problem, sizes: Sequence[int]) -> Estimates | None:
    """What the performance model says of a problem at some sizes; None where nothing fits at any.

    Raises EvidenceError where no batch is known.
    """
    return model_estimates(surveyed(Survey(problem=posed), sizes))


def kind_of(workload: str) -> ModelKind:
    """What kind of model a workload of the catalogue is."""
    return model_kind(shipped().workload(workload))


def recent_rounds(rounds: Iterable[str]) -> list[str]:
    """The rounds whose software and hardware are still in use, oldest first."""
    ordered = sorted(rounds, key=round_key)
    return [name for name in ordered if round_key(name) >= round_key(_FIRST_ROUND)]


def write_record(name: str, found: Mapping[str, object]) -> None:
    """Write a record beside the embedded tables, with the version of the dataset that it is of."""
    document = {"dataset": embedded.version(), **found}
    encoded = orjson.dumps(
        significant(document, _NUM_DIGITS), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    Path(str(files("equipoise") / "data" / name)).write_bytes(encoded)
