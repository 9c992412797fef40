"""Which rows are held out together: all rows of one value of one column, whatever the column."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.errors import EvidenceError, UsageError
from equipoise.runs.readers.cells import listed
from equipoise.runs.readers.published.models import known_workload
from equipoise.runs.readers.published.rows import PublishedRow

NONE = "none"
_LEAVE = re.compile(r"leave-(half-of-)?([a-z0-9_]+(?:\+[a-z0-9_]+){0,7})-out")
_AXES = ("dp", "tp", "pp", "cp", "ep")


def _size(name: str) -> Callable[[PublishedRow], object]:
    """A size of the model, from wherever it is known."""

    def value(row: PublishedRow) -> object:
        model = None if row.model is None else row.model.transformer
        return row.cells.get(name, "").strip() if model is None else getattr(model, name)

    return value


def _knob(name: str) -> Callable[[PublishedRow], object]:
    """A knob of the strategy as it was understood."""
    return lambda row: None if row.strategy is None else getattr(row.strategy, name)


def _strategy(row: PublishedRow) -> object:
    """What kind of strategy, in words: which axes are used, and every knob that is no size."""
    found = row.strategy
    if found is None:
        return row.cells.get("parallel_config", "").strip()
    words = [axis for axis in _AXES if getattr(found, axis) > 1]
    words += [f"zero{found.zero_stage}"] if found.zero_stage else []
    words += ["interleaved"] if found.interleave > 1 else []
    words += [name for name in ("sequence_parallel", "tp_overlap") if getattr(found, name)]
    words += [found.trained] if found.trained != "full" else []
    return " ".join((*words, f"recompute={found.recompute}", found.precision, found.implementation))


def _model(row: PublishedRow) -> object:
    """The model, by its name in the catalogue, else by its sizes or name."""
    known = known_workload(row.workload, row.catalogue) if row.model is None else row.model.known
    if known is not None:
        return known.slug
    return row.workload if row.model is None else row.model.transformer


# Columns that mean more than their text; every other column of a file is taken as written.
_VALUES: dict[str, Callable[[PublishedRow], object]] = {
    "n_gpus": lambda row: row.num_accelerators,
    "model": _model,
    "workload": _model,
    "strategy": _strategy,
    "file": lambda row: row.file,
    "cluster": lambda row: row.cluster,
    **{name: _size(name) for name in ("layers", "hidden", "heads")},
    **{name: _knob(name) for name in (*_AXES, "precision", "recompute", "implementation")},
    "bytes": lambda row: row.payload_bytes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What is left out at a time: all rows of one value of a column, or of every second of its values.

    column: several are joined by `+`; then their values together are one.
    """

    column: str
    is_half: bool


def split_of(text: str) -> Split | None:
    """The split a text names; None for none.

    Raises UsageError for what is no split.

    >>> split_of("leave-n_gpus-out")
    Split(column='n_gpus', is_half=False)
    """
    if text == NONE:
        return None
    match = _LEAVE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--split {text[:80]!r}: expected none, leave-COLUMN-out or leave-half-of-COLUMN-out, such as "
            "leave-n_gpus-out"
        )
    return Split(column=match[2], is_half=match[1] is not None)


def fold_names(rows: Sequence[PublishedRow], split: Split) -> list[str]:
    """The fold of every row: the text of its value in a column, or which half of all values has it.

    Raises UsageError where no row has the column, EvidenceError where all rows have one value.
    """
    column = split.column
    parts = [_values(rows, name) for name in column.split("+")]
    found = parts[0] if len(parts) == 1 else [" ".join(map(str, each)) for each in zip(*parts, strict=True)]
    distinct = sorted(set(found), key=_order)
    if len(distinct) == 1:
        raise EvidenceError(
            f"every row has {column} = {str(distinct[0])[:80]}: nothing is left to calibrate on",
            missing=(f"rows with another {column}",),
        )
    if split.is_half:
        place = {each: ("first", "second")[at % 2] for at, each in enumerate(distinct)}
        return [f"{place[each]} half of {column}" for each in found]
    return [str(each) for each in found]


def _values(rows: Sequence[PublishedRow], column: str) -> list[object]:
    """The value of every row in one column, as meant where that is known, else as written."""
    value = _VALUES.get(column)
    if value is not None:
        return [value(row) for row in rows]
    if not any(column in row.cells for row in rows):
        known = dict.fromkeys((*_VALUES, *(name for row in rows[:1] for name in row.cells)))
        raise UsageError(f"--split leave-{column}-out: no such column; found {listed([*known])}")
    return [row.cells.get(column, "").strip() for row in rows]


def _order(value: object) -> tuple[float, str]:
    """Numbers by size, then everything else by its text."""
    return (float(value), "") if isinstance(value, int | float) else (math.inf, str(value))
