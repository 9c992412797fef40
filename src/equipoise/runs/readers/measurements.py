"""Reads a user's own measurements: numbers of accelerators and times, converted to times at fixed work.

Units are read from column names. Nothing is guessed: unreadable input is rejected with its location.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mode

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.errors import DataError, SpecError
from equipoise.notes import Note
from equipoise.runs.readers.cells import (
    BATCH,
    ENTRY,
    MAX_TEXT,
    OF_STRATEGY,
    PRECISION,
    SEQUENCE,
    SIZE,
    STATUS,
    STRATEGY,
    TIMED,
    UNIT_S,
    TextRow,
    amount,
    count,
    echo,
    expect_time,
    is_success,
    quoted,
    rates_of,
    stated_amount,
)
from equipoise.runs.readers.exports import exported
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.strategy import Precision, Value, precision_named, without_ranks
from equipoise.units import plural

# Throughput is converted to the time of this many samples or tokens, which is readable in seconds.
_WORK_SAMPLES = 1_000_000.0
_RATES = frozenset({"samples", "tokens"})

# Columns that separate curves in a file, with the functions that normalise their values.
_SERIES: Mapping[str, Callable[[Catalogue, str, Sequence[str]], str | None]] = {
    "workload": lambda catalogue, raw, _: catalogue.workload_slug(raw),
    "accelerator": Catalogue.slug_in_file,
    STRATEGY: lambda _, raw, __: without_ranks(raw) or "ddp",
    PRECISION: lambda _, raw, __: raw.lower(),
}
# Rows with an empty value belong to every value: one rank needs no strategy, and a precision may be stated
# once.
_SHARED = frozenset({STRATEGY, PRECISION})
# Quantities in order of preference, if a file has several; the first covers the complete training.
_QUANTITIES = ("time_to_train", "samples", "tokens", "step")


class Measurements(Struct, frozen=True, kw_only=True):
    """Times for one fixed amount of work, one item per run.

    where: the file's name. work: the fixed amount, in words. is_time_to_train: whether it is a complete
    training. num_accelerators, time_s: (n_runs,). entry: (n_runs,) labels, equal for runs of one session;
    None if the file has none. global_batch_samples: (n_runs,), NaN if not stated. run_ids: (n_runs,), as in
    the table of runs. strategy: of all runs on several accelerators; None if not stated or not unique.
    accelerators: (n_runs,) slugs, each None if not stated; None if all runs used the accelerator in question.
    precisions: (n_runs,), None if not stated. notes: assumptions and exclusions.
    """

    where: str
    work: str
    is_time_to_train: bool
    num_accelerators: NDArray[np.float64]
    time_s: NDArray[np.float64]
    entry: tuple[str, ...] | None
    global_batch_samples: NDArray[np.float64]
    run_ids: tuple[str, ...]
    strategy: str | None
    precisions: tuple[Precision | None, ...]
    notes: tuple[Note, ...]
    accelerators: tuple[str | None, ...] | None = None

    @property
    def precision(self) -> Precision | None:
        """The precision of the runs; None if they state none or several."""
        stated = {*self.precisions} - {None}
        return stated.pop() if len(stated) == 1 else None

    def on(self, accelerator: str, precisions: Sequence[Value] = ()) -> "Measurements | None":
        """Return the runs on an accelerator in one precision, and runs that do not state them; None if none.

        precisions: requested precisions, of which the first with a run is used; otherwise the precision of
        most runs, with ties resolved in favour of the fastest run.
        """
        of_chip = self.accelerators or (None,) * len(self.run_ids)
        kept = [at for at in np.argsort(self.time_s, kind="stable") if of_chip[at] in {None, accelerator}]
        if not kept:
            return None
        left_out: tuple[Note, ...] = ()
        if stated := [each for at in kept if (each := self.precisions[at]) is not None]:
            one = next((each for each in precisions if each in stated), mode(stated))
            others = [at for at in kept if self.precisions[at] not in {None, one}]
            kept = [at for at in kept if at not in others]
            if others:
                left_out = (_excluded(f"Trainings in other precisions than {one}", str(len(others))),)
        kept.sort()
        return replace(
            self,
            num_accelerators=self.num_accelerators[kept],
            time_s=self.time_s[kept],
            entry=None if self.entry is None else tuple(self.entry[each] for each in kept),
            global_batch_samples=self.global_batch_samples[kept],
            run_ids=tuple(self.run_ids[each] for each in kept),
            precisions=tuple(self.precisions[each] for each in kept),
            notes=left_out,
            accelerators=None,
        )

    @property
    def common_batch_samples(self) -> int | None:
        """The global batch that all runs share; None if they differ or some state none."""
        batches = {*self.global_batch_samples.tolist()}
        batch = batches.pop() if len(batches) == 1 else math.nan
        return int(batch) if batch.is_integer() else None

    def runs_nearest(self, num_accelerators: int) -> tuple[str, ...]:
        """Return the names of all runs, ordered by the distance of their size."""
        distance = np.abs(np.log2(self.num_accelerators / num_accelerators))
        return tuple(self.run_ids[each] for each in np.argsort(distance, kind="stable"))


class _Timed(Struct, frozen=True, kw_only=True):
    """A column of times or rates: its name, quantity, and unit in seconds."""

    name: str
    quantity: str
    unit_s: float


def read_measurements(
    path: Path,
    *,
    workload: str | None = None,
    accelerator: str | None = None,
    strategy: str | None = None,
    precision: str | None = None,
    global_batch_samples: int | None = None,
    columns: Mapping[str, str] | None = None,
    catalogue: Catalogue | None = None,
) -> Measurements:
    """Return the measurements of one workload on one accelerator with one strategy and precision.

    workload, accelerator, strategy, precision: selected value if the file has such a column. Rows without a
    strategy, such as those on one accelerator, belong to every strategy; likewise for the precision.
    global_batch_samples: selected value if a size has several. columns: our names -> theirs.
    catalogue: resolves names; the shipped one by default.
    Raises DataError with the file, row and column, what was found and what was expected.
    Assumes an equal global batch at every size, if the file states seconds per step and no batch.
    """
    found = exported(path, columns)
    header, kept = found.header, list(found.rows)
    filled = [name for name in header if not kept or any(row.cells[name].strip() for row in kept)]
    # Files that are not measurements, such as a trainer's log, are rejected before cells are checked.
    timed = _timed_columns(filled or header, path.name, found.theirs)
    fault = next((row.fault for row in kept if row.fault), None)
    if fault:
        raise DataError(fault)
    notes = [*map(Note, found.notes)]
    kept, of_copies = _without_copies(kept, path.name)
    notes += of_copies
    if found.unfinished:
        left_out = f"Runs of {path.name} that did not finish or lack a value"
        notes.append(_excluded(left_out, str(len(found.unfinished))))
    if SIZE not in header:
        raise DataError(
            f"{path.name}: no column {SIZE}; found {quoted(found.written)}; name it with `--column "
            f"{SIZE}=NAME`, or give the number itself instead of NAME"
        )
    kept, of_unreadable = _without_unreadable(kept, timed, path.name)
    notes += of_unreadable
    if STRATEGY in filled:
        kept = _with_neutral_strategies(kept)
    series = {"workload": workload, "accelerator": accelerator, STRATEGY: strategy, PRECISION: precision}
    for column, wanted in series.items():
        if column in filled:
            kept, others = _of_series(kept, column, wanted, path.name, catalogue or shipped())
            notes += others
    usable = [row for row in kept if is_success(row.cells.get(STATUS, ""))]
    if len(usable) < len(kept):
        notes.append(_excluded(f"Rows whose {STATUS} is not `success`", str(len(kept) - len(usable))))
    usable, of_batch = _of_batch(usable, global_batch_samples, path.name)
    notes += of_batch
    if SEQUENCE in filled:
        _expect_one_length(usable, path.name)
    if not usable:
        failed = quoted(list(dict.fromkeys(row.cells[STATUS] for row in kept)))
        why = f"; {STATUS} is {failed}, not success, finished or completed" if kept else ""
        raise DataError(f"{path.name}: no row with a measurement{why}; expected a header and one row per run")
    return _measurements(usable, timed, header, path.name, notes)


def _excluded(rows: str, how_many: str) -> Note:
    """Return a note on excluded rows."""
    return Note(f"{rows} are excluded: {how_many}.", "not_used")


def _without_copies(rows: list[TextRow], where: str) -> tuple[list[TextRow], list[Note]]:
    """Return the rows without repetitions of the whole table, as in joined exports, and a note on them.

    If all rows are equal, they are kept, because they may be repetitions printed with few digits.
    """
    cells = [tuple(row.cells.items()) for row in rows]
    shares = (size for size in range(2, len(rows) // 2 + 1) if len(rows) % size == 0)
    once = next((size for size in shares if cells == cells[:size] * (len(rows) // size)), 0)
    if not once or len({*cells}) == 1:
        return rows, []
    times = len(rows) // once
    return rows[:once], [Note(f"{where} has the same {once} rows {times} times, cell by cell: counted once.")]


def _without_unreadable(
    rows: list[TextRow], timed: Sequence[_Timed], where: str
) -> tuple[list[TextRow], list[Note]]:
    """Return the rows except successful ones without a numeric size or time, and a note on the excluded ones.

    If no successful row is readable, all rows are kept, so that the error is reported for the first.
    """
    why = {row.place: err for row in rows if (err := _unreadable(row, timed)) is not None}
    if not why or len(why) == sum(is_success(row.cells.get(STATUS, "")) for row in rows):
        return rows, []
    first = str(next(iter(why.values()))).removeprefix(f"{where}: ")
    left_out = _excluded(f"Rows of {where} that cannot be read", f"{len(why)}, the first {first}")
    return [row for row in rows if row.place not in why], [left_out]


def _unreadable(row: TextRow, timed: Sequence[_Timed]) -> DataError | None:
    """Return the error in the size or time of a successful row, or None."""
    filled = [each.name for each in timed if row.cells[each.name].strip()] or [timed[0].name]
    if is_success(row.cells.get(STATUS, "")):
        try:
            count(row, SIZE)
            amount(row, filled[0])
        except DataError as err:
            return err
    return None


def _with_neutral_strategies(rows: Sequence[TextRow]) -> list[TextRow]:
    """Return the rows with neutral parameter values such as tp=1 as their strategy, if other rows differ.

    Among rows with other values, the neutral value is a strategy of its own. Rows on one accelerator keep an
    empty strategy, because they belong to all strategies.
    """
    named = [name for name in OF_STRATEGY if name != "dp" and rows and name in rows[0].cells]
    varied = [name for name in named if len({row.cells[name].strip() for row in rows} - {""}) > 1]
    found = []
    for row in rows:
        stated = [f"{name}={row.cells[name].strip()}" for name in varied if row.cells[name].strip()]
        is_plain = not row.cells[STRATEGY].strip() and row.cells[SIZE].strip() != "1"
        found.append(replace(row, cells={**row.cells, STRATEGY: " ".join(stated)}) if is_plain else row)
    return found


def _expect_one_length(rows: Sequence[TextRow], where: str) -> None:
    """Raise DataError if tokens per sample differ between rows, because the work then differs."""
    stated = [row for row in rows if row.cells[SEQUENCE].strip()]
    lengths = sorted({amount(row, SEQUENCE) for row in stated})
    if len(lengths) > 1:
        theirs, held = stated[0].written(SEQUENCE), quoted([f"{each:g}" for each in lengths])
        raise DataError(
            f"{where}: column {theirs} has several values, {held}: samples of different lengths are "
            "different work; keep the rows of one length"
        )


def _measurements(
    rows: Sequence[TextRow], timed: Sequence[_Timed], header: Sequence[str], where: str, notes: list[Note]
) -> Measurements:
    """Return the measurements in rows. timed: columns of times, the preferred one first."""
    chosen, batch = timed[0], np.array([stated_amount(row, BATCH) for row in rows], dtype=float)
    time_s = np.array([_time_s(row, timed) for row in rows])
    notes += _not_used(rows, timed)
    work = "the complete training"
    if chosen.quantity in _RATES:
        work = f"{_WORK_SAMPLES:,.0f} {chosen.quantity}"
    elif chosen.quantity == "step":
        time_s, work = _at_fixed_samples(rows, time_s, batch, chosen)
        if not np.isfinite(batch).any():
            _expect_falling(np.array([count(row, SIZE) for row in rows]), time_s, where)
            notes.append(
                Note(
                    f"{where} states no {BATCH}: the batch is assumed to be the same at every size, so "
                    "that every step is the same work."
                )
            )
    label = next((name for name in ENTRY if name in header), None)
    return Measurements(
        where=where,
        work=work,
        is_time_to_train=chosen.quantity == "time_to_train",
        num_accelerators=np.array([float(count(row, SIZE)) for row in rows]),
        time_s=time_s,
        entry=None if label is None else tuple(row.cells[label][:MAX_TEXT] for row in rows),
        global_batch_samples=batch,
        run_ids=tuple(row.run_id for row in rows),
        strategy=common_strategy((count(row, SIZE), row.cells.get(STRATEGY)) for row in rows),
        precisions=tuple(precision_named(row.cells.get(PRECISION, "")) for row in rows),
        notes=tuple(notes),
    )


def common_strategy(runs: Iterable[tuple[int, str | None]]) -> str | None:
    """Return the strategy of runs without its data-parallel size; None if they state none or several.

    runs: number of accelerators and strategy of each. Runs on one accelerator belong to every strategy.
    """
    stated = {without_ranks(strategy or "") for size, strategy in runs if size > 1}
    return stated.pop() or None if len(stated) == 1 else None


def _time_s(row: TextRow, timed: Sequence[_Timed]) -> float:
    """Return the time of the fixed work, from the preferred column or from another that can be converted."""
    chosen = timed[0]
    filled = [each.name for each in timed if row.cells[each.name].strip()] or [chosen.name]
    if chosen.quantity in _RATES:
        rate = _rate(row, chosen, filled)
        seconds = _WORK_SAMPLES / rate if rate else math.inf
    elif filled[0] == chosen.name:
        seconds = amount(row, chosen.name) * chosen.unit_s
    else:
        empty, other = map(row.written, (chosen.name, filled[0]))
        raise DataError(
            f"{row.place}, column {empty}: empty; {other} is not the time of a complete training: fill "
            f"{empty}, or leave the row out"
        )
    return expect_time(row, filled[0], seconds)


def _rate(row: TextRow, chosen: _Timed, filled: Sequence[str]) -> float:
    """Return samples or tokens per second from the row's first filled column. Raises if columns differ."""
    batch, tokens = (stated_amount(row, name) for name in (BATCH, SEQUENCE))
    rates = rates_of(row, filled, batch_samples=batch, sequence_tokens=tokens)
    if filled[0] == chosen.name:
        return amount(row, chosen.name) / chosen.unit_s
    per_sample = tokens if chosen.quantity == "tokens" else 1.0
    if not rates or per_sample is None:
        empty, other = map(row.written, (chosen.name, filled[0]))
        lacking = BATCH if batch is None else SEQUENCE
        raise DataError(f"{row.place}, column {empty}: empty, and {other} needs {lacking} to replace it")
    return next(iter(rates.values())) * per_sample


