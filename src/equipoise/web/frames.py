"""The frame around an answer: navigation, form, styles and scripts; or the answer alone, for a page that is
open already.
"""

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise import __version__
from equipoise.report.markup import Html
from equipoise.runs import embedded
from equipoise.web.answer import Answer
from equipoise.web.controls import Control
from equipoise.web.screen import Screen

_PACKAGES: Final = {
    "style.css": "equipoise.report",
    "dark.css": "equipoise.report",
    "page.js": "equipoise.report",
    "plotly-basic.min.js": "equipoise.report",
    "web.css": "equipoise.web",
    "web.js": "equipoise.web",
    "htmx.min.js": "equipoise.web",
}
TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
Halves: TypeAlias = tuple[bytes, bytes]
_BODY: Final = "\0body\0"
_MEDIA: Final = {"dark": "screen", "light": "not all", "": "screen and (prefers-color-scheme: dark)"}
# Answers of status 422 are pages too; a page that is gone from the history is asked for again.
_HTMX: Final = {
    "allowEval": False,
    "includeIndicatorStyles": False,
    "selfRequestsOnly": True,
    "historyCacheSize": 0,
    "refreshOnHistoryMiss": True,
    "defaultSettleDelay": 0,
    "scrollIntoViewOnBoost": False,
    "responseHandling": [
        {"code": "204", "swap": False},
        {"code": "[23]..", "swap": True},
        {"code": "422|503", "swap": True},
        {"code": "[45]..", "swap": False, "error": True},
    ],
}


@cache
def asset(name: str) -> bytes:
    """A file of the dashboard. Raises KeyError for any other name."""
    return files(_PACKAGES[name]).joinpath("assets", name).read_bytes()


@cache
def addresses() -> dict[str, str]:
    """Where each file is: its address changes with its content, so that browsers may keep it."""
    return {name: f"/assets/{sha256(asset(name)).hexdigest()[:16]}/{name}" for name in _PACKAGES}


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("equipoise.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is around an answer. live: what changes by itself, and where to ask for it again."""

    screen: Screen
    screens: tuple[Screen, ...]
    fields: tuple[Control, ...]
    live: Html | None = None


def whole(answer: Answer, frame: Frame, *, theme: str) -> Halves:
    """The whole page around the answer's body. theme: dark, light, or empty for that of the system."""
    return _drawn(
        "frame.html",
        answer,
        screen=frame.screen,
        screens=frame.screens,
        fields=frame.fields,
        live=_safe(frame.live),
        assets=addresses(),
        dark_media=_MEDIA.get(theme, _MEDIA[""]),
        htmx_config=json.dumps(_HTMX),
        version=__version__,
        dataset=embedded.version(),
    )


def alone(answer: Answer, frame: Frame) -> Halves:
    """What is around the body for a page that is open, with the fields whose choices changed."""
    changed = tuple(each for each in frame.fields if each.name in frame.screen.depends)
    return _drawn("fragment.html", answer, changed=changed, live=_safe(frame.live))


def _safe(html: Html | None) -> Markup | None:
    """HTML that escaped itself, for a template."""
    return None if html is None else Markup(html)  # noqa: S704 - only report.markup makes it


def _drawn(name: str, answer: Answer, **values: Any) -> Halves:  # noqa: ANN401 - what a template takes
    """A template in two halves: between them goes the answer's body, as the bytes that it is."""
    text: str = _templates().get_template(name).render(answer=answer, body=Markup(_BODY), **values)  # noqa: S704 - a constant
    before, _, after = text.partition(_BODY)
    return before.encode("utf-8", "replace"), after.encode("utf-8", "replace")
