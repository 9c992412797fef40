"""The frame around an answer.

Navigation, form, styles; the page that waits, and the one that gives the reason why not.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, TypeAlias, TypeVar

from fastapi import Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from equipoise import __version__
from equipoise.errors import EvidenceError, InputError
from equipoise.report.blocks import Block, Code, Page, Section, Span, bullets
from equipoise.report.format import capital, sentence
from equipoise.report.html import Html, concatenated, element
from equipoise.report.json import document, encode, missing_fields
from equipoise.runs import embedded
from equipoise.units import MIB
from equipoise.web import Control, Screen, WrongFieldsError
from equipoise.web.answers import BUSY, FILE_KINDS, OK, REFUSED, FileKind, PageAnswer, shown
from equipoise.web.question import form_way

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
# Answers of status 422 are pages too; a page that is gone from the history is requested again.
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


class Frame(Struct, frozen=True, kw_only=True):
    """What is around an answer.

    query: of the address. live: what changes by itself, and where to ask. theme: dark, light, or empty for
    that of the system; None for a page that is open and needs only the fields whose choices changed.
    """

    screen: Screen
    screens: tuple[Screen, ...]
    fields: tuple[Control, ...]
    query: str
    live: Html | None
    theme: str | None


def around(answer: PageAnswer, frame: Frame) -> Halves:
    """What is around the answer's body."""
    live = None if frame.live is None else Markup(frame.live)  # noqa: S704 - only report.markup makes it
    shown = {"screen": frame.screen, "query": frame.query, "live": live}
    if frame.theme is None:
        changed = tuple(each for each in frame.fields if each.name in frame.screen.depends)
        return _drawn("fragment.html", answer, changed=changed, **shown)
    return _drawn(
        "frame.html",
        answer,
        screens=frame.screens,
        fields=frame.fields,
        assets=addresses(),
        dark_media=_MEDIA.get(frame.theme, _MEDIA[""]),
        htmx_config=json.dumps(_HTMX),
        version=__version__,
        dataset=embedded.version(),
        **shown,
    )


def _drawn(name: str, answer: PageAnswer, **values: Any) -> Halves:  # noqa: ANN401 - what a template takes
    """A template in two halves: between them goes the answer's body, as the bytes that it is."""
    text: str = _templates().get_template(name).render(answer=answer, body=Markup(_BODY), **values)  # noqa: S704 - a constant
    before, _, after = text.partition(_BODY)
    return before.encode("utf-8", "replace"), after.encode("utf-8", "replace")


WORDS: Final = "Computing this answer for the first time. It takes some seconds and is then cached."


def waiting(title: str, address: str, *, shares_form: bool) -> PageAnswer:
    """What is shown until the answer at an address has come.

    shares_form: whether there is a form, whose question has priority.
    """
    asks = element(
        "div",
        element(
            "p",
            element("progress", aria_label="Computing"),
            element("span", WORDS),
            class_="progress",
        ),
        element("noscript", element("p", "Without scripts the page reloads by itself.")),
        class_="waiting",
        hx_get=address,
        hx_trigger="load",
        hx_target="#result",
        hx_swap="innerHTML show:none",
        hx_sync="form.question:abort" if shares_form else None,
    )
    return PageAnswer(
        title=title, headline="Computing", body=concatenated(asks).encode(), is_waiting=True, saved_as=()
    )


class Trouble(Struct, frozen=True, kw_only=True):
    """Why there is no answer. about: what the page is of. missing: what would be enough."""

    about: str
    headline: str
    reasons: tuple[str, ...]
    missing: tuple[str, ...] = ()


def _missing(trouble: Trouble) -> tuple[Block, ...]:
    return (bullets(_spans(sentence(each)) for each in trouble.missing),)


def _spans(text: str) -> tuple[Span, ...]:
    """Text whose commands stand between backticks."""
    return tuple(Code(part) if place % 2 else part for place, part in enumerate(text.split("`")) if part)


def _closed(reason: str) -> str:
    """A reason as a sentence, which ends once."""
    words = sentence(reason)
    return words if words.endswith((".", "?")) else f"{words}."


PAGE: Final[Page[Trouble]] = Page(
    title=lambda trouble: trouble.headline,
    about=lambda trouble: trouble.about,
    headline=lambda trouble: trouble.headline,
    summary=lambda trouble: tuple(map(_closed, trouble.reasons)),
    sections=(Section("missing", "What is missing", _missing, needs=("missing",)),),
    closing=lambda _: (),
)


