"""What `equipoise predict` says: times and bills by size, where more stop paying, and what it rests on."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from equipoise.advice.forecast.answer import Forecast, Foretold, Record
from equipoise.cli.output import paragraph, table_text
from equipoise.economics import Bill, Price, bill_fields
from equipoise.scaling.equilibrium import Equilibrium, words
from equipoise.units import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    format_count,
    format_duration,
    format_percent,
    format_si,
    significant,
)

_TONNE_KG = 1000.0
# As in format_duration: a unit is used up to twice the next one's size.
_UNITS = ((2 * MINUTE_S, 1.0, "s"), (2 * HOUR_S, MINUTE_S, "min"), (2 * DAY_S, HOUR_S, "h"))
_MOST_SHARES = 3
_MOST_EVIDENCE = 12


def fields(found: Forecast) -> dict[str, Any]:
    """The fields of the document."""
    ground = found.ground
    whole = {
        "workload": found.workload,
        "accelerator": found.accelerator,
        "round": ground.round,
        "work": ground.work,
        "predictions": [
            _prediction(each, bill) for each, bill in zip(ground.foretold, found.bills, strict=True)
        ],
        "equilibria": [{**equilibrium_fields(each), "words": words(each)} for each in found.equilibria],
        "answer": None if found.answer is None else found.answer.kind,
        "no_equilibria": found.no_equilibria,
        "law": asdict(ground.law),
        "evidence": [asdict(each) for each in ground.evidence],
        "domain": {"smallest": round(ground.domain.smallest), "largest": round(ground.domain.largest)},
        "rates": asdict(found.rates),
        "notes": list(ground.notes),
    }
    return {name: significant(value) for name, value in whole.items()}


def _prediction(each: Foretold, bill: Bill) -> dict[str, Any]:
    return {
        "num_accelerators": each.num_accelerators,
        "time_s": each.time.value,
        "low_s": each.time.low,
        "high_s": each.time.high,
        "level": each.time.level,
        "in_domain": each.in_domain,
        "outside": each.outside,
        **bill_fields(bill),
        "record": None if each.record is None else asdict(each.record),
    }


def equilibrium_fields(each: Equilibrium) -> dict[str, Any]:
    """An equilibrium as every verb's document states it, its words apart."""
    return {
        "kind": each.kind,
        "num_accelerators": each.num_accelerators,
        "low": each.low,
        "high": each.high,
        "level": each.level,
        "bound": each.bound,
        "censored": each.censored,
        "efficiency": each.efficiency,
        "time_s": each.time_s,
        "accelerator_hours": each.accelerator_hours,
        "next_doubling": asdict(each.next_doubling),
    }


def text(found: Forecast) -> str:
    """The same for people."""
    return "\n".join(block for block in (_times(found), _points(found), _ground(found)) if block)


def _times(found: Forecast) -> str:
    ground = found.ground
    subject = " on ".join(name for name in (found.workload, found.accelerator) if name)
    after = f", from its results in {ground.round}" if ground.round else ""
    title = f"{subject or 'Your measurements'}{after}: time for {ground.work}"
    rows = [
        (
            format_count(each.num_accelerators),
            format_duration(each.time.value),
            _range(each.time.low, each.time.high),
            "in" if each.in_domain else "OUT",
            format_si(bill.accelerator_hours),
            "-" if bill.usd is None else format_si(bill.usd),
            "-" if bill.energy_j is None else format_si(bill.energy_j, "J"),
            "-" if bill.carbon_kg is None else _mass(bill.carbon_kg),
        )
        for each, bill in zip(ground.foretold, found.bills, strict=True)
    ]
    level = format_percent(ground.foretold[0].time.level)
    head = ("N", "time", f"{level} range", "domain", "acc-hours", "USD", "energy", "CO2")
    return paragraph(title) + table_text(head, rows, align=">>><>>>>") + "".join(_rates(found))


def _range(low_s: float, high_s: float) -> str:
    """Both ends in the unit of the upper one."""
    factor, unit = next(((factor, unit) for most, factor, unit in _UNITS if high_s < most), (DAY_S, "d"))
    return f"{low_s / factor:.3g}-{high_s / factor:.3g} {unit}"


def _mass(mass_kg: float) -> str:
    if mass_kg >= _TONNE_KG:
        return f"{mass_kg / _TONNE_KG:.3g} t"
    return f"{mass_kg:.3g} kg" if mass_kg >= 1.0 else f"{mass_kg * 1000.0:.3g} g"


