"""What moves a result: a tornado as a figure, and its numbers as a table."""

from typing import Final

from equipoise.economics.uncertain import Bar, Tornado
from equipoise.report.blocks import Cell, Column, Table
from equipoise.report.charts import BarChart, Mark, Part
from equipoise.report.format import duration, share
from equipoise.report.words import capital
from equipoise.units import format_si

LOW_MARK, HIGH_MARK = Mark(colour=3, symbol="circle"), Mark(colour=2, symbol="square")
LOW, HIGH = "at the low end of its range", "at the high end"
SHARES: Final = {"of hours", "of busy", "of price"}


def tornado_figure(found: Tornado, *, name: str, title: str | None = None) -> BarChart:
    """Each cause alone, from one end of its range to the other; the widest on top.

    title: that of the result unless given.
    """
    value = found.result.value

    def part(words: str, mark: Mark, ends: list[tuple[Bar, float]]) -> Part:
        return Part(
            name=words,
            mark=mark,
            heights=tuple(end - value for _, end in ends),
            hovers=tuple(
                (f"{bar.name}: {span(bar)}", f"{found.name}: {_result(end, found)}") for bar, end in ends
            ),
        )

    bars = moving(found)
    ends = [end for bar in bars for end in (bar.at_low, bar.at_high)]
    told = [f"{bar.name}: {_result(bar.at_low, found)} to {_result(bar.at_high, found)}" for bar in bars]
    heading = title or f"What moves the {found.name}"
    return BarChart(
        name=name,
        title=heading,
        subtitle=f"each cause alone, from one end of its range to the other; dashed: {_result(value, found)}",
        alternative=f"{heading}. {'; '.join(told)}.",
        x_title=f"{found.name}, {found.unit}",
        y_title="",
        categories=tuple(bar.name for bar in bars),
        labels=tuple(f"{format_si(bar.at_low)} to {format_si(bar.at_high)}" for bar in bars),
        limits=(min(value, *ends), max(value, *ends)),
        series=(
            part(LOW, LOW_MARK, [(bar, bar.at_low) for bar in bars]),
            part(HIGH, HIGH_MARK, [(bar, bar.at_high) for bar in bars]),
        ),
        is_across=True,
        origin=value,
    )


def tornado_table(found: Tornado, *, name: str) -> Table:
    """The same as numbers."""
    return Table(
        name=name,
        caption=f"The {found.name} in {found.unit}, each cause moved alone",
        columns=(
            Column(title="Cause", is_header=True),
            Column(title="Low end", is_number=True),
            Column(title="High end", is_number=True),
            Column(title=f"{capital(found.name)} at the low end", is_number=True),
            Column(title="At the high end", is_number=True),
        ),
        rows=tuple(
            (
                Cell(text=bar.name, key=bar.name),
                Cell(text=amount(bar.low, bar.unit), key=bar.low),
                Cell(text=amount(bar.high, bar.unit), key=bar.high),
                Cell(text=format_si(bar.at_low), key=bar.at_low),
                Cell(text=format_si(bar.at_high), key=bar.at_high),
            )
            for bar in moving(found)
        ),
    )


def moving(found: Tornado) -> tuple[Bar, ...]:
    """The causes that move the result at all, to where a figure reaches."""
    return tuple(
        bar for bar in found.bars if 0.0 < bar.swing < float("inf") and abs(bar.at_high) < float("inf")
    )


def span(bar: Bar) -> str:
    """The range of a cause."""
    return f"{amount(bar.low, bar.unit)} to {amount(bar.high, bar.unit)}"


def amount(value: float, unit: str) -> str:
    """An amount with its unit: times and shares as people say them.

    >>> amount(0.25, "of hours"), amount(7200.0, "s"), amount(3.36, "USD/h")
    ('25 % of hours', '2.0 h', '3.36 USD/h')
    """
    if unit == "s":
        return duration(value)
    if unit.partition("/")[0] in SHARES:
        return f"{share(value)} {unit}"
    return f"{format_si(value)} {unit}"


def _result(value: float, found: Tornado) -> str:
    return amount(value, found.unit)
