"""A page as one HTML file that works offline: shell, a renderer per kind of block, escaping of text."""

import base64
import hashlib
import html
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

import orjson

from equipoise import __version__
from equipoise.report.blocks import (
    Badge,
    Block,
    Bullets,
    Cell,
    Code,
    CodeListing,
    Column,
    Facts,
    Fold,
    Heading,
    Page,
    PairMatrix,
    Panels,
    Prose,
    Section,
    Shown,
    SideBySide,
    Span,
    Strong,
    Table,
    Tile,
    Tiles,
    filled,
)
from equipoise.report.charts import BarChart, Chart, Mark, Series
from equipoise.report.figures import height_px, plotly_figure, plotly_text
from equipoise.report.format import ABSENT, TIMES, breakable, capital, visible
from equipoise.report.svg import mark_svg, svg_chart

VOID_TAGS: Final = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr"})
_BREAK: Final = "<wbr>"
_UNITS: Final = "min|ms|s|h|d|W|J|kJ|MJ|GJ|TJ|kWh|USD|kg|MB|GB|TB|MiB|GiB|nodes?"
# A line may be broken between a number of seven or more digits and its unit: narrow cards need it.
_LONG: Final = "(?<![0-9],[0-9]{3},[0-9]{3})"
_WITH_UNIT: Final = re.compile(rf"(?<=[0-9]){_LONG} (?=[%{TIMES}]|(?:{_UNITS})\b)")
Attribute: TypeAlias = str | int | float | bool | None


