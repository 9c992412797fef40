"""Ingests results into tables: published results, divided among workers, and runs exported by other tools."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from equipoise.errors import DataError, SpecError, UsageError, expect_whole
from equipoise.files import each_once, one_path
from equipoise.files import paths as given_paths
from equipoise.runs import (
    Progress,
    ReaderResult,
    Row,
    RowRejection,
    SourceFacts,
    Tally,
    UnknownName,
)
from equipoise.runs.readers import READERS
from equipoise.runs.readers.cells import (
    BATCH,
    OF_MLPERF,
    PRECISION,
    SEQUENCE,
    SIZE,
    STATUS,
    STRATEGY,
    TIMED,
    UNIT_S,
    TextRow,
    amount,
    count,
    expect_time,
    is_success,
    rates_of,
    stated_amount,
    stated_amount_or_zero,
    wanted_column,
)
from equipoise.runs.readers.exports import MODEL, campaign_of, columns_of, exported
from equipoise.runs.sources import ARCHIVE_SUFFIXES, DataSource, open_source
from equipoise.runs.sources.gate import ReadLimits
from equipoise.runs.workers import Division, ShareResult, SourceShare, context_of, num_cores, parse_shares
from equipoise.spec import hardware, workload
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.mlperf import round_order

if TYPE_CHECKING:
    import polars as pl

    from equipoise.runs.store import Tables

# Below this, a second process does not pay off: starting one takes about 0.1 s, the time to parse 40 MB.
_MIN_SHARED_BYTES = 40_000_000
# The rounds v0.5 to v5.0 as .tar.zst expand 11 to 35 times; this affects only the progress bar.
_COMPRESSION = 20
# Every worker reads a whole archive, so further workers have diminishing returns.
_MAX_WORKERS = 8
# The largest `num_workers` that a caller may request.
_MAX_PROCESSES = 1024


class IngestReport(Struct, frozen=True, kw_only=True):
    """The result of ingesting: the two tables, rejections and warnings, and unknown names."""

    runs: "pl.DataFrame"
    scores: "pl.DataFrame"
    num_runs_rejected: int
    rejected: Tally
    unknown_names: tuple[UnknownName, ...]

    @property
    def rounds(self) -> tuple[str, ...]:
        """The rounds found, in order, and other campaigns."""
        return tuple(sorted(self.scores["campaign"].drop_nulls().unique(), key=round_order))

    @property
    def num_entries_kept(self) -> int:
        """Number of entries, including unscored ones."""
        return len(self.scores)

    @property
    def num_entries_unscored(self) -> int:
        """Number of entries without an official score; each states its reason."""
        return self.scores["score_s"].null_count()

    @property
    def num_runs_kept(self) -> int:
        """Number of rows of `runs`."""
        return len(self.runs)


class _Work(Struct, frozen=True, kw_only=True):
    """One source to read, with its size."""

    source: DataSource
    size_bytes: int
    named: bool


def ingest(
    paths: Iterable[Path] | Iterable[str] | Path | str,
    *,
    into: Path | str | None = None,
    column: str | Sequence[str] | Mapping[str, object] = (),
    workload: str | None = None,
    accelerator: str | None = None,
    progress: Progress | None = None,
    num_workers: int | None = None,
    catalogue: Catalogue | None = None,
    limits: ReadLimits | None = None,
) -> IngestReport:
    """Read rounds, folders, archives, git repositories, single logs, or exports of trackers into tables.

    into: a folder for runs.parquet and scores.parquet, written atomically; nothing is written if no entry was
    found. column: for exports only, the names of their columns, or a number that they do not state, e.g.
    `num_accelerators=8` or {"num_accelerators": 8}. workload, accelerator: for exports only, of every row
    that does not name its own. num_workers: processes that parse results, by default one per core; the tables
    do not depend on it. catalogue: resolves names; the shipped one by default. limits: of each source other
    than an export.
    Raises UsageError for invalid paths, or for arguments of exports without an export; DataError for a file
    that cannot be opened and for exports without a readable row. Other bad content never raises but is
    counted in the report.
    """
    named = [*given_paths(paths)]
    if not named:
        raise UsageError("paths: none is given; expected checkouts, archives, git repositories or logs")
    folder = None if into is None else one_path(into)
    if num_workers is not None:
        expect_whole("num_workers", num_workers, most=_MAX_PROCESSES)
    constants = {
        name: each
        for name, each in (("workload", workload), ("accelerator", accelerator))
        if each is not None
    }
    if exports := _exports_of(named):
        return _import_runs(
            exports, columns=columns_of(column), constants=constants, into=folder, catalogue=catalogue
        )
    if column or constants:
        raise UsageError(
            "--column, --workload and --accelerator apply to exports only: .csv, .tsv, .parquet, .jsonl and "
            f"a Hugging Face Trainer's {', '.join(sorted(OF_TRAINER))}"
        )
    works = [work for path in named for work in _works(path, limits or ReadLimits())]
    results = _parsed(works, progress, num_workers or min(num_cores(), _MAX_WORKERS))
    readings, rejected = _assembled(works, results, catalogue or shipped())
    runs = [row for reading in readings for row in reading.runs]
    scores = [row for reading in readings for row in reading.scores]
    tables = _tables(runs, scores, into=folder if scores else None)
    return IngestReport(
        runs=tables.runs,
        scores=tables.scores,
        num_runs_rejected=sum(reading.num_runs_rejected for reading in readings),
        rejected=rejected,
        unknown_names=tuple(name for reading in readings for name in reading.unknown_names),
    )


def _tables(runs: Sequence[Row], scores: Sequence[Row], *, into: Path | None) -> "Tables":
    """Return both tables from their rows, and write them into a folder if one is given."""
    from equipoise.runs.store import RUNS, SCORES, Tables, frame_of, write_tables  # noqa: PLC0415 - see _load

    tables = Tables(runs=frame_of(runs, RUNS), scores=frame_of(scores, SCORES))
    if into is not None:
        write_tables(tables, into)
    return tables


def _load() -> None:
    """Import what is needed to build tables, while workers parse."""
    import_module("equipoise.runs.store")
    shipped()


def _works(path: Path, limits: ReadLimits) -> list[_Work]:
    """Return the source at a path, archives in a folder, and system descriptions for a part of a round."""
    source = open_source(path, limits)
    found = [_measured(source)]
    if source.kind.name == "directory":
        found += [
            _measured(open_source(child, limits))
            for child in sorted(path.iterdir())
            if child.name.lower().endswith(ARCHIVE_SUFFIXES) and child.is_file() and not child.is_symlink()
        ]
    if source.kind.name in {"directory", "file"}:
        parts = path.resolve().parts
        lower = [part.lower() for part in parts]
        if "results" in lower:
            systems = Path(*parts[: len(parts) - 1 - lower[::-1].index("results")], "systems")
            if systems.is_dir():
                found.append(_measured(open_source(systems, limits), named=False))
    return found


def _measured(source: DataSource, *, named: bool = True) -> _Work:
    """Return a source with its size: the wanted bytes of a folder, an estimate for other sources."""
    if source.kind.name in {"archive", "git"}:
        size = source.path.stat().st_size if source.path.is_file() else _MIN_SHARED_BYTES
        if source.path.suffix not in {".tar", ".git"}:
            size *= _COMPRESSION
        return _Work(source=source, size_bytes=size, named=named)
    whole = Division(SourceShare(source=source, index=0, count=1))
    total = 0

    def measure(path: str, size: int) -> bool:
        nonlocal total
        total += size if whole.reader(path, size) is not None else 0
        return False

    for _ in source.files(measure):
        pass
    return _Work(source=source, size_bytes=total, named=named)


def _shares(works: Sequence[_Work], num_workers: int) -> list[tuple[int, SourceShare]]:
    """Return the shares of each source with its index, largest first to balance the workers.

    Large sources are divided among the workers only if there are fewer of them than workers.
    """
    total = sum(work.size_bytes for work in works)
    large = {index for index, work in enumerate(works) if work.size_bytes * num_workers * 2 > total}
    divided = large if len(large) < num_workers else set()
    shares = []
    for index in sorted(range(len(works)), key=lambda index: (-works[index].size_bytes, index)):
        count = num_workers if index in divided else 1
        source = works[index].source
        shares += [(index, SourceShare(source=source, index=part, count=count)) for part in range(count)]
    return shares


def _parsed(works: Sequence[_Work], progress: Progress | None, num_workers: int) -> list[list[ShareResult]]:
    """Return the results of every source's shares, by source, in the order of the shares."""
    total = sum(work.size_bytes for work in works)
    if not any(work.source.kind.name in {"archive", "git"} for work in works) and total < _MIN_SHARED_BYTES:
        num_workers = 1
    shares = _shares(works, num_workers)
    sizes = {work.source.path: work.size_bytes for work in works}
    seen: dict[Path, int] = {}

    def parsed(share: SourceShare, num_bytes: int) -> None:
        if progress is not None:
            path = share.source.path
            seen[path] = seen.get(path, 0) + num_bytes
            done = sum(min(count, sizes[path]) for path, count in seen.items())
            progress(path.name, done, total)

    if progress is not None and works:
        progress(works[0].source.name, 0, total)
    found = parse_shares(
        [share for _, share in shares], num_workers=num_workers, parsed=parsed, meanwhile=_load
    )
    results: list[list[ShareResult]] = [[] for _ in works]
    for (index, _), result in zip(shares, found, strict=True):
        results[index].append(result)
    if progress is not None and works:
        progress("done", total, total)
    return results


