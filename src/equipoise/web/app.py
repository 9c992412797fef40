"""The dashboard as an application: routes, and the way from a query to a page. server.py runs it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from equipoise.errors import EvidenceError, InputError
from equipoise.report.markup import Html, element
from equipoise.report.words import printable
from equipoise.units import MIB
from equipoise.web import frames
from equipoise.web.answer import Answer
from equipoise.web.answers import Answers, BusyError, Kept
from equipoise.web.asked import (
    Asked,
    AskedAdvice,
    AskedCompare,
    AskedLive,
    AskedNothing,
    AskedPlan,
    AskedRuns,
    AskedStudy,
)
from equipoise.web.fields import Field, Given
from equipoise.web.screen import Screen
from equipoise.web.screens import SCREENS, accuracy, advice, compare, plan, runs, study
from equipoise.web.sources import Sources
from equipoise.web.trouble import refused, unanswered

NUM_WORKERS = 2
_YEAR_S = 31_536_000
_BUSY_S = 2
_LIVE_S = 2
_BUSY, _ABSENT = 503, 404
_THEMES = ("dark", "light")
_HTML = "text/html; charset=utf-8"
_NOT_STORED = {"cache-control": "no-store", "vary": "HX-Request, Cookie"}
_FRAME_BYTES = 8 * MIB


class Dashboard:
    """Answers queries, each in the frame that its page needs."""

    def __init__(self, sources: Sources) -> None:
        """sources: where data come from."""
        self.sources = sources
        self.workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="equipoise")
        self.answers = Answers(self.workers)
        self.frames: Kept[frames.Halves] = Kept(_FRAME_BYTES)

    async def show(self, request: Request, screen: Screen, asked: Asked) -> Response:
        """The page of a query."""
        state = self._state(screen, asked)
        key = f"{screen.path}?{asked.model_dump_json()}#{state}"
        try:
            answer = await self.answers.find(key, partial(_answered, screen, asked, self.sources))
        except BusyError:
            words = "More is asked than this machine can answer now. Ask again in a moment."
            return self.page(request, screen, refused(screen.title, words, status=_BUSY))
        live = self._live(screen, asked)
        if live is not None:
            return self.page(request, screen, answer, live=live)
        # The form depends on how the query was written, not only on what it means.
        around = f"{key}&{request.url.query}&{_theme(request)}&{_is_open(request)}"
        halves = self.frames.find(around)
        if halves is None:
            halves = self._halves(request, screen, answer)
            self.frames.keep(around, halves, sum(map(len, halves)))
        return _html(halves, answer)

    def page(self, request: Request, screen: Screen, answer: Answer, *, live: Html | None = None) -> Response:
        """An answer in its frame, or alone where an open page asked for it."""
        return _html(self._halves(request, screen, answer, live), answer)

    def _halves(
        self, request: Request, screen: Screen, answer: Answer, live: Html | None = None
    ) -> frames.Halves:
        """What is around an answer."""
        given: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            given.setdefault(name, []).append(value)
        frame = frames.Frame(screen=screen, screens=SCREENS, fields=self._fields(screen, given), live=live)
        if _is_open(request):
            return frames.alone(answer, frame)
        return frames.whole(answer, frame, theme=_theme(request))

    def _fields(self, screen: Screen, given: Given) -> tuple[Field, ...]:
        """The form; without data to choose from there is none, and the answer says why."""
        try:
            return screen.fields(given, self.sources)
        except (InputError, EvidenceError):
            return ()

    def _live(self, screen: Screen, asked: Asked) -> Html | None:
        """What changes by itself, in an element that asks for it again and again."""
        told = None if screen.live is None else screen.live(asked, self.sources)
        if told is None:
            return None
        query = urlencode({**asked.model_dump(exclude_none=True), "seen": self._state(screen, asked)})
        address = f"{screen.path}/live?{query}"
        return element("div", told, id="live", hx_get=address, hx_trigger=f"every {_LIVE_S}s")

    def live(self, screen: Screen, asked: Asked, seen: str | None) -> Response:
        """The same without its element; where more has changed, a sign to ask for the whole answer.

        seen: the state that the page shows.
        """
        told = None if screen.live is None else screen.live(asked, self.sources)
        changed = told is None or seen != self._state(screen, asked)
        headers = {"hx-trigger": "answer-changed"} if changed else {}
        return Response((told or "").encode(), media_type=_HTML, headers={**_NOT_STORED, **headers})

    def _state(self, screen: Screen, asked: Asked) -> str:
        """What changes when the answer does; a digest, for it may hold paths."""
        return sha256(screen.stamp(asked, self.sources).encode()).hexdigest()[:16]


def _answered(screen: Screen, asked: Asked, sources: Sources) -> Answer:
    """The answer, or the page that says why there is none."""
    try:
        return screen.answer(asked, sources)
    except (InputError, EvidenceError) as err:
        return unanswered(screen.title, err)


def _is_open(request: Request) -> bool:
    """Whether a page that is open asks for the answer alone."""
    headers = request.headers
    return headers.get("hx-request") == "true" and "hx-history-restore-request" not in headers


def _theme(request: Request) -> str:
    """The theme that was chosen; empty for that of the system."""
    theme = request.cookies.get("theme", "")
    return theme if theme in _THEMES else ""


def _html(halves: frames.Halves, answer: Answer) -> Response:
    """A page: what is before and after the answer's body, and that between them."""
    headers = {**_NOT_STORED, **({"retry-after": str(_BUSY_S)} if answer.status == _BUSY else {})}
    content = b"".join((halves[0], answer.body, halves[1]))
    return Response(content, status_code=answer.status, media_type=_HTML, headers=headers)


