"""Schedules followed with other times, and those of simple rules."""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.decide.allocation.problem import Placed, Problem
from equipoise.decide.allocation.schedule import earliest


def replayed(problem: Problem, placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """The same sizes in the same order of starts, each as early as it fits, with the problem's own times.

    Starts that were put off for cheaper hours stay where they are, or later where there is no room.
    """
    done: list[Placed] = []
    for each in sorted(placed, key=lambda place: (place.start_s, place.job)):
        job = problem.jobs[each.job]
        not_before_s = job.start_s if problem.is_regular else each.start_s
        spans = [problem.span(other) for other in done]
        start_s = earliest(problem, spans, job.sizes[each.choice], job.time_s[each.choice], not_before_s)
        done.append(replace(each, start_s=start_s))
    return tuple(done)


def in_turn(problem: Problem) -> float | None:
    """The objective if jobs run one after another, each in its fastest size, the shortest first.

    None where that misses a deadline.
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
