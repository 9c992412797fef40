"""The user's own runs by set-up, from tables and files, and their steps as arrays for the model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.decide.evidence import LEAST_LOG_SD, NOT_USED, UserRun
from equipoise.decide.query import TrainingQuery
from equipoise.decide.strategy_search import OWN_STEPS_LOG_SD, Problem
from equipoise.decide.surveys import Survey
from equipoise.errors import DataError, InputError
from equipoise.perfmodel import load as loads
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import machine, stacked
from equipoise.perfmodel.parameters import Parameters
from equipoise.runs.store import RUNS, frame_of, read_table
from equipoise.scaling.laws import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import DTYPE_OF, PRECISIONS, Strategy, strategy
from equipoise.spec.workload import Workload
from equipoise.units import format_count, format_percent

if TYPE_CHECKING:
    from equipoise.calibration.step_rows import StepRows
    from equipoise.runs.readers.measurements import Measurements

_SUCCESS = ("success", "ok")
_TABLE = f"{RUNS.name}.parquet"
_FILES = ("*.csv", "*.tsv")
# Of a file that is named itself; a folder may hold others of these for other purposes.
_SUFFIXES = (".csv", ".tsv", ".jsonl")
_MOST_FOLDERS = 1000
_MOST_NAMED = 5
_SET_UP = ("workload", "accelerator", "num_accelerators", "strategy", "precision", "global_batch_samples")


class UserRuns(Struct, frozen=True, kw_only=True):
    """What a folder holds of one workload. trainings: whole trainings, where some were timed.

    machines: raw names of what they ran on. other_workloads: what else finished runs of the folder trained.
    """

    where: str
    set_ups: tuple[UserRun, ...]
    trainings: "Measurements | None"
    machines: tuple[str, ...]
    other_workloads: tuple[str, ...]
    notes: tuple[str, ...]

    def on(self, accelerator: str) -> tuple[UserRun, ...]:
        """The set-ups measured on an accelerator, or on what is not stated."""
        return tuple(each for each in self.set_ups if each.accelerator in {None, accelerator})

    def asked_about(self, accelerator: str, query: TrainingQuery) -> tuple[UserRun, ...]:
        """Those of `on` with the global batch and a precision that the question states, where it does.

        A run that does not state its precision counts for any.
        """
        batch, precisions = query.global_batch_samples, query.precision
        return tuple(
            each
            for each in self.on(accelerator)
            if batch in {None, each.global_batch_samples}
            and (not precisions or each.precision is None or each.precision in precisions)
        )


def user_runs(folder: Path, workload: str, accelerators: Sequence[str]) -> UserRuns:
    """What a folder, or a CSV file alone, holds of a workload.

    accelerators: slugs asked about, of which files with several are read. Raises DataError where it holds
    nothing that can be read, naming what was expected.
    """
    if folder.is_file() and folder.suffix in _SUFFIXES:
        tables, files = [], [folder]
    elif folder.is_dir():
        tables = [folder / _TABLE, *sorted(folder.glob(f"*/{_TABLE}"))[:_MOST_FOLDERS]]
        files = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    else:
        raise DataError(
            f"--runs {folder}: neither a folder nor a CSV file ({', '.join(_SUFFIXES)}); expected a folder "
            "that `equipoise bench --out DIR` wrote, or such a file of measurements"
        )
    frames = [read_table(path, RUNS) for path in tables if path.is_file()]
    if not frames and not files:
        raise DataError(
            f"--runs {folder}: neither {_TABLE} nor a CSV file of measurements; expected a folder that "
            "`equipoise bench --out DIR` wrote, or a folder with files as `equipoise ingest` takes them"
        )
    notes: list[str] = []
    if files:
        frames.append(_of_files(files, workload, notes))
    runs = pl.concat(frames).filter(pl.col("status").is_in(_SUCCESS))
    mine = runs.filter(pl.col("workload") == _name_in_runs(runs, workload, notes))
    others = sorted({*runs["workload"].drop_nulls()} - {*mine["workload"]})
    set_ups = tuple(_set_ups(mine))
    machines = sorted({each.accelerator for each in set_ups if each.accelerator is not None})
    if accelerators:
        mine = mine.filter(pl.col("accelerator").is_null() | pl.col("accelerator").is_in(list(accelerators)))
    if mine.is_empty():
        seen = runs.select("workload", "accelerator").unique(maintain_order=True).rows()[:_MOST_NAMED]
        from equipoise.runs.readers.cells import listed  # noqa: PLC0415 - only for this message

        held = listed([f"{model} on {chip or 'an accelerator that is not stated'}" for model, chip in seen])
        asked = listed([*accelerators]) or "any accelerator"
        notes.insert(0, f"{NOT_USED}{folder}: no finished run of {workload} on {asked}; it has {held}.")
    return UserRuns(
        where=str(folder),
        set_ups=set_ups,
        trainings=_trainings(mine, str(folder)),
        machines=tuple(machines),
        other_workloads=tuple(others),
        notes=tuple(notes),
    )


def refuse_impossible(
    runs: Sequence[UserRun], workload: Workload, chips: Mapping[str, Accelerator], *, where: str
) -> None:
    """Nothing, when no run needs more FLOP per second than its accelerators have at their peak.

    chips: by slug; runs on others, or whose accelerator is not stated, are not checked.
    Raises DataError naming the first run above an MFU of 100 %, and what to check.
    """
    for run in runs:
        chip, flop = chips.get(run.accelerator or ""), workload.train_flop_per_sample
        peak = None if chip is None else _highest_peak(chip, run.precision)
        if chip is None or flop is None or peak is None:
            continue
        mfu = flop * run.samples_per_s / (peak * run.num_accelerators)
        if mfu > 1:
            size = f"{format_count(run.num_accelerators)} x {chip.title}"
            raise DataError(
                f"--runs {where}: run {run.run_ids[0]}: {run.samples_per_s:.4g} samples/s of "
                f"{workload.title} on {size} are {format_percent(mfu)} MFU, above the peak; check "
                "samples_per_s, num_accelerators, accelerator and precision of the run, and whether it "
                "trained this workload"
            )


def _highest_peak(chip: Accelerator, precision: str | None) -> float | None:
    """FLOP/s that no run of that precision can exceed; of any precision where it is not stated.

    Runs in fp32 may multiply in tf32: torch's convolutions do so by default.
    """
    stated = {"fp32", "tf32"} if precision in {"fp32", "tf32"} else {precision}
    dtypes = {DTYPE_OF[each] for each in PRECISIONS if precision is None or each in stated}
    return max((peak for dtype in dtypes if (peak := chip.peak_flop_per_s(dtype))), default=None)


def _name_in_runs(runs: pl.DataFrame, workload: str, notes: list[str]) -> str:
    """The name by which the runs know the workload: of a user's own model often that of its class alone."""
    names = runs["workload"].drop_nulls().unique().to_list()
    if ":" not in workload or workload in names or len(names) != 1:
        return workload
    notes.append(f"The runs are of {names[0]}, the only workload there; they are used for {workload}.")
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


