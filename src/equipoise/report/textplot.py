"""Charts as text: a scatter plot of symbols, bars, or a grid of names against sizes with counts."""

import math
from collections.abc import Iterable, Iterator, Mapping
from string import ascii_letters
from typing import Final, TypeAlias

from msgspec import Struct
from rich.text import Text

from equipoise.report.charts import Axis, BarChart, BarPart, Chart, Mark, Series
from equipoise.report.figures import ticks
from equipoise.report.format import TIMES, count, ratio
from equipoise.units import format_amount

PLOT_ROWS: Final = 13
MOST_NAME_CHARACTERS: Final = 25
SIZE_CHARACTERS: Final = 6
LABEL_COLUMNS: Final = 8
# Signs of symbols, and of curves by their direction.
ASCII_SIGNS: Final = {
    "circle": "o", "square": "#", "diamond": "%", "triangle-up": "^",
    "cross": "+", "x": "x", "star": "*", "pentagon": "@",
    "level": "-", "upright": ":", "curve": ".",
}  # fmt: skip
SIGNS: Final = {
    "circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲",
    "cross": "+", "x": TIMES, "star": "*", "pentagon": "◇",
    "level": "┄", "upright": "┆", "curve": "·",
}  # fmt: skip
# Used in this order if a sign is already taken.
ASCII_FURTHER: Final = "=~&$" + ascii_letters
FURTHER: Final = "○□△▽" + ascii_letters
STYLES: Final = ("blue", "red", "green", "magenta", "yellow", "cyan", "bright_blue", "bright_red")


class Canvas(Struct, frozen=True, kw_only=True):
    """The width of the plot in columns, and whether it may contain more than ASCII."""

    columns: int
    is_unicode: bool


# An entry of a legend: the name of a series, its mark, and its direction if it is a curve.
Entry: TypeAlias = tuple[str, Mark, str]


def entry_of(series: Series | BarPart) -> Entry:
    """The entry of a series in the legend."""
    if not isinstance(series, Series) or not series.is_curve:
        return series.name, series.mark, ""
    runs = "upright" if len(set(series.x)) == 1 else "level" if len(set(series.y)) == 1 else "curve"
    return series.name, series.mark, runs


def legend_signs(charts: Iterable[Chart | BarChart], canvas: Canvas) -> dict[Entry, str]:
    """A distinct character for each entry of the legend that the charts share.

    Main series choose first. A curve fitted to points of the same name has no separate entry.
    """
    series = [each for chart in charts for each in chart.series]
    entries = dict.fromkeys(map(entry_of, series))
    with_points = {name for name, _, runs in entries if not runs}
    main = {entry_of(each) for each in series if isinstance(each, Series) and each.is_main}
    found: dict[Entry, str] = {}
    for entry in sorted(entries, key=lambda each: each not in main):
        name, mark, runs = entry
        if runs and name in with_points:
            continue
        own = _sign(runs or mark.symbol, canvas)
        further, used = FURTHER if canvas.is_unicode else ASCII_FURTHER, found.values()
        found[entry] = next((sign for sign in (own, *further) if sign not in used), own)
    return {entry: found[entry] for entry in entries if entry in found}


def _sign(name: str, canvas: Canvas) -> str:
    return (SIGNS if canvas.is_unicode else ASCII_SIGNS)[name]


def style(mark: Mark) -> str:
    """The terminal colour of a mark; a terminal without colours ignores it."""
    return STYLES[mark.colour - 1] if mark.colour else "dim"


def text_plot(chart: Chart | BarChart, canvas: Canvas, signs: Mapping[Entry, str] | None = None) -> Text:
    """The chart in lines of `canvas.columns` characters. signs: of a shared legend, if any."""
    signs = legend_signs([chart], canvas) if signs is None else signs
    if isinstance(chart, BarChart):
        return _bar_plot(chart, canvas, signs)
    return (_grid_plot if chart.y.categories else _scatter_plot)(chart, canvas, signs)


