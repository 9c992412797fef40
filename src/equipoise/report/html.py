"""A page as one HTML file that opens offline: a shell around its sections."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from equipoise import __version__
from equipoise.report.blocks import Block, Heading
from equipoise.report.html_blocks import anchor, rendered
from equipoise.report.markup import Html, element, unbroken
from equipoise.report.page import Page
from equipoise.report.section import Section, Shown
from equipoise.report.words import capital, listed

PLOTLY: Final = "Figures are drawn by plotly.js, © Plotly Technologies Inc., MIT licence."


def render(page: Page[Shown], findings: Shown) -> str:
    """A whole page as the text of one HTML file, a few MB, most of it Plotly's drawing code.

    Nothing in it is loaded from elsewhere, and its content security policy forbids that anything is.
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
            _footer(page.closing(findings), page.left_out(findings), f"Equipoise {__version__}.", PLOTLY),
            class_="page",
        ),
        *(element("script", Html(script)) for script in scripts),
    )
    head = _head(page.title(findings), page.headline(findings), scripts)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def fragment(page: Page[Shown], findings: Shown) -> Html:
    """The same page without its shell: for a frame that has styles, scripts and a theme of its own."""
    content = page.content(findings)
    return element(
        "div",
        _masthead(page, findings),
        _contents(content) if len(content) > 1 else "",
        element("div", *(_section(section, blocks) for section, blocks in content), class_="sections"),
        _footer(page.closing(findings), page.left_out(findings)),
        class_="page",
    )


def _head(title: str, description: str, scripts: tuple[str, ...]) -> Html:
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
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


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    """One of the package's own files that go into the page as they are."""
    return files("equipoise.report").joinpath("assets", name).read_text(encoding="utf-8")


def _masthead(page: Page[Shown], findings: Shown, *brand: str) -> Html:
    """Brand, what it is about, what was found. Without a brand there is a frame, which has the theme."""
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
        items.append(element("li", element("a", section.title, href=f"#{section.name}"), nested))
    return element(
        "nav", element("h2", "Contents"), element("ol", *items), class_="toc", aria_label="Contents"
    )


def _section(section: Section[Shown], blocks: tuple[Block, ...]) -> Html:
    return element(
        "section",
        element("h2", section.title, id=f"{section.name}-title"),
        *(rendered(block) for block in blocks),
        id=section.name,
        aria_labelledby=f"{section.name}-title",
    )


def _footer(closing: tuple[str, ...], left_out: list[str], *credit: str) -> Html:
    """Last words; nothing where there are none."""
    absent = f"Left out for lack of data: {listed(left_out)}." if left_out else ""
    said = [*closing, " ".join(filter(None, (absent, *credit)))]
    words = [element("p", unbroken(each)) for each in said if each]
    return element("footer", *words) if words else Html("")
