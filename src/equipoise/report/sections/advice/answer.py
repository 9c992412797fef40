"""The answer first: what to take, what it takes, and how sure that is; or what stands in the way."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.answer.advice import Advice, Choice, Standing
from equipoise.advice.answer.weighed import chance_words
from equipoise.findings import AdviceFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Tile, Tiles, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import DASH, accelerator_name, capital, count, listed, printable, sentence
from equipoise.scaling.equilibrium import words
from equipoise.stats import Interval
from equipoise.units import format_count, format_duration, format_percent, format_si, format_step

CHOSEN: Final = {
    "time": "The fastest of the sizes that may be taken.",
    "cost": "The cheapest of the sizes that may be taken.",
    "energy": "The least energy of the sizes that may be taken.",
    "balance": "The size nearest to where more stop paying.",
}
LEAST_SHARE: Final = 0.01


def about(findings: AdviceFindings) -> str:
    """What is advised on."""
    advice = findings.advice
    names = listed([accelerator_name(each.accelerator) for each in (advice.standing, *advice.others)])
    return f"advice for {printable(advice.title)} on {names}"


def headline(findings: AdviceFindings) -> str:
    """What to take, in one sentence; or that nothing does."""
    advice, best = findings.advice, findings.advice.recommended
    title = printable(advice.title)
    if best is None:
        return f"{title}: no size keeps what was asked"
    paid = "" if best.bill.usd is None else f", {usd(best.bill.usd)}"
    return f"{title}: take {option_text.hardware(best)}, {format_duration(best.time.value)}{paid}"


def summary(findings: AdviceFindings) -> tuple[str, ...]:
    """What it takes, what the next doubling would bring, and how right such answers were."""
    advice, best = findings.advice, findings.advice.recommended
    if best is None:
        return (sentence(advice.standing.obstacle or ""),)
    told = [
        sentence(f"{format_duration(best.time.value)} ({ends(best.time)}) to {advice.standing.length.words}.")
    ]
    if advice.standing.answer is not None:
        told.append(capital(sentence(f"{words(advice.standing.answer)}.")))
    told += [_doubling(advice)] if advice.next_doubling is not None else []
    told += [sentence(each.words) for each in advice.records[:1]]
    return tuple(told)


def ends(time: Interval) -> str:
    """The ends of an interval of times, with its level."""
    return option_text.time_range(time)


def usd(amount: float) -> str:
    """Dollars, short."""
    return f"{format_si(amount)} USD"


def _doubling(advice: Advice) -> str:
    """What twice as many would gain and cost."""
    step = advice.next_doubling
    assert step is not None
    size, time = count(step.num_accelerators), format_duration(step.time.value)
    share = format_percent(abs(round(step.gain_fraction, 2)))
    change = f"saves {format_duration(step.gain_s)} ({share})"
    if step.gain_s <= 0.0:
        change = f"takes {format_duration(-step.gain_s)} ({share}) longer"
    money = (
        "" if step.usd is None else f" and costs {usd(abs(step.usd))} {'more' if step.usd >= 0 else 'less'}"
    )
    worth = ""
    if step.hour_usd is not None and step.hour_usd > 0:
        worth = f": worth it where an hour is worth {usd(step.hour_usd)}"
    return f"The next doubling, to {size}, takes {time}: it {change}{money}{worth}."


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    advice, best = findings.advice, findings.advice.recommended
    standing = advice.standing
    if best is None:
        return (
            prose(strong("No size keeps what was asked. "), sentence(standing.obstacle or "")),
            *_notes(advice),
        )
    return (
        Tiles(items=tuple(_tiles(advice, standing, best))),
        *_strategy(best),
        *_notes(advice),
    )


def _strategy(best: Choice) -> Iterator[Block]:
    """The strategy, or the user's own way to train where the model has none."""
    if best.option is not None:
        yield prose("Train with ", code(option_text.strategy(best.option)))
    elif best.run is not None:
        way = best.run.strategy or "one device alone"
        yield prose("As your runs did: ", code(sentence(way)))


