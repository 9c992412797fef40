"""The verb itself: what it says, where it listens, how it ends."""

import re
import socket
import subprocess
import sys

import pytest


def refused(*arguments):
    ended = subprocess.run(
        [sys.executable, "-m", "equipoise", "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
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
