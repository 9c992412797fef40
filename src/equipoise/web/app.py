"""The dashboard as an application, and how it is served."""

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
    Kept,
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
# A browser that opens a page gets its frame after so long; the answer follows.
_PATIENCE_S: Final = 0.3
_ABSENT: Final = 404
_GONE: Final = 499
_THEMES: Final = ("dark", "light")
_FRAME_BYTES: Final = 8 * MIB
# Every page of the dashboard, in the order of the navigation. A new one is a record and a line here.
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
    """Answers queries, each in the frame that its page needs."""

    def __init__(self, sources: DataSources) -> None:
        """sources: where data come from."""
        self.sources = sources
        self.workers = Workers(sources, __name__)
        self.answers = Answers(self.workers)
        self.lookers = ThreadPoolExecutor(NUM_THREADS, "equipoise")
        self.frames: Kept[frames.Halves] = Kept(_FRAME_BYTES)

    async def show(self, request: Request, screen: Screen, query: PageQuery) -> Response:
        """The page of a query; in a browser that opens it, a page that waits for what takes long."""
        state = await self._looked(screen, self._state, screen, query)
        key = _key(screen, query, state)
        limit_s = _PATIENCE_S if _is_opened(request) else LONGEST_WAIT_S
        answer = self.answers.kept.find(key)
        try:
            if answer is None:
                answer = await while_there(request.receive, self._answer(key, screen, query, limit_s))
        except GoneError:
            return Response(status_code=_GONE)
        except (BusyError, SlowError) as err:
            is_slow = isinstance(err, SlowError) and _is_opened(request)
            return await (self._waiting if is_slow else self._busy)(request, screen)
        live = await self._looked(screen, self._live, screen, query, state)
        if live is not None:
            return await self.page(request, screen, answer, live=live)
        # The form depends on how the query was written, not only on what it means.
        around = f"{key}&{request.url.query}&{_theme(request)}&{_is_open(request)}"
        halves = self.frames.find(around)
        if halves is None:
            halves = await self._looked(screen, self._halves, request, screen, answer)
            self.frames.keep(around, halves, sum(map(len, halves)))
        return page_response(halves, answer)

    async def ask(self, request: Request, screen: Screen) -> Response:
        """The page of the question in an address, or of what is wrong with its fields."""
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
        """The answer to a question as a file to keep; where there is none the reason, in the same form."""
        known = next((each for each in FILE_KINDS if each == kind), None)
        if known is None:
            return no_file_response(f"An answer is saved as {', '.join(FILE_KINDS)}", kind=kind)
        try:
            query = screen.read(_given(request), self.sources)
            key = f"{known}:{_key(screen, query, await self._looked(screen, self._state, screen, query))}"
            found = await self.answers.find(key, _Asked(screen, query, known))
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
        return await self.answers.find(key, _Asked(screen, query), limit_s=limit_s)

    async def warm(self) -> None:
        """Compute what pages show before anything is asked, the first page first."""
        for screen in SCREENS:
            if screen.live is None:
                query = screen.read({}, self.sources)
                key = _key(screen, query, self._state(screen, query))
                with suppress(BusyError, SlowError):
                    await self._answer(key, screen, query, LONGEST_WAIT_S)

    async def page(
        self, request: Request, screen: Screen, answer: PageAnswer, *, live: Html | None = None
    ) -> Response:
        """An answer in its frame, or alone for a page that is open."""
        return page_response(await self._looked(screen, self._halves, request, screen, answer, live), answer)

    async def _busy(self, request: Request, screen: Screen) -> Response:
        return await self.page(request, screen, refused(screen.title, BUSY_WORDS, status=BUSY))

    async def _waiting(self, request: Request, screen: Screen) -> Response:
        """The frame at once, which asks for its answer."""
        address = f"{screen.path}?{request.url.query}" if request.url.query else screen.path
        answer = waiting(screen.title, address, shares_form=bool(self._fields_of(request, screen)))
        return await self.page(request, screen, answer)

    async def _looked(
        self, screen: Screen, look: Callable[P, Looked], *args: P.args, **named: P.kwargs
    ) -> Looked:
        """What a function returns; in a thread where the screen reads disks, so that the loop stays free."""
        if not screen.reads_disk:
            return look(*args, **named)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.lookers, partial(look, *args, **named))

    def _halves(
        self, request: Request, screen: Screen, answer: PageAnswer, live: Html | None = None
    ) -> frames.Halves:
        """What is around an answer."""
        frame = frames.Frame(
            screen=screen,
            screens=SCREENS,
            fields=self._fields_of(request, screen),
            query=request.url.query,
            live=live,
            theme=None if _is_open(request) else _theme(request),
        )
        return frames.around(answer, frame)

    def _fields_of(self, request: Request, screen: Screen) -> tuple[Control, ...]:
        """The form; without data to choose from there is none, and the answer says why."""
        try:
            return screen.fields(_given(request), self.sources)
        except (InputError, EvidenceError):
            return ()

    def _live(self, screen: Screen, query: PageQuery, state: str) -> Html | None:
        """What changes by itself, in an element that asks for it again and again.

        state: of the answer that is shown.
        """
        live = None if screen.live is None else screen.live(query, self.sources)
        if live is None:
            return None
        address_query = urlencode(
            {**{name: each for name, each in to_builtins(query).items() if each}, "seen": state}
        )
        address = f"{screen.path}/live?{address_query}"
        return element("div", live.html, id="live", hx_get=address, hx_trigger=f"every {live.every_s}s")

    async def live(self, request: Request, screen: Screen) -> Response:
        """The same without its element; where more has changed, a sign to ask for the whole answer."""
        given = _given(request)
        seen = first(given, "seen")  # the state that the page shows
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
        """What changes when the answer does; a digest, for it may hold paths."""
        return sha256(screen.stamp(query, self.sources).encode()).hexdigest()[:16]


