"""How pages are sent: in pieces, so that who reads slowly holds little; and only to who is still there."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from equipoise.units import MIB
from equipoise.web.answer import BUSY, Answer
from equipoise.web.frames import Halves

Found = TypeVar("Found")
NOT_STORED: Final = {"cache-control": "no-store", "vary": "HX-Request, Sec-Fetch-Dest, Cookie"}
_PIECE_BYTES: Final = MIB // 4
_HTML: Final = "text/html; charset=utf-8"
_BUSY_S: Final = 2


class InPieces(Response):
    """A response of several parts, none of which is copied: what is kept is sent as it lies."""

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


class Page(InPieces):
    """A page: what is before and after the answer's body, and that between them."""

    def __init__(self, halves: Halves, answer: Answer) -> None:
        """halves: of the frame."""
        headers = {**NOT_STORED, **({"retry-after": str(_BUSY_S)} if answer.status == BUSY else {})}
        super().__init__(
            (halves[0], answer.body, halves[1]), media_type=_HTML, headers=headers, status_code=answer.status
        )


class GoneError(Exception):
    """Who asked is there no more: nobody reads an answer."""


async def while_there(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]], asked: Coroutine[Any, Any, Found]
) -> Found:
    """What a coroutine returns. When the client leaves it is cancelled, and GoneError raised."""
    asking = asyncio.ensure_future(asked)
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
