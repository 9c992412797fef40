"""What a user must see first: what to take, what it takes, what was chosen, whether a larger size pays."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.decide.answer import (
    CONSTRAINTS,
    LIKELY,
    Answer,
    Candidate,
    Constraint,
    MemoryUse,
    SaferStrategy,
    SizeStep,
    TimeValue,
)
from equipoise.decide.evidence import CHECK, NOT_USED, Grade, Group
from equipoise.decide.question.query import SOUGHT, TrainingQuery
from equipoise.decide.select import figures_of
from equipoise.economics.ownership import Ownership, Way
from equipoise.economics.quotes import Charges
from equipoise.perfmodel.generation import RolloutSplit
from equipoise.report import format as amounts
from equipoise.report.blocks import Badge, Block, Code, Facts, Labelled, Span, Strong, facts
from equipoise.report.format import TIMES, capital, count, listed, printable, sentence
from equipoise.scaling.equilibrium import default_answer, returns_words, stop_words
from equipoise.spec.hardware import TERM_WORDS
from equipoise.units import MINUTE_S, format_count, format_percent, format_si, format_stated, plural

# What an answer rests on, in short and in full.
GRADES: Final[dict[Grade, tuple[str, str]]] = {
    "measured": ("measured by you", "your measured runs"),
    "published": ("published results", "published results of this system and size"),
    "carried": (
        "published, carried over",
        "published results carried over from other sizes, rounds or chips",
    ),
    "calibrated": ("calibrated model", "the calibrated performance model; no run of this training"),
    "priors": ("priors only", "the performance model without calibration: treat it as a rough guess"),
}
_VENDORS: Final = ("NVIDIA ", "AMD ", "Intel ", "Google ")
_JOINT: Final = " + "  # between the titles of a mixture
_LEAST_GOODPUT_SHOWN: Final = 0.99
# What the list of what is assumed keeps: the hint behind a choice, "(--precision for others)", its source.
_HINT: Final = re.compile(r" \(--[^)]*\)|(?<=as published) \([^)]*\)")


def title_of(candidate: Candidate) -> str:
    """Number and kind of accelerators, as 64 x H100 SXM5 80 GB with a multiplication sign.

    Of a system, whose name is not that of its accelerator, and of a mixture: 64 accelerators of DGX H100.
    """
    name = chip_of(candidate.title)
    if candidate.system == candidate.accelerator and _JOINT not in name:
        return f"{count(candidate.num_accelerators)} {TIMES} {name}"
    return f"{plural(candidate.num_accelerators, 'accelerator')} of {name}"


def offer_title(candidate: Candidate) -> str:
    """Number and kind of accelerators, with the terms unless they are the usual ones."""
    terms = "" if candidate.terms == "on_demand" else f", {TERM_WORDS[candidate.terms]}"
    return f"{title_of(candidate)}{terms}"


def chip_of(title: str) -> str:
    """The title of a system or chip without its vendor."""
    return _JOINT.join(
        next((name.removeprefix(each) for each in _VENDORS if name.startswith(each)), name)
        for name in printable(title).split(_JOINT)
    )


_MOST_NAMED: Final = 3


def about(answer: Answer) -> str:
    """The question; a single system is named by what follows, many by the tables."""
    names = [chip_of(each.title) for each in answer.systems]
    where = listed(names) if len(names) <= _MOST_NAMED else f"{len(names)} systems"
    on = f" on {where}" if len(names) > 1 or answer.recommended is None else ""
    return sentence(f"{answer.workload.title}{on}, to {answer.work}")


def takes(each: Candidate) -> str:
    """Time and money, as far as they are known."""
    usd = amounts.usable(each.usd)
    known = [] if each.time_s is None else [amounts.duration(each.time_s.value)]
    return ", ".join(known + ([] if usd is None else [amounts.money(usd.value)]))


# Of the hosts that are sold: 16 accelerators, and 64 where a rack is one.
_MOST_OF_ONE_HOST: Final = 64


def headline(answer: Answer) -> str:
    """What to take, or that nothing meets the limits; whether the time rests on no measurement."""
    best = answer.recommended
    if best is None:
        reason = "meets your limits" if answer.refusal is not None else "can be estimated"
        return f"No configuration {reason}"
    nodes = f" ({plural(best.num_nodes, _node(answer))})" if best.num_nodes is not None else ""
    guess = f" ({GRADES[best.grade][0]})" if best.grade == "priors" else ""
    return f"Take {offer_title(best)}{nodes}: {takes(best)}{guess}"


def _node(answer: Answer) -> str:
    """What a node of the system is called: accelerators of many hosts on one torus are a pod."""
    nodes = answer.system.cluster
    is_pod = nodes is not None and nodes.topology == "torus" and nodes.node_size > _MOST_OF_ONE_HOST
    return "pod" if is_pod else "node"


def _facts(answer: Answer, best: Candidate, *, is_brief: bool, is_tight: bool = False) -> Iterator[Labelled]:
    yield "Time", tuple(_time(answer, best))
    yield "Money", tuple(_money(answer, best))
    yield from _paid_for(answer, best, is_brief=is_brief)
    energy, mass = amounts.usable(best.energy_j), amounts.usable(best.carbon_kg)
    # Where several systems compete their rows need the lines, but what the question is about.
    needs_rows = is_brief and (is_tight or len(answer.systems) >= _MOST_NAMED)
    if energy is not None and not (needs_rows and answer.question.objective != "energy"):
        carbon = "" if mass is None else f", {amounts.mass(mass.value)} of CO2"
        yield "Energy", f"{amounts.energy(energy.value)}{carbon}"
    if best.strategy is not None:
        text, shown = best.strategy.text(), (best.strategy.implementation, best.strategy.precision)
        how = ", ".join(each for each in shown if f"={each}" not in text)
        yield ("Strategy", (Code(sentence(text)), f"; {how}" if how else ""))
    elif best.user_run is not None:
        run = best.user_run
        rate = f"{format_si(run.samples_per_s)} samples/s at batch {count(run.global_batch_samples)}"
        yield "Strategy", (sentence(run.strategy or "one device"), f", as measured: {rate}")
    yield from _step_facts(answer, best, is_brief=is_brief)
    chosen = "; ".join(_chosen(answer, best))
    if chosen:
        yield "Chosen", capital(sentence(chosen))
    step = larger(answer)
    if step is not None:
        yield "Larger?", step
    for begin in (NOT_USED, CHECK):
        doubtful = [each.removeprefix(begin) for each in answer.notes if each.startswith(begin)]
        if doubtful:
            yield begin.removesuffix(": "), sentence(doubtful[0])
    if not (is_brief and answer.question.compares_rentable):
        # On one screen what is paid for, generated or published takes the line of what the step to a larger
        # size says: of a published training only where that names whose limit it is.
        is_published = answer.limited_by is not None and _published_words(answer, best) is not None
        takes_line = bool(best.charges or answer.rollout) or is_published
        is_said = is_brief and takes_line and step is not None
        yield from _trade_offs(answer, best, is_brief=is_brief, with_returns=not (needs_rows or is_said))
    yield "Evidence", capital(evidence_words(answer, best))


def _trade_offs(answer: Answer, best: Candidate, *, is_brief: bool, with_returns: bool) -> Iterator[Labelled]:
    """Where returns diminish, what an hour is worth, and what buying brings."""
    if with_returns:
        yield "Returns", capital(returns_words(answer.equilibria, subject="they"))
    hours = _values_around(answer, best)
    # On one screen what is paid for takes its lines, but where the question states what an hour is worth.
    is_asked = answer.question.objective == "value_of_time"
    is_about_money = answer.question.objective != "energy" and (is_asked or not best.charges)
    if hours is not None and (is_about_money or not is_brief):
        yield "An hour", hours
    if answer.ownership is not None:
        yield "Buying", _buying(answer.ownership)


def _step_facts(answer: Answer, best: Candidate, *, is_brief: bool) -> Iterator[Labelled]:
    """What a step is made of: its batch, and what is generated for it."""
    if best.global_batch_samples is not None:
        yield "Batch", "; ".join(_batch(answer, best, is_brief=is_brief))
    if answer.rollout is not None:
        yield "Rollouts", _rollouts(answer.rollout)


def _rollouts(split: RolloutSplit) -> str:
    """Which accelerators generate and which train, in the seconds of the model."""
    engine = f"engines of {count(split.ranks_per_engine)}"
    whole = (
        f"generation {amounts.duration(split.generation_s)} ({engine}), then training "
        f"{amounts.duration(split.training_s)} per step as modelled"
    )
    if split.pooled_step_s is None or split.num_generating is None or split.num_training is None:
        return f"{whole}; no two pools of them fit"
    ratio = split.shared_step_s / split.pooled_step_s
    return (
        f"{whole}. Two pools ({count(split.num_generating)} + {count(split.num_training)}), "
        f"one step behind: {ratio:.2f}x as fast"
    )


def _chosen(answer: Answer, best: Candidate) -> Iterator[str]:
    """What was chosen because the question leaves it open, except what other lines have."""
    strategy = best.strategy
    shown = [] if strategy is None else [f"precision {strategy.precision}", f"{strategy.implementation} code"]
    shown.append(f"software {answer.system.software}")
    for each in answer.chosen_for_you:
        words = _HINT.sub("", each).rstrip(".")
        if words not in shown:
            yield words


def evidence_words(answer: Answer, best: Candidate) -> str:
    """What the answer rests on, and on measurements of which software where that is known."""
    software, factor = answer.system.software, answer.system.time_per_step_time
    _, full = GRADES[best.grade]
    if best.grade == "measured" and factor is not None and factor != 1.0:
        return f"{full}, their step time \u00d7 {factor:.2f}"
    if software is None or best.grade != "calibrated":
        return full
    trained = answer.workload.trained if best.strategy is None else best.strategy.trained
    is_unlike = answer.workload.is_unlike_published(trained)
    published = None if answer.question.is_to_target else _published_words(answer, best)
    if published is not None:
        return f"model of {software}; published {published}"
    lacks = "none published of its kind" if is_unlike else "no run of this training"
    if factor is not None and factor != 1.0:
        if answer.workload.rollout is not None:
            return f"model of {software}; a step takes {factor:.2f} times as long, as published"
        return f"model of {software}, its step time \u00d7 {factor:.2f}; {lacks}"
    return f"model of {software}, its steps alone; {lacks}"


# Of sizes and amounts that count as others.
_OTHER_AMOUNT: Final = 2.0
_SAME_TOKENS: Final = 0.01


def _published_words(answer: Answer, best: Candidate) -> str | None:
    """What the published pretraining of the very model on the chip took of the answer's; None: there is none.

    Where that is outside of the answer's range: what differs between the two.
    """
    from equipoise.decide.explanation.published_nearby import published_itself  # noqa: PLC0415 - of few answers

    found = published_itself(answer)
    if found is None:
        return None
    number = found.num_accelerators
    on = f" on {count(number)}" if number is not None else ""
    tokens = answer.question.training_tokens or found.tokens
    per = "" if abs(tokens / found.tokens - 1.0) < _SAME_TOKENS else " per token"
    words = f"{found.title}{on}: {1.0 / found.answer_ratio:.2g}x this answer's accelerator-hours{per}"
    planned = None if best.strategy is None else best.strategy.precision
    differs = [f"in {found.precision}, not {planned}"] if found.precision not in {None, planned} else []
    if found.is_in_range:
        return f"{words}{', ' if differs else ''}{listed(differs)}"
    if number is not None and max(number, best.num_accelerators) >= _OTHER_AMOUNT * min(
        number, best.num_accelerators
    ):
        differs.append(f"not on {count(best.num_accelerators)}")
    side = "below" if found.answer_ratio > 1.0 else "above"
    return f"{words}, {side} its range ({listed(differs or ['other software'])})"


WAYS: Final[dict[Way, str]] = {"rent": "rented", "buy": "bought", "own": "already yours"}


def _buying(found: Ownership) -> str:
    """What buying one accelerator brings against renting it, and an hour of use of each way to have one."""
    value, after = found.return_usd, amounts.months(found.horizon_months)
    ahead = "cheaper" if value.value >= 0.0 else "more expensive"
    hours = ", ".join(f"{amounts.sums(each.usd.value)} {WAYS[each.way]}" for each in found.hourly)
    return (
        f"After {after} {amounts.money(abs(value.value))} {ahead} per accelerator than renting "
        f"({amounts.sums(value.low)} to {amounts.money(value.high)}); "
        f"{amounts.probability(found.break_even_probability)} chance to break even. "
        f"{amounts.currency()} per hour: {hours}"
    )


def _time(answer: Answer, best: Candidate) -> Iterator[Span]:
    time = best.known_time_s
    yield Strong(amounts.duration(time.value))
    yield f" ({amounts.duration_range(time)}, {format_percent(time.level)} range)"
    if _noticed_start_s(answer, best):
        yield f", after {amounts.duration(answer.question.start_s)} of starting"
    elif time.value < MINUTE_S:
        yield "; starting takes longer"  # machines, data, weights and compiling come before the first step
    if best.goodput is not None and best.goodput.value < _LEAST_GOODPUT_SHOWN:
        yield f", goodput {amounts.share(best.goodput.value)}"
    for each in best.constraints:
        if each.name == "deadline_s" and each.probability is not None:
            chance = amounts.probability(each.probability)
            yield f"; deadline {format_stated(each.limit)}{queue_within(answer.question)}: {chance} chance"
            yield from _likelier(answer, best, each.probability)


def _likelier(answer: Answer, best: Candidate, chance: float) -> Iterator[str]:
    """The least of the larger sizes that likely keeps the deadline which the choice may well miss, if any.

    Where several systems compete, their rows need the line.
    """
    if chance >= LIKELY or len(answer.systems) >= _MOST_NAMED:
        return
    larger = [
        (each.num_accelerators, limit.probability)
        for each in answer.candidates
        if each.group == best.group and each.num_accelerators > best.num_accelerators
        for limit in each.constraints
        if limit.name == "deadline_s" and limit.probability is not None and limit.probability >= LIKELY
    ]
    if larger:
        size, likely = min(larger)
        yield f", {amounts.probability(likely)} on {count(size)}"


# Of the time of a training: what starting is then of it decides nothing.
_NOTICED_START: Final = 0.1


def _noticed_start_s(answer: Answer, best: Candidate) -> float:
    """What comes before the first step, where it is a good part of the time; else zero."""
    start_s = answer.question.start_s
    return start_s if start_s >= _NOTICED_START * best.known_time_s.value else 0.0


def _paid_for(answer: Answer, best: Candidate, *, is_brief: bool) -> Iterator[Labelled]:
    """What the money of a quote is for, and what no commitment would cost where that is less."""
    if best.charges is None or best.price is None:
        return
    parts = (f"{amounts.money(usd)} for {what}" for what, usd in charged_for(best.charges) if usd)
    basis = "" if is_brief else f" ({sentence(best.price.basis)})"
    yield "Paid for", f"{listed([*parts])}{basis}"
    if (free := answer.without_commitment) is not None and free.usd is not None:
        yield "On demand", f"{amounts.money(free.usd.value)}, without a commitment (--terms on_demand)"


def charged_for(paid: Charges) -> tuple[tuple[str, float], ...]:
    """What the money of a quote is for, each with its amount."""
    return (
        ("hours used", paid.used_usd),
        ("unused commitment", paid.unused_usd),
        ("storage", paid.storage_usd),
        ("egress", paid.egress_usd),
    )


def power_price(answer: Answer, best: Candidate) -> str:
    """What a kilowatt-hour costs that the money of an owned machine is made of."""
    power = answer.system.rates[best.terms].electricity
    if power is None:
        return ""
    whose = "" if answer.question.electricity_usd_per_kwh is not None else " (--electricity)"
    return f", {amounts.rate(power.usd_per_kwh.value)} per kWh{whose}"


def _money(answer: Answer, best: Candidate) -> Iterator[Span]:
    taken_h = best.accelerator_hours
    hours = "" if taken_h is None else f"{amounts.digits(taken_h)} accelerator-hours"
    usd = amounts.usable(best.usd)
    if usd is None:
        why = "no price is known (--price)" if best.usd is None else "the range is too wide to be used"
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
    if best.price is not None and best.price.is_owned:
        yield f" of your own machine: electricity only{power_price(answer, best)}"
    elif best.price is not None:
        where = f" ({sentence(best.price.basis)})" if answer.question.compares_rentable else _lone_offer(best)
        yield f" at {amounts.rate(best.price.usd_per_accelerator_hour)}{where}"
    started_s = _noticed_start_s(answer, best)
    whole_usd = figures_of(best).with_start(started_s).usd if started_s else None
    if whole_usd:
        yield f"; with starting {amounts.money(whole_usd)}"
    for each in best.constraints:
        if each.name == "budget_usd" and each.probability is not None:
            chance = amounts.probability(each.probability)
            yield f"; budget {amounts.limit(each.limit)}: {chance} chance"


def _lone_offer(best: Candidate) -> str:
    """Whose price it is where one provider alone states any: others may ask for half or double."""
    offers = () if best.price is None else best.price.offers
    return f" (one offer: {sentence(offers[0].provider)})" if len(offers) == 1 else ""


def _batch(answer: Answer, best: Candidate, *, is_brief: bool) -> Iterator[str]:
    batch = best.global_batch_samples
    assert batch is not None
    step = "" if best.step_s is None else f" per step of {amounts.duration(best.step_s.value)}"
    factor = None if answer.question.is_to_target else answer.system.time_per_step_time
    if best.step_s is not None and factor is not None and factor > 1.0 and answer.rollout is None:
        alone = amounts.duration(best.step_s.value / factor)
        step += f" ({factor:.2f} {amounts.TIMES} {alone}, as whole pretrainings take)"
    each = answer.workload.samples_per_example
    pairs = f" ({format_count(batch // each)} pairs)" if each > 1 else ""
    yield f"{format_count(batch)} {'sample' if batch == 1 else 'samples'}{pairs}{step}"
    if best.mfu is not None:
        yield f"MFU {amounts.share(best.mfu)} of the {best.mfu_precision} peak"
    if best.memory is not None:
        yield _memory(best.memory)
    # On one screen other systems, or what is generated, need the lines.
    has_room = not is_brief or (len(answer.systems) == 1 and answer.rollout is None)
    if answer.safer is not None and has_room:
        yield _otherwise(best, answer.safer)


def _memory(planned: MemoryUse) -> str:
    """What is planned of the memory of an accelerator, and how likely that fits where it is not sure."""
    held = planned.available_bytes
    if held is None:
        return f"{amounts.memory(planned.needed_bytes)} memory"
    needed, whole = amounts.apart(planned.needed_bytes, held, "B")
    chance = planned.fits_probability
    if chance is None or chance >= LIKELY:
        return f"{needed} of {whole} memory"
    return f"{needed} of {whole}, {amounts.probability(chance)} likely to fit"


def _otherwise(best: Candidate, safer: SaferStrategy) -> str:
    """What to change of the recommended strategy where it does not fit, and the time by that."""
    assert best.strategy is not None
    time_s = safer.time_ratio * best.known_time_s.value
    return f"else {best.strategy.changes_to(safer.strategy)}: {amounts.duration(time_s)}"


def groups(candidates: Sequence[Candidate]) -> dict[Group, list[Candidate]]:
    """Candidates by system and terms, the smallest size first."""
    found: dict[Group, list[Candidate]] = {}
    for each in sorted(candidates, key=lambda one: one.num_accelerators):
        found.setdefault(each.group, []).append(each)
    return found


RECOMMENDED: Final = Badge(text="recommended", tone="good")


def is_recommended(answer: Answer, each: Candidate) -> bool:
    """Whether a candidate is the one to take."""
    return answer.recommended is not None and each.id == answer.recommended.id


def place_of(one: Candidate, among: Sequence[Candidate]) -> int | None:
    """The place of a candidate among others; None where it is none of them."""
    return next((place for place, each in enumerate(among) if each.id == one.id), None)


def larger(answer: Answer) -> tuple[Span, ...] | None:
    """Whether the step to the recommended size pays, and the step beyond it; None of a single size."""
    steps = answer.steps
    if steps is None:
        return None
    spans = [] if steps.taken is None else [*_taken(answer, steps.taken, steps.longer)]
    if steps.beyond is not None:
        spans += [". " if spans else "", *_beyond(answer, steps.beyond, steps.taken)]
    return (*spans, ".")


def _least(step: SizeStep) -> str:
    """How many times as fast a step must be to pay."""
    return amounts.factor_from(step.least_speedup)


def _taken(answer: Answer, step: SizeStep, longer: SizeStep | None) -> Iterator[Span]:
    """The step to the recommended size. longer: one over more sizes that pays, where this one does not."""
    if step.pays:
        yield Strong("Yes")
        yield f", {_step(step)}"
        return
    speed = _short_speed(answer, step)
    if longer is None:
        yield Strong("No")
        yield f", {_step(step, speed=speed)} (pays from {_least(step)})"
        yield _despite(answer, step.before)
        return
    yield Strong("Yes")
    over = f"over {count(step.before.num_accelerators)} {speed}, short of {_least(step)}"
    fast = f"{amounts.factor(longer.speedup)} as fast"  # its range has no room
    yield f", {_step(longer, speed=fast)} ({over})"


def _short_speed(answer: Answer, step: SizeStep) -> str:
    """How many times as fast a step is that does not pay; with the time to start where that is why."""
    if not step.pays_by_times:
        return amounts.factor_below(step.speedup, step.least_speedup)
    speed = amounts.factor_below(step.started_speedup, step.least_speedup)
    return f"{speed} with {amounts.duration(answer.question.start_s)} to start"


def _despite(answer: Answer, before: Candidate) -> str:
    """Why a size is recommended to which no step pays."""
    if before.broken:
        return f"; {count(before.num_accelerators)} {limit_words(answer, before.broken[0])}"
    objective = answer.question.objective
    return "" if objective == "balance" else f"; {SOUGHT[objective]} decides"


def _beyond(answer: Answer, step: SizeStep, taken: SizeStep | None) -> Iterator[Span]:
    """The step to the next size: what it would bring, and what speaks against it. taken: the one before."""
    beyond = step.after
    # The step before it has named from when on it would pay.
    is_short = taken is not None and not taken.pays
    yield Strong("No")
    if beyond.broken and is_short:  # nobody asks whether it pays
        broken = beyond.broken[0]
        verb = "is " if broken.name == "max_accelerators" else ""
        yield f", {count(beyond.num_accelerators)} {verb}{limit_words(answer, broken)}"
        return
    yield f", {_step(step, is_second=taken is not None)}"
    is_said = taken is not None and not taken.pays and _least(step) == _least(taken)
    least = "" if is_said else f"a step pays from {_least(step)} on"
    if beyond.broken:
        yield f"; {limit_words(answer, beyond.broken[0])}"
    elif step.pays:
        yield f", which pays, but {_stops(answer, step.before)}"
    elif step.pays_by_times:
        speed = amounts.factor_below(step.started_speedup, step.least_speedup)
        is_named = taken is not None and not taken.pays and taken.pays_by_times
        counted = "that" if is_named else f"{amounts.duration(answer.question.start_s)} to start"
        yield f"; with {counted} {speed}{least and f', and {least}'}"
    elif least:
        yield f"; {least}"


def _stops(answer: Answer, best: Candidate) -> str:
    """Why a step beyond the recommended size is not taken though it pays by itself."""
    objective = answer.question.objective
    if objective != "balance":
        return f"the objective is the {SOUGHT[objective]}"
    if not answer.equilibria:
        return returns_words(())
    point = default_answer(answer.equilibria)
    if point.num_accelerators < best.num_accelerators:
        return f"{count(best.num_accelerators)} is the fewest that keeps your limits"
    return stop_words(point)


def _speed(value: float, least: float) -> str:
    """How many times as fast a step is, in digits that show on which side it is of one that pays."""
    return amounts.factor_below(value, least) if value < least else amounts.factor(value)


def _step(step: SizeStep, *, speed: str | None = None, is_second: bool = False) -> str:
    """A size against a smaller one: how many times as fast, for how much of the money.

    speed: in words, unless as the times shown. is_second: what the two numbers are was said before.
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
    return f"{count(after.num_accelerators)} over {count(before.num_accelerators)}: {fast} for {cost}"


