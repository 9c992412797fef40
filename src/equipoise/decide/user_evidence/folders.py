"""Reads a user's folder of runs: the set-ups of one workload from its tables and files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.evidence import LEAST_LOG_SD, UserRun, repeated_log_sd
from equipoise.decide.user_evidence.runs import UserRuns, num_accumulated
from equipoise.decide.user_evidence.usable import (
    UNLIKE,
    Asked,
    Unused,
    in_tf32,
    not_used_notes,
    unlike,
    unreadable,
    why_not,
)
from equipoise.errors import DataError, SpecError
from equipoise.intervals import LEVEL, log_sd
from equipoise.notes import Note
from equipoise.runs import lacks_tables
from equipoise.runs.store import RUNS, STEPS, frame_of, read_table
from equipoise.spec.strategy import precision_named
from equipoise.stats import by_key, series_mean_interval
from equipoise.units import listed, plural

if TYPE_CHECKING:
    from equipoise.runs.ingest import FileRuns
    from equipoise.runs.readers.measurements import Measurements

_FILE_ORIGIN = "imported"
_TABLE, _STEPS = (f"{each.name}.parquet" for each in (RUNS, STEPS))
_FILES = ("*.csv", "*.tsv")
# Suffixes of files named directly; in a folder, most of these may have other purposes.
_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_MAX_FOLDERS = 1000
# On quiet machines the mean of steps is a few percent above their median.
_UNEVEN = 1.15
# A rate above that of the mean step by this factor is of the median step.
_MEDIAN_RATE_RATIO = 1.05
# Fewer steps have no interval of their mean.
_MIN_SERIES = 6
_MAX_NAMED = 3
_SET_UP = ("workload", "accelerator", "num_accelerators", "strategy", "precision", "global_batch_samples")


def user_runs(
    path: Path,
    asked: Asked,
    *,
    global_batch_samples: int | None = None,
    is_named_here: bool = False,
    precisions: Sequence[str] = (),
) -> UserRuns:
    """The runs of a workload in a folder, a file of measurements or a table of runs.

    asked: with the name of the workload in the question. global_batch_samples: default for rows without one.
    is_named_here: whether the name is the question's own, e.g. of a config.json, so that runs cannot have it.
    precisions: stated in the question, in the user's names.
    Raises DataError if nothing can be read, with what was expected.
    """
    tables, files = _tables_and_files(path)
    together = 1 if asked.known is None else asked.known.samples_per_example
    batch = None if global_batch_samples is None else max(1, global_batch_samples // together)
    read, unread = _read_files(files, asked, batch=batch)
    frames = [read_table(each, RUNS) for each in tables] + [frame_of(each.rows, RUNS) for each in read]
    runs = _with_question_names(asked, pl.concat(frames) if frames else frame_of([], RUNS))
    if together > 1:
        runs = _in_samples(runs, together)
    named: list[Note] = []
    if is_named_here or ":" in asked.workload:
        asked = replace(asked, workload=_name_in_runs(runs, asked.workload, named))
    reasons = [why_not(row, asked) for row in runs.iter_rows(named=True)]
    outside = [
        *(unreadable(row) for each in read for row in each.refused),
        *(Unused(kind="unfinished", words=why) for each in read for why in each.unfinished),
    ]
    unused = [*outside, *(each for each in reasons if each is not None)]
    of_it = runs.filter(pl.col("workload") == asked.workload)
    mine = runs.filter(pl.Series([each is None for each in reasons], dtype=pl.Boolean))
    if not asked.is_to_target:
        mine = mine.with_columns(pl.lit(None, pl.Float64).alias("time_to_train_s"))
    mine = mine.with_columns(pl.col("precision").map_elements(precision_named, return_dtype=pl.String))
    mine, of_tf32 = (mine, ()) if "fp32" in precisions else _with_tf32(mine, asked)
    stepped = _statistics_by_run(tables)
    mine = _with_rates_of_means(mine, stepped)
    where = files[0].name if len(files) == 1 and not tables else path.resolve().name
    return UserRuns(
        where=str(path),
        set_ups=tuple(_set_ups(mine, stepped)),
        trainings=_trainings(mine, str(path)),
        machines=tuple(sorted(of_it["accelerator"].drop_nulls().unique())),
        other_workloads=tuple(sorted({*runs["workload"].drop_nulls()} - {asked.workload})),
        num_of_asked_length=0 if asked.sequence_tokens is None else mine["sequence_tokens"].null_count(),
        notes=(
            *not_used_notes(unused, len(runs) + len(outside), where),
            *unread,
            *named,
            *_example_notes(mine, together),
            *of_tf32,
            *_uneven_notes([stepped[run_id].unevenness for run_id in mine["run_id"] if run_id in stepped]),
            *_unlike_notes(mine, {run_id: cells for each in read for run_id, cells in each.apart.items()}),
        ),
    )


def _tables_and_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The tables of runs and the files of measurements at a path.

    Raises DataError if there are none, with what was expected.
    """
    if path.is_file() and path.suffix.lower() in _SUFFIXES:
        return ([path], []) if path.name == _TABLE else ([], [path])
    if not path.is_dir():
        raise DataError(
            f"--runs {path}: neither a folder nor a file such as CSV ({', '.join(_SUFFIXES)}); expected a "
            "folder that `equipoise bench --out DIR` wrote, or such a file of measurements"
        )
    tables = tables_below(path)
    files = sorted(each for pattern in _FILES for each in path.glob(pattern))
    if not tables and not files:
        if cut_off := lacks_tables(path):
            raise DataError(f"--runs {path}: {cut_off}")
        raise DataError(
            f"--runs {path}: neither {_TABLE} nor a CSV file of measurements; expected a folder that "
            "`equipoise bench --out DIR` wrote, or a folder with files that `equipoise ingest` reads"
        )
    return tables, files


