"""What would change the answer: solved for by choosing again with one input moved."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from equipoise.decide.answer import Candidate, Flip
from equipoise.decide.select import Figures, Group, Rule, choose, figures_of
from equipoise.economics.uncertainty import Input, Tornado, tornado
from equipoise.units import HOUR_S

TIME, PRICE = "time of the training", "price per accelerator-hour"
# Beyond a factor of ten another answer is no flip of this one.
_FARTHEST: Final = 10.0
_STEPS: Final = 40
_BISECTIONS: Final = 24


def flips(
    candidates: Sequence[Candidate], rule: Rule, balance: Mapping[Group, int | None], best: Candidate
) -> tuple[Flip, ...]:
    """For each input that can change the choice within a factor of ten: the nearest value at which it does.

    Prices of every system, the speed of the recommended one (as MFU where it is known), the limits, the value
    of an hour.
    """
    figures = [figures_of(each) for each in candidates if each.time_s is not None]
    found: list[Flip] = []
    prices = _prices(candidates)
    for (system, terms), price in prices.items():

        def at_price(factor: float, group: Group = (system, terms)) -> str | None:
            return choose(_priced(figures, group, factor), rule, balance)

        moved = _solved(at_price, best.id)
        if moved is not None:
            factor, to = moved
            found.append(
                Flip(
                    quantity=f"price of {system}{_terms_words(terms, system, prices)}",
                    unit="USD per accelerator-hour",
                    value=price,
                    flips_at=factor * price,
                    to=to,
                )
            )
    found += _speed(figures, rule, balance, best)
    found += _limits(figures, rule, balance, best)
    return tuple(sorted(found, key=lambda each: abs(math.log(each.flips_at / each.value))))


def _terms_words(terms: str, system: str, prices: Mapping[Group, float]) -> str:
    """The terms of a price, where the system has several."""
    several = sum(name == system for name, _ in prices) > 1
    return f" ({terms.replace('_', ' ')})" if several else ""


def _prices(candidates: Sequence[Candidate]) -> dict[Group, float]:
    return {
        (each.system, each.terms): each.price.usd_per_accelerator_hour
        for each in candidates
        if each.price is not None and each.price.usd_per_accelerator_hour > 0.0
    }


def _priced(figures: Sequence[Figures], group: Group, factor: float) -> list[Figures]:
    """The figures with one price so many times as high."""
    return [
        each._replace(usd=each.usd * factor) if each.group == group and each.usd is not None else each
        for each in figures
    ]


def _slowed(figures: Sequence[Figures], system: str, factor: float) -> list[Figures]:
    """The figures with one system so many times as slow; money and energy go with the time."""
    return [
        each._replace(
            time_s=each.time_s * factor,
            usd=None if each.usd is None else each.usd * factor,
            energy_j=None if each.energy_j is None else each.energy_j * factor,
        )
        if each.group[0] == system
        else each
        for each in figures
    ]


def _speed(
    figures: Sequence[Figures], rule: Rule, balance: Mapping[Group, int | None], best: Candidate
) -> list[Flip]:
    """How much slower or faster the recommended system would have to be."""
    moved = _solved(lambda factor: choose(_slowed(figures, best.system, factor), rule, balance), best.id)
    if moved is None:
        return []
    factor, to = moved
    if best.mfu is not None:
        return [
            Flip(
                quantity=f"MFU on {best.system}",
                unit="fraction",
                value=best.mfu,
                flips_at=best.mfu / factor,
                to=to,
            )
        ]
    assert best.time_s is not None
    value = best.time_s.value
    return [Flip(quantity=f"time on {best.system}", unit="s", value=value, flips_at=value * factor, to=to)]


def _limits(
    figures: Sequence[Figures], rule: Rule, balance: Mapping[Group, int | None], best: Candidate
) -> list[Flip]:
    """At which deadline, budget or value of an hour the choice changes."""
    found = []
    inputs = (
        ("deadline", "s", "within_s", rule.within_s),
        ("budget", "USD", "spend_usd", rule.spend_usd),
        ("value of an hour", "USD per hour", "value_of_time_usd_per_hour", rule.value_of_time_usd_per_hour),
    )
    for quantity, unit, name, value in inputs:
        if not 0.0 < value < math.inf:
            continue

        def at_limit(factor: float, name: str = name, value: float = value) -> str | None:
            moved: dict[str, Any] = {name: factor * value}
            return choose(figures, replace(rule, **moved), balance)

        moved = _solved(at_limit, best.id)
        if moved is not None:
            factor, to = moved
            found.append(Flip(quantity=quantity, unit=unit, value=value, flips_at=factor * value, to=to))
    return found


def _solved(chosen_at: Callable[[float], str | None], now: str) -> tuple[float, str] | None:
    """The factor nearest to one at which another candidate is chosen, and which; None within the range.

    Steps outwards on a logarithmic grid, then bisects the first step that changes the choice.
    """
    step = math.log(_FARTHEST) / _STEPS
    for number in range(1, _STEPS + 1):
        changes = []
        for sign in (1.0, -1.0):
            outer = sign * number * step
            to = chosen_at(math.exp(outer))
            if to is not None and to != now:
                changes.append(_bisected(chosen_at, now, outer - sign * step, outer))
        if changes:
            return min(changes, key=lambda each: abs(math.log(each[0])))
    return None


def _bisected(
    chosen_at: Callable[[float], str | None], now: str, inner: float, outer: float
) -> tuple[float, str]:
    """The change between two logarithms of a factor."""
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
    """What moves the money of a candidate: each cause from one end of its interval to the other.

    Of accelerator-hours where there is no price; None where the time cannot be estimated.
    Source: money = accelerators x hours x price, each moved alone.
    """
    if candidate.time_s is None:
        return None
    size, time = candidate.num_accelerators, Input(name=TIME, unit="s", interval=candidate.time_s)
    if candidate.price is None:
        return tornado("accelerator-hours", "h", lambda values: values[TIME] * (size / HOUR_S), (time,))
    hourly = Input(name=PRICE, unit="USD", interval=candidate.price.interval)
    return tornado(
        "money", "USD", lambda values: values[TIME] * values[PRICE] * (size / HOUR_S), (time, hourly)
    )
