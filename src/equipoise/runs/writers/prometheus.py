"""Prometheus text, as its node exporter reads it from files: a gauge a measured column, a sample a row.

Source: Prometheus, Exposition formats, text format 0.0.4; Metric and label naming (SI units written out).
"""

import re
from typing import IO

import polars as pl
import polars.selectors as cs

from equipoise.runs.schema import TABLES
from equipoise.runs.writers.writer import Writer

_PREFIX = "equipoise_"
_UNITS = (("_per_s", "_per_second"), ("_s", "_seconds"), ("_j", "_joules"))
_MEANINGS = {column.name: column.meaning for table in reversed(TABLES) for column in table.columns}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


def _metric(column: str) -> str:
    """The name of a column's metric: base units written out, as the naming rules have it."""
    for short, long in _UNITS:
        if column.endswith(short):
            column = column.removesuffix(short) + long
            break
    return _PREFIX + _name(column)


def _name(column: str) -> str:
    """A column as a name that Prometheus allows: a letter or underscore first, then digits too."""
    name = _NOT_IN_NAMES.sub("_", column)
    return f"_{name}" if name[:1].isdigit() or not name else name


def _escaped(text: str, *, quoted: bool) -> str:
    """Text with backslash and line feed escaped, and where it is quoted the double quote."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text


def _write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    values = frame.select(cs.float()).columns
    labels = [name for name in frame.columns if name not in values]
    told = [
        ",".join(
            f'{_name(name)}="{_escaped(str(cell), quoted=True)}"'
            for name, cell in zip(labels, row, strict=True)
            if cell is not None
        )
        for row in frame.select(labels).iter_rows()
    ]
    for column in values:
        metric = _metric(column)
        samples = [
            f"{metric}{{{label}}} {value!r}\n"
            for label, value in zip(told, frame[column].to_list(), strict=True)
            if value is not None
        ]
        if samples:
            meaning = _escaped(_MEANINGS.get(column, column), quoted=False)
            head = f"# HELP {metric} {meaning}\n# TYPE {metric} gauge\n"
            file.write(f"{head}{''.join(samples)}".encode())


PROMETHEUS = Writer(name="prometheus", suffix=".prom", write=_write)
