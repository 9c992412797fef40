"""How long each job takes on each size: measured by its user, published, or planned."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl

from equipoise.advice.allocation.jobs import AskedJob
from equipoise.advice.forecast.answer import LEVEL, Forecast, Inquiry, Terms
from equipoise.advice.forecast.forecast import forecast, forecasts
from equipoise.advice.forecast.published import WORK
from equipoise.advice.ledger.prediction import PredictionKind
from equipoise.advice.plans.plan import plan
from equipoise.advice.plans.planned import Question
from equipoise.errors import DataError, EvidenceError, FitError, UsageError
from equipoise.runs.readers.measurements import Measurements, read_measurements
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import knob
from equipoise.spec.workload import workload_slug
from equipoise.stats import Interval, log_t_interval
from equipoise.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The times of one job. sizes: ascending, none beyond the pool; time: of each.

    kind, words: what they rest on. strategies: by size, where they were planned. A time that was stated once
    has its value for both ends of its interval.
    """

    sizes: tuple[int, ...]
    time: tuple[Interval, ...]
    kind: PredictionKind
    words: str
    strategies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def times(
    jobs: Sequence[AskedJob], nodes: Cluster, *, pool: str, scores: pl.DataFrame | None, terms: Terms
) -> tuple[Timed, ...]:
    """The times of each job, in order, on the sizes it may have.

    nodes: the pool, pool: its name. scores: the table `scores`. terms: of the answers that tell the times.
    Raises EvidenceError with what is missing where a job's times are not known, UsageError where it fits on
    no size, DataError and SpecError for what the file got wrong.
    """
    published = _published(jobs, nodes, scores, terms)
    return tuple(_timed(each, nodes, published.get(each.name), scores, terms, pool=pool) for each in jobs)


def usual_sizes(nodes: Cluster) -> tuple[int, ...]:
    """Powers of two, whole nodes times powers of two, and the whole pool."""
    most = nodes.num_accelerators
    steps = range(math.ceil(math.log2(most)) + 1)
    sizes = {2**step for step in steps} | {nodes.node_size * 2**step for step in steps} | {most}
    return tuple(sorted(size for size in sizes if size <= most))


def _wanted(job: AskedJob, nodes: Cluster) -> tuple[int, ...]:
    """The sizes that a job may have, of those that the pool has room for."""
    sizes = tuple(size for size in job.sizes or usual_sizes(nodes) if size <= nodes.num_accelerators)
    if not sizes:
        raise UsageError(
            f"{job.where}: takes {min(job.sizes)} accelerators or more; the pool has {nodes.num_accelerators}"
        )
    return sizes


def _published(
    jobs: Sequence[AskedJob], nodes: Cluster, scores: pl.DataFrame | None, terms: Terms
) -> dict[str, Forecast | EvidenceError]:
    """What published results say of the jobs that they may speak of, by name; all at once."""
    asking = [each for each in jobs if _may_be_published(each)] if scores is not None else []
    inquiries = [
        Inquiry(
            workload=each.workload,
            accelerator=nodes.accelerator.slug,
            sizes=_wanted(each, nodes),
            global_batch_samples=each.global_batch_samples,
        )
        for each in asking
    ]
    if scores is None or not inquiries:
        return {}
    known = set(scores["workload"].drop_nulls())
    told = [(job, inquiry) for job, inquiry in zip(asking, inquiries, strict=True) if _is_known(job, known)]
    found = forecasts(scores, [inquiry for _, inquiry in told], terms=terms)
    return {job.name: each for (job, _), each in zip(told, found, strict=True)}


def _may_be_published(job: AskedJob) -> bool:
    """Whether the job is what MLPerf times: a training to the target, in no precision of the user's."""
    stated = any(each is not None for each in (job.samples, job.tokens, job.precision, job.file))
    is_named = job.workload is not None and ":" not in job.workload
    return is_named and not stated and not job.times and job.source != "plan"


def _is_known(job: AskedJob, known: set[str]) -> bool:
    return job.workload in known or workload_slug(str(job.workload)) in known


def _timed(
    job: AskedJob,
    nodes: Cluster,
    published: Forecast | EvidenceError | None,
    scores: pl.DataFrame | None,
    terms: Terms,
    *,
    pool: str,
) -> Timed:
    try:
        if job.times:
            return _stated(job, nodes)
        if job.file is not None:
            return _from_file(job, nodes, scores, terms)
        if isinstance(published, Forecast):
            told = _of_forecast(job, published)
            if told is not None:
                return told
        if job.source == "published":
            reason = (
                published if isinstance(published, EvidenceError) else "no result near the sizes it may have"
            )
            raise EvidenceError(f"no published result of it: {reason}", missing=_missing(job))  # noqa: TRY301 - said with its job below
        return _planned(job, nodes, scores, terms, pool=pool)
    except EvidenceError as err:
        missing = err.missing or _missing(job)
        raise EvidenceError(
            f"{job.where} ({job.name}): {err}", missing=tuple(f"{job.name}: {each}" for each in missing)
        ) from err


def _missing(job: AskedJob) -> tuple[str, ...]:
    return (f'times of {job.name} that you measured: times = {{8 = "3 h", 16 = "1.7 h"}}',)


