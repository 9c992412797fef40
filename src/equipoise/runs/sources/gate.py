"""Validates what a source passes to a reader: safe names, limits of sizes and counts, bounded expansion."""

import gzip
import lzma
import math
import re
import time
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import BinaryIO, Final, TypeAlias

import zstandard
from msgspec import Struct, field

from equipoise.errors import UsageError
from equipoise.runs import RowRejection
from equipoise.units import GIB, MIB

Wanted: TypeAlias = Callable[[str, int], bool]

# 16 times the largest file of the rounds v0.5 to v5.0, 4.0 MB (v4.1, a GPT-3 log). Two workers with one such
# file each use a few hundred MB at most.
MAX_FILE_BYTES = 64 * MIB
# A larger stated size of a member means a corrupt archive.
MAX_MEMBER_BYTES = 64 * GIB
# The rounds are nested 8 deep with paths of 140 characters; 4096 and 255 are Linux's limits.
MAX_DEPTH = 64
MAX_PATH_CHARACTERS = 4096
MAX_NAME_BYTES = 255
# Real rounds have no rejected member; beyond this limit the source is an attack or not a round.
MAX_REJECTIONS = 10_000

SHOWN_CHARACTERS = 200

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DRIVE = re.compile(r"[A-Za-z]:")


class ReadLimits(Struct, frozen=True, kw_only=True):
    """Limits on reading one source; `ingest` has options of the same names.

    max_members: files, folders and links of any kind. The largest round has 5,660 logs and descriptions, and
    some 10,000 files including all its code. max_bytes: uncompressed. The largest round has 450 MB of logs,
    and some GB including all its code. max_seconds: wall-clock time per pass over the source; the largest
    takes 2 s.
    """

    max_members: int = 50_000
    max_bytes: int = 4 * GIB
    max_seconds: float = 120.0

    def __post_init__(self) -> None:
        """Raise UsageError for limits that are not positive."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)!r}; expected a number above 0")


DEFAULT_LIMITS: Final = ReadLimits()


class SourceEndError(Exception):
    """The source cannot be read further; files read before remain valid. Never leaves this package."""

    def __init__(self, kind: str, detail: str) -> None:
        """`kind` and `detail`: as in a Rejection."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class UnsafePathError(Exception):
    """A path that may escape the source, or that no round has. Never leaves this package."""


def decoded(raw: bytes) -> str:
    """Return a name as text, from UTF-8 or else Latin-1, so that every name can be printed and stored."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def shown(text: str) -> str:
    """Return untrusted text, escaped and shortened for a message."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", cut)


def clean_path(raw: bytes) -> str:
    """Return a relative posix path without `.`, empty or parent components.

    Raises UnsafePathError for absolute paths, `..`, backslashes, drive letters, control characters, lengths
    beyond the caps.

    >>> clean_path(b"./a//b.txt")
    'a/b.txt'
    """
    path = decoded(raw)
    if path.startswith("/"):
        raise UnsafePathError("an absolute path; expected one relative to the round")
    if "\\" in path or _DRIVE.match(path):
        raise UnsafePathError("a backslash or drive letter in the path")
    if _CONTROL.search(path):
        raise UnsafePathError("a control character in the path")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not parts:
        raise UnsafePathError("an empty path")
    if ".." in parts:
        raise UnsafePathError("a path with `..`")
    if len(path) > MAX_PATH_CHARACTERS or len(parts) > MAX_DEPTH or len(max(parts, key=len)) > MAX_NAME_BYTES:
        raise UnsafePathError(
            f"a path of {len(path):,} characters, {len(parts)} deep; at most {MAX_DEPTH} deep is read"
        )
    return "/".join(parts)


class Gate(Struct, kw_only=True):
    """Admits files and enforces limits in one pass over one source.

    is_stream: whether bytes are counted when they are decompressed, or else when files are admitted.
    """

    source: str
    wanted: Wanted
    rejections: list[RowRejection]
    limits: ReadLimits = DEFAULT_LIMITS
    is_stream: bool = False
    num_members: int = 0
    num_bytes: int = 0
    _seen: set[bytes] = field(default_factory=set)
    _began_s: float = field(default_factory=time.monotonic)

    def refuse(self, kind: str, path: str, detail: str) -> None:
        """Record a rejected member. Raises SourceEndError beyond MAX_REJECTIONS."""
        where = f"{self.source}:{shown(path)}" if path else self.source
        self.rejections.append(RowRejection(kind=kind, where=where, detail=detail))
        if len(self.rejections) >= MAX_REJECTIONS:
            raise SourceEndError(
                "too_many_refusals", f"{MAX_REJECTIONS:,} refused members; the rest is not read"
            )

    def count(self) -> None:
        """Count a member of any kind. Raises SourceEndError beyond the limits."""
        self.num_members += 1
        if self.num_members > self.limits.max_members:
            raise SourceEndError(
                "too_many_members",
                f"more than {self.limits.max_members:,} members; the rest is not read (--max-members)",
            )
        self._check_time()

    def take(self, num_bytes: int) -> None:
        """Count bytes that were read. Raises SourceEndError beyond the limits."""
        self.num_bytes += num_bytes
        if self.num_bytes > self.limits.max_bytes:
            raise SourceEndError(
                "too_many_bytes",
                f"more than {self.limits.max_bytes:,} bytes in all; the rest is not read (--max-bytes)",
            )
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() - self._began_s > self.limits.max_seconds:
            raise SourceEndError(
                "too_slow",
                f"not read within {self.limits.max_seconds:,.0f} s; the rest is not read (--max-seconds)",
            )

    def refuse_kind(self, raw: bytes, what: str) -> None:
        """Reject a link, device, pipe or the like, which is never followed, opened or created."""
        self.refuse("not_a_regular_file", decoded(raw), f"a {what}; only regular files are read")

    def admitted(self, raw: bytes, size: int) -> str | None:
        """Return the clean path of a regular file to load; otherwise None, with a rejection if unsafe."""
        try:
            path = clean_path(raw)
        except UnsafePathError as err:
            self.refuse("unsafe_path", decoded(raw), str(err))
            return None
        if not self.wanted(path, size):
            return None
        digest = blake2b(path.encode(), digest_size=16).digest()
        if digest in self._seen:
            self.refuse("duplicate_member", path, "a second member of the same path; the first is used")
            return None
        self._seen.add(digest)
        if size > MAX_FILE_BYTES:
            self.refuse("too_large", path, f"a file of {size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
            return None
        if not self.is_stream:
            self.take(size)
        return path


CHUNK_BYTES = MIB

# `zstd --long=31`, the largest window of the zstd tool. Memory grows only with the content actually
# decompressed, so a small file cannot exhaust it. The rounds are compressed with 128 MiB.
MAX_ZSTD_WINDOW_BYTES = 2 * GIB
# `xz -9` needs 65 MiB; larger dictionaries require custom settings.
MAX_XZ_BYTES = 512 * MIB
# The rounds expand 11 to 53 times. gzip cannot exceed 1032; zstd and xz exceed 10,000 only for bombs.
MAX_EXPANSION = 1000
EXPANSION_FLOOR_BYTES = 256 * MIB

Read: TypeAlias = Callable[[int], bytes]


class Compression(Struct, frozen=True, kw_only=True):
    """A compression format: its magic bytes, and the function that opens a file (None: not supported)."""

    name: str
    magic: bytes
    opened: Callable[[BinaryIO], Read] | None


def _xz_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_XZ_BYTES)