def _tiles(advice: Advice, standing: Standing, best: Choice) -> Iterator[Tile]:
    bill = best.bill
    node = "" if standing.cluster is None else f"{count(standing.cluster.node_size)} to a node"
    yield Tile(
        label="Accelerators",
        value=option_text.hardware(best),
        detail=node,
        words=CHOSEN[advice.request.objective],
    )
    told = ", ".join(
        f"{sentence(each.name)} {format_percent(round(each.weight, 2))}" for each in best.evidence
    )
    yield Tile(
        label="Time",
        value=format_duration(best.time.value),
        detail=ends(best.time),
        words=f"Weights: {told}.",
    )
    price = standing.rates.price
    if bill.money is None or price is None:
        yield Tile(
            label="Accelerator-hours",
            value=format_si(bill.accelerator_hours),
            detail=_span(bill.hours, ""),
            words="No price is known: give --price.",
        )
    else:
        at = f"At {price.usd_per_accelerator_hour:.2f} USD an accelerator-hour ({price.basis})."
        yield Tile(
            label="Money", value=usd(bill.money.value), detail=_span(bill.money, "USD"), words=sentence(at)
        )
    if bill.energy is not None:
        carbon = "" if bill.carbon is None else f"{_mass(bill.carbon.value)} CO2, {_masses(bill.carbon)}"
        yield Tile(
            label="Energy and carbon",
            value=f"{format_si(bill.energy.value, 'J')}",
            detail=_joules(bill.energy),
            words=f"{carbon}; electricity: {printable(standing.rates.grid.region)}.",
        )
    if best.option is not None:
        yield from _step(standing, best)
    if best.chance_in_time is not None:
        yield Tile(
            label="Deadline",
            value=f"kept in {chance_words(best.chance_in_time)}",
            detail=format_duration(advice.request.deadline_s),
            words="Of trainings like this, by the range of the time.",
        )


def _step(standing: Standing, best: Choice) -> Iterator[Tile]:
    option = best.option
    assert option is not None
    share = ""
    if option.flop_share is not None and option.flop_share >= LEAST_SHARE:
        share = f", {format_percent(round(option.flop_share, 2))} of peak"
    yield Tile(
        label="Batch",
        value=f"{format_count(option.strategy.global_batch_samples)} samples",
        detail=f"a step takes {format_step(option.step_s)}{share}",
        words="Of all accelerators together; the step by the model.",
    )
    held = None if standing.cluster is None else standing.cluster.accelerator.memory_bytes
    yield Tile(
        label="Memory",
        value=format_si(option.memory_bytes, "B"),
        detail="an accelerator" if held is None else f"of {format_si(float(held), 'B')} an accelerator",
        words="On the accelerator that holds the most.",
    )


def _span(amount: Interval, unit: str) -> str:
    low, high = (format_si(each) for each in (amount.low, amount.high))
    return f"{low} {DASH} {high} {unit}, {format_percent(amount.level)}"


def _joules(amount: Interval) -> str:
    return (
        f"{format_si(amount.low, 'J')} {DASH} {format_si(amount.high, 'J')}, {format_percent(amount.level)}"
    )


def _mass(mass_kg: float) -> str:
    return f"{mass_kg / 1000.0:.3g} t" if mass_kg >= 1000.0 else f"{mass_kg:.3g} kg"  # noqa: PLR2004 - a tonne


def _masses(amount: Interval) -> str:
    return f"{_mass(amount.low)} {DASH} {_mass(amount.high)}"


def _notes(advice: Advice) -> Iterator[Block]:
    for each in advice.notes:
        yield note(sentence(each))
    if not advice.standing.length.is_whole:
        yield note("All times, money and energy here are for that much, not for a whole training.")


SECTION: Final[Section[AdviceFindings]] = Section(
    name="answer", title="The answer", needs=("advice",), blocks=_blocks
)
