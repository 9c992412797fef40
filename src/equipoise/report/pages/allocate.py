"""The page of an allocation: each job's share and start, the value of the objective, and its uncertainty."""

import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from equipoise.decide.allocation import Allocation, JobShare
from equipoise.decide.allocation.problem import ObjectiveName, is_after
from equipoise.economics import Price
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    Code,
    Labelled,
    Page,
    Section,
    Table,
    bullets,
    facts,
    more_note,
    names,
    note,
    numbers,
    page_within,
    table_of,
    words,
)
from equipoise.report.format import TIMES, capital, count, listed, printable, sentence
from equipoise.report.pages.answer.basis import notes_blocks
from equipoise.report.pages.answer.candidates import chip_of
from equipoise.units import HOUR_S, plural, tenths

_OBJECTIVES: Final[dict[ObjectiveName, str]] = {
    "time": "the least time over all jobs, waiting included",
    "makespan": "the earliest end of the last job",
    "cost": "the least money",
    "energy": "the least energy",
}
# What the total of an objective measures, if its unit does not tell.
_TOTALS: Final[dict[ObjectiveName, str]] = {
    "time": " of waiting and training, summed by weight",
    "makespan": " until the last job ends",
    "cost": "",
    "energy": "",
}
_MOST_NAMES: Final = 3  # in the short form


def _about(found: Allocation) -> str:
    nodes = found.pool.cluster
    pool = f"{count(nodes.num_accelerators)} {TIMES} {chip_of(nodes.accelerator.title)}"
    return f"{plural(len(found.shares), 'job')} on {pool}, for {_OBJECTIVES[found.objective]}"


def _headline(found: Allocation) -> str:
    late = "" if found.is_feasible else "; not all deadlines can be kept"
    return f"All jobs end after {amounts.duration(found.makespan_s)}{late}"


def _by_start(found: Allocation) -> list[JobShare]:
    return sorted(found.shares, key=lambda share: (share.start_s, share.job.name))


def _table(found: Allocation, shares: list[JobShare]) -> Table:
    has_deadlines = any(math.isfinite(each.job.deadline_s) for each in found.shares)
    columns = (
        names("Job", "job.name"),
        numbers("N", "candidate.num_accelerators", meaning="number of accelerators"),
        numbers("Starts", lambda each: _moment(found, each.start_s)),
        numbers("Done", lambda each: _moment(found, each.end_s.value)),
        *((words("Deadline", lambda each: _deadline(found, each), is_kept=True),) if has_deadlines else ()),
        numbers(amounts.currency(), "usd", amounts.sums),
        numbers("Takes", "time_s.value", amounts.duration),
    )
    return table_of("allocation-jobs", columns, shares, caption="Jobs, in the order of their start")


def _moment(found: Allocation, seconds: float) -> Cell:
    """A moment as time since the start, or as time of day if prices depend on it."""
    if found.pool.tariff is None:
        return Cell(text=amounts.duration(seconds) if seconds else "at once", key=seconds)
    minutes = round((seconds + found.pool.tariff.begin_s) / HOUR_S * 60)
    days, within = divmod(minutes, 24 * 60)
    return Cell(text=f"{within // 60:02d}:{within % 60:02d}{f' +{days} d' if days else ''}", key=seconds)


def _deadline(found: Allocation, each: JobShare) -> Cell | None:
    if not math.isfinite(each.job.deadline_s):
        return None
    badge = Badge(text="kept", tone="good")
    if each.late_s:
        badge = Badge(text=f"late by {amounts.duration(each.late_s)}", tone="bad")
    elif each.is_at_risk:
        badge = Badge(text="at risk", tone="bad")
    return replace(_moment(found, each.job.deadline_s), badge=badge)


def _facts(found: Allocation, *, most: int) -> Iterator[Labelled]:
    """The outcome and its uncertainty. most: number of job names that one line may list."""
    chosen = found.pool.system.chosen_for_you
    if chosen:
        yield "Chosen", capital(sentence("; ".join(chosen)))
    late = [_lateness(each) for each in found.shares if each.late_s]
    if late:
        yield "Late", listed(late, most)
    of = _TOTALS[found.objective]
    yield "Total", f"{_amount(found, found.value.value)}{of}{_range(found)}"
    yield "Optimal", f"{_proof(found)}{_missed(found)}"
    is_hurried = any(math.isfinite(each.job.deadline_s) for each in found.shares)
    has_room = len(found.shares) <= found.pool.num_accelerators
    no = "not possible in time" if is_hurried and has_room else "not possible"
    simpler = (
        f"{each.words}: {no if each.value is None else _amount(found, each.value)}"
        for each in found.simpler_schedules
    )
    yield "Simpler", sentence("; ".join(simpler))
    risky = [printable(each.job.name) for each in found.shares if each.is_at_risk and not each.late_s]
    if risky:
        words = "late if every job takes the longest time of its range"
        yield "At risk", f"{listed(risky, most)}: {words}"
    taken = [each.candidate for each in found.shares]
    hours = math.fsum(each.accelerator_hours or 0.0 for each in taken)
    energies = [each.energy_j.value for each in taken if each.energy_j is not None]
    energy = f", {amounts.energy(math.fsum(energies))}" if len(energies) == len(taken) else ""
    yield "Uses", f"{amounts.digits(hours)} accelerator-hours{energy}"
    yield "Price", sentence(_price(found))
    sources: dict[str, list[str]] = {}
    for each in found.shares:
        heaviest = max(each.candidate.estimates, key=lambda one: one.weight)
        sources.setdefault(heaviest.name, []).append(printable(each.job.name))
    words = "; ".join(f"{listed(names, most)}: {sentence(name)}" for name, names in sources.items())
    yield "Evidence", words


