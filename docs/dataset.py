"""Writes the dataset of the package, src/equipoise/data, from the archives of rounds: `make dataset`."""

import os
import sys
import tomllib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from equipoise.errors import DataError
from equipoise.runs.ingest import ingest
from equipoise.runs.store import SHIPPED_ZSTD_LEVEL, Tables, scores_of, write_tables
from equipoise.spec.mlperf import round_key, written_scores

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "results.json"


def _described(tables: Tables, archives: Sequence[Path], folder: Path) -> str:
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
    rows = (folder / RESULTS).read_bytes()
    lines += ["", "[results]", f'file = "{RESULTS}"', f'sha256 = "{sha256(rows).hexdigest()}"']
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


def build(archives: Sequence[Path], folder: Path) -> str:
    """Ingest the archives of rounds and write both tables, results.json and dataset.toml into `folder`.

    Returns the version. The bytes depend on the archives and the code alone: no date, no host, no order.
    Raises DataError when an archive cannot be used.
    """
    report = ingest(sorted(archives, key=lambda archive: archive.name))
    tables = Tables(runs=report.runs, scores=report.scores)
    if tables.scores.is_empty():
        raise DataError(
            f"{', '.join(map(str, archives))}: no entry of any round; expected archives of rounds"
        )
    write_tables(tables, folder, zstd_level=SHIPPED_ZSTD_LEVEL)
    (folder / RESULTS).write_bytes(written_scores(scores_of(tables.scores)))
    text = _described(tables, sorted(archives, key=lambda archive: archive.name), folder)
    (folder / "dataset.toml").write_text(text, encoding="utf-8")
    return str(tomllib.loads(text)["version"])


def main() -> None:
    """Write the dataset of this checkout from the archives below $EQUIPOISE_DATA (default ../shared/data)."""
    data = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
    archives = sorted((data / "mlperf").glob("training_results_v*.tar.*"))
    if not archives:
        raise SystemExit(f"{data}/mlperf: no training_results_v*.tar.*; set EQUIPOISE_DATA to its parent")
    sys.stdout.write(
        f"dataset {build(archives, ROOT / 'src' / 'equipoise' / 'data')} of {len(archives)} archives\n"
    )


if __name__ == "__main__":
    main()
