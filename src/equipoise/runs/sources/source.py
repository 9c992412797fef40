"""Where bytes come from: a folder, an archive, a git repository or one file, behind one small record."""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.errors import DataError
from equipoise.runs.reader import Blob, Rejection
from equipoise.runs.sources.archive import archive_files, is_archive
from equipoise.runs.sources.directory import directory_files, single_file
from equipoise.runs.sources.gate import Gate, SourceEndError, Wanted
from equipoise.runs.sources.git import git_files, is_git


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One thing to read, picklable. `rejections` holds what the last pass over `files` refused."""

    path: Path
    kind: SourceKind
    rejections: list[Rejection] = field(default_factory=list)

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
        gate = Gate(source=self.name, wanted=wanted, rejections=self.rejections)
        try:
            yield from self.kind.files(self.path, gate)
        except SourceEndError as err:
            self.rejections.append(Rejection(kind=err.kind, where=self.name, detail=err.detail))
        except OSError as err:
            self.rejections.append(
                Rejection(kind="unreadable", where=self.name, detail=err.strerror or str(err))
            )


def open_source(path: Path) -> Source:
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
    return Source(path=path, kind=kind)
