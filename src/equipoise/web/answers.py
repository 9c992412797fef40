"""A cache of answers, limited by bytes, in which equal questions share one computation."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from equipoise.report.blocks import Page, Shown
from equipoise.report.html import fragment
from equipoise.units import MIB

OK = 200
REFUSED = 422
BUSY = 503
FileKind: TypeAlias = Literal["html", "json", "csv"]
FILE_KINDS: Final[Mapping[FileKind, str]] = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
}


class PageAnswer(Struct, frozen=True, kw_only=True):
    """One answer. title: of the window. headline: of the page. body: HTML in UTF-8. status: HTTP status.

    is_waiting: whether this is a placeholder for an answer. saved_as: kinds of file in which it can be saved.
    """

    title: str
    headline: str
    body: bytes
    status: int = OK
    is_waiting: bool = False
    saved_as: tuple[FileKind, ...] = tuple(FILE_KINDS)


def shown(
    page: Page[Shown],
    findings: Shown,
    *,
    status: int = OK,
    saved_as: tuple[FileKind, ...] = tuple(FILE_KINDS),
) -> PageAnswer:
    """The answer that shows findings on a page."""
    return PageAnswer(
        title=page.title(findings),
        headline=page.headline(findings),
        body=fragment(page, findings).encode(),
        status=status,
        saved_as=saved_as,
    )


Value = TypeVar("Value")
MOST_BYTES: Final = 64 * MIB
MOST_WAITING: Final = 100
LONGEST_WAIT_S: Final = 60.0


class BusyError(Exception):
    """Too many different questions are being computed."""


class SlowError(Exception):
    """An answer is not ready; its computation continues."""


class LruCache(Generic[Value]):
    """An LRU cache limited by the bytes of its values."""

    def __init__(self, most_bytes: int) -> None:
        """Create an empty cache."""
        self._most_bytes = most_bytes
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self.num_bytes = 0

    def find(self, key: str) -> Value | None:
        """The cached value of a key, or None."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def keep(self, key: str, value: Value, num_bytes: int) -> None:
        """Cache a value, unless it is larger than the whole cache."""
        if num_bytes > self._most_bytes:
            return
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = (value, num_bytes)
        self.num_bytes += num_bytes - before
        while self.num_bytes > self._most_bytes:
            _, (_, dropped) = self._values.popitem(last=False)
            self.num_bytes -= dropped


class _Computation(Struct):
    """A running computation. num_waiting: number of requests that wait for it."""

    job: Future[PageAnswer]
    ended: asyncio.Future[PageAnswer]
    num_waiting: int = 0


class Answers:
    """Computes answers and caches them by key (LRU). Belongs to one event loop.

    workers: run computations outside of the loop, and may pass arguments. most_bytes: limit on all cached
    bodies. most_waiting: limit on different questions that are computed or queued at a time.
    """

    def __init__(
        self, workers: Executor, *, most_bytes: int = MOST_BYTES, most_waiting: int = MOST_WAITING
    ) -> None:
        """Create an empty cache."""
        self._workers = workers
        self._most_waiting = most_waiting
        self._running: dict[str, _Computation] = {}
        self.kept: LruCache[PageAnswer] = LruCache(most_bytes)

    async def find(
        self, key: str, make: Callable[..., PageAnswer], *, limit_s: float = LONGEST_WAIT_S
    ) -> PageAnswer:
        """The cached answer of a key, else computed by `make`, once for all concurrent requests.

        A queued computation is cancelled when nobody waits for it; a started one is completed and cached.
        Raises BusyError if too many others wait, SlowError after limit_s.
        """
        kept = self.kept.find(key)
        if kept is not None:
            return kept
        running = self._running.get(key) or self._begun(key, make)
        running.num_waiting += 1
        try:
            return await asyncio.wait_for(asyncio.shield(running.ended), limit_s)
        except TimeoutError as err:
            raise SlowError from err
        finally:
            running.num_waiting -= 1
            if not running.num_waiting and running.job.cancel():
                self._forget(key, running)

    def _begun(self, key: str, make: Callable[..., PageAnswer]) -> _Computation:
        if len(self._running) >= self._most_waiting:
            raise BusyError
        job = self._workers.submit(make)
        running = _Computation(job=job, ended=asyncio.wrap_future(job))
        self._running[key] = running
        running.ended.add_done_callback(lambda ended: self._ended(key, running, ended))
        return running

    def _forget(self, key: str, running: _Computation) -> None:
        if self._running.get(key) is running:
            del self._running[key]

    def _ended(self, key: str, running: _Computation, ended: asyncio.Future[PageAnswer]) -> None:
        """Cache a result; a failed computation is repeated at the next request."""
        self._forget(key, running)
        if ended.cancelled() or ended.exception() is not None:
            return
        answer = ended.result()
        self.kept.keep(key, answer, len(answer.body))
