"""Sweeps of trials, in random order or chosen adaptively; each trial is on disk before the next starts."""

import errno
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.environment import core_sets, refuse_unlike, shared_core_sets
from equipoise.bench.launchers import Launcher, LaunchJob
from equipoise.bench.trial import (
    FAILED,
    SUCCESS,
    FinishedTrial,
    Store,
    Trial,
    encoded,
    kept_document,
    write_whole,
)
from equipoise.errors import DataError, EvidenceError, UsageError
from equipoise.runs import SEARCH_FILE, Progress
from equipoise.units import MIB

Report = Callable[[str], None]
Scaling = Literal["strong", "weak"]

# A trial's files are far smaller. With less free space a trial may fail because the disk is full.
_MIN_FREE_BYTES = MIB
# The only training method for a single rank.
ALONE = "single"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def planned(
    *,
    workloads: Sequence[str],
    methods: Sequence[str],
    sizes: Sequence[int],
    batches: Sequence[int],
    num_repetitions: int,
    seed: int = 0,
    scaling: Scaling = "strong",
    num_arms: int = 1,
    **rest: Any,  # noqa: ANN401 - fields of Trial, which checks them
) -> tuple[Trial, ...]:
    """Return one trial per combination, repetition and arm; a single rank always uses the method `single`.

    batches: samples over all ranks, or per rank with `weak` scaling. rest: the fields precision, num_steps,
    device, train_samples and learning_rate of Trial. The seed of a training is `seed` + its repetition.
    Raises UsageError for a combination that cannot be run.
    """
    trials = {}
    repetitions, arms = range(1, num_repetitions + 1), range(1, num_arms + 1)
    for workload, text, size, batch, repetition, arm in product(
        workloads, methods, sizes, batches, repetitions, arms
    ):
        if text == ALONE and size > 1:
            continue
        trial = Trial(
            workload=workload,
            method=ALONE if size == 1 else text,
            num_ranks=size,
            batch_samples=batch * size if scaling == "weak" else batch,
            repetition=repetition,
            arm=arm,
            seed=seed if rest.get("train_samples") is None else seed + repetition,
            **rest,
        )
        trials[trial.trial_id] = trial
    return tuple(trials.values())


def in_random_order(trials: Iterable[Trial], *, seed: int) -> tuple[Trial, ...]:
    """Return the trials shuffled within each repetition, with repetitions in order.

    A slow drift of the machine then affects all configurations equally.
    """
    rng = random.Random(seed)  # noqa: S311 - used for ordering, not for security
    shuffled = sorted(trials, key=lambda trial: trial.trial_id)
    rng.shuffle(shuffled)
    return tuple(sorted(shuffled, key=lambda trial: trial.repetition))