def _assembled(
    works: Sequence[_Work], results: Sequence[Sequence[ShareResult]], catalogue: Catalogue
) -> tuple[list[ReaderResult], Tally]:
    """Return each reader's result over all sources, and the tally of all rejections."""
    rejected = Tally()
    for found in results:
        # Every share repeats the rejections that concern the whole source.
        rejected.extend(dict.fromkeys(each for result in found for each in result.rejections))
        for result in found:
            rejected.merge(result.passed_over)
    readings = []
    for reader in READERS:
        sources = [
            SourceFacts(context=context_of(work.source), facts=_merged(found, reader.name), named=work.named)
            for work, found in zip(works, results, strict=True)
        ]
        reading = reader.assemble(sources, catalogue)
        rejected.merge(reading.rejected)
        readings.append(reading)
    if not any(reading.scores for reading in readings):
        rejected.extend(
            RowRejection(
                kind="no_results",
                where=work.source.name,
                detail="no result found; expected <org>/results/<system>/<benchmark>/result_*.txt, or a log",
            )
            for work in works
            if work.named
        )
    return readings, rejected


def _merged(results: Sequence[ShareResult], reader: str) -> dict[str, Any]:
    """Return the facts of one source for one reader, sorted by path."""
    facts: dict[str, Any] = {}
    for result in results:
        facts |= result.facts.get(reader, {})
    return dict(sorted(facts.items()))


