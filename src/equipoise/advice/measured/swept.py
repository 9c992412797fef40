"""What a sweep says: speedup over one device, what costs it, how often equal runs are called different."""

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.bench.cell import Cell
from equipoise.bench.phases import PARTS
from equipoise.bench.summary import LEVEL, Spread, Summary
from equipoise.bench.sweep import ALONE, Scaling
from equipoise.bench.timed_run import timed_run
from equipoise.stats import Interval, proportion_interval, ratio_interval

_FEWEST_WITH_SPREAD = 2
PLAIN = "ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One configuration beside the same work on one device and under plain data parallelism.

    speedup, over_plain: ratios of samples per second; None without such a run. lost: seconds of a step above
    those of perfect scaling, by phase; empty on one device or without a run on one.
    """

    summary: Summary
    speedup: Spread | None
    over_plain: Spread | None
    lost: dict[str, float]

    @property
    def efficiency(self) -> float | None:
        """Speedup by the number of ranks."""
        return None if self.speedup is None else self.speedup.value / self.summary.cell.num_ranks

    @property
    def subject(self) -> tuple[str, str, str]:
        """What it trained: workload, precision and device."""
        cell = self.summary.cell
        return (cell.workload, cell.precision, cell.device)

    @property
    def is_alone(self) -> bool:
        """Whether it ran on one device."""
        return self.summary.cell.num_ranks == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseDifferences:
    """How many pairs of equal arms were called different, and the rate of it with its interval.

    are_own: whether arms were run as such, and are no halves of repetitions.
    """

    num_different: int
    num_compared: int
    rate: Interval
    are_own: bool


def judged(summaries: Sequence[Summary], *, scaling: Scaling) -> tuple[Judgement, ...]:
    """Each configuration with what it is compared with, in the order given.

    scaling: with `strong` the same batch over all ranks is the same work; with `weak` the same batch a rank.
    Source: docs/measure/bench.md.
    """
    return tuple(_judgement(each, summaries, scaling) for each in summaries)


def _judgement(summary: Summary, everyone: Sequence[Summary], scaling: Scaling) -> Judgement:
    alone = _match(summary, everyone, scaling, 1, ALONE)
    plain = _match(summary, everyone, scaling, summary.cell.num_ranks, PLAIN)
    return Judgement(
        summary=summary,
        speedup=None if alone is None else over(summary, alone),
        over_plain=None if plain is None else over(summary, plain),
        lost={} if alone is None or summary.cell.num_ranks == 1 else lost_s(summary, alone),
    )


def _match(
    summary: Summary, everyone: Sequence[Summary], scaling: Scaling, num_ranks: int, way: str
) -> Summary | None:
    """The configuration of so many ranks, trained that way, that does the same work."""

    def work(cell: Cell) -> tuple[object, ...]:
        batch = cell.batch_samples if scaling == "strong" else cell.rank_batch_samples
        return (cell.workload, cell.precision, cell.device, cell.train_samples, cell.num_steps, batch)

    alike = (
        each
        for each in everyone
        if (each.cell.num_ranks, each.cell.method) == (num_ranks, way)
        and work(each.cell) == work(summary.cell)
    )
    return next(alike, None)


def over(summary: Summary, other: Summary) -> Spread | None:
    """Samples per second of one against the other; None where one of them timed nothing.

    Source: stats.ratio_interval over repetitions.
    """
    theirs, ours = ([run.step_s / each.cell.batch_samples for run in each.timed] for each in (other, summary))
    if not theirs or not ours or summary.samples_per_s is None or other.samples_per_s is None:
        return None
    if summary is other:
        return Spread(value=1.0, low=None, high=None)
    if min(len(theirs), len(ours)) < _FEWEST_WITH_SPREAD:
        value = summary.samples_per_s.value / other.samples_per_s.value
        return Spread(value=value, low=None, high=None)
    found = ratio_interval(theirs, ours, level=LEVEL)
    return Spread(value=found.value, low=found.low, high=found.high)


def lost_s(summary: Summary, alone: Summary) -> dict[str, float]:
    """Seconds of a step above those of perfect scaling, by phase; they sum to what the step lost.

    Assumes perfect scaling divides every phase by the number of ranks at the same work.
    Source: definition; phases sum to the step.
    """
    ours, theirs = summary.phases, alone.phases
    if not ours or not theirs:
        return {}
    share = summary.cell.rank_batch_samples / alone.cell.batch_samples
    return {name: ours.get(name, 0.0) - share * theirs.get(name, 0.0) for name in PARTS}


def false_differences(summaries: Sequence[Summary]) -> FalseDifferences | None:
    """How often equal arms were called different; None where no configuration has two with a spread.

    Different: the interval of the ratio, at LEVEL, excludes 1, which it should in 1 - LEVEL of the cases.
    Arms are those that were run as such (A/A); else, of four repetitions or more, the odd and the even ones.
    Assumes configurations are independent.
    Source: docs/measure/bench.md.
    """
    own = [_own_arms(each) for each in summaries]
    halves = [(each[::2], each[1::2]) for each in map(_steps_s, summaries)]
    for arms, are_own in ((own, True), (halves, False)):
        compared = [
            called_different(first, second)
            for first, second in arms
            if min(len(first), len(second)) >= _FEWEST_WITH_SPREAD
        ]
        if compared:
            return FalseDifferences(
                num_different=sum(compared),
                num_compared=len(compared),
                rate=proportion_interval(sum(compared), len(compared), level=LEVEL),
                are_own=are_own,
            )
    return None


def _steps_s(summary: Summary) -> list[float]:
    """Seconds of a step of each timed repetition, in order."""
    return [run.step_s for run in summary.timed]


def _own_arms(summary: Summary) -> tuple[list[float], list[float]]:
    """The same of each arm."""
    timed = [(one.cell.arm, run.step_s) for one in summary.finished if (run := timed_run(one)) is not None]
    first, second = ([step_s for arm, step_s in timed if arm == wanted] for wanted in (1, 2))
    return first, second


def called_different(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two sets of repetitions, (n,) and (m,), are called different at LEVEL.

    Assumes and source: as stats.ratio_interval.
    """
    found = ratio_interval(first, second, level=LEVEL)
    return found.low > 1.0 or found.high < 1.0
