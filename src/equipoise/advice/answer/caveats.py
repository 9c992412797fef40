"""What stands beside the advice and changes how it is read."""

from collections.abc import Iterator, Sequence

from equipoise.advice.answer.advice import Choice, Standing
from equipoise.advice.answer.asked import Request
from equipoise.advice.risk import Risk
from equipoise.units import format_duration, format_percent, format_si

_TOLD_FROM = 0.02  # the share of the paid time that stops take, below which nobody decides otherwise


def caveats(
    request: Request, best: Standing, others: Sequence[Standing], risks: Sequence[Risk]
) -> tuple[str, ...]:
    """Sentences on stops that the time advised leaves out, and on machines whose order is not settled."""
    return (*_stops(request, risks), *_order(best, others))


def _stops(request: Request, risks: Sequence[Risk]) -> Iterator[str]:
    """That the time is one without stops, where those of the terms asked about take a part worth telling."""
    for each in risks:
        lost = sum(each.lost.values())
        if each.terms != request.terms.price_terms or lost < _TOLD_FROM:
            continue
        paid = "" if each.money is None else f" and {format_si(each.money.value)} USD"
        yield (
            f"The time advised is one without stops. On {each.terms.replace('_', ' ')} terms expect "
            f"{format_duration(each.elapsed.value)}{paid}: stops take {format_percent(round(lost, 2))} of "
            "the time paid for."
        )


def _order(best: Standing, others: Sequence[Standing]) -> Iterator[str]:
    """That two calibrations of the model cannot rank two machines whose ranges overlap."""
    if best.plan is None or best.recommended is None or _is_published(best.recommended):
        return
    for each in others:
        if each.plan is None or each.recommended is None or _is_published(each.recommended):
            continue
        ours, theirs = best.plan.basis.name, each.plan.basis.name
        mine, other = best.recommended.time, each.recommended.time
        if ours != theirs and mine.low <= other.high and other.low <= mine.high:
            yield (
                f"{best.title} and {each.title} are modelled by unlike calibrations ({ours}, {theirs}) and "
                "their ranges overlap: which is faster is not settled. Measure a step on each (--runs), or "
                "compare them by one calibration: `equipoise plan --profile NAME`."
            )


def _is_published(choice: Choice) -> bool:
    return any(each.kind == "published" and each.weight > 0.0 for each in choice.evidence)
