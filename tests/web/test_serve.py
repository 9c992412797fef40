"""The verb itself: what it says, where it listens, how it ends."""

import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from command_line import equipoise


def refused(*arguments):
    ended = equipoise("serve", *arguments, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1
    return ended.stderr


def test_a_port_in_use_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        printed = refused("--port", str(port))
    assert f"port {port} of 127.0.0.1: " in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "no-such-host.invalid"), "no-such-host.invalid"),
        (("--host", "192.0.2.1"), "give --host"),  # of documentation (RFC 5737): no machine has it
        (("--token", "short"), " 16 "),
        (("--runs", "no-such-folder"), "no-such-folder: "),
        (("--port", "70000"), "--port"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(arguments, words):
    assert words in refused(*arguments)


def test_another_host_gets_a_token_of_its_own(start):
    started = start("--host", "0.0.0.0")  # noqa: S104 - what is tested
    token = re.fullmatch(r"\?token=([\w-]{32})", started.query)[1]
    assert started.answer("/accuracy")[0] == 401
    assert started.answer("/accuracy", authorization=f"Bearer {token}")[0] == 200
    assert started.answer("/accuracy", authorization=f"Bearer {token}", host="evil.example")[0] == 421
    assert started.stopped() == (130, "equipoise: interrupted\n")


def test_the_token_may_come_from_the_environment(start):
    started = start(EQUIPOISE_TOKEN="sixteen-or-more-characters")  # noqa: S106 - of a test
    assert started.query == "?token=sixteen-or-more-characters"
    assert started.answer("/accuracy")[0] == 401


def test_nothing_hides_behind_a_name_of_this_machine(dashboard):
    assert dashboard.answer("/accuracy", host="evil.example")[0] == 421
    assert dashboard.answer("/accuracy", host=f"localhost:{dashboard.port}")[0] == 200
    assert dashboard.answer("/accuracy", method="POST")[0] == 405


@pytest.mark.parametrize("path", ["/accuracy", "/runs", "/nothing-here"])
def test_head_has_the_headers_of_get(dashboard, path):
    got, headers, text = dashboard.answer(path)
    assert text
    status, same, nothing = dashboard.answer(path, method="HEAD")
    assert (status, nothing) == (got, "")
    assert same["content-length"] == headers["content-length"]


@pytest.mark.parametrize("name", ["http://lab.example.org", "lab.example.org:80", "the lab", ""])
def test_a_name_that_no_browser_sends_is_refused(name):
    assert f"--name {name!r}: " in refused("--port", "0", "--name", name)


def half_open(port, number, source):
    """Connections that began a request and do not end it."""
    opened = []
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        opened.append(connection)
    return opened


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_a_client_with_hundreds_of_half_open_connections_locks_nobody_out(start, source):
    started = start()
    assert started.answer("/accuracy")[0] == 200
    opened = half_open(started.port, 300, source)
    try:
        assert started.answer("/accuracy")[0] == 200
    finally:
        for connection in opened:
            connection.close()


def test_a_hundred_requests_of_one_client_at_once_are_answered(start):
    started = start()
    asking = [socket.create_connection(("127.0.0.1", started.port), timeout=30) for _ in range(100)]
    try:
        for connection in asking:
            connection.sendall(b"GET /no-such-page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        firsts = [connection.recv(12) for connection in asking]
        assert firsts == [b"HTTP/1.1 404"] * 100
    finally:
        for connection in asking:
            connection.close()


def test_a_client_gets_no_more_than_its_share_of_connections(start):
    started = start()
    assert started.answer("/accuracy")[0] == 200
    slow = []
    try:
        for number in range(200):
            connection = socket.create_connection(("127.0.0.1", started.port), timeout=10)
            query = f"GET /plan?workload=bert&accelerator=h100&global_batch={number + 64}&ask=1 HTTP/1.1\r\n"
            connection.sendall(f"{query}Host: localhost\r\n\r\n".encode())
            slow.append(connection)
        other = socket.create_connection(
            ("127.0.0.1", started.port), timeout=60, source_address=("127.0.0.2", 0)
        )
        slow.append(other)
        other.sendall(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 503 " not in other.recv(100)
    finally:
        for connection in slow:
            connection.close()


def test_it_ends_silently_with_requests_that_are_not_answered(start):
    started = start()
    opened = [socket.create_connection(("127.0.0.1", started.port), timeout=10) for _ in range(8)]
    for number, connection in enumerate(opened):
        path = f"/plan?workload=gpt3_175b&accelerator=h100&accelerators={1024 + 8 * number}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    time.sleep(0.5)  # until they are being answered, which takes longer
    assert started.stopped() == (130, "equipoise: interrupted\n")
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0])
def test_an_interrupt_at_any_moment_of_the_start_counts(start, wait_s):
    started = start()
    time.sleep(wait_s)
    assert started.stopped() == (130, "equipoise: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_in_one_line_too(start, number):
    started = start()
    assert started.answer("/accuracy")[0] == 200
    code, printed = started.stopped(number)
    assert (code, printed.count("\n")) == (128 + number, 1), printed


# A library that turns a Ctrl-C into an error of its own, as compiled ones do, or loses it in a callback.
MEETS_INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Loses:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(10))
class Meets:
    def find_spec(self, name, path, target=None):
        if name == "fastapi.applications" and sys.argv.pop() == "lost":
            Loses()
        elif name == "fastapi.applications":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise ValueError("not a schema") from None
from equipoise.cli.app import main
sys.meta_path.insert(0, Meets())
main(sys.argv[1:-1])
"""


@pytest.mark.parametrize("how", ["turned", "lost"])
def test_an_interrupt_that_a_library_turns_or_loses_is_an_interrupt(how):
    ended = subprocess.run(
        [sys.executable, "-c", MEETS_INTERRUPT, "serve", "--port", "0", how],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (130, "equipoise: interrupted\n")
