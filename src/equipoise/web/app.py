"""The dashboard as an application: routes, and the way from a query to a page. server.py runs it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException

from equipoise.errors import EvidenceError, InputError
from equipoise.report.words import printable
from equipoise.web import frames
from equipoise.web.answer import Answer
from equipoise.web.answers import Answers, BusyError
from equipoise.web.asked import Asked, AskedStudy
from equipoise.web.screen import Screen
from equipoise.web.screens import SCREENS, study
from equipoise.web.sources import Sources
from equipoise.web.trouble import refused, unanswered

NUM_WORKERS = 2
_YEAR_S = 31_536_000
_BUSY_S = 2
_BUSY, _ABSENT = 503, 404
_THEMES = ("dark", "light")


class Dashboard:
    """Answers queries, each in the frame that its page needs."""

    def __init__(self, sources: Sources) -> None:
        """sources: where data come from."""
        self.sources = sources
        self.workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="equipoise")
        self.answers = Answers(self.workers)

    async def show(self, request: Request, screen: Screen, asked: Asked) -> Response:
        """The page of a query."""
        key = f"{screen.path}?{asked.model_dump_json()}#{screen.stamp(asked, self.sources)}"
        try:
            answer = await self.answers.find(key, partial(_answered, screen, asked, self.sources))
        except BusyError:
            words = "More is asked than this machine can answer now. Ask again in a moment."
            return self.page(request, screen, refused(screen.title, words, status=_BUSY))
        return self.page(request, screen, answer)

    def page(self, request: Request, screen: Screen, answer: Answer) -> Response:
        """An answer in its frame, or alone where an open page asked for it."""
        given: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            given.setdefault(name, []).append(value)
        fields = screen.fields(given, self.sources)
        headers = request.headers
        if headers.get("hx-request") == "true" and "hx-history-restore-request" not in headers:
            content = frames.alone(answer, tuple(each for each in fields if each.name in screen.depends))
        else:
            theme = request.cookies.get("theme", "")
            content = frames.whole(answer, screen, SCREENS, fields, theme=theme if theme in _THEMES else "")
        status = answer.status
        extra = {"retry-after": str(_BUSY_S)} if status == _BUSY else {}
        return _html(content, status, extra)


def _answered(screen: Screen, asked: Asked, sources: Sources) -> Answer:
    """The answer, or the page that says why there is none."""
    try:
        return screen.answer(asked, sources)
    except (InputError, EvidenceError) as err:
        return unanswered(screen.title, err)


def _html(content: bytes, status: int, headers: Mapping[str, str]) -> Response:
    return Response(
        content,
        status_code=status,
        media_type="text/html; charset=utf-8",
        headers={"cache-control": "no-store", "vary": "HX-Request, Cookie", **headers},
    )


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

    @app.get("/study")
    async def study_(request: Request, asked: Annotated[AskedStudy, Query()]) -> Response:
        return await dashboard.show(request, study.SCREEN, asked)

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
