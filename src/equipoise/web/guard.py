"""Access control of the dashboard: listen address, host names, token, request sizes, and response headers.

Imports nothing heavy, so that the first requests can be refused at once.
"""

import errno
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct

from equipoise.errors import UsageError
from equipoise.report.html import Html, element

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
MOST_QUERY_BYTES: Final = 8192  # pasted jobs are part of the address
MOST_PATH_BYTES: Final = 256
TOKEN_FIELD: Final = "token"  # noqa: S105 - the name of a field
SHORTEST_TOKEN: Final = 16
_BACKLOG: Final = 512
_ANY: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound
_BEARER: Final = "bearer "
_NOT_ALLOWED: Final = 405
_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]{1,5})?", re.ASCII)

_NAME: Final = re.compile(r"[\w.-]+")

# Scripts are only allowed as files of this server; Plotly sets inline styles of the elements that it draws.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), interest-cohort=()"),
)


def is_loopback(host: str) -> bool:
    """Whether an address is only reachable from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ListenAddress(Struct, frozen=True, kw_only=True):
    """Where the dashboard listens. token: access token, or None. names: further host names of the machine."""

    host: str
    port: int
    token: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for a name that no browser sends: with a scheme, port, path or blank."""
        unsendable = (each for each in self.names if not (_NAME.fullmatch(each) or _is_address(each)))
        wrong = next(unsendable, None)
        if wrong is not None:
            raise UsageError(f"--name {wrong!r}: expected the name of a host alone, such as lab.example.org")

    @property
    def is_any(self) -> bool:
        """Whether the dashboard listens on every address of the machine."""
        return self.host in _ANY

    @property
    def url(self) -> str:
        """The address to open, including the token."""
        host = socket.gethostname() if self.is_any else self.host
        shown = f"[{host}]" if ":" in host else host
        token = "" if self.token is None else f"?{TOKEN_FIELD}={self.token}"
        return f"http://{shown}:{self.port}/{token}"


def token_for(host: str, given: str | None) -> str | None:
    """The required token: the given one, or a new one if other machines can reach the host, else None.

    Raises UsageError for a token that is easy to guess.
    """
    if given is None:
        return None if is_loopback(host) else secrets.token_urlsafe(24)
    if len(given) < SHORTEST_TOKEN or not (given.isascii() and given.isprintable()) or " " in given:
        raise UsageError(
            f"the token has {len(given)} characters; expected at least {SHORTEST_TOKEN} of ASCII "
            "without spaces, or no token to have one generated"
        )
    return given


