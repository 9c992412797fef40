"""Reads rows of a user's CSV or Parquet file as text cells and numbers, with their location for messages."""

import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import DataError
from equipoise.files import csv_delimiter, csv_lines, is_utf16, probed, read_input
from equipoise.runs import RUNS_FILE, lacks_tables
from equipoise.units import (
    DAY_S,
    HOUR_S,
    MIB,
    MILLISECOND_S,
    MINUTE_S,
    MOST_LISTED,
    SI_PREFIXES,
    duration_s,
    listed,
)

SIZE = "num_accelerators"
BATCH = "global_batch_samples"
STATUS = "status"
STRATEGY = "strategy"
PRECISION = "precision"
ACCELERATOR = "accelerator"
# Statuses of successful runs in equipoise, trackers, Slurm, Ray and Kubernetes; an empty status counts too.
_SUCCEEDED = frozenset({"", "success", "succeeded", "ok", "finished", "completed", "complete", "done"})
# Prefixes of all other statuses.
_DID_NOT = (
    *("fail", "crash", "kill", "cancel", "timeout", "out_of_me", "oom", "node_fail", "preempt", "run"),
    *("pend", "abort", "interrupt", "error", "stop"),
)
# Tokens per sample, which convert a rate in tokens to one in samples.
SEQUENCE = "sequence_tokens"
ENTRY = ("entry", "label", "entry_id")
SERIES = ("workload", ACCELERATOR, STRATEGY, PRECISION)
# Their product is the number of accelerators, if no column states it.
NODES, PER_NODE = "num_nodes", "num_accelerators_per_node"
# Their product times the data-parallel accelerators is the global batch, if no column states it.
MICROBATCH, ACCUMULATED = "microbatch_samples", "num_accumulated"
# Parameters of a strategy that may have separate columns, with their neutral values.
OF_STRATEGY = {"dp": "1", "tp": "1", "pp": "1", "cp": "1", "ep": "1", "zero_stage": "0"}
# Optional further columns of MLPerf's runs, which `export runs` writes; zero is a valid value.
OF_MLPERF = (
    "samples_to_target",
    "eval_s",
    "eval_outside_s",
    "train_block_s",
    "init_s",
    "reported_throughput",
)
# Columns that a scaling law does not need.
OF_RUNS = (
    *("energy_j", SEQUENCE, "framework", NODES, PER_NODE, "system", "submitter", "division", "availability"),
    *OF_MLPERF,
)
# All columns except times and rates.
NAMED = (SIZE, BATCH, STATUS, *ENTRY, *SERIES, *OF_RUNS, *OF_STRATEGY)

UNIT_S = {"ms": MILLISECOND_S, "s": 1.0, "min": MINUTE_S, "h": HOUR_S, "d": DAY_S}
TIMED = re.compile(rf"(time_to_train|step)_({'|'.join(UNIT_S)})|(samples|tokens)_per_(s|min|h)")
# The rate per accelerator, as torchtitan and Megatron-Bridge print it.
PER_ACCELERATOR = re.compile(r"((?:samples|tokens)_per_(?:s|min|h))_per_accelerator")


def wanted_column(name: str) -> bool:
    """Return whether a column, by its name in lower case, is known."""
    return name in NAMED or any(each.fullmatch(name) for each in (TIMED, PER_ACCELERATOR))


MAX_FILE_BYTES = 16 * MIB
MAX_ROWS = 10_000
MAX_COLUMNS = 1_000
MAX_TEXT = 500
_PARQUET_MAGIC = b"PAR1"
_ECHO = 40


