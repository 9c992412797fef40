"""The page of `record`: predictions, their measured outcomes, and their errors."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from equipoise.decide.ledger import LedgerEntry, LedgerReport
from equipoise.intervals import Interval
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    Code,
    names,
    note,
    number,
    numbers,
    prose,
    short_page,
    table_of,
    words,
)
from equipoise.report.format import count, digits, duration, duration_range, ends, printable
from equipoise.units import format_percent, listed, plural, tenths

_MOST_NAMED: Final = 3


def _headline(found: LedgerReport) -> str:
    if found.num_added:
        return f"{plural(found.num_added, 'measurement')} added."
    if found.differing:
        return f"No prediction matches a measurement: the nearest differs in {'; '.join(found.differing)}."
    if found.num_added is not None and not found.entries:
        return "No prediction matches a measurement: the ledger has none."
    if found.num_added is not None:
        return "Nothing new: matching runs are already counted, or predictions were made from them."
    return f"{plural(len(found.entries), 'prediction')}."


def _blocks(found: LedgerReport, num_rows: int) -> Iterator[Block]:
    earlier = len(found.entries) - num_rows
    shown = found.entries[-num_rows:]
    is_measured = any(each.outcome is not None for each in shown)
    yield table_of("ledger", _COLUMNS if is_measured else (_ID, _WHAT, _N, *_TIMES), shown)
    several = [f"{each.id} of {len(each.measured)}" for each in shown if len(each.measured) > 1]
    yield note(f"Median of several measurements: {listed(several, _MOST_NAMED)}." if several else "")
    yield note(f"And {plural(earlier, 'earlier one')}: --json lists all." if earlier > 0 else "")
    if found.ledger.num_damaged:
        lines = plural(found.ledger.num_damaged, "line")
        yield prose(f"Cannot be read, and not used: {lines} of the ledger.")
    yield _closing(found)


def _predicted(each: LedgerEntry) -> Cell:
    about = each.prediction
    amount = Interval(value=about.value, low=about.low, high=about.high, level=about.level)
    between = ends(amount, _rate) if _form(each) is _rate else duration_range(amount)
    return number(about.value, lambda value: f"{_form(each)(value)} ({between})")


def _form(each: LedgerEntry) -> Callable[[float], str]:
    return _rate if each.prediction.quantity == "samples_per_s" else duration


def _rate(samples_per_s: float) -> str:
    return f"{digits(samples_per_s)}/s"


_N: Final = numbers("N", "prediction.num_accelerators")
_TIMES: Final = (
    numbers("Predicted (range)", _predicted),
    numbers("Measured", lambda each: number(each.outcome, _form(each))),
)
_ID: Final = names("Id", "id")
_WHAT: Final = words("What", lambda each: f"{each.prediction.verb} {each.prediction.workload or 'own'}")
_OFF: Final = numbers("Off", "error", lambda error: f"{'+' if error >= 0 else '-'}{tenths(abs(error))}")
_COLUMNS: Final = (_ID, _N, *_TIMES, _OFF, _WHAT)


def _is_within(each: LedgerEntry) -> Cell:
    is_within = bool(each.is_covered)
    return Cell(text="", badge=Badge(text="yes" if is_within else "no", tone="good" if is_within else "bad"))


_QUANTITIES: Final = {"step_s": "Step", "samples_per_s": "Rate", "time_to_train_s": "Training"}


def _set_up(each: LedgerEntry) -> str:
    about = each.prediction
    batch = "" if about.global_batch_samples is None else f", batch {about.global_batch_samples:,}"
    strategy = f", {about.strategy}" if about.strategy else ""
    what = _QUANTITIES[about.quantity]
    return f"{what} of {about.workload or 'own'}{strategy}{batch} ({about.verb})"


_BESIDE_COLUMNS: Final = (
    names("What", _set_up),
    _N,
    *_TIMES,
    numbers("Runs", lambda each: len(each.measured)),
    numbers(
        "Ratio",
        lambda each: None if each.error is None else 1.0 + each.error,
        lambda ratio: f"{ratio:.2f}",
        meaning="predicted over measured time",
    ),
    words(
        "In its range", _is_within, is_kept=True, meaning="whether the interval covers the median of the runs"
    ),
)


def beside_blocks(entries: Sequence[LedgerEntry]) -> tuple[Block, ...]:
    """Runs next to their recorded predictions; how to record one if there are none."""
    if not entries:
        keep = (Code("--record"), " of ", Code("predict"), ", ", Code("plan"), " and ", Code("advise"))
        return (prose("No prediction was kept before these runs: ", *keep, " keeps them."),)
    shown = [each.in_steps for each in entries]
    num_within = sum(bool(each.is_covered) for each in shown)
    return (
        prose(f"Inside the predicted range: {count(num_within)} of {count(len(shown))}."),
        table_of("beside-predictions", _BESIDE_COLUMNS, shown),
    )


def _closing(found: LedgerReport) -> Block:
    running = found.running
    if not found.entries:
        return prose(Code("equipoise predict"), ", plan and advise add theirs when given --record.")
    if running is None:
        return prose(
            "None has a measurement yet: ",
            Code("equipoise record add MEASURED --for ID"),
            ", or ",
            Code("equipoise record --runs DIR"),
            ".",
        )
    assert running.record.coverage is not None  # every prediction has its interval
    record, side = running.record, "longer" if running.bias >= 1.0 else "shorter"
    most = "" if record.p90_abs_error is None else f", 90 % of them by at most {tenths(record.p90_abs_error)}"
    return prose(
        f"Measured {running.num_measured} of {running.num_predictions}: off by "
        f"{tenths(record.median_abs_error)} (median){most}; predicted times were "
        f"{tenths(abs(running.bias - 1.0))} {side} (median); the {format_percent(running.level)} interval "
        f"covered {tenths(running.record.coverage)} of them."
    )


LEDGER: Final = short_page(
    about=lambda found: f"Ledger {printable(str(found.ledger.path))}",
    headline=_headline,
    blocks=lambda found: _blocks(found, len(found.entries)),
    brief=_blocks,
)
