"""Files of any size as pieces of bytes, and the events of a trace read as a stream, with bounded memory."""

import gzip
import json
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import orjson

from equipoise.errors import DataError
from equipoise.files import is_utf16
from equipoise.runs.sources.gate import UNPACKING_ERRORS, Compression, Read, compression
from equipoise.units import GIB, MIB

# 256 KiB: what is made of a piece fits into the processor's caches (docs/decisions/0006-streamed-traces.md).
PIECE_BYTES = MIB // 4
# Traces and logs compress 8 to 40 times. gzip cannot exceed 1032 times: only bombs come near.
MAX_EXPANSION = 200
EXPANSION_FLOOR_BYTES = 64 * MIB
MAX_TOTAL_BYTES = 256 * GIB

_MAGIC_BYTES = 8


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a file, decompressed where it is compressed, in pieces of at most PIECE_BYTES.

    Raises DataError for what is no regular file, is damaged, or expands more than any trace or log.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = f"not a regular file{' but a folder' * stat.S_ISDIR(status.st_mode)}"
            raise DataError(f"{path}: {what}; expected a file to read")
        with path.open("rb") as file:
            yield from stream_pieces(file, status.st_size, where=str(path))
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}; expected a file to read") from err
    except ValueError as err:  # a NUL byte in the path
        raise DataError(f"{path!r}: {err}; expected the name of a file") from err


def stream_pieces(file: BinaryIO, num_bytes: int, *, where: str) -> Iterator[bytes]:
    """The same of an open file of num_bytes as it lies; where: names it in messages."""
    kind = compression(file.read(_MAGIC_BYTES))
    file.seek(0)
    if kind is not None and kind.opened is None:
        raise DataError(
            f"{where}: a {kind.name} file; expected plain text, gzip, zstd or xz: unpack it first"
        )
    read = _reader(file, kind)
    limit_bytes = MAX_TOTAL_BYTES
    if kind is not None:
        limit_bytes = min(limit_bytes, max(EXPANSION_FLOOR_BYTES, MAX_EXPANSION * num_bytes))
    produced_bytes, damage, ended = 0, None, False
    while not ended:
        piece = bytearray()
        try:
            while len(piece) < PIECE_BYTES and not ended:
                read_bytes = read(PIECE_BYTES - len(piece))
                piece += read_bytes
                ended = not read_bytes
        except UNPACKING_ERRORS as err:
            if kind is None:
                raise
            damage, ended = err, True
        produced_bytes += len(piece)
        if produced_bytes > limit_bytes:
            raise DataError(
                f"{where}: {num_bytes:,} bytes expand to more than {limit_bytes:,}; no trace or log does"
            )
        if piece:
            yield bytes(piece)
    if damage is not None and kind is not None:
        raise DamagedError(f"{where}: a damaged or cut {kind.name} file: {damage}") from damage


def _reader(file: BinaryIO, kind: Compression | None) -> Read:
    """Reads up to so many bytes, decompressed; none at the end."""
    if kind is None or kind.opened is None:
        return file.read
    if kind.name == "gzip":  # its plain `read` loses what came before a cut
        return gzip.GzipFile(fileobj=file, mode="rb").read1
    return kind.opened(file)


class DamagedError(DataError):
    """Compressed data that end or break in the middle: what came before them stands."""


Event: TypeAlias = dict[str, Any]

# Before and after the events stand the devices and the groups of ranks: some MB for thousands of ranks.
MAX_HEAD_BYTES = 32 * MIB
# One event holds the shapes and the stack of one operator: some KB. Beyond, this is not a list of events.
MAX_EVENT_BYTES = 8 * MIB
# Places tried before more is read: the last may lie inside a string or a nested list, not all of several.
_TRIES = 4
# The same where the file is cut in its last event, and for the words that begin the list.
_MORE_TRIES = 32

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BETWEEN_BYTES = 4096
_NO_NUMBERS = re.compile(rb"NaN|Infinity")


