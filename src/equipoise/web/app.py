"""The dashboard application and its server."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import parse_qs, urlencode

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from msgspec import Struct, to_builtins
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from equipoise.errors import EvidenceError, InputError
from equipoise.report.html import Html, element
from equipoise.stats import one_thread
from equipoise.units import MIB, MILLISECOND_S
from equipoise.web import (
    Control,
    DataSources,
    PageQuery,
    Screen,
    decision_screens,
    evidence_screens,
    first,
    frames,
)
from equipoise.web.answers import (
    BUSY,
    FILE_KINDS,
    LONGEST_WAIT_S,
    OK,
    Answers,
    BusyError,
    FileKind,
    LruCache,
    PageAnswer,
    SlowError,
)
from equipoise.web.frames import (
    BROKEN_WORDS,
    BUSY_WORDS,
    HTML,
    NOT_STORED,
    GoneError,
    InPieces,
    file_response,
    missing_document,
    no_file_response,
    page_response,
    reasons,
    refused,
    unanswered,
    waiting,
    while_there,
)
from equipoise.web.guard import LOOPBACK_NAMES, Guard, ListenAddress
from equipoise.web.workers import NUM_THREADS, Workers

P = ParamSpec("P")
Looked = TypeVar("Looked")
_YEAR_S: Final = 31_536_000
# After this time, a browser that opens a page gets the frame, which then requests the answer.
_PATIENCE_S: Final = 0.3
_ABSENT: Final = 404
_GONE: Final = 499
_THEMES: Final = ("dark", "light")
_FRAME_BYTES: Final = 8 * MIB
# Every page of the dashboard, in the order of the navigation. A new page is a record and an entry here.
SCREENS: Final[tuple[Screen, ...]] = (
    decision_screens.ADVICE,
    decision_screens.PLAN,
    decision_screens.ALLOCATE,
    evidence_screens.COMPARE_SCREEN,
    evidence_screens.RUNS_SCREEN,
    evidence_screens.STUDY_SCREEN,
    evidence_screens.ACCURACY_SCREEN,
)


class Dashboard:
    """Answers requests, each within the frame that its page needs."""

    def __init__(self, sources: DataSources) -> None:
        """sources: the sources of data."""
        self.sources = sources
        self.workers = Workers(sources, __name__)
        self.answers = Answers(self.workers)
        self.lookers = ThreadPoolExecutor(NUM_THREADS, "equipoise")
        self.frames: LruCache[frames.Halves] = LruCache(_FRAME_BYTES)

    async def show(self, request: Request, screen: Screen, query: PageQuery) -> Response:
        """The page of a query, or a waiting page if a browser opens it and the answer takes long."""
        state = await self._looked(screen, self._state, screen, query)
        key = _key(screen, query, state)
        limit_s = _PATIENCE_S if _is_navigation(request) else LONGEST_WAIT_S
        answer = self.answers.kept.find(key)
        try:
            if answer is None:
                answer = await while_there(request.receive, self._answer(key, screen, query, limit_s))
        except GoneError:
            return Response(status_code=_GONE)
        except (BusyError, SlowError) as err:
            is_slow = isinstance(err, SlowError) and _is_navigation(request)
            return await (self._waiting if is_slow else self._busy)(request, screen)
        live = await self._looked(screen, self._live, screen, query, state)
        if live is not None:
            return await self.page(request, screen, answer, live=live)
        # The form depends on the spelling of the query, not only on its meaning.
        around = f"{key}&{request.url.query}&{_theme(request)}&{_is_partial_request(request)}"
        halves = self.frames.find(around)
        if halves is None:
            halves = await self._looked(screen, self._halves, request, screen, answer)
            self.frames.keep(around, halves, sum(map(len, halves)))
        return page_response(halves, answer)

    async def ask(self, request: Request, screen: Screen) -> Response:
        """The page for the question in an address, or a page with the errors of its fields."""
        try:
            query = screen.read(_given(request), self.sources)
        except (InputError, EvidenceError) as err:
            return await self.page(request, screen, unanswered(screen, err))
        response = await self.show(request, screen, query)
        if screen is SCREENS[0] and response.status_code == OK:
            response.set_cookie(
                _last_question(request), request.url.query, max_age=_YEAR_S, httponly=True, samesite="strict"
            )
        return response

    async def file(self, request: Request, screen: Screen, kind: str) -> Response:
        """The answer to a question as a file; if there is none, the reason in the same format."""
        known = next((each for each in FILE_KINDS if each == kind), None)
        if known is None:
            return no_file_response(f"An answer is saved as {', '.join(FILE_KINDS)}", kind=kind)
        try:
            query = screen.read(_given(request), self.sources)
            key = f"{known}:{_key(screen, query, await self._looked(screen, self._state, screen, query))}"
            found = await self.answers.find(key, _AnswerJob(screen, query, known))
        except (InputError, EvidenceError) as err:
            if known == "html":
                return await self.page(request, screen, unanswered(screen, err))
            if known == "json" and isinstance(err, EvidenceError):
                return file_response(missing_document(screen, err), screen=screen, kind=known)
            return no_file_response(*reasons(screen, err), kind=known)
        except (BusyError, SlowError):
            return no_file_response(BUSY_WORDS, kind=known, status=BUSY)
        return file_response(found.body, screen=screen, kind=known)

    async def _answer(self, key: str, screen: Screen, query: PageQuery, limit_s: float) -> PageAnswer:
        return await self.answers.find(key, _AnswerJob(screen, query), limit_s=limit_s)

    async def warm(self) -> None:
        """Compute the initial answers of all pages, the first page first."""
        for screen in SCREENS:
            if screen.live is None:
                query = screen.read({}, self.sources)
                key = _key(screen, query, self._state(screen, query))
                with suppress(BusyError, SlowError):
                    await self._answer(key, screen, query, LONGEST_WAIT_S)

    async def page(
        self, request: Request, screen: Screen, answer: PageAnswer, *, live: Html | None = None
    ) -> Response:
        """An answer in its frame, or without the frame for a page that is already open."""
        return page_response(await self._looked(screen, self._halves, request, screen, answer, live), answer)

    async def _busy(self, request: Request, screen: Screen) -> Response:
        return await self.page(request, screen, refused(screen.title, BUSY_WORDS, status=BUSY))

    async def _waiting(self, request: Request, screen: Screen) -> Response:
        """The frame of a page, which then requests the answer."""
        address = f"{screen.path}?{request.url.query}" if request.url.query else screen.path
        answer = waiting(screen.title, address, shares_form=bool(self._fields_of(request, screen)))
        return await self.page(request, screen, answer)

    async def _looked(
        self, screen: Screen, look: Callable[P, Looked], *args: P.args, **named: P.kwargs
    ) -> Looked:
        """The result of a function, called in a thread if the screen reads disks, to keep the loop free."""
        if not screen.reads_disk:
            return look(*args, **named)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.lookers, partial(look, *args, **named))

    def _halves(
        self, request: Request, screen: Screen, answer: PageAnswer, live: Html | None = None
    ) -> frames.Halves:
        """The parts of a page before and after an answer."""
        frame = frames.Frame(
            screen=screen,
            screens=SCREENS,
            fields=self._fields_of(request, screen),
            query=request.url.query,
            live=live,
            theme=None if _is_partial_request(request) else _theme(request),
        )
        return frames.around(answer, frame)

    def _fields_of(self, request: Request, screen: Screen) -> tuple[Control, ...]:
        """The form; empty without data to choose from, in which case the answer says why."""
        try:
            return screen.fields(_given(request), self.sources)
        except (InputError, EvidenceError):
            return ()

    def _live(self, screen: Screen, query: PageQuery, state: str) -> Html | None:
        """The polled part of a page, in an element that polls it. state: of the displayed answer."""
        live = None if screen.live is None else screen.live(query, self.sources)
        if live is None:
            return None
        address_query = urlencode(
            {**{name: each for name, each in to_builtins(query).items() if each}, "seen": state}
        )
        address = f"{screen.path}/live?{address_query}"
        return element("div", live.html, id="live", hx_get=address, hx_trigger=f"every {live.every_s}s")

    async def live(self, request: Request, screen: Screen) -> Response:
        """The polled part without its element; if the answer changed, with a trigger to request it again."""
        given = _given(request)
        seen = first(given, "seen")  # the state of the displayed answer
        try:
            query = screen.read({name: given[name] for name in given if name != "seen"}, self.sources)
        except (InputError, EvidenceError) as err:
            return await self.page(request, screen, unanswered(screen, err))
        return await self._looked(screen, self._live_response, screen, query, seen)

    def _live_response(self, screen: Screen, query: PageQuery, seen: str) -> Response:
        live = None if screen.live is None else screen.live(query, self.sources)
        changed = live is None or seen != self._state(screen, query)
        headers = {"hx-trigger": "answer-changed"} if changed else {}
        content = b"" if live is None else live.html.encode()
        return Response(content, media_type=HTML, headers={**NOT_STORED, **headers})

    def _state(self, screen: Screen, query: PageQuery) -> str:
        """The state behind an answer, as a digest, because it may contain paths."""
        return sha256(screen.stamp(query, self.sources).encode()).hexdigest()[:16]


def _key(screen: Screen, query: PageQuery, state: str) -> str:
    return f"{screen.path}?{query.key}#{state}"


def _given(request: Request) -> dict[str, list[str]]:
    """The values in the address, by name."""
    return parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)


class _AnswerJob(Struct, frozen=True):
    """A picklable function for an answer or its file. Of the screen, only the path is pickled."""

    screen: Screen
    query: PageQuery
    kind: FileKind | None = None

    def __call__(self, sources: DataSources) -> PageAnswer:
        """The answer, or the page that says why there is none; for a file, errors are raised."""
        if self.kind is not None:
            assert self.screen.file is not None
            body = self.screen.file(self.query, sources, self.kind)
            return PageAnswer(title="", headline="", body=body)
        try:
            return self.screen.answer(self.query, sources)
        except (InputError, EvidenceError) as err:
            return unanswered(self.screen, err)

    def __reduce__(self) -> tuple[Any, ...]:
        return _answer_job, (self.screen.path, self.query, self.kind)


def _answer_job(path: str, query: PageQuery, kind: FileKind | None) -> _AnswerJob:
    return _AnswerJob(next(each for each in SCREENS if each.path == path), query, kind)


def _is_partial_request(request: Request) -> bool:
    """Whether a page that is already open requests only the answer."""
    headers = request.headers
    return headers.get("hx-request") == "true" and "hx-history-restore-request" not in headers


def _is_navigation(request: Request) -> bool:
    """Whether a browser opens the page and can show a waiting page; programs wait for the answer."""
    return request.headers.get("sec-fetch-dest") == "document"


def _last_question(request: Request) -> str:
    """The name of the cookie with the last question; browsers share cookies between ports."""
    return f"question-{request.url.port or 0}"


def _theme(request: Request) -> str:
    """The chosen theme; empty for the system's."""
    theme = request.cookies.get("theme", "")
    return theme if theme in _THEMES else ""


