"""Every figure of the entries side by side, each with its source."""

from typing import Final

from equipoise.report.blocks import Block, Table
from equipoise.report.section import Section
from equipoise.report.sections.entries import COLUMNS, entry_row
from equipoise.study.findings import ComparedFindings


def _blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    table = Table(
        name="compared-entries",
        caption="The entries as MLPerf published them; sources are paths in the repository of the round",
        columns=COLUMNS,
        rows=tuple(entry_row(row) for row in findings.chosen.iter_rows(named=True)),
    )
    return (table,)


SECTION: Final[Section[ComparedFindings]] = Section(
    name="figures", title="Every figure", needs=("workload",), blocks=_blocks
)
