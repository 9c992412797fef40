"""Reading of user files with a size limit, atomic writing, and reading of shipped tables and records.

`data/parsed` caches the shipped TOML tables as JSON, which is read ten times as fast, and the records made
from the longest of them. A cache entry is used only if the checksums of its files match. Installing the
package writes the cache (`hatch_build.py`).
"""

import datetime as dt
import errno
import json
import os
import resource
import select
import stat
import sys
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from io import BytesIO, StringIO
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import IO, Any, Final, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from equipoise.errors import DataError, UsageError, in_a_line
from equipoise.units import GIB, listed

# Names of temporary files, which are renamed when complete; a killed process leaves one behind.
UNFINISHED: Final = ".equipoise-*.part"
# Time-outs of reading from a pipe: for the next bytes, and for all of them.
_CHUNK_TIMEOUT_S: Final = 5.0
_PIPE_TIMEOUT_S: Final = 60.0
_CHUNK_BYTES: Final = 2**16
_MAX_NAME_BYTES: Final = 255  # per component of a path, on all common file systems


# One file or folder, or several.
Folders: TypeAlias = Path | str | Sequence[Path | str]


def paths(given: Folders | Iterable[Path] | Iterable[str]) -> tuple[Path, ...]:
    """One path or several as a tuple. Raises UsageError for anything that is not a path."""
    if isinstance(given, (str, bytes, PathLike)) or not isinstance(given, Iterable):
        given = (given,)
    return tuple(one_path(each, or_several=True) for each in given)


