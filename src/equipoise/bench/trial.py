"""A trial is one run of a sweep in its own processes: its parameters, its permanent name and its file.

Each finished trial is one file, written atomically; the progress of a sweep is derived from these files.
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
_MAX_NAME_CHARS = 40


# Bounded, because these integers become parts of file names and 64-bit columns of tables.
Whole: TypeAlias = Annotated[int, Meta(ge=-(10**15), le=10**15)]


class Trial(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run: what is trained, how, and on how many ranks; `repetition` numbers identical runs from 1.

    batch_samples: samples per step over all ranks. num_steps: timed steps, after warm-up.
    device: torch's name for it (`cuda` includes AMD accelerators). train_samples: None to time steps, else
    the number of samples to train on while the held-out loss is recorded. learning_rate: None for the
    workload's default. arm: 1, or 2 for the second of two identical arms of an A/A comparison.
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
        """Samples per step on each rank."""
        return self.batch_samples // self.num_ranks

    @property
    def trial_id(self) -> str:
        """A name that is safe as a file name: readable words and a hash of every field."""
        return f"{self._words}-{self.repetition}-{_digest(to_builtins(self))}"

    @property
    def configuration(self) -> tuple[object, ...]:
        """The fields that repetitions of the same run share: all except the repetition and the arm.

        The seed of a training is excluded too, because each repetition starts from different weights.
        """
        return tuple(self._shared().values())

    @property
    def configuration_id(self) -> str:
        """A name of the configuration that is safe as a file name."""
        return f"{self._words}-{_digest(self._shared())}"

    def _shared(self) -> dict[str, Any]:
        excluded = {"repetition", "arm"} | (set() if self.train_samples is None else {"seed"})
        return {name: value for name, value in to_builtins(self).items() if name not in excluded}

    @property
    def _words(self) -> str:
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.workload}-{self.method}")[:_MAX_NAME_CHARS].strip("-")
        return f"{words}-{self.num_ranks}x{self.rank_batch_samples}"


def _digest(named: Mapping[str, Any]) -> str:
    return sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:_HASH_DIGITS]


_TRIAL_SCHEMA = "equipoise.trial/1"
# Earlier versions called trials cells; their sweeps can still be read and resumed.
_EARLIER_TRIAL_SCHEMA, _EARLIER_FOLDER = "equipoise.cell/1", "cells"
_EARLIER_NAMES = {"cell": "trial", "cells": "trials"}
_PLAN_SCHEMA = "equipoise.sweep/1"
# The size limit of a trial's file or a plan. A trial of ten thousand steps takes a tenth of it.
_MAX_FILE_BYTES = 64 * MIB
# The subfolder in which `equipoise.watch` stores its runs.
WATCHED = "watched"
SUCCESS = "success"
FAILED = "failed"


class FinishedTrial(Struct, frozen=True, kw_only=True):
    """A trial that has run: its status, the reason if it failed, and its measurements.

    result: empty if it failed. conditions: of the machine while it ran. file: relative to the sweep's folder.
    """

    trial: Trial
    status: str
    reason: str | None
    conditions: Mapping[str, Any]
    result: Mapping[str, Any]
    file: str = ""


class _Plan(Struct, frozen=True, kw_only=True):
    """The plan stored in a sweep's folder: its trials in order, and settings for the sweep's readers."""

    trials: Annotated[tuple[Trial, ...], Meta(min_length=1)]
    settings: dict[str, str] = field(default_factory=dict)


_Record = TypeVar("_Record", _Plan, FinishedTrial)


def failed(finished: Iterable[FinishedTrial]) -> tuple[FinishedTrial, ...]:
    """Return the trials that failed."""
    return tuple(one for one in finished if one.status != SUCCESS)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically and flush it to disk.

    Raises DataError with the reason if it cannot be written; no partial file is left then.
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
    """Return the folder in which a sweep stores one file per trial."""
    earlier = folder / _EARLIER_FOLDER
    return earlier if earlier.is_dir() else folder / "trials"


# What to do about a damaged trial file, and about a damaged plan, whose finished trials remain usable.
_TRIAL_REMEDY: Final = "delete it to measure the trial again"
_PLAN_REMEDY: Final = (
    "it is the plan of the sweep, whose finished trials are kept: delete it, and give the command that began "
    "the sweep again, with this --out"
)


def kept_document(path: Path, remedy: str = _TRIAL_REMEDY) -> dict[str, Any]:
    """Return the JSON object in a file of a sweep. Raises DataError if the file does not hold one."""
    try:
        content = read_input(path, _MAX_FILE_BYTES, expected="a file of a sweep", may_be_pipe=False)
        found = parsed_json(content)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: not valid JSON ({err}); {remedy}") from err
    if not isinstance(found, dict):
        raise DataError(f"{path}: {type(found).__name__}; expected an object; {remedy}")
    return found


def _read_record(path: Path, kind: type[_Record], *schemas: str, remedy: str = _TRIAL_REMEDY) -> _Record:
    """Return the record in a file. Raises DataError if it holds none, or one of another schema."""
    found = kept_document(path, remedy)
    if found.get("schema") not in schemas:
        raise DataError(f"{path}: not a document of schema {schemas[0]!r}; {remedy}")
    try:
        return convert({_EARLIER_NAMES.get(name, name): value for name, value in found.items()}, kind)
    except ValidationError as err:
        raise DataError(f"{path}: damaged: {err}; {remedy}") from err


class Store:
    """The folder of one sweep: its plan and one file per finished trial."""

    def __init__(self, folder: Path) -> None:
        """folder: created when the sweep begins, if it does not exist."""
        self.folder = folder
        self._trials = trials_folder(folder)
        self._plan = folder / SWEEP_FILE

    @contextmanager
    def opened(
        self, order: Sequence[Trial], *, resume: bool, settings: Mapping[str, str] | None = None
    ) -> Iterator["Store"]:
        """Yield the store, locked by this process, with the plan on disk.

        settings: written with the plan of a new sweep.
        Raises UsageError if another process holds the lock, if the folder already holds a sweep and `resume`
        is not set, or if that sweep has a different plan.
        """
        if (self.folder / WATCHED).exists():
            raise UsageError(
                f"{self.folder}: has watched runs, which write the same tables; use another --out"
            )
        try:
            self._trials.mkdir(parents=True, exist_ok=True)
            # Neither truncated nor waited for, even if the path is a pipe or a device.
            descriptor = os.open(
                self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
            )
            lock = os.fdopen(descriptor, "r+b", buffering=0)
        except OSError as err:
            raise DataError(f"{self.folder}: cannot be written: {err.strerror or err}") from err
        with lock:
            try:
                # The kernel releases the lock when the process ends, even if it is killed.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                raise UsageError(f"{self.folder}: another sweep is writing there; use another --out") from err
            # Temporary files of a sweep that was killed while it wrote its plan, a trial or the tables.
            for leftover in (*self.folder.glob(UNFINISHED), *self._trials.glob(UNFINISHED)):
                leftover.unlink(missing_ok=True)
            self._write_plan(order, resume=resume, settings=settings or {})
            yield self

    def _write_plan(self, order: Sequence[Trial], *, resume: bool, settings: Mapping[str, str]) -> None:
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
        """Return the trials of the sweep in the order they run. Raises DataError if there is no plan."""
        return self._read_plan().trials

    def settings(self) -> dict[str, str]:
        """Return the settings written with the plan. Raises DataError if there is no plan."""
        return self._read_plan().settings

    def _read_plan(self) -> _Plan:
        return _read_record(self._plan, _Plan, _PLAN_SCHEMA, remedy=_PLAN_REMEDY)

    def path(self, trial: Trial) -> Path:
        """Return the path of a trial's file, whether or not it exists yet."""
        return self._trials / f"{trial.trial_id}.json"

    def has(self, trial: Trial) -> bool:
        """Return whether the trial is finished."""
        return self.path(trial).exists()

    def num_finished(self) -> int:
        """Return the number of finished trials on disk."""
        return sum(1 for _ in self._trials.glob("*.json"))

    def holds_all(self, trials: Sequence[Trial]) -> bool:
        """Return whether the plan consists of exactly these trials and all of them are finished."""
        if not self.has_plan:
            return False
        planned = {trial.trial_id for trial in self.plan()}
        return planned == {trial.trial_id for trial in trials} and all(map(self.has, trials))

    def add(self, finished: FinishedTrial) -> None:
        """Write a finished trial durably to disk. Raises DataError as `write_whole` does."""
        document = {"schema": _TRIAL_SCHEMA, **to_builtins(finished)}
        del document["file"]
        write_whole(self.path(finished.trial), encoded(document))

    def finished(self) -> tuple[FinishedTrial, ...]:
        """Return every finished trial in the order of the plan. Raises DataError for a damaged file."""
        return tuple(self._read(trial) for trial in self.plan() if self.has(trial))

    @property
    def has_plan(self) -> bool:
        """Whether the folder holds a sweep, however much of it is finished."""
        return self._plan.exists()

    def _read(self, trial: Trial) -> FinishedTrial:
        path = self.path(trial)
        found = _read_record(path, FinishedTrial, _TRIAL_SCHEMA, _EARLIER_TRIAL_SCHEMA)
        if found.trial != trial:
            raise DataError(
                f"{path}: holds the trial {found.trial.trial_id}; expected {trial.trial_id}; delete it"
            )
        return replace(found, file=str(path.relative_to(self.folder)))