def _not_used(rows: Sequence[TextRow], timed: Sequence[_Timed]) -> Iterator[Note]:
    """Yield a note on how often each column of times except the preferred one was used."""
    chosen, *others = timed
    empty = [row for row in rows if not row.cells[chosen.name].strip()]
    ours, *theirs = (rows[0].written(each.name) for each in timed)
    for each, name in zip(others, theirs, strict=True):
        num_used = sum(bool(row.cells[each.name].strip()) for row in empty)
        empty = [row for row in empty if not row.cells[each.name].strip()]
        yield Note(
            f"Column {name} was used in {plural(num_used, 'row')}, where {ours} is empty."
            if num_used
            else f"Column {name} was not used: {ours} is used."
        )


# If steps on more accelerators are not shorter by this factor, the batch may grow with their number.
_SHORTER = 1.1


def _expect_falling(sizes: NDArray[np.int64], step_s: NDArray[np.float64], where: str) -> None:
    """Raise DataError if the batch is not stated and steps on more accelerators are no shorter."""
    at_size_s = [float(np.median(step_s[sizes == size])) for size in np.unique(sizes)]
    if len(at_size_s) > 1 and at_size_s[0] < _SHORTER * min(at_size_s[1:]):
        raise DataError(
            f"{where} states no {BATCH}, and steps on more accelerators are no shorter, as if the batch "
            f"grew with their number; add a column {BATCH}"
        )


