"""What budget and deadline allow: the most tokens (samples) of a workload, or the largest such model.

The candidates are those of `decision`: asking for the amount found gives the budget or the deadline back.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.decide.answer import Candidate
from equipoise.decide.assess import Inputs, nothing_fits
from equipoise.decide.candidates import SystemCandidates, with_budget
from equipoise.decide.collect import Collected, collect_candidates
from equipoise.decide.evidence import NOT_COMPARED
from equipoise.decide.model_family import (
    ModelFamily,
    TriedModel,
    of_usual_sizes,
    paid_for,
    states_sizes,
    used_fraction,
)
from equipoise.decide.question.query import BUDGETS, FIELDS, USUAL_MOST, Ask, TrainingQuery
from equipoise.decide.question.systems import usual_most
from equipoise.decide.question.training import batch_words, fixed_budget, training
from equipoise.decide.strategies.size_searches import NO_EXTRA_SIZES, ExtraSizes
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import Interval, exact, product
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.catalogue import catalogue as catalogue_of
from equipoise.spec.mlperf import Scores
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.stats import one_thread
from equipoise.units import HOUR_S, SI_PREFIXES, format_si, format_stated

ReachLimit: TypeAlias = Literal["budget", "deadline", "memory"]
Unit: TypeAlias = Literal["tokens", "samples"]

# Times and money are solved for from those of so many samples.
_START_SAMPLES: Final = SI_PREFIXES["G"]
_WHY_TOKENS: Final = (
    "20 give the least loss of a training budget (Hoffmann et al. 2022); models that are used much are "
    "trained on more: --tokens-per-param"
)
# The loss of mixtures is stated in active parameters; how many tokens each is best trained on differs with
# the number of experts, so 20 is carried over from dense models.
_WHY_TOKENS_OF_A_MIXTURE: Final = (
    "the loss of a mixture follows from these (Ludziejewski et al. 2025), but 20 is best for dense models "
    "(Hoffmann et al. 2022): --tokens-per-param"
)
_ALIKE: Final = "every token or sample takes the same time; whether this many are useful is not judged"
# The fastest training counts as good as the best where it falls short by so little: estimates are less sure.
_AS_GOOD: Final = 0.02
# From which gain of speed on a model hardly smaller is taken for it.
_MUCH_FASTER: Final = 0.1
# Where less of budget or deadline is used, what the next larger model would take is said.
_NEARLY_USED: Final = 0.97
_NEXT_NEEDS: Final = 1.1
# How near to its limit a solution comes; amounts are rounded down to as many digits.
_NEAR: Final = 1e-6
_NUM_DIGITS: Final = 6
_MOST_STEPS: Final = 60
# How often tokens are solved for, each time with the usual batch of the amount found before.
_MOST_BATCHES: Final = 4
# How closely the amount is found from which on the usual batch is larger: to the digits that documents state.
_AMOUNT_APART: Final = 1e-6


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


class Reaches(Struct, frozen=True, kw_only=True):
    """What budget and deadline allow on the system that gets furthest, and on the others, the furthest first.

    titles: of these systems in the order of the question. chosen_for_you: what the question left open and was
    chosen, in words.
    """

    best: BudgetReach
    others: tuple[BudgetReach, ...]
    titles: tuple[str, ...]
    chosen_for_you: tuple[str, ...]
    notes: tuple[str, ...]

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
        other = ", which follow from --tokens-per-param" if query.ask == "model" else ""
        raise UsageError(f"--ask {query.ask} finds how much can be trained{other}; leave {stated} out")
    known = catalogue or catalogue_of(query.hardware, query.workloads)
    start = max(_START_SAMPLES, float(query.global_batch_samples or 1))
    with one_thread():
        asked = _Asked(query=query, known=known, scores=scores)
        collected = asked.collected(start)
        if (most := max((paid_for(query, each) for each in collected.systems), default=0)) > USUAL_MOST:
            asked = _Asked(
                query=query,
                known=known,
                scores=scores,
                extra=ExtraSizes(sizes=(1 << (most - 1).bit_length(),)),
            )
            collected = asked.collected(start)
        found: list[BudgetReach] = []
        refused: list[EvidenceError | UsageError] = list(collected.refused)
        for one in collected.systems:
            try:
                if query.ask == "model":
                    found.append(_model(query, collected.inputs, one))
                else:
                    found.append(_tokens(asked, collected, one))
            except (EvidenceError, UsageError) as err:
                refused.append(err)
    if not found:
        raise refused[0]
    ordered = sorted(found, key=lambda each: -each.size.value)
    best = next(each for each in collected.systems if each.system.name == ordered[0].system)
    chosen = tuple(_most_words(query, best, ordered[0].recommended))
    if query.ask == "tokens":
        samples = ordered[0].training_budget.value / _unit_tokens(ordered[0].workload)
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
            *(f"{NOT_COMPARED}{each}." for each in refused),
            *(("Your runs are not used: they are of another model.",) if own else ()),
        ),
    )


class _Asked(Struct, frozen=True, kw_only=True):
    """The question for amounts of training: candidates follow from the batch, and it may from the amount.

    extra: what is tried besides the usual sizes. found: what was collected, by the training's global batch.
    """

    query: TrainingQuery
    known: Catalogue
    scores: Scores | None
    extra: ExtraSizes = NO_EXTRA_SIZES
    found: dict[int | None, Collected] = field(default_factory=dict)

    def collected(self, samples: float, before: Collected | None = None) -> Collected:
        """The candidates of the question for so many samples, or for others with the same batch.

        before: of another amount; the same where its batch is stated, or that of the user's own model.
        """
        if before is not None and before.inputs.training.batch_words is None:
            return before
        query = replace(self.query, ask=None, training_samples=samples)
        batch = training(query, self.known, self.scores).global_batch_samples
        if batch not in self.found:
            self.found[batch] = collect_candidates(query, self.known, self.scores, extra=self.extra)
        return self.found[batch]


def _within(asked: _Asked, collected: Collected, one: SystemCandidates, size: Candidate) -> Within | None:
    """What one size of a system does, its usual batch that of a training on as much; None where not known.

    one, size: of those collected.
    Assumes that the batch hardly changes once it is that of the amount before: a usual one grows more slowly.
    """
    workload = collected.inputs.training.workload
    before: tuple[Collected, _SizeSolver, Within] | None = None
    for _ in range(_MOST_BATCHES):
        solver = _SizeSolver(query=asked.query, inputs=collected.inputs, system=one, start=size)
        found = solver.within()
        # Less than a step is refused later, whatever its batch.
        if found is None or found.amount.value < _step_amount(size, workload):
            break
        following = asked.collected(found.amount.value / _unit_tokens(workload), collected)
        if before is not None and following is before[0]:
            return _where_the_batch_grows(asked, before, (collected, solver, found))
        same = (
            (system, each) for system in following.systems for each in system.candidates if each.id == size.id
        )
        if following is collected or (there := next(same, None)) is None:
            break
        before = (collected, solver, found)
        collected, (one, size) = following, there
    return found


def _where_the_batch_grows(
    asked: _Asked,
    one: tuple[Collected, "_SizeSolver", Within],
    other: tuple[Collected, "_SizeSolver", Within],
) -> Within:
    """What a size does where each of two batches reaches an amount whose usual batch is the other.

    So it is where the larger batch, which more tokens have, is shared out worse: the most is the last amount
    before the batch grows.
    """
    (smaller, solver, found), (_, _, less) = sorted((one, other), key=lambda each: -each[2].amount.value)
    low, high = less.amount.value, found.amount.value
    unit = _unit_tokens(smaller.inputs.training.workload)
    while high - low > _AMOUNT_APART * high:
        middle = (low + high) / 2.0
        if asked.collected(middle / unit, smaller) is smaller:
            low = middle
        else:
            high = middle
    return solver.at_amount(low, found)


def _step_amount(candidate: Candidate, workload: Workload) -> float:
    """Tokens or samples of a step."""
    return float((candidate.global_batch_samples or 1) * _unit_tokens(workload))


def _unit_tokens(workload: Workload) -> int:
    """Tokens of a sample, of which amounts are stated; 1 where they are stated in samples."""
    return workload.budget_tokens or 1


def _tokens(asked: _Asked, collected: Collected, one: SystemCandidates) -> BudgetReach:
    """The number of accelerators that trains on the most tokens."""
    query, inputs, title = asked.query, collected.inputs, one.system.title
    allowed = of_usual_sizes(query, one)
    if not allowed:
        raise EvidenceError(
            f"{inputs.training.workload.title} does not fit on any size of {title} that may be taken",
            missing=(nothing_fits(one.assessment) or "more --max-accelerators, or another accelerator",),
        )
    within = [found for each in allowed if (found := _within(asked, collected, one, each)) is not None]
    if not within:
        raise _unsolved(query, title, allowed)
    most = _fastest_of_the_best(within)
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
        assumes=(_ALIKE,),
    )


def _most_words(query: TrainingQuery, one: SystemCandidates, best: Candidate) -> Iterator[str]:
    """Up to how many accelerators were tried, where as many are taken and the question leaves it open."""
    usual = usual_most(query, one.system, None)
    if not states_sizes(query, one) and not paid_for(query, one) and best.num_accelerators >= usual:
        yield f"at most {best.num_accelerators:,} accelerators (--max-accelerators)"


def _unsolved(query: TrainingQuery, title: str, allowed: Sequence[Candidate]) -> EvidenceError:
    """Why no amount is limited on a system, or none can be estimated."""
    unknown = "no price, or no power of a machine that you own, is known"
    why = next((each.why_not for each in allowed if each.why_not is not None), unknown)
    return EvidenceError(
        f"no {query.ask} budget can be found on {title}: {why}", missing=("other --terms, or --price",)
    )


def _fastest_of_the_best(within: Sequence[Within]) -> Within:
    """The fastest of those that train on as much as any, or hardly less."""
    most = max(each.amount.value for each in within)
    good = [each for each in within if each.amount.value >= most * (1.0 - _AS_GOOD)]
    return min(good, key=lambda each: each.candidate.known_time_s.value / each.amount.value)


class _SizeSolver(Struct, frozen=True, kw_only=True):
    """One size of a system. start: its candidate for as many samples as `inputs` state."""

    query: TrainingQuery
    inputs: Inputs
    system: SystemCandidates
    start: Candidate

    def within(self) -> Within | None:
        """The amount that each limit allows, the least of them; None where no limit can be reached."""
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
        scale = self._samples * _unit_tokens(self.inputs.training.workload)
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
        """The same for less than a limit allows."""
        less = _rounded_down(amount)
        return Within(
            amount=replace(found.amount, value=less, low=min(less, found.amount.low)),
            candidate=self._at(less / (self._samples * _unit_tokens(self.inputs.training.workload))),
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
        """How many times the samples keep a limit: the central value and both ends; 0 where none do."""

        def most(end: str) -> float:
            def at(times: float) -> float:
                found = amount(self._at(times))
                return math.inf if found is None else float(getattr(found, end))

            return most_within(limit, at, factor)

        value = most("value")
        return (value, most("high"), most("low")) if value > 0.0 else (0.0, 0.0, 0.0)

    def _at(self, factor: float) -> Candidate:
        """The candidate for so many times the samples, as the question for them has it."""
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
    """The largest factor whose amount keeps a limit, to _NEAR of the limit; 0 where none does.

    amount: grows with the factor, about in proportion; infinite where it is not known. factor: to start from.
    Assumes one crossing. Source: fixed-point iteration, factor <- factor x limit / amount(factor), within a
    bracket that is halved where it leaves it.
    """
    fits, fails = 0.0, math.inf
    goal = limit * (1.0 - _NEAR / 2)
    for _ in range(_MOST_STEPS):
        found = amount(factor)
        if found <= limit:
            fits = factor
            if found >= limit * (1.0 - _NEAR):
                break
        else:
            fails = factor
        following = factor * goal / found if 0.0 < found < math.inf else math.nan
        if not fits < following < fails:
            following = (fits + fails) / 2 if math.isfinite(fails) else 2.0 * factor
        factor = following
    return fits


def _rounded_down(amount: float) -> float:
    """The amount with the digits that documents state, never more than it was."""
    unit = 10.0 ** (math.floor(math.log10(amount)) + 1 - _NUM_DIGITS)
    return math.floor(amount / unit) * unit


def _refuse_less_than_a_step(query: TrainingQuery, most: Within, workload: Workload) -> None:
    step = _step_amount(most.candidate, workload)
    if most.amount.value < step:
        raise UsageError(
            f"{_stated(query)} allows {most.amount.value / step:.2g} of one step of {workload.title}: give "
            "more, or a smaller --global-batch"
        )


def _stated(query: TrainingQuery) -> str:
    """Budget and deadline, as options."""
    stated = []
    if query.budget_usd is not None:
        stated.append(f"--budget {query.budget_usd:,.10g}")
    if query.deadline_s is not None:
        queue = f" after --queue of {format_stated(query.queue_s)}" if query.queue_s else ""
        stated.append(f"--deadline of {format_stated(query.deadline_s)}{queue}")
    return " and ".join(stated)


def _model(query: TrainingQuery, inputs: Inputs, one: SystemCandidates) -> BudgetReach:
    """The largest model of the workload's family."""
    base = inputs.training.workload
    if base.transformer is None or base.sequence_tokens is None:
        raise EvidenceError(
            f"{base.title} is not a transformer with published sizes, so larger and smaller models "
            "of its kind are not known",
            missing=("a language model, as llama31_8b: `equipoise list workloads`",),
        )
    if one.assessment.cluster is None:
        raise EvidenceError(
            f"{one.system.title} is not in the catalogue: models of other sizes cannot be timed",
            missing=("its facts: --hardware FILE.toml",),
        )
    if base.trained != "full":
        raise EvidenceError(
            f"{base.title} trains adapters, whose tokens do not follow from parameters",
            missing=("a workload that trains all weights: `equipoise list workloads`",),
        )
    family = ModelFamily(query=query, inputs=inputs, system=one.system)
    family.largest("value")
    found = family.largest_fitting()
    if found is None:
        least = format_si(float(family.smallest.shape.params))
        raise UsageError(
            f"{_stated(query)} does not allow the smallest model in the proportions of {base.title}, of "
            f"{least} parameters, with {query.tokens_per_param:g} tokens per{_active(base.transformer)} "
            "parameter"
        )
    found, smaller = _with_smaller(query, family, found)
    best = found.fastest_within(query)
    limit, larger = _limit(query, best, found, family)
    count = float(found.shape.params)
    size = Interval(
        value=count,
        # Where the high end of time or money allows no model, the smallest there is ends the interval.
        low=min(family.largest("high") or float(family.smallest.shape.params), count),
        high=max(family.largest("low"), count),
        level=best.known_time_s.level,
    )
    return BudgetReach(
        ask="model",
        question=query,
        workload=base,
        system=one.system.name,
        title=one.system.title,
        training_budget=product(
            exact(query.tokens_per_param * found.shape.active_params / found.shape.params, level=size.level),
            size,
        ),
        unit="tokens",
        params=size,
        shape=found.shape,
        recommended=best,
        limit=limit,
        larger=larger,
        faster=smaller,
        by_size=(),
        assumes=(
            f"{query.tokens_per_param:g} tokens per{_active(found.shape)} parameter; "
            + (_WHY_TOKENS_OF_A_MIXTURE if found.shape.idle_params else _WHY_TOKENS),
            f"the proportions of {base.title}; width and depth grow together",
            "the global batch that --global-batch states"
            if query.global_batch_samples is not None
            else "a global batch of 0.292 FLOP ** 0.3271 tokens (Bi et al. 2024, equation 1)",
        ),
    )


