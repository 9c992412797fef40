"""Sources of files behind one interface: a folder, an archive, a git repository or a single file.

Tar archives, plain or compressed, are read in one streaming pass without extraction. Archives are untrusted.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, field

from equipoise.errors import DataError
from equipoise.runs import Blob, RowRejection
from equipoise.runs.sources.gate import (
    DEFAULT_LIMITS,
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_MEMBER_BYTES,
    UNPACKING_ERRORS,
    ByteStream,
    Gate,
    ReadLimits,
    SourceEndError,
    Wanted,
    compression,
    decoded,
    opened_stream,
    shown,
)
from equipoise.runs.sources.git import git_files, is_git
from equipoise.units import MIB

BLOCK_BYTES = 512
# Long names, and pax records such as a commit's hash; the names of the rounds are below 140 bytes.
MAX_EXTENSION_BYTES = MIB

_ZERO_BLOCK = bytes(BLOCK_BYTES)
_REGULAR = frozenset(b"0\x007")
_NAMED_KINDS = {
    ord("1"): "hard link",
    ord("2"): "symbolic link",
    ord("3"): "character device",
    ord("4"): "block device",
    ord("6"): "named pipe",
}
_DIRECTORY = ord("5")
_SPARSE = ord("S")
_SPARSE_NAME = b"GNU.sparse.name"
_SPARSE_RECORD = b"GNU.sparse"
_USED_RECORDS = frozenset({b"path", b"size", _SPARSE_NAME})
_PAX_RECORD = re.compile(rb"(\d{1,7}) ([^=\n]{1,255})=")


# Type flags of members that describe the next: pax records (x; X on Solaris; g global), long name, link
# target.
_PAX, _LONG_NAME = frozenset(b"xX"), ord("L")
_EXTENSIONS = frozenset(b"xXgLK")


class _Header(Struct, frozen=True, kw_only=True):
    """One member: its raw path, type flag, stored bytes, and whether these are pieces of a sparse file."""

    path: bytes
    flag: int
    size: int
    sparse: bool


def _number(field: bytes) -> int:
    """Return a number of a header: octal digits, or GNU's base 256 for large ones. Raises ValueError."""
    if field[0] & 0x80:
        if field[0] != 0x80:  # noqa: PLR2004 - 0xff marks a negative number
            raise ValueError("a negative number")
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\x00", 1)[0].strip()
    if not digits:
        return 0
    if not digits.isdigit():
        raise ValueError(f"not an octal number: {digits!r}")
    return int(digits, 8)


