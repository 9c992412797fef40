"""Where answers are computed: in threads here, and in processes beside them where more questions wait."""

import gc
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from os import _exit
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from equipoise.errors import EquipoiseError
from equipoise.runs.workers import NEW_OBJECTS, Worker, new_worker, num_cores
from equipoise.stats import one_thread
from equipoise.web import DataSources

Found = TypeVar("Found")
NUM_THREADS: Final = 2
_MOST_PROCESSES: Final = 3
# A process holds tables and searches of its own: one that was not needed for so long ends.
_IDLE_S: Final = 900


class Workers(Executor):
    """Computes functions of the sources of data: one at a time here, further ones in processes.

    sources: each process gets them once. module: of the functions; a process loads it before it is
    ready. None is started before a function waits for the threads, and what one computes that dies is
    computed again in a thread. This process keeps a core.
    """

    def __init__(self, sources: DataSources, module: str) -> None:
        """Begin with threads alone."""
        self._sources, self._module = sources, module
        self._most = min(num_cores() - 1, _MOST_PROCESSES)
        self._threads = ThreadPoolExecutor(max(NUM_THREADS, 1 + self._most), "equipoise")
        self._lock = Lock()
        self._num_asked = self._num_here = self._num_processes = 0
        self._processes: list[Worker] = []
        self._idle: list[Worker] = []

    def submit(self, fn: Callable[..., Found], /, *args: object, **kwargs: object) -> Future[Found]:
        """What a function of the sources returns, which is never None; both are picklable."""
        assert not args
        assert not kwargs
        with self._lock:
            self._num_asked += 1
            is_short = self._num_processes < min(self._most, self._num_asked - NUM_THREADS)
            self._num_processes += is_short
        if is_short:
            Thread(target=self._start, daemon=True).start()
        job = self._threads.submit(self._computed, fn)
        job.add_done_callback(self._forget)
        return job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - of Executor
        """End the processes at once; the threads as any executor does."""
        self._most = 0
        for worker in tuple(self._processes):
            self._end(worker)
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def _forget(self, _: Future[Any]) -> None:
        with self._lock:
            self._num_asked -= 1

    def _start(self) -> None:
        """Have one more process, once it is ready."""
        worker = new_worker(__name__)
        with self._lock:
            if worker is None:
                self._num_processes -= 1
                return
            self._processes.append(worker)
        try:
            worker.pipe.send((self._module, self._sources))
            worker.pipe.recv()
        except (EOFError, OSError):
            self._end(worker)
        else:
            self._idle.append(worker)

    def _end(self, worker: Worker) -> None:
        """Do without a process, whether it lives or not."""
        with self._lock:
            if worker not in self._processes:
                return
            self._processes.remove(worker)
            self._num_processes -= 1
        worker.process.kill()
        worker.process.wait()

    def _computed(self, fn: Callable[[DataSources], Found]) -> Found:
        with self._lock:
            worker = self._idle.pop() if self._num_here and self._idle else None
            self._num_here += worker is None
        if worker is not None:
            found = self._computed_by(worker, fn)
            if found is not None:
                return found
            with self._lock:
                self._num_here += 1
        try:
            return fn(self._sources)
        finally:
            with self._lock:
                self._num_here -= 1

    def _computed_by(self, worker: Worker, fn: Callable[[DataSources], Found]) -> Found | None:
        """What a process finds; None where it refuses or dies."""
        try:
            worker.pipe.send(fn)
            found: Found | None = worker.pipe.recv()
        except (EOFError, OSError):
            self._end(worker)
            return None
        self._idle.append(worker)
        return found


def serve(descriptor: int) -> None:
    """Compute what arrives on a pipe, until it closes. The body of a process."""
    gc.set_threshold(NEW_OBJECTS, 50, 50)
    pipe, asked = Connection(descriptor), SimpleQueue[Any]()
    Thread(target=_receive, args=(pipe, asked), daemon=True).start()
    module, sources = asked.get()
    import_module(module)
    with one_thread(), suppress(Empty, OSError):
        pipe.send(True)
        while True:
            pipe.send(_found(asked.get(timeout=_IDLE_S), sources))


def _receive(pipe: Connection, asked: SimpleQueue[Any]) -> None:
    """Wait beside what is computed, so that this process ends as soon as the other end of the pipe does."""
    try:
        while True:
            asked.put(pipe.recv())
    finally:
        _exit(0)


def _found(fn: Callable[[DataSources], Found], sources: DataSources) -> Found | None:
    try:
        return fn(sources)
    except EquipoiseError:  # it is computed again where it was asked, and refused there
        return None