def application(sources: DataSources, *, warms: bool) -> FastAPI:
    """The application, which computes answers in its own threads and processes.

    warms: whether initial answers are computed before they are requested.
    """
    dashboard = Dashboard(sources)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(dashboard.warm()) if warms else None
        yield
        if warming is not None:
            warming.cancel()
        dashboard.workers.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(title="Equipoise", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)

    @app.get("/")
    async def begun(request: Request) -> Response:
        return _redirect_to_advice(request.url.query or request.cookies.get(_last_question(request), ""))

    for screen in SCREENS:
        _add_routes(app, dashboard, screen)

    @app.get("/advise")
    async def by_verb(request: Request) -> Response:
        """Redirect from the name of the verb to the page Advice; other pages have their verbs as paths."""
        return _redirect_to_advice(request.url.query)

    @app.get("/assets/{stamp}/{name}")
    async def asset(stamp: str, name: str) -> Response:
        if frames.addresses().get(name) != f"/assets/{stamp}/{name}":
            raise HTTPException(_ABSENT)
        headers = {"cache-control": f"private, max-age={_YEAR_S}, immutable"}
        return InPieces(
            (frames.asset(name),), media_type=frames.TYPES[name.rpartition(".")[2]], headers=headers
        )

    _add_error_pages(app, dashboard)
    return app