def without_score(folders: Sequence[Path], workload: str, accelerators: Sequence[str]) -> Iterator[Note]:
    """Yield notes on folders of additional results that have runs of a user's files, which have no score."""
    for folder in folders:
        runs = read_table(folder / _TABLE, RUNS)
        of_files = (pl.col("origin") == _FILE_ORIGIN) & (pl.col("workload") == workload)
        num = len(
            runs.filter(of_files & pl.col("accelerator").fill_null(accelerators[0]).is_in(accelerators))
        )
        if num:
            used = "it is" if num == 1 else "they are"
            yield Note(
                f"{plural(num, 'run')} without a score in --also {folder}: {used} used as --runs {folder}.",
                "not_used",
            )


def tables_below(folder: Path) -> list[Path]:
    """The tables of runs in a folder and in its subfolders, of which at most 1,000 are read."""
    below = sorted(folder.glob(f"*/{_TABLE}"))[:_MAX_FOLDERS]
    return [path for path in (folder / _TABLE, *below) if path.is_file()]


def _with_question_names(asked: Asked, runs: pl.DataFrame) -> pl.DataFrame:
    """The runs with names as in the question: slugs of accelerators, if unambiguous, and of the workload.

    Runs in files that state no workload are taken to be of the question's.
    """
    stated, catalogue = pl.col("workload"), asked.catalogue
    is_silent = (pl.col("origin") == _FILE_ORIGIN) & stated.is_null()
    runs = runs.with_columns(
        pl.when(is_silent).then(pl.lit(asked.workload)).otherwise(stated).alias("workload")
    )
    chips = {}
    for name in {*runs["accelerator"].drop_nulls()} - {*asked.accelerators}:
        with suppress(SpecError):
            chips[name] = catalogue.slug_in_file(name, asked.accelerators) or name
    names = {*runs["workload"].drop_nulls()}
    workloads = {each: asked.workload for each in names if catalogue.workload_slug(each) == asked.workload}
    return runs.with_columns(pl.col("accelerator").replace(chips), stated.replace(workloads))


def _in_samples(runs: pl.DataFrame, together: int) -> pl.DataFrame:
    """The runs with rates and batches of files converted from examples to samples.

    Source: huggingface/trl, `DPOTrainer`: a batch has pairs, which its data collator puts side by side.
    """
    factor = pl.when(pl.col("origin") == _FILE_ORIGIN).then(together).otherwise(1)
    return runs.with_columns(pl.col("samples_per_s") * factor, pl.col("global_batch_samples") * factor)


def _example_notes(runs: pl.DataFrame, together: int) -> Iterator[Note]:
    """Yield a note that batches and rates of files count examples, if these have several samples."""
    num = runs.filter(pl.col("origin") == _FILE_ORIGIN).height
    if together > 1 and num:
        yield Note(
            f"Batches and rates of {plural(num, 'run')} are assumed to count examples, as trainers do: "
            f"{together} samples each."
        )


def _name_in_runs(runs: pl.DataFrame, workload: str, notes: list[Note]) -> str:
    """The name of the workload in the runs, which for a user's own model is often just that of its class."""
    names = runs["workload"].drop_nulls().unique().to_list()
    if workload in names or len(names) != 1:
        return workload
    notes.append(Note(f"The runs are of {names[0]}, the only workload there; they are used for {workload}."))
    return str(names[0])


