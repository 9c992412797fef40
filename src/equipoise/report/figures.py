"""Charts as Plotly's JSON: dictionaries in its documented schema, made without importing Plotly.

Colours are names of the page's CSS variables, whose values in the current theme assets/page.js looks up.
"""

import html
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, Final

import orjson

from equipoise.errors import UsageError
from equipoise.report.blocks import Block, Fold, Page, Panels, Shown, SideBySide
from equipoise.report.charts import Annotation, Axis, Band, BarChart, BarPart, Chart, Mark, Series
from equipoise.report.format import visible
from equipoise.units import format_amount

PlotlyJson = dict[str, Any]

MARKER_PX: Final = 9.0
ROW_PX: Final = 26
FRAME_PX: Final = 84
PLOT_PX: Final = 340
NOTE_PX: Final = 44  # room next to the plot for the label of the largest size
MOST_TICKS: Final = 7
PLAIN_NUMBERS: Final = ",~r"  # a format of d3: grouped digits, without prefixes or exponents
FEWEST_TICKS: Final = 3
NEAR_LEVEL: Final = 0.1  # height of a label, as a fraction of the highest bar
BAND_OPACITY: Final = 0.18
_DASHED: Final[PlotlyJson] = {
    "type": "line",
    "layer": "above",
    "line": {"color": "var(--ink)", "width": 1.5, "dash": "dash"},
}
LOG_PADDING: Final = 0.06  # fraction of the axis on each side, so that no marker is cut


def plotly_figure(chart: Chart | BarChart) -> PlotlyJson:
    """The chart as `{"data": [...], "layout": {...}}`.

    Source: plotly.js figure reference, version 4.
    """
    if isinstance(chart, BarChart):
        return _across(chart) if chart.is_across else _bars(chart)
    x_range = axis_range(chart.x, tuple(chain.from_iterable(series.x for series in chart.series)))
    # Large markers first, so that they cover no small ones; the main series on top.
    drawn = sorted(chart.series, key=lambda each: (each.is_main, -max(each.weights, default=0)))
    data = [_trace(series) for series in drawn]
    if chart.level is not None:
        data.insert(0, _level_trace(chart, x_range))
    data.extend(_note_trace(each) for each in chart.notes)
    data = [*(_band_trace(each) for each in chart.bands), *data]
    return {"data": data, "layout": _layout(chart, x_range)}


def plotly_text(text: str) -> str:
    """Text escaped for Plotly, which interprets tags in names, labels and tooltips."""
    return html.escape(visible(text))


def colour(mark: Mark) -> str:
    """The CSS variable of a mark."""
    return f"var(--series-{mark.colour})" if mark.colour else "var(--quiet)"


def height_px(chart: Chart | BarChart) -> int:
    """The height of the figure: by the number of names on its axis, if it has names."""
    if isinstance(chart, BarChart):
        return FRAME_PX + ROW_PX * len(chart.categories) if chart.is_across else PLOT_PX
    return FRAME_PX + ROW_PX * len(chart.y.categories) if chart.y.categories else PLOT_PX


def _trace(series: Series) -> PlotlyJson:
    """The points of one series."""
    plain_px = 2 * MARKER_PX if series.is_main else MARKER_PX
    sizes = [MARKER_PX * math.sqrt(weight) for weight in series.weights] if series.weights else plain_px
    tone = colour(series.mark)
    return {
        "type": "scatter",
        "mode": "lines" if series.is_curve else "lines+markers" if series.is_line else "markers",
        "name": plotly_text(series.name),
        "x": list(series.x),
        "y": [plotly_text(value) if isinstance(value, str) else value for value in series.y],
        "hovertext": ["<br>".join(plotly_text(line) for line in lines) for lines in series.hovers],
        "hoverinfo": "text",
        "line": {"color": tone, "width": 2, "dash": "dot" if series.is_extrapolated else "solid"},
        "marker": {
            "color": tone,
            "symbol": series.mark.symbol,
            "size": sizes,
            "opacity": 0.9,
            "line": {"color": "var(--paper)", "width": 1},
        },
        "cliponaxis": False,
    }


