"""A user's folder of runs: what its tables and files hold of one workload, by set-up."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec import Struct

from equipoise.decide.evidence import LEAST_LOG_SD, NOT_USED, UserRun
from equipoise.decide.user_evidence.runs import UserRuns, num_accumulated
from equipoise.errors import DataError, SpecError
from equipoise.intervals import LEVEL, log_sd
from equipoise.runs.store import RUNS, STEPS, frame_of, read_table
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import DTYPE_OF, PRECISIONS
from equipoise.spec.workload import Workload
from equipoise.stats import series_mean_interval
from equipoise.units import format_amount, format_count, format_percent

if TYPE_CHECKING:
    from equipoise.runs.readers.measurements import Measurements

_SUCCESS = ("success", "ok")
_OF_FILES = "imported"
_TABLE, _STEPS = (f"{each.name}.parquet" for each in (RUNS, STEPS))
_FILES = ("*.csv", "*.tsv")
# Of a file that is named itself; a folder may hold others of these for other purposes.
_SUFFIXES = (".csv", ".tsv", ".jsonl")
_MOST_FOLDERS = 1000
# Of quiet machines the mean of steps is a few percent above their median.
_UNEVEN = 1.15
# A rate that exceeds that of the mean step by more is of the median one.
_OF_MEDIAN = 1.05
# Fewer steps have no interval of their mean.
_FEWEST_OF_SERIES = 6
# Runs of one set-up whose rates differ by more are unlike.
_UNLIKE = 1.25
_MOST_NAMED = 5
_SET_UP = ("workload", "accelerator", "num_accelerators", "strategy", "precision", "global_batch_samples")


def user_runs(
    folder: Path,
    workload: str,
    accelerators: Sequence[str],
    *,
    sequence_tokens: int | None = None,
    is_named_here: bool = False,
    catalogue: Catalogue | None = None,
) -> UserRuns:
    """What a folder, or a CSV file alone, holds of a workload.

    accelerators: slugs asked about, of which files with several are read. sequence_tokens: of a sample of the
    question. is_named_here: whether runs cannot know that name, as that of a config.json. catalogue: what
    names mean; the shipped one unless given.
    Raises DataError where it holds nothing that can be read, naming what was expected.
    """
    if folder.is_file() and folder.suffix in _SUFFIXES:
        tables, files = [], [folder]
    elif folder.is_dir():
        tables = tables_below(folder)
        files = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    else:
        raise DataError(
            f"--runs {folder}: neither a folder nor a CSV file ({', '.join(_SUFFIXES)}); expected a folder "
            "that `equipoise bench --out DIR` wrote, or such a file of measurements"
        )
    known = catalogue or shipped()
    frames = [read_table(path, RUNS) for path in tables]
    if not frames and not files:
        raise DataError(
            f"--runs {folder}: neither {_TABLE} nor a CSV file of measurements; expected a folder that "
            "`equipoise bench --out DIR` wrote, or a folder with files as `equipoise ingest` takes them"
        )
    notes: list[str] = []
    if files:
        frames.append(
            _of_files(files, workload, accelerators, notes, sequence_tokens=sequence_tokens, catalogue=known)
        )
    runs = pl.concat(frames).filter(pl.col("status").is_in(_SUCCESS))
    runs = runs.with_columns(pl.col("accelerator").replace(_slugs(runs, accelerators, known)))
    is_named_here = is_named_here or ":" in workload
    name = _name_in_runs(runs, workload, notes) if is_named_here else workload
    mine = runs.filter(pl.col("workload") == name)
    others = sorted({*runs["workload"].drop_nulls()} - {*mine["workload"]})
    stepped = _stepped(tables)
    mine = _with_rates_of_means(mine, stepped)
    set_ups = tuple(_set_ups(mine, stepped))
    uneven = [stepped[run_id].unevenness for run_id in mine["run_id"] if run_id in stepped]
    notes += [*_of_uneven(uneven), *_of_unlike(mine)]
    machines = sorted({each.accelerator for each in set_ups if each.accelerator is not None})
    if accelerators:
        mine = mine.filter(pl.col("accelerator").is_null() | pl.col("accelerator").is_in(list(accelerators)))
    if mine.is_empty() and not (runs.is_empty() and notes):  # else the notes say why there is none
        seen = runs.select("workload", "accelerator").unique(maintain_order=True).rows()[:_MOST_NAMED]
        from equipoise.runs.readers.cells import listed  # noqa: PLC0415 - only for this message

        held = listed([f"{model} on {chip or 'an accelerator that is not stated'}" for model, chip in seen])
        asked = listed([*accelerators]) or "any accelerator"
        notes.insert(0, f"{NOT_USED}{folder.name}: no finished run of {workload} on {asked}; it has {held}.")
    return UserRuns(
        where=str(folder),
        set_ups=set_ups,
        trainings=_trainings(mine, str(folder)),
        machines=tuple(machines),
        other_workloads=tuple(others),
        notes=tuple(notes),
    )


def tables_below(folder: Path) -> list[Path]:
    """The tables of runs in a folder and in those directly below it, of which at most 1,000 are read."""
    below = sorted(folder.glob(f"*/{_TABLE}"))[:_MOST_FOLDERS]
    return [path for path in (folder / _TABLE, *below) if path.is_file()]


def refuse_impossible(
    runs: Sequence[UserRun],
    workload: Workload,
    chips: Mapping[str, Accelerator],
    *,
    where: str,
    asked: Sequence[Accelerator] = (),
) -> None:
    """Nothing, when no run needs more FLOP per second than its accelerators have at their peak.

    chips: by slug; runs on others are not checked. asked: those of the question, of which runs count that
    state no accelerator: the fastest of them is the limit.
    Raises DataError naming the first run above an MFU of 100 %, and what to check.
    """
    for run in runs:
        flop = workload.train_flop_per_sample
        stated = [chip for slug, chip in chips.items() if slug == run.accelerator]
        meant = asked if run.accelerator is None else stated
        peaks = [(_highest_peak(each, run.precision) or math.inf, each) for each in meant]
        peak, chip = max(peaks, key=lambda each: each[0], default=(None, None))
        if chip is None or flop is None or peak is None:
            continue
        mfu = flop * run.samples_per_s / (peak * run.num_accelerators)
        if mfu > 1:
            size = f"{format_count(run.num_accelerators)} x {chip.title}"
            raise DataError(
                f"--runs {where}: run {run.run_ids[0]}: {format_amount(run.samples_per_s, digits=4)} "
                f"samples/s of {workload.title} on {size} are {format_percent(mfu)} MFU, above the peak; "
                "check samples_per_s, num_accelerators, accelerator and precision of the run, and whether it "
                "trained this workload"
            )


def _highest_peak(chip: Accelerator, precision: str | None) -> float | None:
    """FLOP/s that no run of that precision can exceed; of any precision where it is not stated.

    Runs in fp32 may multiply in tf32: torch's convolutions do so by default.
    """
    stated = {"fp32", "tf32"} if precision in {"fp32", "tf32"} else {precision}
    dtypes = {DTYPE_OF[each] for each in PRECISIONS if precision is None or each in stated}
    return max((peak for dtype in dtypes if (peak := chip.peak_flop_per_s(dtype))), default=None)


def _slugs(runs: pl.DataFrame, accelerators: Sequence[str], catalogue: Catalogue) -> dict[str, str]:
    """From names of accelerators as tables have them to slugs; a name that may mean several is none."""
    found = {}
    for name in {*runs["accelerator"].drop_nulls()} - {*accelerators}:
        with suppress(SpecError):
            found[name] = catalogue.slug_in_file(name, accelerators) or name
    return found


def _name_in_runs(runs: pl.DataFrame, workload: str, notes: list[str]) -> str:
    """The name by which the runs know the workload: of a user's own model often that of its class alone."""
    names = runs["workload"].drop_nulls().unique().to_list()
    if workload in names or len(names) != 1:
        return workload
    notes.append(f"The runs are of {names[0]}, the only workload there; they are used for {workload}.")
    return str(names[0])