def has_tar_header(block: bytes) -> bool:
    """Return whether a block is a tar header, i.e. its checksum (a sum of bytes, signed or not) matches."""
    if len(block) < BLOCK_BYTES or block == _ZERO_BLOCK:
        return False
    try:
        stated = _number(block[148:156])
    except ValueError:
        return False
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    num_high = sum(byte > 0x7F for byte in block[:148] + block[156:]) if stated != unsigned else 0  # noqa: PLR2004 - sign bit
    return stated in {unsigned, unsigned - 256 * num_high}


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """Return the relevant records of a pax header. Raises ValueError if they are malformed."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data) and data[position]:
        match = _PAX_RECORD.match(data, position)
        end = position + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise ValueError(f"a malformed pax record at byte {position}")
        if match[2] in _USED_RECORDS:
            records[match[2]] = data[match.end() : end - 1]
        elif match[2].startswith(b"GNU.sparse."):
            records[_SPARSE_RECORD] = b""
        position = end
    return records


def _padded(size: int) -> int:
    """Return the bytes that `size` bytes of content occupy in whole blocks."""
    return size + -size % BLOCK_BYTES


def _extension_data(stream: ByteStream, size: int) -> bytes:
    """Return the content of an extended header."""
    if size > MAX_EXTENSION_BYTES:
        raise SourceEndError(
            "corrupt_archive", f"an extended header of {size:,} bytes; at most {MAX_EXTENSION_BYTES:,}"
        )
    data = stream.take(_padded(size))
    if len(data) < _padded(size):
        raise SourceEndError("truncated_archive", "ends inside an extended header; later members are missing")
    return data[:size]


def _skip_sparse_map(stream: ByteStream, block: bytes) -> None:
    """Skip the continuation blocks of an old GNU sparse header; a flag in each announces the next."""
    more = block[482]
    while more:
        block = stream.take(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            raise SourceEndError(
                "truncated_archive", "ends inside a sparse header; later members are missing"
            )
        more = block[504]


def _member(stream: ByteStream, block: bytes, names: dict[bytes, bytes]) -> _Header:
    """Return the member described by a header block and the extended headers before it."""
    path = block[:100].split(b"\x00", 1)[0]
    if block[257:263] == b"ustar\x00" and block[345]:
        path = block[345:500].split(b"\x00", 1)[0] + b"/" + path
    flag = block[156]
    stated = names.get(b"size")
    if stated is not None and not stated.isdigit():
        raise ValueError(f"a pax size of {stated[:20]!r}")
    size = _number(block[124:136]) if stated is None else int(stated)
    path = names.get(_SPARSE_NAME, names.get(b"path", path))
    if size > MAX_MEMBER_BYTES:
        raise SourceEndError("corrupt_archive", f"a member of {size:,} bytes; at most {MAX_MEMBER_BYTES:,}")
    if flag == _SPARSE:
        _skip_sparse_map(stream, block)
    sparse = flag == _SPARSE or _SPARSE_RECORD in names or _SPARSE_NAME in names
    return _Header(path=path, flag=flag, size=size, sparse=sparse)


def _headers(stream: ByteStream, gate: Gate) -> Iterator[_Header]:
    """Yield the members in order up to the end marker; the consumer must skip the content of each."""
    names: dict[bytes, bytes] = {}
    while True:
        block = stream.take(BLOCK_BYTES)
        if block == _ZERO_BLOCK:
            return
        if len(block) < BLOCK_BYTES:
            raise SourceEndError("truncated_archive", "no end marker: the last members may be missing")
        if not has_tar_header(block):
            raise SourceEndError("corrupt_archive", f"no valid header after {gate.num_members} members")
        gate.count()
        try:
            if block[156] not in _EXTENSIONS:
                yield _member(stream, block, names)
                names = {}
                continue
            data = _extension_data(stream, _number(block[124:136]))
            if block[156] in _PAX:
                names |= _pax_records(data)
            elif block[156] == _LONG_NAME:
                names[b"path"] = data.split(b"\x00", 1)[0]
        except ValueError as err:
            raise SourceEndError("corrupt_archive", f"after {gate.num_members} members: {err}") from err


def members(stream: ByteStream, gate: Gate) -> Iterator[Blob]:
    """Yield the wanted regular files of a tar stream, in archive order; rejections are reported to the gate.

    Raises SourceEndError if the archive is truncated, corrupt or beyond the limits.
    """
    for header in _headers(stream, gate):
        stored_bytes = _padded(header.size)
        if header.sparse:
            gate.refuse_kind(header.path, "sparse member")
        elif header.flag in _NAMED_KINDS:
            stored_bytes = 0
            gate.refuse_kind(header.path, _NAMED_KINDS[header.flag])
        elif header.flag == _DIRECTORY or (header.flag in _REGULAR and header.path.endswith(b"/")):
            stored_bytes = 0
        elif header.flag not in _REGULAR:
            gate.refuse_kind(header.path, f"member of type {chr(header.flag)!r}")
        elif (path := gate.admitted(header.path, header.size)) is not None:
            data = stream.take(header.size)
            if len(data) == header.size:
                yield Blob(path=path, data=data)
            stored_bytes -= len(data)
        if not stream.skip(stored_bytes):
            raise SourceEndError(
                "truncated_archive", f"ends inside {shown(decoded(header.path))}; later members are missing"
            )


ARCHIVE_SUFFIXES = (".tar.zst", ".tar.xz", ".tar.gz", ".tar.bz2", ".tzst", ".txz", ".tgz", ".tar")


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, by its first decompressed block.

    A file that is named like an archive or cannot be decompressed counts too, so that its damage is reported.
    """
    if not path.is_file():
        return False
    if path.name.lower().endswith(ARCHIVE_SUFFIXES):
        return True
    with path.open("rb") as file:
        head = file.read(BLOCK_BYTES)
        kind = compression(head)
        if kind is None:
            return has_tar_header(head)
        if kind.opened is None:
            return True
        file.seek(0)
        read, first = kind.opened(file), b""
        try:
            while len(first) < BLOCK_BYTES and (piece := read(BLOCK_BYTES - len(first))):
                first += piece
        except UNPACKING_ERRORS:
            return True
    return first == _ZERO_BLOCK or has_tar_header(first)


def archive_files(path: Path, gate: Gate) -> Iterator[Blob]:
    """Yield the wanted files of an archive, in archive order."""
    with path.open("rb") as file:
        kind = compression(file.read(BLOCK_BYTES))
        file.seek(0)
        yield from members(opened_stream(file, path.stat().st_size, kind, gate), gate)


_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def _path_in(folder: bytes, name: bytes) -> bytes:
    """Return a path in bytes, because names on disk need not be valid text."""
    return folder + b"/" + name if folder else name


def _content(path: bytes, flags: int) -> bytes:
    """Return the bytes of a regular file, at most one more than the limit. Raises OSError."""
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # replaced after it was listed
            raise OSError("no longer a regular file")
        pieces = []
        missing = min(status.st_size, MAX_FILE_BYTES) + 1  # one more: the file may have grown
        while missing and (piece := os.read(descriptor, missing)):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _blob(root: bytes, raw: bytes, gate: Gate, status: os.stat_result) -> Blob | None:
    """Return the file if it is regular and wanted; otherwise None, with a rejection unless it is unwanted."""
    if not stat.S_ISREG(status.st_mode):
        gate.refuse_kind(raw, _KINDS.get(stat.S_IFMT(status.st_mode), "special file"))
        return None
    path = gate.admitted(raw, status.st_size)
    if path is None:
        return None
    try:
        data = _content(_path_in(root, raw), _READ_FLAGS)
    except OSError as err:
        gate.refuse("unreadable", path, f"{err.strerror or err}")
        return None
    if len(data) > MAX_FILE_BYTES:
        gate.refuse("too_large", path, f"a file of more than {MAX_FILE_BYTES:,} bytes, the most that is read")
        return None
    return Blob(path=path, data=data)


