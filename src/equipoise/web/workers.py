"""Threads that compute answers. The process does not wait for them at its end: Ctrl-C ends it at once."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class Workers(Executor):
    """A few threads; jobs are begun in the order in which they came."""

    def __init__(self, num_threads: int) -> None:
        """Begin with nothing to do."""
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        for _ in range(num_threads):
            Thread(target=self._work, name="equipoise", daemon=True).start()

    def submit(self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
        """A job, which may be cancelled until it is begun."""
        job: Future[Result] = Future()
        self._jobs.put((job, lambda: fn(*args, **kwargs)))
        return job

    def _work(self) -> None:
        while True:
            job, make = self._jobs.get()
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(make())
            except BaseException as err:  # noqa: BLE001 - who asked gets it, whatever it is
                job.set_exception(err)
