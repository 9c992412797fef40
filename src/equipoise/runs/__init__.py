"""What was seen? Tables of runs and scores, their readers, writers and store. No statistics live here.

Here is the seam between a source of bytes and the tables: blobs in, rows, rejections and unknown names out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

if TYPE_CHECKING:
    from equipoise.spec.catalogue import Catalogue


Row: TypeAlias = dict[str, Any]  # a row of `runs` or `scores`: column name -> value
# Called with what is under way, how much is done, and of how much: trials, files, folds or bytes.
Progress: TypeAlias = Callable[[str, int, int], None]


# In a folder that `bench`, `watch` or `ingest` wrote. The store has the name too, and loads Polars.
RUNS_FILE = "runs.parquet"
# What `bench` keeps of a sweep from its first moment on, and of a search.
SWEEP_FILE, SEARCH_FILE = "sweep.json", "trials.json"


def lacks_tables(folder: Path) -> str | None:
    """Why a folder that `bench` wrote has no table of runs, in words; None where it has, or is another."""
    if (folder / RUNS_FILE).is_file():
        return None
    if (folder / SWEEP_FILE).is_file():
        go_on = f"equipoise bench --out {folder} --resume"
    elif (folder / SEARCH_FILE).is_file():
        go_on = "the command that began it, with --resume,"
    else:
        return None
    return f"a sweep that was cut off, without its tables; {go_on} goes on with it and writes them"


class RowRejection(Struct, frozen=True, kw_only=True):
    """Something not used, or used with a warning.

    kind: groups like cases. where: names the file. detail: what was found.
    """

    kind: str
    where: str
    detail: str


class Blob(Struct, frozen=True, kw_only=True):
    """One file of a source: its posix path inside the source's tree, and its bytes."""

    path: str
    data: bytes


class RejectionCount(Struct, kw_only=True):
    """How often a rejection of one kind occurred, and its first example."""

    count: int
    first: RowRejection


class Tally(Struct):
    """Rejections counted by kind, each with its first example: bounded memory however many there are."""

    kinds: dict[str, RejectionCount] = field(default_factory=dict)

    def refuse(self, kind: str, where: str, detail: str, *, count: int = 1) -> None:
        """Count a rejection, as RowRejection has it."""
        self.add(RowRejection(kind=kind, where=where, detail=detail), count)

    def add(self, rejection: RowRejection, count: int = 1) -> None:
        """Count one more of its kind; the first of a kind is kept as the example."""
        seen = self.kinds.get(rejection.kind)
        if seen is None:
            self.kinds[rejection.kind] = RejectionCount(count=count, first=rejection)
        else:
            seen.count += count

    def extend(self, rejections: Iterable[RowRejection]) -> None:
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


class UnknownName(Struct, frozen=True, kw_only=True):
    """A name that no table maps: its kind, the raw text, how many entries use it, the file to edit.

    near: names that may have been meant.
    """

    kind: str
    raw: str
    count: int
    edit: str
    near: tuple[str, ...] = ()


class ReaderResult(Struct, frozen=True, kw_only=True):
    """What a reader makes of its sources: rows of the tables, what it refused, the names it did not know.

    num_runs_rejected: files that look like the log of a run and are in no row.
    """

    runs: list[Row]
    scores: list[Row]
    num_runs_rejected: int
    rejected: Tally
    unknown_names: tuple[UnknownName, ...] = ()


class SourceFacts(Struct, frozen=True, kw_only=True):
    """What was parsed of one source.

    context: names of the folders above the source's paths, outermost first; an archive's own name.
    facts: by path inside the source.
    named: whether the user named the source; False for descriptions that were found next to one.
    """

    context: tuple[str, ...]
    facts: Mapping[str, Any]
    named: bool = True


class Reader(Struct, frozen=True, kw_only=True):
    """A kind of evidence that can be read. Functions are importable by name, so that workers can run them.

    wanted: whether the reader has a use for a file, from its path and size in bytes; nothing else is loaded.
    passed_over: why a file that is not wanted looks like evidence all the same; None for ordinary files.
    parse: one file to small facts, or a RowRejection; runs in workers, in any order; raises on no content.
    assemble: the facts of all sources, in order, to rows; the catalogue resolves names.
    """

    name: str
    wanted: Callable[[str, int], bool]
    passed_over: Callable[[str], RowRejection | None]
    parse: Callable[[Blob], Any]
    assemble: Callable[[Sequence[SourceFacts], "Catalogue"], ReaderResult]
