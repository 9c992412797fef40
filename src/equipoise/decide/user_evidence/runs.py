"""The user's own runs: what tables of sweeps, watched loops and files of measurements hold, by set-up.

A folder holds `runs.parquet` (as `bench`, `watch` and `ingest` write it), CSV files of measurements, or
folders of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

from equipoise.decide.candidate import UserRun
from equipoise.decide.estimate import LEAST_LOG_SD
from equipoise.errors import DataError
from equipoise.runs.readers.measurements import Measurements, read_measurements
from equipoise.runs.schema import RUNS
from equipoise.runs.store import read_table
from equipoise.units import format_count

_SUCCESS = "success"
_TABLE = f"{RUNS.name}.parquet"
_FILES = ("*.csv",)
_MOST_FOLDERS = 1000
_SET_UP = ("workload", "accelerator", "num_accelerators", "strategy", "precision", "global_batch_samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRuns:
    """What a folder holds of one workload. trainings: whole trainings, where some were timed.

    machines: raw names of what they ran on. num_other: runs of other workloads.
    """

    where: str
    set_ups: tuple[UserRun, ...]
    trainings: Measurements | None
    machines: tuple[str, ...]
    num_other: int
    notes: tuple[str, ...]

    def on(self, accelerator: str) -> tuple[UserRun, ...]:
        """The set-ups measured on an accelerator, or on what is not stated."""
        return tuple(each for each in self.set_ups if each.accelerator in {None, accelerator})


def user_runs(folder: Path, workload: str, accelerators: Sequence[str]) -> UserRuns:
    """What a folder holds of a workload.

    accelerators: slugs asked about, of which files with several are read. Raises DataError where it holds
    nothing that can be read, naming what was expected.
    """
    if not folder.is_dir():
        raise DataError(f"--runs {folder}: not a folder; expected one that `equipoise bench --out` wrote")
    tables = [folder / _TABLE, *sorted(folder.glob(f"*/{_TABLE}"))[:_MOST_FOLDERS]]
    frames = [read_table(path, RUNS) for path in tables if path.is_file()]
    files = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    if not frames and not files:
        raise DataError(
            f"--runs {folder}: neither {_TABLE} nor a CSV file of measurements; expected a folder that "
            "`equipoise bench --out DIR` wrote, or one with files as `equipoise predict --from` takes them"
        )
    set_ups: list[UserRun] = []
    trainings: Measurements | None = None
    notes: list[str] = []
    num_other = 0
    if frames:
        runs = pl.concat(frames).filter(pl.col("status") == _SUCCESS)
        mine = runs.filter(pl.col("workload") == _asked(runs, workload, notes))
        num_other = len(runs) - len(mine)
        set_ups += _set_ups(mine)
        trainings = _trainings(mine, str(folder))
    for path in files:
        for accelerator in accelerators or (None,):
            found = _measured(path, workload, accelerator, notes)
            if found is None:
                continue
            if found.is_time_to_train:
                trainings = trainings or found
            set_ups += _from_file(found, accelerator)
            break
    machines = sorted({each.accelerator for each in set_ups if each.accelerator is not None})
    return UserRuns(
        where=str(folder),
        set_ups=tuple(set_ups),
        trainings=trainings,
        machines=tuple(machines),
        num_other=num_other,
        notes=tuple(notes),
    )


def _asked(runs: pl.DataFrame, workload: str, notes: list[str]) -> str:
    """The name by which the runs know the workload: of a user's own model often that of its class alone."""
    names = runs["workload"].drop_nulls().unique().to_list()
    if ":" not in workload or workload in names or len(names) != 1:
        return workload
    notes.append(f"The runs are of {names[0]}; they are taken for {workload}, being of no other workload.")
    return str(names[0])


def _set_ups(runs: pl.DataFrame) -> Iterator[UserRun]:
    """One record a set-up with a rate and a batch."""
    rated = runs.filter(
        pl.col("samples_per_s").is_not_null()
        & (pl.col("samples_per_s") > 0)
        & pl.col("global_batch_samples").is_not_null()
        & pl.col("time_to_train_s").is_null()
    )
    for key, group in rated.group_by(_SET_UP, maintain_order=True):
        named = dict(zip(_SET_UP, key, strict=True))
        rates = group["samples_per_s"].to_list()
        yield UserRun(
            accelerator=named["accelerator"],
            num_accelerators=named["num_accelerators"],
            strategy=named["strategy"],
            precision=named["precision"],
            global_batch_samples=named["global_batch_samples"],
            samples_per_s=median(rates),
            log_sd=_log_sd(rates),
            run_ids=tuple(group["run_id"].to_list()),
        )


def _log_sd(rates: Sequence[float]) -> float:
    """Of the median of several runs; of one run what replicate systems differ by.

    Source: the standard error of a mean of logarithms, times 1.25 for a median of normal values.
    """
    if len(rates) == 1:
        return LEAST_LOG_SD
    return 1.25 * float(np.std(np.log(rates), ddof=1)) / math.sqrt(len(rates))


def _trainings(runs: pl.DataFrame, where: str) -> Measurements | None:
    """Whole trainings among the runs, as `predict --from` would read them."""
    whole = runs.filter(pl.col("time_to_train_s").is_not_null() & (pl.col("time_to_train_s") > 0))
    if whole.is_empty():
        return None
    batch = whole["global_batch_samples"].cast(pl.Float64).fill_null(math.nan).to_numpy()
    return Measurements(
        where=where,
        work="the whole training",
        is_time_to_train=True,
        num_accelerators=whole["num_accelerators"].cast(pl.Float64).to_numpy(),
        time_s=whole["time_to_train_s"].to_numpy(),
        entry=None,
        global_batch_samples=batch,
        notes=(),
    )


def _measured(path: Path, workload: str, accelerator: str | None, notes: list[str]) -> Measurements | None:
    """A file of measurements; None, with a note, where it has none of this workload."""
    try:
        return read_measurements(path, workload=workload, accelerator=accelerator)
    except DataError as err:
        notes.append(f"Not used: {err}.")
        return None


def _from_file(found: Measurements, accelerator: str | None) -> Iterator[UserRun]:
    """Steps of a file as set-ups: those that state their batch."""
    if found.work_samples is None:
        return
    for size in np.unique(found.num_accelerators):
        here = found.num_accelerators == size
        batches, times = found.global_batch_samples[here], found.time_s[here]
        if not np.isfinite(batches).all():
            continue
        rates = (found.work_samples / times).tolist()
        yield UserRun(
            accelerator=accelerator,
            num_accelerators=int(size),
            strategy=None,
            precision=None,
            global_batch_samples=int(np.median(batches)),
            samples_per_s=median(rates),
            log_sd=_log_sd(rates),
            run_ids=(f"{found.where}: {format_count(size)} accelerators",),
        )
