"""What a budget or a date is enough for: how many tokens of a model, or how large a model."""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import polars as pl

from equipoise.advice.family import Family, used_up
from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.landscape import Landscape, surveyed
from equipoise.advice.plans.modelled import Model
from equipoise.advice.plans.plan import refuse, tried
from equipoise.advice.plans.planned import Option, Question
from equipoise.advice.plans.setting import Setting, setting
from equipoise.economics.uncertain import exact, product
from equipoise.errors import EvidenceError, UsageError
from equipoise.spec.cluster import Cluster
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.stats import Interval
from equipoise.units import SI_PREFIXES

Ask: TypeAlias = Literal["tokens", "model"]
Limit: TypeAlias = Literal["budget", "deadline", "memory"]

# Tokens a parameter at which a training budget gives the lowest loss (Hoffmann et al. 2022: 1.4e12 tokens
# for the 70e9 parameters of their own model); models that are to be used much are trained on many times more.
TOKENS_PER_PARAM = 20.0
_MOST_TOKENS_PER_PARAM = 1e5
_UNIT = SI_PREFIXES["G"]
_WHY_TOKENS = (
    "20 give the least loss of a training budget (Hoffmann et al. 2022); models that are used much are "
    "trained on more: --tokens-per-param"
)
_ALIKE = "each takes the same time; whether so many are needed, or enough, is not asked"
# The fastest training counts as good as the best where it falls short by so little: estimates are less sure.
_AS_GOOD = 0.02
# Where so little of money and time is used up at the largest model found, they are not what ends it.
_BARELY_USED = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What one number of accelerators does in the money and time there are.

    amount: tokens (samples, of what is no text), or parameters. option: the training that does it.
    """

    amount: Interval
    option: Option
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The answer. asked: for tokens of the workload's model, or for a model of its family.

    tokens: that the training takes, samples where they are no tokens (has_tokens False). params: of the
    model; its interval is that of the answer where a model is asked for. shape: of that model. option: the
    training to do. by_size: what each number of accelerators does, where tokens are asked for. limit: what
    ends it.
    """

    asked: Ask
    workload: Workload
    cluster: Cluster
    question: Question
    tokens: Interval
    has_tokens: bool
    params: Interval | None
    shape: Transformer | None
    option: Option
    limit: Limit
    by_size: tuple[Within, ...]
    assumes: tuple[str, ...]

    @property
    def size(self) -> Interval:
        """What was asked for: parameters of the largest model, or tokens (samples)."""
        return self.params if self.asked == "model" and self.params is not None else self.tokens


def reach(
    question: Question,
    asked: Ask,
    *,
    terms: Terms | None = None,
    scores: pl.DataFrame | None = None,
    model: Model | None = None,
    tokens_per_param: float = TOKENS_PER_PARAM,
) -> Reach:
    """The most tokens, or the largest model, that the question's budget and deadline are enough for.

    question: its length and objective are left aside. tokens_per_param: of the model asked for.
    Raises UsageError without budget and deadline, or where they are not enough for a start; EvidenceError
    where the workload is no text; what `plan` raises.
    Assumes that any number of tokens costs alike; the rest as `plan` does. Ends of the answer's interval are
    where time and money at the ends of theirs use up budget or deadline.
    """
    if math.isinf(question.budget_usd) and math.isinf(question.deadline_s):
        raise UsageError(f"--ask {asked} needs --budget or --deadline: how much money or time there is")
    if not 0.0 < tokens_per_param <= _MOST_TOKENS_PER_PARAM:
        raise UsageError(
            f"--tokens-per-param is {tokens_per_param:g}; expected a number above 0, at most "
            f"{_MOST_TOKENS_PER_PARAM:g}"
        )
    about = replace(question, training_samples=_UNIT, training_tokens=None, num_best=1)
    ground = setting(about, terms or Terms(), scores, model=model)
    refuse(question, ground, terms or Terms())
    if asked == "tokens":
        return _tokens(question, ground)
    return _model(question, ground, tokens_per_param)


def _sizes(question: Question, ground: Setting) -> tuple[int, ...]:
    return tuple(sorted(each for each in tried(question, ground) if question.asks(each)))


def _tokens(question: Question, ground: Setting) -> Reach:
    """The number of accelerators that gets through the most tokens."""
    found = surveyed(Landscape(ground=ground), _sizes(question, ground))
    best = [each.best for each in found.sized if each.best is not None]
    if not best:
        raise EvidenceError(
            f"{ground.workload.title} fits on none of the numbers of accelerators asked for",
            missing=("more --max-accelerators, or another accelerator",),
        )
    unit = float(ground.workload.sequence_tokens or 1) * _UNIT
    within = tuple(_lasting(question, each, unit) for each in best)
    most = _fastest_of_the_best(within)
    _refuse_less_than_a_step(question, most, ground)
    stretched = most.amount.value / unit
    return Reach(
        asked="tokens",
        workload=ground.workload,
        cluster=ground.cluster,
        question=question,
        tokens=most.amount,
        has_tokens=ground.workload.sequence_tokens is not None,
        params=None if ground.workload.params is None else exact(ground.workload.params),
        shape=ground.workload.transformer,
        option=_stretched(most.option, stretched),
        limit=most.limit,
        by_size=tuple(
            replace(each, option=_stretched(each.option, each.amount.value / unit)) for each in within
        ),
        assumes=(_ALIKE,),
    )


