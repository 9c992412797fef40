"""What budget and deadline allow: the most tokens (samples) of a workload, or the largest such model.

The candidates are those of `decision`: asking for the amount found gives the budget or the deadline back.
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

# Times and money are solved for from those of so many samples.
_START_SAMPLES: Final = SI_PREFIXES["G"]


class Reaches(Struct, frozen=True, kw_only=True):
    """What budget and deadline allow on the system that gets furthest, and on the others, the furthest first.

    titles: of these systems in the order of the question. chosen_for_you: what the question left open and was
    chosen, in words.
    """

    best: BudgetReach
    others: tuple[BudgetReach, ...]
    titles: tuple[str, ...]
    chosen_for_you: tuple[str, ...]
    notes: tuple[Note, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The training to do on each system, the furthest first."""
        return tuple(each.recommended for each in (self.best, *self.others))


def solve_for(query: TrainingQuery, *, scores: Scores | None, catalogue: Catalogue | None = None) -> Reaches:
    """The most tokens, or the largest model, that the question's budget and deadline allow on each system.

    Raises UsageError where neither is asked for, where the question states tokens or samples, or where budget
    and deadline do not allow a start; EvidenceError where nothing fits or the workload has no family of
    models; what `decision.answer` raises.
    Assumes that every token costs the same; the rest as `decision.answer` does. Ends of an amount's
    interval are where time and money at the ends of theirs reach deadline or budget.
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
        # The most may lie at any size: one between the usual ones may share out a batch that they do not.
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
            *((Note("Your runs: they are of another model.", "not_used"),) if own else ()),
        ),
    )


def _most_words(query: TrainingQuery, one: SystemCandidates, best: Candidate) -> Iterator[str]:
    """Up to how many accelerators were tried, where as many are taken and the question leaves it open."""
    usual = usual_most(query, one.system, None)
    if not states_sizes(query, one) and not paid_for(query, one) and best.num_accelerators >= usual:
        yield f"at most {best.num_accelerators:,} accelerators (--max-accelerators)"
