"""Stragglers in traces of several ranks: which rank the others wait for, and how long.

Clocks of hosts differ, so timestamps are not compared across ranks. A collective ends for all ranks at once,
so the rank that spends the least time in it arrived last.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.bench.trace import RankTrace, Traces, TraceStep
from equipoise.intervals import covered_s
from equipoise.stats import SD_PER_MEDIAN_DEVIATION

Numbers: TypeAlias = NDArray[np.float64]

# A straggler is late by more than this share of a step, and the latest rank in at least this share of steps.
LEAST_SHARE = 0.02
LEAST_STEPS = 0.5
# From four ranks on, it must also be late by more than this many robust standard deviations of the others.
_DEVIATIONS = 3.0
_FEWEST_FOR_SPREAD = 4
_FEWEST_RANKS = 2
# Not collective: the two sides differ by their position in a pipeline.
_ONE_WAY = frozenset({"send", "recv"})


class Lateness(Struct, frozen=True, kw_only=True):
    """How long the other ranks wait for a rank per step.

    late_s: median over steps of the others' (median) waiting time. share_of_steps: fraction of the steps in
    which it was the latest. is_late: late consistently, and by more than ranks usually differ. cause: what it
    spends more time on than the others: `computes` or `idles`; None if neither. by: the method:
    `collectives`, or `own time` (the step without exposed communication) if collectives do not match.
    """

    trace: RankTrace
    late_s: float
    share_of_steps: float
    is_late: bool
    cause: str | None
    by: Literal["collectives", "own time"]

    @property
    def late_fraction(self) -> float | None:
        """Lateness as a fraction of the rank's median step; None if that takes no time."""
        step_s = median(step.step_s for step in self.trace.steps)
        return self.late_s / step_s if step_s else None


class TraceSteps(Struct, frozen=True, kw_only=True):
    """Traces of ranks, and the lateness of each rank; empty if the traces do not show it."""

    traces: Traces
    lateness: tuple[Lateness, ...]

    @property
    def stragglers(self) -> list[Lateness]:
        """The ranks that are late, the latest first."""
        return sorted((each for each in self.lateness if each.is_late), key=lambda each: -each.late_s)


def trace_steps(traces: Traces) -> TraceSteps:
    """Traces with the lateness of their ranks."""
    return TraceSteps(traces=traces, lateness=lateness(traces.ranks))


def lateness(ranks: Sequence[RankTrace]) -> tuple[Lateness, ...]:
    """The lateness of each rank; empty if fewer than two ranks share steps, or the traces do not show it.

    Assumes that all ranks of a group end a collective together, and that ranks run the same steps.
    Source: the time in a collective is transfer plus waiting, and the last rank to arrive does not wait.
    Spread is the median absolute deviation (Rousseeuw and Croux 1993).
    """
    if len(ranks) < _FEWEST_RANKS or any(step.exposed_s is None for each in ranks for step in each.steps):
        return ()
    shared = _shared_steps(ranks)
    if not shared:
        return ()
    waited_s = _waited_s(ranks, shared)
    if waited_s is not None:
        return tuple(_judged(ranks, shared, waited_s, "collectives"))
    # Time without exposed communication, in excess of the median rank's.
    own_s = _of_shared(ranks, shared, lambda step: step.compute_s + step.idle_s)
    excess_s = np.maximum(own_s - np.median(own_s, axis=0), 0.0)
    return tuple(_judged(ranks, shared, excess_s, "own time"))


def _shared_steps(ranks: Sequence[RankTrace]) -> list[int | None]:
    """The step numbers that all ranks have; empty if a rank has a number twice."""
    numbers = [[step.number for step in each.steps] for each in ranks]
    if any(len(set(each)) < len(each) for each in numbers):
        return []
    common = set(numbers[0]).intersection(*numbers[1:])
    return [number for number in numbers[0] if number in common]


