"""Which size to take: the one that serves the objective among those that keep deadline and budget."""

import math
from collections.abc import Sequence

from equipoise.advice.answer.advice import Choice
from equipoise.advice.answer.asked import Request
from equipoise.advice.plans.planned import ObjectiveName
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.units import format_count, format_duration, format_si


def kept(request: Request, choices: Sequence[Choice]) -> list[Choice]:
    """The choices whose expected time and money pass neither deadline nor budget."""
    return [
        each
        for each in choices
        if each.time.value <= request.within_s
        and (each.bill.usd is None or each.bill.usd <= request.budget_usd)
    ]


def chosen(request: Request, choices: Sequence[Choice], answer: Equilibrium | None) -> Choice | None:
    """The choice to take; None where none keeps what was asked. Fewer accelerators where two serve alike.

    With the objective `balance` that is the size nearest, by its logarithm, to where more stop paying; where
    a deadline asks for more, the fewest that keep it.
    """
    able = kept(request, choices)
    if not able:
        return None
    if request.objective == "balance":
        if answer is None:
            return min(able, key=lambda each: each.num_accelerators)
        aim = math.log(answer.num_accelerators)
        return min(able, key=lambda each: abs(math.log(each.num_accelerators) - aim))
    return min(able, key=lambda each: worth(each, request.objective))


def worth(choice: Choice, objective: ObjectiveName) -> float:
    """What an objective counts of a choice: less is better.

    With `balance`, time times the root of accelerators: its least is where efficiency times speedup peaks.
    """
    if objective == "time":
        return choice.time.value
    if objective == "balance":
        return choice.time.value * math.sqrt(choice.num_accelerators)
    bill = choice.bill
    amount = bill.usd if objective == "cost" else bill.energy_j
    return bill.accelerator_hours if amount is None else amount


def obstacle(request: Request, choices: Sequence[Choice], beyond: Sequence[Choice]) -> str:
    """Why no choice keeps deadline and budget, and what would, in sentences.

    choices: at least one. beyond: larger sizes that were not asked for.
    """
    fastest = min(choices, key=lambda each: each.time.value)
    cheapest = min(choices, key=lambda each: worth(each, "cost"))
    told = []
    if fastest.time.value > request.within_s:
        queue_s = request.queue_s or 0.0
        queue = f", {format_duration(queue_s)} of it in the queue," if queue_s else ""
        told.append(
            f"The deadline of {format_duration(request.deadline_s)}{queue} cannot be kept: the fastest, "
            f"{_sized(fastest)}, takes {_range(fastest)}."
        )
        quicker = [each for each in beyond if each.time.value <= request.within_s]
        if quicker:
            told.append(f"{_sized(quicker[0])} would take {_range(quicker[0])}: allow so many.")
        else:
            told.append(
                f"A deadline of {format_duration(queue_s + fastest.time.value)} is kept in half of the "
                f"cases, one of {format_duration(queue_s + fastest.time.high)} nearly always; or take a "
                "faster accelerator."
            )
    dearest = cheapest.bill.usd
    if dearest is not None and dearest > request.budget_usd:
        told.append(
            f"The budget of {_usd(request.budget_usd)} cannot be kept: the cheapest, {_sized(cheapest)}, "
            f"costs {_usd(dearest)}; a budget of that much, or a price "
            f"{request.budget_usd / dearest:.2f} times as high, would do."
        )
    if not told:
        in_time = [each for each in choices if each.time.value <= request.within_s]
        least = min(in_time, key=lambda each: worth(each, "cost"))
        told.append(
            f"No size keeps both: the cheapest within the deadline, {_sized(least)}, costs "
            f"{_usd(least.bill.usd or 0.0)}, and those within the budget take "
            f"{format_duration(_quickest_within(request, choices))} or longer: raise one of the two."
        )
    return " ".join(told)


def _quickest_within(request: Request, choices: Sequence[Choice]) -> float:
    within = [each.time.value for each in choices if (each.bill.usd or 0.0) <= request.budget_usd]
    return min(within)


def _sized(choice: Choice) -> str:
    return f"{format_count(choice.num_accelerators)} x {choice.accelerator}"


def _range(choice: Choice) -> str:
    time = choice.time
    return f"{format_duration(time.value)} ({format_duration(time.low)} to {format_duration(time.high)})"


def _usd(amount: float) -> str:
    return f"{format_si(amount)} USD"
