"""The dataset inside the package: its tables, version and rounds, and what replaces it."""

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
    """One round of a dataset: its name (`v4.1`) and what it holds."""

    name: str
    num_entries: int
    num_scored: int
    num_runs: int


@cache
def _facts() -> dict[str, Any]:
    """The content of dataset.toml. Raises DataError when it is absent or damaged."""
    try:
        return shipped_table(_DATA / _FACTS)
    except (OSError, ValueError) as err:
        raise DataError(f"the embedded dataset cannot be read ({err}); {_REMEDY}") from err


def version() -> str:
    """The version of the embedded dataset: first and last round, and the head of a hash over both tables."""
    return str(_facts()["version"])


def rounds() -> tuple[Round, ...]:
    """The rounds of the embedded dataset, oldest first."""
    return tuple(Round(**each) for each in _facts()["rounds"])


def load() -> "Tables":
    """The embedded tables. Raises DataError when their bytes are not those that dataset.toml promises."""
    from equipoise.runs.store import Tables  # noqa: PLC0415 - Polars only where tables are loaded

    return Tables(runs=_shipped_table("runs"), scores=_shipped_table("scores"))


@cache
def _shipped_table(name: str) -> "pl.DataFrame":
    from equipoise.runs.store import TABLES, read_bytes  # noqa: PLC0415 - as above

    table = next(each for each in TABLES if each.name == name)
    return read_bytes(_checked(name), table, f"{name}.parquet", is_ours=True)


def _checked(name: str) -> bytes:
    """The bytes of a file, as dataset.toml names and promises them."""
    promised = _facts()[name]
    data: bytes = (_DATA / promised["file"]).read_bytes()
    if sha256(data).hexdigest() != promised["sha256"]:
        raise DataError(f"the embedded table {promised['file']} differs from {_FACTS}; {_REMEDY}")
    return data


@cache
def _shipped_scores() -> "Scores":
    from equipoise.spec.mlperf import read_scores  # noqa: PLC0415 - only where results are asked for

    return read_scores(_checked("results"))


def tables(*, data: Folders | None = None, also: Folders = ()) -> "Tables":
    """The tables `runs` and `scores` that everything here reads.

    data: folders that `ingest --into` wrote, in place of the embedded dataset. also: such folders too;
    where two hold the same entry (see `merged`), the later one's is taken.
    """
    from equipoise.runs.store import merged, read_tables  # noqa: PLC0415 - as in load

    chosen = paths(data) if data else ()
    first = read_tables(chosen[0]) if chosen else load()
    return reduce(merged, [read_tables(folder) for folder in (*chosen[1:], *paths(also))], first)


def score_table(*, data: Folders | None = None, also: Folders = ()) -> "pl.DataFrame":
    """The table `scores` of `tables`, without reading the runs that are embedded."""
    if not data and not paths(also):
        return _shipped_table("scores")
    return tables(data=data, also=also).scores


def scores(*, data: Folders | None = None, also: Folders = ()) -> "Scores":
    """The comparable entries of `tables`, which every estimate reads; those embedded without any frame."""
    if not data and not paths(also):
        return _shipped_scores()
    from equipoise.runs.store import scores_of  # noqa: PLC0415 - as in load

    return scores_of(score_table(data=data, also=also))