def _fastest_of_the_best(within: tuple[Within, ...]) -> Within:
    """The fastest of those that get through as much as any, or hardly less."""
    most = max(each.amount.value for each in within)
    good = [each for each in within if each.amount.value >= most * (1.0 - _AS_GOOD)]
    return min(good, key=lambda each: each.option.time.value / each.amount.value)


def _lasting(question: Question, option: Option, unit: float) -> Within:
    """How many tokens an option gets through. unit: tokens that its time and bill are for."""
    bounds: list[tuple[Interval, Limit]] = []
    if math.isfinite(question.deadline_s):
        bounds.append((_over(question.deadline_s * unit, option.time), "deadline"))
    if option.bill.money is not None and math.isfinite(question.budget_usd):
        bounds.append((_over(question.budget_usd * unit, option.bill.money), "budget"))
    least, limit = min(bounds, key=lambda bound: bound[0].value)
    return Within(
        amount=Interval(
            value=least.value,
            low=min(bound.low for bound, _ in bounds),
            high=min(bound.high for bound, _ in bounds),
            level=least.level,
        ),
        option=option,
        limit=limit,
    )


def _over(amount: float, each: Interval) -> Interval:
    """An amount over what each unit takes."""
    return Interval(
        value=amount / each.value, low=amount / each.high, high=amount / each.low, level=each.level
    )


def _refuse_less_than_a_step(question: Question, most: Within, ground: Setting) -> None:
    step = most.option.strategy.global_batch_samples * float(ground.workload.sequence_tokens or 1)
    if most.amount.value < step:
        raise UsageError(
            f"{_enough(question)} is enough for {most.amount.value / step:.2g} of one step of "
            f"{ground.workload.title}: give more, or a smaller --global-batch"
        )


def _enough(question: Question) -> str:
    """Money and time there are, as options."""
    told = []
    if math.isfinite(question.budget_usd):
        told.append(f"--budget {question.budget_usd:g}")
    if math.isfinite(question.deadline_s):
        told.append("the deadline")
    return " and ".join(told)


def _stretched(option: Option, times: float) -> Option:
    """The same training, so many times as long."""
    factor, bill = exact(times), option.bill

    def longer(amount: Interval | None) -> Interval | None:
        return None if amount is None else product(amount, factor)

    return replace(
        option,
        samples=option.samples * times,
        time=product(option.time, factor),
        bill=replace(
            bill,
            hours=product(bill.hours, factor),
            money=longer(bill.money),
            energy=longer(bill.energy),
            electricity=longer(bill.electricity),
            carbon=longer(bill.carbon),
        ),
    )


def _model(question: Question, ground: Setting, tokens_per_param: float) -> Reach:
    """The largest model of the workload's family."""
    base = ground.workload
    if base.transformer is None or base.sequence_tokens is None:
        raise EvidenceError(
            f"{base.title} is no transformer of published sizes: it has no family of models",
            missing=("a language model, as llama31_8b: `equipoise list workloads`",),
        )
    if base.trained != "full":
        raise EvidenceError(
            f"{base.title} trains adapters, whose tokens do not follow from parameters",
            missing=("a workload that trains all weights: `equipoise list workloads`",),
        )
    family = Family(
        question=question,
        ground=ground,
        sizes=_sizes(question, ground),
        tokens_per_param=tokens_per_param,
    )
    largest = family.largest("value")
    found = family.largest_fitting()
    if found is None:
        raise UsageError(
            f"{_enough(question)} is not enough for the smallest model tried, of 1 M parameters and "
            f"{tokens_per_param:g} tokens each"
        )
    fit = [each for each in found.options if used_up(question, each, "value") <= 1.0]
    option = min(fit, key=lambda each: each.time.value)
    count = float(found.shape.params)
    level = option.time.level
    least = family.largest("high")
    most = family.largest("low")
    size = Interval(value=count, low=min(least, count), high=max(most, count), level=level)
    return Reach(
        asked="model",
        workload=base,
        cluster=ground.cluster,
        question=question,
        tokens=product(exact(tokens_per_param, level=level), size),
        has_tokens=True,
        params=size,
        shape=found.shape,
        option=option,
        limit=_limit(question, option, family, largest),
        by_size=(),
        assumes=(
            f"{tokens_per_param:g} tokens a parameter; {_WHY_TOKENS}",
            f"the proportions of {base.title}; wider and deeper together",
            "a global batch as asked for"
            if question.global_batch_samples is not None
            else "a global batch of 0.292 FLOP ** 0.3271 tokens (Bi et al. 2024, equation 1)",
        ),
    )


def _limit(question: Question, option: Option, family: Family, largest: float) -> Limit:
    """What ends it: the memory, where money and time would do for more."""
    late = option.time.value / question.deadline_s
    money = option.bill.money
    spent = 0.0 if money is None else money.value / question.budget_usd
    beyond = (each for size, each in family.tried.items() if size > largest)
    if used_up(question, option, "value") < _BARELY_USED and not all(each.options for each in beyond):
        return "memory"
    return "budget" if spent >= late else "deadline"
