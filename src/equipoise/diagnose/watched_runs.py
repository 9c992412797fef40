"""Watched training loops, read from their folder during or after training: steps, phases, ranks."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import asdict, replace

from equipoise.bench.phases import PARTS, STEP
from equipoise.bench.summary import Spread, accelerator_of, spread_of_steps, uneven
from equipoise.bench.watching import RankRecord
from equipoise.bench.watching.rows import CombinedRun, RunFiles, RunNow, gains, run_now, runs_files, shares_of
from equipoise.errors import DataError

_MOST_POINTS = 100
_MOST_KEPT = 64
# The end that a rank records if it ended normally.
ENDED = "ended"


class Course(Struct, frozen=True, kw_only=True):
    """Step time in the course of training. steps, step_s: (n,) medians over consecutive steps."""

    steps: tuple[float, ...]
    step_s: tuple[float, ...]


class RankSeen(Struct, frozen=True, kw_only=True):
    """One rank, over the counted steps.

    num_steps: reported so far. phases: mean seconds. end: the recorded reason for its end; None before that.
    """

    rank: int
    host: str
    num_steps: int
    step_s: float | None
    phases: Mapping[str, float]
    memory_bytes: float | None
    end: str | None


class WatchedRun(CombinedRun, frozen=True, kw_only=True):
    """One run, without its individual steps. num_steps: counted steps.

    step_s: the mean. uneven: ratio of the mean to the median, if it is large. phases: seconds that sum to the
    step. gains: sentences on what overlapping a part could bring.
    """

    name: str
    workload: str | None
    accelerator: str | None
    precision: str | None
    num_steps: int
    step_s: Spread | None
    uneven: float | None
    samples_per_s: Spread | None
    phases: Mapping[str, float]
    gains: tuple[str, ...]
    course: Course | None
    ranks: tuple[RankSeen, ...]
    status: str
    is_running: bool
    is_whole: bool


class Unread(Struct, frozen=True, kw_only=True):
    """A run whose files cannot be read, and why."""

    name: str
    reason: str


class WatchedNow(Struct, frozen=True, kw_only=True):
    """The watched runs in one folder, the newest first. num_older: number of older, unread runs."""

    name: str
    runs: tuple[WatchedRun, ...]
    unread: tuple[Unread, ...]
    num_older: int

    @property
    def split(self) -> tuple[WatchedRun, ...]:
        """The runs that have reported phases."""
        return tuple(run for run in self.runs if run.phases)

    @property
    def several(self) -> tuple[WatchedRun, ...]:
        """The runs with several ranks."""
        return tuple(run for run in self.runs if run.num_ranks > 1)

    @property
    def drawn(self) -> tuple[WatchedRun, ...]:
        """The runs with enough steps for a chart of step time."""
        return tuple(run for run in self.runs if run.course is not None)


def watched_now(folder: Path) -> WatchedNow:
    """The runs so far in a folder of `equipoise.watch`; runs with damaged files are listed, but not read."""
    found, num_older = runs_files(folder)
    runs: list[WatchedRun] = []
    unread: list[Unread] = []
    for files in found:
        try:
            runs.append(_seen(files) if files.is_alive else _ended(files))
        except DataError as err:
            unread.append(Unread(name=files.folder.name, reason=str(err).replace(f"{files.folder}/", "")))
    return WatchedNow(name=folder.resolve().name, runs=tuple(runs), unread=tuple(unread), num_older=num_older)


@lru_cache(_MOST_KEPT)
def _ended(files: RunFiles) -> WatchedRun:
    """A run that has ended, which is read only once."""
    return _seen(files)


def _seen(files: RunFiles) -> WatchedRun:
    now = run_now(files)
    watched, about = now.watched, now.watched.about
    step_s = [step[STEP] for step in watched.steps]
    found = spread_of_steps(step_s) if step_s else None
    batch = watched.batch_samples
    shares = shares_of(watched) if step_s else {}
    has_parts = sum(shares.get(name, 0.0) for name in PARTS) > 0
    return WatchedRun(
        **asdict(replace(watched, steps=())),
        name=files.folder.name,
        workload=about["workload"],
        accelerator=accelerator_of(about["device"], about["conditions"]),
        precision=about["precision"],
        num_steps=len(step_s),
        step_s=found,
        uneven=uneven(step_s) if step_s else None,
        samples_per_s=found.rate(batch) if found and batch else None,
        phases={name: share * found.value for name, share in shares.items()} if found and has_parts else {},
        gains=tuple(gains(shares, watched)),
        course=_course(now),
        ranks=tuple(_rank(record, watched.numbers) for record in now.records),
        status=now.status,
        is_running=now.is_running,
        is_whole=now.is_whole,
    )


def _course(now: RunNow) -> Course | None:
    """All steps, including warm-up but not profiled ones; many steps are thinned to medians of neighbours."""
    by_rank = [
        {step.step: step.seconds[STEP] for step in record.steps if not step.profiled}
        for record in now.records
    ]
    numbers = sorted(set.intersection(*map(set, by_rank)))
    slowest = [max(steps[number] for steps in by_rank) for number in numbers]
    width = max(1, ceil(len(numbers) / _MOST_POINTS))
    starts = range(0, len(numbers) - width + 1, width)
    if len(starts) < 2:  # noqa: PLR2004 - a line needs two points
        return None
    return Course(
        steps=tuple(float(median(numbers[at : at + width])) for at in starts),
        step_s=tuple(median(slowest[at : at + width]) for at in starts),
    )


def _rank(record: RankRecord, numbers: Sequence[int]) -> RankSeen:
    counted = set(numbers)
    splits = [step.seconds for step in record.steps if step.step in counted]
    named = [name for name in PARTS if splits and all(name in split for split in splits)]
    end = record.end
    return RankSeen(
        rank=record.rank,
        host=record.host,
        num_steps=max((step.step for step in record.steps), default=0),
        step_s=fmean(split[STEP] for split in splits) if splits else None,
        phases={name: sum(split[name] for split in splits) / len(splits) for name in named},
        memory_bytes=None if end is None else end.memory_bytes,
        end=None if end is None else end.reason or ENDED,
    )
