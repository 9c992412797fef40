"""A user's folder of runs: what its tables and files hold of one workload, by set-up."""

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

_OF_FILES = "imported"
_TABLE, _STEPS = (f"{each.name}.parquet" for each in (RUNS, STEPS))
_FILES = ("*.csv", "*.tsv")
# Of a file that is named itself; a folder may hold others of these for other purposes.
_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_MOST_FOLDERS = 1000
# Of quiet machines the mean of steps is a few percent above their median.
_UNEVEN = 1.15
# A rate that exceeds that of the mean step by more is of the median one.
_OF_MEDIAN = 1.05
# Fewer steps have no interval of their mean.
_FEWEST_OF_SERIES = 6
_MOST_NAMED = 3
_SET_UP = ("workload", "accelerator", "num_accelerators", "strategy", "precision", "global_batch_samples")


def user_runs(
    path: Path,
    asked: Asked,
    *,
    global_batch_samples: int | None = None,
    is_named_here: bool = False,
    precisions: Sequence[str] = (),
) -> UserRuns:
    """What a folder, or a file of measurements or table of runs alone, holds of a workload.

    asked: with the name of the workload in the question. global_batch_samples: of rows that state none.
    is_named_here: whether runs cannot know that name, as that of a config.json. precisions: that the question
    states, as the user calls them.
    Raises DataError where it holds nothing that can be read, naming what was expected.
    """
    tables, files = _tables_and_files(path)
    together = 1 if asked.known is None else asked.known.samples_per_example
    batch = None if global_batch_samples is None else max(1, global_batch_samples // together)
    read, unread = _of_files(files, asked, batch=batch)
    frames = [read_table(each, RUNS) for each in tables] + [frame_of(each.rows, RUNS) for each in read]
    runs = _by_names_of(asked, pl.concat(frames) if frames else frame_of([], RUNS))
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
    stepped = _stepped(tables)
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
            *_of_examples(mine, together),
            *of_tf32,
            *_of_uneven([stepped[run_id].unevenness for run_id in mine["run_id"] if run_id in stepped]),
            *_of_unlike(mine, {run_id: cells for each in read for run_id, cells in each.apart.items()}),
        ),
    )


def _tables_and_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The tables of runs, and the files of measurements, that a path names or holds.

    Raises DataError where there are none, naming what was expected.
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
            "`equipoise bench --out DIR` wrote, or a folder with files as `equipoise ingest` takes them"
        )
    return tables, files


def without_score(folders: Sequence[Path], workload: str, accelerators: Sequence[str]) -> Iterator[Note]:
    """That folders of results besides the published ones hold runs of a user's files, which have no score."""
    for folder in folders:
        runs = read_table(folder / _TABLE, RUNS)
        of_files = (pl.col("origin") == _OF_FILES) & (pl.col("workload") == workload)
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
    """The tables of runs in a folder and in those directly below it, of which at most 1,000 are read."""
    below = sorted(folder.glob(f"*/{_TABLE}"))[:_MOST_FOLDERS]
    return [path for path in (folder / _TABLE, *below) if path.is_file()]


def _by_names_of(asked: Asked, runs: pl.DataFrame) -> pl.DataFrame:
    """The runs by the names of a question: of accelerators slugs, where they mean one alone, and the
    workload's in place of its other names: `bench` trains the small MLP as `mlp`.

    Those of files that state no workload are of what is asked about.
    """
    stated, catalogue = pl.col("workload"), asked.catalogue
    is_silent = (pl.col("origin") == _OF_FILES) & stated.is_null()
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
    """The runs; those of files, which count examples of several samples as trainers do, in samples.

    Source: huggingface/trl, `DPOTrainer`: a batch is of pairs, which its data collator puts side by side.
    """
    factor = pl.when(pl.col("origin") == _OF_FILES).then(together).otherwise(1)
    return runs.with_columns(pl.col("samples_per_s") * factor, pl.col("global_batch_samples") * factor)


