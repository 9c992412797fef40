"""Runs the dashboard on a socket that listens, behind its guard, to a clean end."""

import socket
import sys
from typing import Final

import uvicorn
from threadpoolctl import threadpool_limits

from equipoise.units import MILLISECOND_S
from equipoise.web.app import application
from equipoise.web.guard import LOOPBACK_NAMES, Guard
from equipoise.web.place import Place
from equipoise.web.protocol import Bounded
from equipoise.web.sources import Sources

_MOST_CONNECTIONS: Final = 256
_MOST_HEADER_BYTES: Final = 16_384
_IDLE_S: Final = 15
_END_S: Final = 2
_SWITCH_S: Final = MILLISECOND_S


def serve(opened: socket.socket, place: Place, sources: Sources, *, warms: bool = True) -> None:
    """Answer until interrupted; then KeyboardInterrupt is raised.

    warms: whether the first page is computed before anybody asks.
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
        server = uvicorn.Server(config)
        server.run(sockets=[opened])
    if server.started:
        # Only an interrupt ends it. Uvicorn raises it again within its own task, where it can get lost.
        raise KeyboardInterrupt
