"""Loads the command line once and forks a process for each request: FD is a listening socket, see command_line.py."""

import array
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
from contextlib import suppress

# Not loaded: what needs torch, and what only a long-lived process needs.
LEFT_OUT = ("equipoise.bench", "equipoise.spec.torch_model", "equipoise.web", "equipoise.__main__")
LOADED_LATE = (
    *("orjson", "rich.console", "scipy.optimize", "scipy.special", "scipy.stats"),
    "threadpoolctl",
)


def load():
    """Import what verbs import, and read the tables that ship; nothing else runs."""
    import equipoise.cli.app  # noqa: PLC0415
    from equipoise.spec.catalogue import shipped  # noqa: PLC0415

    for module in pkgutil.walk_packages(equipoise.__path__, "equipoise."):
        if not module.name.startswith(LEFT_OUT):
            importlib.import_module(module.name)
    for name in LOADED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    shipped()


def received(connection):
    """The request of a client, and its three streams."""
    head, found, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * 4))
    streams = array.array("i")
    for _, _, data in found:
        streams.frombytes(data)
    wanted, content = int.from_bytes(head, "big"), b""
    while len(content) < wanted:
        piece = connection.recv(wanted - len(content))
        if not piece:
            raise EOFError
        content += piece
    return json.loads(content), streams.tolist()


def become(request, streams):
    """Take on the streams, folder and environment of a request."""
    for stream, number in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["equipoise", *request["arguments"]]
    sys.path.insert(0, request["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def serve(listening):
    """Fork a process per request and send its exit code; returns in each of these, and when the parent is gone."""
    with selectors.DefaultSelector() as ready:
        ready.register(listening, selectors.EVENT_READ)
        ready.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    pid, connection = key.data
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(OSError):
                        connection.sendall(code.to_bytes(4, "big", signed=True))
                    connection.close()
                elif key.fileobj is listening:
                    connection, _ = listening.accept()
                    request, streams = received(connection)
                    pid = os.fork()
                    if not pid:
                        become(request, streams)
                        return True
                    for stream in streams:
                        os.close(stream)
                    ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
                else:
                    return False


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    gc.collect()
    gc.freeze()  # forked processes need not copy what the collector would touch
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        has_request = serve(listening)
    if has_request:
        from equipoise.cli.app import main

        main()
