"""Allocates a pool of accelerators to several trainings: sizes and start times, from times by size."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
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
from equipoise.decide.answer import Candidate
from equipoise.decide.assessment import nothing_fits
from equipoise.decide.candidates import timed_candidate
from equipoise.decide.collect import collect_candidates
from equipoise.decide.evidence import Estimate
from equipoise.decide.prediction import predict
from equipoise.decide.question.field import Sizes
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.strategies.size_searches import ExtraSizes, expect_slices, in_slices
from equipoise.errors import DataError, EvidenceError, FitError, InputError, UsageError
from equipoise.intervals import LEVEL, Interval, exact, log_sd
from equipoise.notes import Note
from equipoise.runs.readers.measurements import Measurements, read_measurements
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import Scores
from equipoise.stats import by_key, log_t_interval, one_thread
from equipoise.units import HOUR_S, format_count

USER_TIMES: Final = "your measured times"


class JobTimes(Struct, frozen=True, kw_only=True):
    """Candidates of one job by allowed size, ascending, up to the size of the pool.

    A time stated once has an interval without width.
    """

    candidates: tuple[Candidate, ...]
    notes: tuple[Note, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of accelerators of the candidates."""
        return tuple(each.num_accelerators for each in self.candidates)

    @property
    def time_s(self) -> tuple[Interval, ...]:
        """The time on each size."""
        return tuple(each.time_s for each in self.candidates if each.time_s is not None)


def job_times(
    jobs: Sequence[JobRequest], pool: Pool, *, scores: Scores | None, catalogue: Catalogue
) -> tuple[JobTimes, ...]:
    """The times of each job, in order, on its allowed sizes.

    scores: published results; None if they may not be used.
    Raises EvidenceError with what is missing if a job's times are unknown, UsageError if it fits on no size
    or does not state its amount of training, DataError and SpecError for errors in the file.
    """
    with one_thread():  # as in `decision.answer`, so that numbers are equal
        return tuple(_times(each, pool, scores, catalogue) for each in jobs)


def usual_sizes(pool: Pool) -> tuple[int, ...]:
    """Powers of two, nodes times powers of two, the whole pool, and the whole nodes that these leave free.

    For TPUs only slices.
    """
    most, node_size = pool.num_accelerators, pool.cluster.node_size
    steps = range(math.ceil(math.log2(most)) + 1)
    sizes = {2**step for step in steps} | {node_size * 2**step for step in steps} | {most}
    left = {most - size for size in sizes if size < most and (most - size) % node_size == 0}
    return in_slices(sorted(size for size in sizes | left if size <= most), pool.cluster)


def _times(job: JobRequest, pool: Pool, scores: Scores | None, catalogue: Catalogue) -> JobTimes:
    place = job.where if job.where.endswith(f": {job.name}") else f"{job.where} ({job.name})"
    try:
        if job.times:
            return _stated(job, pool)
        if job.file is not None:
            return _from_file(job, pool, scores, catalogue)
        return _estimated(job, pool, scores, catalogue)
    except EvidenceError as err:
        missing = err.missing or ('times that you measured: times = {8 = "3 h", 16 = "1.7 h"}',)
        raise EvidenceError(
            f"{place}: {err}",
            missing=tuple(f"{job.name}: {each}" for each in missing),
        ) from err
    except InputError as err:
        raise err.within(place) from err


def question_of(job: JobRequest, pool: Pool) -> TrainingQuery:
    """The question of a job: as in `advise`, for its training on the pool."""
    return replace(pool.question, workload=job.workload or "", **job.training)


