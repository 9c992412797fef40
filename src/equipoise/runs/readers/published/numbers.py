"""Cells of numbers as people write them in tables: grouped digits, `64k`, one value a precision. Nothing is
guessed.
"""

import re

from equipoise.runs.readers.cells import MAX_TEXT, Row

_ABSENT = frozenset({"", "n/a", "na", "none", "null", "nan", "-", "--", "?", "unknown", "not stated"})
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"\+?(?P<digits>{_DIGITS})(?P<power>e[+-]?\d{{1,3}})?\s*(?P<prefix>[km])?", re.IGNORECASE
)
# One of several values: `128 (FP32)`.
_TAGGED = re.compile(rf"\s*(?P<value>{_NUMBER.pattern})\s*(?:\((?P<tag>[^()]*)\))?\s*", re.IGNORECASE)
_BETWEEN = re.compile(r"\s+and\s+|\s+or\s+|/|:|;|,\s+")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6}
# Counts are powers of two where they are written so: a batch of 64k is 65536.
_BINARY_PREFIXES = {"": 1.0, "k": 2.0**10, "m": 2.0**20}
_FULL_PRECISION = re.compile(r"\b(fp32|tf32|float32)\b", re.IGNORECASE)
_MIXED_PRECISION = re.compile(r"\b(amp|mixed|fp16|bf16|half|float16|bfloat16)\b", re.IGNORECASE)
_NUM_PRECISIONS = 2


def stated(row: Row, column: str) -> str:
    """The text of a cell without blanks around it; empty where the column is missing or says that nothing is
    known.
    """
    text = row.cells.get(column, "").strip()
    return "" if text.lower() in _ABSENT else text


def number(row: Row, column: str, *, most: float) -> float | None:
    """A cell as a number above 0 and at most `most`; None where it is not stated.

    Raises DataError for anything else.
    """
    text = stated(row, column)
    if not text:
        return None
    value = _value(text) if len(text) <= MAX_TEXT else None
    if value is None or not 0.0 < value <= most:
        raise row.refusal(column, f"a number above 0, at most {most:g}")
    return value


def count(row: Row, column: str, *, most: int) -> int | None:
    """A cell as a whole number from 1 to `most`; None where it is not stated. Raises DataError for anything
    else.
    """
    text = stated(row, column)
    if not text:
        return None
    value = _value(text, binary=True) if len(text) <= MAX_TEXT else None
    if value is None or not value.is_integer() or not 1 <= value <= most:
        raise row.refusal(column, f"a whole number from 1 to {most}")
    return int(value)


def count_at(row: Row, column: str, *, most: int) -> int | None:
    """A cell as a whole number, where it holds two, that of the row's precision; None where it is not stated.

    Two values without names are those of full and of mixed precision, as tables put them in their heads.
    Raises DataError where it holds neither.
    """
    text = stated(row, column)
    value = count_in(text, row.cells.get("precision", "")) if text else None
    if text and (value is None or not 0 < value <= most):
        raise row.refusal(
            column, f"a whole number from 1 to {most}, or one for full and one for mixed precision"
        )
    return value


def count_in(text: str, precision: str) -> int | None:
    """The whole number a text holds for a precision, as `count_at` says; None where it holds none.

    >>> count_in("128 (FP32) / 256 (AMP)", "mixed"), count_in("16 and 32", "TF32"), count_in("64k", "TF32")
    (256, 16, 65536)
    """
    if len(text) > MAX_TEXT:
        return None
    matches = [_TAGGED.fullmatch(part) for part in _BETWEEN.split(text)]
    if not all(matches):
        return None
    parts = [match for match in matches if match]
    if len(parts) > _NUM_PRECISIONS:
        return None
    chosen = parts[0]
    if len(parts) == _NUM_PRECISIONS:
        is_full = _FULL_PRECISION.search(precision) is not None
        tagged = [
            part
            for part in parts
            if (_FULL_PRECISION if is_full else _MIXED_PRECISION).search(part["tag"] or "")
        ]
        chosen = tagged[0] if len(tagged) == 1 else parts[0 if is_full else 1]
    value = _value(chosen["value"], binary=True)
    return int(value) if value is not None and value.is_integer() else None


def _value(text: str, *, binary: bool = False) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    prefixes = _BINARY_PREFIXES if binary else _PREFIXES
    return (
        float(match["digits"].replace(",", "") + (match["power"] or ""))
        * prefixes[(match["prefix"] or "").lower()]
    )
