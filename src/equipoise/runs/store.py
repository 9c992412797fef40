"""The tables of tables.toml: which rows count, and files checked on the way out and in, written whole.

WRITERS has the exports of any table: CSV for spreadsheets, Parquet for notebooks, JSON lines, Extra-P,
Prometheus.
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

    is_optional: files lack it where it is null in every row, as those of versions that did not know it.
    """

    name: str
    kind: Kind
    meaning: str
    is_optional: bool = False


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

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of columns that files may lack."""
        return tuple(column.name for column in self.columns if column.is_optional)


_FACTS = shipped_table(Path(__file__).with_name("tables.toml"))
_ENTRY_COLUMNS = convert(_FACTS["entry"], tuple[ColumnSchema, ...])


def _table(name: str, *, is_of_entries: bool = False) -> TableSchema:
    """The table of tables.toml; with the columns of an entry after its first where it is of entries."""
    first, *rest = convert(_FACTS[name]["columns"], list[ColumnSchema])
    shared = _ENTRY_COLUMNS if is_of_entries else ()
    row, key = _FACTS[name]["row"], tuple(_FACTS[name]["key"])
    return TableSchema(name=name, row=row, columns=(first, *shared, *rest), key=key)


RUNS = _table("runs", is_of_entries=True)
SCORES = _table("scores", is_of_entries=True)
STEPS = _table("steps")
PUBLISHED_STEPS = _table("published_steps")
TABLES = (RUNS, SCORES, STEPS)

# The thirteen rounds v0.5 to v5.1 take 2 MB and 15,000 rows; a hostile file must not fill the memory.
MAX_TABLE_BYTES = 256 * MIB
MAX_TABLE_ROWS = 1_000_000

_DTYPES: dict[Kind, type[pl.DataType]] = {"str": pl.String, "int": pl.Int64, "float": pl.Float64}

# Runs with the same values here are repetitions of one configuration.
_CONFIGURATION = (
    *("campaign", "system", "workload", "accelerator", "num_accelerators"),
    *("num_nodes", "precision", "strategy", "global_batch_samples", "sequence_tokens"),
)
# Rows of `runs` and `scores` with the same values here belong to the same entry.
_ENTRY = ("campaign", "submitter", "system", "workload")


class Tables(Struct, frozen=True, kw_only=True):
    """The two tables of one set of evidence."""

    runs: pl.DataFrame
    scores: pl.DataFrame


def polars_schema(table: TableSchema) -> pl.Schema:
    """The columns of a table, in order, with their Polars types."""
    return pl.Schema({column.name: _DTYPES[column.kind]() for column in table.columns})


def frame_of(rows: Sequence[Mapping[str, Any]], table: TableSchema) -> pl.DataFrame:
    """Rows as a table, sorted by its key; null where a row does not state a column.

    Raises DataError for a column that the table does not have, and for values of another kind than a
    column's: rows are also made of what files on disk state.
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
    """A row of `scores` for each configuration of runs that have no official score.

    runs: rows of `runs` with every column. reason: why none of them has a score. Names and medians over the
    runs that state a value are of the configuration; `entry_id` is left to the caller.
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
    """The frame, columns in order, sorted by its key. Raises DataError where it breaks the schema."""
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
    """The frame with the optional columns that it lacks, null in every row."""
    schema = polars_schema(table)
    lacking = [name for name in table.optional if name not in frame.columns]
    return frame.with_columns(pl.lit(None, schema[name]).alias(name) for name in lacking).select(table.names)


# Of 22 levels of zstd. All rounds take 0.02 s at this one, and 0.7 s at 19 for 7 % less.
_ZSTD_LEVEL = 6
# For tables that ship; the last levels cost seconds and save less than 1 % of the embedded dataset.
SHIPPED_ZSTD_LEVEL: Final = 19


def as_stored(frame: pl.DataFrame, table: TableSchema) -> pl.DataFrame:
    """The frame as files hold it: without the optional columns that no row states."""
    return frame.drop(name for name in table.optional if frame[name].null_count() == len(frame))


def _encoded(frame: pl.DataFrame, path: Path, table: TableSchema, zstd_level: int) -> memoryview:
    """The file of a table, which was checked."""
    content = io.BytesIO()  # not the file itself: Polars reports a full disk as a fault of the Parquet format
    write_parquet(as_stored(_checked(frame, table, str(path)), table), content, zstd_level=zstd_level)
    return content.getbuffer()


def write_table(
    frame: pl.DataFrame, path: Path, table: TableSchema, *, zstd_level: int = _ZSTD_LEVEL
) -> None:
    """Write one table: complete and synced, or not at all; equal rows in any order give equal bytes.

    zstd_level: how hard to compress, from 1 to 22.
    Raises DataError when the frame breaks the schema or the file cannot be written.
    """
    _write({path: _encoded(frame, path, table, zstd_level)}, f"{path}:")


def write_tables(tables: Tables, folder: Path, *, zstd_level: int = _ZSTD_LEVEL) -> None:
    """Write both tables into a folder; both are on disk before either takes its name. See write_table."""
    contents = {
        _path(folder, table): _encoded(frame, _path(folder, table), table, zstd_level)
        for frame, table in ((tables.runs, RUNS), (tables.scores, SCORES))
    }
    _write(contents, f"{folder}: tables")


def _write(contents: Mapping[Path, memoryview], what: str) -> None:
    """Write files, in folders made for them; all are on disk before any takes its name.

    Another writer of the same folders waits meanwhile: its tables and ours would be mixed.
    what: for the error.
    """
    try:
        with ExitStack() as files:
            for folder in sorted({path.parent for path in contents}):
                folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
                files.callback(os.close, descriptor)  # the last that is done, which lets others write
                with suppress(OSError):  # some file systems lock no folder
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
    """The bytes of a table's file. Raises DataError when it is absent, no regular file, or too large."""
    if cut_off := lacks_tables(path.parent):
        raise DataError(f"{path.parent}: {cut_off}")
    expected = "what `equipoise ingest PATH... --into DIR` writes"
    return read_input(path, MAX_TABLE_BYTES, expected=expected, may_be_pipe=False)


