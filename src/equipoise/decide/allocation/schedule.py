"""Schedules of jobs on a pool: best splits, branch and bound over sizes and starts, and replay."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.decide.allocation.problem import ROUNDING, Occupancy, Placed, SharingProblem, Solved, is_after
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

# Jobs beside which as many placements are evaluated to improve a schedule as to search for one.
_IMPROVED_BESIDE: Final = 50
# Charges for a held accelerator with which list schedules are tried, in the unit of `_list_schedule`.
_CHARGES: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


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
    for placed in (begin_with, split(problem), *_list_schedules(problem)):
        search.keep_if_best(placed)
    if problem.is_regular:
        search.branch((), Occupancy(), everyone)
    else:
        search.prepare_any_start()
        search.branch_any_start((), Occupancy(), everyone)
    if problem.is_regular and search.left <= 0:
        search.improve(most_looked)
    if not problem.is_sum:  # which leaves open how the jobs run that do not end last
        search.improve(most_looked, counts_effort=True)
    if search.best is None:
        return None
    bound = search.bound((), everyone)
    is_proved = search.left > 0 or search.is_pruned(bound)
    value = problem.value(search.best)
    return Solved(
        placed=tuple(sorted(search.best, key=lambda each: each.job)),
        value=value,
        bound=value if is_proved else bound,
        is_proved=is_proved,
        num_explored=most_looked - max(search.left, 0),
        method="branch and bound",
    )


def _list_schedules(problem: SharingProblem) -> Iterator[tuple[Placed, ...] | None]:
    """Yield list schedules: jobs in several orders, with several charges for the accelerators they hold."""
    charges = _CHARGES if problem.objective in {"time", "makespan", "lateness"} else _CHARGES[:1]
    for charge in charges:
        for order in _priority_orders(problem):
            yield _list_schedule(problem, order, charge=charge)
    # Whatever is to be least, these leave room before deadlines and at the end.
    if problem.objective != "time":
        yield from _list_schedules(replace(problem, objective="time"))


def _priority_orders(problem: SharingProblem) -> Iterator[list[int]]:
    """Yield priority orders for list schedules: early, short, urgent or large jobs first."""
    indices = list(range(len(problem.jobs)))
    jobs = problem.jobs
    yield sorted(indices, key=lambda job: (jobs[job].start_s, jobs[job].area / jobs[job].weight))
    yield sorted(indices, key=lambda job: jobs[job].area / jobs[job].weight)
    yield sorted(indices, key=lambda job: (jobs[job].deadline_s, jobs[job].area))
    yield sorted(indices, key=lambda job: -jobs[job].area)


def _list_schedule(
    problem: SharingProblem, order: Sequence[int], *, charge: float
) -> tuple[Placed, ...] | None:
    """Jobs placed in an order, each with the size of least value, or of equal ones the earliest end.

    charge: how much a held accelerator adds to that value. At 1 it adds by how much it would delay the jobs
    that are still to be placed, if each of them needed the whole pool.
    """
    waiting = math.fsum(each.weight for each in problem.jobs)
    placed: tuple[Placed, ...] = ()
    used = Occupancy()
    for job in order:
        waiting -= problem.jobs[job].weight
        per_held_s = charge * (waiting if problem.is_sum else 1.0) / problem.num_accelerators
        options = [
            (problem.worth(job, each.choice, each.start_s), problem.span(each), each)
            for each in _places(problem, used, job)
        ]
        if not options:
            return None
        _, span, best = min(
            options,
            key=lambda each: (each[0] + per_held_s * each[1][2] * (each[1][1] - each[1][0]), each[1][1]),
        )
        placed, used = (*placed, best), used.with_span(span)
    return placed


def _places(problem: SharingProblem, used: Occupancy, job: int) -> Iterator[Placed]:
    """Yield the earliest placement of a job in each size that keeps its deadline."""
    about = problem.jobs[job]
    for choice, (size, time_s) in enumerate(zip(about.sizes, about.time_s, strict=True)):
        if size > problem.num_accelerators:
            continue
        start_s = used.earliest(problem.num_accelerators - size, time_s, about.start_s)
        if not problem.is_late(job, start_s + time_s):
            yield Placed(job=job, choice=choice, start_s=start_s)


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

    def keep_if_best(self, placed: tuple[Placed, ...] | None, *, counts_effort: bool = False) -> bool:
        """Record a complete schedule if it is feasible and the best so far; whether it was recorded.

        counts_effort: also if it has the same value for less effort.
        """
        if placed is None:
            return False
        value = self.problem.value(placed)
        is_better = value < self.value - ROUNDING * abs(value) or self.best is None
        if counts_effort and not is_better and self.best is not None:
            is_as_good = value <= self.value + ROUNDING * abs(value)
            is_better = is_as_good and self._effort(placed) < self._effort(self.best)
        if is_better and self.problem.is_feasible(placed):
            self.best, self.value = placed, value
            return True
        return False

    def _effort(self, placed: Sequence[Placed]) -> tuple[float, float]:
        """Accelerator-seconds held, and the sum of all ends; to the digits that do not depend on order."""
        spans = [self.problem.span(each) for each in placed]
        held = math.fsum(size * (end_s - start_s) for start_s, end_s, size in spans)
        ends = math.fsum(end_s for _, end_s, _ in spans)
        return significant(held, _NUM_DIGITS), significant(ends, _NUM_DIGITS)

    def is_pruned(self, bound: float) -> bool:
        """Whether a partial schedule with this bound cannot improve on the best."""
        return bound >= self.value - ROUNDING * max(abs(self.value), ROUNDING)

    def branch(self, placed: tuple[Placed, ...], used: Occupancy, rest: frozenset[int]) -> None:
        """Place the remaining jobs in order of their starts, each as early as it fits."""
        if not rest:
            self.keep_if_best(placed)
            return
        last = (placed[-1].start_s, placed[-1].job) if placed else (-math.inf, -1)
        children = [
            place
            for job in rest
            for place in _places(self.problem, used, job)
            if (place.start_s, place.job) > last
        ]
        bounded = []
        for place in children:
            self.left -= len(self.problem.jobs)
            if self.left <= 0:
                return
            bound = self.bound((*placed, place), rest - {place.job})
            bounded.append((bound, place.start_s, place.job, place.choice, place))
        for bound, *_, place in sorted(bounded, key=_by_bound):
            if self.left <= 0 or self.is_pruned(bound):
                return
            self.branch((*placed, place), used.with_span(self.problem.span(place)), rest - {place.job})

    def bound(self, placed: Sequence[Placed], rest: frozenset[int]) -> float:
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
            spans = map(problem.span, placed)
            left = math.fsum(max(0.0, end_s - first_s) * size for _, end_s, size in spans)
            left += math.fsum(jobs[job].area for job in rest)
            return max(most, first_s + left / problem.num_accelerators)
        return most

    def prepare_any_start(self) -> None:
        """Set the time horizon and each job's least cost; record a schedule of jobs at their best starts.

        Prices repeat daily: once all jobs may start, a wait of a day or more can be shortened by whole days.
        """
        jobs = self.problem.jobs
        by_turns = max(each.start_s for each in jobs) + math.fsum(max(each.time_s) for each in jobs)
        self.horizon_s = by_turns + len(jobs) * DAY_S
        in_a_day = [
            sorted(self.moments((), job, before_s=each.start_s + DAY_S), key=_by_worth)
            for job, each in enumerate(jobs)
        ]
        self.cheapest = tuple(min((worth for worth, _ in each), default=math.inf) for each in in_a_day)
        for order in _priority_orders(self.problem):
            self.keep_if_best(self._at_best_starts(order, in_a_day))

    def _at_best_starts(
        self, order: Sequence[int], in_a_day: Sequence[Sequence[tuple[float, Placed]]]
    ) -> tuple[Placed, ...] | None:
        """Jobs placed in an order, each where it costs least of what is free, on the first such day.

        in_a_day: value and placement of each job at the starts of one day, by value.
        """
        placed: tuple[Placed, ...] = ()
        used = Occupancy()
        for job in order:
            free = (
                replace(place, start_s=start_s)
                for _, place in in_a_day[job]
                if (start_s := self._first_day(used, place)) is not None
            )
            best = next(free, None)
            if best is None:
                return None
            placed, used = (*placed, best), used.with_span(self.problem.span(best))
        return placed

    def _first_day(self, used: Occupancy, place: Placed) -> float | None:
        """The first start at this time of day at which the job fits; None if there is none before its end."""
        about = self.problem.jobs[place.job]
        time_s = about.time_s[place.choice]
        most_in_use = self.problem.num_accelerators - about.sizes[place.choice]
        last_s = min(about.deadline_s, self.horizon_s) - time_s
        start_s = place.start_s
        while not is_after(start_s, last_s):
            free_s = used.earliest(most_in_use, time_s, start_s)
            if not is_after(free_s, start_s):
                return start_s
            start_s += math.ceil((free_s - start_s) / DAY_S) * DAY_S
        return None

    def branch_any_start(self, placed: tuple[Placed, ...], used: Occupancy, rest: frozenset[int]) -> None:
        """Place the remaining jobs at price changes or adjacent to each other."""
        if not rest:
            self.keep_if_best(placed)
            return
        known = math.fsum(self.problem.worth(each.job, each.choice, each.start_s) for each in placed)
        children = []
        for job in rest:
            others = known + math.fsum(self.cheapest[each] for each in rest - {job})
            for worth, place in self.moments(used.moments_s[1:], job, before_s=math.inf):
                self.left -= 1
                if self.left <= 0:
                    return
                if not self.is_pruned(others + worth):
                    children.append((others + worth, place.start_s, job, place.choice, place))
        for bound, *_, place in sorted(children, key=_by_bound):
            start_s, end_s, size = span = self.problem.span(place)
            if self.is_pruned(bound) or self.left <= 0:
                return
            self.left -= len(placed)
            whole = (*placed, place)
            key = frozenset((each.job, each.choice, round(each.start_s, 6)) for each in whole)
            most_in_use = self.problem.num_accelerators - size
            free_s = used.earliest(most_in_use, end_s - start_s, start_s)
            if key not in self.seen and not is_after(free_s, start_s):
                self.seen.add(key)
                self.branch_any_start(whole, used.with_span(span), rest - {place.job})

    def moments(
        self, touched: Sequence[float], job: int, *, before_s: float
    ) -> Iterator[tuple[float, Placed]]:
        """Yield value and placement of a job at each start before a time that an optimal schedule could have.

        touched: starts and ends of the other jobs.
        """
        about, tariff = self.problem.jobs[job], self.problem.tariff
        assert tariff is not None
        end_s = min(about.deadline_s, self.horizon_s)
        for choice, (size, time_s) in enumerate(zip(about.sizes, about.time_s, strict=True)):
            if size > self.problem.num_accelerators:
                continue
            changes = tariff.changes_s(about.start_s, min(end_s, before_s + time_s))
            starts = {about.start_s, end_s - time_s, *changes, *(moment - time_s for moment in changes)}
            starts |= {*touched, *(moment - time_s for moment in touched)}
            for start_s in starts:
                if (
                    start_s < before_s
                    and not is_after(about.start_s, start_s)
                    and not is_after(start_s + time_s, end_s)
                ):
                    yield (
                        self.problem.worth(job, choice, start_s),
                        Placed(job=job, choice=choice, start_s=start_s),
                    )

    def improve(self, most_looked: int, *, counts_effort: bool = False) -> None:
        """Improve the best schedule by other sizes and places in the order of starts, one job at a time.

        counts_effort: also where the value stays the same for less effort, which may make room for more.
        most_looked: number of placements to evaluate.
        """
        if self.best is None:
            return
        order = [(each.job, each.choice) for each in sorted(self.best, key=_by_start)]
        num_jobs, place, num_unimproved = len(order), 0, 0
        left = most_looked * _IMPROVED_BESIDE  # evaluating one takes longer with more jobs
        until = _in_order(self.problem, order)
        while num_unimproved < num_jobs:
            for first, other in self._neighbours(order, place % num_jobs):
                left -= (num_jobs - first) * num_jobs
                if left < 0:
                    return
                found = _in_order(self.problem, other, begin_with=until[: first + 1])
                whole = found[-1][0] if len(found) > num_jobs else None
                if self.keep_if_best(whole, counts_effort=counts_effort):
                    order, until, num_unimproved = other, found, 0
                    break
            else:
                place, num_unimproved = place + 1, num_unimproved + 1

    def _neighbours(
        self, order: Sequence[tuple[int, int]], place: int
    ) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield orders with one job at its next sizes, or earlier or later by up to two jobs.

        With each its first place that differs.
        """
        (job, choice), rest = order[place], [*order[:place], *order[place + 1 :]]
        sizes = self.problem.jobs[job].sizes
        within = range(max(0, place - 2), min(len(rest), place + 2) + 1)
        for at in sorted(within, key=lambda at: abs(at - place)):
            for other in (choice, choice - 1, choice + 1):
                is_size = 0 <= other < len(sizes) and sizes[other] <= self.problem.num_accelerators
                if is_size and (at, other) != (place, choice):
                    yield min(at, place), [*rest[:at], (job, other), *rest[at:]]