def limits_broken(each: Candidate) -> str:
    """The limits that a candidate does not keep, in two words each."""
    return ", ".join(
        "no price" if one.lacks_price else CONSTRAINTS[one.name].broken.format(limit=count(one.limit))
        for one in each.broken
    )


def after_queue(answer: Answer) -> str:
    """What follows the time of a training that waits in a queue first."""
    return " after the queue" if answer.question.queue_s else ""


def queue_within(question: TrainingQuery) -> str:
    """What follows a deadline of which a queue takes a part."""
    return f" with {format_stated(question.queue_s)} in the queue" if question.queue_s else ""


def limit_words(answer: Answer, broken: Constraint) -> str:
    """A limit that is not kept, as a predicate."""
    if broken.name == "deadline_s":
        return f"misses the deadline of {format_stated(broken.limit)}{queue_within(answer.question)}"
    if broken.lacks_price:
        return "has no known price"
    if broken.name == "budget_usd":
        return f"exceeds the budget of {amounts.limit(broken.limit)}"
    if broken.name == "memory_bytes":
        needed = "" if broken.value is None else f"needs {amounts.memory(broken.value)} "
        return f"{needed}of {amounts.memory(broken.limit)} memory"
    question = answer.question
    stocks = (each.stock for each in answer.systems)
    limits = (question.max_accelerators, question.sizes, question.num_nodes, *stocks)
    is_users = any(each is not None for each in limits)
    return f"beyond {'your limit of' if is_users else 'the largest tried,'} {count(broken.limit)}"


