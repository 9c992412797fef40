"""Worker processes that parse shares of sources; they are started as subprocesses of this interpreter."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from msgspec import Struct, field

from equipoise.errors import DataError
from equipoise.runs import Blob, Reader, RowRejection, Tally
from equipoise.runs.readers import READERS
from equipoise.runs.sources import ARCHIVE_SUFFIXES, DataSource

Done: TypeAlias = Callable[[int], None]  # called with the bytes of each file that is parsed


class SourceShare(Struct, frozen=True, kw_only=True):
    """A worker's share of one source: part `index` of `count`. Picklable."""

    source: DataSource
    index: int
    count: int


class ShareResult(Struct, kw_only=True):
    """Facts by reader and path, the source's rejections, and files that were passed over."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    rejections: list[RowRejection] = field(default_factory=list)
    passed_over: Tally = field(default_factory=Tally)


def context_of(source: DataSource) -> tuple[str, ...]:
    """Return the folders above a source's paths; for an archive, its name, which may state the round."""
    path = source.path.resolve()
    if source.kind.name == "archive":
        name = path.name
        for suffix in ARCHIVE_SUFFIXES:
            name = name.removesuffix(suffix)
        return (name,)
    if source.kind.name == "git":
        return (source.name.removesuffix(".git"),)
    return (path.parent if source.kind.name == "file" else path).parts[1:]


class Division(Struct):
    """Assigns each file to the share with the fewest bytes so far.

    Every worker sees the same files in the same order, so all workers decide equally without communication.
    """

    share: SourceShare
    passed_over: Tally = field(default_factory=Tally)
    _context: tuple[str, ...] = ()
    _bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with no bytes in any share."""
        self._context = context_of(self.share.source)
        self._bytes = [0] * self.share.count

    def full_path(self, path: str) -> str:
        """Return a path of the source with the folders above it."""
        return "/".join((*self._context, path))

    def reader(self, path: str, size: int) -> Reader | None:
        """Return the reader that wants a file; a single file named by the user goes to the first reader."""
        for reader in READERS:
            if reader.wanted(self.full_path(path), size):
                return reader
        return READERS[0] if self.share.source.kind.name == "file" else None

    def is_mine(self, path: str, size: int) -> bool:
        """Return whether a file is wanted and belongs to this share."""
        if self.reader(path, size) is None:
            self.pass_over(path)
            return False
        least = self._bytes.index(min(self._bytes))
        self._bytes[least] += size
        return least == self.share.index

    def pass_over(self, path: str) -> None:
        """Count an unwanted file that looks like evidence, in the first share only."""
        if self.share.index == 0:
            self.passed_over.extend(
                RowRejection(kind=found.kind, where=f"{self.share.source.name}:{path}", detail=found.detail)
                for reader in READERS
                if (found := reader.passed_over(self.full_path(path))) is not None
            )


def parse_share(share: SourceShare, done: Done) -> ShareResult:
    """Parse one share of a source."""
    division = Division(share)
    result = ShareResult(passed_over=division.passed_over)
    for blob in share.source.files(division.is_mine):
        reader = division.reader(blob.path, len(blob.data))
        if reader is not None:
            full = Blob(path=division.full_path(blob.path), data=blob.data)
            result.facts.setdefault(reader.name, {})[blob.path] = reader.parse(full)
        done(len(blob.data))
    result.rejections = list(share.source.rejections)
    return result


# Called with a share and the bytes parsed since the last call.
Parsed: TypeAlias = Callable[[SourceShare, int], None]

# The code that a worker runs, with the parent's module search path.
_BOOT = (
    "import sys; descriptor = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; "
    "from {module} import serve; serve(descriptor)"
)
_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Bytes between two progress reports: frequent enough for a progress bar, at negligible cost.
_REPORT_BYTES = 4 * 2**20
# Threshold of the youngest generation of the garbage collector, raised because workers create no cycles.
NEW_OBJECTS = 400_000


def serve(descriptor: int) -> None:
    """Parse the shares that arrive on a pipe until it closes. The body of a worker."""
    gc.set_threshold(NEW_OBJECTS, 50, 50)
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
            pipe.send(parse_share(pipe.recv(), done))
    except (EOFError, BrokenPipeError):
        return


class Worker(Struct):
    """A process and the pipe to it. ready: whether it has answered yet."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_worker(module: str) -> Worker | None:
    """Start a worker; return None if this interpreter cannot start another process.

    module: its `serve(descriptor)` is the body of the worker; the descriptor is its end of the pipe.
    """
    ours, theirs = Pipe()
    # Only this process handles signals to the group; workers inherit that the signals are blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    try:
        process = subprocess.Popen(
            [sys.executable or "", "-I", "-c", _BOOT.format(module=module), str(theirs.fileno()), *sys.path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    except OSError:
        ours.close()
        return None
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Worker(process, ours)


@contextmanager
def _workers(count: int) -> Iterator[list[Worker]]:
    """Yield workers, which are killed at the end of the block."""
    started: list[Worker] = []
    try:
        for _ in range(count):
            worker = new_worker(__name__)
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
    shares: Sequence[SourceShare], *, num_workers: int, parsed: Parsed, meanwhile: Callable[[], None]
) -> list[ShareResult]:
    """Return the result of each share, in order; shares are started in order too.

    meanwhile: called while workers parse. With one worker, this process parses everything itself.
    Raises DataError if a worker dies.
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
    workers: list[Worker],
    shares: Sequence[SourceShare],
    results: dict[int, ShareResult],
    parsed: Parsed,
    meanwhile: Callable[[], None],
) -> None:
    """Assign shares and collect results, until all are complete or no worker could be started."""
    todo = list(range(len(shares)))[::-1]
    busy: dict[Connection, tuple[Worker, int]] = {}

    def assign_to(worker: Worker) -> None:
        index = todo.pop()
        with suppress(OSError):  # a dead worker is detected when its result is awaited
            worker.pipe.send(shares[index])
        busy[worker.pipe] = (worker, index)

    for worker in workers[: len(todo)]:
        assign_to(worker)
    meanwhile()
    while busy:
        for pipe in wait(list(busy)):
            assert isinstance(pipe, Connection)
            worker, index = busy[pipe]
            try:
                message = pipe.recv()
            except (EOFError, OSError) as err:
                if not worker.ready:  # it never ran, so the caller parses its share
                    del busy[pipe]
                    continue
                code = worker.process.wait()
                raise DataError(
                    f"{shares[index].source.path}: the process that read it ended with code {code}; it may "
                    "have run out of memory"
                ) from err
            if isinstance(message, int):
                worker.ready = True
                parsed(shares[index], message)
                continue
            results[index] = message
            del busy[pipe]
            if todo:
                assign_to(worker)
