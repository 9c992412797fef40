"""A trial: one run of a sweep, in processes of its own; its parameters and its permanent name.

Finished ones are on disk, one file each, whole or absent, from which follows how far a sweep is.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import islice, pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from equipoise.errors import DataError, UsageError
from equipoise.files import UNFINISHED, parsed_json, read_input, written_synced
from equipoise.runs import SWEEP_FILE
from equipoise.units import MIB

PRECISIONS = ("fp32", "tf32", "bf16")
DEVICES = ("cpu", "cuda")

_HASH_DIGITS = 10
_LONGEST_WORD = 40


# Numbers are parts of file names, and columns of tables have 64 bits.
Whole: TypeAlias = Annotated[int, Meta(ge=-(10**15), le=10**15)]


class Trial(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run: what is trained, how, on how many ranks; `repetition` counts equal runs from 1.

    batch_samples: samples of a step over all ranks. num_steps: timed steps, after warm-up.
    device: where ranks compute, as torch names it (`cuda` is AMD's too). train_samples: None to time steps;
    else how many samples to train on, with the held-out loss on the way. learning_rate: None for the
    workload's own. arm: 1, or 2 for the second of two equal arms that are compared with each other (A/A).
    """

    kind: ClassVar[str] = "trial"

    workload: str
    method: str
    num_ranks: Whole
    batch_samples: Whole
    precision: str = "fp32"
    num_steps: Whole = 20
    repetition: Whole = 1
    seed: Whole = 0
    device: str = "cpu"
    train_samples: Whole | None = None
    learning_rate: float | None = None
    arm: Whole = 1

    def __post_init__(self) -> None:
        """Refuse a trial that cannot be run."""
        if min(self.num_ranks, self.batch_samples, self.num_steps, self.repetition) < 1:
            raise UsageError(
                f"{self.num_ranks} ranks, batch {self.batch_samples}, {self.num_steps} steps, "
                f"repetition {self.repetition}: expected at least 1 of each"
            )
        if self.batch_samples % self.num_ranks:
            raise UsageError(
                f"a batch of {self.batch_samples} samples cannot be shared equally by "
                f"{self.num_ranks} ranks; take a multiple of {self.num_ranks}"
            )
        if self.device not in DEVICES:
            raise UsageError(f"device {self.device!r}; expected one of {', '.join(DEVICES)}")
        if self.train_samples is not None and self.train_samples < self.batch_samples:
            raise UsageError(
                f"training on {self.train_samples} samples; expected at least a batch, {self.batch_samples}"
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < inf:
            raise UsageError(f"learning rate {self.learning_rate}; expected a number above 0")
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision {self.precision!r}; expected one of {', '.join(PRECISIONS)}")

    @property
    def rank_batch_samples(self) -> int:
        """Samples of a step on each rank."""
        return self.batch_samples // self.num_ranks

    @property
    def trial_id(self) -> str:
        """A name that is safe for a file: readable words, and a hash over every field."""
        return f"{self._words}-{self.repetition}-{_digest(to_builtins(self))}"

    @property
    def configuration(self) -> tuple[object, ...]:
        """What repetitions of the same run share: every field but the repetition and the arm.

        Trainings start from other weights each: their seed is no part of it either.
        """
        return tuple(self._shared().values())

    @property
    def configuration_id(self) -> str:
        """A name of what repetitions share, safe for a file."""
        return f"{self._words}-{_digest(self._shared())}"

    def _shared(self) -> dict[str, Any]:
        excluded = {"repetition", "arm"} | (set() if self.train_samples is None else {"seed"})
        return {name: value for name, value in to_builtins(self).items() if name not in excluded}

    @property
    def _words(self) -> str:
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.workload}-{self.method}")[:_LONGEST_WORD].strip("-")
        return f"{words}-{self.num_ranks}x{self.rank_batch_samples}"


def _digest(named: Mapping[str, Any]) -> str:
    return sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:_HASH_DIGITS]