class TextRow(Struct, frozen=True, kw_only=True):
    """One data row: its location in words, and its cells by column.

    line: the first line in the file; for a Parquet file, in the equivalent CSV file. theirs: for messages,
    the file's names of renamed columns. fault: why cells cannot be assigned to columns; None if they can.
    run_id: the run's name in the table of runs. groups_digits: whether a comma in a number can only be a
    thousands separator, because commas separate cells. has_decimal_commas: whether the file's numbers use
    decimal commas and never a decimal point.
    """

    place: str
    cells: Mapping[str, str]
    line: int | None = None
    theirs: Mapping[str, str] = {}
    fault: str | None = None
    run_id: str = ""
    groups_digits: bool = False
    has_decimal_commas: bool = False

    def number(self, column: str, ours: str | None = None) -> str:
        """Return a cell in plain decimal notation.

        Thousands separators (`"9,800"`) are removed, decimal commas become points, and suffixes such as `95k`
        are expanded; in tokens per sample, `k` means 1,024. ours: our name of the column, if it differs.
        """
        text = self.cells[column]
        if self.has_decimal_commas and _WITH_COMMA.fullmatch(text.strip()):
            return text.replace(".", "").replace(",", ".")
        short = _SHORT.fullmatch(text.strip())
        if short is not None:
            letter = short[2].replace("K", "k")
            factor = _K_TOKENS if (ours or column) == SEQUENCE and letter == "k" else SI_PREFIXES[letter]
            return repr(float(short[1]) * factor)
        is_grouped = self.groups_digits and _GROUPED.fullmatch(text.strip()) is not None
        return text.replace(",", "") if is_grouped else text

    def written(self, column: str) -> str:
        """Return the file's own name of a column."""
        return self.theirs.get(column, column)

    def refusal(self, column: str, expected: str) -> DataError:
        """Return the error for an invalid cell."""
        return DataError(
            f"{self.place}, column {self.written(column)}: found {echo(self.cells[column])}; "
            f"expected {expected}"
        )


# In tokens per sample, `2k` means 2,048.
_K_TOKENS = 1024
# `m` is not accepted, because it may mean thousandths.
_SHORT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([kKMG])", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
# A number with a decimal comma and points as thousands separators.
_WITH_COMMA = re.compile(r"(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?", re.ASCII)
_FIGURES = re.compile(r'(?<![^;\t|" \r\n])\d[\d.,]*(?![^;\t|" \r\n])', re.ASCII)
# A header with its unit in brackets, as in spreadsheets.
_BRACKETED = re.compile(r"(.+?)_?[(\[]_?([a-z]+)_?[)\]]")


def is_success(status: str) -> bool:
    """Return whether a status means success; an empty status does."""
    return status.strip().lower() in _SUCCEEDED


def is_status(text: str) -> bool:
    """Return whether a text looks like the status of a run."""
    return is_success(text) or text.strip().lower().startswith(_DID_NOT)


def column_name(raw: str) -> str:
    """Return a header cell as a column name: lower case, without blanks, ending in its unit of time.

    >>> column_name("GPUs"), column_name("Time (hours)"), column_name("step time [ms]"), column_name("x (y)")
    ('gpus', 'time_h', 'step_time_ms', 'x_(y)')
    """
    name = raw.strip().lower().replace(" ", "_")
    found = _BRACKETED.fullmatch(name)
    unit = None if found is None else time_unit(found[2])
    return name if found is None or unit is None else f"{found[1]}_{unit}"


def time_unit(word: str) -> str | None:
    """Return the suffix for a word that means a unit of time; None for any other word."""
    unit_s = duration_s(f"1 {word}")
    return next((unit for unit, factor in UNIT_S.items() if factor == unit_s), None)


def rows_of(path: Path) -> tuple[list[str], Iterator[TextRow]]:
    """Return the names of the columns, and the rows that are not blank.

    Raises DataError with the file and row, what was found and what was expected.
    """
    return table(text_of(path), path.name)


def table(
    text: str, where: str, *, may_repeat: bool = False, keeps_faulty: bool = False
) -> tuple[list[str], Iterator[TextRow]]:
    """Return the names of the columns in lower case, and the rows that are not blank.

    may_repeat: whether columns may share a name, as in exports of other tools; the second becomes `NAME#2`.
    keeps_faulty: whether rows with too many or too few cells are returned, with their fault. Raises like
    rows_of.
    """
    lines = csv_lines(text, where)
    _, titles = next(lines, (0, []))
    header = [column_name(cell) for cell in titles]
    if not header:
        raise DataError(f"{where}: empty; expected a header, the names of its columns")
    if len(header) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(header):,} columns; at most {MAX_COLUMNS:,} are read")
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice and not may_repeat:
        raise DataError(f"{where}: two columns are named {echo(twice)}; expected one")
    if may_repeat:
        seen: Counter[str] = Counter()
        for place, name in enumerate(header):
            seen[name] += 1
            header[place] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    usual = TextRow(
        place=where,
        cells={},
        groups_digits=csv_delimiter(text) == ",",
        has_decimal_commas=_has_decimal_commas(text),
    )
    return header, _rows(lines, header, usual, keeps_faulty=keeps_faulty)