def _range(found: Allocation) -> str:
    """The objective with all jobs at the low or high ends of their ranges."""
    low, high = found.value.low, found.value.high
    if low == high:
        return ""
    ends = f"{_amount(found, low)} to {_amount(found, high)}"
    return f" ({ends} with all jobs at the ends of their ranges)"


def _amount(found: Allocation, value: float) -> str:
    if found.objective == "cost":
        return amounts.money(value)
    return amounts.watt_hours(value) if found.objective == "energy" else amounts.duration(value)


def _proof(found: Allocation) -> str:
    solved = found.solved
    how = "all at once" if found.is_side_by_side else "some wait for others"
    if found.pool.tariff is not None and found.objective == "cost" and not found.is_side_by_side:
        how = "moved into cheap hours where that pays"
    how += ", with the least delay of the latest job" if found.is_least_late else ""
    if solved.is_proved:
        return f"Yes ({how}): proved by {solved.method} for the sizes tried and every start time"
    return (
        f"The best found ({how}); none is better by more than {tenths(solved.gap)}: "
        f"{solved.method} stopped after {count(solved.num_explored)} schedules"
    )


def _missed(found: Allocation) -> str:
    """Whether another schedule could keep all deadlines."""
    if found.is_feasible:
        return ""
    if not found.is_certain:
        return "; none was found that keeps all deadlines, but one may exist"
    return "; no schedule keeps all deadlines"


def _lateness(each: JobShare) -> str:
    """By how much a job is late, and whether it would meet its deadline with the whole pool to itself."""
    alone = each.job.start_s + min(time.value for time in each.times.time_s)
    by = f"{printable(each.job.name)} by {amounts.duration(each.late_s)}"
    if is_after(alone, each.job.deadline_s):
        least = amounts.duration(alone - each.job.deadline_s)
        return f"{by} (with the whole pool to itself by {least})"
    return f"{by} (with the whole pool to itself it would end after {amounts.duration(alone)})"


def _rent(found: Allocation) -> Price | None:
    """The price per accelerator-hour; None if the pool is not rented or the price is unknown."""
    return found.pool.rates.price if found.pool.is_rented else None


def _price(found: Allocation) -> str:
    tariff, price, power = found.pool.tariff, _rent(found), found.pool.rates.electricity
    rent = "" if price is None else f"{amounts.rate(price.usd_per_accelerator_hour)} per accelerator-hour"
    if tariff is not None:
        low, high = min(tariff.usd_per_kwh), max(tariff.usd_per_kwh)
        more = f", and {rent}" if rent else ""
        return f"Electricity at {amounts.prices(low)} to {amounts.rate(high)} per kWh by the hour{more}"
    if not found.pool.is_rented:
        at = "" if power is None else f", {amounts.rate(power.usd_per_kwh.value)} per kWh"
        return f"Your own machine: electricity only{at}"
    if price is None:
        return "Not known: give --price"
    return f"{rent} ({price.basis.partition(',')[0]})"


def _strategies(found: Allocation) -> tuple[Block, ...]:
    """The strategy of each job that has one, and the basis of the price."""
    strategies = bullets(
        (f"{printable(each.job.name)}: ", Code(sentence(each.candidate.strategy_text)))
        for each in _by_start(found)
        if each.candidate.strategy_text
    )
    price = _rent(found)
    basis = "" if price is None else sentence(f"Price: {price.basis}.")
    return (strategies, note(basis))


def _brief(found: Allocation, num_rows: int) -> tuple[Block, ...]:
    shares = _by_start(found)
    return (
        _table(found, shares[:num_rows]),
        facts(_facts(found, most=_MOST_NAMES)),
        more_note((len(shares) - num_rows, "job"), "strategies", (len(found.notes), "note")),
    )


ALLOCATION: Final[Page[Allocation]] = page_within(
    Page(
        title=_headline,
        about=_about,
        headline=_headline,
        sections=(
            Section(
                "jobs",
                "The schedule",
                lambda found: (
                    _table(found, _by_start(found)),
                    facts(_facts(found, most=len(found.shares))),
                ),
            ),
            Section("strategies", "Strategies", _strategies),
            Section("notes", "Notes", notes_blocks, needs=("notes",), is_extra=True),
        ),
        closing=lambda _: ("Times that nobody has measured are predictions.",),
        brief=_brief,
    ),
    lambda found: amounts.written_in(found.pool.question.own_currency),
)