SUFFIXES = frozenset({".csv", ".tsv", ".parquet", ".jsonl", ".extra-p"})
_TABLES = frozenset({".csv", ".tsv"})  # exports that are found in a folder
_OF_LOGS = frozenset({".txt", ".log", *ARCHIVE_SUFFIXES})
_JSON, _HEAD_BYTES = ".json", 1024
# Files that the Trainer of transformers writes about a training (`save_metrics`, `save_state`).
OF_TRAINER = frozenset({"all_results.json", "train_results.json", "trainer_state.json"})
ORIGIN = "imported"
# A score is the official time to a quality target.
NO_SCORE = "imported runs; no official score"
# The columns whose names the catalogue resolves, and the file to edit for an unknown name.
_EDITS = {"workload": workload.EDIT, "accelerator": hardware.EDIT}
_TEXTS = ("system", "submitter", "division", "availability", PRECISION, "framework", STRATEGY)


def _exports_of(paths: Sequence[Path]) -> list[Path]:
    """Return the exports of other tools at these paths, recognised by file name; empty if there are none.

    Raises UsageError if only some paths are exports.
    """
    found = [_exports_at(path) for path in paths]
    exports = [path for some in found for path in some]
    if exports and not all(found):
        num_others = sum(not some for some in found)
        raise UsageError(
            f"{exports[0].name} is an export, {num_others} others are not; ingest them separately"
        )
    return exports