def _key(screen: Screen, query: PageQuery, state: str) -> str:
    return f"{screen.path}?{query.key}#{state}"


def _given(request: Request) -> dict[str, list[str]]:
    """What the address holds, by name."""
    return parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)


class _Asked(Struct, frozen=True):
    """A question, or the file of its answer. A process beside this one gets the path of the screen alone."""

    screen: Screen
    query: PageQuery
    kind: FileKind | None = None

    def __call__(self, sources: DataSources) -> PageAnswer:
        """The answer, or the page that says why there is none; of a file the error."""
        if self.kind is not None:
            assert self.screen.file is not None
            body = self.screen.file(self.query, sources, self.kind)
            return PageAnswer(title="", headline="", body=body)
        try:
            return self.screen.answer(self.query, sources)
        except (InputError, EvidenceError) as err:
            return unanswered(self.screen, err)

    def __reduce__(self) -> tuple[Any, ...]:
        return _asked_at, (self.screen.path, self.query, self.kind)


def _asked_at(path: str, query: PageQuery, kind: FileKind | None) -> _Asked:
    return _Asked(next(each for each in SCREENS if each.path == path), query, kind)


def _is_open(request: Request) -> bool:
    """Whether a page that is open asks for the answer alone."""
    headers = request.headers
    return headers.get("hx-request") == "true" and "hx-history-restore-request" not in headers


def _is_opened(request: Request) -> bool:
    """Whether a browser opens the page, and shows what it gets at once. Programs wait for the answer."""
    return request.headers.get("sec-fetch-dest") == "document"


def _last_question(request: Request) -> str:
    """The cookie with the question asked last; browsers share cookies between ports."""
    return f"question-{request.url.port or 0}"


def _theme(request: Request) -> str:
    """The theme that was chosen; empty for that of the system."""
    theme = request.cookies.get("theme", "")
    return theme if theme in _THEMES else ""