_TRIAL_SCHEMA = "equipoise.trial/1"
# Sweeps of earlier versions, whose trials were called cells: read and resumed as they are.
_EARLIER_TRIAL_SCHEMA, _EARLIER_FOLDER = "equipoise.cell/1", "cells"
_EARLIER_NAMES = {"cell": "trial", "cells": "trials"}
_PLAN_SCHEMA = "equipoise.sweep/1"
# Of a trial's file or a plan; a trial of ten thousand steps takes a tenth of it.
_MOST_BYTES = 64 * MIB
# Where `equipoise.watch` keeps its runs.
WATCHED = "watched"
SUCCESS = "success"
FAILED = "failed"


class FinishedTrial(Struct, frozen=True, kw_only=True):
    """A trial that was run: its status, why it failed if it did, and what was measured.

    result: empty when failed. conditions: those of the machine while it ran. file: inside the sweep's folder.
    """

    trial: Trial
    status: str
    reason: str | None
    conditions: Mapping[str, Any]
    result: Mapping[str, Any]
    file: str = ""


class _Plan(Struct, frozen=True, kw_only=True):
    """What a sweep's folder holds of the sweep: its trials in their order, and settings for its readers."""

    trials: Annotated[tuple[Trial, ...], Meta(min_length=1)]
    settings: dict[str, str] = field(default_factory=dict)


_Kept = TypeVar("_Kept", _Plan, FinishedTrial)


def failed(finished: Iterable[FinishedTrial]) -> tuple[FinishedTrial, ...]:
    """Those that failed."""
    return tuple(one for one in finished if one.status != SUCCESS)


def write_whole(path: Path, content: bytes) -> None:
    """Put content under a name at once, safely on disk.

    Raises DataError with the reason where it cannot be written; then nothing of it is left.
    """
    try:
        with written_synced(path) as file:
            file.write(content)
    except OSError as err:
        raise DataError(
            f"{path}: cannot be written: {err.strerror or err}; finished trials are stored: free "
            "disk space and continue with --resume"
        ) from err


def trials_folder(folder: Path) -> Path:
    """Where a sweep keeps a file for each trial."""
    earlier = folder / _EARLIER_FOLDER
    return earlier if earlier.is_dir() else folder / "trials"


# What to do about a damaged file of a trial, and about a damaged plan, which trials outlive.
_TRIAL_REMEDY: Final = "delete it to measure the trial again"
_PLAN_REMEDY: Final = (
    "it is the plan of the sweep, whose finished trials are kept: delete it, and give the command that began "
    "the sweep again, with this --out"
)


def kept_document(path: Path, remedy: str = _TRIAL_REMEDY) -> dict[str, Any]:
    """The JSON document in a file of a sweep. Raises DataError when it is none."""
    try:
        found = parsed_json(read_input(path, _MOST_BYTES, expected="a file of a sweep", may_be_pipe=False))
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: not valid JSON ({err}); {remedy}") from err
    if not isinstance(found, dict):
        raise DataError(f"{path}: {type(found).__name__}; expected an object; {remedy}")
    return found


def _kept(path: Path, kind: type[_Kept], *schemas: str, remedy: str = _TRIAL_REMEDY) -> _Kept:
    """The record in a file. Raises DataError when it holds none, or one of another schema."""
    found = kept_document(path, remedy)
    if found.get("schema") not in schemas:
        raise DataError(f"{path}: not a document of schema {schemas[0]!r}; {remedy}")
    try:
        return convert({_EARLIER_NAMES.get(name, name): value for name, value in found.items()}, kind)
    except ValidationError as err:
        raise DataError(f"{path}: damaged: {err}; {remedy}") from err


