"""Loads the command line once, with `--torch` torch too, and forks a process for each request: see command_line.py.

Usage: loaded.py FD [--torch], FD being a listening socket. Nothing is loaded before the first request.
"""

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

# Not loaded: what needs torch, and what only a long-lived process needs.
LEFT_OUT = ("equipoise.bench", "equipoise.spec.torch_model", "equipoise.web", "equipoise.__main__")
LOADED_LATE = (
    *("orjson", "rich.console", "scipy.optimize", "scipy.special", "scipy.stats"),
    "threadpoolctl",
)
# What ranks and those who start them import, some of it late. No operation of torch runs: threads do not survive a fork.
OF_TORCH = (
    *("torch", "torch._dynamo", "torch.distributed.run", "torch.distributed.fsdp", "torch.profiler"),
    *("torch.distributed.tensor.parallel", "torch.distributed.pipelining", "torch.nn.parallel"),
    *("sklearn.datasets", "equipoise.bench.trial_rank", "equipoise.bench.training.models"),
    *(
        "equipoise.bench.communication_rank",
        "equipoise.bench.watching.user_loop",
        "equipoise.bench.equipment",
    ),
    "equipoise.spec.torch_model",
)


def load(late):
    """Import what verbs import, and `late`, and read the tables that ship; nothing else runs."""
    import equipoise.cli.app  # noqa: PLC0415
    from equipoise.spec.catalogue import shipped  # noqa: PLC0415

    for module in pkgutil.walk_packages(equipoise.__path__, "equipoise."):
        if not module.name.startswith(LEFT_OUT):
            importlib.import_module(module.name)
    for name in late:
        with suppress(ImportError):
            importlib.import_module(name)
    shipped()


def received(connection):
    """The request of a client, None of one that was killed before all was sent; its streams and namespaces."""
    head, found, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(5 * 4))
    streams = array.array("i")
    for _, _, data in found:
        streams.frombytes(data)
    wanted, content = int.from_bytes(head, "big"), b""
    while len(content) < wanted:
        piece = connection.recv(wanted - len(content))
        if not piece:
            return None, streams.tolist()
        content += piece
    return json.loads(content) if content else None, streams.tolist()


def become(request, streams):
    """Take on the streams, host, folder and environment of a request."""
    *streams, mounts, network = streams
    for stream, number in zip(streams, (0, 1, 2), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    for namespace, name in ((mounts, "mnt"), (network, "net")):
        if os.fstat(namespace).st_ino != Path("/proc/self/ns", name).stat().st_ino:  # of an emulated host
            assert ctypes.CDLL(None).setns(namespace, 0) == 0
        os.close(namespace)
    os.sched_setaffinity(0, request["cores"])
    os.chdir(request["folder"])
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    after = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [each for each in after if each and each not in before]
    sys.executable = os.environ.get("EQUIPOISE_EXECUTABLE", sys.executable)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run(request):
    """What `python ARGUMENTS` does, of which there is a module, code or a file."""
    arguments = request["arguments"]
    if arguments[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        del arguments[0]
    kind, *others = arguments
    if kind == "-m":
        name, *words = others
        sys.argv = [name, *words]
        sys.path.insert(0, request["folder"])
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, *words = others
        sys.argv = ["-c", *words]
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102 - what -c is
    else:
        sys.argv = [kind, *others]
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))  # noqa: PTH100, PTH120 - no link is followed
        runpy.run_path(kind, run_name="__main__")


def leave(code):
    """End as the interpreter would, without freeing all that was loaded, which takes 0.1 s, with torch 0.4."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(listening):
    """Fork a process per request and send its exit code; a request in each of these, None when the parent is gone.

    A process is killed when the program that requested it ends.
    """
    with selectors.DefaultSelector() as ready:
        ready.register(listening, selectors.EVENT_READ)
        ready.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    request, streams = received(connection)
                    pid = os.fork() if request else None
                    if pid == 0:
                        listening.close()  # a client must not wait for one that serves none
                        become(request, streams)
                        return request
                    for stream in streams:
                        os.close(stream)
                    if pid is None:
                        connection.close()
                        continue
                    ended = os.pidfd_open(pid)
                    ready.register(ended, selectors.EVENT_READ, (pid, connection))
                    ready.register(connection, selectors.EVENT_READ, pid)
                elif key.data is None:
                    return None
                elif isinstance(key.fileobj, socket.socket):
                    if key.fileobj.fileno() >= 0:  # else the process ended too, which was noticed first
                        ready.unregister(key.fileobj)
                        os.kill(key.data, signal.SIGKILL)
                else:
                    pid, connection = key.data
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    with suppress(KeyError):  # nobody waits any more
                        ready.unregister(connection)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(OSError):
                        connection.sendall(code.to_bytes(4, "big", signed=True))
                    connection.close()


def is_wanted(listening):
    """Whether anybody connects before the parent is gone."""
    ready, _, _ = select.select([listening, sys.stdin], [], [])
    return listening in ready


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        if not is_wanted(listening):
            sys.exit()
        gc.disable()  # until all is loaded, which lasts
        load(LOADED_LATE + (OF_TORCH if "--torch" in sys.argv else ()))
        gc.collect()
        gc.freeze()  # forked processes need not copy what the collector would touch
        gc.enable()
        requested = serve(listening)
    if requested:
        try:
            run(requested)
        except SystemExit as left:
            if not isinstance(left.code, int | None):
                raise
            leave(left.code or 0)
        leave(0)
