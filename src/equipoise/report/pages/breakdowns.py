"""Breakdowns as stacked bars and sensitivities as tornado charts, each with a table of its numbers."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.phases import EXPOSED
from equipoise.intervals import Bar, Tornado
from equipoise.report.blocks import Cell, Table, names, number, numbers, table_of
from equipoise.report.charts import BarChart, BarPart, Mark, series_mark
from equipoise.report.format import (
    ABSENT,
    DASH,
    capital,
    converted,
    currency,
    is_too_wide,
    quantity,
    ratio,
    sentence,
)
from equipoise.units import MILLISECOND_S, format_milliseconds, tenths

if TYPE_CHECKING:
    from equipoise.bench.summary import Spread

REST: Final = "rest"
SMALL_SHARE: Final = 0.01  # smaller parts of a whole are neither named nor coloured


class Stack(Struct, frozen=True, kw_only=True, dict=True):
    """Breakdowns of several totals. bars: a name and its amounts by part. titles: titles of parts."""

    bars: tuple[tuple[str, Mapping[str, float]], ...]
    titles: Mapping[str, str]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parts that reach SMALL_SHARE in any bar, in the order of `titles`; then the rest."""
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
        """The parts in stacking order: heights in units of `scale`, shares of the bar as tooltips."""
        return tuple(
            BarPart(
                name=self.title(name),
                mark=replace(series_mark(place), colour=None) if name == REST else series_mark(place),
                heights=tuple(self._amount(parts, name) / scale for _, parts in self.bars),
                hovers=tuple(
                    (bar, f"{self.title(name)}: {_share(self._amount(parts, name), parts)}")
                    for bar, parts in self.bars
                ),
            )
            for place, name in enumerate(self.names)
        )

    def chart(
        self, name: str, title: str, *, x_title: str, y_title: str, scale: float, labels: Sequence[str]
    ) -> BarChart:
        """A chart of stacked bars in units of `scale`. labels: one above each bar."""
        highest = max(sum(parts.values()) for _, parts in self.bars)
        return BarChart(
            name=name,
            title=title,
            subtitle="",
            alternative=sentence(f"{title}. {self.words()}"),
            x_title=x_title,
            y_title=y_title,
            categories=tuple(bar for bar, _ in self.bars),
            labels=tuple(labels),
            limits=(0.0, highest / scale),
            series=self.series(scale),
        )

    def shares(self, place: int) -> list[str]:
        """The parts of one bar that reach SMALL_SHARE, in words, the largest first."""
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
        """The title of a part."""
        return self.titles.get(name, "smaller parts" if name == REST else name.replace("_", " "))

    def _amount(self, parts: Mapping[str, float], name: str) -> float:
        if name != REST:
            return parts.get(name, 0.0)
        shown = set(self.names)
        return sum(amount for part, amount in parts.items() if part not in shown or part == REST)


def _share(amount: float, parts: Mapping[str, float]) -> str:
    return tenths(amount / sum(parts.values()))


LOW_MARK, HIGH_MARK = Mark(colour=3, symbol="circle"), Mark(colour=2, symbol="square")
LOW, HIGH = "at the low end of its range", "at the high end"


def tornado_figure(found: Tornado, *, name: str, title: str | None = None) -> BarChart:
    """A tornado chart: the result as each input alone varies over its range; the largest effect on top.

    title: by default that of the result.
    """
    # The axis is in the currency of the page.
    scale = converted(1.0) if found.unit.startswith("USD") else 1.0
    bars, value = moving(found), scale * found.result.value

    def part(words: str, mark: Mark, ends: list[tuple[Bar, float]]) -> BarPart:
        return BarPart(
            name=words,
            mark=mark,
            heights=tuple(scale * end - value for _, end in ends),
            hovers=tuple(
                (
                    f"{bar.name}: {quantity(bar.low, bar.unit)} to {quantity(bar.high, bar.unit)}",
                    f"{found.name}: {quantity(end, found.unit)}",
                )
                for bar, end in ends
            ),
        )

    ends = [scale * end for bar in bars for end in (bar.at_low, bar.at_high)]
    ranges = [f"{quantity(bar.at_low, found.unit)} to {quantity(bar.at_high, found.unit)}" for bar in bars]
    heading = title or f"What moves the {found.name}"
    known = "; ".join(f"{bar.name}: {words}" for bar, words in zip(bars, ranges, strict=True))
    return BarChart(
        name=name,
        title=heading,
        subtitle="each cause alone, from one end of its range to the other; dashed: "
        f"{quantity(found.result.value, found.unit)}",
        alternative=f"{heading}. {known}.",
        x_title=f"{found.name}, {found.unit.replace('USD', currency())}",
        y_title="",
        categories=tuple(bar.name for bar in bars),
        labels=tuple(ranges),
        limits=(min(value, *ends), max(value, *ends)),
        series=(
            part(LOW, LOW_MARK, [(bar, bar.at_low) for bar in bars]),
            part(HIGH, HIGH_MARK, [(bar, bar.at_high) for bar in bars]),
        ),
        is_across=True,
        origin=value,
    )