def worth_words(values: Sequence[TimeValue], place: int) -> str:
    """At which value of an hour a candidate costs least."""
    if len(values) == 1:
        return "anything"
    if place == 0:
        return f"less than {hour_usd(values[1])} {amounts.currency()}"
    if place + 1 == len(values):
        return f"more than {hour_usd(values[place])} {amounts.currency()}"
    return f"{hour_usd(values[place])} to {hour_usd(values[place + 1])} {amounts.currency()}"


def shown_values(answer: Answer, best: Candidate) -> tuple[TimeValue, ...]:
    """What costs least at which value of an hour, but for ranges whose ends are written alike."""
    values = answer.time_values
    ends = (*(hour_usd(each) for each in values[1:]), None)
    return tuple(
        each
        for each, end in zip(values, ends, strict=False)
        if each.candidate == best.id or hour_usd(each) != end
    )


def _values_around(answer: Answer, best: Candidate) -> str | None:
    """From which value of an hour on another candidate costs less than the choice; None without prices."""
    parts = _around_value(answer, best)
    if not parts:
        return None
    # Of one system on several terms a number alone would not say which.
    has_terms = any(each.system == best.system and each.terms != best.terms for _, each in parts)
    pairs = (
        f"{worth}: {offer_title(each) if has_terms else size_beside(each, best)}" for worth, each in parts
    )
    counted = ", with starting" if _noticed_start_s(answer, best) else ""
    return f"worth {'; '.join(pairs)}{counted}"


