"""How trainings of a stated length ended: loss, accuracy, seconds, over seeds."""

from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow, Trained
from equipoise.bench.summary import Spread
from equipoise.report.blocks import Block, Cell, Column, Table
from equipoise.report.section import Section
from equipoise.report.sweep_text import within
from equipoise.report.words import ABSENT, count, printable, ratio
from equipoise.units import format_duration

COLUMNS: Final = (
    Column(title="Workload", is_header=True),
    Column(title="Strategy"),
    Column(title="Ranks", is_number=True),
    Column(title="Batch", is_number=True),
    Column(title="Samples", is_number=True, meaning="trained on"),
    Column(title="Held-out loss", is_number=True),
    Column(title="Accuracy", is_number=True),
    Column(title="Time", is_number=True),
    Column(title="Seeds", is_number=True),
)


def _blocks(findings: SweepNow) -> tuple[Block, ...]:
    table = Table(
        name="trainings",
        caption="The ends of the trainings: medians over seeds, their intervals below",
        columns=COLUMNS,
        rows=tuple(map(_row, findings.trained)),
    )
    return (table,)


def _row(each: Trained) -> tuple[Cell, ...]:
    cell = each.cell
    return (
        Cell(text=printable(cell.workload), key=cell.workload),
        Cell(text=printable(cell.method), key=cell.method),
        Cell(text=count(cell.num_ranks), key=cell.num_ranks),
        Cell(text=count(cell.batch_samples), key=cell.batch_samples),
        Cell(text=count(each.num_samples), key=each.num_samples),
        _spread(each.loss),
        Cell(text=ABSENT) if each.accuracy is None else _spread(each.accuracy),
        Cell(text=format_duration(each.seconds.value), key=each.seconds.value),
        Cell(text=count(each.num_seeds), key=each.num_seeds),
    )


def _spread(found: Spread) -> Cell:
    return Cell(text=ratio(found.value), key=found.value, detail=within(found))


SECTION: Final[Section[SweepNow]] = Section(
    name="trainings", title="Trainings", needs=("trained",), blocks=_blocks
)