def application(sources: Sources) -> FastAPI:
    """The application. Its answers are computed in threads of its own."""
    dashboard = Dashboard(sources)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        dashboard.workers.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(title="Equipoise", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)

    @app.get("/")
    async def first() -> Response:
        return RedirectResponse(SCREENS[0].path, status_code=303)

    _show_screens(app, dashboard)

    @app.get("/assets/{stamp}/{name}")
    async def asset(stamp: str, name: str) -> Response:
        if frames.addresses().get(name) != f"/assets/{stamp}/{name}":
            raise HTTPException(_ABSENT)
        return Response(
            frames.asset(name),
            media_type=frames.TYPES[name.rpartition(".")[2]],
            headers={"cache-control": f"private, max-age={_YEAR_S}, immutable"},
        )

    _say_troubles(app, dashboard)
    return app


def _show_screens(app: FastAPI, dashboard: Dashboard) -> None:
    """One route a page: what its address may say, and the page."""

    @app.get(study.SCREEN.path)
    async def studied(request: Request, asked: Annotated[AskedStudy, Query()]) -> Response:
        return await dashboard.show(request, study.SCREEN, asked)

    @app.get(compare.SCREEN.path)
    async def compared(request: Request, asked: Annotated[AskedCompare, Query()]) -> Response:
        return await dashboard.show(request, compare.SCREEN, asked)

    @app.get(plan.SCREEN.path)
    async def planned(request: Request, asked: Annotated[AskedPlan, Query()]) -> Response:
        return await dashboard.show(request, plan.SCREEN, asked)

    @app.get(runs.SCREEN.path)
    async def run(request: Request, asked: Annotated[AskedRuns, Query()]) -> Response:
        return await dashboard.show(request, runs.SCREEN, asked)

    @app.get(f"{runs.SCREEN.path}/live")
    async def live(asked: Annotated[AskedLive, Query()]) -> Response:
        return dashboard.live(runs.SCREEN, AskedRuns(sweep=asked.sweep), asked.seen)

    @app.get(advice.SCREEN.path)
    async def advised(request: Request, asked: Annotated[AskedAdvice, Query()]) -> Response:
        return await dashboard.show(request, advice.SCREEN, asked)

    @app.get(accuracy.SCREEN.path)
    async def accurate(request: Request, asked: Annotated[AskedNothing, Query()]) -> Response:
        return await dashboard.show(request, accuracy.SCREEN, asked)


def _say_troubles(app: FastAPI, dashboard: Dashboard) -> None:
    """Let every error be a page."""

    def screen_of(request: Request) -> Screen:
        return next((each for each in SCREENS if each.path == request.url.path), SCREENS[0])

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, err: RequestValidationError) -> Response:
        screen = screen_of(request)
        return dashboard.page(request, screen, refused(screen.title, *map(_sentence, err.errors())))

    @app.exception_handler(HTTPException)
    async def absent(request: Request, err: HTTPException) -> Response:
        words = "There is no such page." if err.status_code == 404 else f"{err.detail}."  # noqa: PLR2004 - of HTTP
        return dashboard.page(
            request, screen_of(request), refused("Equipoise", words, status=err.status_code)
        )

    @app.exception_handler(500)
    async def broken(request: Request, _: Exception) -> Response:
        words = (
            "This is a fault of Equipoise, not of what was asked. "
            "The terminal in which it runs says more; an issue with those lines would help."
        )
        return dashboard.page(request, screen_of(request), refused("Equipoise", words, status=500))


def _sentence(error: Mapping[str, Any]) -> str:
    """What is wrong with one field."""
    where: Sequence[Any] = error["loc"][1:] or ("the address",)
    name = printable(str(where[0]))
    words = {
        "extra_forbidden": "is no field of this page",
        "too_long": f"has too many values: {error['msg']}",
    }.get(error["type"], f"{error['msg'][:1].lower()}{error['msg'][1:]}")
    found = printable(str(error.get("input", "")))
    return f"{name}={found!r}: {words}."