def _exports_at(path: Path) -> list[Path]:
    """Return the export at a path, or the tables in a folder without logs and subfolders."""
    if path.is_dir():
        inside = sorted(path.iterdir())
        is_of_logs = any(each.is_dir() or each.suffix.lower() in _OF_LOGS for each in inside)
        return [] if is_of_logs else [each for each in inside if each.suffix.lower() in _TABLES]
    suffix = path.suffix.lower()
    # Other JSON counts only if it is a list, which is rejected later with a reason; a system description is
    # an object.
    is_export = suffix in SUFFIXES or path.name in OF_TRAINER
    is_export = is_export or (suffix == _JSON and path.is_file() and _begins_as_list(path))
    return [path] if is_export and path.is_file() else []


def _begins_as_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).lstrip().startswith(b"[")


def _import_runs(
    paths: Sequence[Path],
    *,
    columns: Mapping[str, str],
    constants: Mapping[str, str],
    into: Path | None = None,
    catalogue: Catalogue | None = None,
) -> IngestReport:
    """Import the runs of exported files into the two tables; write them into a folder if one is given.

    columns: our names -> theirs. constants: workload and accelerator of files without such a column.
    catalogue: resolves names; the shipped one by default.
    Unreadable rows are counted. Raises DataError for a file that is not a table, and if no row is readable;
    it then names file, row and column of the first row, with the value found and what was expected.
    """
    from equipoise.runs.store import unscored_entries  # noqa: PLC0415 - see _load

    known = catalogue or shipped()
    runs: list[Row] = []
    rejected = Tally()
    refused: list[DataError] = []
    num_unfinished = 0
    files: dict[str, Path] = {}
    for path, campaign in zip(paths, _campaign_names(paths), strict=True):
        found = runs_of_file(path, columns=columns, constants=constants, catalogue=known, campaign=campaign)
        _expect_new(found.rows, path, files)
        runs += found.rows
        refused += found.refused
        num_unfinished += len(found.unfinished)
        for err in found.refused:
            rejected.refuse("unreadable_row", path.name, str(err))
        for why in found.unfinished:
            rejected.refuse("unfinished_run", path.name, why)
        if found.notes:
            rejected.refuse("import_note", path.name, " ".join(found.notes))
    if refused and not runs:
        raise refused[0]
    entries = unscored_entries(runs, NO_SCORE)
    for number, entry in enumerate(entries, 1):
        entry["entry_id"] = f"{entry['campaign']}/entry {number}"
    tables = _tables(runs, entries, into=into)
    return IngestReport(
        runs=tables.runs,
        scores=tables.scores,
        num_runs_rejected=len(refused) + num_unfinished,
        rejected=rejected,
        unknown_names=_unknown(runs, known),
    )


def _campaign_names(paths: Sequence[Path]) -> list[str]:
    """Return the campaign of each file: its name, with as many folders as needed to make it unique.

    Raises UsageError for a file that is given twice.
    """
    resolved = each_once(paths)
    named = [campaign_of(path) for path in paths]
    depth = 1
    while len({*named}) < len(named):
        named = ["/".join(path.parts[-depth:]) for path in resolved]
        depth += 1
    return named