class _Stepped(Struct, frozen=True, kw_only=True):
    """The steps of one run. unevenness: their mean over their median. log_sd: of the mean."""

    mean_s: float
    unevenness: float
    log_sd: float


def _stepped(tables: Sequence[Path]) -> dict[str, _Stepped]:
    """The steps of each run, by its id, where a table of steps lies beside that of runs."""
    found: dict[str, _Stepped] = {}
    for path in (each.with_name(_STEPS) for each in tables):
        if path.is_file():
            steps = read_table(path, STEPS).filter((pl.col("phase") == "step") & (pl.col("seconds") > 0))
            for (run_id,), group in steps.sort("repetition").group_by("run_id", maintain_order=True):
                found[str(run_id)] = _of_steps(group["seconds"].to_list())
    return found


def _of_steps(step_s: Sequence[float]) -> _Stepped:
    mean_s = fmean(step_s)
    known = len(step_s) >= _FEWEST_OF_SERIES
    width = log_sd(series_mean_interval(step_s, level=LEVEL)) if known else 0.0
    return _Stepped(mean_s=mean_s, unevenness=mean_s / median(step_s), log_sd=width)


def _with_rates_of_means(runs: pl.DataFrame, steps: Mapping[str, _Stepped]) -> pl.DataFrame:
    """The runs with rates of mean steps, as steps add up to a training.

    Tables of earlier versions have rates of median steps, which leave out what stalls.
    """
    columns = ("run_id", "samples_per_s", "global_batch_samples", "strategy")
    rates = []
    for run_id, rate, batch, strategy in runs.select(columns).iter_rows():
        # A sweep times each pass of those whose gradients are summed.
        passes = num_accumulated(strategy) or 1
        of_mean = batch / passes / steps[run_id].mean_s if batch and run_id in steps else None
        rates.append(of_mean if rate and of_mean and rate > _OF_MEDIAN * of_mean else rate)
    return runs.with_columns(pl.Series("samples_per_s", rates, dtype=pl.Float64))


