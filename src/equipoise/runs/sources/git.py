"""Reads a git repository without checkout, through pipes to `git ls-tree` and `git cat-file`.

The repository is not trusted: no hook, filter, text conversion, pager, prompt or transport can run, the
configuration of user and system is not read, and a git process without output (it may block on a named pipe)
is killed.
"""

import os
import select
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from equipoise.runs import Blob
from equipoise.runs.sources.gate import MAX_PATH_CHARACTERS, Gate, SourceEndError, decoded, shown
from equipoise.units import MIB

# git lists or reads an object in far less than a second; after a minute without output it is blocked.
SILENCE_S = 60.0

_SAFE_CONFIG = (
    "protocol.allow=never",
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "gc.auto=0",
    "maintenance.auto=false",
)
_SAFE_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone must not fetch missing objects
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_LINE_BYTES = MAX_PATH_CHARACTERS * 4 + 256
_REGULAR_MODES = (b"100644", b"100755", b"100664")
_NAMED_MODES = {b"120000": "symbolic link", b"160000": "submodule"}


def _is_git_folder(path: Path) -> bool:
    """Return whether a folder is a repository's database: bare, or a `.git`."""
    return (path / "HEAD").exists() and (path / "objects").is_dir() and (path / "refs").is_dir()


def is_git(path: Path) -> bool:
    """Return whether a folder is to be read through git: bare, a `.git`, or without checked-out files.

    A work tree with files is read as a folder, so that the user's current files are used.
    """
    if not path.is_dir():
        return False
    if _is_git_folder(path):
        return True
    return _is_git_folder(path / ".git") and all(entry.name == ".git" for entry in path.iterdir())


class _Pipe:
    """The output of a running git process, read exactly, with a timeout."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._descriptor = stream.fileno()
        self._buffer = bytearray()

    def _fill(self) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], SILENCE_S)
        if not ready:
            raise SourceEndError(
                "git_failed", f"git had no output for {SILENCE_S:.0f} s; the rest is not read"
            )
        piece = os.read(self._descriptor, MIB)
        self._buffer += piece
        return bool(piece)

    def line(self, end: bytes) -> bytes | None:
        """Return the next line without its terminator; None at the end of the output."""
        searched = 0
        while (found := self._buffer.find(end, searched)) < 0:
            searched = len(self._buffer)
            if searched > _LINE_BYTES:
                raise SourceEndError(
                    "git_failed", f"a name of more than {_LINE_BYTES:,} bytes; the rest is not read"
                )
            if not self._fill():
                if self._buffer:
                    raise SourceEndError("git_failed", "git ended in the middle of a line")
                return None
        line = bytes(self._buffer[:found])
        del self._buffer[: found + len(end)]
        return line

    def exactly(self, num_bytes: int) -> bytes:
        """Return exactly the next num_bytes."""
        while len(self._buffer) < num_bytes:
            if not self._fill():
                raise SourceEndError("git_failed", "git ended in the middle of a file")
        data = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return data


@contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run git on a repository; the process is killed at the end of the block."""
    options = [part for setting in _SAFE_CONFIG for part in ("-c", setting)]
    command = ["git", f"--git-dir={folder}", "--no-pager", *options, *arguments]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), **_SAFE_ENVIRONMENT},
            cwd="/",
        )
    except FileNotFoundError as err:
        raise SourceEndError(
            "git_failed", "`git` is not on PATH; install it, or check out the round"
        ) from err
    with process:
        try:
            yield process
        finally:
            process.kill()


def _lines(folder: Path, end: bytes, *arguments: str) -> Iterator[bytes]:
    """Yield the output lines of a git command. Raises SourceEndError if it fails."""
    with _running(folder, *arguments) as process:
        assert process.stdout is not None
        pipe = _Pipe(process.stdout)
        while (line := pipe.line(end)) is not None:
            yield line
        if process.wait() != 0:
            raise SourceEndError("git_failed", f"git {arguments[0]} failed; `git fsck` in it has details")


def _commit(folder: Path) -> str:
    """Return the commit to read: HEAD, or the only branch if HEAD names none (as after a first push)."""
    heads = ("for-each-ref", "--count=100", "--format=%(objectname) %(refname:short)", "refs/heads")
    branches = [decoded(line).split(" ", 1) for line in _lines(folder, b"\n", *heads)]
    with _running(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") as process:
        assert process.stdout is not None
        head = _Pipe(process.stdout).line(b"\n")
    if head is not None:
        return decoded(head)
    if len(branches) == 1:
        return branches[0][0]
    names = shown(", ".join(name for _, name in branches)) or "none"
    raise SourceEndError(
        "git_failed", f"HEAD names no commit and the branches are: {names}; set HEAD to one of them"
    )


def _blob(process: subprocess.Popen[bytes], pipe: _Pipe, name: bytes, size: int) -> bytes | None:
    """Return the content of one object of a known size, or None if the repository lacks it."""
    assert process.stdin is not None
    try:
        process.stdin.write(name + b"\n")
        process.stdin.flush()
    except BrokenPipeError as err:
        raise SourceEndError("git_failed", "git cat-file ended early; `git fsck` in it has details") from err
    header = pipe.line(b"\n")
    if header is None:
        raise SourceEndError("git_failed", "git cat-file ended early; `git fsck` in it has details")
    fields = header.split(b" ")
    if fields[1:] != [b"blob", b"%d" % size]:
        if fields[-1] != b"missing":
            raise SourceEndError("git_failed", f"git cat-file answered {shown(decoded(header))}")
        return None
    return pipe.exactly(size + 1)[:-1]


def git_files(path: Path, gate: Gate) -> Iterator[Blob]:
    """Yield the wanted files of the commit to read, sorted by path."""
    folder = (path if _is_git_folder(path) else path / ".git").resolve()
    for control in ("HEAD", "config", "packed-refs"):
        found = folder / control
        if found.exists() and not stat.S_ISREG(found.stat().st_mode):
            raise SourceEndError("git_failed", f"{control} is not a regular file; not a repository")
    commit = _commit(folder)
    with _running(folder, "cat-file", "--batch") as reader:
        assert reader.stdout is not None
        contents = _Pipe(reader.stdout)
        for line in _lines(folder, b"\x00", "ls-tree", "-r", "-z", "-l", "--full-tree", commit):
            gate.count()
            about, _, raw = line.partition(b"\t")
            mode, _, name, size = about.split()
            if mode not in _REGULAR_MODES:
                gate.refuse_kind(raw, _NAMED_MODES.get(mode, f"git entry of mode {decoded(mode)}"))
                continue
            if not size.isdigit():
                gate.refuse("unreadable", decoded(raw), "the repository lacks this object (a partial clone?)")
                continue
            path_inside = gate.admitted(raw, int(size))
            if path_inside is None:
                continue
            data = _blob(reader, contents, name, int(size))
            if data is None:
                gate.refuse("unreadable", path_inside, "the repository lacks this object (a partial clone?)")
                continue
            yield Blob(path=path_inside, data=data)