def _around_value(answer: Answer, best: Candidate) -> list[tuple[str, Candidate]]:
    """The value of an hour at which the choice costs least, and its neighbours, each with its candidate.

    Where the choice costs least at no value: the nearest slower and faster ones that do.
    """
    values = shown_values(answer, best)
    if len(values) < 2 or best.time_s is None:  # noqa: PLR2004 - one candidate at every value
        return []
    found = [answer.candidate(each.candidate) for each in values]
    at = place_of(best, found)
    if at is not None:
        parts = [(worth_words(values, at), at)] + ([("less", at - 1)] if at else [])
    else:
        faster = (
            place for place, each in enumerate(found) if each.time_s and each.time_s.value < best.time_s.value
        )
        at = min(max(0, next(faster, len(values)) - 1), len(values) - 2)
        parts = [(f"less than {hour_usd(values[at + 1])} {amounts.currency()}", at)]
    parts += [("more", at + 1)] if at + 1 < len(values) else []
    return [(words, found[place]) for words, place in parts]


def named_beside(answer: Answer, best: Candidate) -> list[str]:
    """The ids of the candidates that the first lines name next to the recommended one, the nearest first."""
    ends = () if answer.steps is None else answer.steps.ends
    values = [each for _, each in _around_value(answer, best)]
    return [each.id for each in (*ends, *values) if each.id != best.id]