def _estimated(job: JobRequest, pool: Pool, scores: Scores | None, catalogue: Catalogue) -> JobTimes:
    """The candidates of `advise` for the same question."""
    if job.workload is None and "config" not in job.training:
        raise UsageError("nothing that its time follows from; give workload, times or file")
    wanted = _within_pool(job.sizes, pool)
    query = question_of(job, pool)
    tried = wanted or usual_sizes(pool)
    collected = collect_candidates(query, catalogue, scores, extra=ExtraSizes(sizes=tried))
    (found, *_) = collected.systems
    allowed = [each for each in found.allowed if not wanted or each.num_accelerators in wanted]
    if not allowed:
        hint = nothing_fits(collected.inputs, found.assessment)
        raise UsageError(
            f"no strategy fits on up to {pool.num_accelerators} accelerators{f'; it {hint}' if hint else ''}"
        )
    known = tuple(each for each in allowed if each.time_s is not None)
    if not known:
        raise EvidenceError(f"no time can be estimated: {allowed[0].why_not}")
    return JobTimes(candidates=known, notes=_prefixed(job, found.assessment.notes))


def _within_pool(sizes: Sequence[int], pool: Pool) -> tuple[int, ...]:
    """The stated sizes that fit in the pool."""
    found = tuple(size for size in sizes if size <= pool.num_accelerators)
    if sizes and not found:
        raise UsageError(f"needs {min(sizes)} accelerators or more; the pool has {pool.num_accelerators}")
    expect_slices(found, pool.cluster)
    return found


def _stated(job: JobRequest, pool: Pool) -> JobTimes:
    """The times stated in the file; several repetitions give an interval."""
    allowed = job.sizes or tuple(job.times)
    sizes = tuple(size for size in job.times if size in allowed and size <= pool.num_accelerators)
    if not sizes:
        raise UsageError(
            f"times on {', '.join(map(str, job.times))} accelerators; expected a size within the pool of "
            f"{pool.num_accelerators}{', listed in sizes' if job.sizes else ''}"
        )
    once = [size for size in sizes if len(job.times[size]) == 1]
    return JobTimes(
        candidates=tuple(_measured(pool, size, job.times[size], job.where) for size in sizes),
        notes=(Note("Times that are stated only once have no interval."),) if once else (),
    )


def _prefixed(job: JobRequest, notes: Iterable[Note]) -> tuple[Note, ...]:
    return tuple(replace(each, words=f"{job.name}: {each.words}") for each in notes)


def _measured(pool: Pool, size: int, seconds: Sequence[float], where: str) -> Candidate:
    time = _interval(seconds)
    source = EvidenceSource(kind="measured", ref=where, num_accelerators=size, time_s=time.value)
    return timed_candidate(
        pool.system,
        pool.rates,
        num_accelerators=size,
        estimate=Estimate(
            estimator="measured",
            name=USER_TIMES,
            time_s=time,
            log_sd=log_sd(time),
            why=f"{len(seconds)} measured",
            weight=1.0,
            sources=(source,),
        ),
        grade="measured",
    )


def _interval(seconds: Sequence[float]) -> Interval:
    if len(seconds) > 1:
        found = log_t_interval(seconds, level=LEVEL)
        value = min(max(found.value, found.low), found.high)
        return Interval(value=value, low=found.low, high=found.high, level=LEVEL)
    return exact(median(seconds))