class _StepStatistics(Struct, frozen=True, kw_only=True):
    """Statistics of one run's steps. unevenness: mean over median. log_sd: of the mean."""

    mean_s: float
    unevenness: float
    log_sd: float


def _statistics_by_run(tables: Sequence[Path]) -> dict[str, _StepStatistics]:
    found: dict[str, _StepStatistics] = {}
    for path in (each.with_name(_STEPS) for each in tables):
        if path.is_file():
            steps = read_table(path, STEPS).filter((pl.col("phase") == "step") & (pl.col("seconds") > 0))
            for (run_id,), group in steps.sort("repetition").group_by("run_id", maintain_order=True):
                found[str(run_id)] = _step_statistics(group["seconds"].to_list())
    return found


def _step_statistics(step_s: Sequence[float]) -> _StepStatistics:
    mean_s = fmean(step_s)
    known = len(step_s) >= _MIN_SERIES
    width = log_sd(series_mean_interval(step_s, level=LEVEL)) if known else 0.0
    return _StepStatistics(mean_s=mean_s, unevenness=mean_s / median(step_s), log_sd=width)


def _with_rates_of_means(runs: pl.DataFrame, steps: Mapping[str, _StepStatistics]) -> pl.DataFrame:
    """The runs with rates of mean steps, because steps add up to a training.

    Tables of earlier versions have rates of median steps, which exclude stalls.
    """
    columns = ("run_id", "samples_per_s", "global_batch_samples", "strategy")
    rates = []
    for run_id, rate, batch, strategy in runs.select(columns).iter_rows():
        # A sweep measures each pass of an accumulated step separately.
        passes = num_accumulated(strategy) or 1
        of_mean = batch / passes / steps[run_id].mean_s if batch and run_id in steps else None
        rates.append(of_mean if rate and of_mean and rate > _MEDIAN_RATE_RATIO * of_mean else rate)
    return runs.with_columns(pl.Series("samples_per_s", rates, dtype=pl.Float64))


def _with_tf32(runs: pl.DataFrame, asked: Asked) -> tuple[pl.DataFrame, tuple[Note, ...]]:
    """The runs with fp32 changed to tf32 where they must have used it, and a note on that."""
    chips = in_tf32(runs.iter_rows(named=True), asked)
    held = runs.select("accelerator", "precision").iter_rows()
    found = ["tf32" if name in chips and precision == "fp32" else precision for name, precision in held]
    num = len([each for each, ran in zip(found, runs["precision"], strict=True) if each != ran])
    words = f"{plural(num, 'run')} in fp32 assumed to multiply in tf32: some exceed the peak of fp32."
    return runs.with_columns(pl.Series("precision", found, dtype=pl.String)), (Note(words),) if num else ()


def _uneven_notes(unevenness: Sequence[float]) -> Iterator[Note]:
    """Yield a note if the mean of some runs' steps is noticeably above their median."""
    uneven = [each for each in unevenness if each > _UNEVEN]
    if uneven:
        yield Note(
            f"Steps of {len(uneven)} of your {len(unevenness)} runs took up to {max(uneven):.1f} times their "
            "median on average, as on a busy machine: the mean is used, as steps add up to a training."
        )


