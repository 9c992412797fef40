"""Worker processes that parse shares of sources: children of this interpreter, safe to start anywhere.

No fork, so threads of the caller (Polars, a progress bar) cannot deadlock; no import of the caller's script,
so none needs a main guard. A worker that cannot start is no error: the work is then done here.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TypeAlias

from equipoise.errors import DataError
from equipoise.runs.shares import Share, ShareResult, parse_share

Parsed: TypeAlias = Callable[[Share, int], None]  # told a share and the bytes parsed since the last call

# What a worker runs: Ctrl-C is the parent's to answer, and modules are found where the parent finds them.
_BOOT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "descriptor = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; "
    "from equipoise.runs.workers import serve; serve(descriptor)"
)
# Bytes between two words on progress: often enough for a bar, seldom enough to cost nothing.
_REPORT_BYTES = 4 * 2**20


def serve(descriptor: int) -> None:
    """Parse the shares that arrive on a pipe until it closes. The body of a worker."""
    pipe = Connection(descriptor)
    waiting = 0

    def done(num_bytes: int) -> None:
        nonlocal waiting
        waiting += num_bytes
        if waiting >= _REPORT_BYTES:
            pipe.send(waiting)
            waiting = 0

    try:
        pipe.send(0)  # ready
        while True:
            share = pipe.recv()
            try:
                pipe.send(parse_share(share, done))
            except DataError as err:
                pipe.send(err)
    except (EOFError, BrokenPipeError):
        return


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    share: Share | None = None
    ready: bool = False


def _started() -> _Worker | None:
    """A new worker; None where this interpreter cannot start another."""
    ours, theirs = Pipe()
    try:
        process = subprocess.Popen(
            [sys.executable or "", "-I", "-c", _BOOT, str(theirs.fileno()), *sys.path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    except OSError:
        ours.close()
        return None
    finally:
        theirs.close()
    return _Worker(process, ours)


@contextmanager
def _workers(count: int) -> Iterator[list[_Worker]]:
    """Workers that are gone afterwards, however the block ends."""
    started: list[_Worker] = []
    try:
        for _ in range(count):
            worker = _started()
            if worker is not None:
                started.append(worker)
        yield started
    finally:
        for worker in started:
            worker.pipe.close()
            worker.process.kill()
        for worker in started:
            worker.process.wait()


def parse_shares(
    shares: Sequence[Share], *, num_workers: int, parsed: Parsed, meanwhile: Callable[[], object]
) -> list[ShareResult]:
    """The result of each share, in their order whatever the workers' speed; the first are started first.

    meanwhile: called once while the workers work. With one worker everything happens here.
    Raises DataError when a source cannot be opened or a worker dies.
    """
    results: dict[int, ShareResult] = {}
    if num_workers > 1 and len(shares) > 1:
        with _workers(min(num_workers, len(shares))) as workers:
            _drive(workers, shares, results, parsed, meanwhile)
    for index, share in enumerate(shares):
        if index not in results:
            results[index] = parse_share(share, partial(parsed, share))
    return [results[index] for index in range(len(shares))]


def _drive(
    workers: list[_Worker],
    shares: Sequence[Share],
    results: dict[int, ShareResult],
    parsed: Parsed,
    meanwhile: Callable[[], object],
) -> None:
    """Hand shares out and collect results until all are there or no worker is left that could start."""
    todo = list(range(len(shares)))[::-1]
    busy: dict[Connection, tuple[_Worker, int]] = {}
    for worker in workers[: len(todo)]:
        index = todo.pop()
        worker.pipe.send(shares[index])
        busy[worker.pipe] = (worker, index)
    meanwhile()
    while busy:
        for pipe in wait(list(busy)):
            assert isinstance(pipe, Connection)
            worker, index = busy[pipe]
            try:
                message = pipe.recv()
            except EOFError as err:
                if not worker.ready:  # it never ran: the caller does its share
                    del busy[pipe]
                    continue
                code = worker.process.wait()
                raise DataError(
                    f"{shares[index].path}: the process that read it ended with code {code}; it may have run "
                    "out of memory"
                ) from err
            match message:
                case int():
                    worker.ready = True
                    parsed(shares[index], message)
                case ShareResult():
                    results[index] = message
                    del busy[pipe]
                    if todo:
                        index = todo.pop()
                        pipe.send(shares[index])
                        busy[pipe] = (worker, index)
                case DataError():
                    raise message
