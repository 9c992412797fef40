"""Charts as SVG in the page itself, which need no script and can be printed.

Colours are the page's CSS variables, which depend on the theme. Labels that would collide are left out.
"""

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple, TypeAlias

from equipoise.report import format as amounts
from equipoise.report.charts import Axis, Chart, Mark, Series
from equipoise.report.figures import FEWEST_TICKS, MOST_TICKS, axis_range, colour, ticks
from equipoise.report.format import visible

WIDTH: Final = 460.0
HEIGHT: Final = 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 26.0, 40.0
_FONT_PX: Final = 12.0
_CHARACTER_PX: Final = 0.6 * _FONT_PX  # mean width of a character of a sans-serif font
_MARKER_PX: Final = 10.0
_LINE_STEP_PX: Final = 5.0
# Distances of a label from its point, in pixels. Labels of points are near, so that they are unambiguous.
_NEAR: Final = (7.0, 12.0)
# A label is nearer to its point than to other series by at least this distance.
_APART_PX: Final = 4.0
_FAR: Final = (7.0, 12.0, 18.0, 26.0)
SYMBOL_PATHS: Final = {
    "circle": "M6 1a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
    "square": "M1.5 1.5h9v9h-9z",
    "diamond": "M6 0l6 6l-6 6l-6-6z",
    "triangle-up": "M6 1l5.5 10h-11z",
    "cross": "M4 0h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "x": "M3 .5l3 3l3-3l2.5 2.5l-3 3l3 3l-2.5 2.5l-3-3l-3 3l-2.5-2.5l3-3l-3-3z",
    "star": "M6 0l1.5 4.2h4.5l-3.6 2.7l1.4 4.4l-3.8-2.7l-3.8 2.7l1.4-4.4l-3.6-2.7h4.5z",
    "pentagon": "M6 .5l5.7 4.2l-2.2 6.8h-7l-2.2-6.8z",
}


_DIRECTIONS: Final = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))


class _Box(NamedTuple):
    """An occupied area, in pixels of the view box."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "_Box") -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def distance_px(self, other: "_Box") -> float:
        """The distance between the nearest edges; zero if the boxes overlap."""
        across = max(other.left - self.right, self.left - other.right, 0.0)
        down = max(other.top - self.bottom, self.top - other.bottom, 0.0)
        return math.hypot(across, down)


class _Frame:
    """Converts values of a chart to positions in the view box."""

    def __init__(self, chart: Chart) -> None:
        self.x, self.y = chart.x, chart.y
        self.x_range = axis_range(chart.x, tuple(chain.from_iterable(each.x for each in chart.series)))
        heights = tuple(chain.from_iterable(each.heights for each in chart.series))
        self.y_range = axis_range(chart.y, heights)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The position of a point."""
        across = _share(x, self.x, self.x_range)
        up = _share(y, self.y, self.y_range)
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM),
        )


def _share(value: float, axis: Axis, limits: tuple[float, float]) -> float:
    """The position of a value along its axis, 0 to 1."""
    place = math.log10(value) if axis.is_log else value
    return (place - limits[0]) / (limits[1] - limits[0])


def svg_chart(chart: Chart) -> str:
    """The chart as one `<svg>` element. Texts are escaped.

    Assumes axes of numbers. Labels of points are those of `Series.labels`; notes are placed first.
    """
    frame = _Frame(chart)
    drawn = sorted(chart.series, key=lambda each: each.is_main)
    parts = [*_grid(chart, frame)]
    parts += [_line(each, frame) for each in drawn if (each.is_line or each.is_curve) and len(each.x) > 1]
    parts += [_markers(each, frame) for each in drawn if not each.is_curve]
    parts += _labels(chart, frame)
    label = html.escape(visible(chart.alternative), quote=True)
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}"'
    return f'<svg class="drawing" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def mark_svg(mark: Mark) -> str:
    """The symbol of a series for a legend."""
    return (
        f'<svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">'
        f'<path d="{SYMBOL_PATHS[mark.symbol]}" style="fill:{colour(mark)}"/></svg>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{html.escape(visible(text))}</text>'


def _grid(chart: Chart, frame: _Frame) -> Iterator[str]:
    """Grid lines with the values of the ticks, and the titles of the axes."""
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in _ticks(chart.x, frame.x_range):
        x, _ = frame.at(value, _inverse(chart.y, frame.y_range[0]))
        yield f'<path class="grid" d="M{x:.1f} {_TOP:g}V{bottom:g}"/>'
        yield _text(x, bottom + 15, amounts.digits(value))
    for value in _ticks(chart.y, frame.y_range):
        _, y = frame.at(_inverse(chart.x, frame.x_range[0]), value)
        yield f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{right:g}"/>'
        yield _text(_LEFT - 5, y + 4, amounts.digits(value), anchor="end")
    yield f'<path class="axis" d="M{_LEFT:g} {_TOP:g}V{bottom:g}H{right:g}"/>'
    yield _text(right, HEIGHT - 6, chart.x.label, anchor="end")
    yield _text(2, 12, chart.y.label, anchor="start")


def _inverse(axis: Axis, place: float) -> float:
    return 10.0**place if axis.is_log else place


def _ticks(axis: Axis, limits: tuple[float, float]) -> list[float]:
    """Round numbers: on a log axis 1, 2 and 5 times powers of ten, or fewer if these are too many."""
    low, high = _inverse(axis, limits[0]), _inverse(axis, limits[1])
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if axis.is_log else ()
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**decade for decade in decades for digit in digits]
        inside = [each for each in found if low <= each <= high]
        if FEWEST_TICKS <= len(inside) <= MOST_TICKS:
            return inside
    return ticks(low, high)


