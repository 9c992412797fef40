"""Processes forked from a prepared one, which many tests rest on."""

import array
import os
import socket
import subprocess

import pytest
from command_line import CAN_FORK, prepared_python

pytest.importorskip("torch")


@pytest.mark.skipif(not CAN_FORK, reason="nothing is forked here")
@pytest.mark.parametrize("sent", ["nothing", "a length", "a part"])
def test_a_client_that_is_killed_while_it_asks_ends_no_server(sent):
    python = prepared_python()

    def server():
        asked = [python, "-c", "import os; print(os.getppid())"]
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)

    before = server()
    assert before != os.getpid()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.environ["EQUIPOISE_LOADED_TORCH"])
        if sent != "nothing":
            streams = array.array("i", (0, 1, 2))
            client.sendmsg([(100).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        if sent == "a part":
            client.sendall(b"{")
    assert server() == before
