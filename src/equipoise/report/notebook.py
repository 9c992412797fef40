"""A page in a notebook: as HTML without script, and its figures as those of Plotly's Python package."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from equipoise.errors import UsageError
from equipoise.report.blocks import Block, Fold, Page, Panels, Shown, SideBySide
from equipoise.report.charts import BarChart, Chart
from equipoise.report.figures import plotly_figure
from equipoise.report.html import Html, element, rendered, unbroken

_STYLE = (
    ".equipoise dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}"
    ".equipoise dt{opacity:.7}.equipoise dd{margin:0}"
    ".equipoise .badge{font-weight:600}.equipoise button{all:unset}"
)
_COLOUR = re.compile(r"var\((--[a-z0-9-]+)\)")


def notebook_html(page: Page[Shown], findings: Shown) -> Html:
    """The short form of a page, for a cell of a notebook: no figures, which need the page's script."""
    return element(
        "div",
        element("style", Html(_STYLE)),
        element("p", unbroken(page.about(findings))),
        element("h3", unbroken(page.headline(findings))),
        *(element("p", unbroken(each)) for each in page.summary(findings)),
        *(rendered(block) for block in page.screen(findings) if not isinstance(block, Panels)),
        class_="equipoise",
    )


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

    Raises UsageError, naming the extra to install, where Plotly's Python package is not there.
    """
    try:
        from plotly.graph_objects import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as err:
        raise UsageError("figures need plotly: pip install 'equipoise[notebook]'") from err
    return Figure(figure_json(chart))


def figure_json(chart: Chart | BarChart) -> dict[str, Any]:
    """A chart as Plotly's JSON with its title and colours, for where no page has them."""
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
    """The colours of the page's style sheet by the names of their variables."""
    style = files("equipoise.report").joinpath("assets", "style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]+);", style.partition("}")[0]))
