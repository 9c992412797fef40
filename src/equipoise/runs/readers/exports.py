"""Reads files that other tools export into rows with our column names.

Weights & Biases (table of runs, CSV), MLflow (`mlflow experiments csv`, or the table of runs), Extra-P (JSON
lines), the results of the Trainer of transformers (JSON), and plain CSV or Parquet. Columns are recognised by
exact names; the user names other columns.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import DataError, SpecError
from equipoise.files import parsed_json, shipped_table
from equipoise.runs.readers.cells import (
    ACCELERATOR,
    ACCUMULATED,
    BATCH,
    ENTRY,
    MAX_COLUMNS,
    MAX_ROWS,
    MAX_TEXT,
    MICROBATCH,
    NAMED,
    NODES,
    OF_STRATEGY,
    PER_ACCELERATOR,
    PER_NODE,
    PRECISION,
    SEQUENCE,
    SIZE,
    STATUS,
    STRATEGY,
    TIMED,
    UNIT_S,
    TextRow,
    amount_of,
    column_name,
    echo,
    is_status,
    is_success,
    quoted,
    table,
    text_of,
    time_unit,
    wanted_column,
)
from equipoise.spec.strategy import precision_named
from equipoise.units import DAY_S, HOUR_S, MINUTE_S, duration_s

_COLUMNS: Final = shipped_table(Path(__file__).parents[1] / "columns.toml")


def _spellings(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names described by patterns, in which `{a|b}` means either alternative.

    >>> _spellings(["tok{|ens}{/|_per_}s"])
    ('tok/s', 'tok_per_s', 'tokens/s', 'tokens_per_s')
    """
    # Every other part was in braces.
    parts = ([part.split("|") for part in re.split(r"[{}]", pattern)] for pattern in patterns)
    return tuple("".join(each) for pattern in parts for each in product(*pattern))


_ALIASES: Final[Mapping[str, Sequence[str]]] = _COLUMNS["aliases"]
_FURTHER, _OWN, _OF_CELLS, _TIMES = (
    {ours: _spellings(patterns) for ours, patterns in _COLUMNS[kind].items()}
    for kind in ("further", "own", "of_cells", "times")
)
# Next to one of these, a column whose name is only a unit of time is ambiguous.
_TIMED_NAMES: Final = tuple(
    name
    for known in (_ALIASES, _FURTHER)
    for ours, names in known.items()
    if TIMED.fullmatch(ours) or PER_ACCELERATOR.fullmatch(ours)
    for name in names
)
_PREFIXES = ("metrics.", "params.", "tags.", "config.", "summary.")
# In a plain table a slash may mean `per`, but not after one of these prefixes.
_GROUPS = (*_PREFIXES, "train/")
_WANDB = frozenset({"name", "state", "created", "runtime"})
_MLFLOW = frozenset({"run_id", "experiment_id", "status"})
_MLFLOW_PAGE = frozenset({"run_id", "source_type", "duration", "status"})
_STATE = "state"
# Columns that may name what a row trained, if there is no column `workload`.
MODEL = "model"
_MODELS = (MODEL, "model_name")
# Columns by which a table of runs written by equipoise is recognised; its rows have names.
_OF_TABLE = ("run_id", "origin", "campaign")
# Columns for which the user may state a number that applies to all rows.
_STATED_AS_NUMBERS = frozenset({SIZE, BATCH, SEQUENCE})
_DURATION = "duration"
_STEPS, _STEP_S = "steps_per_s", "step_s"
_LINE_BYTES = 64 * 1024
_EXTRAP_EXPECTED = 'expected {"params": {"p": 8}, "metric": "time_to_train_s", "value": 1.5}'
_IN_THOUSANDS = re.compile(r"(?:\b|_)(?:k|m|g|b|kilo|mega|giga|thousand|million|billion)_?(?:tok|sample|im)")
_OF_ONE = re.compile(r"(?:/|_per_|\bper_)(?:gpu|device|accelerator|chip|card|gcd)s?\b")
_OF_EVALUATION = re.compile(r"(?:^|/)(?:eval|evaluation|val|valid|validation|test|predict)\b")
_CLOCK = re.compile(r"(?:(\d{1,5})-)?(\d{1,6}):([0-5]\d):([0-5]\d(?:\.\d{1,9})?)", re.ASCII)