_REMEDIES: Final[Mapping[int | None, str]] = {
    errno.EADDRINUSE: "stop the program that uses it, or use another --port",
    errno.EADDRNOTAVAIL: "give --host a name or address of this machine",
    errno.EACCES: "use a --port from 1024 on",
}


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means any free port. Raises UsageError if it cannot listen."""
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
        remedy = _REMEDIES.get(err.errno, "expected a name or address of this machine and a free port")
        raise UsageError(f"port {port} of {host}: {_reason(err).lower()}; {remedy}") from err
    return opened


def _reason(err: OSError | UnicodeError) -> str:
    return (err.strerror if isinstance(err, OSError) else None) or str(err)


class Guard(Struct, frozen=True, kw_only=True):
    """ASGI middleware that checks every request.

    names: allowed host names, in lower case, without port. any_address: whether numeric addresses are
    allowed, i.e. the server listens on all addresses. token: required access token, or None. cookie: name of
    the cookie with the token, which includes the port, because browsers share cookies between ports.
    """

    app: App
    names: frozenset[str] = LOOPBACK_NAMES
    any_address: bool = False
    token: str | None = None
    cookie: str = "equipoise"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with the reason."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        sent = _with_headers(send)
        if scope["method"] == "HEAD":
            scope, sent = {**scope, "method": "GET"}, _without_body(sent)
        refusal = self._refusal(scope)
        if refusal is not None:
            status, words = refusal
            allowed = ((b"allow", b"GET, HEAD"),) if status == _NOT_ALLOWED else ()
            await _respond(sent, status, _page(words), *allowed)
        elif self.token is not None and self._named_token(scope) is not None:
            await self._set_cookie(scope, sent)
        else:
            await self.app(scope, receive, sent)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The first reason to refuse a request, as HTTP status and sentence; None to allow it."""
        # Other sites may link here, but not load from here, which would keep the machine busy.
        is_foreign = _values(scope, b"sec-fetch-site") in ([b"cross-site"], [b"same-site"])
        has_body = _values(scope, b"transfer-encoding") or set(_values(scope, b"content-length")) - {b"0"}
        is_long = len(scope["query_string"]) > MOST_QUERY_BYTES or len(scope["raw_path"]) > MOST_PATH_BYTES
        reasons = (
            (scope["method"] != "GET", _NOT_ALLOWED, "This server only accepts GET and HEAD."),
            (
                not self._is_known_name(_values(scope, b"host")),
                421,
                "The host name of the address is not that of this server. Open the address that it printed.",
            ),
            (is_long, 414, f"The address is longer than {MOST_QUERY_BYTES:,} bytes."),
            (has_body, 413, "Requests have no body here: put the question in the address."),
            (
                is_foreign and _values(scope, b"sec-fetch-mode") != [b"navigate"],
                403,
                "This request came from another site. Open the address directly.",
            ),
            (
                self.token is not None and not self._knows_token(scope),
                401,
                "This server needs its token: open the address that it printed when it started.",
            ),
        )
        return next(((status, words) for applies, status, words in reasons if applies), None)

    def _is_known_name(self, hosts: list[bytes]) -> bool:
        """Whether exactly one host is named and it is this server's, which prevents DNS rebinding."""
        if len(hosts) != 1:
            return False
        found = _HOST.fullmatch(hosts[0].decode("latin-1").strip().lower())
        if found is None:
            return False
        name = found["address"] or found["name"]
        if name in self.names:
            return True
        return self.any_address and _is_address(name)

    def _named_token(self, scope: Scope) -> str | None:
        """The token in the address, or None."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return next((value for name, value in pairs if name == TOKEN_FIELD), None)

    def _knows_token(self, scope: Scope) -> bool:
        """Whether address, cookie or header contain the token, each compared in constant time."""
        if self.token is None:
            return True
        named = self._named_token(scope)
        if named is not None:
            return _same(named, self.token)
        for value in _values(scope, b"authorization"):
            text = value.decode("latin-1")
            if text.lower().startswith(_BEARER) and _same(text[len(_BEARER) :].strip(), self.token):
                return True
        held = _cookies(scope).get(self.cookie)
        return held is not None and _same(held, _cookie_digest(self.token))

    async def _set_cookie(self, scope: Scope, send: Send) -> None:
        """Store the token in a cookie and forward to the same address without it.

        Forwards by a page instead of a redirect, because a browser that comes from another site does not send
        strict cookies after a redirect.
        """
        assert self.token is not None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(name, value) for name, value in pairs if name != TOKEN_FIELD])
        # Exactly one slash: two would name another host, even if a browser removes what is between them.
        path = "/" + quote(scope["path"].replace("\\", "").lstrip("/"))
        target = f"{path}?{rest}" if rest else path
        cookie = f"{self.cookie}={_cookie_digest(self.token)}; HttpOnly; SameSite=Strict; Path=/"
        onward = element("meta", http_equiv="refresh", content=f"0; url={target}")
        content = _page("The token is correct.", onward, element("p", element("a", "Continue", href=target)))
        await _respond(send, 200, content, (b"set-cookie", cookie.encode()))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _cookie_digest(token: str) -> str:
    """The value of the cookie: a digest, which does not reveal the token."""
    return sha256(b"equipoise:" + token.encode()).hexdigest()


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


def _cookies(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in _values(scope, b"cookie"):
        try:
            found |= {name: each.value for name, each in SimpleCookie(value.decode("latin-1")).items()}
        except CookieError:
            continue
    return found


def _with_headers(send: Send) -> Send:
    """Wrap `send` to add the headers of every response."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message.get("headers", ())}
            added = [pair for pair in HEADERS if pair[0] not in own]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sent


def _without_body(send: Send) -> Send:
    """Wrap `send` for HEAD: the headers of the GET response, without a body."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        is_body = message["type"] == "http.response.body"
        await send({**message, "body": b""} if is_body else message)

    return sent


def _page(words: str, *more: Html) -> bytes:
    """A page of one sentence, for refused requests."""
    head = element("head", element("meta", charset="utf-8"), element("title", "Equipoise"))
    body = element("body", element("main", element("h1", "Equipoise"), element("p", words), *more))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n".encode()


async def _respond(send: Send, status: int, content: bytes, *headers: tuple[bytes, bytes]) -> None:
    named = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": content})