def _entries(root: bytes, folder: bytes, gate: Gate) -> list[tuple[bytes, os.stat_result, bool]]:
    """Return the entries of a folder except `.git`, in reverse order for the stack of the traversal."""
    found = []
    try:
        with os.scandir(_path_in(root, folder)) as entries:
            for entry in entries:
                if entry.name == b".git":
                    continue
                gate.count()
                status = entry.stat(follow_symlinks=False)
                found.append((_path_in(folder, entry.name), status, stat.S_ISDIR(status.st_mode)))
    except OSError as err:
        gate.refuse("unreadable", os.fsdecode(folder), f"{err.strerror or err}")
    found.sort(key=lambda each: each[0], reverse=True)
    return found


def directory_files(path: Path, gate: Gate) -> Iterator[Blob]:
    """Yield the wanted files below a folder, sorted by path component, with bounded memory."""
    root = os.fsencode(path)
    waiting = _entries(root, b"", gate)
    while waiting:
        raw, status, is_folder = waiting.pop()
        if not is_folder:
            blob = _blob(root, raw, gate, status)
            if blob is not None:
                yield blob
        elif raw.count(b"/") + 1 >= MAX_DEPTH:
            gate.refuse("unsafe_path", os.fsdecode(raw), f"a folder more than {MAX_DEPTH} deep; not entered")
        else:
            waiting += _entries(root, raw, gate)


def single_file(path: Path, gate: Gate) -> Iterator[Blob]:
    """Yield a single file by its name, decompressed; the path may be a link, because the user named it."""
    gate.count()
    target = path.resolve()
    with target.open("rb") as file:
        kind = compression(file.read(BLOCK_BYTES))
        if kind is not None:
            file.seek(0)
            data = opened_stream(file, target.stat().st_size, kind, gate).take(MAX_FILE_BYTES + 1)
            if gate.admitted(os.fsencode(path.name), len(data)) is not None:
                yield Blob(path=path.name, data=data)
            return
    blob = _blob(os.fsencode(target.parent), os.fsencode(target.name), gate, target.stat())
    if blob is not None:
        yield Blob(path=path.name, data=blob.data)


class SourceKind(Struct, frozen=True, kw_only=True):
    """A kind of source: whether a path is one, and its files. Functions are picklable for workers."""

    name: str
    matches: Callable[[Path], bool]
    files: Callable[[Path, Gate], Iterator[Blob]]


# The first matching kind is used.
SOURCE_KINDS = (
    SourceKind(name="git", matches=is_git, files=git_files),
    SourceKind(name="directory", matches=Path.is_dir, files=directory_files),
    SourceKind(name="archive", matches=is_archive, files=archive_files),
    SourceKind(name="file", matches=Path.is_file, files=single_file),
)


class DataSource(Struct, frozen=True, kw_only=True):
    """One source to read; picklable. `rejections` holds the rejections of the last pass over `files`."""

    path: Path
    kind: SourceKind
    limits: ReadLimits = DEFAULT_LIMITS
    rejections: list[RowRejection] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the file or folder; for a `.git`, of its parent folder."""
        path = self.path if self.path.name not in {"", ".."} else self.path.resolve()
        return path.resolve().parent.name if path.name == ".git" else path.name

    def files(self, wanted: Wanted) -> Iterator[Blob]:
        """Yield every regular file for which wanted(path, size) is true, in a deterministic order.

        Unwanted content is not loaded. Memory is bounded by one file (at most gate.MAX_FILE_BYTES) and one
        decompression window. Rejections are added to `rejections`; nothing is raised, written or executed.
        """
        self.rejections.clear()
        gate = Gate(source=self.name, wanted=wanted, rejections=self.rejections, limits=self.limits)
        try:
            yield from self.kind.files(self.path, gate)
        except SourceEndError as err:
            self.rejections.append(RowRejection(kind=err.kind, where=self.name, detail=err.detail))
        except OSError as err:
            self.rejections.append(
                RowRejection(kind="unreadable", where=self.name, detail=err.strerror or str(err))
            )


def open_source(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> DataSource:
    """Return the source at a path, recognised by its content.

    A bare repository, a `.git` and a clone without checked-out files are read through git, other folders
    directly. Raises DataError if there is nothing to read at the path.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise DataError(
                f"{path}: neither a folder nor a regular file; expected a checkout, an archive or a log"
            )
        kind = next(kind for kind in SOURCE_KINDS if kind.matches(path))
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(
            f"{path}: {reason}; expected a checkout, an archive, a git repository or a log"
        ) from err
    return DataSource(path=path, kind=kind, limits=limits)