class Store:
    """The folder of one sweep: its plan and a file for every finished trial."""

    def __init__(self, folder: Path) -> None:
        """folder: made if it is absent when the sweep begins."""
        self.folder = folder
        self._trials = trials_folder(folder)
        self._plan = folder / SWEEP_FILE

    @contextmanager
    def opened(
        self, order: Sequence[Trial], *, resume: bool, settings: Mapping[str, str] | None = None
    ) -> Iterator["Store"]:
        """The store, held by this process alone, with the plan on disk.

        settings: written with the plan of a new sweep.
        Raises UsageError when another sweep holds the folder, when it holds a sweep and `resume` is not
        given, or when that sweep had another plan.
        """
        if (self.folder / WATCHED).exists():
            raise UsageError(
                f"{self.folder}: has watched runs, which write the same tables; use another --out"
            )
        try:
            self._trials.mkdir(parents=True, exist_ok=True)
            # Not emptied and not waited for, whatever it is.
            descriptor = os.open(
                self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
            )
            lock = os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as err:
            raise DataError(f"{self.folder}: cannot be written: {err.strerror or err}") from err
        with lock:
            try:
                # The kernel releases it when the process ends, however it ends.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                raise UsageError(f"{self.folder}: another sweep is writing there; use another --out") from err
            # What was being written when a sweep was killed: the plan, a trial, or the tables.
            for leftover in (*self.folder.glob(UNFINISHED), *self._trials.glob(UNFINISHED)):
                leftover.unlink(missing_ok=True)
            self._keep_plan(order, resume=resume, settings=settings or {})
            yield self

    def _keep_plan(self, order: Sequence[Trial], *, resume: bool, settings: Mapping[str, str]) -> None:
        """Write the plan, or check that the one on disk is the same."""
        names = sorted(trial.trial_id for trial in order)
        if not self._plan.exists():
            document = {"schema": _PLAN_SCHEMA, "settings": dict(settings), "trials": to_builtins(order)}
            write_whole(self._plan, encoded(document))
            return
        if not resume:
            raise UsageError(f"{self.folder}: has a sweep; use another --out or continue with --resume")
        before = sorted(trial.trial_id for trial in self.plan())
        if before != names:
            changed = len(set(before) ^ set(names))
            raise UsageError(
                f"{self.folder}: holds a sweep of {len(before)} trials, {changed} of them or of these "
                f"{len(names)} differ; resume with its first options, or use another --out"
            )

    def plan(self) -> tuple[Trial, ...]:
        """The trials of the sweep, in the order they are run. Raises DataError when there is none."""
        return self._planned().trials

    def settings(self) -> dict[str, str]:
        """What was written with the plan. Raises DataError when there is none."""
        return self._planned().settings

    def _planned(self) -> _Plan:
        return _kept(self._plan, _Plan, _PLAN_SCHEMA, remedy=_PLAN_REMEDY)

    def path(self, trial: Trial) -> Path:
        """Where a trial's file is, or will be."""
        return self._trials / f"{trial.trial_id}.json"

    def has(self, trial: Trial) -> bool:
        """Whether the trial is finished."""
        return self.path(trial).exists()

    def num_finished(self) -> int:
        """How many trials are on disk."""
        return sum(1 for _ in self._trials.glob("*.json"))

    def holds_all(self, trials: Sequence[Trial]) -> bool:
        """Whether the folder's plan is these trials and every one is finished."""
        if not self.has_plan:
            return False
        planned = {trial.trial_id for trial in self.plan()}
        return planned == {trial.trial_id for trial in trials} and all(map(self.has, trials))

    def add(self, finished: FinishedTrial) -> None:
        """Put a finished trial on disk; when this returns, it stays. Raises DataError, as write_whole."""
        document = {"schema": _TRIAL_SCHEMA, **to_builtins(finished)}
        del document["file"]
        write_whole(self.path(finished.trial), encoded(document))

    def finished(self) -> tuple[FinishedTrial, ...]:
        """Every finished trial of the plan, in its order. Raises DataError for a damaged file."""
        return tuple(self._read(trial) for trial in self.plan() if self.has(trial))

    @property
    def has_plan(self) -> bool:
        """Whether the folder holds a sweep, however much of it is finished."""
        return self._plan.exists()

    def _read(self, trial: Trial) -> FinishedTrial:
        path = self.path(trial)
        found = _kept(path, FinishedTrial, _TRIAL_SCHEMA, _EARLIER_TRIAL_SCHEMA)
        if found.trial != trial:
            raise DataError(
                f"{path}: holds the trial {found.trial.trial_id}; expected {trial.trial_id}; delete it"
            )
        return replace(found, file=str(path.relative_to(self.folder)))