def run_sweep(
    trials: Sequence[Trial],
    folder: Path,
    launch_with: Launcher,
    *,
    limit_s: float,
    resume: bool = False,
    progress: Progress | None = None,
    settings: Mapping[str, str] | None = None,
    most_ranks: int | None = None,
) -> tuple[FinishedTrial, ...]:
    """Run the trials that are not yet on disk; return all of them, failed ones with their reasons.

    limit_s: time limit of a trial. settings: stored with the plan, for readers of the sweep.
    most_ranks: the number of ranks among which cores are divided, if this sweep belongs to a larger one.
    Raises DataError if a trial cannot be written, or if a sweep is resumed under different conditions.
    """
    store = Store(folder)
    most_ranks = max(most_ranks or 1, *(trial.num_ranks for trial in trials))
    with store.opened(in_random_order(trials, seed=0), resume=resume, settings=settings):
        for leftover in folder.glob("running-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        order = store.plan()
        if not all(map(store.has, order)):
            _refuse_other_conditions(store, launch_with)
        for number, trial in enumerate(order):
            if store.has(trial):
                continue

            def report(what: str, number: int = number) -> None:
                if progress:
                    progress(what, number, len(order))

            report(trial.trial_id)
            store.add(_run(trial, folder, launch_with, limit_s=limit_s, most_ranks=most_ranks, report=report))
        if progress:
            progress("", len(order), len(order))
        return store.finished()


def _run(
    trial: Trial, folder: Path, launch_with: Launcher, *, limit_s: float, most_ranks: int, report: Report
) -> FinishedTrial:
    """Run one trial. Raises DataError if the disk is full, because that is not a failure of the trial."""
    sets = core_sets(trial.num_ranks, most_ranks=most_ranks) if launch_with.binds_here else ()
    found = launch_with.conditions(sets)
    _refuse_full(folder)
    try:
        with tempfile.TemporaryDirectory(
            prefix="running-", dir=folder, ignore_cleanup_errors=True
        ) as running:
            job = LaunchJob(
                task=trial,
                folder=Path(running),
                core_sets=sets,
                limit_s=limit_s,
                most_ranks=most_ranks,
                report=report,
            )
            outcome = launch_with.launch(job)
            if outcome.result is None:
                _refuse_full(folder, outcome.reason or "")
    except OSError as err:
        if err.errno in _DISK_FULL:
            raise _full(folder) from err
        raise
    return FinishedTrial(
        trial=trial,
        status=FAILED if outcome.result is None else SUCCESS,
        reason=outcome.reason,
        conditions=found,
        result=outcome.result or {},
    )


def _refuse_full(folder: Path, reason: str = "") -> None:
    """Raise DataError if the disk is full, or if a trial failed for that reason."""
    was_full = any(os.strerror(number) in reason for number in _DISK_FULL)
    if was_full or shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
        raise _full(folder)


def _full(folder: Path) -> DataError:
    return DataError(
        f"{folder}: {os.strerror(errno.ENOSPC)}; finished trials are stored: free disk space and "
        "continue with --resume"
    )


def _refuse_other_conditions(store: Store, launch_with: Launcher) -> None:
    """Raise DataError if trials on disk were measured under different conditions."""
    before = [one.conditions for one in store.finished()][:1]
    if before:
        # Core sets are not compared, because they depend on the size of a trial.
        both = [{**each, "core_sets": None} for each in (before[0], launch_with.conditions())]
        refuse_unlike(both, str(store.folder))


INTERFERENCE_SCHEMA = "equipoise.interference/1"
MESSAGE_SIZES_BYTES = (8, 2**12, 2**15, 2**17, 2**19, 2 * MIB, 8 * MIB, 32 * MIB)
MESSAGE_OPERATIONS = ("all_reduce", "all_gather")
INTERFERENCE_METHODS = ("ddp", "fp16", "powersgd:1", "powersgd:4", "topk:0.01", "topk:0.1")
_INTERFERENCE_LIMIT_S = 300.0


class InterferenceTask(Struct, frozen=True, kw_only=True):
    """A measurement of how communication and computation slow each other, and of each method's own work.

    A message takes longer while its core computes, and computation takes longer while a message is under way.
    Methods also copy, round or sort gradients before sending them. Both are measured on synthetic weights:
    with one rank the methods' own work, with several ranks messages during computation.
    sizes_bytes: the full payload on each rank. num_rounds: repetitions of each size; large ones have fewer.
    """

    kind: ClassVar[str] = "interference"

    num_ranks: int = 2
    operations: tuple[str, ...] = MESSAGE_OPERATIONS
    sizes_bytes: tuple[int, ...] = MESSAGE_SIZES_BYTES
    methods: tuple[str, ...] = INTERFERENCE_METHODS
    num_rounds: int = 15
    seed: int = 0
    device: str = "cpu"


def interference(task: InterferenceTask, launch_with: Launcher) -> dict[str, Any]:
    """Return one document: messages alone and during computation, and the methods' own work on one rank.

    Raises EvidenceError with the reason if it could not be measured.
    """
    alone = replace(task, num_ranks=1)
    return {
        "schema": INTERFERENCE_SCHEMA,
        "launcher": launch_with.name,
        "num_ranks": task.num_ranks,
        "conditions": launch_with.conditions(shared_core_sets(task.num_ranks)),
        **_interference_result(task, launch_with, task.num_ranks),
        "own_work": _interference_result(alone, launch_with, task.num_ranks)["own_work"],
    }


def _interference_result(task: InterferenceTask, launch_with: Launcher, most_ranks: int) -> Mapping[str, Any]:
    """Run the task and return its result; each rank gets as many cores as with `most_ranks` ranks."""
    with tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as name:
        cores = shared_core_sets(most_ranks)[: task.num_ranks]
        job = LaunchJob(
            task=task,
            folder=Path(name),
            core_sets=cores if launch_with.binds_here else (),
            limit_s=_INTERFERENCE_LIMIT_S,
            most_ranks=most_ranks,
        )
        outcome = launch_with.launch(job)
    if outcome.result is None:
        raise EvidenceError(f"exchanges during computing could not be measured: {outcome.reason}")
    return outcome.result


_PLAN_SCHEMA = "equipoise.trials/1"


class AdaptiveSweep(Struct, frozen=True, kw_only=True):
    """A folder of runs that are chosen adaptively. most_ranks: the ranks among which cores are divided."""

    folder: Path
    launch_with: Launcher
    limit_s: float
    most_ranks: int
    progress: Progress | None = None

    def begin(self, options: dict[str, Any], *, resume: bool) -> None:
        """Write the options, or check that they equal those on disk.

        Raises UsageError if the folder holds trials and `resume` is not set, or if their options differ.
        """
        path = self.folder / SEARCH_FILE
        document = {"schema": _PLAN_SCHEMA, **options}
        if not path.exists():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise DataError(f"{self.folder}: cannot be written: {err.strerror or err}") from err
            write_whole(path, encoded(document))
            return
        if not resume:
            raise UsageError(f"{self.folder}: has trials; use another --out or continue with --resume")
        if kept_document(path) != json.loads(encoded(document)):
            raise UsageError(
                f"{self.folder}: has trials of other options; resume with those, or use another --out"
            )

    def measured(self, trials: Sequence[Trial]) -> tuple[FinishedTrial, ...]:
        """Return every trial, run now or read from disk. Raises DataError as `run_sweep` does."""
        return tuple(
            finished
            for trial in trials
            for finished in run_sweep(
                [trial],
                self.folder / "runs" / trial.trial_id,
                self.launch_with,
                limit_s=self.limit_s,
                resume=True,
                progress=self.progress,
                most_ranks=self.most_ranks,
            )
        )

    def costs(self, task: InterferenceTask) -> dict[str, Any]:
        """Return the document of `interference`, measured now or read from disk."""
        num_ranks = task.num_ranks
        path = self.folder / f"interference-{num_ranks}.json"
        if not path.exists():
            if self.progress:
                self.progress(f"messages between {num_ranks} ranks", 0, 1)
            write_whole(path, encoded(interference(task, self.launch_with)))
        return kept_document(path)
