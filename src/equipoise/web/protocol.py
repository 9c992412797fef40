"""HTTP on one connection with bounds on time: who asks or reads too slowly makes room for others."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

ASKING_S: Final = 10.0
READING_S: Final = 30.0


class Bounded(H11Protocol):
    """A connection that is ended where a request takes longer to come, or what is sent is not read.

    uvicorn bounds the time between requests only: a client that sends a header a minute would hold its
    place for ever, and with all places held nobody else is answered.
    """

    asking_s = ASKING_S
    reading_s = READING_S
    _asking: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request has to come in time."""
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """A piece of a request, which as a whole has to come in time."""
        super().data_received(data)
        if self._is_asked():
            self._asked_in_time()
        elif self._asking is None:
            self._wait_for_request()

    def pause_writing(self) -> None:
        """What was sent is not read: it has to be in time."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.reading_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It was read."""
        super().resume_writing()
        self._read_in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._asked_in_time()
        self._read_in_time()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self._asking = self.loop.call_later(self.asking_s, self.transport.abort)

    def _asked_in_time(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _read_in_time(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _is_asked(self) -> bool:
        """Whether a request has come and is not answered yet."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete
