"""The tables of tables.toml: schemas, comparable rows, validated reading and atomic writing of files.

WRITERS lists the export formats of any table: CSV, Parquet, JSON lines, Extra-P, Prometheus.
"""

import fcntl
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256
from itertools import chain, count, groupby
from pathlib import Path
from statistics import median
from typing import IO, Any, Final, Literal, TypeAlias

import orjson
import polars as pl
import polars.selectors as cs
from msgspec import Struct, convert

from equipoise.errors import DataError, UsageError
from equipoise.files import encodable, probed, read_input, shipped_table, written_synced
from equipoise.runs import lacks_tables
from equipoise.spec.mlperf import ScoredEntry, Scores
from equipoise.units import MIB

Kind: TypeAlias = Literal["str", "int", "float"]


class ColumnSchema(Struct, frozen=True, kw_only=True):
    """One column: its name (which ends in its unit), kind, and meaning in one sentence.

    is_optional: files omit it if it is null in every row, as do files of versions without the column.
    """

    name: str
    kind: Kind
    meaning: str
    is_optional: bool = False


class TableSchema(Struct, frozen=True, kw_only=True):
    """One table: its name, the meaning of a row, its columns in order, and the key columns."""

    name: str
    row: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of columns that files may omit."""
        return tuple(column.name for column in self.columns if column.is_optional)


_FACTS = shipped_table(Path(__file__).with_name("tables.toml"))
_ENTRY_COLUMNS = convert(_FACTS["entry"], tuple[ColumnSchema, ...])


def _table(name: str, *, is_of_entries: bool = False) -> TableSchema:
    """Return a table of tables.toml; tables of entries have an entry's columns after the first column."""
    first, *rest = convert(_FACTS[name]["columns"], list[ColumnSchema])
    shared = _ENTRY_COLUMNS if is_of_entries else ()
    row, key = _FACTS[name]["row"], tuple(_FACTS[name]["key"])
    return TableSchema(name=name, row=row, columns=(first, *shared, *rest), key=key)


RUNS = _table("runs", is_of_entries=True)
SCORES = _table("scores", is_of_entries=True)
STEPS = _table("steps")
PUBLISHED_STEPS = _table("published_steps")
TABLES = (RUNS, SCORES, STEPS)

# The thirteen rounds v0.5 to v5.1 take 2 MB and 15,000 rows; a hostile file must not exhaust the memory.
MAX_TABLE_BYTES = 256 * MIB
MAX_TABLE_ROWS = 1_000_000

_DTYPES: dict[Kind, type[pl.DataType]] = {"str": pl.String, "int": pl.Int64, "float": pl.Float64}

# Runs with equal values in these columns are repetitions of one configuration.
_CONFIGURATION = (
    *("campaign", "system", "workload", "accelerator", "num_accelerators"),
    *("num_nodes", "precision", "strategy", "global_batch_samples", "sequence_tokens"),
)
# Rows of `runs` and `scores` with equal values in these columns belong to the same entry.
_ENTRY = ("campaign", "submitter", "system", "workload")


class Tables(Struct, frozen=True, kw_only=True):
    """The two tables of one set of evidence."""

    runs: pl.DataFrame
    scores: pl.DataFrame


def polars_schema(table: TableSchema) -> pl.Schema:
    """Return the columns of a table, in order, with their Polars types."""
    return pl.Schema({column.name: _DTYPES[column.kind]() for column in table.columns})


def frame_of(rows: Sequence[Mapping[str, Any]], table: TableSchema) -> pl.DataFrame:
    """Return rows as a frame of a table, sorted by its key; columns that a row lacks are null.

    Raises DataError for unknown columns and for values of the wrong kind, which may come from files on disk.
    """
    unknown = sorted({name for row in rows for name in row} - set(table.names))
    if unknown:
        raise DataError(f"table {table.name}: no column {', '.join(unknown)}; see docs/reference/tables.md")
    columns = {name: [row.get(name) for row in rows] for name in table.names}
    try:
        try:
            frame = pl.DataFrame(columns, schema=polars_schema(table))
        except UnicodeEncodeError:
            frame = pl.DataFrame(encodable(columns), schema=polars_schema(table))
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as err:
        raise DataError(f"table {table.name}: {str(err).partition(chr(10))[0]}") from err
    return frame.sort(table.key)