class Html(str):
    """Text that is already HTML, made by this module or from the package's own assets."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Text as HTML that displays exactly that text, with invisible characters as their code points."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(visible(text), quote=True))


def unbroken(text: str) -> str:
    """Text in which no line is broken between a number and its unit.

    >>> unbroken("4.4 min at 90 % of 80 GB").count("\N{NO-BREAK SPACE}")
    3
    """
    return _WITH_UNIT.sub("\N{NO-BREAK SPACE}", text)


def element(tag: str, *children: str, **attributes: Attribute) -> Html:
    """One element. `class_` is the attribute class, `data_x` data-x; None and False omit an attribute.

    >>> element("a", "x < y", href="#top", class_="quiet")
    '<a href="#top" class="quiet">x &lt; y</a>'
    """
    shown = "".join([_attribute(name, value) for name, value in attributes.items()])
    if tag in VOID_TAGS:
        return Html(f"<{tag}{shown}>")
    return Html(f"<{tag}{shown}>{''.join([escaped(child) for child in children])}</{tag}>")


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if name != "value":
        return f' {name}="{escaped(str(value))}"'
    # A form must send the value back unchanged, except lone surrogates, which UTF-8 cannot encode, and NUL.
    sent = str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return f' {name}="{html.escape(sent, quote=True)}"'


def concatenated(*children: str) -> Html:
    """The children concatenated, each escaped unless it is HTML."""
    return Html("".join([escaped(child) for child in children]))


def json_script(identifier: str, document: object) -> Html:
    """Data for the page's script, in an element that is not executed.

    `<`, `>`, `&` and the line separators are JSON escapes in it, so that no text can end the element.
    """
    text = orjson.dumps(document).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Html(text), type="application/json", id=identifier)


# From this number of columns, a row has one line per labelled value on a narrow screen.
FEWEST_FOLDING: Final = 4
TALL_ROWS: Final = 16  # a longer table without a marked row scrolls in a separate box


def rendered(block: Block) -> Html:
    """A block as HTML."""
    return RENDERERS[type(block)](block)


def _span(span: Span) -> Html:
    if isinstance(span, Strong):
        return element("strong", unbroken(span.text))
    return element("code", span.text) if isinstance(span, Code) else escaped(unbroken(span))


def _tile(tile: Tile) -> Html:
    return element(
        "div",
        element("p", tile.label, class_="label"),
        element("p", unbroken(tile.value), class_="value"),
        element("p", unbroken(tile.detail), class_="detail") if tile.detail else "",
        element("p", unbroken(tile.words), class_="words") if tile.words else "",
        class_="tile",
    )


def _facts(block: Facts) -> Html:
    rows = (
        concatenated(element("dt", label), element("dd", *map(_span, spans))) for label, spans in block.items
    )
    return element("dl", *rows, class_="facts")


def _badge(badge: Badge) -> Html:
    return element("span", badge.text, class_=f"badge {badge.tone}")


def _fold(block: Fold) -> Html:
    return element(
        "details",
        element(
            "summary",
            element("span", block.title, class_="title"),
            *(_badge(badge) for badge in block.badges),
        ),
        element("div", *(rendered(inner) for inner in block.blocks), class_="inside"),
        id=anchor(block.name),
        class_="aside" if block.is_aside else None,
    )


def _table(block: Table) -> Html:
    head = element("thead", element("tr", *(_column(column) for column in block.columns)))
    folds = len(block.columns) >= FEWEST_FOLDING
    rows = (
        _row(row, block.columns, is_marked=at == block.marked, folds=folds)
        for at, row in enumerate(block.rows)
    )
    body = element("tbody", *rows)
    is_tall = len(block.rows) > TALL_ROWS and block.marked is None
    return _captioned(block, head, body, kind="folding" if folds else None, is_tall=is_tall)


def _captioned(
    block: Table | PairMatrix, head: Html, body: Html, *more: str, kind: str | None, is_tall: bool = False
) -> Html:
    """A table in a scrolling box below its caption. more: elements after the table."""
    identifier = f"{anchor(block.name)}-caption"
    box = element(
        "div",
        element("table", head, body, class_=kind, aria_labelledby=identifier),
        class_="scroll tall" if is_tall else "scroll",
        tabindex=0,
        role="region",
        aria_labelledby=identifier,
    )
    caption = element("p", block.caption, class_="caption", id=identifier)
    return element("div", caption, box, *more, class_="table")


def _column(column: Column) -> Html:
    button = element("button", column.title, type="button", title=column.meaning)
    return element("th", button, scope="col", class_="number" if column.is_number else None)


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], *, is_marked: bool, folds: bool) -> Html:
    """A row; its header is the cell of the column with is_header, else the first cell of words."""
    words = [place for place, column in enumerate(columns) if not column.is_number]
    header = next((place for place, column in enumerate(columns) if column.is_header), (*words, 0)[0])
    cells = (
        _cell(cell, columns[place], is_header=place == header, is_labelled=folds)
        for place, cell in enumerate(row)
    )
    return element("tr", *cells, class_="marked" if is_marked else None)


def _cell(cell: Cell, column: Column, *, is_header: bool, is_labelled: bool) -> Html:
    """A cell. is_labelled: with its column's title, for screens too narrow for the columns."""
    text = _with_breaks(cell.text)
    shown = element("code", text) if cell.is_code else text
    badge = concatenated(" ", _badge(cell.badge)) if cell.badge else ""
    detail = element("span", _with_breaks(cell.detail), class_="detail") if cell.detail else ""
    kind = "path" if cell.is_code else "absent" if cell.text == ABSENT and not cell.badge else None
    return element(
        "th" if is_header else "td",
        shown, badge, detail,
        scope="row" if is_header else None,
        class_="number" if column.is_number else kind,
        data_key="" if cell.key is None else cell.key,
        data_label=column.title if is_labelled else None,
    )  # fmt: skip


def _with_breaks(text: str) -> Html:
    """A text that may be broken after the signs in long names if a column is too narrow."""
    return Html(_BREAK.join(map(escaped, breakable(text))))


def _matrix(block: PairMatrix) -> Html:
    head = element(
        "thead", element("tr", element("td"), *(element("th", name, scope="col") for name in block.heads))
    )
    rows = (
        element("tr", element("th", name, scope="row", title=title), *map(_word, words))
        for name, title, words in block.rows
    )
    legend = element(
        "ul", *(element("li", _badge(badge), f" {words}") for badge, words in block.legend), class_="words"
    )
    body = element("tbody", *rows)
    return _captioned(block, head, body, legend if block.legend else "", kind="matrix")