def _from_file(job: JobRequest, pool: Pool, scores: Scores | None, catalogue: Catalogue) -> JobTimes:
    """Predictions of `predict` from a file's times; the measured times alone if too few for a law."""
    assert job.file is not None
    query = question_of(job, pool)
    own = read_measurements(
        job.file,
        workload=job.workload,
        accelerator=pool.cluster.accelerator.slug,
        precision=query.precision[0] if query.precision else None,
        global_batch_samples=query.global_batch_samples,
        catalogue=catalogue,
    )
    if not own.is_time_to_train:
        raise DataError(
            f"{own.where} has times of {own.work}; expected times of complete trainings in a "
            "column time_to_train_h"
        )
    left_out = _prefixed(job, own.notes)
    measured = sorted({int(size) for size in own.num_accelerators})
    spanned = [each for each in usual_sizes(pool) if measured[0] <= each <= measured[-1]]
    sizes = job.sizes or tuple(sorted({*measured, *spanned}))
    sizes = tuple(each for each in sizes if each <= pool.num_accelerators)
    if not sizes:
        raise UsageError(
            f"{own.where} has times from {measured[0]} accelerators up; the pool has {pool.num_accelerators}"
        )
    query = replace(
        query,
        systems=(pool.cluster.accelerator.slug,),
        times_from=job.file,
        sizes=Sizes(listed=sizes),
    )
    try:
        found = predict(query, scores=scores, catalogue=catalogue)
    except FitError:
        alone = _measured_only(job, own, sizes, pool)
        return replace(alone, notes=(*left_out, *alone.notes))
    known = tuple(each for each in found.candidates if each.time_s is not None)
    if not known:
        raise EvidenceError(f"no time can be estimated: {found.candidates[0].why_not}")
    outside = by_key((why, format_count(size)) for size, why in found.outside.items())
    return JobTimes(
        candidates=known,
        notes=(
            *left_out,
            *(Note(f"{job.name} on {', '.join(at)}: {why}.") for why, at in outside.items()),
        ),
    )


def _measured_only(job: JobRequest, own: Measurements, sizes: Sequence[int], pool: Pool) -> JobTimes:
    """The measured times alone, if they are too few for a law."""
    by_size = {size: own.time_s[own.num_accelerators == size].tolist() for size in sizes}
    held = {size: seconds for size, seconds in by_size.items() if seconds}
    if not held:
        raise DataError(f"{own.where} has no time at any of the sizes in `sizes`")
    return JobTimes(
        candidates=tuple(_measured(pool, size, seconds, own.where) for size, seconds in held.items()),
        notes=(
            Note(
                f"{job.name}: {own.where} has too few sizes to fit a scaling law; "
                "only the measured sizes are used."
            ),
        ),
    )


class JobShare(Struct, frozen=True, kw_only=True):
    """Allocation of one job: the candidate of its size, and its start.

    times: on all its sizes. end_s: end of the job; its interval is from all jobs at the low or at the high
    end of their times. usd: rent, or electricity of owned machines; with hourly prices, electricity at these
    and a rent stated in the question. hourly_electricity_usd: electricity at hourly prices; None without
    them. late_s: by how much it misses its deadline. is_at_risk: whether it would at the high ends.
    """

    job: JobRequest
    times: JobTimes
    candidate: Candidate
    start_s: float
    end_s: Interval
    usd: float | None
    hourly_electricity_usd: float | None
    late_s: float
    is_at_risk: bool

    @property
    def time_s(self) -> Interval:
        """Time of the job on its size."""
        return self.candidate.known_time_s


class SimplerSchedule(Struct, frozen=True, kw_only=True):
    """A simpler way to share the pool. value: of the objective; None if it is not feasible."""

    words: str
    value: float | None


class Allocation(Struct, frozen=True, kw_only=True):
    """The allocation. value: of the objective, in its unit. solved: the schedule, its method and bound.

    is_feasible: whether all deadlines are kept. is_certain: if not, whether it is proved that they cannot be.
    is_least_late: whether deadlines that are feasible alone conflict, so that the largest lateness was
    minimised.
    """

    objective: ObjectiveName
    pool: Pool
    shares: tuple[JobShare, ...]
    value: Interval
    solved: Solved
    is_feasible: bool
    is_certain: bool
    is_least_late: bool
    simpler_schedules: tuple[SimplerSchedule, ...]
    makespan_s: float
    total_s: float
    notes: tuple[Note, ...]

    @property
    def is_side_by_side(self) -> bool:
        """Whether every job starts as early as allowed."""
        return not any(is_after(each.start_s, each.job.start_s) for each in self.shares)


