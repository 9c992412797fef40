"""Rows of a user's CSV or Parquet file as text cells and numbers, each with its place for messages."""

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
# How programs write that a run came to its end: ours, trackers', Slurm's, Ray's and Kubernetes'; or nothing.
_SUCCEEDED = frozenset({"", "success", "succeeded", "ok", "finished", "completed", "complete", "done"})
# How words begin by which they write anything else.
_DID_NOT = (
    *("fail", "crash", "kill", "cancel", "timeout", "out_of_me", "oom", "node_fail", "preempt", "run"),
    *("pend", "abort", "interrupt", "error", "stop"),
)
# Tokens of a sample, by which a rate in tokens is one in samples.
SEQUENCE = "sequence_tokens"
ENTRY = ("entry", "label", "entry_id")
SERIES = ("workload", ACCELERATOR, STRATEGY, PRECISION)
# Their product is the number of accelerators, where no column has it.
NODES, PER_NODE = "num_nodes", "num_accelerators_per_node"
# Times the data-parallel accelerators their product is the global batch, where no column has it.
MICROBATCH, ACCUMULATED = "microbatch_samples", "num_accumulated"
# Parameters of a strategy that columns of their own may state, and what each is where it changes nothing.
OF_STRATEGY = {"dp": "1", "tp": "1", "pp": "1", "cp": "1", "ep": "1", "zero_stage": "0"}
# What MLPerf's runs state besides, and `export runs` writes; none of it is needed, and zero is an amount.
OF_MLPERF = (
    "samples_to_target",
    "eval_s",
    "eval_outside_s",
    "train_block_s",
    "init_s",
    "reported_throughput",
)
# What a law of time against size does not need itself.
OF_RUNS = (
    *("energy_j", SEQUENCE, "framework", NODES, PER_NODE, "system", "submitter", "division", "availability"),
    *OF_MLPERF,
)
# All columns but those of times and rates.
NAMED = (SIZE, BATCH, STATUS, *ENTRY, *SERIES, *OF_RUNS, *OF_STRATEGY)

UNIT_S = {"ms": MILLISECOND_S, "s": 1.0, "min": MINUTE_S, "h": HOUR_S, "d": DAY_S}
TIMED = re.compile(rf"(time_to_train|step)_({'|'.join(UNIT_S)})|(samples|tokens)_per_(s|min|h)")
# The rate of one accelerator, as torchtitan and Megatron-Bridge print it: the rate of all over their number.
PER_ACCELERATOR = re.compile(r"((?:samples|tokens)_per_(?:s|min|h))_per_accelerator")


def wanted_column(name: str) -> bool:
    """Whether a column, by its name in lower case, has a meaning here."""
    return name in NAMED or any(each.fullmatch(name) for each in (TIMED, PER_ACCELERATOR))


MAX_FILE_BYTES = 16 * MIB
MAX_ROWS = 10_000
MAX_COLUMNS = 1_000
MAX_TEXT = 500
_PARQUET_MAGIC = b"PAR1"
_ECHO = 40


class TextRow(Struct, frozen=True, kw_only=True):
    """One data row: where it stands, in words, and its cells by column.

    line: of the file, on which it begins; of a Parquet file, of the CSV file that it would be. theirs: the
    file's names of columns that go by another here, for messages. fault: why its cells cannot be told apart;
    None where they can. run_id: of the run, as the table of runs has it once it is ingested. groups_digits:
    whether a comma inside of a number can only group its digits, since commas separate cells.
    has_decimal_commas: whether the file has numbers with decimal commas and none with a decimal point.
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
        """A cell without the commas that group the digits of a number, as in `"9,800"`, with a decimal point
        in place of a decimal comma, and without the letter of a power of ten, as in `95k`: of tokens of a
        sample one of 1,024, as questions read `2k`.

        ours: what the column is here, where that is another name.
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
        """The file's own name of a column."""
        return self.theirs.get(column, column)

    def refusal(self, column: str, expected: str) -> DataError:
        """The error for a cell."""
        return DataError(
            f"{self.place}, column {self.written(column)}: found {echo(self.cells[column])}; "
            f"expected {expected}"
        )


# Of tokens of a sample, `2k` are 2,048.
_K_TOKENS = 1024
# `m` may be thousandths.
_SHORT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([kKMG])", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
# A number as it is written where a comma is the decimal one and a point groups digits.
_WITH_COMMA = re.compile(r"(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?", re.ASCII)
_FIGURES = re.compile(r'(?<![^;\t|" \r\n])\d[\d.,]*(?![^;\t|" \r\n])', re.ASCII)
# A header with its unit in brackets, as spreadsheets have it.
_BRACKETED = re.compile(r"(.+?)_?[(\[]_?([a-z]+)_?[)\]]")


def is_success(status: str) -> bool:
    """Whether a status says that a run came to its end; one that is not stated does."""
    return status.strip().lower() in _SUCCEEDED


