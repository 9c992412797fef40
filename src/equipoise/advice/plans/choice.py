"""Which of the sizes to take: those that keep deadline and budget, and of them what serves the objective."""

from collections.abc import Sequence

from equipoise.advice.plans.planned import Option, Question, Rejection
from equipoise.scaling.equilibrium import Equilibrium


def kept(question: Question, best: Sequence[Option]) -> tuple[list[Option], tuple[Rejection, ...]]:
    """The sizes that keep deadline and budget; what the others would have needed."""
    keeping: list[Option] = []
    late: list[float] = []
    dear: list[float] = []
    for each in best:
        usd = each.bill.usd
        if each.time.value > question.deadline_s:
            late.append(each.time.value)
        elif usd is not None and usd > question.budget_usd:
            dear.append(usd)
        else:
            keeping.append(each)
    refused = [
        Rejection(reason=reason, needed=min(values), available=limit, count=len(values))
        for reason, values, limit in (
            ("deadline_s", late, question.deadline_s),
            ("budget_usd", dear, question.budget_usd),
        )
        if values
    ]
    return keeping, tuple(refused)


def chosen(question: Question, keeping: Sequence[Option], answer: Equilibrium | None) -> Option | None:
    """The size that serves the objective best; fewer accelerators where two serve alike."""
    if not keeping:
        return None
    if question.objective == "balance":
        limit = keeping[0].num_accelerators if answer is None else answer.num_accelerators
        below = [each for each in keeping if each.num_accelerators <= limit]
        return min(below, key=lambda each: each.time.value) if below else keeping[0]
    if question.objective == "time":
        return min(keeping, key=lambda each: each.time.value)
    if question.objective == "cost":
        return min(keeping, key=lambda each: each.bill.accelerator_hours)
    return min(keeping, key=lambda each: each.bill.energy_j or each.bill.accelerator_hours)


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Of the options, those that no other is as good as in time, money and energy and better in one."""
    worth = {id(each): _worth(each) for each in options}
    front = [
        each
        for each in options
        if not any(_beats(worth[id(other)], worth[id(each)]) for other in options if other is not each)
    ]
    return tuple(sorted(front, key=lambda each: each.time.value))


def _worth(option: Option) -> tuple[float, ...]:
    hours = option.bill.accelerator_hours
    usd, energy_j = option.bill.usd, option.bill.energy_j
    return (option.time.value, hours if usd is None else usd, hours if energy_j is None else energy_j)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
