"""A figure as data: axes and series. figures.py turns it into Plotly's JSON, textplot.py into characters."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Symbol: TypeAlias = Literal["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"]
SYMBOLS: Final[tuple[Symbol, ...]] = (
    "circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon",
)  # fmt: skip
NUM_COLOURS: Final = 8  # how many categorical colours both themes have: --series-1 .. --series-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How a series looks. colour: 1..NUM_COLOURS, or None for quiet grey."""

    colour: int | None
    symbol: Symbol


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis. title names the quantity and its unit. categories: top to bottom, for an axis of names."""

    title: str
    is_log: bool = False
    categories: tuple[str, ...] = ()
    starts_at_zero: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together.

    x: (n,) numbers. y: (n,) numbers, or names on an axis of categories. hovers: (n,) plain lines of text
    a point. weights: (n,) how many entries a point stands for, or empty when each stands for one.
    """

    name: str
    mark: Mark
    x: tuple[float, ...]
    y: tuple[float, ...] | tuple[str, ...]
    hovers: tuple[tuple[str, ...], ...]
    weights: tuple[int, ...] = ()
    is_line: bool = False

    @property
    def heights(self) -> tuple[float, ...]:
        """The numbers among y: all of them, or none on an axis of categories."""
        return tuple(value for value in self.y if not isinstance(value, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A direct label, right of a point."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line with a meaning, e.g. ideal scaling at 1."""

    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure. name: unique in the report. subtitle: how to read it, in a few words.

    alternative: what a reader who cannot see it has to know.
    """

    name: str
    title: str
    subtitle: str
    alternative: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    level: Level | None = None
    notes: tuple[Note, ...] = ()