class _XzReader:
    """Decompresses concatenated xz streams with a memory limit, which `lzma.open` lacks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = _xz_decoder()
        self._ended = False

    def read(self, num_bytes: int) -> bytes:
        """Return up to num_bytes; empty at the end."""
        while not self._ended:
            if self._decoder.eof:
                rest = (self._decoder.unused_data or self._file.read(CHUNK_BYTES)).lstrip(b"\x00")
                self._decoder = _xz_decoder()
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


COMPRESSIONS = (
    Compression(name="zstd", magic=b"\x28\xb5\x2f\xfd", opened=_zstd),
    Compression(name="zstd", magic=b"\x50\x2a\x4d\x18", opened=_zstd),  # a skippable frame, as pzstd begins
    Compression(name="gzip", magic=b"\x1f\x8b", opened=lambda file: gzip.GzipFile(fileobj=file).read),
    Compression(name="xz", magic=b"\xfd7zXZ\x00", opened=lambda file: _XzReader(file).read),
    Compression(name="zip", magic=b"PK\x03\x04", opened=None),
    Compression(name="bzip2", magic=b"BZh", opened=None),
    Compression(name="7z", magic=b"7z\xbc\xaf\x27\x1c", opened=None),
)


def compression(head: bytes) -> Compression | None:
    """Return the compression of a file that begins with `head`, or None."""
    return next((known for known in COMPRESSIONS if head.startswith(known.magic)), None)


# Exceptions of decompressors for truncated or damaged data.
UNPACKING_ERRORS = (EOFError, OSError, ValueError, MemoryError, zlib.error, lzma.LZMAError)


class ByteStream:
    """A buffered stream with exact reads and skips; it detects decompression bombs."""

    def __init__(self, read: Read, gate: Gate, limit_bytes: float = math.inf) -> None:
        """read: returns up to n bytes, empty at the end. limit_bytes: more than any real content has."""
        self._read = read
        self._gate = gate
        self._limit_bytes = limit_bytes
        self._chunk = b""
        self._position = 0
        self._produced_bytes = 0

    def _next_chunk(self) -> bool:
        try:
            self._chunk = self._read(CHUNK_BYTES)
        except UNPACKING_ERRORS as err:
            raise SourceEndError("corrupt_archive", f"decompression failed: {err}") from err
        self._position = 0
        self._produced_bytes += len(self._chunk)
        if self._produced_bytes > self._limit_bytes:
            raise SourceEndError(
                "bomb", f"expands to more than {self._limit_bytes:,.0f} bytes; the rest is not read"
            )
        self._gate.take(len(self._chunk))
        return bool(self._chunk)

    def take(self, num_bytes: int) -> bytes:
        """Return the next num_bytes, or fewer at the end of the stream."""
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
        """Skip num_bytes; return False if the stream ends before."""
        missing = num_bytes - (len(self._chunk) - self._position)
        while missing > 0 and self._next_chunk():
            num_bytes = missing
            missing -= len(self._chunk)
        if missing > 0:
            self._position = len(self._chunk)
            return False
        self._position += num_bytes
        return True


def opened_stream(file: BinaryIO, compressed_bytes: int, kind: Compression | None, gate: Gate) -> ByteStream:
    """Return the decompressed stream of an open file of compressed_bytes; the gate counts its bytes.

    Raises SourceEndError for an unsupported compression.
    """
    gate.is_stream = True
    if kind is None:
        return ByteStream(file.read, gate)
    if kind.opened is None:
        raise SourceEndError("unsupported_archive", f"a {kind.name} file; repack it with zstd, gzip or xz")
    limit_bytes = max(EXPANSION_FLOOR_BYTES, MAX_EXPANSION * compressed_bytes)
    return ByteStream(kind.opened(file), gate, limit_bytes)