def _of_files(files: Sequence[Path], workload: str, notes: list[str]) -> pl.DataFrame:
    """The runs of exported files, those that name no workload as of the one asked about."""
    from equipoise.runs.ingest import runs_of_file  # noqa: PLC0415 - only where files are given

    rows: list[Mapping[str, Any]] = []
    for path in files:
        try:
            found = runs_of_file(path)
        except DataError as err:
            notes.append(f"{NOT_USED}{err}.")
            continue
        rows += [each | {"workload": each["workload"] or workload} for each in found.rows]
        total, unsized = len(found.rows) + len(found.refused), sum(map(_is_unsized, found.rows))
        if found.refused:
            notes.append(f"{NOT_USED}{len(found.refused)} of {total} rows; the first: {found.refused[0]}.")
        if unsized:
            notes.append(
                f"{NOT_USED}{unsized} of {total} rows of {path.name}: of no known batch; expected step_s or "
                "samples_per_s with global_batch_samples."
            )
    return frame_of(rows, RUNS)


def _is_unsized(row: Mapping[str, Any]) -> bool:
    """Whether a run states a rate alone: neither its batch nor how long the training took."""
    return row["global_batch_samples"] is None and row.get("time_to_train_s") is None


_NOTICED = 0.02
# Ways to train whose steps the model knows.
_KNOWN = frozenset({"single", "ddp", "static_graph", "accumulate", "fsdp", "fp16", "bf16", "localsgd"})


class UserSteps(Struct, frozen=True, kw_only=True):
    """Set-ups that the model expresses. measured_s: of a step; sizes: accelerators; all (n_set_ups,)."""

    rows: "StepRows"
    measured_s: FloatArray
    sizes: FloatArray
    strategies: tuple[Strategy, ...]
    run_ids: tuple[str, ...]

    def taken(self, indices: NDArray[np.intp]) -> "UserSteps":
        """Some of the set-ups."""
        return UserSteps(
            rows=self.rows.taken(indices),
            measured_s=self.measured_s[indices],
            sizes=self.sizes[indices],
            strategies=tuple(self.strategies[each] for each in indices),
            run_ids=tuple(self.run_ids[each] for each in indices),
        )

    def log_ratios(self, parameters: Parameters) -> FloatArray:
        """log(measured / modelled) of every set-up; (n_set_ups,)."""
        return np.asarray(np.log(self.measured_s / self.rows.step_s(parameters)))


class Recast(Struct, frozen=True, kw_only=True):
    """From a set-up that ran to the strategy advised on as many accelerators: the training's time there over
    here, by the model, and how unsure its parameters leave that, of its logarithm.

    keeps_strategy: the set-up counts as it ran, as where its precision is not stated; the factor is then what
    whole trainings take over their own steps.
    """

    factor: float
    log_sd: float
    keeps_strategy: bool = False

    @property
    def is_other(self) -> bool:
        """Whether the strategy advised is noticeably another."""
        return abs(self.factor - 1.0) > _NOTICED


def whole_trainings(runs: Sequence[UserRun], problem: Problem) -> dict[str, Recast]:
    """By run id, from the steps of each set-up to a whole training of them, as published ones took."""
    factor = problem.time_per_own_step_time
    if factor == 1.0:
        return {}
    as_it_ran = Recast(factor=factor, log_sd=OWN_STEPS_LOG_SD, keeps_strategy=True)
    return {each.run_ids[0]: as_it_ran for each in runs}


def recasts(steps: UserSteps, survey: Survey) -> dict[str, Recast]:
    """By run id, for the sizes that the survey has a strategy for.

    Source: ratios of modelled times; what both share cancels, draw by draw.
    """
    problem, model = survey.problem, survey.problem.model
    best = {each.num_accelerators: each for each in survey.sizes if each.best is not None}
    batches = np.array([each.global_batch_samples for each in steps.strategies], dtype=float)
    num_steps = problem.num_steps(batches)
    here_s = steps.rows.step_s(model.parameters) * num_steps
    drawn_s = steps.rows.step_s(model.drawn) * num_steps
    found = {}
    for at, (run_id, size) in enumerate(zip(steps.run_ids, steps.sizes.astype(int).tolist(), strict=True)):
        searched = best.get(size)
        if searched is not None and searched.best is not None:
            found[run_id] = Recast(
                factor=float(searched.best.work_s.value / here_s[at]),
                log_sd=float(np.std(np.log(searched.drawn_s / drawn_s[:, at]))),
            )
    return found


def user_steps(
    runs: Sequence[UserRun], load: Load, nodes: Cluster, parameters: Parameters
) -> UserSteps | None:
    """The runs that the model expresses; None where it expresses none.

    nodes: what they ran on, of any size. parameters: under which a time must come out.
    """
    from equipoise.calibration.step_rows import StepRows  # noqa: PLC0415 - only where runs were measured

    pairs = [(run, found) for run in runs if (found := _strategy(run)) is not None]
    if not pairs:
        return None
    sizes = [run.num_accelerators for run, _ in pairs]
    rows = StepRows(
        load=loads.stacked([load] * len(pairs)),
        machine=stacked([machine(replace(nodes, num_accelerators=size)) for size in sizes]),
        grid=grid([found for _, found in pairs]),
    )
    timed = np.flatnonzero(np.isfinite(rows.step_s(parameters)) & (rows.step_s(parameters) > 0))
    if not len(timed):
        return None
    kept = [pairs[index] for index in timed]
    return UserSteps(
        rows=rows.taken(timed),
        measured_s=np.array([run.global_batch_samples / run.samples_per_s for run, _ in kept]),
        sizes=np.array([run.num_accelerators for run, _ in kept], dtype=float),
        strategies=tuple(found for _, found in kept),
        run_ids=tuple(run.run_ids[0] for run, _ in kept),
    )


def _strategy(run: UserRun) -> Strategy | None:
    """The strategy of a set-up as the model knows it; None where it does not, or no precision is stated.

    Measured steps are plain PyTorch: layers run one by one, not compiled.
    """
    size, batch = run.num_accelerators, run.global_batch_samples
    precision = next((each for each in PRECISIONS if each == run.precision), None)
    try:
        if "=" in (run.strategy or ""):
            return strategy(str(run.strategy))  # as the model writes them: of a trace
        if precision is None:
            return None
        from equipoise.bench.methods import method  # noqa: PLC0415 - only where runs were measured

        found, argument = method(run.strategy or ("single" if size == 1 else "ddp"))
        if found.name not in _KNOWN:
            return None
        repeated = int(argument or 1)
        accumulated = repeated if found.name == "accumulate" else 1
        return Strategy(
            dp=size,
            microbatch_samples=max(1, batch // (size * accumulated)),
            global_batch_samples=batch,
            zero_stage=3 if found.name == "fsdp" else 0,
            precision=precision,
            implementation="eager",
            compression="fp16" if found.name in {"fp16", "bf16"} else "none",
            sync_period=repeated if found.name == "localsgd" else 1,
        )
    except InputError:
        return None