def _of_examples(runs: pl.DataFrame, together: int) -> Iterator[Note]:
    """That batches and rates of files are taken to be of examples, where these are of several samples."""
    num = runs.filter(pl.col("origin") == _OF_FILES).height
    if together > 1 and num:
        yield Note(
            f"Batches and rates of {plural(num, 'run')} are taken to be of examples, as trainers count them: "
            f"{together} samples each."
        )


def _name_in_runs(runs: pl.DataFrame, workload: str, notes: list[Note]) -> str:
    """The name by which the runs know the workload: of a user's own model often that of its class alone."""
    names = runs["workload"].drop_nulls().unique().to_list()
    if workload in names or len(names) != 1:
        return workload
    notes.append(Note(f"The runs are of {names[0]}, the only workload there; they are used for {workload}."))
    return str(names[0])


class _Stepped(Struct, frozen=True, kw_only=True):
    """The steps of one run. unevenness: their mean over their median. log_sd: of the mean."""

    mean_s: float
    unevenness: float
    log_sd: float


def _stepped(tables: Sequence[Path]) -> dict[str, _Stepped]:
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


def _with_tf32(runs: pl.DataFrame, asked: Asked) -> tuple[pl.DataFrame, tuple[Note, ...]]:
    """The runs, with tf32 as the precision of those called fp32 that have to be in it, and a note of that."""
    chips = in_tf32(runs.iter_rows(named=True), asked)
    held = runs.select("accelerator", "precision").iter_rows()
    found = ["tf32" if name in chips and precision == "fp32" else precision for name, precision in held]
    num = len([each for each, ran in zip(found, runs["precision"], strict=True) if each != ran])
    words = f"{plural(num, 'run')} in fp32 taken to multiply in tf32: some need more than the peak of fp32."
    return runs.with_columns(pl.Series("precision", found, dtype=pl.String)), (Note(words),) if num else ()


def _of_uneven(unevenness: Sequence[float]) -> Iterator[Note]:
    """That the steps of runs took longer on average than in the median, where some did noticeably."""
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


def _of_unlike(runs: pl.DataFrame, apart: Mapping[str, Mapping[str, str]]) -> Iterator[Note]:
    """That runs of the same set-up differ by far, of the one where they do most. apart: as of `FileRuns`."""
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
        yield from unlike(size, batch, each["len"], ratio=each["ratio"], told_apart=_told_apart(paces, apart))


def _told_apart(rates: Mapping[str, float], apart: Mapping[str, Mapping[str, str]]) -> str:
    """The columns of a file, in words, by which runs of one set-up are each like those of the same cell only.

    Of several those of fewest cells in the whole file: what every row has its own of is rarely the cause.
    """
    cells = [apart.get(run_id, {}) for run_id in rates]
    telling: dict[int, list[str]] = {}
    for name in dict.fromkeys(name for each in cells for name in each):
        held_by = (each.get(name, "") for each in cells)
        alike = by_key(zip(held_by, rates.values(), strict=True))
        if len(alike) > 1 and all(max(each) <= UNLIKE * min(each) for each in alike.values()):
            held = ", ".join(each or "none" for each in sorted(alike)[:_MOST_NAMED])
            num_cells = len({each.get(name, "") for each in apart.values()})
            telling.setdefault(num_cells, []).append(f"{name} ({held})")
    return listed(telling[min(telling)], _MOST_NAMED) if telling else ""


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
    """
    return repeated_log_sd(rates) if len(rates) > 1 else math.hypot(LEAST_LOG_SD, *of_runs)


def _trainings(runs: pl.DataFrame, where: str) -> "Measurements | None":
    """Whole trainings among the runs, as `predict --from` would read them."""
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


def _of_files(
    files: Sequence[Path], asked: Asked, *, batch: int | None
) -> "tuple[list[FileRuns], list[Note]]":
    """What exported files hold, and notes of those that could not be read.

    batch: of a step, of rows that do not state it.
    """
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