class TraceStream:
    """The events of one trace in batches; afterwards what stands around them.

    metadata: the other fields of the document. is_cut: whether it ends before its end, as when the writer was
    stopped; the events before that were given.
    """

    def __init__(self, pieces: Iterator[bytes], where: str) -> None:
        """pieces: the file's bytes in order. where: names it in messages."""
        self._pieces = pieces
        self._where = where
        self._text = b""
        self._try_at_bytes = 0
        self.metadata: dict[str, Any] = {}
        self.is_cut = False

    def batches(self) -> Iterator[list[Event]]:
        """Events in order, a batch a piece of the file.

        Raises DataError for what is no trace, is damaged or has an event larger than in any trace.
        """
        if not self._skip_head():
            return
        while True:
            batch = self._take()
            if batch is None:
                break
            yield batch
        yield self._last()

    def _more(self) -> bool:
        """Read a piece more; False at the end of the file."""
        try:
            piece = next(self._pieces, b"")
        except DamagedError:
            if not self._text:
                raise
            self.is_cut, piece = True, b""
        self._text += piece
        return bool(piece)

    def _skip_head(self) -> bool:
        """Go to the first event; False where there is no more than a head."""
        start = num_tries = 0
        while True:
            self._text = self._text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if self._text.startswith(b"["):  # the events alone, as Chrome accepts them
                self._text = self._text[1:]
                return True
            if self._text and not self._text.startswith(b"{"):
                form = "UTF-16 text" if is_utf16(self._text) else "not JSON"
                raise DataError(
                    f"{self._where}: {form}; expected a trace of torch.profiler in UTF-8 (.json or .json.gz)"
                )
            for found in islice(_EVENTS.finditer(self._text, start), _MORE_TRIES):
                head = _parsed(self._text[: found.end()] + b"]}")
                if isinstance(head, dict):  # else the words stand in a string or deeper
                    self.metadata = {key: value for key, value in head.items() if key != "traceEvents"}
                    self._text = self._text[found.end() :]
                    return True
                start, num_tries = found.end(), num_tries + 1
            if len(self._text) > MAX_HEAD_BYTES or num_tries >= _MORE_TRIES or not self._more():
                raise DataError(
                    f"{self._where}: no list `traceEvents` within {len(self._text):,} bytes; expected a "
                    "trace that torch.profiler exported (export_chrome_trace)"
                )

    def _take(self) -> list[Event] | None:
        """The next events; None when only the last ones and what follows the list are left."""
        while self._more():
            if len(self._text) > MAX_EVENT_BYTES + MIB:
                raise DataError(
                    f"{self._where}: an event of more than {MAX_EVENT_BYTES:,} bytes; no trace has one"
                )
            if len(self._text) < self._try_at_bytes:
                continue
            batch, end = self._parsed_until(_TRIES)
            if batch is not None:
                self._text = self._text[end:].lstrip()[1:]  # without the comma
                self._try_at_bytes = 0
                return batch
            self._try_at_bytes = 2 * len(self._text)  # each try reads all of it again
        return None

    def _parsed_until(self, num_tries: int) -> tuple[list[Event] | None, int]:
        """The events up to the last place tried that parses, and where they end; None where none does."""
        for place in islice(self._places(), num_tries):
            batch = _parsed(b"[" + self._text[: place + 1] + b"]")
            if isinstance(batch, list):
                return batch, place + 1
        return None, 0

    def _places(self) -> Iterator[int]:
        """Where an event may end, the last first."""
        end = len(self._text)
        while end > 0:
            start = max(0, end - _BETWEEN_BYTES)
            found = [each.start() for each in _BETWEEN.finditer(self._text, start, end)]
            yield from reversed(found)
            end = found[0] + 2 if found else start + 64 if start else 0

    def _last(self) -> list[Event]:
        """The last events, and the fields after the list."""
        whole = _parsed(b'{"traceEvents":[' + self._text)
        if not isinstance(whole, dict):
            whole = _parsed(b'{"traceEvents":[' + self._text + b"}")  # the events alone
        if isinstance(whole, dict):
            events = whole.pop("traceEvents")
            self.metadata |= whole
            return events if isinstance(events, list) else []
        self.is_cut = True
        return self._parsed_until(_MORE_TRIES)[0] or []


def _parsed(text: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """The value of a JSON text; None where it is none.

    NaN and infinities, which programs write although JSON has none, are null.
    """
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        if not _NO_NUMBERS.search(text):
            return None
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