class Exported(Struct, frozen=True, kw_only=True):
    """Rows with our column names. theirs: the file's names of renamed columns.

    unfinished: a sentence for each tracked run that is not a row, because it did not finish or lacks a value.
    """

    header: tuple[str, ...]
    rows: tuple[TextRow, ...]
    notes: tuple[str, ...]
    theirs: Mapping[str, str] = {}
    unfinished: tuple[str, ...] = ()

    @property
    def written(self) -> list[str]:
        """The columns by the file's names."""
        return [self.theirs.get(each, each) for each in self.header]


def campaign_of(path: Path) -> str:
    """Return the campaign of a file's runs: the file's name without suffix."""
    return path.name.removesuffix(path.suffix) or path.name


def as_written(path: Path) -> tuple[Sequence[str], Sequence[TextRow]]:
    """Return the columns of a CSV, Parquet or JSON-lines file by its own names, and its rows.

    Raises DataError as `exported` does.
    """
    text = text_of(path)
    _expect_no_list(text, path.name)
    if text.lstrip()[:1] == "{":
        return _of_objects(text, path.name)
    header, rows = table(text, path.name)
    return header, [*rows]


def exported(
    path: Path, columns: Mapping[str, str] | None = None, *, campaign: str | None = None
) -> Exported:
    """Return the rows of a file with our column names and the names of their runs.

    columns: our name -> theirs, for unknown column names; or a number, if no column states the number of
    accelerators, the batch or the tokens per sample. campaign: prefix of run names; by default the file's
    name.
    Raises DataError with the file and row, what was found and what was expected.
    """
    stated = {ours: column_name(theirs) for ours, theirs in (columns or {}).items()}
    if unknown := [ours for ours in stated if not wanted_column(ours)]:
        right = next((each for each, names in _ALIASES.items() if unknown[0] in names), None)
        raise DataError(
            f"--column {echo(unknown[0])}={stated[unknown[0]]}: expected before = "
            + (right or f"time_to_train_s, step_s, samples_per_s, tokens_per_s or one of {', '.join(NAMED)}")
        )
    every = (_ALIASES, _FURTHER, _OWN, _OF_CELLS, _TIMES)
    aliases = (each for known in every for names in known.values() for each in names)
    text = text_of(path, also=(*stated.values(), *aliases, *_MODELS, _STATE, *_OF_TABLE))
    return _named(_read(text, stated, path), campaign or campaign_of(path))


def _named(found: Exported, campaign: str) -> Exported:
    """Return the rows with the names of their runs: `campaign/number`, or as in our own table of runs."""
    names = [f"{campaign}/{number}" for number, _ in enumerate(found.rows, 1)]
    if {*_OF_TABLE} <= {*found.header}:
        stated = [row.cells[_OF_TABLE[0]].strip() for row in found.rows]
        names = stated if len({*stated} - {""}) == len(stated) else names
    rows = [replace(row, run_id=name) for row, name in zip(found.rows, names, strict=True)]
    return replace(found, rows=tuple(rows))


def _read(text: str, stated: Mapping[str, str], path: Path) -> Exported:
    _expect_no_list(text, path.name)
    if text.lstrip()[:1] == "{":
        if _is_of_extrap(text):
            return _of_extrap(text, path.name, stated)
        header, kept = _of_objects(text, path.name)
    else:
        header, rows = table(text, path.name, may_repeat=True)
        if _tool(set(header)) is None:
            header, rows = table(text, path.name, keeps_faulty=True)
        kept = list(rows)
    tool = _tool(set(header))
    if tool is None:
        return _renamed(None, header, kept, stated, path.name)
    return _of_tracker(tool, header, kept, stated, path.name)


def _tool(header: set[str]) -> str | None:
    if header >= _MLFLOW_PAGE or header >= _MLFLOW:
        return "MLflow"
    return "Weights & Biases" if header >= _WANDB else None