def _redirect_to_advice(asked: str) -> Response:
    """A redirect to the first page, with the question of an address."""
    return RedirectResponse(f"{SCREENS[0].path}{'?' if asked else ''}{asked}", status_code=303)


def _add_routes(app: FastAPI, dashboard: Dashboard, screen: Screen) -> None:
    """Add the routes of a page: the page, its polled part, and its answer as a file."""

    @app.get(screen.path)
    async def asked(request: Request) -> Response:
        return await dashboard.ask(request, screen)

    if screen.live is not None:

        @app.get(f"{screen.path}/live")
        async def live(request: Request) -> Response:
            return await dashboard.live(request, screen)

    if screen.file is not None:

        @app.get(f"{screen.path}/answer.{{kind}}")
        async def file(request: Request, kind: str) -> Response:
            return await dashboard.file(request, screen, kind)


def _add_error_pages(app: FastAPI, dashboard: Dashboard) -> None:
    """Add handlers that show every error as a page."""

    def screen_of(request: Request) -> Screen:
        return next((each for each in SCREENS if each.path == request.url.path), SCREENS[0])

    @app.exception_handler(HTTPException)
    async def absent(request: Request, err: HTTPException) -> Response:
        words = "Page not found." if err.status_code == 404 else f"{err.detail}."  # noqa: PLR2004 - of HTTP
        return await dashboard.page(
            request, screen_of(request), refused("Equipoise", words, status=err.status_code)
        )

    @app.exception_handler(500)
    async def broken(request: Request, _: Exception) -> Response:
        dot, kind = request.url.path.rpartition("/answer.")[1:]
        if dot and kind != "html":
            return no_file_response(BROKEN_WORDS, kind=kind, status=500)
        return await dashboard.page(
            request, screen_of(request), refused("Equipoise", BROKEN_WORDS, status=500)
        )


