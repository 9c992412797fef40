"""Time against money: what each size takes of both, and which no other beats."""

from collections.abc import Sequence
from typing import Final

from equipoise.advice.plans.planned import Option
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Panels, Span, note, prose, strong
from equipoise.report.charts import Axis, Chart, Mark, Note, Series
from equipoise.report.section import Section
from equipoise.report.words import count, listed, plural, printable

FEWEST: Final = 2
FRONT: Final = "best trade-offs"
FRONT_MARK: Final = Mark(colour=1, symbol="circle")
BEATEN: Final = "beaten by another size"
BEATEN_MARK: Final = Mark(colour=None, symbol="x")
BEYOND: Final = "beyond what was asked"
BEYOND_MARK: Final = Mark(colour=None, symbol="circle")
TAKEN: Final = "recommended"
TAKEN_MARK: Final = Mark(colour=5, symbol="star")


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    if len(findings.sizes) < FEWEST:
        return (prose("Only one size has a strategy that fits: there is nothing to trade."),)
    return (
        prose(*_said(findings)),
        Panels(charts=(_chart(findings),), legend="Sizes"),
        note(
            "Energy and carbon are accelerator-hours times a power: they rise as money does. Those of each "
            "size are beside its point and in the table above."
        ),
    )


def _said(findings: PlanFindings) -> tuple[Span, ...]:
    """What there is to choose among the sizes asked."""
    front, asked = findings.plan.pareto, [each for each in findings.sizes if each.is_asked]
    if len(asked) < FEWEST:
        return ("One size was asked for; the others show what fewer or more accelerators would take.",)
    if len(front) < FEWEST:
        best = f"{count(front[0].num_accelerators)} accelerators"
        return (strong(best), " are the fastest, the cheapest and the most frugal of the sizes asked.")
    return (
        "More accelerators buy time with money. ",
        strong(f"{_takes(front[0])}; {_takes(front[-1])}."),
        " No other size beats one on the line in time, money and energy at once.",
    )


def _takes(option: Option) -> str:
    return f"{plural(option.num_accelerators, 'accelerator')}: {option_text.takes(option)}"


def _chart(findings: PlanFindings) -> Chart:
    plan = findings.plan
    tried = [each.option for each in findings.sizes]
    unit = option_text.time_unit([each.time.value for each in tried])
    is_priced = all(each.bill.usd is not None for each in tried)

    def place(option: Option) -> tuple[float, float]:
        bill = option.bill
        cost = bill.usd if is_priced and bill.usd is not None else bill.accelerator_hours
        return option.time.value / unit.seconds, cost

    def series(name: str, mark: Mark, options: Sequence[Option]) -> Series:
        places = [place(each) for each in options]
        return Series(
            name=name,
            mark=mark,
            x=tuple(x for x, _ in places),
            y=tuple(y for _, y in places),
            hovers=tuple(option_text.hover(each) for each in options),
            is_line=name == FRONT,
            is_main=name == TAKEN,
        )

    front = {each.num_accelerators for each in plan.pareto}
    asked = [each.option for each in findings.sizes if each.is_asked]
    best = None if plan.recommended is None else plan.recommended.num_accelerators
    every = (
        series(FRONT, FRONT_MARK, plan.pareto if len(asked) >= FEWEST else ()),
        series(BEATEN, BEATEN_MARK, [each for each in asked if each.num_accelerators not in front]),
        series(BEYOND, BEYOND_MARK, [each.option for each in findings.sizes if not each.is_asked]),
        series(TAKEN, TAKEN_MARK, [each for each in asked if each.num_accelerators == best]),
    )
    return Chart(
        name="plan-trade",
        title="Time and money" if is_priced else "Time and accelerator-hours",
        subtitle="a point a size, labelled with its accelerators; the upright axis need not start at 0",
        alternative=_alternative(findings, tried),
        x=Axis(title=unit.name, is_log=True),
        y=Axis(title="USD" if is_priced else "accelerator-hours"),
        series=tuple(each for each in every if each.x),
        notes=tuple(
            Note(x=place(each)[0], y=place(each)[1], text=count(each.num_accelerators), is_above=True)
            for each in tried
        ),
    )


def _alternative(findings: PlanFindings, tried: Sequence[Option]) -> str:
    told = [f"{_takes(each)}, {option_text.energy(each.bill)}" for each in tried]
    front = listed([count(each.num_accelerators) for each in findings.plan.pareto])
    title = printable(findings.plan.workload.title)
    return f"Time and money of {title} by accelerators. {'; '.join(told)}. Beaten by no other: {front}."


SECTION: Final[Section[PlanFindings]] = Section(
    name="trade", title="Time against money and energy", needs=("sizes",), blocks=_blocks
)