def unscored_entries(runs: Sequence[Mapping[str, Any]], reason: str) -> list[dict[str, Any]]:
    """Return a row of `scores` for each configuration of runs that have no official score.

    runs: rows of `runs` with every column. reason: why none of them has a score. Rates and energies are
    medians over the runs that state them; the caller adds `entry_id`.
    """

    def configuration(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in _CONFIGURATION)

    entries = []
    for _, group in groupby(sorted(runs, key=configuration), configuration):
        same = list(group)
        entry = {column.name: same[0][column.name] for column in _ENTRY_COLUMNS}
        for name in ("samples_per_s", "energy_j"):
            stated = [row[name] for row in same if row[name] is not None]
            entry[name] = median(stated) if stated else None
        num_failed = sum(row["status"] != "success" for row in same)
        entry |= {"reason": reason, "num_runs": len(same), "num_failed": num_failed, "num_missing": 0}
        entries.append({**entry, "source_uri": same[0]["source_uri"]})
    return entries


def _check_schema(found: Mapping[str, pl.DataType], table: TableSchema, where: str) -> None:
    expected = polars_schema(table)
    missing = [name for name in expected if name not in found and name not in table.optional]
    unknown = [name for name in found if name not in expected]
    if missing or unknown:
        raise DataError(
            f"{where}: not the table `{table.name}`: missing columns {missing}, unknown columns {unknown}; "
            "write it again with `equipoise ingest PATH... --into DIR`"
        )
    for name, dtype in expected.items():
        if name in found and found[name] != dtype:
            raise DataError(f"{where}: column {name} has type {found[name]}; expected {dtype}")


def _checked(frame: pl.DataFrame, table: TableSchema, where: str) -> pl.DataFrame:
    """Return the frame, columns in order, sorted by its key. Raises DataError if it violates the schema."""
    _check_schema(frame.schema, table, where)
    frame = _completed(frame, table)
    for column in table.columns:
        values = frame[column.name]
        if column.kind == "float" and not values.is_finite().all():
            raise DataError(f"{where}: column {column.name} holds NaN or infinity; unknown is null")
        if column.name in table.key and values.null_count():
            raise DataError(f"{where}: column {column.name}, which names a row, is null in some row")
    twice = frame.select(table.key).filter(frame.select(table.key).is_duplicated())
    if len(twice):
        name = ", ".join(map(str, twice.row(0)))
        raise DataError(f"{where}: {len(twice):,} rows share names, e.g. {name!r}; expected one row per name")
    return frame.select(table.names).sort(table.key)


def _completed(frame: pl.DataFrame, table: TableSchema) -> pl.DataFrame:
    """Return the frame with missing optional columns added as null."""
    schema = polars_schema(table)
    lacking = [name for name in table.optional if name not in frame.columns]
    return frame.with_columns(pl.lit(None, schema[name]).alias(name) for name in lacking).select(table.names)


# zstd has 22 levels. All rounds take 0.02 s at this level, and 0.7 s at level 19 for 7 % less.
_ZSTD_LEVEL = 6
# For shipped tables; higher levels take seconds and save less than 1 % of the embedded dataset.
SHIPPED_ZSTD_LEVEL: Final = 19


def as_stored(frame: pl.DataFrame, table: TableSchema) -> pl.DataFrame:
    """Return the frame as stored in files, without optional columns that are null in every row."""
    return frame.drop(name for name in table.optional if frame[name].null_count() == len(frame))


def _encoded(frame: pl.DataFrame, path: Path, table: TableSchema, zstd_level: int) -> memoryview:
    """Return the bytes of a table's file, after checking its schema."""
    content = io.BytesIO()  # not the file: Polars reports a full disk as an error of the Parquet format
    write_parquet(as_stored(_checked(frame, table, str(path)), table), content, zstd_level=zstd_level)
    return content.getbuffer()


def write_table(
    frame: pl.DataFrame, path: Path, table: TableSchema, *, zstd_level: int = _ZSTD_LEVEL
) -> None:
    """Write one table atomically and synced; equal rows in any order give equal bytes.

    zstd_level: compression level, from 1 to 22.
    Raises DataError if the frame violates the schema or the file cannot be written.
    """
    _write({path: _encoded(frame, path, table, zstd_level)}, f"{path}:")