def tornado_table(found: Tornado, *, name: str) -> Table:
    """A tornado chart as a table."""
    columns = (
        names("Cause", "name"),
        numbers("Low end", lambda bar: Cell(text=quantity(bar.low, bar.unit), key=bar.low)),
        numbers("High end", lambda bar: Cell(text=quantity(bar.high, bar.unit), key=bar.high)),
        numbers(
            f"{capital(found.name)} at the low end",
            "at_low",
            lambda value: quantity(value, found.unit),
            is_kept=True,
        ),
        numbers("At the high end", "at_high", lambda value: quantity(value, found.unit), is_kept=True),
    )
    unit = found.unit.replace("USD", currency())
    caption = f"The {found.name} in {unit}, each cause moved alone"
    return table_of(name, columns, moving(found), caption=caption)


def moving(found: Tornado) -> tuple[Bar, ...]:
    """The inputs with a non-zero, finite effect, which a chart can show."""
    return tuple(
        bar for bar in found.bars if 0.0 < bar.effect < float("inf") and abs(bar.at_high) < float("inf")
    )


# --- steps of sweeps and watched loops, by phase

PHASES: Final[Mapping[str, str]] = {
    "input": "waiting for input",
    "forward": "forward pass",
    "backward": "backward pass",
    EXPOSED: "exposed communication",
    "optimizer": "optimizer",
    "rest": "rest",
}
PHASES_INTRO: Final = (
    "A bar is the median step, by phase. Exposed communication is what the step waits for; overlapped "
    "communication is not in it."
)


def step_words(found: "Spread") -> str:
    """The time of a step with its range, in milliseconds."""
    text, ends = _milliseconds(found)
    return f"{text} ms ({ends})" if ends else f"{text} ms"


_TOO_WIDE: Final = "range too wide"


def _milliseconds(found: "Spread") -> tuple[str, str | None]:
    """Milliseconds and the bounds of their range, with enough digits to tell the bounds apart."""
    if found.low != found.high:
        for num_digits in (3, 4, 5):
            form = partial(format_milliseconds, digits=num_digits)
            ends = _within(found, form)
            if ends is not None:
                return form(found.value), ends
    return format_milliseconds(found.value), None


def milliseconds(found: "Spread | None") -> Cell:
    """A time in milliseconds, with its range below."""
    if found is None:
        return Cell(text=ABSENT)
    text, ends = _milliseconds(found)
    return Cell(text=text, key=found.value, detail=ends)


def spread_cell(found: "Spread | None", form: Callable[[float], str] = ratio) -> Cell:
    """A number, with its range below."""
    if found is None:
        return Cell(text=ABSENT)
    return number(found.value, form, detail=_within(found, form))


def _within(found: "Spread", form: Callable[[float], str]) -> str | None:
    """The bounds of a range; None if there is none, or if both bounds look the same when formatted."""
    if found.low is None or found.high is None:
        return None
    if is_too_wide(found.low, found.high):
        return _TOO_WIDE
    ends = (form(found.low), form(found.high))
    return None if ends[0] == ends[1] else DASH.join(ends)


def step_chart(
    name: str,
    title: str,
    x_title: str,
    bars: Sequence[tuple[str, Mapping[str, float]]],
    *,
    names: Sequence[str],
) -> BarChart:
    """A chart of steps by phase. bars: label and seconds by phase. names: full names for the text form."""
    parts = [{phase: spent.get(phase, 0.0) for phase in PHASES} for _, spent in bars]
    stack = Stack(bars=tuple(zip(names, parts, strict=True)), titles=PHASES)
    chart = stack.chart(
        name,
        title,
        x_title=x_title,
        y_title="ms per step",
        scale=MILLISECOND_S,
        labels=[format_milliseconds(sum(each.values())) for each in parts],
    )
    return replace(
        chart, subtitle="milliseconds above each bar", categories=tuple(category for category, _ in bars)
    )
