"""Who may ask: hosts by name, tokens, other sites, sizes. The guard alone, before any page."""

import asyncio
import re

import pytest

from equipoise.web.guard import HEADERS, Guard, is_loopback

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of a test


async def _page(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a page"})


def answered(guard, path="/", method="GET", **headers):
    """Status, headers and body of what a guard lets through or says."""
    path, _, query = path.partition("?")
    named = {"host": "localhost:8731", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items() if value is not None],
    }
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"].decode()


@pytest.mark.parametrize("host", ["localhost", "localhost:8731", "127.0.0.1:1", "[::1]:8731", "LOCALHOST:80"])
def test_the_machine_itself_may_ask_by_any_port(host):
    assert answered(Guard(app=_page), host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8731", "localhost.evil.example", "127.0.0.1.evil.example", "", None),
        *("192.168.0.7", "localhost:8731:1", "localhost:x", "[::1", "127.0.0.1@evil.example", "0.0.0.0"),  # noqa: S104 - named
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(host):
    status, _, body = answered(Guard(app=_page), host=host)
    assert status == 421
    assert "a page" not in body


def test_two_hosts_are_none():
    guard = Guard(app=_page)
    scope = {"headers": [(b"host", b"localhost"), (b"host", b"localhost")]}
    assert not guard._is_known_name([value for _, value in scope["headers"]])


def test_a_server_on_all_addresses_goes_by_numbers_and_its_own_names_only():
    guard = Guard(app=_page, names=frozenset({"box"}), any_address=True)
    assert [
        answered(guard, host=host)[0] for host in ("10.0.0.7:8731", "[fe80::1]", "box", "evil.example")
    ] == [
        200,
        200,
        200,
        421,
    ]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(method):
    status, headers, _ = answered(Guard(app=_page), method=method)
    assert status == 405
    assert headers[b"allow"] == b"GET, HEAD"


@pytest.mark.parametrize("request_of", [{}, {"host": "evil.example"}])
def test_head_is_answered_as_get_without_a_body(request_of):
    status, headers, body = answered(Guard(app=_page), **request_of)
    assert body
    assert answered(Guard(app=_page), method="HEAD", **request_of) == (status, headers, "")


def test_sizes_are_bounded():
    guard = Guard(app=_page)
    assert answered(guard, f"/study?round={'x' * 9000}")[0] == 414
    assert answered(guard, f"/{'x' * 300}")[0] == 414
    assert answered(guard, content_length="10")[0] == 413
    assert answered(guard, transfer_encoding="chunked")[0] == 413
    assert answered(guard, content_length="0")[0] == 200


def test_another_site_may_lead_here_but_not_load_from_here():
    guard = Guard(app=_page)
    assert answered(guard, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")[0] == 403
    assert answered(guard, sec_fetch_site="same-site", sec_fetch_mode="cors")[0] == 403
    assert answered(guard, sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200
    assert answered(guard, sec_fetch_site="same-origin", sec_fetch_mode="cors")[0] == 200


def test_a_token_is_wanted_and_kept_in_a_cookie():
    guard = Guard(app=_page, token=TOKEN, cookie="equipoise-1")
    status, _, body = answered(guard, "/plan")
    assert (status, "a page" in body) == (401, False)
    status, headers, body = answered(guard, f"/plan?accelerators=8&token={TOKEN}&workload=bert")
    cookie = headers[b"set-cookie"].decode()
    assert status == 200
    assert re.fullmatch(r"equipoise-1=[0-9a-f]{64}; HttpOnly; SameSite=Strict; Path=/", cookie)
    assert TOKEN not in cookie
    assert TOKEN not in body
    assert 'content="0; url=/plan?accelerators=8&amp;workload=bert"' in body
    assert answered(guard, "/plan", cookie=cookie.partition(";")[0])[0] == 200


@pytest.mark.parametrize(
    "request_of",
    [
        {"path": "/?token="},
        {"path": f"/?token={TOKEN[:-1]}"},
        {"path": f"/?token={TOKEN}x"},
        {"cookie": f"equipoise-1={TOKEN}"},
        {"cookie": "equipoise-1="},
        {"cookie": "equipoise-1"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer "},
    ],
)
def test_nothing_else_is_a_token(request_of):
    assert answered(Guard(app=_page, token=TOKEN, cookie="equipoise-1"), **request_of)[0] == 401


def test_programs_send_the_token_in_a_header():
    assert answered(Guard(app=_page, token=TOKEN), authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("//evil.example/x", "/evil.example/x"),
        ("/\t/evil.example", "/%09/evil.example"),  # browsers drop tabs and ends of lines in addresses
        ("/\n/evil.example", "/%0A/evil.example"),
        ("/\\evil.example", "/evil.example"),
    ],
)
def test_the_way_on_never_leads_to_another_host(path, target):
    body = answered(Guard(app=_page, token=TOKEN), f"{path}?token={TOKEN}")[2]
    assert f'url={target}"' in body


def test_every_response_carries_the_headers():
    for request_of in ({}, {"host": "evil.example"}, {"method": "POST"}):
        headers = answered(Guard(app=_page), **request_of)[1]
        assert dict(HEADERS).items() <= headers.items()
    policy = dict(HEADERS)[b"content-security-policy"].decode()
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert scripts == "script-src 'self'"
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_addresses_of_this_machine_are_recognised():
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3")] == [True] * 4
    others = ("0.0.0.0", "192.168.0.1", "::", "box", "localhost.box")  # noqa: S104 - named
    assert [is_loopback(host) for host in others] == [False] * 5
