"""Parts of wholes as the series of a bar chart, and in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.report.charts import Mark, Part, series_mark
from equipoise.units import format_percent

REST: Final = "rest"
SMALL_SHARE: Final = 0.01  # of a whole: less is not worth a word, nor a colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
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

    def series(self, scale: float) -> tuple[Part, ...]:
        """The parts as they are stacked: heights in units of `scale`, shares of the bar beside them."""
        return tuple(
            Part(
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
        said = [f"{bar}: {', '.join(self.shares(at))}" for at, (bar, _) in enumerate(self.bars)]
        return f"{'; '.join(said)}."

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