def _rates(found: Forecast) -> Iterator[str]:
    """What the bill was made with."""
    rates = found.rates
    if rates.price is None:
        yield paragraph("USD: no price is known; give --price in US dollars an accelerator-hour.")
    else:
        yield paragraph(
            f"USD: {rates.price.usd_per_accelerator_hour:.3g} an accelerator-hour ({_asked(rates.price)})."
        )
    if rates.accelerator_power_w is None:
        yield paragraph("Energy: no power is known; name the --accelerator.")
        return
    measured = [bill.energy_basis == "measured" for bill in found.bills]
    system = rates.system_power
    if not all(measured):
        but = " except where the result was metered" if any(measured) else ""
        yield paragraph(
            f"Energy: modelled{but}, {rates.accelerator_power_w:g} W an accelerator times {system.factor:g} "
            f"({system.low:g}-{system.high:g}) for the rest of the system ({system.basis})."
        )
    yield paragraph(
        f"CO2: {rates.grid.kg_co2_per_kwh:.3g} kg a kWh, {rates.grid.region} ({rates.grid.basis})."
    )


def _asked(price: Price) -> str:
    """Who asked the price, and what others may ask."""
    may = price.interval
    if may.low == may.high:
        return price.basis
    return f"{may.low:.3g}-{may.high:.3g} with the next offer; {price.basis}"


def _points(found: Forecast) -> str:
    """The equilibria in words, the default answer first."""
    if found.answer is None:
        return paragraph(f"No equilibrium: {found.no_equilibria}.")
    ordered = sorted(found.equilibria, key=lambda each: each is not found.answer)
    lines = [paragraph(f"- {_sentence(words(each))}") for each in ordered]
    return "Where more accelerators stop paying, the first reason first:\n" + "".join(lines)


def _sentence(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _ground(found: Forecast) -> str:
    """Evidence, law, domain, record and notes."""
    ground = found.ground
    low, high = format_count(ground.domain.smallest), format_count(ground.domain.largest)
    lines = [_evidence_table(found), paragraph(f"Law: {_law(found)}.")]
    lines.append(paragraph(f"Sizes measured: {low} to {high} accelerators."))
    outside = {each.outside: each.num_accelerators for each in ground.foretold if each.outside}
    lines += [paragraph(f"OUT at {format_count(size)}: {why}.") for why, size in outside.items()]
    lines += [paragraph(line) for line in _records(ground.foretold)]
    return "".join(lines) + "".join(paragraph(f"Note: {note}") for note in ground.notes)


def _law(found: Forecast) -> str:
    law = found.ground.law
    shares = sorted(law.shares.items(), key=lambda item: -item[1])[:_MOST_SHARES]
    weighed = ", ".join(f"{name} {format_percent(round(share, 2))}" for name, share in shares)
    return f"{law.name}{f' (weighed: {weighed})' if len(law.shares) > 1 else ''}; {law.assumes}"


def _evidence_table(found: Forecast) -> str:
    weighed = any(each.weight is not None for each in found.ground.evidence)
    rows = [
        (
            format_percent(round(each.weight, 3)) if each.weight is not None else "-",
            format_count(each.num_accelerators),
            format_duration(each.time_s),
            f"{'own, ' if each.is_own and weighed else ''}{each.ref}",
        )
        for each in found.ground.evidence[:_MOST_EVIDENCE]
    ]
    more = len(found.ground.evidence) - len(rows)
    rest = f"... and {more} more sizes: --json lists all\n" if more > 0 else ""
    return table_text(("weight", "N", "time", "evidence"), rows, align=">>><") + rest


def _records(foretold: tuple[Foretold, ...]) -> Iterator[str]:
    """How wrong such predictions were, one sentence a kind of size."""
    by_record: dict[Record | None, list[str]] = {}
    for each in foretold:
        by_record.setdefault(each.record, []).append(format_count(each.num_accelerators))
    for record, sizes in by_record.items():
        at = f"Record for {', '.join(sizes)}"
        if record is None:
            yield f"{at}: none; no such prediction was ever held against a result."
        elif record.num_held_out == 1:
            held = "held" if record.coverage else "did not hold"
            yield f"{at}: {record.of}: off by {format_percent(record.median_abs_error)}; the range {held} it."
        else:
            most = f", 90 % of them by at most {format_percent(record.p90_abs_error or 0.0)}"
            yield (
                f"{at}: {record.num_held_out} times held out, {record.of}: off by "
                f"{format_percent(record.median_abs_error)} (median){most}; the range held "
                f"{format_percent(record.coverage)} of them."
            )
