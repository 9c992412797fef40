"""What may pass from a source to a reader: safe names, no links or devices, sizes and counts within caps.

Every kind of source asks the same gate, so that one page holds the whole policy. Nothing here opens a file.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

from equipoise.runs.reader import Rejection
from equipoise.units import GIB, MIB

Wanted: TypeAlias = Callable[[str, int], bool]

# The largest file of the rounds v0.5 to v5.0 has 4.0 MB (v4.1, a GPT-3 log); 16 times that, and two workers
# that hold one such file each still stay within a few hundred MB.
MAX_FILE_BYTES = 64 * MIB
# The largest unpacked round has 450 MB of logs; rounds with all their code reach some GB.
MAX_TOTAL_BYTES = 64 * GIB
# The largest round has 5,660 logs and descriptions; rounds with all their code reach some 10,000 files.
MAX_MEMBERS = 1_000_000
# The rounds are nested 8 deep with paths of 140 characters; 4096 and 255 are what Linux allows.
MAX_DEPTH = 64
MAX_PATH_CHARACTERS = 4096
MAX_NAME_BYTES = 255
# No real round has a single refused member; beyond this the source is an attack or not a round.
MAX_REJECTIONS = 10_000

SHOWN_CHARACTERS = 200

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DRIVE = re.compile(r"[A-Za-z]:")


class SourceEndError(Exception):
    """The source cannot be read any further; what was read before stands. Never leaves this package."""

    def __init__(self, kind: str, detail: str) -> None:
        """`kind` and `detail`: as in a Rejection."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class UnsafePathError(Exception):
    """A path that could lead outside, or that no honest round has. Never leaves this package."""


def decoded(raw: bytes) -> str:
    """A name as text: UTF-8, else Latin-1, so that every name can be printed and stored."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def shown(text: str) -> str:
    """Text from outside, safe and short enough for a message."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", cut)


def clean_path(raw: bytes) -> str:
    """A relative posix path without `.`, empty or parent components.

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
            f"a path of {len(path)} characters, {len(parts)} deep; at most {MAX_DEPTH} deep is read"
        )
    return "/".join(parts)


@dataclass(slots=True, kw_only=True)
class Gate:
    """Decides, counts and remembers for one pass over one source."""

    source: str
    wanted: Wanted
    rejections: list[Rejection]
    num_members: int = 0
    loaded_bytes: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def refuse(self, kind: str, path: str, detail: str) -> None:
        """Record that one member is not used. Raises SourceEndError when there are absurdly many."""
        where = f"{self.source}:{shown(path)}" if path else self.source
        self.rejections.append(Rejection(kind=kind, where=where, detail=detail))
        if len(self.rejections) >= MAX_REJECTIONS:
            raise SourceEndError(
                "too_many_refusals", f"{MAX_REJECTIONS} refused members; the rest is not read"
            )

    def count(self) -> None:
        """One more member of any kind. Raises SourceEndError beyond the cap."""
        self.num_members += 1
        if self.num_members > MAX_MEMBERS:
            raise SourceEndError("too_many_members", f"more than {MAX_MEMBERS} members; the rest is not read")

    def refuse_kind(self, raw: bytes, what: str) -> None:
        """Record a link, device, pipe or the like: never followed, opened or created."""
        self.refuse("not_a_regular_file", decoded(raw), f"a {what}; only regular files are read")

    def admitted(self, raw: bytes, size: int) -> str | None:
        """The clean path of a regular file that is to be loaded; else None, with a rejection if unsafe."""
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
            self.refuse("too_large", path, f"a file of {size} bytes; at most {MAX_FILE_BYTES} are read")
            return None
        self.loaded_bytes += size
        if self.loaded_bytes > MAX_TOTAL_BYTES:
            raise SourceEndError(
                "too_large", f"more than {MAX_TOTAL_BYTES} bytes in all; the rest is not read"
            )
        return path
