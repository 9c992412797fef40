"""Watched loops read from their folder, while they train or afterwards: steps, phases, ranks."""

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
# What a rank wrote that ended as it should.
ENDED = "ended"


class Course(Struct, frozen=True, kw_only=True):
    """How long steps took as training went on. steps, step_s: (n,) middles and medians of neighbours."""

    steps: tuple[float, ...]
    step_s: tuple[float, ...]


class RankSeen(Struct, frozen=True, kw_only=True):
    """One rank, over the steps that count.

    num_steps: reported so far. phases: mean seconds. end: its own word on how it ended; None before that.
    """

    rank: int
    host: str
    num_steps: int
    step_s: float | None
    phases: Mapping[str, float]
    memory_bytes: float | None
    end: str | None


class WatchedRun(CombinedRun, frozen=True, kw_only=True):
    """One run, without its steps. num_steps: those that count.

    step_s: the mean; uneven: how many times the median that is, where far more. phases: of that step; they
    sum to it. gains: what hiding a part could bring, in sentences.
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
    """The runs that were watched into one folder, the newest first. num_older: not read, being older."""

    name: str
    runs: tuple[WatchedRun, ...]
    unread: tuple[Unread, ...]
    num_older: int

    @property
    def split(self) -> tuple[WatchedRun, ...]:
        """Those whose steps have reported their phases."""
        return tuple(run for run in self.runs if run.phases)

    @property
    def several(self) -> tuple[WatchedRun, ...]:
        """Those of several ranks."""
        return tuple(run for run in self.runs if run.num_ranks > 1)

    @property
    def drawn(self) -> tuple[WatchedRun, ...]:
        """Those with a course."""
        return tuple(run for run in self.runs if run.course is not None)


def watched_now(folder: Path) -> WatchedNow:
    """The runs in a folder of `equipoise.watch` by now; a run whose files are damaged is named, not read."""
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
    """A run that has ended is read once."""
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
    """All steps, warm-up too, but those that were profiled; medians of neighbours where there are many."""
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
