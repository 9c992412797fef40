"""How long each job takes on each size: measured by its user, else as the candidates of its question."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from equipoise.decide.allocation.jobs import JobRequest
from equipoise.decide.allocation.problem import Pool
from equipoise.decide.answer import Candidate
from equipoise.decide.assess import nothing_fits
from equipoise.decide.candidates import timed_candidate
from equipoise.decide.decision import collect_candidates
from equipoise.decide.evidence import Estimate, EvidenceSource
from equipoise.decide.field import Sizes
from equipoise.decide.prediction import predict
from equipoise.decide.query import FIELDS, TrainingQuery, changed
from equipoise.errors import DataError, EvidenceError, FitError, InputError, UsageError
from equipoise.runs.readers.measurements import Measurements, read_measurements
from equipoise.spec.catalogue import Catalogue
from equipoise.stats import LEVEL, Interval, log_sd, log_t_interval
from equipoise.units import format_count

USER_TIMES: Final = "your measured times"


class JobTimes(Struct, frozen=True, kw_only=True):
    """What one job may take: a candidate of each size that it may have, ascending, none beyond the pool.

    A time that was stated once has its value for both ends of its interval.
    """

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of accelerators."""
        return tuple(each.num_accelerators for each in self.candidates)

    @property
    def time_s(self) -> tuple[Interval, ...]:
        """The time on each size."""
        return tuple(each.time_s for each in self.candidates if each.time_s is not None)


def job_times(
    jobs: Sequence[JobRequest], pool: Pool, *, scores: pl.DataFrame | None, catalogue: Catalogue
) -> tuple[JobTimes, ...]:
    """The times of each job, in order, on the sizes it may have.

    scores: the table `scores`; None where no published result may be used.
    Raises EvidenceError with what is missing where a job's times are not known, UsageError where it fits on
    no size or does not state how much it trains, DataError and SpecError for what the file got wrong.
    """
    with threadpool_limits(limits=1):  # as `decision.answer`, whose numbers these are
        return tuple(_times(each, pool, scores, catalogue) for each in jobs)


def usual_sizes(pool: Pool) -> tuple[int, ...]:
    """Powers of two, whole nodes times powers of two, and the whole pool."""
    most, node_size = pool.num_accelerators, pool.cluster.node_size
    steps = range(math.ceil(math.log2(most)) + 1)
    sizes = {2**step for step in steps} | {node_size * 2**step for step in steps} | {most}
    return tuple(sorted(size for size in sizes if size <= most))


def _times(job: JobRequest, pool: Pool, scores: pl.DataFrame | None, catalogue: Catalogue) -> JobTimes:
    try:
        if job.times:
            return _stated(job, pool)
        if job.file is not None:
            return _from_file(job, pool, scores, catalogue)
        return _estimated(job, pool, scores, catalogue)
    except EvidenceError as err:
        missing = err.missing or ('times that you measured: times = {8 = "3 h", 16 = "1.7 h"}',)
        raise EvidenceError(
            f"{job.where} ({job.name}): {err}", missing=tuple(f"{job.name}: {each}" for each in missing)
        ) from err
    except InputError as err:
        raise type(err)(f"{job.where} ({job.name}): {err}") from err


def question_of(job: JobRequest, pool: Pool) -> TrainingQuery:
    """The question that a job asks: that of `advise` for its training, on the pool."""
    return changed(
        pool.question,
        workload=job.workload or "",
        training_tokens=job.tokens,
        training_samples=job.samples,
        global_batch_samples=job.global_batch_samples,
        precision=() if job.precision is None else FIELDS["precision"].read(job.precision),
    )


def _estimated(job: JobRequest, pool: Pool, scores: pl.DataFrame | None, catalogue: Catalogue) -> JobTimes:
    """The candidates that `advise` has for the same question."""
    if job.workload is None:
        raise UsageError("no way to find its time; give workload, times or file")
    wanted = _within_pool(job.sizes, pool)
    query = question_of(job, pool)
    try:
        found = collect_candidates(query, catalogue, scores, also_sizes=wanted).systems[0]
    except UsageError as err:
        if query.is_to_target:
            raise UsageError(f"{err}; in a job: tokens = 1e12, or samples = 1e6") from err
        raise
    allowed = [each for each in found.allowed if not wanted or each.num_accelerators in wanted]
    if not allowed:
        hint = nothing_fits(found.assessment)
        raise UsageError(
            f"no strategy fits on up to {pool.num_accelerators} accelerators{f'; it {hint}' if hint else ''}"
        )
    known = tuple(each for each in allowed if each.time_s is not None)
    if not known:
        raise EvidenceError(f"no time can be estimated: {allowed[0].why_not}")
    return JobTimes(candidates=known, notes=tuple(f"{job.name}: {each}" for each in found.assessment.notes))


def _within_pool(sizes: Sequence[int], pool: Pool) -> tuple[int, ...]:
    """The sizes named that the pool has room for."""
    found = tuple(size for size in sizes if size <= pool.num_accelerators)
    if sizes and not found:
        raise UsageError(f"takes {min(sizes)} accelerators or more; the pool has {pool.num_accelerators}")
    return found


def _stated(job: JobRequest, pool: Pool) -> JobTimes:
    """The times of the file itself; several repetitions give an interval."""
    allowed = job.sizes or tuple(job.times)
    sizes = tuple(size for size in job.times if size in allowed and size <= pool.num_accelerators)
    if not sizes:
        raise UsageError(
            f"times of {', '.join(map(str, job.times))} accelerators; expected a size that fits "
            "into the pool of "
            f"{pool.num_accelerators} has room for{' and sizes names' if job.sizes else ''}"
        )
    once = [size for size in sizes if len(job.times[size]) == 1]
    return JobTimes(
        candidates=tuple(_measured(pool, size, job.times[size], job.where) for size in sizes),
        notes=("Times stated once have no interval.",) if once else (),
    )


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
    value = median(seconds)
    return Interval(value=value, low=value, high=value, level=LEVEL)


def _from_file(job: JobRequest, pool: Pool, scores: pl.DataFrame | None, catalogue: Catalogue) -> JobTimes:
    """What `predict` makes of the times of a file; those measured alone, where they are too few for a law."""
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
        return _as_measured(job, own, sizes, pool)
    outside: dict[str, list[str]] = {}
    for size, why in found.outside.items():
        outside.setdefault(why, []).append(format_count(size))
    return JobTimes(
        candidates=tuple(each for each in found.candidates if each.time_s is not None),
        notes=tuple(f"{job.name} on {', '.join(at)}: {why}." for why, at in outside.items()),
    )


def _as_measured(job: JobRequest, own: Measurements, sizes: Sequence[int], pool: Pool) -> JobTimes:
    """The measured times alone, where they are too few for a law."""
    by_size = {size: own.time_s[own.num_accelerators == size].tolist() for size in sizes}
    held = {size: seconds for size, seconds in by_size.items() if seconds}
    if not held:
        raise DataError(f"{own.where} has no time at any of the sizes in `sizes`")
    return JobTimes(
        candidates=tuple(_measured(pool, size, seconds, own.where) for size, seconds in held.items()),
        notes=(
            f"{job.name}: {own.where} has too few sizes to fit a scaling law; measured sizes alone are used.",
        ),
    )
