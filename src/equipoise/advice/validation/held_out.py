"""Rows foretold by models that have not seen them, fold by fold, with intervals from errors elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from equipoise.advice.validation.accuracy import LEVEL, half_width, prior_half_width
from equipoise.advice.validation.predictor import Basis, Indices, Seconds, Task
from equipoise.runs.readers.published.rows import PublishedRow

# Of the rows a calibration is made on, so many folds tell how wrong it is on rows it has not seen.
_NUM_INNER_FOLDS = 5

Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Seconds, their bounds, and memory of every row, NaN where a row was not asked about; shape
    (n_rows,).
    """

    seconds: Seconds
    low_s: Seconds
    high_s: Seconds
    memory_bytes: Seconds
    bases: tuple[Basis | None, ...]


def held_out(
    task: Task,
    rows: Sequence[PublishedRow],
    *,
    aims: Indices,
    folds: Sequence[str],
    fitted: Indices,
    progress: Progress | None,
) -> HeldOut:
    """What a task foretells of some rows, each fold by models fitted to the other folds and to `fitted`.

    aims: the rows asked about. folds: of every aim; where all are one, models are fitted to `fitted` alone.
    fitted: further rows to fit to. Intervals come from the errors of the other folds, or from those of
    `fitted` when held out in folds of their own.
    """
    measured_s = np.array([row.seconds for row in rows], dtype=float)
    clusters = np.array([row.cluster for row in rows], dtype=np.intp)
    members = {name: aims[[each == name for each in folds]] for name in dict.fromkeys(folds)}
    found = _crossed(task, len(rows), members, fitted, progress)
    seconds, prior_log_sd = found.seconds, found.prior_log_sd
    known = np.log(measured_s / seconds)
    if len(members) == 1 and len(fitted):
        inner = _crossed(task, len(rows), _inner_folds(rows, fitted), np.array([], dtype=np.intp), progress)
        known = np.log(measured_s / inner.seconds)
    half = np.full(len(rows), np.nan)
    for name, some in members.items():
        others = np.concatenate([rest for other, rest in members.items() if other != name] or [fitted])
        half[some] = half_width(known[others], clusters[others], level=LEVEL)
    # Where parameters matter that the fitted rows do not tell, their errors say too little.
    further = prior_half_width(found.further_log_sd, level=LEVEL)
    half = np.hypot(half, np.where(np.isfinite(further), further, 0.0))
    by_beliefs = np.isfinite(prior_log_sd)
    half[by_beliefs] = prior_half_width(prior_log_sd[by_beliefs], level=LEVEL)
    return HeldOut(
        seconds=seconds,
        low_s=seconds * np.exp(-half),
        high_s=seconds * np.exp(half),
        memory_bytes=found.memory_bytes,
        bases=tuple(found.bases),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossed:
    """What was foretold of every row by models that had not seen it, NaN where nothing was."""

    seconds: Seconds
    prior_log_sd: Seconds
    further_log_sd: Seconds
    memory_bytes: Seconds
    bases: list[Basis | None]


def _crossed(
    task: Task, num_rows: int, folds: dict[str, Indices], fitted: Indices, progress: Progress | None
) -> _Crossed:
    """Seconds of the members of every fold by models fitted to all others, and their spread where none
    was.
    """
    seconds, prior_log_sd, further, memory_bytes = (np.full(num_rows, np.nan) for _ in range(4))
    bases: list[Basis | None] = [None] * num_rows
    for done, (name, members) in enumerate(folds.items()):
        if progress is not None:
            progress(f"holding out {name}" if name else "foretelling", done, len(folds))
        others = [rest for other, rest in folds.items() if other != name]
        told = task.foretell(np.concatenate([fitted, *others]).astype(np.intp))
        seconds[members] = told.seconds[members]
        if told.prior_log_sd is not None:
            prior_log_sd[members] = told.prior_log_sd[members]
        if told.further_log_sd is not None:
            further[members] = told.further_log_sd[members]
        if told.bases is not None:
            for at in members:
                bases[at] = told.bases[at]
        if told.memory_bytes is not None:
            memory_bytes[members] = told.memory_bytes[members]
    return _Crossed(
        seconds=seconds,
        prior_log_sd=prior_log_sd,
        further_log_sd=further,
        memory_bytes=memory_bytes,
        bases=bases,
    )


def _inner_folds(rows: Sequence[PublishedRow], fitted: Indices) -> dict[str, Indices]:
    """Folds of the rows a calibration is made on: whole settings (machine, size, model) where there are
    enough.
    """
    settings = [_setting(rows[i]) for i in fitted]
    if len(set(settings)) < _NUM_INNER_FOLDS:
        settings = [str(rows[i].cluster) for i in fitted]
    order = {setting: at % _NUM_INNER_FOLDS for at, setting in enumerate(sorted(set(settings)))}
    numbers = np.array([order[setting] for setting in settings], dtype=np.intp)
    return {f"part {number + 1}": fitted[numbers == number] for number in np.unique(numbers)}


def _setting(row: PublishedRow) -> str:
    model = None if row.model is None else row.model.transformer
    return f"{row.hardware} {row.num_accelerators} {row.workload if model is None else model.hidden}"
