"""The entries side by side: a tile each, and what each has more or less than the first."""

from collections.abc import Iterator
from typing import Final

from equipoise.economics import Bill
from equipoise.report.blocks import Block, Bullets, Span, Tile, Tiles, note, strong
from equipoise.report.entry_text import Row, efficiencies, hardware
from equipoise.report.section import Section
from equipoise.report.words import TIMES, entry_name, plural, printable, ratio
from equipoise.study.findings import ComparedFindings
from equipoise.units import format_duration, format_percent, format_si

ALIKE: Final = 0.005  # times differ by less: not worth a word


def about(findings: ComparedFindings) -> str:
    """What is compared."""
    return (
        f"{printable(findings.name)} in MLPerf Training {printable(findings.round)}, "
        f"{printable(findings.division)} division"
    )


def headline(findings: ComparedFindings) -> str:
    """The fastest, and what it takes more than the most frugal, in one sentence."""
    rows = _rows(findings)
    fastest = min(rows, key=lambda row: row["score_s"])
    frugal = min(rows, key=_accelerator_s)
    name = printable(findings.name)
    first = f"{name}: {hardware(fastest)} in {format_duration(fastest['score_s'])}"
    if frugal is fastest:
        return first if len(rows) == 1 else f"{first}, the fastest and the most frugal"
    faster = frugal["score_s"] / fastest["score_s"]
    more = _accelerator_s(fastest) / _accelerator_s(frugal)
    return (
        f"{first}, {ratio(faster)}{TIMES} as fast as {hardware(frugal)} "
        f"for {ratio(more)}{TIMES} the accelerator-time"
    )


def summary(findings: ComparedFindings) -> tuple[str, ...]:
    """What was chosen, and by whom."""
    chosen = plural(len(findings.chosen), "entry", "entries")
    of = f"of the {len(findings.entries)} with an official score"
    if findings.are_given:
        return (f"{chosen} {of}.",)
    return (f"{chosen} {of}: those for speed, for efficiency, and in between.",)


def _rows(findings: ComparedFindings) -> list[Row]:
    return list(findings.chosen.iter_rows(named=True))


def _accelerator_s(row: Row) -> float:
    return float(row["num_accelerators"] * row["score_s"])


def _blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    rows = _rows(findings)
    tiles = Tiles(items=tuple(_tile(row, bill) for row, bill in zip(rows, findings.bills, strict=True)))
    told = tuple(_against(rows[0], row) for row in rows[1:])
    prices = note(
        "Money is the time of one run at the price table's rate on demand; energy is measured where an "
        "entry was metered, else rated power times the factor of the system. Carbon: the world's average."
    )
    return (tiles, *((Bullets(items=told),) if told else ()), prices)


def _tile(row: Row, bill: Bill) -> Tile:
    return Tile(
        label=entry_name(row["submitter"], row["system"]),
        value=f"{hardware(row)}: {format_duration(row['score_s'])}",
        detail=" · ".join(_paid(bill)),
        words=efficiencies(row),
    )


def _paid(bill: Bill) -> Iterator[str]:
    yield f"{format_si(bill.accelerator_hours)} accelerator-hours"
    if bill.money is not None:
        yield f"{format_si(bill.money.value)} USD"
    if bill.energy is not None:
        yield f"{format_si(bill.energy.value, 'J')}{' measured' if bill.energy_basis == 'measured' else ''}"


def _against(first: Row, row: Row) -> tuple[Span, ...]:
    """One entry against the first: speed, accelerators, and what of the ideal is kept."""
    speed = first["score_s"] / row["score_s"]
    more = row["num_accelerators"] / first["num_accelerators"]
    name = f"{entry_name(row['submitter'], row['system'])} ({hardware(row)})"
    pace = "as fast as" if abs(speed - 1.0) < ALIKE else f"{ratio(speed)}{TIMES} as fast as"
    told = f" is {pace} the first with {ratio(more)}{TIMES} the accelerators"
    if row["accelerator"] is None or row["accelerator"] != first["accelerator"]:
        return (strong(name), f"{told}, which are of another kind.")
    kept = format_percent(round(speed / more, 3))
    return (strong(name), f"{told} of the same kind: {kept} of perfect scaling.")


SECTION: Final[Section[ComparedFindings]] = Section(
    name="side", title="Side by side", needs=("bills",), blocks=_blocks
)
