"""The frame around an answer: navigation, form and styles; the waiting page, and error pages."""

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
# Responses with status 422 are also pages; pages missing from the history cache are requested again.
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
    """The contents of an asset of the dashboard. Raises KeyError for an unknown name."""
    return files(_PACKAGES[name]).joinpath("assets", name).read_bytes()


@cache
def addresses() -> dict[str, str]:
    """The address of each asset, which contains a digest of its content so that browsers may cache it."""
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
    """The content of a page around an answer.

    query: of the address. live: the polled part. theme: dark, light, or empty for the system's; None for an
    open page, which needs only the fields whose choices changed.
    """

    screen: Screen
    screens: tuple[Screen, ...]
    fields: tuple[Control, ...]
    query: str
    live: Html | None
    theme: str | None


def around(answer: PageAnswer, frame: Frame) -> Halves:
    """The parts of a page before and after the answer's body."""
    live = None if frame.live is None else Markup(frame.live)  # noqa: S704 - only report.markup makes it
    shown = {"screen": frame.screen, "query": frame.query, "live": live}
    if frame.theme is None:
        changed = tuple(each for each in frame.fields if each.name in frame.screen.depends)
        return _rendered_halves("fragment.html", answer, changed=changed, **shown)
    return _rendered_halves(
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


def _rendered_halves(name: str, answer: PageAnswer, **values: Any) -> Halves:  # noqa: ANN401 - what a template takes
    """A rendered template, split where the answer's body is inserted as bytes."""
    text: str = _templates().get_template(name).render(answer=answer, body=Markup(_BODY), **values)  # noqa: S704 - a constant
    before, _, after = text.partition(_BODY)
    return before.encode("utf-8", "replace"), after.encode("utf-8", "replace")


WORDS: Final = "Computing this answer for the first time. It takes some seconds and is then cached."


def waiting(title: str, address: str, *, shares_form: bool) -> PageAnswer:
    """The page that is shown until the answer at an address is ready.

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
    """Why there is no answer. about: subject of the page. missing: evidence that would be sufficient."""

    about: str
    headline: str
    reasons: tuple[str, ...]
    missing: tuple[str, ...] = ()


def _missing(trouble: Trouble) -> tuple[Block, ...]:
    return (bullets(_spans(sentence(each)) for each in trouble.missing),)


def _spans(text: str) -> tuple[Span, ...]:
    """The spans of a text with commands in backticks."""
    return tuple(Code(part) if place % 2 else part for place, part in enumerate(text.split("`")) if part)


def _closed(reason: str) -> str:
    """A reason as a sentence with exactly one full stop or question mark at its end."""
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
    """The page for a request that cannot be answered."""
    return _trouble_page(Trouble(about=about, headline="That cannot be answered", reasons=reasons), status)


def unanswered(screen: Screen, err: InputError | EvidenceError) -> PageAnswer:
    """The page for invalid input or insufficient evidence."""
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
    """Why there is no answer, with the labels of the form."""
    if isinstance(err, WrongFieldsError):
        return err.reasons
    told = form_way(screen.labels).worded(err)
    if isinstance(told, InputError):
        return (str(told).removesuffix(told.remedy),)  # the remedy is for the command line
    return (capital(str(told)),)


def _trouble_page(found: Trouble, status: int, saved_as: tuple[FileKind, ...] = ()) -> PageAnswer:
    # Without its section, because the page would report it as left out.
    page = PAGE if found.missing else replace(PAGE, sections=())
    return shown(page, found, status=status, saved_as=saved_as)


def missing_document(screen: Screen, err: EvidenceError) -> bytes:
    """The JSON document of a verb for insufficient evidence, with the labels of the form."""
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
    """A response of several parts, which are sent without copying them together."""

    def __init__(
        self, parts: tuple[bytes, ...], *, media_type: str, headers: dict[str, str], status_code: int = 200
    ) -> None:
        """parts: the parts of the body, in order."""
        self._parts = parts
        whole = {**headers, "content-length": str(sum(map(len, parts)))}
        super().__init__(None, status_code=status_code, media_type=media_type, headers=whole)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the response in pieces, each of which waits for room in the buffer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            for at in range(0, len(part), _PIECE_BYTES):
                piece = part if len(part) <= _PIECE_BYTES else part[at : at + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def file_response(content: bytes, *, screen: Screen, kind: FileKind) -> InPieces:
    """An answer as a file to download."""
    headers = {**NOT_STORED, "content-disposition": f'attachment; filename="{screen.verb.lower()}.{kind}"'}
    return InPieces((content,), media_type=FILE_KINDS[kind], headers=headers)


def no_file_response(*reasons: str, kind: str, status: int = REFUSED) -> InPieces:
    """The reason why there is no file, for the requesting program: as JSON, or plain text."""
    words = " ".join(map(_closed, reasons))
    content, media_type = words.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    if kind == "json":
        content = encode({"status": _STATUSES.get(status, "failed"), "reason": words})
        media_type = FILE_KINDS["json"]
    return InPieces(
        (content,), media_type=media_type, headers=_not_stored_headers(status), status_code=status
    )


def page_response(halves: Halves, answer: PageAnswer) -> InPieces:
    """A page: the answer's body between the two parts of its frame."""
    parts = (halves[0], answer.body, halves[1])
    return InPieces(
        parts, media_type=HTML, headers=_not_stored_headers(answer.status), status_code=answer.status
    )


def _not_stored_headers(status: int) -> dict[str, str]:
    """Headers of a response that must not be cached, with Retry-After if this machine is busy."""
    return {**NOT_STORED, **({"retry-after": str(_BUSY_S)} if status == BUSY else {})}


class GoneError(Exception):
    """The client has disconnected."""


async def while_there(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], answering: Coroutine[Any, Any, Found]
) -> Found:
    """The result of a coroutine. If the client disconnects, it is cancelled and GoneError is raised."""
    asking = asyncio.ensure_future(answering)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise GoneError
    finally:
        for task in (asking, leaving):
            task.cancel()


async def _disconnected(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