def _band_trace(band: Band) -> PlotlyJson:
    """A translucent area."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plotly_text(band.name),
        "x": [*band.x, *reversed(band.x)],
        "y": [*band.high, *reversed(band.low)],
        "fill": "toself",
        "fillcolor": colour(band.mark),
        "line": {"color": colour(band.mark), "width": 0},
        "opacity": BAND_OPACITY,
        "hoverinfo": "skip",
    }


def _bar_trace(part: BarPart) -> PlotlyJson:
    return {
        "type": "bar",
        "name": plotly_text(part.name),
        "hovertext": ["<br>".join(plotly_text(line) for line in lines) for lines in part.hovers],
        "hoverinfo": "text",
        "textposition": "none",
        "marker": {"color": colour(part.mark), "line": {"color": "var(--paper)", "width": 1}},
    }


def _heights(part: BarPart) -> list[float | None]:
    """The heights, with None instead of zero, whose outline would hide the axis."""
    return [height or None for height in part.heights]


def _bars(chart: BarChart) -> PlotlyJson:
    """Vertical bars at equal distances; the names below state their sizes."""
    names = [plotly_text(name) for name in chart.categories]
    data = [_bar_trace(part) | {"x": names, "y": _heights(part)} for part in chart.series]
    tops = [_label_height(chart, place) for place in range(len(names))]
    labels = [plotly_text(label) for label in chart.labels]
    data.append(_text_trace(names, tops, labels, position="top center"))
    low, high = chart.limits
    layout = _frame(PLOT_PX, right_px=24) | {
        "barmode": "relative",
        "bargap": 0.35,
        "xaxis": _x_axis(Axis(title=chart.x_title), (-0.6, len(names) - 0.4))
        | {"type": "category", "categoryorder": "array", "categoryarray": names, "tickvals": names}
        | {"showgrid": False},
        "yaxis": _axis(Axis(title=chart.y_title), (low * 1.12, high * 1.15))
        | {"zeroline": True, "zerolinecolor": "var(--rule)"},
    }
    if chart.level is not None:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": chart.level, "y1": chart.level}
        layout["shapes"] = [_DASHED | ends]
    return {"data": data, "layout": layout}


def _across(chart: BarChart) -> PlotlyJson:
    """Horizontal bars, the first name on top; each part starts at the origin."""
    names = [plotly_text(name) for name in chart.categories]
    across = {"orientation": "h", "y": names, "base": [chart.origin] * len(names)}
    data = [_bar_trace(part) | across | {"x": _heights(part)} for part in chart.series]
    low, high = chart.limits
    padding = LOG_PADDING * (high - low)
    ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": chart.origin, "x1": chart.origin}
    layout = _frame(height_px(chart), right_px=24) | {
        "barmode": "overlay",
        "bargap": 0.3,
        "xaxis": _x_axis(Axis(title=chart.x_title), (low - padding, high + padding))
        | {"zeroline": low < 0.0 < high, "zerolinecolor": "var(--ink-2)"},
        "yaxis": _axis(Axis(title=chart.y_title, categories=tuple(chart.categories)), (0.0, 1.0))
        | {"showgrid": False},
        "shapes": [_DASHED | ends],
    }
    return {"data": data, "layout": layout}


def _label_height(chart: BarChart, place: int) -> float:
    """The height of a bar's label: on the bar, or above the level if its line would cross the label."""
    top = chart.extent(place)[1]
    if chart.level is None or not 0.0 <= chart.level - top < NEAR_LEVEL * chart.limits[1]:
        return top
    return chart.level


