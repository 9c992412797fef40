"""The sections of an advice's page, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.findings import AdviceFindings
from equipoise.report.section import Section
from equipoise.report.sections.advice import (
    answer,
    buying,
    close,
    evidence,
    money,
    record,
    renting,
    run,
    sizes,
)

SECTIONS: Final[tuple[Section[AdviceFindings], ...]] = (
    answer.SECTION,
    sizes.SECTION,
    money.SECTION,
    renting.SECTION,
    buying.SECTION,
    close.SECTION,
    evidence.SECTION,
    record.SECTION,
    run.SECTION,
)
