"""What else there is: other layouts, other accelerators, and what fell out and why."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.plans.planned import Plan, Rejection
from equipoise.advice.plans.sizing import Sized
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Badge, Block, Cell, Column, Heading, Table, note, prose
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, accelerator_name, count, plural, sentence
from equipoise.units import format_count, format_duration, format_percent, format_si, format_step

TITLES: Final = {
    "memory_bytes": "more memory than an accelerator has",
    "deadline_s": "later than the deadline",
    "budget_usd": "dearer than the budget",
}
COUNTED: Final = {"deadline_s": ("size", "sizes"), "budget_usd": ("size", "sizes")}
DIGITS: Final = (3, 4, 5, 6)
STRATEGIES: Final = ("strategy", "strategies")


def refusal(rejection: Rejection) -> str:
    """Why strategies or sizes fell out, in one sentence."""
    title = TITLES.get(rejection.reason, sentence(rejection.reason))
    needed, there = _amounts(rejection)
    amounts = "" if ABSENT in {needed, there} else f": at least {needed} needed, {there} there"
    return f"{title[:1].upper()}{title[1:]}{amounts} ({_counted(rejection)})."


def _counted(rejection: Rejection) -> str:
    return plural(rejection.count, *COUNTED.get(rejection.reason, STRATEGIES))


def _amounts(rejection: Rejection) -> tuple[str, str]:
    """What is needed and what there is, in as many digits as tell them apart."""
    needed, there = rejection.needed, rejection.available
    if needed is None or there is None:
        return ABSENT, ABSENT
    if rejection.reason.endswith("_s"):
        return format_duration(needed), format_duration(there)
    unit = "B" if rejection.reason.endswith("_bytes") else " USD"
    pairs = [
        (format_si(needed, unit, digits=digits), format_si(there, unit, digits=digits)) for digits in DIGITS
    ]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    plan = findings.plan
    return (
        prose(
            f"{format_count(plan.num_considered)} strategies were estimated, of which "
            f"{format_count(plan.num_fitting)} fit into memory, in {plan.search_s:.2g} s."
        ),
        *_layouts(findings),
        *_others(findings),
        *_rejected(plan),
    )


def _layouts(findings: PlanFindings) -> Iterator[Block]:
    if len(findings.layouts) <= 1:
        return
    yield Heading(name="plan-layouts", text="Other layouts on as many accelerators")
    yield Table(
        name="plan-layouts",
        caption="The best of each other layout, beside the recommended",
        columns=(
            Column(title="Strategy"),
            Column(title="Time", is_number=True, meaning="below it the interval"),
            Column(title="Longer", is_number=True, meaning="than the recommended"),
            Column(title="Step", is_number=True),
            Column(title="Memory", is_number=True, meaning="of the fullest accelerator"),
            Column(title="USD", is_number=True),
        ),
        rows=tuple(map(_layout_row, findings.layouts)),
    )
    yield note(
        "Where two differ by less than such predictions err, their order is no reason: take the simpler one."
    )


def _layout_row(each: Sized) -> tuple[Cell, ...]:
    option, usd = each.option, each.option.bill.usd
    longer = 1 / each.efficiency - 1
    return (
        option_text.strategy_cell(option),
        option_text.time_cell(option),
        Cell(text=ABSENT if option is each.reference else format_percent(round(longer, 3)), key=longer),
        Cell(text=format_step(option.step_s), key=option.step_s),
        Cell(text=format_si(option.memory_bytes, "B"), key=option.memory_bytes),
        Cell(text=ABSENT if usd is None else format_si(usd), key=usd),
    )


def _others(findings: PlanFindings) -> Iterator[Block]:
    """The plans on other accelerators."""
    plans = findings.comparison.plans
    if len(plans) <= 1:
        return
    yield Heading(name="plan-accelerators", text="Accelerators compared")
    yield Table(
        name="plan-accelerators",
        caption="What is recommended on each",
        columns=(
            Column(title="Accelerator"),
            Column(title="Taken", is_number=True, meaning="accelerators recommended"),
            Column(title="Time", is_number=True, meaning="below it the interval"),
            Column(title="USD", is_number=True),
            Column(title="Energy", is_number=True),
            Column(title="Strategy", is_wide=True),
        ),
        rows=tuple(_accelerator_row(each, is_best=each is findings.plan) for each in plans),
    )


def _accelerator_row(plan: Plan, *, is_best: bool) -> tuple[Cell, ...]:
    name, best = accelerator_name(plan.cluster.accelerator.slug), plan.recommended
    if best is None:
        told = sentence(plan.remedy or "no strategy works")
        unknown = (Cell(text=ABSENT),) * 4
        return (Cell(text=name, key=name), *unknown, Cell(text=told, key=told))
    usd = best.bill.usd
    return (
        Cell(text=name, key=name, badge=Badge(text="recommended", tone="good") if is_best else None),
        Cell(text=count(best.num_accelerators), key=best.num_accelerators),
        option_text.time_cell(best),
        Cell(text=ABSENT if usd is None else format_si(usd), key=usd),
        Cell(text=option_text.energy(best.bill), key=best.bill.energy_j),
        option_text.strategy_cell(best),
    )


def _rejected(plan: Plan) -> Iterator[Block]:
    if not plan.rejected:
        return
    yield Heading(name="plan-rejected", text="What fell out")
    yield Table(
        name="plan-rejected",
        caption="Rejected, by the first reason",
        columns=(
            Column(title="Reason"),
            Column(title="Needed", is_number=True, meaning="the least that any of them needs"),
            Column(title="There", is_number=True),
            Column(title="How many", is_number=True),
        ),
        rows=tuple(
            (
                Cell(text=TITLES.get(each.reason, sentence(each.reason)), key=each.reason),
                Cell(text=_amounts(each)[0], key=each.needed),
                Cell(text=_amounts(each)[1], key=each.available),
                Cell(text=_counted(each), key=each.count),
            )
            for each in plan.rejected
        ),
    )


SECTION: Final[Section[PlanFindings]] = Section(
    name="choices", title="Alternatives and rejections", needs=("plan",), blocks=_blocks
)
