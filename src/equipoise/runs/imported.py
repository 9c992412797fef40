"""Runs that other tools recorded, as rows of the tables: origin `imported`, never scored."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import DataError
from equipoise.runs.ingest import IngestReport
from equipoise.runs.reader import Row, Tally, UnknownName
from equipoise.runs.readers.cells import BATCH, SIZE, TIMED, UNIT_S, TextRow, amount, count
from equipoise.runs.readers.exports import exported
from equipoise.runs.store import RUNS, SCORES, Tables, frame_of, unscored_entries, write_tables
from equipoise.spec.catalogue import Catalogue, shipped

SUFFIXES = frozenset({".csv", ".parquet", ".jsonl", ".extra-p"})
ORIGIN = "imported"
# A score is the official time to a stated target.
NO_SCORE = "imported runs; no official score"
# The names that a catalogue knows, and the file to edit where it does not.
_EDITS = {"workload": "workloads.toml: --workloads FILE", "accelerator": "hardware.toml: --hardware FILE"}
_TEXTS = ("system", "submitter", "precision", "framework", "strategy")


def import_runs(
    paths: Sequence[Path],
    *,
    columns: Mapping[str, str],
    constants: Mapping[str, str],
    into: Path | None = None,
    catalogue: Catalogue | None = None,
) -> IngestReport:
    """The runs of exported files as the two tables, written into a folder where one is named.

    columns: our names -> theirs. constants: workload and accelerator of files that have no such column.
    catalogue: what names mean; the shipped one unless given.
    Raises DataError naming the file, row and column, what was found and what was expected.
    """
    known = catalogue or shipped()
    if "accelerator" in constants:
        typed = known.hardware.find(constants["accelerator"])
        constants = constants if typed is None else {**constants, "accelerator": typed.slug}
    runs: list[Row] = []
    rejected = Tally()
    for path in paths:
        found = exported(path, columns)
        campaign = path.name.removesuffix(path.suffix) or path.name
        if not found.rows:
            raise DataError(f"{path.name}: no run; expected a header and one row per finished run")
        runs += [
            _run(cells, number, campaign, path.name) | _names(cells, constants, known)
            for number, cells in enumerate(found.rows, 1)
        ]
        for note in found.notes:
            rejected.refuse("import_note", path.name, note)
    entries = unscored_entries(runs, NO_SCORE)
    for number, entry in enumerate(entries, 1):
        entry["entry_id"] = f"{entry['campaign']}/entry {number}"
    report = IngestReport(
        runs=frame_of(runs, RUNS),
        scores=frame_of(entries, SCORES),
        num_runs_rejected=0,
        rejected=rejected,
        unknown_names=_unknown(runs, known),
    )
    if into is not None:
        write_tables(Tables(runs=report.runs, scores=report.scores), into)
    return report


def _run(row: TextRow, number: int, campaign: str, file: str) -> dict[str, Any]:
    """One row of `runs`. Raises DataError for a value that its column does not allow."""
    if SIZE not in row.cells:
        raise DataError(f"{row.place}: no column {SIZE}; name it with --column {SIZE}=NAME")
    facts: dict[str, Any] = dict.fromkeys(RUNS.names)
    size = count(row, SIZE)
    facts |= {name: row.cells.get(name, "").strip() or None for name in _TEXTS}
    facts |= {
        "run_id": f"{campaign}/{number}",
        "origin": ORIGIN,
        "campaign": campaign,
        SIZE: size,
        "num_nodes": count(row, "num_nodes") if row.cells.get("num_nodes", "").strip() else None,
        BATCH: count(row, BATCH) if row.cells.get(BATCH, "").strip() else None,
        "status": row.cells.get("status", "").strip().lower() or "success",
        "energy_j": amount(row, "energy_j") if row.cells.get("energy_j", "").strip() else None,
        "source_uri": file,
        "source_line": number,
    }
    return facts | _timed(row, facts[BATCH])


def _timed(row: TextRow, batch: int | None) -> dict[str, float]:
    """Seconds to train and samples per second, from the columns that state either or seconds of a step."""
    found: dict[str, float] = {}
    for name in row.cells:
        unit = TIMED.fullmatch(name)
        if unit is None or not row.cells[name].strip():
            continue
        value = amount(row, name)
        if unit[3]:
            found["samples_per_s"] = value / UNIT_S[unit[4]]
        elif unit[1] == "time_to_train":
            found["time_to_train_s"] = value * UNIT_S[unit[2]]
        elif batch is not None:
            found.setdefault("samples_per_s", batch / (value * UNIT_S[unit[2]]))
    if not found:
        raise DataError(
            f"{row.place}: no time; expected time_to_train_s, samples_per_s, or step_s and {BATCH}: name a "
            "column with --column samples_per_s=NAME"
        )
    return found


def _names(row: TextRow, constants: Mapping[str, str], catalogue: Catalogue) -> dict[str, str | None]:
    """Workload and accelerator as the catalogue spells them; a raw name where it does not have it."""
    raw = {name: row.cells.get(name, "").strip() or constants.get(name) for name in _EDITS}
    return {name: (_slug(catalogue, name, text) or text) if text else None for name, text in raw.items()}


def _slug(catalogue: Catalogue, kind: str, name: str) -> str | None:
    return catalogue.workload_slug(name) if kind == "workload" else catalogue.accelerator_slug(name)


def _unknown(runs: Sequence[Row], catalogue: Catalogue) -> tuple[UnknownName, ...]:
    """Names that no catalogue has, kept raw."""
    found = Counter((kind, row[kind]) for row in runs for kind in _EDITS if row[kind] is not None)
    return tuple(
        UnknownName(kind=kind, raw=raw, count=count, edit=_EDITS[kind])
        for (kind, raw), count in found.items()
        if _slug(catalogue, kind, raw) is None
    )