def allocate(
    jobs: Sequence[JobRequest], times: Sequence[JobTimes], pool: Pool, *, objective: ObjectiveName
) -> Allocation:
    """The schedule that minimises the objective and keeps the feasible deadlines.

    A deadline that its job misses even alone is ignored. If the others cannot be kept together, the largest
    lateness is minimised first. times: of each job. Raises UsageError or EvidenceError if the objective needs
    an unknown price or power.
    """
    stated = _problem(jobs, times, pool, objective)
    feasible = problem = _with_feasible_deadlines(stated)
    found = schedule(problem)
    problem, solved, is_certain = (
        (problem, found, True) if found is not None else _least_late_schedule(problem)
    )
    if objective in {"cost", "energy"} and problem.is_regular:
        solved = _with_least_waiting(problem, solved)
    is_feasible = stated.is_feasible(solved.placed)
    by_job = {each.job: each for each in solved.placed}
    placed = tuple(by_job[index] for index in range(len(jobs)))
    # The objective and the ends of jobs with all times at one end of their intervals.
    value, ends, values = problem.value(placed), {}, {}
    for bound in ("low", "high"):
        other = _at_interval_end(problem, times, bound)
        again = replayed(other, placed)
        ends[bound] = {each.job: other.span(each)[1] for each in again}
        values[bound] = other.value(again)
    shares = tuple(
        _share(jobs[index], times[index], placed[index], pool=pool, ends=ends) for index in range(len(jobs))
    )
    return Allocation(
        objective=objective,
        pool=pool,
        shares=shares,
        value=Interval(
            value=value, low=min(values["low"], value), high=max(values["high"], value), level=LEVEL
        ),
        solved=solved,
        is_feasible=is_feasible,
        is_certain=is_certain or feasible != stated,
        is_least_late=problem != feasible,
        simpler_schedules=_simpler_schedules(problem),
        makespan_s=max(each.end_s.value for each in shares),
        total_s=math.fsum(each.job.weight * (each.end_s.value - each.job.start_s) for each in shares),
        notes=tuple(dict.fromkeys((*_notes(problem), *(note for each in times for note in each.notes)))),
    )


def _problem(
    jobs: Sequence[JobRequest], times: Sequence[JobTimes], pool: Pool, objective: ObjectiveName
) -> SharingProblem:
    rates, watts = pool.rates, pool.rates.power_w
    slug = pool.cluster.accelerator.slug
    is_owned = rates.price is not None and rates.price.is_owned
    counts_power = pool.tariff is not None or is_owned
    if watts is None and (objective == "energy" or (objective == "cost" and counts_power)):
        raise EvidenceError(
            f"the power of {slug} is not known", missing=(f"power_w of {slug}: --hardware FILE.toml",)
        )
    usd_per_s = rates.price.usd_per_accelerator_hour / HOUR_S if rates.price and pool.is_rented else 0.0
    if is_owned and pool.tariff is None and watts is not None and rates.electricity is not None:
        usd_per_s = watts * rates.electricity.usd_per_j
    if objective == "cost" and not usd_per_s and pool.tariff is None:
        raise UsageError(
            f"--objective cost needs a price of {slug}",
            give=[{"price": f"{slug}=USD"}],
            remedy=", or --electricity-by-hour FILE.csv",
        )
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
        usd_per_accelerator_s=usd_per_s,
        power_w=watts or 0.0,
        tariff=pool.tariff if objective == "cost" else None,
    )


def _with_feasible_deadlines(problem: SharingProblem) -> SharingProblem:
    """The problem without deadlines that jobs miss even if they have the pool to themselves."""
    return replace(
        problem,
        jobs=tuple(
            replace(job, deadline_s=math.inf)
            if is_after(job.start_s + min(job.time_s), job.deadline_s)
            else job
            for job in problem.jobs
        ),
    )


