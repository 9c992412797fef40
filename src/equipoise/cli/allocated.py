"""What `equipoise allocate` shows: who gets how many and when, what that gives, and how sure it is."""

import math
from collections.abc import Iterator
from typing import Final

from equipoise.cli.output import counted, paragraph, table_text
from equipoise.decide.allocation.allocate import Allocation, Share
from equipoise.units import (
    HOUR_S,
    KWH_J,
    format_count,
    format_duration,
    format_percent,
    format_si,
)

_WORDS: Final = {
    "time": "the least time over all jobs, waiting included",
    "makespan": "the earliest end of the last job",
    "cost": "the least money",
    "energy": "the least energy",
}
_ALL_AT_ONCE: Final = "all at once"


def text(found: Allocation) -> str:
    """The same for people."""
    paragraphs = [paragraph(line) for line in _sentences(found)]
    return f"{paragraph(_title(found))}\n{_table(found)}\n{''.join(paragraphs)}"


def _title(found: Allocation) -> str:
    nodes = found.pool.cluster
    pool = f"{format_count(nodes.num_accelerators)} x {nodes.accelerator.title}"
    jobs = counted(len(found.shares), "job", "jobs")
    if not found.is_feasible:
        return f"{jobs} on {pool}: not all deadlines can be kept. The least late:"
    return f"{jobs} on {pool}: {_WORDS[found.objective]}"


def _table(found: Allocation) -> str:
    has_deadlines = any(math.isfinite(each.job.deadline_s) for each in found.shares)
    rows = []
    for each in sorted(found.shares, key=lambda share: (share.start_s, share.job.name)):
        row = [
            each.job.name,
            format_count(each.candidate.num_accelerators),
            _moment(found, each.start_s),
            format_duration(each.time_s.value),
            _moment(found, each.end_s.value),
        ]
        if has_deadlines:
            row += [_deadline(found, each)]
        rows.append((*row, _money(each)))
    head = (
        "job",
        "N",
        "starts",
        "takes",
        "done",
        *(("deadline",) if has_deadlines else ()),
        "USD",
    )
    return table_text(head, rows, align=f"<>>>>{'<' if has_deadlines else ''}>")


def _moment(found: Allocation, seconds: float) -> str:
    """A moment as the time from the beginning, or the time of day where prices depend on it."""
    if found.pool.tariff is None:
        return format_duration(seconds) if seconds else "at once"
    minutes = round((seconds + found.pool.tariff.begin_s) / HOUR_S * 60)
    days, within = divmod(minutes, 24 * 60)
    return f"{within // 60:02d}:{within % 60:02d}{f' +{days} d' if days else ''}"


def _deadline(found: Allocation, each: Share) -> str:
    if not math.isfinite(each.job.deadline_s):
        return "-"
    verdict = "ok"
    if each.late_s:
        verdict = f"LATE by {format_duration(each.late_s)}"
    elif each.is_at_risk:
        verdict = "at risk"
    return f"{_moment(found, each.job.deadline_s)} {verdict}"


def _money(each: Share) -> str:
    usd = None if each.candidate.usd is None else each.candidate.usd.value
    usd = usd if each.hourly_electricity_usd is None else each.hourly_electricity_usd
    return "-" if usd is None else format_si(usd)


def _sentences(found: Allocation) -> Iterator[str]:
    if found.is_feasible:
        yield (
            f"In all: {_amount(found, found.value.value)}{_range(found)}; the last is done after "
            f"{format_duration(found.makespan_s)}."
        )
        yield _proof(found)
        yield from _rivals(found)
    else:
        yield from _lateness(found)
    risky = [each.job.name for each in found.shares if each.is_at_risk and not each.late_s]
    if risky:
        yield f"At risk: {', '.join(risky)} would be late if every job took as long as its interval allows."
    taken = [each.candidate for each in found.shares]
    hours = math.fsum(each.accelerator_hours or 0.0 for each in taken)
    energies = [each.energy_j.value for each in taken if each.energy_j is not None]
    energy = f" and {math.fsum(energies) / KWH_J:.3g} kWh" if len(energies) == len(taken) else ""
    yield f"Together {hours:.3g} accelerator-hours{energy}; {_paid(found)}."
    sources: dict[str, list[str]] = {}
    for each in found.shares:
        sources.setdefault(_evidence(each), []).append(each.job.name)
    yield from (f"{', '.join(names)}: by {words}." for words, names in sources.items())
    yield from (f"Note: {note}" for note in found.notes)


def _evidence(share: Share) -> str:
    """What the time of a job rests on: the estimator with most weight, and the strategy."""
    heaviest = max(share.candidate.estimates, key=lambda each: each.weight)
    strategy = share.candidate.strategy_text
    return f"{heaviest.name}{f'; strategy {strategy}' if strategy else ''}"


def _range(found: Allocation) -> str:
    """What the objective would be with all jobs at one end of their ranges."""
    low, high = found.value.low, found.value.high
    if low == high:
        return ""
    ends = f"{_amount(found, low)} to {_amount(found, high)}"
    return f" ({ends} if all are as fast, or slow, as their intervals)"


def _paid(found: Allocation) -> str:
    tariff, price = found.pool.tariff, found.pool.rates.price
    if tariff is not None:
        low, high = min(tariff.usd_per_kwh), max(tariff.usd_per_kwh)
        rent = ""
        if found.pool.is_rented and price is not None:
            rent = f", and {price.usd_per_accelerator_hour:.3g} USD per accelerator-hour"
        return f"USD is electricity at {low:g} to {high:g} USD per kWh by the hour{rent}"
    if price is None:
        return "no price is known: give --price"
    return f"USD is {price.usd_per_accelerator_hour:.3g} per accelerator-hour ({price.basis})"


def _amount(found: Allocation, value: float) -> str:
    if found.objective == "cost":
        return f"{format_si(value)} USD"
    return format_si(value, "J") if found.objective == "energy" else format_duration(value)


def _proof(found: Allocation) -> str:
    solved = found.solved
    how = "all at once" if found.is_side_by_side else "some wait for others"
    if found.pool.tariff is not None and found.objective == "cost":
        how = "moved into cheap hours where that pays" if not found.is_side_by_side else _ALL_AT_ONCE
    if solved.is_proved:
        return f"Nothing is better ({how}): proved by {solved.method} over the sizes tried and all starts."
    return (
        f"The best found ({how}); no schedule is better by more than {format_percent(round(solved.gap, 3))}: "
        f"{solved.method} stopped after {format_count(solved.num_looked)} places."
    )


def _rivals(found: Allocation) -> Iterator[str]:
    others = [
        f"{each.words} {'not possible' if each.value is None else _amount(found, each.value)}"
        for each in found.rivals
    ]
    yield f"Simpler schedules: {'; '.join(others)}."


def _lateness(found: Allocation) -> Iterator[str]:
    """What cannot be kept, and by how much."""
    for each in found.shares:
        if not each.late_s:
            continue
        alone = each.job.start_s + min(time.value for time in each.times.time_s)
        name, by = each.job.name, format_duration(each.late_s)
        if alone > each.job.deadline_s:
            yield (
                f"{name} is late by {by}; even with the pool to itself it ends after "
                f"{format_duration(alone)}, and its deadline is {format_duration(each.job.deadline_s)}."
            )
        else:
            yield f"{name} is late by {by}; alone it could be done after {format_duration(alone)}."
    if found.is_certain:
        yield "No schedule keeps all deadlines: proved by branch and bound."
    else:
        yield "None of the schedules tried keeps all deadlines; there may be one."
