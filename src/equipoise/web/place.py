"""Where the dashboard listens, and what a visitor must know. Imports nothing heavy: refusals come at once."""

import secrets
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from msgspec import Struct

from equipoise.errors import UsageError
from equipoise.web.guard import TOKEN_FIELD, is_loopback

SHORTEST_TOKEN: Final = 16
_BACKLOG: Final = 512
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound


class ListenAddress(Struct, frozen=True, kw_only=True):
    """Where the dashboard listens. token: what a visitor must know; names: further ones of the machine."""

    host: str
    port: int
    token: str | None = None
    names: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether it listens on every address of the machine."""
        return self.host in _ANY

    @property
    def url(self) -> str:
        """The address to open, its token in it."""
        host = socket.gethostname() if self.is_any else self.host
        shown = f"[{host}]" if ":" in host else host
        token = "" if self.token is None else f"?{TOKEN_FIELD}={self.token}"
        return f"http://{shown}:{self.port}/{token}"


def token_for(host: str, given: str | None) -> str | None:
    """The token to ask for: the one given, a new one where others can reach the host, else None.

    Raises UsageError for one that can be guessed.
    """
    if given is None:
        return None if is_loopback(host) else secrets.token_urlsafe(24)
    if len(given) < SHORTEST_TOKEN or not (given.isascii() and given.isprintable()) or " " in given:
        raise UsageError(
            f"the token has {len(given)} characters; expected at least {SHORTEST_TOKEN} of ASCII "
            "without spaces, or no token to have one generated"
        )
    return given


def counting_interrupts() -> Callable[[], bool]:
    """Whether Ctrl-C was pressed since this call.

    The KeyboardInterrupt that it raises is lost where it meets a callback, as imports and destructors have.
    """
    pressed = []

    def noted(_number: int, _frame: FrameType | None) -> None:
        pressed.append(True)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, noted)
    return lambda: bool(pressed)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free. Raises UsageError where it cannot."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as err:
        raise UsageError(
            f"--host {host!r}: {_reason(err)}; expected a name or address of this machine"
        ) from err
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError as err:
        opened.close()
        remedy = "stop the program that uses it, or use another --port"
        raise UsageError(f"port {port} of {host}: {_reason(err).lower()}; {remedy}") from err
    return opened


def _reason(err: OSError | UnicodeError) -> str:
    return (err.strerror if isinstance(err, OSError) else None) or str(err)
