"""What `equipoise record` shows: predictions, what was measured of them, and how wrong they were."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from equipoise.cli.output import counted, paragraph, table_text
from equipoise.decide.ledger import Ledger, running_of
from equipoise.decide.ledger_entry import Entry, Quantity, RecordedPrediction
from equipoise.units import format_count, format_duration, format_percent, format_si, significant

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What to show of a ledger. num_added: measurements that this call added; None where it was not to."""

    ledger: Ledger
    entries: tuple[Entry, ...]
    num_added: int | None


def fields(shown: Shown) -> dict[str, Any]:
    """The fields of the document."""
    running = running_of(shown.ledger.path, shown.entries)
    whole = {
        "ledger": str(shown.ledger.path),
        "predictions": [_prediction(each) for each in shown.entries],
        "running": None
        if running is None
        else {
            "num_predictions": running.num_predictions,
            "num_measured": running.num_measured,
            **asdict(running.record),
            "bias": running.bias,
            "level": running.level,
        },
        "num_added": shown.num_added,
        "num_damaged_lines": shown.ledger.num_damaged,
    }
    return {name: significant(value) for name, value in whole.items()}


def _prediction(each: Entry) -> dict[str, Any]:
    return {
        "id": each.id,
        "made": each.made,
        **asdict(each.prediction),
        "measured": each.outcome,
        "num_measured": len(each.measured),
        "error": each.error,
        "held": each.is_covered,
        "sources": [one.source for one in each.measured],
    }


def text(shown: Shown) -> str:
    """The same for people."""
    return "".join(part for part in (_added(shown), _table(shown), *map(paragraph, _running(shown))) if part)


def _added(shown: Shown) -> str:
    if shown.num_added is None:
        return ""
    if not shown.num_added:
        return paragraph(
            "Nothing new was measured of any prediction: workload, accelerator and number must agree."
        )
    return f"{counted(shown.num_added, 'measurement', 'measurements')} added.\n"


def _table(shown: Shown) -> str:
    if not shown.entries:
        return paragraph(
            f"{shown.ledger.path} holds no such prediction. `equipoise predict`, `plan` and `advise` write "
            "theirs there when given --record."
        )
    rows = [
        (
            each.id,
            format_count(each.prediction.num_accelerators),
            _amount(each.prediction.quantity, each.prediction.value),
            _range(each.prediction),
            "-" if each.outcome is None else _amount(each.prediction.quantity, each.outcome),
            "-" if each.error is None else _signed(each.error),
            f"{each.prediction.verb} {each.prediction.workload or 'own'}",
        )
        for each in shown.entries[-_MOST_SHOWN:]
    ]
    head = ("id", "N", "predicted", "range", "measured", "off", "what")
    earlier = len(shown.entries) - len(rows)
    more = f"... and {counted(earlier, 'earlier one', 'earlier ones')}: --json lists all\n" if earlier else ""
    return table_text(head, rows, align="<>>>>><") + more


def _signed(error: float) -> str:
    return f"{'+' if error >= 0 else '-'}{format_percent(abs(round(error, 3)))}"


def _range(about: RecordedPrediction) -> str:
    return f"{_amount(about.quantity, about.low)} to {_amount(about.quantity, about.high)}"


def _amount(quantity: Quantity, value: float) -> str:
    return f"{format_si(value)}/s" if quantity == "samples_per_s" else format_duration(value)


def _running(shown: Shown) -> Iterator[str]:
    """The running error in words."""
    running = running_of(shown.ledger.path, shown.entries)
    if running is not None:
        record = running.record
        median = format_percent(round(record.median_abs_error, 3))
        most = ""
        if record.p90_abs_error is not None:
            most = f", 90 % of them by at most {format_percent(round(record.p90_abs_error, 3))}"
        side = "longer" if running.bias >= 1.0 else "shorter"
        yield (
            f"Measured {running.num_measured} of {running.num_predictions}: off by {median} (median){most}; "
            f"predicted times were {format_percent(round(abs(running.bias - 1.0), 3))} {side} (median); the "
            f"{format_percent(running.level)} interval covered "
            f"{format_percent(round(record.coverage, 3))} of them."
        )
    elif shown.entries:
        yield (
            "Nothing was measured of them yet: `equipoise record add MEASURED --for ID`, or "
            "`equipoise record --runs DIR`."
        )
    if shown.ledger.num_damaged:
        lines = counted(shown.ledger.num_damaged, "line", "lines")
        yield f"{lines} of {shown.ledger.path} cannot be read and count for nothing."
