"""Renting with all that fails, and buying instead: for people in 80 columns, and the fields of documents."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from equipoise.advice.risk import Risk
from equipoise.cli.output import paragraph, table_text
from equipoise.economics.owning import Ownership
from equipoise.economics.prices import WORDS
from equipoise.economics.uncertain import Tornado
from equipoise.report.money_text import checkpoints, elapsed, months, paid, share, stops
from equipoise.stats import Interval
from equipoise.units import format_duration, format_percent, format_si, significant

_MOST_BARS = 4


def rented_text(found: Sequence[Risk]) -> str:
    """Terms side by side; nothing where there is nothing to rent."""
    return f"Rented, with what fails on the way:\n{risk_text(found)}" if found else ""


def risk_text(found: Sequence[Risk]) -> str:
    """The terms side by side: time and money with failures, checkpoints, restarts and the queue."""
    level = format_percent(found[0].elapsed.level)
    timed = found[0].chance_in_time is not None
    rows = [(*_terms(each), *((_chance(each.chance_in_time),) if timed else ())) for each in found]
    head = ["terms", "time", f"{level} range", "USD", f"{level} range", "lost"]
    table = table_text(
        (*head, *(("in time",) if timed else ())), rows, align="<>>>>>" + (">" if timed else "")
    )
    return table + "".join(paragraph(line) for line in _checkpoints(found))


def _terms(each: Risk) -> tuple[str, ...]:
    money, time = each.money, each.elapsed
    return (
        WORDS[each.terms],
        elapsed(time.value),
        f"{elapsed(time.low)} to {elapsed(time.high)}",
        "-" if money is None else paid(each, money.value, time.value),
        "-" if money is None else f"{paid(each, money.low, time.low)} to {paid(each, money.high, time.high)}",
        share(sum(each.lost.values())),
    )


def _chance(in_time: float | None) -> str:
    return "-" if in_time is None else share(in_time)


def _checkpoints(found: Sequence[Risk]) -> list[str]:
    """How often it is stopped, and when to write checkpoints."""
    told = ", ".join(f"{WORDS[each.terms]} {stops(each.num_interruptions.value)}" for each in found)
    often: dict[str, list[str]] = {}
    for each in found:
        often.setdefault(checkpoints(each), []).append(WORDS[each.terms])
    when = "; ".join(f"{words} ({', '.join(terms)})" for words, terms in often.items())
    first = found[0]
    size = "" if first.checkpoint_bytes is None else f" of {format_si(first.checkpoint_bytes, 'B')}"
    pause = format_duration(first.checkpoint_s.value)
    return [f"Stops expected: {told}.", f"Checkpoints{size}, {pause} each: {when}."]


def ownership_text(found: Ownership) -> str:
    """One accelerator bought beside one rented, and what the difference hangs on."""
    bought, running = found.purchase.usd, found.running_usd_per_month
    room = found.purchase.hosting_usd_per_month
    where = "in a room of one's own" if room.high == 0.0 else f"{_range(room, format_si)} of it for the room"
    lines = {
        "bought": f"{_range(bought, format_si)} USD with its share of host and network, then "
        f"{_range(running, format_si)} USD a month, {where}",
        "rented": f"{_range(found.rent_usd_per_month, format_si)} USD a month, used "
        f"{_range(found.utilisation, share)} of all hours",
        "pays after": f"{_range(found.months_to_break_even, months)} months, unsold; before it is worn out: "
        f"{share(found.chance_in_lifetime)} likely",
        "return": f"{_range(found.return_usd, format_si)} USD after {found.horizon_months:g} months, "
        "sold then"
        + (
            ", never positive at any use"
            if found.even_at_utilisation is None
            else f", positive from {share(found.even_at_utilisation)} use on"
        ),
        "hangs on": tornado_words(found.tornado),
    }
    told = "".join(paragraph(f"  {name:<12}{words}", 14) for name, words in lines.items())
    level = format_percent(found.months_to_break_even.level)
    return f"Bought or rented, an accelerator ({level} ranges):\n{told}"


def tornado_words(found: Tornado, *, most: int = _MOST_BARS) -> str:
    """The inputs that move a result most, with its value at their two ends."""
    bars = [each for each in found.bars if each.swing > 0.0][:most]
    told = [f"{each.name} ({format_si(each.at_low)} to {format_si(each.at_high)})" for each in bars]
    return ", ".join(told) if told else "nothing"


def _range(amount: Interval, form: Callable[[float], str]) -> str:
    if amount.low == amount.high:
        return form(amount.value)
    return f"{form(amount.value)} ({form(amount.low)} to {form(amount.high)})"


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
        "hosting_usd_per_month": asdict(found.purchase.hosting_usd_per_month),
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
