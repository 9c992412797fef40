"""Parts of wholes as the series of a bar chart, and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.advice.plans.planned import Option
from equipoise.advice.plans.sizing import Parts
from equipoise.report import option_text
from equipoise.report.charts import NUM_COLOURS, SYMBOLS, Mark, Part
from equipoise.report.words import count
from equipoise.units import format_percent

REST: Final = "rest"
SMALL_SHARE: Final = 0.01  # of a whole: less is not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What options are made of. options: (n_options,) in the order of `parts`. titles: of parts, by name."""

    options: tuple[Option, ...]
    parts: Parts
    titles: Mapping[str, str]

    def series(self, scale: float) -> tuple[Part, ...]:
        """The parts as they are stacked: heights in units of `scale`, shares of the bar beside them."""
        return tuple(
            Part(
                name=self.titles[name],
                mark=_mark(place, name),
                heights=tuple(row[place] / scale for row in self.parts.amounts),
                hovers=tuple(
                    (option_text.hardware(option), f"{self.titles[name]}: {_share(row[place], row)}")
                    for option, row in zip(self.options, self.parts.amounts, strict=True)
                ),
            )
            for place, name in enumerate(self.parts.names)
        )

    def shares(self, place: int) -> list[str]:
        """The parts of one option that are worth a word, the largest first."""
        row = self.parts.amounts[place]
        pairs = sorted(zip(row, self.parts.names, strict=True), reverse=True)
        return [
            f"{self.titles[name]} {_share(amount, row)}"
            for amount, name in pairs
            if amount >= SMALL_SHARE * sum(row)
        ]

    def words(self) -> str:
        """The parts of every option, as one sentence."""
        told = [
            f"{count(each.num_accelerators)} accelerators: {', '.join(self.shares(place))}"
            for place, each in enumerate(self.options)
        ]
        return f"{'; '.join(told)}."


def _mark(place: int, name: str) -> Mark:
    colour = None if name == REST or place >= NUM_COLOURS else place + 1
    return Mark(colour=colour, symbol=SYMBOLS[place % len(SYMBOLS)])


def _share(amount: float, row: Sequence[float]) -> str:
    return format_percent(round(amount / sum(row), 3))