def _of_tracker(
    tool: str, header: Sequence[str], rows: Sequence[TextRow], stated: Mapping[str, str], where: str
) -> Exported:
    """Return the finished runs of a tracker; the duration of each is added as a column `duration`."""
    status = "state" if tool == "Weights & Biases" else "status"
    if _DURATION not in header:
        rows = [_with_duration(row) for row in rows]
        header = [*header, _DURATION]
    found = _renamed(tool, header, rows, {STATUS: status, **stated}, where)
    needed = [name for name in dict.fromkeys((SIZE, *stated)) if name in found.header]
    timed = [name for name in found.header if TIMED.fullmatch(name)]
    why = [_unfinished(row, needed, timed) for row in found.rows]
    return replace(
        found,
        rows=tuple(row for row, reason in zip(found.rows, why, strict=True) if reason is None),
        unfinished=tuple(reason for reason in why if reason is not None),
    )


def _unfinished(row: TextRow, needed: Sequence[str], timed: Sequence[str]) -> str | None:
    """Return why a tracked run is not a measurement, or None. timed: columns of which one must be filled."""
    if not row.cells[STATUS].strip() or not is_success(row.cells[STATUS]):
        return f"{row.place}: {row.written(STATUS)} is {echo(row.cells[STATUS])}"
    empty = next((name for name in needed if not row.cells[name].strip()), None)
    if empty is None and timed and not any(row.cells[name].strip() for name in timed):
        empty = timed[0]
    return None if empty is None else f"{row.place}: {row.written(empty)} is empty"


def _with_duration(row: TextRow) -> TextRow:
    """Return a row with its duration in seconds, from `runtime` or from its start and end times."""
    cells = dict(row.cells)
    seconds = cells.get("runtime", "")
    if not seconds:
        try:
            start, end = (_moment(cells.get(name, "")) for name in ("start_time", "end_time"))
            seconds = repr((end - start).total_seconds())
        except ValueError:
            seconds = ""
    return replace(row, cells={**cells, _DURATION: seconds})


def _moment(text: str) -> datetime:
    """Return the time in a tracker's text. Raises ValueError for any other text."""
    found = datetime.fromisoformat(text.strip()[:MAX_TEXT])
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _renamed(
    tool: str | None, header: Sequence[str], rows: Sequence[TextRow], stated: Mapping[str, str], where: str
) -> Exported:
    """Return the rows with our names for columns that the user names or that have a known alias."""
    numbers = {
        ours: theirs
        for ours, theirs in stated.items()
        if ours in _STATED_AS_NUMBERS and theirs not in header and re.fullmatch("0*[1-9][0-9]*", theirs)
    }
    named = {ours: theirs for ours, theirs in stated.items() if ours not in numbers}
    sources = {**numbers, **{ours: _stated(header, ours, theirs, where) for ours, theirs in named.items()}}
    header = [*header, *sorted({*numbers.values()})]
    rows = [replace(row, cells={**row.cells, **{each: each for each in numbers.values()}}) for row in rows]
    aliases = _known(header, sources, where) if tool is not None else _aliased(header, rows, sources, where)
    if tool is None and _states_status(header, rows):
        aliases[STATUS] = _STATE
    sources = aliases | sources
    taken = set(sources.values())
    kept = [name for name in header if name not in taken and name not in sources]
    other_names = {ours: name for ours, name in sources.items() if ours != name}
    renamed = tuple(
        TextRow(
            place=row.place,
            line=row.line,
            theirs=other_names,
            fault=row.fault,
            cells={name: _in_unit(name, row.number(name)) for name in kept}
            | {ours: _in_unit(ours, row.number(theirs, ours)) for ours, theirs in sources.items()},
        )
        for row in rows
    )
    aliased = [
        f"{theirs} as {ours}" for ours, theirs in sources.items() if ours not in stated and ours != theirs
    ]
    notes = [f"{tool or where}: read {', '.join(aliased)}."] if aliased else []
    if any(row.has_decimal_commas for row in rows):
        notes.append(f"{where}: numbers are read with decimal commas: 1.000,5 is a thousand and a half.")
    found = Exported(header=(*kept, *sources), rows=renamed, notes=tuple(notes), theirs=other_names)
    return _of_models(_of_parameters(_of_shares(_of_steps(_of_all(_of_nodes(found))))))


def _states_status(header: Sequence[str], rows: Sequence[TextRow]) -> bool:
    """Return whether a column `state` contains the status of runs, as in the output of Slurm's `sacct`."""
    if STATUS in header or _STATE not in header:
        return False
    stated = [row.cells[_STATE] for row in rows if row.cells[_STATE].strip()]
    return bool(stated) and all(map(is_status, stated))