def _least_late_schedule(problem: SharingProblem) -> tuple[SharingProblem, Solved, bool]:
    """The best schedule with the smallest largest lateness, if none was found that keeps all deadlines.

    Returns the problem with missed deadlines extended, the schedule, and whether it is proved that no
    schedule keeps all deadlines.
    """
    late = schedule(replace(problem, objective="lateness"))
    assert late is not None  # with lateness as objective, deadlines are not constraints
    if problem.is_feasible(late.placed):
        found = schedule(problem, begin_with=late.placed)
        assert found is not None  # the initial schedule keeps the deadlines
        return problem, found, True
    ends = {each.job: problem.span(each)[1] for each in late.placed}
    put_off = replace(
        problem,
        jobs=tuple(
            replace(job, deadline_s=job.deadline_s + late.value)
            if is_after(ends[index], job.deadline_s)
            else job
            for index, job in enumerate(problem.jobs)
        ),
    )
    found = schedule(put_off, begin_with=late.placed)
    assert found is not None  # the initial schedule keeps these deadlines
    return put_off, found, late.is_proved or late.bound > 0.0


def _with_least_waiting(problem: SharingProblem, solved: Solved) -> Solved:
    """A schedule with the same sizes, whose cost does not depend on start times, and the least waiting."""
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


def _at_interval_end(problem: SharingProblem, times: Sequence[JobTimes], bound: str) -> SharingProblem:
    """The problem with all times at one end of their intervals."""
    return replace(
        problem,
        jobs=tuple(
            replace(job, time_s=tuple(getattr(time, bound) for time in each.time_s))
            for job, each in zip(problem.jobs, times, strict=True)
        ),
    )


def _share(
    job: JobRequest, times: JobTimes, placed: Placed, *, pool: Pool, ends: Mapping[str, Mapping[int, float]]
) -> JobShare:
    candidate, time = times.candidates[placed.choice], times.time_s[placed.choice]
    end_s = placed.start_s + time.value
    electricity = None
    if pool.tariff is not None and pool.rates.power_w is not None:
        watts = candidate.num_accelerators * pool.rates.power_w
        electricity = watts * pool.tariff.usd_per_w(placed.start_s, end_s)
    low_s, high_s = ends["low"][placed.job], ends["high"][placed.job]
    usd = None if candidate.usd is None else candidate.usd.value
    if electricity is not None:
        usd = electricity + (usd if pool.is_rented and usd is not None else 0.0)
    return JobShare(
        job=job,
        times=times,
        candidate=candidate,
        start_s=placed.start_s,
        end_s=Interval(value=end_s, low=min(low_s, end_s), high=max(high_s, end_s), level=LEVEL),
        usd=usd,
        hourly_electricity_usd=electricity,
        late_s=end_s - job.deadline_s if is_after(end_s, job.deadline_s) else 0.0,
        is_at_risk=is_after(high_s, job.deadline_s),
    )


def _simpler_schedules(problem: SharingProblem) -> tuple[SimplerSchedule, ...]:
    best_split = split(problem)
    return (
        SimplerSchedule(
            words="best split, all at once", value=None if best_split is None else problem.value(best_split)
        ),
        SimplerSchedule(words="equal shares, all at once", value=_equal_shares(problem)),
        SimplerSchedule(words="one after another, the shortest first", value=in_turn(problem)),
    )


def _equal_shares(problem: SharingProblem) -> float | None:
    """The objective with every job on its fastest size within an equal share, started as early as allowed."""
    share = problem.num_accelerators // len(problem.jobs)
    placed = []
    for index, job in enumerate(problem.jobs):
        fitting = [choice for choice, size in enumerate(job.sizes) if size <= share]
        if not fitting:
            return None
        fastest = min(fitting, key=job.time_s.__getitem__)
        placed.append(Placed(job=index, choice=fastest, start_s=job.start_s))
    return problem.value(placed) if problem.is_feasible(placed) else None


def _notes(problem: SharingProblem) -> tuple[Note, ...]:
    hurried = any(math.isfinite(job.deadline_s) for job in problem.jobs)
    if problem.objective in {"cost", "energy"} and not hurried:
        words = f"the least {problem.objective} is nearly always at the fewest accelerators"
        return (Note(f"Without deadlines {words}."),)
    return ()
