"""Repetitions put together: medians with intervals, outliers counted, unlike runs refused. No torch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from equipoise.bench.cell import Cell
from equipoise.bench.environment import refuse_unlike, refuse_unlike_nodes
from equipoise.bench.phases import PARTS
from equipoise.bench.steady import outliers
from equipoise.bench.store import SUCCESS, Finished
from equipoise.bench.timed_run import TimedRun, TrainedRun, timed_run, trained_run
from equipoise.stats import Interval, log_t_interval, median_interval

LEVEL = 0.95
# From so many repetitions on, order statistics give an interval at the level without assuming a shape.
_FEWEST_FOR_ORDER = 6
# The median deviation of three or four values is often tiny by chance.
_FEWEST_FOR_OUTLIERS = 5
ORDER_STATISTICS = "order statistics of the repetitions"
STUDENT = "Student's t on the logarithms of the repetitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median over repetitions, and its interval; None with one repetition, which has no spread."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All repetitions of one configuration.

    cell: one of them, for what they share. timed and trained: of those that succeeded, in order.
    """

    cell: Cell
    finished: tuple[Finished, ...]
    timed: tuple[TimedRun, ...]
    trained: tuple[TrainedRun, ...]

    @property
    def failed(self) -> tuple[Finished, ...]:
        """The repetitions that failed."""
        return tuple(one for one in self.finished if one.status != SUCCESS)

    @property
    def step_s(self) -> Spread | None:
        """Seconds of a step; None where no repetition timed one."""
        return spread([run.step_s for run in self.timed]) if self.timed else None

    @property
    def samples_per_s(self) -> Spread | None:
        """Samples of all ranks trained in a second."""
        found = self.step_s
        if found is None:
            return None
        batch = self.cell.batch_samples
        low = None if found.high is None else batch / found.high
        high = None if found.low is None else batch / found.low
        return Spread(value=batch / found.value, low=low, high=high)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase: median shares of the timed time, of the median step; the parts sum to it."""
        step_s = self.step_s
        if step_s is None:
            return {}
        named = [name for name in self.timed[0].shares if all(name in run.shares for run in self.timed)]
        shares = {name: median(run.shares[name] for run in self.timed) for name in named}
        # Medians of shares need not sum to 1.
        whole = sum(shares[name] for name in named if name in PARTS)
        return {name: share / whole * step_s.value for name, share in shares.items()}

    @property
    def is_steady(self) -> bool:
        """Whether every repetition became steady before it was timed."""
        return all(run.is_steady for run in self.timed)

    @property
    def parts_sum(self) -> bool:
        """Whether the phases of every repetition sum to its steps within 5 %."""
        return all(run.parts_sum for run in self.timed)

    @property
    def outlying(self) -> tuple[bool, ...]:
        """Which of the timed repetitions are outliers, and kept; none of a few, whose spread says little."""
        if len(self.timed) < _FEWEST_FOR_OUTLIERS:
            return (False,) * len(self.timed)
        return outliers([run.step_s for run in self.timed])

    def median_of(self, quantity: Callable[[TimedRun], float | None]) -> float | None:
        """The median of a quantity over the repetitions that measured it; None where none did."""
        values = [value for value in map(quantity, self.timed) if value is not None]
        return median(values) if values else None


def summaries(finished: Iterable[Finished]) -> tuple[Summary, ...]:
    """One summary a configuration, ordered by workload, precision, batch, ranks and method.

    Raises DataError naming the field where repetitions of one configuration ran under unlike conditions.
    """
    by_configuration: dict[tuple[object, ...], list[Finished]] = {}
    for one in finished:
        by_configuration.setdefault(one.cell.configuration, []).append(one)
    return tuple(sorted(map(_summary, by_configuration.values()), key=_place))


def _summary(repetitions: Sequence[Finished]) -> Summary:
    ordered = sorted(repetitions, key=lambda one: (one.cell.repetition, one.cell.arm))
    where = ordered[0].cell.configuration_id
    succeeded = [one for one in ordered if one.status == SUCCESS]
    refuse_unlike([one.conditions for one in succeeded], where)
    refuse_unlike_nodes([one.result.get("nodes") or () for one in succeeded], where)
    return Summary(
        cell=ordered[0].cell,
        finished=tuple(ordered),
        timed=tuple(run for run in map(timed_run, ordered) if run),
        trained=tuple(run for run in map(trained_run, ordered) if run),
    )


def _place(summary: Summary) -> tuple[object, ...]:
    cell = summary.cell
    return (cell.workload, cell.precision, cell.batch_samples, cell.num_ranks, cell.method, cell.cell_id)


def spread(values: Sequence[float]) -> Spread:
    """The median over repetitions and its interval at LEVEL.

    values: (n_repetitions,), positive. Student's interval where repetitions are too few for order statistics.
    Assumes repetitions are independent: each ran in fresh processes.
    Source: stats.median_interval, stats.log_t_interval.
    """
    if len(values) == 1:
        return Spread(value=values[0], low=None, high=None)
    found = interval(values)
    return Spread(value=found.value, low=found.low, high=found.high)


def interval(values: Sequence[float]) -> Interval:
    """The interval of `spread`, for two values or more."""
    if len(values) >= _FEWEST_FOR_ORDER:
        return median_interval(values, level=LEVEL)
    return log_t_interval(values, level=LEVEL)


def interval_method(num_repetitions: int) -> str | None:
    """What the interval of so many repetitions rests on; None where there is none."""
    if num_repetitions <= 1:
        return None
    return ORDER_STATISTICS if num_repetitions >= _FEWEST_FOR_ORDER else STUDENT