def _word(badge: Badge | None) -> Html:
    if badge is None:
        return element("td")
    detail = element("span", badge.detail, class_="detail") if badge.detail else ""
    return element("td", badge.text, detail, class_=badge.tone)


def _panels(block: Panels) -> Html:
    marks = {
        series.name: series.mark
        for chart in block.charts
        for series in chart.series
        # The name of a curve is written next to it.
        if not (block.is_drawn and isinstance(series, Series) and series.is_curve)
    }
    entries = (
        element("li", _legend_entry(name, mark, can_hide=not block.is_drawn)) for name, mark in marks.items()
    )
    legend = element("ul", element("li", f"{block.legend}:", class_="of"), *entries, class_="legend")
    figures = element(
        "div", *(_figure(chart, is_drawn=block.is_drawn) for chart in block.charts), class_="figures"
    )
    return element("div", legend, figures, class_="panels two" if len(block.charts) > 1 else "panels")


def _legend_entry(name: str, mark: Mark, *, can_hide: bool) -> Html:
    """The name of a series. can_hide: as a button with which a script hides and shows it."""
    if not can_hide:
        return element("span", Html(mark_svg(mark)), name)
    hides = {"type": "button", "aria_pressed": "false", "data_series": plotly_text(name)}
    return element("button", Html(mark_svg(mark)), name, **hides)


def _figure(chart: Chart | BarChart, *, is_drawn: bool) -> Html:
    name = anchor(f"figure-{chart.name}")
    caption = element("figcaption", chart.title, element("span", chart.subtitle, class_="detail"))
    if is_drawn and isinstance(chart, Chart):
        return element("figure", caption, Html(svg_chart(chart)), id=name)
    plot = element(
        "div",
        class_="plot",
        data_figure=f"{name}-data",
        role="img",
        aria_label=chart.alternative,
        style=f"min-height:{height_px(chart)}px",
    )
    return element("figure", caption, plot, json_script(f"{name}-data", plotly_figure(chart)), id=name)


def anchor(name: str) -> str:
    """A name as an id of letters, digits and hyphens; other characters as code points, to keep ids unique."""
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character == "-")
        else f"_{ord(character):x}"
        for character in name
    )


# The renderer of each kind of block; `Any` because each takes a different kind.
RENDERERS: Final[Mapping[type, Callable[[Any], Html]]] = {
    Prose: lambda block: element("p", *map(_span, block.spans), class_="note" if block.is_note else None),
    Heading: lambda block: element("h4" if block.is_minor else "h3", block.text, id=anchor(block.name)),
    Bullets: lambda block: element("ul", *(element("li", *map(_span, item)) for item in block.items)),
    CodeListing: lambda block: element("pre", element("code", block.code), tabindex="0"),
    Tiles: lambda block: element("div", *map(_tile, block.items), class_="tiles"),
    Facts: _facts,
    Table: _table,
    PairMatrix: _matrix,
    Panels: _panels,
    SideBySide: lambda block: element(
        "div", *(element("div", *map(rendered, filled(group))) for group in block.groups), class_="beside"
    ),
    Fold: _fold,
}

PLOTLY: Final = "Figures are drawn by plotly.js, © Plotly Technologies Inc., MIT licence."


def render(page: Page[Shown], findings: Shown) -> str:
    """A whole page as the text of one HTML file of a few MB, most of which is Plotly's code.

    It loads nothing from elsewhere, which its content security policy enforces.
    """
    content = page.content(findings)
    scripts = (_asset("plotly-basic.min.js"), _asset("page.js"))
    body = element(
        "body",
        element("a", "Skip to the report", href="#main", class_="skip"),
        element(
            "div",
            _masthead(page, findings, element("strong", "Equipoise"), " · "),
            _contents(content),
            element(
                "main",
                *(_section(section, blocks) for section, blocks in content),
                id="main",
                class_="sections",
            ),
            _footer(
                page.closing(findings), page.left_out_words(findings), f"Equipoise {__version__}.", PLOTLY
            ),
            class_="page",
        ),
        *(element("script", Html(script)) for script in scripts),
    )
    head = _head(page.title(findings), page.headline(findings), scripts)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def fragment(page: Page[Shown], findings: Shown) -> Html:
    """The page without its shell, for a frame with its own styles, scripts and theme."""
    content = page.content(findings)
    return element(
        "div",
        _masthead(page, findings),
        _contents(content) if len(content) > 1 else "",
        element("div", *(_section(section, blocks) for section, blocks in content), class_="sections"),
        _footer(page.closing(findings), page.left_out_words(findings)),
        class_="page",
    )


