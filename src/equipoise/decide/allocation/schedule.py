"""Schedules of jobs on a pool: best splits, branch and bound over sizes and starts, and replay."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.decide.allocation.problem import ROUNDING, Placed, SharingProblem, Solved, is_after, used_at
from equipoise.units import DAY_S, significant

# Computing this number of table entries takes about a second.
_MAX_ENTRIES = 2 * 10**8
_NUM_DIGITS: Final = 9  # digits of bounds compared, because sums in another order differ beyond


def split(problem: SharingProblem, *, max_entries: int = _MAX_ENTRIES) -> tuple[Placed, ...] | None:
    """The best split of the pool among all jobs at once; None if they do not fit within their deadlines.

    max_entries: largest table. Above it, accelerators are counted in lots, with sizes rounded up to whole
    lots: the split is then feasible, but may not be the best.
    Source: dynamic programming over the jobs, with a table entry for each number of lots.
    """
    allowed = _allowed(problem)
    if any(not choices for choices in allowed):
        return None
    entries = sum(map(len, allowed)) * (problem.num_accelerators + 1)
    lot = -(-entries // max_entries)
    num_lots = problem.num_accelerators // lot
    least = np.zeros(num_lots + 1) if problem.is_sum else np.full(num_lots + 1, -math.inf)
    taken = []
    for job, choices in enumerate(allowed):
        table, best = np.full_like(least, math.inf), np.zeros(len(least), dtype=np.intp)
        # Ties between splits are resolved to the choice with the smaller own value.
        for choice in sorted(choices, key=lambda choice: _value_of(problem, job, choice)):
            size, worth = _num_lots(problem, job, choice, lot), _value_of(problem, job, choice)
            before = least[: max(0, len(least) - size)]
            with_it = before + worth if problem.is_sum else np.maximum(before, worth)
            better = np.flatnonzero(with_it < table[size:])
            table[size + better], best[size + better] = with_it[better], choice
        least = table
        taken.append(best)
    if not math.isfinite(least[-1]):
        return None
    left, placed = num_lots, []
    for job in reversed(range(len(taken))):
        choice = int(taken[job][left])
        placed.append(Placed(job=job, choice=choice, start_s=problem.jobs[job].start_s))
        left -= _num_lots(problem, job, choice, lot)
    return tuple(reversed(placed))


def _num_lots(problem: SharingProblem, job: int, choice: int, lot: int) -> int:
    """Lots of accelerators that a choice occupies, rounded up."""
    return -(-problem.jobs[job].sizes[choice] // lot)


def _allowed(problem: SharingProblem) -> list[list[int]]:
    """Each job's choices that fit in the pool and keep its deadline if it starts as early as allowed."""
    return [
        [
            choice
            for choice, time_s in enumerate(each.time_s)
            if each.sizes[choice] <= problem.num_accelerators
            and not problem.is_late(job, each.start_s + time_s)
        ]
        for job, each in enumerate(problem.jobs)
    ]


def _value_of(problem: SharingProblem, job: int, choice: int) -> float:
    return problem.worth(job, choice, problem.jobs[job].start_s)


# Partial schedules to evaluate before the best so far is returned: a few seconds.
MOST_LOOKED = 200_000

Span = tuple[float, float, int]