def _at_fixed_samples(
    rows: Sequence[TextRow], step_s: NDArray[np.float64], batch: NDArray[np.float64], timed: _Timed
) -> tuple[NDArray[np.float64], str]:
    """Return seconds per step as seconds of a fixed number of samples, and that number in words."""
    stated = np.isfinite(batch)
    if not stated.any():
        return step_s, "one step"
    if not stated.all():
        row = rows[int(np.argmin(stated))]
        raise DataError(
            f"{row.place}, column {row.written(BATCH)}: empty, while other rows state it; a step "
            f"({timed.name}) is only the same work at the same batch. State it in every row or in none"
        )
    if np.all(batch == batch[0]):
        return step_s, f"one step of {batch[0]:,.0f} samples"
    return step_s / batch * _WORK_SAMPLES, f"{_WORK_SAMPLES:,.0f} samples"


def _timed_columns(header: Sequence[str], where: str, theirs: Mapping[str, str]) -> list[_Timed]:
    """Return the columns of times in order of preference. theirs: as in `Exported`."""
    written = {name: theirs.get(name, name) for name in header}
    found: dict[str, _Timed] = {}
    for name in header:
        match = TIMED.fullmatch(name)
        if match is None:
            continue
        quantity, unit = match[1] or match[3], match[2] or match[4]
        if quantity in found:
            raise DataError(
                f"{where}: columns {written[found[quantity].name]} and {written[name]} hold the same "
                "quantity; keep one"
            )
        found[quantity] = _Timed(name=name, quantity=quantity, unit_s=UNIT_S[unit])
    if not found:
        raise DataError(
            f"{where}: no column of times; found {quoted([*written.values()])}; expected time_to_train_s, "
            "step_s or samples_per_s, or one of them in other units: _ms, _min, _h; "
            "name one with `--column time_to_train_s=NAME`"
        )
    return [found[quantity] for quantity in _QUANTITIES if quantity in found]