def _level_trace(chart: Chart, x_range: tuple[float, float]) -> PlotlyJson:
    """A dashed line over the whole width, with its text at the right end."""
    assert chart.level is not None
    ends = [10**value if chart.x.is_log else value for value in x_range]
    return {
        "type": "scatter",
        "mode": "lines+text",
        "x": ends,
        "y": [chart.level.y, chart.level.y],
        "text": ["", plotly_text(chart.level.text)],
        "textposition": "top left",
        "textfont": {"color": "var(--ink-2)", "size": 11},
        "line": {"color": "var(--ink-2)", "width": 1, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _note_trace(each: Annotation) -> PlotlyJson:
    text = plotly_text(each.text)
    # An empty line separates the text from the marker below.
    shown = f"{text}<br>\u00a0" if each.is_above else f"\u00a0\u00a0{text}\u00a0\u00a0"
    position = "top center" if each.is_above else "middle right"
    return _text_trace([each.x], [each.y], [shown], position=position)


def _text_trace(
    x: Sequence[str | float], y: Sequence[float], texts: Sequence[str], *, position: str
) -> PlotlyJson:
    return {
        "type": "scatter",
        "mode": "text",
        "x": x,
        "y": y,
        "text": texts,
        "textposition": position,
        "textfont": {"color": "var(--ink)", "size": 12},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _layout(chart: Chart, x_range: tuple[float, float]) -> PlotlyJson:
    y_values = tuple(chain.from_iterable(series.heights for series in chart.series))
    if chart.level is not None:
        y_values = (*y_values, chart.level.y)
    y_values = (*y_values, *chain.from_iterable((*band.low, *band.high) for band in chart.bands))
    return _frame(height_px(chart), right_px=NOTE_PX if chart.notes else 24) | {
        "xaxis": _x_axis(chart.x, x_range),
        "yaxis": _axis(chart.y, axis_range(chart.y, y_values)),
    }


def _frame(height: int, *, right_px: int) -> PlotlyJson:
    """The common layout of all figures."""
    return {
        "height": height,
        "margin": {"l": 12, "r": right_px, "t": 12, "b": 12},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink-2)"},
        "hoverlabel": {
            "bgcolor": "var(--raised)",
            "bordercolor": "var(--rule)",
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
            "align": "left",
        },
        "hovermode": "closest",
        "dragmode": False,
        "showlegend": False,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def _x_axis(axis: Axis, limits: tuple[float, float]) -> PlotlyJson:
    """The axis along the bottom, whose margin grows only in height."""
    return _axis(axis, limits) | {"automargin": "height"}


def _axis(axis: Axis, limits: tuple[float, float]) -> PlotlyJson:
    """One axis; a logarithmic one has the ticks of `ticks`, because Plotly's omit powers of two."""
    drawn: PlotlyJson = {
        "title": {
            "text": plotly_text(axis.label),
            "standoff": 8,
            "font": {"size": 12},
        },
        "fixedrange": True,
        # Plotly chooses ticks by the size of the plot. If labels at the ends of an axis changed that size, it
        # could alternate between two layouts.
        "automargin": "width",
        "zeroline": False,
        "gridcolor": "var(--grid)",
        "linecolor": "var(--rule)",
        "tickfont": {"size": 11},
    }
    if axis.categories:
        names = [plotly_text(name) for name in reversed(axis.categories)]
        return drawn | {
            "type": "category", "categoryorder": "array", "categoryarray": names,
            "range": [-0.6, len(names) - 0.4],
            "tickvals": names,
        }  # fmt: skip
    drawn |= {"range": list(limits), "tickformat": PLAIN_NUMBERS}
    if axis.is_log:
        values = ticks(10 ** limits[0], 10 ** limits[1])
        drawn |= {"type": "log", "tickvals": values, "ticktext": [_tick(value) for value in values]}
    return drawn


def _tick(value: float) -> str:
    """The label of a tick of a log axis: exact, except for seven or more digits and small fractions.

    >>> _tick(2048), _tick(2**27), _tick(0.125), _tick(2**-9)
    ('2,048', '134,000,000', '0.125', '0.00195')
    """
    return f"{value:,g}" if 0.1 <= value < 1e6 else format_amount(value)  # noqa: PLR2004 - g turns to exponents there


def axis_range(axis: Axis, values: tuple[float, ...]) -> tuple[float, float]:
    """The limits of an axis of numbers, as log10 for a log axis."""
    if axis.categories or not values:
        return (0.0, 1.0)
    low, high = min(values), max(values)
    if axis.is_log:
        low, high = math.log10(low), math.log10(high)
    elif axis.starts_at_zero:
        return (min(0.0, low), high * 1.12)
    padding = LOG_PADDING * (high - low) or 0.3
    return (low - padding, high + padding)


def ticks(low: float, high: float) -> list[float]:
    """At most `MOST_TICKS` powers of two between low and high, equally spaced on a log axis.

    If there are only one or two such powers, round numbers instead; if low equals high, that number.

    >>> ticks(1.8, 4000)
    [2, 8, 32, 128, 512, 2048]
    >>> ticks(1.9, 5.2)
    [2, 2.5, 3, 4, 5]
    >>> ticks(16_400, 18_500)
    [16500, 17000, 17500, 18000, 18500]
    >>> ticks(256, 256)
    [256]
    """
    if low == high:
        return [low]
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    if last - first < FEWEST_TICKS - 1:
        return _round_numbers(low, high)
    step = max(1, math.ceil((last - first + 1) / MOST_TICKS))
    return [2.0**exponent if exponent < 0 else 2**exponent for exponent in range(first, last + 1, step)]


def _even_numbers(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two numbers that are close to each other."""
    apart = (high - low) / MOST_TICKS
    decade = 10.0 ** math.floor(math.log10(apart))
    # For denormal numbers, none of these steps may be large enough.
    step = next((digit * decade for digit in (1, 2, 5, 10) if digit * decade >= apart), apart)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _round_numbers(low: float, high: float) -> list[float]:
    """Round numbers with one or two digits between two numbers less than a decade apart."""
    decade = 10.0 ** math.floor(math.log10(low))
    numbers = [digit * decade for digit in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50)]
    inside = [number for number in numbers if low <= number <= high]
    if len(inside) < FEWEST_TICKS:
        inside = _even_numbers(low, high)
    step = max(1, math.ceil(len(inside) / MOST_TICKS))
    return [int(number) if number.is_integer() else number for number in inside[::step]]


# --- in a notebook

_COLOUR = re.compile(r"var\((--[a-z0-9-]+)\)")


def charts(page: Page[Shown], findings: Shown) -> dict[str, Chart | BarChart]:
    """Every chart of a page, by name, in the order of the page."""
    blocks = [block for _, section in page.content(findings) for block in section]
    return {each.name: each for block in blocks for each in _charts_of(block)}


def _charts_of(block: Block) -> list[Chart | BarChart]:
    if isinstance(block, Fold | SideBySide):
        groups = (block.blocks,) if isinstance(block, Fold) else block.groups
        return [each for group in groups for inner in group for each in _charts_of(inner)]
    return [*block.charts] if isinstance(block, Panels) else []


def python_figure(chart: Chart | BarChart) -> Any:  # noqa: ANN401 - a Figure of Plotly, an extra
    """A chart as a `plotly.graph_objects.Figure`, in the colours of the light theme.

    Raises UsageError, naming the extra to install, if Plotly's Python package is not installed.
    """
    try:
        from plotly.graph_objects import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as err:
        raise UsageError("figures need plotly: pip install 'equipoise[notebook]'") from err
    return Figure(figure_json(chart))


def figure_json(chart: Chart | BarChart) -> dict[str, Any]:
    """A chart as Plotly's JSON with its title and colours, for use outside a page."""
    colours = _light_colours()
    text = _COLOUR.sub(lambda found: colours[found[1]], orjson.dumps(plotly_figure(chart)).decode())
    figure: dict[str, Any] = orjson.loads(text)
    figure["layout"] |= {
        "title": {"text": chart.title, "subtitle": {"text": chart.subtitle}},
        "showlegend": True,
    }
    figure["layout"].setdefault("margin", {})["t"] = 80
    return figure


@cache
def _light_colours() -> dict[str, str]:
    style = files("equipoise.report").joinpath("assets", "style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]+);", style.partition("}")[0]))
