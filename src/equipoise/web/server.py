"""Runs the dashboard on a listening socket, behind its guard, with bounds on time, to a clean end."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.h11_impl import H11Protocol

from equipoise.units import MILLISECOND_S
from equipoise.web.app import application
from equipoise.web.guard import LOOPBACK_NAMES, Guard, ListenAddress
from equipoise.web.screen import DataSources

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

    def says(self, _record: logging.LogRecord) -> bool:
        """Whether an error is one: requests that are given up at the end are not."""
        return not self.should_exit


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

    was_interrupted: as of `counting_interrupts`. warms: whether the first page is computed before anybody
    asks.
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
    # The matrices are small: threads of a library would only wait for each other.
    with opened, threadpool_limits(limits=1):
        server = _Server(config, was_interrupted)
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(server.says)
        server.run(sockets=[opened])
    if server.started or was_interrupted():
        # Only an interrupt ends it. Uvicorn raises it again within its own task, where it can get lost.
        raise KeyboardInterrupt
