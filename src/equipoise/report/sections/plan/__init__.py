"""The sections of a plan's page, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.findings import PlanFindings
from equipoise.report.section import Section
from equipoise.report.sections.plan import (
    answer,
    assumed,
    choices,
    memory,
    method,
    record,
    sizes,
    spent,
    trade,
)

SECTIONS: Final[tuple[Section[PlanFindings], ...]] = (
    answer.SECTION,
    sizes.SECTION,
    trade.SECTION,
    spent.SECTION,
    memory.SECTION,
    choices.SECTION,
    record.SECTION,
    assumed.SECTION,
    method.SECTION,
)
