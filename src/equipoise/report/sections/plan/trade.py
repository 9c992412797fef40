"""Time against money: what each size takes of both, and which no other beats."""

from collections.abc import Sequence
from typing import Final

from equipoise.advice.planned import Option
from equipoise.findings import PlanFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Panels, note, prose, strong
from equipoise.report.charts import Axis, Chart, Mark, Note, Series
from equipoise.report.section import Section
from equipoise.report.words import count, listed, printable
from equipoise.units import format_duration

FRONT: Final = "best trade-offs"
FRONT_MARK: Final = Mark(colour=1, symbol="circle")
BEATEN: Final = "beaten by another size"
BEATEN_MARK: Final = Mark(colour=None, symbol="x")
TAKEN: Final = "recommended"
TAKEN_MARK: Final = Mark(colour=5, symbol="star")


def _blocks(findings: PlanFindings) -> tuple[Block, ...]:
    asked = [each.option for each in findings.sizes if each.is_asked]
    if len(asked) <= 1:
        return (
            prose(
                "One size was asked for: there is nothing to trade. Give a range to see time against money."
            ),
        )
    front = findings.plan.pareto
    if len(front) == 1:
        best = f"{count(front[0].num_accelerators)} accelerators"
        return (
            prose(f"{best} are the fastest, the cheapest and the most frugal: there is nothing to trade."),
        )
    return (
        prose(
            "More accelerators buy time with money. ",
            strong(f"{_takes(front[0])}; {_takes(front[-1])}."),
            " No other size beats one on the line in time, money and energy at once.",
        ),
        Panels(charts=(_chart(findings, asked),), legend="Sizes"),
        note(
            "Energy and carbon are accelerator-hours times a power: they rise as money does. Those of each "
            "size are beside its point and in the table above."
        ),
    )


def _takes(option: Option) -> str:
    return f"{count(option.num_accelerators)} take {format_duration(option.time.value)} and {_amount(option)}"


def _amount(option: Option) -> str:
    return option_text.hours(option.bill) if option.bill.usd is None else option_text.usd(option.bill)


def _chart(findings: PlanFindings, asked: Sequence[Option]) -> Chart:
    plan = findings.plan
    unit = option_text.time_unit([each.time.value for each in asked])
    is_priced = all(each.bill.usd is not None for each in asked)

    def place(option: Option) -> tuple[float, float]:
        bill = option.bill
        cost = bill.usd if is_priced and bill.usd is not None else bill.accelerator_hours
        return option.time.value / unit.seconds, cost

    def series(name: str, mark: Mark, options: Sequence[Option], *, is_front: bool = False) -> Series:
        places = [place(each) for each in options]
        return Series(
            name=name,
            mark=mark,
            x=tuple(x for x, _ in places),
            y=tuple(y for _, y in places),
            hovers=tuple(option_text.hover(each) for each in options),
            is_line=is_front,
            is_main=name == TAKEN,
        )

    front = {each.num_accelerators for each in plan.pareto}
    best = None if plan.recommended is None else plan.recommended.num_accelerators
    every = (
        series(FRONT, FRONT_MARK, plan.pareto, is_front=True),
        series(BEATEN, BEATEN_MARK, [each for each in asked if each.num_accelerators not in front]),
        series(TAKEN, TAKEN_MARK, [each for each in asked if each.num_accelerators == best]),
    )
    return Chart(
        name="plan-trade",
        title="Time and money" if is_priced else "Time and accelerator-hours",
        subtitle="a point a size, labelled with its accelerators; the upright axis need not start at 0",
        alternative=_alternative(findings, asked),
        x=Axis(title=unit.name, is_log=True),
        y=Axis(title="USD" if is_priced else "accelerator-hours"),
        series=tuple(each for each in every if each.x),
        notes=tuple(
            Note(x=place(each)[0], y=place(each)[1], text=count(each.num_accelerators), is_above=True)
            for each in asked
        ),
    )


def _alternative(findings: PlanFindings, asked: Sequence[Option]) -> str:
    told = [f"{_takes(each)}, {option_text.energy(each.bill)}" for each in asked]
    front = listed([count(each.num_accelerators) for each in findings.plan.pareto])
    title = printable(findings.plan.workload.title)
    return f"Time and money of {title} by accelerators. {'; '.join(told)}. Beaten by no other: {front}."


SECTION: Final[Section[PlanFindings]] = Section(
    name="trade", title="Time against money and energy", needs=("sizes",), blocks=_blocks
)
