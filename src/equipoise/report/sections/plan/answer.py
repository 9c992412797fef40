"""The answer: what to take, what it takes, and why this much; or what stands in the way."""

from collections.abc import Iterator
from typing import Final

from equipoise import glossary
from equipoise.advice.plans.planned import Option, Plan
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Cell, Column, Table, Tile, Tiles, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.sections.plan.choices import refusal
from equipoise.report.words import (
    ABSENT,
    TIMES,
    accelerator_name,
    capital,
    count,
    listed,
    printable,
    sentence,
)
from equipoise.scaling.equilibrium import words
from equipoise.units import format_duration, format_percent, format_si, format_step

NOTICED: Final = 0.99  # of the time, what failures leave: closer to 1 is not worth a word
MOST_REFUSALS: Final = 3
CHOSEN: Final = {
    "time": "the fastest of the sizes asked",
    "cost": "the fewest accelerator-hours of the sizes asked",
    "energy": "the least energy of the sizes asked",
    "balance": "the last size before more stop paying",
}
OBSTACLES: Final = {
    "memory_bytes": "does not fit on",
    "deadline_s": "misses the deadline on",
    "budget_usd": "exceeds the budget on",
}
OBSTACLE: Final = "has no legal strategy on"


def about(findings: PlanFindings) -> str:
    """What is planned, on what."""
    return f"a plan for {printable(findings.plan.workload.title)} on {_asked(findings.plan)}"


def headline(findings: PlanFindings) -> str:
    """What to take, or what stands in the way, in one sentence."""
    plan = findings.plan
    name, best = printable(plan.workload.title), plan.recommended
    if best is not None:
        return f"{name}: {option_text.hardware(best)}, {format_duration(best.time.value)}"
    reason = plan.rejected[0].reason if plan.rejected else ""
    return f"{name} {OBSTACLES.get(reason, OBSTACLE)} {_asked(plan)}"


def summary(findings: PlanFindings) -> tuple[str, ...]:
    """What it takes and how sure that is, in a few sentences."""
    plan, best = findings.plan, findings.plan.recommended
    if best is None:
        told = () if plan.remedy is None else (sentence(f"It {plan.remedy}."),)
        return (*told, *map(refusal, plan.rejected[:MOST_REFUSALS]))
    time, spread = format_duration(best.time.value), option_text.time_range(best.time)
    return (
        sentence(f"{time} ({spread}) to {plan.length.words}."),
        f"{', '.join(_paid(best))}.",
        *(() if plan.answer is None else (f"{capital(sentence(words(plan.answer)))}.",)),
        *_instead(findings),
        _sureness(plan),
    )


def _paid(best: Option) -> list[str]:
    bill = best.bill
    told = (
        option_text.usd(bill),
        option_text.energy(bill),
        option_text.carbon(bill),
        option_text.hours(bill),
    )
    return [each for each in told if each != ABSENT]


def _instead(findings: PlanFindings) -> Iterator[str]:
    """What the other accelerators compared would take."""
    others = [each for each in findings.comparison.plans if each is not findings.plan]
    if not others:
        return
    told = [
        f"{_asked(each)}, where nothing works"
        if each.recommended is None
        else f"{option_text.hardware(each.recommended)} ({option_text.takes(each.recommended)})"
        for each in others
    ]
    yield f"Compared with {listed(told)}."


def _asked(plan: Plan) -> str:
    """The sizes and the accelerator asked about."""
    question = plan.question
    if question.sizes:
        sizes = listed([count(size) for size in question.sizes])
    elif question.fewest < question.most:
        sizes = f"{count(question.fewest)} to {count(question.most)}"
    else:
        sizes = count(question.most)
    return f"{sizes} {TIMES} {accelerator_name(plan.cluster.accelerator.slug)}"