def _expect_new(rows: Sequence[Row], path: Path, files: dict[str, Path]) -> None:
    """Raise DataError if a file repeats a run of an earlier file.

    files: the earlier files by run id, to which the runs of this file are added.
    """
    for row in rows:
        file = files.setdefault(row["run_id"], path)
        if file != path:
            raise DataError(
                f"{path} states the run {row['run_id']!r}, which {file} has too; expected each once: leave "
                "one of the files out"
            )


class Unstated(Struct, frozen=True, kw_only=True):
    """Default values for rows that do not state them; None is unknown.

    sequence_tokens: tokens per sample, for rows with a rate in tokens.
    """

    sequence_tokens: float | None = None
    global_batch_samples: int | None = None


NOTHING: Final = Unstated()


class FileRuns(Struct, frozen=True, kw_only=True):
    """The rows of `runs` from a file, the errors of refused rows, and notes on assumptions.

    unfinished: a sentence for each tracked run that did not finish or lacks a value. apart: by run id, the
    values of columns that do not map to a column of `runs` by which configurations are distinguished.
    """

    rows: tuple[Row, ...]
    refused: tuple[DataError, ...]
    unfinished: tuple[str, ...]
    notes: tuple[str, ...]
    apart: Mapping[str, Mapping[str, str]]


def runs_of_file(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, str] | None = None,
    catalogue: Catalogue | None,
    unstated: Unstated = NOTHING,
    asked: Sequence[str] = (),
    campaign: str | None = None,
) -> FileRuns:
    """Return the runs of one exported file; columns, constants and catalogue are as in `_import_runs`.

    unstated: defaults for rows that do not state a value. asked: slugs of the accelerators in a question.
    campaign: the prefix of run names; by default the file's name.
    Raises DataError for a file that is not a table or has no row.
    """
    exports = exported(path, columns, campaign=campaign)
    if not exports.rows:
        why = f"; {len(exports.unfinished)} left out: {exports.unfinished[0]}" if exports.unfinished else ""
        raise DataError(f"{path.name}: no run{why}; expected a header and one row per finished run")
    rows, refused = [], []
    for cells in exports.rows:
        try:
            _expect_whole(cells)
            names = _names(cells, constants or {}, catalogue or shipped(), asked)
            rows.append(_run(cells, campaign or campaign_of(path), path.name, unstated) | names)
        except DataError as err:
            refused.append(err)
    return FileRuns(
        rows=tuple(rows),
        refused=tuple(refused),
        unfinished=exports.unfinished,
        notes=exports.notes,
        apart={row.run_id: _apart(row) for row in exports.rows},
    )


# Known columns that are nevertheless not used to distinguish configurations.
_NOT_TOLD_APART: Final = frozenset({"framework", "system"})


def _apart(row: TextRow) -> dict[str, str]:
    return {
        name: text
        for name, cell in row.cells.items()
        if (text := cell.strip()) and (name in _NOT_TOLD_APART or not (wanted_column(name) or name == MODEL))
    }


def _expect_whole(row: TextRow) -> None:
    """Raise DataError for a row whose cells cannot be assigned to columns."""
    if row.fault:
        raise DataError(row.fault)


