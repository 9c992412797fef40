"""Exports of tables: CSV for spreadsheets, Parquet for notebooks, JSON lines, Extra-P, Prometheus.

WRITERS has them all.
"""

import re
from collections.abc import Callable
from typing import IO, Any, TypeAlias

import orjson
import polars as pl
import polars.selectors as cs
from msgspec import Struct

from equipoise.errors import UsageError
from equipoise.runs.store import TABLES, write_parquet

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