def is_status(text: str) -> bool:
    """Whether a text is how programs write the status of a run."""
    return is_success(text) or text.strip().lower().startswith(_DID_NOT)


def column_name(raw: str) -> str:
    """A header cell as names are written here: lower case, without blanks, a unit of time at its end.

    >>> column_name("GPUs"), column_name("Time (hours)"), column_name("step time [ms]"), column_name("x (y)")
    ('gpus', 'time_h', 'step_time_ms', 'x_(y)')
    """
    name = raw.strip().lower().replace(" ", "_")
    found = _BRACKETED.fullmatch(name)
    unit = None if found is None else time_unit(found[2])
    return name if found is None or unit is None else f"{found[1]}_{unit}"


def time_unit(word: str) -> str | None:
    """The unit of time that a word means, as names end in it here; None for any other word."""
    unit_s = duration_s(f"1 {word}")
    return next((unit for unit, factor in UNIT_S.items() if factor == unit_s), None)


def rows_of(path: Path) -> tuple[list[str], Iterator[TextRow]]:
    """The names of the columns, and the rows that are not blank.

    Raises DataError naming the file and row, what was found and what was expected.
    """
    return table(text_of(path), path.name)


def table(
    text: str, where: str, *, may_repeat: bool = False, keeps_faulty: bool = False
) -> tuple[list[str], Iterator[TextRow]]:
    """The names of the columns in lower case, and the rows that are not blank.

    may_repeat: whether two columns may have one name, as exports of other tools have; the later is `NAME#2`.
    keeps_faulty: whether rows of too many or too few cells come, with their fault. Raises as rows_of.
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
    """Whether the numbers of a table, of which no comma separates cells, show decimal commas.

    One whose comma may group digits shows none, and where one has a decimal point no comma is decimal.
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
    """The rows. usual: what all have, in the place of the file."""
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
    """The file as text: of a Parquet file the CSV of its columns that have a meaning, and of `also`.

    Of a folder that `bench` or `watch` wrote, its table of runs.
    Raises DataError when it is absent, no regular file, too large or not text.
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
    """The columns of a Parquet file that have a meaning or are named, as CSV; in a process of its own.

    arguments: the file, for messages, and names of further columns. One row more than are read is converted,
    so that too many are noticed. Raises DataError for anything that is no Parquet table of plain columns.
    """
    import polars as pl  # noqa: PLC0415 - only where such a file is read

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
    """Names of a file as a message lists them."""
    return listed(map(echo, names), MOST_LISTED) or "none"


def echo(text: str) -> str:
    """Text of a file, short and quoted."""
    return repr(text if len(text) <= _ECHO else f"{text[:_ECHO]}...")


MAX_COUNT = 1_000_000_000
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def amount_of(text: str) -> float:
    """A text as a finite number above 0; NaN for anything else."""
    text = text.strip()
    value = float(text) if len(text) <= MAX_TEXT and _NUMBER.fullmatch(text) else math.nan
    return value if 0.0 < value < math.inf else math.nan


def amount(row: TextRow, column: str) -> float:
    """A cell as a number above 0. Raises DataError for anything else."""
    value = amount_of(row.cells[column])
    if math.isnan(value):
        raise row.refusal(column, "a finite number above 0, with a decimal point")
    return value


def stated_amount(row: TextRow, column: str) -> float | None:
    """The amount of a column; None where the row does not state it. Raises DataError as `amount` does."""
    return amount(row, column) if row.cells.get(column, "").strip() else None


def stated_amount_or_zero(row: TextRow, column: str) -> float | None:
    """As `stated_amount`, of what may also be nothing: zero."""
    cell = row.cells.get(column, "").strip()
    is_zero = len(cell) <= MAX_TEXT and _NUMBER.fullmatch(cell) is not None and float(cell) == 0.0
    return 0.0 if is_zero else stated_amount(row, column)


def count(row: TextRow, column: str) -> int:
    """A cell as a whole number from 1 up. Raises DataError for anything else."""
    value = amount(row, column)
    if not value.is_integer() or value > MAX_COUNT:
        raise row.refusal(column, f"a whole number from 1 to {MAX_COUNT:,}")
    return int(value)


# Beyond these a unit must have slipped: a femtosecond, and thirty million years.
_SHORTEST_S, _LONGEST_S = 1e-15, 1e15


def expect_time(row: TextRow, column: str, seconds: float) -> float:
    """Seconds that follow from a cell. Raises DataError for those that no training takes."""
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise row.refusal(column, f"a time between {_SHORTEST_S:g} s and {_LONGEST_S:g} s")
    return seconds


# Of one row; more is no rounding, and no pause between steps either.
_MOST_APART = 1.1


def rates_of(
    row: TextRow, columns: Sequence[str], *, batch_samples: float | None, sequence_tokens: float | None
) -> dict[str, float]:
    """Samples per second by each of a row's columns of steps, samples or tokens.

    Left out are those that need a batch, or the tokens of a sample, which are not known. Raises DataError for
    a cell that is no amount, and where columns contradict each other.
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
