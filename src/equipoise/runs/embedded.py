"""The dataset inside the package: its tables, version and rounds, and the folders that replace it."""

from functools import cache, reduce
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from equipoise.errors import DataError
from equipoise.files import Folders, paths, shipped_table

if TYPE_CHECKING:
    import polars as pl

    from equipoise.runs.store import Tables
    from equipoise.spec.mlperf import Scores

_FACTS = "dataset.toml"
_DATA = Path(__file__).parents[1] / "data"
_REMEDY = "reinstall the package, or run `make dataset`"


class Round(Struct, frozen=True, kw_only=True):
    """One round of a dataset: its name (`v4.1`) and its numbers of entries and runs."""

    name: str
    num_entries: int
    num_scored: int
    num_runs: int


@cache
def _facts() -> dict[str, Any]:
    """Return the content of dataset.toml. Raises DataError if it is absent or damaged."""
    try:
        return shipped_table(_DATA / _FACTS)
    except (OSError, ValueError) as err:
        raise DataError(f"the embedded dataset cannot be read ({err}); {_REMEDY}") from err


def version() -> str:
    """Return the version of the embedded dataset: first and last round, and a short hash of both tables."""
    return str(_facts()["version"])


def rounds() -> tuple[Round, ...]:
    """Return the rounds of the embedded dataset, oldest first."""
    return tuple(Round(**each) for each in _facts()["rounds"])


def load() -> "Tables":
    """Return the embedded tables. Raises DataError if their hashes differ from those in dataset.toml."""
    from equipoise.runs.store import Tables  # noqa: PLC0415 - imports Polars

    return Tables(runs=_shipped_table("runs"), scores=_shipped_table("scores"))


@cache
def _shipped_table(name: str) -> "pl.DataFrame":
    from equipoise.runs.store import TABLES, read_bytes  # noqa: PLC0415 - as above

    table = next(each for each in TABLES if each.name == name)
    return read_bytes(_checked(name), table, f"{name}.parquet", is_ours=True)


def _checked(name: str) -> bytes:
    """Return the bytes of a file listed in dataset.toml, after checking their hash."""
    stated = _facts()[name]
    data: bytes = (_DATA / stated["file"]).read_bytes()
    if sha256(data).hexdigest() != stated["sha256"]:
        raise DataError(f"the embedded table {stated['file']} differs from {_FACTS}; {_REMEDY}")
    return data


@cache
def _shipped_scores() -> "Scores":
    from equipoise.spec.mlperf import read_scores  # noqa: PLC0415 - only needed for results

    return read_scores(_checked("results"))


def tables(*, data: Folders | None = None, also: Folders = ()) -> "Tables":
    """Return the tables `runs` and `scores` in use.

    data: folders of `ingest --into` that replace the embedded dataset. also: further such folders; if two
    contain the same entry (see `merged`), that of the later folder is used.
    """
    from equipoise.runs.store import merged, read_tables  # noqa: PLC0415 - as in load

    chosen = paths(data) if data else ()
    first = read_tables(chosen[0]) if chosen else load()
    return reduce(merged, [read_tables(folder) for folder in (*chosen[1:], *paths(also))], first)


def score_table(*, data: Folders | None = None, also: Folders = ()) -> "pl.DataFrame":
    """Return the table `scores` of `tables`, without reading the embedded runs."""
    if not data and not paths(also):
        return _shipped_table("scores")
    return tables(data=data, also=also).scores


def scores(*, data: Folders | None = None, also: Folders = ()) -> "Scores":
    """Return the comparable entries of `tables`, which every estimate reads; embedded ones without Polars."""
    if not data and not paths(also):
        return _shipped_scores()
    from equipoise.runs.store import scores_of  # noqa: PLC0415 - as in load

    return scores_of(score_table(data=data, also=also))
