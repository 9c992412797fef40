"""How wrong forecasts of published results were."""

from typing import Final

from equipoise.report.blocks import Block
from equipoise.report.section import Section
from equipoise.report.sections.record import record_blocks
from equipoise.study.findings import AccuracyFindings

OF: Final = (
    "Forecasts of times at sizes that nobody ran come from one law that shares its shape across "
    "accelerators and rounds. "
)


def _blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    assert findings.forecasts is not None
    return record_blocks(findings.forecasts, OF)


SECTION: Final[Section[AccuracyFindings]] = Section(
    name="forecasts", title="Forecasts of published results", needs=("forecasts",), blocks=_blocks
)
