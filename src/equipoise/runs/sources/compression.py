"""Compressed files as streams of bytes, recognised by their first bytes, with bounded memory and output."""

import gzip
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import zstandard

from equipoise.runs.sources.gate import MAX_TOTAL_BYTES, SourceEndError
from equipoise.units import GIB, MIB

CHUNK_BYTES = MIB

# `zstd --long=31`, the longest the format's own tool writes. The memory touched is that of the content really
# decompressed, at most the window: a small file cannot claim it. The rounds are packed with 128 MiB.
MAX_ZSTD_WINDOW_BYTES = 2 * GIB
# `xz -9` needs 65 MiB; larger dictionaries exist only by hand.
MAX_XZ_BYTES = 512 * MIB
# The rounds expand 11 to 53 times. gzip cannot exceed 1032; zstd and xz reach 10,000 and more, on bombs only.
MAX_EXPANSION = 1000
EXPANSION_FLOOR_BYTES = 256 * MIB

Read: TypeAlias = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A compression: the bytes a file of it begins with, and how to read it (None: not supported)."""

    name: str
    magic: bytes
    opened: Callable[[BinaryIO], Read] | None


class _XzReader:
    """Decompressed bytes of concatenated xz streams, with the cap on memory that `lzma.open` lacks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = self._new_decoder()
        self._ended = False

    @staticmethod
    def _new_decoder() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_XZ_BYTES)

    def read(self, num_bytes: int) -> bytes:
        """Up to num_bytes; empty at the end."""
        while not self._ended:
            if self._decoder.eof:
                rest = (self._decoder.unused_data or self._file.read(CHUNK_BYTES)).lstrip(b"\x00")
                self._decoder = self._new_decoder()
                if not rest:
                    self._ended = True
                    break
            else:
                rest = self._file.read(CHUNK_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not rest:
                    raise EOFError("the compressed data end before their end marker")
            data = self._decoder.decompress(rest, num_bytes)
            if data:
                return data
        return b""


def _zstd(file: BinaryIO) -> Read:
    decoder = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    stream = decoder.stream_reader(file, read_size=CHUNK_BYTES, read_across_frames=True)

    def read(num_bytes: int) -> bytes:
        try:
            return stream.read(num_bytes)
        except zstandard.ZstdError as err:
            raise ValueError(str(err)) from err

    return read


def _gzip(file: BinaryIO) -> Read:
    return gzip.GzipFile(fileobj=file, mode="rb").read


def _xz(file: BinaryIO) -> Read:
    return _XzReader(file).read


COMPRESSIONS = (
    Compression(name="zstd", magic=b"\x28\xb5\x2f\xfd", opened=_zstd),
    Compression(name="zstd", magic=b"\x50\x2a\x4d\x18", opened=_zstd),  # a skippable frame, as pzstd begins
    Compression(name="gzip", magic=b"\x1f\x8b", opened=_gzip),
    Compression(name="xz", magic=b"\xfd7zXZ\x00", opened=_xz),
    Compression(name="zip", magic=b"PK\x03\x04", opened=None),
    Compression(name="bzip2", magic=b"BZh", opened=None),
    Compression(name="7z", magic=b"7z\xbc\xaf\x27\x1c", opened=None),
)


def compression(head: bytes) -> Compression | None:
    """The compression of a file that begins with `head`, or None when it has none that is known."""
    return next((known for known in COMPRESSIONS if head.startswith(known.magic)), None)


class ByteStream:
    """Bytes in order: taken exactly, or skipped without a copy. Memory of one chunk; knows a bomb."""

    def __init__(self, read: Read, limit_bytes: float) -> None:
        """read: up to n bytes, empty at the end. limit_bytes: what honest content stays below."""
        self._read = read
        self._limit_bytes = limit_bytes
        self._chunk = b""
        self._position = 0
        self._produced_bytes = 0

    def _next_chunk(self) -> bool:
        try:
            self._chunk = self._read(CHUNK_BYTES)
        except (EOFError, OSError, ValueError, MemoryError, zlib.error, lzma.LZMAError) as err:
            raise SourceEndError("corrupt_archive", f"decompression failed: {err}") from err
        self._position = 0
        self._produced_bytes += len(self._chunk)
        if self._produced_bytes > self._limit_bytes:
            raise SourceEndError(
                "bomb", f"expands to more than {self._limit_bytes:.0f} bytes; the rest is not read"
            )
        return bool(self._chunk)

    def take(self, num_bytes: int) -> bytes:
        """The next num_bytes, or fewer where the stream ends."""
        end = self._position + num_bytes
        if end <= len(self._chunk):
            data = self._chunk[self._position : end]
            self._position = end
            return data
        pieces = [self._chunk[self._position :]]
        missing = num_bytes - len(pieces[0])
        self._position = len(self._chunk)
        while missing and self._next_chunk():
            pieces.append(self._chunk[:missing])
            self._position = len(pieces[-1])
            missing -= self._position
        return b"".join(pieces)

    def skip(self, num_bytes: int) -> bool:
        """Pass over num_bytes; False where the stream ends before."""
        missing = num_bytes - (len(self._chunk) - self._position)
        while missing > 0 and self._next_chunk():
            num_bytes = missing
            missing -= len(self._chunk)
        if missing > 0:
            self._position = len(self._chunk)
            return False
        self._position += num_bytes
        return True


def opened_stream(file: BinaryIO, compressed_bytes: int, kind: Compression | None) -> ByteStream:
    """The decompressed bytes of an open file of compressed_bytes.

    Raises SourceEndError for a compression that is known and not supported.
    """
    if kind is None:
        return ByteStream(file.read, MAX_TOTAL_BYTES)
    if kind.opened is None:
        raise SourceEndError(
            "unsupported_archive", f"a {kind.name} file; repack it as .tar.zst, .tar.gz or .tar.xz"
        )
    limit_bytes = min(MAX_TOTAL_BYTES, max(EXPANSION_FLOOR_BYTES, MAX_EXPANSION * compressed_bytes))
    return ByteStream(kind.opened(file), limit_bytes)
