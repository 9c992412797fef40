"""Money against time, and what moves the money."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.answer.advice import Choice
from equipoise.economics.uncertain import Tornado
from equipoise.findings import AdviceFindings
from equipoise.report import option_text
from equipoise.report.blocks import Block, Panels, prose
from equipoise.report.charts import Axis, BarChart, Chart, Mark, Note, Series
from equipoise.report.option_text import hardware
from equipoise.report.section import Section
from equipoise.report.sections.advice.answer import usd
from equipoise.report.tornado import moving, tornado_figure, tornado_table
from equipoise.report.words import accelerator_name, count, printable
from equipoise.units import format_duration, format_si

TAKEN_MARK: Final = Mark(colour=5, symbol="star")


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    advice = findings.advice
    standings = (advice.standing, *advice.others)
    priced = [each for each in standings if each.everyone[0].bill.usd is not None]
    charts: tuple[Chart | BarChart, ...] = ()
    if priced and sum(len(each.everyone) for each in priced) > 1:
        charts = (_trade(findings),)
    swing = () if advice.swing is None or not moving(advice.swing) else _swung(advice.swing)
    return (
        prose(*_said(findings)),
        *((Panels(charts=charts, legend="Accelerators"),) if charts else ()),
        *swing,
    )


def _swung(swing: Tornado) -> tuple[Block, ...]:
    """What moves the money."""
    return (
        Panels(charts=(tornado_figure(swing, name="advice-tornado"),), legend="Moved"),
        tornado_table(swing, name="advice-swing"),
    )


def _said(findings: AdviceFindings) -> Iterator[str]:
    """What decides the money, in words."""
    advice = findings.advice
    swing = advice.swing
    if swing is None or not swing.bars:
        yield "Each point is a number of accelerators: further left is sooner, lower is cheaper."
        return
    first = swing.bars[0]
    yield (
        f"Most of what is open in the {swing.name} comes from the {first.name}: from "
        f"{_amount(first.at_low, swing)} to {_amount(first.at_high, swing)}, all else as expected."
    )


def _amount(value: float, swing: Tornado) -> str:
    return f"{format_si(value)} {swing.unit}"


def _trade(findings: AdviceFindings) -> Chart:
    advice = findings.advice
    every = [each for one in (advice.standing, *advice.others) for each in one.everyone]
    told = [each for each in every if each.bill.usd is not None]
    unit = option_text.time_unit([each.time.value for each in told])

    def series(name: str, choices: list[Choice], mark: Mark, *, is_main: bool = False) -> Series:
        return Series(
            name=name,
            mark=mark,
            x=tuple(each.time.value / unit.seconds for each in choices),
            y=tuple(each.bill.usd or 0.0 for each in choices),
            hovers=tuple(
                (hardware(each), format_duration(each.time.value), usd(each.bill.usd or 0.0))
                for each in choices
            ),
            is_line=not is_main,
            is_main=is_main,
        )

    lines = [
        series(
            accelerator_name(standing.accelerator),
            [each for each in standing.everyone if each.bill.usd is not None],
            Mark(colour=place % 4 + 1, symbol="circle"),
        )
        for place, standing in enumerate((advice.standing, *advice.others))
    ]
    best = advice.recommended
    taken = [] if best is None else [series("recommended", [best], TAKEN_MARK, is_main=True)]
    words = [
        f"{hardware(each)}: {format_duration(each.time.value)}, {usd(each.bill.usd or 0.0)}" for each in told
    ]
    return Chart(
        name="advice-trade",
        title="Time and money",
        subtitle="a point a size, labelled with its accelerators",
        alternative=f"Time and money of {printable(advice.title)}. {'; '.join(words)}.",
        x=Axis(title=unit.name, is_log=True),
        y=Axis(title="USD", is_log=True),
        series=tuple(each for each in (*lines, *taken) if each.x),
        notes=tuple(
            Note(
                x=each.time.value / unit.seconds,
                y=each.bill.usd or 0.0,
                text=count(each.num_accelerators),
                is_above=True,
            )
            for each in advice.standing.everyone
            if each.bill.usd is not None
        ),
    )


SECTION: Final[Section[AdviceFindings]] = Section(
    name="money", title="Money against time", needs=("advice",), blocks=_blocks
)
