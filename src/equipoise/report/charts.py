"""A figure as data: axes, series and marks.

figures.py converts it to Plotly's JSON, svg.py to SVG, and textplot.py to characters.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from equipoise.intervals import Interval

Symbol: TypeAlias = Literal["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"]
SYMBOLS: Final[tuple[Symbol, ...]] = get_args(Symbol)
NUM_COLOURS: Final = 8  # the categorical colours of both themes: --series-1 .. --series-8


class Mark(Struct, frozen=True, kw_only=True):
    """The appearance of a series. colour: 1..NUM_COLOURS, or None for grey."""

    colour: int | None
    symbol: Symbol


def series_mark(place: int) -> Mark:
    """The mark of the series with this index, from 0; grey beyond the last colour."""
    colour = place + 1 if place < NUM_COLOURS else None
    return Mark(colour=colour, symbol=SYMBOLS[place % len(SYMBOLS)])


class Axis(Struct, frozen=True, kw_only=True):
    """One axis. title: the quantity and its unit. categories: from top to bottom, for an axis of names."""

    title: str
    is_log: bool = False
    categories: tuple[str, ...] = ()
    starts_at_zero: bool = False

    @property
    def label(self) -> str:
        """The text along the axis."""
        return f"{self.title}, log scale" if self.is_log else self.title


class Series(Struct, frozen=True, kw_only=True):
    """Points drawn with one mark.

    x: (n,) numbers. y: (n,) numbers, or names on an axis of categories. hovers: (n,) the lines of each
    point's tooltip. weights: (n,) the number of entries that a point represents; empty if one each. is_line:
    connect the points. is_curve: a line without markers, for a fit; dashed if is_extrapolated. is_main:
    markers twice as large, for the most important points. labels: (n,) written next to the points where an
    SVG has room.
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
        """The values of y if they are numbers; empty on an axis of categories."""
        return tuple(value for value in self.y if not isinstance(value, str))


# x, y and the lines of the tooltip.
Point: TypeAlias = tuple[float, float, tuple[str, ...]]


class Band(Struct, frozen=True, kw_only=True):
    """The area between two curves: the interval of the series with this name. x, low, high: (n,)."""

    name: str
    mark: Mark
    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def series_of(name: str, mark: Mark, points: Iterable[Point], **options: Any) -> Series:  # noqa: ANN401
    """A series of numeric points with tooltips. options: further fields of the series."""
    x, y, hovers = tuple(zip(*points, strict=True)) or ((), (), ())
    return Series(name=name, mark=mark, x=x, y=y, hovers=hovers, **options)


def band_of(name: str, mark: Mark, bounds: Iterable[tuple[float, float, float]], *, scale: float) -> Band:
    """The area between two curves, in units of `scale`. bounds: x, low, high."""
    x, lows, highs = zip(*bounds, strict=True)
    low, high = (tuple(each / scale for each in ends) for ends in (lows, highs))
    return Band(name=name, mark=mark, x=x, low=low, high=high)


def line_with_band(
    name: str, mark: Mark, points: Collection[tuple[float, Interval, tuple[str, ...]]], *, scale: float
) -> tuple[Series, Band]:
    """A line through values, and the band of their intervals, in units of `scale`. points: x, y, tooltip."""
    line = ((x, each.value / scale, hover) for x, each, hover in points)
    bounds = ((x, each.low, each.high) for x, each, _ in points)
    return series_of(name, mark, line, is_line=True), band_of(name, mark, bounds, scale=scale)


class Annotation(Struct, frozen=True, kw_only=True):
    """A label to the right of a point or above it. is_minor: placed last, if there is room."""

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

    alternative: the text for readers who cannot see it.
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
    """The part of every bar with one cause. heights: (n,) None if unknown; negative ones are below zero."""

    name: str
    mark: Mark
    heights: tuple[float | None, ...]
    hovers: tuple[tuple[str, ...], ...]


class BarChart(Struct, frozen=True, kw_only=True):
    """A bar of stacked parts per category. labels: (n,) written above the bars; other fields as in Chart.

    limits: of the axis, so that charts side by side share their scale. level: the height of a dashed line
    across all bars, which the subtitle explains. is_across: horizontal bars, one row per name; each part
    starts at `origin`, and a table has the labels.
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
        """The sums of a bar's negative and positive parts."""
        heights = [part.heights[place] or 0.0 for part in self.series]
        return sum(min(each, 0.0) for each in heights), sum(max(each, 0.0) for each in heights)