def stores_in(folder: Path) -> list[Store]:
    """Return the store of a sweep's folder, or one store per run if the folder is that of a search."""
    own = Store(folder)
    if own.has_plan:
        return [own]
    return [each for each in map(Store, sorted(folder.glob("runs/*"))) if each.has_plan]


def finished_in(folder: Path) -> tuple[FinishedTrial, ...]:
    """Return every finished trial of a sweep or search, its file relative to `folder`.

    Raises DataError for a damaged file.
    """
    return tuple(
        replace(one, file=str((each.folder / one.file).relative_to(folder)))
        for each in stores_in(folder)
        for one in each.finished()
    )


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document as a sweep's files store it."""
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


# A sweep with no trial under way counts as running for this long after a trial has ended.
_PAUSE_S = 5.0
# The remaining time is estimated from this many latest trials, because a machine may have become slower.
_NUM_PACE_TRIALS = 20
_MAX_FOLDERS = 200
_MAX_DEPTH = 2
# At most this many entries of a folder are examined, because a user may name a home folder.
_MAX_ENTRIES = 2000


class SweepProgress(Struct, frozen=True, kw_only=True):
    """The progress of the sweep in a folder.

    is_running: whether a process is running it. left_s: estimated seconds to completion at the pace of the
    latest trials; None before two have ended or if the sweep is not running.
    """

    folder: Path
    num_planned: int
    num_finished: int
    is_running: bool
    left_s: float | None

    @property
    def is_whole(self) -> bool:
        """Return whether every trial has ended."""
        return self.num_finished >= self.num_planned


