"""Solves for the most tokens (samples) of a workload, or the largest model, within budget and deadline.

Candidates are those of `decision`: a question for the amount found uses exactly the budget or the deadline.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.candidates import SystemCandidates
from equipoise.decide.question.query import BUDGETS, FIELDS, USUAL_MOST, TrainingQuery
from equipoise.decide.question.systems import usual_most
from equipoise.decide.question.training import batch_words
from equipoise.decide.solve_for.budget_reach import (
    BudgetReach,
    paid_for,
    states_sizes,
)
from equipoise.decide.solve_for.largest_model import largest_model
from equipoise.decide.solve_for.most_tokens import CandidatesByBatch, most_tokens, unit_tokens
from equipoise.decide.strategies.size_searches import ExtraSizes
from equipoise.errors import EvidenceError, UsageError
from equipoise.notes import Note
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.catalogue import catalogue as catalogue_of
from equipoise.spec.mlperf import Scores
from equipoise.stats import one_thread
from equipoise.units import SI_PREFIXES

# Number of samples for which times and costs are first computed, before they are scaled.
_START_SAMPLES: Final = SI_PREFIXES["G"]


class Reaches(Struct, frozen=True, kw_only=True):
    """The result on the best system, and on the others in decreasing order.

    titles: of these systems in the order of the question. chosen_for_you: text on open choices.
    """

    best: BudgetReach
    others: tuple[BudgetReach, ...]
    titles: tuple[str, ...]
    chosen_for_you: tuple[str, ...]
    notes: tuple[Note, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The recommended training on each system, best first."""
        return tuple(each.recommended for each in (self.best, *self.others))


def solve_for(query: TrainingQuery, *, scores: Scores | None, catalogue: Catalogue | None = None) -> Reaches:
    """The most tokens, or the largest model, within the question's budget and deadline on each system.

    Raises UsageError if neither is asked for, if the question states tokens or samples, or if budget and
    deadline are too small for a step; EvidenceError if nothing fits or the workload has no family of models;
    and what `decision.answer` raises.
    Assumes every token costs the same; otherwise as in `decision.answer`. The ends of an amount's interval
    are where the ends of time and cost reach deadline or budget.
    """
    if query.ask is None:
        raise UsageError("no quantity to solve for: give --ask tokens or --ask model")
    if not query.is_to_target:
        stated = next(f"--{FIELDS[name].option}" for name in BUDGETS if getattr(query, name) is not None)
        largest = "the largest model, on as many tokens as its parameters times --tokens-per-param"
        sought = largest if query.ask == "model" else "how much can be trained"
        raise UsageError(f"--ask {query.ask} finds {sought}; leave {stated} out")
    known = catalogue or catalogue_of(query.hardware, query.workloads)
    start = max(_START_SAMPLES, float(query.global_batch_samples or 1))
    with one_thread():
        # All sizes are tried, because one between the usual ones may divide a batch that they do not.
        extra = ExtraSizes(between=None)
        asked = CandidatesByBatch(query=query, known=known, scores=scores, extra=extra)
        collected = asked.collected(start)
        if (most := max((paid_for(query, each) for each in collected.systems), default=0)) > USUAL_MOST:
            more = replace(extra, sizes=(1 << (most - 1).bit_length(),))
            asked = CandidatesByBatch(query=query, known=known, scores=scores, extra=more)
            collected = asked.collected(start)
        found: list[BudgetReach] = []
        refused: list[EvidenceError | UsageError] = list(collected.refused)
        for one in collected.systems:
            try:
                if query.ask == "model":
                    found.append(largest_model(query, collected.inputs, one))
                else:
                    found.append(most_tokens(asked, collected, one))
            except (EvidenceError, UsageError) as err:
                refused.append(err)
    if not found:
        raise refused[0]
    ordered = sorted(found, key=lambda each: -each.size.value)
    best = next(each for each in collected.systems if each.system.name == ordered[0].system)
    chosen = tuple(_most_words(query, best, ordered[0].recommended))
    if query.ask == "tokens":
        samples = ordered[0].training_budget.value / unit_tokens(ordered[0].workload)
        trained = asked.collected(samples, collected).inputs.training
        batch = ordered[0].recommended.global_batch_samples
        chosen = (*trained.chosen_for_you, *batch_words(trained, batch), *chosen)
    own = query.ask == "model" and (query.runs is not None or query.traces)
    return Reaches(
        best=ordered[0],
        others=tuple(ordered[1:]),
        titles=tuple(each.title for each in found),
        chosen_for_you=chosen,
        notes=(
            *(Note(f"{each}.", "not_compared") for each in refused),
            *((Note("Your runs, because they trained another model.", "not_used"),) if own else ()),
        ),
    )


def _most_words(query: TrainingQuery, one: SystemCandidates, best: Candidate) -> Iterator[str]:
    """Yield a text on the largest size tried, if it is recommended and the question states no limit."""
    usual = usual_most(query, one.system, None)
    if not states_sizes(query, one) and not paid_for(query, one) and best.num_accelerators >= usual:
        yield f"at most {best.num_accelerators:,} accelerators (--max-accelerators)"