def application(sources: DataSources, *, warms: bool) -> FastAPI:
    """The application. Its answers are computed in threads and processes of its own.

    warms: whether the first page is computed before anybody asks.
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
        return _led_to_advice(request.cookies.get(_last_question(request), ""))

    for screen in SCREENS:
        _show(app, dashboard, screen)

    @app.get("/advise")
    async def by_verb(request: Request) -> Response:
        """The page Advice under the name of its verb, as every other page has."""
        return _led_to_advice(request.url.query)

    @app.get("/assets/{stamp}/{name}")
    async def asset(stamp: str, name: str) -> Response:
        if frames.addresses().get(name) != f"/assets/{stamp}/{name}":
            raise HTTPException(_ABSENT)
        headers = {"cache-control": f"private, max-age={_YEAR_S}, immutable"}
        return InPieces(
            (frames.asset(name),), media_type=frames.TYPES[name.rpartition(".")[2]], headers=headers
        )

    _say_troubles(app, dashboard)
    return app


def _led_to_advice(asked: str) -> Response:
    """The way to the first page, with the question of an address."""
    return RedirectResponse(f"{SCREENS[0].path}{'?' if asked else ''}{asked}", status_code=303)


def _show(app: FastAPI, dashboard: Dashboard, screen: Screen) -> None:
    """The routes of a page: itself, what changes by itself, and its answer as a file."""

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


def _say_troubles(app: FastAPI, dashboard: Dashboard) -> None:
    """Let every error be a page."""

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
    """A connection that is ended where a request takes longer to come, or what is sent is not read.

    uvicorn bounds the time between requests only: a client that sends a header a minute would hold its
    place for ever, and with all places held nobody else is answered.
    """

    asking_s = ASKING_S
    reading_s = READING_S
    since_s = 0.0
    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request has to come in time, and one client has a share of all connections alone."""
        super().connection_made(transport)
        self.since_s = self.loop.time()
        self._wait_for_request()
        self._keep_to_share()

    def data_received(self, data: bytes) -> None:
        """A piece of a request, which as a whole has to come in time."""
        self.since_s = self.loop.time()
        super().data_received(data)
        if self.has_request():
            self._received_in_time()
        elif self._asking is None:
            self._wait_for_request()

    def pause_writing(self) -> None:
        """What was sent is not read: it has to be in time."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.reading_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It was read."""
        super().resume_writing()
        self._read_in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
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

    def _keep_to_share(self) -> None:
        """End what this client has too many of: the oldest connections without a request, at last this one.

        Of many that come at once the requests have come too, and are read a moment later.
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
        """Whether a request has come and is not answered yet."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete


class _Server(uvicorn.Server):
    """A server that an interrupt during its start ends too, and that ends without a word."""

    def __init__(self, config: uvicorn.Config, was_interrupted: Callable[[], bool]) -> None:
        super().__init__(config)
        self._was_interrupted = was_interrupted

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, unless interrupted meanwhile."""
        await super().startup(sockets=sockets)
        self.should_exit = self.should_exit or self._was_interrupted()

    async def on_tick(self, counter: int) -> bool:
        """Whether to end: an interrupt that a callback of the loop lost counts too."""
        self.should_exit = self.should_exit or self._was_interrupted()
        return await super().on_tick(counter)

    def is_error(self, _record: logging.LogRecord) -> bool:
        """Whether an error is one: requests that are given up at the end are not."""
        return not (self.should_exit or self._was_interrupted())


_MOST_CONNECTIONS: Final = 256
# Browsers open 6 to a server; a proxy may stand for many people.
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
    """Answer until interrupted; then KeyboardInterrupt is raised.

    was_interrupted: whether Ctrl-C was pressed, even where its KeyboardInterrupt was lost. warms: whether
    the first page is computed before anybody asks.
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
    # Pages wait for Python's lock, which a computing thread gives up this often.
    sys.setswitchinterval(_SWITCH_S)
    with opened, one_thread():
        server = _Server(config, was_interrupted)
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(server.is_error)
        server.run(sockets=[opened])
    if server.started or was_interrupted():
        # Only an interrupt ends it. Uvicorn raises it again within its own task, where it can get lost.
        raise KeyboardInterrupt
