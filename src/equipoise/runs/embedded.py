"""The dataset inside the package.

Its tables, version and rounds, how it is made (`make dataset`), and what replaces it.
"""

import os
import sys
import tomllib
from collections.abc import Sequence
from functools import cache, reduce
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from equipoise.errors import DataError
from equipoise.spec.mlperf import round_key

if TYPE_CHECKING:
    from equipoise.runs.store import Tables

_FACTS = "dataset.toml"
_DATA = files("equipoise").joinpath("data")
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
        return tomllib.loads(_DATA.joinpath(_FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"the embedded dataset cannot be read ({err}); {_REMEDY}") from err


def version() -> str:
    """The version of the embedded dataset: first and last round, and the head of a hash over both tables."""
    return str(_facts()["version"])


def rounds() -> tuple[Round, ...]:
    """The rounds of the embedded dataset, oldest first."""
    return tuple(Round(**each) for each in _facts()["rounds"])


@cache
def load() -> "Tables":
    """The embedded tables. Raises DataError when their bytes are not those that dataset.toml promises."""
    from equipoise.runs import store  # noqa: PLC0415 - Polars only where tables are loaded

    frames = {}
    for table in (store.RUNS, store.SCORES):
        promised = _facts()[table.name]
        data = _DATA.joinpath(promised["file"]).read_bytes()
        if sha256(data).hexdigest() != promised["sha256"]:
            raise DataError(f"the embedded table {promised['file']} differs from {_FACTS}; {_REMEDY}")
        frames[table.name] = store.read_bytes(data, table, promised["file"])
    return store.Tables(**frames)


def _described(tables: "Tables", archives: "Sequence[Path]", folder: Path) -> str:
    """The text of dataset.toml for the tables in `folder`, from their bytes and the archives alone."""
    names = sorted(tables.scores["campaign"].unique().drop_nulls(), key=round_key)
    contents = {name: (folder / f"{name}.parquet").read_bytes() for name in ("runs", "scores")}
    digest = sha256(b"".join(sha256(data).digest() for data in contents.values())).hexdigest()
    lines = ["# Written by `make dataset`; not edited by hand."]
    lines += [f'version = "{names[0]}-{names[-1]}+{digest[:12]}"']
    for table, data in contents.items():
        lines += [
            "",
            f"[{table}]",
            f'file = "{table}.parquet"',
            f"num_rows = {len(getattr(tables, table))}",
            f"num_bytes = {len(data)}",
            f'sha256 = "{sha256(data).hexdigest()}"',
        ]
    for name in names:
        scores = tables.scores.filter(campaign=name)
        lines += [
            "",
            "[[rounds]]",
            f'name = "{name}"',
            f"num_entries = {len(scores)}",
            f"num_scored = {scores['score_s'].count()}",
            f"num_runs = {len(tables.runs.filter(campaign=name))}",
        ]
    for archive in archives:
        digest = sha256(archive.read_bytes()).hexdigest()
        lines += ["", "[[archives]]", f'name = "{archive.name}"', f'sha256 = "{digest}"']
    return "\n".join(lines) + "\n"


def build(archives: "Sequence[Path]", folder: Path) -> str:
    """Ingest the archives of rounds and write runs.parquet, scores.parquet and dataset.toml into `folder`.

    Returns the version. The bytes depend on the archives and the code alone: no date, no host, no order.
    Raises DataError when an archive cannot be used.
    """
    from equipoise.runs.ingest import ingest  # noqa: PLC0415 - Polars only where tables are made
    from equipoise.runs.store import Tables, write_tables  # noqa: PLC0415 - likewise

    report = ingest(sorted(archives, key=lambda archive: archive.name))
    tables = Tables(runs=report.runs, scores=report.scores)
    if tables.scores.is_empty():
        raise DataError(
            f"{', '.join(map(str, archives))}: no entry of any round; expected archives of rounds"
        )
    write_tables(tables, folder)
    text = _described(tables, sorted(archives, key=lambda archive: archive.name), folder)
    (folder / _FACTS).write_text(text, encoding="utf-8")
    return str(tomllib.loads(text)["version"])


def main() -> None:
    """Write the dataset of this checkout from the archives below $EQUIPOISE_DATA (default ../shared/data)."""
    package = Path(__file__).resolve().parents[1]
    data = Path(os.environ.get("EQUIPOISE_DATA", package.parents[2] / "shared" / "data"))
    archives = sorted((data / "mlperf").glob("training_results_v*.tar.*"))
    if not archives:
        raise SystemExit(f"{data}/mlperf: no training_results_v*.tar.*; set EQUIPOISE_DATA to its parent")
    sys.stdout.write(f"dataset {build(archives, package / 'data')} of {len(archives)} archives\n")


Folders: TypeAlias = Path | str | Sequence[Path | str]


def tables(*, data: Folders | None = None, also: Folders = ()) -> "Tables":
    """The tables `runs` and `scores` that everything here reads.

    data: folders that `ingest --into` wrote, in place of the embedded dataset. also: such folders too;
    where two hold the same entry, the later one's is taken.
    """
    from equipoise.runs.store import merged, read_tables  # noqa: PLC0415 - as in load

    chosen = paths(data) if data else ()
    first = read_tables(chosen[0]) if chosen else load()
    return reduce(merged, [read_tables(folder) for folder in (*chosen[1:], *paths(also))], first)


def paths(given: Folders) -> tuple[Path, ...]:
    """One folder, or several, as a tuple."""
    return (Path(given),) if isinstance(given, (str, Path)) else tuple(Path(each) for each in given)


if __name__ == "__main__":
    main()