def _sureness(plan: Plan) -> str:
    """How wrong such predictions were, in one sentence."""
    basis, record = plan.basis, plan.record
    trainings = (
        f"{count(record.num_trainings)} plans of published trainings were off by "
        f"{format_percent(round(record.median, 3))} (median)"
    )
    if basis.median_abs_error is None:
        return f"{trainings}; the time of a step is not calibrated on such accelerators."
    off = format_percent(round(basis.median_abs_error, 3))
    return f"{trainings}, the time of a step by {off} on {count(basis.num_held_out)} held out."


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    plan, best = findings.plan, findings.plan.recommended
    if best is None:
        title = printable(plan.workload.title)
        return (
            prose(
                strong(f"No strategy for {title} on {_asked(plan)}"),
                " is legal, fits into memory and keeps what was asked.",
            ),
            *((prose(sentence(f"It {plan.remedy}.")),) if plan.remedy else ()),
            *_notes(plan),
        )
    return (
        prose(code(option_text.strategy(best))),
        Tiles(items=tuple(_tiles(plan, best))),
        _knobs(best),
        *_notes(plan),
    )


def _tiles(plan: Plan, best: Option) -> Iterator[Tile]:
    question = plan.question
    is_given = question.fewest == question.most
    yield Tile(
        label="Accelerators",
        value=option_text.hardware(best),
        detail=f"{count(plan.cluster.node_size)} to a node",
        words="As many as were asked for." if is_given else f"Chosen as {CHOSEN[question.objective]}.",
    )
    yield _time(plan, best)
    yield _money(plan, best)
    yield _energy(plan, best)
    whole = plan.cluster.accelerator.memory_bytes
    yield Tile(
        label="Memory",
        value=format_si(best.memory_bytes, "B"),
        detail="an accelerator" if whole is None else f"of {format_si(float(whole), 'B')} an accelerator",
        words="On the accelerator that holds the most.",
    )
    if best.flop_share is not None:
        yield Tile(
            label="Of the peak",
            value=format_percent(best.flop_share),
            detail=f"{best.strategy.precision}, dense",
            words="FLOP of the model, none counted twice, over those of the accelerators at their peak.",
        )


def _time(plan: Plan, best: Option) -> Tile:
    steps = max(1, round(best.samples / best.strategy.global_batch_samples))
    left = f" Failures and checkpoints leave {format_percent(best.goodput)} of the time."
    return Tile(
        label="Time",
        value=format_duration(best.time.value),
        detail=option_text.time_range(best.time),
        words=sentence(
            f"To {plan.length.words}: {format_si(best.samples)} samples in {count(steps)} "
            f"steps of "
            f"{format_step(best.step_s)}.{left if best.goodput < NOTICED else ''}"
        ),
    )


def _money(plan: Plan, best: Option) -> Tile:
    price = plan.rates.price
    told = "No price is known: give --price."
    if price is not None:
        told = f"At {price.usd_per_accelerator_hour:.2f} USD an accelerator-hour ({price.basis})."
    return Tile(
        label="Money",
        value=option_text.usd(best.bill),
        detail=option_text.hours(best.bill),
        words=sentence(told),
    )


def _energy(plan: Plan, best: Option) -> Tile:
    rates = plan.rates
    told = "The power of these accelerators is not known."
    if best.bill.energy_j is not None:
        told = (
            f"At rated power, times {rates.system_power.factor:.2f} for the system; electricity: "
            f"{printable(rates.grid.region)}."
        )
    return Tile(
        label="Energy and carbon",
        value=option_text.energy(best.bill),
        detail=option_text.carbon(best.bill),
        words=sentence(told),
    )


def _knobs(best: Option) -> Table:
    """The strategy, knob by knob, each with its meaning."""
    stated = [part.partition("=") for part in best.strategy.text().split()]
    return Table(
        name="strategy",
        caption="The strategy, knob by knob; what is not named is off or as usual",
        columns=(Column(title="Knob"), Column(title="Value", is_number=True), Column(title="Meaning")),
        rows=tuple(
            (Cell(text=name, key=name), Cell(text=value), Cell(text=_meaning(name)))
            for name, _, value in stated
        ),
    )


def _meaning(knob: str) -> str:
    """The first sentence of the glossary about a knob."""
    return f"{glossary.explain(knob).meaning.split('. ')[0].rstrip('.')}."


def _notes(plan: Plan) -> Iterator[Block]:
    for each in plan.notes:
        yield note(sentence(each))
    if not plan.length.is_whole:
        yield note("All times, money and energy here are for that much, not for a whole training.")


SECTION: Final[Section[PlanFindings]] = Section(
    name="answer", title="The answer", needs=("plan",), blocks=_blocks
)