def _stated(job: AskedJob, nodes: Cluster) -> Timed:
    """The times of the file itself; several repetitions give an interval."""
    allowed = job.sizes or tuple(job.times)
    sizes = tuple(size for size in job.times if size in allowed and size <= nodes.num_accelerators)
    if not sizes:
        raise UsageError(
            f"{job.where}: times of {', '.join(map(str, job.times))} accelerators; expected one that the "
            f"pool of {nodes.num_accelerators} has room for{' and sizes names' if job.sizes else ''}"
        )
    once = [size for size in sizes if len(job.times[size]) == 1]
    notes = ("Times stated once have no range.",) if once else ()
    return Timed(
        sizes=sizes,
        time=tuple(_interval(job.times[size]) for size in sizes),
        kind="measured",
        words="your own times",
        notes=notes,
    )


def _interval(seconds: Sequence[float]) -> Interval:
    if len(seconds) > 1:
        found = log_t_interval(seconds, level=LEVEL)
        value = min(max(found.value, found.low), found.high)
        return Interval(value=value, low=found.low, high=found.high, level=LEVEL)
    value = median(seconds)
    return Interval(value=value, low=value, high=value, level=LEVEL)


def _from_file(job: AskedJob, nodes: Cluster, scores: pl.DataFrame | None, terms: Terms) -> Timed:
    """The laws fitted to the measurements of a file, beside published results where there are some."""
    assert job.file is not None
    chip = nodes.accelerator.slug
    own = read_measurements(job.file, workload=job.workload, accelerator=chip)
    if not own.is_time_to_train:
        raise DataError(
            f"{job.where}: {own.where} has times of {own.work}; expected those of whole trainings: "
            "time_to_train_h"
        )
    measured = sorted({int(size) for size in own.num_accelerators})
    spanned = [each for each in usual_sizes(nodes) if measured[0] <= each <= measured[-1]]
    sizes = job.sizes or tuple(sorted({*measured, *spanned}))
    sizes = tuple(each for each in sizes if each <= nodes.num_accelerators)
    if not sizes:
        raise UsageError(
            f"{job.where}: {own.where} has times of {measured[0]} accelerators on; the pool has "
            f"{nodes.num_accelerators}"
        )
    inquiry = Inquiry(workload=job.workload, accelerator=job.workload and chip, sizes=sizes)
    assert scores is not None
    try:
        found = forecast(scores, inquiry, own=own, terms=terms)
    except FitError:
        return _as_measured(job, own, sizes)
    return _told(found, sizes, kind="measured", words=f"{own.where}, law {found.ground.law.name}")


def _as_measured(job: AskedJob, own: Measurements, sizes: Sequence[int]) -> Timed:
    """The measured times alone, where they are too few for a law."""
    by_size = {size: own.time_s[own.num_accelerators == size].tolist() for size in sizes}
    held = {size: seconds for size, seconds in by_size.items() if seconds}
    if not held:
        raise DataError(f"{job.where}: {own.where} has no time of any of the sizes named")
    return Timed(
        sizes=tuple(held),
        time=tuple(_interval(seconds) for seconds in held.values()),
        kind="measured",
        words=f"{own.where}, as measured",
        notes=(
            f"{job.name}: {own.where} has too few sizes for a law; those measured are taken as they are.",
        ),
    )


def _of_forecast(job: AskedJob, found: Forecast) -> Timed | None:
    """The published times at the sizes that results span, or at those the user names; None without any."""
    assert found.ground.work == WORK
    sizes = tuple(each.num_accelerators for each in found.ground.foretold if each.in_domain or job.sizes)
    if not sizes:
        return None
    return _told(found, sizes, kind="published", words=f"published results, {found.ground.round}")


def _told(found: Forecast, sizes: Sequence[int], *, kind: PredictionKind, words: str) -> Timed:
    by_size = {each.num_accelerators: each for each in found.ground.foretold}
    outside: dict[str, list[str]] = {}
    for size in sizes:
        why = by_size[size].outside
        if why is not None:
            outside.setdefault(why, []).append(format_count(size))
    name = found.workload or "a job"
    notes = tuple(f"{name} on {', '.join(at)}: {why}." for why, at in outside.items())
    return Timed(
        sizes=tuple(sizes),
        time=tuple(by_size[size].time for size in sizes),
        kind=kind,
        words=words,
        notes=notes,
    )


def _planned(job: AskedJob, nodes: Cluster, scores: pl.DataFrame | None, terms: Terms, *, pool: str) -> Timed:
    """The best strategy of each size by the performance model."""
    if job.workload is None:
        raise UsageError(f"{job.where}: nothing says how long it takes; give workload, times or file")
    sizes = _wanted(job, nodes)
    precisions = {} if job.precision is None else dict([_precision(job)])
    found = plan(
        Question(
            workload=job.workload,
            accelerator=pool,
            fewest=sizes[0],
            most=sizes[-1],
            sizes=sizes,
            objective="time",
            global_batch_samples=job.global_batch_samples,
            training_samples=job.samples,
            training_tokens=job.tokens,
            choices=precisions,
            num_best=1,
        ),
        terms=terms,
        scores=scores,
    )
    if not found.length.is_whole:
        raise EvidenceError("nobody tells how long the training is", missing=found.length.missing)
    options = [each for each in found.by_size if each.num_accelerators in sizes]
    if not options:
        hint = f"; it {found.remedy}" if found.remedy else ""
        raise UsageError(
            f"{job.where} ({job.name}): no strategy fits on up to {sizes[-1]} accelerators{hint}"
        )
    return Timed(
        sizes=tuple(each.num_accelerators for each in options),
        time=tuple(each.time for each in options),
        kind="modelled",
        words=f"the performance model, calibration {found.basis.name}",
        strategies=tuple(each.strategy.text() for each in options),
    )


def _precision(job: AskedJob) -> tuple[str, tuple[int | str | bool, ...]]:
    name, value = knob(f"precision={job.precision}", where=job.where)
    return name, (value,)