def schedule(
    problem: SharingProblem, *, most_looked: int = MOST_LOOKED, begin_with: tuple[Placed, ...] | None = None
) -> Solved | None:
    """The best schedule found; None if no schedule was found that keeps the deadlines.

    most_looked: number of placements to evaluate, after which optimality is not proved. begin_with: a known
    schedule.
    Assumes a job keeps its accelerators from start to end, and all accelerators of the pool are equivalent.
    Source: for regular objectives an optimum is among schedules that place jobs in order of their starts,
    each as early as it fits (Kolisch 1996, Serial and parallel resource-constrained project scheduling
    methods revisited). With hourly prices an optimum is among schedules in which each group of adjacent jobs
    has one that starts or ends at a price change, at its earliest start, or at its deadline: in between, the
    cost is linear in a shift of the group.
    """
    everyone = frozenset(range(len(problem.jobs)))
    search = _Search(problem=problem, left=most_looked)
    for placed in (begin_with, *_initial_schedules(problem)):
        search.keep_if_best(placed)
    if problem.is_regular:
        search.branch((), (), everyone)
    else:
        search.prepare_any_start()
        search.branch_any_start((), (), everyone)
    if search.best is None:
        return None
    is_proved = search.left > 0
    value = problem.value(search.best)
    bound = value if is_proved else search.bound((), (), everyone)
    return Solved(
        placed=tuple(sorted(search.best, key=lambda each: each.job)),
        value=value,
        bound=bound,
        is_proved=is_proved,
        num_explored=most_looked - max(search.left, 0),
        method="branch and bound",
    )


def _initial_schedules(problem: SharingProblem) -> Iterator[tuple[Placed, ...] | None]:
    """Yield heuristic initial schedules: the best split, and list schedules."""
    yield split(problem)
    for order in _priority_orders(problem):
        yield _list_schedule(problem, order)


def _priority_orders(problem: SharingProblem) -> Iterator[list[int]]:
    """Yield priority orders for list schedules: early, short, urgent or large jobs first."""
    indices = list(range(len(problem.jobs)))
    jobs = problem.jobs
    yield sorted(indices, key=lambda job: (jobs[job].start_s, jobs[job].area / jobs[job].weight))
    yield sorted(indices, key=lambda job: jobs[job].area / jobs[job].weight)
    yield sorted(indices, key=lambda job: (jobs[job].deadline_s, jobs[job].area))
    yield sorted(indices, key=lambda job: -jobs[job].area)


def _list_schedule(problem: SharingProblem, order: Sequence[int]) -> tuple[Placed, ...] | None:
    """Jobs placed in an order, each with the size of least value, or of equal ones the earliest end."""
    placed: tuple[Placed, ...] = ()
    spans: tuple[Span, ...] = ()
    for job in order:
        options = list(_places(problem, spans, job))
        if not options:
            return None
        best = min(
            options, key=lambda each: (problem.worth(job, each.choice, each.start_s), problem.span(each)[1])
        )
        placed, spans = (*placed, best), (*spans, problem.span(best))
    return placed


def _places(problem: SharingProblem, spans: Sequence[Span], job: int) -> Iterator[Placed]:
    """Yield the earliest placement of a job in each size that keeps its deadline."""
    about = problem.jobs[job]
    for choice, (size, time_s) in enumerate(zip(about.sizes, about.time_s, strict=True)):
        start_s = earliest(problem, spans, size, time_s, about.start_s)
        if not problem.is_late(job, start_s + time_s):
            yield Placed(job=job, choice=choice, start_s=start_s)


def earliest(
    problem: SharingProblem, spans: Sequence[Span], size: int, time_s: float, not_before_s: float
) -> float:
    """The earliest time at which `size` accelerators are free for time_s; infinite if never."""
    if size > problem.num_accelerators:
        return math.inf
    ends = sorted({end_s for _, end_s, _ in spans if end_s > not_before_s})
    return next(
        start_s for start_s in (not_before_s, *ends) if _fits(problem, spans, size, start_s, start_s + time_s)
    )


def _fits(problem: SharingProblem, spans: Sequence[Span], size: int, start_s: float, end_s: float) -> bool:
    """Whether `size` accelerators are free from start to end."""
    within = [span for span in spans if is_after(end_s, span[0]) and is_after(span[1], start_s)]
    moments = [start_s, *(span[0] for span in within if span[0] > start_s)]
    return all(used_at(within, moment) + size <= problem.num_accelerators for moment in moments)


