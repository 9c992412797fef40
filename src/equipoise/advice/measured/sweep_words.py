"""What a sweep means, in sentences: whether more devices pay, by how much, and which phase is to blame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from equipoise.advice.measured.swept import FalseDifferences, Judgement, false_differences, judged
from equipoise.bench.phases import EXPOSED
from equipoise.bench.store import SUCCESS, Finished
from equipoise.bench.summary import LEVEL, Spread, summaries
from equipoise.units import format_count, format_percent

_CAUSES = {
    "input": "input",
    "forward": "the forward pass",
    "backward": "the backward pass",
    EXPOSED: "exposed communication",
    "optimizer": "the optimizer",
    "rest": "the time between phases",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep as far as it went, and what is made of it.

    num_planned: cells of its plan. meanings: sentences.
    """

    folder: Path
    num_planned: int
    settings: Mapping[str, str]
    finished: tuple[Finished, ...]
    judgements: tuple[Judgement, ...]
    false_differences: FalseDifferences | None
    meanings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The sweep's name: that of its folder."""
        return self.folder.resolve().name

    @property
    def failed(self) -> tuple[Finished, ...]:
        """Cells that failed."""
        return tuple(one for one in self.finished if one.status != SUCCESS)

    @property
    def refusal(self) -> str | None:
        """Why the sweep is too little evidence for anything; None where a run succeeded."""
        if len(self.failed) < len(self.finished):
            return None
        return f"every run failed, the first: {self.failed[0].reason or 'no reason given'}"


def swept(
    folder: Path, finished: Sequence[Finished], *, num_planned: int, settings: Mapping[str, str]
) -> Swept:
    """What the finished cells of a sweep say; settings: `scaling` says what is the same work.

    Raises DataError where repetitions of one configuration ran under unlike conditions.
    """
    put_together = summaries(finished)
    is_weak = settings.get("scaling") == "weak"
    judgements = judged(put_together, scaling="weak" if is_weak else "strong")
    return Swept(
        folder=folder,
        num_planned=num_planned,
        settings={**settings, **_launched(finished)},
        finished=tuple(finished),
        judgements=judgements,
        false_differences=false_differences(put_together),
        meanings=meanings(judgements),
    )


def _launched(finished: Sequence[Finished]) -> dict[str, str]:
    """The launcher that ran the cells, where `auto` was asked for."""
    name = next((one.conditions.get("launcher") for one in finished), None)
    return {"launcher": str(name)} if name else {}


def meanings(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """A few sentences for each workload, precision and device."""
    timed = [each for each in judgements if each.summary.timed]
    grouped = (
        list(group) for _, group in groupby(sorted(timed, key=attrgetter("subject")), attrgetter("subject"))
    )
    return tuple(
        f"{group[0].summary.cell.workload} in {group[0].summary.cell.precision}: {' '.join(sentences)}"
        for group in grouped
        if (sentences := list(_about(group)))
    )


def _about(group: Sequence[Judgement]) -> Iterator[str]:
    """What is to be said of one workload."""
    several = [each for each in group if not each.is_alone]
    if not several:
        return
    compared = [each for each in several if each.speedup is not None]
    if not compared:
        yield "no run of the same work on one device succeeded, so there is no speedup."
        return
    best = max(compared, key=_speedup)
    worst = min(compared, key=_speedup)
    yield _best(best)
    if best.lost:
        yield _blame(best)
    most = max(each.summary.cell.num_ranks for each in compared)
    if best.summary.cell.num_ranks < most:
        at_most = max((each for each in compared if each.summary.cell.num_ranks == most), key=_speedup)
        yield f"{most} ranks are no faster: at best {ranged(at_most.speedup)} of one device."
    if _is_slower(worst) and not _is_slower(best):
        yield f"Slower than one device: {_way(worst)}, {ranged(worst.speedup)}."
    fastest = max(group, key=_rate)
    if _rate(fastest) > _rate(best):
        rate = format_count(float(f"{_rate(fastest):.4g}"))
        yield f"Highest throughput: {rate} samples/s with {_way(fastest)}."


def _best(best: Judgement) -> str:
    """The best use of several devices, and whether it beats one."""
    speedup = best.speedup
    reached = f"{_way(best)} reaches {ranged(speedup)} of one device's throughput"
    if speedup is None or speedup.low is None or speedup.high is None:
        return f"{reached}, measured once: repeat it before relying on it (--repeat)."
    if speedup.low > 1.0:
        return f"several devices are faster than one: {reached}."
    if speedup.high < 1.0:
        return f"several devices are slower than one: at best {reached}."
    return f"no significant gain over one device: at best {reached}; --repeat narrows the interval."


def _blame(best: Judgement) -> str:
    """Which phase takes most of what perfect scaling would have saved."""
    lost = sum(best.lost.values())
    phase = max(best.lost, key=lambda name: best.lost[name])
    if lost <= 0:
        return "That is perfect scaling."
    step_s = best.summary.step_s
    share = lost / step_s.value if step_s else 0.0
    return (
        f"{format_percent(share)} of that step is above perfect scaling, most of it in {_CAUSES[phase]} "
        f"({format_percent(best.lost[phase] / lost)})."
    )


def _way(each: Judgement) -> str:
    cell = each.summary.cell
    where = "one device" if cell.num_ranks == 1 else f"{cell.num_ranks} ranks"
    return f"{cell.method} on {where} at batch {cell.batch_samples}"


def _is_slower(each: Judgement) -> bool:
    """Whether it is slower than one device beyond its interval, where it has one."""
    speedup = each.speedup
    if speedup is None:
        return False
    return (speedup.value if speedup.high is None else speedup.high) < 1.0


def _rate(each: Judgement) -> float:
    rate = each.summary.samples_per_s
    return rate.value if rate else 0.0


def _speedup(each: Judgement) -> float:
    return each.speedup.value if each.speedup else 0.0


def ranged(spread: Spread | None) -> str:
    """A ratio with its interval, where it has one.

    >>> ranged(Spread(value=1.234, low=1.1, high=1.3))
    '1.23x (1.10..1.30)'
    """
    if spread is None:
        return "-"
    within = "" if spread.low is None else f" ({spread.low:.2f}..{spread.high:.2f})"
    return f"{spread.value:.2f}x{within}"


def false_difference_words(found: FalseDifferences) -> str:
    """What an A/A run found, in a sentence."""
    arms = "identical arms" if found.are_own else "halves (odd, even) of identical runs"
    return (
        f"A/A test: {found.num_different} of {found.num_compared} pairs of {arms} differed significantly: "
        f"{format_percent(found.rate.value)} ({format_percent(found.rate.low)} to "
        f"{format_percent(found.rate.high)}); {format_percent(1 - LEVEL)} is expected."
    )