def _rated(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs with a rate and a batch."""
    return runs.filter(
        pl.col("samples_per_s").is_not_null()
        & (pl.col("samples_per_s") > 0)
        & pl.col("global_batch_samples").is_not_null()
        & pl.col("time_to_train_s").is_null()
    )


def _unlike_notes(runs: pl.DataFrame, apart: Mapping[str, Mapping[str, str]]) -> Iterator[Note]:
    """Yield a note on the set-up whose runs differ most, if by far. apart: see `FileRuns`."""
    trained, rate = pl.col("time_to_train_s") > 0, pl.col("samples_per_s")
    paced = runs.with_columns(
        trained.fill_null(value=False).alias("whole"),
        pl.when(trained).then(1.0 / pl.col("time_to_train_s")).otherwise(rate).alias("pace"),
    )
    is_known = pl.col("whole") | pl.col("global_batch_samples").is_not_null()
    found = paced.filter((pl.col("pace") > 0) & is_known).group_by(*_SET_UP, "whole")
    ratio = (pl.col("pace").max() / pl.col("pace").min()).alias("ratio")
    worst = found.agg(ratio, pl.len(), "run_id", "pace").sort("ratio", "num_accelerators").tail(1).to_dicts()
    for each in worst:
        paces = dict(zip(each["run_id"], each["pace"], strict=True))
        size, batch = each["num_accelerators"], each["global_batch_samples"]
        yield from unlike(
            size, batch, each["len"], ratio=each["ratio"], columns=_distinguishing_columns(paces, apart)
        )


def _distinguishing_columns(rates: Mapping[str, float], apart: Mapping[str, Mapping[str, str]]) -> str:
    """Columns of a file that explain the differences within a set-up: runs with equal cells are alike, as
    text.

    Among several, those with the fewest distinct cells in the file, because unique cells are rarely the
    cause.
    """
    cells = [apart.get(run_id, {}) for run_id in rates]
    telling: dict[int, list[str]] = {}
    for name in dict.fromkeys(name for each in cells for name in each):
        held_by = (each.get(name, "") for each in cells)
        alike = by_key(zip(held_by, rates.values(), strict=True))
        if len(alike) > 1 and all(max(each) <= UNLIKE * min(each) for each in alike.values()):
            held = ", ".join(each or "none" for each in sorted(alike)[:_MAX_NAMED])
            num_cells = len({each.get(name, "") for each in apart.values()})
            telling.setdefault(num_cells, []).append(f"{name} ({held})")
    return listed(telling[min(telling)], _MAX_NAMED) if telling else ""


def _set_ups(runs: pl.DataFrame, steps: Mapping[str, _StepStatistics]) -> Iterator[UserRun]:
    """Yield one record per set-up with a rate and a batch. steps: statistics by run, where known."""
    for key, group in _rated(runs).group_by(_SET_UP, maintain_order=True):
        named = dict(zip(_SET_UP, key, strict=True))
        rates = group["samples_per_s"].to_list()
        yield UserRun(
            accelerator=named["accelerator"],
            num_accelerators=named["num_accelerators"],
            strategy=named["strategy"],
            precision=named["precision"],
            global_batch_samples=named["global_batch_samples"],
            samples_per_s=median(rates),
            log_sd=_log_sd(rates, [steps[run_id].log_sd for run_id in group["run_id"] if run_id in steps]),
            run_ids=tuple(group["run_id"].to_list()),
            is_eager=None if bool((group["origin"] == _FILE_ORIGIN).all()) else True,
        )


def _log_sd(rates: Sequence[float], of_runs: Sequence[float]) -> float:
    """Log sd of the median of several runs; of one run, from replicate systems and its steps.

    of_runs: log sd of the mean step of each run with known steps.
    """
    return repeated_log_sd(rates) if len(rates) > 1 else math.hypot(LEAST_LOG_SD, *of_runs)


def _trainings(runs: pl.DataFrame, where: str) -> "Measurements | None":
    """Whole trainings among the runs, in the form read by `predict --from`."""
    whole = runs.filter(pl.col("time_to_train_s").is_not_null() & (pl.col("time_to_train_s") > 0))
    if whole.is_empty():
        return None
    batch = whole["global_batch_samples"].cast(pl.Float64).fill_null(math.nan).to_numpy()
    from equipoise.runs.readers.measurements import (  # noqa: PLC0415 - only where trainings were measured
        Measurements,
        common_strategy,
    )

    return Measurements(
        where=where,
        work="the complete training",
        is_time_to_train=True,
        num_accelerators=whole["num_accelerators"].cast(pl.Float64).to_numpy(),
        time_s=whole["time_to_train_s"].to_numpy(),
        entry=None,
        global_batch_samples=batch,
        run_ids=tuple(whole["run_id"].to_list()),
        strategy=common_strategy(whole.select("num_accelerators", "strategy").iter_rows()),
        precisions=tuple(whole["precision"].to_list()),
        notes=(),
        accelerators=tuple(whole["accelerator"].to_list()),
    )


def _read_files(
    files: Sequence[Path], asked: Asked, *, batch: int | None
) -> "tuple[list[FileRuns], list[Note]]":
    """Runs of exported files, and notes on unreadable files. batch: default for rows without one."""
    from equipoise.runs.ingest import Unstated, runs_of_file  # noqa: PLC0415 - only where files are given

    unstated = Unstated(sequence_tokens=asked.sequence_tokens, global_batch_samples=batch)
    read: list[FileRuns] = []
    unread: list[Note] = []
    for path in files:
        try:
            read.append(
                runs_of_file(path, catalogue=asked.catalogue, asked=asked.accelerators, unstated=unstated)
            )
        except DataError as err:
            unread.append(Note(f"{err}.", "not_used"))
    return read, unread
