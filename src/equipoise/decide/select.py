"""Selects among the candidates of all systems by constraints, objective, Pareto frontier and equilibrium.

Sensitivities (flips) are found by selecting again with one input changed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.decide.answer import (
    ACCELERATORS,
    PER_ACCELERATOR_HOUR,
    Candidate,
    ConstraintName,
    Flip,
    Refusal,
    Relaxation,
    TimeValue,
)
from equipoise.decide.evidence import Group, SizeCurve
from equipoise.decide.question.query import START_S, Objective, TrainingQuery
from equipoise.economics.quotes import Charges
from equipoise.intervals import LEVEL, Input, Tornado
from equipoise.scaling.equilibrium import (
    Equilibrium,
    default_answer,
    discrete_equilibria,
    reached_by_paying_steps,
)
from equipoise.stats import Values, by_key, tornado
from equipoise.units import HOUR_S

# Limits on which sizes are eligible at all; the other limits are on the time and money that a size takes.
_SIZE_LIMITS: Final = frozenset({"max_accelerators", "memory_bytes"})


class Rule(Struct, frozen=True, kw_only=True):
    """The objective and the limits of a selection.

    deadline_s: for the wait queue_s and the training together. start_s: time from job start to the first
    step, which is the same at every size and paid for. It is included when sizes are compared, but not in
    limits or in the displayed time.
    """

    objective: Objective
    value_of_time_usd_per_hour: float = 0.0
    deadline_s: float = math.inf
    queue_s: float = 0.0
    start_s: float = 0.0
    spend_usd: float = math.inf


def rule_of(query: TrainingQuery) -> Rule:
    """The rule by which a question is answered."""
    return Rule(
        objective=query.objective,
        value_of_time_usd_per_hour=query.value_of_time_usd_per_hour or 0.0,
        deadline_s=math.inf if query.deadline_s is None else query.deadline_s,
        queue_s=query.queue_s or 0.0,
        start_s=query.start_s,
        spend_usd=query.spend_usd,
    )


class Selection(Struct, frozen=True, kw_only=True):
    """The selection. balance: per system and terms, the size beyond which more stops paying, if known."""

    recommended: Candidate | None
    refusal: Refusal | None
    frontier: tuple[str, ...]
    equilibria: Mapping[Group, tuple[Equilibrium, ...]]
    balance: Mapping[Group, int | None]


class Figures(NamedTuple):
    """The figures of a candidate by which it is selected. usd, energy_j: None if unknown.

    charges: the components of usd, if it is not only for the hours used. least_s: time for which every
    accelerator is paid in any case.
    """

    id: str
    group: Group
    num_accelerators: int
    time_s: float
    usd: float | None
    energy_j: float | None
    is_within_size: bool
    charges: Charges | None = None
    least_s: float = 0.0

    def moved(self, *, price: float = 1.0, time: float = 1.0) -> "Figures":
        """The same figures with the hourly price and the time scaled; other charges are unchanged."""
        energy_j = None if self.energy_j is None else self.energy_j * time
        return self._with_time(self.time_s * time, energy_j, used=price * time, minimum=price)

    def with_start(self, start_s: float) -> "Figures":
        """The figures with the time before the first step, at the same hourly price.

        Energy is unchanged, because no step runs during start-up.
        """
        if not start_s:
            return self
        return self._with_time(self.time_s + start_s, self.energy_j, used=1.0 + start_s / self.time_s)

    def _with_time(
        self, time_s: float, energy_j: float | None, *, used: float, minimum: float = 1.0
    ) -> "Figures":
        """The figures at another time and energy. used, minimum: factors of the used and minimum charges."""
        usd, paid = self.usd, self.charges
        if paid is not None:
            paid = replace(paid, used_usd=used * paid.used_usd, minimum_usd=minimum * paid.minimum_usd)
        if usd is not None:
            usd = used * usd if paid is None else paid.usd
        # Ten times as fast as `_replace`: finding a flip calls this thousands of times.
        return Figures(
            self.id,
            self.group,
            self.num_accelerators,
            time_s,
            usd,
            energy_j,
            self.is_within_size,
            paid,
            self.least_s,
        )

    def in_accelerator_hours(self) -> "Figures":
        """The figures with accelerator-hours in place of money."""
        return self._replace(usd=_accelerator_hours(self), charges=None)


def select(candidates: Sequence[Candidate], rule: Rule, curves: Mapping[Group, SizeCurve]) -> Selection:
    """The best candidate by the rule among those that keep every constraint, or the refusal if none does.

    candidates: of all systems, sizes and terms. curves: by system and terms.
    """
    figures = timed_figures(candidates)
    equilibria = {
        group: discrete_equilibria(
            curve.sizes,
            curve.drawn_s,
            central_s=curve.central_s,
            start_s=rule.start_s,
            least_s=curve.least_s,
            level=LEVEL,
            limited_by=curve.limited_by,
        )
        for group, curve in curves.items()
    }
    balance = {
        group: default_answer(found).num_accelerators if found else None
        for group, found in equilibria.items()
    }
    best = choose(figures, rule, balance)
    by_id = {each.id: each for each in candidates}
    return Selection(
        recommended=None if best is None else by_id[best],
        refusal=None if best is not None or not figures else _refusal(candidates, by_id, figures),
        frontier=frontier(figures),
        equilibria=equilibria,
        balance=balance,
    )


def figures_of(candidate: Candidate) -> Figures:
    """The figures of a candidate that has a time."""
    sized = [each.is_kept for each in candidate.constraints if each.name in _SIZE_LIMITS]
    return Figures(
        id=candidate.id,
        group=candidate.group,
        num_accelerators=candidate.num_accelerators,
        time_s=candidate.known_time_s.value,
        usd=None if candidate.usd is None else candidate.usd.value,
        energy_j=None if candidate.energy_j is None else candidate.energy_j.value,
        is_within_size=all(sized),
        charges=candidate.charges,
        least_s=candidate.least_s,
    )


def timed_figures(candidates: Iterable[Candidate]) -> list[Figures]:
    """The figures of the candidates that have a time."""
    return [figures_of(each) for each in candidates if each.time_s is not None]


def choose(figures: Sequence[Figures], rule: Rule, balance: Mapping[Group, int | None]) -> str | None:
    """The id of the best feasible candidate by the rule; None if none is feasible.

    Under most objectives, the first in `order`; with `cost` and no price, accelerator-hours replace money.
    Under `balance`, each system offers one size: the largest feasible one up to its balance size, else the
    smallest beyond. The offer with the least money times time is chosen (without prices, the fastest), unless
    another system has a size that beats it in time and money.
    Time and money are compared with the start (rule.start_s), while limits and tables exclude it. So that no
    table contradicts the choice, an offer that another system beats without the start is not chosen either;
    under an objective of one amount, the answer states that amount with the start.
    """
    within = [each for each in figures if is_feasible(each, rule)]
    is_priced = any(each.usd is not None for each in within)
    if rule.objective == "cost" and not is_priced:
        within = [each.in_accelerator_hours() for each in within]
    shown = {each.id: each for each in within}
    feasible = [each.with_start(rule.start_s) for each in within]
    if not feasible:
        return None
    if rule.objective != "balance":
        return _best_in_order(feasible, rule, is_priced=is_priced).id
    offers = [members[-1] for members in up_to_balance(feasible, balance).values()]
    offers.sort(key=lambda each: order(each, rule, is_priced=is_priced))
    unbeaten = (
        each
        for each in offers
        if not any(_beats(other, each) or _beats(shown[other.id], shown[each.id]) for other in feasible)
    )
    return next(unbeaten, offers[0]).id


# Costs within this factor count as equal, since estimates are no more certain than that.
_SAME_MONEY: Final = 1.01


def _beats(other: Figures, one: Figures) -> bool:
    """Whether a size of another system is no worse in time and money, and better in at least one."""
    if other.group == one.group or other.usd is None or one.usd is None:
        return False
    # Written out for speed: a choice compares thousands of pairs.
    is_no_worse = other.time_s <= one.time_s and other.usd <= one.usd
    return is_no_worse and (other.time_s < one.time_s or other.usd < one.usd)


def beats(candidate: Candidate, best: Candidate, rule: Rule) -> bool:
    """Whether a candidate keeps all limits other than size, is no worse than the best in time and money, and
    is better in at least one.
    """
    if candidate.time_s is None or candidate.usd is None or best.usd is None:
        return False
    one = figures_of(candidate)._replace(is_within_size=True)
    amounts = [(one.time_s, best.known_time_s.value), (candidate.usd.value, best.usd.value)]
    return is_feasible(one, rule) and _is_better(amounts)


def goes_on(candidates: Sequence[Candidate], most: int, rule: Rule) -> bool:
    """Whether sizes of a system beyond those tried may be better: the best is in the last doubling.

    True only under objectives for which larger sizes may be better although their steps do not pay: the value
    of time, and the least time while the training takes longer than its start. If no size keeps the deadline,
    the best without it counts, because a larger one may keep it. most: the largest size tried.
    """
    if rule.objective not in {"value_of_time", "time"}:
        return False
    figures = timed_figures(candidates)
    unhurried = replace(rule, deadline_s=math.inf)
    kept = [each for each in figures if is_feasible(each, rule)]
    kept = kept or [each for each in figures if is_feasible(each, unhurried)]
    if not kept:
        return False
    best = _best_in_order(kept, rule, is_priced=True)
    return 2 * best.num_accelerators > most and (rule.objective != "time" or best.time_s > START_S)


def is_feasible(each: Figures, rule: Rule) -> bool:
    """Whether figures keep every constraint of a rule; without a price, no budget is kept."""
    in_budget = math.isinf(rule.spend_usd) or (each.usd is not None and each.usd <= rule.spend_usd)
    return each.is_within_size and rule.queue_s + each.time_s <= rule.deadline_s and in_budget


def objective_value(each: Figures, objective: Objective, value_of_time_usd_per_hour: float) -> float:
    """The value that an objective minimises; infinite if it is unknown.

    For `balance` it is money times time, by which systems at their balance sizes are compared. Among sizes of
    one system, its minimum is the maximum of E x S. Among systems, its minimum costs least with time included
    when an hour is worth what the training spends per hour.
    """
    if objective == "time":
        return each.time_s
    if objective == "energy":
        return math.inf if each.energy_j is None else each.energy_j
    if each.usd is None:
        return math.inf
    if objective == "balance":
        return each.usd * each.time_s
    waiting = value_of_time_usd_per_hour * each.time_s / HOUR_S if objective == "value_of_time" else 0.0
    return each.usd + waiting


def order(each: Figures, rule: Rule, *, is_priced: bool) -> tuple[float, float, float, float, int, str]:
    """Sort key: the objective's value, then time, money, energy, number of accelerators and id.

    is_priced: whether any price is known; if not, `balance` compares by time.
    """
    counted = _value_by_rule(each, rule, is_priced=is_priced)
    return (counted, each.time_s, *_money_and_energy(each), each.num_accelerators, each.id)


def _value_by_rule(each: Figures, rule: Rule, *, is_priced: bool) -> float:
    """The value that the objective of a rule minimises."""
    objective: Objective = "time" if rule.objective == "balance" and not is_priced else rule.objective
    return objective_value(each, objective, rule.value_of_time_usd_per_hour)


def _best_in_order(figures: Sequence[Figures], rule: Rule, *, is_priced: bool) -> Figures:
    """The first in `order` of at least one; the full key is computed only for ties in the objective."""
    counted = [_value_by_rule(each, rule, is_priced=is_priced) for each in figures]
    least = min(counted)
    alike = (each for each, value in zip(figures, counted, strict=True) if value == least)
    return min(alike, key=lambda each: order(each, rule, is_priced=is_priced))


def up_to_balance(
    feasible: Sequence[Figures], balance: Mapping[Group, int | None]
) -> dict[Group, list[Figures]]:
    """The sizes of each system up to the one that it offers under the objective `balance`, ascending.

    The offer is the largest up to the balance size, else the smallest, or a larger one that is faster for the
    same money. It is never a size that a smaller one beats in time and money, as can happen if the smaller
    one divides a stated batch better.
    """
    ascending = sorted(feasible, key=lambda each: each.num_accelerators)
    found = {}
    for group, members in by_key((each.group, each) for each in ascending).items():
        limit = balance.get(group)
        if limit is None:  # too few sizes for a curve, such as two measured by the user
            limit = reached_by_paying_steps(
                [each.num_accelerators for each in members],
                [each.time_s for each in members],
                least_s=[each.least_s for each in members],
            )
        num_below = sum(each.num_accelerators <= limit for each in members)
        taken = _extended_at_no_cost(members, max(num_below, 1))
        while any(_is_saving(each, taken[-1]) for each in taken[:-1]):
            taken.pop()
        found[group] = taken
    return found


def _is_saving(other: Figures, one: Figures) -> bool:
    """Whether a size is no worse in time and money, and better in at least one."""
    return _is_better([(other.time_s, one.time_s), (_money_and_energy(other)[0], _money_and_energy(one)[0])])


def _extended_at_no_cost(members: Sequence[Figures], num_taken: int) -> list[Figures]:
    """The first sizes of a system, extended up to the last that is faster than all before it at the same
    cost. Such sizes can lie beyond the balance where a limit ends, or between the usual sizes.
    """
    most_paid = _SAME_MONEY * _money_and_energy(members[num_taken - 1])[0]
    fastest_s = members[num_taken - 1].time_s
    for number, each in enumerate(members[num_taken:], num_taken + 1):
        if each.time_s < fastest_s and _money_and_energy(each)[0] <= most_paid:
            fastest_s, num_taken = each.time_s, number
    return [*members[:num_taken]]


def frontier(figures: Sequence[Figures]) -> tuple[str, ...]:
    """Ids of the Pareto-optimal candidates in time, money and energy, the fastest first.

    Among eligible sizes, whether or not they keep deadline and budget.
    """
    offered = [each for each in figures if each.is_within_size]
    front = [each for each in offered if not any(_dominates(other, each) for other in offered)]
    return tuple(
        each.id for each in sorted(front, key=lambda each: (each.time_s, *_money_and_energy(each), each.id))
    )


def _dominates(other: Figures, one: Figures) -> bool:
    """Whether it is nowhere worse and somewhere better; accelerator-hours replace unknown money or energy."""
    if other.time_s > one.time_s:
        return False
    amounts = [(other.time_s, one.time_s)]
    amounts += [
        (ours, theirs)
        if ours is not None and theirs is not None
        else (_accelerator_hours(other), _accelerator_hours(one))
        for ours, theirs in ((other.usd, one.usd), (other.energy_j, one.energy_j))
    ]
    return _is_better(amounts)


def _is_better(amounts: Sequence[tuple[float, float]]) -> bool:
    """Whether the first of each pair is at most the second, and less in at least one pair."""
    return all(a <= b for a, b in amounts) and any(a < b for a, b in amounts)


def _money_and_energy(each: Figures) -> tuple[float, float]:
    """Money and energy; accelerator-hours in place of either if it is unknown."""
    hours = _accelerator_hours(each)
    return (hours if each.usd is None else each.usd, hours if each.energy_j is None else each.energy_j)


def _accelerator_hours(each: Figures) -> float:
    return each.num_accelerators * each.time_s / HOUR_S


def _refusal(
    candidates: Sequence[Candidate], by_id: Mapping[str, Candidate], figures: Sequence[Figures]
) -> Refusal:
    """The cheapest and the fastest eligible candidate, and the least relaxation of each limit.

    The cheapest is an ineligible size if no eligible one has a price.
    If systems have size limits of their own, such as stocks, each of these is a limit by itself.
    """
    priced = _within_size([each for each in figures if each.usd is not None])
    fastest = min(_within_size(figures), key=lambda each: (each.time_s, each.num_accelerators, each.id))
    cheapest = min(priced, key=lambda each: (each.usd, each.num_accelerators, each.id), default=None)
    most = {one.limit for each in candidates for one in each.broken if one.name == "max_accelerators"}
    single: dict[tuple[ConstraintName, str], Relaxation] = {}
    closest: tuple[float, tuple[Relaxation, ...]] | None = None
    for each in candidates:
        steps = relaxations(each)
        if steps is None:
            continue
        if len(steps) == 1:
            limit = steps[0].constraint
            key = (limit, each.system if limit == "max_accelerators" and len(most) > 1 else "")
            known = single.get(key)
            if known is None or excess_of(steps) < excess_of((known,)):
                single[key] = steps[0]
        excess = excess_of(steps)
        if closest is None or excess < closest[0]:
            closest = (excess, steps)
    return Refusal(
        cheapest=None if cheapest is None else by_id[cheapest.id],
        fastest=by_id[fastest.id],
        relaxations=tuple(single.values()),
        joint=() if single or closest is None else closest[1],
    )


def _within_size(figures: Sequence[Figures]) -> Sequence[Figures]:
    """The figures of eligible sizes; all of them if no size is eligible."""
    return [each for each in figures if each.is_within_size] or figures


def excess_of(steps: Sequence[Relaxation]) -> float:
    """Distance of limits from the values needed: the sum of the absolute log ratios."""
    return sum(abs(math.log(step.needed / step.limit)) for step in steps)


def relaxations(candidate: Candidate) -> tuple[Relaxation, ...] | None:
    """The value needed for each broken limit; None if changing limits does not help."""
    if candidate.time_s is None:
        return None
    broken = candidate.broken
    if any(each.value is None or each.limit <= 0.0 for each in broken):
        return None
    return tuple(
        Relaxation(
            constraint=each.name, limit=each.limit, needed=float(each.value or 0.0), candidate=candidate.id
        )
        for each in broken
    )


def time_values(figures: Sequence[Figures], rule: Rule) -> tuple[TimeValue, ...]:
    """The cheapest candidate, money and time together, from each value of an hour on, in ascending order.

    Among candidates that have a price and keep every constraint; their times include rule.start_s, as in
    `choose`.
    Source: the lower envelope of the lines usd + value x hours.
    """
    feasible = [each.with_start(rule.start_s) for each in figures if is_feasible(each, rule)]
    lines = sorted(
        ((each.usd, each.time_s / HOUR_S, each) for each in feasible if each.usd is not None),
        key=lambda line: (line[0], line[1], line[2].num_accelerators, line[2].id),
    )
    if not lines:
        return ()
    usd, hours, best = lines[0]
    found = [TimeValue(from_usd_per_hour=0.0, candidate=best.id)]
    while True:
        faster = [line for line in lines if line[1] < hours]
        if not faster:
            return tuple(found)
        line = min(faster, key=lambda each: ((each[0] - usd) / (hours - each[1]), each[1]))
        at = (line[0] - usd) / (hours - line[1])
        usd, hours, best = line
        found.append(TimeValue(from_usd_per_hour=at, candidate=best.id))


TIME, PRICE = "time of the training", "price per accelerator-hour"
# A change of an input by more than this factor is not reported as a flip.
_MAX_FACTOR: Final = 10.0
_STEPS: Final = 40
_BISECTIONS: Final = 16


class _Sweep(Struct, frozen=True, kw_only=True):
    """An input of the choice, and what is chosen when it is scaled; a speed is divided by the factor.

    system: to which the input belongs; None for a limit. value: the current value; by_candidate: values of
    candidates, if they differ.
    """

    quantity: str
    unit: str
    value: float
    chosen_at: Callable[[float], str | None]
    system: str | None = None
    by_candidate: Mapping[str, float] = {}
    is_speed: bool = False

    def flip(self, now: str) -> Flip | None:
        """The nearest value at which the choice is not `now`; None if there is none within the range."""
        found = _nearest_change(self.chosen_at, now)
        if found is None:
            return None
        factor, to = found
        value = self.by_candidate.get(to, self.value)
        return Flip(
            quantity=self.quantity,
            system=self.system,
            unit=self.unit,
            value=value,
            flips_at=value / factor if self.is_speed else factor * value,
            to=to,
        )


class _Choices(Struct, frozen=True, kw_only=True):
    """What the question with a changed input would choose.

    beside: see `flips`. untried: by id of another candidate, those of `beside` that are not next to it.
    """

    figures: Sequence[Figures]
    rule: Rule
    balance: Mapping[Group, int | None]
    beside: Collection[str]
    untried: Mapping[str, Collection[str]]

    @classmethod
    def among(
        cls,
        figures: Sequence[Figures],
        rule: Rule,
        balance: Mapping[Group, int | None],
        beside: Collection[str],
    ) -> "_Choices":
        """The choices among some figures."""
        usual = [each for each in figures if each.id not in beside]
        nearer = [each for each in figures if each.id in beside]
        sizes = by_key((each.group[0], each.num_accelerators) for each in usual)
        untried = {}
        for each in usual if nearer else ():
            size, known = each.num_accelerators, sizes[each.group[0]]
            low = max((other for other in known if other < size), default=0)
            high = min((other for other in known if other > size), default=math.inf)
            untried[each.id] = {
                other.id
                for other in nearer
                if other.group[0] == each.group[0] and not low < other.num_accelerators < high
            }
        return cls(figures=figures, rule=rule, balance=balance, beside=beside, untried=untried)

    def chosen(self, moved: Sequence[Figures] | None = None, rule: Rule | None = None) -> str | None:
        """The id of the choice with other figures or another rule; None if none is feasible."""
        figures, rule = self.figures if moved is None else moved, rule or self.rule
        if self.untried:
            usual = [each for each in figures if each.id not in self.beside]
            if (first := choose(usual, rule, self.balance)) is not None:
                figures = [each for each in figures if each.id not in self.untried[first]]
        return choose(figures, rule, self.balance)


def flips(
    candidates: Sequence[Candidate],
    rule: Rule,
    balance: Mapping[Group, int | None],
    best: Candidate,
    *,
    beside: Collection[str] = (),
) -> tuple[Flip, ...]:
    """For each input that can change the choice within a factor of ten, the nearest value at which it does.

    The inputs are the price of every system, the speed of the recommended one (as MFU if known), the limits,
    the value of an hour, and the number of accelerators allowed. beside: ids of candidates that are tried
    because they lie next to one that was offered; if another is chosen, those next to that are tried instead.
    """
    # No change of these inputs makes an ineligible size eligible.
    figures = [each for each in timed_figures(candidates) if each.is_within_size]
    choices = _Choices.among(figures, rule, balance, beside)
    decides_price = (
        rule.objective != "balance"
        or len({each.group for each in figures}) != 1
        or math.isfinite(rule.spend_usd)
    )
    inputs = [
        *(_sweep_prices(candidates, choices, best) if decides_price else ()),
        _sweep_speed(choices, best),
        *_sweep_limits(choices),
    ]
    moved = (*(each.flip(best.id) for each in inputs), _size_flip(candidates, rule, balance, best))
    found = [flip for flip in moved if flip is not None]
    # A time that reaches the deadline and a deadline that reaches the time change by the same factor:
    # rounding keeps floating-point error from ordering them.
    return tuple(sorted(found, key=lambda each: round(abs(math.log(each.flips_at / each.value)), 6)))


def _sweep_prices(candidates: Sequence[Candidate], choices: _Choices, best: Candidate) -> Iterator[_Sweep]:
    """The price of every system on each of its terms.

    If a file has several quotes on the same terms, each candidate has its own.
    """
    paid: dict[Group, dict[str, float]] = defaultdict(dict)
    for each in candidates:
        if each.price is not None and each.price.usd_per_accelerator_hour > 0.0:
            paid[each.group][each.id] = each.price.usd_per_accelerator_hour
    for group, by_candidate in paid.items():

        def chosen_at(factor: float, group: Group = group) -> str | None:
            return choices.chosen(
                [each.moved(price=factor) if each.group == group else each for each in choices.figures]
            )

        system, terms = group
        several = sum(name == system for name, _ in paid) > 1
        words = f" ({terms.replace('_', ' ')})" if several else ""
        yield _Sweep(
            quantity=f"price of {system}{words}",
            system=system,
            unit=PER_ACCELERATOR_HOUR,
            value=by_candidate.get(best.id, [*by_candidate.values()][-1]),
            by_candidate=by_candidate,
            chosen_at=chosen_at,
        )


def _sweep_speed(choices: _Choices, best: Candidate) -> _Sweep:
    """The speed of the recommended system, up to an MFU of one; money and energy scale with the time."""

    def chosen_at(factor: float) -> str | None:
        if best.mfu is not None and factor < best.mfu:
            return None
        return choices.chosen(
            [each.moved(time=factor) if each.group[0] == best.system else each for each in choices.figures]
        )

    return _Sweep(
        quantity=f"{'time' if best.mfu is None else 'MFU'} on {best.system}",
        system=best.system,
        unit="s" if best.mfu is None else "fraction",
        value=best.known_time_s.value if best.mfu is None else best.mfu,
        chosen_at=chosen_at,
        is_speed=best.mfu is not None,
    )


def _sweep_limits(choices: _Choices) -> Iterator[_Sweep]:
    """Deadline, budget and the value of an hour, as far as they are stated."""
    rule = choices.rule
    inputs = (
        ("deadline", "s", "deadline_s", rule.deadline_s),
        ("budget", "USD", "spend_usd", rule.spend_usd),
        ("value of an hour", "USD per hour", "value_of_time_usd_per_hour", rule.value_of_time_usd_per_hour),
    )
    for quantity, unit, name, value in inputs:

        def chosen_at(factor: float, name: str = name, value: float = value) -> str | None:
            moved: dict[str, Any] = {name: factor * value}
            return choices.chosen(rule=replace(rule, **moved))

        if 0.0 < value < math.inf:
            yield _Sweep(quantity=quantity, unit=unit, value=value, chosen_at=chosen_at)


def _size_flip(
    candidates: Sequence[Candidate], rule: Rule, balance: Mapping[Group, int | None], best: Candidate
) -> Flip | None:
    """The smallest size limit above the current one at which another candidate is chosen.

    Only sizes with a candidate are considered. The limit is raised for the systems with the same limit as the
    recommended one, since each system has its own stock. A balance at the largest eligible size was cut off
    by the limit, so steps beyond it are taken as far as they pay.
    """
    beyond = {
        each.id: one.limit for each in candidates for one in each.broken if one.name == "max_accelerators"
    }
    systems = {each.system: beyond[each.id] for each in candidates if each.id in beyond}
    limit = systems.get(best.system, min(systems.values(), default=math.inf))
    movable = {
        each.id
        for each in candidates
        if beyond.get(each.id) == limit and not any(one.name == "memory_bytes" for one in each.broken)
    }
    figures = timed_figures(candidates)
    sizes = {each.num_accelerators for each in figures if each.id in movable}
    allowed = by_key((each.group, each.num_accelerators) for each in figures if each.is_within_size)
    ends = {
        group: None if size == max(allowed.get(group, ()), default=None) else size
        for group, size in balance.items()
    }
    for size in sorted(each for each in sizes if each <= _MAX_FACTOR * limit):
        moved = [
            each._replace(is_within_size=True)
            if each.id in movable and each.num_accelerators <= size
            else each
            for each in figures
        ]
        to = choose(moved, rule, ends)
        if to is not None and to != best.id:
            return Flip(
                quantity="accelerators allowed", unit=ACCELERATORS, value=limit, flips_at=float(size), to=to
            )
    return None


def _nearest_change(chosen_at: Callable[[float], str | None], now: str) -> tuple[float, str] | None:
    """The factor nearest to one at which another candidate is chosen, and its id; None if none in range.

    Steps outwards on a logarithmic grid, then bisects the first step that changes the choice.
    """
    step = math.log(_MAX_FACTOR) / _STEPS
    for number in range(1, _STEPS + 1):
        changes = []
        for sign in (1.0, -1.0):
            outer = sign * number * step
            to = chosen_at(math.exp(outer))
            if to is not None and to != now:
                changes.append(_bisect_change(chosen_at, now, outer - sign * step, outer))
        if changes:
            return min(changes, key=lambda each: abs(math.log(each[0])))
    return None


def _bisect_change(
    chosen_at: Callable[[float], str | None], now: str, inner: float, outer: float
) -> tuple[float, str]:
    """The factor at which the choice changes between two log factors, and the id chosen there."""
    to = chosen_at(math.exp(outer))
    assert to is not None
    for _ in range(_BISECTIONS):
        middle = (inner + outer) / 2.0
        found = chosen_at(math.exp(middle))
        if found is None or found == now:
            inner = middle
        else:
            outer, to = middle, found
    return math.exp(outer), to


def tornado_of(candidate: Candidate) -> Tornado | None:
    """The sensitivity of a candidate's cost: each input varied from one end of its interval to the other.

    Of accelerator-hours if there is no price; None if the candidate has no time.
    Source: money = accelerators x hours x price, with the other charges of a quote; one input varies at once.
    """
    if candidate.time_s is None:
        return None
    size, time = candidate.num_accelerators, Input(name=TIME, unit="s", interval=candidate.time_s)
    if candidate.price is None:
        return tornado("accelerator-hours", "h", lambda values: values[TIME] * (size / HOUR_S), (time,))
    power_usd = candidate.electricity_usd
    paid = candidate.charges
    extra_usd = 0.0 if paid is None else paid.extra_usd
    if candidate.price.is_owned and power_usd is not None:
        usd_per_s = power_usd.value / candidate.time_s.value
        return tornado("money", "USD", lambda values: values[TIME] * usd_per_s + extra_usd, (time,))
    hourly = Input(name=PRICE, unit="USD", interval=candidate.price.interval)
    least_s = candidate.price.minimum_s

    def usd(values: Values) -> NDArray[np.float64]:
        held_s = np.maximum(values[TIME], least_s)
        return np.asarray(held_s * values[PRICE] * (size / HOUR_S) + extra_usd)

    return tornado("money", "USD", usd, (time, hourly))