def stores_in(folder: Path) -> list[Store]:
    """The store of a sweep's folder; of a search's, those of its runs, each in a folder of its own."""
    own = Store(folder)
    if own.has_plan:
        return [own]
    return [each for each in map(Store, sorted(folder.glob("runs/*"))) if each.has_plan]


def finished_in(folder: Path) -> tuple[FinishedTrial, ...]:
    """Every finished trial of a sweep or search; files are named from its folder on. Raises DataError."""
    return tuple(
        replace(one, file=str((each.folder / one.file).relative_to(folder)))
        for each in stores_in(folder)
        for one in each.finished()
    )


def encoded(document: Mapping[str, Any]) -> bytes:
    """A document as the file of a sweep holds it."""
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


# Between two trials none is under way for a moment.
_PAUSE_S = 5.0
# The time left follows from the latest trials: a machine may have become slower.
_MOST_PACED = 20
_MOST_FOLDERS = 200
_DEEPEST = 2
# Entries of one folder that are looked at: a user may name a home folder.
_MOST_ENTRIES = 2000


class SweepProgress(Struct, frozen=True, kw_only=True):
    """How far the sweep in a folder is.

    is_running: whether a process holds it. left_s: seconds that the rest takes at the pace of the latest
    trials; None before two have ended, or where nothing runs.
    """

    folder: Path
    num_planned: int
    num_finished: int
    is_running: bool
    left_s: float | None

    @property
    def is_whole(self) -> bool:
        """Whether every trial has ended."""
        return self.num_finished >= self.num_planned


def folders_below(folder: Path) -> tuple[Path, ...]:
    """The folder itself if runs are in it, and those one or two levels below; at most 200, by name."""
    return tuple(sorted(islice(_folders(folder, _DEEPEST), _MOST_FOLDERS)))


def is_watched(folder: Path) -> bool:
    """Whether a folder holds loops that were watched, and no sweep."""
    return not (folder / SWEEP_FILE).is_file() and (folder / WATCHED).is_dir()


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / SWEEP_FILE).is_file() or is_watched(folder):
        yield folder
        return
    if depth == 0:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for each in islice(found, _MOST_ENTRIES):
            if each.is_dir(follow_symlinks=False):
                yield from _folders(Path(each.path), depth - 1)


def sweep_progress(folder: Path) -> SweepProgress:
    """How far the sweep in a folder is. Raises DataError where its plan cannot be read."""
    num_planned = len(Store(folder).plan())
    ended_s = _ended_s(folder)
    num_finished = min(len(ended_s), num_planned)
    is_running = num_finished < num_planned and _is_running(folder, ended_s)
    left_s = None
    if is_running and len(ended_s) > 1:
        paces = [later - earlier for earlier, later in pairwise(ended_s[-_MOST_PACED:])]
        left_s = median(paces) * (num_planned - num_finished)
    return SweepProgress(
        folder=folder,
        num_planned=num_planned,
        num_finished=num_finished,
        is_running=is_running,
        left_s=left_s,
    )


def _ended_s(folder: Path) -> list[float]:
    try:
        return sorted(each.stat().st_mtime for each in trials_folder(folder).glob("*.json"))
    except OSError as err:
        raise DataError(f"{folder}: {err.strerror or err}; expected the trials of a sweep") from err


def _is_running(folder: Path, ended_s: Sequence[float]) -> bool:
    """Whether a process holds the sweep.

    A trial under way has a folder, which a killed sweep leaves behind: only then is the lock tried, for a
    moment, so that no sweep that begins finds it taken.
    """
    if any(folder.glob("running-*")):
        return is_held(folder / "lock")
    return bool(ended_s) and 0.0 <= time.time() - ended_s[-1] < _PAUSE_S


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock; the lock is tried for a moment."""
    if not lock.is_file():  # opening anything else may wait forever
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
