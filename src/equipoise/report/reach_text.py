"""What money and time are enough for: how it is said, on pages and in terminals."""

import math
from collections.abc import Callable
from typing import Final

from equipoise.advice.reach import Limit, Reach
from equipoise.stats import Interval
from equipoise.units import format_duration, format_percent, format_si

ENDS: Final[dict[Limit, str]] = {
    "budget": "the budget",
    "deadline": "the deadline",
    "memory": "the memory: money and time would do for more",
}


def there_is(found: Reach) -> str:
    """Money and time there are."""
    told = []
    if math.isfinite(found.question.budget_usd):
        told.append(f"{found.question.budget_usd:,.10g} USD")
    if math.isfinite(found.question.deadline_s):
        told.append(format_duration(found.question.deadline_s))
    return " and ".join(told)


def unit(found: Reach) -> str:
    """What the amounts of a training are counted in."""
    return "tokens" if found.has_tokens else "samples"


def sized(found: Reach) -> str:
    """What the answer is counted in."""
    return "parameters" if found.asked == "model" else unit(found)


def shape(found: Reach) -> str | None:
    """The model that is asked for, by its sizes."""
    if found.asked != "model" or found.shape is None:
        return None
    sizes = found.shape
    experts = f", {sizes.experts} experts" if sizes.experts else ""
    return (
        f"{sizes.layers} layers, hidden {sizes.hidden:,}, {sizes.heads} heads, feed-forward "
        f"{sizes.ffn_hidden or sizes.expert_ffn_hidden:,}{experts}"
    )


def ratio(found: Reach) -> str | None:
    """Tokens a parameter of the model; None where samples are no tokens."""
    if found.params is None or not found.has_tokens:
        return None
    return f"{found.tokens.value / found.params.value:.3g} a parameter"


def ranged(amount: Interval, form: Callable[[float], str]) -> str:
    """An amount and its interval."""
    if amount.low == amount.high:
        return form(amount.value)
    return f"{form(amount.value)} ({form(amount.low)} to {form(amount.high)}, {format_percent(amount.level)})"


def carried_through(money: Interval) -> str | None:
    """What the training may cost where it is carried through whatever it costs; None where that is known."""
    if money.low == money.high:
        return None
    ends = f"{format_si(money.low)} to {format_si(money.high)}"
    return f"{ends} to carry it through, {format_percent(money.level)}"


def ground(found: Reach) -> tuple[str, ...]:
    """What the answer rests on."""
    told = list(found.assumes)
    if found.option.bill.money is not None and found.limit == "budget":
        told.append("the range is that of time and price; where it is cheaper or faster there is more")
    elif found.limit == "deadline":
        told.append("the range is that of the time")
    return tuple(told)
