"""The tables: every column with its type, unit and meaning, and the tables on disk.

They are checked against their schema on the way out and in, and written whole or not at all.
"""

import io
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal, TypeAlias

import polars as pl
from msgspec import Struct

from equipoise.errors import DataError
from equipoise.files import written_synced
from equipoise.units import MIB

Kind: TypeAlias = Literal["str", "int", "float"]


class ColumnSchema(Struct, frozen=True, kw_only=True):
    """One column: its name (which ends in its unit), kind, and meaning in one sentence."""

    name: str
    kind: Kind
    meaning: str


class TableSchema(Struct, frozen=True, kw_only=True):
    """One table: its name, what a row is, its columns in order, and those that sort and identify a row."""

    name: str
    row: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(column.name for column in self.columns)


_ENTRY_COLUMNS = (
    ColumnSchema(
        name="origin", kind="str", meaning="where the evidence comes from: `mlperf`, `measured` or `imported`"
    ),
    ColumnSchema(name="campaign", kind="str", meaning="the MLPerf round (`v4.1`) or the name of the sweep"),
    ColumnSchema(name="division", kind="str", meaning="`closed` or `open`, as MLCommons defines them"),
    ColumnSchema(
        name="availability",
        kind="str",
        meaning="`available_onprem`, `available_cloud`, `preview` or `research`",
    ),
    ColumnSchema(
        name="submitter", kind="str", meaning="who measured: the organisation's folder in the results"
    ),
    ColumnSchema(name="system", kind="str", meaning="the system's folder in the results"),
    ColumnSchema(name="workload", kind="str", meaning="slug of the workload, e.g. `llama2_70b_lora`"),
    ColumnSchema(
        name="accelerator",
        kind="str",
        meaning="slug of the accelerator, e.g. `h100-sxm5-80gb`; the raw name when unknown",
    ),
    ColumnSchema(
        name="num_accelerators",
        kind="int",
        meaning="accelerators in the whole system, as MLPerf counts them; CPU sockets where it has none; "
        "ranks of a measured run",
    ),
    ColumnSchema(name="num_nodes", kind="int", meaning="hosts in the whole system"),
    ColumnSchema(
        name="framework",
        kind="str",
        meaning="slug of the framework, e.g. `pytorch`; the raw text when unknown",
    ),
    ColumnSchema(name="precision", kind="str", meaning="numeric format of the compute, where it is stated"),
    ColumnSchema(
        name="strategy",
        kind="str",
        meaning="how the run was parallelised: the text form of a strategy or, of a measured run, "
        "the training method of `bench`",
    ),
    ColumnSchema(
        name="global_batch_samples",
        kind="int",
        meaning="samples an optimizer step consumes over all accelerators",
    ),
)

RUNS = TableSchema(
    name="runs",
    row="one execution",
    columns=(
        ColumnSchema(name="run_id", kind="str", meaning="unique name of the run: round, folders and file"),
        *_ENTRY_COLUMNS,
        ColumnSchema(
            name="status",
            kind="str",
            meaning="`success`, or why the run does not count: see docs/understand/scoring.md; of a "
            "measured run `failed: ` and the reason",
        ),
        ColumnSchema(
            name="time_to_train_s",
            kind="float",
            meaning="official clock: last `run_start` before the first `run_stop`, to it",
        ),
        ColumnSchema(
            name="samples_to_target",
            kind="float",
            meaning="training samples consumed until the target was reached",
        ),
        ColumnSchema(
            name="samples_per_s",
            kind="float",
            meaning="samples_to_target / time_to_train_s: evaluation included; of a measured run: while "
            "it was timed",
        ),
        ColumnSchema(
            name="eval_s",
            kind="float",
            meaning="time inside evaluation spans within the clock, union of overlaps",
        ),
        ColumnSchema(
            name="eval_outside_s",
            kind="float",
            meaning="the part of eval_s outside every training block; null when the log has no usable blocks",
        ),
        ColumnSchema(
            name="train_block_s",
            kind="float",
            meaning="time in training blocks (epochs where a log has none) within the clock; union of them",
        ),
        ColumnSchema(
            name="init_s", kind="float", meaning="`init_start` to `run_start`: outside the official clock"
        ),
        ColumnSchema(
            name="reported_throughput",
            kind="float",
            meaning="last throughput the log itself reports, in the log's own convention",
        ),
        ColumnSchema(
            name="energy_j",
            kind="float",
            meaning="energy of the run from its power logs, nodes and switches, unscaled; of a measured run: "
            "while it was timed",
        ),
        ColumnSchema(
            name="source_uri",
            kind="str",
            meaning="path of the log inside its round; of a measured run: the file of its trial",
        ),
        ColumnSchema(
            name="source_line",
            kind="int",
            meaning="1-based line of the `run_stop` (else the last line read) in that log",
        ),
    ),
    key=("run_id",),
)