def _run(row: TextRow, campaign: str, file: str, defaults: Unstated) -> dict[str, Any]:
    """Return one row of `runs`. Raises DataError for a value that its column does not allow."""
    if SIZE not in row.cells:
        raise DataError(
            f"{row.place}: no column {SIZE}; rename yours, or name it with `ingest --column {SIZE}=NAME`, "
            "or give the number itself instead of NAME"
        )
    from equipoise.runs.store import RUNS  # noqa: PLC0415 - see _load

    facts: dict[str, Any] = dict.fromkeys(RUNS.names)
    size, status = count(row, SIZE), row.cells.get(STATUS, "").strip().lower()
    sequence_tokens = stated_amount(row, SEQUENCE)
    facts |= {name: row.cells.get(name, "").strip() or None for name in _TEXTS}
    facts |= {
        "run_id": row.run_id,
        "origin": ORIGIN,
        "campaign": campaign,
        SIZE: size,
        "num_nodes": count(row, "num_nodes") if row.cells.get("num_nodes", "").strip() else None,
        BATCH: count(row, BATCH) if row.cells.get(BATCH, "").strip() else defaults.global_batch_samples,
        "status": "success" if is_success(status) else status,
        SEQUENCE: sequence_tokens,
        "energy_j": stated_amount(row, "energy_j"),
        **{name: stated_amount_or_zero(row, name) for name in OF_MLPERF},
        "source_uri": file,
        "source_line": row.line,
    }
    return facts | _timed(row, facts[BATCH], sequence_tokens or defaults.sequence_tokens)


def _timed(row: TextRow, batch: int | None, sequence_tokens: float | None) -> dict[str, float]:
    """Return seconds to train and samples per second, from columns of times, samples, tokens or steps."""
    timed = {name: unit for name in row.cells if (unit := TIMED.fullmatch(name)) is not None}
    filled = {name: unit for name, unit in timed.items() if row.cells[name].strip()}
    if timed and not filled:
        name = next(iter(timed))
        raise DataError(f"{row.place}, column {row.written(name)}: empty; expected a number")
    found: dict[str, float] = {}
    rated = []
    # In this order: rates in samples, rates in tokens, and times.
    for name, unit in sorted(filled.items(), key=lambda each: each[1][3] or "z"):
        if unit[1] == "time_to_train":
            found["time_to_train_s"] = expect_time(row, name, amount(row, name) * UNIT_S[unit[2]])
        else:
            rated.append(name)
    rates = rates_of(row, rated, batch_samples=batch, sequence_tokens=sequence_tokens)
    if rates:
        found["samples_per_s"] = next(iter(rates.values()))
    if not found:
        lacking = [f"{name} without {SEQUENCE if filled[name][3] else BATCH}" for name in rated]
        raise DataError(
            f"{row.place}: {', '.join(lacking) or 'no time'}; expected a column time_to_train_s, "
            f"samples_per_s, step_s and {BATCH}, or tokens_per_s and {SEQUENCE}: rename yours, or name it "
            "with `ingest --column samples_per_s=NAME`"
        )
    return found


def _names(
    row: TextRow, constants: Mapping[str, str], catalogue: Catalogue, asked: Sequence[str]
) -> dict[str, str | None]:
    """Return the catalogue's slugs of workload and accelerator; the raw name if it is not in the catalogue.

    Raises DataError for an ambiguous accelerator.
    """
    raw = {name: row.cells.get(name, "").strip() or constants.get(name) for name in _EDITS}
    model = row.cells.get(MODEL, "").strip()
    if raw["workload"] is None and model:
        raw["workload"] = catalogue.workload_slug(model)
    try:
        return {
            name: (_slug(catalogue, name, text, asked) or text) if text else None
            for name, text in raw.items()
        }
    except SpecError as err:
        raise DataError(f"{row.place}: {err}") from err


def _slug(catalogue: Catalogue, kind: str, name: str, asked: Sequence[str] = ()) -> str | None:
    return catalogue.workload_slug(name) if kind == "workload" else catalogue.slug_in_file(name, asked)


def _unknown(runs: Sequence[Row], catalogue: Catalogue) -> tuple[UnknownName, ...]:
    """Return the names that are not in the catalogue."""
    found = Counter((kind, row[kind]) for row in runs for kind in _EDITS if row[kind] is not None)
    return tuple(
        UnknownName(kind=kind, raw=raw, count=count, edit=_EDITS[kind], near=catalogue.near(kind, raw))
        for (kind, raw), count in found.items()
        if _slug(catalogue, kind, raw) is None
    )