def _line(series: Series, frame: _Frame) -> str:
    points = (frame.at(x, y) for x, y in zip(series.x, series.heights, strict=True))
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    kind = "line extrapolated" if series.is_extrapolated else "line"
    return f'<path class="{kind}" d="M{path}" style="stroke:{colour(series.mark)}"/>'


def _markers(series: Series, frame: _Frame) -> str:
    """A symbol per point, with its tooltip as title."""
    scale = (2.0 if series.is_main else 1.0) * _MARKER_PX / 12.0
    parts = []
    for x, y, lines in zip(series.x, series.heights, series.hovers, strict=True):
        across, down = frame.at(x, y)
        parts.append(
            f'<path class="marker" d="{SYMBOL_PATHS[series.mark.symbol]}" '
            f'transform="translate({across - 6 * scale:.1f} {down - 6 * scale:.1f}) scale({scale:.3f})" '
            f'style="fill:{colour(series.mark)}"><title>{html.escape(visible(chr(10).join(lines)))}</title></path>'
        )
    return "".join(parts)


def _labels(chart: Chart, frame: _Frame) -> Iterator[str]:
    """Notes, labels of points and minor notes, except those without a free position.

    The label of a point is also left out if it would be as near to another series.
    """
    drawn = [[*_line_boxes(each, frame), *_marker_boxes(each, frame)] for each in chart.series]
    taken = list(chain.from_iterable(drawn))
    notes, minor = (
        [(*frame.at(each.x, each.y), each.text, "note") for each in chart.notes if each.is_minor == is_minor]
        for is_minor in (False, True)
    )
    yield from _placed(notes, taken)
    for place, each in sorted(enumerate(chart.series), key=lambda one: not one[1].is_main):
        pairs = zip(chart.series, drawn, strict=True)
        others = [
            box
            for at, (other, boxes) in enumerate(pairs)
            if at != place and not (other.is_curve or other.is_main)
            for box in boxes
        ]
        points = [
            (*frame.at(x, y), text, "point")
            for x, y, text in zip(each.x, each.heights, each.labels, strict=False)
        ]
        yield from _placed(points, taken, reach=_NEAR, others=others)
    yield from _placed(minor, taken)


_Label: TypeAlias = tuple[float, float, str, str]


def _placed(
    labels: Iterable[_Label],
    taken: list[_Box],
    *,
    reach: tuple[float, ...] = _FAR,
    others: Sequence[_Box] = (),
) -> Iterator[str]:
    """Labels that cover nothing in `taken` and are nearest to their point; their boxes are added to it."""
    for x, y, text, kind in (each for each in labels if each[2]):
        box = _free(x, y, text, taken, reach=reach, others=others)
        if box is not None:
            taken.append(box)
            yield _text((box.left + box.right) / 2, box.bottom - 3, text, kind=kind)


def _marker_boxes(series: Series, frame: _Frame) -> Iterator[_Box]:
    if not series.is_curve:
        half = _MARKER_PX * (1.0 if series.is_main else 0.5)
        for x, y in zip(series.x, series.heights, strict=True):
            yield _marker_box(*frame.at(x, y), half=half)


def _line_boxes(series: Series, frame: _Frame) -> Iterator[_Box]:
    """Small boxes along the line of a series."""
    if not (series.is_line or series.is_curve):
        return
    points = [frame.at(x, y) for x, y in zip(series.x, series.heights, strict=True)]
    for (x, y), (next_x, next_y) in pairwise(points):
        num_steps = max(1, math.ceil(math.dist((x, y), (next_x, next_y)) / _LINE_STEP_PX))
        for step in range(num_steps + 1):
            share = step / num_steps
            yield _marker_box(x + share * (next_x - x), y + share * (next_y - y), half=1.0)


def _marker_box(x: float, y: float, *, half: float) -> _Box:
    return _Box(x - half, y - half, x + half, y + half)


def _free(
    x: float,
    y: float,
    text: str,
    taken: Sequence[_Box],
    *,
    reach: tuple[float, ...],
    others: Sequence[_Box],
) -> _Box | None:
    """The first free box for a text around a point, inside the plot; None if there is none.

    others: boxes of other series, which must be further away from the text than its point.
    """
    own = _marker_box(x, y, half=_MARKER_PX / 2.0)
    inside = _Box(_LEFT, _TOP - 8.0, WIDTH, HEIGHT - _BOTTOM)
    for box in _places(x, y, text, reach):
        is_inside = (
            inside.left <= box.left
            and box.right <= inside.right
            and inside.top <= box.top
            and box.bottom <= inside.bottom
        )
        if not is_inside or any(box.overlaps(other) for other in taken):
            continue
        nearest = box.distance_px(own) + _APART_PX
        if all(box.distance_px(other) > nearest for other in others):
            return box
    return None


def _places(x: float, y: float, text: str, reach: tuple[float, ...]) -> Iterable[_Box]:
    """Boxes above, below, right, left and diagonally of a point, at each distance in turn."""
    wide, high = _CHARACTER_PX * len(text), _FONT_PX + 2.0
    for far in reach:
        for across, up in _DIRECTIONS:
            middle_x = x + across * (far + wide / 2.0)
            middle_y = y - up * (far + high / 2.0)
            yield _Box(middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2)
