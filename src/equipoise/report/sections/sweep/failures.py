"""Why runs failed, each reason once."""

from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.report.blocks import Block, Cell, Column, Table, prose
from equipoise.report.section import Section
from equipoise.report.sweep_text import way
from equipoise.report.words import count, printable, sentence


def _blocks(findings: SweepNow) -> tuple[Block, ...]:
    failures = findings.failures
    if not failures:
        return (prose("No run failed."),)
    table = Table(
        name="failures",
        caption="Runs that failed, by reason",
        columns=(
            Column(title="Workload", is_header=True),
            Column(title="Strategy"),
            Column(title="Runs", is_number=True),
            Column(title="Reason"),
        ),
        rows=tuple(
            (
                Cell(text=printable(each.cell.workload), key=each.cell.workload),
                Cell(text=way(each.cell), key=way(each.cell)),
                Cell(text=count(each.num_cells), key=each.num_cells),
                Cell(text=sentence(each.reason), key=each.reason),
            )
            for each in failures
        ),
    )
    return (table,)


SECTION: Final[Section[SweepNow]] = Section(
    name="failures", title="What failed", needs=("swept",), blocks=_blocks
)
