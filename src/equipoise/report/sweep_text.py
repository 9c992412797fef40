"""Values of a sweep as text: configurations, spreads, seconds."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.advice.measured.swept import Judgement
from equipoise.bench.cell import Cell
from equipoise.bench.summary import Spread
from equipoise.report.blocks import Cell as TableCell
from equipoise.report.charts import NUM_COLOURS, SYMBOLS, Mark
from equipoise.report.words import ABSENT, DASH, printable, ratio
from equipoise.units import MILLISECOND_S

PHASES: Final = {
    "input": "waiting for input",
    "forward": "forward pass",
    "backward": "backward pass",
    "communication_exposed": "exposed communication",
    "optimizer": "optimizer",
    "rest": "between the phases",
}
Subject = tuple[str, str, str]


def subjects(findings: SweepNow) -> list[tuple[Subject, list[Judgement]]]:
    """The configurations of each workload, precision and device, in their order."""
    return [(each, list(group)) for each, group in groupby(findings.swept.judgements, attrgetter("subject"))]


def subject_name(subject: Subject) -> str:
    """Workload, precision and device as a title."""
    return ", ".join(map(printable, subject))


def way(cell: Cell) -> str:
    """How and on how many ranks a configuration is trained."""
    ranks = "rank" if cell.num_ranks == 1 else "ranks"
    return f"{printable(cell.method)} on {cell.num_ranks} {ranks}, batch {cell.batch_samples}"


def spread_ms(found: Spread) -> str:
    """Seconds with their interval, said in milliseconds."""
    said, ends = _said_ms(found)
    return f"{said} ms ({ends})" if ends else f"{said} ms"


def _said_ms(found: Spread) -> tuple[str, str | None]:
    """Milliseconds and the ends of their interval, with as many digits as tell these apart."""
    low, high = found.low, found.high
    if low is None or high is None or low == high:
        return f"{found.value / MILLISECOND_S:.3g}", None
    for digits in (3, 4, 5):
        ends = [f"{each / MILLISECOND_S:.{digits}g}" for each in (low, high)]
        if ends[0] != ends[1]:
            break
    return f"{found.value / MILLISECOND_S:.{digits}g}", f" {DASH} ".join(ends)


def per_second(rate: float) -> str:
    """A number of samples a second."""
    return f"{ratio(rate)} samples/s"


def milliseconds(found: Spread | None) -> TableCell:
    """Seconds said in milliseconds, their interval below."""
    if found is None:
        return TableCell(text=ABSENT)
    said, ends = _said_ms(found)
    return TableCell(text=said, key=found.value, detail=ends)


def times(found: Spread | None) -> TableCell:
    """A ratio with its interval below."""
    if found is None:
        return TableCell(text=ABSENT)
    return TableCell(text=ratio(found.value), key=found.value, detail=within(found))


def within(found: Spread) -> str | None:
    """The ends of an interval; None where there is none."""
    if found.low is None or found.high is None:
        return None
    return f"{ratio(found.low)} {DASH} {ratio(found.high)}"


def method_marks(rows: Sequence[Judgement]) -> dict[str, Mark]:
    """A mark for each way to train, by its name."""
    names = sorted({each.summary.cell.method for each in rows})
    return {
        name: Mark(colour=place + 1 if place < NUM_COLOURS else None, symbol=SYMBOLS[place % len(SYMBOLS)])
        for place, name in enumerate(names)
    }