def _waited_s(ranks: Sequence[RankTrace], shared: Sequence[int | None]) -> Numbers | None:
    """How long the others waited for each rank in each step: (n_ranks, n_steps); None if nothing matches.

    This is the median time of the others in the collectives of its groups, minus its own. Concurrent
    collectives with the same members are counted once, and the result is at most the step.
    """
    place = {number: at for at, number in enumerate(shared)}
    taken: list[dict[tuple[int, str], list[tuple[float, float]]]] = []
    for each in ranks:
        found: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
        of_rank = each.collectives
        for group, step, start_s, seconds in zip(
            of_rank.group, of_rank.step, of_rank.start_s, of_rank.seconds, strict=True
        ):
            at = place.get(each.steps[int(step)].number)
            if at is not None and group.partition(" ")[0] not in _ONE_WAY:
                found[at, group].append((float(start_s), float(start_s + seconds)))
        taken.append(found)
    matched: dict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for number, group in sorted({key for found in taken for key in found}):
        members = tuple(at for at, found in enumerate(taken) if (number, group) in found)
        if len(members) >= _FEWEST_RANKS and len({len(taken[at][number, group]) for at in members}) == 1:
            matched[number, members].append(group)
    waited_s = np.zeros((len(ranks), len(shared)))
    for (number, members), groups in matched.items():
        spent_s = np.array(
            [covered_s([span for group in groups for span in taken[at][number, group]]) for at in members]
        )
        for row, at in enumerate(members):
            waited_s[at, number] += float(np.median(np.delete(spent_s, row))) - spent_s[row]
    longest_s = np.max(_of_shared(ranks, shared, lambda step: step.step_s), axis=0)
    return np.asarray(np.clip(waited_s, 0.0, longest_s)) if matched else None


def _of_shared(
    ranks: Sequence[RankTrace], shared: Sequence[int | None], part_s: Callable[[TraceStep], float]
) -> Numbers:
    """A part of the shared steps of each rank: (n_ranks, n_steps)."""
    by_number = [{step.number: part_s(step) for step in each.steps} for each in ranks]
    return np.array([[found[number] for number in shared] for found in by_number])


def _judged(
    ranks: Sequence[RankTrace],
    shared: Sequence[int | None],
    waited: Numbers,
    by: Literal["collectives", "own time"],
) -> Iterator[Lateness]:
    step_s = float(
        np.median([step.step_s for each in ranks for step in each.steps if step.number in set(shared)])
    )
    late_s = np.median(waited, axis=1)
    longest = (waited == waited.max(axis=0)) & (waited > 0)
    share = longest.mean(axis=1)
    for at, each in enumerate(ranks):
        others = np.delete(late_s, at)
        usual = 0.0
        if len(ranks) >= _FEWEST_FOR_SPREAD:
            spread = SD_PER_MEDIAN_DEVIATION * float(np.median(np.abs(others - np.median(others))))
            usual = float(np.median(others)) + _DEVIATIONS * spread
        is_late = late_s[at] > max(LEAST_SHARE * step_s, usual) and share[at] >= LEAST_STEPS
        yield Lateness(
            trace=each,
            late_s=float(late_s[at]),
            share_of_steps=float(share[at]),
            is_late=bool(is_late),
            cause=_cause(ranks, at, shared) if is_late else None,
            by=by,
        )


def _cause(ranks: Sequence[RankTrace], late: int, shared: Sequence[int | None]) -> str | None:
    """What a late rank spends more time on than the median of the others, if anything."""
    wanted = set(shared)

    def excess_s(part: str) -> float:
        medians = [
            float(np.median([getattr(step, part) for step in each.steps if step.number in wanted]))
            for each in ranks
        ]
        return medians[late] - float(np.median(medians[:late] + medians[late + 1 :]))

    parts = {"computes": excess_s("compute_s"), "idles": excess_s("idle_s")}
    most = max(parts, key=lambda name: parts[name])
    return most if parts[most] > 0 else None
