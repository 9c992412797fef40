"""Answers made once: equal questions wait for one computation, and the newest answers are kept, by bytes."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Generic, TypeVar

from equipoise.units import MIB
from equipoise.web.answer import Answer

Value = TypeVar("Value")
MOST_BYTES: Final = 64 * MIB
MOST_WAITING: Final = 100
LONGEST_WAIT_S: Final = 60.0


class BusyError(Exception):
    """Too many different questions are being computed, or one takes too long."""


class Kept(Generic[Value]):
    """Values by key as long as their bytes fit; the least recently used makes room."""

    def __init__(self, most_bytes: int) -> None:
        """Begin with nothing kept."""
        self._most_bytes = most_bytes
        self._values: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self.num_bytes = 0

    def find(self, key: str) -> Value | None:
        """What is kept under a key."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def keep(self, key: str, value: Value, num_bytes: int) -> None:
        """Keep a value; one that is larger than all there is room for is not kept."""
        if num_bytes > self._most_bytes:
            return
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = (value, num_bytes)
        self.num_bytes += num_bytes - before
        while self.num_bytes > self._most_bytes:
            _, (_, dropped) = self._values.popitem(last=False)
            self.num_bytes -= dropped


class Answers:
    """Keeps answers by key, the least recently used dropped first. Lives on one event loop.

    workers: compute, so that the loop stays free. most_bytes: of all bodies kept. most_waiting: different
    questions computed or waiting at a time.
    """

    def __init__(
        self, workers: Executor, *, most_bytes: int = MOST_BYTES, most_waiting: int = MOST_WAITING
    ) -> None:
        """Begin with nothing kept."""
        self._workers = workers
        self._most_waiting = most_waiting
        self._running: dict[str, asyncio.Future[Answer]] = {}
        self.kept: Kept[Answer] = Kept(most_bytes)
        self.num_computed = 0

    async def find(self, key: str, make: Callable[[], Answer], *, limit_s: float = LONGEST_WAIT_S) -> Answer:
        """The answer kept under a key, else computed by `make`, once however many ask.

        Raises BusyError where too many others wait, or after limit_s; the computation then goes on.
        """
        kept = self.kept.find(key)
        if kept is not None:
            return kept
        running = self._running.get(key)
        if running is None:
            running = self._begun(key, make)
        try:
            return await asyncio.wait_for(asyncio.shield(running), limit_s)
        except TimeoutError as err:
            raise BusyError from err

    def _begun(self, key: str, make: Callable[[], Answer]) -> asyncio.Future[Answer]:
        if len(self._running) >= self._most_waiting:
            raise BusyError
        running = asyncio.get_running_loop().run_in_executor(self._workers, make)
        self._running[key] = running
        running.add_done_callback(lambda ended: self._ended(key, ended))
        return running

    def _ended(self, key: str, ended: asyncio.Future[Answer]) -> None:
        """Keep what was computed; what failed is computed anew when it is asked again."""
        del self._running[key]
        if ended.cancelled() or ended.exception() is not None:
            return
        self.num_computed += 1
        answer = ended.result()
        self.kept.keep(key, answer, len(answer.body))
