"""What budget and deadline allow on a system, and the sizes that are looked at for it."""

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
# The fastest training counts as good as the best where it falls short by so little: estimates are less sure.
AS_GOOD: Final = 0.02


class Within(Struct, frozen=True, kw_only=True):
    """What one number of accelerators does within budget and deadline. amount: tokens or samples."""

    amount: Interval
    candidate: Candidate
    limit: ReachLimit


class LargerModel(Struct, frozen=True, kw_only=True):
    """A model that limits do not allow, by its parameters, with the training of it that breaks them least."""

    params: float
    time_s: float
    usd: float | None


class FasterModel(Struct, frozen=True, kw_only=True):
    """The next smaller model, where its training is much faster, by its parameters."""

    params: float
    num_accelerators: int
    time_s: float


class BudgetReach(Struct, frozen=True, kw_only=True):
    """What budget and deadline allow on one system.

    ask: for tokens of the workload's model, or for a model of its family. training_budget: how many tokens
    or samples (`unit`) the training takes. params: of the model; its interval is that of the answer where a
    model is asked for. shape: of that model. recommended: the training to do. by_size: what each number of
    accelerators does, where tokens are asked for. limit: what ends it. larger: the smallest model tried that
    the limit does not allow, where much of it is left. faster: the next smaller one, where its training is
    much faster for its size.
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
        """What was asked for: parameters of the largest model, or tokens (samples)."""
        return self.params if self.ask == "model" and self.params is not None else self.training_budget


def of_usual_sizes(query: TrainingQuery, one: SystemCandidates) -> tuple[Candidate, ...]:
    """The candidates of sizes that are usually tried, where the question states no limit.

    Up to how many that are depends on the amount of training, which is what is asked for.
    """
    if states_sizes(query, one):
        return one.allowed
    usual = max(usual_most(query, one.system, None), paid_for(query, one))
    beyond = (each.num_accelerators for each in one.allowed if each.num_accelerators >= usual)
    most = min(beyond, default=usual)  # whole nodes may be more
    return tuple(each for each in one.allowed if each.num_accelerators <= most)


def paid_for(query: TrainingQuery, one: SystemCandidates) -> int:
    """How many accelerators of a system the budget pays for through the whole deadline; 0 without both.

    Of more, the budget ends a training before the deadline does. Nobody has so many cards for desktop
    computers, and no published training had more than half of LARGE_SYSTEM.
    """
    rates = [each.usd_per_hour / each.num_accelerators for each in one.allowed if each.usd_per_hour]
    hours = query.within_s / HOUR_S
    if not rates or one.system.is_desktop or not math.isfinite(query.spend_usd * hours):
        return 0
    return math.floor(min(query.spend_usd / (min(rates) * hours), LARGE_SYSTEM)) if hours > 0.0 else 0


def states_sizes(query: TrainingQuery, one: SystemCandidates) -> bool:
    """Whether the question says up to how many accelerators of a system there are."""
    return query.states_size or one.system.stock is not None


def used_fraction(query: TrainingQuery, candidate: Candidate, end: str) -> tuple[float, ReachLimit]:
    """The larger of the fractions of budget and deadline that a candidate uses, and which of the two it is.

    At an end of its intervals. Infinite where its time, or with a budget its money, is not known.
    """
    usd, time_s = candidate.usd, candidate.time_s
    unpriced = 0.0 if query.budget_usd is None else math.inf
    spent = unpriced if usd is None else getattr(usd, end) / query.spend_usd
    late = math.inf if time_s is None else getattr(time_s, end) / query.within_s
    return (spent, "budget") if spent >= late else (late, "deadline")


def stated_limits(query: TrainingQuery) -> str:
    """Budget and deadline, as options."""
    stated = []
    if query.budget_usd is not None:
        stated.append(f"--budget {query.budget_usd:,.10g}")
    if query.deadline_s is not None:
        queue = f" after --queue of {format_stated(query.queue_s)}" if query.queue_s else ""
        stated.append(f"--deadline of {format_stated(query.deadline_s)}{queue}")
    return " and ".join(stated)
