"""Cells of a user's file as numbers above 0, or the refusal that says where and what was expected."""

import math
import re

from equipoise.runs.readers.cells import MAX_TEXT, Row

MAX_COUNT = 1_000_000_000
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def amount(row: Row, column: str) -> float:
    """A cell as a number above 0. Raises DataError for anything else."""
    text = row.cells[column].strip()
    value = float(text) if len(text) <= MAX_TEXT and _NUMBER.fullmatch(text) else math.nan
    if not 0.0 < value < math.inf:
        raise row.refusal(column, "a finite number above 0, with a decimal point")
    return value


def count(row: Row, column: str) -> int:
    """A cell as a whole number from 1 up. Raises DataError for anything else."""
    value = amount(row, column)
    if not value.is_integer() or value > MAX_COUNT:
        raise row.refusal(column, f"a whole number from 1 to {MAX_COUNT:,}")
    return int(value)