def _of_models(found: Exported) -> Exported:
    """Return the rows with their model as workload, if the file has several models and no workloads.

    A single model's name, which may be a file or a family, is stored in MODEL instead.
    """
    theirs = next((name for name in found.header if _bare(name) in _MODELS), None)
    if theirs is None or "workload" in found.header:
        return found
    named = {row.cells[theirs].strip() for row in found.rows} - {""}
    ours = "workload" if len(named) > 1 else MODEL
    names = {**found.theirs, ours: theirs}
    rows = [
        replace(row, theirs=names, cells={**row.cells, ours: row.cells[theirs].strip()}) for row in found.rows
    ]
    header = dict.fromkeys((*found.header, ours))
    return replace(found, header=tuple(header), rows=tuple(rows), theirs=names)


def _of_nodes(found: Exported) -> Exported:
    """Return the rows with nodes times accelerators per node, if no column has the number of accelerators."""
    if SIZE in found.header or not {NODES, PER_NODE} <= {*found.header}:
        return found
    factors = " times ".join(found.theirs.get(each, each) for each in (NODES, PER_NODE))
    return _with_column(found, SIZE, _on_nodes, theirs=factors, note=f"{SIZE} was computed as {factors}.")


def _on_nodes(cells: Mapping[str, str]) -> str:
    """Return nodes times accelerators per node; invalid cells are kept, and rejected when read."""
    factors = (cells[NODES].strip(), cells[PER_NODE].strip())
    is_whole = all(each.isascii() and each.isdecimal() and len(each) <= MAX_TEXT for each in factors)
    return str(math.prod(map(int, factors))) if is_whole else " times ".join(factors)


def _of_shares(found: Exported) -> Exported:
    """Return the rows with the global batch as micro-batch times accumulation times data-parallel size, if no
    column has it. The Trainer of transformers, accelerate and DeepSpeed define it in this way.
    """
    if BATCH in found.header or not {SIZE, MICROBATCH, ACCUMULATED} <= {*found.header}:
        return found
    factors = " times ".join(found.theirs.get(each, each) for each in (MICROBATCH, ACCUMULATED))
    note = f"{BATCH} was computed as {factors} times the data-parallel {SIZE}."
    return _with_column(found, BATCH, _batch, theirs=factors, note=note)


def _batch(cells: Mapping[str, str]) -> str:
    """Return the global batch of a row; empty if one of its factors is not known."""
    factors = (_data_ranks(cells), cells[MICROBATCH].strip(), cells[ACCUMULATED].strip())
    is_known = all(re.fullmatch("[1-9][0-9]{0,8}", each) for each in factors)
    return str(math.prod(map(int, factors))) if is_known else ""


def _data_ranks(cells: Mapping[str, str]) -> str:
    """Return the data-parallel size from the axes in the cells; empty if it is not a whole number."""
    size, *factors = (cells.get(each, "").strip() or "1" for each in (SIZE, "tp", "pp", "cp"))
    if not all(re.fullmatch("[1-9][0-9]{0,8}", each) for each in (size, *factors)):
        return ""
    ranks, rest = divmod(int(size), math.prod(map(int, factors)))
    return "" if rest else str(ranks)


def _of_parameters(found: Exported) -> Exported:
    """Return the rows with a strategy built from columns of its parameters, if no column has the strategy.

    Rows that differ in a parameter are not pooled. dp is omitted if it follows from the other parameters and
    the number of accelerators, because it then differs between sizes of the same strategy.
    """
    named = [name for name in OF_STRATEGY if name in found.header]
    if STRATEGY in found.header or not named:
        return found
    rows = [replace(row, cells={**row.cells, STRATEGY: _strategy(row.cells, named)}) for row in found.rows]
    notes = (*found.notes, f"{STRATEGY} was read from {', '.join(named)}.")
    return replace(found, header=(*found.header, STRATEGY), rows=tuple(rows), notes=notes)


def _strategy(cells: Mapping[str, str], named: Sequence[str]) -> str:
    """Return the strategy in the cells in text form, without neutral values."""
    stated = {name: cells[name].strip().removesuffix(".0") for name in named}
    usual = {**OF_STRATEGY, "dp": _data_ranks({**cells, **stated}) or OF_STRATEGY["dp"]}
    return " ".join(f"{name}={value}" for name, value in stated.items() if value not in {"", usual[name]})


