"""Who of several trainings gets how many accelerators of one pool, and when: times in, a schedule out."""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.allocation.jobs import JobRequest
from equipoise.decide.allocation.problem import (
    AllocationJob,
    ObjectiveName,
    Placed,
    Pool,
    SharingProblem,
    Solved,
    is_after,
)
from equipoise.decide.allocation.schedule import in_turn, replayed, schedule, split
from equipoise.decide.allocation.times import JobTimes
from equipoise.decide.answer import Candidate
from equipoise.errors import EvidenceError, UsageError
from equipoise.stats import LEVEL, Interval
from equipoise.units import HOUR_S


class JobShare(Struct, frozen=True, kw_only=True):
    """What one job gets: the candidate of its size, and when it starts.

    times: what it would take on other sizes. end_s: when it is done, at both ends with all jobs as slow, or
    as fast, as theirs. hourly_electricity_usd: None without prices by the hour. late_s: by how much it misses
    its deadline; is_at_risk: whether it would, were all jobs as slow as their intervals allow.
    """

    job: JobRequest
    times: JobTimes
    candidate: Candidate
    start_s: float
    end_s: Interval
    hourly_electricity_usd: float | None
    late_s: float
    is_at_risk: bool

    @property
    def time_s(self) -> Interval:
        """How long it takes."""
        assert self.candidate.time_s is not None
        return self.candidate.time_s


class SimplerSchedule(Struct, frozen=True, kw_only=True):
    """A simpler way to share the pool. value: of the objective; None where it misses a deadline or room."""

    words: str
    value: float | None


class Allocation(Struct, frozen=True, kw_only=True):
    """The answer. value: of the objective, in its unit; solved: how it was found, and what bounds it.

    is_feasible: whether all deadlines are kept; otherwise the shares are those of the schedule whose latest
    job is the least late, and is_certain: whether that was proved.
    """

    objective: ObjectiveName
    pool: Pool
    shares: tuple[JobShare, ...]
    value: Interval
    solved: Solved
    is_feasible: bool
    is_certain: bool
    simpler_schedules: tuple[SimplerSchedule, ...]
    makespan_s: float
    total_s: float
    notes: tuple[str, ...]

    @property
    def is_side_by_side(self) -> bool:
        """Whether every job begins when it may."""
        return not any(is_after(each.start_s, each.job.start_s) for each in self.shares)


def allocate(
    jobs: Sequence[JobRequest], times: Sequence[JobTimes], pool: Pool, *, objective: ObjectiveName
) -> Allocation:
    """The schedule that minimises the objective, deadlines kept; the least late where they cannot be.

    times: of each job. Raises UsageError where the objective needs a price or power that nobody states.
    """
    problem = _problem(jobs, times, pool, objective)
    solved = schedule(problem)
    is_feasible, is_certain = True, True
    if solved is None:
        solved, is_feasible, is_certain = _least_late(problem)
    if objective in {"cost", "energy"} and is_feasible and problem.is_regular:
        solved = _sooner(problem, solved)
    by_job = {each.job: each for each in solved.placed}
    placed = tuple(by_job[index] for index in range(len(jobs)))
    ends = {bound: _ends(problem, times, placed, bound) for bound in ("low", "high")}
    shares = tuple(
        _share(jobs[index], times[index], placed[index], pool=pool, ends=ends) for index in range(len(jobs))
    )
    return Allocation(
        objective=objective,
        pool=pool,
        shares=shares,
        value=_value(problem, times, placed),
        solved=solved,
        is_feasible=is_feasible,
        is_certain=is_certain,
        simpler_schedules=_simpler_schedules(problem),
        makespan_s=max(each.end_s.value for each in shares),
        total_s=math.fsum(each.job.weight * (each.end_s.value - each.job.start_s) for each in shares),
        notes=tuple(
            dict.fromkeys(
                (*_notes(problem, is_feasible=is_feasible), *(note for each in times for note in each.notes))
            )
        ),
    )


def _problem(
    jobs: Sequence[JobRequest], times: Sequence[JobTimes], pool: Pool, objective: ObjectiveName
) -> SharingProblem:
    rates = pool.rates
    watts = rates.accelerator_power_w and rates.accelerator_power_w * rates.system_power.factor
    slug = pool.cluster.accelerator.slug
    if watts is None and (objective == "energy" or (objective == "cost" and pool.tariff is not None)):
        raise EvidenceError(
            f"the power of {slug} is not known", missing=(f"power_w of {slug}: --hardware FILE.toml",)
        )
    price = rates.price.usd_per_accelerator_hour if rates.price and pool.is_rented else 0.0
    if objective == "cost" and not price and pool.tariff is None:
        raise UsageError(f"--objective cost needs a price of {slug}: give --price or --electricity-by-hour")
    return SharingProblem(
        jobs=tuple(
            AllocationJob(
                name=job.name,
                sizes=each.sizes,
                time_s=tuple(time.value for time in each.time_s),
                start_s=job.start_s,
                deadline_s=job.deadline_s,
                weight=job.weight,
            )
            for job, each in zip(jobs, times, strict=True)
        ),
        num_accelerators=pool.cluster.num_accelerators,
        objective=objective,
        usd_per_accelerator_s=price / HOUR_S,
        power_w=watts or 0.0,
        tariff=pool.tariff if objective == "cost" else None,
    )