def _by_start(placed: Placed) -> tuple[float, int]:
    return placed.start_s, placed.job


def _by_worth(moment: tuple[float, Placed]) -> tuple[float, float, int]:
    worth, place = moment
    return significant(worth, _NUM_DIGITS), place.start_s, place.choice


_Placing: TypeAlias = tuple[tuple[Placed, ...], Occupancy]


def _in_order(
    problem: SharingProblem, order: Sequence[tuple[int, int]], *, begin_with: Sequence[_Placing] = ()
) -> list[_Placing]:
    """Jobs with stated sizes, each placed as early as it fits beside those before: after 0, 1, ... jobs.

    begin_with: the same of an order that begins equally. The list ends before the first job that is late.
    """
    found = list(begin_with) or [((), Occupancy())]
    for job, choice in order[len(found) - 1 :]:
        placed, used = found[-1]
        about = problem.jobs[job]
        most_in_use = problem.num_accelerators - about.sizes[choice]
        start_s = used.earliest(most_in_use, about.time_s[choice], about.start_s)
        if problem.is_late(job, start_s + about.time_s[choice]):
            break
        each = Placed(job=job, choice=choice, start_s=start_s)
        found.append(((*placed, each), used.with_span(problem.span(each))))
    return found


def replayed(problem: SharingProblem, placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """The schedule with the same sizes and order of starts, but with the times of `problem`.

    Each job starts as early as it fits; with hourly prices not before its original start.
    """
    done, used = [], Occupancy()
    for each in sorted(placed, key=lambda place: (place.start_s, place.job)):
        job = problem.jobs[each.job]
        not_before_s = job.start_s if problem.is_regular else each.start_s
        most_in_use = problem.num_accelerators - job.sizes[each.choice]
        start_s = used.earliest(most_in_use, job.time_s[each.choice], not_before_s)
        done.append(replace(each, start_s=start_s))
        used = used.with_span(problem.span(done[-1]))
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