def write_tables(tables: Tables, folder: Path, *, zstd_level: int = _ZSTD_LEVEL) -> None:
    """Write both tables into a folder; both are on disk before either is renamed. See write_table."""
    contents = {
        _path(folder, table): _encoded(frame, _path(folder, table), table, zstd_level)
        for frame, table in ((tables.runs, RUNS), (tables.scores, SCORES))
    }
    _write(contents, f"{folder}: tables")


def _write(contents: Mapping[Path, memoryview], what: str) -> None:
    """Write files, creating their folders; all are on disk before any is renamed.

    The folders are locked, so that tables of two writers are not mixed. what: for the error message.
    """
    try:
        with ExitStack() as files:
            for folder in sorted({path.parent for path in contents}):
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                files.callback(os.close, descriptor)  # runs last, and releases the lock
                with suppress(OSError):  # some file systems cannot lock folders
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            for path, content in contents.items():
                file = files.enter_context(written_synced(path))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except OSError as err:
        raise DataError(f"{what} cannot be written: {err.strerror or err}") from err


def _path(folder: Path, table: TableSchema) -> Path:
    return folder / f"{table.name}.parquet"


def _content(path: Path) -> bytes:
    """Return the bytes of a table's file. Raises DataError if it is absent, too large or not a file."""
    if cut_off := lacks_tables(path.parent):
        raise DataError(f"{path.parent}: {cut_off}")
    expected = "what `equipoise ingest PATH... --into DIR` writes"
    return read_input(path, MAX_TABLE_BYTES, expected=expected, may_be_pipe=False)


