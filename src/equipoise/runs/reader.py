"""The seam between a source of bytes and the tables: blobs in, rows, rejections and unknown names out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]  # a row of `runs` or `scores`: column name -> value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Something that was not used: `kind` groups like cases, `where` names the file, `detail` says what was found."""

    kind: str
    where: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One file of a source: its posix path inside the source's tree, and its bytes."""

    path: str
    data: bytes


@dataclass(slots=True, kw_only=True)
class Counted:
    """How often a rejection of one kind occurred, and its first example."""

    count: int
    first: Rejection


@dataclass(slots=True)
class Tally:
    """Rejections counted by kind, each with its first example: bounded memory however many there are."""

    kinds: dict[str, Counted] = field(default_factory=dict)

    def add(self, rejection: Rejection, count: int = 1) -> None:
        """Count one more of its kind; the first of a kind is kept as the example."""
        seen = self.kinds.get(rejection.kind)
        if seen is None:
            self.kinds[rejection.kind] = Counted(count=count, first=rejection)
        else:
            seen.count += count

    def extend(self, rejections: Iterable[Rejection]) -> None:
        """Count each of them."""
        for rejection in rejections:
            self.add(rejection)

    def merge(self, other: "Tally") -> None:
        """Count what another tally counted; examples already here stay."""
        for counted in other.kinds.values():
            self.add(counted.first, counted.count)

    def rows(self) -> list[dict[str, Any]]:
        """One record a kind, `{kind, count, first, where}`, sorted by kind."""
        return [
            {"kind": kind, "count": seen.count, "first": seen.first.detail, "where": seen.first.where}
            for kind, seen in sorted(self.kinds.items())
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownName:
    """A name that the catalogue does not map: its kind, the raw text, how many entries use it, the file to edit."""

    kind: str
    raw: str
    count: int
    edit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader makes of one source: rows of the tables, what it refused, the names it did not know."""

    runs: list[Row]
    scores: list[Row]
    rejected: Tally
    unknown_names: tuple[UnknownName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A kind of evidence that can be read. All functions are importable by name, so that workers can run them.

    wanted: whether the reader has a use for a file, from its path and its size in bytes (nothing else is loaded).
    parse: one file to small facts; runs in worker processes, in any order; never raises on hostile content.
    assemble: the source's name and the facts by path, in order, to rows.
    """

    name: str
    wanted: Callable[[str, int], bool]
    parse: Callable[[Blob], Any]
    assemble: Callable[[str, Mapping[str, Any]], Reading]
