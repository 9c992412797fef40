"""Where bytes come from: a folder, an archive, a git repository or one file, behind one small record."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, field

from equipoise.errors import DataError
from equipoise.runs.reader import Blob, RowRejection
from equipoise.runs.sources.archive import archive_files, is_archive
from equipoise.runs.sources.gate import (
    DEFAULT_LIMITS,
    MAX_DEPTH,
    MAX_FILE_BYTES,
    Gate,
    ReadLimits,
    SourceEndError,
    Wanted,
)
from equipoise.runs.sources.git import git_files, is_git

_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KINDS = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def _path_in(folder: bytes, name: bytes) -> bytes:
    """A path in bytes: names on disk need not be text."""
    return folder + b"/" + name if folder else name


def _content(path: bytes, flags: int) -> bytes:
    """The bytes of a regular file, at most one more than the cap. Raises OSError."""
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # it was swapped after it was listed
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
    """The file, when it is a wanted regular one; else None, with a rejection unless it is just unwanted."""
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
        gate.refuse("too_large", path, f"a file of more than {MAX_FILE_BYTES} bytes, the most that is read")
        return None
    return Blob(path=path, data=data)


def _entries(root: bytes, folder: bytes, gate: Gate) -> list[tuple[bytes, os.stat_result, bool]]:
    """What a folder holds but `.git`, last name first: the walk is a stack."""
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
    """The wanted files below a folder, sorted by path component; memory of the folders on the way."""
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
    """One file by its name alone. The path itself may be a link: the user named it."""
    gate.count()
    target = path.resolve()
    blob = _blob(os.fsencode(target.parent), os.fsencode(target.name), gate, target.stat())
    if blob is not None:
        yield Blob(path=path.name, data=blob.data)


class SourceKind(Struct, frozen=True, kw_only=True):
    """A kind of source: whether a path is one, and its files. Functions can be pickled: workers run them."""

    name: str
    matches: Callable[[Path], bool]
    files: Callable[[Path, Gate], Iterator[Blob]]


# The first that matches is used.
SOURCE_KINDS = (
    SourceKind(name="git", matches=is_git, files=git_files),
    SourceKind(name="directory", matches=Path.is_dir, files=directory_files),
    SourceKind(name="archive", matches=is_archive, files=archive_files),
    SourceKind(name="file", matches=Path.is_file, files=single_file),
)


class DataSource(Struct, frozen=True, kw_only=True):
    """One thing to read, picklable. `rejections` holds what the last pass over `files` refused."""

    path: Path
    kind: SourceKind
    limits: ReadLimits = DEFAULT_LIMITS
    rejections: list[RowRejection] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the file or folder; of a `.git`, that of the folder around it."""
        path = self.path if self.path.name not in {"", ".."} else self.path.resolve()
        return path.resolve().parent.name if path.name == ".git" else path.name

    def files(self, wanted: Wanted) -> Iterator[Blob]:
        """Every regular file for which wanted(path, size) is true, in an order given by the content alone.

        Content that is not wanted is not loaded; memory is that of one file (at most gate.MAX_FILE_BYTES) and
        one decompression window. Refusals go to `rejections`; nothing is raised, written or executed.
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
    """The source at a path, recognised by its content.

    A bare repository, a `.git` and a clone with nothing checked out are read through git, other folders as
    they lie.
    Raises DataError when there is nothing to read at the path.
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