def each_once(files: Sequence[Path]) -> list[Path]:
    """The files by absolute path. Raises UsageError for a file given twice, which would count twice."""
    whole = [resolved(path) for path in files]
    twice = next((path for path, count in Counter(whole).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{twice}: given twice; name each file once")
    return whole


def resolved(path: Path) -> Path:
    """The absolute path without links; unchanged for a cycle of links or an invalid name.

    Reading the file then reports the error.
    """
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL byte
        return path


def one_path(given: object, *, or_several: bool = False) -> Path:
    """The path of a folder or file. or_several: whether several are allowed, for the message.

    Raises UsageError for anything that is not a path.
    """
    if not isinstance(given, (str, PathLike)) or given == "":  # pathlib takes "" for the working folder
        raise UsageError(
            f"{in_a_line(given) or repr(given)} is no path; expected the path of a file or folder"
            f"{', or several' if or_several else ''}"
        )
    path = Path(given)
    try:
        is_name = "\0" not in str(path) and all(
            len(os.fsencode(part)) <= _MAX_NAME_BYTES for part in path.parts
        )
    except UnicodeEncodeError:  # half of a surrogate pair
        is_name = False
    if not is_name:
        raise UsageError(
            f"{str(path)[:40]!r}: no file can have such a name; expected the path of a file or folder"
        )
    return path


def read_input(path: Path, most_bytes: int, *, expected: str, may_be_pipe: bool = True) -> bytes:
    """The content of a regular file, or of a pipe such as `<(command)`.

    expected: what the file should be, for messages. may_be_pipe: False for files inside folders.
    Raises DataError for anything else, for more than most_bytes, and if a pipe's writer times out.
    """
    try:
        status = path.stat()
        if may_be_pipe and stat.S_ISFIFO(status.st_mode):
            content = _pipe_content(path, most_bytes, expected)
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                content = file.read(most_bytes + 1)
        else:
            what = f"not a regular file{' but a folder' * stat.S_ISDIR(status.st_mode)}"
            raise DataError(f"{path}: {what}; expected {expected}")
    except (OSError, ValueError) as err:  # ValueError: a NUL byte in the path
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(f"{path}: {reason}; expected {expected}") from err
    if len(content) > most_bytes:
        raise DataError(f"{path}: more than {most_bytes:,} bytes; expected {expected}")
    return content


def _pipe_content(path: Path, most_bytes: int, expected: str) -> bytes:
    """The content of a pipe until its writer closes it; at most one byte more than most_bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else opening waits for a writer
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        content, until = bytearray(), time.monotonic() + _PIPE_TIMEOUT_S
        while len(content) <= most_bytes:
            left_s = min(_CHUNK_TIMEOUT_S, until - time.monotonic())
            if left_s <= 0 or not waiting.poll(left_s * 1000):
                raise DataError(f"{path}: a pipe that nothing is written to; expected {expected}")
            try:
                piece = os.read(descriptor, min(_CHUNK_BYTES, most_bytes + 1 - len(content)))
            except BlockingIOError:
                continue
            if not piece:
                break
            content += piece
        return bytes(content)
    finally:
        os.close(descriptor)


def parsed_json(content: str | bytes, *, strict: bool = True) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The value of a JSON text. strict: reject control characters in strings, as in json.loads.

    Raises ValueError for invalid JSON and for lone surrogates; RecursionError for too deep nesting.
    """
    found = json.loads(content, strict=strict)
    plain = content.lower()
    if b"\\ud" in plain if isinstance(plain, bytes) else "\\ud" in plain:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as err:
            raise ValueError("half of a surrogate pair, which is no character") from err
    return found


def encodable(value: Any) -> Any:  # noqa: ANN401 - whatever JSON or a table holds
    r"""The value with lone surrogates in strings, as in file names that are not UTF-8, replaced by escapes.

    >>> encodable({"file": "r\udce9sum\udce9.csv"})
    {'file': 'r\\udce9sum\\udce9.csv'}
    """
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {encodable(name): encodable(each) for name, each in value.items()}
    return [encodable(each) for each in value] if isinstance(value, list | tuple) else value


def parsed_toml(content: str | bytes) -> dict[str, Any]:
    """The value of a TOML text, without a leading byte order mark, which Windows editors write.

    Raises ValueError (UnicodeDecodeError, TOMLDecodeError) and RecursionError, as `tomllib.loads` does.
    """
    import tomllib  # noqa: PLC0415 - only for edited files and files of users

    text = content if isinstance(content, str) else content.decode()
    return tomllib.loads(text.removeprefix("\ufeff"))


def csv_delimiter(text: str) -> str:
    """The delimiter of a CSV text: the candidate that is most frequent in its header."""
    return max(",;\t|", key=text.partition("\n")[0].count)


def csv_lines(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the cells of each row of a CSV text that is not blank.

    where: the file, for messages. Raises DataError, with the row below the header, for invalid CSV.
    """
    import csv  # noqa: PLC0415 - only for a file of the user

    delimiter = csv_delimiter(text)
    lines = csv.reader(StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    number, begun = 0, 1
    try:
        for cells in lines:
            if any(cell.strip() for cell in cells):
                yield begun, cells
                number += 1
            begun = lines.line_num + 1
    except csv.Error as err:
        place = f"row {number}" if number else "line 1"
        raise DataError(f"{where}: {place}: {err}; expected CSV with names of columns") from err


def expect_place(path: Path) -> None:
    """Raise UsageError where `written` could not write; to be called before a long calculation."""
    _destination(path)


def _destination(path: Path) -> tuple[Path, os.stat_result | None]:
    """The file of a path, with links resolved, and its status, None if it does not exist yet."""
    one_path(path)
    try:
        final = Path(os.path.realpath(path)) if path.is_symlink() else path
        status = path.stat() if path.exists() else None
        if final.is_symlink():
            raise UsageError(
                f"{path}: a link that leads back to itself; expected the name of a file to write"
            )
        has_folder = final.parent.is_dir()
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise UsageError(f"{path}: {reason}; expected the name of a file to write") from err
    if status is None:
        if not has_folder:
            folder = str(final.parent)
            raise UsageError(f"{path}: the directory {folder!r} does not exist; create it first")
        _expect_writable(final.parent, path)
        return final, None
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path}: a directory; expected the name of a file to write")
    if stat.S_ISBLK(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        kind = "block device" if stat.S_ISBLK(status.st_mode) else "socket"
        raise UsageError(f"{path}: a {kind}; expected the name of a file to write")
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path}: not writable; change its permissions or use another name")
    if stat.S_ISREG(status.st_mode):
        _expect_writable(final.parent, path)
    return final, status


def expect_folder(folder: Path) -> None:
    """Raise UsageError where files cannot be written to a folder, which need not exist yet.

    To be called before a long calculation.
    """
    one_path(folder)
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
    if not there.is_dir():
        raise UsageError(f"{folder}: {str(there)!r} is no directory; expected a folder to write into")
    _expect_writable(there, folder)
    # Root passes all permission checks, but cannot create a folder in /proc or on a full disk.
    missing = [each for each in (folder, *folder.absolute().parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            each.rmdir()
    except OSError as err:
        raise UsageError(f"{folder}: cannot be created ({err.strerror}); name another folder") from err


def is_utf16(data: bytes) -> bool:
    """Whether text has a byte order mark of UTF-16, as output redirected by PowerShell has."""
    return data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))


def printed_text(data: bytes) -> str:
    """A program's output as text; bytes that are neither UTF-8 nor UTF-16 become replacement characters."""
    return data.decode("utf-16" if is_utf16(data) else "utf-8-sig", errors="replace")


def _expect_writable(folder: Path, path: Path) -> None:
    """Raise UsageError where a folder is not writable. path: as given by the user, for the message."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"{path}: the directory {str(folder)!r} is not writable; change its permissions or use another"
        )


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Write a file atomically at the end of the block; if the block fails, nothing changes.

    A regular file is replaced, also through a symbolic link, which stays. A character device, a pipe, and
    standard output or standard error are written to directly.
    Raises UsageError for any other file; OSError where writing fails.
    """
    final, status = _destination(path)
    stream = None if status is None else _open_stream(status)
    if status is None or (stream is None and stat.S_ISREG(status.st_mode)):
        with _atomic_file(path, final, status) as file:
            yield file
        return
    content = BytesIO()
    yield content
    try:
        descriptor = _open_for_writing(path) if stream is None else os.dup(stream)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.getbuffer())
    except OSError as err:
        raise OSError(err.errno, err.strerror, str(path)) from err


@contextmanager
def written_synced(path: Path) -> Iterator[IO[bytes]]:
    """Write a regular file as `written` does, and sync it to disk. Raises UsageError or OSError."""
    final, status = _destination(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: not a regular file; expected one to replace, or none")
    with _atomic_file(path, final, status) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    with suppress(OSError):  # some file systems cannot sync a folder; the name exists anyway
        sync_folder(final.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's directory entries to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _atomic_file(path: Path, final: Path, status: os.stat_result | None) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `final` if the block succeeds, and is deleted otherwise."""
    # The name is set before the file exists, so that any interrupt removes it; 128 random bits are unique.
    name = str(final.parent / UNFINISHED.replace("*", os.urandom(16).hex()))
    try:
        with open(name, "xb", opener=_opened_for_owner) as file:
            yield file
        Path(name).chmod(_new_mode() if status is None else stat.S_IMODE(status.st_mode))
        if status is not None:
            with suppress(OSError):  # only root may give a file to somebody else
                os.chown(name, status.st_uid, status.st_gid)
        Path(name).replace(final)
    except BaseException as err:
        with suppress(OSError):  # the original error is more informative
            Path(name).unlink(missing_ok=True)
        if isinstance(err, OSError) and err.filename in {None, name}:
            raise OSError(err.errno, err.strerror or str(err), str(path)) from err
        raise


def _opened_for_owner(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _open_stream(status: os.stat_result) -> int | None:
    """The descriptor of standard output or standard error if it is this file, such as /dev/stdout."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or no file
            stream.flush()
            if os.path.samestat(os.fstat(stream.fileno()), status):
                return stream.fileno()
    return None


def _open_for_writing(path: Path) -> int:
    """Open an existing device or pipe without blocking; a pipe without a reader would block forever."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as err:
        if err.errno == errno.ENXIO:
            raise UsageError(f"{path}: a pipe that no process reads; start its reader first") from err
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def _new_mode() -> int:
    """The permissions that `open` would give a new file."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def file_names(files: Iterable[str], most: int) -> str:
    """Names of files without folders, as a list in a sentence of at most `most` names."""
    return listed((each.rpartition("/")[2] for each in files), most)


def user_file(name: str, variable: str) -> Path:
    """The path of a file of user data, which may not exist yet.

    From the environment variable if set, else in the data folder of the XDG base directory specification.
    """
    named = os.environ.get(variable)
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    # The specification requires that relative paths are ignored.
    home = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return home / "equipoise" / name


_PACKAGE: Final = Path(__file__).parent
_PARSED: Final = _PACKAGE / "data" / "parsed"
_RECORDS: Final = _PARSED / "records.msgpack"


def shipped_table(
    path: Path, content: bytes | None = None, *, check: Callable[[str, Path], None] | None = None
) -> dict[str, Any]:
    """The value of a TOML file, from the cache if it is a shipped file.

    path: inside this package or not. content: of the file, if it was already read. check: called before a
    text is parsed, and raises for texts that would take too long to parse.
    Raises OSError, ValueError (TOMLDecodeError) and RecursionError as reading and `tomllib.loads` do.
    """
    content = path.read_bytes() if content is None else content
    cached = _cached(path)
    if cached is not None and cached["crc32"] == crc32(content):
        found: dict[str, Any] = cached["table"]
        return _with_dates(found) if cached["has_dates"] else found
    text = content.decode()
    if check is not None:
        check(text, path)
    return parsed_toml(text)


Record = TypeVar("Record")
# Held while msgspec decodes into a type. On a type's first use msgspec collects its fields by Python code
# that other threads may interrupt; a thread that uses the incomplete description crashes the process.
_MSGSPEC_LOCK: Final = RLock()


def converted(value: object, kind: type[Record]) -> Record:
    """A parsed value as a record. Thread-safe; raises what msgspec does."""
    with _MSGSPEC_LOCK:
        return msgspec.convert(value, kind)


def decoded(content: bytes, kind: type[Record]) -> Record:
    """JSON as a record. Thread-safe; raises what msgspec does."""
    with _MSGSPEC_LOCK:
        return msgspec.json.decode(content, type=kind)


def shipped_record(name: str | Path, kind: type[Record], *, made_by: str) -> Record:
    """A JSON file in `data/`, or at an absolute path, as a record. made_by: the `make` target that writes it.

    Raises DataError if the file is missing or has no such record.
    """
    path = _PACKAGE / "data" / name
    try:
        return decoded(path.read_bytes(), kind)
    except (OSError, ValueError, msgspec.MsgspecError) as err:
        raise DataError(f"{path}: {err}; `make {made_by}` writes it") from err


def kept_record(name: str, kind: type[Record], make: Callable[[], Record]) -> Record:
    """A record from the cache written by `keep_records`; made anew if missing or out of date."""
    found = _cached_records().get(name)
    if found is None:
        return make()
    with _MSGSPEC_LOCK:
        return msgspec.msgpack.decode(found, type=kind)


@cache
def _cached_records() -> Mapping[str, Any]:
    """The cached records by name, still encoded; none if any of their files has changed."""
    kind = tuple[dict[str, int], dict[str, msgspec.Raw]]
    try:
        with _MSGSPEC_LOCK:
            sums, records = msgspec.msgpack.decode(_RECORDS.read_bytes(), type=kind)
        is_same = all(crc32((_PACKAGE / name).read_bytes()) == each for name, each in sums.items())
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
    return records if is_same else {}


def keep_records(records: Mapping[str, object], made_of: Iterable[str]) -> None:
    """Write records to the cache. made_of: paths in this package of the modules and tables they depend on."""
    sums = {name: crc32((_PACKAGE / name).read_bytes()) for name in made_of}
    _RECORDS.write_bytes(msgspec.msgpack.encode((sums, records)))


def shipped_files() -> tuple[Path, ...]:
    """The TOML files of this package, sorted."""
    return tuple(sorted(_PACKAGE.rglob("*.toml")))


def _cache_file(path: Path) -> Path:
    """The cache file of a table: `spec.hardware.json` for `spec/hardware.toml`."""
    return _PARSED / f"{'.'.join(path.relative_to(_PACKAGE).with_suffix('').parts)}.json"


def _cached(path: Path) -> Mapping[str, Any] | None:
    """The cache entry of a table; None for a file outside this package, or without an entry."""
    try:
        found: Mapping[str, Any] = json.loads(_cache_file(path).read_bytes())
    except (OSError, ValueError):
        return None
    return found


_DATE: Final = "date"  # only key of an object that represents a date, which JSON lacks


def _dated(value: object) -> dict[str, str]:
    if type(value) is dt.date:
        return {_DATE: value.isoformat()}
    raise TypeError(f"{value!r}: expected what JSON holds, or a date")


def _with_dates(value: Any) -> Any:  # noqa: ANN401 - any value of TOML
    if isinstance(value, dict):
        if value.keys() == {_DATE}:
            return dt.date.fromisoformat(value[_DATE])
        return {name: _with_dates(each) for name, each in value.items()}
    return [_with_dates(each) for each in value] if isinstance(value, list) else value


def keep_tables() -> None:
    """Write every shipped table to the cache, each as one line of JSON."""
    _PARSED.mkdir(exist_ok=True)
    for path in shipped_files():
        content = path.read_bytes()
        text = json.dumps(parsed_toml(content), default=_dated, allow_nan=False)
        has_dates = json.dumps(f'{{"{_DATE}": ' in text)
        kept = f'{{"crc32": {crc32(content)}, "has_dates": {has_dates}, "table": {text}}}\n'
        _cache_file(path).write_text(kept, encoding="utf-8")


# A damaged Parquet file can abort the process that reads it (Polars 2.1 does on page headers with impossible
# counts), which cannot be caught, so functions that read one run in a separate process.
# A table of the largest accepted size needs a tenth of this memory, and is read in seconds.
PROBE_MEMORY_BYTES = 4 * GIB
PROBE_REFUSED = 2
_PROBE_TIMEOUT_S = 60.0
# The probe gets this process's module search path, independent of the working folder.
_PROBE_CODE = (
    "import sys; end = 2 + int(sys.argv[1]); sys.path[:] = sys.argv[2:end]; "
    "from equipoise.files import probe; sys.exit(probe(sys.argv[end:]))"
)


def probed(module: str, function: str, arguments: Sequence[str], data: bytes, *, where: str) -> str:
    """The text returned by a function called in a separate process with these arguments and bytes.

    where: the file, for messages. Raises DataError if the function rejects the bytes, crashes or times out.
    """
    import subprocess  # noqa: PLC0415 - most commands start no process

    try:
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-c",
                _PROBE_CODE,
                str(len(sys.path)),
                *sys.path,
                module,
                function,
                *arguments,
            ],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as err:
        raise DataError(f"{where}: a damaged Parquet file: not read within {_PROBE_TIMEOUT_S:.0f} s") from err
    text = done.stdout.decode("utf-8", errors="replace")
    if done.returncode:
        reason = f"reading it ended its reader (exit code {done.returncode})"
        raise DataError(text or f"{where}: a damaged Parquet file: {reason}")
    return text


def probe(arguments: Sequence[str]) -> int:
    """Entry point of the process started by `probed`. Returns its exit code; prints the text or the error."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (PROBE_MEMORY_BYTES, PROBE_MEMORY_BYTES))
    module, function, *rest = arguments
    try:
        text = getattr(import_module(module), function)(rest, sys.stdin.buffer.read())
    except DataError as err:
        sys.stdout.write(str(err))
        return PROBE_REFUSED
    sys.stdout.write(text)
    return 0
