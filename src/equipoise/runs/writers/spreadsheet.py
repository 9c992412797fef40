"""CSV for spreadsheets: text that a spreadsheet would run as a formula is made plain text."""

from typing import IO

import polars as pl

from equipoise.runs.writers.writer import Writer

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


def _write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    neutralised(frame).write_csv(file)


CSV = Writer(name="csv", suffix=".csv", write=_write)
