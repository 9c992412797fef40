"""How wrong such answers were: of every kind of evidence in the answer, of steps, of advice."""

from collections.abc import Iterator

from equipoise.advice.answer.advice import ErrorRecord, Standing
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.joined_record import joined_record
from equipoise.advice.answer.like_chips_record import like_chip_record
from equipoise.advice.answer.witnesses import FARTHEST
from equipoise.advice.forecast.advice_record import JOINED, PUBLISHED, shipped_advice
from equipoise.advice.forecast.answer import Record
from equipoise.advice.ledger.running import running
from equipoise.units import format_count, format_percent


def records(request: Request, standing: Standing) -> tuple[ErrorRecord, ...]:
    """The records that bear on the recommended choice, or on the nearest where there is none."""
    return (
        *_joint(standing),
        *_carried(standing),
        *_published(standing),
        *_plans(standing),
        *_steps(standing),
        *_numbers(request, standing),
        *_own(standing),
    )


def _joint(standing: Standing) -> Iterator[ErrorRecord]:
    """Of joint times, where the recommended one is joined."""
    if not _is_joined(standing):
        return
    found = joined_record()
    yield ErrorRecord(
        kind="joint",
        of="the largest size of a group, by published results and the model together",
        num_held_out=found.num_held_out,
        median_abs_error=found.median,
        p90_abs_error=found.p90,
        coverage=found.coverage,
        words=(
            f"Joint times: {found.num_held_out} largest sizes held out: off by {_share(found.median)} "
            f"(median), 90 % by at most {_share(found.p90)}; the range held {_share(found.coverage)}. "
            f"Published results alone: {_share(found.published_median)} and {_share(found.published_p90)}; "
            f"the model alone {_share(found.modelled_median)} (median)."
        ),
    )


def _carried(standing: Standing) -> Iterator[ErrorRecord]:
    """Of results carried over from another chip."""
    if standing.like is None:
        return
    found = like_chip_record(standing.like.nearness)
    yield ErrorRecord(
        kind="carried",
        of=found.of,
        num_held_out=found.num_held_out,
        median_abs_error=found.median,
        p90_abs_error=found.p90,
        coverage=found.coverage,
        words=(
            f"Published results of {standing.like.chip.title} carried over: {found.num_held_out} {found.of}, "
            f"were off by {_share(found.median)} (median), 90 % by at most {_share(found.p90)}; the "
            f"range held {_share(found.coverage)}. The model alone: {_share(found.modelled_median)} and "
            f"{_share(found.modelled_p90)}."
        ),
    )


def _numbers(request: Request, standing: Standing) -> Iterator[ErrorRecord]:
    """Of numbers of accelerators advised, on groups whose larger sizes were held out."""
    forecast, best = standing.forecast, standing.recommended
    if forecast is None or best is None or request.objective not in {"balance", "cost"}:
        return
    limit = max(each.num_accelerators for each in standing.choices)
    jump = min(FARTHEST, max(1.0, limit / forecast.ground.domain.largest))
    joins = request.objective == "balance" and _is_joined(standing)
    shipped = shipped_advice(JOINED if joins else PUBLISHED)
    found = shipped.record("answer" if request.objective == "balance" else "cost", jump=jump)
    if found is None:
        return
    who = "results and the model together advise" if joins else "results alone advise"
    yield ErrorRecord(
        kind="number",
        of=found.of,
        num_held_out=found.num_compared,
        median_abs_error=found.median_regret,
        p90_abs_error=found.p90_regret,
        coverage=found.coverage,
        words=(
            f"The number that published {who}: {_share(found.within_doubling)} of {found.num_compared} lay "
            f"within one doubling of the one found with all data ({found.of}); taking it cost "
            f"{_share(found.median_regret)} of the objective (median), 90 % at most "
            f"{_share(found.p90_regret)}."
        ),
    )


def _is_joined(standing: Standing) -> bool:
    """Whether published results of the machine and the model are weighed together in the choice."""
    best = standing.recommended
    told = set() if best is None else {each.kind for each in best.evidence if each.weight > 0.0}
    return standing.forecast is not None and {"published", "modelled"} <= told


def _own(standing: Standing) -> Iterator[ErrorRecord]:
    """Of the user's own ledger."""
    found = running(accelerator=standing.accelerator) or running()
    if found is not None:
        yield of_record("ledger", "Your own ledger", found.record)


def _share(value: float) -> str:
    return format_percent(round(value, 3))


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