ASKING_S: Final = 10.0
READING_S: Final = 30.0


class Bounded(H11Protocol):
    """A connection with time limits for receiving a request and for the client reading the response.

    uvicorn only limits the time between requests: a client that sends one header per minute could hold its
    connection for ever, and enough of them would block all other clients.
    """

    asking_s = ASKING_S
    reading_s = READING_S
    since_s = 0.0
    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first request, and enforce the client's share of connections."""
        super().connection_made(transport)
        self.since_s = self.loop.time()
        self._wait_for_request()
        self._enforce_share()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request, whose time limit applies to the whole."""
        self.since_s = self.loop.time()
        super().data_received(data)
        if self.has_request():
            self._received_in_time()
        elif self._asking is None:
            self._wait_for_request()

    def pause_writing(self) -> None:
        """Start the time limit for the client to read the response."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.reading_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit for reading."""
        super().resume_writing()
        self._read_in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all time limits."""
        self._received_in_time()
        self._read_in_time()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self._asking = self.loop.call_later(self.asking_s, self.transport.abort)

    def _received_in_time(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _read_in_time(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _enforce_share(self) -> None:
        """Close surplus connections of this client: the oldest idle ones first, this one last.

        New connections do not count as idle at once, because the requests of simultaneous ones are only read
        a moment later.
        """
        host = self.client and self.client[0]
        its = [each for each in self.connections if isinstance(each, Bounded) and each.client]
        its = [each for each in its if each.client and each.client[0] == host]
        idle = sorted((each for each in its if not each.has_request()), key=lambda each: each.since_s)
        settled = [each for each in idle if each.since_s < self.loop.time() - _SETTLED_S]
        too_many = max(0, len(settled) - _MOST_IDLE_PER_CLIENT, len(its) - _MOST_PER_CLIENT)
        for each in idle[:too_many]:
            each.transport.abort()

    def has_request(self) -> bool:
        """Whether a request has been received and not yet answered."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete


class _Server(uvicorn.Server):
    """A server that also stops on an interrupt during start-up, and stops silently."""

    def __init__(self, config: uvicorn.Config, was_interrupted: Callable[[], bool]) -> None:
        super().__init__(config)
        self._was_interrupted = was_interrupted

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and stop if interrupted meanwhile."""
        await super().startup(sockets=sockets)
        self.should_exit = self.should_exit or self._was_interrupted()

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop, also after an interrupt that a callback of the loop swallowed."""
        self.should_exit = self.should_exit or self._was_interrupted()
        return await super().on_tick(counter)

    def is_error(self, _record: logging.LogRecord) -> bool:
        """Whether to log an error; requests cancelled at shutdown are not logged."""
        return not (self.should_exit or self._was_interrupted())


_MOST_CONNECTIONS: Final = 256
# Browsers open 6 connections to a server, but a proxy may represent many people.
_MOST_PER_CLIENT: Final = 128
_MOST_IDLE_PER_CLIENT: Final = 64
_SETTLED_S: Final = 1.0
_MOST_HEADER_BYTES: Final = 16_384
_IDLE_S: Final = 15
_END_S: Final = 2
_SWITCH_S: Final = MILLISECOND_S


def serve(
    opened: socket.socket,
    place: ListenAddress,
    sources: DataSources,
    *,
    was_interrupted: Callable[[], bool],
    warms: bool = True,
) -> None:
    """Serve until interrupted, then raise KeyboardInterrupt.

    was_interrupted: whether Ctrl-C was pressed, even if its KeyboardInterrupt was lost. warms: whether
    initial answers are computed before they are requested.
    """
    own = {place.host, *place.names} | ({socket.gethostname()} if place.is_any else set())
    guard = Guard(
        app=application(sources, warms=warms),
        names=LOOPBACK_NAMES | {name.lower() for name in own if name},
        any_address=place.is_any,
        token=place.token,
        cookie=f"equipoise-{place.port}",
    )
    config = uvicorn.Config(
        guard,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        ws="none",
        http=Bounded,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_END_S,
    )
    # Requests wait for the GIL, which a computing thread releases at this interval.
    sys.setswitchinterval(_SWITCH_S)
    with opened, one_thread():
        server = _Server(config, was_interrupted)
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(server.is_error)
        server.run(sockets=[opened])
    if server.started or was_interrupted():
        # Only an interrupt stops the server. Uvicorn re-raises it within its own task, where it can get lost.
        raise KeyboardInterrupt
