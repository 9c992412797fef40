"""The cost of the choice, whether a larger size pays, and what costs least by the value of an hour."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from equipoise.decide.answer import Answer, Candidate, SizeStep, TimeValue
from equipoise.decide.question.query import SOUGHT
from equipoise.decide.select import figures_of
from equipoise.economics.ownership import Ownership, Way
from equipoise.economics.quotes import Charges
from equipoise.report import format as amounts
from equipoise.report.blocks import Labelled, Span, Strong
from equipoise.report.format import count, listed, sentence
from equipoise.report.pages.answer.candidates import limit_words, offer_title, place_of, size_beside
from equipoise.scaling.equilibrium import default_answer, returns_words, stop_words
from equipoise.units import plural

# Start-up time below this fraction of the training time is not mentioned.
_NOTICED_START: Final = 0.1
WAYS: Final[dict[Way, str]] = {"rent": "rented", "buy": "bought", "own": "already yours"}


def noticed_start_s(answer: Answer, best: Candidate) -> float:
    """The time before the first step, if it is at least _NOTICED_START of the training time; else zero."""
    start_s = answer.question.start_s
    return start_s if start_s >= _NOTICED_START * best.known_time_s.value else 0.0


def paid_for(answer: Answer, best: Candidate, *, is_brief: bool) -> Iterator[Labelled]:
    """What a quote charges for, and the cost without a commitment if that is lower."""
    if best.charges is None or best.price is None:
        return
    parts = (f"{amounts.money(usd)} for {what}" for what, usd in charged_for(best.charges) if usd)
    basis = "" if is_brief else f" ({sentence(best.price.basis)})"
    yield "Paid for", f"{listed([*parts])}{basis}"
    if (free := answer.without_commitment) is not None and free.usd is not None:
        yield "On demand", f"{amounts.money(free.usd.value)}, without a commitment (--terms on_demand)"


def charged_for(paid: Charges) -> tuple[tuple[str, float], ...]:
    """The items of a quote, each with its amount in US dollars."""
    return (
        ("hours used", paid.used_usd),
        ("unused commitment", paid.unused_usd),
        ("storage", paid.storage_usd),
        ("egress", paid.egress_usd),
    )


def power_price(answer: Answer, best: Candidate) -> str:
    """What an hour of an owned machine costs: electricity, at which price."""
    power = answer.system.rates[best.terms].electricity
    paid = "electricity" if best.charges is not None and best.charges.extra_usd else "electricity only"
    if power is None:
        return paid
    whose = "" if answer.question.electricity_usd_per_kwh is not None else " (--electricity)"
    return f"{paid}, {amounts.rate(power.usd_per_kwh.value)} per kWh{whose}"


def money_spans(answer: Answer, best: Candidate) -> Iterator[Span]:
    """The cost of the choice, its components, and the probability of keeping the budget."""
    taken_h = best.accelerator_hours
    hours = "" if taken_h is None else f"{amounts.digits(taken_h)} accelerator-hours"
    usd = amounts.usable(best.usd)
    if usd is None:
        unknown = "no price is known (--price)"
        if best.is_owned:
            unknown = "its power, and so its electricity, is not known (power_w, --hardware)"
        why = unknown if best.usd is None else "the range is too wide to be used"
        yield f"{why}; {hours}"
        return
    yield Strong(amounts.money(usd.value))
    if amounts.digits(usd.low) != amounts.digits(usd.high):
        yield f" ({amounts.sum_ends(usd)})"
    own = answer.question.own_currency
    if own is not None:
        dated = "" if answer.question.currency_date is None else f" of {answer.question.currency_date}"
        yield f" = {amounts.digits(usd.value)} USD at {own[1]:g} {own[0]}{dated}"
    yield f"; {hours}"
    if best.is_owned:
        yield f" of your own machine: {power_price(answer, best)}"
    elif best.price is not None:
        where = f" ({sentence(best.price.basis)})" if answer.question.compares_rentable else _lone_offer(best)
        yield f" at {amounts.rate(best.price.usd_per_accelerator_hour)}{where}"
    yield _started_words(answer, best)
    for each in best.constraints:
        if each.name == "budget_usd" and each.probability is not None:
            chance = amounts.probability(each.probability)
            yield f"; budget {amounts.limit(each.limit)}: {chance} chance"


def _started_words(answer: Answer, best: Candidate) -> str:
    """The cost including start-up, if start-up is long or decides; also of what is cheaper without it."""
    cheaper, whole_usd = _cheapest_without_start(answer, best), _with_start_usd(answer, best)
    if not whole_usd or not (cheaper or noticed_start_s(answer, best)):
        return ""
    words = f"; with start-up {amounts.money(whole_usd)}"
    if cheaper is not None and (other_usd := _with_start_usd(answer, cheaper)):
        words += f" ({size_beside(cheaper, best)}: {amounts.money(other_usd)})"
    return words


def _with_start_usd(answer: Answer, each: Candidate) -> float | None:
    return figures_of(each).with_start(answer.question.start_s).usd


def _cheapest_without_start(answer: Answer, best: Candidate) -> Candidate | None:
    """The cheapest candidate without start-up, if cost decides and the choice is another one; else None."""
    if answer.question.objective != "cost" or best.usd is None:
        return None
    priced = [
        (each.usd.value, each)
        for each in answer.candidates
        if each.feasible and each.time_s is not None and each.usd is not None
    ]
    least_usd, least = min(priced, key=itemgetter(0))
    return least if least_usd < best.usd.value else None


def _lone_offer(best: Candidate) -> str:
    """The provider, if it is the only one with a price: others may charge half or double."""
    offers = () if best.price is None else best.price.offers
    return f" (one offer: {sentence(offers[0].provider)})" if len(offers) == 1 else ""


def buying_words(found: Ownership) -> str:
    """The return of buying an accelerator compared with renting, and the cost per hour of use of each way."""
    value, after = found.return_usd, amounts.months(found.horizon_months)
    ahead = "cheaper" if value.value >= 0.0 else "more expensive"
    hours = ", ".join(f"{amounts.sums(each.usd.value)} {WAYS[each.way]}" for each in found.hourly)
    return (
        f"After {after} {amounts.money(abs(value.value))} {ahead} per accelerator than renting "
        f"({amounts.sums(value.low)} to {amounts.money(value.high)}); "
        f"{amounts.probability(found.break_even_probability)} chance to break even. "
        f"{amounts.currency()} per hour: {hours}"
    )


def larger(answer: Answer) -> tuple[Span, ...] | None:
    """Whether the step to the recommended size pays, and the step beyond it; None with a single size."""
    taken, beyond = answer.steps.taken, answer.steps.beyond
    spans = [] if taken is None else [*_step_taken(answer, taken, answer.steps.longer)]
    further = [*_unfit(answer)] if beyond is None else [*_step_beyond(answer, beyond, taken)]
    if spans and further:
        spans.append(". ")
    return (*spans, *further, ".") if spans or further else None


# Sizes that a line names one by one.
_MOST_NAMED: Final = 3


def _unfit(answer: Answer) -> Iterator[Span]:
    """The larger sizes on which nothing fits, where no larger one has a time."""
    best = answer.recommended
    larger = [
        each
        for each in answer.system.unfit
        if best is not None and each.num_accelerators > best.num_accelerators
    ]
    needed = [each.needed_bytes for each in larger if each.needed_bytes is not None]
    if best is None or not larger:
        return
    sizes = [count(each.num_accelerators) for each in larger]
    named = listed(sizes) if len(sizes) <= _MOST_NAMED else f"{sizes[0]} to {sizes[-1]}"
    yield Strong("No")
    if not needed:
        yield f", no strategy runs on {named}"
        return
    available = None if best.memory is None else best.memory.available_bytes
    of = "" if available is None else f" of {amounts.memory(available)}"
    yield f", nothing fits on {named}: at least {amounts.memory(min(needed))}{of}"


def _least_speedup(step: SizeStep) -> str:
    """The least speedup at which a step pays."""
    return amounts.factor_from(step.least_speedup)


def _threshold_words(step: SizeStep, words: str) -> str:
    """The speedup from which a step pays; or why even ideal scaling would not be enough."""
    if step.least_speedup > step.after.num_accelerators / step.before.num_accelerators:
        return "more of the commitment would be unused"
    return words.format(_least_speedup(step))


def _step_taken(answer: Answer, step: SizeStep, longer: SizeStep | None) -> Iterator[Span]:
    """The step to the recommended size. longer: a step over several sizes that pays, if this one does not."""
    if step.pays:
        yield Strong("Yes")
        yield f", {_step_words(step)}"
        return
    speed = _short_speed(answer, step)
    if longer is None:
        yield Strong("No")
        yield f", {_step_words(step, speed=speed)} ({_threshold_words(step, 'pays from {}')})"
        yield _reason_despite(answer, step.before)
        return
    yield Strong("Yes")
    over = f"over {count(step.before.num_accelerators)} {speed}, short of {_least_speedup(step)}"
    fast = f"{amounts.factor(longer.speedup)} as fast"  # without the range, for lack of room
    yield f", {_step_words(longer, speed=fast)} ({over})"


def _short_speed(answer: Answer, step: SizeStep) -> str:
    """The speedup of a step that does not pay; with the start-up time if that is the reason."""
    if not step.pays_by_times:
        return amounts.factor_below(step.speedup, step.least_speedup)
    speed = amounts.factor_below(step.started_speedup, step.least_speedup)
    return f"{speed} with {amounts.duration(answer.question.start_s)} to start"


def _reason_despite(answer: Answer, before: Candidate) -> str:
    """Why a size is recommended although no step to it pays."""
    if before.broken:
        return f"; {count(before.num_accelerators)} {limit_words(answer, before.broken[0])}"
    objective = answer.question.objective
    return "" if objective == "balance" else f"; {SOUGHT[objective]} decides"


def _step_beyond(answer: Answer, step: SizeStep, taken: SizeStep | None) -> Iterator[Span]:
    """The step to the next larger size: its gain, and what speaks against it. taken: the step before it."""
    beyond = step.after
    # If the step before it does not pay, the threshold has been mentioned there.
    short = taken if taken is not None and not taken.pays else None
    yield Strong("No")
    if beyond.broken and short is not None:  # whether it pays does not matter
        broken = beyond.broken[0]
        verb = "is " if broken.name == "max_accelerators" else ""
        yield f", {count(beyond.num_accelerators)} {verb}{limit_words(answer, broken)}"
        return
    yield f", {_step_words(step, is_second=taken is not None)}"
    is_said = short is not None and step.least_speedup == short.least_speedup
    least = "" if is_said else _threshold_words(step, "it pays from {} on")
    if beyond.broken:
        yield f"; {limit_words(answer, beyond.broken[0])}"
    elif step.pays:
        yield f", which pays, but {_reason_not_taken(answer, step)}"
    elif step.pays_by_times:
        speed = amounts.factor_below(step.started_speedup, step.least_speedup)
        is_named = short is not None and short.pays_by_times
        counted = "that" if is_named else f"{amounts.duration(answer.question.start_s)} to start"
        yield f"; with {counted} {speed}{least and f', and {least}'}"
    elif least:
        yield f"; {least}"


def _reason_not_taken(answer: Answer, step: SizeStep) -> str:
    """Why a step beyond the recommended size is not taken although it pays."""
    best, objective = step.before, answer.question.objective
    if objective != "balance":
        few_usd, many_usd = (_with_start_usd(answer, each) for each in (best, step.after))
        counted = ""
        if objective == "cost" and few_usd and many_usd and (step.usd_factor or 1.0) < 1.0:
            counted = f": {amounts.factor(many_usd / few_usd)} with start-up"
        return f"the objective is the {SOUGHT[objective]}{counted}"
    if not answer.equilibria:
        return returns_words(())
    point = default_answer(answer.equilibria)
    if point.num_accelerators < best.num_accelerators:
        alike = (each for each in answer.candidates if each.feasible and each.group == best.group)
        fewest = min(each.num_accelerators for each in alike)
        words = f"{count(fewest)} is the fewest that keeps your limits"
        is_fewest = fewest == best.num_accelerators
        return words if is_fewest else f"{words}; {count(best.num_accelerators)} costs about as much"
    return stop_words(point)


def _speed(value: float, least: float) -> str:
    """The speedup of a step, with enough digits to show whether it reaches the threshold `least`."""
    return amounts.factor_below(value, least) if value < least else amounts.factor(value)


def _step_words(step: SizeStep, *, speed: str | None = None, is_second: bool = False) -> str:
    """A size compared with the next smaller one: speedup and ratio of costs.

    speed: the speedup in words; by default from the times shown. is_second: the meaning of the two numbers
    has been explained before.
    """
    before, after = step.before, step.after
    as_fast = "" if is_second else " as fast"
    fast = speed or f"{_speed(step.speedup, step.least_speedup)}{as_fast}"
    is_base = before.speedup is not None and before.speedup.value == 1.0
    if speed is None and is_base and after.speedup is not None and after.speedup.low < after.speedup.high:
        ends = amounts.ends(after.speedup, amounts.factor)
        fast = f"{_speed(after.speedup.value, step.least_speedup)}{as_fast} ({ends})"
    paid, of = step.usd_factor, " the money"
    if paid is None:
        paid, of = step.accelerator_hours_factor, " the accelerator-hours"
    cost = f"{amounts.factor(paid)}{'' if is_second else of}"
    sizes = f"{count(after.num_accelerators)} over {count(before.num_accelerators)}"
    return f"{sizes}{_further_nodes(step)}: {fast} for {cost}"


def _further_nodes(step: SizeStep) -> str:
    """The number of nodes, if a step makes the training slower by spanning more of them; else empty."""
    before, after = step.before.num_nodes, step.after.num_nodes
    if step.speedup >= 1.0 or before is None or after is None or after <= before:
        return ""
    return f", on {plural(after, 'node')}"


def worth_words(values: Sequence[TimeValue], place: int) -> str:
    """The range of values of an hour at which a candidate costs least."""
    if len(values) == 1:
        return "anything"
    if place == 0:
        return f"less than {hour_usd(values[1])} {amounts.currency()}"
    if place + 1 == len(values):
        return f"more than {hour_usd(values[place])} {amounts.currency()}"
    return f"{hour_usd(values[place])} to {hour_usd(values[place + 1])} {amounts.currency()}"


def shown_values(answer: Answer, best: Candidate) -> tuple[TimeValue, ...]:
    """The cheapest candidates by value of an hour, without ranges whose formatted bounds are equal."""
    values = answer.time_values
    ends = (*(hour_usd(each) for each in values[1:]), None)
    return tuple(
        each
        for each, end in zip(values, ends, strict=False)
        if each.candidate == best.id or hour_usd(each) != end
    )


def values_around(answer: Answer, best: Candidate) -> str | None:
    """The values of an hour at which the choice and its neighbours cost least; None without prices."""
    parts = _around_value(answer, best)
    if not parts:
        return None
    # If the system is offered on several terms, a number alone would be ambiguous.
    has_terms = any(each.system == best.system and each.terms != best.terms for _, each in parts)
    pairs = (
        f"{worth}: {offer_title(each) if has_terms else size_beside(each, best)}" for worth, each in parts
    )
    counted = ", with start-up" if noticed_start_s(answer, best) else ""
    return f"is worth {'; '.join(pairs)}{counted}"


def _around_value(answer: Answer, best: Candidate) -> list[tuple[str, Candidate]]:
    """The values of an hour at which the choice and its neighbours cost least, with their candidates.

    If the choice costs least at no value, the nearest slower and faster candidates that do.
    """
    values = shown_values(answer, best)
    if len(values) < 2 or best.time_s is None:  # noqa: PLR2004 - one candidate at every value
        return []
    found = [answer.candidate(each.candidate) for each in values]
    at = place_of(best, found)
    if at is not None:
        parts = [(f"{worth_words(values, at)} per hour", at)] + ([("less", at - 1)] if at else [])
    else:
        faster = (
            place for place, each in enumerate(found) if each.time_s and each.time_s.value < best.time_s.value
        )
        at = min(max(0, next(faster, len(values)) - 1), len(values) - 2)
        parts = [(f"less than {hour_usd(values[at + 1])} {amounts.currency()} per hour", at)]
    parts += [("more", at + 1)] if at + 1 < len(values) else []
    return [(words, found[place]) for words, place in parts]


def named_beside(answer: Answer, best: Candidate) -> list[str]:
    """The ids of the other candidates that the first lines mention, the nearest first."""
    values = [each for _, each in _around_value(answer, best)]
    return [each.id for each in (*answer.steps.ends, *values) if each.id != best.id]


def hour_usd(value: TimeValue) -> str:
    """The lower bound of a range of values of an hour, to two digits."""
    return hour_digits(value.from_usd_per_hour)


def hour_digits(usd_per_hour: float) -> str:
    """A value of an hour to two significant digits, in the currency of the page."""
    return amounts.digits(float(f"{amounts.converted(usd_per_hour):.2g}"))
