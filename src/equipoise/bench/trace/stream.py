"""Reads files of any size in pieces, and the events of a trace as a stream, with bounded memory."""

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

# The objects parsed from 256 KiB fit into the processor's caches (docs/decisions/0006-streamed-traces.md).
PIECE_BYTES = MIB // 4
# Traces and logs compress by factors of 8 to 40. gzip's maximum is 1032; only decompression bombs come near
# it.
MAX_EXPANSION = 200
EXPANSION_FLOOR_BYTES = 64 * MIB
MAX_TOTAL_BYTES = 256 * GIB

_MAGIC_BYTES = 8


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, decompressed if necessary, in pieces of at most PIECE_BYTES.

    Raises DataError if it is not a regular file, is damaged, or expands more than any trace or log.
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
    """Yield the content of an open file like `pieces`. num_bytes: its size on disk. where: its name."""
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
    """Return a function that reads up to n decompressed bytes, and none at the end."""
    if kind is None or kind.opened is None:
        return file.read
    if kind.name == "gzip":  # `read` would lose the data before a truncation
        return gzip.GzipFile(fileobj=file, mode="rb").read1
    return kind.opened(file)


class DamagedError(DataError):
    """Compressed data are truncated or damaged; the data before that point are valid."""


Event: TypeAlias = dict[str, Any]

# Devices and groups of ranks precede and follow the events; for thousands of ranks they take some MB.
MAX_HEAD_BYTES = 32 * MIB
# An event holds the shapes and the stack of one operator, some KB. A larger one is not an event.
MAX_EVENT_BYTES = 8 * MIB
# Candidate ends of an event to try before more is read; one may lie inside a string or a nested list.
_TRIES = 4
# Candidates to try in a truncated last event, and for the start of the list.
_MORE_TRIES = 32

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BETWEEN_BYTES = 4096
_NO_NUMBERS = re.compile(rb"NaN|Infinity")


class TraceStream:
    """Yields the events of one trace in batches; afterwards the other attributes are set.

    metadata: the other fields of the document. is_cut: whether the document is truncated, for example because
    the writer was stopped; the events before that were yielded.
    """

    def __init__(self, pieces: Iterator[bytes], where: str) -> None:
        """pieces: the file's bytes in order. where: the file's name, for messages."""
        self._pieces = pieces
        self._where = where
        self._text = b""
        self._try_at_bytes = 0
        self.metadata: dict[str, Any] = {}
        self.is_cut = False

    def batches(self) -> Iterator[list[Event]]:
        """Yield the events in order, in batches of about one piece of the file.

        Raises DataError if it is not a trace, is damaged, or has an event above MAX_EVENT_BYTES.
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
        """Read another piece; return False at the end of the file."""
        try:
            piece = next(self._pieces, b"")
        except DamagedError:
            if not self._text:
                raise
            self.is_cut, piece = True, b""
        self._text += piece
        return bool(piece)

    def _skip_head(self) -> bool:
        """Skip to the first event; return whether there is a list of events."""
        start = num_tries = 0
        while True:
            self._text = self._text.lstrip(b"\xef\xbb\xbf \t\r\n")
            if self._text.startswith(b"["):  # a bare list of events, which Chrome accepts
                self._text = self._text[1:]
                return True
            if self._text and not self._text.startswith(b"{"):
                form = "UTF-16 text" if is_utf16(self._text) else "not JSON"
                raise DataError(
                    f"{self._where}: {form}; expected a trace of torch.profiler in UTF-8 (.json or .json.gz)"
                )
            for found in islice(_EVENTS.finditer(self._text, start), _MORE_TRIES):
                head = _parsed(self._text[: found.end()] + b"]}")
                if isinstance(head, dict):  # otherwise the match is in a string or nested deeper
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
        """Return the next events; None when the whole file has been read."""
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
            self._try_at_bytes = 2 * len(self._text)  # each try parses all of it again
        return None

    def _parsed_until(self, num_tries: int) -> tuple[list[Event] | None, int]:
        """Return the events up to the last candidate end that parses, and that end; None if none parses."""
        for place in islice(self._candidate_ends(), num_tries):
            batch = _parsed(b"[" + self._text[: place + 1] + b"]")
            if isinstance(batch, list):
                return batch, place + 1
        return None, 0

    def _candidate_ends(self) -> Iterator[int]:
        """Yield the positions where an event may end, the last first."""
        end = len(self._text)
        while end > 0:
            start = max(0, end - _BETWEEN_BYTES)
            found = [each.start() for each in _BETWEEN.finditer(self._text, start, end)]
            yield from reversed(found)
            end = found[0] + 2 if found else start + 64 if start else 0

    def _last(self) -> list[Event]:
        """Return the last events, and store the fields after the list."""
        whole = _parsed(b'{"traceEvents":[' + self._text)
        if not isinstance(whole, dict):
            whole = _parsed(b'{"traceEvents":[' + self._text + b"}")  # a bare list of events
        if isinstance(whole, dict):
            events = whole.pop("traceEvents")
            self.metadata |= whole
            return events if isinstance(events, list) else []
        self.is_cut = True
        return self._parsed_until(_MORE_TRIES)[0] or []


def _parsed(text: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text; None if it is invalid.

    NaN and infinities, which some programs write although JSON lacks them, become None.
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