def _head(title: str, description: str, scripts: tuple[str, ...]) -> Html:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"equipoise {__version__}"),
        element("meta", name="description", content=description),
        element("title", title),
        element("style", Html(_asset("style.css"))),
        element(
            "style", Html(_asset("dark.css")), id="dark", media="screen and (prefers-color-scheme: dark)"
        ),
    )


@cache
def _asset(name: str) -> str:
    return files("equipoise.report").joinpath("assets", name).read_text(encoding="utf-8")


def _masthead(page: Page[Shown], findings: Shown, *brand: str) -> Html:
    """The head of a page: brand, subject, findings. Without a brand, the frame has the theme's button."""
    summary = page.summary(findings)
    button = element("button", "Dark theme", type="button", class_="theme", hidden=True)
    return element(
        "header",
        element(
            "div",
            element("span", *brand, unbroken(capital(page.about(findings)))),
            button if brand else "",
            class_="kicker",
        ),
        element("h1", unbroken(page.headline(findings))),
        element("ul", *(element("li", unbroken(each)) for each in summary), class_="summary")
        if summary
        else "",
        element(
            "noscript",
            element("p", "Figures need JavaScript; every number is in the tables too.", class_="note"),
        ),
        class_="masthead",
    )


def _contents(content: list[tuple[Section[Shown], tuple[Block, ...]]]) -> Html:
    items = []
    for section, blocks in content:
        inner = [block for block in blocks if isinstance(block, Heading)]
        links = [element("li", element("a", block.text, href=f"#{anchor(block.name)}")) for block in inner]
        nested = element("ol", *links) if section.lists_headings and links else ""
        items.append(element("li", element("a", section.title, href=f"#{_inside(section)}"), nested))
    return element(
        "nav", element("h2", "Contents"), element("ol", *items), class_="toc", aria_label="Contents"
    )


def _section(section: Section[Shown], blocks: tuple[Block, ...]) -> Html:
    """A section. The content of a folded one has a separate anchor; a link to it opens the section."""
    title = element("h2", section.title, id=f"{section.name}-title")
    inside = concatenated(*(rendered(block) for block in blocks))
    if section.is_folded:
        content = element("div", inside, class_="inside", id=_inside(section))
        shown = element("details", element("summary", title), content, class_="part")
    else:
        shown = concatenated(title, inside)
    return element("section", shown, id=section.name, aria_labelledby=f"{section.name}-title")


def _inside(section: Section[Shown]) -> str:
    """The anchor of the content of a section."""
    return f"{section.name}-inside" if section.is_folded else section.name


def _footer(closing: tuple[str, ...], *credit: str) -> Html:
    lines = [*closing, " ".join(filter(None, credit))]
    words = [element("p", unbroken(each)) for each in lines if each]
    return element("footer", *words) if words else Html("")


_NOTEBOOK_STYLE = (
    ".equipoise dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}"
    ".equipoise dt{opacity:.7}.equipoise dd{margin:0}"
    ".equipoise .badge{font-weight:600}.equipoise button{all:unset}"
)


def notebook_html(page: Page[Shown], findings: Shown) -> Html:
    """The short form of a page for a cell of a notebook, without figures, because these need a script."""
    return element(
        "div",
        element("style", Html(_NOTEBOOK_STYLE)),
        element("p", unbroken(page.about(findings))),
        element("h3", unbroken(page.headline(findings))),
        *(element("p", unbroken(each)) for each in page.summary(findings)),
        *(rendered(block) for block in page.screen(findings) if not isinstance(block, Panels)),
        class_="equipoise",
    )