def read_bytes(data: bytes, table: TableSchema, where: str, *, is_ours: bool = False) -> pl.DataFrame:
    """Return a table from the bytes of its Parquet file, sorted by its key. Raises DataError if invalid.

    is_ours: whether a hash shows that `write_table` wrote them, which validates and sorts.
    Bytes of unknown origin can crash the process; `read_table` guards against that.
    """
    try:
        _check_schema(pl.read_parquet_schema(io.BytesIO(data)), table, where)
        frame = pl.read_parquet(io.BytesIO(data), n_rows=MAX_TABLE_ROWS + 1, hive_partitioning=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as err:
        raise DataError(f"{where}: not a readable Parquet table: {str(err)[:200]}") from err
    if len(frame) > MAX_TABLE_ROWS:
        raise DataError(f"{where}: more than {MAX_TABLE_ROWS:,} rows; a table has at most that many")
    return _completed(frame, table) if is_ours else _checked(frame, table, where)


# Hashes of tables that a separate process has read without a crash, so that each table is probed only once.
_probed: Final[set[bytes]] = set()
_MAX_PROBED: Final = 1024


def _probe(contents: Mapping[Path, tuple[TableSchema, bytes]]) -> None:
    """Let a separate process read the tables first. Raises DataError if it rejects them or crashes."""
    digests = {
        sha256(table.name.encode() + b" " + data).digest(): path for path, (table, data) in contents.items()
    }
    unknown = {path: contents[path] for digest, path in digests.items() if digest not in _probed}
    if not unknown:
        return
    named = [
        part for path, (table, data) in unknown.items() for part in (table.name, str(path), str(len(data)))
    ]
    data = b"".join(data for _, data in unknown.values())
    probed(__name__, read_each.__name__, named, data, where=", ".join(map(str, unknown)))
    if len(_probed) + len(digests) > _MAX_PROBED:
        _probed.clear()
    _probed.update(digests)


def read_each(named: Sequence[str], data: bytes) -> str:
    """Read every table and return nothing; called in a separate process.

    named: for each table its name, its origin and its number of bytes. Raises DataError if one is invalid.
    """
    tables, start = {table.name: table for table in TABLES}, 0
    for name, where, num_bytes in zip(*[iter(named)] * 3, strict=True):
        read_bytes(data[start : start + int(num_bytes)], tables[name], where)
        start += int(num_bytes)
    return ""


def read_table(path: Path, table: TableSchema) -> pl.DataFrame:
    """Return one table from its file, sorted by its key. Raises DataError naming the file and the problem."""
    data = _content(path)
    _probe({path: (table, data)})
    return read_bytes(data, table, str(path))


def read_tables(folder: Path) -> Tables:
    """Return both tables from a folder of `ingest --into`. Raises DataError as `read_table` does."""
    contents = {_path(folder, table): (table, _content(_path(folder, table))) for table in (RUNS, SCORES)}
    _probe(contents)
    runs, scores = (read_bytes(data, table, str(path)) for path, (table, data) in contents.items())
    return Tables(runs=runs, scores=scores)


def merged(base: Tables, also: Tables) -> Tables:
    """Return both sets of evidence combined; an entry in both is taken from `also`, with all its runs.

    An entry is replaced completely, so that a score and its runs come from one source. Submitted entries are
    the same if their entry_id, or their round, system and workload are equal; other entries, if their whole
    configuration is equal. A name that a remaining row of `base` already has gets a number.
    """
    on: dict[str, Any] = {"on": _same_entry(), "nulls_equal": True}
    by_name = base.scores.drop_nulls("submitter").join(also.scores, on=SCORES.key, how="semi")
    replaced = pl.concat([by_name, also.scores])
    frames = {}
    for table in (RUNS, SCORES):
        kept, added = getattr(base, table.name), getattr(also, table.name)
        kept = kept.join(replaced, how="anti", **on)
        frames[table.name] = pl.concat([kept, _renamed(added, table, kept)]).sort(table.key)
    return Tables(**frames)


def _same_entry() -> list[pl.Expr]:
    """Return the expressions equal in all rows of an entry; for unsubmitted ones, the whole configuration."""
    rest = [name for name in _CONFIGURATION if name not in _ENTRY]
    return [*map(pl.col, _ENTRY), pl.when(pl.col("submitter").is_null()).then(pl.col(rest))]


def _renamed(added: pl.DataFrame, table: TableSchema, kept: pl.DataFrame) -> pl.DataFrame:
    """Return the added rows under unused names, because files of equal name number their rows alike."""
    (key,) = table.key
    taken = {*kept[key]}
    names = []
    for name in added[key]:
        free = chain([name], (f"{name} ({number})" for number in count(2)))
        names.append(next(each for each in free if each not in taken))
        taken.add(names[-1])
    return added.with_columns(pl.Series(key, names, pl.String))


# A single row group for any table of this project, so that the bytes depend on the rows only.
_ROW_GROUP_ROWS = 2**20


def write_parquet(frame: pl.DataFrame, file: IO[bytes], *, zstd_level: int = _ZSTD_LEVEL) -> None:
    """Write the frame as Parquet, compressed with zstd, without statistics."""
    frame.rechunk().write_parquet(
        file,
        compression="zstd",
        compression_level=zstd_level,
        statistics=False,
        row_group_size=_ROW_GROUP_ROWS,
    )


# Open entries may change the model and the target, so they are listed but never compared or called published.
DIVISION: Final = "closed"

# Rows with an official score and accelerators; entries of CPUs only state no accelerators.
SCORED: Final = (
    pl.col("score_s").is_finite()
    & (pl.col("score_s") > 0)
    & (pl.col("num_accelerators") > 0)
).fill_null(value=False)  # fmt: skip


def closed(scores: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the closed division, with and without a score.

    scores: a frame of the table `scores`.
    """
    return scores.filter(pl.col("division") == DIVISION)


def comparable(scores: pl.DataFrame) -> pl.DataFrame:
    """Return the comparable rows, in order: closed division, official score, and a number of accelerators.

    scores: a frame of the table `scores`.
    """
    return closed(scores).filter(SCORED)


_NAMES: Final = ("entry_id", "campaign", "workload", "accelerator", "submitter", "system")


def scores_of(scores: pl.DataFrame) -> Scores:
    """Return the comparable rows of a frame of the table `scores`, as used by estimates."""
    columns = ScoredEntry.__struct_fields__
    rows = comparable(scores).select(columns).with_columns(pl.col(_NAMES).fill_null(""))
    return Scores(tuple(ScoredEntry(**row) for row in rows.iter_rows(named=True)))


Write: TypeAlias = Callable[[pl.DataFrame, IO[bytes]], None]


class Writer(Struct, frozen=True, kw_only=True):
    """An export format for any table: its name, file suffix, and function that writes a frame to a file."""

    name: str
    suffix: str
    write: Write


_SIZE = "num_accelerators"
_METRICS = ("score_s", "time_to_train_s", "samples_per_s", "samples_to_target", "energy_j")
_LEVELS = ("workload", "accelerator", "campaign")
# The separator of call path levels, which is replaced in names.
_ARROW = "->"


def _extra_p_write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    if _SIZE not in frame.columns:
        raise UsageError(f"extra-p: a table without {_SIZE} has no measurements against size; export runs")
    paths: dict[str, list[dict[str, Any]]] = {}
    for row in frame.filter(pl.col(_SIZE) > 0).iter_rows(named=True):
        levels = (str(row[name] or "unknown").replace(_ARROW, "-") for name in _LEVELS)
        paths.setdefault(_ARROW.join(levels), []).append(row)
    sizes = {path: {row[_SIZE] for row in rows} for path, rows in paths.items()}
    if len(set(map(frozenset, sizes.values()))) > 1:
        raise UsageError(
            f"extra-p: {len(paths)} groups of workload, accelerator and round, at different sizes; "
            "Extra-P needs the same sizes in all groups: choose with --workload, --accelerator and --round"
        )
    metrics = [name for name in _METRICS if name in frame.columns]
    for path, rows in paths.items():
        for metric in metrics:
            stated = [row for row in rows if row[metric] is not None and 0.0 < row[metric] < float("inf")]
            if {row[_SIZE] for row in stated} < sizes[path]:
                continue  # e.g. energy measured at some sizes only, for which Extra-P refuses the whole file
            for row in stated:
                line = {
                    "params": {_SIZE: row[_SIZE]},
                    "callpath": path,
                    "metric": metric,
                    "value": row[metric],
                }
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


EXTRA_P = Writer(name="extra-p", suffix=".extra-p", write=_extra_p_write)


def _json_lines_write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    numbers = cs.float()
    frame.with_columns(pl.when(numbers.is_finite()).then(numbers)).write_ndjson(file)


JSON_LINES = Writer(name="jsonl", suffix=".jsonl", write=_json_lines_write)

PARQUET = Writer(name="parquet", suffix=".parquet", write=write_parquet)

_PREFIX = "equipoise_"
_UNITS = (("_per_s", "_per_second"), ("_s", "_seconds"), ("_j", "_joules"))
_MEANINGS = {column.name: column.meaning for table in reversed(TABLES) for column in table.columns}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


def _name(column: str) -> str:
    """Return a column as a valid Prometheus name: letters, digits and underscores, no leading digit."""
    name = _NOT_IN_NAMES.sub("_", column)
    return f"_{name}" if name[:1].isdigit() or not name else name


def _escaped(text: str, *, quoted: bool) -> str:
    """Return text with escaped backslashes and line feeds, and escaped double quotes if `quoted`."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text


def _prometheus_write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    values = frame.select(cs.float()).columns
    labels = [name for name in frame.columns if name not in values]
    label_texts = [
        ",".join(
            f'{_name(name)}="{_escaped(str(cell), quoted=True)}"'
            for name, cell in zip(labels, row, strict=True)
            if cell is not None
        )
        for row in frame.select(labels).iter_rows()
    ]
    for column in values:
        # Prometheus's naming rules require base units to be written out.
        short, long = next((unit for unit in _UNITS if column.endswith(unit[0])), ("", ""))
        metric = _PREFIX + _name(column.removesuffix(short) + long)
        samples = [
            f"{metric}{{{label}}} {value!r}\n"
            for label, value in zip(label_texts, frame[column].to_list(), strict=True)
            if value is not None
        ]
        if samples:
            meaning = _escaped(_MEANINGS.get(column, column), quoted=False)
            head = f"# HELP {metric} {meaning}\n# TYPE {metric} gauge\n"
            file.write(f"{head}{''.join(samples)}".encode())


PROMETHEUS = Writer(name="prometheus", suffix=".prom", write=_prometheus_write)

# Text that spreadsheets interpret as a formula, including full-width characters and leading blanks, and
# control characters that end a cell. Source: OWASP, CSV Injection.
_FORMULA = r"^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n\x00]"
_PLAIN_TEXT_MARK = "'"


def neutralised(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with a `'` before every text and column name that a spreadsheet would execute."""
    names = pl.Series(frame.columns, dtype=pl.String)
    marked = names.str.replace(_FORMULA, _PLAIN_TEXT_MARK + "$0")
    cells = pl.col(pl.String)
    safe = pl.when(cells.str.contains(_FORMULA)).then(_PLAIN_TEXT_MARK + cells).otherwise(cells).name.keep()
    return frame.with_columns(safe).rename(dict(zip(names, marked, strict=True)))


CSV = Writer(name="csv", suffix=".csv", write=lambda frame, file: neutralised(frame).write_csv(file))

WRITERS = (CSV, PARQUET, JSON_LINES, EXTRA_P, PROMETHEUS)
