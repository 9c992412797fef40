"""A figure as data.

Axes, series and marks. figures.py turns it into Plotly's JSON, textplot.py into characters.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from equipoise.intervals import Interval

Symbol: TypeAlias = Literal["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"]
SYMBOLS: Final[tuple[Symbol, ...]] = get_args(Symbol)
NUM_COLOURS: Final = 8  # how many categorical colours both themes have: --series-1 .. --series-8


class Mark(Struct, frozen=True, kw_only=True):
    """How a series looks. colour: 1..NUM_COLOURS, or None for quiet grey."""

    colour: int | None
    symbol: Symbol


def series_mark(place: int) -> Mark:
    """The mark of the series at a place, counted from 0; grey where colours end."""
    colour = place + 1 if place < NUM_COLOURS else None
    return Mark(colour=colour, symbol=SYMBOLS[place % len(SYMBOLS)])


class Axis(Struct, frozen=True, kw_only=True):
    """One axis. title names the quantity and its unit. categories: top to bottom, for an axis of names."""

    title: str
    is_log: bool = False
    categories: tuple[str, ...] = ()
    starts_at_zero: bool = False

    @property
    def label(self) -> str:
        """What is written along it."""
        return f"{self.title}, log scale" if self.is_log else self.title


class Series(Struct, frozen=True, kw_only=True):
    """Points that belong together.

    x: (n,) numbers. y: (n,) numbers, or names on an axis of categories. hovers: (n,) plain lines of text
    a point. weights: (n,) how many entries a point stands for, or empty when each stands for one.
    is_line: points connected. is_curve: a line alone, for what was fitted; dashed where is_extrapolated.
    is_main: markers twice as large, for what the reader looks for. labels: (n,) written next to the points
    as far as there is room, where the chart is drawn as SVG.
    """

    name: str
    mark: Mark
    x: tuple[float, ...]
    y: tuple[float, ...] | tuple[str, ...]
    hovers: tuple[tuple[str, ...], ...]
    weights: tuple[int, ...] = ()
    is_line: bool = False
    is_curve: bool = False
    is_extrapolated: bool = False
    is_main: bool = False
    labels: tuple[str, ...] = ()

    @property
    def heights(self) -> tuple[float, ...]:
        """The numbers among y: all of them, or none on an axis of categories."""
        return tuple(value for value in self.y if not isinstance(value, str))


# Of a series: x, y and the lines of its hover.
Point: TypeAlias = tuple[float, float, tuple[str, ...]]


class Band(Struct, frozen=True, kw_only=True):
    """What is between two curves: the interval of the series of that name. x, low, high: (n,)."""

    name: str
    mark: Mark
    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def series_of(name: str, mark: Mark, points: Iterable[Point], **options: Any) -> Series:  # noqa: ANN401
    """A series of points of numbers, each with its hover. options: further fields of the series."""
    x, y, hovers = tuple(zip(*points, strict=True)) or ((), (), ())
    return Series(name=name, mark=mark, x=x, y=y, hovers=hovers, **options)


def band_of(name: str, mark: Mark, bounds: Iterable[tuple[float, float, float]], *, scale: float) -> Band:
    """What is between two curves, in units of `scale`. bounds: x, low, high."""
    x, lows, highs = zip(*bounds, strict=True)
    low, high = (tuple(each / scale for each in ends) for ends in (lows, highs))
    return Band(name=name, mark=mark, x=x, low=low, high=high)


def line_with_band(
    name: str, mark: Mark, points: Collection[tuple[float, Interval, tuple[str, ...]]], *, scale: float
) -> tuple[Series, Band]:
    """A line through values, and the band of their intervals, in units of `scale`. points: x, y, hover."""
    line = ((x, each.value / scale, hover) for x, each, hover in points)
    bounds = ((x, each.low, each.high) for x, each, _ in points)
    return series_of(name, mark, line, is_line=True), band_of(name, mark, bounds, scale=scale)


class Annotation(Struct, frozen=True, kw_only=True):
    """A direct label, right of a point or above it. is_minor: written where labels of points leave room."""

    x: float
    y: float
    text: str
    is_above: bool = False
    is_minor: bool = False


class Level(Struct, frozen=True, kw_only=True):
    """A horizontal line with a meaning, e.g. ideal scaling at 1."""

    y: float
    text: str


class Chart(Struct, frozen=True, kw_only=True):
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
    notes: tuple[Annotation, ...] = ()
    bands: tuple[Band, ...] = ()


class BarPart(Struct, frozen=True, kw_only=True):
    """One cause in every bar. heights: (n,) None where it is not known; negative ones hang below zero."""

    name: str
    mark: Mark
    heights: tuple[float | None, ...]
    hovers: tuple[tuple[str, ...], ...]


class BarChart(Struct, frozen=True, kw_only=True):
    """A bar a category, stacked from parts. labels: (n,) what is written above each; else as Chart.

    limits: lowest and highest end of a bar on the axis, so that charts side by side share their scale.
    level: where a dashed line crosses all bars; the subtitle has its meaning.
    is_across: horizontal bars, a row per name, each part from `origin` by itself; labels are left to a table.
    """

    name: str
    title: str
    subtitle: str
    alternative: str
    x_title: str
    y_title: str
    categories: tuple[str, ...]
    labels: tuple[str, ...]
    limits: tuple[float, float]
    series: tuple[BarPart, ...]
    level: float | None = None
    is_across: bool = False
    origin: float = 0.0

    def extent(self, place: int) -> tuple[float, float]:
        """How far the parts of a bar reach below and above zero."""
        heights = [part.heights[place] or 0.0 for part in self.series]
        return sum(min(each, 0.0) for each in heights), sum(max(each, 0.0) for each in heights)