def left_out(answer: Answer, shown: Sequence[Block]) -> str:
    """The labels of the figures that the short form has no room for. shown: its blocks."""
    labels = {label for block in shown if isinstance(block, Facts) for label, _ in block.items}
    every = () if answer.recommended is None else _facts(answer, answer.recommended, is_brief=False)
    return ", ".join(label for label, _ in every if label not in labels)


def size_beside(each: Candidate, best: Candidate | None) -> str:
    """The size alone where all else is as recommended; else which system and terms too."""
    is_same = best is not None and each.group == best.group
    return count(each.num_accelerators) if is_same else offer_title(each)


def hour_usd(value: TimeValue) -> str:
    """From which value of an hour on, to two digits."""
    return hour_digits(value.from_usd_per_hour)


def hour_digits(usd_per_hour: float) -> str:
    """A value of an hour to two digits, in the currency shown, wherever it stands."""
    return amounts.digits(float(f"{amounts.converted(usd_per_hour):.2g}"))


def answer_blocks(answer: Answer, *, is_brief: bool = False, is_tight: bool = False) -> tuple[Block, ...]:
    """The figures of the recommended candidate, and the lines that explain this size.

    is_tight: without those that others may take the place of.
    """
    best = answer.recommended
    return () if best is None else (facts(_facts(answer, best, is_brief=is_brief, is_tight=is_tight)),)
