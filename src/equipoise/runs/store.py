"""Tables on disk: checked against their schema on the way out and in, written whole or not at all."""

import io
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import polars as pl

from equipoise.errors import DataError
from equipoise.runs import writers
from equipoise.runs.schema import RUNS, SCORES, Kind, TableSchema
from equipoise.units import MIB

# The twelve rounds v0.5 to v5.0 take 2 MB and 15,000 rows; a hostile file must not fill the memory.
MAX_TABLE_BYTES = 256 * MIB
MAX_TABLE_ROWS = 1_000_000

_DTYPES: dict[Kind, type[pl.DataType]] = {"str": pl.String, "int": pl.Int64, "float": pl.Float64}

# What the probe runs: modules are found where this process finds them, whatever the working folder.
_PROBE = (
    "import sys; end = 2 + int(sys.argv[1]); sys.path[:] = sys.argv[2:end]; "
    "from equipoise.runs.probe import main; sys.exit(main(sys.argv[end:]))"
)
# Tables of the largest size are read in seconds.
_PROBE_S = 60.0

# Rows of `runs` and `scores` with the same values here belong to the same entry.
_ENTRY = ("campaign", "submitter", "system", "workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The two tables of one set of evidence."""

    runs: pl.DataFrame
    scores: pl.DataFrame


def polars_schema(table: TableSchema) -> pl.Schema:
    """The columns of a table, in order, with their Polars types."""
    return pl.Schema({column.name: _DTYPES[column.kind]() for column in table.columns})


def _check_schema(found: Mapping[str, pl.DataType], table: TableSchema, where: str) -> None:
    expected = polars_schema(table)
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    if missing or unknown:
        raise DataError(
            f"{where}: not the table `{table.name}`: missing columns {missing}, unknown columns {unknown}; "
            "write it anew with `equipoise ingest PATH... --into DIR`"
        )
    for name, dtype in expected.items():
        if found[name] != dtype:
            raise DataError(f"{where}: column {name} has type {found[name]}; expected {dtype}")


def _checked(frame: pl.DataFrame, table: TableSchema, where: str) -> pl.DataFrame:
    """The frame, columns in order, sorted by its key. Raises DataError where it breaks the schema."""
    _check_schema(frame.schema, table, where)
    for column in table.columns:
        values = frame[column.name]
        if column.kind == "float" and not values.is_finite().all():
            raise DataError(f"{where}: column {column.name} holds NaN or infinity; unknown is null")
        if column.name in table.key and values.null_count():
            raise DataError(f"{where}: column {column.name}, which names a row, is null in some row")
    twice = frame.select(table.key).filter(frame.select(table.key).is_duplicated())
    if len(twice):
        raise DataError(
            f"{where}: {len(twice)} rows share names, e.g. {twice.row(0)!r}; expected one row a name"
        )
    return frame.select(table.names).sort(table.key)


def _written_aside(frame: pl.DataFrame, path: Path, table: TableSchema) -> Path:
    """A file next to `path` that holds the table, safely on disk. Nothing is left when writing fails."""
    checked = _checked(frame, table, str(path))
    content = io.BytesIO()  # not the file itself: Polars reports a full disk as a fault of the Parquet format
    writers.write(checked, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        with aside.open("xb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_table(frame: pl.DataFrame, path: Path, table: TableSchema) -> None:
    """Write one table: complete and synced, or not at all; equal rows in any order give equal bytes.

    Raises DataError when the frame breaks the schema or the file cannot be written.
    """
    try:
        _written_aside(frame, path, table).replace(path)
        _sync_folder(path.parent)
    except OSError as err:
        raise DataError(f"{path}: cannot be written: {err.strerror or err}") from err


def write_tables(tables: Tables, folder: Path) -> None:
    """Write both tables into a folder; both are on disk before either takes its name. See write_table."""
    runs_path, scores_path = _path(folder, RUNS), _path(folder, SCORES)
    try:
        runs_aside = _written_aside(tables.runs, runs_path, RUNS)
        try:
            _written_aside(tables.scores, scores_path, SCORES).replace(scores_path)
            runs_aside.replace(runs_path)
        finally:
            runs_aside.unlink(missing_ok=True)
        _sync_folder(folder)
    except OSError as err:
        raise DataError(f"{folder}: tables cannot be written: {err.strerror or err}") from err


def _path(folder: Path, table: TableSchema) -> Path:
    return folder / f"{table.name}.parquet"


def _content(path: Path) -> bytes:
    """The bytes of a table's file. Raises DataError when it is absent, no regular file, or too large."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: not a regular file; expected a Parquet table")
        if status.st_size > MAX_TABLE_BYTES:
            raise DataError(f"{path}: {status.st_size} bytes; a table has at most {MAX_TABLE_BYTES}")
        return path.read_bytes()
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(f"{path}: {reason}; `equipoise ingest PATH... --into DIR` writes it") from err


def read_bytes(data: bytes, table: TableSchema, where: str) -> pl.DataFrame:
    """A table from the bytes of its Parquet file, sorted by its key. Raises DataError for anything else.

    Bytes of unknown origin can end the process: `read_table` guards against that.
    """
    try:
        _check_schema(pl.read_parquet_schema(io.BytesIO(data)), table, where)
        frame = pl.read_parquet(io.BytesIO(data), n_rows=MAX_TABLE_ROWS + 1, hive_partitioning=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as err:
        raise DataError(f"{where}: not a readable Parquet table: {str(err)[:200]}") from err
    if len(frame) > MAX_TABLE_ROWS:
        raise DataError(f"{where}: more than {MAX_TABLE_ROWS} rows; a table has at most so many")
    return _checked(frame, table, where)


def _survive(contents: Mapping[Path, tuple[TableSchema, bytes]]) -> None:
    """Let another process read the tables first. Raises DataError when it refuses or does not survive."""
    arguments = [
        part for path, (table, data) in contents.items() for part in (table.name, str(path), str(len(data)))
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROBE, str(len(sys.path)), *sys.path, *arguments],
            input=b"".join(data for _, data in contents.values()),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_PROBE_S,
        )
        refusal = done.stdout.decode(errors="replace")
        outcome = f"exit code {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        refusal, outcome = "", f"after {_PROBE_S:.0f} s"
    if refusal:
        raise DataError(refusal)
    if outcome:
        where = ", ".join(map(str, contents))
        raise DataError(f"{where}: a damaged Parquet file: reading it ended its reader ({outcome})")


def read_table(path: Path, table: TableSchema) -> pl.DataFrame:
    """One table from its file, sorted by its key. Raises DataError naming the file and what is wrong."""
    data = _content(path)
    _survive({path: (table, data)})
    return read_bytes(data, table, str(path))


def read_tables(folder: Path) -> Tables:
    """Both tables from a folder that `ingest --into` wrote. Raises DataError as read_table."""
    contents = {_path(folder, table): (table, _content(_path(folder, table))) for table in (RUNS, SCORES)}
    _survive(contents)
    runs, scores = (read_bytes(data, table, str(path)) for path, (table, data) in contents.items())
    return Tables(runs=runs, scores=scores)


def merged(base: Tables, also: Tables) -> Tables:
    """Both sets of evidence together; where both hold an entry, that of `also` replaces it with all its runs.

    The entry is replaced whole, never mixed: a score and the runs behind it stay of one source. An entry is
    the same when its entry_id is, or its round, submitter, system and workload.
    """
    replaced = also.scores.select(_ENTRY)
    runs = base.runs.join(replaced, on=_ENTRY, how="anti", nulls_equal=True)
    runs = runs.join(also.runs, on=RUNS.key, how="anti")
    scores = base.scores.join(replaced, on=_ENTRY, how="anti", nulls_equal=True)
    scores = scores.join(also.scores, on=SCORES.key, how="anti")
    return Tables(
        runs=pl.concat([runs, also.runs]).sort(RUNS.key),
        scores=pl.concat([scores, also.scores]).sort(SCORES.key),
    )
