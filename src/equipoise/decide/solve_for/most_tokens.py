"""The most tokens (samples) of a workload within budget and deadline."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.assessment import Inputs, nothing_fits
from equipoise.decide.candidates import SystemCandidates, with_budget
from equipoise.decide.collect import Collected, collect_candidates
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.training import fixed_budget, training
from equipoise.decide.solve_for.budget_reach import (
    AS_GOOD,
    BudgetReach,
    ReachLimit,
    Within,
    of_usual_sizes,
    stated_limits,
)
from equipoise.decide.strategies.size_searches import NO_EXTRA_SIZES, ExtraSizes
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import Interval, exact
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import Scores
from equipoise.spec.workload import Workload
from equipoise.units import HOUR_S

_ASSUMPTION: Final = "every token or sample takes the same time; whether this many are useful is not judged"
# Relative distance of a solution from its limit; amounts are rounded down to this number of digits.
_TOLERANCE: Final = 1e-6
_NUM_DIGITS: Final = 6
_MAX_STEPS: Final = 60
# Iterations of solving for tokens, each with the usual batch of the previous amount.
_MAX_BATCHES: Final = 4
# Relative tolerance of the amount at which the usual batch changes.
_AMOUNT_TOLERANCE: Final = 1e-6


class CandidatesByBatch(Struct, frozen=True, kw_only=True):
    """Candidates of the question by global batch, which may depend on the amount of training.

    extra: sizes tried in addition to the usual ones. found: cached candidates by global batch.
    """

    query: TrainingQuery
    known: Catalogue
    scores: Scores | None
    extra: ExtraSizes = NO_EXTRA_SIZES
    found: dict[int | None, Collected] = field(default_factory=dict)

    def collected(self, samples: float, before: Collected | None = None) -> Collected:
        """The candidates for this number of samples, or for another one with the same batch.

        before: candidates for another amount, which are returned if the batch does not depend on the amount.
        """
        if before is not None and before.inputs.training.batch_words is None:
            return before
        query = replace(self.query, ask=None, training_samples=samples)
        batch = training(query, self.known, self.scores).global_batch_samples
        if batch not in self.found:
            self.found[batch] = collect_candidates(query, self.known, self.scores, extra=self.extra)
        return self.found[batch]


def most_tokens(asked: CandidatesByBatch, collected: Collected, one: SystemCandidates) -> BudgetReach:
    """The number of accelerators that trains the most tokens on a system."""
    query, inputs, title = asked.query, collected.inputs, one.system.title
    allowed = of_usual_sizes(query, one)
    if not allowed:
        short = nothing_fits(inputs, one.assessment)
        raise EvidenceError(
            f"{inputs.training.workload.title} does not fit on any allowed size of {title}",
            missing=(str(short or "more --max-accelerators, or another accelerator"),),
        )
    within = [found for each in allowed if (found := _within(asked, collected, one, each)) is not None]
    if not within:
        raise _unsolved(query, title, allowed)
    ran = {each.num_accelerators for each in inputs.runs_on(one.system.accelerator)}
    most = _fastest_of_the_best(within, ran, is_timed=query.deadline_s is not None)
    workload = inputs.training.workload
    _refuse_less_than_a_step(query, most, workload)
    return BudgetReach(
        ask="tokens",
        question=query,
        workload=workload,
        system=one.system.name,
        title=title,
        training_budget=most.amount,
        unit="samples" if workload.budget_tokens is None else "tokens",
        params=None if workload.params is None else exact(workload.params),
        shape=workload.transformer,
        recommended=most.candidate,
        limit=most.limit,
        by_size=tuple(each for each in within if each.candidate.terms == most.candidate.terms),
        assumes=(_ASSUMPTION,),
    )


def _unsolved(query: TrainingQuery, title: str, allowed: Sequence[Candidate]) -> EvidenceError:
    """The error for a system on which no amount can be found."""
    committed = [each for each in allowed if each.charges and each.charges.minimum_usd > query.spend_usd]
    if len(committed) == len(allowed):
        least = min(each.charges.minimum_usd for each in committed if each.charges)
        return EvidenceError(
            f"no {query.ask} budget can be found on {title}: the hours that its price commits to cost "
            f"{least:,.0f} USD or more, which exceeds --budget {query.budget_usd:,.10g}",
            missing=("a larger --budget, or other --terms",),
        )
    unknown = "its price, or the power of a machine that you own, is not known"
    why = next((each.why_not for each in allowed if each.why_not is not None), unknown)
    return EvidenceError(
        f"no {query.ask} budget can be found on {title}: {why}", missing=("other --terms, or --price",)
    )


# Median error of estimates at sizes without runs (docs/experiments/0024): a size with runs is preferred if
# its amount is at most this fraction below that of a size without.
_UNTRIED_MARGIN: Final = 0.09


def _fastest_of_the_best(within: Sequence[Within], ran: Collection[int], *, is_timed: bool) -> Within:
    """The fastest of the results with the largest amount, or slightly less.

    ran: sizes with runs. is_timed: whether there is a deadline, so that a faster training is no advantage.
    """
    most = max(within, key=lambda each: each.amount.value)
    is_untried = most.candidate.num_accelerators not in ran

    def is_as_good(each: Within) -> bool:
        is_surer = is_untried and each.candidate.num_accelerators in ran
        short = _UNTRIED_MARGIN if is_surer else 0.0 if is_timed else AS_GOOD
        return each.amount.value >= most.amount.value * (1.0 - short)

    as_good = (each for each in within if is_as_good(each))
    return min(as_good, key=lambda each: each.candidate.known_time_s.value / each.amount.value)


def _within(
    asked: CandidatesByBatch, collected: Collected, one: SystemCandidates, size: Candidate
) -> Within | None:
    """The amount for one size of a system, with the usual batch of that amount.

    None if unknown, or if the size divides no usual batch of that amount. one, size: among those collected.
    Assumes the iteration converges, because the usual batch grows more slowly than the amount.
    """
    workload = collected.inputs.training.workload
    before: tuple[Collected, _SizeSolver, Within] | None = None
    for _ in range(_MAX_BATCHES):
        solver = _SizeSolver(query=asked.query, inputs=collected.inputs, system=one, start=size)
        found = solver.within()
        # Amounts below one step are rejected later, with any batch.
        if found is None or found.amount.value < _step_amount(size, workload):
            break
        following = asked.collected(found.amount.value / unit_tokens(workload), collected)
        if before is not None and following is before[0]:
            return _at_batch_change(asked, before, (collected, solver, found))
        same = (
            (system, each) for system in following.systems for each in system.candidates if each.id == size.id
        )
        if following is collected:
            break
        if (there := next(same, None)) is None:
            return None
        before = (collected, solver, found)
        collected, (one, size) = following, there
    return found


def _at_batch_change(
    asked: CandidatesByBatch,
    one: tuple[Collected, "_SizeSolver", Within],
    other: tuple[Collected, "_SizeSolver", Within],
) -> Within:
    """The amount for a size if each of two batches leads to an amount whose usual batch is the other.

    This occurs if the larger batch, which is usual for more tokens, is less efficient: the solution is the
    last amount before the batch grows.
    """
    (smaller, solver, found), (_, _, less) = sorted((one, other), key=lambda each: -each[2].amount.value)
    low, high = less.amount.value, found.amount.value
    unit = unit_tokens(smaller.inputs.training.workload)
    while high - low > _AMOUNT_TOLERANCE * high:
        middle = (low + high) / 2.0
        if asked.collected(middle / unit, smaller) is smaller:
            low = middle
        else:
            high = middle
    return solver.at_amount(low, found)


def _step_amount(candidate: Candidate, workload: Workload) -> float:
    """Tokens or samples per step."""
    return float((candidate.global_batch_samples or 1) * unit_tokens(workload))


def unit_tokens(workload: Workload) -> int:
    """Tokens per sample for amounts in tokens; 1 for amounts in samples."""
    return workload.budget_tokens or 1


def _refuse_less_than_a_step(query: TrainingQuery, most: Within, workload: Workload) -> None:
    step = _step_amount(most.candidate, workload)
    if most.amount.value < step:
        raise UsageError(
            f"{stated_limits(query)} allows {most.amount.value / step:.2g} of one step of {workload.title}: "
            "give more, or a smaller --global-batch"
        )


class _SizeSolver(Struct, frozen=True, kw_only=True):
    """Solver for one size of a system. start: its candidate for the samples in `inputs`."""

    query: TrainingQuery
    inputs: Inputs
    system: SystemCandidates
    start: Candidate

    def within(self) -> Within | None:
        """The smallest of the amounts allowed by each limit; None if no amount can be found."""
        within_s, spend_usd, work_s = self.query.within_s, self.query.spend_usd, self.start.work_s.value
        usd_per_hour = self.start.usd_per_hour
        bounds: list[tuple[float, float, float, ReachLimit]] = []
        if math.isfinite(within_s):
            bounds.append((*self._bounds(within_s, lambda each: each.time_s, within_s / work_s), "deadline"))
        if math.isfinite(spend_usd):
            factor = spend_usd / (usd_per_hour * work_s / HOUR_S) if usd_per_hour else 1.0
            bounds.append((*self._bounds(spend_usd, lambda each: each.usd, factor), "budget"))
        value, _, _, limit = min(bounds, default=(0.0, 0.0, 0.0, "budget"))
        if value <= 0.0:
            return None
        scale = self._samples * unit_tokens(self.inputs.training.workload)
        amount = _rounded_down(scale * value)
        return Within(
            amount=Interval(
                value=amount,
                low=min(amount, *(scale * low for _, low, _, _ in bounds)),
                high=max(amount, min(scale * high for _, _, high, _ in bounds)),
                level=self.start.work_s.level,
            ),
            candidate=self._at(amount / scale),
            limit=limit,
        )

    def at_amount(self, amount: float, found: Within) -> Within:
        """The result for an amount below the limit."""
        less = _rounded_down(amount)
        return Within(
            amount=replace(found.amount, value=less, low=min(less, found.amount.low)),
            candidate=self._at(less / (self._samples * unit_tokens(self.inputs.training.workload))),
            limit=found.limit,
        )

    @property
    def _samples(self) -> float:
        samples = self.inputs.training.budget.samples_at(1)
        assert samples is not None
        return samples

    def _bounds(
        self, limit: float, amount: Callable[[Candidate], Interval | None], factor: float
    ) -> tuple[float, float, float]:
        """The largest factor on the samples within a limit: central value and both ends; 0 if none."""

        def most(end: str) -> float:
            def at(times: float) -> float:
                found = amount(self._at(times))
                return math.inf if found is None else float(getattr(found, end))

            return most_within(limit, at, factor)

        value = most("value")
        return (value, most("high"), most("low")) if value > 0.0 else (0.0, 0.0, 0.0)

    def _at(self, factor: float) -> Candidate:
        """The candidate for the samples times a factor, as in the question for that amount."""
        about = self.inputs.training
        samples = factor * self._samples
        unit = about.workload.budget_tokens
        stated = {"training_samples": samples} if unit is None else {"training_tokens": samples * unit}
        inputs = replace(
            self.inputs,
            query=replace(self.query, ask=None, **stated),
            training=replace(about, budget=fixed_budget(about.workload, samples, in_samples=unit is None)),
        )
        return with_budget(inputs, self.system.assessment, self.start, factor)


def most_within(limit: float, amount: Callable[[float], float], factor: float) -> float:
    """The largest factor whose amount is within a limit, to a relative _TOLERANCE; 0 if none is.

    amount: grows about in proportion to the factor; infinite if unknown. factor: initial value.
    Assumes one crossing. Source: fixed-point iteration, factor <- factor x limit / amount(factor), with
    bisection of the bracket when the iteration leaves it.
    """
    fits, fails = 0.0, math.inf
    goal = limit * (1.0 - _TOLERANCE / 2)
    for _ in range(_MAX_STEPS):
        found = amount(factor)
        if found <= limit:
            fits = factor
            if found >= limit * (1.0 - _TOLERANCE):
                break
        else:
            fails = factor
        following = factor * goal / found if 0.0 < found < math.inf else math.nan
        if not fits < following < fails:
            following = (fits + fails) / 2 if math.isfinite(fails) else 2.0 * factor
        factor = following
    return fits


def _rounded_down(amount: float) -> float:
    """The amount rounded down to the digits stated in documents."""
    unit = 10.0 ** (math.floor(math.log10(amount)) + 1 - _NUM_DIGITS)
    return math.floor(amount / unit) * unit
