"""How wrong one's own predictions were, so far as something was measured of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from equipoise.advice.forecast.answer import Record
from equipoise.advice.ledger.kept import ledger_path, read_ledger
from equipoise.advice.ledger.prediction import Entry

_P90 = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How wrong one's own predictions were.

    record: their errors; bias: median of predicted over measured time. num_predictions: in the ledger;
    num_measured: those of which something was measured. level: of the intervals.
    """

    path: Path
    num_predictions: int
    num_measured: int
    record: Record
    bias: float
    level: float


def running(
    path: Path | None = None, *, workload: str | None = None, accelerator: str | None = None
) -> Running | None:
    """How wrong the ledger's predictions were; None where nothing was measured of any.

    path: `ledger_path()` unless given. workload, accelerator: of these alone.
    """
    ledger = read_ledger(path or ledger_path())
    chosen = [
        each
        for each in ledger.entries
        if workload in {None, each.prediction.workload} and accelerator in {None, each.prediction.accelerator}
    ]
    return running_of(ledger.path, chosen)


def running_of(path: Path, entries: Sequence[Entry]) -> Running | None:
    """The running error of entries; None where nothing was measured of any.

    Assumes each measured prediction counts once, however many repetitions it has.
    """
    errors = [each.error for each in entries if each.error is not None]
    if not errors:
        return None
    told = [each for each in entries if each.error is not None]
    sizes = sorted(abs(error) for error in errors)
    names = sorted({each.prediction.workload or "your own model" for each in told})
    return Running(
        path=path,
        num_predictions=len(entries),
        num_measured=len(errors),
        record=Record(
            of=f"your own ledger, {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}",  # noqa: PLR2004 - as many as a line holds
            num_held_out=len(errors),
            median_abs_error=median(sizes),
            p90_abs_error=_quantile(sizes, _P90) if len(errors) > 1 else None,
            coverage=sum(bool(each.is_held) for each in told) / len(told),
        ),
        bias=median(1.0 + error for error in errors),
        level=min(each.prediction.level for each in told),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, (n_values,), on the straight line between neighbours.

    Assumes at least one value. Source: Hyndman and Fan 1996, definition 7.
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