def _of_uneven(unevenness: Sequence[float]) -> Iterator[str]:
    """That the steps of runs took longer on average than in the median, where some did noticeably."""
    uneven = [each for each in unevenness if each > _UNEVEN]
    if uneven:
        yield (
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


def _of_unlike(runs: pl.DataFrame) -> Iterator[str]:
    """That runs of the same set-up differ by far, of the one where they do most."""
    rate = pl.col("samples_per_s")
    found = _rated(runs).group_by(_SET_UP).agg((rate.max() / rate.min()).alias("ratio"), pl.len())
    worst = found.sort("ratio", "num_accelerators").tail(1).to_dicts()
    for each in worst if worst and worst[0]["ratio"] > _UNLIKE else ():
        yield (
            f"Your {each['len']} runs on {format_count(each['num_accelerators'])} accelerators at batch "
            f"{format_count(each['global_batch_samples'])} differ by a factor of {each['ratio']:.1f}; their "
            "median is taken: see what was different."
        )


def _set_ups(runs: pl.DataFrame, steps: Mapping[str, _Stepped]) -> Iterator[UserRun]:
    """One record a set-up with a rate and a batch. steps: of runs whose steps are known."""
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
            is_eager=None if bool((group["origin"] == _OF_FILES).all()) else True,
        )


def _log_sd(rates: Sequence[float], of_runs: Sequence[float]) -> float:
    """Of the median of several runs; of one run what replicate systems differ by, and what steps leave open.

    of_runs: of the mean step of each run whose steps are known.
    Source: the standard error of a mean of logarithms, times 1.25 for a median of normal values.
    """
    if len(rates) > 1:
        return 1.25 * float(np.std(np.log(rates), ddof=1)) / math.sqrt(len(rates))
    return math.hypot(LEAST_LOG_SD, *of_runs)


def _trainings(runs: pl.DataFrame, where: str) -> "Measurements | None":
    """Whole trainings among the runs, as `predict --from` would read them."""
    whole = runs.filter(pl.col("time_to_train_s").is_not_null() & (pl.col("time_to_train_s") > 0))
    if whole.is_empty():
        return None
    batch = whole["global_batch_samples"].cast(pl.Float64).fill_null(math.nan).to_numpy()
    from equipoise.runs.readers.measurements import Measurements  # noqa: PLC0415 - only where trainings were measured

    return Measurements(
        where=where,
        work="the complete training",
        is_time_to_train=True,
        num_accelerators=whole["num_accelerators"].cast(pl.Float64).to_numpy(),
        time_s=whole["time_to_train_s"].to_numpy(),
        entry=None,
        global_batch_samples=batch,
        notes=(),
    )


def _of_files(
    files: Sequence[Path],
    workload: str,
    accelerators: Sequence[str],
    notes: list[str],
    *,
    sequence_tokens: int | None,
    catalogue: Catalogue,
) -> pl.DataFrame:
    """The runs of exported files, those that name no workload as of the one asked about.

    Samples of another length than the question's say nothing of how many of its own are trained in a second.
    """
    from equipoise.runs.ingest import runs_of_file  # noqa: PLC0415 - only where files are given

    rows: list[Mapping[str, Any]] = []
    for path in files:
        try:
            found = runs_of_file(
                path, sequence_tokens=sequence_tokens, catalogue=catalogue, asked=accelerators
            )
        except DataError as err:
            notes.append(f"{NOT_USED}{err}.")
            continue
        lengths = [sequence_tokens if each is None else each for each in found.sequences]
        alike = [row for row, each in zip(found.rows, lengths, strict=True) if each == sequence_tokens]
        rows += [each | {"workload": each["workload"] or workload} for each in alike]
        total, unsized = len(found.rows) + len(found.refused), sum(map(_is_unsized, alike))
        others = sorted({each for each in lengths if each is not None and each != sequence_tokens})
        if others and sequence_tokens is not None:
            notes.append(
                f"{NOT_USED}{len(found.rows) - len(alike)} of {total} rows of {path.name}: of samples of "
                f"{format_count(int(others[0]))} tokens; the question's have {format_count(sequence_tokens)} "
                "(--sequence)."
            )
        if found.refused:
            notes.append(
                f"{NOT_USED}{len(found.refused):,} of {total:,} rows; the first: {found.refused[0]}."
            )
        if unsized:
            notes.append(
                f"{NOT_USED}{unsized} of {total} rows of {path.name}: of no known batch; expected step_s or "
                "samples_per_s with global_batch_samples."
            )
    return frame_of(rows, RUNS)


def _is_unsized(row: Mapping[str, Any]) -> bool:
    """Whether a run states a rate alone: neither its batch nor how long the training took."""
    return row["global_batch_samples"] is None and row.get("time_to_train_s") is None