def _has_decimal_commas(text: str) -> bool:
    """Return whether the numbers of a table have decimal commas; False if commas separate cells.

    A comma that may be a thousands separator does not count, and any decimal point excludes decimal commas.
    """
    if csv_delimiter(text) == ",":
        return False
    figures = _FIGURES.findall(text.partition("\n")[2])
    shown = (each for each in figures if "," in each and not _GROUPED.fullmatch(each))
    return any(map(_WITH_COMMA.fullmatch, shown)) and all(
        _WITH_COMMA.fullmatch(each) for each in figures if "." in each
    )


def _rows(
    lines: Iterator[tuple[int, list[str]]], header: Sequence[str], usual: TextRow, *, keeps_faulty: bool
) -> Iterator[TextRow]:
    """Yield the rows. usual: the fields that all rows share; its place is the file's name."""
    where = usual.place
    for number, (line, cells) in enumerate(lines, 1):
        if number > MAX_ROWS:
            raise DataError(
                f"{where}: more than {MAX_ROWS:,} rows; cut it into several files, or give medians"
            )
        place, fault = f"{where}: row {number}", None
        if len(cells) != len(header):
            fault = f"{place}: {len(cells)} cells; expected {len(header)} as in the header"
            if not keeps_faulty:
                raise DataError(fault)
        of_column = dict.fromkeys(header, "") if fault else dict(zip(header, cells, strict=True))
        yield replace(usual, place=place, line=line, cells=of_column, fault=fault)


def text_of(path: Path, *, also: Sequence[str] = ()) -> str:
    """Return the file as text; for a Parquet file, the CSV of its known columns and of `also`.

    For a folder of `bench` or `watch`, its table of runs is read.
    Raises DataError if it is absent, not a regular file, too large or not text.
    """
    table_of_folder = path / RUNS_FILE
    if cut_off := lacks_tables(path):
        raise DataError(f"{path}: {cut_off}")
    whole = table_of_folder if table_of_folder.is_file() else path
    data = read_input(whole, MAX_FILE_BYTES, expected="a CSV or Parquet file")
    if data.startswith(_PARQUET_MAGIC):
        return probed(__name__, csv_text.__name__, [path.name, *also], data, where=path.name)
    if is_utf16(data):
        raise DataError(f"{path.name}: UTF-16 text; expected UTF-8: save it as `CSV UTF-8`")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line, byte = data.count(b"\n", 0, err.start) + 1, data[err.start]
        raise DataError(
            f"{path.name}: line {line}: byte {byte:#04x} is not UTF-8; expected a CSV (UTF-8) or Parquet file"
        ) from err
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path.name}: line {line}: a NUL byte; expected a CSV or Parquet file")
    return text


def csv_text(arguments: Sequence[str], data: bytes) -> str:
    """Return the known or named columns of a Parquet file as CSV; called in a separate process.

    arguments: the file's name, for messages, and names of further columns. One row beyond the limit is
    converted, so that an excess is noticed. Raises DataError for anything but a Parquet table of plain
    columns.
    """
    import polars as pl  # noqa: PLC0415 - only needed for Parquet files

    where, *also = arguments
    try:
        schema = pl.read_parquet_schema(io.BytesIO(data))
        named = {name: column_name(name) for name, dtype in schema.items() if not dtype.is_nested()}
        wanted = [name for name, ours in named.items() if wanted_column(ours) or ours in also]
        if not wanted:
            return f"{','.join(column_name(name) for name in list(schema)[:MAX_TEXT])}\n"
        if len(wanted) > MAX_COLUMNS:
            raise DataError(f"{where}: {len(wanted):,} columns; at most {MAX_COLUMNS:,} are read")
        frame = pl.read_parquet(
            io.BytesIO(data), columns=wanted, n_rows=MAX_ROWS + 1, hive_partitioning=False
        )
        text = frame.select(pl.all().cast(pl.String).str.head(MAX_TEXT + 1).fill_null("")).write_csv()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as err:
        raise DataError(f"{where}: not a readable Parquet table: {str(err)[:MAX_TEXT]}") from err
    if len(text) > MAX_FILE_BYTES:
        raise DataError(f"{where}: {len(text):,} characters as text; at most {MAX_FILE_BYTES:,} are read")
    return text


