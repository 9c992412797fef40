"""Computation of answers: in threads of this process, and in further processes if more questions wait."""

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
# A process holds its own tables and searches in memory, so it ends after this idle time.
_IDLE_S: Final = 900


class Workers(Executor):
    """Executor for functions of the data sources: one at a time in this process, others in worker processes.

    sources: sent to each process once. module: of the functions; a process imports it before it is ready. A
    process is only started when a function waits for a thread. If it dies, its function is computed again in
    a thread. One core is reserved for this process.
    """

    def __init__(self, sources: DataSources, module: str) -> None:
        """Create the threads; processes are started on demand."""
        self._sources, self._module = sources, module
        self._most = min(num_cores() - 1, _MOST_PROCESSES)
        self._threads = ThreadPoolExecutor(max(NUM_THREADS, 1 + self._most), "equipoise")
        self._lock = Lock()
        self._num_asked = self._num_here = self._num_processes = 0
        self._processes: list[Worker] = []
        self._idle: list[Worker] = []

    def submit(self, fn: Callable[..., Found], /, *args: object, **kwargs: object) -> Future[Found]:
        """Submit a function of the sources. Function and result are picklable; the result is never None."""
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
        """Kill the processes; shut the threads down like any executor."""
        self._most = 0
        for worker in tuple(self._processes):
            self._end(worker)
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def _forget(self, _: Future[Any]) -> None:
        with self._lock:
            self._num_asked -= 1

    def _start(self) -> None:
        """Start one more process and add it when it is ready."""
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
        """Remove a process and kill it if it is alive."""
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
        """The result from a process; None if it raised an error or died."""
        try:
            worker.pipe.send(fn)
            found: Found | None = worker.pipe.recv()
        except (EOFError, OSError):
            self._end(worker)
            return None
        self._idle.append(worker)
        return found


def serve(descriptor: int) -> None:
    """The main function of a process: compute what arrives on a pipe, until the pipe closes."""
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
    """Receive in a separate thread, so that this process ends as soon as the other end of the pipe closes."""
    try:
        while True:
            asked.put(pipe.recv())
    finally:
        _exit(0)


def _found(fn: Callable[[DataSources], Found], sources: DataSources) -> Found | None:
    try:
        return fn(sources)
    except EquipoiseError:  # the requesting process computes it again and raises the error
        return None