def _of_all(found: Exported) -> Exported:
    """Return the rows with total rates computed from rates per accelerator, if no column has the total.

    Invalid rates and numbers of accelerators are kept, and rejected when they are read.
    """
    for each in filter(None, map(PER_ACCELERATOR.fullmatch, found.header)):
        if each[1] not in found.header:
            theirs = found.theirs.get(each[0], each[0])
            note = f"{theirs} is per accelerator: multiplied by {SIZE}."
            found = _with_column(found, each[1], partial(_product, rate=each[0]), theirs=theirs, note=note)
    return found


def _of_steps(found: Exported) -> Exported:
    """Return the rows with the time of a step, if a column has steps per second and none has that time.

    Invalid rates are kept, and rejected when they are read.
    """
    if _STEPS not in found.header or any(name.startswith("step_") for name in found.header):
        return found
    theirs = found.theirs.get(_STEPS, _STEPS)
    note = f"{theirs} counts steps of the global batch per second: the step time is its inverse."
    return _with_column(found, _STEP_S, lambda cells: _inverse(cells[_STEPS]), theirs=theirs, note=note)


def _with_column(
    found: Exported, name: str, value: Callable[[Mapping[str, str]], str], *, theirs: str, note: str
) -> Exported:
    """Return the rows with a further column.

    value: computes it from a row's cells. theirs: the file's names of its source columns. note: the
    computation.
    """
    names = {**found.theirs, name: theirs}
    rows = [replace(row, theirs=names, cells={**row.cells, name: value(row.cells)}) for row in found.rows]
    notes = (*found.notes, note)
    return replace(found, header=(*found.header, name), rows=tuple(rows), notes=notes, theirs=names)


def _inverse(rate: str) -> str:
    """Return the inverse of a rate as a cell; the rate itself if it is not an amount."""
    value = amount_of(rate)
    return repr(1.0 / value) if math.isfinite(value) and value > 0.0 else rate


def _product(cells: Mapping[str, str], rate: str) -> str:
    """Return a column's rate times the number of accelerators; the rate itself if either is not an amount."""
    product = amount_of(cells[rate]) * amount_of(cells.get(SIZE, ""))
    return repr(product) if math.isfinite(product) else cells[rate]


def _stated(header: Sequence[str], ours: str, theirs: str, where: str) -> str:
    """Return the file's column that the user named, by its full name or its name without prefixes."""
    if ours != theirs and TIMED.fullmatch(ours) and TIMED.fullmatch(_bare(theirs)):
        raise DataError(
            f"{where}: --column {ours}={theirs}: the column states its own unit; leave this option out"
        )
    unit, stated_unit = (time_unit(each.rpartition("_")[2]) for each in (ours, _bare(theirs)))
    if TIMED.fullmatch(ours) and stated_unit not in {None, unit}:
        right = f"{ours.rpartition('_')[0]}_{stated_unit}"
        raise DataError(
            f"{where}: --column {ours}={theirs}: the column's name ends in {stated_unit}; give --column "
            f"{right}={theirs}, or rename it"
        )
    one = f"{ours}_per_accelerator"
    if PER_ACCELERATOR.fullmatch(one) and _OF_ONE.search(theirs):
        raise DataError(
            f"{where}: --column {ours}={theirs}: by its name per accelerator; give --column {one}={theirs}"
        )
    if (TIMED.fullmatch(ours) or PER_ACCELERATOR.fullmatch(ours)) and _IN_THOUSANDS.search(theirs):
        raise DataError(
            f"{where}: --column {ours}={theirs}: by its name in thousands or more; expected a column in "
            "single samples or tokens"
        )
    found = [name for name in header if theirs in {name, _bare(name)}]
    exact = [name for name in found if name == theirs] or found
    if len(exact) != 1:
        what = f"{quoted(exact)} have that name" if exact else f"it has {quoted(header)}"
        or_number = ", or a whole number above 0" if ours in _STATED_AS_NUMBERS else ""
        raise DataError(
            f"{where}: --column {ours}={theirs}: {what}; expected the name of one column{or_number}"
        )
    return exact[0]


