"""Connections that ask or read too slowly are ended, on a real server; others are answered meanwhile."""

import asyncio
import socket

import pytest

pytest.importorskip("fastapi", reason="the extra `web` is not installed")

import uvicorn

from equipoise.web.app import Bounded
from equipoise.web.frames import GoneError, InPieces, while_there

LARGE = b"x" * 50_000_000


class Soon(Bounded):
    """The same with less patience, though more than what a busy machine keeps a process from running."""

    asking_s = 1.0
    reading_s = 1.0


async def _app(scope, receive, send):
    if scope["type"] != "http":
        return
    large = scope["path"] == "/large"
    parts = (LARGE, b"end") if large else (b"small",)
    await InPieces(parts, media_type="text/plain", headers={})(scope, receive, send)


def served(checks):
    """Run a coroutine that is given the port of a server."""

    async def main():
        config = uvicorn.Config(_app, port=0, http=Soon, ws="none", lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        opened = socket.create_server(("127.0.0.1", 0))
        running = asyncio.create_task(server.serve(sockets=[opened]))
        try:
            return await checks(opened.getsockname()[1])
        finally:
            server.should_exit = True
            await running

    return asyncio.run(asyncio.wait_for(main(), 60))


async def asked(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    return reader, writer


GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_who_never_ends_his_request_is_let_go(sent):
    async def checks(port):
        reader, writer = await asked(port, sent)
        try:
            left = await reader.read()
        except ConnectionResetError:
            left = b""
        writer.close()
        return left

    assert served(checks) == b""


def test_a_second_request_has_to_come_in_time_too():
    async def checks(port):
        reader, writer = await asked(port, GET[:-2].replace(b"close", b"keep-alive") % b"" + b"\r\n")
        assert (await reader.readuntil(b"small")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HT")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    served(checks)


def test_who_does_not_read_is_let_go_and_who_reads_gets_all():
    async def checks(port):
        slow, writer = await asked(port, GET % b"large")
        reader, other = await asked(port, GET % b"large")
        whole = await reader.read()
        assert (whole.endswith(b"end"), len(whole) > len(LARGE)) == (True, True)
        await asyncio.sleep(2 * Soon.reading_s)
        try:
            cut = await slow.read()
        except ConnectionResetError:
            cut = b""
        assert len(cut) < len(LARGE)
        for each in (writer, other):
            each.close()

    served(checks)


def test_who_leaves_is_not_answered():
    left = []

    async def forever():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            left.append(1)
            raise

    async def receive():
        return {"type": "http.request"} if not left and not checks.pop(0) else {"type": "http.disconnect"}

    checks = [False, True]
    with pytest.raises(GoneError):
        asyncio.run(while_there(receive, forever()))
    assert left == [1]
