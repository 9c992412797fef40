"""What comes closest to the advice, and when it would win."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from equipoise.advice.answer.advice import Alternative, Choice, Standing
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.chosen import worth
from equipoise.economics import bill
from equipoise.stats import Interval
from equipoise.units import HOUR_S, format_count, format_duration, format_percent, format_si

NUM_TOLD = 2


def alternatives(request: Request, standing: Standing, others: Sequence[Standing]) -> tuple[Alternative, ...]:
    """The closest alternatives by the objective: another size or accelerator, and another layout.

    Where there is no other layout, the two nearest sizes or accelerators.
    """
    best = standing.recommended
    if best is None:
        return ()

    def apart(each: Alternative) -> float:
        return abs(worth(each.choice, request.objective) / worth(best, request.objective) - 1.0)

    machines = sorted([*_accelerators(best, others), *_sizes(best, standing)], key=apart)
    layouts = [*_layouts(best, standing)]
    return (*machines[: NUM_TOLD - len(layouts)], *layouts)


def _sizes(best: Choice, standing: Standing) -> Iterator[Alternative]:
    """The next smaller and the next larger size."""
    smaller = [each for each in standing.everyone if each.num_accelerators < best.num_accelerators]
    larger = [each for each in standing.everyone if each.num_accelerators > best.num_accelerators]
    if smaller:
        yield Alternative(choice=smaller[-1], words=_sized(smaller[-1]), wins_when=_slower(best, smaller[-1]))
    if larger:
        yield Alternative(choice=larger[0], words=_sized(larger[0]), wins_when=_faster(best, larger[0]))


def _sized(choice: Choice) -> str:
    amount = choice.bill.usd
    paid = "" if amount is None else f", {_usd(amount)}"
    return (
        f"{format_count(choice.num_accelerators)} x {choice.accelerator}: "
        f"{format_duration(choice.time.value)}{paid}"
    )


def _slower(best: Choice, other: Choice) -> str:
    """When fewer win: where an hour is worth less than it costs to save it."""
    if other.time.value <= best.time.value:
        return "it is as fast: wins unless the estimates of the two sizes are off by unlike factors"
    return _hour(other, best, "less")


def _faster(best: Choice, other: Choice) -> str:
    """When more win: where an hour is worth more than it costs to save it."""
    if other.time.value >= best.time.value:
        return "never by these estimates: it takes longer and costs more"
    return _hour(best, other, "more")


def _hour(slow: Choice, fast: Choice, side: str) -> str:
    saved_h = (slow.time.value - fast.time.value) / HOUR_S
    if slow.bill.usd is None or fast.bill.usd is None:
        hours = (fast.accelerator_hours - slow.accelerator_hours) / saved_h
        return f"wins where an hour saved is worth {side} than {hours:.3g} accelerator-hours"
    usd = (fast.bill.usd - slow.bill.usd) / saved_h
    if usd <= 0.0:
        return "never by these estimates" if side == "less" else "wins wherever so many are free"
    return f"wins where an hour saved is worth {side} than {_usd(usd)}"


def _layouts(best: Choice, standing: Standing) -> Iterator[Alternative]:
    """The next best strategy on as many accelerators, where the model searched them."""
    if best.option is None:
        return
    for each in standing.layouts[1:2]:
        ratio = each.time.value / best.option.time.value
        time = _times(best.time, ratio)
        yield Alternative(
            choice=replace(
                best, option=each, time=time, bill=bill(best.num_accelerators, time, standing.rates)
            ),
            words=f"another layout: {each.strategy.text()}",
            wins_when=(
                f"modelled {format_percent(round(ratio - 1.0, 3))} slower, with "
                f"{format_si(each.memory_bytes, 'B')} a chip in place of "
                f"{format_si(best.option.memory_bytes, 'B')}: wins if the model is off by that much "
                "between the two, or memory runs out"
            ),
        )


def _times(time: Interval, ratio: float) -> Interval:
    return replace(time, value=ratio * time.value, low=ratio * time.low, high=ratio * time.high)


def _accelerators(best: Choice, others: Sequence[Standing]) -> Iterator[Alternative]:
    """What the other machines asked about would take."""
    for each in others:
        other = each.recommended
        if other is None:
            continue
        ours, theirs = best.bill.usd, other.bill.usd
        wins = "wins where it is at hand and the other is not"
        if ours is not None and theirs is not None and theirs > ours:
            wins = f"is the cheaper one where its hour costs less than {_per_hour(other, ours)}"
        elif ours is not None and theirs is not None:
            wins = f"is cheaper already: wins where {format_duration(other.time.value)} is soon enough"
        yield Alternative(choice=other, words=_sized(other), wins_when=wins)


def _per_hour(choice: Choice, usd: float) -> str:
    return f"{usd / choice.accelerator_hours:.3g} USD"


def _usd(amount: float) -> str:
    return f"{format_si(amount)} USD"
