"""Tables of runs and scores, their readers, writers and store. No statistics live here.

This module defines the interface of readers: blobs in; rows, rejections and unknown names out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

if TYPE_CHECKING:
    from equipoise.spec.catalogue import Catalogue


Row: TypeAlias = dict[str, Any]  # a row of `runs` or `scores`: column name -> value
# Called with the current item, the amount done and the total amount: trials, files, folds or bytes.
Progress: TypeAlias = Callable[[str, int, int], None]


# The table in a folder of `bench`, `watch` or `ingest`. The store defines the name too, but imports Polars.
RUNS_FILE = "runs.parquet"
# The files that `bench` writes at the start of a sweep and of a search.
SWEEP_FILE, SEARCH_FILE = "sweep.json", "trials.json"


def lacks_tables(folder: Path) -> str | None:
    """Return why a folder of `bench` has no table of runs; None if it has one, or is another folder."""
    if (folder / RUNS_FILE).is_file():
        return None
    if (folder / SWEEP_FILE).is_file():
        go_on = f"equipoise bench --out {folder} --resume"
    elif (folder / SEARCH_FILE).is_file():
        go_on = "the command that began it, with --resume,"
    else:
        return None
    return f"an interrupted sweep without its tables; {go_on} completes it and writes them"


class RowRejection(Struct, frozen=True, kw_only=True):
    """Input that was not used, or was used with a warning.

    kind: groups similar cases. where: the file. detail: what was found.
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
    """Rejections counted by kind, each with its first example, in bounded memory."""

    kinds: dict[str, RejectionCount] = field(default_factory=dict)

    def refuse(self, kind: str, where: str, detail: str, *, count: int = 1) -> None:
        """Count a rejection; arguments as the fields of RowRejection."""
        self.add(RowRejection(kind=kind, where=where, detail=detail), count)

    def add(self, rejection: RowRejection, count: int = 1) -> None:
        """Count a rejection; the first of each kind is kept as its example."""
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
        """Add the counts of another tally; existing examples are kept."""
        for counted in other.kinds.values():
            self.add(counted.first, counted.count)

    def rows(self) -> list[dict[str, Any]]:
        """Return one record per kind, `{kind, count, first, where}`, sorted by kind."""
        return [
            {"kind": kind, "count": seen.count, "first": seen.first.detail, "where": seen.first.where}
            for kind, seen in sorted(self.kinds.items())
        ]


class UnknownName(Struct, frozen=True, kw_only=True):
    """A name that no table maps: its kind, raw text, number of entries, and the file to edit.

    near: similar known names.
    """

    kind: str
    raw: str
    count: int
    edit: str
    near: tuple[str, ...] = ()


class ReaderResult(Struct, frozen=True, kw_only=True):
    """A reader's result: rows of the tables, rejections and unknown names.

    num_runs_rejected: files that look like the log of a run but are not in any row.
    """

    runs: list[Row]
    scores: list[Row]
    num_runs_rejected: int
    rejected: Tally
    unknown_names: tuple[UnknownName, ...] = ()


class SourceFacts(Struct, frozen=True, kw_only=True):
    """The facts parsed from one source.

    context: names of the folders above the source's paths, outermost first; for an archive, its own name.
    facts: by path inside the source.
    named: whether the user named the source; False for descriptions found next to a named source.
    """

    context: tuple[str, ...]
    facts: Mapping[str, Any]
    named: bool = True


class Reader(Struct, frozen=True, kw_only=True):
    """A reader of one kind of evidence. Its functions are importable by name, so that workers can run them.

    wanted: whether the reader needs a file, from its path and size in bytes; other files are not loaded.
    passed_over: a warning for an unwanted file that looks like evidence; None for ordinary files.
    parse: converts one file to small facts, or a RowRejection; runs in workers, in any order; never raises.
    assemble: converts the facts of all sources, in order, to rows; the catalogue resolves names.
    """

    name: str
    wanted: Callable[[str, int], bool]
    passed_over: Callable[[str], RowRejection | None]
    parse: Callable[[Blob], Any]
    assemble: Callable[[Sequence[SourceFacts], "Catalogue"], ReaderResult]