def _least_late(problem: SharingProblem) -> tuple[Solved, bool, bool]:
    """The least late schedule, whether it keeps every deadline after all, and whether it is proved."""
    late = schedule(replace(problem, objective="lateness"))
    assert late is not None  # lateness forbids nothing
    kept = problem.is_feasible(late.placed)
    if not kept:
        return late, False, late.is_proved or late.bound > 0.0
    found = replace(late, value=problem.value(late.placed), bound=0.0, is_proved=False)
    return found, True, True


def _sooner(problem: SharingProblem, solved: Solved) -> Solved:
    """The same sizes, which cost the same whenever they run, with the least waiting."""
    by_job = {each.job: each for each in solved.placed}
    jobs = tuple(
        replace(job, sizes=(job.sizes[by_job[index].choice],), time_s=(job.time_s[by_job[index].choice],))
        for index, job in enumerate(problem.jobs)
    )
    found = schedule(replace(problem, jobs=jobs, objective="time"))
    if found is None:
        return solved
    return replace(
        solved, placed=tuple(replace(each, choice=by_job[each.job].choice) for each in found.placed)
    )


def _bounded(problem: SharingProblem, times: Sequence[JobTimes], bound: str) -> SharingProblem:
    """The problem with every time at one end of its interval."""
    return replace(
        problem,
        jobs=tuple(
            replace(job, time_s=tuple(getattr(time, bound) for time in each.time_s))
            for job, each in zip(problem.jobs, times, strict=True)
        ),
    )


def _ends(
    problem: SharingProblem, times: Sequence[JobTimes], placed: Sequence[Placed], bound: str
) -> dict[int, float]:
    """When each job ends if all take as long as one end of their intervals, in the same order."""
    other = _bounded(problem, times, bound)
    return {each.job: other.span(each)[1] for each in replayed(other, placed)}


def _value(problem: SharingProblem, times: Sequence[JobTimes], placed: Sequence[Placed]) -> Interval:
    """The objective, with both ends when all jobs are as fast or as slow as theirs."""
    low, high = (
        other.value(replayed(other, placed))
        for other in (_bounded(problem, times, bound) for bound in ("low", "high"))
    )
    value = problem.value(placed)
    return Interval(value=value, low=min(low, value), high=max(high, value), level=LEVEL)


def _share(
    job: JobRequest, times: JobTimes, placed: Placed, *, pool: Pool, ends: Mapping[str, Mapping[int, float]]
) -> JobShare:
    candidate, time = times.candidates[placed.choice], times.time_s[placed.choice]
    end_s = placed.start_s + time.value
    electricity = None
    if pool.tariff is not None and pool.rates.accelerator_power_w is not None:
        watts = candidate.num_accelerators * pool.rates.accelerator_power_w * pool.rates.system_power.factor
        electricity = watts * pool.tariff.usd_per_w(placed.start_s, end_s)
    low_s, high_s = ends["low"][placed.job], ends["high"][placed.job]
    return JobShare(
        job=job,
        times=times,
        candidate=candidate,
        start_s=placed.start_s,
        end_s=Interval(value=end_s, low=min(low_s, end_s), high=max(high_s, end_s), level=LEVEL),
        hourly_electricity_usd=electricity,
        late_s=end_s - job.deadline_s if is_after(end_s, job.deadline_s) else 0.0,
        is_at_risk=is_after(high_s, job.deadline_s),
    )


def _simpler_schedules(problem: SharingProblem) -> tuple[SimplerSchedule, ...]:
    """What simpler ways would give."""
    best_split = split(problem)
    equal = _equal_shares(problem)
    return (
        SimplerSchedule(
            words="best split, all at once", value=None if best_split is None else best_split.value
        ),
        SimplerSchedule(words="equal shares, all at once", value=equal),
        SimplerSchedule(words="one after another", value=in_turn(problem)),
    )


def _equal_shares(problem: SharingProblem) -> float | None:
    """Every job on as many as an equal share has room for, from its start on."""
    share = problem.num_accelerators // len(problem.jobs)
    placed = []
    for index, job in enumerate(problem.jobs):
        fitting = [choice for choice, size in enumerate(job.sizes) if size <= share]
        if not fitting:
            return None
        fastest = min(fitting, key=job.time_s.__getitem__)
        placed.append(Placed(job=index, choice=fastest, start_s=job.start_s))
    return problem.value(placed) if problem.is_feasible(placed) else None


def _notes(problem: SharingProblem, *, is_feasible: bool) -> tuple[str, ...]:
    hurried = any(math.isfinite(job.deadline_s) for job in problem.jobs)
    if problem.objective in {"cost", "energy"} and not hurried and is_feasible:
        return (
            f"Without deadlines the least {problem.objective} is nearly always at the fewest accelerators.",
        )
    return ()
