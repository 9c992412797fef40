"""The tables that answers rest on: the embedded ones, or those of folders that `ingest --into` wrote."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TypeAlias

from equipoise.runs import embedded
from equipoise.runs.store import Tables, merged, read_tables

Folders: TypeAlias = Path | str | Sequence[Path | str]


def tables(*, data: Folders | None = None, also: Folders = ()) -> Tables:
    """The tables `runs` and `scores` that everything here reads.

    data: folders that `ingest --into` wrote, in place of the embedded dataset. also: such folders beside it;
    where two hold the same entry, the later one's is taken.
    """
    chosen = paths(data) if data else ()
    first = read_tables(chosen[0]) if chosen else embedded.load()
    return reduce(merged, [read_tables(folder) for folder in (*chosen[1:], *paths(also))], first)


def paths(given: Folders) -> tuple[Path, ...]:
    """One folder, or several, as a tuple."""
    return (Path(given),) if isinstance(given, (str, Path)) else tuple(Path(each) for each in given)