def _active(shape: Transformer) -> str:
    """Which parameters the tokens are counted for, where not all are meant."""
    return " active" if shape.idle_params else ""


def _with_smaller(
    query: TrainingQuery, family: ModelFamily, largest: TriedModel
) -> tuple[TriedModel, FasterModel | None]:
    """The largest model, and the next smaller one where its training is much faster for its size.

    One that is hardly smaller is taken in its place, as `_fastest_of_the_best` does; models have whole
    layers, so the next may be much smaller. Compared are times over the square of the parameters, as which
    the work grows.
    """
    near = family.at(largest.shape.params * (1.0 - _AS_GOOD))

    def pace(each: TriedModel) -> float:
        return each.fastest_within(query).known_time_s.value / float(each.shape.params) ** 2

    is_smaller = near.used["value"] <= 1.0 and near.shape.params < largest.shape.params
    if not is_smaller or pace(near) >= pace(largest) * (1.0 - _MUCH_FASTER):
        return largest, None
    if near.shape.params >= (1.0 - _AS_GOOD) * largest.shape.params:
        return near, None
    best = near.fastest_within(query)
    return largest, FasterModel(
        params=float(near.shape.params),
        num_accelerators=best.num_accelerators,
        time_s=best.known_time_s.value,
    )


def _limit(
    query: TrainingQuery, best: Candidate, found: TriedModel, family: ModelFamily
) -> tuple[ReachLimit, LargerModel | None]:
    """What ends it: what the next larger model tried would break, and that model where much of it is left.

    The memory where no strategy of it fits. best: the training of the model found.
    """
    larger = (
        each
        for each in family.tried.values()
        if each.shape.params > found.shape.params and each.used["value"] > 1.0
    )
    beyond = min(larger, key=lambda each: each.shape.params, default=None)
    if beyond is None:
        return _nearest_limit(query, best), None
    timed = [each for each in beyond.candidates if each.time_s is not None]
    if not timed:
        return "memory", None
    least = min(timed, key=lambda each: used_fraction(query, each, "value"))
    limit = _nearest_limit(query, least)
    # Where the next one is far beyond, models between were left out: the search was near enough to the end.
    used, needed = (used_fraction(query, each, "value") for each in (best, least))
    if used >= _NEARLY_USED or needed > _NEXT_NEEDS:
        return limit, None
    usd = None if least.usd is None else least.usd.value
    return limit, LargerModel(params=float(beyond.shape.params), time_s=least.known_time_s.value, usd=usd)


def _nearest_limit(query: TrainingQuery, each: Candidate) -> ReachLimit:
    """Which of budget and deadline a training uses more of."""
    spent = 0.0 if each.usd is None else each.usd.value / query.spend_usd
    return "budget" if spent >= each.known_time_s.value / query.within_s else "deadline"