SCORES = TableSchema(
    name="scores",
    row="one submitted entry: a system on a workload in a round",
    columns=(
        ColumnSchema(
            name="entry_id",
            kind="str",
            meaning="unique name of the entry: round, folder of the organisation, system, workload",
        ),
        *_ENTRY_COLUMNS,
        ColumnSchema(
            name="score_s",
            kind="float",
            meaning="official score: olympic mean times convergence scaling; null when unscored",
        ),
        ColumnSchema(name="reason", kind="str", meaning="why there is no score; null when there is one"),
        ColumnSchema(
            name="lenient_s",
            kind="float",
            meaning="score that accepts missing or extra runs and drops failed ones; for comparison only",
        ),
        ColumnSchema(name="unscaled_s", kind="float", meaning="olympic mean before convergence scaling"),
        ColumnSchema(
            name="convergence_scaling",
            kind="float",
            meaning="factor of scaling.json (reference convergence points); 1.0 when absent",
        ),
        ColumnSchema(name="num_runs", kind="int", meaning="logs found"),
        ColumnSchema(name="num_failed", kind="int", meaning="logs that count as failed"),
        ColumnSchema(name="num_missing", kind="int", meaning="logs required by the rules and not found"),
        ColumnSchema(name="min_s", kind="float", meaning="fastest successful run, unscaled"),
        ColumnSchema(name="max_s", kind="float", meaning="slowest successful run, unscaled"),
        ColumnSchema(
            name="samples_to_target", kind="float", meaning="mean over the runs that make the score"
        ),
        ColumnSchema(
            name="samples_per_s",
            kind="float",
            meaning="samples_to_target / unscaled_s over the same runs: evaluation included",
        ),
        ColumnSchema(name="eval_s", kind="float", meaning="mean over the runs that make the score"),
        ColumnSchema(
            name="eval_outside_s",
            kind="float",
            meaning="mean over the runs that make the score; null unless every one has it",
        ),
        ColumnSchema(
            name="train_block_s",
            kind="float",
            meaning="mean over the runs that make the score; null unless every one has it",
        ),
        ColumnSchema(name="init_s", kind="float", meaning="mean over the runs that make the score"),
        ColumnSchema(
            name="energy_j",
            kind="float",
            meaning="official energy: olympic in time order, times convergence scaling; null if unmeasured",
        ),
        ColumnSchema(name="source_uri", kind="str", meaning="folder of the entry inside its round"),
        ColumnSchema(
            name="source_line",
            kind="int",
            meaning="line of the `run_stop` in the entry's first log; null when it has none",
        ),
    ),
    key=("entry_id",),
)

STEPS = TableSchema(
    name="steps",
    row="one phase of one timed repetition of a step",
    columns=(
        ColumnSchema(name="run_id", kind="str", meaning="the run in `runs` that the step was timed in"),
        ColumnSchema(
            name="repetition",
            kind="int",
            meaning="number of the timed step in its run, from 1; warm-up steps have no rows",
        ),
        ColumnSchema(
            name="phase",
            kind="str",
            meaning="`step`, its parts `input`, `forward`, `backward`, `communication_exposed`, `optimizer`, "
            "`rest`, or `communication_total`, `communication_overlapped`",
        ),
        ColumnSchema(
            name="seconds", kind="float", meaning="how long it took on the rank whose step took longest"
        ),
    ),
    key=("run_id", "repetition", "phase"),
)

TABLES = (RUNS, SCORES, STEPS)

# The thirteen rounds v0.5 to v5.1 take 2 MB and 15,000 rows; a hostile file must not fill the memory.
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


class Tables(Struct, frozen=True, kw_only=True):
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
            "write it again with `equipoise ingest PATH... --into DIR`"
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
            f"{where}: {len(twice)} rows share names, e.g. {twice.row(0)!r}; expected one row per name"
        )
    return frame.select(table.names).sort(table.key)


def _encoded(frame: pl.DataFrame, path: Path, table: TableSchema) -> memoryview:
    """The file of a table, which was checked."""
    content = io.BytesIO()  # not the file itself: Polars reports a full disk as a fault of the Parquet format
    write_parquet(_checked(frame, table, str(path)), content)
    return content.getbuffer()


def write_table(frame: pl.DataFrame, path: Path, table: TableSchema) -> None:
    """Write one table: complete and synced, or not at all; equal rows in any order give equal bytes.

    Raises DataError when the frame breaks the schema or the file cannot be written.
    """
    content = _encoded(frame, path, table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_synced(path) as file:
            file.write(content)
    except OSError as err:
        raise DataError(f"{path}: cannot be written: {err.strerror or err}") from err


def write_tables(tables: Tables, folder: Path) -> None:
    """Write both tables into a folder; both are on disk before either takes its name. See write_table."""
    paths = _path(folder, RUNS), _path(folder, SCORES)
    contents = _encoded(tables.runs, paths[0], RUNS), _encoded(tables.scores, paths[1], SCORES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written_synced(paths[0]) as runs, written_synced(paths[1]) as scores:
            for file, content in zip((runs, scores), contents, strict=True):
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
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
        raise DataError(f"{where}: more than {MAX_TABLE_ROWS} rows; a table has at most that many")
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


# 19 of 22: the last levels cost seconds and save less than 1 % of the embedded dataset.
_ZSTD_LEVEL = 19
# One row group for any table of this project: its bytes then depend on nothing but the rows.
_ROW_GROUP_ROWS = 2**20


def write_parquet(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """The frame as Parquet, compressed with zstd, without statistics."""
    frame.rechunk().write_parquet(
        file,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        statistics=False,
        row_group_size=_ROW_GROUP_ROWS,
    )
