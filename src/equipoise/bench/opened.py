"""Files of any size as pieces of bytes: decompressed on the way, with bounded memory and output."""

import gzip
import io
import lzma
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from equipoise.errors import DataError
from equipoise.runs.sources.compression import Compression, Read, compression
from equipoise.units import GIB, MIB

# 256 KiB: what is made of a piece fits into the processor's caches (docs/decisions/0006-streamed-traces.md).
PIECE_BYTES = MIB // 4
# Traces and logs compress 8 to 40 times. gzip cannot exceed 1032 times, which only bombs come near.
MAX_EXPANSION = 200
EXPANSION_FLOOR_BYTES = 64 * MIB
MAX_TOTAL_BYTES = 256 * GIB

_MAGIC_BYTES = 8


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a file, decompressed where it is compressed, in pieces of at most PIECE_BYTES.

    Raises DataError for what is no regular file, is damaged, or expands as no honest file does.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: not a regular file; expected a file to read")
        with path.open("rb") as file:
            yield from stream_pieces(file, status.st_size, where=str(path))
    except ValueError as err:  # a NUL byte in the path
        raise DataError(f"{path!r}: {err}; expected the name of a file") from err


def blob_pieces(data: bytes, *, where: str) -> Iterator[bytes]:
    """The same of bytes that are in memory already; where: names them in messages."""
    return stream_pieces(io.BytesIO(data), len(data), where=where)


def stream_pieces(file: BinaryIO, num_bytes: int, *, where: str) -> Iterator[bytes]:
    """The same of an open file of num_bytes as it lies."""
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
        except (EOFError, ValueError, MemoryError, zlib.error, lzma.LZMAError, OSError) as err:
            if kind is None:
                raise
            damage, ended = err, True
        produced_bytes += len(piece)
        if produced_bytes > limit_bytes:
            raise DataError(
                f"{where}: {num_bytes} bytes expand to more than {limit_bytes}, as no trace or log does"
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