def _by_bound(child: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort key of children: by bound, then by earliest start."""
    return significant(child[0], _NUM_DIGITS), *child[1:4]


class _Search(Struct, kw_only=True):
    """State of a search: the best complete schedule so far, and the remaining number of placements."""

    problem: SharingProblem
    left: int
    best: tuple[Placed, ...] | None = None
    value: float = math.inf
    seen: set[frozenset[tuple[int, int, float]]] = field(default_factory=set)
    horizon_s: float = math.inf
    cheapest: tuple[float, ...] = ()

    def keep_if_best(self, placed: tuple[Placed, ...] | None) -> None:
        """Record a complete schedule if it is feasible and the best so far."""
        if placed is None or not self.problem.is_feasible(placed):
            return
        value = self.problem.value(placed)
        if value < self.value - ROUNDING * abs(value) or self.best is None:
            self.best, self.value = placed, value

    def is_pruned(self, bound: float) -> bool:
        """Whether a partial schedule with this bound cannot improve on the best."""
        return bound >= self.value - ROUNDING * max(abs(self.value), ROUNDING)

    def branch(self, placed: tuple[Placed, ...], spans: tuple[Span, ...], rest: frozenset[int]) -> None:
        """Place the remaining jobs in order of their starts, each as early as it fits."""
        if not rest:
            self.keep_if_best(placed)
            return
        last = (placed[-1].start_s, placed[-1].job) if placed else (-math.inf, -1)
        children = [
            place
            for job in rest
            for place in _places(self.problem, spans, job)
            if (place.start_s, place.job) > last
        ]
        bounded = []
        for place in children:
            self.left -= len(self.problem.jobs)
            after = (*placed, place), (*spans, self.problem.span(place)), rest - {place.job}
            bounded.append((self.bound(*after), place.start_s, place.job, place.choice, after))
        for bound, *_, after in sorted(bounded, key=_by_bound):
            if self.left <= 0 or self.is_pruned(bound):
                return
            self.branch(*after)

    def bound(self, placed: Sequence[Placed], spans: Sequence[Span], rest: frozenset[int]) -> float:
        """Lower bound of the objective over all completions of a partial schedule.

        Source: each job on its own, and the squashed area (Turek, Wolf and Yu 1992): the k-th job cannot end
        before the pool has done the work of k jobs.
        """
        problem = self.problem
        worths = [problem.worth(each.job, each.choice, each.start_s) for each in placed]
        if not problem.is_regular:
            return math.fsum([*worths, *(self.cheapest[job] for job in rest)])
        from_s = max((each.start_s for each in placed), default=-math.inf)
        jobs = problem.jobs
        alone = [
            min(
                problem.worth(job, choice, max(jobs[job].start_s, from_s))
                for choice, size in enumerate(jobs[job].sizes)
                if size <= problem.num_accelerators
            )
            for job in rest
        ]
        if problem.objective in {"cost", "energy"}:
            return math.fsum([*worths, *alone])
        first_s = max(min((jobs[job].start_s for job in rest), default=0.0), from_s)
        if problem.objective == "time":
            own = math.fsum([*worths, *alone])
            done, area = 0.0, math.fsum(worths)
            for job in sorted(rest, key=lambda job: jobs[job].area / jobs[job].weight):
                done += jobs[job].area / problem.num_accelerators
                area += jobs[job].weight * (first_s + done - jobs[job].start_s)
            return max(own, area)
        most = max([*worths, *alone])
        if problem.objective == "makespan" and rest:
            left = math.fsum(max(0.0, end_s - first_s) * size for _, end_s, size in spans)
            left += math.fsum(jobs[job].area for job in rest)
            return max(most, first_s + left / problem.num_accelerators)
        return most

    def prepare_any_start(self) -> None:
        """Set the time horizon and each job's least cost.

        Prices repeat daily: once all jobs may start, a wait of a day or more can be shortened by whole days.
        """
        jobs = self.problem.jobs
        by_turns = max(each.start_s for each in jobs) + math.fsum(max(each.time_s) for each in jobs)
        self.horizon_s = by_turns + len(jobs) * DAY_S
        self.cheapest = tuple(
            min((worth for worth, _ in self.moments((), job)), default=math.inf) for job in range(len(jobs))
        )

    def branch_any_start(
        self, placed: tuple[Placed, ...], spans: tuple[Span, ...], rest: frozenset[int]
    ) -> None:
        """Place the remaining jobs at price changes or adjacent to each other."""
        if not rest:
            self.keep_if_best(placed)
            return
        known = math.fsum(self.problem.worth(each.job, each.choice, each.start_s) for each in placed)
        children = []
        for job in rest:
            others = known + math.fsum(self.cheapest[each] for each in rest - {job})
            for worth, place in self.moments(spans, job):
                self.left -= 1
                if not self.is_pruned(others + worth):
                    children.append((others + worth, place.start_s, job, place.choice, place))
        for bound, *_, place in sorted(children, key=_by_bound):
            span = self.problem.span(place)
            if self.is_pruned(bound) or self.left <= 0:
                return
            self.left -= len(spans)
            whole = (*placed, place)
            key = frozenset((each.job, each.choice, round(each.start_s, 6)) for each in whole)
            if key not in self.seen and _fits(self.problem, spans, span[2], *span[:2]):
                self.seen.add(key)
                self.branch_any_start(whole, (*spans, span), rest - {place.job})

    def moments(self, spans: Sequence[Span], job: int) -> Iterator[tuple[float, Placed]]:
        """Yield value and placement of a job at each start that an optimal schedule could have."""
        about, tariff = self.problem.jobs[job], self.problem.tariff
        assert tariff is not None
        end_s = min(about.deadline_s, self.horizon_s)
        changes = tariff.changes_s(about.start_s, end_s)
        touched = {moment for span in spans for moment in span[:2]}
        for choice, (size, time_s) in enumerate(zip(about.sizes, about.time_s, strict=True)):
            if size > self.problem.num_accelerators:
                continue
            starts = {about.start_s, end_s - time_s, *changes, *(moment - time_s for moment in changes)}
            starts |= touched | {moment - time_s for moment in touched}
            for start_s in starts:
                if not is_after(about.start_s, start_s) and not is_after(start_s + time_s, end_s):
                    yield (
                        self.problem.worth(job, choice, start_s),
                        Placed(job=job, choice=choice, start_s=start_s),
                    )


def replayed(problem: SharingProblem, placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """The schedule with the same sizes and order of starts, but with the times of `problem`.

    Each job starts as early as it fits; with hourly prices not before its original start.
    """
    done: list[Placed] = []
    for each in sorted(placed, key=lambda place: (place.start_s, place.job)):
        job = problem.jobs[each.job]
        not_before_s = job.start_s if problem.is_regular else each.start_s
        spans = [problem.span(other) for other in done]
        start_s = earliest(problem, spans, job.sizes[each.choice], job.time_s[each.choice], not_before_s)
        done.append(replace(each, start_s=start_s))
    return tuple(done)


def in_turn(problem: SharingProblem) -> float | None:
    """The objective if jobs run one after another, each in its fastest size, shortest first.

    None if that misses a deadline.
    """
    fastest = [min(range(len(job.sizes)), key=job.time_s.__getitem__) for job in problem.jobs]
    order = sorted(
        range(len(problem.jobs)),
        key=lambda index: problem.jobs[index].time_s[fastest[index]] / problem.jobs[index].weight,
    )
    moment_s, placed = 0.0, []
    for index in order:
        job = problem.jobs[index]
        start_s = max(moment_s, job.start_s)
        placed.append(Placed(job=index, choice=fastest[index], start_s=start_s))
        moment_s = start_s + job.time_s[fastest[index]]
    return problem.value(placed) if problem.is_feasible(placed) else None