def refused(about: str, *reasons: str, status: int = REFUSED) -> PageAnswer:
    """The page for what cannot be answered."""
    return _trouble_page(Trouble(about=about, headline="That cannot be answered", reasons=reasons), status)


def unanswered(screen: Screen, err: InputError | EvidenceError) -> PageAnswer:
    """The page for an error of what was given, or for evidence that is too thin."""
    if isinstance(err, InputError):
        return refused(screen.title, *reasons(screen, err))
    found = Trouble(
        about=screen.title,
        headline="Not enough evidence",
        reasons=reasons(screen, err),
        missing=form_way(screen.labels).worded(err).missing,
    )
    return _trouble_page(found, OK, saved_as=("json",))


def reasons(screen: Screen, err: InputError | EvidenceError) -> tuple[str, ...]:
    """Why there is no answer, in the words of the form."""
    if isinstance(err, WrongFieldsError):
        return err.reasons
    told = form_way(screen.labels).worded(err)
    if isinstance(told, InputError):
        return (str(told).removesuffix(told.remedy),)  # which is of a command line
    return (capital(str(told)),)


def _trouble_page(found: Trouble, status: int, saved_as: tuple[FileKind, ...] = ()) -> PageAnswer:
    # Else the page would list that section as left out.
    page = PAGE if found.missing else replace(PAGE, sections=())
    return shown(page, found, status=status, saved_as=saved_as)


def missing_document(screen: Screen, err: EvidenceError) -> bytes:
    """What the verb writes as JSON where the evidence is too thin, in the words of the form."""
    return encode(document(screen.verb.lower(), missing_fields(form_way(screen.labels).worded(err))))


Found = TypeVar("Found")
NOT_STORED: Final = {"cache-control": "no-store", "vary": "HX-Request, Sec-Fetch-Dest, Cookie"}
_PIECE_BYTES: Final = MIB // 4
HTML: Final = "text/html; charset=utf-8"
_BUSY_S: Final = 2
_STATUSES: Final = {REFUSED: "refused", BUSY: "busy"}
BUSY_WORDS: Final = "This machine is busy with other questions. Try again in a moment."
BROKEN_WORDS: Final = (
    "This is an error in Equipoise, not in your question. The terminal of the server "
    "has the details; open an issue with those lines."
)


class InPieces(Response):
    """A response of several parts, none of which is copied: what is kept is sent as it is."""

    def __init__(
        self, parts: tuple[bytes, ...], *, media_type: str, headers: dict[str, str], status_code: int = 200
    ) -> None:
        """parts: sent one after the other."""
        self._parts = parts
        whole = {**headers, "content-length": str(sum(map(len, parts)))}
        super().__init__(None, status_code=status_code, media_type=media_type, headers=whole)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it; each piece waits until there is room for it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for at in range(0, len(part), _PIECE_BYTES):
                piece = part if len(part) <= _PIECE_BYTES else part[at : at + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def file_response(content: bytes, *, screen: Screen, kind: FileKind) -> InPieces:
    """An answer to keep as a file."""
    headers = {**NOT_STORED, "content-disposition": f'attachment; filename="{screen.verb.lower()}.{kind}"'}
    return InPieces((content,), media_type=FILE_KINDS[kind], headers=headers)


def no_file_response(*reasons: str, kind: str, status: int = REFUSED) -> InPieces:
    """Why there is no file of a kind, for the program that asked for it: JSON, or plain text."""
    words = " ".join(map(_closed, reasons))
    content, media_type = words.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    if kind == "json":
        content = encode({"status": _STATUSES.get(status, "failed"), "reason": words})
        media_type = FILE_KINDS["json"]
    return InPieces((content,), media_type=media_type, headers=_until(status), status_code=status)


def page_response(halves: Halves, answer: PageAnswer) -> InPieces:
    """A page: what is before and after the answer's body, and that between them."""
    parts = (halves[0], answer.body, halves[1])
    return InPieces(parts, media_type=HTML, headers=_until(answer.status), status_code=answer.status)


def _until(status: int) -> dict[str, str]:
    """Headers of what is not stored, with when to come again where this machine is busy."""
    return {**NOT_STORED, **({"retry-after": str(_BUSY_S)} if status == BUSY else {})}


class GoneError(Exception):
    """The client has gone: nobody reads an answer."""


async def while_there(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], answering: Coroutine[Any, Any, Found]
) -> Found:
    """What a coroutine returns. When the client leaves it is cancelled, and GoneError raised."""
    asking = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise GoneError
    finally:
        for task in (asking, leaving):
            task.cancel()


async def _left(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
