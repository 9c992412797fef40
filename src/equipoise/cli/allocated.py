"""What `equipoise allocate` says: who gets how many and when, what that gives, and how sure it is."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from equipoise.advice.allocation.allocate import Allocation, Share
from equipoise.cli.output import counted, paragraph, table_text
from equipoise.economics import bill_fields
from equipoise.units import (
    HOUR_S,
    KWH_J,
    format_count,
    format_duration,
    format_percent,
    format_si,
    significant,
)

_WORDS = {
    "time": "the least time over all jobs, waiting included",
    "makespan": "the earliest end of the last job",
    "cost": "the least money",
    "energy": "the least energy",
}
_ALL_AT_ONCE = "all at once"


def fields(found: Allocation) -> dict[str, Any]:
    """The fields of the document."""
    solved = found.solved
    whole = {
        "cluster": {
            "accelerator": found.pool.cluster.accelerator.slug,
            "num_accelerators": found.pool.cluster.num_accelerators,
            "node_size": found.pool.cluster.node_size,
        },
        "objective": found.objective,
        "unit": _unit(found),
        "value": asdict(found.value),
        "feasible": found.is_feasible,
        "certain": found.is_certain,
        "jobs": [_job(each) for each in found.shares],
        "late": [
            {"name": each.job.name, "deadline_s": each.job.deadline_s, "late_s": each.late_s}
            for each in found.shares
            if each.late_s
        ],
        "side_by_side": found.is_side_by_side,
        "makespan_s": found.makespan_s,
        "total_time_s": found.total_s,
        "proof": {
            "method": solved.method,
            "proved": solved.is_proved,
            "bound": solved.bound,
            "gap": solved.gap,
            "num_looked": solved.num_looked,
        },
        "rivals": [asdict(each) for each in found.rivals],
        "electricity_usd_per_kwh": None
        if found.pool.tariff is None
        else {"by_hour": list(found.pool.tariff.usd_per_kwh), "begin_s": found.pool.tariff.begin_s},
        "notes": list(found.notes),
    }
    return {name: significant(value) for name, value in whole.items()}


def _job(each: Share) -> dict[str, Any]:
    deadline = each.job.deadline_s
    return {
        "name": each.job.name,
        "workload": each.job.workload,
        "num_accelerators": each.num_accelerators,
        "start_s": each.start_s,
        "time_s": asdict(each.time),
        "end_s": asdict(each.end),
        "deadline_s": deadline if math.isfinite(deadline) else None,
        "late_s": each.late_s,
        "at_risk": each.is_at_risk,
        "strategy": each.strategy,
        **bill_fields(each.bill),
        "by_hour_electricity_usd": each.electricity_usd,
        "evidence": {"kind": each.timed.kind, "ref": each.timed.words},
        "times_s": [
            {"num_accelerators": size, **asdict(time)}
            for size, time in zip(each.timed.sizes, each.timed.time, strict=True)
        ],
    }


def _unit(found: Allocation) -> str:
    return {"cost": "usd", "energy": "j"}.get(found.objective, "s")


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
            format_count(each.num_accelerators),
            _moment(found, each.start_s),
            format_duration(each.time.value),
            _moment(found, each.end.value),
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
    usd = each.bill.usd if each.electricity_usd is None else each.electricity_usd
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
        yield f"At risk: {', '.join(risky)} would be late if every job took as long as its range allows."
    bills = [each.bill for each in found.shares]
    hours = math.fsum(each.accelerator_hours for each in bills)
    energies = [each.energy_j for each in bills if each.energy_j is not None]
    energy = f" and {math.fsum(energies) / KWH_J:.3g} kWh" if len(energies) == len(bills) else ""
    yield f"Together {hours:.3g} accelerator-hours{energy}; {_paid(found)}."
    told: dict[str, list[str]] = {}
    for each in found.shares:
        words = f"{each.timed.words}{f'; {each.strategy}' if each.strategy else ''}"
        told.setdefault(words, []).append(each.job.name)
    yield from (f"{', '.join(names)}: by {words}." for words, names in told.items())
    yield from (f"Note: {note}" for note in found.notes)


def _range(found: Allocation) -> str:
    """What the objective would be with all jobs at one end of their ranges."""
    low, high = found.value.low, found.value.high
    if low == high:
        return ""
    return f" ({_amount(found, low)} to {_amount(found, high)} if all are as fast, or slow, as their ranges)"


def _paid(found: Allocation) -> str:
    tariff, price = found.pool.tariff, found.pool.rates.price
    if tariff is not None:
        low, high = min(tariff.usd_per_kwh), max(tariff.usd_per_kwh)
        rent = ""
        if found.pool.is_rented and price is not None:
            rent = f", and {price.usd_per_accelerator_hour:.3g} USD an accelerator-hour"
        return f"USD is electricity at {low:g} to {high:g} USD a kWh by the hour{rent}"
    if price is None:
        return "no price is known: give --price"
    return f"USD is {price.usd_per_accelerator_hour:.3g} an accelerator-hour ({price.basis})"


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
    told = [
        f"{each.words} {'cannot be' if each.value is None else _amount(found, each.value)}"
        for each in found.rivals
    ]
    yield f"Beside it: {'; '.join(told)}."


def _lateness(found: Allocation) -> Iterator[str]:
    """What cannot be kept, and by how much."""
    for each in found.shares:
        if not each.late_s:
            continue
        alone = each.job.start_s + min(time.value for time in each.timed.time)
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
