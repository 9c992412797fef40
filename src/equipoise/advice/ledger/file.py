"""A file of JSON lines that only grows: whole lines are appended, one writer at a time, whatever happens."""

import fcntl
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import DataError
from equipoise.units import MIB

MAX_FILE_BYTES = 64 * MIB


def append(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Add whole lines at the end, safely on disk, one writer at a time; nothing is added where it fails.

    A line that a killed writer left unfinished is ended first, so that it spoils no other.
    """
    content = b"".join(json.dumps(each, allow_nan=False).encode() + b"\n" for each in documents)
    if not content:
        return
    try:
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _check_regular(os.fstat(descriptor), path)
            # The kernel lets go of it when the process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _write_end(descriptor, content)
        finally:
            os.close(descriptor)
        if is_new:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(
            f"{path}: the ledger cannot be written: {reason}; EQUIPOISE_LEDGER names another"
        ) from err


def _write_end(descriptor: int, content: bytes) -> None:
    """Append to an open, locked file: all of it or nothing."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        content = b"\n" + content
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def lines(path: Path) -> list[bytes]:
    """The lines of the file that are not blank."""
    try:
        status = path.stat()
        _check_regular(status, path)
        if status.st_size > MAX_FILE_BYTES:
            raise DataError(
                f"{path}: {status.st_size} bytes; a ledger has at most {MAX_FILE_BYTES}: begin another"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(
            f"{path}: the ledger cannot be read: {reason}; EQUIPOISE_LEDGER names another"
        ) from err
    return [line for line in data.split(b"\n") if line.strip()]


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file; expected a ledger, lines of JSON")
