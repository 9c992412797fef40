"""Results of solving for an amount within budget and deadline, and the sizes considered."""

import math
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from equipoise.decide.answer import Candidate
from equipoise.decide.candidates import SystemCandidates
from equipoise.decide.question.query import Ask, TrainingQuery
from equipoise.decide.question.systems import LARGE_SYSTEM, usual_most
from equipoise.intervals import Interval
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import HOUR_S, format_stated

ReachLimit: TypeAlias = Literal["budget", "deadline", "memory"]
Unit: TypeAlias = Literal["tokens", "samples"]
# A faster training is preferred if its amount is at most this fraction below the largest.
AS_GOOD: Final = 0.02


class Within(Struct, frozen=True, kw_only=True):
    """The amount that one number of accelerators trains within budget and deadline, in tokens or samples."""

    amount: Interval
    candidate: Candidate
    limit: ReachLimit


class LargerModel(Struct, frozen=True, kw_only=True):
    """The parameters of a model beyond the limits, and its training that exceeds them least."""

    params: float
    time_s: float
    usd: float | None


class FasterModel(Struct, frozen=True, kw_only=True):
    """The parameters of the next smaller model, if its training is much faster."""

    params: float
    num_accelerators: int
    time_s: float


class BudgetReach(Struct, frozen=True, kw_only=True):
    """The result on one system within budget and deadline.

    ask: for tokens of the workload's model, or for a model of its family. training_budget: tokens or samples
    (`unit`) of the training. params: of the model, with an interval if a model is asked for. shape: of that
    model. recommended: the training. by_size: amount by number of accelerators, if tokens are asked for.
    limit: the binding limit. larger: the smallest model tried beyond the limit, if much of the limit is
    unused. faster: the next smaller model, if its training is much faster for its size.
    """

    ask: Ask
    question: TrainingQuery
    workload: Workload
    system: str
    title: str
    training_budget: Interval
    unit: Unit
    params: Interval | None
    shape: Transformer | None
    recommended: Candidate
    limit: ReachLimit
    by_size: tuple[Within, ...]
    assumes: tuple[str, ...]
    larger: LargerModel | None = None
    faster: FasterModel | None = None

    @property
    def size(self) -> Interval:
        """The requested quantity: parameters of the largest model, or tokens (samples)."""
        return self.params if self.ask == "model" and self.params is not None else self.training_budget


def of_usual_sizes(query: TrainingQuery, one: SystemCandidates) -> tuple[Candidate, ...]:
    """The candidates of usual sizes, if the question states no limit; otherwise all allowed ones.

    A default limit cannot depend on the amount of training, which is unknown here.
    """
    if states_sizes(query, one):
        return one.allowed
    usual = max(usual_most(query, one.system, None), paid_for(query, one))
    beyond = (each.num_accelerators for each in one.allowed if each.num_accelerators >= usual)
    most = min(beyond, default=usual)  # whole nodes may exceed the usual size
    return tuple(each for each in one.allowed if each.num_accelerators <= most)


def paid_for(query: TrainingQuery, one: SystemCandidates) -> int:
    """Number of accelerators that the budget pays for until the deadline; 0 unless both are stated.

    With more, the budget is used up before the deadline. 0 for cards of desktop computers, and at most
    LARGE_SYSTEM: no published training used more than half of it.
    """
    rates = [each.usd_per_hour / each.num_accelerators for each in one.allowed if each.usd_per_hour]
    hours = query.within_s / HOUR_S
    if not rates or one.system.is_desktop or not math.isfinite(query.spend_usd * hours):
        return 0
    return math.floor(min(query.spend_usd / (min(rates) * hours), LARGE_SYSTEM)) if hours > 0.0 else 0


def states_sizes(query: TrainingQuery, one: SystemCandidates) -> bool:
    """Whether the question limits the number of accelerators of a system."""
    return query.states_size or one.system.stock is not None


def used_fraction(query: TrainingQuery, candidate: Candidate, end: str) -> tuple[float, ReachLimit]:
    """The larger of the fractions of budget and deadline that a candidate uses, and the name of that limit.

    end: of its intervals. Infinite if its time, or with a budget its cost, is unknown.
    """
    usd, time_s = candidate.usd, candidate.time_s
    unpriced = 0.0 if query.budget_usd is None else math.inf
    spent = unpriced if usd is None else getattr(usd, end) / query.spend_usd
    late = math.inf if time_s is None else getattr(time_s, end) / query.within_s
    return (spent, "budget") if spent >= late else (late, "deadline")


def stated_limits(query: TrainingQuery) -> str:
    """Text of budget and deadline as options."""
    stated = []
    if query.budget_usd is not None:
        stated.append(f"--budget {query.budget_usd:,.10g}")
    if query.deadline_s is not None:
        queue = f" after --queue of {format_stated(query.queue_s)}" if query.queue_s else ""
        stated.append(f"--deadline of {format_stated(query.deadline_s)}{queue}")
    return " and ".join(stated)