def _known(header: Sequence[str], stated: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the columns that have our name or a known alias after their prefixes."""
    found: dict[str, str] = {}
    wanted = {alias: ours for ours, aliases in _ALIASES.items() for alias in (ours, *aliases)}
    for name in header:
        bare = _bare(name)
        is_ours = wanted_column(bare) and bare not in {STATUS, *ENTRY}
        ours = wanted.get(bare) or (bare if is_ours else None)
        if ours is None or ours in stated:
            continue
        if ours in found:
            raise DataError(
                f"{where}: columns {echo(found[ours])} and {echo(name)} both look like {ours}; "
                f"choose one with --column {ours}=NAME"
            )
        found[ours] = name
    for ours, further in _FURTHER.items():
        names = [name for name in header if _bare(name) in further]
        if len(names) == 1 and ours not in {*found, *stated}:
            found[ours] = names[0]
    return found


def _aliased(
    header: Sequence[str], rows: Sequence[TextRow], stated: Mapping[str, str], where: str
) -> dict[str, str]:
    """Return the columns of a plain table with a known alias, if no column has the name itself.

    Columns with a tracker's prefix, as in an excerpt of its export, count if the others lack the number of
    accelerators or a time. A column whose name is only a unit of time is the time to train, if no other
    column states times. A name without a unit counts if every cell states one.
    Raises DataError if several differing columns may be the number of accelerators.
    """
    grouped = [name for name in header if name.startswith(_GROUPS)]
    names_here = {*header, *map(_bare, grouped)}
    is_timed = any(TIMED.fullmatch(name) for name in (*names_here, *stated))
    is_timed = is_timed or any(name in names_here for name in _TIMED_NAMES)
    of_cells = {
        ours: [each for each in names if each in header and _states_units(each, rows)]
        for ours, names in _OF_CELLS.items()
    }
    if is_timed or of_cells[_STEP_S]:
        is_timed, of_cells = True, {_STEP_S: of_cells[_STEP_S]}
    present: dict[str, list[str]] = {}
    for known in (_ALIASES, _FURTHER, _OWN, of_cells, {} if is_timed else _TIMES):
        for ours, names in known.items():
            named = [each for each in names if each in header and _may_be(ours, each, rows)]
            present[ours] = present.get(ours) or named
    sizes = present[SIZE]
    if len(sizes) > 1 and not {*header, *stated} & {SIZE}:
        if any(len({row.cells[each].strip() for each in sizes}) > 1 for row in rows):
            raise DataError(
                f"{where}: columns {quoted(sizes)} all look like {SIZE}, and differ; choose one with "
                f"--column {SIZE}=NAME"
            )
        present[SIZE] = sizes[:1]
    plain = {ours: names[0] for ours, names in present.items() if len(names) == 1 and ours not in header}
    known_here = {*header, *stated, *plain}
    if SIZE in known_here and any(TIMED.fullmatch(name) for name in known_here):
        return plain
    return _known(grouped, dict.fromkeys(known_here, ""), where) | plain


def _states_units(name: str, rows: Sequence[TextRow]) -> bool:
    """Return whether a column has cells, and all of them are durations with their unit."""
    cells = {row.cells[name].strip()[:MAX_TEXT] for row in rows} - {""}
    return bool(cells) and all(duration_s(each) is not None for each in cells)


def _may_be(ours: str, theirs: str, rows: Sequence[TextRow]) -> bool:
    """Return whether the cells fit the column's meaning. An accelerator is not a number such as a count or an
    index, unless the number names a card, such as `4090`.
    """
    cells = {row.cells[theirs].strip() for row in rows} - {""}
    if ours == ACCELERATOR:
        numbers = [each for each in cells if re.fullmatch(r"[\d.]+", each)]
        return all(len(each) in _CARD_DIGITS and _names_a_card(each) for each in numbers)
    return ours != PRECISION or all(precision_named(each) is not None for each in cells)


_CARD_DIGITS: Final = (3, 4)


def _names_a_card(number: str) -> bool:
    from equipoise.spec.catalogue import shipped  # noqa: PLC0415 - only needed for numeric names

    try:
        return shipped().slug_in_file(number) is not None
    except SpecError:  # several cards
        return True


def _bare(name: str) -> str:
    """Return a tracker's column without the tracker's prefixes.

    Values logged in evaluation keep their group, because a rate of evaluation is not a rate of training.
    """
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    group, _, logged = name.rpartition("/")
    return name if _OF_EVALUATION.search(group) else logged


def _in_unit(ours: str, cell: str) -> str:
    """Return a cell; durations such as `1.2h` or Slurm's `1-02:30:00` are converted to the column's unit."""
    timed = TIMED.fullmatch(ours)
    if timed is None or timed[2] is None:
        return cell
    seconds = _clock_s(cell) or duration_s(cell) if len(cell) <= MAX_TEXT else None
    return cell if seconds is None else repr(seconds / UNIT_S[timed[2]])


def _expect_no_list(text: str, where: str) -> None:
    """Raise DataError for a JSON list of objects, as pandas and jq write it."""
    if re.match(r"\s*\[\s*\{", text):
        raise DataError(
            f"{where}: one JSON list; expected one object a line (`jq -c '.[]' FILE` writes them), or CSV"
        )


def _is_of_extrap(text: str) -> bool:
    """Return whether the first of some JSON lines is a measurement in Extra-P's format."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    try:
        found: Any = parsed_json(first) if len(first) <= _LINE_BYTES else None
    except (ValueError, RecursionError):
        return '"params"' in first or '"metric"' in first
    return not isinstance(found, dict) or "params" in found or "metric" in found


def _of_objects(text: str, where: str) -> tuple[list[str], list[TextRow]]:
    """Return names and rows of JSON lines, one flat object per row, as `export runs --format jsonl` writes.

    Values that are lists or objects are omitted, because no column has such values. Raises DataError for
    other lines.
    """
    expected = 'expected one whole object a line, as {"num_accelerators": 8, "samples_per_s": 412.5}'
    found: list[tuple[int, str, dict[str, str]]] = []
    for line, place, cells in _json_lines(text, where, expected):
        if not isinstance(cells, dict) or len(cells) > MAX_COLUMNS or len(found) == MAX_ROWS:
            raise DataError(f"{place}: {expected}, {MAX_ROWS:,} lines and {MAX_COLUMNS:,} names at most")
        flat = {name: value for name, value in cells.items() if not isinstance(value, list | dict)}
        named = {column_name(name): _cell(value) for name, value in flat.items()}
        found.append((line, place, named))
    header = list(dict.fromkeys(name for *_, cells in found for name in cells))
    if len(header) > MAX_COLUMNS:
        raise DataError(f"{where}: {len(header):,} names; at most {MAX_COLUMNS:,} are read")
    rows = [
        TextRow(place=place, line=line, cells=dict.fromkeys(header, "") | cells)
        for line, place, cells in found
    ]
    return header, rows


def _json_lines(text: str, where: str, expected: str) -> Iterator[tuple[int, str, Any]]:
    """Yield number, location and value of each non-blank line, or of a single object over several lines.

    Raises DataError for invalid JSON.
    """
    is_one = text.lstrip().partition("\n")[0].strip() == "{"
    for number, line in enumerate([text] if is_one else text.split("\n"), 1):
        if line.strip():
            place = where if is_one else f"{where}: line {number}"
            try:
                found = parsed_json(line) if is_one or len(line) <= _LINE_BYTES else None
            except (ValueError, RecursionError) as err:
                raise DataError(f"{place}: not valid JSON: {str(err)[:MAX_TEXT]}; {expected}") from err
            yield number, place, _final_log(found, where)


def _final_log(found: Any, where: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the final log entry if this is a state of transformers' Trainer; any other value unchanged.

    Raises DataError for the state of a training that has not ended.
    """
    log = found.get("log_history") if isinstance(found, dict) else None
    if not isinstance(log, list):
        return found
    ends = [each for each in log if isinstance(each, dict) and "train_runtime" in each]
    if not ends:
        raise DataError(
            f"{where}: no train_runtime in log_history, which the Trainer logs when a training ends; "
            "expected the state that `save_state` writes after it, or its all_results.json"
        )
    return ends[-1]


def _cell(value: object) -> str:
    """Return a JSON value as the text of a CSV cell."""
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _clock_s(cell: str) -> float | None:
    """Return the seconds of a duration in Slurm's format; None for any other text."""
    found = _CLOCK.fullmatch(cell.strip())
    if found is None:
        return None
    days, hours, minutes = (float(each or 0) for each in found.groups()[:3])
    return days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + float(found[4])


def _of_extrap(text: str, where: str, stated: Mapping[str, str]) -> Exported:
    """Return Extra-P's JSON lines as rows, one per point and repetition, with its metrics as columns."""
    points: dict[tuple[str, tuple[tuple[str, float], ...]], list[dict[str, str]]] = {}
    names: set[str] = set()
    places: dict[int, tuple[int, str]] = {}
    for line, place, stated_here in _json_lines(text, where, _EXTRAP_EXPECTED):
        callpath, params, metric, values = _point(stated_here, place)
        repetitions = points.setdefault((callpath, params), [])
        names |= {metric, *(name for name, _ in params)}
        for value in values:
            row = next((each for each in repetitions if metric not in each), None)
            if row is None:
                row = {name: repr(number) for name, number in params} | _of_callpath(callpath)
                repetitions.append(row)
                places[id(row)] = (line, place)
            row[metric] = repr(value)
        if sum(map(len, points.values())) > MAX_ROWS or len(names) > MAX_COLUMNS:
            raise DataError(f"{place}: more than {MAX_ROWS:,} measurements or {MAX_COLUMNS:,} names")
    every = [row for rows in points.values() for row in rows]
    header = list(dict.fromkeys(name for row in every for name in row))
    sizes = [name for name in header if name in (SIZE, *_COLUMNS["extra_p"]["sizes"])]
    named = dict(stated)
    if SIZE not in {*stated, *header} and len(sizes) == 1:
        named[SIZE] = sizes[0]
    rows = [
        TextRow(place=place, line=line, cells={name: row.get(name, "") for name in header})
        for row in every
        for line, place in [places[id(row)]]
    ]
    found = _renamed("Extra-P", header, rows, named, where)
    note = () if SIZE in {*stated, *header} else tuple(f"Extra-P: read {name} as {SIZE}." for name in sizes)
    return replace(found, notes=(*found.notes, *note))


def _of_callpath(callpath: str) -> dict[str, str]:
    """Return workload, accelerator and label from a call path as written by `export`."""
    parts = callpath.split("->", 2) if callpath else []
    return dict(zip(("workload", "accelerator", "label"), parts, strict=False))


def _point(found: Any, place: str) -> tuple[str, tuple[tuple[str, float], ...], str, list[float]]:  # noqa: ANN401
    """Return call path, parameters, metric and values of a line. Raises DataError for another object."""
    params = found.get("params") if isinstance(found, dict) else None
    if not isinstance(params, dict) or not params or len(params) > MAX_COLUMNS:
        raise DataError(f"{place}: params are missing; {_EXTRAP_EXPECTED}")
    values = found.get("value")
    numbers = values if isinstance(values, list) else [values]
    texts = [found.get("callpath", ""), found.get("metric", "value"), *params]
    if not all(isinstance(each, str) and len(each) <= MAX_TEXT for each in texts):
        raise DataError(f"{place}: names that are not text; {_EXTRAP_EXPECTED}")
    points = tuple((column_name(name), _number(value, place)) for name, value in params.items())
    right = [_number(value, place) for value in numbers[: MAX_ROWS + 1]]
    return str(texts[0]), points, column_name(str(texts[1])), right


def _number(value: object, place: str) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise DataError(f"{place}: found {echo(str(value)[:MAX_TEXT])}; {_EXTRAP_EXPECTED}")


def columns_of(given: str | Sequence[str] | Mapping[str, object]) -> dict[str, str]:
    """Return our names with theirs, from texts such as `num_accelerators=world_size` or a mapping.

    Raises DataError for a text of another form, and if one of our names is given twice.
    """
    if isinstance(given, Mapping):
        given = [f"{ours}={theirs}" for ours, theirs in given.items()]
    found: dict[str, str] = {}
    for text in [given] if isinstance(given, str) else given:
        ours, equals, theirs = (part.strip() for part in text.partition("="))
        if not equals or not ours or not theirs or ours in found:
            raise DataError(
                f"--column {echo(text)}; expected OURS=THEIRS once, as num_accelerators=world_size"
            )
        found[column_name(ours)] = theirs
    return found