def _scatter_plot(chart: Chart, canvas: Canvas, signs: Mapping[Entry, str]) -> Text:
    """A scatter plot; where symbols coincide, the main series is on top, otherwise the first."""
    x_values = [value for series in chart.series for value in series.x]
    y_values = [value for series in chart.series for value in series.heights]
    if not x_values:
        return Text("no points")
    if chart.level is not None:
        y_values.append(chart.level.y)
    x_scale, y_scale = _Scale.over(chart.x, x_values), _Scale.over(chart.y, y_values)
    labels = {
        row: format_amount(y_scale.value(PLOT_ROWS - 1 - row, PLOT_ROWS))
        for row in (0, PLOT_ROWS // 2, PLOT_ROWS - 1)
    }
    label_columns = max(LABEL_COLUMNS, *map(len, labels.values()))
    num_columns = canvas.columns - label_columns - 2
    cells = [[(" ", "")] * num_columns for _ in range(PLOT_ROWS)]
    if chart.level is not None:
        row = PLOT_ROWS - 1 - y_scale.place(chart.level.y, PLOT_ROWS)
        cells[row] = [(_sign("level", canvas), "dim")] * num_columns
    first_on_top = [*reversed(chart.series)]
    for series in sorted(first_on_top, key=lambda each: each.is_main):
        entry = entry_of(series)
        sign = signs.get(entry) or _sign(entry[2], canvas)
        places = [
            (PLOT_ROWS - 1 - y_scale.place(y, PLOT_ROWS), x_scale.place(x, num_columns))
            for x, y in zip(series.x, series.heights, strict=True)
        ]
        for row, column in _between(places) if entry[2] in ("level", "upright") else places:
            cells[row][column] = (sign, style(series.mark))
    bar, corner, dash = ("│", "└", "─") if canvas.is_unicode else ("|", "+", "-")
    plot = Text()
    for row, line in enumerate(cells):
        plot.append(f"{labels.get(row, ''):>{label_columns}} {bar}")
        for character, cell_style in line:
            plot.append(character, cell_style)
        plot.append("\n")
    plot.append(f"{'':>{label_columns}} {corner}{dash * num_columns}\n")
    plot.append(_x_labels(x_scale, num_columns, label_columns + 2))
    return plot


def _between(places: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Every position between the ends of a horizontal or vertical line."""
    rows, columns = zip(*places, strict=True)
    for row in range(min(rows), max(rows) + 1):
        for column in range(min(columns), max(columns) + 1):
            yield row, column


def _bar_plot(chart: BarChart, canvas: Canvas, signs: Mapping[Entry, str]) -> Text:
    """A line per bar: its name, its parts, each in its symbol, and its label.

    If is_across, each part starts at the origin; otherwise parts are stacked, and those below zero omitted.
    """
    name_columns = max(map(len, chart.categories), default=0) + 1
    label_columns = max(map(len, chart.labels), default=0) + 1
    num_columns = max(canvas.columns - name_columns - label_columns - 2, 1)
    plot = Text()
    for place, name in enumerate(chart.categories):
        plot.append(f"{name:>{name_columns - 1}} {'│' if canvas.is_unicode else '|'}")
        cells = [(" ", "")] * num_columns if chart.is_across else []
        for part, begin, end in _ends(chart, place, num_columns):
            cells[begin:end] = [(signs[entry_of(part)], style(part.mark))] * (end - begin)
        for character, cell_style in cells:
            plot.append(character, cell_style)
        plot.append(f" {chart.labels[place]}\n")
    if chart.level is not None:
        plot.append(f"level: {ratio(chart.level)}\n", "dim")
    plot.right_crop(1)
    return plot


def _ends(chart: BarChart, place: int, num_columns: int) -> Iterator[tuple[BarPart, int, int]]:
    """The parts of a bar, each with its first column and the column after its last."""
    if chart.is_across:
        scale = _Scale(low=chart.limits[0], high=chart.limits[1], is_log=False)
        for part in chart.series:
            tip = chart.origin + (part.heights[place] or 0.0)
            first, last = sorted((scale.place(chart.origin, num_columns), scale.place(tip, num_columns)))
            yield part, first, last
        return
    most, end = chart.limits[1] or 1.0, 0.0
    for part in chart.series:
        start, end = end, end + max(part.heights[place] or 0.0, 0.0)
        yield part, round(start / most * num_columns), round(end / most * num_columns)


def _x_labels(scale: "_Scale", num_columns: int, indent: int) -> str:
    """Labels of the ticks, each ending below its position."""
    line = [" "] * (indent + num_columns)
    for value in ticks(scale.low, scale.high):
        label = count(value)
        start = max(0, indent + scale.place(value, num_columns) - len(label) + 1)
        line[start : start + len(label)] = label
    return "".join(line).rstrip()


def _grid_plot(chart: Chart, canvas: Canvas, signs: Mapping[Entry, str]) -> Text:
    """A row per name and a column per size; cells have the symbols of groups and numbers of systems."""
    sizes = sorted({value for series in chart.series for value in series.x})
    name_columns = min(MOST_NAME_CHARACTERS, max(map(len, chart.y.categories)) + 1)
    most = (canvas.columns - name_columns) // SIZE_CHARACTERS
    columns = _merged(sizes, most)
    spots: dict[tuple[str, int], list[Text]] = {}
    for series in chart.series:
        weights = series.weights or (1,) * len(series.x)
        for x, y, weight in zip(series.x, series.y, weights, strict=True):
            shown = Text(signs[entry_of(series)], style(series.mark)).append(
                f"{weight}" if weight > 1 else "", ""
            )
            spots.setdefault((str(y), columns[x]), []).append(shown)
    plot = Text()
    for name in chart.y.categories:
        plot.append(_fitted(name, name_columns - 1, canvas).ljust(name_columns))
        for place in range(max(columns.values(), default=0) + 1):
            _append_spot(plot, spots.get((name, place), []), canvas)
        plot.append("\n")
    plot.append(" " * name_columns)
    for place in range(max(columns.values(), default=0) + 1):
        members = [size for size in sizes if columns[size] == place]
        more = "+" if len(members) > 1 else ""  # the smallest of several sizes in one column
        plot.append(f"{members[0]:g}{more}".rjust(SIZE_CHARACTERS))
    return plot


def _append_spot(plot: Text, spot: list[Text], canvas: Canvas) -> None:
    shown = Text().join(spot[:2])
    plot.append(" " * max(0, SIZE_CHARACTERS - len(shown)))
    if spot:
        plot.append_text(shown[:SIZE_CHARACTERS])
    else:
        plot.right_crop(1)
        plot.append("·" if canvas.is_unicode else ".", "dim")


def _merged(sizes: list[float], most: int) -> dict[float, int]:
    """The column of each size; if there are too many sizes, the nearest share a column."""
    groups = [[size] for size in sizes]
    while len(groups) > most:
        gaps = [groups[i + 1][0] / groups[i][-1] for i in range(len(groups) - 1)]
        nearest = gaps.index(min(gaps))
        groups[nearest : nearest + 2] = [groups[nearest] + groups[nearest + 1]]
    return {size: place for place, group in enumerate(groups) for size in group}


def _fitted(name: str, columns: int, canvas: Canvas) -> str:
    if len(name) <= columns:
        return name
    return name[: columns - 1] + ("…" if canvas.is_unicode else ".")


class _Scale(Struct, frozen=True, kw_only=True):
    """A linear or logarithmic scale from values to character positions."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, axis: Axis, values: list[float]) -> "_Scale":
        low, high = min(values), max(values)
        if axis.starts_at_zero and not axis.is_log:
            low = min(0.0, low)
        return cls(low=low, high=high, is_log=axis.is_log)

    def place(self, value: float, num_places: int) -> int:
        low, high, value = (math.log(v) if self.is_log else v for v in (self.low, self.high, value))
        if high == low:
            return num_places // 2
        return round((value - low) / (high - low) * (num_places - 1))

    def value(self, place: int, num_places: int) -> float:
        fraction = place / (num_places - 1)
        if self.is_log:
            return self.low * math.pow(self.high / self.low, fraction)
        return self.low + (self.high - self.low) * fraction
