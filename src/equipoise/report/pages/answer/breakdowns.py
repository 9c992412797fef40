"""Parts of wholes as stacked bars, and what moves a result as a tornado, each with its numbers as a table."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from equipoise.report.blocks import Cell, Column, Table, number
from equipoise.report.charts import BarChart, BarPart, Mark, series_mark
from equipoise.report.format import capital, digits, duration, share
from equipoise.stats import Bar, Tornado
from equipoise.units import format_percent, format_si

REST: Final = "rest"
SMALL_SHARE: Final = 0.01  # of a whole: less is not worth a word, nor a colour


class Stack(Struct, frozen=True, kw_only=True):
    """What things are made of. bars: a name and its amounts by part. titles: of parts, by name."""

    bars: tuple[tuple[str, Mapping[str, float]], ...]
    titles: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that are worth a colour in any bar, in the order of `titles`; then the rest."""
        known = [
            name
            for name in dict.fromkeys((*self.titles, *(name for _, parts in self.bars for name in parts)))
            if name != REST
            and any(parts.get(name, 0.0) >= SMALL_SHARE * sum(parts.values()) > 0.0 for _, parts in self.bars)
        ]
        has_rest = any(
            name not in known and amount > 0.0 for _, parts in self.bars for name, amount in parts.items()
        )
        return (*known, REST) if has_rest else tuple(known)

    def series(self, scale: float) -> tuple[BarPart, ...]:
        """The parts as they are stacked: heights in units of `scale`, shares of the bar as hovers."""
        return tuple(
            BarPart(
                name=self.title(name),
                mark=Mark(colour=None, symbol="circle") if name == REST else series_mark(place),
                heights=tuple(self._amount(parts, name) / scale for _, parts in self.bars),
                hovers=tuple(
                    (bar, f"{self.title(name)}: {_share(self._amount(parts, name), parts)}")
                    for bar, parts in self.bars
                ),
            )
            for place, name in enumerate(self.names)
        )

    def shares(self, place: int) -> list[str]:
        """The parts of one bar that are worth a word, the largest first."""
        _, parts = self.bars[place]
        pairs = sorted(((self._amount(parts, name), name) for name in self.names), reverse=True)
        whole = sum(parts.values())
        return [
            f"{self.title(name)} {_share(amount, parts)}"
            for amount, name in pairs
            if amount >= SMALL_SHARE * whole
        ]

    def words(self) -> str:
        """The parts of every bar, as one sentence."""
        bars = (f"{bar}: {', '.join(self.shares(at))}" for at, (bar, _) in enumerate(self.bars))
        return f"{'; '.join(bars)}."

    def title(self, name: str) -> str:
        """What people call a part."""
        return self.titles.get(name, "smaller parts" if name == REST else name.replace("_", " "))

    def _amount(self, parts: Mapping[str, float], name: str) -> float:
        if name != REST:
            return parts.get(name, 0.0)
        shown = set(self.names)
        return sum(amount for part, amount in parts.items() if part not in shown or part == REST)


def _share(amount: float, parts: Mapping[str, float]) -> str:
    return format_percent(round(amount / sum(parts.values()), 3))


LOW_MARK, HIGH_MARK = Mark(colour=3, symbol="circle"), Mark(colour=2, symbol="square")
LOW, HIGH = "at the low end of its range", "at the high end"
SHARES: Final = {"of hours", "of busy", "of price"}


def tornado_figure(found: Tornado, *, name: str, title: str | None = None) -> BarChart:
    """Each cause alone, from one end of its range to the other; the widest on top.

    title: that of the result unless given.
    """
    value = found.result.value

    def part(words: str, mark: Mark, ends: list[tuple[Bar, float]]) -> BarPart:
        return BarPart(
            name=words,
            mark=mark,
            heights=tuple(end - value for _, end in ends),
            hovers=tuple(
                (f"{bar.name}: {span(bar)}", f"{found.name}: {_result(end, found)}") for bar, end in ends
            ),
        )

    bars = moving(found)
    ends = [end for bar in bars for end in (bar.at_low, bar.at_high)]
    ranges = [f"{bar.name}: {_result(bar.at_low, found)} to {_result(bar.at_high, found)}" for bar in bars]
    heading = title or f"What moves the {found.name}"
    return BarChart(
        name=name,
        title=heading,
        subtitle=f"each cause alone, from one end of its range to the other; dashed: {_result(value, found)}",
        alternative=f"{heading}. {'; '.join(ranges)}.",
        x_title=f"{found.name}, {found.unit}",
        y_title="",
        categories=tuple(bar.name for bar in bars),
        labels=tuple(f"{_result(bar.at_low, found)} to {_result(bar.at_high, found)}" for bar in bars),
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
                number(bar.at_low, lambda value: _result(value, found)),
                number(bar.at_high, lambda value: _result(value, found)),
            )
            for bar in moving(found)
        ),
    )


def moving(found: Tornado) -> tuple[Bar, ...]:
    """The causes that move the result at all, to where a figure reaches."""
    return tuple(
        bar for bar in found.bars if 0.0 < bar.effect < float("inf") and abs(bar.at_high) < float("inf")
    )


def span(bar: Bar) -> str:
    """The range of a cause."""
    return f"{amount(bar.low, bar.unit)} to {amount(bar.high, bar.unit)}"


def amount(value: float, unit: str) -> str:
    """An amount with its unit: times and shares in the usual units.

    >>> amount(0.25, "of hours"), amount(7200.0, "s"), amount(3.36, "USD/h")
    ('25 % of hours', '2 h', '3.36 USD/h')
    """
    if unit == "s":
        return duration(value)
    if unit.partition("/")[0] in SHARES:
        return f"{share(value)} {unit}"
    written = format_si(value) if unit.startswith(("B", "FLOP")) else digits(value)
    return f"{written} {unit}"


def _result(value: float, found: Tornado) -> str:
    return amount(value, found.unit)
