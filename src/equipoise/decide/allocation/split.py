"""All jobs side by side, each on its own share of the pool from its start on: who gets how many."""

import math
from collections.abc import Sequence

import numpy as np

from equipoise.decide.allocation.problem import Placed, Problem, Solved, is_after
from equipoise.scaling.law import FloatArray

# Sums of so many entries take about a second.
_MOST_ENTRIES = 2 * 10**8


def split(problem: Problem) -> Solved | None:
    """The best split of the pool; None where jobs do not fit side by side within their deadlines.

    Exact where the table is not too large, else `greedy_split`.
    """
    allowed = _allowed(problem)
    if any(not choices for choices in allowed):
        return None
    entries = sum(map(len, allowed)) * (problem.num_accelerators + 1)
    if entries > _MOST_ENTRIES:
        return greedy_split(problem)
    worths = [[_worth(problem, job, choice) for choice in choices] for job, choices in enumerate(allowed)]
    least = (
        np.zeros(problem.num_accelerators + 1)
        if problem.is_sum
        else np.full(problem.num_accelerators + 1, -math.inf)
    )
    tables: list[FloatArray] = []
    for job, choices in enumerate(allowed):
        table = np.full_like(least, math.inf)
        for choice, worth in zip(choices, worths[job], strict=True):
            size = problem.jobs[job].sizes[choice]
            before = least[: len(least) - size]
            with_it = before + worth if problem.is_sum else np.maximum(before, worth)
            table[size:] = np.minimum(table[size:], with_it)
        tables.append(least)
        least = table
    if not math.isfinite(least[-1]):
        return None
    placed = _followed(problem, allowed, worths, [*tables, least])
    value = problem.value(placed)
    return Solved(
        placed=placed,
        value=value,
        bound=value,
        is_proved=True,
        num_looked=entries,
        method="dynamic programming",
    )


def _followed(
    problem: Problem,
    allowed: Sequence[Sequence[int]],
    worths: Sequence[Sequence[float]],
    tables: Sequence[FloatArray],
) -> tuple[Placed, ...]:
    """The choices that lead to the last entry of the last table; of equal ones those worth less."""
    left, found = problem.num_accelerators, []
    for job in reversed(range(len(problem.jobs))):
        goal = tables[job + 1][left]
        best: tuple[float, int] | None = None
        for choice, worth in zip(allowed[job], worths[job], strict=True):
            size = problem.jobs[job].sizes[choice]
            if size > left:
                continue
            before = tables[job][left - size]
            reached = before + worth if problem.is_sum else max(before, worth)
            if reached <= goal and (best is None or worth < best[0]):
                best = (worth, choice)
        assert best is not None
        found.append(Placed(job=job, choice=best[1], start_s=problem.jobs[job].start_s))
        left -= problem.jobs[job].sizes[best[1]]
    return tuple(reversed(found))


def greedy_split(problem: Problem) -> Solved | None:
    """A good split: from the smallest sizes up, each time the step that gains most for each accelerator.

    None where the smallest sizes that keep the deadlines exceed the pool.
    Source: marginal analysis, Fox 1966, Discrete Optimization Via Marginal Analysis; exact where gains
    diminish and all steps are of one accelerator.
    """
    allowed = _allowed(problem)
    if any(not choices for choices in allowed):
        return None
    at = [0] * len(problem.jobs)
    left = problem.num_accelerators - sum(
        problem.jobs[job].sizes[choices[0]] for job, choices in enumerate(allowed)
    )
    num_looked = 0
    while left > 0:
        best: tuple[float, int, int] | None = None
        worst = max(_worth(problem, job, allowed[job][at[job]]) for job in range(len(at)))
        for job, choices in enumerate(allowed):
            now = _worth(problem, job, choices[at[job]])
            if not problem.is_sum and now < worst:
                continue
            for step in range(at[job] + 1, len(choices)):
                num_looked += 1
                sizes = problem.jobs[job].sizes
                more = sizes[choices[step]] - sizes[choices[at[job]]]
                gain = (now - _worth(problem, job, choices[step])) / more
                if more <= left and gain > 0 and (best is None or gain > best[0]):
                    best = (gain, job, step)
        if best is None:
            break
        _, job, step = best
        sizes = problem.jobs[job].sizes
        left -= sizes[allowed[job][step]] - sizes[allowed[job][at[job]]]
        at[job] = step
    if left < 0:
        return None
    placed = tuple(
        Placed(job=job, choice=allowed[job][at[job]], start_s=problem.jobs[job].start_s)
        for job in range(len(at))
    )
    least = [min(_worth(problem, job, choice) for choice in choices) for job, choices in enumerate(allowed)]
    return Solved(
        placed=placed,
        value=problem.value(placed),
        bound=math.fsum(least) if problem.is_sum else max(least),
        is_proved=False,
        num_looked=num_looked,
        method="marginal gains",
    )


def _allowed(problem: Problem) -> list[list[int]]:
    """The choices of each job that the pool has room for and that keep its deadline from its start on."""
    return [
        [
            choice
            for choice, time_s in enumerate(each.time_s)
            if each.sizes[choice] <= problem.num_accelerators
            and (problem.objective == "lateness" or not is_after(each.start_s + time_s, each.deadline_s))
        ]
        for each in problem.jobs
    ]


def _worth(problem: Problem, job: int, choice: int) -> float:
    return problem.worth(job, choice, problem.jobs[job].start_s)
