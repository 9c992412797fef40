"""How wrong such answers were: of every kind of evidence in the answer, of steps, of advice."""

from collections.abc import Iterator

from equipoise.advice.answer.advice import ErrorRecord, Standing
from equipoise.advice.forecast.answer import Record
from equipoise.units import format_count, format_percent


def records(standing: Standing) -> tuple[ErrorRecord, ...]:
    """The records that bear on the recommended choice, or on the nearest where there is none."""
    return (*_published(standing), *_plans(standing), *_steps(standing))


def _published(standing: Standing) -> Iterator[ErrorRecord]:
    """Of the pooled law at such a size."""
    if standing.forecast is None:
        return
    best = standing.recommended
    told = [each for each in standing.forecast.ground.foretold if each.record is not None]
    if not told:
        return
    wanted = told[0].num_accelerators if best is None else best.num_accelerators
    nearest = min(told, key=lambda each: abs(each.num_accelerators - wanted))
    assert nearest.record is not None
    yield of_record("published", "Times from published results", nearest.record)


def of_record(kind: str, subject: str, record: Record) -> ErrorRecord:
    """A record of the forecasts as one of the advice."""
    most = "" if record.p90_abs_error is None else f", 90 % by at most {format_percent(record.p90_abs_error)}"
    return ErrorRecord(
        kind=kind,
        of=record.of,
        num_held_out=record.num_held_out,
        median_abs_error=record.median_abs_error,
        p90_abs_error=record.p90_abs_error,
        coverage=record.coverage,
        words=(
            f"{subject}: {format_count(record.num_held_out)} held out, {record.of}: off by "
            f"{format_percent(record.median_abs_error)} (median){most}; the range held "
            f"{format_percent(record.coverage)}."
        ),
    )


def _plans(standing: Standing) -> Iterator[ErrorRecord]:
    """Of plans of published trainings."""
    if standing.plan is None:
        return
    record = standing.plan.record
    median, most = (format_percent(round(each, 2)) for each in (record.median, record.p90))
    yield ErrorRecord(
        kind="modelled",
        of="published trainings, to which nothing but the samples was fitted",
        num_held_out=record.num_trainings,
        median_abs_error=record.median,
        p90_abs_error=record.p90,
        coverage=None,
        words=(
            f"Times by the model: {record.num_trainings} published trainings of {len(record.workloads)} "
            f"workloads: off by {median} (median), 90 % by at most {most}."
        ),
    )


def _steps(standing: Standing) -> Iterator[ErrorRecord]:
    """Of steps by the calibration in use."""
    if standing.plan is None:
        return
    basis = standing.plan.basis
    if basis.median_abs_error is None:
        words = f"Steps by the model: never held against measured ones ({basis.words})."
    else:
        words = (
            f"Steps by the model ({basis.name}): {basis.num_held_out} held out, off by "
            f"{format_percent(basis.median_abs_error)} (median)."
        )
    yield ErrorRecord(
        kind="steps",
        of=basis.words,
        num_held_out=basis.num_held_out,
        median_abs_error=basis.median_abs_error,
        p90_abs_error=basis.p90_abs_error,
        coverage=basis.coverage,
        words=words,
    )