def quoted(names: Iterable[str]) -> str:
    """Return names from a file as a list for a message."""
    return listed(map(echo, names), MOST_LISTED) or "none"


def echo(text: str) -> str:
    """Return text from a file, shortened and quoted."""
    return repr(text if len(text) <= _ECHO else f"{text[:_ECHO]}...")


MAX_COUNT = 1_000_000_000
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def amount_of(text: str) -> float:
    """Return a text as a finite number above 0; NaN for anything else."""
    text = text.strip()
    value = float(text) if len(text) <= MAX_TEXT and _NUMBER.fullmatch(text) else math.nan
    return value if 0.0 < value < math.inf else math.nan


def amount(row: TextRow, column: str) -> float:
    """Return a cell as a number above 0. Raises DataError for anything else."""
    value = amount_of(row.cells[column])
    if math.isnan(value):
        raise row.refusal(column, "a finite number above 0, with a decimal point")
    return value


def stated_amount(row: TextRow, column: str) -> float | None:
    """Return the amount of a column; None if the cell is empty. Raises DataError as `amount` does."""
    return amount(row, column) if row.cells.get(column, "").strip() else None


def stated_amount_or_zero(row: TextRow, column: str) -> float | None:
    """Return the amount of a column like `stated_amount`, but accept zero."""
    cell = row.cells.get(column, "").strip()
    is_zero = len(cell) <= MAX_TEXT and _NUMBER.fullmatch(cell) is not None and float(cell) == 0.0
    return 0.0 if is_zero else stated_amount(row, column)


def count(row: TextRow, column: str) -> int:
    """Return a cell as a whole number from 1. Raises DataError for anything else."""
    value = amount(row, column)
    if not value.is_integer() or value > MAX_COUNT:
        raise row.refusal(column, f"a whole number from 1 to {MAX_COUNT:,}")
    return int(value)


# Outside a femtosecond to thirty million years, the unit must be wrong.
_SHORTEST_S, _LONGEST_S = 1e-15, 1e15


def expect_time(row: TextRow, column: str, seconds: float) -> float:
    """Return the seconds computed from a cell. Raises DataError if they are implausible."""
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise row.refusal(column, f"a time between {_SHORTEST_S:g} s and {_LONGEST_S:g} s")
    return seconds


# The largest ratio of rates in one row that rounding or pauses between steps can explain.
_MOST_APART = 1.1


def rates_of(
    row: TextRow, columns: Sequence[str], *, batch_samples: float | None, sequence_tokens: float | None
) -> dict[str, float]:
    """Return samples per second from each of a row's columns of steps, samples or tokens.

    Columns that need an unknown batch or unknown tokens per sample are omitted. Raises DataError for a cell
    that is not an amount, and if columns contradict each other.
    """
    found = {}
    for column in columns:
        unit = TIMED.fullmatch(column)
        assert unit is not None, column
        value = amount(row, column)
        if unit[3] is None:
            rate = None if batch_samples is None else batch_samples / value / UNIT_S[unit[2]]
        else:
            per_sample = 1.0 if unit[3] == "samples" else sequence_tokens
            rate = None if per_sample is None else value / UNIT_S[unit[4]] / per_sample
        if rate is not None:
            if not 0.0 < rate < math.inf:
                raise row.refusal(column, "a number that no unit makes too large")
            found[column] = rate
    if found and max(found.values()) > _MOST_APART * min(found.values()):
        held = " and ".join(f"{rate:.4g} by {row.written(column)}" for column, rate in found.items())
        raise DataError(
            f"{row.place}: its columns contradict each other, in samples per second: {held}; correct one, or "
            "leave it out"
        )
    return found