def _of_series(
    rows: Sequence[TextRow], column: str, wanted: str | None, where: str, catalogue: Catalogue
) -> tuple[list[TextRow], list[Note]]:
    """Return the rows with one value of a column of _SERIES, and a note if others were excluded.

    Raises DataError if the user must choose one of several values.
    """
    spelt = _SERIES[column]
    aim = None if wanted is None else spelt(catalogue, wanted, ()) or wanted
    asked = () if aim is None else (aim,)
    try:
        held = dict.fromkeys(row.cells[column].strip() for row in rows)
        names = {raw: spelt(catalogue, raw, asked) or raw for raw in held}
    except SpecError as err:
        raise DataError(f"{where}: column {column}: {err}") from err
    everywhere = {""} & set(names) if column in _SHARED else set()
    names = {raw: name for raw, name in names.items() if raw not in everywhere}
    if wanted is not None and aim is not None:
        chosen = {raw for raw, name in names.items() if name == aim or raw == wanted}
        if not chosen and any(names):
            raise DataError(f"{where}: no row has {column} {echo(wanted)}; it has {quoted([*names])}")
        names = dict.fromkeys(chosen, aim) or names
    if len(set(names.values())) > 1:
        theirs = rows[0].written(column)
        raise DataError(
            f"{where}: column {theirs} has several values, {quoted([*names])}; choose one with --{column}"
        )
    kept = [row for row in rows if row.cells[column].strip() in {*names, *everywhere}]
    if len(kept) == len(rows):
        return kept, []
    num_empty = sum(not row.cells[column].strip() for row in rows) if "" not in {*names, *everywhere} else 0
    empty = f" ({num_empty} with none)" if num_empty else ""
    theirs = rows[0].written(column)
    return kept, [_excluded(f"Rows whose {theirs} is not {aim}", f"{len(rows) - len(kept)}{empty}")]