def folders_below(folder: Path) -> tuple[Path, ...]:
    """Return the folders with runs: this one, or those up to two levels below; at most 200, sorted."""
    return tuple(sorted(islice(_folders(folder, _MAX_DEPTH), _MAX_FOLDERS)))


def is_watched(folder: Path) -> bool:
    """Return whether a folder holds watched training loops and no sweep."""
    return not (folder / SWEEP_FILE).is_file() and (folder / WATCHED).is_dir()


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / SWEEP_FILE).is_file() or is_watched(folder):
        yield folder
        return
    if depth == 0:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for each in islice(found, _MAX_ENTRIES):
            if each.is_dir(follow_symlinks=False):
                yield from _folders(Path(each.path), depth - 1)


def sweep_progress(folder: Path) -> SweepProgress:
    """Return the progress of the sweep in a folder. Raises DataError if its plan cannot be read."""
    num_planned = len(Store(folder).plan())
    ended_s = _end_times_s(folder)
    num_finished = min(len(ended_s), num_planned)
    is_running = num_finished < num_planned and _is_running(folder, ended_s)
    left_s = None
    if is_running and len(ended_s) > 1:
        paces = [later - earlier for earlier, later in pairwise(ended_s[-_NUM_PACE_TRIALS:])]
        left_s = median(paces) * (num_planned - num_finished)
    return SweepProgress(
        folder=folder,
        num_planned=num_planned,
        num_finished=num_finished,
        is_running=is_running,
        left_s=left_s,
    )


def _end_times_s(folder: Path) -> list[float]:
    try:
        return sorted(each.stat().st_mtime for each in trials_folder(folder).glob("*.json"))
    except OSError as err:
        raise DataError(f"{folder}: {err.strerror or err}; expected the trials of a sweep") from err


def _is_running(folder: Path, ended_s: Sequence[float]) -> bool:
    """Return whether a process is running the sweep.

    The lock is tried only if the folder of an unfinished trial exists, which a killed sweep leaves behind.
    A sweep that is just starting therefore does not find its lock taken.
    """
    if any(folder.glob("running-*")):
        return is_held(folder / "lock")
    return bool(ended_s) and 0.0 <= time.time() - ended_s[-1] < _PAUSE_S


def is_held(lock: Path) -> bool:
    """Return whether a process holds a lock, by acquiring it for a moment."""
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
