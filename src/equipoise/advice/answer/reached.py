"""What money and time are enough for, on each of a request's machines."""

from dataclasses import dataclass

import polars as pl

from equipoise.advice.answer.about import Subject, subject_of
from equipoise.advice.answer.asked import USUAL_MOST, Request, Sought
from equipoise.advice.answer.machines import Machine, machines
from equipoise.advice.plans.planned import Question
from equipoise.advice.reach import Reach, reach
from equipoise.errors import EvidenceError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaches:
    """What money and time reach on the machine that reaches furthest, and on the others.

    notes: what was refused, and what was not used.
    """

    best: Reach
    others: tuple[Reach, ...]
    notes: tuple[str, ...]


def reaches(sought: Sought, *, scores: pl.DataFrame | None = None) -> Reaches:
    """What the request's budget and deadline are enough for on each of its machines, the furthest first.

    Raises as `reach`, where no machine has an answer.
    """
    request = sought.request
    about = subject_of(request.workload)
    found: list[Reach] = []
    refused: list[EvidenceError | UsageError] = []
    for machine in machines(request):
        if not machine.is_known:
            refused.append(EvidenceError(f"{machine.title} is not in the catalogue"))
            continue
        try:
            found.append(
                reach(
                    _question(request, about, machine),
                    sought.ask,
                    terms=request.terms,
                    scores=scores,
                    tokens_per_param=sought.tokens_per_param,
                )
            )
        except (EvidenceError, UsageError) as err:
            refused.append(err)
    if not found:
        raise refused[0]
    ordered = sorted(found, key=lambda each: -each.size.value)
    has_length = request.training_samples is not None or request.training_tokens is not None
    return Reaches(
        best=ordered[0],
        others=tuple(ordered[1:]),
        notes=(
            *(f"Not compared: {each}." for each in refused),
            *(() if request.runs is None else ("Your own runs are not used here: times are modelled.",)),
            *(
                ("--samples and --tokens are not used: how much can be trained is what is asked.",)
                * has_length
            ),
        ),
    )


def _question(request: Request, about: Subject, machine: Machine) -> Question:
    return Question(
        workload=request.workload,
        accelerator=machine.name,
        node=machine.node,
        fewest=1,
        most=request.most or machine.most or USUAL_MOST,
        objective=request.objective,
        global_batch_samples=request.global_batch_samples or about.global_batch_samples,
        deadline_s=request.within_s,
        budget_usd=request.budget_usd,
        choices={"precision": request.precision} if request.precision else {},
    )
