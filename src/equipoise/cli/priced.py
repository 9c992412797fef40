"""Renting with all that fails, and buying instead: for people in 80 columns, and the fields of documents."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

from equipoise.advice.priced import Priced
from equipoise.advice.risk import Risk
from equipoise.cli.output import printable, table_text, width_columns
from equipoise.economics.owning import Ownership
from equipoise.economics.prices import WORDS
from equipoise.economics.uncertain import Tornado
from equipoise.stats import Interval
from equipoise.units import DAY_S, format_duration, format_percent, format_si, significant

# Nobody waits for longer: a run that would take it does not end.
_NEVER_S = 100 * 365 * DAY_S
_NEVER_MONTHS = 1200
_NEVER = "never"
_MOST_BARS = 4


def priced_text(found: Priced) -> str:
    """Terms side by side, then buying beside renting."""
    parts = (
        f"Rented, with what fails on the way:\n{risk_text(found.risks)}" if found.risks else "",
        "" if found.ownership is None else ownership_text(found.ownership),
        "".join(_paragraph(each) for each in found.notes),
    )
    return "\n".join(part for part in parts if part)


def priced_fields(found: Priced) -> dict[str, Any]:
    """The fields beside those of the advice."""
    owned = found.ownership
    return {
        "risks": [risk_fields(each) for each in found.risks],
        "ownership": None if owned is None else ownership_fields(owned),
    }


def risk_text(found: Sequence[Risk]) -> str:
    """The terms side by side: time and money with failures, checkpoints, restarts and the queue."""
    level = format_percent(found[0].elapsed.level)
    timed = found[0].chance_in_time is not None
    rows = [(*_terms(each), *((_chance(each.chance_in_time),) if timed else ())) for each in found]
    head = ["terms", "time", f"{level} range", "USD", f"{level} range", "lost"]
    table = table_text(
        (*head, *(("in time",) if timed else ())), rows, align="<>>>>>" + (">" if timed else "")
    )
    return table + "".join(_paragraph(line) for line in _checkpoints(found))


def _terms(each: Risk) -> tuple[str, ...]:
    money = each.money
    return (
        WORDS[each.terms],
        _ends(each.elapsed.value),
        f"{_ends(each.elapsed.low)} to {_ends(each.elapsed.high)}",
        "-" if money is None else _paid(each, money.value, each.elapsed.value),
        "-"
        if money is None
        else f"{_paid(each, money.low, each.elapsed.low)} to {_paid(each, money.high, each.elapsed.high)}",
        format_percent(round(sum(each.lost.values()), 2)),
    )


def _paid(each: Risk, usd: float, elapsed_s: float) -> str:
    """An amount of money; nothing where the run never ends."""
    return "-" if each.money is None or elapsed_s >= _NEVER_S else _short(usd)


def _ends(seconds: float) -> str:
    return format_duration(seconds) if seconds < _NEVER_S else _NEVER


def _chance(share: float | None) -> str:
    return "-" if share is None else format_percent(round(share, 2))


def _checkpoints(found: Sequence[Risk]) -> list[str]:
    """How often it is stopped, and when to write checkpoints."""
    stops = ", ".join(f"{WORDS[each.terms]} {_stops(each.num_interruptions.value)}" for each in found)
    often: dict[str, list[str]] = {}
    for each in found:
        apart = each.checkpoint_interval_s
        words = "not needed" if apart is None else f"every {format_duration(apart)}"
        often.setdefault(words, []).append(WORDS[each.terms])
    when = "; ".join(f"{words} ({', '.join(terms)})" for words, terms in often.items())
    first = found[0]
    size = "" if first.checkpoint_bytes is None else f" of {format_si(first.checkpoint_bytes, 'B')}"
    pause = format_duration(first.checkpoint_s.value)
    return [f"Stops expected: {stops}.", f"Checkpoints{size}, {pause} each: {when}."]


def _stops(number: float) -> str:
    """How many times; without end where it never ends."""
    return f"{float(f'{number:.2g}'):,g}" if number < float("inf") else "without end"


def ownership_text(found: Ownership) -> str:
    """One accelerator bought beside one rented, and what the difference hangs on."""
    months = found.months_to_break_even
    use = found.utilisation
    bought, running = found.purchase.usd, found.running_usd_per_month
    lines = {
        "bought": f"{_range(bought, _short)} USD with its share of host and network, then "
        f"{_range(running, _short)} USD a month",
        "rented": f"{_range(found.rent_usd_per_month, _short)} USD a month, used {_range(use, _share)} "
        "of all hours",
        "pays after": f"{_range(months, _months)} months; before it is worn out: "
        f"{format_percent(round(found.chance_in_lifetime, 2))} likely",
        "return": f"{_range(found.return_usd, _short)} USD after {found.horizon_months:g} months"
        + (
            ", never positive at any use"
            if found.even_at_utilisation is None
            else f", positive from {_share(found.even_at_utilisation)} use on"
        ),
        "hangs on": tornado_words(found.tornado),
    }
    told = "".join(_paragraph(f"  {name:<12}{words}", 14) for name, words in lines.items())
    level = format_percent(months.level)
    return f"Bought or rented, an accelerator ({level} ranges):\n{told}"


def tornado_words(found: Tornado, *, most: int = _MOST_BARS) -> str:
    """The inputs that move a result most, with its value at their two ends."""
    bars = [each for each in found.bars if each.swing > 0.0][:most]
    told = [f"{each.name} ({_short(each.at_low)} to {_short(each.at_high)})" for each in bars]
    return ", ".join(told) if told else "nothing"


def _months(value: float) -> str:
    return _NEVER if value > _NEVER_MONTHS else f"{value:.3g}"


def _share(value: float) -> str:
    return format_percent(round(value, 2))


def _range(amount: Interval, form: Callable[[float], str]) -> str:
    if amount.low == amount.high:
        return form(amount.value)
    return f"{form(amount.value)} ({form(amount.low)} to {form(amount.high)})"


def _short(value: float) -> str:
    return format_si(value, "").strip()


def _paragraph(sentence: str, hanging: int = 2) -> str:
    return f"{fill(printable(sentence), width_columns(), subsequent_indent=' ' * hanging)}\n"


def risk_fields(each: Risk) -> dict[str, Any]:
    """The fields of one kind of terms."""
    whole = {
        "terms": each.terms,
        "price": None if each.price is None else asdict(each.price),
        "work_s": asdict(each.work),
        "time_s": asdict(each.elapsed),
        "usd": None if each.money is None else asdict(each.money),
        "num_interruptions": asdict(each.num_interruptions),
        "chance_of_interruption": each.chance_of_any,
        "chance_in_time": each.chance_in_time,
        "checkpoint_interval_s": each.checkpoint_interval_s,
        "checkpoint_bytes": each.checkpoint_bytes,
        "checkpoint_s": asdict(each.checkpoint_s),
        "lost": dict(each.lost),
        "sensitivity": tornado_fields(each.tornado),
        "assumes": list(each.assumes),
    }
    return {name: significant(value) for name, value in whole.items()}


def ownership_fields(found: Ownership) -> dict[str, Any]:
    """The fields of buying beside renting."""
    whole = {
        "accelerator": found.purchase.accelerator,
        "purchase_usd": asdict(found.purchase.usd),
        "utilisation": asdict(found.utilisation),
        "horizon_months": found.horizon_months,
        "rent_usd_per_month": asdict(found.rent_usd_per_month),
        "running_usd_per_month": asdict(found.running_usd_per_month),
        "months_to_break_even": asdict(found.months_to_break_even),
        "chance_in_lifetime": found.chance_in_lifetime,
        "return_usd": asdict(found.return_usd),
        "even_at_utilisation": found.even_at_utilisation,
        "sensitivity": tornado_fields(found.tornado),
        "assumes": list(found.assumes),
    }
    return {name: significant(value) for name, value in whole.items()}


def tornado_fields(found: Tornado) -> dict[str, Any]:
    """The fields of a tornado."""
    return {
        "name": found.name,
        "unit": found.unit,
        "result": asdict(found.result),
        "bars": [asdict(each) for each in found.bars],
    }