def _of_batch(rows: list[TextRow], wanted: int | None, where: str) -> tuple[list[TextRow], list[Note]]:
    """Return the rows with the wanted global batch or none stated, and notes on exclusions and assumptions.

    If none is wanted, all rows are returned if each size has a single batch. A batch that grows with the size
    is one curve, as in weak scaling; several batches at one size are several curves.
    Raises DataError if the user must choose one of several, or if the wanted one does not occur.
    """
    stated = [row for row in rows if stated_amount(row, BATCH)]
    held = quoted([f"{each:,.0f}" for each in sorted({amount(row, BATCH) for row in stated})])
    theirs = rows[0].written(BATCH) if rows else BATCH
    if wanted is None:
        batches: dict[int, set[float]] = {}
        for row in stated:
            batches.setdefault(count(row, SIZE), set()).add(amount(row, BATCH))
        several = next((size for size, of_size in batches.items() if len(of_size) > 1), None)
        if several is not None:
            raise DataError(
                f"{where}: column {theirs} has several values at {several} "
                f"accelerators; it has {held}; choose one with --global-batch"
            )
        return rows, []
    kept = [row for row in rows if stated_amount(row, BATCH) in {wanted, None}]
    if rows and not kept:
        raise DataError(f"{where}: no row has {theirs} {wanted:,}; it has {held}")
    notes = []
    if len(kept) < len(rows):
        notes.append(_excluded(f"Rows whose {theirs} is not {wanted:,}", str(len(rows) - len(kept))))
    if unstated := len(rows) - len(stated):
        notes.append(Note(f"Rows that state no {theirs} are assumed to have {wanted:,}: {unstated}."))
    return kept, notes