def read_bytes(data: bytes, table: TableSchema, where: str, *, is_ours: bool = False) -> pl.DataFrame:
    """A table from the bytes of its Parquet file, sorted by its key. Raises DataError for anything else.

    is_ours: whether a hash shows that `write_table` wrote them, which checks and sorts what it writes.
    Bytes of unknown origin can end the process: `read_table` guards against that.
    """
    try:
        _check_schema(pl.read_parquet_schema(io.BytesIO(data)), table, where)
        frame = pl.read_parquet(io.BytesIO(data), n_rows=MAX_TABLE_ROWS + 1, hive_partitioning=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as err:
        raise DataError(f"{where}: not a readable Parquet table: {str(err)[:200]}") from err
    if len(frame) > MAX_TABLE_ROWS:
        raise DataError(f"{where}: more than {MAX_TABLE_ROWS:,} rows; a table has at most that many")
    return _completed(frame, table) if is_ours else _checked(frame, table, where)


# Digests of tables that another process has read: the next question about the same runs starts none.
_survived: Final[set[bytes]] = set()
_MOST_SURVIVED: Final = 1024


def _survive(contents: Mapping[Path, tuple[TableSchema, bytes]]) -> None:
    """Let another process read the tables first. Raises DataError when it refuses or does not survive."""
    digests = {
        sha256(table.name.encode() + b" " + data).digest(): path for path, (table, data) in contents.items()
    }
    unknown = {path: contents[path] for digest, path in digests.items() if digest not in _survived}
    if not unknown:
        return
    named = [
        part for path, (table, data) in unknown.items() for part in (table.name, str(path), str(len(data)))
    ]
    data = b"".join(data for _, data in unknown.values())
    probed(__name__, read_each.__name__, named, data, where=", ".join(map(str, unknown)))
    if len(_survived) + len(digests) > _MOST_SURVIVED:
        _survived.clear()
    _survived.update(digests)


def read_each(named: Sequence[str], data: bytes) -> str:
    """Nothing, where every table can be read; called in a process of its own.

    named: of each table its name, where it comes from, and its number of bytes. Raises DataError.
    """
    tables, start = {table.name: table for table in TABLES}, 0
    for name, where, num_bytes in zip(*[iter(named)] * 3, strict=True):
        read_bytes(data[start : start + int(num_bytes)], tables[name], where)
        start += int(num_bytes)
    return ""


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

    The entry is replaced whole, never mixed: a score and the runs behind it stay of one source. A submitter's
    entry is the same when its entry_id is, or its round, system and workload; any other, when every value of
    its configuration is. Names that other entries and runs of `base` have get a number.
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
    """What is equal in the rows of one entry: of imported and measured ones, the whole configuration."""
    rest = [name for name in _CONFIGURATION if name not in _ENTRY]
    return [*map(pl.col, _ENTRY), pl.when(pl.col("submitter").is_null()).then(pl.col(rest))]


def _renamed(added: pl.DataFrame, table: TableSchema, kept: pl.DataFrame) -> pl.DataFrame:
    """The rows that are added, under names that no kept row has: files of one name number rows alike."""
    (key,) = table.key
    taken = {*kept[key]}
    names = []
    for name in added[key]:
        free = chain([name], (f"{name} ({number})" for number in count(2)))
        names.append(next(each for each in free if each not in taken))
        taken.add(names[-1])
    return added.with_columns(pl.Series(key, names, pl.String))


# One row group for any table of this project: its bytes then depend on nothing but the rows.
_ROW_GROUP_ROWS = 2**20


def write_parquet(frame: pl.DataFrame, file: IO[bytes], *, zstd_level: int = _ZSTD_LEVEL) -> None:
    """The frame as Parquet, compressed with zstd, without statistics."""
    frame.rechunk().write_parquet(
        file,
        compression="zstd",
        compression_level=zstd_level,
        statistics=False,
        row_group_size=_ROW_GROUP_ROWS,
    )


# Open entries may change the model and the target: they are listed, but never compared or called published.
DIVISION: Final = "closed"

# An official score, and accelerators to divide by (entries of CPUs alone count none).
SCORED: Final = (
    pl.col("score_s").is_finite()
    & (pl.col("score_s") > 0)
    & (pl.col("num_accelerators") > 0)
).fill_null(value=False)  # fmt: skip


def closed(scores: pl.DataFrame) -> pl.DataFrame:
    """The rows of the closed division, with and without a score.

    scores: a frame of the table `scores`.
    """
    return scores.filter(pl.col("division") == DIVISION)


def comparable(scores: pl.DataFrame) -> pl.DataFrame:
    """The rows that can be compared: closed division, with an official score and a number of accelerators.

    scores: a frame of the table `scores`. Returns the rows in their order.
    """
    return closed(scores).filter(SCORED)


_NAMES: Final = ("entry_id", "campaign", "workload", "accelerator", "submitter", "system")


def scores_of(scores: pl.DataFrame) -> Scores:
    """The comparable rows of a frame of the table `scores`, as estimates read them."""
    columns = ScoredEntry.__struct_fields__
    rows = comparable(scores).select(columns).with_columns(pl.col(_NAMES).fill_null(""))
    return Scores(tuple(ScoredEntry(**row) for row in rows.iter_rows(named=True)))


Write: TypeAlias = Callable[[pl.DataFrame, IO[bytes]], None]


class Writer(Struct, frozen=True, kw_only=True):
    """A format for any table: its name, the suffix of its files, and what writes a frame to an open file."""

    name: str
    suffix: str
    write: Write


_SIZE = "num_accelerators"
_METRICS = ("score_s", "time_to_train_s", "samples_per_s", "samples_to_target", "energy_j")
_LEVELS = ("workload", "accelerator", "campaign")
# What parts the levels of a call path; a name that holds it would make two of one.
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
                continue  # energy that few metered, for example: Extra-P would refuse the whole file
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
    """A column as a name that Prometheus allows: a letter or underscore first, then digits too."""
    name = _NOT_IN_NAMES.sub("_", column)
    return f"_{name}" if name[:1].isdigit() or not name else name


def _escaped(text: str, *, quoted: bool) -> str:
    """Text with backslash and line feed escaped, and where it is quoted the double quote."""
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
        # Base units are written out, as the naming rules of Prometheus have it.
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

# What spreadsheets take for the beginning of a formula, also in its full-width forms and after blanks, and
# the control characters that end a cell early. Source: OWASP, CSV Injection.
_FORMULA = r"^\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n\x00]"
_PLAIN_TEXT_MARK = "'"


def neutralised(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with a `'` before every text and column name a spreadsheet would run; numbers untouched."""
    names = pl.Series(frame.columns, dtype=pl.String)
    marked = names.str.replace(_FORMULA, _PLAIN_TEXT_MARK + "$0")
    cells = pl.col(pl.String)
    safe = pl.when(cells.str.contains(_FORMULA)).then(_PLAIN_TEXT_MARK + cells).otherwise(cells).name.keep()
    return frame.with_columns(safe).rename(dict(zip(names, marked, strict=True)))


CSV = Writer(name="csv", suffix=".csv", write=lambda frame, file: neutralised(frame).write_csv(file))

WRITERS = (CSV, PARQUET, JSON_LINES, EXTRA_P, PROMETHEUS)
